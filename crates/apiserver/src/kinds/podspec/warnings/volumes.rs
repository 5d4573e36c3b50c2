//! Warnings about volumes: kinds that work no longer, files that hide a token.

use serde_json::Value;

use super::Warnings;
use crate::{
    field::{Path, quote},
    kinds::tree::Tree,
};

const DEPRECATED_VOLUMES: [(&str, &str, &str); 9] = [
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

impl Warnings {
    pub(super) fn volumes(&mut self, spec: &Value, path: &Path<'_>) {
        for (index, volume) in spec.items("volumes").iter().enumerate() {
            for (field, printed, message) in DEPRECATED_VOLUMES {
                if volume.has(field) {
                    self.add(&path.index(index).child(printed), message);
                }
            }
        }
    }

    /// Files that a projected volume puts where a service account token goes.
    pub(super) fn token_collisions(&mut self, spec: &Value, path: &Path<'_>) {
        let projections = || {
            let volumes = spec.items("volumes").iter().enumerate();
            volumes.flat_map(|(index, volume)| {
                volume
                    .get("projected")
                    .map_or(&[][..], |projected| projected.items("sources"))
                    .iter()
                    .map(move |source| (index, source))
            })
        };
        let token = |file: &str| {
            projections().any(|(_, source)| {
                source
                    .field("serviceAccountToken")
                    .is_some_and(|token| token.text("path") == file)
            })
        };
        for (index, source) in projections() {
            let at = path.index(index);
            let at = at.child("projected");
            let at = at.child("sources");
            let message = |file: &str| {
                format!(
                    "has duplicated path with ServiceAccountToken {}",
                    quote(file)
                )
            };
            for (field, printed) in [
                ("configMap", "configMap"),
                ("secret", "secrets"),
                ("downwardAPI", "downwardAPI"),
            ] {
                let items = source
                    .get(field)
                    .map_or(&[][..], |projection| projection.items("items"));
                for (item_index, item) in items
                    .iter()
                    .enumerate()
                    .filter(|(_, item)| token(item.text("path")))
                {
                    self.add(
                        &at.child(printed).index(item_index),
                        &message(item.text("path")),
                    );
                }
            }
            if let Some(file) = source
                .field("clusterTrustBundle")
                .map(|bundle| bundle.text("path"))
                .filter(|file| token(file))
            {
                self.add(&at.child("ClusterTrustBundle"), &message(file));
            }
        }
    }
}
