//! Reads objects into a state, each by its kind.

use mullion_engine::{
    ModelError,
    model::{
        CsiDriverSpec, CsiNodeSpec, CsiStorageCapacitySpec, DeviceClassSpec, NamespaceSpec,
        NodeSpec, PdbSpec, PersistentVolumeClaimSpec, PersistentVolumeSpec, PodSpec,
        ResourceClaimSpec, ResourceSliceSpec, ServiceSpec, StorageClassSpec, VolumeAttachmentSpec,
        WorkloadSpec,
    },
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny},
};
use serde_json::{Value, value::RawValue};

use super::{State, is_read, key_of};
use crate::why::{
    kinds,
    nulls::without_nulls,
    object::{Nested, Object, is_list, named, whole},
    pod_owner::PodOwner,
};

/// The kinds whose objects are kept unabridged, for the modules that understand them.
pub(super) const KEPT: [&str; 14] = [
    "DaemonSet",
    "NodePool",
    "NodeOverlay",
    "EC2NodeClass",
    "SimulatedAccount",
    "SimulatedFault",
    "NodeClaim",
    "CapacityBuffer",
    "PodTemplate",
    "LimitRange",
    "ResourceQuota",
    "ResourceClaimTemplate",
    "PriorityClass",
    "RuntimeClass",
];

/// Returns whether anything stands in the status of an object: kubectl prints an empty one for an object that it makes.
fn has_status(text: &str) -> bool {
    text.contains("\"status\"")
        && serde_json::from_str(text).is_ok_and(|object: Value| {
            let status = object["status"].as_object();
            status.is_some_and(|status| !status.is_empty())
        })
}

impl State {
    /// Adds an object; `usual` is the kind of an object that has no `kind` field, as in a typed list.
    ///
    /// # Errors
    /// The object is malformed or impossible (a negative request, or two nodes of one name).
    pub(crate) fn add(&mut self, object: &RawValue, usual: &str) -> Result<(), serde_json::Error> {
        let text = object.get();
        // The search in the text avoids parsing every object twice.
        if self.kubelet_version.is_none() && text.contains("kubeletVersion") {
            let value: Value = serde_json::from_str(text)?;
            let version = value.pointer("/status/nodeInfo/kubeletVersion");
            self.kubelet_version = version.and_then(Value::as_str).map(str::to_owned);
        }
        if self.keeps_pods {
            self.pod_facts.note(text)?;
        }
        let workloads = self.unused.workloads();
        let read =
            self.read_object(text, usual)
                .or_else(|error| match without_nulls(text.as_bytes()) {
                    // A list must not be read again, because some of its items may have been added.
                    Some(text) if !is_list(&text, usual) => self.read_object(&text, usual),
                    _ => Err(error),
                });
        // A controller writes the status of every workload that it has seen.
        if self.unused.workloads() > workloads && has_status(text) {
            self.unused.forget_workloads(workloads);
        }
        read
    }

