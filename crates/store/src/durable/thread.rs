//! The one thread that writes.
//!
//! It takes what has come meanwhile, checks each write against the state the ones before it will leave, makes the group permanent with
//! one entry in the journal, publishes it in the order of the revisions and answers. While it waits for the disk the next group gathers.
//! When no write has come for a while, the journal is marked: all of its entries were acknowledged.
//! A group that the disk refuses is refused, and others as well for a while; after a sync that failed nothing is taken any more. A
//! revision is never given out twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, sync_channel},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread as Handle},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};

use super::{
    super::{
        collection::{Collection, CommitError, UnpublishedChange},
        object::{EventType, Key},
    },
    StoreError,
    folder::{Done, Fatal, Folder},
    journal::{Entry, Journal},
    pending::PendingState,
    record,
    tables::{Fold, JournalState, Tables},
    writer::{Message, Queue, unneeded},
};

/// The most writes of one group.
const MOST_WRITES: usize = 1024;
/// A group is not made larger when it has so many bytes.
const MOST_BYTES: usize = 4 << 20;
/// The first and the longest pause before the disk is tried again after an error.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// The interval at which a waiting thread checks the folder for trouble.
const FOLD_CHECK: Duration = Duration::from_millis(20);
/// The time that a write waits for a full journal to be folded.
const FOLD_PATIENCE: Duration = Duration::from_secs(30);

