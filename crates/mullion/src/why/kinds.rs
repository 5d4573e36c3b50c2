//! The kinds of objects that decide where pods go, and which of them a misspelt kind was meant to be.

use crate::near::nearest;

/// The kind of buffers, whose chunks are planned for as pods are.
pub(crate) const BUFFER: &str = "CapacityBuffer";
/// The kind of the objects that cause faults in the simulated EC2.
pub(super) const FAULT: &str = "SimulatedFault";
/// The kind of quotas, which refuse pods.
pub(crate) const QUOTA: &str = "ResourceQuota";
/// The kinds that affect placing, apart from those that create pods, sorted so that an object comes after those it depends on. Each has its
/// plural, whether it is namespaced, and whether admission of pods needs it.
pub(super) const KINDS: [(&str, &str, bool, bool); 28] = [
    ("Namespace", "namespaces", false, true),
    ("ServiceAccount", "serviceaccounts", true, true),
    ("LimitRange", "limitranges", true, true),
    (QUOTA, "resourcequotas", true, false),
    ("ConfigMap", "configmaps", true, false),
    ("PriorityClass", "priorityclasses", false, true),
    ("RuntimeClass", "runtimeclasses", false, true),
    ("Node", "nodes", false, false),
    ("StorageClass", "storageclasses", false, false),
    ("CSIDriver", "csidrivers", false, false),
    ("CSINode", "csinodes", false, false),
    ("CSIStorageCapacity", "csistoragecapacities", true, false),
    ("PersistentVolume", "persistentvolumes", false, false),
    (
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        true,
        false,
    ),
    ("VolumeAttachment", "volumeattachments", false, false),
    ("DeviceClass", "deviceclasses", false, false),
    ("ResourceSlice", "resourceslices", false, false),
    ("ResourceClaim", "resourceclaims", true, false),
    (
        "ResourceClaimTemplate",
        "resourceclaimtemplates",
        true,
        false,
    ),
    ("Service", "services", true, false),
    ("PodDisruptionBudget", "poddisruptionbudgets", true, false),
    ("EC2NodeClass", "ec2nodeclasses", false, false),
    ("NodePool", "nodepools", false, false),
    ("NodeOverlay", "nodeoverlays", false, false),
    ("SimulatedAccount", "simulatedaccounts", false, false),
    (FAULT, "simulatedfaults", false, false),
    ("PodTemplate", "podtemplates", true, false),
    (BUFFER, "capacitybuffers", true, false),
];
/// The kinds that are taken as they are written: an API server in this process does not know them, or would keep pods away from them until
/// a kubelet reports or a controller has counted, or only one object of the kind counts.
const FOREIGN: [&str; 9] = [
    BUFFER,
    "ConfigMap",
    "EC2NodeClass",
    "Node",
    "NodeOverlay",
    "NodePool",
    QUOTA,
    "SimulatedAccount",
    FAULT,
];

/// The kinds of workloads and pods, and what else counts only in a list of objects.
const OTHERS: [&str; 9] = [
    "Pod",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
    "ReplicationController",
    "NodeClaim",
];

/// Returns the kind that a name was probably meant to be; `None` if it is the name of a kind that counts, or like none of them.
pub(crate) fn meant(kind: &str) -> Option<&'static str> {
    let known = || kinds().chain(OTHERS);
    if known().any(|own| own == kind) {
        return None;
    }
    // Short names differ by two letters without being meant: Role and Node.
    let most = if kind.len() < 12 { 1 } else { 2 };
    nearest(kind, known(), most)
}

/// Says that a kind is not known, and which one was probably meant.
pub(super) fn unknown(kind: &str, meant: &str) -> String {
    format!("there is no kind {kind}, the nearest is {meant}")
}

/// Returns the kinds that affect placing, apart from those that create pods.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(kind, ..)| *kind)
}

/// Returns whether a kind is known to have no namespace.
pub(super) fn is_cluster_scoped(kind: &str) -> bool {
    let mut known = KINDS.iter();
    known.any(|(own, _, is_namespaced, _)| *own == kind && !is_namespaced)
}

/// Returns the plural of a kind whose objects are taken as they are written, and whether it is namespaced; `None` for other kinds.
pub(super) fn taken_as_written(kind: &str) -> Option<(&'static str, bool)> {
    let own = KINDS.iter().find(|(own, ..)| *own == kind)?;
    FOREIGN.contains(&kind).then_some((own.1, own.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_kind_means_the_nearest_and_another_kind_none() {
        for (kind, expected) in [
            ("Deploymnet", Some("Deployment")),
            ("deployment", Some("Deployment")),
            ("Nod", Some("Node")),
            ("Pods", Some("Pod")),
            ("Nodepool", Some("NodePool")),
            ("PersistantVolumClaim", Some("PersistentVolumeClaim")),
            ("Node", None),
            ("Role", None),
            ("NodeClass", None),
            ("Ingress", None),
            ("Secret", None),
        ] {
            assert_eq!(meant(kind), expected, "{kind}");
        }
    }
}