    fn read_object(&mut self, text: &str, usual: &str) -> Result<(), serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let state = self;
        Object { state, usual }.deserialize(&mut reader)
    }

    /// Adds the remaining fields of an object once its kind is known.
    pub(in crate::why) fn take<'de, D: Deserializer<'de>>(
        &mut self,
        kind: &str,
        rest: D,
    ) -> Result<(), D::Error> {
        let cluster = &mut self.cluster;
        let refuse = |error: ModelError| D::Error::custom(error);
        match kind {
            "Node" if self.keeps.whole => {
                let object = whole(rest)?;
                let node = NodeSpec::deserialize(&object).map_err(D::Error::custom)?;
                cluster.add_node(&node).map_err(refuse)?;
                self.nodes.insert(node.name.clone(), node);
                self.keep(kind, object);
            }
            "Node" => {
                let node = named(rest, |own: &NodeSpec| &own.name)?;
                cluster.add_node(&node).map_err(refuse)?;
                if self.keeps_pods {
                    self.nodes.insert(node.name.clone(), node);
                }
            }
            "Pod" if self.keeps.whole || self.keeps.pods => {
                let object = whole(rest)?;
                let pod = PodSpec::deserialize(&object).map_err(D::Error::custom)?;
                self.add_pod(pod).map_err(refuse)?;
                self.keep(kind, object);
            }
            "Pod" => {
                let pod = named(rest, |own: &PodSpec| &own.name)?;
                self.add_pod(pod).map_err(refuse)?;
            }
            // Placement by image needs the namespace's labels, so the object is kept.
            "Namespace" if self.keeps_pods => {
                let namespace = whole(rest)?;
                let spec = NamespaceSpec::deserialize(&namespace).map_err(D::Error::custom)?;
                cluster.set_namespace(&spec);
                self.keep(kind, namespace);
            }
            "Namespace" => cluster.set_namespace(&named(rest, |own: &NamespaceSpec| &own.name)?),
            "Service" => cluster.set_service(&named(rest, |own: &ServiceSpec| &own.name)?),
            // A manifest does not set how many disruptions are allowed, so the object is kept with its status.
            "PodDisruptionBudget" if self.keeps_pods => {
                let budget = whole(rest)?;
                let spec = PdbSpec::deserialize(&budget).map_err(D::Error::custom)?;
                cluster.set_pdb(&spec);
                self.keep(kind, budget);
            }
            "PodDisruptionBudget" => cluster.set_pdb(&named(rest, |own: &PdbSpec| &own.name)?),
            kind if self.keeps.has_workload_of(kind) => {
                self.take_workload(kind, whole(rest)?)
                    .map_err(D::Error::custom)?;
            }
            "Deployment" if self.keeps.templates => self.keep(kind, whole(rest)?),
            "ReplicaSet" | "StatefulSet" if self.keeps.templates => {
                let workload = whole(rest)?;
                let spec = WorkloadSpec::deserialize(&workload).map_err(D::Error::custom)?;
                cluster.set_workload(&WorkloadSpec {
                    kind: kind.to_owned(),
                    ..spec
                });
                self.keep(kind, workload);
            }
            "ReplicaSet" | "ReplicationController" | "StatefulSet" => {
                let workload = named(rest, |own: &WorkloadSpec| &own.name)?;
                if self.keeps_pods {
                    let (namespace, name) = (&workload.namespace, &workload.name);
                    self.unused.add_owner(kind, namespace, name);
                }
                cluster.set_workload(&WorkloadSpec {
                    kind: kind.to_owned(),
                    ..workload
                });
            }
            "Deployment" | "Job" | "CronJob" if self.keeps_pods => {
                self.unused.add_workload(kind, rest)?;
            }
            "PersistentVolumeClaim" => {
                let claim = named(rest, |own: &PersistentVolumeClaimSpec| &own.name)?;
                cluster.set_claim(&claim);
                self.settle(kind, claim.namespace, claim.name);
            }
            "PersistentVolume" => {
                let volume = named(rest, |own: &PersistentVolumeSpec| &own.name)?;
                cluster.set_volume(&volume);
                if volume.claim.is_some() {
                    self.settle(kind, String::new(), volume.name);
                }
            }
            // Admission of claims needs to know the default class, so the object is kept.
            "StorageClass" if self.keeps_pods => {
                let class = whole(rest)?;
                let spec = StorageClassSpec::deserialize(&class).map_err(D::Error::custom)?;
                cluster.set_storage_class(&spec);
                self.keep(kind, class);
            }
            "StorageClass" => {
                cluster.set_storage_class(&named(rest, |own: &StorageClassSpec| &own.name)?);
            }
            "CSINode" => cluster.set_csi_node(&named(rest, |own: &CsiNodeSpec| &own.name)?),
            "CSIDriver" => cluster.set_csi_driver(&named(rest, |own: &CsiDriverSpec| &own.name)?),
            "CSIStorageCapacity" => {
                let capacity = named(rest, |own: &CsiStorageCapacitySpec| &own.name)?;
                cluster.set_storage_capacity(&capacity);
            }
            "VolumeAttachment" => {
                let attachment = named(rest, |own: &VolumeAttachmentSpec| &own.name)?;
                cluster.set_volume_attachment(&attachment);
            }
            "ResourceClaim" => {
                let claim = named(rest, |own: &ResourceClaimSpec| &own.name)?;
                cluster.set_resource_claim(&claim);
                self.settle(kind, claim.namespace, claim.name);
            }
            "DeviceClass" => {
                cluster.set_device_class(&named(rest, |own: &DeviceClassSpec| &own.name)?);
            }
            "ResourceSlice" => {
                cluster.set_resource_slice(&named(rest, |own: &ResourceSliceSpec| &own.name)?);
            }
            "Event" if self.keeps_pods => {
                let event = whole(rest)?;
                self.pod_facts.note_event(&event);
                let mut kept = self.keeps.workloads.iter();
                if kept.any(|own| own.is_refused_in(&event)) {
                    self.keep(kind, event);
                }
            }
            "ConfigMap" => {
                let config = whole(rest)?;
                let (_, namespace, name) = key_of(kind, &config);
                if is_read(&namespace, &name) {
                    self.keep(kind, config);
                }
            }
            kind if KEPT.contains(&kind) => self.keep(kind, whole(rest)?),
            "" => return Err(D::Error::custom("an object without a kind")),
            list if list.ends_with("List") => {
                let usual = list.strip_suffix("List").unwrap_or_default();
                return rest.deserialize_map(Nested { state: self, usual });
            }
            _ if self.keeps_pods => self.unused.add(kind, rest)?,
            _ => match kinds::meant(kind) {
                None => drop(IgnoredAny::deserialize(rest)?),
                Some(meant) => return Err(D::Error::custom(kinds::unknown(kind, meant))),
            },
        }
        Ok(())
    }

    /// Adds a workload of a kind of which some are kept for their templates.
    fn take_workload(&mut self, kind: &str, workload: Value) -> Result<(), serde_json::Error> {
        if matches!(kind, "ReplicaSet" | "ReplicationController" | "StatefulSet") {
            self.cluster.set_workload(&WorkloadSpec {
                kind: kind.to_owned(),
                ..WorkloadSpec::deserialize(&workload)?
            });
        }
        let (_, namespace, name) = key_of(kind, &workload);
        let is_always_kept = KEPT.contains(&kind);
        if self.keeps_pods && !self.keeps.templates && !is_always_kept {
            self.unused.add_owner(kind, &namespace, &name);
        }
        let mut kept = self.keeps.workloads.iter();
        let is_kept =
            |own: &PodOwner| own.kind == kind && own.namespace == namespace && own.name == name;
        if self.keeps.templates || is_always_kept || kept.any(is_kept) {
            self.keep(kind, workload);
        }
        Ok(())
    }

    fn add_pod(&mut self, pod: PodSpec) -> Result<(), ModelError> {
        self.has_priorities |= pod.template.priority != 0;
        match (&pod.node_name, &pod.nominated_node_name) {
            (Some(_), _) if !self.keeps_pods => return self.cluster.take_pod(pod),
            (Some(_), _) => self.cluster.add_pod(&pod)?,
            (None, Some(node)) => self.cluster.nominate(&pod, node)?,
            (None, None) => {}
        }
        if self.keeps_pods {
            self.pods.push(pod);
        }
        Ok(())
    }
}
