//! PodSecurity: namespaces say by label how far their pods are trusted, and pods that go further are refused or warned about.
//!
//! The levels are `privileged` (anything), [`baseline`] and [`restricted`]. A version in a label is checked and shown, but pods are
//! always judged by today's rules. Workloads are never refused, only warned about: their pods come later.

mod baseline;
mod restricted;

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Ctx, Operation, Plugin, Request, What};
use crate::{
    field::{Errors, Path, quote},
    kinds::tree::Tree,
    status::Status,
};

const LABEL: &str = "pod-security.kubernetes.io/";
const MODES: [&str; 3] = ["enforce", "audit", "warn"];
const WORKLOADS: [(&str, &str); 8] = [
    ("", "replicationcontrollers"),
    ("", "podtemplates"),
    ("apps", "replicasets"),
    ("apps", "deployments"),
    ("apps", "statefulsets"),
    ("apps", "daemonsets"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
];

/// kube-apiserver: PodSecurity.
pub(super) struct PodSecurity;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Privileged,
    Baseline,
    Restricted,
}

/// A level and the version of its rules, as a label pair says them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    level: Level,
    version: String,
}

/// What a pod does that its level forbids: a reason and the detail in parentheses.
struct Violation {
    reason: &'static str,
    detail: String,
}

/// A pod or the template of one.
struct Pod<'a> {
    metadata: &'a Value,
    spec: &'a Value,
}

impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, what: &What<'_>) -> bool {
        let subject = what.is("", "namespaces") || what.is("", "pods") || is_workload(what);
        matches!(what.operation, Operation::Create | Operation::Update)
            && subject
            && matches!(what.subresource, None | Some("ephemeralcontainers"))
    }

    /// Warns. A pod that will be refused is not warned about as well.
    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        if request.what.is("", "namespaces") {
            let warnings = stricter_warnings(ctx, request);
            request.warnings.extend(warnings);
            return Ok(());
        }
        let Some((pod, namespace)) = subject(ctx, request) else {
            return Ok(());
        };
        let refused = !is_workload(&request.what)
            && !Policy::of(&namespace, "enforce")
                .violations(&pod)
                .is_empty();
        let policy = Policy::of(&namespace, "warn");
        let violations = policy.violations(&pod);
        if !refused && !violations.is_empty() {
            let warning = format!(
                "would violate PodSecurity {}: {}",
                policy.quoted(),
                described(&violations)
            );
            request.warnings.push(warning);
        }
        Ok(())
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        if request.what.is("", "namespaces") {
            return check_labels(request);
        }
        let unchanged = request
            .old
            .is_some_and(|old| old["spec"] == request.object["spec"]);
        if is_workload(&request.what) || unchanged {
            return Ok(());
        }
        let Some((pod, namespace)) = subject(ctx, request) else {
            return Ok(());
        };
        let policy = Policy::of(&namespace, "enforce");
        let violations = policy.violations(&pod);
        if violations.is_empty() {
            return Ok(());
        }
        Err(request.forbidden(&format!(
            "violates PodSecurity {}: {}",
            policy.quoted(),
            described(&violations)
        )))
    }
}

fn is_workload(what: &What<'_>) -> bool {
    WORKLOADS
        .iter()
        .any(|(group, plural)| what.is(group, plural))
}

/// The pod a request is about, or will make pods from, and its namespace.
fn subject<'r>(
    ctx: &Ctx<'_>,
    request: &'r Request<'_>,
) -> Option<(Pod<'r>, std::sync::Arc<Value>)> {
    let namespace = ctx
        .lookup
        .find("", "namespaces", None, request.namespace?)?;
    let object = &*request.object;
    let holder = match &*request.what.resource.plural {
        "pods" => object,
        "podtemplates" => &object["template"],
        "cronjobs" => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => &object["spec"]["template"],
    };
    Some((
        Pod {
            metadata: &holder["metadata"],
            spec: &holder["spec"],
        },
        namespace,
    ))
}

impl Level {
    fn parse(text: &str) -> Option<Level> {
        Some(match text {
            "privileged" => Level::Privileged,
            "baseline" => Level::Baseline,
            "restricted" => Level::Restricted,
            _ => return None,
        })
    }
}

impl Policy {
    fn of(namespace: &Value, mode: &str) -> Policy {
        let labels = &namespace["metadata"]["labels"];
        let level =
            Level::parse(labels.text(&format!("{LABEL}{mode}"))).unwrap_or(Level::Privileged);
        let version = labels.text(&format!("{LABEL}{mode}-version"));
        Policy {
            level,
            version: if version.is_empty() {
                "latest".to_owned()
            } else {
                version.to_owned()
            },
        }
    }

    fn quoted(&self) -> String {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        quote(&format!("{level}:{}", self.version))
    }

    fn violations(&self, pod: &Pod<'_>) -> Vec<Violation> {
        match self.level {
            Level::Privileged => Vec::new(),
            Level::Baseline => baseline::violations(pod, false),
            Level::Restricted => {
                let mut violations = baseline::violations(pod, true);
                violations.extend(restricted::violations(pod));
                violations
            }
        }
    }
}

