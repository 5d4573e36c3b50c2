//! Proposes changes that would remove a refusal.
//!
//! Some refusals propose nothing on purpose: an image decides its operating system and its Windows build, so demanding
//! another one would not help; a node that is not ready becomes ready without any change of the pod.

use std::collections::{BTreeMap, BTreeSet};

use super::change::describe_term;
use super::demand::{Demand, Demands};
use super::images::ImageNeeds;
use super::near::{is_misspelt, known_values};
use super::prefixes::ADDRESSES;
use super::{Change, Facts};
use crate::cluster::{Cluster, NodeId};
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{Operator, PodSpec, PodTemplate, TaintEffect, label};
use crate::provision::{NodeTemplate, PoolReason};
use crate::reason::{Conflict, Plugin, Reason, Refusal};
use crate::schedule::{Answer, Outcome};
use crate::windows::Build;

/// Key prefixes of taints that describe the state of a node, not the pods that it is reserved for.
const CONDITIONS: [&str; 3] = [
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/",
];

/// The prefix of the resources that the VPC resource controller counts.
const COUNTED: &str = "vpc.amazonaws.com/";

/// Nodes that lack the same resources, with the changes that each would need; the node that needs least comes first.
pub(super) type Lacking = Vec<(NodeId, Vec<Change>)>;

/// The size of a set of changes: their number, their cost, and how much of requests is given up. The smallest set is shown
/// first.
pub(super) type Size = (usize, u32, i64);

pub(super) fn size(changes: &[Change]) -> Size {
    let (cost, given_up) = least(changes);
    let weight = changes.iter().map(Change::weight).sum();
    (weight, cost, given_up)
}

/// Returns the toleration of a taint; `None` if the taint describes the state of a node.
pub(super) fn tolerate(
    cluster: &Cluster,
    key: Symbol,
    value: Symbol,
    effect: TaintEffect,
) -> Option<Change> {
    let key = cluster.text(key);
    let is_condition = CONDITIONS.iter().any(|prefix| key.starts_with(prefix));
    (!is_condition).then(|| Change::Tolerate {
        key: key.to_owned(),
        value: cluster.text(value).to_owned(),
        effect,
    })
}

/// Returns the change to request only what is free of a resource; `None` if nothing is free, unless the pod can do without
/// the resource: extended resources and huge pages, but not Windows addresses.
fn less(resource: &str, requested: i64, free: i64) -> Option<Change> {
    let is_own = resource.starts_with(COUNTED);
    let is_extra = resource.contains('/') || resource.starts_with("hugepages-");
    (free > 0 || is_extra && !is_own).then(|| Change::Request {
        resource: resource.to_owned(),
        from: requested,
        to: free.max(0),
    })
}

/// Returns the cost of the changes and how much of requests they give up.
fn least(changes: &[Change]) -> (u32, i64) {
    let cost = changes.iter().map(Change::cost).sum();
    let given_up = changes.iter().map(Change::given_up);
    (cost, given_up.fold(0, i64::saturating_add))
}

/// The pod for which remedies are searched, with facts about its images.
pub(super) struct RefusedPod<'a> {
    pod: &'a PodSpec,
    facts: Facts<'a>,
    images: ImageNeeds<'a>,
    os: &'a str,
    /// Its demands on node labels.
    pub(super) demands: Demands,
}

/// The operating systems; a pod that says nothing about its own runs on Linux.
const WINDOWS: &str = "windows";
const LINUX: &str = "linux";

/// Returns the operating system that a pod asks for: by name, possibly misspelt, or by demanding a Windows build.
fn os_of(pod: &PodTemplate) -> Option<&'static str> {
    let selected = pod.node_selector.get(label::OS).map(String::as_str);
    let required = pod.affinity.node_affinity.as_ref();
    let required = required.and_then(|affinity| affinity.required.as_ref());
    let terms = required
        .into_iter()
        .flat_map(|required| &required.node_selector_terms);
    let demands = terms.flat_map(|term| &term.match_expressions);
    let demands = demands.filter(|demand| demand.operator == Operator::In);
    let demands = |key: &'static str| demands.clone().filter(move |demand| demand.key == key);
    let required = demands(label::OS).find_map(|demand| demand.values.first());
    let named = [pod.os.as_deref(), selected, required.map(String::as_str)];
    // The pod's own field first, then its selectors; the first one that means an operating system decides.
    let mut named = named.into_iter().flatten().filter_map(intended_os);
    let by_build = || {
        let selects = pod.node_selector.contains_key(label::WINDOWS_BUILD);
        (selects || demands(label::WINDOWS_BUILD).next().is_some()).then_some(WINDOWS)
    };
    named.next().or_else(by_build)
}

