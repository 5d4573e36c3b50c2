//! The simulated EC2 as controllers use it.

mod addresses;
mod ledger;
mod simulated_ec2;
