//! Requests as clients of AWS send them, answered in process.

mod addresses;
mod fleet;
mod instances;
mod services;
mod wire;
