//! Resolves which plugins are enabled at which extension point (kube-scheduler: `mergePlugins`,
//! `expandMultiPointPlugins`).
//!
//! A plugin that is enabled at multiPoint is enabled at every point that it implements, unless that point disables
//! it or `*`. Plugins enabled at a point itself have precedence. The default profile is a multiPoint list, which
//! the file changes.

use std::collections::BTreeSet;

use mullion_engine::{Plugin, Profile};
use serde::Deserialize;

use super::error::{Fault, Faults};

/// All plugins of this scheduler by name, with the engine's plugin if the engine implements it.
const KNOWN: [(&str, Option<Plugin>); 20] = [
    ("SchedulingGates", None),
    ("PrioritySort", None),
    ("NodeUnschedulable", Some(Plugin::NodeUnschedulable)),
    ("NodeName", Some(Plugin::NodeName)),
    ("TaintToleration", Some(Plugin::TaintToleration)),
    ("NodeAffinity", Some(Plugin::NodeAffinity)),
    ("NodePorts", Some(Plugin::NodePorts)),
    ("NodeResourcesFit", Some(Plugin::NodeResourcesFit)),
    ("VolumeRestrictions", Some(Plugin::VolumeRestrictions)),
    ("NodeVolumeLimits", Some(Plugin::NodeVolumeLimits)),
    ("VolumeBinding", Some(Plugin::VolumeBinding)),
    ("VolumeZone", Some(Plugin::VolumeZone)),
    ("PodTopologySpread", Some(Plugin::PodTopologySpread)),
    ("InterPodAffinity", Some(Plugin::InterPodAffinity)),
    ("DynamicResources", Some(Plugin::DynamicResources)),
    ("DefaultPreemption", Some(Plugin::DefaultPreemption)),
    (
        "NodeResourcesBalancedAllocation",
        Some(Plugin::NodeResourcesBalancedAllocation),
    ),
    ("ImageLocality", Some(Plugin::ImageLocality)),
    ("DefaultBinder", None),
    ("NodeDeclaredFeatures", Some(Plugin::NodeDeclaredFeatures)),
];

/// The plugin that only this scheduler has. A profile contains it only if its file names it.
const OPTIONAL: (&str, Plugin) = ("PullTime", Plugin::PullTime);

/// Plugins of earlier versions of kube-scheduler.
const GONE: [&str; 4] = [
    "AzureDiskLimits",
    "CinderLimits",
    "EBSLimits",
    "GCEPDLimits",
];

/// The only plugin that can order the queue, and the only one that can bind.
const SORTS: &str = "PrioritySort";
const BINDS: &str = "DefaultBinder";

/// `plugins` of a profile.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Plugins {
    pre_enqueue: PluginSet,
    queue_sort: PluginSet,
    pre_filter: PluginSet,
    filter: PluginSet,
    post_filter: PluginSet,
    pre_score: PluginSet,
    score: PluginSet,
    reserve: PluginSet,
    permit: PluginSet,
    pre_bind: PluginSet,
    bind: PluginSet,
    post_bind: PluginSet,
    multi_point: PluginSet,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PluginSet {
    enabled: Vec<Named>,
    disabled: Vec<Named>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
    weight: i64,
}

