//! The one thread that writes, and the handle that everybody else has.
//!
//! Writes wait in a bounded queue. The thread takes what is there, checks each against the state the ones before it will leave, makes the
//! group permanent, publishes it in the order of the revisions and answers. While it waits for the disk the next group gathers. After an
//! error of the disk it refuses what comes, and opens the database again after a while; a revision is never given out twice.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use jiff::Timestamp;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};

use super::{
    super::{
        collection::{Change, Collection, CommitError, Sealed},
        log::Event,
        object::{EventType, Key, Object},
    },
    CopyError, Journal, StoreError, copy,
    journal::{Discarded, Group, NOTES, RECORDS, Reader},
    record,
};

/// How many writes may wait.
const QUEUE: usize = 4096;
/// The most writes of one group.
const MOST_WRITES: usize = 1024;
/// From so many on, records that nobody needs are removed with the next group; before that when the store is tidied.
const MANY_UNNEEDED: usize = 512;
/// How many of them a group removes, so that no write waits long for them.
const MOST_REMOVED: usize = 1024;
/// How long the database is left alone after an error, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

type Answer = oneshot::Sender<Result<Arc<Object>, CommitError>>;

enum Message {
    Commit {
        collection: Arc<Collection>,
        change: Change,
        now: Timestamp,
        answer: Answer,
    },
    /// Make permanent what lies aside, and say when it is to whoever asks.
    Settle(Option<oneshot::Sender<Result<(), Arc<StoreError>>>>),
    /// Remove what nobody needs, however little it is.
    Tidy,
    Close(oneshot::Sender<()>),
}

/// What waits beside the queue: it is taken with the next group, so it is permanent no later than any write that is begun after it.
#[derive(Debug, Default)]
pub(super) struct Aside {
    notes: Mutex<Notes>,
    discarded: Mutex<FxHashMap<Arc<str>, Discarded>>,
}

/// Changed notes that are not permanent yet, each with the number of its change.
#[derive(Debug, Default)]
struct Notes {
    changes: u64,
    waiting: BTreeMap<String, (u64, Option<Bytes>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The door to the writing thread. Cheap to clone; the thread ends when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Message>,
    aside: Arc<Aside>,
    reader: Reader,
}

/// Where the thread gets its work from.
pub(super) struct Queue(mpsc::Receiver<Message>);

impl Writer {
    pub(super) fn new(reader: Reader) -> (Self, Queue) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let writer = Writer {
            queue,
            aside: Arc::default(),
            reader,
        };
        (writer, Queue(receiver))
    }

    pub(super) fn aside(&self) -> Arc<Aside> {
        self.aside.clone()
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
        {
            let mut notes = lock(&self.aside.notes);
            notes.changes += 1;
            let change = notes.changes;
            notes.waiting.insert(key, (change, value));
        }
        // If the queue is full, the next group takes it anyway.
        let _ = self.queue.try_send(Message::Settle(None));
    }

    /// The notes whose keys begin so.
    pub(in crate::store) fn notes(&self, prefix: &str) -> BTreeMap<String, Bytes> {
        // First what is permanent, then what is on its way: in the other order a value could be missed in between.
        let waiting = |found: &mut BTreeMap<String, Bytes>| {
            let notes = lock(&self.aside.notes);
            let from = notes.waiting.range(prefix.to_owned()..);
            for (key, (_, value)) in from.take_while(|(key, _)| key.starts_with(prefix)) {
                match value {
                    Some(value) => found.insert(key.clone(), value.clone()),
                    None => found.remove(key),
                };
            }
        };
        let mut before = BTreeMap::new();
        waiting(&mut before);
        let mut found = self.permanent_notes(prefix).unwrap_or_default();
        found.extend(before);
        waiting(&mut found);
        found
    }

    fn permanent_notes(&self, prefix: &str) -> Option<BTreeMap<String, Bytes>> {
        let read = self.reader.begin()?;
        let notes = read.open_table(NOTES).ok()?;
        let mut found = BTreeMap::new();
        for row in notes.range(prefix..).ok()? {
            let (key, value) = row.ok()?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.insert(
                key.value().to_owned(),
                Bytes::copy_from_slice(value.value()),
            );
        }
        Some(found)
    }

