//! Pod specs: defaults, validation, warnings and rules for changes, one topic per file.
//!
//! A spec is in a Pod or in the template of a workload; [`Scope`] says in which, because a template may omit fields that a Pod must have.
//! The validation of a valid spec allocates only the quantities that it parses: unique names are looked up in the lists themselves, and
//! paths are linked lists on the stack.

pub(crate) mod affinity;
mod allocated;
mod annotations;
mod containers;
pub mod defaults;
mod difference;
mod env;
pub(crate) mod external;
mod image;
pub mod internal;
mod mounts;
mod network;
mod paths;
pub(crate) mod persistent;
pub(crate) mod prepare;
mod probes;
mod projected;
pub mod qos;
mod resize;
mod resource_defaults;
mod resources;
mod restarts;
mod scheduling;
mod security;
pub(crate) mod status;
#[cfg(test)]
mod tests;
pub mod totals;
pub(crate) mod update;
mod volumes;
pub(crate) mod warnings;
mod windows;

use std::{cell::OnceCell, collections::HashMap};

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::metadata,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

pub(crate) use affinity::node_selector;
pub(crate) use containers::PROTOCOL;
pub(crate) use resize::{prepare as prepare_resize, validate as validate_resize};
pub(crate) use resources::validate_overhead;
pub(crate) use scheduling::{TAINT_EFFECT, TOLERATIONS};

use crate::{
    fields::{
        self, Anything, Code, Each, Field, Fields, Format, Labels, Number, OneOf, always, filled,
        present, required, set,
    },
    priorityclasses::PREEMPTION_POLICY,
};

const GRACE: &[Field] = &[present("terminationGracePeriodSeconds", Anything)];
const POLICIES: &[Field] = &[
    required("restartPolicy", OneOf(&["Always", "OnFailure", "Never"])),
    required(
        "dnsPolicy",
        OneOf(&["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]),
    ),
    always("nodeSelector", Labels),
];
const AFFINITY: &[Field] = &[set("affinity", Fields(affinity::AFFINITY))];
const READINESS: &[Field] = &[always("readinessGates", Each(READINESS_GATE))];
const READINESS_GATE: &[Field] = &[always("conditionType", Format(names::qualified_name))];
const NAMES: &[Field] = &[
    filled("serviceAccountName", Format(names::dns_subdomain)),
    filled("nodeName", Format(names::dns_subdomain)),
    set("activeDeadlineSeconds", Number(deadline)),
    filled("hostname", Format(names::dns_label)),
    filled("subdomain", Format(names::dns_label)),
    always("tolerations", TOLERATIONS),
    always("hostAliases", Each(network::HOST_ALIAS)),
    filled("priorityClassName", Format(names::dns_subdomain)),
    set("runtimeClassName", Format(names::dns_subdomain)),
    set("preemptionPolicy", PREEMPTION_POLICY),
    set("overhead", Code(resources::validate_overhead)),
];

/// A pod spec, and whether it is a Pod's or a template's.
pub(crate) struct Scope<'a> {
    spec: &'a Value,
    pod: bool,
    /// The volumes that containers may mount, by name; collected for the first mount.
    volumes: OnceCell<HashMap<&'a str, &'a Value>>,
}

impl<'a> Scope<'a> {
    /// Returns the scope of a Pod's spec.
    pub(crate) fn of_pod(spec: &'a Value) -> Self {
        Scope::new(spec, true)
    }

    /// Returns the scope of a template's spec.
    pub(crate) fn of_template(spec: &'a Value) -> Self {
        Scope::new(spec, false)
    }

    fn new(spec: &'a Value, pod: bool) -> Self {
        Scope {
            spec,
            pod,
            volumes: OnceCell::new(),
        }
    }

    fn is_pod(&self) -> bool {
        self.pod
    }

    /// Returns whether containers share the host's user namespace, which is the default.
    fn host_users(&self) -> bool {
        !self.spec.has("hostUsers") || self.spec.flag("hostUsers")
    }

    /// Returns all containers: init, regular and ephemeral ones.
    fn containers(&self) -> impl Iterator<Item = &'a Value> {
        CONTAINER_LISTS
            .into_iter()
            .flat_map(|list| self.spec.items(list))
    }

    fn visit_containers(&self, path: &Path<'_>, visit: &mut dyn FnMut(&'a Value, &Path<'_>)) {
        for list in CONTAINER_LISTS {
            let at = path.child(list);
            for (index, container) in self.spec.items(list).iter().enumerate() {
                visit(container, &at.index(index));
            }
        }
    }
}

