//! Checks node groups, pools and their classes: MUL052, MUL070, MUL072 to MUL075, MUL077 and MUL085.

use mullion_api::{
    ami::{AmiFamily, Os},
    eksctl, labels,
};
use mullion_cloud::catalogue;
use mullion_engine::images::System;
use serde_json::{Map, Value, json};

use super::{Context, builds, config_maps, label_values, resources, strings};
use crate::check::{
    eksctl::Refusal,
    finding::Findings,
    fleet::{self, Group, Source, family_of, requirement, system_of},
    path::Path,
    placeholder::{is_filled_in_later, is_placeholder},
    placement::list,
    problem::Problem,
    schemas::place,
    subject::Object,
    table::Severity,
    yaml::edit::Edit,
};

/// The rule with eksctl's own words.
const EKSCTL: &str = "MUL085";
const RESERVE: f64 = 2.0 * 1_073_741_824.0;
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn check(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    match object.kind() {
        "ClusterConfig" if object.is("ClusterConfig", "eksctl.io") => {
            builds::cluster_version(index, object, found);
            cluster(context, index, object, found);
            for (field, managed) in [("nodeGroups", false), ("managedNodeGroups", true)] {
                for (position, group) in list(&object.value[field]).enumerate() {
                    refused(
                        index,
                        &Path::of(&[field]).index(position),
                        group,
                        managed,
                        found,
                    );
                }
            }
            eksctl_refuses(index, object, found);
            not_simulated(index, object, found);
        }
        "NodePool" if object.is("NodePool", "karpenter.sh") => {
            builds::object_forms(index, object, found);
            label_values::check_pool(index, object, found);
            pool(context, index, object, found);
        }
        "EC2NodeClass" if object.is("EC2NodeClass", "karpenter.k8s.aws") => {
            reserve(index, object, found)
        }
        "Provisioner" if object.is("Provisioner", "karpenter.sh") => {
            builds::object_forms(index, object, found);
            found.add(
                "MUL077",
                index,
                Path::of(&["apiVersion"]),
                Problem::OldKarpenter { provisioner: true },
            );
        }
        "AWSNodeTemplate" if object.is("AWSNodeTemplate", "karpenter.k8s.aws") => {
            found.add(
                "MUL077",
                index,
                Path::of(&["apiVersion"]),
                Problem::OldKarpenter { provisioner: false },
            );
        }
        _ => {}
    }
}

/// Applies the rules that are the same for node groups and pools.
pub(super) fn check_groups(context: &Context<'_>, found: &mut Findings) {
    let windows_daemons = || context.windows().any(|pod| pod.kind == "DaemonSet");
    for group in &context.own.groups {
        if group.system == Some(System::Windows) {
            untainted(context, group, found);
            for name in resources::small(&group.types) {
                let problem = Problem::SmallType { name: name.clone() };
                found.add("MUL052", group.object, group.path.clone(), problem);
            }
        }
        if group.source == Source::NodePool && windows_daemons() {
            without_system(context, group, found);
        }
    }
}

/// Checks MUL070: a cluster with Windows nodes only.
fn cluster(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    let own: Vec<_> = context
        .own
        .groups
        .iter()
        .filter(|group| group.object == index)
        .collect();
    let all_windows = !own.is_empty()
        && own
            .iter()
            .all(|group| group.system == Some(System::Windows));
    // CoreDNS and other system pods are for Linux; Fargate may run them instead of a node.
    if all_windows && list(&object.value["fargateProfiles"]).next().is_none() {
        found.add("MUL070", index, own[0].path.clone(), Problem::NoLinuxGroup);
    }
}

/// Checks MUL072: untainted Windows nodes beside pods without an operating system.
fn untainted(context: &Context<'_>, group: &Group, found: &mut Findings) {
    // A Node in a manifest comes from a running cluster; its group or pool is what should have the taint.
    if group.source == Source::Node || group.taints.iter().any(|taint| taint.is_hard()) {
        return;
    }
    let Some(pod) = context
        .pods
        .iter()
        .find(|pod| context.is_open(pod) && pod.wanted() != Some(System::Windows))
    else {
        return;
    };
    let at = group.path.key("taints");
    let taint = json!({"key": "os", "value": "windows", "effect": "NoSchedule"});
    let object = &context.objects[group.object].value;
    let edit = match at.get(object) {
        // eksctl's unmanaged groups may write taints as a map, `key: value:effect`, and all else as a list.
        Some(Value::Object(_)) => Edit::Set(at.key("os"), json!("windows:NoSchedule")),
        _ => Edit::Push(at, taint),
    };
    let problem = Problem::Untainted {
        group: group.name.clone(),
        pods: context.objects[pod.object].title(),
    };
    found
        .add("MUL072", group.object, group.path.clone(), problem)
        .not_safe([edit]);
}

