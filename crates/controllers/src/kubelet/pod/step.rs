//! The input and output of a step of a pod's state machine.
//!
//! [`Parts`] is the state that the pods of a node share; a [`Step`] lists what the caller must do, in order.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;

use super::ObjectLookup;
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
    /// The node's images.
    pub images: &'a mut NodeImages,
    /// The node's pod addresses.
    pub addresses: &'a mut Addresses,
    /// The speed of the simulation.
    pub pace: Pace,
    /// The durations of the node's simulated work.
    pub delays: Delays,
}

/// An effect that the caller of a step carries out. Effects are carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Record an event on the pod.
    Event(PodEvent),
    /// Write the status, and for a Windows pod the annotation with its address.
    Status {
        /// The fields of the status that the kubelet owns.
        status: Box<PodStatus>,
        /// The value of [`super::WINDOWS_ADDRESS`].
        address: Option<String>,
    },
    /// Look objects up and pass the answer to [`super::PodSim::answer`].
    Ask(ObjectLookup),
    /// Delete the pod with grace period 0 and its UID as precondition.
    Delete,
}

/// An event that the kubelet records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// Whether the type is `Warning` instead of `Normal`.
    pub warning: bool,
    /// The reason.
    pub reason: Cow<'static, str>,
    /// The message.
    pub message: String,
    /// The field of the container that the event concerns: `spec.containers{web}`.
    pub field_path: Option<String>,
}

/// The result of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The effects to carry out now.
    pub effects: Vec<Effect>,
    /// The latest time of the next step.
    pub wake: Option<Timestamp>,
}
