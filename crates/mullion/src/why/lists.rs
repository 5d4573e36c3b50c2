//! The lists that are read of a running cluster: kinds and paths, and what follows if the user may not list one.

use super::kinds;

/// The kind and the path of everything that affects where pods go.
pub(super) const LISTS: [(&str, &str); 25] = [
    ("Node", "/api/v1/nodes"),
    ("Pod", "/api/v1/pods"),
    ("Namespace", "/api/v1/namespaces"),
    ("Service", "/api/v1/services"),
    ("ReplicationController", "/api/v1/replicationcontrollers"),
    ("ReplicaSet", "/apis/apps/v1/replicasets"),
    ("StatefulSet", "/apis/apps/v1/statefulsets"),
    (
        "PodDisruptionBudget",
        "/apis/policy/v1/poddisruptionbudgets",
    ),
    ("PersistentVolumeClaim", "/api/v1/persistentvolumeclaims"),
    ("PersistentVolume", "/api/v1/persistentvolumes"),
    ("StorageClass", "/apis/storage.k8s.io/v1/storageclasses"),
    ("CSINode", "/apis/storage.k8s.io/v1/csinodes"),
    ("CSIDriver", "/apis/storage.k8s.io/v1/csidrivers"),
    (
        "CSIStorageCapacity",
        "/apis/storage.k8s.io/v1/csistoragecapacities",
    ),
    (
        "VolumeAttachment",
        "/apis/storage.k8s.io/v1/volumeattachments",
    ),
    ("ResourceClaim", "/apis/resource.k8s.io/v1/resourceclaims"),
    (
        "ResourceClaimTemplate",
        "/apis/resource.k8s.io/v1/resourceclaimtemplates",
    ),
    ("DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses"),
    ("ResourceSlice", "/apis/resource.k8s.io/v1/resourceslices"),
    ("DaemonSet", "/apis/apps/v1/daemonsets"),
    ("NodePool", "/apis/karpenter.sh/v1/nodepools"),
    ("NodeOverlay", "/apis/karpenter.sh/v1alpha1/nodeoverlays"),
    ("NodeClaim", "/apis/karpenter.sh/v1/nodeclaims"),
    ("EC2NodeClass", "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"),
    (
        kinds::BUFFER,
        "/apis/autoscaling.x-k8s.io/v1beta1/capacitybuffers",
    ),
];

/// The objects that say what pods CapacityBuffers keep room for, beside those of [`LISTS`]. They are loaded only if there are buffers.
pub(super) const TEMPLATES: [(&str, &str); 2] = [
    ("PodTemplate", "/api/v1/podtemplates"),
    ("Deployment", "/apis/apps/v1/deployments"),
];

/// The quotas, which are loaded only if pods may be created.
pub(super) const QUOTAS: (&str, &str) = (kinds::QUOTA, "/api/v1/resourcequotas");

/// The kinds that are skipped if the user may not list them, because roles made for older versions do not include them, and what follows.
pub(super) const OPTIONAL: [(&str, &str); 5] = [
    (
        "NodeOverlay",
        "NodeOverlays may not be listed, so prices and capacity are those without them",
    ),
    (
        kinds::BUFFER,
        "CapacityBuffers may not be listed, so the room that they keep is not counted",
    ),
    (
        kinds::QUOTA,
        "ResourceQuotas may not be listed, so only the first pod of each workload is held against them",
    ),
    (
        "PodTemplate",
        "PodTemplates may not be listed, so CapacityBuffers that name one do not count",
    ),
    (
        "Deployment",
        "Deployments may not be listed, so CapacityBuffers that name one do not count",
    ),
];

/// The ConfigMap that says how Windows pods get addresses.
pub(super) const VPC_CNI: (&str, &str) = (
    "ConfigMap",
    "/api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Damazon-vpc-cni",
);

/// The ConfigMap that records the capacity which nodes turned out to have.
pub(super) const DISCOVERED: (&str, &str) = (
    "ConfigMap",
    "/api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Dmullion-discovered-capacity",
);

/// The object that describes the simulated EC2, including its capacity reservations. A real cluster does not have this kind.
pub(super) const ACCOUNT: (&str, &str) = (
    "SimulatedAccount",
    "/apis/cloud.mullion.dev/v1alpha1/simulatedaccounts",
);

/// The faults of the simulated EC2, of which those count that decide what can be bought. A real cluster does not have this kind.
pub(super) const FAULT: (&str, &str) = (
    kinds::FAULT,
    "/apis/cloud.mullion.dev/v1alpha1/simulatedfaults",
);

/// The objects that an API server needs to admit a pod.
pub(super) const CLASSES: [(&str, &str); 4] = [
    (
        "PriorityClass",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
    ),
    ("RuntimeClass", "/apis/node.k8s.io/v1/runtimeclasses"),
    ("StorageClass", "/apis/storage.k8s.io/v1/storageclasses"),
    ("LimitRange", "/api/v1/limitranges"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_in_the_documentation_gets_every_kind_that_counts() {
        let documentation = include_str!("../../../../docs/why.md");
        let (_, kinds) = documentation.split_once("kinds=").expect("the list");
        let kinds: Vec<&str> = kinds
            .lines()
            .next()
            .into_iter()
            .flat_map(|line| line.split(','))
            .collect();
        let lists = LISTS.iter().chain(&TEMPLATES).chain(&CLASSES);
        for (kind, path) in lists.chain([&QUOTAS]) {
            let plural = path.rsplit('/').next().unwrap_or_default();
            assert!(kinds.contains(&plural), "{kind} is missing in {kinds:?}");
        }
    }
}
