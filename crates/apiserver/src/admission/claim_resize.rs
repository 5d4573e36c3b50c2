//! PersistentVolumeClaimResize: a claim grows only when it is bound and its class allows it.

use mullion_kinds::{persistentvolumeclaims::class, request::Ctx};
use mullion_kube_text::{quantity::Quantity, status::Status};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Action, Plugin, Request};

/// kube-apiserver: PersistentVolumeClaimResize.
pub(super) struct ClaimResize;

impl Plugin for ClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.updates("", "persistentvolumeclaims")
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let Some(old) = request.old else {
            return Ok(());
        };
        let size = |claim: &Value| {
            Quantity::parse(claim["spec"]["resources"]["requests"].text("storage")).ok()
        };
        // A claim that shrinks is left to validation, which knows when that is allowed.
        if size(request.object) <= size(old) {
            return Ok(());
        }
        if old["status"]["phase"] != "Bound" {
            return Err(request.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let (now, before) = (class(request.object), class(old));
        let found = ctx
            .lookup
            .find("storage.k8s.io", "storageclasses", None, now);
        if !now.is_empty()
            && now == before
            && found.is_some_and(|class| class.flag("allowVolumeExpansion"))
        {
            return Ok(());
        }
        Err(request.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        ))
    }
}
