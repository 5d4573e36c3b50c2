//! A pod template, compiled: everything the filters and scorers read, without text.
//!
//! Compiled once per template. What depends on other objects (services, namespaces, other pods) is not in here but in
//! the class's [`crate::topology::View`].

use super::requests::Requests;
use super::toleration::CompiledToleration;
use super::{NodeTaint, PodTerm, SpreadRule};
use crate::error::ModelError;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{Container, PodTemplate};
use crate::score::image_locality;
use crate::selector::{NamedNodes, NodeTerm, Requirement};

/// A port on the node. The wildcard address is the empty symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) ip: Symbol,
    pub(crate) protocol: Symbol,
    pub(crate) port: i32,
}

/// A compiled pod template.
#[derive(Clone, Debug)]
pub(crate) struct PodClass {
    pub(crate) namespace: Symbol,
    pub(crate) labels: LabelSet,
    pub(crate) requests: Requests,
    pub(crate) host_ports: Vec<HostPort>,
    /// `nodeSelector`, as requirements.
    pub(crate) node_selector: Vec<Requirement>,
    /// Required node affinity: `None` where there is none; terms that do not parse are left out.
    pub(crate) node_terms: Option<Vec<NodeTerm>>,
    pub(crate) named_nodes: NamedNodes,
    /// Whether nodes of one node class can get different static answers.
    pub(crate) asks_for_name: bool,
    pub(crate) preferred_nodes: Vec<(i64, NodeTerm)>,
    pub(crate) has_preferred_nodes: bool,
    pub(crate) tolerations: Vec<CompiledToleration>,
    pub(crate) spread: Vec<SpreadRule>,
    pub(crate) affinity: Vec<PodTerm>,
    pub(crate) anti_affinity: Vec<PodTerm>,
    pub(crate) preferred_pods: Vec<PodTerm>,
    pub(crate) images: Vec<Symbol>,
    pub(crate) image_containers: i64,
    pub(crate) os: Option<Symbol>,
    pub(crate) priority: i32,
}

impl PodClass {
    pub(crate) fn compile(
        template: &PodTemplate,
        names: &mut Interner,
    ) -> Result<Self, ModelError> {
        let namespace = names.intern(&template.namespace);
        let labels = LabelSet::intern(&template.labels, names);
        let requests = Requests::of(template, names)?;
        let equals = |(key, value): (&String, &String)| {
            Requirement::equals(names.intern(key), names.intern(value))
        };
        let node_selector: Vec<_> = template.node_selector.iter().map(equals).collect();
        let node_affinity = template.affinity.node_affinity.as_ref();
        let required = node_affinity.and_then(|affinity| affinity.required.as_ref());
        let node_terms: Option<Vec<_>> = required.map(|selector| {
            selector
                .node_selector_terms
                .iter()
                .filter_map(|term| NodeTerm::compile(term, names))
                .collect()
        });
        let wanted = node_affinity.map_or(&[][..], |affinity| &affinity.preferred);
        let preferred_nodes: Vec<_> = wanted
            .iter()
            .filter(|term| term.weight != 0)
            .filter_map(|term| {
                Some((
                    i64::from(term.weight),
                    NodeTerm::compile(&term.preference, names)?,
                ))
            })
            .collect();
        let by_name = template
            .node_selector
            .contains_key(crate::model::label::HOSTNAME)
            || node_terms.iter().flatten().any(NodeTerm::asks_for_name)
            || preferred_nodes.iter().any(|(_, term)| term.asks_for_name());
        let mut terms = PodTerms::default();
        terms.compile(template, namespace, names);
        let containers = || template.init_containers.iter().chain(&template.containers);
        Ok(PodClass {
            namespace,
            requests,
            host_ports: containers()
                .filter(|container| {
                    container.is_sidecar()
                        || template
                            .containers
                            .iter()
                            .any(|c| std::ptr::eq(c, *container))
                })
                .flat_map(|container| host_ports(container, names))
                .collect(),
            node_selector,
            node_terms,
            named_nodes: NamedNodes::of(required, names),
            asks_for_name: by_name,
            preferred_nodes,
            has_preferred_nodes: !wanted.is_empty(),
            tolerations: template
                .tolerations
                .iter()
                .map(|t| CompiledToleration::compile(t, names))
                .collect(),
            spread: template
                .topology_spread_constraints
                .iter()
                .map(|constraint| SpreadRule::compile(constraint, &labels, names))
                .collect(),
            affinity: terms.affinity,
            anti_affinity: terms.anti_affinity,
            preferred_pods: terms.preferred,
            images: containers()
                .map(|container| names.intern(&image_locality::normalized(&container.image)))
                .collect(),
            image_containers: containers().count() as i64,
            os: template
                .os
                .as_deref()
                .filter(|os| !os.is_empty())
                .map(|os| names.intern(os)),
            priority: template.priority,
            labels,
        })
    }

    /// Whether the pod tolerates a taint.
    pub(crate) fn tolerates(&self, taint: NodeTaint) -> bool {
        self.tolerations
            .iter()
            .any(|toleration| toleration.tolerates(taint))
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

    /// Whether placing it can matter to other pods' topology, or theirs to it.
    pub(crate) fn has_pod_terms(&self) -> bool {
        !(self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.preferred_pods.is_empty())
    }
}

#[derive(Default)]
struct PodTerms {
    affinity: Vec<PodTerm>,
    anti_affinity: Vec<PodTerm>,
    preferred: Vec<PodTerm>,
}

impl PodTerms {
    fn compile(&mut self, template: &PodTemplate, own: Symbol, names: &mut Interner) {
        if let Some(affinity) = &template.affinity.pod_affinity {
            self.affinity.extend(
                affinity
                    .required
                    .iter()
                    .map(|term| PodTerm::compile(term, own, 1, names)),
            );
            self.preferred
                .extend(affinity.preferred.iter().map(|weighted| {
                    PodTerm::compile(
                        &weighted.pod_affinity_term,
                        own,
                        i64::from(weighted.weight),
                        names,
                    )
                }));
        }
        if let Some(affinity) = &template.affinity.pod_anti_affinity {
            self.anti_affinity.extend(
                affinity
                    .required
                    .iter()
                    .map(|term| PodTerm::compile(term, own, 1, names)),
            );
            self.preferred
                .extend(affinity.preferred.iter().map(|weighted| {
                    PodTerm::compile(
                        &weighted.pod_affinity_term,
                        own,
                        -i64::from(weighted.weight),
                        names,
                    )
                }));
        }
    }
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
