//! What a node sees of a pod without regard to other pods: where it may go by itself, what it takes, which images it
//! brings.
//!
//! Many classes, told apart by their own labels only, share one shape, and with it the static verdicts ([`super::verdict`])
//! and the score board ([`crate::cluster`]).

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

/// The part of a pod template that decides where it fits by itself and how good a node's room is for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Which filters and scorers decide.
    pub(crate) profile: ProfileId,
    /// What must be free, where the profile leaves some resources out.
    demands: Option<Amounts>,
    /// Node affinity that the profile adds: terms of which one must match, too.
    added_terms: Option<Vec<NodeTerm>>,
    pub(crate) requests: Requests,
    pub(crate) host_ports: Vec<HostPort>,
    /// `nodeSelector`, as requirements.
    node_selector: Vec<Requirement>,
    /// Required node affinity: `None` where there is none; terms that do not parse are left out.
    node_terms: Option<Vec<NodeTerm>>,
    pub(crate) named_nodes: NamedNodes,
    /// Whether nodes of one node class can get different static answers.
    pub(crate) asks_for_name: bool,
    pub(crate) preferred_nodes: Vec<(i64, NodeTerm)>,
    pub(crate) has_preferred_nodes: bool,
    /// Why nodes cannot be told apart by preference, which ends the attempt where there is a choice.
    pub(crate) preference_error: Option<Symbol>,
    pub(crate) tolerations: Vec<CompiledToleration>,
    /// Those of its containers and those that it mounts.
    pub(crate) images: Vec<Symbol>,
    /// How many of its containers there are: mounted images add to what a node gets, not to the most that it can get.
    pub(crate) image_containers: i64,
    pub(crate) os: Option<Symbol>,
}

/// What of a shape the static filters look at: pods that agree in it are let on the same nodes, however large they are.
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
        let preferred_nodes = preference::compile(wanted(), names);
        let preference_error = match rules.weight(Plugin::NodeAffinity) {
            0 => None,
            _ => preference::error(own, names),
        };
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

    /// What the static filters look at.
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

    /// Whether a node is one that the profile lets every pod on.
    pub(crate) fn is_let_on(&self, labels: &LabelSet, name: Symbol, names: &Interner) -> bool {
        let terms = self.added_terms.as_ref();
        terms.is_none_or(|terms| terms.iter().any(|term| term.matches(labels, name, names)))
    }

    /// What must be free on a node.
    pub(crate) fn demands(&self) -> &Amounts {
        self.demands.as_ref().unwrap_or(&self.requests.real)
    }

    /// Whether the pod tolerates a taint.
    pub(crate) fn tolerates(&self, taint: NodeTaint) -> bool {
        self.tolerations
            .iter()
            .any(|toleration| toleration.tolerates(taint))
    }

    /// The label for which a node is refused, where one demand alone decides.
    pub(crate) fn mismatch(&self, labels: &LabelSet, names: &Interner) -> Option<LabelMismatch> {
        first_mismatch(self.node_selector.iter(), labels, names).or_else(|| {
            match self.node_terms.as_deref() {
                Some([term]) => first_mismatch(term.demands().iter(), labels, names),
                _ => None,
            }
        })
    }

    /// Node selector and required node affinity together (component-helpers `GetRequiredNodeAffinity`).
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

/// The requests that the profile looks at, unless it looks at all.
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
