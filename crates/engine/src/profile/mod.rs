//! Scheduling profiles: which filters and scorers are enabled, with weights and arguments, by scheduler name.
//!
//! A profile is a plain value, made from a `KubeSchedulerConfiguration`. All profiles of a [`crate::Cluster`] share its
//! nodes and pods; the profile named by a pod's `schedulerName` decides it. Invariant: profiles are fixed when a cluster is
//! created, so everything cached per pod shape stays valid.

mod rules;

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{NodeAffinity, TopologySpreadConstraint};
use crate::reason::Plugin;

pub(crate) use rules::{FitScore, ProfileId, Rules, Spread, Strategy};

/// The settings behind one scheduler name. The default value is kube-scheduler's default profile. Numbers outside of their
/// ranges count as the nearest value in range.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// `spec.schedulerName` of the pods it decides.
    pub scheduler_name: String,
    /// Plugins that can refuse a pod before any node is examined, in the order in which they run.
    ///
    /// A filter that is not listed still works: its refusal is then reported for each node. (In kube-scheduler that holds
    /// for NodeAffinity and VolumeZone; without the others every attempt ends with an error.)
    pub pre_filters: Vec<Plugin>,
    /// Enabled filters in the order in which they run; the first that refuses a node is reported.
    pub filters: Vec<Plugin>,
    /// Enabled scorers by weight, from 0 (disabled) to 2^31 - 1.
    pub scores: BTreeMap<Plugin, i64>,
    /// Plugins that run for pods that fit nowhere, in order.
    pub post_filters: Vec<Plugin>,
    /// The arguments of NodeResourcesFit.
    pub fit: Fit,
    /// The resources whose even use NodeResourcesBalancedAllocation scores.
    pub balanced_resources: Vec<String>,
    /// The spread constraints of pods that have none of their own.
    pub default_spread: DefaultSpread,
    /// The weight of placed pods' required affinity in InterPodAffinity's score; 0 to 100.
    pub hard_pod_affinity_weight: i64,
    /// Whether InterPodAffinity ignores the preferences of placed pods when it scores for a pod without its own.
    pub ignore_preferred_terms_of_existing_pods: bool,
    /// Node affinity that every pod has in addition to its own.
    pub added_affinity: NodeAffinity,
}

/// The arguments of NodeResourcesFit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// How resources are scored.
    pub strategy: ScoringStrategy,
    /// The resources that are scored, with weights of 0 to 100.
    pub resources: Vec<(String, i64)>,
    /// Extended resources that the filter does not check.
    pub ignored_resources: BTreeSet<String>,
    /// Groups of extended resources, the part before the slash, that the filter does not check.
    pub ignored_resource_groups: BTreeSet<String>,
}

/// How NodeResourcesFit scores a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ScoringStrategy {
    /// By the free share, so that pods spread.
    #[default]
    LeastAllocated,
    /// By the used share, so that pods are packed.
    MostAllocated,
    /// By a curve of points (utilization, score), with utilization rising from 0 to 100 and scores of 0 to 10.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

/// The spread constraints of pods that have none of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DefaultSpread {
    /// Over hosts and zones, as a preference.
    #[default]
    System,
    /// By these constraints, whose selectors are those of the pod's services and owner.
    List(Vec<TopologySpreadConstraint>),
}

/// The scheduler name of pods that set none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

impl Profile {
    /// Plugins of the default profile that run before any node is examined, in order.
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

    /// Filters of the default profile, in order.
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

    /// Plugins of the default profile for pods that fit nowhere, in order.
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