/// Removes the request for a Windows address from a pod that names Linux: admission added it because the pod asked for
/// Windows elsewhere.
pub(super) fn take_for_linux(pod: &mut PodTemplate) {
    if pod.os.as_deref() == Some(LINUX) {
        for container in pod.containers.iter_mut().chain(&mut pod.init_containers) {
            container.resources.requests.remove(ADDRESSES);
        }
    }
}

/// Returns the operating system that a name means, even if misspelt.
fn intended_os(name: &str) -> Option<&'static str> {
    let mut known = known_values(label::OS).iter().copied();
    known.find(|known| *known == name || is_misspelt(name, known))
}

/// Returns the operating system of a pool's nodes, if the pool has only one.
pub(super) fn os_of_pool(pool: &NodeTemplate) -> Option<&str> {
    let demands = pool.requirements.iter();
    let mut demands =
        demands.filter(|demand| demand.key == label::OS && demand.operator == Operator::In);
    let required = demands.find_map(|demand| match &demand.values[..] {
        [only] => Some(only.as_str()),
        _ => None,
    });
    let of_labels = pool.labels.get(label::OS);
    let of_types = || pool.instance_types.first()?.labels.get(label::OS);
    required.or(of_labels.or_else(of_types).map(String::as_str))
}

impl<'a> RefusedPod<'a> {
    pub(super) fn new(pod: &'a PodSpec, facts: Facts<'a>, names: &mut Interner) -> Self {
        let images = ImageNeeds::of(&pod.template, facts);
        // Images about which nothing is known are taken for Linux.
        let by_image = if images.run_on(LINUX) { LINUX } else { WINDOWS };
        RefusedPod {
            pod,
            facts,
            os: os_of(&pod.template).unwrap_or(by_image),
            demands: Demands::of(&pod.template, names),
            images,
        }
    }

    /// Returns whether the pod asks for this operating system and its images run on it; `true` if the system is unknown.
    pub(super) fn is_for(&self, os: Option<&str>) -> bool {
        os.is_none_or(|os| os == self.os && self.images.run_on(os))
    }

    /// Returns whether a resource matters for the pod's operating system: Windows addresses do not for Linux pods.
    pub(super) fn needs(&self, resource: &str) -> bool {
        resource != ADDRESSES || self.os != LINUX
    }

    /// Returns whether a container of the pod requests a resource.
    pub(super) fn asks_for(&self, resource: &str) -> bool {
        let mut containers = self.pod.template.containers.iter();
        containers.any(|own| own.resources.requests.contains_key(resource))
    }

    /// Adds proposals that would remove the refusals of nodes. Among nodes that lack the same resources, the one that needs
    /// the least change is proposed; groups with further nodes are returned, because something else may keep the pod from
    /// the first.
    pub(super) fn about_nodes(
        &self,
        cluster: &Cluster,
        answer: &Answer,
        proposals: &mut BTreeSet<Vec<Change>>,
    ) -> Vec<Lacking> {
        let conflict = answer.conflict.map(|veto| veto.conflict);
        if conflict == Some(Conflict::Affinity) {
            proposals.insert(vec![Change::DropNodeAffinity]);
        }
        let mut lacking: BTreeMap<Vec<String>, Lacking> = BTreeMap::new();
        for node in &answer.nodes {
            let Outcome::Refused(refusal) = &node.outcome else {
                continue;
            };
            if !self.is_for(cluster.os_of(node.node)) {
                continue;
            }
            // Affinity between pods gives the same proposals for every node, so they need no node's labels.
            if let Some(about) = self.about_terms(refusal) {
                proposals.extend(about.map(|change| vec![change]));
                continue;
            }
            if refusal.reason == (Reason::NodeAffinity { mismatch: None }) {
                proposals.insert(vec![Change::DropNodeAffinity]);
            }
            let Some(changes) = self.about_node(cluster, node.node, refusal) else {
                continue;
            };
            // Missing amounts differ from node to node, so such nodes are grouped and only the nearest is proposed.
            if refusal.plugin != Plugin::NodeResourcesFit {
                proposals.insert(changes);
                continue;
            }
            let resources = changes.iter().filter_map(|change| match change {
                Change::Request { resource, .. } => Some(resource.clone()),
                _ => None,
            });
            let group = lacking.entry(resources.collect()).or_default();
            group.push((node.node, changes));
        }
        for group in lacking.values_mut() {
            group.sort_by_key(|(_, changes)| least(changes));
            proposals.extend(group.first().map(|(_, changes)| changes.clone()));
        }
        lacking.retain(|_, group| group.len() > 1);
        lacking.into_values().collect()
    }

