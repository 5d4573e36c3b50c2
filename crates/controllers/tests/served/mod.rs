//! An empty cluster for tests: the API server in this process, and controllers' surroundings whose client goes straight
//! into its router.
//!
//! Invariant: the cluster's life begins at the same moment in every test, and server and controllers share its clock.

use std::sync::Arc;

use kube::Client;
use mullion_apiserver::{ApiServer, Config, admission::User, provided::Provided};
use mullion_controllers::{Clock, Context};

/// A fresh API server, seen as its administrator.
pub(crate) fn context() -> Context {
    context_with(Vec::new())
}

/// The same with more resources, which the test answers for.
pub(crate) fn context_with(provided: Vec<Provided>) -> Context {
    context_by(clock(), provided)
}

/// A clock as clusters of tests have it.
pub(crate) fn clock() -> Clock {
    Clock::starting_at("2026-01-27T10:00:00Z".parse().expect("a timestamp"))
}

/// A fresh API server whose time is told by a clock.
pub(crate) fn context_by(clock: Clock, provided: Vec<Provided>) -> Context {
    let stamps = clock.clone();
    let server = ApiServer::new(Config {
        clock: Arc::new(move || stamps.now()),
        provided,
        ..Config::default()
    });
    let administrator = User {
        name: "kubernetes-admin".to_owned(),
        groups: vec![
            "system:masters".to_owned(),
            "system:authenticated".to_owned(),
        ],
        ..User::default()
    };
    Context::new(
        Client::new(server.router_as(administrator), "default"),
        clock,
    )
}
