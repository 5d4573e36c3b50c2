//! core/v1 ResourceQuota: the resources that all objects of a namespace may use together. The ResourceQuota plugin enforces the status.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    quantity::{self, Quantity},
    validation::{IMMUTABLE, resources},
};
use mullion_schema::tree::{Tree, object_at};
use serde_json::Value;

use super::{Column, Kind, podspec::internal, print};
use crate::{Printing, request::Ctx};

/// core/v1 ResourceQuota.
pub(crate) struct ResourceQuota;

const COLUMNS: [Column; 4] = [
    print::NAME,
    print::column("Request"),
    print::column("Limit"),
    print::AGE,
];
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];
/// Pairs of scopes that exclude each other.
const OPPOSITES: [[&str; 2]; 2] = [
    ["BestEffort", "NotBestEffort"],
    ["Terminating", "NotTerminating"],
];
const STANDARD: [&str; 19] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

/// The amounts of requests, each under the names of which the first counts, and the amount of limits that should not be less.
const REQUESTS_AND_LIMITS: [(&[&str], &str); 3] = [
    (&["requests.cpu", "cpu"], "limits.cpu"),
    (&["requests.memory", "memory"], "limits.memory"),
    (&["requests.ephemeral-storage"], "limits.ephemeral-storage"),
];

impl Kind for ResourceQuota {
    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        for (part, list) in [("spec", "hard"), ("status", "hard"), ("status", "used")] {
            object_at(root, part)
                .get_mut(list)
                .into_iter()
                .for_each(quantity::round_list);
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        amounts(spec, "hard", &path, errors);
        scopes(spec, &path.child("scopes"), errors);
        let at = path.child("scopeSelector");
        if spec.has("scopeSelector") {
            scope_selector(spec, &at.child("matchExpressions"), errors);
        }
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        // The order of scopes may change, and scopes may be repeated.
        let set = |object: &Value| -> BTreeSet<String> {
            let scopes = object["spec"].items("scopes").iter();
            scopes
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        if set(object) != set(old) {
            let path = Path::new("spec");
            let path = path.child("scopes");
            let scopes = errors.as_sent(&path, &object["spec"]["scopes"]);
            errors.invalid(&path, scopes, IMMUTABLE);
        }
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        let path = Path::new("status");
        amounts(&object["status"], "hard", &path, errors);
        amounts(&object["status"], "used", &path, errors);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let hard = &object["spec"]["hard"];
        let of = |name: &str| Quantity::parse(hard[name].as_str()?).ok();
        let mut warnings = Vec::new();
        for (requests, limits) in REQUESTS_AND_LIMITS.iter().filter(|_| old.is_none()) {
            let given = requests.iter().find_map(|name| Some((name, of(name)?)));
            if let (Some((name, request)), Some(limit)) = (given, of(limits))
                && request > limit
            {
                warnings.push(format!(
                    "ResourceQuota {name} ({request}) should be less than {limits} ({limit})"
                ));
            }
        }
        warnings
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for ResourceQuota {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        let mut resources: Vec<(&str, &Value)> = object["status"].entries("hard").collect();
        resources.sort_unstable_by_key(|(name, _)| *name);
        for (name, hard) in resources {
            let used = object["status"]["used"][name].as_str().unwrap_or("0");
            let column = if name.starts_with("limits.") {
                &mut limits
            } else {
                &mut requests
            };
            column.push(format!("{name}: {used}/{}", hard.as_str().unwrap_or("0")));
        }
        vec![
            print::name(object),
            requests.join(", ").into(),
            limits.join(", ").into(),
            print::age(object, now),
        ]
    }
}

fn is_standard(name: &str) -> bool {
    STANDARD.contains(&name)
        || resources::is_huge_page(name.strip_prefix("requests.").unwrap_or(name))
}

fn amounts(owner: &Value, list: &str, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child(list);
    for (name, amount) in owner.entries(list) {
        let at = path.key(name);
        resources::name(errors, &at, name);
        if !name.contains('/') && !is_standard(name) {
            errors.invalid(&at, name, "must be a standard resource for quota");
        }
        resources::amount(errors, &at, name, amount.as_str().unwrap_or(""));
    }
}

/// Returns whether a scope can apply to a resource.
fn applies(scope: &str, resource: &str) -> bool {
    const COMPUTE: [&str; 6] = [
        "cpu",
        "memory",
        "limits.cpu",
        "limits.memory",
        "requests.cpu",
        "requests.memory",
    ];
    match scope {
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => resource == "pods" || COMPUTE.contains(&resource),
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ => true,
    }
}

/// Returns the number of limited resources to which the scope cannot apply.
fn misapplied(spec: &Value, scope: &str) -> usize {
    spec.entries("hard")
        .filter(|(name, _)| is_standard(name) && !applies(scope, name))
        .count()
}

fn scopes(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let scopes: Vec<&str> = spec
        .items("scopes")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let mut misapplied_by_scope: BTreeMap<&str, usize> = BTreeMap::new();
    for scope in &scopes {
        let counted = misapplied_by_scope.entry(scope);
        let counted = *counted.or_insert_with(|| misapplied(spec, scope));
        // Each error shows all scopes, so a long list of scopes would make too much text.
        if errors.is_full() {
            break;
        }
        let mut wrong = |why: &str| errors.invalid(path, scopes.clone(), why);
        if !SCOPES.contains(scope) {
            wrong("unsupported scope");
        }
        for _ in 0..counted {
            wrong("unsupported scope applied to resource");
        }
    }
    for pair in OPPOSITES {
        if pair.iter().all(|scope| scopes.contains(scope)) {
            errors.invalid(path, scopes.clone(), "conflicting scopes");
        }
    }
}

fn scope_selector(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let requirements = spec["scopeSelector"].items("matchExpressions");
    for requirement in requirements {
        let scope = requirement.text("scopeName");
        if !SCOPES.contains(&scope) {
            errors.invalid(&path.child("scopeName"), scope, "unsupported scope");
        }
        // kube-apiserver reports this once for each resource that the scope does not fit.
        for _ in 0..misapplied(spec, scope) {
            errors.with_text(
                ErrorType::Invalid,
                path,
                internal::compact("ScopeSelector", &spec["scopeSelector"]),
                "unsupported scope applied to resource",
            );
        }
        let (operator, values) = (requirement.text("operator"), requirement.items("values"));
        if !matches!(scope, "PriorityClass" | "VolumeAttributesClass")
            && SCOPES.contains(&scope)
            && operator != "Exists"
        {
            errors.invalid(
                &path.child("operator"),
                operator,
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
            );
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => errors.required(
                &path.child("values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.invalid(
                &path.child("values"),
                values.to_vec(),
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.invalid(
                &path.child("operator"),
                operator,
                "not a valid selector operator",
            ),
        }
    }
    for pair in OPPOSITES {
        let has = |scope: &&str| {
            requirements
                .iter()
                .any(|other| other["scopeName"] == **scope)
        };
        if pair.iter().all(has) {
            // kube-apiserver's error shows `scopes`, even if the scopes are in the selector.
            errors.invalid(path, spec["scopes"].clone(), "conflicting scopes");
        }
    }
}
