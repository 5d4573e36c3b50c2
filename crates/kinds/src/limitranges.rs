//! core/v1 LimitRange: limits for each container, pod or claim of a namespace, which the LimitRanger plugin enforces.

use std::collections::{BTreeSet, HashSet};

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    quantity::{self, Quantity},
    validation::{check, resources},
};
use mullion_schema::tree::{Tree, object_at};
use serde_json::{Map, Value};

use super::{Check, Kind};
use crate::request::Ctx;

/// core/v1 LimitRange.
pub(crate) struct LimitRange;

const LISTS: [&str; 5] = [
    "max",
    "min",
    "default",
    "defaultRequest",
    "maxLimitRequestRatio",
];
/// The largest value whose thousandths fit into 64 bits.
const MAX_MILLI: i64 = i64::MAX / 1000;

impl Kind for LimitRange {
    fn default(&self, object: &mut Value) {
        let items = object
            .get_mut("spec")
            .and_then(|spec| spec.get_mut("limits"))
            .and_then(Value::as_array_mut);
        for item in items.into_iter().flatten().filter_map(Value::as_object_mut) {
            for list in LISTS {
                item.get_mut(list)
                    .into_iter()
                    .for_each(quantity::round_list);
            }
            if item.get("type").is_some_and(|kind| kind == "Container") {
                // The order matters: a default request comes from the default limit, and from the minimum only if there is none.
                fill(item, "max", "default");
                fill(item, "default", "defaultRequest");
                fill(item, "min", "defaultRequest");
            }
        }
    }

    /// Gives a LimitRange without a name a random one.
    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        if object["metadata"].text("name").is_empty() {
            object["metadata"]["name"] = uuid::Uuid::new_v4().to_string().into();
        }
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[Check::Metadata, Check::Object]
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let path = Path::new("spec");
        let path = path.child("limits");
        let items = object["spec"].items("limits");
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let at = path.index(index);
            let kind = item.text("type");
            type_name(kind, &at.child("type"), errors);
            if !seen.insert(kind) {
                errors.duplicate(&at.child("type"), kind);
            }
            limits(item, kind, &at, errors);
        }
    }
}

/// Copies the amounts of resources that the other list lacks.
fn fill(item: &mut Map<String, Value>, from: &str, to: &str) {
    let given: Vec<(String, Value)> = item
        .get(from)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    let list = object_at(item, to);
    for (name, amount) in given {
        list.entry(name).or_insert(amount);
    }
}

fn type_name(kind: &str, path: &Path<'_>, errors: &mut Errors) {
    let sentences = names::qualified_name(kind);
    if !sentences.is_empty() {
        return check(errors, path, kind, sentences);
    }
    if !kind.contains('/') && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") {
        errors.invalid(
            path,
            kind,
            "must be a standard limit type or fully qualified",
        );
    }
}

fn limits(item: &Value, kind: &str, path: &Path<'_>, errors: &mut Errors) {
    let resource_names = |list: &str, errors: &mut Errors| {
        let at = path.child(list);
        for (name, _) in item.entries(list) {
            match kind {
                "Pod" | "Container" => resources::container_name(errors, &at.key(name), name),
                _ => resources::name(errors, &at.key(name), name),
            }
        }
    };
    resource_names("max", errors);
    resource_names("min", errors);
    for list in ["default", "defaultRequest"] {
        if kind != "Pod" {
            resource_names(list, errors);
        } else if item.entries(list).next().is_some() {
            errors.forbidden(
                &path.child(list),
                // Only containers have requests and limits that a default could set.
                "may not be specified when `type` is 'Pod'",
            );
        }
    }
    let bounded = ["min", "max"].iter().any(|list| item[*list].has("storage"));
    if kind == "PersistentVolumeClaim" && !bounded {
        errors.required(
            &path.child("limits"),
            "either minimum or maximum storage value is required, but neither was provided",
        );
    }
    resource_names("maxLimitRequestRatio", errors);
    let named: BTreeSet<&str> = LISTS
        .iter()
        .filter(|list| kind != "Pod" || !list.starts_with("default"))
        .flat_map(|list| item.entries(list).map(|(name, _)| name))
        .collect();
    for name in named {
        amounts(item, kind, name, path, errors);
    }
}

/// Checks the order of one resource's amounts: min, default request, default, max.
fn amounts(item: &Value, kind: &str, name: &str, path: &Path<'_>, errors: &mut Errors) {
    let amount = |list: &str| {
        let ignored = kind == "Pod" && list.starts_with("default");
        let text = item[list].text(name);
        Quantity::parse(text).ok().filter(|_| !ignored)
    };
    let (min, max) = (amount("min"), amount("max"));
    let (default, request) = (amount("default"), amount("defaultRequest"));
    // Each row names the smaller and the larger amount, the field that the error is about, and the value that it shows.
    let rows = [
        (&min, "min", &max, "max", "min", &min),
        (
            &min,
            "min",
            &request,
            "default request",
            "defaultRequest",
            &request,
        ),
        (
            &request,
            "default request",
            &max,
            "max",
            "defaultRequest",
            &request,
        ),
        (
            &request,
            "default request",
            &default,
            "default limit",
            "defaultRequest",
            &request,
        ),
        (&min, "min", &default, "default", "default", &min),
        // In this row kube-apiserver's error shows the maximum.
        (&default, "default", &max, "max", "default", &max),
    ];
    for (lower, lower_name, upper, upper_name, list, shown) in rows {
        if let (Some(lower), Some(upper), Some(shown)) = (lower, upper, shown)
            && lower > upper
        {
            errors.invalid(
                &path.child(list).key(name),
                shown.to_string(),
                format!("{lower_name} value {lower} is greater than {upper_name} value {upper}"),
            );
        }
    }
    let at = path.child("maxLimitRequestRatio");
    if let Some(ratio) = amount("maxLimitRequestRatio") {
        if ratio < Quantity::from_integer(1) {
            let detail = format!("ratio {ratio} is less than 1");
            errors.invalid(&at.key(name), ratio.to_string(), detail);
        }
        if let (Some(min), Some(max)) = (&min, &max)
            && let Some(most) = ratio_above(&ratio, min, max)
        {
            let detail = format!("ratio {ratio} is greater than max/min = {most:.6}");
            errors.invalid(&at.key(name), ratio.to_string(), detail);
        }
    }
    // Resources that cannot be overcommitted need equal requests and limits.
    if let (Some(default), Some(request)) = (&default, &request)
        && (!resources::is_native(name) || resources::is_huge_page(name))
        && default != request
    {
        errors.invalid(
            &path.child("defaultRequest").key(name),
            request.to_string(),
            format!(
                "default value {default} must equal to defaultRequest value {request} in {name}"
            ),
        );
    }
}

/// Returns the largest ratio that the bounds allow, if the given ratio exceeds it.
fn ratio_above(ratio: &Quantity, min: &Quantity, max: &Quantity) -> Option<f64> {
    let fine = [ratio, min, max]
        .iter()
        .all(|amount| amount.value() < MAX_MILLI);
    let (ratio, most) = if fine {
        (
            ratio.milli_value() as f64 / 1000.0,
            max.milli_value() as f64 / min.milli_value() as f64,
        )
    } else {
        (
            ratio.value() as f64,
            max.value() as f64 / min.value() as f64,
        )
    };
    (ratio > most).then_some(most)
}
