//! The scheduler: kube-scheduler's queue and effects around the engine's decisions.
//!
//! `driver` is the loop, [`queue`] says which pod is tried next, [`wake`] is the table of which events help which
//! refused pod, [`config`] reads its configuration file, and `writer` carries decisions to the API server. What a decision is lies in the engine.

pub mod config;
mod driver;
mod hints;
pub mod queue;
pub mod wake;
mod writer;

pub use driver::{start_over, start_with};

use crate::{Context, state::SharedState};

/// Starts the scheduler over a cluster state of its own, where nobody else needs one; `os_counts` says whether
/// `spec.os.name` is a requirement on the node (kube-scheduler ignores it).
pub fn start(context: &Context, os_counts: bool) {
    let state = SharedState::new(
        context,
        mullion_engine::Options {
            os_filter: os_counts,
        },
    );
    start_over(context, &state, 0);
}

/// The component that events and conditions name.
const COMPONENT: &str = "default-scheduler";
