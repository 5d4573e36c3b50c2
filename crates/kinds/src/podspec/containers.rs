//! Validates regular, init and ephemeral containers: their common rules, and the rules of each type.

use std::collections::HashSet;

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Scope, defaults::is_restartable_init, env, mounts, probes, resources, security};
use crate::fields::{
    self, All, Anything, Each, Field, Fields, Forbidden, Format, MaxItems, Number, OneOf, Rule,
    always, filled, present, required, set,
};

/// The pull policy of a container or an image volume.
pub(super) const PULL_POLICY: Rule = OneOf(&["Always", "IfNotPresent", "Never"]);
/// The protocol of a port.
pub(crate) const PROTOCOL: Rule = OneOf(&["SCTP", "TCP", "UDP"]);
const CONTAINER: &[Field] = &[
    required("name", Format(names::dns_label)),
    required("image", Anything),
    required(
        "terminationMessagePolicy",
        OneOf(&["File", "FallbackToLogsOnError"]),
    ),
];
const IMAGE: &[Field] = &[required("imagePullPolicy", PULL_POLICY)];
const PORT: &[Field] = &[
    required("containerPort", Number(names::port_number)),
    filled("hostPort", Number(names::port_number)),
    required("protocol", PROTOCOL),
];
/// What init containers that are not sidecars may not have.
const NO_HOOKS: &[Field] = &[
    set("lifecycle", Forbidden(ONLY_SIDECARS)),
    set("livenessProbe", Forbidden(ONLY_SIDECARS)),
    set("readinessProbe", Forbidden(ONLY_SIDECARS)),
    set("startupProbe", Forbidden(ONLY_SIDECARS)),
];
const RESTARTS: &[Field] = &[set(
    "restartPolicy",
    OneOf(&["Always", "Never", "OnFailure"]),
)];
const RULES: &[Field] = &[always(
    "restartPolicyRules",
    All(&[MaxItems(20), Each(RESTART_RULE)]),
)];
const RESTART_RULE: &[Field] = &[
    always("action", OneOf(&["Restart", "RestartAllContainers"])),
    present("exitCodes", Fields(EXIT_CODES)).because("must be specified"),
];
const EXIT_CODES: &[Field] = &[
    always("operator", OneOf(&["In", "NotIn"])),
    always("values", MaxItems(255)),
];
const ONLY_SIDECARS: &str = "may not be set for init containers without restartPolicy=Always";
const NO_RESTART_POLICY: &str = "must specify restartPolicy when restart rules are used";
const NOT_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

/// Validates `spec.containers`.
pub(super) fn validate_regular(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    let containers = scope.spec.items("containers");
    if containers.is_empty() {
        return errors.required(path, "");
    }
    let mut seen = HashSet::new();
    for (index, container) in containers.iter().enumerate() {
        let at = path.index(index);
        common(container, scope, &at, errors);
        let name = container.text("name");
        // A name that an init or ephemeral container shares is reported there.
        if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        hooks_and_probes(container, scope, &at, errors);
        restart_policy(container, &at, errors);
    }
    host_port_conflicts(containers, path, errors);
}

/// Validates `spec.initContainers`.
pub(super) fn validate_init(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    // Logs and exec address a container by its name alone, so all lists share one set of names.
    let mut seen: HashSet<&str> = names_of(scope, "containers").collect();
    let containers = scope.spec.items("initContainers");
    for (index, container) in containers.iter().enumerate() {
        let at = path.index(index);
        common(container, scope, &at, errors);
        // Without a policy of its own, an init container's rules are refused as a whole.
        if container.has("restartPolicy") {
            restart_policy(container, &at, errors);
        } else if !container.items("restartPolicyRules").is_empty() {
            errors.required(&at.child("restartPolicy"), NO_RESTART_POLICY);
        }
        let name = container.text("name");
        // A missing name is an error of its own, so it is not also reported as a duplicate.
        let is_new = match name {
            "" => !seen.contains(name),
            name => seen.insert(name),
        };
        if !is_new {
            errors.duplicate(&at.child("name"), name);
        }
        // Init containers run one after another, so each is checked alone. Its index in the path is therefore 0, as in kube-apiserver's.
        host_port_conflicts(std::slice::from_ref(container), path, errors);
        if is_restartable_init(container) {
            hooks_and_probes(container, scope, &at, errors);
        } else {
            fields::validate(NO_HOOKS, container, &at, errors);
            restart_on_resize(container, &at.child("resizePolicy"), errors);
        }
    }
}

/// Returns the names in a list of containers.
fn names_of<'a>(scope: &Scope<'a>, list: &str) -> impl Iterator<Item = &'a str> {
    let containers = scope.spec.items(list).iter();
    containers.map(|container| container.text("name"))
}

/// Forbids the resize policy `RestartContainer` for init containers that are not sidecars.
fn restart_on_resize(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    const RESTART: &str = "RestartContainer";
    for (index, policy) in container.items("resizePolicy").iter().enumerate() {
        if policy.text("restartPolicy") == RESTART {
            let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            errors.invalid(&path.index(index).child("restartPolicy"), RESTART, why);
        }
    }
}

