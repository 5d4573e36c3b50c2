//! A profile, compiled for filters and scorers: names are symbols, sets are bits.

use super::{DefaultSpread, Fit, Profile, ScoringStrategy};
use crate::class::SpreadRule;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::NodeAffinity;
use crate::reason::Plugin;
use crate::selector::LabelQuery;

/// The index of a profile in its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProfileId(pub(crate) u16);

/// Weights up to this keep every total within 64 bits.
const MOST_WEIGHT: i64 = i32::MAX as i64;

/// The compiled form of a [`Profile`].
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pre_filters: Box<[Plugin]>,
    filters: u32,
    /// The filters in order, if it differs from the default profile's ([`Rules::order`]).
    order: Option<Box<[Plugin]>>,
    post_filters: u32,
    preempts_first: bool,
    /// The weight of each plugin; 0 if it is disabled.
    weights: [i64; Plugin::COUNT],
    pub(crate) fit: FitScore,
    /// The resources to balance; `None` for cpu and memory.
    pub(crate) balanced: Option<Box<[Symbol]>>,
    pub(crate) spread: Spread,
    pub(crate) hard_affinity_weight: i64,
    pub(crate) ignore_others_preferences: bool,
    pub(crate) added_affinity: NodeAffinity,
    ignored: Fit,
}

/// How NodeResourcesFit scores.
#[derive(Clone, Debug)]
pub(crate) enum FitScore {
    /// The free share of cpu and memory, the default, which has a fast path.
    FreeCpuAndMemory,
    /// Any other configuration.
    Of {
        strategy: Strategy,
        resources: Box<[(Symbol, i64)]>,
    },
}

/// How the score of one resource is computed.
#[derive(Clone, Debug)]
pub(crate) enum Strategy {
    Least,
    Most,
    /// Points of (utilization, score), both from 0 to 100.
    Ratio(Box<[(i64, i64)]>),
}

/// The spread constraints of pods that have none of their own.
#[derive(Clone, Debug)]
pub(crate) enum Spread {
    System,
    /// These rules, whose selectors are filled in per pod.
    List(Vec<SpreadRule>),
}

impl Rules {
    pub(crate) fn compile(profile: &Profile, names: &mut Interner) -> Self {
        let bits = |plugins: &[Plugin]| plugins.iter().fold(0, |bits, plugin| bits | plugin.bit());
        let at = |plugin: Plugin| profile.post_filters.iter().position(|own| *own == plugin);
        let claims_at = at(Plugin::DynamicResources);
        let mut weights = [0; Plugin::COUNT];
        for (plugin, weight) in &profile.scores {
            weights[*plugin as usize] = (*weight).clamp(0, MOST_WEIGHT);
        }
        // The usual pair has a faster path, which gives the same numbers.
        let native = profile.balanced_resources == ["cpu", "memory"];
        let balanced = profile.balanced_resources.iter();
        Rules {
            pre_filters: profile.pre_filters.as_slice().into(),
            filters: bits(&profile.filters),
            order: order(profile),
            post_filters: bits(&profile.post_filters),
            preempts_first: at(Plugin::DefaultPreemption)
                .zip(claims_at)
                .is_some_and(|(preemption, claims)| preemption < claims),
            weights,
            fit: FitScore::compile(&profile.fit, names),
            balanced: (!native).then(|| balanced.map(|name| names.intern(name)).collect()),
            spread: match &profile.default_spread {
                DefaultSpread::System => Spread::System,
                DefaultSpread::List(constraints) => {
                    // The constraints of a profile get their selectors per pod, so no labels are needed here.
                    let none = LabelSet::default();
                    let constraints = constraints.iter();
                    let rules = constraints.map(|own| SpreadRule::compile(own, &none, names));
                    Spread::List(rules.collect())
                }
            },
            hard_affinity_weight: profile.hard_pod_affinity_weight.clamp(0, 100),
            ignore_others_preferences: profile.ignore_preferred_terms_of_existing_pods,
            added_affinity: profile.added_affinity.clone(),
            ignored: profile.fit.clone(),
        }
    }

    /// Returns whether a filter is enabled.
    pub(crate) fn filters(&self, plugin: Plugin) -> bool {
        self.filters & plugin.bit() != 0
    }

