//! The handle to the writer thread ([`super::thread`]): a bounded queue, and the state that waits beside the queue.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, mpsc::sync_channel},
    time::{Duration, Instant},
};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

use super::{
    super::{
        collection::{Change, Collection, CommitError},
        log::Event,
        object::{EventType, Object},
    },
    CopyError, StoreError, copy,
    folder::{Done, Fatal},
    pending::PendingState,
    tables::Tables,
};

/// The number of messages that the queue holds.
const QUEUE: usize = 4096;
/// The time that a copy waits until the journal is folded into the tables.
const FOLD_PATIENCE: Duration = Duration::from_secs(60);
/// The interval at which a blocked thread checks whether the queue has room.
const ROOM_CHECK: Duration = Duration::from_millis(5);

pub(super) type Answer = oneshot::Sender<Result<Arc<Object>, CommitError>>;

pub(super) enum Message {
    Commit {
        collection: Arc<Collection>,
        change: Change,
        now: Timestamp,
        answer: Answer,
    },
    /// Make the waiting notes permanent, then answer if there is a sender.
    Settle(Option<oneshot::Sender<Result<(), Arc<StoreError>>>>),
    /// Fold the journal into the tables and remove unneeded records. With a sender this is done at once, without one only if the folder is
    /// idle.
    Fold(Option<Done>),
    Close(oneshot::Sender<()>),
}

/// The handle to the writer thread. It is cheap to clone; the thread ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Message>,
    pending: Arc<PendingState>,
    tables: Arc<Tables>,
    fatal: Fatal,
}

/// The receiving end of the queue, for the thread.
pub(super) struct Queue(pub(super) mpsc::Receiver<Message>);

impl Writer {
    pub(super) fn new(tables: Arc<Tables>, notes: BTreeMap<String, Bytes>) -> (Self, Queue) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let writer = Writer {
            queue,
            pending: Arc::new(PendingState::new(notes)),
            tables,
            fatal: Fatal::default(),
        };
        (writer, Queue(receiver))
    }

    pub(super) fn pending(&self) -> Arc<PendingState> {
        self.pending.clone()
    }

    pub(super) fn fatal(&self) -> Fatal {
        self.fatal.clone()
    }

    /// Returns the error after which no write is accepted any more, if there was one.
    pub(crate) fn failure(&self) -> Option<Arc<StoreError>> {
        self.fatal.get().cloned()
    }

    /// Makes a change permanent and publishes it.
    pub(crate) async fn commit(
        &self,
        collection: Arc<Collection>,
        change: Change,
        now: Timestamp,
    ) -> Result<Arc<Object>, CommitError> {
        let closed = || CommitError::NotStored(Arc::new(StoreError::Closed));
        let (answer, answered) = oneshot::channel();
        let message = Message::Commit {
            collection,
            change,
            now,
            answer,
        };
        self.queue.send(message).await.map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Sets the note under a key, or removes it if the value is `None`. The call does not wait.
    pub(crate) fn note(&self, key: String, value: Option<Bytes>) {
        self.pending.note(key, value);
        // If the queue is full, the next group takes it anyway.
        let _ = self.queue.try_send(Message::Settle(None));
    }

    /// Returns the notes whose keys begin with `prefix`.
    pub(crate) fn notes(&self, prefix: &str) -> BTreeMap<String, Bytes> {
        self.pending.notes(prefix)
    }

    /// Waits until all notes that were set so far are permanent.
    pub(crate) async fn settle(&self) -> Result<(), Arc<StoreError>> {
        let closed = || Arc::new(StoreError::Closed);
        let (answer, answered) = oneshot::channel();
        let message = Message::Settle(Some(answer));
        self.queue.send(message).await.map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Asks for a fold of the journal and the removal of unneeded records. The request is dropped if the queue is full, because a later one
    /// does the same.
    pub(crate) fn tidy(&self) {
        let _ = self.queue.try_send(Message::Fold(None));
    }

    /// Marks the records of events that a collection's window has dropped as unneeded.
    pub(crate) fn discard(&self, name: &Arc<str>, compacted: u64, dropped: &[Event]) {
        if !dropped.is_empty() {
            self.discard_records(name, compacted, &unneeded(dropped));
        }
    }

    /// Adds records to be removed, and the revision up to which a collection's events are missing.
    pub(crate) fn discard_records(&self, name: &Arc<str>, compacted: u64, revisions: &[u64]) {
        self.pending.discard(name, compacted, revisions);
    }

    /// Returns the times at which the records of these revisions were written, for records that the store was opened with.
    pub(crate) fn written_at(&self, revisions: &[u64]) -> Vec<Timestamp> {
        self.tables.written_at(revisions)
    }

    /// Writes a copy of all permanent data to `out`. The call blocks its thread.
    pub(crate) fn copy_to(&self, out: &mut dyn io::Write) -> Result<(), CopyError> {
        let until = Instant::now() + FOLD_PATIENCE;
        let (done, folded) = sync_channel(1);
        // A copy reads the tables, so everything acknowledged so far has to be in them first.
        let mut message = Message::Fold(Some(done));
        while let Err(refused) = self.queue.try_send(message) {
            let TrySendError::Full(again) = refused else {
                return Err(CopyError::Closed);
            };
            if Instant::now() >= until {
                return Err(CopyError::Late);
            }
            std::thread::sleep(ROOM_CHECK);
            message = again;
        }
        let folded = folded.recv_timeout(until.saturating_duration_since(Instant::now()));
        folded
            .map_err(|_| CopyError::Late)?
            .map_err(CopyError::NotFolded)?;
        let read = self.tables.begin().ok_or(CopyError::Closed)?;
        copy::write(&read, out)
    }

    /// Stops the thread after it has handled the queue, and waits until it has released the directory.
    pub(crate) async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        if self.queue.send(Message::Close(answer)).await.is_ok() {
            // An error here means that the thread has already ended.
            let _ = answered.await;
        }
    }
}

/// Returns the records that are unneeded once these events are dropped: the versions that they replaced, and the deletions themselves.
pub(super) fn unneeded(dropped: &[Event]) -> Vec<u64> {
    let mut revisions = Vec::with_capacity(dropped.len());
    for event in dropped {
        revisions.extend(event.previous.as_ref().map(|previous| previous.revision()));
        if event.event_type == EventType::Deleted {
            revisions.push(event.revision());
        }
    }
    revisions
}
