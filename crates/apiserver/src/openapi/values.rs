//! The defaults in v3 documents, and the unions in all documents.
//!
//! Defaults are those that decoding applies: Go's zero value where a field is always written, and the few that Kubernetes declares on the
//! field itself. What kube-apiserver fills in later (replicas, grace periods) is mentioned only in descriptions, as there. A union is a
//! type of which at most one field is set; only documents use that.

use mullion_schema::{Field, Node, Presence, Scalar, Struct};
use serde_json::{Map, Value, json};

/// The types that are declared as unions: the discriminator field, if there is one, and the members.
const UNIONS: &[(&str, Option<&str>, &[&str])] = &[
    (
        "api.core.v1.AppArmorProfile",
        Some("type"),
        &["localhostProfile"],
    ),
    ("api.core.v1.PodSchedulingGroup", None, &["podGroupName"]),
    (
        "api.core.v1.SeccompProfile",
        Some("type"),
        &["localhostProfile"],
    ),
    (
        "api.flowcontrol.v1.LimitResponse",
        Some("type"),
        &["queuing"],
    ),
    (
        "api.flowcontrol.v1.PriorityLevelConfigurationSpec",
        Some("type"),
        &["exempt", "limited"],
    ),
    (
        "api.flowcontrol.v1.Subject",
        Some("kind"),
        &["group", "serviceAccount", "user"],
    ),
];

/// The defaults that are declared on fields of `api.core.v1`.
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

/// Returns the union declaration of a type.
pub(super) fn unions(owner: &str) -> Option<Value> {
    let (_, discriminator, fields) = UNIONS.iter().find(|(name, ..)| *name == owner)?;
    let values = fields.iter().map(|field| {
        let mut value = (*field).to_owned();
        value[..1].make_ascii_uppercase();
        ((*field).to_owned(), Value::from(value))
    });
    let mut union = json!({"fields-to-discriminateBy": values.collect::<Map<_, _>>()});
    if let Some(field) = discriminator {
        union["discriminator"] = (*field).into();
    }
    Some(json!([union]))
}

/// Returns the default of a field.
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

/// Returns the default of a list's items or a map's values.
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
    use mullion_schema::Type;

    use super::*;

    #[test]
    fn unions_are_of_fields_that_exist() {
        for (owner, discriminator, fields) in UNIONS {
            let kind = Type::builtin(owner).expect("a built-in type");
            for field in discriminator.iter().chain(*fields) {
                assert!(kind.field(field).is_some(), "{owner} {field}");
            }
        }
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
