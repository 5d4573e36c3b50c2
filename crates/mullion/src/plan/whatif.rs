//! Implements the what-if flags, which change the question before it is asked again.
//!
//! NodePools are changed as objects, so that the consequences of a change are computed as for any pool. A change that cannot be made (a
//! pool that does not exist, instance types that are not sold) is an input error; it is never ignored.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mullion_api::labels;
use mullion_cloud::catalogue;
use mullion_engine::model::{PodSpec, WhenUnsatisfiable};
use serde_json::{Value, json};

use super::{
    input::{Input, documents_of},
    scale::{self, Scale},
};
use crate::{
    failure::Failure,
    why::{pod_owner::PodOwner, template::put},
};

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// When spot capacity is bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Spot {
    /// On demand only.
    Never,
    /// Spot only.
    Only,
}

/// What may be otherwise.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "What if (two plans side by side)")]
pub(crate) struct WhatIf {
    /// There were these NodePools and EC2NodeClasses too, or in place of those of their names; may be repeated
    #[arg(long, value_name = "FILE")]
    add_pool: Vec<PathBuf>,

    /// There were no NodePool of that name; may be repeated
    #[arg(long, value_name = "NAME")]
    drop_pool: Vec<String>,

    /// All pools bought these types only: names with `*`, with commas between
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    types: Vec<String>,

    /// No pool bought these types
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    without_types: Vec<String>,

    /// All pools bought in these zones only: names or their last letters, with commas between
    #[arg(long, value_name = "ZONES", value_delimiter = ',')]
    zones: Vec<String>,

    /// All pools bought on demand only, or spot only, whatever they say
    #[arg(long, value_enum, value_name = "WHEN")]
    spot: Option<Spot>,

    /// Windows nodes gave pods addresses from prefixes, or one by one
    #[arg(long, value_enum, value_name = "ON|OFF")]
    prefix_delegation: Option<Switch>,

    /// Pods had no preferences: preferred affinities, spread with ScheduleAnyway
    #[arg(long)]
    ignore_preferences: bool,

    /// A workload had so many pods, as in `deployment/web=200`; may be repeated
    #[arg(long, value_name = "KIND/NAME=N", value_parser = Scale::parse)]
    scale: Vec<Scale>,

    /// There were these DaemonSets too; may be repeated
    #[arg(long, value_name = "FILE")]
    daemon: Vec<PathBuf>,

    /// There were these NodeOverlays too, or in place of those of their names; may be repeated
    #[arg(long, value_name = "FILE")]
    overlay: Vec<PathBuf>,
}

impl WhatIf {
    /// Returns whether a flag makes new pods.
    pub(super) fn makes_pods(&self) -> bool {
        !self.scale.is_empty() || !self.daemon.is_empty()
    }

    /// Returns the workloads that have another number of pods.
    pub(super) fn scaled(&self, namespace: Option<&str>) -> Vec<PodOwner> {
        let scaled = self.scale.iter().map(|scale| scale.owner(namespace));
        scaled.collect()
    }

    /// Applies the changes to the question and describes each as a sentence. Returns an empty list if no flag was given.
    ///
    /// # Errors
    /// A change cannot be made, or a file cannot be read.
    pub(super) async fn apply(
        &self,
        input: &mut Input,
        namespace: Option<&str>,
    ) -> Result<Vec<String>, Failure> {
        let mut words = Vec::new();
        // First, so that the flags about all pools also change those that are added here.
        self.pools(input, namespace, &mut words).await?;
        if !self.daemon.is_empty() {
            let documents = documents_of("--daemon", &self.daemon, namespace, &["DaemonSet"])?;
            for document in &documents {
                words.push(format!("with DaemonSet {}", name_of(&document.object)));
            }
            input.apply(documents, namespace).await?;
        }
        if !self.overlay.is_empty() {
            let documents = documents_of("--overlay", &self.overlay, namespace, &["NodeOverlay"])?;
            for document in &documents {
                words.push(format!("with NodeOverlay {}", name_of(&document.object)));
            }
            input.apply(documents, namespace).await?;
        }
        for own in &self.scale {
            words.push(scale::apply(own, input, namespace).await?);
        }
        self.types(input, &mut words)?;
        self.places(input, &mut words)?;
        if let Some(switch) = self.prefix_delegation {
            let value = match switch {
                Switch::On => "true",
                Switch::Off => "false",
            };
            set_prefixes(input, value)?;
            let verb = if switch == Switch::On {
                "with"
            } else {
                "without"
            };
            words.push(format!("{verb} prefix delegation on Windows nodes"));
        }
        if self.ignore_preferences {
            let waiting = input.source.state.pods.iter_mut();
            // Pods that have a node keep their preferences: they are not placed again, and what they ask for
            // counts for others.
            let waiting = waiting.filter(|pod| pod.node_name.is_none());
            waiting
                .chain(&mut input.coming)
                .for_each(forget_preferences);
            words.push("pods have no preferences".to_owned());
        }
        Ok(words)
    }