/// Wakes a thread that is parked.
struct Unpark(Handle);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for the next message, which is none when the queue is closed; returns `None` if `patience` ends first.
fn next_within(patience: Duration, queue: &mut mpsc::Receiver<Message>) -> Option<Option<Message>> {
    let until = Instant::now() + patience;
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(message) = queue.poll_recv(&mut context) {
            return Some(message);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// The state that the thread starts with.
pub(super) struct Start {
    pub(super) journal: Journal,
    pub(super) tables: Arc<Tables>,
    pub(super) numbers: FxHashMap<Arc<str>, u32>,
    pub(super) pending: Arc<PendingState>,
    pub(super) revision: Arc<AtomicU64>,
    pub(super) fatal: Fatal,
}

/// Starts the thread.
pub(super) fn start(start: Start, queue: Queue) -> Result<(), StoreError> {
    let path = start.tables.directory().path().to_owned();
    let failed = |source| {
        let path = path.clone();
        StoreError::Io { path, source }
    };
    let thread = Thread {
        folder: Folder::start(start.tables.clone(), start.fatal.clone())?,
        journal: start.journal,
        tables: start.tables,
        numbers: start.numbers,
        entry: Entry::default(),
        pending: start.pending,
        last: start.revision.load(Ordering::Acquire),
        revision: start.revision,
        broken: None,
        fatal: start.fatal,
    };
    let started = std::thread::Builder::new()
        .name("store".into())
        .spawn(move || thread.run(queue.0));
    started.map(drop).map_err(failed)
}

/// A write of a group that has its revision.
struct Write {
    collection: Arc<Collection>,
    sealed: UnpublishedChange,
    now: Timestamp,
}

/// Since when the disk refuses what is written.
struct Broken {
    why: Arc<StoreError>,
    until: Instant,
    wait: Duration,
}

struct Thread {
    journal: Journal,
    folder: Folder,
    tables: Arc<Tables>,
    /// By name, the numbers that the journal knows.
    numbers: FxHashMap<Arc<str>, u32>,
    entry: Entry,
    pending: Arc<PendingState>,
    /// The revision up to which writes are published.
    revision: Arc<AtomicU64>,
    /// The last revision that was given to a write, published or not.
    last: u64,
    broken: Option<Broken>,
    fatal: Fatal,
}

impl Thread {
    fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut closing = None;
        while closing.is_none()
            && let Some(first) = self.next(&mut queue)
        {
            // The queue is drained up to the closing message only; later senders find it closed.
            closing = self.group(first, &mut queue);
        }
        // Whoever comes now is told that the store is closed.
        queue.close();
        if let Err(error) = self.finish() {
            // The next start reads the journal.
            tracing::warn!(%error, "the journal was not moved into the tables");
        }
        let tables = self.tables.clone();
        drop(self);
        // The directory is free before `close` returns, so that another process can open it at once.
        tables.release();
        if let Some(closing) = closing {
            // Whoever asked may have given up.
            let _ = closing.send(());
        }
    }

    /// Waits for the next message. If none comes for a while, the journal is marked meanwhile.
    fn next(&mut self, queue: &mut mpsc::Receiver<Message>) -> Option<Message> {
        if self.fatal.get().is_none()
            // A mark costs a sync, so it is written when writes pause and no one waits for the disk.
            && let Some(patience) = self.journal.mark_in()
        {
            if let Some(message) = next_within(patience, queue) {
                return message;
            }
            if let Err(error) = self.journal.mark() {
                self.broke(error);
            }
        }
        queue.blocking_recv()
    }

    /// Moves everything into the tables, so that they alone hold the store.
    fn finish(&mut self) -> Result<(), Arc<StoreError>> {
        if let Some(why) = self.fatal.get() {
            return Err(why.clone());
        }
        self.wait_for_folder()?;
        let (done, folded) = sync_channel(1);
        let closed = JournalState::Closed(self.journal.last());
        self.fold(Some(closed), Some(done))?;
        loop {
            match folded.recv_timeout(FOLD_CHECK) {
                Ok(done) => break done?,
                Err(RecvTimeoutError::Timeout) => self.wait_for_folder()?,
                Err(RecvTimeoutError::Disconnected) => return Err(Arc::new(StoreError::Closed)),
            }
        }
        self.tables.directory().remove_journal().map_err(Arc::new)
    }

    /// Handles a message and those that have come meanwhile. Answers with who asks to close.
    fn group(
        &mut self,
        first: Message,
        queue: &mut mpsc::Receiver<Message>,
    ) -> Option<oneshot::Sender<()>> {
        let mut writes = Vec::new();
        let mut bytes = 0;
        let mut answers = Vec::new();
        let mut settled = Vec::new();
        let mut folds = Vec::new();
        let mut closing = None;
        let mut pending: FxHashMap<(*const Collection, Key), Option<u64>> = FxHashMap::default();
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Commit {
                    collection,
                    change,
                    now,
                    answer,
                } => {
                    let place = (Arc::as_ptr(&collection), change.key().clone());
                    // Earlier writes of the group are not in the index yet, but this write must be checked
                    // against their outcome.
                    let current = match pending.get(&place) {
                        Some(current) => *current,
                        None => collection
                            .get(change.key().as_str())
                            .map(|object| object.revision()),
                    };
                    if change.holds(current) {
                        self.last += 1;
                        let sealed = change.seal(self.last);
                        bytes += record::encoded_len(&sealed);
                        let after = (sealed.event_type != EventType::Deleted).then_some(self.last);
                        pending.insert(place, after);
                        answers.push((answer, Some(sealed.object.clone())));
                        writes.push(Write {
                            collection,
                            sealed,
                            now,
                        });
                    } else {
                        answers.push((answer, None));
                    }
                }
                Message::Settle(answer) => settled.extend(answer),
                Message::Fold(done) => folds.push(done),
                Message::Close(answer) => {
                    closing = Some(answer);
                    break;
                }
            }
            next = if answers.len() < MOST_WRITES && bytes < MOST_BYTES {
                queue.try_recv().ok()
            } else {
                None
            };
        }
        let stored = self.store(writes);
        // Who gave up waiting needs no answer.
        for (answer, made) in answers {
            let _ = answer.send(match (made, &stored) {
                (Some(object), Ok(())) => Ok(object),
                // What it came too late for may be a write of this group.
                (_, Err(why)) => Err(CommitError::NotStored(why.clone())),
                (None, Ok(())) => Err(CommitError::Stale),
            });
        }
        for answer in settled {
            let _ = answer.send(stored.clone());
        }
        for done in folds {
            self.fold_for(done);
        }
        closing
    }

    /// Makes writes permanent, together with the waiting notes, and publishes them.
    fn store(&mut self, writes: Vec<Write>) -> Result<(), Arc<StoreError>> {
        // Taken after the writes were: what was noted before one of them was begun is here.
        let noted = self.pending.waiting_notes();
        if writes.is_empty() && noted.is_empty() {
            return Ok(());
        }
        self.check_usable()?;
        self.entry.begin();
        let mut new_numbers = Vec::new();
        for write in &writes {
            let name = write.collection.name();
            let number = match self.numbers.get(name) {
                Some(number) => *number,
                None => {
                    let number = self.numbers.len() as u32;
                    self.entry.collection(number, name);
                    self.numbers.insert(name.clone(), number);
                    new_numbers.push(name.clone());
                    number
                }
            };
            let at = write.now.as_second();
            self.entry.record(number, at, &write.sealed);
        }
        for (key, (_, value)) in &noted {
            self.entry.note(key, value.as_deref());
        }
        let appended = self.journal.append(&self.entry);
        // The numbers are not in the journal, so a later entry has to introduce them again. The revisions
        // stay used: the refused entry may be on disk.
        if let Err(error) = appended {
            for name in new_numbers {
                self.numbers.remove(&name);
            }
            return Err(self.broke(error));
        }
        self.broken = None;
        self.pending.settled(&noted);
        self.publish(writes);
        Ok(())
    }

    /// Returns an error if the disk cannot be written at present, and makes room in the journal.
    fn check_usable(&mut self) -> Result<(), Arc<StoreError>> {
        if let Some(why) = self.fatal.get() {
            return Err(why.clone());
        }
        if let Some(broken) = &self.broken
            && Instant::now() < broken.until
        {
            return Err(broken.why.clone());
        }
        if self.journal.is_full() {
            // A full file may still grow while the folder is busy, so that writes rarely wait for it.
            if self.journal.is_overfull() {
                self.wait_for_folder()?;
            }
            if self.folder.is_idle() {
                self.fold(None, None)?;
            }
        }
        Ok(())
    }

    fn wait_for_folder(&self) -> Result<(), Arc<StoreError>> {
        self.folder.wait(FOLD_PATIENCE).map_err(|trouble| {
            trouble.unwrap_or_else(|| {
                Arc::new(StoreError::Behind {
                    path: self.tables.path(),
                })
            })
        })
    }

    /// Folds the journal on request: at once for a caller that waits, otherwise only if the folder is idle.
    fn fold_for(&mut self, done: Option<Done>) {
        if self.fatal.get().is_some() || (done.is_none() && !self.folder.is_idle()) {
            // Whoever waits hears that nobody will answer.
            return;
        }
        if done.is_some()
            && let Err(why) = self.wait_for_folder()
        {
            if let Some(done) = done {
                let _ = done.send(Err(why));
            }
            return;
        }
        if let Err(error) = self.fold(None, done) {
            tracing::warn!(%error, "the journal was not moved into the tables");
        }
    }

    /// Gives everything that can be folded to the folder, which must be idle.
    fn fold(
        &mut self,
        journal: Option<JournalState>,
        done: Option<Done>,
    ) -> Result<(), Arc<StoreError>> {
        let part = self.journal.turn();
        let part = part.map_err(|error| self.broke(error))?;
        let discarded = self.pending.take_discarded().into_iter();
        let discarded = discarded
            // A collection without a number has no records.
            .filter_map(|(name, discarded)| Some((*self.numbers.get(&name)?, name, discarded)))
            .collect();
        let fold = Fold {
            part,
            discarded,
            journal,
        };
        if fold.is_empty() {
            if let Some(done) = done {
                // Who gave up waiting needs no answer.
                let _ = done.send(Ok(()));
            }
            return Ok(());
        }
        self.folder.give(fold, done);
        Ok(())
    }

    fn broke(&mut self, error: StoreError) -> Arc<StoreError> {
        let error = match self.journal.unsynced() {
            Some(path) => error.unsynced(path),
            None => error,
        };
        tracing::error!(%error, "writes cannot be made permanent");
        let why = Arc::new(error);
        if matches!(*why, StoreError::Unsynced { .. }) {
            // Whoever was first has said why.
            let _ = self.fatal.set(why.clone());
        }
        let wait = match &self.broken {
            Some(broken) => (broken.wait * 2).min(RETRY.1),
            None => RETRY.0,
        };
        self.broken = Some(Broken {
            why: why.clone(),
            until: Instant::now() + wait,
            wait,
        });
        why
    }

    /// Makes permanent writes visible to readers, in the order of their revisions.
    fn publish(&self, writes: Vec<Write>) {
        let mut touched: Vec<(Arc<Collection>, u64)> = Vec::new();
        let mut dropped = Vec::new();
        let mut writes = writes.into_iter().peekable();
        while let Some(first) = writes.next() {
            let collection = first.collection.clone();
            let mut state = collection.write();
            let mut next = Some(first);
            let mut last = 0;
            while let Some(write) = next {
                last = write.sealed.object.revision();
                // Under the collection's lock, as in memory, so that a list never shows a revision without
                // its change.
                self.revision.store(last, Ordering::Release);
                dropped.extend(state.publish(write.sealed, write.now));
                next = writes.next_if(|next| Arc::ptr_eq(&next.collection, &collection));
            }
            let compacted = state.log.compacted();
            drop(state);
            if !dropped.is_empty() {
                let unneeded = unneeded(&dropped);
                self.pending
                    .discard(collection.name(), compacted, &unneeded);
                dropped.clear();
            }
            match touched
                .iter_mut()
                .find(|(other, _)| Arc::ptr_eq(other, &collection))
            {
                Some((_, revision)) => *revision = last,
                None => touched.push((collection, last)),
            }
        }
        for (collection, revision) in touched {
            // One wake-up per collection and group instead of one per write.
            collection.published.send_replace(revision);
        }
    }
}
