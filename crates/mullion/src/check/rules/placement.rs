//! Checks the placement of pods: MUL001 to MUL013.

use mullion_api::labels;
use mullion_engine::images::System;
use serde_json::{Value, json};

use super::{Context, deprecated, label_values, strings};
use crate::check::{
    finding::Findings,
    path::Path,
    placement::{Choice, SelectingField, Taint, list},
    problem::{Image, LabelEffect, Problem},
    subject::Pod,
    table::Severity,
    yaml::edit::Edit,
};

pub(super) const REQUIRED: [&str; 4] = [
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
];
pub(super) const PREFERRED: [&str; 3] = [
    "affinity",
    "nodeAffinity",
    "preferredDuringSchedulingIgnoredDuringExecution",
];

/// A term of a pod's node affinity.
pub(super) struct AffinityTerm<'a> {
    pub(super) path: Path,
    pub(super) value: &'a Value,
    /// What a label value leads to that the term requires and no node has.
    pub(super) otherwise: LabelEffect,
}

/// Returns the terms of a pod's node affinity, required ones first.
pub(super) fn affinity_terms<'a>(pod: &Pod<'a>) -> Vec<AffinityTerm<'a>> {
    let affinity = &pod.spec["affinity"]["nodeAffinity"];
    let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let preferred = &affinity["preferredDuringSchedulingIgnoredDuringExecution"];
    let at = pod.at(&REQUIRED);
    let otherwise = match list(required).count() {
        1 => LabelEffect::Pending,
        // Terms are alternatives.
        _ => LabelEffect::OtherTermsCount,
    };
    let required = list(required)
        .enumerate()
        .map(|(index, value)| AffinityTerm {
            path: at.index(index),
            value,
            otherwise,
        });
    let at = pod.at(&PREFERRED);
    let preferred = list(preferred)
        .enumerate()
        .map(|(index, term)| AffinityTerm {
            path: at.index(index).key("preference"),
            value: &term["preference"],
            otherwise: LabelEffect::NotPreferred,
        });
    required.chain(preferred).collect()
}

pub(super) fn check(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    no_system(context, pod, found);
    contradiction(pod, found);
    taints(context, pod, found);
    deprecated::check(pod, found);
    label_values::check(pod, found);
    os_name(context, pod, found);
    affinity(context, pod, found);
    spread(context, pod, found);
}

/// Returns the change that makes a pod select an operating system.
fn select(pod: &Pod<'_>, system: System) -> Edit {
    Edit::Set(
        pod.at(&["nodeSelector", labels::OS]),
        json!(system.as_str()),
    )
}

/// Reports MUL004: a DaemonSet whose images are for one operating system, but whose pods go to every node.
fn daemon_everywhere(pod: &Pod<'_>, system: System, found: &mut Findings) {
    let image = Image::of(pod.only_of(system));
    let problem = Problem::DaemonEverywhere { image, system };
    found
        .add("MUL004", pod.object, pod.at(&[]), problem)
        .safe([select(pod, system)]);
}

/// Checks MUL001, MUL002, MUL004 and MUL005: pods that select no operating system.
fn no_system(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    if !context.is_open(pod)
        // A pod with a fixed node is placed already. A Windows image is reported all the same, because EKS's
        // address webhook reads the node selector only.
        || pod.spec["nodeName"].is_string() && pod.wanted() != Some(System::Windows)
    {
        return;
    }
    let at = pod.at(&[]);
    let everything = pod.placement.tolerates_everything();
    let reaches = || {
        let known = context.fleet.windows().next().is_some();
        if known {
            context.fleet.reachable(&pod.placement).next().is_some()
        } else {
            // Without known nodes, other signs of Windows suffice for a warning.
            context.mixed && !context.fleet.complete
        }
    };
    match (pod.wanted(), pod.kind) {
        (Some(System::Windows), "DaemonSet") => daemon_everywhere(pod, System::Windows, found),
        (Some(System::Windows), _) => {
            let container = pod.only_of(System::Windows);
            let image = Image::of(container);
            found
                .add("MUL001", pod.object, at, Problem::MayLandOnLinux { image })
                .safe([select(pod, System::Windows)]);
        }
        (Some(System::Linux), _) if everything && reaches() => {
            let tolerations = pod.at(&["tolerations"]);
            let image = Image::of(pod.only_of(System::Linux));
            found
                .add(
                    "MUL005",
                    pod.object,
                    tolerations,
                    Problem::ToleratesEverything { image },
                )
                .safe([select(pod, System::Linux)]);
        }
        (Some(System::Linux), "DaemonSet") if reaches() => {
            daemon_everywhere(pod, System::Linux, found);
        }
        (wanted, _) => {
            // An image for both operating systems may run on any node.
            let known = pod
                .containers
                .iter()
                .all(|container| container.fact.is_some());
            let group = context.fleet.reachable(&pod.placement).next();
            let Some(group) = group.filter(|_| wanted.is_some() || !known) else {
                return;
            };
            let image = wanted.map(|system| Image::of(pod.only_of(system)));
            let unknown = pod
                .containers
                .iter()
                .find(|container| container.fact.is_none());
            let group = group.name.clone();
            match image {
                Some(image) => found
                    .add(
                        "MUL002",
                        pod.object,
                        at,
                        Problem::NearWindows {
                            image,
                            group,
                            known: true,
                        },
                    )
                    .safe([select(pod, System::Linux)]),
                None => found
                    .add(
                        "MUL002",
                        pod.object,
                        at,
                        Problem::NearWindows {
                            image: Image::of(unknown),
                            group,
                            known: false,
                        },
                    )
                    // Nothing is known against the pod, so this is a hint and no warning.
                    .as_a(Severity::Info),
            };
        }
    }
}