    async fn pools(
        &self,
        input: &mut Input,
        namespace: Option<&str>,
        words: &mut Vec<String>,
    ) -> Result<(), Failure> {
        if !self.add_pool.is_empty() {
            let kinds = ["NodePool", "EC2NodeClass"];
            let documents = documents_of("--add-pool", &self.add_pool, namespace, &kinds)?;
            for document in &documents {
                let object = &document.object;
                let kind = object["kind"].as_str().unwrap_or_default();
                if kind == "NodePool" {
                    input.added_pools.push(name_of(object).to_owned());
                }
                words.push(format!("with {kind} {}", name_of(object)));
            }
            input.apply(documents, namespace).await?;
        }
        for name in &self.drop_pool {
            let state = &mut input.source.state;
            if !state.forget("NodePool", name) {
                return Err(no_such_pool(name, state.names_of("NodePool")));
            }
            words.push(format!("without NodePool {name}"));
        }
        Ok(())
    }

    fn types(&self, input: &mut Input, words: &mut Vec<String>) -> Result<(), Failure> {
        let sets = [
            ("--types", "In", &self.types, "types"),
            (
                "--without-types",
                "NotIn",
                &self.without_types,
                "without types",
            ),
        ];
        for (flag, operator, patterns, said) in sets {
            if patterns.is_empty() {
                continue;
            }
            let mut found: Vec<&str> = Vec::new();
            for pattern in patterns {
                let before = found.len();
                let names = catalogue::all().iter().map(|kind| &*kind.name);
                found.extend(names.filter(|name| is_like(pattern, name)));
                if found.len() == before {
                    return Err(Failure::input(format!("{flag} {pattern}: no such type"))
                        .hint("a pattern is a whole name with * for any letters: m7* or *.large"));
                }
            }
            found.sort_unstable();
            found.dedup();
            let own = json!({"key": labels::INSTANCE_TYPE, "operator": operator, "values": found});
            require(input, &own);
            words.push(format!("{said} {}", patterns.join(", ")));
        }
        Ok(())
    }

    fn places(&self, input: &mut Input, words: &mut Vec<String>) -> Result<(), Failure> {
        if !self.zones.is_empty() {
            let known = zones(input)?;
            let mut chosen = Vec::new();
            for name in &self.zones {
                let is_meant = |zone: &&String| **zone == *name || is_letter_of(name, zone);
                let zone = known.iter().find(is_meant).ok_or_else(|| {
                    Failure::input(format!("--zones {name}: no node class has a subnet there"))
                        .hint(format!("there are {}", known.join(", ")))
                })?;
                chosen.push(zone.clone());
            }
            words.push(format!("zones {}", chosen.join(", ")));
            let own = json!({"key": labels::ZONE, "operator": "In", "values": chosen});
            require(input, &own);
        }
        if let Some(spot) = self.spot {
            let (value, said) = match spot {
                Spot::Never => (labels::ON_DEMAND, "no spot capacity"),
                Spot::Only => (labels::SPOT, "only spot capacity"),
            };
            let own = json!({"key": labels::CAPACITY_TYPE, "operator": "In", "values": [value]});
            each_requirements(input, |requirements| {
                // The option replaces what a pool says about capacity types, where another requirement would only narrow it.
                requirements.retain(|other| other["key"] != labels::CAPACITY_TYPE);
                requirements.push(own.clone());
            });
            words.push(said.to_owned());
        }
        Ok(())
    }
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn no_such_pool<'a>(name: &str, pools: impl Iterator<Item = &'a str>) -> Failure {
    let pools: Vec<_> = pools.collect();
    let failure = Failure::input(format!("--drop-pool {name}: there is no such NodePool"));
    if pools.is_empty() {
        failure.hint("there are no NodePools at all")
    } else {
        failure.hint(format!("there are {}", pools.join(", ")))
    }
}

