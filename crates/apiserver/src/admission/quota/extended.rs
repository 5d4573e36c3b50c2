//! Claims of devices count towards limits of the extended resources that their classes stand for, too, but for what the pod counts for already
//! whose extended resources a claim is made for (`pkg/quota/v1/evaluator/core/resource_claims.go`).

use std::sync::Arc;

use mullion_kube_text::quantity::Quantity;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    Amounts, Ctx,
    usage::{CountedKind, DEVICES},
};

const GROUP: &str = "resource.k8s.io";
/// Before the name of a class it makes the name of a resource that the class always stands for.
pub(super) const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";
/// The annotation of a claim that stands for the extended resources of the pod that owns it.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";

/// Returns whether a limit is on an extended resource that a DeviceClass provides.
pub(super) fn is_stood_for(ctx: &Ctx<'_>, limit: &str) -> bool {
    let resource = limit.strip_prefix("requests.");
    let Some(resource) = resource.filter(|resource| resource.contains('/')) else {
        return false;
    };
    match resource.strip_prefix(CLASS_PREFIX) {
        Some(class) => class_named(ctx, class).is_some(),
        None => {
            let classes = ctx.lookup.list(GROUP, "deviceclasses", None);
            classes.iter().any(|class| explicit(class) == resource)
        }
    }
}

/// Adds the extended resources that the devices of a claim stand for.
pub(super) fn add(ctx: &Ctx<'_>, claim: &Value, used: &mut Amounts) {
    let mut extended = Amounts::new();
    for (name, amount) in &*used {
        let Some(class) = name.strip_suffix(DEVICES).filter(|own| !own.is_empty()) else {
            continue;
        };
        extended.insert(format!("requests.{CLASS_PREFIX}{class}"), amount.clone());
        let known = class_named(ctx, class);
        let resource = known.as_deref().map(explicit).unwrap_or_default();
        if !resource.is_empty() {
            extended.insert(format!("requests.{resource}"), amount.clone());
        }
    }
    if extended.is_empty() {
        return;
    }
    let of_pod = pod_of(ctx, claim).map(|pod| CountedKind::named("", "pods").usage(&pod, ctx.now));
    let zero = Quantity::from_integer(0);
    for (name, amount) in extended {
        let counted = of_pod.as_ref().and_then(|of_pod| of_pod.get(&name));
        let left = amount.minus(counted.unwrap_or(&zero));
        if left > zero {
            used.insert(name, left);
        }
    }
}

fn class_named(ctx: &Ctx<'_>, name: &str) -> Option<Arc<Value>> {
    ctx.lookup.find(GROUP, "deviceclasses", None, name)
}

fn explicit(class: &Value) -> &str {
    class["spec"].text("extendedResourceName")
}

/// Returns the UID and the name of the pod whose extended resources the claim is for.
fn owner(claim: &Value) -> Option<(&str, &str)> {
    let metadata = &claim["metadata"];
    if metadata["annotations"].text(EXTENDED) != "true" {
        return None;
    }
    let mut owners = metadata.items("ownerReferences").iter();
    let owner = owners.find(|own| own["controller"] == true)?;
    let is_pod = owner.text("kind") == "Pod" && owner.text("apiVersion") == "v1";
    is_pod.then(|| (owner.text("uid"), owner.text("name")))
}

/// Returns the pod whose extended resources a claim is for. A pod whose status does not name its claim has at most one, the oldest.
fn pod_of(ctx: &Ctx<'_>, claim: &Value) -> Option<Arc<Value>> {
    let (uid, name) = owner(claim)?;
    let metadata = &claim["metadata"];
    let namespace = Some(metadata.text("namespace"));
    let pod = ctx.lookup.find("", "pods", namespace, name)?;
    // Another pod of the same name, made after the owner was deleted.
    if pod["metadata"].text("uid") != uid {
        return None;
    }
    let is_first = match pod["status"].field("extendedResourceClaimStatus") {
        Some(status) => status.text("resourceClaimName") == metadata.text("name"),
        None => {
            let age = |own: &Value| {
                let (created, name) = (own.text("creationTimestamp"), own.text("name"));
                (created.to_owned(), name.to_owned())
            };
            let claims = ctx.lookup.list(GROUP, "resourceclaims", namespace);
            let mut own = claims
                .iter()
                .filter(|other| owner(other).is_some_and(|own| own.0 == uid));
            own.all(|other| age(&other["metadata"]) >= age(metadata))
        }
    };
    is_first.then_some(pod)
}
