//! The scheduler: kube-scheduler's queue and effects around the engine's decisions.
//!
//! `driver` is the loop over what `watch` sees, `round` what it decides about a batch, [`queue`] says which pod is tried next, [`wake`] is the table of which events
//! help which refused pod by what it [`wishes`], [`config`] reads its configuration file, and `writer` carries decisions to
//! the API server. What a decision is lies in the engine.

mod allocation;
pub mod config;
mod device_hints;
mod devices;
mod driver;
mod evictions;
mod extended;
mod hints;
pub mod queue;
mod round;
mod storage_hints;
mod volumes;
pub mod wake;
mod watch;
pub mod wishes;
mod writer;

pub use device_hints::DeviceEvent;
pub use driver::{start_over, start_with};
pub use storage_hints::StorageEvent;

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
