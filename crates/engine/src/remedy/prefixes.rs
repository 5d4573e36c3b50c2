//! Prefix delegation: more addresses for pods on the same Windows nodes.
//!
//! A node keeps its single addresses as long as it lives, so the setting helps only new nodes: an existing node has to be
//! replaced. The model therefore gives the node the addresses that its successor would have.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Change;
use crate::cluster::{Cluster, NodeId};
use crate::model::{Quantity, label};
use crate::provision::NodeTemplate;

/// The resource that counts addresses of Windows pods.
pub(super) const ADDRESSES: &str = "vpc.amazonaws.com/PrivateIPv4Address";

/// The number of addresses for Windows pods that nodes of each instance type have with prefix delegation. Empty if prefix
/// delegation would not help, or nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixAddresses {
    by_type: BTreeMap<String, i64>,
    is_enabled: bool,
}

impl FromIterator<(String, i64)> for PrefixAddresses {
    fn from_iter<I: IntoIterator<Item = (String, i64)>>(all: I) -> Self {
        PrefixAddresses {
            by_type: all.into_iter().collect(),
            is_enabled: false,
        }
    }
}

/// The effect of prefix delegation on one machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixGain {
    /// Whether prefix delegation is enabled already, so that only the node has to be replaced.
    pub is_enabled: bool,
    /// The node that has to be replaced, if it exists already.
    pub node: Option<String>,
    /// Instance type.
    pub instance_type: String,
    /// The present number of pods with an address, capped at the kubelet's maximum of pods.
    pub from: i64,
    /// The number with prefix delegation, capped likewise.
    pub to: i64,
}

impl PrefixAddresses {
    /// Returns the numbers for a cluster where prefix delegation is enabled already: nodes that are older have to be replaced.
    pub fn enabled(self) -> Self {
        PrefixAddresses {
            is_enabled: true,
            ..self
        }
    }

    /// Returns whether prefix delegation may be proposed.
    pub(super) fn is_known(&self) -> bool {
        !self.by_type.is_empty()
    }

    pub(super) fn of(&self, instance_type: &str) -> Option<i64> {
        self.by_type.get(instance_type).copied()
    }

    /// Sets the addresses of a pool's instance types to those with prefixes.
    pub(super) fn apply_to_pool(&self, template: &mut NodeTemplate) {
        let types = template.instance_types.iter_mut();
        for kind in types.chain(&mut template.for_sale) {
            let more = self.of(&kind.name).map(Quantity::from_units);
            let now = kind.allocatable.get(ADDRESSES);
            if let (Some(more), Some(now)) = (more, now)
                && more > *now
            {
                let kind = Arc::make_mut(kind);
                // Pools' limits count capacity and pods count allocatable, so both have to know the addresses.
                for amounts in [&mut kind.allocatable, &mut kind.capacity] {
                    amounts.insert(ADDRESSES.to_owned(), more);
                }
            }
        }
    }

    /// Returns the effect of prefix delegation on a machine that a pool would buy; `pools` are the unchanged ones.
    pub(super) fn of_machine(
        &self,
        pools: &[NodeTemplate],
        pool: &str,
        machine: &str,
    ) -> Option<PrefixGain> {
        let template = pools.iter().find(|template| template.pool == pool)?;
        let types = template.instance_types.iter().chain(&template.for_sale);
        let kind = types.into_iter().find(|kind| kind.name == machine)?;
        let pods = kind
            .allocatable
            // Addresses beyond the kubelet's maximum of pods are of no use.
            .get("pods")
            .map_or(i64::MAX, |pods| pods.value());
        Some(PrefixGain {
            is_enabled: self.is_enabled,
            node: None,
            instance_type: machine.to_owned(),
            from: kind.allocatable.get(ADDRESSES)?.value().min(pods),
            to: self.of(machine)?.min(pods),
        })
    }
}

impl Cluster {
    /// Sets the addresses of every Windows node to those of its successor with prefix delegation, until the open checkpoint
    /// is rolled back.
    pub(super) fn delegate_prefixes(&mut self, prefixes: &PrefixAddresses) {
        let nodes: Vec<NodeId> = self.nodes().collect();
        for node in nodes {
            if let Some(PrefixGain { from, to, .. }) = self.delegated(node, prefixes)
                && to > from
            {
                self.offer(node, ADDRESSES, to);
            }
        }
    }

    /// Returns the effect of prefix delegation on the successor of a Windows node; `None` for other nodes.
    pub(super) fn delegated(&self, node: NodeId, prefixes: &PrefixAddresses) -> Option<PrefixGain> {
        let fixed = &self.at(node).fixed;
        let kind = self.names().find(label::INSTANCE_TYPE)?;
        let kind = self.text(fixed.labels.value(kind)?);
        let addresses = self.names().find(ADDRESSES)?;
        // Only Windows nodes with the VPC resource controller advertise the resource.
        if !fixed.allocatable.knows(addresses) {
            return None;
        }
        Some(PrefixGain {
            is_enabled: prefixes.is_enabled,
            node: Some(self.node_name(node).to_owned()),
            instance_type: kind.to_owned(),
            from: fixed
                .allocatable
                .amount(addresses)
                .min(fixed.allocatable.pods),
            to: prefixes.of(kind)?.min(fixed.allocatable.pods),
        })
    }
}

impl Change {
    /// Returns the change with its effect on the chosen machine.
    pub(super) fn with_addresses(self, delegated: Option<PrefixGain>) -> Change {
        match self {
            Change::DelegatePrefixes { .. } => Change::DelegatePrefixes { on: delegated },
            other => other,
        }
    }
}
