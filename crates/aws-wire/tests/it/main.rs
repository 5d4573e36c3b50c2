//! Requests as clients of AWS send them, answered in process.

mod fleet;
mod instances;
mod wire;
