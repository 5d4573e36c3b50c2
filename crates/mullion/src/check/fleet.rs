//! Determines which kinds of nodes a cluster has or can buy (nodes, node groups of eksctl, pools of Karpenter), with what matters to pods.

use std::collections::BTreeSet;

use mullion_api::{
    ami::{AmiFamily, Os},
    labels,
};
use mullion_cloud::catalogue;
use mullion_engine::{images::System, windows::Build};
use serde_json::Value;

use super::{
    path::Path,
    placement::{Placement, Taint, list},
    subject::Object,
};

/// The largest number of Windows pods behind a load balancer; the next constant applies if a node lacks the update KB5011551.
pub(crate) const BACKENDS: u64 = 1024;
pub(crate) const OLD_BACKENDS: u64 = 64;
/// The revision of build 10.0.17763 that has KB5011551.
const FIRST_REVISION: u32 = 2746;
/// The domains of taints by which the control plane says how a node is.
const STATE_DOMAINS: [&str; 2] = ["node.kubernetes.io", "node.cloudprovider.kubernetes.io"];
/// Taints by which autoscalers say how a node is.
const STATE_TAINTS: [&str; 4] = [
    labels::UNREGISTERED_TAINT,
    labels::DISRUPTED_TAINT,
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
];

/// The lists of node groups in eksctl's files.
pub(super) const EKSCTL_GROUPS: [(&str, Source); 2] = [
    ("nodeGroups", Source::Unmanaged),
    ("managedNodeGroups", Source::Managed),
];

/// A group of equal nodes.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The index of the object that describes the group; the next field is the path in the object.
    pub(super) object: usize,
    pub(super) path: Path,
    pub(super) name: String,
    /// The operating system; `None` if it is not known.
    pub(super) system: Option<System>,
    pub(super) build: Option<Build>,
    pub(super) taints: Vec<Taint>,
    pub(super) types: Vec<String>,
    pub(super) source: Source,
    /// The largest number of nodes, if there is a limit.
    pub(super) nodes: Option<u64>,
}

/// What describes the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Node,
    /// An entry of eksctl's `nodeGroups`.
    Unmanaged,
    /// An entry of eksctl's `managedNodeGroups`.
    Managed,
    NodePool,
    Provisioner,
}

/// All node groups of a cluster, and what is known of the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    pub(super) groups: Vec<Group>,
    /// Whether the cluster has no other nodes, which is so for a running cluster and for a file of pools.
    pub(super) complete: bool,
    /// The minor version of Kubernetes 1, if it is known.
    pub(super) minor: Option<u32>,
    /// Whether a node runs Windows Server 2019 without KB5011551.
    pub(super) has_old_nodes: bool,
}

impl Fleet {
    pub(super) fn windows(&self) -> impl Iterator<Item = &Group> {
        self.groups
            .iter()
            .filter(|group| group.system == Some(System::Windows))
    }

    /// Returns the Windows groups whose taints a pod tolerates.
    pub(super) fn reachable<'f>(
        &'f self,
        placement: &'f Placement,
    ) -> impl Iterator<Item = &'f Group> {
        self.windows().filter(|group| {
            group
                .taints
                .iter()
                .all(|taint| !taint.is_hard() || placement.tolerates(taint))
        })
    }

    /// Returns the builds of the Windows groups in ascending order.
    pub(super) fn builds(&self) -> BTreeSet<Build> {
        self.windows().filter_map(|group| group.build).collect()
    }

    /// Reads the node groups from objects.
    pub(super) fn of(objects: &[Object], complete: bool) -> Self {
        let mut groups = Vec::new();
        for (index, object) in objects.iter().enumerate() {
            match object.kind() {
                "Node" if object.is("Node", "") => groups.extend(node(object, index)),
                "ClusterConfig" if object.is("ClusterConfig", "eksctl.io") => {
                    eksctl(object, index, &mut groups)
                }
                "NodePool" if object.is("NodePool", "karpenter.sh") => {
                    groups.push(pool(object, index, objects))
                }
                "Provisioner" if object.is("Provisioner", "karpenter.sh") => {
                    groups.push(provisioner(object, index, objects))
                }
                _ => {}
            }
        }
        Fleet {
            groups,
            complete,
            // Nodes may lag behind the control plane by some versions; the highest is the closest to it.
            minor: objects.iter().filter_map(minor).max(),
            has_old_nodes: objects
                .iter()
                .any(|object| object.is("Node", "") && is_before_update(&object.value)),
        }
    }
}

/// Returns whether a node runs Windows Server 2019 without KB5011551.
pub(crate) fn is_before_update(node: &Value) -> bool {
    let version = node["status"]["nodeInfo"]["kernelVersion"].as_str();
    let version = version.unwrap_or_default();
    let is_2019 = version.parse() == Ok(Build::SERVER_2019);
    let revision = version.splitn(4, '.').nth(3);
    let revision = revision.and_then(|own| own.parse::<u32>().ok());
    is_2019 && revision.is_some_and(|own| own < FIRST_REVISION)
}