    /// Waits until every note so far is permanent.
    pub(in crate::store) async fn settle(&self) -> Result<(), Arc<StoreError>> {
        let closed = || Arc::new(StoreError::Closed);
        let (answer, answered) = oneshot::channel();
        let message = Message::Settle(Some(answer));
        self.queue.send(message).await.map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Removes what nobody needs. If the queue is full, that can wait.
    pub(in crate::store) fn tidy(&self) {
        let _ = self.queue.try_send(Message::Tidy);
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

    /// When a record was written.
    pub(in crate::store) fn written_at(&self, revision: u64) -> Timestamp {
        let read = || {
            let records = self.reader.begin()?.open_table(RECORDS).ok()?;
            let bytes = records.get(revision).ok()??;
            Timestamp::from_second(record::written_at(bytes.value())?).ok()
        };
        read().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Writes a copy of everything that is permanent.
    pub(in crate::store) fn copy_to(&self, out: &mut dyn io::Write) -> Result<(), CopyError> {
        let read = self.reader.begin().ok_or(CopyError::Closed)?;
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

impl Aside {
    fn discard(&self, name: &Arc<str>, compacted: u64, revisions: &[u64]) {
        let mut all = lock(&self.discarded);
        let discarded = all.entry(name.clone()).or_default();
        discarded.compacted = discarded.compacted.max(compacted);
        discarded.revisions.extend_from_slice(revisions);
    }

    /// Gives back what a failed group would have removed. It is the oldest: a deletion must not go before the versions it deleted, or a
    /// restart would bring one of them back.
    fn put_back(&self, taken: Vec<(Arc<str>, Discarded)>) {
        let mut all = lock(&self.discarded);
        for (name, mut discarded) in taken {
            let newer = all.entry(name).or_default();
            discarded.revisions.append(&mut newer.revisions);
            newer.revisions = discarded.revisions;
            newer.compacted = newer.compacted.max(discarded.compacted);
        }
    }

    /// Takes what one group removes, the oldest first; nothing unless it is many or all is wanted.
    fn take_discarded(&self, all_of_it: bool) -> Vec<(Arc<str>, Discarded)> {
        let mut all = lock(&self.discarded);
        let many: usize = all
            .values()
            .map(|discarded| discarded.revisions.len())
            .sum();
        if all.is_empty() || !(all_of_it || many >= MANY_UNNEEDED) {
            return Vec::new();
        }
        let mut taken = Vec::new();
        let mut room = MOST_REMOVED;
        all.retain(|name, discarded| {
            if room == 0 {
                return true;
            }
            let rest = discarded
                .revisions
                .split_off(room.min(discarded.revisions.len()));
            room -= discarded.revisions.len();
            let part = Discarded {
                compacted: discarded.compacted,
                revisions: std::mem::replace(&mut discarded.revisions, rest),
            };
            taken.push((name.clone(), part));
            !discarded.revisions.is_empty()
        });
        for (_, discarded) in &mut taken {
            // Neighbours lie in the same page.
            discarded.revisions.sort_unstable();
        }
        taken
    }

    fn waiting_notes(&self) -> Vec<(String, (u64, Option<Bytes>))> {
        let notes = lock(&self.notes);
        notes
            .waiting
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Forgets notes that are permanent now, unless they have changed again.
    fn forget(&self, stored: &[(String, u64)]) {
        let mut notes = lock(&self.notes);
        for (key, change) in stored {
            if notes
                .waiting
                .get(key)
                .is_some_and(|(last, _)| last == change)
            {
                notes.waiting.remove(key);
            }
        }
    }
}

/// Starts the thread.
pub(super) fn start(
    journal: Journal,
    queue: Queue,
    aside: Arc<Aside>,
    revision: Arc<AtomicU64>,
) -> Result<(), StoreError> {
    let path = journal.directory();
    let thread = Thread {
        journal,
        aside,
        last: revision.load(Ordering::Acquire),
        revision,
        broken: None,
        unsure: Vec::new(),
    };
    let started = std::thread::Builder::new()
        .name("store".into())
        .spawn(move || thread.run(queue.0));
    match started {
        Ok(_) => Ok(()),
        Err(source) => Err(StoreError::Io { path, source }),
    }
}

/// A write of a group that has its revision.
struct Write {
    collection: Arc<Collection>,
    sealed: Sealed,
    now: Timestamp,
}

/// Since when the database is not to be used.
struct Broken {
    why: Arc<StoreError>,
    until: Instant,
    wait: Duration,
}

struct Thread {
    journal: Journal,
    aside: Arc<Aside>,
    /// What is published up to now.
    revision: Arc<AtomicU64>,
    /// The last revision that was given to a write, published or not.
    last: u64,
    broken: Option<Broken>,
    /// Writes whose group failed: they may be permanent all the same.
    unsure: Vec<Write>,
}

impl Thread {
    fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut closing = None;
        while closing.is_none()
            && let Some(first) = queue.blocking_recv()
        {
            closing = self.group(first, &mut queue);
        }
        // Whoever comes now is told that the store is closed.
        queue.close();
        while !lock(&self.aside.discarded).is_empty() && self.broken.is_none() {
            let _ = self.store(Vec::new(), true);
        }
        self.journal.close();
        drop(self);
        if let Some(closing) = closing {
            // Whoever asked may have given up.
            let _ = closing.send(());
        }
    }

    /// Handles a message and those that have come meanwhile. Answers with who asks to close.
    fn group(
        &mut self,
        first: Message,
        queue: &mut mpsc::Receiver<Message>,
    ) -> Option<oneshot::Sender<()>> {
        let mut writes = Vec::new();
        let mut answers = Vec::new();
        let mut settled = Vec::new();
        let mut tidy = false;
        let mut closing = None;
        let mut pending: FxHashMap<(*const Collection, Key), Option<u64>> = FxHashMap::default();
        // What turns out to be permanent after all has to be seen before anything is checked.
        let usable = self.mend();
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Commit { answer, .. } if usable.is_err() => answers.push((answer, None)),
                Message::Commit {
                    collection,
                    change,
                    now,
                    answer,
                } => {
                    let place = (Arc::as_ptr(&collection), change.key().clone());
                    let current = match pending.get(&place) {
                        Some(current) => *current,
                        None => collection
                            .get(change.key().as_str())
                            .map(|object| object.revision()),
                    };
                    if change.holds(current) {
                        self.last += 1;
                        let sealed = change.seal(self.last);
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
                Message::Settle(answer) => {
                    settled.extend(answer);
                }
                Message::Tidy => tidy = true,
                Message::Close(answer) => {
                    closing = Some(answer);
                    break;
                }
            }
            next = match answers.len() < MOST_WRITES {
                true => queue.try_recv().ok(),
                false => None,
            };
        }
        let stored = match &usable {
            Ok(()) => self.store(writes, tidy || closing.is_some()),
            Err(why) => Err(why.clone()),
        };
        // Who gave up waiting needs no answer.
        for (answer, made) in answers {
            let _ = answer.send(match (&usable, made, &stored) {
                (Err(why), ..) | (Ok(()), Some(_), Err(why)) => {
                    Err(CommitError::NotStored(why.clone()))
                }
                (Ok(()), None, _) => Err(CommitError::Stale),
                (Ok(()), Some(object), Ok(())) => Ok(object),
            });
        }
        for answer in settled {
            let _ = answer.send(stored.clone());
        }
        closing
    }

    /// Makes writes permanent, with what lies aside, and publishes them.
    fn store(&mut self, writes: Vec<Write>, tidy: bool) -> Result<(), Arc<StoreError>> {
        // Taken after the writes were: what was noted before one of them was begun is here.
        let noted = self.aside.waiting_notes();
        let changes: Vec<(String, u64)> = noted
            .iter()
            .map(|(key, (change, _))| (key.clone(), *change))
            .collect();
        let group = Group {
            writes: writes
                .iter()
                .map(|write| {
                    let at = write.now.as_second();
                    (write.collection.name(), at, &write.sealed)
                })
                .collect(),
            notes: noted
                .into_iter()
                .map(|(key, (_, value))| (key, value))
                .collect(),
            discarded: self.aside.take_discarded(tidy),
        };
        if group.writes.is_empty() && group.notes.is_empty() && group.discarded.is_empty() {
            return Ok(());
        }
        match self.journal.commit(&group) {
            Ok(()) => {
                self.aside.forget(&changes);
                self.publish(writes);
                Ok(())
            }
            Err(error) => {
                self.aside.put_back(group.discarded);
                self.unsure = writes;
                Err(self.broke(error))
            }
        }
    }

    fn broke(&mut self, error: StoreError) -> Arc<StoreError> {
        tracing::error!(%error, "writes cannot be made permanent");
        let why = Arc::new(error);
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

    /// Opens the database again after an error, if it is time. What then turns out to be permanent is published.
    fn mend(&mut self) -> Result<(), Arc<StoreError>> {
        let Some(broken) = &self.broken else {
            return Ok(());
        };
        if Instant::now() < broken.until {
            return Err(broken.why.clone());
        }
        match self.journal.connect() {
            Ok(permanent) => {
                tracing::warn!("writes can be made permanent again");
                self.broken = None;
                let unsure = std::mem::take(&mut self.unsure);
                let last = unsure.last().map(|write| write.sealed.object.revision());
                if last.is_some_and(|last| last <= permanent) {
                    self.publish(unsure);
                }
                Ok(())
            }
            Err(error) => Err(self.broke(error)),
        }
    }

    /// Puts permanent writes where readers find them, in the order of their revisions.
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
                self.revision.store(last, Ordering::Release);
                dropped.extend(state.publish(write.sealed, write.now));
                next = writes.next_if(|next| Arc::ptr_eq(&next.collection, &collection));
            }
            let compacted = state.log.compacted();
            drop(state);
            if !dropped.is_empty() {
                let unneeded = unneeded(&dropped);
                self.aside.discard(collection.name(), compacted, &unneeded);
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
            collection.published.send_replace(revision);
        }
    }
}

/// The records that nobody needs when events are forgotten: the versions they replaced, and deletions themselves.
fn unneeded(dropped: &[Event]) -> Vec<u64> {
    let mut revisions = Vec::with_capacity(dropped.len());
    for event in dropped {
        revisions.extend(event.previous.as_ref().map(|previous| previous.revision()));
        if event.event_type == EventType::Deleted {
            revisions.push(event.revision());
        }
    }
    revisions
}
