//! The garbage collector: deletes objects that have no owner any more, and carries out foreground and orphan
//! deletion.
//!
//! [`graph`] stores which object owns which and returns the objects to check. [`collector`] checks each of them by
//! a live read, and acts with preconditions. [`monitors`] feeds the graph from every kind that the API serves,
//! including custom resources.
//!
//! Invariant: nothing is deleted because of the graph alone. A stale graph costs a read, never an object.

mod collector;
mod graph;
mod monitors;
mod references;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Context, Queue};
use collector::Collector;
use graph::{Graph, Work};

const WORKERS: usize = 20;

/// The finalizer that makes an owner wait for its blocking dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer that makes the collector remove the references of dependents before the owner is deleted.
pub(crate) const ORPHAN: &str = "orphan";

/// Starts the garbage collector.
pub fn start(context: &Context) {
    let shared = Shared {
        graph: Arc::default(),
        queue: Queue::new("garbage_collector"),
    };
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        let shutdown = context.shutdown.clone();
        let Some(kinds) = shutdown
            .run_until_cancelled(monitors::start(&context, &shared))
            .await
        else {
            return;
        };
        let collector = Arc::new(Collector::new(&context, shared.clone(), kinds));
        shared.queue.run(&context, WORKERS, move |work| {
            let collector = Arc::clone(&collector);
            async move { collector.process(work).await }
        });
    });
}

/// The graph, and the queue of the work that follows from its changes.
#[derive(Clone)]
struct Shared {
    graph: Arc<Mutex<Graph>>,
    queue: Queue<Work>,
}

impl Shared {
    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the graph and queues the work that follows.
    fn update(&self, change: impl FnOnce(&mut Graph) -> Vec<Work>) {
        // The lock is released before the work is queued: the queue wakes workers, which lock the graph at
        // once.
        let work = change(&mut self.graph());
        for item in work {
            self.queue.add(item);
        }
    }
}
