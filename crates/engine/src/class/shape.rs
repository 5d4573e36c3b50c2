//! The part of a pod template that matters to a single node: where the pod may run regardless of other pods, what it
//! requests, and its images.
//!
//! Classes that differ only in labels and affinity to pods share one shape, and with it the static verdicts
//! ([`super::verdict`]) and the score board ([`crate::cluster`]).

use super::NodeTaint;
use super::preference;
use super::requests::Requests;
use super::toleration::CompiledToleration;
use crate::error::ModelError;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{Container, NodeSelector, PodTemplate, label};
use crate::profile::{ProfileId, Rules};
use crate::reason::{LabelMismatch, Plugin};
use crate::resources::Amounts;
use crate::score::image_locality;
use crate::selector::{NamedNodes, NodeTerm, Requirement, first_mismatch};

/// A port on the node. The wildcard address is the empty symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) ip: Symbol,
    pub(crate) protocol: Symbol,
    pub(crate) port: i32,
}

/// The fields that decide on which nodes a pod fits regardless of other pods, and how a node's free resources are scored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// The profile whose filters and scorers apply.
    pub(crate) profile: ProfileId,
    /// The requests that must be free; `None` if they are all requests, because the profile ignores none.
    demands: Option<Amounts>,
    /// Required node affinity that the profile adds: one of these terms must match too.
    added_terms: Option<Vec<NodeTerm>>,
    pub(crate) requests: Requests,
    pub(crate) host_ports: Vec<HostPort>,
    /// `nodeSelector` as requirements.
    node_selector: Vec<Requirement>,
    /// Required node affinity: `None` where there is none; terms that do not parse are left out.
    node_terms: Option<Vec<NodeTerm>>,
    pub(crate) named_nodes: NamedNodes,
    /// Whether nodes of one node class can get different static verdicts, because a term is about the node's name.
    pub(crate) asks_for_name: bool,
    pub(crate) preferred_nodes: Vec<(i64, NodeTerm)>,
    pub(crate) has_preferred_nodes: bool,
    /// An error in the preferred node affinity; it ends the attempt with an error if more than one node is feasible.
    pub(crate) preference_error: Option<Symbol>,
    pub(crate) tolerations: Vec<CompiledToleration>,
    /// The images of its containers and of its image volumes.
    pub(crate) images: Vec<Symbol>,
    /// The number of its containers, which determines the maximum image score: image volumes raise a node's score, but not
    /// the maximum.
    pub(crate) image_containers: i64,
    pub(crate) os: Option<Symbol>,
}

/// The fields of a shape that the static filters read; pods with equal rules are allowed on the same nodes, whatever they
/// request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeRules {
    profile: ProfileId,
    node_selector: Vec<Requirement>,
    node_terms: Option<Vec<NodeTerm>>,
    named_nodes: NamedNodes,
    tolerations: Vec<CompiledToleration>,
    os: Option<Symbol>,
}

impl Shape {
    pub(super) fn compile(
        template: &PodTemplate,
        (profile, rules): (ProfileId, &Rules),
        names: &mut Interner,
    ) -> Result<Self, ModelError> {
        let requests = Requests::of(template, names)?;
        let demands = demands(&requests.real, rules, names);
        let equals = |(key, value): (&String, &String)| {
            Requirement::equals(names.intern(key), names.intern(value))
        };
        let node_selector: Vec<_> = template.node_selector.iter().map(equals).collect();
        let node_affinity = template.affinity.node_affinity.as_ref();
        let required = node_affinity.and_then(|affinity| affinity.required.as_ref());
        let mut terms = |selector: &NodeSelector| -> Vec<NodeTerm> {
            let terms = selector.node_selector_terms.iter();
            terms
                .filter_map(|term| NodeTerm::compile(term, names))
                .collect()
        };
        let node_terms = required.map(&mut terms);
        let added_terms = rules.added_affinity.required.as_ref().map(&mut terms);
        let own = node_affinity.map_or(&[][..], |affinity| &affinity.preferred);
        let wanted = || own.iter().chain(&rules.added_affinity.preferred);
        // Terms that do not parse are left out here; `preference_error` ends the attempt where kube-scheduler would.
        let preferred_nodes = preference::compile(wanted(), names);
        // kube-scheduler parses preferences only for the scorer, so without that an error has no effect.
        let preference_error = match rules.weight(Plugin::NodeAffinity) {
            0 => None,
            _ => preference::error(own, names),
        };
        // The hostname label differs from node to node, although it usually equals the name, so it counts as a name
        // as well.
        let asks_for_name = template.node_selector.contains_key(label::HOSTNAME)
            || node_terms.iter().flatten().any(NodeTerm::asks_for_name)
            || added_terms.iter().flatten().any(NodeTerm::asks_for_name)
            || preferred_nodes.iter().any(|(_, term)| term.asks_for_name());
        let tolerations = template
            .tolerations
            .iter()
            .map(|t| CompiledToleration::compile(t, names))
            .collect();
        let sidecars = template
            .init_containers
            .iter()
            .filter(|init| init.is_sidecar());
        // kube-scheduler ignores the host ports of init containers that are not sidecars.
        let running = template.containers.iter().chain(sidecars);
        let host_ports = running
            .flat_map(|container| host_ports(container, names))
            .collect();
        let containers = || template.init_containers.iter().chain(&template.containers);
        let mounted = template.image_volumes.iter();
        let images = containers().map(|container| &container.image);
        let images = images
            .chain(mounted)
            .map(|image| names.intern(&image_locality::normalized(image)))
            .collect();
        // Narrowing the nodes is PreFilter's work, which a profile may take off while the filter stays on.
        let named_nodes = match rules.pre_filters_at(Plugin::NodeAffinity) {
            Some(_) => NamedNodes::of(required, names),
            None => NamedNodes::All,
        };
        Ok(Shape {
            profile,
            demands,
            added_terms,
            requests,
            host_ports,
            node_selector,
            node_terms,
            named_nodes,
            asks_for_name,
            preferred_nodes,
            has_preferred_nodes: wanted().next().is_some(),
            preference_error,
            tolerations,
            images,
            image_containers: containers().count() as i64,
            os: template
                .os
                .as_deref()
                .filter(|os| !os.is_empty())
                .map(|os| names.intern(os)),
        })
    }

