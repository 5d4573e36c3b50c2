//! Profiles: which filters and scorers are on, what they weigh and how they are set, by scheduler name.
//!
//! A plain value; whoever reads a `KubeSchedulerConfiguration` makes it. All profiles of a [`crate::Cluster`] share its
//! nodes and pods, and a pod is decided by the profile its `schedulerName` names. Invariant: profiles are given when a
//! cluster is made and never change, so everything kept per pod shape stays true.

mod rules;

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{NodeAffinity, TopologySpreadConstraint};
use crate::reason::Plugin;

pub(crate) use rules::{FitScore, ProfileId, Rules, Spread, Strategy};

/// What one scheduler name stands for. The default value is kube-scheduler's default profile. Numbers outside of their
/// ranges count as the nearest one inside.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// `spec.schedulerName` of the pods it decides.
    pub scheduler_name: String,
    /// Plugins that say before any node is looked at whether the pod can go anywhere, in the order in which they are asked.
    ///
    /// A filter that is not among them works all the same here: what it would have said before is said of each node. (In kube-scheduler it
    /// does so if it is NodeAffinity or VolumeZone; others end every attempt with an error.)
    pub pre_filters: Vec<Plugin>,
    /// Filters that are on, in the order in which they are asked: the first that refuses a node is told.
    pub filters: Vec<Plugin>,
    /// Scorers that are on, by weight: 0 (off) to 2^31 - 1.
    pub scores: BTreeMap<Plugin, i64>,
    /// What is done for pods that fit nowhere, in the order in which it is tried.
    pub post_filters: Vec<Plugin>,
    /// How NodeResourcesFit scores.
    pub fit: Fit,
    /// Resources whose even use NodeResourcesBalancedAllocation scores.
    pub balanced_resources: Vec<String>,
    /// How pods without topology spread constraints are spread.
    pub default_spread: DefaultSpread,
    /// What required affinity of placed pods weighs in InterPodAffinity's score; 0 to 100.
    pub hard_pod_affinity_weight: i64,
    /// InterPodAffinity scores only for pods that prefer something themselves.
    pub ignore_preferred_terms_of_existing_pods: bool,
    /// Node affinity that every pod has beside its own.
    pub added_affinity: NodeAffinity,
}

/// The arguments of NodeResourcesFit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// What is scored.
    pub strategy: ScoringStrategy,
    /// Of which resources, with weights of 0 to 100.
    pub resources: Vec<(String, i64)>,
    /// Extended resources that the filter leaves to others.
    pub ignored_resources: BTreeSet<String>,
    /// The same by what stands before the slash.
    pub ignored_resource_groups: BTreeSet<String>,
}

/// What NodeResourcesFit scores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ScoringStrategy {
    /// What is left free: pods spread.
    #[default]
    LeastAllocated,
    /// What is taken: pods are packed.
    MostAllocated,
    /// A curve over the share taken, in hundredths: (utilization, score of 0 to 10), utilization rising.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

/// How pods without topology spread constraints are spread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DefaultSpread {
    /// Over hosts and zones, as a preference.
    #[default]
    System,
    /// By these, whose selectors are those of the pod's services and owner.
    List(Vec<TopologySpreadConstraint>),
}

/// The scheduler name of pods that name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

impl Profile {
    /// What the default profile asks before any node is looked at, in its order.
    pub const PRE_FILTERS: [Plugin; 11] = [
        Plugin::NodeAffinity,
        Plugin::NodePorts,
        Plugin::NodeResourcesFit,
        Plugin::VolumeRestrictions,
        Plugin::NodeVolumeLimits,
        Plugin::VolumeBinding,
        Plugin::VolumeZone,
        Plugin::PodTopologySpread,
        Plugin::InterPodAffinity,
        Plugin::DynamicResources,
        Plugin::NodeDeclaredFeatures,
    ];

    /// Filters of the default profile, in their order.
    pub const FILTERS: [Plugin; 14] = [
        Plugin::NodeUnschedulable,
        Plugin::NodeName,
        Plugin::TaintToleration,
        Plugin::NodeAffinity,
        Plugin::NodePorts,
        Plugin::NodeResourcesFit,
        Plugin::VolumeRestrictions,
        Plugin::NodeVolumeLimits,
        Plugin::VolumeBinding,
        Plugin::VolumeZone,
        Plugin::PodTopologySpread,
        Plugin::InterPodAffinity,
        Plugin::DynamicResources,
        Plugin::NodeDeclaredFeatures,
    ];

    /// Scorers of the default profile with their weights.
    pub const SCORES: [(Plugin, i64); 8] = [
        (Plugin::TaintToleration, 3),
        (Plugin::NodeAffinity, 2),
        (Plugin::NodeResourcesFit, 1),
        (Plugin::PodTopologySpread, 2),
        (Plugin::InterPodAffinity, 2),
        (Plugin::DynamicResources, 2),
        (Plugin::NodeResourcesBalancedAllocation, 1),
        (Plugin::ImageLocality, 1),
    ];

    /// What the default profile does for pods that fit nowhere, in its order.
    pub const POST_FILTERS: [Plugin; 2] = [Plugin::DynamicResources, Plugin::DefaultPreemption];
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            scheduler_name: DEFAULT_SCHEDULER.to_owned(),
            pre_filters: Profile::PRE_FILTERS.into(),
            filters: Profile::FILTERS.into(),
            scores: Profile::SCORES.into(),
            post_filters: Profile::POST_FILTERS.into(),
            fit: Fit::default(),
            balanced_resources: vec!["cpu".to_owned(), "memory".to_owned()],
            default_spread: DefaultSpread::System,
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
            added_affinity: NodeAffinity::default(),
        }
    }
}

impl Default for Fit {
    fn default() -> Self {
        Fit {
            strategy: ScoringStrategy::LeastAllocated,
            resources: vec![("cpu".to_owned(), 1), ("memory".to_owned(), 1)],
            ignored_resources: BTreeSet::new(),
            ignored_resource_groups: BTreeSet::new(),
        }
    }
}
