//! The garbage collector: deletes what its owners no longer hold, and carries out foreground and orphan deletion.
//!
//! [`graph`] remembers who owns whom and says what to look at; [`collector`] looks, always at the live object, and acts
//! with preconditions. [`monitors`] keeps the graph fed from every kind the API serves, custom ones included.
//!
//! Invariant: nothing is deleted on the word of the graph alone. A stale graph costs a look, never an object.

mod collector;
mod graph;
mod monitors;
mod references;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Context, Queue};
use collector::Collector;
use graph::{Graph, Work};

const WORKERS: usize = 20;

/// Finalizer that makes an owner wait for its blocking dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer that makes the collector cut dependents loose before the owner goes.
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

/// The graph and the work that follows from its changes.
#[derive(Clone)]
struct Shared {
    graph: Arc<Mutex<Graph>>,
    queue: Queue<Work>,
}

impl Shared {
    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the graph and queues what that calls for.
    fn update(&self, change: impl FnOnce(&mut Graph) -> Vec<Work>) {
        let work = change(&mut self.graph());
        for item in work {
            self.queue.add(item);
        }
    }
}