fn described(violations: &[Violation]) -> String {
    let one = |violation: &Violation| match &*violation.detail {
        "" => violation.reason.to_owned(),
        detail => format!("{} ({detail})", violation.reason),
    };
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn check_labels(request: &Request<'_>) -> Result<(), Status> {
    let errors = label_errors(request.object);
    let was_wrong = request.old.is_some_and(|old| !label_errors(old).is_empty());
    if errors.is_empty() || was_wrong {
        return Ok(());
    }
    Err(Status::invalid(
        request.what.resource,
        request.object["metadata"].text("name"),
        &errors,
    ))
}

fn label_errors(namespace: &Value) -> Errors {
    let mut errors = Errors::default();
    let path = Path::new("metadata");
    let path = path.child("labels");
    for mode in MODES {
        let (level, version) = (format!("{LABEL}{mode}"), format!("{LABEL}{mode}-version"));
        let labels = &namespace["metadata"]["labels"];
        if let Some(text) = labels[&level]
            .as_str()
            .filter(|text| Level::parse(text).is_none())
        {
            errors.invalid(
                &path.key(&level),
                text,
                "must be one of privileged, baseline, restricted",
            );
        }
        if let Some(text) = labels[&version].as_str().filter(|text| !is_version(text)) {
            errors.invalid(&path.key(&version), text, r#"must be "latest" or "v1.x""#);
        }
    }
    errors
}

fn is_version(text: &str) -> bool {
    let minor = text.strip_prefix("v1.").unwrap_or("");
    text == "latest" || (!minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What to say about pods that are there when a namespace becomes stricter.
fn stricter_warnings(ctx: &Ctx<'_>, request: &Request<'_>) -> Vec<String> {
    let Some(old) = request.old else {
        return Vec::new();
    };
    let (policy, before) = (
        Policy::of(request.object, "enforce"),
        Policy::of(old, "enforce"),
    );
    if policy == before || policy.level < before.level || policy.level == Level::Privileged {
        return Vec::new();
    }
    let name = request.object["metadata"].text("name");
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pod in ctx.lookup.list("", "pods", Some(name)) {
        let violations = policy.violations(&Pod {
            metadata: &pod["metadata"],
            spec: &pod["spec"],
        });
        if !violations.is_empty() {
            let reasons: Vec<&str> = violations
                .iter()
                .map(|violation| violation.reason)
                .collect();
            by_reason
                .entry(reasons.join(", "))
                .or_default()
                .push(pod["metadata"].text("name").to_owned());
        }
    }
    if by_reason.is_empty() {
        return Vec::new();
    }
    let policy = policy.quoted();
    let mut warnings = vec![format!(
        "existing pods in namespace {name:?} violate the new PodSecurity enforce level {policy}"
    )];
    for (reasons, mut pods) in by_reason {
        pods.sort_unstable();
        warnings.push(match pods.as_slice() {
            [pod] => format!("{pod}: {reasons}"),
            [pod, _] => format!("{pod} (and 1 other pod): {reasons}"),
            [pod, others @ ..] => format!("{pod} (and {} other pods): {reasons}", others.len()),
            [] => continue,
        });
    }
    warnings
}

impl Pod<'_> {
    /// All containers: init ones first, then the ordinary, then the ephemeral.
    fn containers(&self) -> impl Iterator<Item = &Value> {
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(|list| self.spec.items(list))
    }

    /// The names of the containers for which this holds.
    fn containers_that(&self, holds: impl Fn(&Value) -> bool) -> Vec<&str> {
        self.containers()
            .filter(|container| holds(container))
            .map(|container| container.text("name"))
            .collect()
    }

    /// Who does something on purpose: `pod`, `containers "a", "b"`, or both joined with `and`; empty when nobody.
    fn setters(&self, holds: impl Fn(&Value) -> bool) -> String {
        let mut setters = Vec::new();
        if holds(&self.spec["securityContext"]) {
            setters.push("pod".to_owned());
        }
        let containers = self.containers_that(|container| holds(&container["securityContext"]));
        if !containers.is_empty() {
            setters.push(named("container", &containers));
        }
        setters.join(" and ")
    }

    fn is_windows(&self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    /// A user namespace of its own contains what root could do.
    fn has_user_namespace(&self) -> bool {
        self.spec["hostUsers"] == false
    }
}

/// `container "a"` or `containers "a", "b"`.
fn named(what: &str, names: &[&str]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("{what}{plural} {}", quoted(names))
}

fn quoted(names: &[&str]) -> String {
    names
        .iter()
        .map(|name| quote(name))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The values without repetition, in order.
fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut values: Vec<&str> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(level: Level, spec: Value) -> String {
        let policy = Policy {
            level,
            version: "latest".into(),
        };
        described(&policy.violations(&Pod {
            metadata: &json!({}),
            spec: &spec,
        }))
    }

    #[test]
    fn an_ordinary_pod_passes_baseline_but_not_restricted() {
        let spec = json!({"containers": [{"name": "c"}]});
        assert_eq!(judged(Level::Baseline, spec.clone()), "");
        assert_eq!(
            judged(Level::Restricted, spec),
            r#"allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#
        );
    }

    #[test]
    fn a_windows_pod_need_not_say_what_only_linux_knows() {
        let spec = json!({"os": {"name": "windows"}, "containers": [{"name": "c"}]});
        assert_eq!(
            judged(Level::Restricted, spec),
            r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#
        );
    }

    #[test]
    fn host_process_containers_are_not_baseline() {
        let spec = json!({
            "hostNetwork": true,
            "securityContext": {"windowsOptions": {"hostProcess": true}},
            "containers": [{"name": "a"}, {"name": "b", "securityContext": {"windowsOptions": {"hostProcess": true}}}],
        });
        assert_eq!(
            judged(Level::Baseline, spec),
            r#"host namespaces (hostNetwork=true), hostProcess (pod and container "b" must not set securityContext.windowsOptions.hostProcess=true)"#
        );
    }
}
