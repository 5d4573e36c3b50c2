//! Judges manifests as a create request would, without a server: decoding, defaults and validation by the code that serves requests.
//!
//! Invariant: nothing is stored, what is allocated is freed again, and no other object is asked for. Admission is left out, because its answer depends on the
//! cluster.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, OnceLock},
};

use jiff::Timestamp;
use mullion_kinds::{
    Resource, ServiceRange, StatusOnCreate, SubresourceHandler, builtins,
    rbac::rule::{MissingRole, Rule},
    request::{
        Authorize, Ctx, Decision, NoObjects, User, attributes::Attributes, warnings::Warnings,
    },
};
use mullion_kube_text::field::{Errors, FieldError};
use mullion_schema::{self as schema, decode};
use serde_json::Value;

use crate::{
    crd::{kind::CustomResourceDefinition, resource},
    object::metadata,
};

/// The namespace of objects that name none.
const NAMESPACE: &str = "default";

/// The fields of a Service that get allocated values.
const ALLOCATED: [&str; 2] = ["spec.clusterIPs", "spec.healthCheckNodePort"];
/// The service account of pods that name none.
const ACCOUNT: &str = "default";

/// The kinds by which objects are judged.
#[derive(Clone)]
pub struct Trial {
    kinds: Vec<Arc<TriedKind>>,
}

/// How a create request would be answered.
#[derive(Debug, Default)]
pub struct Judgement {
    /// The errors for which the request would be refused.
    pub errors: Vec<FieldError>,
    /// The warnings of the response, which begin with the field that they are about; none if the request would be refused.
    pub warnings: Vec<String>,
}

/// A built-in kind in one version, or all versions of a custom resource.
struct TriedKind {
    group: String,
    kind: String,
    /// The definition of a custom resource.
    definition: Option<Value>,
    /// The kind in its versions; made of the definition when the first object is judged, because compiling its rules takes time.
    resources: OnceLock<Vec<Resource>>,
}

impl Trial {
    /// Returns a trial of the built-in kinds.
    pub fn of_builtins() -> Self {
        let builtins = builtins(ServiceRange::default(), CustomResourceDefinition).into_iter();
        let tried = builtins.filter(is_written).map(|resource| {
            Arc::new(TriedKind {
                group: resource.group.to_string(),
                kind: resource.kind.to_string(),
                definition: None,
                resources: OnceLock::from(vec![resource]),
            })
        });
        Trial {
            kinds: tried.collect(),
        }
    }

    /// Adds the served versions of a CustomResourceDefinition. They come before others of the same kind. Of a definition that would be refused
    /// itself, no object is judged.
    pub fn define(&mut self, definition: &Value) {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let tried = TriedKind {
            group: text(&spec["group"]),
            kind: text(&spec["names"]["kind"]),
            definition: Some(definition.clone()),
            resources: OnceLock::new(),
        };
        self.kinds.insert(0, Arc::new(tried));
    }

    /// Returns the errors for which a create of the object would be refused, each once; `None` if the kind is not known, or if the object
    /// cannot be decoded.
    pub fn errors(&self, object: &Value, now: Timestamp) -> Option<Vec<FieldError>> {
        Some(self.judge(object, now)?.errors)
    }

    /// Returns how a create of the object would be answered; `None` if the kind is not known, or if the object cannot be decoded.
    pub fn judge(&self, object: &Value, now: Timestamp) -> Option<Judgement> {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let all = self.kinds.iter();
        let mut all = all.filter(|tried| tried.kind == kind && tried.group == group);
        let found = all.find_map(|tried| {
            let resources = match &tried.definition {
                None => tried.resources.get()?,
                Some(definition) => tried.resources.get_or_init(|| self.rows(definition, now)),
            };
            let resource = resources.iter().find(|own| own.version == version)?;
            Some(judge(resource, tried.definition.is_some(), object, now))
        });
        let mut judgement = found??;
        // Some kinds are validated more than once, and a response lists each cause as often.
        let mut seen = BTreeSet::new();
        let errors = &mut judgement.errors;
        errors.retain(|error| seen.insert((error.field.clone(), error.body())));
        Some(judgement)
    }

