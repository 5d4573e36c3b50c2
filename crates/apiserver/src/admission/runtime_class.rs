//! RuntimeClass: what a class says about overhead and about where its pods run becomes part of the pod, or the pod is refused.

use std::sync::Arc;

use serde_json::Value;

use super::{Ctx, Plugin, Request, What};
use crate::{field::Path, kinds::tree::Tree, status::Status};

const OTHER_OVERHEAD: &str =
    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
const NO_OVERHEAD: &str =
    "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";

/// kube-apiserver: RuntimeClass.
pub(super) struct RuntimeClass;

impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, what: &What<'_>) -> bool {
        what.creates("", "pods")
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let Some(class) = class(ctx, request)? else {
            return Ok(());
        };
        if let Some(overhead) = class.field("overhead") {
            let fixed = overhead.field("podFixed");
            let given = request.object["spec"].field("overhead");
            let differs = match given {
                Some(given) => Some(given) != fixed,
                None => sent_empty(ctx) && fixed.is_some(),
            };
            if differs {
                return Err(request.forbidden(OTHER_OVERHEAD));
            }
            if let Some(fixed) = fixed {
                request.object["spec"]["overhead"] = fixed.clone();
            }
        }
        if let Some(scheduling) = class.field("scheduling") {
            select_nodes(request, scheduling)?;
            let tolerations = merged(
                request.object["spec"].items("tolerations"),
                scheduling.items("tolerations"),
            );
            if !tolerations.is_empty() {
                request.object["spec"]["tolerations"] = tolerations.into();
            }
        }
        Ok(())
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let class = class(ctx, request)?;
        let given = request.object["spec"].field("overhead");
        match class.as_deref().and_then(|class| class.field("overhead")) {
            Some(overhead) if given != overhead.field("podFixed") => {
                Err(request.forbidden(OTHER_OVERHEAD))
            }
            None if given.is_some() || sent_empty(ctx) => Err(request.forbidden(NO_OVERHEAD)),
            _ => Ok(()),
        }
    }
}

/// Whether the pod came with an overhead of nothing.
fn sent_empty(ctx: &Ctx<'_>) -> bool {
    ctx.emptied.has(&Path::new("spec").child("overhead"))
}

fn class(ctx: &Ctx<'_>, request: &Request<'_>) -> Result<Option<Arc<Value>>, Status> {
    let Some(name) = request.object["spec"]["runtimeClassName"].as_str() else {
        return Ok(None);
    };
    match ctx.lookup.find("node.k8s.io", "runtimeclasses", None, name) {
        Some(class) => Ok(Some(class)),
        None => Err(request.forbidden(&format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

fn select_nodes(request: &mut Request<'_>, scheduling: &Value) -> Result<(), Status> {
    for (key, wanted) in scheduling.entries("nodeSelector") {
        if let Some(given) = request.object["spec"]["nodeSelector"]
            .get(key)
            .filter(|&given| given != wanted)
        {
            let (wanted, given) = (wanted.as_str().unwrap_or(""), given.as_str().unwrap_or(""));
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {given}"
            );
            return Err(request.forbidden(&why));
        }
    }
    for (key, wanted) in scheduling.entries("nodeSelector") {
        request.object["spec"]["nodeSelector"][key] = wanted.clone();
    }
    Ok(())
}

/// Both lists without what another entry covers.
fn merged(pod: &[Value], class: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = pod.iter().chain(class).collect();
    let mut merged: Vec<Value> = Vec::with_capacity(all.len());
    for (index, toleration) in all.iter().enumerate() {
        let covered_before = merged.iter().any(|other| covers(other, toleration));
        let covered_later = all[index + 1..]
            .iter()
            .any(|other| other != toleration && covers(other, toleration));
        if !covered_before && !covered_later {
            merged.push((*toleration).clone());
        }
    }
    merged
}

/// Whether `wide` tolerates everything that `narrow` does, as upstream decides it.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let any_key = wide.text("key").is_empty() && wide["operator"] == "Exists";
    if wide.text("key") != narrow.text("key") && !any_key {
        return false;
    }
    if wide.text("effect") != narrow.text("effect") && !wide.text("effect").is_empty() {
        return false;
    }
    if wide["effect"] == "NoExecute"
        && let Some(limit) = wide.integer("tolerationSeconds")
        && narrow
            .integer("tolerationSeconds")
            .is_none_or(|seconds| seconds > limit)
    {
        return false;
    }
    match wide.text("operator") {
        "Equal" | "" => narrow["operator"] == "Equal" && narrow.text("value") == wide.text("value"),
        operator => operator == "Exists",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_another_toleration_covers_is_left_out() {
        let os =
            json!({"key": "os", "operator": "Equal", "value": "windows", "effect": "NoSchedule"});
        let any = json!({"operator": "Exists"});
        let list = |values: &[&Value]| {
            values
                .iter()
                .map(|&value| value.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(merged(&list(&[&os]), &list(&[&os])), list(&[&os]));
        assert_eq!(merged(&list(&[&os]), &list(&[&any])), list(&[&any]));
        assert_eq!(merged(&list(&[&any]), &list(&[&os])), list(&[&any]));
        let other =
            json!({"key": "os", "operator": "Equal", "value": "linux", "effect": "NoSchedule"});
        assert_eq!(
            merged(&list(&[&os]), &list(&[&other])),
            list(&[&os, &other])
        );
    }
}
