//! The rules about addons and Karpenter that need a parser or compare versions (eksctl: `Addon.Validate`, `validateKarpenterConfig`, and the
//! loader of `create cluster`).

use std::cmp::Ordering;

use serde_json::Value;

use super::{Refusal, minor, row::innermost};
use crate::check::{
    path::Path,
    placeholder::{is_filled_in_later, is_placeholder},
    placement::list,
};

/// The oldest version of Karpenter that eksctl installs.
const LEAST_KARPENTER: (&str, [u64; 3]) = ("v0.20.0", [0, 20, 0]);
/// The oldest version of the addon vpc-cni with IPv6.
const LEAST_CNI: (&str, [u64; 3]) = ("1.10.0", [1, 10, 0]);
/// The oldest minor version of Kubernetes with IPv6.
const LEAST_MINOR: u64 = 21;
/// The addons that Auto Mode has in itself.
const OF_AUTO_MODE: [&str; 3] = ["vpc-cni", "kube-proxy", "coredns"];
const NODES_BESIDE_AUTO_MODE: &str = "creation of managed or self-managed nodegroups is not supported during cluster creation when Auto Mode is enabled; please create them post cluster creation using `eksctl create nodegroup` after creating core networking addons in the cluster";
const ADDONS_BESIDE_AUTO_MODE: &str = "core networking addons are not required on a cluster using Auto Mode; if you still wish to create them, use `eksctl create addon` post cluster creation";
const AGENT_IS_MISSING: &str = "the \"eks-pod-identity-agent\" addon must be installed to create pod identity associations; please add \"eks-pod-identity-agent\" addon to the config file";
const ROLES_AND_IDENTITIES: &str = "cannot set IRSA config (`addon.ServiceAccountRoleARN`, `addon.AttachPolicyARNs`, `addon.AttachPolicy`, `addon.WellKnownPolicies`) and pod identity associations at the same time";
const SEVERAL_POLICIES: &str = "at most one of wellKnownPolicies, serviceAccountRoleARN, attachPolicyARNs and attachPolicy can be specified";

/// Adds the reasons for which eksctl refuses a ClusterConfig.
pub(super) fn refusals(config: &Value, found: &mut Vec<Refusal>) {
    karpenter(config, found);
    ipv6(config, found);
    auto_mode(config, found);
    identities(config, found);
    for (index, addon) in list(&config["addons"]).enumerate() {
        let at = Path::of(&["addons"]).index(index);
        let name = addon["name"].as_str().unwrap_or_default();
        for (field, why) in faults(addon) {
            let words = format!("invalid configuration for {name:?} addon: {why}");
            let at = innermost(&at, addon, field);
            found.push(Refusal { at, words });
        }
    }
}

/// Returns why eksctl refuses an addon, with the fields.
fn faults(addon: &Value) -> Vec<(&'static str, String)> {
    let mut faults = Vec::new();
    let values = addon["configurationValues"].as_str().unwrap_or_default();
    if !is_placeholder(values) && !is_configuration(values) {
        let why = format!(
            "configurationValues: {values:?} is not valid, supported format(s) are: JSON and YAML"
        );
        faults.push(("configurationValues", why));
    }
    let namespace = &addon["namespaceConfig"]["namespace"];
    if let Some(name) = namespace.as_str().filter(|name| !is_placeholder(name)) {
        let why = match name {
            "" => None,
            name if name.len() > 63 => Some(format!(
                "namespace name {name:?} is too long (max 63 characters)"
            )),
            name if !is_namespace(name) => Some(format!(
                "namespace {name:?} is not a valid Kubernetes namespace name (must be a valid DNS-1123 label)"
            )),
            _ => None,
        };
        faults.extend(why.map(|why| ("namespaceConfig.namespace", why)));
    }
    let is_filled = |field: &str| match &addon[field] {
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        // An inline document may be empty.
        Value::Object(_) if field == "attachPolicy" => true,
        Value::Object(fields) => fields.values().any(|value| *value == true),
        _ => false,
    };
    let policies = [
        "serviceAccountRoleARN",
        "attachPolicyARNs",
        "attachPolicy",
        "wellKnownPolicies",
    ];
    let set: Vec<_> = policies
        .into_iter()
        .filter(|field| is_filled(field))
        .collect();
    // `useDefaultPodIdentityAssociations` has rules of its own.
    if let Some(field) = set.first() {
        if list(&addon["podIdentityAssociations"]).next().is_some() {
            faults.push((field, ROLES_AND_IDENTITIES.to_owned()));
        } else if let Some(second) = set.get(1) {
            faults.push((second, SEVERAL_POLICIES.to_owned()));
        }
    }
    faults
}

/// Returns whether a text is JSON, or a map in YAML without keys that stand twice.
fn is_configuration(text: &str) -> bool {
    let is_json = serde_json::from_str::<Value>(text).is_ok();
    let is_map = || {
        let value = serde_saphyr::from_str::<Value>(text);
        value.is_ok_and(|value| value.is_object() || value.is_null())
    };
    is_json || text.trim().is_empty() || is_map()
}

