//! admissionregistration.k8s.io: configurations of webhooks and policies that judge writes. The kinds are defined here;
//! the admission of the server applies them.
//!
//! Source: pkg/apis/admissionregistration/validation.

mod bindings;
pub mod client_config;
mod policies;
mod rules;
mod webhooks;

pub(super) use bindings::{MUTATING_BINDING, VALIDATING_BINDING};
pub(super) use policies::{MUTATING_POLICY, VALIDATING_POLICY};
pub(super) use webhooks::{MUTATING, VALIDATING};

/// The API group.
pub const GROUP: &str = "admissionregistration.k8s.io";

/// The kinds whose own writes call no webhook or policy, so that a configuration that refuses all writes can still be removed.
pub const EXEMPT: &[&str] = &[
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "mutatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
];