/// Checks MUL003: an image that contradicts the selected operating system or architecture, or another image of the pod.
fn contradiction(pod: &Pod<'_>, found: &mut Findings) {
    if let Choice::One(system) = pod.placement.os {
        for container in &pod.containers {
            let Some(fact) = container.fact.as_ref().filter(|fact| !fact.has(system)) else {
                continue;
            };
            let at = container.path.key("image");
            let wants = fact.runs.first().map_or(system.other(), |runs| runs.system);
            found.add(
                "MUL003",
                pod.object,
                at,
                Problem::WrongSystem {
                    image: Image::of(Some(container)),
                    wants,
                    chosen: system,
                },
            );
        }
        let arm = pod
            .placement
            .architectures
            .as_ref()
            .is_some_and(|own| own.iter().all(|own| own == "arm64"));
        if system == System::Windows && arm {
            found.add(
                "MUL003",
                pod.object,
                pod.at(&["nodeSelector"]),
                Problem::WindowsOnArm,
            );
        }
    } else if let (Some(linux), Some(windows)) =
        (pod.only_of(System::Linux), pod.only_of(System::Windows))
    {
        let at = linux.path.key("image");
        found.add(
            "MUL003",
            pod.object,
            at,
            Problem::TwoSystems {
                linux: Image::of(Some(linux)),
                windows: Image::of(Some(windows)),
            },
        );
    }
    let Some(chosen) = pod.placement.architectures.as_ref() else {
        return;
    };
    for container in &pod.containers {
        let Some(fact) = container.fact.as_ref() else {
            continue;
        };
        let own: Option<Vec<_>> = fact
            .runs
            .iter()
            .map(|runs| runs.architecture.clone())
            .collect();
        if let Some(own) = own.filter(|own| !own.iter().any(|own| chosen.contains(own))) {
            let problem = Problem::WrongArchitecture {
                image: Image::of(Some(container)),
                has: own.join(", "),
                chosen: chosen.join(", "),
            };
            found.add("MUL003", pod.object, container.path.key("image"), problem);
        }
    }
}

