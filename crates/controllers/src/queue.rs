//! The work queue between informers and reconcilers, with client-go's semantics.
//!
//! Invariants: a key waits at most once, however often it is added; no two workers hold the same key; a key that is
//! added while a worker holds it is processed once more afterwards. Failures delay a key by 5 ms, doubling up to
//! 1,000 s.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt::{Debug, Display},
    hash::Hash,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::Context;

/// The delays of failing keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub base: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(5),
            max: Duration::from_secs(1000),
        }
    }
}

impl Backoff {
    /// Returns the delay after a failure that `failures` others preceded.
    pub fn delay(&self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }
}

/// A de-duplicating work queue of keys. Cheap to clone; all clones are one queue.
///
/// # Guarantees
/// - Keys come out in the order in which they were added, each once per burst of additions.
/// - [`Queue::next`] never returns a key that another [`Work`] still holds.
/// - Adding a key with a delay never postpones an earlier deadline.
pub struct Queue<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    name: &'static str,
    backoff: Backoff,
    state: Mutex<State<T>>,
    wake: Notify,
}

struct State<T> {
    ready: VecDeque<T>,
    /// Keys that wait in `ready`, or will once their worker is done.
    dirty: FxHashSet<T>,
    processing: FxHashSet<T>,
    /// Deadlines by time, with a sequence number so that equal times keep their order.
    delayed: BinaryHeap<Reverse<(Instant, u64, ByOrder<T>)>>,
    /// The valid deadline of each delayed key; heap entries with another deadline are stale.
    deadlines: FxHashMap<T, Instant>,
    failures: FxHashMap<T, u32>,
    sequence: u64,
    closed: bool,
}

/// A key without an order of its own in the heap.
struct ByOrder<T>(T);

