//! The controllers against the embedded API server, under paused time. One binary; each file is a topic.

mod kubelet;
mod node_lifecycle;
mod scheduler;
mod world;
