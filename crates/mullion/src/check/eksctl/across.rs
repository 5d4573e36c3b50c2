//! The rules that compare values of a ClusterConfig or parse them: sizes, names, labels, taints and instance types.

use std::collections::BTreeSet;

use mullion_api::ami::{AmiFamily, Os};
use mullion_cloud::catalogue::{self, Arch};
use mullion_kube_text::names;
use serde_json::Value;

use super::{Refusal, row::innermost};
use crate::check::{
    fleet::{self, EKSCTL_GROUPS, Source},
    path::Path,
    placeholder::{is_filled_in_later, is_placeholder},
    placement::list,
};

/// eksctl's number of nodes for a group that says none.
const DEFAULT_NODES: i64 = 2;
/// The most instance types of a mixed node group.
const MOST_TYPES: usize = 20;
/// The label domains of Kubernetes, and those in them whose labels a kubelet may set.
const RESERVED_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];
const KUBELET_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Labels of other reserved domains that a kubelet may set.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Returns the reasons for which eksctl refuses a ClusterConfig.
pub(super) fn refusals(config: &Value) -> Vec<Refusal> {
    let mut found = Vec::new();
    service_accounts(config, &mut found);
    ipv6_addons(config, &mut found);
    auto_mode_pools(config, &mut found);
    outposts(config, &mut found);
    let mut names = BTreeSet::new();
    for (field, source) in EKSCTL_GROUPS {
        for (index, group) in list(&config[field]).enumerate() {
            let at = Path::of(&[field]).index(index);
            if group.is_null() {
                add(
                    at,
                    format!("invalid ClusterConfig: {field}[{index}] is not set"),
                    &mut found,
                );
                continue;
            }
            let name = group["name"].as_str().unwrap_or_default();
            if !name.is_empty() && !is_placeholder(name) && !names.insert(name) {
                let words = format!("{at}.name {name:?} is not unique");
                add(at.key("name"), words, &mut found);
            }
            labels(&at, group, &mut found);
            taints(&at, group, &mut found);
            accelerators(&at, group, &mut found);
            if source == Source::Managed {
                sizes(&at, group, &mut found);
            } else {
                instance_types(&at, group, &mut found);
            }
        }
    }
    found
}

fn add(at: Path, words: String, found: &mut Vec<Refusal>) {
    found.push(Refusal { at, words });
}

/// Two service accounts of a name in a namespace.
fn service_accounts(config: &Value, found: &mut Vec<Refusal>) {
    let mut seen = BTreeSet::new();
    for (index, account) in list(&config["iam"]["serviceAccounts"]).enumerate() {
        let metadata = &account["metadata"];
        let Some(name) = metadata["name"]
            .as_str()
            .filter(|name| !is_placeholder(name))
        else {
            continue;
        };
        let namespace = metadata["namespace"].as_str().unwrap_or("default");
        if !seen.insert((namespace, name)) {
            let at = Path::of(&["iam", "serviceAccounts"]).index(index);
            let words = format!("<namespace>/<name> of {at} \"{namespace}/{name}\" is not unique");
            add(at.keys(&["metadata", "name"]), words, found);
        }
    }
}

/// The addons of a cluster with IPv6.
fn ipv6_addons(config: &Value, found: &mut Vec<Refusal>) {
    let family = config["kubernetesNetworkConfig"]["ipFamily"].as_str();
    let is_ipv6 = family.is_some_and(|family| family.eq_ignore_ascii_case("IPv6"));
    if !is_ipv6 || config["autoModeConfig"]["enabled"] == true {
        return;
    }
    let addon = |name: &str| {
        let is_it = |own: &&Value| {
            own["name"]
                .as_str()
                .is_some_and(|own| own.eq_ignore_ascii_case(name))
        };
        list(&config["addons"]).find(is_it)
    };
    let at = Path::of(&["kubernetesNetworkConfig", "ipFamily"]);
    if addon("coredns").is_none() {
        let words = "the default core addons must be defined for IPv6; missing addon(s): coredns; either define them or use EKS Auto Mode";
        add(at, words.to_owned(), found);
    } else if addon("vpc-cni").is_some()
        && addon("eks-pod-identity-agent").is_none()
        && config["iam"]["withOIDC"] != true
    {
        let words = "either pod identity or oidc needs to be enabled if IPv6 is set; set either one or use EKS Auto Mode";
        add(at, words.to_owned(), found);
    } else if let Some(cni) = addon("vpc-cni")
        && addon("eks-pod-identity-agent").is_some()
        && config["addonsConfig"]["autoApplyPodIdentityAssociations"] != true
        && cni["useDefaultPodIdentityAssociations"] != true
        && list(&cni["podIdentityAssociations"]).next().is_none()
    {
        let words = "Set one of: addonsConfig.autoApplyPodIdentityAssociations, useDefaultPodIdentityAssociations on the vpc-cni addon, apply a custom pod identity on the vpc-cni addon";
        add(at, words.to_owned(), found);
    }
}