/// An extension point with the plugins that can be enabled at it.
struct Point<'a> {
    set: &'a PluginSet,
    path: String,
    /// The name of kube-scheduler's interface, for messages.
    interface: &'static str,
    implemented_by: &'a [Plugin],
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        let mut names = self.disabled.iter().map(|own| own.name.as_str());
        names.any(|own| own == "*" || own == name)
    }

    /// Returns whether a plugin is enabled at this point.
    fn has(&self, name: &str, everywhere: &[Named]) -> bool {
        let own = self.enabled.iter().any(|own| own.name == name);
        own || !self.disables(name) && everywhere.iter().any(|own| own.name == name)
    }

    /// Refuses all plugins but `only` at a point that no other plugin implements.
    fn check_only(&self, path: &str, interface: &str, only: &str, faults: &mut Faults) {
        for (index, own) in self.enabled.iter().enumerate() {
            let name = own.name.as_str();
            // An unknown plugin was already refused.
            if name != only && known(name).is_some() {
                let why = format!("plugin \"{name}\" does not extend {interface} plugin");
                let path = format!("{path}.enabled[{index}]");
                faults.refuse(path, Fault::invalid(name, &why));
            }
        }
    }

    /// Refuses plugins that do not exist, are listed twice, or have an invalid weight.
    fn check(&self, path: &str, interface: &str, faults: &mut Faults) {
        let mut seen = BTreeSet::new();
        for (index, own) in self.enabled.iter().enumerate() {
            let path = format!("{path}.enabled[{index}]");
            let name = own.name.as_str();
            let why = if GONE.contains(&name) {
                "was invalid in version \"v1\" (KubeSchedulerConfiguration is version \"kubescheduler.config.k8s.io/v1\")".to_owned()
            } else if known(name).is_none() {
                format!("{interface} \"{name}\" does not exist")
            } else if !seen.insert(name) {
                format!("plugin \"{name}\" already registered as \"{interface}\"")
            } else if own.weight < 0 {
                let fault = Fault::invalid(own.weight, "must not be negative");
                faults.refuse(format!("{path}.weight"), fault);
                continue;
            } else {
                continue;
            };
            faults.refuse(path, Fault::invalid(name, &why));
        }
    }
}

fn known(name: &str) -> Option<Option<Plugin>> {
    if name == OPTIONAL.0 {
        return Some(Some(OPTIONAL.1));
    }
    let found = KNOWN.iter().find(|(own, _)| *own == name);
    found.map(|(_, plugin)| *plugin)
}

impl Point<'_> {
    /// Returns the enabled plugins in the order in which they run, each with its weight (0 if none is set): first
    /// those of the multiPoint list that this point lists again, then the others of that list, then those listed
    /// only here.
    fn resolve(&self, everywhere: &[Named], faults: &mut Faults) -> Vec<(Plugin, i64)> {
        self.set.check(&self.path, self.interface, faults);
        let mut on: Vec<(Plugin, i64)> = Vec::new();
        let mut own_only = Vec::new();
        for (index, own) in self.set.enabled.iter().enumerate() {
            let plugin = known(&own.name).flatten();
            match plugin.filter(|plugin| self.implemented_by.contains(plugin)) {
                Some(plugin) => {
                    let is_everywhere = !self.set.disables(&own.name)
                        && everywhere.iter().any(|other| other.name == own.name);
                    let list = if is_everywhere {
                        &mut on
                    } else {
                        &mut own_only
                    };
                    list.push((plugin, own.weight));
                }
                // An unknown plugin was already refused.
                None if known(&own.name).is_none() => {}
                None => {
                    let path = format!("{}.enabled[{index}]", self.path);
                    let why = format!(
                        "plugin \"{}\" does not extend {} plugin",
                        own.name, self.interface
                    );
                    faults.refuse(path, Fault::invalid(own.name.as_str(), &why));
                }
            }
        }
        for other in everywhere
            .iter()
            .filter(|own| !self.set.disables(&own.name))
        {
            let plugin = known(&other.name).flatten();
            if let Some(plugin) = plugin.filter(|plugin| self.implemented_by.contains(plugin))
                && !self.set.enabled.iter().any(|own| own.name == other.name)
            {
                on.push((plugin, other.weight));
            }
        }
        on.extend(own_only);
        on
    }
}

