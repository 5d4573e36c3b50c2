//! ResourceQuota: a write that would use more of a namespace than its quotas allow is refused; one that fits is counted at once.
//!
//! What a quota allows and what is used is in its status: the quota controller writes it, and corrects what this plugin has added for objects
//! that came to nothing or are gone.

use mullion_kinds::{
    Resource,
    podspec::totals::{self, Totals},
    quota::{Amounts, CountedKind, scopes},
    request::Ctx,
};
use mullion_kube_text::{quantity::Quantity, status::Status};
use mullion_schema::tree::{Tree, object_at};
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
            if counts(ctx, quota, &counted, request)? {
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

/// Returns whether a quota counts the object. An object that leaves out a limited resource, or a quota without a known usage, is an error.
fn counts(
    ctx: &Ctx<'_>,
    quota: &Value,
    counted: &CountedKind<'_>,
    request: &Request<'_>,
) -> Result<bool, Status> {
    let status = &quota["status"];
    let limits = status.entries("hard").map(|(name, _)| name);
    let limited = counted.limits(ctx.lookup, limits);
    if limited.is_empty() || !scopes::contain(quota, counted, request.object) {
        return Ok(false);
    }
    let name = quota["metadata"].text("name");
    // A pod that names no amount could use any, so a quota on that amount cannot count it (kube-apiserver: podEvaluator.Constraints).
    if let Some(missing) = counted.missing(&limited, request.object) {
        return Err(request.forbidden(&format!("failed quota: {name}: {missing}")));
    }
    let unknown = limited.iter().any(|resource| !status["used"].has(resource));
    if unknown {
        let mut limited = limited;
        limited.sort_unstable();
        return Err(request.forbidden(&format!(
            "status unknown for quota: {name}, resources: {}",
            limited.join(",")
        )));
    }
    Ok(true)
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
    let status = &quota["status"];
    let (hard, used) = (totals::list(&status["hard"]), totals::list(&status["used"]));
    let zero = Quantity::from_integer(0);
    let wanted: Amounts = delta
        .iter()
        .filter(|(name, _)| hard.contains_key(name.as_str()))
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    let exceeded: Vec<&String> = wanted
        .iter()
        .filter(|(name, amount)| {
            let used = used.get(name.as_str()).unwrap_or(&zero);
            // Only resources whose usage rises are looked at, so a quota that was lowered below its usage does not block other writes.
            used.plus(amount) > hard[name.as_str()]
        })
        .map(|(name, _)| name)
        .collect();
    let name = quota["metadata"].text("name");
    if !exceeded.is_empty() {
        let shown = |of: &dyn Fn(&str) -> Option<String>| -> String {
            let parts = exceeded
                .iter()
                .filter_map(|name| Some(format!("{name}={}", of(name)?)));
            parts.collect::<Vec<_>>().join(",")
        };
        let amount = |list: &Totals<'_>, name: &str| list.get(name).map(Quantity::to_string);
        return Err(request.forbidden(&format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            shown(&|name| wanted.get(name).map(Quantity::to_string)),
            shown(&|name| amount(&used, name)),
            shown(&|name| amount(&hard, name)),
        )));
    }
    if wanted.is_empty() {
        return Ok(None);
    }
    let returned = wanted.clone();
    Ok(Some(Claim {
        group: "",
        plural: "resourcequotas",
        namespace: request.namespace.map(str::to_owned),
        name: name.to_owned(),
        version: quota["metadata"].text("resourceVersion").to_owned(),
        take: Box::new(move |quota| book(quota, &wanted, Quantity::plus)),
        give_back: Box::new(move |quota| book(quota, &returned, Quantity::minus)),
    }))
}

/// Changes what a quota says is used.
fn book(quota: &mut Value, amounts: &Amounts, change: impl Fn(&Quantity, &Quantity) -> Quantity) {
    let Some(status) = quota.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    let used = object_at(status, "used");
    for (name, amount) in amounts {
        let before = used
            .get(name)
            .map_or_else(|| Quantity::from_integer(0), totals::quantity);
        used.insert(name.clone(), change(&before, amount).to_string().into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_taken_can_be_given_back() {
        let mut quota = json!({"status": {"used": {"pods": "1", "requests.cpu": "500m"}}});
        let before = quota.clone();
        let amounts: Amounts = [("pods", "1"), ("requests.cpu", "600m")]
            .into_iter()
            .map(|(name, text)| (name.to_owned(), Quantity::parse(text).unwrap()))
            .collect();
        book(&mut quota, &amounts, Quantity::plus);
        assert_eq!(
            quota["status"]["used"],
            json!({"pods": "2", "requests.cpu": "1100m"})
        );
        book(&mut quota, &amounts, Quantity::minus);
        assert_eq!(quota, before);
    }
}
