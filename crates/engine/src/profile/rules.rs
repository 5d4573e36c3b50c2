//! A profile, compiled: what filters and scorers ask, without text.

use super::{DefaultSpread, Fit, Profile, ScoringStrategy};
use crate::class::SpreadRule;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::NodeAffinity;
use crate::reason::Plugin;
use crate::selector::LabelQuery;

/// A profile of a cluster, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProfileId(pub(crate) u16);

/// With weights up to this no total leaves 64 bits.
const MOST_WEIGHT: i64 = i32::MAX as i64;

/// See the module's words.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pre_filters: Box<[Plugin]>,
    filters: u32,
    /// The filters, where they are not asked as in the default profile ([`Rules::order`]).
    order: Option<Box<[Plugin]>>,
    post_filters: u32,
    preempts_first: bool,
    /// By plugin; 0 for one that is off.
    weights: [i64; Plugin::COUNT],
    pub(crate) fit: FitScore,
    /// `None` for cpu and memory.
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
    /// The free share of cpu and memory.
    FreeCpuAndMemory,
    /// Anything else.
    Of {
        strategy: Strategy,
        resources: Box<[(Symbol, i64)]>,
    },
}

/// What the score of one resource is.
#[derive(Clone, Debug)]
pub(crate) enum Strategy {
    Least,
    Most,
    /// Points (utilization, score), both in hundredths.
    Ratio(Box<[(i64, i64)]>),
}

/// How pods without constraints are spread.
#[derive(Clone, Debug)]
pub(crate) enum Spread {
    System,
    /// By rules whose queries are still to be told.
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

    /// Whether a filter is on.
    pub(crate) fn filters(&self, plugin: Plugin) -> bool {
        self.filters & plugin.bit() != 0
    }

    /// The filters in the order in which they are asked; `None` where it is that of the default profile and each filter has been asked
    /// about the pod before the nodes.
    pub(crate) fn order(&self) -> Option<&[Plugin]> {
        self.order.as_deref()
    }

    /// When a plugin is asked about a pod before any node is looked at; `None` for one that is not.
    pub(crate) fn pre_filters_at(&self, plugin: Plugin) -> Option<usize> {
        self.pre_filters.iter().position(|own| *own == plugin)
    }

    /// Whether every filter is on, asked in the usual order, and sees all resources.
    pub(crate) fn filters_all(&self) -> bool {
        self.order.is_none()
            && Profile::FILTERS.iter().all(|plugin| self.filters(*plugin))
            && self.ignored.ignored_resources.is_empty()
            && self.ignored.ignored_resource_groups.is_empty()
    }

    /// Whether a plugin is asked about pods that fit nowhere.
    pub(crate) fn post_filters(&self, plugin: Plugin) -> bool {
        self.post_filters & plugin.bit() != 0
    }

    /// Whether evictions are tried before claims are given back.
    pub(crate) fn preempts_first(&self) -> bool {
        self.preempts_first
    }

    /// What a scorer weighs; 0 if it is off.
    pub(crate) fn weight(&self, plugin: Plugin) -> i64 {
        self.weights[plugin as usize]
    }

    /// Whether NodeResourcesFit leaves a resource to others: extended ones only.
    pub(crate) fn ignores(&self, resource: &str) -> bool {
        let Some((group, _)) = resource.split_once('/') else {
            return false;
        };
        let native = resource.contains("kubernetes.io/");
        !native
            && (self.ignored.ignored_resources.contains(resource)
                || self.ignored.ignored_resource_groups.contains(group))
    }

    /// The rules for a pod that declares none and that this query selects with its siblings.
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

/// See [`Rules::order`]. Our own filter stands behind those about the node itself.
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
