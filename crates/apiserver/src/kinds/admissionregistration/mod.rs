//! admissionregistration.k8s.io: who else is asked about writes. The configurations are kept here as any kind is; what they bring about is
//! in [`crate::admission::webhook`].
//!
//! Upstream: pkg/apis/admissionregistration/validation.

mod bindings;
mod client_config;
mod policies;
mod rules;
mod webhooks;

pub(super) use bindings::{MUTATING_BINDING, VALIDATING_BINDING};
pub(super) use client_config::client_config;
pub(super) use policies::{MUTATING_POLICY, VALIDATING_POLICY};
pub(super) use webhooks::{MUTATING, VALIDATING};

/// The group.
pub(crate) const GROUP: &str = "admissionregistration.k8s.io";

/// The kinds whose own writes call no webhook or policy, so that a configuration that refuses all writes can still be removed.
pub(crate) const EXEMPT: &[&str] = &[
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "mutatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
];
