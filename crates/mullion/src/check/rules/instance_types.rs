//! Checks that the instance types that pools and node groups name are listed: MUL078.

use mullion_cloud::catalogue::TypeLabel;
use serde_json::Value;

use crate::check::{
    finding::Findings, fleet, path::Path, placeholder::is_placeholder, placement::list,
    problem::Problem, subject::Object,
};

/// Checks an object that names instance types.
pub(super) fn check(index: usize, object: &Object, found: &mut Findings) {
    let of_requirements = |fields: &[&str]| {
        let at = Path::of(fields);
        let value = at.get(&object.value).unwrap_or(&Value::Null);
        (at, value)
    };
    if object.is("NodePool", "karpenter.sh") {
        let (at, value) = of_requirements(&["spec", "template", "spec", "requirements"]);
        requirements(index, &at, value, found);
    } else if object.is("Provisioner", "karpenter.sh") {
        let (at, value) = of_requirements(&["spec", "requirements"]);
        requirements(index, &at, value, found);
    } else if object.is("ClusterConfig", "eksctl.io") {
        for (field, _) in fleet::EKSCTL_GROUPS {
            for (position, group) in list(&object.value[field]).enumerate() {
                let at = Path::of(&[field]).index(position);
                let types: Vec<_> = fleet::eksctl_types(group, &at).collect();
                unlisted(index, TypeLabel::Type, types, found);
            }
        }
    }
}

fn requirements(index: usize, at: &Path, value: &Value, found: &mut Findings) {
    for (position, own) in list(value).enumerate() {
        let key = own["key"].as_str().unwrap_or_default();
        let Some(label) = TypeLabel::of(key).filter(|_| own["operator"] == "In") else {
            continue;
        };
        let at = at.index(position).key("values");
        let values = list(&own["values"]).enumerate();
        let values = values.filter_map(|(item, own)| Some((at.index(item), own.as_str()?)));
        unlisted(index, label, values.collect(), found);
    }
}

/// Reports the values that no known type has.
fn unlisted(index: usize, label: TypeLabel, values: Vec<(Path, &str)>, found: &mut Findings) {
    let is_passed = |value: &str| label.lists(value) || is_placeholder(value);
    let is_alone = !values.iter().any(|(_, value)| is_passed(value));
    for (at, value) in values {
        if is_passed(value) {
            continue;
        }
        let problem = Problem::UnlistedType {
            label: label.noun(),
            value: value.to_owned(),
            near: label.nearest(value),
            is_alone,
        };
        found.add("MUL078", index, at, problem);
    }
}
