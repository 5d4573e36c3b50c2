//! Checks deprecated labels: MUL007.

use mullion_api::labels;
use serde_json::{Value, json};

use super::placement::{AffinityTerm, affinity_terms};
use crate::check::{
    finding::Findings,
    path::Path,
    placement::list,
    problem::Problem,
    subject::{Object, Pod},
    yaml::edit::Edit,
};

const BETA: [(&str, &str); 2] = [
    (labels::BETA_OS, labels::OS),
    (labels::BETA_ARCH, labels::ARCH),
];

/// Checks a pod, but not its RuntimeClass, which has findings of its own.
pub(super) fn check(pod: &Pod<'_>, found: &mut Findings) {
    let selector = pod.at(&["nodeSelector"]);
    selector_labels(&selector, &pod.spec["nodeSelector"], pod.object, found);
    for AffinityTerm { path, value, .. } in affinity_terms(pod) {
        for (index, expression) in list(&value["matchExpressions"]).enumerate() {
            let Some((beta, stable)) = BETA.iter().find(|(beta, _)| expression["key"] == *beta)
            else {
                continue;
            };
            let at = path.key("matchExpressions").index(index).key("key");
            found
                .add(
                    "MUL007",
                    pod.object,
                    at.clone(),
                    Problem::BetaLabel { beta, stable },
                )
                .safe([Edit::Set(at, json!(stable))]);
        }
    }
}

/// Checks a node selector.
fn selector_labels(at: &Path, selector: &Value, object: usize, found: &mut Findings) {
    for (beta, stable) in BETA {
        if selector.get(beta).is_none() {
            continue;
        }
        let own = at.key(beta);
        let edit = match selector.get(stable) {
            None => Edit::Rename(own.clone(), stable.to_owned()),
            Some(_) => Edit::Remove(own.clone()),
        };
        let finding = found.add("MUL007", object, own, Problem::BetaLabel { beta, stable });
        // Nodes have both labels with the same value, so a pod that selects different values fits no node.
        if selector
            .get(stable)
            .is_none_or(|value| Some(value) == selector.get(beta))
        {
            finding.safe([edit]);
        }
    }
}

/// Checks a RuntimeClass.
pub(super) fn class_labels(index: usize, class: &Object, found: &mut Findings) {
    let at = Path::of(&["scheduling", "nodeSelector"]);
    selector_labels(
        &at,
        &class.value["scheduling"]["nodeSelector"],
        index,
        found,
    );
}
