//! Tests of the AWS provider with a simulated EC2 that speaks AWS's wire protocols.

mod launches;
mod region;
mod stories;
mod world;
