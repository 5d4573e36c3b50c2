//! Records events with the reasons and messages of AWS's controller, at most one of a kind per object and minute.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{ConfigMap, Node, ObjectReference, Pod};
use kube::Resource;
use mullion_api::labels::PRIVATE_IPV4;
use mullion_engine::ip::{Cidr, Unreadable, WaitReason};
use rustc_hash::FxBuildHasher;

use crate::{EventType, Recorder};

const MINUTE_MS: u64 = 60_000;

/// Records events about pods, nodes and the ConfigMap.
pub(super) struct AddressEvents {
    recorder: Recorder,
    /// The time of the last event, by kind of event and the object's UID.
    last_sent: HashMap<(String, String), u64, FxBuildHasher>,
    pruned: u64,
}

impl AddressEvents {
    pub(super) fn new(recorder: Recorder) -> Self {
        AddressEvents {
            recorder,
            last_sent: HashMap::default(),
            pruned: 0,
        }
    }

    /// Records that the pod has its address in its annotation.
    pub(super) fn allocated(&mut self, pod: ObjectReference, address: Cidr, now: u64) {
        let message = format!("Allocated Resource {PRIVATE_IPV4}: {address} to the pod");
        self.record(pod, EventType::Normal, "ResourceAllocated", message, now);
    }

    /// Records why the pod waits.
    pub(super) fn waits(&mut self, pod: ObjectReference, why: WaitReason, now: u64) {
        let (kind, message) = (EventType::Warning, why.to_string());
        self.record(pod, kind, "ResourceAllocationFailed", message, now);
    }

    /// Records that the pod's address is no longer on the node's interface.
    pub(super) fn lost(&mut self, pod: ObjectReference, address: Cidr, node: &str, now: u64) {
        let message = format!(
            "Address {address} is no longer on the network interface of node {node}, so the pod has no network: something else took it \
             away; delete the pod to get another one"
        );
        self.record(pod, EventType::Warning, "AddressLost", message, now);
    }

    /// Records that the node's instance type supports no addresses for Windows pods.
    pub(super) fn unsupported(&mut self, node: &Node, message: String, now: u64) {
        let node = node.object_ref(&());
        self.record(node, EventType::Warning, "Unsupported", message, now);
    }

    /// Records that the node's subnet has no free /28 block.
    pub(super) fn no_prefix(&mut self, node: ObjectReference, now: u64) {
        let message =
            "InsufficientCidrBlocks: The specified subnet does not have enough free cidr blocks to satisfy the request"
                .to_owned();
        let reason = "InsufficientCidrBlocks";
        self.record(node, EventType::Warning, reason, message, now);
    }

    /// Records that a value of the ConfigMap cannot be parsed.
    pub(super) fn unreadable(&mut self, map: &ConfigMap, value: &Unreadable, now: u64) {
        let (object, message) = (map.object_ref(&()), value.to_string());
        self.record(object, EventType::Warning, "UnreadableValue", message, now);
    }

    fn record(
        &mut self,
        object: ObjectReference,
        kind: EventType,
        reason: &str,
        message: String,
        now: u64,
    ) {
        if now >= self.pruned + MINUTE_MS {
            self.last_sent.retain(|_, at| now < *at + MINUTE_MS);
            self.pruned = now;
        }
        let uid = object.uid.clone().unwrap_or_default();
        // The message is part of the key: an address that changes is news within the minute.
        let key = (uid, format!("{reason} {message}"));
        if self
            .last_sent
            .get(&key)
            .is_none_or(|at| now >= *at + MINUTE_MS)
        {
            self.last_sent.insert(key, now);
            self.recorder.record(object, kind, reason, message);
        }
    }
}

/// Returns the reference to a pod for events.
pub(super) fn reference(pod: &Pod) -> ObjectReference {
    pod.object_ref(&())
}
