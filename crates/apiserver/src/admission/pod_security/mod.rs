//! PodSecurity: refuses or warns of pods that go further than the level in their namespace's labels allows.
//!
//! [`policy`] reads the labels, [`checks`] holds the checks of each level and which version brought or changed them, [`existing`] looks at
//! the pods that are there when a namespace becomes stricter. Workloads are never refused, only warned about: their pods come later.

mod baseline;
mod checks;
mod existing;
mod policy;
mod restricted;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use mullion_kinds::request::Ctx;
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;
use serde_json::Value;

use self::policy::Policies;
use super::{Action, Operation, Plugin, Request};

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

/// A violation of a level by a pod: a reason, and the detail in parentheses.
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

    fn handles(&self, action: &Action<'_>) -> bool {
        let is_subject = match action.subresource {
            None => action.is("", "namespaces") || action.is("", "pods") || is_workload(action),
            Some("ephemeralcontainers") => action.is("", "pods"),
            Some(_) => false,
        };
        matches!(action.operation, Operation::Create | Operation::Update) && is_subject
    }

    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        if request.action.is("", "namespaces") {
            return judge_namespace(ctx, request);
        }
        // A pod that violates a level which came later must still be able to lose a finalizer.
        let spared = request.old.is_some_and(|old| {
            request.action.is("", "pods") && !is_significant(request.object, old)
        });
        let namespace = request.namespace.unwrap_or_default();
        let namespace = ctx.lookup.find("", "namespaces", None, namespace);
        let (false, Some(namespace)) = (spared, namespace) else {
            return Ok(());
        };
        let policies = Policies::of(&namespace);
        let pod = subject(request);
        // Workloads are not refused: a refused controller would hide why its pods are missing.
        if request.action.is("", "pods") {
            let violations = policies.enforce.violations(&pod);
            if !violations.is_empty() {
                return Err(request.forbidden(&format!(
                    "violates PodSecurity {}: {}",
                    policies.enforce.quoted(),
                    described(&violations)
                )));
            }
        }
        let violations = policies.warn.violations(&pod);
        if !violations.is_empty() {
            ctx.warn(format!(
                "would violate PodSecurity {}: {}",
                policies.warn.quoted(),
                described(&violations)
            ));
        }
        Ok(())
    }
}

fn is_workload(action: &Action<'_>) -> bool {
    WORKLOADS
        .iter()
        .any(|(group, plural)| action.is(group, plural))
}

/// Returns the pod of a request, or the template that pods will be made from.
fn subject<'r>(request: &'r Request<'_>) -> Pod<'r> {
    let object = &*request.object;
    let holder = match &*request.action.resource.plural {
        "pods" => object,
        "podtemplates" => &object["template"],
        "cronjobs" => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => &object["spec"]["template"],
    };
    Pod {
        metadata: &holder["metadata"],
        spec: &holder["spec"],
    }
}

/// Returns whether an update of a pod changes what the levels check: its images, its containers, or the old annotations with its seccomp
/// profiles. Other updates are admitted even if the pod violates the level.
fn is_significant(pod: &Value, old: &Value) -> bool {
    let annotation = |pod: &Value, key: &str| pod["metadata"]["annotations"].text(key).to_owned();
    let reannotated = |key: &str| annotation(pod, key) != annotation(old, key);
    let changed = |container: &Value, before: &Value| {
        let name = container.text("name");
        container.text("image") != before.text("image")
            || reannotated(&format!("{}{name}", baseline::SECCOMP_CONTAINER))
    };
    let replaced = |list: &str| {
        let (now, before) = (pod["spec"].items(list), old["spec"].items(list));
        now.len() != before.len() || now.iter().zip(before).any(|(now, old)| changed(now, old))
    };
    let before = old["spec"].items("ephemeralContainers").iter();
    let before: BTreeMap<&str, &Value> = before.map(|it| (it.text("name"), it)).collect();
    let debugged = |container: &Value| {
        let before = before.get(container.text("name"));
        before.is_none_or(|before| changed(container, before))
    };
    reannotated(baseline::SECCOMP_POD)
        || replaced("containers")
        || replaced("initContainers")
        || pod["spec"]
            .items("ephemeralContainers")
            .iter()
            .any(debugged)
}

/// Refuses invalid labels unless they were there before, and warns of existing pods that a stricter level would refuse.
fn judge_namespace(ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
    let errors = policy::label_errors(request.object);
    let known = request
        .old
        .is_some_and(|old| policy::label_errors(old) == errors);
    if !errors.is_empty() && !known {
        let name = request.object["metadata"].text("name");
        return Err(Status::invalid(request.action.resource, name, &errors));
    }
    let Some(old) = request.old else {
        return Ok(());
    };
    let (policy, before) = (
        Policies::of(request.object).enforce,
        Policies::of(old).enforce,
    );
    // Only then: checking every pod of the namespace is too costly for each update of its labels.
    if policy.is_stricter_than(&before) {
        existing::warnings(ctx, &policy, request.object["metadata"].text("name"));
    }
    Ok(())
}

fn described(violations: &[Violation]) -> String {
    let one = |violation: &Violation| match &*violation.detail {
        "" => violation.reason.to_owned(),
        detail => format!("{} ({detail})", violation.reason),
    };
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl Pod<'_> {
    /// Returns all containers: init ones first, then the regular, then the ephemeral.
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

    /// The security contexts of the pod and of its containers; null for those that have none.
    fn contexts(&self) -> impl Iterator<Item = &Value> {
        let containers = self
            .containers()
            .map(|container| &container["securityContext"]);
        std::iter::once(&self.spec["securityContext"]).chain(containers)
    }

    /// Returns the names of those whose `securityContext` satisfies `holds`: `pod`, `containers "a", "b"`, or both joined with `and`.
    fn setters(&self, holds: impl Fn(&Value) -> bool) -> Option<String> {
        let mut setters = Vec::new();
        if holds(&self.spec["securityContext"]) {
            setters.push("pod".to_owned());
        }
        let containers = self.containers_that(|container| holds(&container["securityContext"]));
        if !containers.is_empty() {
            setters.push(named("container", &containers));
        }
        (!setters.is_empty()).then(|| setters.join(" and "))
    }

    fn is_windows(&self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    /// Returns whether the pod has a user namespace of its own, which contains what root could do.
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
    let quoted = names.iter().map(|name| format!("\"{name}\""));
    quoted.collect::<Vec<_>>().join(", ")
}

/// The values without repetition, in order.
fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut values: Vec<&str> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}
