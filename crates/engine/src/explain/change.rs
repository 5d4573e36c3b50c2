//! Texts for the changes to a pod, a node or a pool that would help.

use std::fmt;

use crate::amounts::{at_least, at_most, between};
use crate::model::Quantity;
use crate::remedy::{Change, PrefixGain, units};

/// The text that tells a user how to enable prefix delegation.
const PREFIX_SWITCH: &str =
    "set enable-windows-prefix-delegation: \"true\" in the ConfigMap kube-system/amazon-vpc-cni";

/// Formats a quantity of a resource.
pub(super) fn format_quantity(resource: &str, amount: Quantity) -> String {
    at_least(resource, units(resource, amount))
}

/// Returns, for the name of a pool, the object that a user has to change to change the pool's nodes.
type Owner<'a> = &'a dyn Fn(&str) -> String;

/// A change, and the function that names the owner of a pool.
struct DescribedChange<'a>(&'a Change, Owner<'a>);

impl Change {
    /// Returns the text of a change. `owner` returns, for the name of a pool, the object to change; that is another object than the
    /// NodePool if the NodePool is a copy of it.
    pub fn text(&self, owner: impl Fn(&str) -> String) -> String {
        DescribedChange(self, &owner).to_string()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DescribedChange(self, &|pool| format!("NodePool {pool}")).fmt(f)
    }
}

impl fmt::Display for DescribedChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DescribedChange(change, owner) = self;
        match change {
            Change::Tolerate { key, value, effect } if value.is_empty() => {
                write!(f, "tolerate the taint {key}:{}", effect.as_str())
            }
            Change::Tolerate { key, value, effect } => {
                write!(f, "tolerate the taint {key}={value}:{}", effect.as_str())
            }
            Change::Select {
                key,
                wanted,
                instead: Some(value),
            } if wanted.is_empty() => write!(f, "ask for a node with {key}={value}"),
            Change::Select {
                key,
                wanted,
                instead: Some(value),
            } => write!(f, "ask for {key}={value} instead of {wanted}"),
            Change::Select {
                key,
                wanted,
                instead: None,
            } => {
                write!(f, "drop the demand for a node with {key}={wanted}")
            }
            Change::Demand {
                key,
                wanted,
                instead: Some(value),
            } => write!(f, "ask for {key}={value} instead of {key}{wanted}"),
            Change::Demand {
                key,
                wanted,
                instead: None,
            } => {
                write!(f, "drop the demand for a node with {key}{wanted}")
            }
            Change::DropNodeAffinity => f.write_str("drop the required node affinity"),
            Change::Request {
                resource, to: 0, ..
            } => write!(f, "ask for no {resource}"),
            Change::Request { resource, from, to } => write!(
                f,
                "ask for {} less {resource} ({} instead of {})",
                between(resource, *from, *to),
                at_most(resource, *to),
                at_least(resource, *from)
            ),
            Change::DropHostPort { port } => write!(f, "give up host port {port}"),
            Change::RaiseSkew { key, to } => write!(f, "raise maxSkew on {key} to {to}"),
            Change::SpreadAnyway { key } => {
                write!(f, "spread over {key} with ScheduleAnyway")
            }
            Change::DropAffinity { term: None } => {
                f.write_str("drop the required affinity to other pods")
            }
            Change::DropAffinity { term: Some(term) } => {
                write!(f, "drop the required affinity to {term}")
            }
            Change::DropAntiAffinity { term: None } => {
                f.write_str("drop the required anti-affinity to other pods")
            }
            Change::DropAntiAffinity { term: Some(term) } => {
                write!(f, "drop the required anti-affinity to {term}")
            }
            Change::Ungate { gates } => {
                write!(f, "remove the scheduling gates {}", gates.join(", "))
            }
            Change::Uncordon { node } => write!(f, "uncordon node {node}"),
            Change::RaiseLimit {
                pool,
                resource,
                by: Some(by),
            } => write!(
                f,
                "raise the {resource} limit of {} by {}",
                owner(pool),
                format_quantity(resource, *by)
            ),
            Change::RaiseLimit { pool, resource, .. } => {
                write!(f, "raise the {resource} limit of {}", owner(pool))
            }
            Change::DelegatePrefixes {
                on:
                    Some(PrefixGain {
                        is_enabled: true,
                        node: Some(node),
                        instance_type,
                        from,
                        to,
                    }),
            } => write!(
                f,
                "replace node {node}, which is older than the setting of prefix delegation: {instance_type} then has addresses for {to} pods instead of {from}"
            ),
            Change::DelegatePrefixes { on } => {
                f.write_str(PREFIX_SWITCH)?;
                let Some(on) = on else { return Ok(()) };
                let (kind, from, to) = (&on.instance_type, on.from, on.to);
                match &on.node {
                    Some(node) => write!(
                        f,
                        " and replace node {node}: {kind} then has addresses for {to} pods instead of {from}"
                    ),
                    None => write!(
                        f,
                        ": {kind} then has addresses for {to} pods instead of {from}"
                    ),
                }
            }
            Change::Allow {
                pool,
                key,
                value,
                instead_of,
            } => {
                write!(f, "let {} buy {key}={value}", owner(pool))?;
                match instead_of {
                    Some(wrong) => write!(f, " instead of {wrong}"),
                    None => Ok(()),
                }
            }
            Change::Label { pool, key, value } => {
                write!(f, "give nodes of {} the label {key}={value}", owner(pool))
            }
        }
    }
}