    fn about_node(
        &self,
        cluster: &Cluster,
        node: NodeId,
        refusal: &Refusal,
    ) -> Option<Vec<Change>> {
        let mut changes = Vec::new();
        // All of them: a node that lacks cpu and memory takes the pod only if both are reduced.
        for reason in refusal.reasons() {
            match reason {
                Reason::Unschedulable => changes.push(Change::Uncordon {
                    node: cluster.node_name(node).to_owned(),
                }),
                Reason::NodeAffinity { .. } => {
                    changes.extend(self.about_labels(cluster, &cluster.at(node).fixed.labels)?);
                }
                other => changes.push(self.about(cluster, other)?),
            }
        }
        Some(changes)
    }

    /// Returns the changes of the pod's demands after which a node with these labels matches.
    fn about_labels(&self, cluster: &Cluster, labels: &LabelSet) -> Option<Vec<Change>> {
        match self.demands.unmet(labels, cluster.names()) {
            Some(unmet) if !unmet.is_empty() => unmet
                .into_iter()
                .map(|demand| self.about_demand(cluster, demand, labels))
                .collect(),
            _ => Some(vec![Change::DropNodeAffinity]),
        }
    }

    /// Returns changes that drop one affinity term each, since any of them may be the cause; `None` if the refusal is about
    /// something else.
    fn about_terms(&self, refusal: &Refusal) -> Option<impl Iterator<Item = Change> + use<>> {
        let affinity = &self.pod.template.affinity;
        let reason = refusal.reasons().next()?;
        let terms = match reason {
            Reason::Affinity => affinity.pod_affinity.as_ref(),
            Reason::AntiAffinity => affinity.pod_anti_affinity.as_ref(),
            _ => return None,
        };
        let terms = terms.map_or(&[][..], |affinity| &affinity.required[..]);
        let words: Vec<_> = terms.iter().map(describe_term).collect();
        Some(words.into_iter().map(Some).map(move |term| match reason {
            Reason::Affinity => Change::DropAffinity { term },
            _ => Change::DropAntiAffinity { term },
        }))
    }

    /// Returns the change after which the pod's images can run on nodes of another Windows build; `None` if they run on this
    /// build. The scheduler would accept the node, but the containers could not start.
    pub(super) fn about_build(&self, host: Option<&str>) -> Option<Change> {
        let host: Build = host?.parse().ok()?;
        if self.images.run_on_build(host) {
            return None;
        }
        Some(Change::Select {
            key: label::WINDOWS_BUILD.to_owned(),
            wanted: String::new(),
            instead: Some(self.images.newest()?.to_string()),
        })
    }

    /// Adds proposals that would remove a pool's refusal.
    pub(super) fn about_pool(
        &self,
        cluster: &Cluster,
        reason: &PoolReason,
        proposals: &mut BTreeSet<Vec<Change>>,
    ) {
        let reason = match reason {
            // Handled by `market`, which compares the pod's demands with the pool's offers.
            PoolReason::Incompatible {
                reason: Reason::NodeAffinity { .. },
                ..
            } => return,
            PoolReason::Incompatible { reason, .. } | PoolReason::Topology { reason, .. } => reason,
            _ => return,
        };
        let alone = Refusal::new(Plugin::InterPodAffinity, *reason);
        if let Some(about) = self.about_terms(&alone) {
            proposals.extend(about.map(|change| vec![change]));
            return;
        }
        proposals.extend(self.about(cluster, *reason).map(|change| vec![change]));
    }

