//! Validates resource requirements: names, quantities, requests against limits, claims, overhead, and pod-level resources.

use std::collections::{BTreeSet, HashMap, HashSet};

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    quantity::Quantity,
    validation::{
        check,
        resources::{self, is_huge_page},
    },
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    internal,
    totals::{self, quantity},
};

const HUGE_PAGES: &str = "hugepages-";
const POD_LEVEL: [&str; 3] = ["cpu", HUGE_PAGES, "memory"];
/// Returns whether the resource may be set in `spec.resources`.
pub(super) fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || is_huge_page(name)
}

/// Returns whether the resource's limit may exceed its request.
pub(super) fn is_overcommit_allowed(name: &str) -> bool {
    resources::is_native(name) && !is_huge_page(name)
}

/// Validates the requirements of a container; `claims` are the entries of `spec.resourceClaims`.
pub(super) fn validate(
    requirements: &Value,
    claims: &[Value],
    path: &Path<'_>,
    errors: &mut Errors,
) {
    requirements_with(container_name, requirements, path, errors);
    claim_references(requirements, claims, &path.child("claims"), errors);
}

/// Validates `spec.overhead`, also of a RuntimeClass, like limits without requests.
pub(crate) fn validate_overhead(overhead: &Value, path: &Path<'_>, errors: &mut Errors) {
    let limits = path.child("limits");
    // kube-apiserver validates the overhead as the limits of a container, which its error paths show.
    for (name, value) in overhead.as_object().into_iter().flatten() {
        listed(container_name, name, value, &limits.key(name), errors);
    }
    let named = |wanted: fn(&str) -> bool| {
        overhead
            .as_object()
            .into_iter()
            .flatten()
            .any(|(name, _)| wanted(name))
    };
    if named(is_huge_page) && !named(is_compute) {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
}

/// Validates `spec.resources`, the requirements of the whole pod, against those of its containers; `path` is the spec's.
pub(super) fn validate_pod_level(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(level) = spec.field("resources") else {
        return;
    };
    let path = path.child("resources");
    if spec
        .field("os")
        .is_some_and(|os| os.text("name") == "windows")
    {
        return errors.forbidden(&path, "may not be set for a windows pod");
    }
    if level.has("claims") {
        errors.forbidden(
            &path.child("claims"),
            "claims may not be set for Resources at pod-level",
        );
    }
    requirements_with(pod_level_name, level, &path, errors);
    claim_references(
        level,
        spec.items("resourceClaims"),
        &path.child("claims"),
        errors,
    );
    let given = |list: &str, name: &str| {
        let list = level.get(list)?;
        list.field(name).map(quantity)
    };
    let mut at_least = |list: &str, name: &str, total: &Quantity| {
        if let Some(given) = given(list, name).filter(|given| total > given) {
            let why =
                format!("must be greater than or equal to aggregate container {list} of {total}");
            errors.invalid(&path.child(list).key(name), given.to_string(), why);
        }
    };
    for (name, total) in totals::container_requests(spec) {
        at_least("requests", name, &total);
    }
    for (name, total) in totals::container_limits(spec) {
        // Huge pages cannot be overcommitted, so only their limits must fit into the pod's.
        if is_huge_page(name) {
            at_least("limits", name, &total);
        }
    }
    let containers = path.child("containers");
    for (index, container) in spec.items("containers").iter().enumerate() {
        let Some(requirements) = container.field("resources") else {
            continue;
        };
        for (name, limit) in requirements.entries("limits") {
            let limit = quantity(limit);
            if let Some(pod_limit) = given("limits", name).filter(|pod_limit| limit > *pod_limit) {
                let why = format!("must be less than or equal to pod limits of {pod_limit}");
                let at = containers.index(index);
                // The order of the last two parts of this path is kube-apiserver's.
                errors.invalid(&at.key(name).child("limits"), limit.to_string(), why);
            }
        }
    }
}

type NameCheck = fn(&str, &Path<'_>, &mut Errors);

fn requirements_with(
    name_check: NameCheck,
    requirements: &Value,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    for (name, value) in requirements.entries("limits") {
        listed(name_check, name, value, &limits_path.key(name), errors);
    }
    for (name, value) in requirements.entries("requests") {
        listed(name_check, name, value, &requests_path.key(name), errors);
        let limit = requirements
            .get("limits")
            .and_then(|limits| limits.field(name));
        match limit {
            Some(limit) if limit != value => against_limit(
                name,
                &quantity(value),
                &quantity(limit),
                &requests_path,
                errors,
            ),
            None if !is_overcommit_allowed(name) => {
                errors.required(
                    &limits_path,
                    "Limit must be set for non overcommitable resources",
                );
            }
            _ => {}
        }
    }
    let named = |wanted: fn(&str) -> bool| {
        requirements
            .entries("limits")
            .chain(requirements.entries("requests"))
            .any(|(name, _)| wanted(name))
    };
    if named(is_huge_page) && !named(is_compute) {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
}

fn is_compute(name: &str) -> bool {
    name == "cpu" || name == "memory"
}

fn against_limit(
    name: &str,
    request: &Quantity,
    limit: &Quantity,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if request != limit && !is_overcommit_allowed(name) {
        errors.invalid(
            path,
            request.to_string(),
            format!("must be equal to {name} limit of {limit}"),
        );
    } else if request > limit {
        errors.invalid(
            path,
            request.to_string(),
            format!("must be less than or equal to {name} limit of {limit}"),
        );
    }
}

fn listed(name_check: NameCheck, name: &str, value: &Value, path: &Path<'_>, errors: &mut Errors) {
    name_check(name, path, errors);
    let amount = quantity(value);
    if amount.is_negative() {
        errors.invalid(
            path,
            amount.to_string(),
            "must be greater than or equal to 0",
        );
    }
    if resources::is_integer(name) && !amount.is_integer() {
        errors.invalid(path, amount.to_string(), resources::NOT_INTEGER);
    }
    if is_huge_page(name) && !is_whole_pages(name, &amount) {
        errors.invalid(
            path,
            amount.to_string(),
            format!("{amount} is not positive integer multiple of {name}"),
        );
    }
}

fn is_whole_pages(name: &str, amount: &Quantity) -> bool {
    let Ok(page) = Quantity::parse(&name[HUGE_PAGES.len()..]) else {
        return false;
    };
    // Zero pages pass, although kube-apiserver's message says "positive".
    page.nano() > 0 && page.is_integer() && amount.value() % page.value() == 0
}

fn container_name(name: &str, path: &Path<'_>, errors: &mut Errors) {
    resources::name(errors, path, name);
    if !name.contains('/') {
        if !is_compute(name) && name != "ephemeral-storage" && !is_huge_page(name) {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !resources::is_native(name) && !resources::is_extended(name) {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

fn pod_level_name(name: &str, path: &Path<'_>, errors: &mut Errors) {
    let before = errors.0.len();
    resources::name(errors, path, name);
    if errors.0.len() == before && !is_pod_level(name) {
        errors.not_supported(path, name, &POD_LEVEL);
    }
}

fn claim_references(requirements: &Value, claims: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let references = requirements.items("claims");
    let names: BTreeSet<&str> = claims.iter().map(|claim| claim.text("name")).collect();
    let known = names.iter().copied().filter(|name| !name.is_empty());
    let known: Vec<&str> = known.collect();
    let which = match known.as_slice() {
        [] => " which is empty".to_owned(),
        known => format!(": {}", known.join(", ")),
    };
    let mut earlier: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (index, reference) in references.iter().enumerate() {
        let at = path.index(index);
        let (name, request) = (reference.text("name"), reference.text("request"));
        if name.is_empty() {
            errors.required(&at, "");
            continue;
        }
        let requests = earlier.entry(name).or_default();
        // An earlier reference to the whole claim includes this one.
        if requests.contains("") {
            errors.duplicate(&at, name);
        } else {
            if !request.is_empty() {
                check(
                    errors,
                    &at.child("request"),
                    request,
                    names::dns_label(request),
                );
            }
            if request.is_empty() {
                // A reference to the whole claim repeats each request referred to before: one error for each.
                requests.iter().for_each(|_| errors.duplicate(&at, name));
            } else if requests.contains(request) {
                errors.duplicate(&at, format!("{name}/{request}"));
            }
        }
        requests.insert(request);
        if !names.contains(name) && !errors.is_full() {
            errors.not_found_because(
                &at,
                name,
                format!("must be one of the names in pod.spec.resourceClaims{which}"),
            );
        }
    }
}

/// Validates `spec.resourceClaims`.
pub(super) fn validate_claims(claims: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, claim) in claims.iter().enumerate() {
        let at = path.index(index);
        let name = claim.text("name");
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        } else {
            check(errors, &at.child("name"), name, names::dns_label(name));
        }
        let (direct, template) = (
            claim.field("resourceClaimName"),
            claim.field("resourceClaimTemplateName"),
        );
        if direct.is_some() && template.is_some() {
            let detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
            errors.with_text(
                ErrorType::Invalid,
                &at,
                internal::compact("PodResourceClaim", claim),
                detail,
            );
        }
        if direct.is_none() && template.is_none() {
            let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
            errors.with_text(
                ErrorType::Invalid,
                &at,
                internal::compact("PodResourceClaim", claim),
                detail,
            );
        }
        for (field, name) in [
            ("resourceClaimName", direct),
            ("resourceClaimTemplateName", template),
        ] {
            if let Some(name) = name.and_then(Value::as_str) {
                check(errors, &at.child(field), name, names::dns_subdomain(name));
            }
        }
    }
}