/// Adds a requirement to every NodePool.
fn require(input: &mut Input, own: &Value) {
    each_requirements(input, |requirements| requirements.push(own.clone()));
}

fn each_requirements(input: &mut Input, mut change: impl FnMut(&mut Vec<Value>)) {
    input.source.state.edit("NodePool", |pool| {
        let spec = &mut pool["spec"]["template"]["spec"];
        if spec["requirements"].is_null() {
            put(spec, "requirements", json!([]));
        }
        if let Some(requirements) = spec["requirements"].as_array_mut() {
            change(requirements);
        }
    });
}

/// Returns the zones in which the node classes have subnets, or all zones of the usual region if no class has any yet.
fn zones(input: &Input) -> Result<Vec<String>, Failure> {
    let classes: Vec<Value> = input
        .source
        .state
        .kept("EC2NodeClass")
        .map_err(Failure::input)?;
    let subnets = classes
        .iter()
        .filter_map(|class| class["status"]["subnets"].as_array());
    let zones = subnets
        .flatten()
        .filter_map(|subnet| subnet["zone"].as_str());
    let mut zones: Vec<String> = zones.map(str::to_owned).collect();
    if zones.is_empty() {
        let region = crate::why::pools::USUAL_REGION;
        zones = ["a", "b", "c"]
            .map(|letter| format!("{region}{letter}"))
            .into();
    }
    zones.sort();
    zones.dedup();
    Ok(zones)
}

/// Returns whether a name is the last letter of a zone.
fn is_letter_of(name: &str, zone: &str) -> bool {
    name.len() == 1 && zone.ends_with(name)
}

/// Returns whether a name matches a pattern, in which `*` stands for any characters.
fn is_like(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(start) else {
        return false;
    };
    (0..=name.len()).any(|from| name.is_char_boundary(from) && is_like(rest, &name[from..]))
}

/// Sets how Windows nodes get addresses in the ConfigMap of the VPC resource controller; creates the ConfigMap with Windows IP management
/// on if it is missing.
fn set_prefixes(input: &mut Input, value: &str) -> Result<(), Failure> {
    let mut config =
        match input
            .source
            .state
            .kept_object("ConfigMap", "kube-system", "amazon-vpc-cni")
        {
            Some(config) => config.clone(),
            None => json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "amazon-vpc-cni", "namespace": "kube-system"},
                "data": {"enable-windows-ipam": "true"},
            }),
        };
    // Objects of a typed list come without their kind, by which `take` decides where they belong.
    put(&mut config, "kind", json!("ConfigMap"));
    put(
        &mut config["data"],
        "enable-windows-prefix-delegation",
        json!(value),
    );
    crate::why::world::take(&mut input.source.state, &config)
}

fn forget_preferences(pod: &mut PodSpec) {
    let affinity = &mut pod.template.affinity;
    if let Some(nodes) = &mut affinity.node_affinity {
        nodes.preferred.clear();
    }
    let pods = [&mut affinity.pod_affinity, &mut affinity.pod_anti_affinity];
    for pods in pods.into_iter().flatten() {
        pods.preferred.clear();
    }
    let spread = &mut pod.template.topology_spread_constraints;
    // ScheduleAnyway is a preference as well, only spelt as a constraint.
    spread.retain(|own| own.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name, expected) in [
            ("m7*", "m7a.large", true),
            ("m7*", "m6a.large", false),
            ("*.large", "m7a.large", true),
            ("*.large", "m7a.xlarge", false),
            ("m*.l*e", "m7a.large", true),
            ("m7a.large", "m7a.large", true),
            ("m7a", "m7a.large", false),
            ("*", "m7a.large", true),
        ] {
            assert_eq!(is_like(pattern, name), expected, "{pattern} {name}");
        }
    }
}
