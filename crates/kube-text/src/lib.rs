//! How Kubernetes reads and writes values that are texts, with the messages for texts that it refuses.
//!
//! - [`quantity`]: amounts of resources, such as `100m` and `1.5Gi`.
//! - [`golang`]: what Go's standard library and the libraries that kube-apiserver uses make of durations, numbers, URLs, addresses,
//!   regular expressions, CSV, versions and time zones, and how they quote a string.
//! - [`cron`]: schedules, and when they are due.
//! - [`names`]: the formats of names, label keys and values, ports, environment variables and keys.
//! - [`formats`]: the string formats of schemas, such as `date-time` and `uuid`.
//! - [`field`]: paths of fields, and the errors that a validation records under them.
//! - [`status`]: `metav1.Status`, the error response that clients read.
//! - [`validation`]: addresses, label selectors, resource names and metadata, which all kinds validate alike.
//!
//! This is the lowest layer: it imports no crate of Mullion, and every crate may import it.
//!
//! Architecture invariant: no clock, environment, files, network or threads. A function's result depends on its arguments alone.

// Each `expect` names the invariant that holds; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod cron;
pub mod field;
pub mod formats;
pub mod golang;
pub mod names;
pub mod quantity;
pub mod status;
pub mod validation;
