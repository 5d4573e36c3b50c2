//! Checks values of labels that kubelets, Karpenter and EKS write on nodes: MUL013.

use mullion_api::labels;
use mullion_engine::{
    images::System,
    windows::{Build, Builds},
};
use serde_json::{Value, json};

use super::placement::{AffinityTerm, affinity_terms};
use crate::check::{
    finding::Findings,
    path::Path,
    placement::list,
    problem::{LabelEffect, Problem},
    subject::{Object, Pod},
    table::Severity,
    yaml::edit::Edit,
};

const OS_LABELS: [&str; 2] = [labels::OS, labels::BETA_OS];
const EKS_CAPACITY: &str = "eks.amazonaws.com/capacityType";
const LABELS: [&str; 7] = [
    labels::OS,
    labels::BETA_OS,
    labels::ARCH,
    labels::BETA_ARCH,
    labels::WINDOWS_BUILD,
    labels::CAPACITY_TYPE,
    EKS_CAPACITY,
];
/// The values that Karpenter and EKS write for how a node is paid.
const CAPACITY_TYPES: [&str; 3] = ["on-demand", "spot", "reserved"];
const EKS_CAPACITY_TYPES: [&str; 3] = ["ON_DEMAND", "SPOT", "CAPACITY_BLOCK"];
/// The architectures for which Kubernetes is released, and those for which others build it (Go's names).
const ARCHITECTURES: [&str; 10] = [
    "amd64", "arm64", "arm", "386", "ppc64le", "s390x", "riscv64", "loong64", "mips64le", "ppc64",
];
/// Other names of architectures and operating systems.
const OTHER_NAMES: [(&str, &str); 10] = [
    ("ondemand", "on-demand"),
    ("on_demand", "on-demand"),
    ("x86_64", "amd64"),
    ("x86-64", "amd64"),
    ("x64", "amd64"),
    ("aarch64", "arm64"),
    ("arm64v8", "arm64"),
    ("win", "windows"),
    ("win32nt", "windows"),
    ("windows_nt", "windows"),
];

/// Checks a pod, but not its RuntimeClass, which has findings of its own.
pub(super) fn check(pod: &Pod<'_>, found: &mut Findings) {
    let selector = pod.at(&["nodeSelector"]);
    check_selector(&selector, &pod.spec["nodeSelector"], pod.object, found);
    for AffinityTerm {
        path,
        value,
        otherwise,
        ..
    } in affinity_terms(pod)
    {
        let at = path.key("matchExpressions");
        expressions(
            &at,
            &value["matchExpressions"],
            otherwise,
            pod.object,
            found,
        );
    }
    // The scheduler does not read this field, and the API server knows two values.
    if let Some(name) = pod.spec["os"]["name"].as_str()
        && is_meant(name)
        && System::of_label(name).is_none()
    {
        let at = pod.at(&["os", "name"]);
        let value = name.to_owned();
        let finding = found.add("MUL013", pod.object, at.clone(), Problem::OsName { value });
        if let Some(mended) = mended(labels::OS, name) {
            finding.safe([Edit::Set(at, json!(mended))]);
        }
    }
}

/// Checks the node selector of a pod or a RuntimeClass.
pub(super) fn check_selector(at: &Path, selector: &Value, object: usize, found: &mut Findings) {
    for key in LABELS {
        if let Some(value) = selector[key].as_str() {
            let at = (at.key(key), |_: &str| false);
            check_value((key, value), LabelEffect::Pending, at, object, found);
        }
    }
}

/// Checks the requirements of a NodePool.
pub(super) fn check_pool(index: usize, object: &Object, found: &mut Findings) {
    let spec = &object.value["spec"]["template"]["spec"];
    let at = Path::of(&["spec", "template", "spec", "requirements"]);
    let effect = LabelEffect::NothingBought;
    expressions(&at, &spec["requirements"], effect, index, found);
}

