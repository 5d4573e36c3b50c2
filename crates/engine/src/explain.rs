//! Reasons as text: the one renderer.
//!
//! Invariant: messages equal kube-scheduler's to the letter; `detail` is ours and only ever added after them.

use std::collections::BTreeMap;

use crate::cluster::{Cluster, NodeId};
use crate::intern::Symbol;
use crate::model::TaintEffect;
use crate::preempt::Preemption;
use crate::provision::PoolReason;
use crate::reason::{LabelMismatch, Reason, Refusal};
use crate::schedule::Unschedulable;

/// What DynamicResources says after filtering when a pod claims no devices.
const NO_CLAIMS: &str = "no new claims to deallocate";

impl Cluster {
    /// Upstream's words for a reason, as they appear per node.
    pub fn reason_text(&self, reason: Reason) -> String {
        let fixed = match reason {
            Reason::NotNamed => "node(s) didn't satisfy plugin(s) [NodeAffinity]",
            Reason::Unschedulable => "node(s) were unschedulable",
            Reason::NodeName => "node(s) didn't match the requested node name",
            Reason::UntoleratedTaint { .. } => "node(s) had untolerated taint(s)",
            Reason::NodeAffinity { .. } => "node(s) didn't match Pod's node affinity/selector",
            Reason::OperatingSystem { .. } => "node(s) didn't match Pod's operating system",
            Reason::PortTaken { .. } => {
                "node(s) didn't have free ports for the requested pod ports"
            }
            Reason::TooManyPods { .. } => "Too many pods",
            Reason::Insufficient { resource, .. } => {
                return format!("Insufficient {}", self.text(resource));
            }
            Reason::Spread { .. } => "node(s) didn't match pod topology spread constraints",
            Reason::SpreadKeyMissing { .. } => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
            }
            Reason::Affinity => "node(s) didn't match pod affinity rules",
            Reason::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Reason::ExistingAntiAffinity => {
                "node(s) didn't satisfy existing pods anti-affinity rules"
            }
            Reason::PreemptionNotHelpful => "Preemption is not helpful for scheduling",
            Reason::NoVictims => "No preemption victims found for incoming pod",
        };
        fixed.to_owned()
    }

    /// Our words for a reason, with the data that upstream leaves out.
    pub fn reason_detail(&self, reason: Reason) -> String {
        match reason {
            Reason::UntoleratedTaint { key, value, effect } => {
                let effect = match effect {
                    TaintEffect::NoSchedule => "NoSchedule",
                    TaintEffect::PreferNoSchedule => "PreferNoSchedule",
                    TaintEffect::NoExecute => "NoExecute",
                };
                match self.text(value) {
                    "" => format!("taint {}:{effect} is not tolerated", self.text(key)),
                    value => format!("taint {}={value}:{effect} is not tolerated", self.text(key)),
                }
            }
            Reason::OperatingSystem { wanted, found } => self.mismatch(LabelMismatch {
                key: Symbol::OS,
                wanted,
                found,
            }),
            Reason::NodeAffinity {
                mismatch: Some(mismatch),
            } => self.mismatch(mismatch),
            Reason::PortTaken { port } => format!("host port {port} is taken"),
            Reason::TooManyPods { allowed } => format!("all {allowed} pod slots are taken"),
            Reason::Insufficient {
                resource,
                requested,
                free,
                allocatable,
            } => {
                let unit = match resource {
                    Symbol::CPU => "m",
                    Symbol::MEMORY | Symbol::EPHEMERAL_STORAGE => " bytes",
                    _ => "",
                };
                let name = self.text(resource);
                format!(
                    "{name}: needs {requested}{unit}, {free}{unit} of {allocatable}{unit} are free"
                )
            }
            Reason::Spread {
                key,
                skew,
                max_skew,
            } => {
                format!(
                    "{}: the skew would be {skew}, at most {max_skew} is allowed",
                    self.text(key)
                )
            }
            Reason::SpreadKeyMissing { key } => format!("no label {}", self.text(key)),
            other => self.reason_text(other),
        }
    }

    fn mismatch(&self, mismatch: LabelMismatch) -> String {
        let (key, wanted) = (self.text(mismatch.key), self.text(mismatch.wanted));
        match mismatch.found {
            Some(found) => format!("{key} is {}, the pod needs {wanted}", self.text(found)),
            None => format!("no label {key}, the pod needs {wanted}"),
        }
    }

    /// Our words for why a pool cannot buy for a pod.
    pub fn pool_reason_text(&self, reason: &PoolReason) -> String {
        match reason {
            PoolReason::NoInstanceTypes => {
                "no instance type meets the pool's requirements".to_owned()
            }
            PoolReason::Incompatible { reason, .. } => self.reason_detail(*reason),
            PoolReason::LimitReached {
                resource,
                remaining,
            } => format!("limit reached: {remaining} {resource} left"),
            PoolReason::TooLarge { resource } => {
                format!("{resource}: more than any type offers beside its DaemonSets")
            }
            PoolReason::NoOffering => "every type that would hold the pod is sold out".to_owned(),
            PoolReason::Topology { reason, .. } => self.reason_detail(*reason),
            PoolReason::MinValues { key, wanted, found } => {
                format!("{key}: {found} values would stay possible, the pool demands {wanted}")
            }
        }
    }

    /// The FailedScheduling text without the preemption part.
    pub fn message(&self, refused: &Unschedulable) -> String {
        if self.node_count() == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        if refused.conflict {
            return format!(
                "0/{} nodes are available: pod affinity terms conflict.",
                self.node_count()
            );
        }
        self.counts(&refused.nodes)
    }

    /// The whole FailedScheduling text.
    pub fn message_with_preemption(
        &self,
        refused: &Unschedulable,
        preemption: &Preemption,
    ) -> String {
        let message = self.message(refused);
        match self.preemption_message(preemption) {
            Some(_) if self.node_count() == 0 => message,
            Some(more) => format!("{message} {more}"),
            None => message,
        }
    }

    /// The part of the text that preemption adds; none where evictions make room.
    pub fn preemption_message(&self, preemption: &Preemption) -> Option<String> {
        let why = match preemption {
            Preemption::Evict { .. } => return None,
            Preemption::NotTried => return Some("not found".to_owned()),
            Preemption::PolicyNever => "not eligible due to preemptionPolicy=Never.".to_owned(),
            Preemption::VictimsTerminating => {
                "not eligible due to a terminating pod on the nominated node.".to_owned()
            }
            Preemption::NotHelpful(nodes) => self.counts(nodes),
        };
        Some(format!("{NO_CLAIMS}, preemption: {why}"))
    }

    /// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
    fn counts(&self, nodes: &[(NodeId, Refusal)]) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut known: Vec<(Reason, String)> = Vec::new();
        for reason in nodes.iter().flat_map(|(_, refusal)| refusal.reasons()) {
            let text = match known.iter().find(|(seen, _)| *seen == reason) {
                Some((_, text)) => text.clone(),
                None => {
                    let text = self.reason_text(reason);
                    if known.len() < 16 {
                        known.push((reason, text.clone()));
                    }
                    text
                }
            };
            *counts.entry(text).or_default() += 1;
        }
        // Upstream sorts the finished phrases as text, numbers and all.
        let mut phrases: Vec<_> = counts
            .into_iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        phrases.sort_unstable();
        format!(
            "0/{} nodes are available: {}.",
            self.node_count(),
            phrases.join(", ")
        )
    }
}