fn minor(object: &Object) -> Option<u32> {
    let text = match object.kind() {
        "ClusterConfig" => object.text_at("/metadata/version"),
        "Node" => object
            .text_at("/status/nodeInfo/kubeletVersion")
            .trim_start_matches('v'),
        _ => return None,
    };
    text.strip_prefix("1.")?.split('.').next()?.parse().ok()
}

fn node(object: &Object, index: usize) -> Option<Group> {
    let own = &object.value["metadata"]["labels"];
    let label = |key: &str| own.get(key).and_then(Value::as_str);
    Some(Group {
        object: index,
        path: Path::default(),
        name: object.name().to_owned(),
        system: Some(System::of_label(label(labels::OS)?)?),
        build: label(labels::WINDOWS_BUILD).and_then(|build| build.parse().ok()),
        taints: lasting(taints(&object.value["spec"]["taints"])),
        types: label(labels::INSTANCE_TYPE)
            .map(str::to_owned)
            .into_iter()
            .collect(),
        source: Source::Node,
        nodes: Some(1),
    })
}

fn eksctl(object: &Object, index: usize, groups: &mut Vec<Group>) {
    for (field, source) in EKSCTL_GROUPS {
        for (position, group) in list(&object.value[field]).enumerate() {
            let family = match group["amiFamily"].as_str() {
                // This is eksctl's default family.
                None => Some(AmiFamily::AmazonLinux2023),
                Some(name) => name.parse::<AmiFamily>().ok(),
            };
            let system = match (family, group["amiFamily"].as_str()) {
                (Some(family), _) => Some(system_of(family)),
                // An unknown family, such as one of a later release, may still show that it is Windows.
                (None, Some(name)) if name.to_lowercase().starts_with("windowsserver") => {
                    Some(System::Windows)
                }
                _ => None,
            };
            let path = Path::of(&[field]).index(position);
            let types = eksctl_types(group, &path).map(|(_, name)| name.to_owned());
            let types = types.collect();
            groups.push(Group {
                object: index,
                path,
                name: group["name"].as_str().unwrap_or_default().to_owned(),
                system,
                build: family.and_then(build_of),
                taints: taints(&group["taints"]),
                types,
                source,
                // Without `maxSize`, the group cannot grow beyond its desired capacity.
                nodes: group["maxSize"]
                    .as_u64()
                    .or(group["desiredCapacity"].as_u64()),
            });
        }
    }
}

/// Returns the instance types of a node group of eksctl with their paths; `at` is the group's.
pub(super) fn eksctl_types<'g>(
    group: &'g Value,
    at: &Path,
) -> impl Iterator<Item = (Path, &'g str)> {
    /// eksctl's type of groups whose types are in a list.
    const MIXED: &str = "mixed";
    let lists: [&[&str]; 2] = [
        &["instanceTypes"],
        &["instancesDistribution", "instanceTypes"],
    ];
    let of_list = |fields: &[&str]| {
        let value = fields.iter().fold(group, |value, field| &value[*field]);
        let at = at.keys(fields);
        let items = list(value).enumerate();
        items.filter_map(move |(index, item)| Some((at.index(index), item.as_str()?)))
    };
    let single = group["instanceType"].as_str().filter(|name| *name != MIXED);
    let single = single.map(|name| (at.key("instanceType"), name));
    let listed: Vec<_> = lists.into_iter().flat_map(of_list).collect();
    listed.into_iter().chain(single)
}

fn pool(object: &Object, index: usize, objects: &[Object]) -> Group {
    let template = &object.value["spec"]["template"]["spec"];
    let class = template["nodeClassRef"]["name"]
        .as_str()
        .unwrap_or_default();
    let class = objects
        .iter()
        .find(|own| own.is("EC2NodeClass", "karpenter.k8s.aws") && own.name() == class);
    let family = class.and_then(|class| family_of(&class.value));
    karpenter(object, index, template, family, Source::NodePool)
}

fn provisioner(object: &Object, index: usize, objects: &[Object]) -> Group {
    let spec = &object.value["spec"];
    let class = spec["providerRef"]["name"].as_str().unwrap_or_default();
    let class = objects
        .iter()
        .find(|own| own.is("AWSNodeTemplate", "karpenter.k8s.aws") && own.name() == class);
    let family =
        class.and_then(|class| AmiFamily::from_karpenter(class.text_at("/spec/amiFamily")));
    karpenter(object, index, spec, family, Source::Provisioner)
}

