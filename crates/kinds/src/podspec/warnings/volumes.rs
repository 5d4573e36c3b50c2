//! Warns about volumes: kinds that no longer work, and files that hide each other.

use std::rc::Rc;

use mullion_kube_text::{field::Path, golang::quote};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{WarningList, overlaps::Overlaps};
use crate::persistentvolumeclaims;

/// Deprecated sources in kube-apiserver's order; the warnings about the claims of ephemeral volumes are between them.
const DEPRECATED_VOLUMES: [(&str, &str, &str); 10] = [
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "gitRepo",
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    (
        "scaleIO",
        "scaleIO",
        "deprecated in v1.16, non-functional in v1.22+",
    ),
    (
        "flocker",
        "flocker",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "storageos",
        // kube-apiserver's warning writes the field like this.
        "storageOS",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "quobyte",
        "quobyte",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "glusterfs",
        "glusterfs",
        "deprecated in v1.25, non-functional in v1.26+",
    ),
    ("ephemeral", "", ""),
    (
        "cephfs",
        "cephfs",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
    (
        "rbd",
        "rbd",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
];

impl WarningList {
    pub(super) fn volumes(&mut self, spec: &Value, path: &Path<'_>) {
        for (index, volume) in spec.items("volumes").iter().enumerate() {
            let at = path.index(index);
            for (field, printed, message) in DEPRECATED_VOLUMES {
                if field == "ephemeral" {
                    let at = at.child("ephemeral");
                    let at = at.child("volumeClaimTemplate");
                    let claim = &volume["ephemeral"]["volumeClaimTemplate"]["spec"];
                    self.0.extend(persistentvolumeclaims::fraction_warnings(
                        &at.child("spec"),
                        claim,
                    ));
                } else if volume.has(field) {
                    self.add(&at.child(printed), message);
                }
            }
        }
    }

    /// Warns about files of one volume that hide each other, because one is at the path of the other or of a folder above it.
    pub(super) fn overlapping_files(&mut self, volumes: &[Value]) {
        for volume in volumes {
            let name = quote(volume.text("name"));
            for (field, kind, named) in [
                ("configMap", "ConfigMap", "name"),
                ("secret", "Secret", "secretName"),
                ("downwardAPI", "DownwardAPI", ""),
            ] {
                let Some(source) = volume.field(field) else {
                    continue;
                };
                let owner = owner(kind, source, named);
                let mut taken: Overlaps<'_, &str> = Overlaps::default();
                for file in files(source) {
                    if self.0.is_full() {
                        return;
                    }
                    self.0.extend(taken.overlapping(file).map(|other| {
                        let (file, other) = (quote(file), quote(other));
                        format!("volume {name} ({owner}): overlapping paths: {file} with {other}")
                    }));
                    taken.add(file, file);
                }
            }
            if let Some(projected) = volume.field("projected") {
                self.overlapping_projections(&name, projected.items("sources"));
            }
        }
    }

    fn overlapping_projections(&mut self, name: &str, sources: &[Value]) {
        let mut taken: Overlaps<'_, (&str, Rc<str>)> = Overlaps::default();
        for source in sources {
            // A source can also be empty because it had only fields of disabled features, which are dropped.
            if source.as_object().is_some_and(|source| source.is_empty()) {
                let text = format!("volume {name} (Projected) has no sources provided");
                self.0.add(text);
                continue;
            }
            for (file, owner) in projection(source) {
                if self.0.is_full() {
                    return;
                }
                self.0.extend(taken.overlapping(file).map(|(other, of)| {
                    let (file, other) = (quote(file), quote(other));
                    format!(
                        "volume {name} (Projected): overlapping paths: {file} ({owner}) with {other} ({of})"
                    )
                }));
                taken.add(file, (file, owner));
            }
        }
    }
}

/// Formats a source for messages.
fn owner(kind: &str, source: &Value, named: &str) -> String {
    if named.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind} {}", quote(source.text(named)))
    }
}

fn files(source: &Value) -> impl Iterator<Item = &str> {
    let items = source.items("items").iter();
    items.map(|item| item.text("path").trim_end_matches('/'))
}

/// Returns the files of a projected source, each with its owner. If a source has several projections, only the first counts.
fn projection(source: &Value) -> Vec<(&str, Rc<str>)> {
    for (field, kind, named) in [
        ("configMap", "ConfigMap", "name"),
        ("secret", "Secret", "name"),
        ("downwardAPI", "DownwardAPI", ""),
    ] {
        if let Some(listed) = source.field(field).filter(|listed| listed.has("items")) {
            let owner: Rc<str> = owner(kind, listed, named).into();
            return files(listed).map(|file| (file, owner.clone())).collect();
        }
    }
    let one = |field: &str| {
        source
            .field(field)
            .map(|one| one.text("path").trim_end_matches('/'))
    };
    if let Some(file) = one("serviceAccountToken") {
        return vec![(file, "ServiceAccountToken".into())];
    }
    let Some(file) = one("clusterTrustBundle") else {
        return Vec::new();
    };
    let bundle = &source["clusterTrustBundle"];
    let named = if bundle.has("name") {
        "name"
    } else {
        "signerName"
    };
    vec![(file, owner("ClusterTrustBundle", bundle, named).into())]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::of_pod;
    use super::*;

    fn warned(volume: Value) -> Vec<String> {
        of_pod(&json!({"metadata": {"name": "x"}, "spec": {"volumes": [volume]}}))
    }

    #[test]
    fn files_that_hide_each_other_are_worth_a_warning() {
        let items = json!([{"key": "a", "path": "test/app"}, {"key": "b", "path": "test"}, {"key": "c", "path": "other"}]);
        assert_eq!(
            warned(json!({"name": "v", "configMap": {"name": "m", "items": items}})),
            [r#"volume "v" (ConfigMap "m"): overlapping paths: "test" with "test/app""#]
        );
        assert_eq!(
            warned(json!({"name": "v", "secret": {"secretName": "s", "items": items}})),
            [r#"volume "v" (Secret "s"): overlapping paths: "test" with "test/app""#]
        );
    }

    #[test]
    fn projections_that_hide_each_other_are_worth_a_warning_each() {
        let volume = json!({"name": "v", "projected": {"sources": [
            {"downwardAPI": {"items": [{"path": "test"}]}}, {"secret": {"name": "s", "items": [{"path": "test"}]}},
            {"serviceAccountToken": {"path": "test/token"}}, {},
        ]}});
        assert_eq!(
            warned(volume),
            [
                r#"volume "v" (Projected): overlapping paths: "test" (Secret "s") with "test" (DownwardAPI)"#,
                r#"volume "v" (Projected): overlapping paths: "test/token" (ServiceAccountToken) with "test" (DownwardAPI)"#,
                r#"volume "v" (Projected): overlapping paths: "test/token" (ServiceAccountToken) with "test" (Secret "s")"#,
                r#"volume "v" (Projected) has no sources provided"#,
            ]
        );
    }

    #[test]
    fn an_ephemeral_claim_of_a_part_of_a_byte_is_worth_a_warning() {
        let claim = json!({"spec": {"resources": {"requests": {"storage": "200m"}}}});
        assert_eq!(
            warned(json!({"name": "v", "ephemeral": {"volumeClaimTemplate": claim}})),
            [
                r#"spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: fractional byte value "200m" is invalid, must be an integer"#
            ]
        );
    }
}
