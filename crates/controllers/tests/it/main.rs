//! The controllers against the embedded API server, under paused time. One binary; each file is a topic.

mod budgets;
mod cluster;
mod cluster_roles;
mod collection;
mod daemon_sets;
mod deployments;
mod kubelet;
mod node_lifecycle;
mod replica_sets;
mod rollbacks;
mod scheduler;
#[path = "../served/mod.rs"]
mod served;
mod services;
mod volumes;
mod world;
