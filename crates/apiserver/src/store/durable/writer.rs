//! The door to the thread that writes ([`super::thread`]): a bounded queue, and what waits beside it.

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
    CopyError, StoreError,
    aside::Aside,
    copy,
    folder::{Done, Fatal},
    tables::Tables,
};

/// How many writes may wait.
const QUEUE: usize = 4096;
/// How long a copy waits until everything is in the tables.
const FOLD_PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether the queue has room, by whoever may not wait for it.
const ROOM_CHECK: Duration = Duration::from_millis(5);

pub(super) type Answer = oneshot::Sender<Result<Arc<Object>, CommitError>>;

pub(super) enum Message {
    Commit {
        collection: Arc<Collection>,
        change: Change,
        now: Timestamp,
        answer: Answer,
    },
    /// Make permanent what lies aside, and say when it is to whoever asks.
    Settle(Option<oneshot::Sender<Result<(), Arc<StoreError>>>>),
    /// Move the journal into the tables and remove what nobody needs, if nothing is in the way or somebody waits for it.
    Fold(Option<Done>),
    Close(oneshot::Sender<()>),
}

/// The door. Cheap to clone; the thread ends when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Message>,
    aside: Arc<Aside>,
    tables: Arc<Tables>,
    fatal: Fatal,
}

/// Where the thread gets its work from.
pub(super) struct Queue(pub(super) mpsc::Receiver<Message>);

impl Writer {
    pub(super) fn new(tables: Arc<Tables>, notes: BTreeMap<String, Bytes>) -> (Self, Queue) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let writer = Writer {
            queue,
            aside: Arc::new(Aside::new(notes)),
            tables,
            fatal: Fatal::default(),
        };
        (writer, Queue(receiver))
    }

    pub(super) fn aside(&self) -> Arc<Aside> {
        self.aside.clone()
    }

    pub(super) fn fatal(&self) -> Fatal {
        self.fatal.clone()
    }

    /// Why no write is taken any more, once that is so.
    pub(in crate::store) fn failure(&self) -> Option<Arc<StoreError>> {
        self.fatal.get().cloned()
    }

    /// Makes a change permanent and publishes it.
    pub(in crate::store) async fn commit(
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

    /// Notes a value, or that there is none any more.
    pub(in crate::store) fn note(&self, key: String, value: Option<Bytes>) {
        self.aside.note(key, value);
        // If the queue is full, the next group takes it anyway.
        let _ = self.queue.try_send(Message::Settle(None));
    }

    /// The notes whose keys begin so.
    pub(in crate::store) fn notes(&self, prefix: &str) -> BTreeMap<String, Bytes> {
        self.aside.notes(prefix)
    }

    /// Waits until every note so far is permanent.
    pub(in crate::store) async fn settle(&self) -> Result<(), Arc<StoreError>> {
        let closed = || Arc::new(StoreError::Closed);
        let (answer, answered) = oneshot::channel();
        let message = Message::Settle(Some(answer));
        self.queue.send(message).await.map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Moves the journal into the tables and removes what nobody needs. If the queue is full, that can wait.
    pub(in crate::store) fn tidy(&self) {
        let _ = self.queue.try_send(Message::Fold(None));
    }

    /// Remembers what a collection's window has let go of.
    pub(in crate::store) fn discard(&self, name: &Arc<str>, compacted: u64, dropped: &[Event]) {
        if !dropped.is_empty() {
            self.discard_records(name, compacted, &unneeded(dropped));
        }
    }

    /// Remembers records that nobody needs, now that a collection's events are missing up to a revision.
    pub(in crate::store) fn discard_records(
        &self,
        name: &Arc<str>,
        compacted: u64,
        revisions: &[u64],
    ) {
        self.aside.discard(name, compacted, revisions);
    }

    /// When records were written that were there when the store was opened.
    pub(in crate::store) fn written_at(&self, revisions: &[u64]) -> Vec<Timestamp> {
        self.tables.written_at(revisions)
    }

    /// Writes a copy of everything that is permanent. Blocks the thread.
    pub(in crate::store) fn copy_to(&self, out: &mut dyn io::Write) -> Result<(), CopyError> {
        let until = Instant::now() + FOLD_PATIENCE;
        let (done, folded) = sync_channel(1);
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

    /// Ends the thread after what is in the queue, and waits until it has let go of the directory.
    pub(in crate::store) async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        if self.queue.send(Message::Close(answer)).await.is_ok() {
            // It may have ended without an answer; ended it has.
            let _ = answered.await;
        }
    }
}

/// The records that nobody needs when events are forgotten: the versions they replaced, and deletions themselves.
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
