//! Static verdicts: the results of the static filters and scores for a pod shape and a node class, which do not
//! depend on load.
//!
//! The verdicts of a shape have a bit set over node classes ([`ShapeVerdicts::fits`]), so that one bit rules a node
//! out.

use fixedbitset::FixedBitSet;

use super::{NodeClass, NodeClassId, NodeTaint, Shape};
use crate::filter;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::profile::Rules;
use crate::reason::{Plugin, Reason};
use crate::score;

/// The properties of a node that static filters and scores read.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) name: Symbol,
    pub(crate) labels: &'a LabelSet,
    pub(crate) taints: &'a [NodeTaint],
    pub(crate) unschedulable: bool,
}

impl<'a> Target<'a> {
    /// Returns the target that stands for every node of a class. It has no name, so it is not usable for terms
    /// about node names.
    pub(crate) fn any(class: &'a NodeClass) -> Self {
        Target {
            name: Symbol::EMPTY,
            labels: &class.labels,
            taints: &class.taints,
            unschedulable: class.unschedulable,
        }
    }
}

/// The settings that static filters depend on besides pod and node.
#[derive(Clone, Copy)]
pub(crate) struct StaticRules<'a> {
    /// The rules of the pod's profile.
    pub(crate) rules: &'a Rules,
    /// Whether `spec.os.name` restricts the node.
    pub(crate) os_filter: bool,
}

impl StaticRules<'_> {
    /// Returns why a static filter refuses the node; `None` if the filter accepts the node or is off.
    pub(crate) fn ask(
        self,
        plugin: Plugin,
        pod: &Shape,
        target: Target<'_>,
        names: &Interner,
    ) -> Option<Reason> {
        match plugin {
            // In no profile, so it is asked before the check whether the profile has the plugin.
            Plugin::OperatingSystem if self.os_filter => {
                filter::operating_system::check(pod, target.labels)
            }
            off if !self.rules.filters(off) => None,
            Plugin::NodeUnschedulable => {
                filter::node_unschedulable::check(pod, target.unschedulable)
            }
            Plugin::TaintToleration => filter::taint_toleration::check(pod, target.taints),
            Plugin::NodeAffinity => {
                filter::node_affinity::check(pod, target.labels, target.name, names)
            }
            _ => None,
        }
    }
}

/// The static filter and score results for one shape and one node class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaticVerdict {
    pub(crate) refusal: Option<(Plugin, Reason)>,
    /// The number of untolerated PreferNoSchedule taints.
    pub(crate) soft_taints: i64,
    /// The sum of the weights of the preferred node terms that match.
    pub(crate) preferred: i64,
}

impl StaticVerdict {
    pub(crate) fn of(
        pod: &Shape,
        target: Target<'_>,
        static_rules: StaticRules<'_>,
        names: &Interner,
    ) -> Self {
        StaticVerdict {
            refusal: refusal(pod, target, static_rules, names),
            soft_taints: score::taint_toleration::raw(pod, target.taints),
            preferred: score::node_affinity::raw(pod, target.labels, target.name, names),
        }
    }
}

/// The static filters, in the order in which the default profile runs them.
const FILTERS: [Plugin; 4] = [
    Plugin::NodeUnschedulable,
    Plugin::TaintToleration,
    Plugin::NodeAffinity,
    Plugin::OperatingSystem,
];

fn refusal(
    pod: &Shape,
    target: Target<'_>,
    static_rules: StaticRules<'_>,
    names: &Interner,
) -> Option<(Plugin, Reason)> {
    FILTERS.iter().find_map(|&plugin| {
        let reason = static_rules.ask(plugin, pod, target, names)?;
        Some((plugin, reason))
    })
}

/// All static verdicts of one shape. New node classes are added by [`ShapeVerdicts::extend`].
#[derive(Clone, Debug, Default)]
pub(crate) struct ShapeVerdicts {
    fits: FixedBitSet,
    verdicts: Vec<StaticVerdict>,
}

impl ShapeVerdicts {
    /// Computes the verdicts for the node classes that have none yet.
    pub(crate) fn extend<'a>(
        &mut self,
        pod: &Shape,
        classes: impl ExactSizeIterator<Item = &'a NodeClass>,
        static_rules: StaticRules<'_>,
        names: &Interner,
    ) {
        self.fits.grow(classes.len());
        // Node classes are only added, so the verdicts that exist stay valid.
        for class in classes.skip(self.verdicts.len()) {
            let verdict = StaticVerdict::of(pod, Target::any(class), static_rules, names);
            self.fits
                .set(self.verdicts.len(), verdict.refusal.is_none());
            self.verdicts.push(verdict);
        }
    }

    pub(crate) fn fits(&self, class: NodeClassId) -> bool {
        self.fits.contains(class.index())
    }

    pub(crate) fn verdict(&self, class: NodeClassId) -> StaticVerdict {
        self.verdicts[class.index()]
    }
}