    fn about(&self, cluster: &Cluster, reason: Reason) -> Option<Change> {
        match reason {
            Reason::NotNamed => Some(Change::DropNodeAffinity),
            Reason::UntoleratedTaint { key, value, effect } => tolerate(cluster, key, value, effect),
            Reason::PortTaken { port } => Some(Change::DropHostPort { port }),
            Reason::Insufficient {
                resource,
                requested,
                free,
                ..
            } => self.about_amount(cluster.text(resource), requested, free),
            Reason::Spread { key, skew, .. } if self.declares_spread(cluster.text(key)) => {
                Some(Change::RaiseSkew {
                    key: cluster.text(key).to_owned(),
                    to: skew,
                })
            }
            Reason::SpreadKeyMissing { key } => Some(Change::SpreadAnyway {
                key: cluster.text(key).to_owned(),
            }),
            // Handled by `about_labels`, one demand at a time.
            Reason::NodeAffinity { .. } => None,
            // Handled by `about_terms`, one term at a time.
            Reason::Affinity | Reason::AntiAffinity => None,
            Reason::Spread { .. }
            | Reason::Unschedulable
            | Reason::NodeName
            | Reason::OperatingSystem { .. }
            | Reason::TooManyPods { .. }
            | Reason::ExistingAntiAffinity
            | Reason::FeatureMissing { .. }
            | Reason::PreemptionNotHelpful
            | Reason::NoVictims
            // Claims and volumes are other objects than the pod: changing them is not a change of the pod.
            | Reason::DiskTaken
            | Reason::ClaimTaken { .. }
            | Reason::VolumeLimit { .. }
            | Reason::ClaimNotCounted { .. }
            | Reason::VolumeAffinity
            | Reason::NoVolumeToBind
            | Reason::NoStorageLeft
            | Reason::VolumeMissing
            | Reason::VolumeZone { .. }
            | Reason::Conflict(_)
            // What the scheduler's profile demands is not the pod's to change.
            | Reason::EnforcedAffinity
            | Reason::DevicesTaken
            | Reason::DevicePoolsInvalid
            | Reason::DevicesUndecided
            | Reason::DevicesFailed
            | Reason::DevicesElsewhere
            | Reason::ExtendedClaimLeft
            | Reason::ResourceMissing { .. } => None,
        }
    }

    /// Returns the change that helps against too little of a resource: requesting less, or more addresses for Windows pods.
    pub(super) fn about_amount(&self, resource: &str, requested: i64, free: i64) -> Option<Change> {
        if resource == ADDRESSES && self.facts.prefixes.is_known() {
            return Some(Change::DelegatePrefixes { on: None });
        }
        less(resource, requested, free)
    }

    fn declares_spread(&self, key: &str) -> bool {
        let rules = &self.pod.template.topology_spread_constraints;
        rules.iter().any(|rule| rule.topology_key == key)
    }

    /// Returns the change of a demand that a node's label does not satisfy.
    pub(super) fn about_demand(
        &self,
        cluster: &Cluster,
        demand: &Demand,
        labels: &LabelSet,
    ) -> Option<Change> {
        let found = demand.found(labels, cluster.names());
        let mut instead = found.filter(|_| !demand.wanted().is_empty());
        match demand.key.as_str() {
            // The operating system is changed only if the pod names it elsewhere or demands one that does not exist: then it
            // is a mistake.
            label::OS => {
                let named = |found: &&str| self.pod.template.os.as_deref() == Some(*found);
                let runs = |found: &&str| self.images.run_on(found);
                instead = found.filter(|found| named(found) || demand.asks_for_unknown());
                instead = Some(instead.filter(runs)?);
            }
            // An image may support several architectures, so only an unknown name is taken for a mistake.
            label::ARCH if !demand.asks_for_unknown() => instead = None,
            // Nodes for Linux pods have no Windows build.
            label::WINDOWS_BUILD if self.os == LINUX && self.images.run_on(LINUX) => {
                instead = None;
            }
            label::WINDOWS_BUILD => {
                let host: Build = instead?.parse().ok()?;
                if !self.images.run_on_build(host) {
                    return None;
                }
            }
            _ => {}
        }
        let (key, instead) = (demand.key.clone(), instead.map(str::to_owned));
        Some(match demand.only_value() {
            Some(wanted) => Change::Select {
                key,
                wanted: wanted.to_owned(),
                instead,
            },
            None => Change::Demand {
                key,
                wanted: demand.text(),
                instead,
            },
        })
    }

    /// Returns the topology keys of the pod's spread constraints and required affinity terms.
    pub(super) fn places(&self) -> Vec<String> {
        let template = &self.pod.template;
        let spread = template.topology_spread_constraints.iter();
        let spread = spread.map(|rule| rule.topology_key.clone());
        let affinity = &template.affinity;
        let near = [&affinity.pod_affinity, &affinity.pod_anti_affinity];
        let near = near.into_iter().flatten().flat_map(|own| &own.required);
        let mut keys: Vec<_> = spread
            .chain(near.map(|term| term.topology_key.clone()))
            .collect();
        keys.sort();
        keys.dedup();
        keys
    }
}