fn karpenter(
    object: &Object,
    index: usize,
    spec: &Value,
    family: Option<AmiFamily>,
    source: Source,
) -> Group {
    let path = match source {
        Source::NodePool => Path::of(&["spec", "template", "spec"]),
        _ => Path::of(&["spec"]),
    };
    let required = requirement(spec, labels::OS).and_then(|values| match values.as_slice() {
        [one] => System::of_label(one),
        _ => None,
    });
    Group {
        object: index,
        path,
        name: object.name().to_owned(),
        // The requirement decides which nodes the pool buys; a contradicting family is rule MUL074's finding.
        system: required.or(family.map(system_of)),
        build: family.and_then(build_of).or_else(|| {
            let builds = requirement(spec, labels::WINDOWS_BUILD)?;
            builds.first()?.parse().ok()
        }),
        taints: taints(&spec["taints"]),
        types: requirement(spec, labels::INSTANCE_TYPE).unwrap_or_default(),
        source,
        nodes: None,
    }
}

/// Returns the values that the requirements allow for a label (operator `In`).
pub(crate) fn requirement(spec: &Value, key: &str) -> Option<Vec<String>> {
    let found =
        list(&spec["requirements"]).find(|own| own["key"] == key && own["operator"] == "In")?;
    Some(
        list(&found["values"])
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
    )
}

/// Returns the AMI family of an EC2NodeClass: from its field, or from the alias of its images.
pub(crate) fn family_of(class: &Value) -> Option<AmiFamily> {
    let by_alias = || {
        list(&class["spec"]["amiSelectorTerms"])
            .find_map(|term| AmiFamily::from_alias(term["alias"].as_str()?))
    };
    class["spec"]["amiFamily"]
        .as_str()
        .and_then(AmiFamily::from_karpenter)
        .or_else(by_alias)
}

pub(crate) fn system_of(family: AmiFamily) -> System {
    match family.os() {
        Os::Linux => System::Linux,
        Os::Windows => System::Windows,
    }
}

fn build_of(family: AmiFamily) -> Option<Build> {
    family.windows_release()?.build().parse().ok()
}

/// Reads taints from a list, or from eksctl's map.
fn taints(value: &Value) -> Vec<Taint> {
    if let Some(map) = value.as_object() {
        let of_map = |(key, value): (&String, &Value)| {
            let text = value.as_str()?;
            let (value, effect) = text.split_once(':').unwrap_or(("", text));
            Some(Taint {
                key: key.clone(),
                value: value.to_owned(),
                effect: effect.to_owned(),
            })
        };
        return map.iter().filter_map(of_map).collect();
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_list = |taint: &Value| Taint {
        key: text(&taint["key"]),
        value: text(&taint["value"]),
        effect: text(&taint["effect"]),
    };
    list(value).map(of_list).collect()
}

/// Returns the taints of a node without those that say how it is at the moment (not ready, cordoned, about to go): they pass, and no pod of
/// the owner is meant to tolerate them.
fn lasting(mut taints: Vec<Taint>) -> Vec<Taint> {
    taints.retain(|taint| {
        let domain = taint.key.split('/').next().unwrap_or_default();
        !STATE_DOMAINS.contains(&domain) && !STATE_TAINTS.contains(&taint.key.as_str())
    });
    taints
}

/// Returns how many Windows pods a node of the type has addresses for; `None` if EKS does not run Windows on it.
pub(super) fn addresses(name: &str, prefixes: bool) -> Option<u64> {
    /// The kubelet's limit for pods on EKS's Windows nodes.
    const MAX_PODS: u64 = 110;
    let known = catalogue::get(name).filter(|known| known.windows_capable)?;
    let slots = known.ipv4_per_eni.saturating_sub(1);
    let all = if prefixes && known.windows_prefix_delegation {
        slots * 16
    } else {
        slots
    };
    Some(all.min(MAX_PODS))
}

/// Returns the memory of an instance type in MiB.
pub(super) fn memory_mib(name: &str) -> Option<u64> {
    catalogue::get(name).map(|known| known.memory_mib)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn taints_that_say_how_a_node_is_at_the_moment_do_not_count() {
        let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
        let all = json!([
            taint("node.kubernetes.io/unreachable", "NoSchedule"),
            taint("node.kubernetes.io/unreachable", "NoExecute"),
            taint("node.kubernetes.io/unschedulable", "NoSchedule"),
            taint("node.cloudprovider.kubernetes.io/shutdown", "NoSchedule"),
            taint("karpenter.sh/disrupted", "NoSchedule"),
            taint("os", "NoSchedule"),
        ]);
        let left = lasting(taints(&all));
        let keys: Vec<_> = left.iter().map(|taint| taint.key.as_str()).collect();
        assert_eq!(keys, ["os"]);
    }

    #[test]
    fn only_nodes_of_2019_before_the_update_serve_64_backends() {
        let node = |version: &str| json!({"status": {"nodeInfo": {"kernelVersion": version}}});
        assert!(is_before_update(&node("10.0.17763.2700")));
        assert!(!is_before_update(&node("10.0.17763.2746")));
        assert!(!is_before_update(&node("10.0.20348.1607")));
    }
}
