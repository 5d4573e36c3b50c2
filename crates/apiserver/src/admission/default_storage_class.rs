//! DefaultStorageClass: a claim that names no class gets the default one; of several the newest.

use mullion_kinds::{persistentvolumeclaims::BETA_CLASS, request::Ctx, storageclasses::is_default};
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;

use super::{Action, Plugin, Request, newest};

/// kube-apiserver: DefaultStorageClass.
pub(super) struct DefaultStorageClass;

impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.creates("", "persistentvolumeclaims")
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let claim = &mut *request.object;
        if claim["spec"].has("storageClassName") || claim["metadata"]["annotations"].has(BETA_CLASS)
        {
            return Ok(());
        }
        let classes = ctx.lookup.list("storage.k8s.io", "storageclasses", None);
        if let Some(class) = newest(&classes, is_default) {
            claim["spec"]["storageClassName"] = class["metadata"]["name"].clone();
        }
        Ok(())
    }
}