/// Checks MUL006: a Windows pod that tolerates no taint of the Windows nodes.
fn taints(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    if pod.placement.os != Choice::One(System::Windows) || pod.spec["nodeName"].is_string() {
        return;
    }
    let windows: Vec<_> = context.fleet.windows().collect();
    let at = pod.at(&["tolerations"]);
    let tolerate = |taint: &Taint| {
        let toleration = if taint.value.is_empty() {
            json!({"key": taint.key, "operator": "Exists", "effect": taint.effect})
        } else {
            json!({"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect})
        };
        Edit::Push(at.clone(), toleration)
    };
    if windows.is_empty() {
        let usual = Taint::usual();
        if !context.fleet.complete && !pod.placement.tolerates(&usual) {
            let fix = tolerate(&usual);
            found
                .add(
                    "MUL006",
                    pod.object,
                    at.clone(),
                    Problem::UsualTaint {
                        taint: usual.to_string(),
                    },
                )
                .as_a(Severity::Warn)
                .safe([fix]);
        }
        return;
    }
    if context.fleet.reachable(&pod.placement).next().is_some() {
        return;
    }
    // Only taints that all Windows groups have are tolerated by the fix; which of the others to tolerate is the owner's choice.
    let hard = |taint: &&Taint| taint.is_hard() && !pod.placement.tolerates(taint);
    let everywhere = |taint: &&Taint| windows.iter().all(|group| group.taints.contains(taint));
    let common: Vec<_> = windows[0]
        .taints
        .iter()
        .filter(hard)
        .filter(everywhere)
        .collect();
    let first = windows[0].taints.iter().find(hard);
    let named = common
        .first()
        .copied()
        .or(first)
        .map(ToString::to_string)
        .unwrap_or_default();
    let edits: Vec<_> = common.iter().map(|taint| tolerate(taint)).collect();
    let finding = found.add(
        "MUL006",
        pod.object,
        at.clone(),
        Problem::Untolerated {
            taint: named,
            groups: windows.len(),
        },
    );
    if !edits.is_empty() {
        finding.safe(edits);
    }
}

/// Checks MUL008 and MUL009: `spec.os.name` is missing, stands alone, or contradicts the selected operating system.
fn os_name(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    let at = pod.at(&["os", "name"]);
    match (pod.named(), pod.placement.os) {
        (Some(named), Choice::One(chosen)) if named != chosen => {
            found.add(
                "MUL009",
                pod.object,
                at,
                Problem::OsNameAgainstChoice { named, chosen },
            );
        }
        // Another rule has a more specific finding for Windows images.
        (Some(named), Choice::Open)
            if context.is_open(pod)
                && (named == System::Windows || context.mixed)
                && pod.wanted() != Some(System::Windows) =>
        {
            found.add("MUL008", pod.object, at, Problem::OsNameAlone { named });
        }
        (None, Choice::One(System::Windows))
            if pod.spec["os"].is_null() && pod.all_of(System::Windows) =>
        {
            let finding = found.add(
                "MUL008",
                pod.object,
                pod.at(&["os"]),
                Problem::OsNameMissing,
            );
            // With such fields the API server would refuse the fixed pod.
            if super::pod_spec::forbidden(pod).is_empty() {
                finding.safe([Edit::Set(at, json!("windows"))]);
            }
        }
        _ => {}
    }
}

/// Checks MUL010 and MUL011: affinity that EKS's address webhook does not see, or that is only preferred.
fn affinity(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    let by = pod.placement.by;
    if pod.placement.os == Choice::One(System::Windows)
        && matches!(by, Some(SelectingField::Affinity | SelectingField::Build))
        && !pod.host_network()
        && !pod.requests_address()
    {
        let at = match by {
            Some(SelectingField::Affinity) => pod.at(&REQUIRED),
            _ => pod.at(&["nodeSelector"]),
        };
        found
            .add(
                "MUL010",
                pod.object,
                at,
                Problem::WebhookIsBlind {
                    by_build: by == Some(SelectingField::Build),
                },
            )
            .safe([select(pod, System::Windows)]);
    }
    if !context.is_open(pod) {
        return;
    }
    let preferred =
        &pod.spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    for (index, term) in list(preferred).enumerate() {
        let mut expressions = list(&term["preference"]["matchExpressions"]);
        let expression = expressions.find(|own| {
            own["operator"] == "In" && (own["key"] == labels::OS || own["key"] == labels::BETA_OS)
        });
        let values: Vec<_> = expression
            .into_iter()
            .flat_map(|own| strings(&own["values"]))
            .collect();
        let [value] = values.as_slice() else {
            continue;
        };
        let Some(system) =
            System::of_label(value).filter(|system| *system == System::Windows || context.mixed)
        else {
            continue;
        };
        let at = pod.at(&PREFERRED).index(index);
        found
            .add("MUL011", pod.object, at, Problem::OnlyPreferred { system })
            .not_safe([select(pod, system)]);
    }
}

/// Checks MUL012: a topology spread that counts nodes the pod cannot use.
fn spread(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    if !context.is_open(pod) || pod.wanted() == Some(System::Windows) {
        return;
    }
    let kept_off = |group: &&crate::check::fleet::Group| {
        group
            .taints
            .iter()
            .any(|taint| taint.is_hard() && !pod.placement.tolerates(taint))
    };
    let Some(group) = context.fleet.windows().find(kept_off) else {
        return;
    };
    for (index, constraint) in list(&pod.spec["topologySpreadConstraints"]).enumerate() {
        if constraint["nodeTaintsPolicy"] == "Honor"
            || constraint["whenUnsatisfiable"] == "ScheduleAnyway"
        {
            continue;
        }
        let at = pod.at(&["topologySpreadConstraints"]).index(index);
        let edit = Edit::Set(at.key("nodeTaintsPolicy"), json!("Honor"));
        let key = constraint["topologyKey"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        found
            .add(
                "MUL012",
                pod.object,
                at,
                Problem::CountsTainted {
                    key,
                    group: group.name.clone(),
                },
            )
            .not_safe([edit]);
    }
}
