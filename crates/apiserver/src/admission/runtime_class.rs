//! RuntimeClass: copies the overhead and the scheduling of a class into its pods, or refuses pods that contradict them.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use mullion_kinds::request::Ctx;
use mullion_kube_text::{field::Path, status::Status};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Action, Plugin, Request};

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

    fn handles(&self, action: &Action<'_>) -> bool {
        action.creates("", "pods")
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
                // Go tells an empty map from an absent one, so an overhead of `{}` is another overhead than the class's.
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

/// Returns whether the pod was sent with an empty overhead.
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
    // Only after every conflict was looked for, so that a refused pod is left as it was.
    for (key, wanted) in scheduling.entries("nodeSelector") {
        request.object["spec"]["nodeSelector"][key] = wanted.clone();
    }
    Ok(())
}

/// Merges the tolerations of the pod and the class, without those that another one covers.
fn merged(pod: &[Value], class: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = pod.iter().chain(class).collect();
    // Two passes, because an earlier or a later entry may cover an entry; comparing all pairs would be quadratic.
    let mut later = WidestTolerations::default();
    let mut covered_later = vec![false; all.len()];
    for (index, toleration) in all.iter().enumerate().rev() {
        covered_later[index] = later.has_other_that_covers(toleration);
        later.add(toleration);
    }
    let (mut before, mut seen) = (WidestTolerations::default(), HashSet::new());
    let mut merged = Vec::new();
    for (toleration, is_covered_later) in all.into_iter().zip(covered_later) {
        let is_covered = seen.contains(toleration) || before.has_other_that_covers(toleration);
        if !is_covered && !is_covered_later {
            merged.push(toleration.clone());
            before.add(toleration);
            seen.insert(toleration);
        }
    }
    merged
}

/// The scope of a toleration: its key, its effect and its value, which is `None` if any value is tolerated.
type Scope<'a> = (&'a str, &'a str, Option<&'a str>);

/// The two longest of the different tolerations of each scope: one covers all others of the scope, the other covers that one.
#[derive(Default)]
struct WidestTolerations<'a>(HashMap<Scope<'a>, Vec<(i128, &'a Value)>>);

impl<'a> WidestTolerations<'a> {
    fn add(&mut self, toleration: &'a Value) {
        let value = match toleration.text("operator") {
            "Equal" | "" => Some(toleration.text("value")),
            "Exists" => None,
            _ => return,
        };
        let (key, effect) = (toleration.text("key"), toleration.text("effect"));
        let longest = self.0.entry((key, effect, value)).or_default();
        if longest.iter().any(|(_, other)| *other == toleration) {
            return;
        }
        let limits = effect == "NoExecute";
        let seconds = toleration.integer("tolerationSeconds").filter(|_| limits);
        longest.push((seconds.map_or(i128::MAX, i128::from), toleration));
        longest.sort_by_key(|(seconds, _)| Reverse(*seconds));
        longest.truncate(2);
    }

    /// Returns whether another toleration tolerates everything that `narrow` does, by the rules of kube-apiserver's toleration merge.
    fn has_other_that_covers(&self, narrow: &Value) -> bool {
        let seconds = narrow.integer("tolerationSeconds");
        let seconds = seconds.map_or(i128::MAX, i128::from);
        let (key, effect) = (narrow.text("key"), narrow.text("effect"));
        let value = (narrow["operator"] == "Equal").then(|| narrow.text("value"));
        let scopes = [effect, ""].into_iter().flat_map(|effect| {
            let same_value = value.map(|value| (key, effect, Some(value)));
            [
                Some((key, effect, None)),
                Some(("", effect, None)),
                same_value,
            ]
        });
        let mut wide = scopes.flatten().filter_map(|scope| self.0.get(&scope));
        wide.any(|wide| {
            let mut wide = wide.iter();
            wide.any(|(limit, other)| *limit >= seconds && *other != narrow)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Compares two tolerations: whether `wide` tolerates everything that `narrow` does.
    fn covers(wide: &Value, narrow: &Value) -> bool {
        if wide == narrow {
            return true;
        }
        let any_key = wide.text("key").is_empty() && wide["operator"] == "Exists";
        let is_key = wide.text("key") == narrow.text("key") || any_key;
        let is_effect = [narrow.text("effect"), ""].contains(&wide.text("effect"));
        let seconds = |toleration: &Value| toleration.integer("tolerationSeconds");
        let is_shorter = wide["effect"] == "NoExecute"
            && seconds(wide).is_some_and(|limit| seconds(narrow).is_none_or(|it| it > limit));
        let is_value = match wide.text("operator") {
            "Equal" | "" => {
                narrow["operator"] == "Equal" && narrow.text("value") == wide.text("value")
            }
            operator => operator == "Exists",
        };
        is_key && is_effect && !is_shorter && is_value
    }

    /// Merges lists by comparing each toleration with each.
    fn merged_slowly(all: &[Value]) -> Vec<Value> {
        let mut merged: Vec<Value> = Vec::new();
        for (index, toleration) in all.iter().enumerate() {
            let mut later = all[index + 1..].iter();
            if !merged.iter().any(|other| covers(other, toleration))
                && !later.any(|other| other != toleration && covers(other, toleration))
            {
                merged.push(toleration.clone());
            }
        }
        merged
    }

    proptest::proptest! {
        #[test]
        fn the_same_are_left_out_as_when_each_is_compared_with_each(
            picks in proptest::collection::vec(proptest::array::uniform5(0..4_usize), 0..9)
        ) {
            let toleration = |[key, operator, value, effect, seconds]: [usize; 5]| json!({
                "key": (["", "a", "b", "a"][key]), "operator": (["", "Equal", "Exists", "Lt"][operator]), "value": (["", "x", "x", "y"][value]),
                "effect": (["", "NoSchedule", "NoExecute", "NoExecute"][effect]), "tolerationSeconds": ([json!(1), json!(2), Value::Null, json!(3)][seconds]),
            });
            let all: Vec<Value> = picks.into_iter().map(toleration).collect();
            let (pod, class) = all.split_at(all.len() / 2);
            proptest::prop_assert_eq!(merged(pod, class), merged_slowly(&all));
        }
    }

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