    /// Returns the fields that the static filters read.
    pub(crate) fn node_rules(&self) -> NodeRules {
        NodeRules {
            profile: self.profile,
            node_selector: self.node_selector.clone(),
            node_terms: self.node_terms.clone(),
            named_nodes: self.named_nodes.clone(),
            tolerations: self.tolerations.clone(),
            os: self.os,
        }
    }

    /// Returns whether the profile's added node affinity allows a node.
    pub(crate) fn profile_allows(&self, labels: &LabelSet, name: Symbol, names: &Interner) -> bool {
        let terms = self.added_terms.as_ref();
        terms.is_none_or(|terms| terms.iter().any(|term| term.matches(labels, name, names)))
    }

    /// Returns the requests that must be free on a node.
    pub(crate) fn demands(&self) -> &Amounts {
        self.demands.as_ref().unwrap_or(&self.requests.real)
    }

    /// Returns whether the pod tolerates a taint.
    pub(crate) fn tolerates(&self, taint: NodeTaint) -> bool {
        self.tolerations
            .iter()
            .any(|toleration| toleration.tolerates(taint))
    }

    /// Returns the label because of which a node is refused, if a single demand decides.
    pub(crate) fn mismatch(&self, labels: &LabelSet, names: &Interner) -> Option<LabelMismatch> {
        // With several terms no single label is to blame, so nothing is reported then.
        first_mismatch(self.node_selector.iter(), labels, names).or_else(|| {
            match self.node_terms.as_deref() {
                Some([term]) => first_mismatch(term.demands().iter(), labels, names),
                _ => None,
            }
        })
    }

    /// Returns the label keys of required node affinity with several terms, any of which may match; none if there is one term.
    pub(crate) fn alternative_keys(&self) -> impl Iterator<Item = Symbol> {
        let terms = self.node_terms.as_deref().unwrap_or_default();
        let alternatives = if terms.len() > 1 { terms } else { &[] };
        alternatives.iter().flat_map(NodeTerm::keys)
    }

    /// Returns whether required node affinity has several terms, any of which may match.
    pub(crate) fn has_alternatives(&self) -> bool {
        self.node_terms
            .as_ref()
            .is_some_and(|terms| terms.len() > 1)
    }

    /// Returns whether node selector or required node affinity is about one of these labels.
    pub(crate) fn selects_by(&self, keys: &[Symbol]) -> bool {
        let selector = self.node_selector.iter().map(Requirement::key);
        let terms = self.node_terms.iter().flatten().flat_map(NodeTerm::keys);
        selector.chain(terms).any(|key| keys.contains(&key))
    }

    /// Returns whether node selector and required node affinity match labels, whatever the values of the labels `open` are.
    pub(crate) fn selects_beside(
        &self,
        open: &[Symbol],
        labels: &LabelSet,
        names: &Interner,
    ) -> bool {
        let is_met = |own: &Requirement| open.contains(&own.key()) || own.matches(labels, names);
        self.node_selector.iter().all(is_met)
            && self.node_terms.as_ref().is_none_or(|terms| {
                let mut terms = terms.iter();
                terms.any(|term| term.demands().iter().all(is_met))
            })
    }

    /// Returns whether node selector and required node affinity match a node (component-helpers `GetRequiredNodeAffinity`).
    pub(crate) fn selects(&self, labels: &LabelSet, name: Symbol, names: &Interner) -> bool {
        self.node_selector
            .iter()
            .all(|requirement| requirement.matches(labels, names))
            && self
                .node_terms
                .as_ref()
                .is_none_or(|terms| terms.iter().any(|term| term.matches(labels, name, names)))
    }
}

/// Returns the requests that the profile's filter checks; `None` if it checks all of them.
fn demands(requests: &Amounts, rules: &Rules, names: &Interner) -> Option<Amounts> {
    let ignored = |(name, _): &(Symbol, i64)| rules.ignores(names.text(*name));
    if !requests.scalars.iter().any(ignored) {
        return None;
    }
    let mut demands = requests.clone();
    demands.scalars.retain(|scalar| !ignored(scalar));
    Some(demands)
}

fn host_ports(container: &Container, names: &mut Interner) -> Vec<HostPort> {
    let ports = container.ports.iter().filter(|port| port.host_port > 0);
    ports
        .map(|port| HostPort {
            // Both mean every address of the node.
            ip: if port.host_ip == "0.0.0.0" {
                Symbol::EMPTY
            } else {
                names.intern(&port.host_ip)
            },
            protocol: names.intern(if port.protocol.is_empty() {
                "TCP"
            } else {
                &port.protocol
            }),
            port: port.host_port,
        })
        .collect()
}
