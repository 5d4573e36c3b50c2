//! Warns of the existing pods that a namespace's new, stricter level would refuse. They stay, but could not be created again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mullion_kinds::request::Ctx;
use mullion_kube_text::golang::quote;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Pod, policy::Policy};

/// The largest number of pods that are checked (upstream stops after one second as well).
const MAX_PODS: usize = 3000;

/// Warns of the pods of a namespace that a new policy would refuse, grouped by their violations.
pub(super) fn warnings(ctx: &Ctx<'_>, policy: &Policy, namespace: &str) {
    let pods = by_importance(ctx.lookup.list("", "pods", Some(namespace)));
    let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for pod in pods.iter().take(MAX_PODS) {
        let violations = policy.violations(&Pod {
            metadata: &pod["metadata"],
            spec: &pod["spec"],
        });
        if !violations.is_empty() {
            let reasons = violations.iter().map(|violation| violation.reason);
            let reasons = reasons.collect::<Vec<_>>().join(", ");
            let name = pod["metadata"].text("name");
            by_reason.entry(reasons).or_default().push(name);
        }
    }
    if pods.len() > MAX_PODS {
        ctx.warn(format!(
            "new PodSecurity enforce level only checked against the first {MAX_PODS} of {} existing pods",
            pods.len()
        ));
    }
    if !by_reason.is_empty() {
        ctx.warn(format!(
            "existing pods in namespace {} violate the new PodSecurity enforce level {}",
            quote(namespace),
            policy.quoted()
        ));
    }
    let sentences: BTreeSet<String> = by_reason
        .into_iter()
        .map(|(reasons, pods)| sentence(&pods, &reasons))
        .collect();
    sentences
        .into_iter()
        .for_each(|sentence| ctx.warn(sentence));
}

fn sentence(pods: &[&str], reasons: &str) -> String {
    let first = pods.iter().min().copied().unwrap_or_default();
    match pods.len() {
        1 => format!("{first}: {reasons}"),
        2 => format!("{first} (and 1 other pod): {reasons}"),
        all => format!("{first} (and {} other pods): {reasons}", all - 1),
    }
}

/// Sorts one pod of each controller before the others, which are likely to be like it.
fn by_importance(pods: Vec<Arc<Value>>) -> Vec<Arc<Value>> {
    let mut seen = BTreeSet::new();
    let (mut first, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| {
        let owners = pod["metadata"].items("ownerReferences");
        let controller = owners.iter().find(|owner| owner.flag("controller"));
        controller.is_none_or(|controller| seen.insert(controller.text("uid").to_owned()))
    });
    first.extend(others);
    first
}