/// Groups on two Outposts, or on one in a cluster without a way out.
fn outposts(config: &Value, found: &mut Vec<Refusal>) {
    let mut first = None;
    for (index, group) in list(&config["nodeGroups"]).enumerate() {
        let arn = group["outpostARN"].as_str().unwrap_or_default();
        if arn.is_empty() || is_placeholder(arn) {
            continue;
        }
        let at = Path::of(&["nodeGroups"]).index(index).key("outpostARN");
        let first = *first.get_or_insert(arn);
        if arn != first {
            let words = format!(
                "cannot create nodegroups in two different Outposts; got Outpost ARN {first:?} and {arn:?}"
            );
            add(at, words, found);
        } else if config["outpost"].is_null() && config["privateCluster"]["enabled"] == true {
            let words = "nodeGroup.outpostARN is not supported on a fully-private cluster (privateCluster.enabled)";
            add(at, words.to_owned(), found);
        }
    }
}

/// A node pool of Auto Mode that is named twice.
fn auto_mode_pools(config: &Value, found: &mut Vec<Refusal>) {
    let mut seen = BTreeSet::new();
    for (index, pool) in list(&config["autoModeConfig"]["nodePools"]).enumerate() {
        let Some(pool) = pool.as_str() else { continue };
        if !seen.insert(pool) {
            let at = Path::of(&["autoModeConfig", "nodePools"]).index(index);
            add(at, format!("found duplicate node pool: {pool:?}"), found);
        }
    }
}

/// Labels that are none, and those that a kubelet may not set.
fn labels(at: &Path, group: &Value, found: &mut Vec<Refusal>) {
    for (label, value) in group["labels"].as_object().into_iter().flatten() {
        let Some(value) = value.as_str() else {
            continue;
        };
        if is_placeholder(label) || is_placeholder(value) {
            continue;
        }
        let at = at.key("labels").key(label);
        let of_key = names::qualified_name(label);
        let of_value = names::label_value(value);
        if label.matches('/').count() > 1 {
            let words = format!(
                "node label key {label:?} is of invalid format, can only use one '/' separator"
            );
            add(at, words, found);
        } else if !of_key.is_empty() {
            add(
                at,
                format!("label {label:?} is invalid - [{}]", of_key.join(" ")),
                found,
            );
        } else if !of_value.is_empty() {
            let why = of_value.join(" ");
            add(
                at,
                format!("label {label:?} has invalid value {value:?} - [{why}]"),
                found,
            );
        } else if is_reserved(label) {
            let words = format!(
                "the following nodegroup labels are disallowed as they have reserved prefixes [kubernetes.io/, k8s.io/]: [{label}]"
            );
            add(at, words, found);
        }
    }
}

/// Returns whether a label is Kubernetes' own and a kubelet may not set the label (kubelet: `IsKubeletLabel`).
fn is_reserved(label: &str) -> bool {
    let Some((domain, _)) = label.split_once('/') else {
        return false;
    };
    let is_within = |own: &&str| domain == *own || domain.ends_with(&format!(".{own}"));
    RESERVED_DOMAINS.iter().any(is_within)
        && !KUBELET_LABELS.contains(&label)
        && !KUBELET_DOMAINS.iter().any(is_within)
}

/// Taints whose keys or values are none; effects have a rule of their own.
fn taints(at: &Path, group: &Value, found: &mut Vec<Refusal>) {
    let at = at.key("taints");
    let of_map = group["taints"].as_object().into_iter().flatten();
    let of_map = of_map.filter_map(|(key, value)| {
        let value = value
            .as_str()?
            .split_once(':')
            .map_or("", |(value, _)| value);
        Some((at.key(key), at.key(key), key.as_str(), value))
    });
    let of_list = list(&group["taints"]).enumerate();
    let of_list = of_list.map(|(index, taint)| {
        let at = at.index(index);
        let text = |field: &str| taint[field].as_str().unwrap_or_default();
        let place = |field: &str| innermost(&at, taint, field);
        (place("key"), place("value"), text("key"), text("value"))
    });
    for (key_at, value_at, key, value) in of_map.chain(of_list) {
        if is_placeholder(key) || is_placeholder(value) {
            continue;
        }
        if key.is_empty() {
            add(key_at, "taint key must be non-empty".to_owned(), found);
            continue;
        }
        let of_key = names::qualified_name(key);
        if !of_key.is_empty() {
            add(
                key_at,
                format!("invalid taint key: {key}, {}", of_key.join("; ")),
                found,
            );
            continue;
        }
        let of_value = names::label_value(value);
        if !of_value.is_empty() {
            add(
                value_at,
                format!("invalid taint value: {value}, {}", of_value.join("; ")),
                found,
            );
        }
    }
}

/// Returns the family of a group's images; eksctl's default if the group says none.
fn family_of(group: &Value) -> Option<AmiFamily> {
    match group["amiFamily"].as_str() {
        None | Some("") => Some(AmiFamily::AmazonLinux2023),
        Some(name) => name.parse().ok(),
    }
}

fn is_bottlerocket(family: AmiFamily) -> bool {
    matches!(
        family,
        AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips
    )
}