/// The lists of containers, in the order in which kube-apiserver visits them.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Validates a Pod, except for the names in its metadata.
pub(crate) fn validate_pod(pod: &Value, errors: &mut Errors) {
    let none = Value::Null;
    let scope = Scope::of_pod(pod.get("spec").unwrap_or(&none));
    let metadata = pod.get("metadata").unwrap_or(&none);
    annotations::validate(
        metadata,
        &scope,
        &Path::new("metadata").child("annotations"),
        errors,
    );
    let path = Path::new("spec");
    validate_spec(&scope, Some(metadata.text("name")), &path, errors);
    if scope.spec.text("serviceAccountName").is_empty() {
        tokens_without_account(&scope, &path.child("volumes"), errors);
    }
    // The validation of ephemeral containers has this check already.
    for list in ["containers", "initContainers"] {
        let at = path.child(list);
        for (index, container) in scope.spec.items(list).iter().enumerate() {
            containers::only_in_pods(container, &at.index(index), errors);
        }
    }
}

/// Validates the rules that apply only to the creation of a Pod.
pub(crate) fn validate_pod_creation(pod: &Value, errors: &mut Errors) {
    let none = Value::Null;
    let scope = Scope::of_pod(pod.get("spec").unwrap_or(&none));
    let path = Path::new("spec");
    if !scope.spec.items("ephemeralContainers").is_empty() {
        errors.forbidden(
            &path.child("ephemeralContainers"),
            "cannot be set on create",
        );
    }
    // A pod with a node never meets the scheduler, which alone respects the gates.
    if !scope.spec.text("nodeName").is_empty() && !scope.spec.items("schedulingGates").is_empty() {
        errors.forbidden(
            &path.child("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        );
    }
    annotations::validate_matching(pod.get("metadata").unwrap_or(&none), &scope, &path, errors);
}

/// Validates the template of a workload; `path` is the template's.
pub(crate) fn validate_template(template: &Value, path: &Path<'_>, errors: &mut Errors) {
    let none = Value::Null;
    let meta = template.get("metadata").unwrap_or(&none);
    let scope = Scope::of_template(template.get("spec").unwrap_or(&none));
    validate_template_metadata(template, path, errors);
    let spec_path = path.child("spec");
    validate_spec(&scope, None, &spec_path, errors);
    annotations::validate_matching(meta, &scope, &spec_path, errors);
    if !scope.spec.items("ephemeralContainers").is_empty() {
        errors.forbidden(
            &spec_path.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// Validates the labels and annotations of a pod template.
pub(crate) fn validate_template_metadata(template: &Value, path: &Path<'_>, errors: &mut Errors) {
    let none = Value::Null;
    let meta = template.get("metadata").unwrap_or(&none);
    let scope = Scope::of_template(template.get("spec").unwrap_or(&none));
    metadata::labels(errors, &path.child("labels"), meta.get("labels"));
    let at = path.child("annotations");
    metadata::annotations(errors, &at, meta);
    annotations::validate(meta, &scope, &at, errors);
}

fn deadline(seconds: i64) -> names::Sentences {
    names::in_range(seconds, 1, i64::from(i32::MAX))
}

fn validate_spec(scope: &Scope<'_>, pod: Option<&str>, path: &Path<'_>, errors: &mut Errors) {
    let spec = scope.spec;
    // The order of the checks is kube-apiserver's, because it decides the order of the errors in the answer.
    fields::validate(GRACE, spec, path, errors);
    volumes::validate(spec.items("volumes"), pod, &path.child("volumes"), errors);
    resources::validate_claims(
        spec.items("resourceClaims"),
        &path.child("resourceClaims"),
        errors,
    );
    containers::validate_regular(scope, &path.child("containers"), errors);
    containers::validate_init(scope, &path.child("initContainers"), errors);
    containers::validate_ephemeral(scope, &path.child("ephemeralContainers"), errors);
    resources::validate_pod_level(spec, path, errors);
    network::validate_host_network(scope, path, errors);
    fields::validate(POLICIES, spec, path, errors);
    security::validate_pod(spec, &path.child("securityContext"), errors);
    fields::validate(AFFINITY, spec, path, errors);
    network::validate_dns(spec, &path.child("dnsConfig"), errors);
    fields::validate(READINESS, spec, path, errors);
    scheduling::validate_gates(
        spec.items("schedulingGates"),
        &path.child("schedulingGates"),
        errors,
    );
    scheduling::validate_spread(
        spec.items("topologySpreadConstraints"),
        &path.child("topologySpreadConstraints"),
        errors,
    );
    windows::validate_host_process(scope, path, errors);
    security::validate_host_users(scope, path, errors);
    network::validate_hostname_override(spec, path, errors);
    fields::validate(NAMES, spec, path, errors);
    windows::validate_os(scope, path, errors);
    env::validate_files(scope, path, errors);
}

fn tokens_without_account(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    for (index, volume) in scope.spec.items("volumes").iter().enumerate() {
        let Some(projected) = volume.field("projected") else {
            continue;
        };
        let at = path.index(index);
        let at = at.child("projected");
        let sources = at.child("sources");
        for (source_index, _) in projected
            .items("sources")
            .iter()
            .enumerate()
            .filter(|(_, source)| source.has("serviceAccountToken"))
        {
            let at = sources.index(source_index);
            errors.forbidden(
                &at.child("serviceAccountToken"),
                "must not be specified when serviceAccountName is not set",
            );
        }
    }
}
