//! Checks Windows builds and images: MUL020 to MUL027.

use mullion_api::labels;
use mullion_engine::{images::System, windows::Build};
use serde_json::{Value, json};

use super::{Context, strings};
use crate::check::{
    finding::Findings,
    images::{has_tag, is_latest, repository},
    path::Path,
    placement::{Choice, list},
    problem::{Image, Problem, joined},
    subject::{Container, Object, Pod},
    yaml::edit::Edit,
};

/// The builds that EKS has nodes with.
const HOSTS: [Build; 3] = [Build::SERVER_2019, Build::SERVER_2022, Build::SERVER_2025];
/// The build numbers that Microsoft does not support any more.
const ENDED: [u32; 6] = [14_393, 17_134, 18_362, 18_363, 19_041, 19_042];
/// The first minor version of Kubernetes for which EKS has nodes with Windows Server 2025.
const FIRST_2025: u32 = 35;
const LARGE: u64 = 1_000_000_000;
const VERY_LARGE: u64 = 5_000_000_000;
/// The base images of Microsoft that have no tag `latest`.
const BASES: [&str; 4] = [
    "mcr.microsoft.com/windows/servercore",
    "mcr.microsoft.com/windows/nanoserver",
    "mcr.microsoft.com/windows/server",
    "mcr.microsoft.com/windows",
];
/// The base images that are on the disk of no AMI.
const HUGE: [&str; 2] = [
    "mcr.microsoft.com/windows/server",
    "mcr.microsoft.com/windows",
];

pub(super) fn check(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    forms(&pod.at(&[]), pod.spec, pod.object, found);
    if !pod.is_windows() && pod.wanted() != Some(System::Windows) {
        return;
    }
    selected_build(context, pod, found);
    for container in pod.containers.iter().filter(|own| {
        own.fact
            .as_ref()
            .is_some_and(|fact| fact.has(System::Windows))
    }) {
        image(context, pod, container, found);
    }
}

/// Checks MUL020 and MUL021: the pod's images run on the selected Windows build, and a build is selected if the cluster's nodes have
/// several.
fn selected_build(context: &Context<'_>, pod: &Pod<'_>, found: &mut Findings) {
    // A HostProcess container is not bound to the build of its host.
    let bound = |container: &&Container<'_>| {
        !container.host_process
            && container
                .fact
                .as_ref()
                .is_some_and(|fact| fact.builds().is_some())
    };
    let containers: Vec<_> = pod.containers.iter().filter(bound).collect();
    let fits = |container: &Container<'_>, host: Build| {
        container
            .fact
            .as_ref()
            .is_none_or(|fact| fact.runs_on(host, &context.builds))
    };
    let all_fit = |host: &Build| containers.iter().all(|container| fits(container, *host));
    match &pod.placement.builds {
        Some(selected) => {
            let hosts: Option<Vec<Build>> = selected.iter().map(|text| text.parse().ok()).collect();
            // A build in the wrong form is MUL022, and what it was meant to be is not certain.
            let Some(hosts) = hosts else {
                return;
            };
            let Some(container) = containers
                .iter()
                .find(|container| !hosts.iter().any(|host| fits(container, *host)))
            else {
                return;
            };
            let problem = Problem::WrongBuild {
                image: Image::of(Some(container)),
                needs: builds_of(container),
                selected: selected.join(", "),
            };
            let finding = found.add("MUL020", pod.object, container.path.key("image"), problem);
            let fitting: Vec<_> = HOSTS.iter().filter(|host| all_fit(host)).collect();
            let at = pod.at(&["nodeSelector", labels::WINDOWS_BUILD]);
            // A fix needs a single build that fits, and a node selector whose value it can replace.
            if let [one] = fitting.as_slice()
                && pod.spec["nodeSelector"]
                    .get(labels::WINDOWS_BUILD)
                    .is_some()
            {
                finding.safe([Edit::Set(at, json!(one.to_string()))]);
            }
        }
        None if pod.placement.os == Choice::One(System::Windows) => {
            let hosts = if context.fleet.windows().all(|group| group.build.is_some()) {
                // With a group of unknown build it is unknown where the pod may land.
                context.fleet.builds()
            } else {
                return;
            };
            let (good, bad): (Vec<&Build>, Vec<&Build>) =
                hosts.iter().partition(|host| all_fit(host));
            let Some(container) = containers
                .iter()
                .find(|container| bad.iter().any(|host| !fits(container, **host)))
            else {
                return;
            };
            // If not all nodes of the cluster are known, another node may fit.
            if good.is_empty() && !context.fleet.complete {
                return;
            }
            // Placement from images adds the builds on which all images run.
            if !good.is_empty() && context.is_placed(pod) {
                return;
            }
            let problem = Problem::AnyBuild {
                image: Image::of(Some(container)),
                needs: builds_of(container),
                lands: joined(bad.iter().map(ToString::to_string), "or"),
                none: good.is_empty(),
            };
            let finding = found.add("MUL021", pod.object, container.path.key("image"), problem);
            match good.as_slice() {
                [] => {}
                [one] => {
                    let at = pod.at(&["nodeSelector", labels::WINDOWS_BUILD]);
                    finding.safe([Edit::Set(at, json!(one.to_string()))]);
                }
                several => {
                    let values: Vec<_> = several.iter().map(ToString::to_string).collect();
                    finding.safe(require(
                        pod,
                        &json!({"key": labels::WINDOWS_BUILD, "operator": "In", "values": values}),
                    ));
                }
            }
        }
        None => {}
    }
}

