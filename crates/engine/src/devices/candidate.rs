//! The devices that a search chose for a claim on one node, and the allocation that is written to the claim's status.

use super::capacity::Portions;
use super::object::{Claim, DeviceId, Slice, UsableNodes};
use super::{Failure, Key};
use crate::intern::Symbol;
use crate::model::{
    AllocatedDevice, ClaimAllocation, DeviceNodes, DeviceSpec, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, Operator,
};
use crate::selector::Site;

/// The devices chosen for one claim on one node, in the order of its requests.
pub(crate) struct CandidateAllocation<'a> {
    pub(crate) key: Key,
    pub(crate) devices: Vec<CandidateDevice<'a>>,
}

/// A device that was chosen for a request.
#[derive(Clone)]
pub(crate) struct CandidateDevice<'a> {
    pub(crate) request: &'a str,
    /// The name of the chosen alternative; empty if the request has only one form.
    pub(crate) alternative: &'a str,
    pub(super) slice: &'a Slice,
    pub(super) index: usize,
    pub(super) admin_access: bool,
    pub(super) portions: Option<Portions>,
}

impl<'a> CandidateDevice<'a> {
    pub(super) fn device(&self) -> &'a DeviceSpec {
        &self.slice.devices[self.index]
    }

    pub(super) fn id(&self) -> DeviceId {
        self.slice.id(self.index)
    }

    fn nodes(&self) -> &'a DeviceNodes {
        match self.slice.reach {
            UsableNodes::PerDevice => &self.device().nodes,
            _ => &self.slice.nodes,
        }
    }

    fn request_name(&self) -> String {
        match self.alternative {
            "" => self.request.to_owned(),
            alternative => format!("{}/{alternative}", self.request),
        }
    }
}

impl CandidateAllocation<'_> {
    /// Returns the allocation that is written to the claim.
    pub(crate) fn allocation(&self, site: Site<'_>) -> Result<ClaimAllocation, Failure> {
        let text = |symbol: Symbol| site.names.text(symbol).to_owned();
        let allocated = |candidate: &CandidateDevice<'_>| AllocatedDevice {
            request: candidate.request_name(),
            driver: text(candidate.slice.driver),
            pool: text(candidate.slice.pool),
            device: candidate.device().name.clone(),
            admin_access: candidate.admin_access.then_some(true),
            // The caller generates the ID when it writes the allocation.
            share_id: None,
            consumed_capacity: candidate.portions.as_ref().map(|portions| {
                let amounts = portions.0.iter();
                amounts
                    .map(|(name, amount)| (name.to_string(), *amount))
                    .collect()
            }),
        };
        Ok(ClaimAllocation {
            node_selector: self.node_selector(site)?,
            devices: self.devices.iter().map(allocated).collect(),
        })
    }

    /// Returns the selector of the nodes from which all devices can be used; `None` if that is every node.
    fn node_selector(&self, site: Site<'_>) -> Result<Option<NodeSelector>, Failure> {
        let mut term = NodeSelectorTerm::default();
        for candidate in &self.devices {
            let nodes = candidate.nodes();
            // A device of one node restricts the whole allocation to that node, so other selectors no longer matter.
            if matches!(nodes, DeviceNodes::Node(_)) || candidate.device().binds_to_node {
                let name = NodeSelectorRequirement {
                    key: "metadata.name".to_owned(),
                    operator: Operator::In,
                    values: vec![site.names.text(site.name).to_owned()],
                };
                return Ok(Some(only(NodeSelectorTerm {
                    match_fields: vec![name],
                    ..NodeSelectorTerm::default()
                })));
            }
            let DeviceNodes::Selected(selector) = nodes else {
                continue;
            };
            match selector.node_selector_terms.as_slice() {
                [] => {}
                [own] => {
                    add_new(&mut term.match_fields, &own.match_fields);
                    add_new(&mut term.match_expressions, &own.match_expressions);
                }
                terms => {
                    return Err(Failure::Error(format!(
                        "create NodeSelector for claim {}: unsupported ResourceSlice.NodeSelector with {} terms",
                        site.names.text(self.key.1),
                        terms.len()
                    )));
                }
            }
        }
        let is_anything = !term.match_fields.is_empty() || !term.match_expressions.is_empty();
        Ok(is_anything.then(|| only(term)))
    }

    /// Returns the score of the chosen alternatives: earlier alternatives of a list score higher (kube-scheduler:
    /// DynamicResources' `computeScore`).
    pub(crate) fn score(&self, claim: &Claim) -> i64 {
        // Kubernetes' `FirstAvailableDeviceRequestMaxSize`, so that the last alternative still scores.
        const MOST_ALTERNATIVES: i64 = 8;
        let lists = claim.requests.iter().filter(|request| request.is_list);
        let scores = lists.flat_map(|request| {
            let alternatives = request.alternatives.iter().zip(0..);
            alternatives.filter_map(|(own, index)| {
                let is_used = |candidate: &CandidateDevice<'_>| {
                    *candidate.request == *request.name && *candidate.alternative == *own.name
                };
                self.devices
                    .iter()
                    .any(is_used)
                    .then_some(MOST_ALTERNATIVES - index)
            })
        });
        scores.sum()
    }
}

fn only(term: NodeSelectorTerm) -> NodeSelector {
    NodeSelector {
        node_selector_terms: vec![term],
    }
}

/// Adds the requirements that the list lacks. Requirements that differ only in the order of their values count as
/// equal.
fn add_new(to: &mut Vec<NodeSelectorRequirement>, from: &[NodeSelectorRequirement]) {
    let values = |requirement: &NodeSelectorRequirement| {
        let mut values = requirement.values.clone();
        values.sort_unstable();
        values.dedup();
        values
    };
    for requirement in from {
        let is_same = |own: &NodeSelectorRequirement| {
            own.key == requirement.key
                && own.operator == requirement.operator
                && values(own) == values(requirement)
        };
        if !to.iter().any(is_same) {
            to.push(requirement.clone());
        }
    }
}