/// Checks expressions of a label, an operator and values. `otherwise` is what becomes of one that no node fulfils.
fn expressions(
    at: &Path,
    all: &Value,
    otherwise: LabelEffect,
    object: usize,
    found: &mut Findings,
) {
    for (index, expression) in list(all).enumerate() {
        let Some(key) = LABELS.into_iter().find(|key| expression["key"] == *key) else {
            continue;
        };
        // MUL079 judges the capacity types of a pool.
        if key == labels::CAPACITY_TYPE && otherwise == LabelEffect::NothingBought {
            continue;
        }
        let values: Vec<_> = list(&expression["values"]).collect();
        let is_known = |value: &&Value| value.as_str().is_none_or(|value| is_known(key, value));
        let effect = match expression["operator"].as_str() {
            Some("In") if values.iter().any(is_known) => LabelEffect::OtherValuesCount,
            Some("In") => otherwise,
            Some("NotIn") => LabelEffect::NotExcluded,
            _ => continue,
        };
        for (position, value) in values.iter().enumerate() {
            if let Some(value) = value.as_str() {
                let at = at.index(index).key("values").index(position);
                // The value that is meant may stand beside the wrong one already.
                let is_there = |meant: &str| values.iter().any(|other| **other == *meant);
                check_value((key, value), effect, (at, is_there), object, found);
            }
        }
    }
}

/// Checks a value of a label at a place. `is_there` says of a value whether the place's list has it too.
fn check_value(
    (key, value): (&'static str, &str),
    effect: LabelEffect,
    (at, is_there): (Path, impl Fn(&str) -> bool),
    object: usize,
    found: &mut Findings,
) {
    if !is_meant(value) || is_known(key, value) {
        return;
    }
    let problem = Problem::LabelValue {
        key,
        value: value.to_owned(),
        effect,
    };
    let mended = mended(key, value);
    let finding = found.add("MUL013", object, at.clone(), problem);
    // Kubelets that others build, such as those for `wasm32-wasi`, write values of their own.
    let is_fatal = matches!(effect, LabelEffect::Pending | LabelEffect::NothingBought);
    if !is_fatal || mended.is_none() {
        finding.as_a(Severity::Warn);
    }
    // An exclusion that begins to work may leave the pod without a node, so it is no safe change.
    let is_safe = |mended: &String| effect != LabelEffect::NotExcluded && !is_there(mended);
    if let Some(mended) = mended.filter(is_safe) {
        finding.safe([Edit::Set(at, json!(mended))]);
    }
}

/// Returns whether a text is a value, and no placeholder that a program replaces before the object is applied.
fn is_meant(value: &str) -> bool {
    !value.contains(['$', '{', '<', '%'])
}

/// Returns whether nodes may have a value of a label.
fn is_known(key: &str, value: &str) -> bool {
    match key {
        key if OS_LABELS.contains(&key) => System::of_label(value).is_some(),
        labels::WINDOWS_BUILD => is_possible_build(value),
        labels::CAPACITY_TYPE => CAPACITY_TYPES.contains(&value),
        EKS_CAPACITY => EKS_CAPACITY_TYPES.contains(&value),
        _ => ARCHITECTURES.contains(&value),
    }
}

/// Returns whether there may be a Windows build. Builds after the newest one that is known may be, and MUL022 judges texts of another form.
fn is_possible_build(text: &str) -> bool {
    let Ok(build) = text.parse::<Build>() else {
        return true;
    };
    build > Build::SERVER_2025 || Builds::default().release(build).is_some()
}

/// Returns the value that was meant.
fn mended(key: &str, value: &str) -> Option<String> {
    let large = value.to_uppercase().replace('-', "_");
    if key == EKS_CAPACITY {
        return is_known(key, &large).then_some(large);
    }
    let small = value.to_lowercase();
    let named = OTHER_NAMES.into_iter().find(|(other, _)| *other == small);
    let value = named.map_or(small, |(_, own)| own.to_owned());
    is_known(key, &value).then_some(value)
}
