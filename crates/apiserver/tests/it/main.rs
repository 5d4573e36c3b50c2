//! The server's integration tests, one binary.

mod vectors;
