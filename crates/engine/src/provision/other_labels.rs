//! Decides whether another value of the labels that a pool leaves open could cure the pool's refusal of a pod.

use super::PoolReason;
use super::catalog::Catalog;
use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::reason::Reason;

impl Catalog {
    /// Returns whether the pool, which refused a class of pods for this reason, might take them on a node with other values of the
    /// labels that it leaves open. It errs on the side of `true`.
    pub(super) fn may_take_with_other_labels(
        &self,
        class: PodClassId,
        reason: &PoolReason,
        cluster: &Cluster,
    ) -> bool {
        if self.undecided.is_empty() {
            return false;
        }
        let shape = &cluster.class(class).shape;
        // Terms of which any may match can ask for other machines together with other labels.
        let other_room = self.daemons_select_open_labels || shape.has_alternatives();
        match reason {
            PoolReason::Topology { .. }
            | PoolReason::MinValues { .. }
            | PoolReason::MoreCombinations { .. } => true,
            PoolReason::Incompatible { reason, .. } => match reason {
                Reason::NotNamed | Reason::UntoleratedTaint { .. } | Reason::DevicesTaken => false,
                Reason::PortTaken { .. } => other_room,
                Reason::NodeAffinity { .. } => self.options.iter().any(|option| {
                    shape.selects_beside(&self.undecided, &option.labels, cluster.names())
                }),
                _ => true,
            },
            PoolReason::NoInstanceTypes
            | PoolReason::TooLarge { .. }
            | PoolReason::LimitReached { .. }
            | PoolReason::NoOffering
            | PoolReason::ReservationHeld => other_room,
        }
    }
}

/// Returns whether one of the pools that refused a class of pods might take them with other labels.
pub(super) fn may_help<'a>(
    class: PodClassId,
    refusals: impl IntoIterator<Item = &'a super::PoolRefusal>,
    catalogs: &[Catalog],
    cluster: &Cluster,
) -> bool {
    refusals.into_iter().any(|refusal| {
        let mut own = catalogs.iter().filter(|own| own.pool == refusal.pool);
        own.any(|own| own.may_take_with_other_labels(class, &refusal.reason, cluster))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::open_labels::RequestedLabels;
    use super::super::{InstanceType, NodeTemplate, Offering, PlanRequest, Requirement};
    use super::*;
    use crate::Options;
    use crate::intern::Symbol;
    use crate::model::{
        NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Operator,
        PodTemplate, TaintEffect, label,
    };
    use crate::reason::Plugin;

    const TEAM: &str = "example.com/team";

    /// A pool of one machine in one zone that leaves the label of the team open.
    fn open_pool() -> NodeTemplate {
        let offering = Offering {
            zone: "a".to_owned(),
            capacity_type: "spot".to_owned(),
            available: true,
            ..Offering::default()
        };
        let machine = InstanceType {
            name: "small".to_owned(),
            offerings: vec![offering],
            ..InstanceType::default()
        };
        NodeTemplate {
            requirements: vec![Requirement {
                key: TEAM.to_owned(),
                operator: Operator::Exists,
                ..Requirement::default()
            }],
            instance_types: vec![Arc::new(machine)],
            ..NodeTemplate::default()
        }
    }

    fn term(demands: &[(&str, Operator, &[&str])]) -> NodeSelectorTerm {
        let demand =
            |(key, operator, values): &(&str, Operator, &[&str])| NodeSelectorRequirement {
                key: (*key).to_owned(),
                operator: *operator,
                values: values.iter().map(|value| (*value).to_owned()).collect(),
            };
        NodeSelectorTerm {
            match_expressions: demands.iter().map(demand).collect(),
            ..NodeSelectorTerm::default()
        }
    }

    fn selecting(terms: Vec<NodeSelectorTerm>) -> PodTemplate {
        let mut pod = PodTemplate::default();
        pod.affinity.node_affinity = Some(NodeAffinity {
            required: Some(NodeSelector {
                node_selector_terms: terms,
            }),
            ..NodeAffinity::default()
        });
        pod
    }

    fn may_take(template: &NodeTemplate, pod: &PodTemplate, reason: &PoolReason) -> bool {
        let mut cluster = Cluster::new(Options::default());
        let class = cluster.pod_class(pod).expect("valid");
        let templates = std::slice::from_ref(template);
        let requested = RequestedLabels::of([class].into_iter(), templates, &cluster);
        let request = PlanRequest::default();
        let catalog = Catalog::compile(template, &request, &requested, &mut cluster);
        let catalog = catalog.expect("valid");
        catalog.may_take_with_other_labels(class, reason, &cluster)
    }

    #[test]
    fn other_labels_help_a_pod_that_its_own_labels_keep_away_but_no_other() {
        let refused = PoolReason::Incompatible {
            plugin: Plugin::NodeAffinity,
            reason: Reason::NodeAffinity { mismatch: None },
        };
        let not_a = term(&[
            (TEAM, Operator::In, &["a", "b"]),
            (TEAM, Operator::NotIn, &["a"]),
        ]);
        let elsewhere = term(&[
            (TEAM, Operator::In, &["a", "b"]),
            (label::ZONE, Operator::In, &["x"]),
        ]);
        let pool = open_pool();
        assert!(may_take(&pool, &selecting(vec![not_a.clone()]), &refused));
        assert!(!may_take(
            &pool,
            &selecting(vec![elsewhere.clone()]),
            &refused
        ));
        assert!(may_take(
            &pool,
            &selecting(vec![elsewhere, not_a]),
            &refused
        ));
        let mut closed = pool;
        closed.requirements.clear();
        let anything = PodTemplate::default();
        assert!(!may_take(&closed, &anything, &refused), "no label is open");
    }

    #[test]
    fn other_labels_give_more_room_only_where_they_decide_which_daemons_run() {
        let too_large = PoolReason::TooLarge {
            resource: "cpu".to_owned(),
        };
        let of_a = term(&[(TEAM, Operator::In, &["a"])]);
        let in_zone = term(&[(label::ZONE, Operator::In, &["a"])]);
        let plain = PodTemplate::default();
        let with_daemon = |terms: Vec<NodeSelectorTerm>| NodeTemplate {
            daemons: vec![selecting(terms)],
            ..open_pool()
        };
        assert!(!may_take(&open_pool(), &plain, &too_large));
        assert!(!may_take(
            &with_daemon(vec![in_zone.clone()]),
            &plain,
            &too_large
        ));
        assert!(may_take(
            &with_daemon(vec![of_a.clone()]),
            &plain,
            &too_large
        ));
        // A pod with alternatives may accept another machine with another label.
        let either = selecting(vec![in_zone, of_a]);
        assert!(may_take(&open_pool(), &either, &too_large));
    }

    #[test]
    fn other_labels_do_not_help_against_taints_but_may_keep_pods_apart() {
        let tainted = PoolReason::Incompatible {
            plugin: Plugin::TaintToleration,
            reason: Reason::UntoleratedTaint {
                key: Symbol::EMPTY,
                value: Symbol::EMPTY,
                effect: TaintEffect::NoSchedule,
            },
        };
        let apart = PoolReason::Topology {
            plugin: Plugin::InterPodAffinity,
            reason: Reason::AntiAffinity,
        };
        let plain = PodTemplate::default();
        assert!(!may_take(&open_pool(), &plain, &tainted));
        assert!(may_take(&open_pool(), &plain, &apart));
    }
}
