//! DefaultStorageClass: a claim that names no class gets the default one; of several the newest.

use serde_json::Value;

use super::{Ctx, Operation, Plugin, Request, is};
use crate::{
    kinds::{Resource, persistentvolumeclaims::BETA_CLASS, storageclasses::is_default, tree::Tree},
    status::Status,
};

/// kube-apiserver: DefaultStorageClass.
pub(super) struct DefaultStorageClass;

impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(
        &self,
        operation: Operation,
        resource: &Resource,
        subresource: Option<&str>,
    ) -> bool {
        operation == Operation::Create
            && is(resource, "", "persistentvolumeclaims")
            && subresource.is_none()
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let claim = &mut *request.object;
        if claim["spec"].has("storageClassName") || claim["metadata"]["annotations"].has(BETA_CLASS)
        {
            return Ok(());
        }
        let mut classes = ctx.lookup.list("storage.k8s.io", "storageclasses", None);
        classes.retain(|class| is_default(class));
        let age = |class: &Value| {
            std::cmp::Reverse(class["metadata"].text("creationTimestamp").to_owned())
        };
        let newest = classes
            .iter()
            .min_by_key(|class| (age(class), class["metadata"].text("name").to_owned()));
        if let Some(class) = newest {
            claim["spec"]["storageClassName"] = class["metadata"]["name"].clone();
        }
        Ok(())
    }
}