/// Returns the changes that add a requirement to every term of the pod's node affinity.
fn require(pod: &Pod<'_>, expression: &Value) -> Vec<Edit> {
    let terms = pod.at(&[
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ]);
    let own =
        list(
            &pod.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                ["nodeSelectorTerms"],
        )
        .count();
    match own {
        0 => vec![Edit::Set(
            terms,
            json!([{"matchExpressions": [expression]}]),
        )],
        // Terms are alternatives, so each of them needs the requirement.
        count => (0..count)
            .map(|index| {
                Edit::Push(
                    terms.index(index).key("matchExpressions"),
                    expression.clone(),
                )
            })
            .collect(),
    }
}

fn builds_of(container: &Container<'_>) -> String {
    let builds = container
        .fact
        .as_ref()
        .and_then(|fact| fact.builds())
        .unwrap_or_default();
    joined(builds.iter().map(ToString::to_string), "or")
}

/// Checks MUL022 (a Windows build in the wrong form) in all fields of a pod's spec that name a build.
fn forms(path: &Path, spec: &Value, object: usize, found: &mut Findings) {
    form(
        &path.key("nodeSelector").key(labels::WINDOWS_BUILD),
        &spec["nodeSelector"][labels::WINDOWS_BUILD],
        object,
        found,
    );
    let fields = [
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    let at = path.keys(&fields);
    for (term, value) in at_fields(spec, &fields).enumerate() {
        expressions(
            &at.index(term).key("matchExpressions"),
            &value["matchExpressions"],
            object,
            found,
        );
    }
    let fields = [
        "affinity",
        "nodeAffinity",
        "preferredDuringSchedulingIgnoredDuringExecution",
    ];
    let at = path.keys(&fields);
    for (term, value) in at_fields(spec, &fields).enumerate() {
        let at = at.index(term).keys(&["preference", "matchExpressions"]);
        expressions(&at, &value["preference"]["matchExpressions"], object, found);
    }
}

fn at_fields<'v>(value: &'v Value, fields: &[&str]) -> impl Iterator<Item = &'v Value> {
    list(fields.iter().fold(value, |value, field| &value[*field]))
}

/// Checks MUL022 in a list of requirements.
fn expressions(path: &Path, expressions: &Value, object: usize, found: &mut Findings) {
    for (index, expression) in list(expressions).enumerate() {
        if expression["key"] != labels::WINDOWS_BUILD {
            continue;
        }
        for (position, value) in list(&expression["values"]).enumerate() {
            form(
                &path.index(index).key("values").index(position),
                value,
                object,
                found,
            );
        }
    }
}

/// Checks MUL022 in objects without pods: RuntimeClasses and pools.
pub(super) fn object_forms(index: usize, object: &Object, found: &mut Findings) {
    match object.kind() {
        "RuntimeClass" => {
            let at = Path::of(&["scheduling", "nodeSelector", labels::WINDOWS_BUILD]);
            form(
                &at,
                &object.value["scheduling"]["nodeSelector"][labels::WINDOWS_BUILD],
                index,
                found,
            );
        }
        "NodePool" => {
            let at = Path::of(&["spec", "template", "spec", "requirements"]);
            expressions(
                &at,
                &object.value["spec"]["template"]["spec"]["requirements"],
                index,
                found,
            );
        }
        "Provisioner" => expressions(
            &Path::of(&["spec", "requirements"]),
            &object.value["spec"]["requirements"],
            index,
            found,
        ),
        _ => {}
    }
}

/// Checks MUL022 for one value.
fn form(at: &Path, value: &Value, object: usize, found: &mut Findings) {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
    // The label has the build as three numbers, without the revision.
    if numbers.as_ref().is_some_and(|numbers| numbers.len() == 3) {
        return;
    }
    let known = match numbers.as_deref() {
        Some([major, minor, number, _]) => Some(format!("{major}.{minor}.{number}")),
        // Build numbers of Windows Server have five digits, which years have not.
        Some([number]) if *number > 10_000 => Some(format!("10.0.{number}")),
        _ => by_name(&text).map(|build| build.to_string()),
    };
    let finding = found.add("MUL022", object, at.clone(), Problem::BuildForm { text });
    if let Some(known) = known {
        finding.safe([Edit::Set(at.clone(), json!(known))]);
    }
}

