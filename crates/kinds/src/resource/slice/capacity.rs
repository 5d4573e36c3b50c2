//! Validates the request policy of a capacity that several claims share: the amounts that may be requested.

use std::collections::HashSet;

use mullion_kube_text::{
    field::{Errors, Path},
    quantity::Quantity,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

const MAX_AMOUNTS: usize = 10;

pub(super) fn amount(value: &Value) -> Quantity {
    let text = value.as_str().unwrap_or("0");
    Quantity::parse(text).unwrap_or_else(|_| Quantity::from_integer(0))
}

/// Validates a request policy; `most` is the capacity.
pub(super) fn request_policy(
    policy: &Value,
    most: &Quantity,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let (values, range) = (policy.items("validValues"), policy.field("validRange"));
    let default = policy.field("default").map(amount);
    let field = match (values.is_empty(), range) {
        // Without options and range, kube-apiserver does not look at the default.
        (true, None) => return,
        (false, Some(_)) => {
            let why = r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#;
            return errors.forbidden(path, why);
        }
        (false, None) => "validValues",
        (true, Some(_)) => "validRange",
    };
    let Some(default) = default else {
        let why = format!("required when {field} is defined");
        return errors.required(&path.child("default"), why);
    };
    let path = path.child(field);
    match range {
        Some(range) => amounts_between(range, &default, most, &path, errors),
        None => amounts(values, &default, most, &path, errors),
    }
}

fn amounts(
    values: &[Value],
    default: &Quantity,
    most: &Quantity,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let options: Vec<Quantity> = values.iter().map(amount).collect();
    for (index, pair) in options.windows(2).enumerate() {
        if pair[0] > pair[1] {
            let why = "values must be sorted in ascending order";
            errors.invalid(&path.index(index + 1), pair[1].to_string(), why);
        }
    }
    if options.len() > MAX_AMOUNTS {
        errors.too_many(path, options.len(), MAX_AMOUNTS);
    } else {
        for (index, option) in options.iter().enumerate() {
            if option > most {
                let why = format!("option is larger than capacity value: {most}");
                errors.invalid(&path.index(index), option.to_string(), why);
            }
        }
        let mut seen = HashSet::new();
        for (index, option) in options.iter().enumerate() {
            // kube-apiserver compares whole units, so amounts that round up to the same one are duplicates.
            let value = option.value();
            if !seen.insert(value) {
                errors.duplicate(&path.index(index), value.to_string());
            }
        }
    }
    // If there are too many options, the default is not searched for in them.
    if options.len() > MAX_AMOUNTS || !options.contains(default) {
        let why = "default value is not valid according to the requestPolicy";
        errors.invalid(path, default.to_string(), why);
    }
}

fn amounts_between(
    range: &Value,
    default: &Quantity,
    most: &Quantity,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let at = path.child("min");
    let Some(min) = range.field("min").map(amount) else {
        return errors.required(&at, "required when validRange is defined");
    };
    let mut refuse = |field: &str, value: &Quantity, why: String| {
        errors.invalid(&path.child(field), value.to_string(), why);
    };
    if min > *most {
        refuse(
            "min",
            &min,
            format!("min is larger than capacity value: {most}"),
        );
    }
    if *default < min {
        refuse("min", default, format!("default is less than min: {min}"));
    }
    let max = range.field("max").map(amount);
    if let Some(max) = &max {
        if min > *max {
            refuse("max", &min, format!("min is larger than max: {max}"));
        }
        if max > most {
            refuse(
                "max",
                max,
                format!("max is larger than capacity value: {most}"),
            );
        }
        if default > max {
            refuse("max", default, format!("default is more than max: {max}"));
        }
    }
    let Some(step) = range.field("step").map(amount) else {
        return;
    };
    let first = min.plus(&step);
    if first > *most {
        let why = format!("one step {first} is larger than capacity value: {most}");
        refuse("step", &step, why);
    }
    for value in [Some(default), max.as_ref()].into_iter().flatten() {
        let rest = value
            .value()
            .wrapping_sub(min.value())
            .checked_rem(step.value());
        // kube-apiserver fails when it divides by a step of 0; here such a step is an error.
        if rest != Some(0) {
            let why = format!("value is not a multiple of a given step ({step}) from ({min})");
            refuse("step", value, why);
        }
    }
}