/// Checks MUL073: a node group that eksctl refuses.
fn refused(index: usize, at: &Path, group: &Value, managed: bool, found: &mut Findings) {
    let taints = at.key("taints");
    if let Some(map) = group["taints"].as_object() {
        let mut made = Vec::new();
        for (key, value) in map {
            let text = value.as_str().unwrap_or_default();
            if is_placeholder(text) {
                continue;
            }
            let (value, effect) = text.split_once(':').unwrap_or(("", text));
            if !EFFECTS.contains(&effect) {
                found.add(
                    "MUL073",
                    index,
                    taints.key(key),
                    Problem::Effect {
                        effect: effect.to_owned(),
                    },
                );
                continue;
            }
            let mut taint = Map::new();
            taint.insert("key".to_owned(), json!(key));
            if !value.is_empty() {
                taint.insert("value".to_owned(), json!(value));
            }
            taint.insert("effect".to_owned(), json!(effect));
            made.push(Value::Object(taint));
        }
        if managed {
            // The fix is only offered if every taint of the map could be converted.
            let whole = made.len() == map.len();
            let finding = found.add("MUL073", index, taints.clone(), Problem::TaintMap);
            if whole && !made.is_empty() {
                finding.safe([Edit::Set(taints, Value::Array(made))]);
            }
        }
    } else {
        for (position, taint) in list(&group["taints"]).enumerate() {
            let effect = taint["effect"].as_str().unwrap_or_default();
            if !EFFECTS.contains(&effect) && !is_placeholder(effect) {
                let at = taints.index(position).key("effect");
                found.add(
                    "MUL073",
                    index,
                    at,
                    Problem::Effect {
                        effect: effect.to_owned(),
                    },
                );
            }
        }
    }
    let family = group["amiFamily"].as_str().unwrap_or_default();
    let read = match family {
        // eksctl takes its default family.
        "" => Ok(AmiFamily::AmazonLinux2023),
        name => name.parse::<AmiFamily>(),
    };
    let is_windows = matches!(read, Ok(family) if family.os() == Os::Windows);
    match read {
        Err(_) if is_placeholder(family) => {}
        Err(refusal) => {
            let problem = Problem::Family { refusal };
            found.add("MUL073", index, at.key("amiFamily"), problem);
        }
        Ok(family) => unfit_types(index, at, group, family, found),
    }
    if !managed && is_windows && !group["kubeletExtraConfig"].is_null() {
        found.add(
            "MUL073",
            index,
            at.key("kubeletExtraConfig"),
            Problem::KubeletConfig,
        );
    }
}

/// Checks MUL085: what eksctl refuses and no other finding says.
fn eksctl_refuses(index: usize, object: &Object, found: &mut Findings) {
    for refusal in crate::check::eksctl::refusals(&object.value) {
        let is_found = found
            .0
            .iter()
            .any(|own| own.object == index && own.at == refusal.at && own.rule.id != EKSCTL);
        if is_found {
            continue;
        }
        let by = refusal.command();
        let Refusal { at, words } = refusal;
        found.add(EKSCTL, index, at, Problem::EksctlRefuses { by, words });
    }
}

/// Reports for what else `mullion up` refuses the file.
fn not_simulated(index: usize, object: &Object, found: &mut Findings) {
    /// eksctl's fields are a table of their own, which says more of unknown ones and of types ([`super::fields`]).
    const UNKNOWN: &str = "unknown field";
    let of_types = eksctl::fields::faults(&object.value).into_iter();
    let of_types: Vec<_> = of_types.map(|fault| Path::of_eksctl(fault.path)).collect();
    for mistake in eksctl::Cluster::mistakes(&object.value) {
        let at = place(&object.value, &mistake.path);
        let is_found = found
            .0
            .iter()
            .any(|own| own.object == index && own.at == at);
        let is_of_family = mistake.path.ends_with(".amiFamily");
        let value = at.get(&object.value).unwrap_or(&Value::Null);
        let is_open = is_filled_in_later(value) || is_placeholder(&mistake.message);
        let is_said = is_of_family || is_found || of_types.contains(&at);
        if mistake.message == UNKNOWN || is_said || is_open {
            continue;
        }
        let problem = Problem::NotSimulated { mistake };
        found.add("MUL073", index, at, problem).as_a(Severity::Warn);
    }
}

/// Reports the instance types of a node group that cannot run its images.
fn unfit_types(index: usize, at: &Path, group: &Value, family: AmiFamily, found: &mut Findings) {
    for (at, name) in fleet::eksctl_types(group, at) {
        // Types that the catalogue does not know may run it.
        if catalogue::get(name).is_some_and(|known| !known.runs(family.os())) {
            let name = name.to_owned();
            found.add("MUL073", index, at, Problem::CannotRun { name, family });
        }
    }
}

