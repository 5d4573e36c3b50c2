//! The controller of Windows pods' addresses against the embedded API server and an EC2 that is slow and obvious, under paused time.

mod crowd;
mod ec2;
mod faults;
mod pods;
#[path = "../../../engine/tests/pools/random.rs"]
mod random;
mod refusals;
mod restart;
#[path = "../served/mod.rs"]
mod served;
mod settings;
mod whole;
mod world;