    /// Returns the kinds of a definition; none if the definition would be refused.
    fn rows(&self, definition: &Value, now: Timestamp) -> Vec<Resource> {
        if self
            .errors(definition, now)
            .is_none_or(|errors| !errors.is_empty())
        {
            return Vec::new();
        }
        let mut accepted = definition.clone();
        accepted["status"]["acceptedNames"] = definition["spec"]["names"].clone();
        resource::rows(&accepted)
    }
}

/// Returns whether objects of a kind are written in manifests. Reviews and the like are requests, and events have the namespace of what they are
/// about.
fn is_written(resource: &Resource) -> bool {
    let rules = &resource.rules;
    let is_stored = !(rules.transient || rules.read_only || rules.closing);
    is_stored && resource.source().is_none() && resource.plural != "events"
}

fn judge(
    resource: &Resource,
    is_custom: bool,
    object: &Value,
    now: Timestamp,
) -> Option<Judgement> {
    let decoded = decode::value(&resource.schema, object.clone()).ok()?;
    let mut object = decoded.value;
    let labels = &object["metadata"]["labels"];
    let is_unlabelled = labels.as_object().is_none_or(|labels| labels.is_empty());
    resource.behaviour.default(&mut object);
    metadata::wipe(&mut object);
    metadata::of(&mut object).remove("managedFields");
    let home = match metadata::text(&object, "namespace") {
        "" => NAMESPACE,
        home => home,
    };
    let home = resource.namespaced.then(|| home.to_owned());
    metadata::settle_namespace(&mut object, home.as_deref()).ok()?;
    if resource.qualified() == "pods" && object["spec"]["serviceAccountName"].is_null() {
        // Admission gives each pod an account before it is validated.
        object["spec"]["serviceAccountName"] = ACCOUNT.into();
    }
    let warnings = Mutex::new(Warnings::default());
    let ctx = Ctx {
        now,
        user: &User::administrator(),
        lookup: &NoObjects,
        authorizer: &EverythingAllowed,
        namespace: home.as_deref().unwrap_or_default(),
        path_name: "",
        patches: false,
        dry_run: true,
        warnings: &warnings,
        emptied: decoded.emptied.clone(),
        is_unlabelled,
    };
    metadata::begin(&mut object, resource, now);
    let base = metadata::text(&object, "generateName").to_owned();
    let is_generated = metadata::text(&object, "name").is_empty() && !base.is_empty();
    if is_generated {
        let name = metadata::generate_name(&base);
        metadata::of(&mut object).insert("name".into(), name.into());
    }
    // Dropped at the end, which frees what was allocated.
    let allocation = resource.allocate(&ctx, &mut object, None);
    if has_status(resource)
        && resource.rules.status_on_create == StatusOnCreate::Clear
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("status");
    }
    resource.behaviour.prepare_create(&ctx, &mut object);
    schema::normalise(&resource.schema, &mut object);
    let mut errors = Errors::about(decoded.emptied);
    resource.validate_new(is_custom, &ctx, &object, &mut errors);
    let mut warnings = errors.forgiven();
    // Of a generated name that is invalid, the error about its base says as much.
    let mut errors = errors.0;
    errors.retain(|error| !(is_generated && error.field == "metadata.name"));
    // What cannot be allocated here may be free in another cluster.
    errors.retain(|error| allocation.is_ok() || !ALLOCATED.contains(&error.field.as_str()));
    if errors.is_empty() {
        warnings.extend(resource.behaviour.warnings(&object, None));
    } else {
        warnings.clear();
    }
    Some(Judgement { errors, warnings })
}

fn has_status(resource: &Resource) -> bool {
    let mut handlers = resource.subresources.iter().map(|own| &own.handler);
    handlers.any(|handler| matches!(handler, SubresourceHandler::Status(_)))
}

