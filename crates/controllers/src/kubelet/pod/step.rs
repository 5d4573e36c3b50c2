//! What goes into a step of a pod's machine and what comes out of it.
//!
//! [`Parts`] is what a pod shares with its neighbours on the node; a [`Step`] is all that the outside must do, in order.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;

use super::Question;
use crate::kubelet::{
    addresses::Addresses,
    node::NodeFacts,
    pace::{Delays, Pace},
    pulls::NodeImages,
};

/// The parts of a node that its pods share.
pub struct Parts<'a> {
    /// The node.
    pub facts: &'a NodeFacts,
    /// Its images.
    pub images: &'a mut NodeImages,
    /// Its pod addresses.
    pub addresses: &'a mut Addresses,
    /// How fast it works.
    pub pace: Pace,
    /// What its work takes.
    pub delays: Delays,
}

/// What a step asks the outside to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Record an event on the pod.
    Event(PodEvent),
    /// Write the status, and the address annotation of a Windows pod with it.
    Status {
        /// All that the kubelet owns of the status.
        status: Box<PodStatus>,
        /// Value for [`super::WINDOWS_ADDRESS`].
        address: Option<String>,
    },
    /// Look something up and tell [`super::PodSim::answer`].
    Ask(Question),
    /// Delete the pod with grace period 0 and its uid as precondition.
    Delete,
}

/// An event the kubelet records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// `Warning` rather than `Normal`.
    pub warning: bool,
    /// The reason.
    pub reason: Cow<'static, str>,
    /// The text.
    pub message: String,
    /// The container it is about: `spec.containers{web}`.
    pub field_path: Option<String>,
}

/// The answer of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What to do now.
    pub effects: Vec<Effect>,
    /// When to step again at the latest.
    pub wake: Option<Timestamp>,
}
