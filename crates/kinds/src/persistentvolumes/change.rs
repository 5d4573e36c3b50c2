//! Validates updates of a PersistentVolume: its source, mode and affinity are immutable once they are set.

use mullion_kube_text::field::{ErrorType, Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::{Map, Value};

use super::{ATTRIBUTES_CLASS, SOURCES};
use crate::{fields, podspec};

const EXPAND_SECRET: &str = "controllerExpandSecretRef";

/// Validates that immutable fields of a volume are unchanged.
pub(super) fn validate(errors: &mut Errors, spec: &Value, old: &Value) {
    let path = Path::new("spec");
    let source = |spec: &Value| -> Value {
        let present = SOURCES.iter().filter(|source| spec.has(source));
        present
            .map(|source| ((*source).to_owned(), spec[*source].clone()))
            .collect::<Map<_, _>>()
            .into()
    };
    let (mut now, before) = (source(spec), source(old));
    // `controllerExpandSecretRef` may be set later.
    if before.has("csi")
        && !before["csi"].has(EXPAND_SECRET)
        && let Some(csi) = now.get_mut("csi").and_then(Value::as_object_mut)
    {
        csi.remove(EXPAND_SECRET);
    }
    if now != before {
        let difference = podspec::internal::difference("PersistentVolumeSource", &before, &now);
        let detail =
            format!("spec.persistentvolumesource is immutable after creation\n{difference}");
        errors.forbidden(&path.child("persistentvolumesource"), detail);
    }
    // These paths are the ones that kube-apiserver reports.
    fields::immutable(&["volumeMode"], spec, old, Path::ROOT, errors);
    let (affinity, old_affinity) = (spec.field("nodeAffinity"), old.field("nodeAffinity"));
    if let Some(before) = old_affinity
        && !affinity.is_some_and(|now| is_relabelled(now, before))
    {
        let printed = affinity.map_or("null".to_owned(), |affinity| {
            podspec::internal::compact("VolumeNodeAffinity", affinity)
        });
        let detail = "field is immutable, except for updating from beta label to GA";
        let path = Path::new("nodeAffinity");
        errors.with_text(ErrorType::Invalid, &path, printed, detail);
    }
    if old.has(ATTRIBUTES_CLASS) && !spec.has(ATTRIBUTES_CLASS) {
        let detail = "update from non-nil value to nil is forbidden";
        errors.forbidden(&path.child(ATTRIBUTES_CLASS), detail);
    }
}

/// Returns whether two affinities are equal, except that deprecated labels are replaced by their successors.
fn is_relabelled(now: &Value, old: &Value) -> bool {
    const RENAMED: [(&str, &str); 5] = [
        (
            "failure-domain.beta.kubernetes.io/zone",
            "topology.kubernetes.io/zone",
        ),
        (
            "failure-domain.beta.kubernetes.io/region",
            "topology.kubernetes.io/region",
        ),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        (
            "beta.kubernetes.io/instance-type",
            "node.kubernetes.io/instance-type",
        ),
    ];
    let same_requirement = |(now, old): (&Value, &Value)| {
        let (key, old_key) = (now.text("key"), old.text("key"));
        (key == old_key || RENAMED.contains(&(old_key, key)))
            && now.text("operator") == old.text("operator")
            && now.items("values") == old.items("values")
    };
    let same_list = |now: &Value, old: &Value, list: &str| {
        let (now, old) = (now.items(list), old.items(list));
        now.len() == old.len() && now.iter().zip(old).all(same_requirement)
    };
    let (now, old) = (&now["required"], &old["required"]);
    let (terms, old_terms) = (
        now.items("nodeSelectorTerms"),
        old.items("nodeSelectorTerms"),
    );
    terms.len() == old_terms.len()
        && terms.iter().zip(old_terms).all(|(now, old)| {
            same_list(now, old, "matchExpressions") && same_list(now, old, "matchFields")
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_labels_with_a_new_name_may_change_in_an_affinity() {
        let volume = |key: &str| json!({"hostPath": {"path": "/a"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}}});
        let mut errors = Errors::default();
        validate(
            &mut errors,
            &volume("kubernetes.io/os"),
            &volume("beta.kubernetes.io/os"),
        );
        assert!(errors.is_empty(), "{errors:?}");
        validate(&mut errors, &volume("a"), &volume("b"));
        let text = format!("{}: {}", errors.0[0].field, errors.0[0].body());
        assert_eq!(
            text,
            r#"nodeAffinity: Invalid value: {"Required":{"NodeSelectorTerms":[{"MatchExpressions":[{"Key":"a","Operator":"Exists","Values":null}],"MatchFields":null}]}}: field is immutable, except for updating from beta label to GA"#
        );
        let mut errors = Errors::default();
        validate(
            &mut errors,
            &json!({"hostPath": {"path": "/b"}}),
            &json!({"hostPath": {"path": "/a"}}),
        );
        assert!(
            errors.0[0]
                .detail
                .contains("\n-  \"Path\": \"/a\",\n+  \"Path\": \"/b\",\n"),
            "{}",
            errors.0[0].detail
        );
    }
}
