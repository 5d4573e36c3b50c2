//! Nodes on demand, whole clusters at a time: API server, scheduler, workloads, provisioner, simulated EC2 and kubelets
//! under paused time.

mod addresses;
mod blog;
mod boots;
mod buffers;
mod drift;
mod failures;
mod faults;
mod garbage;
mod giving_back;
mod host_ports;
mod interruption;
mod machines;
mod metrics;
mod open_labels;
mod overlays;
mod permissions;
mod placement;
mod planned;
mod pools;
mod refusals;
mod removal;
mod repair;
mod reservations;
mod restart;
#[path = "../served/mod.rs"]
mod served;
mod static_pools;
mod takeover;
mod tenancy;
mod termination;
mod traces;
mod truth;
mod whole;
mod zone_ids;