/// Validates `spec.ephemeralContainers`.
pub(super) fn validate_ephemeral(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    let containers = scope.spec.items("ephemeralContainers");
    let others = names_of(scope, "containers").chain(names_of(scope, "initContainers"));
    let others: HashSet<&str> = others.collect();
    let mut seen = others.clone();
    for (index, container) in containers.iter().enumerate() {
        let at = path.index(index);
        common(container, scope, &at, errors);
        only_in_pods(container, &at, errors);
        let name = container.text("name");
        if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        let target = container.text("targetContainerName");
        // The target may not be another ephemeral container: `seen` has those, `others` has not.
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(&at.child("targetContainerName"), target);
        }
        for field in [
            "ports",
            "resources",
            "resizePolicy",
            "restartPolicy",
            "restartPolicyRules",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle",
        ] {
            let at = at.child(field);
            // Decoding adds empty requirements to every container, so they do not count as set.
            let is_set = match field {
                "resources" => {
                    let given = container.entries(field).next().is_some();
                    let lists = ["limits", "requests", "claims"];
                    given || lists.iter().any(|list| errors.sent_empty(&at.child(list)))
                }
                field => container.has(field) || errors.sent_empty(&at),
            };
            if is_set {
                errors.forbidden(&at, NOT_EPHEMERAL);
            }
        }
        let mounts = at.child("volumeMounts");
        for (mount_index, mount) in container.items("volumeMounts").iter().enumerate() {
            for field in ["subPath", "subPathExpr"]
                .into_iter()
                .filter(|field| !mount.text(field).is_empty())
            {
                errors.forbidden(&mounts.index(mount_index).child(field), NOT_EPHEMERAL);
            }
        }
    }
}

/// Validates the rules that apply to Pods but not to templates.
pub(super) fn only_in_pods(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    let image = container.text("image");
    if image.trim() != image {
        errors.invalid(
            &path.child("image"),
            image,
            "must not have leading or trailing whitespace",
        );
    }
}

fn common(container: &Value, scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(CONTAINER, container, path, errors);
    ports(container.items("ports"), &path.child("ports"), errors);
    env::validate(container.items("env"), &path.child("env"), errors);
    env::validate_from(container.items("envFrom"), &path.child("envFrom"), errors);
    mounts::validate_mounts(container, scope, &path.child("volumeMounts"), errors);
    mounts::validate_devices(container, scope, &path.child("volumeDevices"), errors);
    fields::validate(IMAGE, container, path, errors);
    if let Some(requirements) = container.field("resources") {
        resources::validate(
            requirements,
            scope.spec.items("resourceClaims"),
            &path.child("resources"),
            errors,
        );
    }
    resize_policy(
        container.items("resizePolicy"),
        scope.spec.text("restartPolicy"),
        &path.child("resizePolicy"),
        errors,
    );
    if let Some(context) = container.field("securityContext") {
        security::validate_container(
            context,
            scope.host_users(),
            &path.child("securityContext"),
            errors,
        );
    }
}

fn hooks_and_probes(container: &Value, scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    if let Some(lifecycle) = container.field("lifecycle") {
        let grace = scope.spec.integer("terminationGracePeriodSeconds");
        probes::validate_lifecycle(lifecycle, grace, &path.child("lifecycle"), errors);
    }
    probes::validate(container, path, errors);
}

fn ports(ports: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = path.index(index);
        let name = port.text("name");
        if !name.is_empty() {
            let sentences = names::port_name(name);
            // An invalid name is not reported as a duplicate too.
            if !seen.insert(name) && sentences.is_empty() {
                errors.duplicate(&at.child("name"), name);
            }
            check(errors, &at.child("name"), name, sentences);
        }
        fields::validate(PORT, port, &at, errors);
    }
}

/// Refuses containers that use the same host port, protocol and address.
fn host_port_conflicts(containers: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for (index, container) in containers.iter().enumerate() {
        let at = path.index(index);
        for (port_index, port) in container.items("ports").iter().enumerate() {
            let Some(number) = port.integer("hostPort").filter(|number| *number != 0) else {
                continue;
            };
            if !taken.insert((number, port.text("protocol"), port.text("hostIP"))) {
                let text = format!("{}/{}/{number}", port.text("protocol"), port.text("hostIP"));
                errors.duplicate(&at.child("ports").index(port_index).child("hostPort"), text);
            }
        }
    }
}

fn resize_policy(
    policies: &[Value],
    pod_restart_policy: &str,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let mut seen = HashSet::new();
    for (index, policy) in policies.iter().enumerate() {
        let (resource, restart) = (policy.text("resourceName"), policy.text("restartPolicy"));
        if !seen.insert(resource) {
            errors.duplicate(&path.index(index), resource);
        }
        match resource {
            "cpu" | "memory" => {}
            "" => errors.required(path, ""),
            other => errors.not_supported(path, other, &["cpu", "memory"]),
        }
        match restart {
            "NotRequired" | "RestartContainer" => {}
            // kube-apiserver reports these errors at the list, and only a duplicate at its entry.
            "" => errors.required(path, ""),
            other => errors.not_supported(path, other, &["NotRequired", "RestartContainer"]),
        }
        if pod_restart_policy == "Never" && restart != "NotRequired" {
            errors.invalid(
                path,
                restart,
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            );
        }
    }
}

/// Validates a container's restart policy and its rules for exit codes.
fn restart_policy(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(RESTARTS, container, path, errors);
    if !container.has("restartPolicy") && !container.items("restartPolicyRules").is_empty() {
        errors.required(&path.child("restartPolicy"), NO_RESTART_POLICY);
    }
    fields::validate(RULES, container, path, errors);
}
