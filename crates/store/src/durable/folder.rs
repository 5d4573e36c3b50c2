//! The thread that folds the journal into the tables, beside the thread that writes.
//!
//! It has one task at a time. A failed task is tried again after a pause with the tables opened anew, because the
//! journal still has everything. Only after a failed sync, when the content on disk is unknown, does the store refuse
//! all further writes.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, SyncSender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    error::StoreError,
    tables::{Fold, Tables},
};

/// The first and the longest pause before the tables are tried again after an error.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// The sender for the outcome of a task, for a caller that waits for it.
pub(super) type Done = SyncSender<Result<(), Arc<StoreError>>>;

/// The error after which the store accepts no write, set at most once.
pub(super) type Fatal = Arc<OnceLock<Arc<StoreError>>>;

struct Task {
    fold: Fold,
    done: Option<Done>,
}

/// The thread, for the only one who gives it tasks.
pub(super) struct Folder {
    tasks: Sender<Task>,
    shared: Arc<SharedState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct SharedState {
    now: Mutex<TaskState>,
    changed: Condvar,
}

#[derive(Default)]
struct TaskState {
    is_busy: bool,
    /// The error that keeps the current task from being finished.
    trouble: Option<Arc<StoreError>>,
    gives_up: bool,
}

impl SharedState {
    fn now(&self) -> MutexGuard<'_, TaskState> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut TaskState)) {
        change(&mut self.now());
        self.changed.notify_all();
    }
}

impl Folder {
    /// Starts the thread.
    pub(super) fn start(tables: Arc<Tables>, fatal: Fatal) -> Result<Self, StoreError> {
        let (tasks, given) = channel();
        let shared = Arc::<SharedState>::default();
        let path = tables.path();
        let work = Work {
            tables,
            shared: shared.clone(),
            fatal,
        };
        let thread = std::thread::Builder::new()
            .name("store-fold".into())
            .spawn(move || work.run(&given));
        match thread {
            Ok(thread) => Ok(Folder {
                tasks,
                shared,
                thread: Some(thread),
            }),
            Err(source) => Err(StoreError::Io { path, source }),
        }
    }

    /// Returns whether the folder has no task.
    pub(super) fn is_idle(&self) -> bool {
        !self.shared.now().is_busy
    }

    /// Waits until it has nothing to do, but not if it cannot go on.
    pub(super) fn wait(&self, patience: Duration) -> Result<(), Option<Arc<StoreError>>> {
        let until = Instant::now() + patience;
        let mut now = self.shared.now();
        while now.is_busy {
            // A writer that waits for room learns the cause at once; the retries may go on for long.
            if let Some(trouble) = &now.trouble {
                return Err(Some(trouble.clone()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(None);
            }
            let waited = self.shared.changed.wait_timeout(now, left);
            now = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Gives the folder a task; it must be idle.
    pub(super) fn give(&self, fold: Fold, done: Option<Done>) {
        self.shared.change(|now| now.is_busy = true);
        // It ends only when this is dropped.
        let _ = self.tasks.send(Task { fold, done });
    }
}

impl Drop for Folder {
    /// Ends the thread; a task that cannot be done is given up.
    fn drop(&mut self) {
        self.shared.change(|now| now.gives_up = true);
        // Without a sender the thread's `recv` ends, and the thread with it.
        let (nobody, _) = channel();
        self.tasks = nobody;
        if let Some(thread) = self.thread.take() {
            // A panic in there has been reported.
            let _ = thread.join();
        }
    }
}

struct Work {
    tables: Arc<Tables>,
    shared: Arc<SharedState>,
    fatal: Fatal,
}

impl Work {
    fn run(self, tasks: &Receiver<Task>) {
        while let Ok(Task { fold, done }) = tasks.recv() {
            let folded = self.fold(&fold);
            // Before anybody hears of it: who does may give the next task.
            if folded.is_ok() {
                self.shared.change(|now| now.is_busy = false);
            }
            if let Some(done) = done {
                // Who gave up waiting needs no answer.
                let _ = done.send(folded);
            }
        }
    }

    fn fold(&self, fold: &Fold) -> Result<(), Arc<StoreError>> {
        let mut wait = RETRY.0;
        let mut folded = self.tables.fold(fold);
        loop {
            let error = match folded {
                Ok(()) => {
                    self.shared.change(|now| now.trouble = None);
                    return Ok(());
                }
                Err(error) => Arc::new(error),
            };
            tracing::error!(%error, "the journal cannot be moved into the tables");
            if matches!(*error, StoreError::Unsynced { .. }) {
                // Whoever was first has said why.
                let _ = self.fatal.set(error.clone());
            }
            self.shared.change(|now| now.trouble = Some(error.clone()));
            if self.fatal.get().is_some() || self.gives_up_within(wait) {
                return Err(error);
            }
            wait = (wait * 2).min(RETRY.1);
            // An error has closed the tables.
            folded = self.tables.connect().and_then(|()| self.tables.fold(fold));
        }
    }

    fn gives_up_within(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut now = self.shared.now();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if now.gives_up || left.is_zero() {
                return now.gives_up;
            }
            let waited = self.shared.changed.wait_timeout(now, left);
            now = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
