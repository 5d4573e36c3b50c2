//! Parses `pluginConfig`, the arguments of plugins, with kube-scheduler's defaults and validation.

use mullion_engine::Profile;
use mullion_engine::model::{NodeAffinity, TopologySpreadConstraint};
use mullion_engine::profile::{DefaultSpread, Fit, ScoringStrategy};
use serde::Deserialize;
use serde_json::Value;

use super::error::{ConfigError, Fault, Faults, refuse};
use super::shape;

/// The arguments of one plugin.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PluginConfig {
    pub(super) name: String,
    args: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PreemptionArgs {
    min_candidate_nodes_percentage: i64,
    min_candidate_nodes_absolute: i64,
}

impl Default for PreemptionArgs {
    fn default() -> Self {
        PreemptionArgs {
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InterPodAffinityArgs {
    hard_pod_affinity_weight: Option<i64>,
    ignore_preferred_terms_of_existing_pods: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinityArgs {
    added_affinity: NodeAffinity,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BalancedArgs {
    resources: Vec<Resource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    name: String,
    weight: i64,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FitArgs {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<StrategyArgs>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StrategyArgs {
    #[serde(rename = "type")]
    kind: String,
    resources: Vec<Resource>,
    requested_to_capacity_ratio: Option<RatioArgs>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RatioArgs {
    shape: Vec<UtilizationPoint>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UtilizationPoint {
    utilization: i64,
    score: i64,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpreadArgs {
    defaulting_type: String,
    default_constraints: Vec<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeBindingArgs {
    bind_timeout_seconds: i64,
}

impl PluginConfig {
    /// Applies the arguments to a profile.
    pub(super) fn apply(self, profile: &mut Profile, path: &str, faults: &mut Faults) {
        let found = shape::ARGUMENTS.iter().find(|(name, _)| *name == self.name);
        let Some((name, shape)) = found else {
            let names: Vec<_> = shape::ARGUMENTS.iter().map(|(name, _)| *name).collect();
            let fault = Fault::unsupported(&self.name.into(), &names);
            return faults.refuse(format!("{path}.name"), fault);
        };
        let path = format!("{path}.args");
        let mut own = Faults::default();
        shape::check(&self.args, shape, &path, &mut own);
        // Values are checked only if the shape is right, so that one mistake gives one error.
        if own.are_none() {
            faults.note(self.put(name, profile, path));
        } else {
            faults.extend(own)
        }
    }

    fn put(self, name: &str, profile: &mut Profile, path: String) -> Result<(), ConfigError> {
        let kind = &self.args["kind"];
        if !kind.is_null() && *kind != format!("{name}Args") {
            return Err(refuse(
                path,
                Fault::invalid(kind.clone(), "has to match plugin args"),
            ));
        }
        let args = match self.args {
            Value::Null => Value::Object(serde_json::Map::new()),
            args => args,
        };
        match name {
            "DefaultPreemption" => preemption(&shape::typed(&args, &path)?, &path),
            "InterPodAffinity" => {
                let args: InterPodAffinityArgs = shape::typed(&args, &path)?;
                let weight = args.hard_pod_affinity_weight.unwrap_or(1);
                within(weight, 0, 100, &format!("{path}.hardPodAffinityWeight"))?;
                profile.hard_pod_affinity_weight = weight;
                profile.ignore_preferred_terms_of_existing_pods =
                    args.ignore_preferred_terms_of_existing_pods;
                Ok(())
            }
            "NodeAffinity" => {
                let args: NodeAffinityArgs = shape::typed(&args, &path)?;
                profile.added_affinity = args.added_affinity;
                Ok(())
            }
            "NodeResourcesBalancedAllocation" => {
                let args: BalancedArgs = shape::typed(&args, &path)?;
                if !args.resources.is_empty() {
                    profile.balanced_resources = balanced(args.resources, &path)?;
                }
                Ok(())
            }
            "NodeResourcesFit" => {
                profile.fit = fit(shape::typed(&args, &path)?, &path)?;
                Ok(())
            }
            "PodTopologySpread" => {
                profile.default_spread = spread(&shape::typed(&args, &path)?, &path)?;
                Ok(())
            }
            _ => {
                // VolumeBinding is the only other plugin in [`shape::ARGUMENTS`]. Its timeout is only checked.
                let args: VolumeBindingArgs = shape::typed(&args, &path)?;
                if args.bind_timeout_seconds < 0 {
                    let why = "invalid BindTimeoutSeconds, should not be a negative value";
                    let fault = Fault::invalid(args.bind_timeout_seconds, why);
                    return Err(refuse(format!("{path}.bindTimeoutSeconds"), fault));
                }
                Ok(())
            }
        }
    }
}

fn within(value: i64, least: i64, most: i64, path: &str) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let why = format!("not in valid range [{least}, {most}]");
    Err(refuse(path, Fault::invalid(value, &why)))
}

/// Checks the arguments of DefaultPreemption. They have no effect, because preemption tries every node here.
fn preemption(args: &PreemptionArgs, path: &str) -> Result<(), ConfigError> {
    let percentage = format!("{path}.minCandidateNodesPercentage");
    within(args.min_candidate_nodes_percentage, 0, 100, &percentage)?;
    let absolute = args.min_candidate_nodes_absolute;
    if absolute < 0 {
        let fault = Fault::invalid(absolute, "not in valid range [0, inf)");
        return Err(refuse(format!("{path}.minCandidateNodesAbsolute"), fault));
    }
    if args.min_candidate_nodes_percentage == 0 && absolute == 0 {
        let why = "cannot be zero at the same time as minCandidateNodesAbsolute";
        return Err(refuse(percentage, Fault::invalid(0, why)));
    }
    Ok(())
}

fn balanced(resources: Vec<Resource>, path: &str) -> Result<Vec<String>, ConfigError> {
    let mut names: Vec<String> = Vec::new();
    for (index, own) in resources.into_iter().enumerate() {
        let path = format!("{path}.resources[{index}]");
        if names.contains(&own.name) {
            return Err(refuse(format!("{path}.name"), Fault::Duplicate(own.name)));
        }
        if !matches!(own.weight, 0 | 1) {
            let fault = Fault::invalid(own.weight, "must be 1");
            return Err(refuse(format!("{path}.weight"), fault));
        }
        names.push(own.name);
    }
    Ok(names)
}

fn fit(args: FitArgs, path: &str) -> Result<Fit, ConfigError> {
    for (index, group) in args.ignored_resource_groups.iter().enumerate() {
        if group.contains('/') {
            let path = format!("{path}.ignoredResourceGroups[{index}]");
            let why = "resource group name can't contain '/'";
            return Err(refuse(path, Fault::invalid(group.as_str(), why)));
        }
    }
    let mut fit = Fit {
        ignored_resources: args.ignored_resources.into_iter().collect(),
        ignored_resource_groups: args.ignored_resource_groups.into_iter().collect(),
        ..Fit::default()
    };
    let Some(strategy) = args.scoring_strategy else {
        return Ok(fit);
    };
    let path = format!("{path}.scoringStrategy");
    let ratio_path = format!("{path}.requestedToCapacityRatio");
    fit.strategy = match strategy.kind.as_str() {
        "LeastAllocated" => ScoringStrategy::LeastAllocated,
        "MostAllocated" => ScoringStrategy::MostAllocated,
        "RequestedToCapacityRatio" => match &strategy.requested_to_capacity_ratio {
            Some(ratio) => {
                ScoringStrategy::RequestedToCapacityRatio(curve(&ratio.shape, &ratio_path)?)
            }
            None => {
                let why = "must be specified when type is RequestedToCapacityRatio";
                return Err(refuse(ratio_path, Fault::Required(why.to_owned())));
            }
        },
        other => {
            let types = [
                "LeastAllocated",
                "MostAllocated",
                "RequestedToCapacityRatio",
            ];
            let fault = Fault::unsupported(&other.into(), &types);
            return Err(refuse(format!("{path}.type"), fault));
        }
    };
    let is_ratio = matches!(fit.strategy, ScoringStrategy::RequestedToCapacityRatio(_));
    // kube-scheduler refuses the combination, because the curve would be ignored silently.
    if !is_ratio && strategy.requested_to_capacity_ratio.is_some() {
        let why = "must be nil when type is not RequestedToCapacityRatio";
        return Err(refuse(ratio_path, Fault::Forbidden(why.to_owned())));
    }
    let mut resources = Vec::new();
    for (index, own) in strategy.resources.into_iter().enumerate() {
        // A missing weight means 1.
        let weight = if own.weight == 0 { 1 } else { own.weight };
        if !(1..=100).contains(&weight) {
            let path = format!("{path}.resources[{index}].weight");
            let why = format!(
                "resource weight of {} not in valid range (0, 100]",
                own.name
            );
            return Err(refuse(path, Fault::invalid(weight, &why)));
        }
        resources.push((own.name, weight));
    }
    if !resources.is_empty() {
        fit.resources = resources;
    }
    Ok(fit)
}

fn curve(points: &[UtilizationPoint], path: &str) -> Result<Vec<(i64, i64)>, ConfigError> {
    let path = format!("{path}.shape");
    if points.is_empty() {
        let why = "at least one point must be specified";
        return Err(refuse(path, Fault::Required(why.to_owned())));
    }
    // The order is checked before the ranges, as in kube-scheduler, whose first error is reported.
    for (index, pair) in points.windows(2).enumerate() {
        if pair[0].utilization >= pair[1].utilization {
            let path = format!("{path}[{}].utilization", index + 1);
            let why = "values must be sorted in increasing order";
            return Err(refuse(path, Fault::invalid(pair[1].utilization, why)));
        }
    }
    for (index, point) in points.iter().enumerate() {
        let path = format!("{path}[{index}]");
        within(point.utilization, 0, 100, &format!("{path}.utilization"))?;
        within(point.score, 0, 10, &format!("{path}.score"))?;
    }
    let points = points.iter().map(|point| (point.utilization, point.score));
    Ok(points.collect())
}

fn spread(args: &SpreadArgs, path: &str) -> Result<DefaultSpread, ConfigError> {
    let types = ["System", "List"];
    let kind_path = format!("{path}.defaultingType");
    let listed = match args.defaulting_type.as_str() {
        "" | "System" => false,
        "List" => true,
        other => return Err(refuse(kind_path, Fault::unsupported(&other.into(), &types))),
    };
    if !listed && !args.default_constraints.is_empty() {
        let fault = Fault::invalid("System", "when .defaultConstraints are not empty");
        return Err(refuse(kind_path, fault));
    }
    let mut seen = Vec::new();
    let mut constraints = Vec::new();
    for (index, own) in args.default_constraints.iter().enumerate() {
        let path = format!("{path}.defaultConstraints[{index}]");
        let key = default_constraint(own, &path)?;
        if seen.contains(&key) {
            let (key, action) = key;
            return Err(refuse(
                path,
                Fault::Duplicate(format!("{{{key}, {action}}}")),
            ));
        }
        seen.push(key);
        constraints.push(shape::typed::<TopologySpreadConstraint>(own, &path)?);
    }
    Ok(if listed {
        DefaultSpread::List(constraints)
    } else {
        DefaultSpread::System
    })
}

/// Returns the topology key and action of a default spread constraint, if it is valid.
fn default_constraint(own: &Value, path: &str) -> Result<(String, String), ConfigError> {
    let skew = own["maxSkew"].as_i64().unwrap_or(0);
    if skew <= 0 || i32::try_from(skew).is_err() {
        let fault = Fault::invalid(skew, "not in valid range (0, inf)");
        return Err(refuse(format!("{path}.maxSkew"), fault));
    }
    let text = |field: &str| own[field].as_str().unwrap_or_default().to_owned();
    let (key, action) = (text("topologyKey"), text("whenUnsatisfiable"));
    for (field, value) in [("topologyKey", &key), ("whenUnsatisfiable", &action)] {
        if value.is_empty() {
            let fault = Fault::Required("can not be empty".to_owned());
            return Err(refuse(format!("{path}.{field}"), fault));
        }
    }
    let actions = ["DoNotSchedule", "ScheduleAnyway"];
    if !actions.contains(&action.as_str()) {
        let fault = Fault::unsupported(&action.into(), &actions);
        return Err(refuse(format!("{path}.whenUnsatisfiable"), fault));
    }
    if !own["labelSelector"].is_null() {
        let why = "constraint must not define a selector, as they deduced for each pod";
        return Err(refuse(
            format!("{path}.labelSelector"),
            Fault::Forbidden(why.to_owned()),
        ));
    }
    Ok((key, action))
}