/// Returns whether eksctl takes a text for the name of a namespace, which begins with a letter there.
fn is_namespace(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(is_inner)
        && !name.ends_with('-')
}

/// The version of Karpenter.
fn karpenter(config: &Value, found: &mut Vec<Refusal>) {
    let version = &config["karpenter"]["version"];
    let Some(text) = version.as_str().filter(|text| !text.is_empty()) else {
        return;
    };
    if is_filled_in_later(version) {
        return;
    }
    let (least, numbers) = LEAST_KARPENTER;
    let why = match compared(text, numbers) {
        None => format!("failed to parse Karpenter version {text:?}"),
        Some(Ordering::Less) => format!("minimum supported version is {least}"),
        Some(_) => return,
    };
    let at = Path::of(&["karpenter", "version"]);
    let words = format!("failed to validate Karpenter config: {why}");
    found.push(Refusal { at, words });
}

/// The versions that a cluster with IPv6 needs.
fn ipv6(config: &Value, found: &mut Vec<Refusal>) {
    let family = config["kubernetesNetworkConfig"]["ipFamily"].as_str();
    if !family.is_some_and(|family| family.eq_ignore_ascii_case("IPv6")) {
        return;
    }
    if let Some(minor) = minor(config)
        && minor < LEAST_MINOR
    {
        let at = Path::of(&["metadata", "version"]);
        let words = format!("cluster version must be >= 1.{LEAST_MINOR}");
        found.push(Refusal { at, words });
    }
    let mut addons = list(&config["addons"]).enumerate();
    let Some((index, addon)) = addons.find(|(_, own)| own["name"] == "vpc-cni") else {
        return;
    };
    let version = addon["version"].as_str().unwrap_or_default();
    let (least, numbers) = LEAST_CNI;
    if compared(version, numbers) == Some(Ordering::Less) {
        let at = Path::of(&["addons"]).index(index).key("version");
        let words = format!("vpc-cni version must be at least version {least} for IPv6");
        found.push(Refusal { at, words });
    }
}

/// Pod identities without the addon that hands them out.
fn identities(config: &Value, found: &mut Vec<Refusal>) {
    let is_agent = |own: &Value| own["name"] == "eks-pod-identity-agent";
    if config["autoModeConfig"]["enabled"] == true || list(&config["addons"]).any(is_agent) {
        return;
    }
    let field = "podIdentityAssociations";
    let has_some = |own: &Value| list(&own[field]).next().is_some();
    let is_automatic = config["addonsConfig"]["autoApplyPodIdentityAssociations"] == true;
    let uses = |own: &Value| {
        is_automatic || own["useDefaultPodIdentityAssociations"] == true || has_some(own)
    };
    let at = if has_some(&config["iam"]) {
        Path::of(&["iam", field])
    } else if let Some(index) = list(&config["addons"]).position(uses) {
        Path::of(&["addons"]).index(index)
    } else {
        return;
    };
    let words = AGENT_IS_MISSING.to_owned();
    found.push(Refusal { at, words });
}

/// Node groups and addons beside Auto Mode.
fn auto_mode(config: &Value, found: &mut Vec<Refusal>) {
    if config["autoModeConfig"]["enabled"] != true {
        return;
    }
    let has = |field: &str| list(&config[field]).next().is_some();
    if let Some(field) = ["nodeGroups", "managedNodeGroups"]
        .into_iter()
        .find(|own| has(own))
    {
        let words = NODES_BESIDE_AUTO_MODE.to_owned();
        let at = Path::of(&[field]);
        found.push(Refusal { at, words });
        return;
    }
    if has("fargateProfiles") || !config["remoteNetworkConfig"].is_null() {
        return;
    }
    let is_core = |own: &Value| {
        own["name"]
            .as_str()
            .is_some_and(|name| OF_AUTO_MODE.contains(&name))
    };
    if let Some(index) = list(&config["addons"]).position(is_core) {
        let at = Path::of(&["addons"]).index(index);
        let words = ADDONS_BESIDE_AUTO_MODE.to_owned();
        found.push(Refusal { at, words });
    }
}

/// Returns how a version stands to another one (hashicorp/go-version): numbers with dots between, with a `v` before them, and parts for
/// releases to come behind a dash, which are before the release. `None` if the text is no version.
fn compared(text: &str, with: [u64; 3]) -> Option<Ordering> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let release = text.split('+').next().unwrap_or_default();
    let (numbers, is_before) = match release.split_once('-') {
        Some((numbers, _)) => (numbers, true),
        None => (release, false),
    };
    let numbers: Option<Vec<u64>> = numbers.split('.').map(|own| own.parse().ok()).collect();
    let mut numbers = numbers?;
    numbers.resize(numbers.len().max(with.len()), 0);
    let order = numbers.as_slice().cmp(&with);
    let is_same = numbers[..3] == with && numbers[3..].iter().all(|own| *own == 0);
    Some(match (is_same, is_before) {
        (true, true) => Ordering::Less,
        (true, false) => Ordering::Equal,
        (false, _) => order,
    })
}
