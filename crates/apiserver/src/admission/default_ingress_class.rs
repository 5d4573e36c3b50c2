//! DefaultIngressClass: an Ingress without a class gets the one that is marked as default, the newest if several are.

use mullion_kinds::{ingressclasses::is_default, ingresses::CLASS_ANNOTATION, request::Ctx};
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;

use super::{Action, Plugin, Request, newest};

/// kube-apiserver: DefaultIngressClass.
pub(super) struct DefaultIngressClass;

impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.creates("networking.k8s.io", "ingresses")
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let chosen = request.object["spec"].has("ingressClassName")
            || request.object["metadata"]["annotations"].has(CLASS_ANNOTATION);
        if chosen {
            return Ok(());
        }
        let classes = ctx.lookup.list("networking.k8s.io", "ingressclasses", None);
        if let Some(class) = newest(&classes, is_default) {
            request.object["spec"]["ingressClassName"] = class["metadata"]["name"].clone();
        }
        Ok(())
    }
}
