//! The scheduler: kube-scheduler's queue and its writes, around the engine's decisions.
//!
//! `watch` turns changes of objects into inputs of the loop in `driver`, and `round` decides the pods of one batch.
//! [`queue`] orders pending pods; [`wake`] decides which events may help a refused pod, given the pod's [`requirements`].
//! [`config`] parses the configuration file, and `writer` sends decisions to the API server. The decisions
//! themselves are made in the engine.

mod allocation;
pub mod config;
mod device_hints;
mod devices;
mod driver;
mod evictions;
mod extended;
mod hints;
pub mod queue;
pub mod requirements;
mod round;
mod storage_hints;
mod traced;
mod volumes;
pub mod wake;
mod watch;
mod writer;

pub use device_hints::DeviceEvent;
pub use driver::{start_over, start_with};
pub use storage_hints::StorageEvent;

use crate::{Context, state::SharedState};

/// Starts the scheduler with its own cluster state, for processes in which no other controller needs one.
/// `os_counts` makes `spec.os.name` a requirement on the node; kube-scheduler ignores that field.
pub fn start(context: &Context, os_counts: bool) {
    let state = SharedState::new(
        context,
        mullion_engine::Options {
            os_filter: os_counts,
        },
    );
    start_over(context, &state, 0);
}
