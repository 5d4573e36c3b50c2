//! The server's integration tests, one binary.

mod client;
mod tls;
mod vectors;
