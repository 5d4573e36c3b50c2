//! Compiled topology spread constraints.
//!
//! A pod without constraints of its own gets kube-scheduler's default constraints once its services and owner are
//! known: see [`SpreadRule::defaults`].

use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{InclusionPolicy, TopologySpreadConstraint, WhenUnsatisfiable};
use crate::selector::{LabelQuery, Requirement};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SpreadRule {
    pub(crate) key: Symbol,
    pub(crate) max_skew: i64,
    /// The minimum number of domains, at least 1.
    pub(crate) min_domains: i64,
    pub(crate) query: LabelQuery,
    pub(crate) honor_affinity: bool,
    pub(crate) honor_taints: bool,
    pub(crate) hard: bool,
}

impl SpreadRule {
    /// Compiles one constraint. For each key of `matchLabelKeys` that the pod has, the pod's value is added to the
    /// selector.
    pub(crate) fn compile(
        constraint: &TopologySpreadConstraint,
        pod: &LabelSet,
        names: &mut Interner,
    ) -> Self {
        let mut query = LabelQuery::compile(constraint.label_selector.as_ref(), names);
        let mut more = Vec::new();
        // A key that the pod does not have is ignored (Kubernetes: `matchLabelKeys`).
        for key in &constraint.match_label_keys {
            let key = names.intern(key);
            if let Some(value) = pod.value(key) {
                more.push(Requirement::equals(key, value));
            }
        }
        if !more.is_empty() {
            query.and(more);
        }
        SpreadRule {
            key: names.intern(&constraint.topology_key),
            max_skew: i64::from(constraint.max_skew),
            min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
            query,
            honor_affinity: constraint.node_affinity_policy != Some(InclusionPolicy::Ignore),
            // Unset means `Ignore` for taints and `Honor` for affinity.
            honor_taints: constraint.node_taints_policy == Some(InclusionPolicy::Honor),
            hard: constraint.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule,
        }
    }

    /// Returns kube-scheduler's default constraints for pods that a service or workload selects: `ScheduleAnyway`,
    /// max skew 3 over hosts and 5 over zones.
    pub(crate) fn defaults(query: &LabelQuery) -> Vec<Self> {
        let rule = |key, max_skew| SpreadRule {
            key,
            max_skew,
            min_domains: 1,
            query: query.clone(),
            honor_affinity: true,
            honor_taints: false,
            hard: false,
        };
        vec![rule(Symbol::HOSTNAME, 3), rule(Symbol::ZONE, 5)]
    }
}
