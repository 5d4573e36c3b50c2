//! StorageObjectInUseProtection: claims, volumes and classes of volume attributes carry a finalizer, so that they outlive their users.

use mullion_kinds::request::Ctx;
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;
use serde_json::json;

use super::{Action, Plugin, Request};

/// The kinds and their finalizers.
const FINALIZERS: [(&str, &str, &str); 3] = [
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    (
        "storage.k8s.io",
        "volumeattributesclasses",
        "kubernetes.io/vac-protection",
    ),
];

fn finalizer(action: &Action<'_>) -> Option<&'static str> {
    let mut all = FINALIZERS.iter();
    let found = all.find(|(group, plural, _)| action.creates(group, plural));
    found.map(|(_, _, finalizer)| *finalizer)
}

/// kube-apiserver: StorageObjectInUseProtection.
pub(super) struct StorageProtection;

impl Plugin for StorageProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        finalizer(action).is_some()
    }

    fn mutate(&self, _ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let Some(finalizer) = finalizer(&request.action) else {
            return Ok(());
        };
        let metadata = &mut request.object["metadata"];
        if metadata
            .items("finalizers")
            .iter()
            .any(|present| present == finalizer)
        {
            return Ok(());
        }
        match metadata["finalizers"].as_array_mut() {
            Some(finalizers) => finalizers.push(finalizer.into()),
            None => metadata["finalizers"] = json!([finalizer]),
        }
        Ok(())
    }
}