/// The authorizer of a user who may do everything.
struct EverythingAllowed;

impl Authorize for EverythingAllowed {
    fn allows(&self, _: &User, _: &Attributes<'_>) -> bool {
        true
    }

    fn decide(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision {
            allowed: true,
            reason: String::new(),
        }
    }

    fn rules(&self, _: &User, _: &str) -> (Vec<Rule>, Vec<MissingRole>) {
        (Vec::new(), Vec::new())
    }

    fn role(&self, _: &str, _: &str, _: &str) -> Option<Arc<[Rule]>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors(trial: &Trial, object: Value) -> Option<Vec<String>> {
        let errors = trial.errors(&object, Timestamp::UNIX_EPOCH)?;
        let shown = errors
            .iter()
            .map(|error| format!("{}: {}", error.field, error.body()));
        Some(shown.collect())
    }

    #[test]
    fn an_object_has_the_errors_of_a_create() {
        let trial = Trial::of_builtins();
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {
                "replicas": -1, "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "web", "image": "nginx", "imagePullPolicy": "Sometimes"}]},
                },
            },
        });
        let found = errors(&trial, deployment).unwrap();
        assert_eq!(
            found,
            [
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "spec.template.spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ]
        );
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]},
        });
        assert_eq!(errors(&trial, service), Some(Vec::new()));
        let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        let found = errors(&trial, nameless).unwrap();
        assert_eq!(
            found,
            ["metadata.name: Required value: name or generateName is required"]
        );
        let misread = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": 1});
        assert_eq!(errors(&trial, misread), None);
        let unknown = json!({"apiVersion": "example.com/v1", "kind": "Widget"});
        assert_eq!(errors(&trial, unknown), None);
    }

    #[test]
    fn an_object_that_is_taken_has_the_warnings_of_a_create() {
        let pod = |memory: &str, replaced: &str| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
                "spec": {"containers": [{
                    "name": "web", "image": "nginx", "imagePullPolicy": replaced,
                    "resources": {"limits": {"memory": memory}},
                }]},
            })
        };
        let trial = Trial::of_builtins();
        let judge = |object: Value| trial.judge(&object, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(
            judge(pod("512m", "Always")).warnings,
            [
                "spec.containers[0].resources.limits[memory]: fractional byte value \"512m\" is invalid, must be an integer",
                // The request is the limit by default.
                "spec.containers[0].resources.requests[memory]: fractional byte value \"512m\" is invalid, must be an integer"
            ]
        );
        assert_eq!(judge(pod("512Mi", "Always")).warnings, [""; 0]);
        let refused = judge(pod("512m", "Sometimes"));
        assert_eq!((refused.errors.len(), refused.warnings.len()), (1, 0));
    }

    #[test]
    fn a_custom_resource_is_judged_by_schema_and_rules_of_its_definition() {
        let mut trial = Trial::of_builtins();
        let schema = json!({"type": "object", "properties": {"spec": {
            "type": "object", "required": ["size"],
            "properties": {"size": {"type": "integer", "maximum": 3}, "least": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "!has(self.least) || self.least <= self.size", "message": "least is more than size"}],
        }}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        });
        trial.define(&definition);
        let widget = |spec: Value| {
            let object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec});
            errors(&trial, object).unwrap()
        };
        assert_eq!(widget(json!({"size": 3})), [""; 0]);
        assert_eq!(widget(json!({}))[0], "spec.size: Required value");
        assert_eq!(
            widget(json!({"size": 4}))[0],
            "spec.size: Invalid value: 4: spec.size in body should be less than or equal to 3"
        );
        assert_eq!(
            widget(json!({"size": 1, "least": 2})),
            ["spec: Invalid value: least is more than size"]
        );
        let misfit = "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"";
        assert!(widget(json!({"size": "1"})).contains(&misfit.to_owned()));
    }
}
