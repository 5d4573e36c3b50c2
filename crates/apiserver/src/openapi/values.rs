//! What documents say of values beside their types: the closed sets they come from, and the defaults of version 3.
//!
//! Defaults are those that decoding knows: Go's zero value where a field is always written, and the few that Kubernetes declares on
//! the field itself. What the server fills in later (replicas, grace periods) is in the descriptions instead, as upstream has it.

use serde_json::{Value, json};

use crate::schema::{Field, Node, Presence, Scalar, Struct};

/// The values of Go's string types that have a closed set of them, sorted by type.
const SETS: &[(&str, &[&str])] = &[
    ("v1.AddressType", &["FQDN", "IPv4", "IPv6"]),
    (
        "v1.AppArmorProfileType",
        &["Localhost", "RuntimeDefault", "Unconfined"],
    ),
    (
        "v1.AzureDataDiskCachingMode",
        &["None", "ReadOnly", "ReadWrite"],
    ),
    ("v1.AzureDataDiskKind", &["Dedicated", "Managed", "Shared"]),
    (
        "v1.DNSPolicy",
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    ),
    (
        "v1.DaemonSetUpdateStrategyType",
        &["OnDelete", "RollingUpdate"],
    ),
    ("v1.DeploymentStrategyType", &["Recreate", "RollingUpdate"]),
    (
        "v1.FSGroupPolicy",
        &["File", "None", "ReadWriteOnceWithFSType"],
    ),
    (
        "v1.FieldValueErrorReason",
        &[
            "FieldValueDuplicate",
            "FieldValueForbidden",
            "FieldValueInvalid",
            "FieldValueRequired",
        ],
    ),
    (
        "v1.HostPathType",
        &[
            "",
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        ],
    ),
    ("v1.IPFamily", &["", "IPv4", "IPv6"]),
    (
        "v1.IPFamilyPolicy",
        &["PreferDualStack", "RequireDualStack", "SingleStack"],
    ),
    (
        "v1.MountPropagationMode",
        &["Bidirectional", "HostToContainer", "None"],
    ),
    ("v1.NamespacePhase", &["Active", "Terminating"]),
    ("v1.NodeInclusionPolicy", &["Honor", "Ignore"]),
    (
        "v1.NodeSelectorOperator",
        &["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"],
    ),
    (
        "v1.PersistentVolumeAccessMode",
        &[
            "ReadOnlyMany",
            "ReadWriteMany",
            "ReadWriteOnce",
            "ReadWriteOncePod",
        ],
    ),
    (
        "v1.PersistentVolumeClaimModifyVolumeStatus",
        &["InProgress", "Infeasible", "Pending"],
    ),
    (
        "v1.PersistentVolumeClaimPhase",
        &["Bound", "Lost", "Pending"],
    ),
    ("v1.PersistentVolumeMode", &["Block", "Filesystem"]),
    (
        "v1.PersistentVolumePhase",
        &["Available", "Bound", "Failed", "Pending", "Released"],
    ),
    (
        "v1.PersistentVolumeReclaimPolicy",
        &["Delete", "Recycle", "Retain"],
    ),
    ("v1.PodFSGroupChangePolicy", &["Always", "OnRootMismatch"]),
    (
        "v1.PodPhase",
        &["Failed", "Pending", "Running", "Succeeded", "Unknown"],
    ),
    ("v1.PodQOSClass", &["BestEffort", "Burstable", "Guaranteed"]),
    ("v1.PodSELinuxChangePolicy", &["MountOption", "Recursive"]),
    ("v1.PreemptionPolicy", &["Never", "PreemptLowerPriority"]),
    ("v1.ProcMountType", &["Default", "Unmasked"]),
    ("v1.Protocol", &["SCTP", "TCP", "UDP"]),
    ("v1.PullPolicy", &["Always", "IfNotPresent", "Never"]),
    ("v1.RestartPolicy", &["Always", "Never", "OnFailure"]),
    (
        "v1.SeccompProfileType",
        &["Localhost", "RuntimeDefault", "Unconfined"],
    ),
    ("v1.ServiceAffinity", &["ClientIP", "None"]),
    ("v1.ServiceExternalTrafficPolicy", &["Cluster", "Local"]),
    ("v1.ServiceInternalTrafficPolicy", &["Cluster", "Local"]),
    (
        "v1.ServiceType",
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
    ),
    ("v1.SupplementalGroupsPolicy", &["Merge", "Strict"]),
    (
        "v1.TaintEffect",
        &["NoExecute", "NoSchedule", "PreferNoSchedule"],
    ),
    (
        "v1.TerminationMessagePolicy",
        &["FallbackToLogsOnError", "File"],
    ),
    ("v1.TolerationOperator", &["Equal", "Exists", "Gt", "Lt"]),
    ("v1.URIScheme", &["HTTP", "HTTPS"]),
    (
        "v1.UnsatisfiableConstraintAction",
        &["DoNotSchedule", "ScheduleAnyway"],
    ),
    (
        "v1.VolumeBindingMode",
        &["Immediate", "WaitForFirstConsumer"],
    ),
];

