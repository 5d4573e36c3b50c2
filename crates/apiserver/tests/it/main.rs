//! The server's integration tests, one binary.

mod api;
mod bounds;
mod client;
mod continuity;
mod core;
mod custom_resources;
mod durable;
mod forms;
mod groups;
mod identity;
mod kinds;
mod kube_rs;
mod limits;
mod mutations;
mod pods;
mod provided;
mod refusals;
mod semantics;
mod services;
mod shown;
mod streams;
mod tls;
mod tokens;
mod vectors;
mod webhooks;
mod wire;
