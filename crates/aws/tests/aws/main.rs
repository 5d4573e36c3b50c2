//! AWS's provider against the simulated EC2 behind AWS's wire protocols.

mod launches;
mod region;
mod stories;
mod world;