/// Machines with AWS's accelerators, whose drivers only some families have.
fn accelerators(at: &Path, group: &Value, found: &mut Vec<Refusal>) {
    let has_drivers = |family: AmiFamily| {
        is_bottlerocket(family)
            || matches!(family, AmiFamily::AmazonLinux2 | AmiFamily::AmazonLinux2023)
    };
    if family_of(group).is_none_or(has_drivers) {
        return;
    }
    let family = group["amiFamily"].as_str().unwrap_or_default();
    for (at, name) in fleet::eksctl_types(group, at) {
        let has_devices = catalogue::get(name).is_some_and(|known| known.neuron_devices > 0);
        let chip = match name {
            name if has_devices && name.starts_with("inf") => "Inferentia",
            name if has_devices && name.starts_with("trn") => "Trainium",
            _ => continue,
        };
        let words = format!(
            "{chip} instance types are not supported for {family}; please use AmazonLinux2 instead"
        );
        add(at, words, found);
    }
}

/// The sizes of a managed group, whose messages name the flags of eksctl's command.
fn sizes(at: &Path, group: &Value, found: &mut Vec<Refusal>) {
    let fields = ["minSize", "desiredCapacity", "maxSize"];
    if fields
        .iter()
        .any(|field| is_filled_in_later(&group[*field]))
    {
        return;
    }
    let [min, desired, max] = fields.map(|field| group[field].as_i64());
    let least = min.or(desired).unwrap_or(DEFAULT_NODES);
    let together = |flags: String| format!("cannot use {flags} at the same time");
    if let (Some(min), Some(desired)) = (min, desired)
        && desired < min
    {
        let words = together(format!("--nodes-min={min} and --nodes={desired}"));
        add(at.key("desiredCapacity"), words, found);
    } else if let (Some(max), Some(desired)) = (max, desired)
        && desired > max
    {
        let words = together(format!("--nodes-max={max} and --nodes={desired}"));
        add(at.key("desiredCapacity"), words, found);
    } else if let Some(max) = max
        && max < least
    {
        let place = innermost(at, group, "minSize");
        let place = if place == *at {
            at.key("maxSize")
        } else {
            place
        };
        let words = together(format!("--nodes-min={least} and --nodes-max={max}"));
        add(place, words, found);
    }
    // A group that would have no nodes at most may have one.
    let most = max.unwrap_or(match desired.unwrap_or(least) {
        0 => 1,
        most => most,
    });
    let unavailable = group["updateConfig"]["maxUnavailable"].as_i64();
    if let Some(unavailable) = unavailable.filter(|unavailable| *unavailable > most) {
        let words = format!("maxUnavailable={unavailable} cannot be greater than maxSize={most}");
        add(at.keys(&["updateConfig", "maxUnavailable"]), words, found);
    }
}

/// The instance types of a self-managed group.
fn instance_types(at: &Path, group: &Value, found: &mut Vec<Refusal>) {
    let distribution = at.key("instancesDistribution");
    let mixed: Vec<_> = list(&group["instancesDistribution"]["instanceTypes"])
        .filter_map(Value::as_str)
        .collect();
    let different: BTreeSet<_> = mixed.iter().collect();
    if different.len() > MOST_TYPES && group["instanceSelector"].is_null() {
        let words = "mixed nodegroups should have between 1 and 20 different instance types";
        add(distribution.key("instanceTypes"), words.to_owned(), found);
    }
    let types = if group["instancesDistribution"].is_null() {
        group["instanceType"].as_str().into_iter().collect()
    } else {
        mixed
    };
    let is_burstable = |name: &&str| name.starts_with('t') || is_placeholder(name);
    if group["cpuCredits"].is_string() && !types.iter().any(is_burstable) {
        let words = "cpuCredits option set for nodegroup, but it has no t2/t3 instance types";
        add(at.key("cpuCredits"), words.to_owned(), found);
    }
    let has_ami = group["ami"]
        .as_str()
        .is_some_and(|ami| ami.starts_with("ami-") || is_placeholder(ami));
    let Some(family) = family_of(group).filter(|_| !has_ami && group["amiFamily"].is_string())
    else {
        return;
    };
    for (at, name) in fleet::eksctl_types(group, at) {
        let Some(known) = catalogue::get(name) else {
            continue;
        };
        let (is_arm, has_neuron) = (known.arch == Arch::Arm64, known.neuron_devices > 0);
        let has_gpu = known
            .gpu
            .as_ref()
            .is_some_and(|gpu| gpu.manufacturer == "nvidia");
        // eksctl has no images for these; those of Windows have a rule of their own.
        let lacks = match family {
            AmiFamily::AmazonLinux2 => is_arm && (has_gpu || has_neuron),
            AmiFamily::AmazonLinux2023 => is_arm && has_neuron,
            family if family.os() == Os::Windows => has_neuron && !is_arm,
            _ => false,
        };
        if lacks {
            let family = group["amiFamily"].as_str().unwrap_or_default();
            let words = format!(
                "{name} instance types are not supported for unmanaged nodegroups with AMIFamily {family}"
            );
            add(at, words, found);
        }
    }
}
