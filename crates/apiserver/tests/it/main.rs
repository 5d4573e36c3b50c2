//! The server's integration tests, one binary.

mod api;
mod client;
mod custom_resources;
mod kinds;
mod services;
mod pods;
mod semantics;
mod tls;
mod vectors;
