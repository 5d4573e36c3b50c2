//! Tests of the simulated EC2, used as controllers use it.

mod addresses;
mod groups;
mod images;
mod ledger;
mod messages;
mod remote;
mod reservations;
mod simulated_ec2;