/// Returns the build of a Windows release that is named by its year.
fn by_name(text: &str) -> Option<Build> {
    let text = text.to_ascii_lowercase();
    let years = [
        ("2019", Build::SERVER_2019),
        ("2022", Build::SERVER_2022),
        ("2025", Build::SERVER_2025),
    ];
    let known = years
        .into_iter()
        .find(|(year, _)| text.strip_prefix("ltsc").unwrap_or(&text) == *year);
    known.map(|(_, build)| build)
}

/// Checks MUL023 to MUL027: an unsupported build, a missing tag, the size, the pull policy, and an index without os.version.
fn image(context: &Context<'_>, pod: &Pod<'_>, container: &Container<'_>, found: &mut Findings) {
    let Some(fact) = &container.fact else {
        return;
    };
    let at = container.path.key("image");
    let named = || Image::of(Some(container));
    let only_windows = fact.only_of(System::Windows);
    if let Some(builds) = fact
        .builds()
        .filter(|_| only_windows && !container.host_process)
    {
        let host = |build: &Build| {
            HOSTS
                .iter()
                .any(|host| context.builds.check(*build, *host).is_ok())
        };
        if builds.iter().all(|build| ENDED.contains(&build.number)) {
            found.add(
                "MUL023",
                pod.object,
                at.clone(),
                Problem::EndedBuild {
                    image: named(),
                    build: builds_of(container),
                },
            );
        } else if !builds.iter().any(host) {
            found.add(
                "MUL023",
                pod.object,
                at.clone(),
                Problem::NoSuchHosts {
                    image: named(),
                    build: builds_of(container),
                },
            );
        } else if let Some(minor) = context.fleet.minor.filter(|minor| {
            *minor < FIRST_2025 && builds.iter().all(|build| *build == Build::SERVER_2025)
        }) {
            found.add(
                "MUL023",
                pod.object,
                at.clone(),
                Problem::TooEarlyFor2025 {
                    image: Some(named()),
                    minor,
                },
            );
        }
    }
    let repository = repository(container.image).unwrap_or_default();
    if only_windows && is_latest(container.image) {
        found.add(
            "MUL024",
            pod.object,
            at.clone(),
            Problem::NoTag {
                image: named(),
                is_named: has_tag(container.image),
                // A registry that answers for the tag has it.
                is_missing: fact.guess && BASES.contains(&repository.as_str()),
                builds: builds_of(container),
            },
        );
    }
    let bytes = fact.bytes.unwrap_or_default();
    if only_windows && (HUGE.contains(&repository.as_str()) || bytes > VERY_LARGE) {
        found.add(
            "MUL025",
            pod.object,
            at.clone(),
            Problem::VeryLarge {
                image: named(),
                bytes,
            },
        );
    }
    if only_windows && bytes > LARGE && container.value["imagePullPolicy"] == "Always" {
        let policy = container.path.key("imagePullPolicy");
        let finding = found.add(
            "MUL026",
            pod.object,
            policy.clone(),
            Problem::AlwaysPulled {
                image: named(),
                bytes,
            },
        );
        // Of a tag such as `latest`, a node may have an old image, so pulling always may be on purpose.
        if !is_latest(container.image) {
            finding.not_safe([Edit::Set(policy, json!("IfNotPresent"))]);
        }
    }
    if fact.unversioned {
        found.add(
            "MUL027",
            pod.object,
            at,
            Problem::Unversioned { image: named() },
        );
    }
}

/// Checks MUL023 for eksctl's node groups: Windows Server 2025 needs Kubernetes 1.35.
pub(super) fn cluster_version(index: usize, object: &Object, found: &mut Findings) {
    let minor = object
        .text_at("/metadata/version")
        .strip_prefix("1.")
        .and_then(|minor| minor.parse::<u32>().ok());
    let Some(minor) = minor.filter(|minor| *minor < FIRST_2025) else {
        return;
    };
    for field in ["nodeGroups", "managedNodeGroups"] {
        for (position, group) in list(&object.value[field]).enumerate() {
            let is_2025 = strings(&json!([group["amiFamily"]]))
                .any(|family| family.starts_with("WindowsServer2025"));
            if is_2025 {
                let at = Path::of(&[field]).index(position).key("amiFamily");
                found.add(
                    "MUL023",
                    index,
                    at,
                    Problem::TooEarlyFor2025 { image: None, minor },
                );
            }
        }
    }
}