impl Plugins {
    /// Enables and disables plugins of the default profile.
    pub(super) fn apply(&self, profile: &mut Profile, path: &str, faults: &mut Faults) {
        let everywhere = self.everywhere(path, faults);
        // These points do not affect the decisions of this scheduler, but their plugin names must be valid.
        for (name, interface, set) in [
            ("preEnqueue", "PreEnqueuePlugin", &self.pre_enqueue),
            ("preScore", "PreScorePlugin", &self.pre_score),
            ("reserve", "ReservePlugin", &self.reserve),
            ("permit", "PermitPlugin", &self.permit),
            ("preBind", "PreBindPlugin", &self.pre_bind),
            ("postBind", "PostBindPlugin", &self.post_bind),
        ] {
            set.check(&format!("{path}.{name}"), interface, faults);
        }
        let sorts = &self.queue_sort;
        sorts.check(&format!("{path}.queueSort"), "QueueSortPlugin", faults);
        if sorts.enabled.len() > 1 {
            let path = format!("{path}.queueSort.Enabled");
            let why = "only one queue sort plugin can be enabled";
            faults.refuse(path, Fault::invalid(sorts.enabled.len(), why));
        } else {
            let path = format!("{path}.queueSort");
            sorts.check_only(&path, "QueueSortPlugin", SORTS, faults);
        }
        let binds = format!("{path}.bind");
        self.bind.check(&binds, "BindPlugin", faults);
        self.bind.check_only(&binds, "BindPlugin", BINDS, faults);
        let mut resolve = |name: &str, interface, set, implemented_by: &[Plugin]| {
            let point = Point {
                set,
                path: format!("{path}.{name}"),
                interface,
                implemented_by,
            };
            point.resolve(&everywhere, faults)
        };
        let names = |on: Vec<(Plugin, i64)>| on.into_iter().map(|(plugin, _)| plugin).collect();
        let pre_filters = &Profile::PRE_FILTERS;
        let pre_filters = resolve(
            "preFilter",
            "PreFilterPlugin",
            &self.pre_filter,
            pre_filters,
        );
        profile.pre_filters = names(pre_filters);
        let filters = resolve("filter", "FilterPlugin", &self.filter, &Profile::FILTERS);
        profile.filters = names(filters);
        let post_filters = &Profile::POST_FILTERS;
        let post_filters = resolve(
            "postFilter",
            "PostFilterPlugin",
            &self.post_filter,
            post_filters,
        );
        profile.post_filters = names(post_filters);
        let scores = Profile::SCORES.iter().map(|(plugin, _)| *plugin);
        let scores: Vec<_> = scores.chain([OPTIONAL.1]).collect();
        let weights = resolve("score", "ScorePlugin", &self.score, &scores);
        // A missing weight means 1.
        profile.scores = weights
            .into_iter()
            .map(|(plugin, weight)| (plugin, weight.max(1)))
            .collect();
        // The total score of a node may be a hundred times the sum of the weights, and must fit into 64 bits.
        let most = profile.scores.values().try_fold(0_i64, |sum, weight| {
            weight
                .checked_mul(100)
                .and_then(|most| sum.checked_add(most))
        });
        if most.is_none() {
            let why = "total score of Score plugins could overflow";
            faults.refuse(format!("{path}.score"), Fault::Forbidden(why.to_owned()));
        }
        self.check_start(&everywhere, &profile.scheduler_name, path, faults);
    }

    /// Refuses a profile that could not take a pod from the queue or bind it (kube-scheduler: `NewFramework`).
    fn check_start(&self, everywhere: &[Named], scheduler: &str, path: &str, faults: &mut Faults) {
        if !self.queue_sort.has(SORTS, everywhere) {
            let why = format!(
                "only one queue sort plugin required for profile with scheduler name \"{scheduler}\", but got 0"
            );
            faults.refuse(format!("{path}.queueSort"), Fault::Unusable(why));
        }
        if !self.bind.has(BINDS, everywhere) {
            let why = format!(
                "at least one bind plugin is needed for profile with scheduler name \"{scheduler}\""
            );
            faults.refuse(format!("{path}.bind"), Fault::Unusable(why));
        }
    }

    /// Returns the multiPoint list: the default list with the changes from the file.
    fn everywhere(&self, path: &str, faults: &mut Faults) -> Vec<Named> {
        let set = &self.multi_point;
        set.check(&format!("{path}.multiPoint"), "MultiPointPlugin", faults);
        let weight = |name: &str| {
            let plugin = known(name).flatten();
            let mut scores = Profile::SCORES.iter();
            scores
                .find(|(own, _)| Some(*own) == plugin)
                .map_or(0, |own| own.1)
        };
        let mut list: Vec<Named> = KNOWN
            .iter()
            .filter(|(name, _)| !set.disables(name))
            .map(|(name, _)| Named {
                name: (*name).to_owned(),
                weight: weight(name),
            })
            .collect();
        for own in &set.enabled {
            match list.iter_mut().find(|kept| kept.name == own.name) {
                // The entry in the file replaces the default one, and with it the default weight.
                Some(kept) => *kept = own.clone(),
                None => list.push(own.clone()),
            }
        }
        list
    }
}