/// Defaults declared on fields of `api.core.v1`.
const DECLARED: &[(&str, &str, &str)] = &[
    ("AzureDiskVolumeSource", "cachingMode", "ReadWrite"),
    ("AzureDiskVolumeSource", "fsType", "ext4"),
    ("AzureDiskVolumeSource", "kind", "Shared"),
    ("ConfigMapEnvSource", "name", ""),
    ("ConfigMapKeySelector", "name", ""),
    ("ConfigMapProjection", "name", ""),
    ("ConfigMapVolumeSource", "name", ""),
    ("ContainerPort", "protocol", "TCP"),
    ("GRPCAction", "service", ""),
    ("ISCSIPersistentVolumeSource", "iscsiInterface", "default"),
    ("ISCSIVolumeSource", "iscsiInterface", "default"),
    ("LocalObjectReference", "name", ""),
    ("RBDPersistentVolumeSource", "keyring", "/etc/ceph/keyring"),
    ("RBDPersistentVolumeSource", "pool", "rbd"),
    ("RBDPersistentVolumeSource", "user", "admin"),
    ("RBDVolumeSource", "keyring", "/etc/ceph/keyring"),
    ("RBDVolumeSource", "pool", "rbd"),
    ("RBDVolumeSource", "user", "admin"),
    ("ScaleIOPersistentVolumeSource", "fsType", "xfs"),
    (
        "ScaleIOPersistentVolumeSource",
        "storageMode",
        "ThinProvisioned",
    ),
    ("ScaleIOVolumeSource", "fsType", "xfs"),
    ("ScaleIOVolumeSource", "storageMode", "ThinProvisioned"),
    ("SecretEnvSource", "name", ""),
    ("SecretKeySelector", "name", ""),
    ("SecretProjection", "name", ""),
    ("ServicePort", "protocol", "TCP"),
];

/// The values a field, or the items of a list, can have; `None` if there is no closed set.
pub(super) fn set(go: &str) -> Option<&'static [&'static str]> {
    let name = go.trim_start_matches('*').trim_start_matches("[]");
    let at = SETS.binary_search_by_key(&name, |(name, _)| name).ok()?;
    Some(SETS[at].1)
}

/// The default of a field.
pub(super) fn of_field(owner: &Struct, field: &Field, node: &Node) -> Option<Value> {
    let declared = owner.name.strip_prefix("api.core.v1.").and_then(|owner| {
        DECLARED
            .iter()
            .find(|(kind, name, _)| *kind == owner && *name == &*field.name)
    });
    if let Some((.., value)) = declared {
        return Some((*value).into());
    }
    if field.go.starts_with('*') {
        return None;
    }
    match node {
        Node::Struct(_) => Some(json!({})),
        Node::Scalar(scalar) if field.presence == Presence::Always => zero(*scalar),
        _ => None,
    }
}

/// The default of a list's items and a map's values.
pub(super) fn of_item(node: &Node) -> Option<Value> {
    match node {
        Node::Struct(_) => Some(json!({})),
        Node::Scalar(scalar) => zero(*scalar),
        Node::Map { .. } | Node::List(_) => None,
    }
}

fn zero(scalar: Scalar) -> Option<Value> {
    match scalar {
        Scalar::String => Some("".into()),
        Scalar::Bool => Some(false.into()),
        Scalar::Int32 | Scalar::Int64 | Scalar::Double => Some(0.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Type;

    #[test]
    fn sets_are_sorted_so_that_each_is_found() {
        for (name, values) in SETS {
            assert_eq!(set(&format!("*{name}")), Some(*values), "{name}");
            assert!(values.is_sorted(), "{name}");
        }
        assert_eq!(set("string"), None);
    }

    #[test]
    fn declared_defaults_are_of_fields_that_exist() {
        for (owner, field, _) in DECLARED {
            let kind = Type::builtin(&format!("api.core.v1.{owner}"));
            assert!(
                kind.and_then(|kind| kind.field(field)).is_some(),
                "{owner} {field}"
            );
        }
    }
}
