//! The controllers against the embedded API server, under paused time. One binary; each file is a topic.

mod autoscalers;
mod budgets;
mod claims;
mod cluster;
mod cluster_roles;
mod collection;
mod cron_jobs;
mod daemon_sets;
mod deployments;
mod device_events;
mod devices;
mod extended;
mod gauges;
mod image_gate;
mod job_pods;
mod jobs;
mod kubelet;
mod leader;
mod lookups;
mod node_lifecycle;
mod quotas;
mod replica_sets;
mod resource_claims;
mod rollbacks;
mod scheduler;
#[path = "../served/mod.rs"]
mod served;
mod services;
mod stateful_sets;
mod usage;
mod volumes;
mod wait;
mod world;