/// Checks MUL074: a Windows NodePool that buys nothing or the wrong nodes.
fn pool(context: &Context<'_>, index: usize, object: &Object, found: &mut Findings) {
    let spec = &object.value["spec"]["template"]["spec"];
    let at = Path::of(&["spec", "template", "spec"]);
    let requirements = at.key("requirements");
    let class_name = spec["nodeClassRef"]["name"].as_str().unwrap_or_default();
    let class = context
        .objects
        .iter()
        .find(|own| own.is("EC2NodeClass", "karpenter.k8s.aws") && own.name() == class_name);
    let family = class.and_then(|class| family_of(&class.value));
    let systems = requirement(spec, labels::OS);
    let required = systems
        .as_ref()
        .and_then(|systems| match systems.as_slice() {
            [one] => System::of_label(one),
            _ => None,
        });
    if let (Some(required), Some(family)) = (required, family.filter(|_| required.is_some()))
        && system_of(family) != required
    {
        let problem = Problem::FamilyAgainstPool {
            class: class_name.to_owned(),
            family: system_of(family),
            required,
        };
        found.add("MUL074", index, requirements.clone(), problem);
    }
    let windows = required.or(family.map(system_of)) == Some(System::Windows);
    if !windows {
        return;
    }
    if requirement(spec, labels::ARCH).is_some_and(|own| own.iter().all(|own| own == "arm64")) {
        found.add("MUL074", index, requirements.clone(), Problem::PoolOnArm);
    }
    if spec["nodeClassRef"]["group"] == "eks.amazonaws.com" {
        found.add("MUL074", index, at.key("nodeClassRef"), Problem::AutoMode);
    }
    // Types that the catalogue does not know may have what Windows needs, so nothing is reported about them.
    let types = requirement(spec, labels::INSTANCE_TYPE).unwrap_or_default();
    let known: Option<Vec<_>> = types.iter().map(|name| catalogue::get(name)).collect();
    let known = known.unwrap_or_default();
    if !known.is_empty() && known.iter().all(|own| !own.windows_capable) {
        found.add(
            "MUL074",
            index,
            requirements,
            Problem::NoWindowsTypes {
                types: types.join(", "),
            },
        );
    } else if config_maps::prefixes(context.objects)
        && !known.is_empty()
        && known.iter().all(|own| !own.windows_prefix_delegation)
    {
        found.add(
            "MUL074",
            index,
            requirements,
            Problem::NoPrefixTypes {
                types: types.join(", "),
            },
        );
    }
}

/// Checks MUL075: a NodePool without an operating system beside Windows DaemonSets.
fn without_system(context: &Context<'_>, group: &Group, found: &mut Findings) {
    let object = &context.objects[group.object];
    let spec = &object.value["spec"]["template"]["spec"];
    let requirements = group.path.key("requirements");
    if list(&spec["requirements"]).any(|own| own["key"] == labels::OS) {
        return;
    }
    let finding = found.add(
        "MUL075",
        group.object,
        requirements.clone(),
        Problem::PoolWithoutSystem {
            pool: group.name.clone(),
        },
    );
    if let Some(system) = group.system {
        let requirement = json!({"key": labels::OS, "operator": "In", "values": [system.as_str()]});
        finding.safe([Edit::Push(requirements, requirement)]);
    }
}

/// Checks MUL052 for a node class: Windows nodes that reserve less than 2 GiB for the system.
fn reserve(index: usize, object: &Object, found: &mut Findings) {
    let windows =
        family_of(&object.value).is_some_and(|family| system_of(family) == System::Windows);
    let kubelet = &object.value["spec"]["kubelet"];
    if !windows || resources::reserved(kubelet) >= RESERVE {
        return;
    }
    let at = Path::of(&["spec", "kubelet"]);
    let edits = [
        Edit::Set(at.keys(&["systemReserved", "memory"]), json!("1.5Gi")),
        Edit::Set(at.keys(&["kubeReserved", "memory"]), json!("0.5Gi")),
    ];
    let finding = found.add("MUL052", index, at, Problem::SmallReserve);
    // An existing reserve was chosen on purpose, so the fix only adds a missing one.
    if kubelet["systemReserved"]["memory"].is_null() && kubelet["kubeReserved"]["memory"].is_null()
    {
        finding.not_safe(edits);
    }
}

/// Returns whether an aws-auth mapping has a group.
pub(super) fn has_group(mapping: &Value, group: &str) -> bool {
    strings(&mapping["groups"]).any(|own| own == group)
}
