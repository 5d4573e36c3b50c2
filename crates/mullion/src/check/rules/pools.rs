//! Checks NodePools by the rules that Karpenter applies beyond their schema: MUL079.

use mullion_api::karpenter::NodePoolSpec;
use mullion_controllers::nodepool;
use serde::Deserialize;

use crate::check::{
    finding::Findings, path::Path, placeholder::is_placeholder, problem::Problem, subject::Object,
    table::Severity,
};

/// Checks a NodePool.
pub(super) fn check(index: usize, object: &Object, found: &mut Findings) {
    if !object.is("NodePool", "karpenter.sh") {
        return;
    }
    // MUL080 speaks of values of other types.
    let Ok(spec) = NodePoolSpec::deserialize(&object.value["spec"]) else {
        return;
    };
    let at = Path::of(&["spec", "template", "spec"]);
    if let Some(why) = nodepool::invalid(&spec).filter(|why| !is_placeholder(why)) {
        found.add("MUL079", index, at.clone(), Problem::InvalidPool { why });
    }
    for (label, values) in nodepool::ignored_values(&spec) {
        let values = values.into_iter().filter(|value| !is_placeholder(value));
        let values: Vec<&str> = values.collect();
        if values.is_empty() {
            continue;
        }
        let problem = Problem::IgnoredValues {
            label: label.to_owned(),
            values: values.join(", "),
        };
        found
            .add("MUL079", index, at.key("requirements"), problem)
            .as_a(Severity::Warn);
    }
}