impl<T> PartialEq for ByOrder<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<T> Eq for ByOrder<T> {}
impl<T> PartialOrd for ByOrder<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for ByOrder<T> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> Debug for Queue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl<T: Clone + Eq + Hash + Send + 'static> Queue<T> {
    /// Creates an empty queue; `name` appears in logs.
    pub fn new(name: &'static str) -> Self {
        Self::with_backoff(name, Backoff::default())
    }

    /// Creates an empty queue with other delays for failing keys.
    pub fn with_backoff(name: &'static str, backoff: Backoff) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: FxHashSet::default(),
            processing: FxHashSet::default(),
            delayed: BinaryHeap::new(),
            deadlines: FxHashMap::default(),
            failures: FxHashMap::default(),
            sequence: 0,
            closed: false,
        };
        Self {
            shared: Arc::new(Shared {
                name,
                backoff,
                state: Mutex::new(state),
                wake: Notify::new(),
            }),
        }
    }

    /// Makes `key` due now.
    pub fn add(&self, key: T) {
        if self.state().make_ready(key) {
            self.shared.wake.notify_one();
        }
    }

    /// Makes `key` due after `delay`, unless it is already due earlier.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let deadline = Instant::now() + delay;
        let mut state = self.state();
        if state.closed
            || state
                .deadlines
                .get(&key)
                .is_some_and(|&earlier| earlier <= deadline)
        {
            return;
        }
        // A heap cannot move an entry, so the old one stays until its time and is skipped then.
        state.deadlines.insert(key.clone(), deadline);
        state.sequence += 1;
        let sequence = state.sequence;
        state
            .delayed
            .push(Reverse((deadline, sequence, ByOrder(key))));
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Makes `key` due after the delay for its failures, and counts one more failure.
    pub fn add_rate_limited(&self, key: T) {
        let delay = {
            let mut state = self.state();
            let failures = state.failures.entry(key.clone()).or_default();
            let delay = self.shared.backoff.delay(*failures);
            *failures = failures.saturating_add(1);
            delay
        };
        self.add_after(key, delay);
    }

    /// Forgets the failures of `key`.
    pub fn forget(&self, key: &T) {
        self.state().failures.remove(key);
    }

    /// Returns how often in a row `key` has failed.
    pub fn failures(&self, key: &T) -> u32 {
        self.state().failures.get(key).copied().unwrap_or_default()
    }

    /// Returns the number of keys that are due and wait for a worker.
    pub fn len(&self) -> usize {
        self.state().ready.len()
    }

    /// Returns whether no key is due.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the queue: every [`Queue::next`] returns `None`, and additions are ignored.
    pub fn close(&self) {
        self.state().closed = true;
        self.shared.wake.notify_waiters();
        // A waiter that has not polled yet would miss notify_waiters; it finds this permit instead and passes it
        // on.
        self.shared.wake.notify_one();
    }

    /// Waits for the next due key. Returns `None` once the queue is closed.
    ///
    /// The key is held until the returned [`Work`] is dropped.
    pub async fn next(&self) -> Option<Work<T>> {
        loop {
            let deadline = {
                let mut state = self.state();
                if state.closed {
                    self.shared.wake.notify_one();
                    return None;
                }
                state.release_due(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.processing.insert(key.clone());
                    // `Notify` stores one permit only, so each woken worker wakes the next one while keys are left.
                    if !state.ready.is_empty() {
                        self.shared.wake.notify_one();
                    }
                    return Some(Work {
                        queue: self.clone(),
                        key,
                    });
                }
                state
                    .delayed
                    .peek()
                    .map(|Reverse((deadline, ..))| *deadline)
            };
            match deadline {
                None => self.shared.wake.notified().await,
                Some(deadline) => {
                    tokio::select! {
                        () = self.shared.wake.notified() => {}
                        () = sleep_until(deadline) => {}
                    }
                }
            }
        }
    }

    /// Starts `workers` tasks that call `reconcile` for each due key until the context shuts down.
    ///
    /// `Ok` forgets the key's failures; `Err` (or a panic, which does not end the worker) retries it with backoff.
    pub fn run<F, Fut, E>(&self, context: &Context, workers: usize, reconcile: F)
    where
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
        T: Debug + Sync,
    {
        let reconcile = Arc::new(reconcile);
        for _ in 0..workers {
            let (queue, reconcile, shutdown) = (
                self.clone(),
                Arc::clone(&reconcile),
                context.shutdown.clone(),
            );
            context.tasks.spawn(async move {
                shutdown
                    .run_until_cancelled(async {
                        while let Some(work) = queue.next().await {
                            queue.settle(
                                &work,
                                AssertUnwindSafe(reconcile(work.key().clone()))
                                    .catch_unwind()
                                    .await,
                            );
                        }
                    })
                    .await;
                // After shutdown nobody takes keys any more, so additions must not gather.
                queue.close();
            });
        }
    }

    fn settle<E: Display>(
        &self,
        work: &Work<T>,
        outcome: Result<Result<(), E>, Box<dyn std::any::Any + Send>>,
    ) where
        T: Debug,
    {
        let key = work.key();
        match outcome {
            Ok(Ok(())) => self.forget(key),
            Ok(Err(error)) => {
                tracing::debug!(queue = self.shared.name, ?key, %error, "reconcile failed, will retry");
                // The key is added while it is still held, so it becomes ready no earlier than it is
                // released.
                self.add_rate_limited(key.clone());
            }
            // A panic of one reconcile must not end the worker, which serves every other key too.
            Err(_) => {
                tracing::error!(
                    queue = self.shared.name,
                    ?key,
                    "reconcile panicked, will retry"
                );
                self.add_rate_limited(key.clone());
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone + Eq + Hash> State<T> {
    /// Queues `key` unless it waits already. Returns whether a worker can take it now.
    fn make_ready(&mut self, key: T) -> bool {
        // A key in work stays dirty only; dropping its `Work` makes it ready again.
        if self.closed || !self.dirty.insert(key.clone()) || self.processing.contains(&key) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    fn release_due(&mut self, now: Instant) {
        while let Some(Reverse((deadline, ..))) = self.delayed.peek() {
            if *deadline > now {
                return;
            }
            let Some(Reverse((deadline, _, ByOrder(key)))) = self.delayed.pop() else {
                return;
            };
            if self.deadlines.get(&key) == Some(&deadline) {
                self.deadlines.remove(&key);
                self.make_ready(key);
            }
        }
    }
}

/// A key that a worker holds; dropping it releases the key.
#[derive(Debug)]
pub struct Work<T: Clone + Eq + Hash + Send + 'static> {
    queue: Queue<T>,
    key: T,
}

impl<T: Clone + Eq + Hash + Send + 'static> Work<T> {
    /// Returns the key to process.
    pub fn key(&self) -> &T {
        &self.key
    }
}

impl<T: Clone + Eq + Hash + Send + 'static> Drop for Work<T> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.processing.remove(&self.key);
        if state.dirty.contains(&self.key) {
            state.ready.push_back(self.key.clone());
            drop(state);
            self.queue.shared.wake.notify_one();
        }
    }
}

/// Returns how long changes are collected before one sync processes all of `objects`, for use with
/// [`Queue::add_after`]: the more objects there are, the more a sync costs, and the more changes it should cover.
pub(crate) fn collect_for(objects: usize) -> Duration {
    const PER_OBJECT: Duration = Duration::from_micros(50);
    const MOST: Duration = Duration::from_millis(500);
    if objects <= 20 {
        return Duration::ZERO;
    }
    PER_OBJECT
        .saturating_mul(u32::try_from(objects).unwrap_or(u32::MAX))
        .min(MOST)
}

#[cfg(test)]
mod tests;