    /// Returns the filters in the order in which they run; `None` if it is the default profile's order and all their
    /// pre-filters are enabled.
    pub(crate) fn order(&self) -> Option<&[Plugin]> {
        self.order.as_deref()
    }

    /// Returns the position of a plugin among those that run before any node is examined; `None` if it is not one of them.
    pub(crate) fn pre_filters_at(&self, plugin: Plugin) -> Option<usize> {
        self.pre_filters.iter().position(|own| *own == plugin)
    }

    /// Returns whether all default filters are enabled, in default order, and check all resources.
    pub(crate) fn filters_all(&self) -> bool {
        self.order.is_none()
            && Profile::FILTERS.iter().all(|plugin| self.filters(*plugin))
            && self.ignored.ignored_resources.is_empty()
            && self.ignored.ignored_resource_groups.is_empty()
    }

    /// Returns whether a plugin runs for pods that fit nowhere.
    pub(crate) fn post_filters(&self, plugin: Plugin) -> bool {
        self.post_filters & plugin.bit() != 0
    }

    /// Returns whether preemption is tried before claims are deallocated.
    pub(crate) fn preempts_first(&self) -> bool {
        self.preempts_first
    }

    /// Returns the weight of a scorer; 0 if it is disabled.
    pub(crate) fn weight(&self, plugin: Plugin) -> i64 {
        self.weights[plugin as usize]
    }

    /// Returns whether NodeResourcesFit does not check a resource; true only for extended resources.
    pub(crate) fn ignores(&self, resource: &str) -> bool {
        let Some((group, _)) = resource.split_once('/') else {
            return false;
        };
        // kube-scheduler's `IsExtendedResourceName`: names in Kubernetes' own domains are not extended resources.
        let native = resource.contains("kubernetes.io/");
        !native
            && (self.ignored.ignored_resources.contains(resource)
                || self.ignored.ignored_resource_groups.contains(group))
    }

    /// Returns the default spread rules of a pod; `query` is the selector of its services and owner.
    pub(crate) fn default_spread(&self, query: &LabelQuery) -> Vec<SpreadRule> {
        match &self.spread {
            Spread::System => SpreadRule::defaults(query),
            Spread::List(rules) => rules
                .iter()
                .map(|rule| SpreadRule {
                    query: query.clone(),
                    ..rule.clone()
                })
                .collect(),
        }
    }
}

/// Computes [`Rules::order`]. Mullion's own OperatingSystem filter comes after the filters about the node itself.
fn order(profile: &Profile) -> Option<Box<[Plugin]>> {
    let filters = &profile.filters;
    let usual = Profile::FILTERS.iter();
    let usual: Vec<_> = usual.filter(|own| filters.contains(own)).collect();
    let is_asked_before =
        |own: &Plugin| !Profile::PRE_FILTERS.contains(own) || profile.pre_filters.contains(own);
    if filters.iter().eq(usual) && filters.iter().all(is_asked_before) {
        return None;
    }
    let mut order = filters.clone();
    // The first four are about the node alone, and a pod's operating system is too.
    let of_the_node = |own: &Plugin| Profile::FILTERS[..4].contains(own);
    let behind = order.iter().rposition(of_the_node).map_or(0, |at| at + 1);
    order.insert(behind, Plugin::OperatingSystem);
    Some(order.into())
}

impl FitScore {
    fn compile(fit: &Fit, names: &mut Interner) -> Self {
        let strategy = match &fit.strategy {
            ScoringStrategy::LeastAllocated if fit.resources == Fit::default().resources => {
                return FitScore::FreeCpuAndMemory;
            }
            ScoringStrategy::LeastAllocated => Strategy::Least,
            ScoringStrategy::MostAllocated => Strategy::Most,
            ScoringStrategy::RequestedToCapacityRatio(shape) => {
                let shape = shape.iter();
                Strategy::Ratio(
                    shape
                        .map(|(at, score)| ((*at).clamp(0, 100), (*score).clamp(0, 10) * 10))
                        .collect(),
                )
            }
        };
        let resources = fit.resources.iter();
        FitScore::Of {
            strategy,
            resources: resources
                .map(|(name, weight)| (names.intern(name), (*weight).clamp(0, 100)))
                .collect(),
        }
    }
}
