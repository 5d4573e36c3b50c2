//! ResourceQuota: a write that would use more of a namespace than its quotas allow is refused; one that fits is counted at once.
//!
//! What a quota allows and what is used is in its status: the quota controller writes it, and corrects what this plugin has added for objects
//! that came to nothing or are gone.

use mullion_kinds::{
    Resource,
    quota::{Amounts, CountedKind, room, scopes},
    request::Ctx,
};
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Action, Claim, Operation, Plugin, Request};

/// kube-apiserver: ResourceQuota.
pub(super) struct ResourceQuota;

impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        let resource = action.resource;
        resource.namespaced
            && !resource.rules.transient
            // kube-apiserver's quota ignores events: a namespace at its limit must still be able to report why.
            && resource.plural != "events"
            && match (action.operation, action.subresource) {
                (Operation::Create, None) => true,
                (Operation::Update, subresource) => changes(resource, subresource),
                _ => false,
            }
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        self.claims(ctx, request).map(|_| ())
    }

    fn claims(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<Vec<Claim>, Status> {
        let mut quotas = ctx.lookup.list("", "resourcequotas", request.namespace);
        // The cheap questions first: most namespaces have no quota.
        if quotas.is_empty() || !may_change(request) {
            return Ok(Vec::new());
        }
        // By name, so that the error names the same quota each time.
        quotas.sort_by(|a, b| a["metadata"].text("name").cmp(b["metadata"].text("name")));
        let counted = CountedKind::of(request.action.resource);
        let mut counting = Vec::new();
        for quota in &quotas {
            let counts = room::counts(ctx.lookup, quota, &counted, request.object);
            if counts.map_err(|why| request.forbidden(&why.to_string()))? {
                counting.push(quota);
            }
        }
        if counting.is_empty() {
            return Ok(Vec::new());
        }
        let used = usage(ctx, &counted, request)?;
        // An update is charged for the difference alone.
        let before = request
            .old
            .map(|old| counted.used_by(ctx.lookup, old, ctx.now));
        let mut claims = Vec::new();
        for quota in counting {
            // Of an object that a quota did not count before, all is new to it.
            let before = before.as_ref().filter(|_| {
                request
                    .old
                    .is_some_and(|old| scopes::contain(quota, &counted, old))
            });
            claims.extend(claim(quota, &delta(&used, before), request)?);
        }
        Ok(claims)
    }
}

/// Returns whether an update can change the amounts that an object of the resource uses.
fn changes(resource: &Resource, subresource: Option<&str>) -> bool {
    matches!(
        (&*resource.group, &*resource.plural, subresource),
        ("", "pods", None | Some("resize"))
            | ("", "persistentvolumeclaims" | "services", None)
            | ("resource.k8s.io", "resourceclaims", None)
    )
}

/// Returns whether this write can change the amounts. An update of a whole pod can only by a move between the scopes `Terminating` and
/// `NotTerminating`.
fn may_change(request: &Request<'_>) -> bool {
    match request.old {
        Some(old) if request.action.updates("", "pods") => {
            scopes::is_terminating(old) != scopes::is_terminating(request.object)
        }
        _ => true,
    }
}

/// Returns the amounts that the written object uses.
fn usage(
    ctx: &Ctx<'_>,
    counted: &CountedKind<'_>,
    request: &Request<'_>,
) -> Result<Amounts, Status> {
    let used = counted.used_by(ctx.lookup, request.object, ctx.now);
    let negative: Vec<&str> = used
        .iter()
        .filter(|(_, amount)| amount.is_negative())
        .map(|(name, _)| name.as_str())
        .collect();
    if !negative.is_empty() {
        return Err(request.forbidden(&format!(
            "quota usage is negative for resource(s): {}",
            negative.join(",")
        )));
    }
    Ok(used)
}

/// Returns the amounts that a write uses in addition to those before it.
fn delta(used: &Amounts, before: Option<&Amounts>) -> Amounts {
    let mut delta = used.clone();
    for (name, before) in before.into_iter().flatten() {
        if let Some(amount) = delta.get_mut(name) {
            *amount = amount.minus(before);
        }
    }
    // What an update frees is left to the quota controller (kube-apiserver: SubtractWithNonNegativeResult).
    delta.retain(|_, amount| amount.nano() > 0);
    delta
}

fn claim(quota: &Value, delta: &Amounts, request: &Request<'_>) -> Result<Option<Claim>, Status> {
    let wanted = room::limited(quota, delta);
    let wanted = wanted.map_err(|why| request.forbidden(&why.to_string()))?;
    if wanted.is_empty() {
        return Ok(None);
    }
    let returned = wanted.clone();
    Ok(Some(Claim {
        group: "",
        plural: "resourcequotas",
        namespace: request.namespace.map(str::to_owned),
        name: quota["metadata"].text("name").to_owned(),
        version: quota["metadata"].text("resourceVersion").to_owned(),
        take: Box::new(move |quota| room::take(quota, &wanted)),
        give_back: Box::new(move |quota| room::give_back(quota, &returned)),
    }))
}
