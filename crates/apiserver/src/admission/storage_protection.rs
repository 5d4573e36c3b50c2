//! StorageObjectInUseProtection: claims and volumes carry a finalizer, so that they outlive their users.

use serde_json::json;

use super::{Ctx, Plugin, Request, What};
use crate::{kinds::tree::Tree, status::Status};

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";

/// kube-apiserver: StorageObjectInUseProtection.
pub(super) struct StorageProtection;

impl Plugin for StorageProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, what: &What<'_>) -> bool {
        what.creates("", "persistentvolumeclaims") || what.creates("", "persistentvolumes")
    }

    fn mutate(&self, _ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let finalizer = if request.what.resource.plural == "persistentvolumes" {
            VOLUME
        } else {
            CLAIM
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
