//! The rows of a custom resource definition, one per served version, and the behaviour of its instances.

use std::{borrow::Cow, sync::Arc};

use jiff::Timestamp;
use mullion_kinds::{
    Column, Conversion, FieldSelection, Generation, Kind, Printing, Resource, Rules,
    StatusMetadata, StatusOnCreate, Subresource, SubresourceHandler, request::Ctx,
};
use mullion_kube_text::{
    field::Errors,
    golang::quote,
    status::{Details, Status},
};
use mullion_schema::{Type, decode, structural::Schema};
use serde_json::Value;

use super::{
    columns::Columns,
    defaults, finalizers, intern,
    jsonpath::JsonPath,
    rules::Rules as CelRules,
    validation::{self, embedded, scale},
};
use crate::version_order;

/// The properties of one version's instances.
struct CustomResource {
    schema: Schema,
    rules: CelRules,
    scale: Option<scale::Paths>,
    columns: Columns,
    selectable: Vec<&'static str>,
    selectable_paths: Vec<Option<JsonPath>>,
    /// The type that this version's schema describes.
    known: Type,
    /// The schema of the storage version, if this version is another one.
    stored: Option<Arc<Stored>>,
    /// Whether the schema may have changed since objects were stored: they may then have fields that the schema does not know, and lack its
    /// defaults.
    is_newer_than_objects: bool,
    /// The name `plural.group` of the definition if it is being deleted, which forbids new instances.
    going: Option<String>,
}

/// The schema of the storage version, which stored instances have.
struct Stored {
    schema: Schema,
    known: Type,
}

impl CustomResource {
    fn check(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        validation::check(&self.schema, object, old, errors);
        if let Some(scale) = &self.scale {
            scale.check_spec(object, errors);
            scale.check_status(object, errors);
        }
        embedded::check(&self.schema, object, None, errors);
        validation::check_lists(&self.schema, object, old, errors);
        self.rules.check(&self.schema, object, old, errors);
    }

    /// Validates a status update. Outside of `status` only list types and rules are checked. The paths of errors about values are relative
    /// to `status`, so they get it as a prefix.
    fn check_status(&self, object: &Value, old: &Value, errors: &mut Errors) {
        let schema = self.schema.properties.get("status");
        if let Some((schema, status)) = schema.zip(object.get("status")) {
            let before = old.get("status").unwrap_or(&Value::Null);
            let mut found = Errors::default();
            validation::check(schema, status, Some(before), &mut found);
            errors
                .0
                .extend(found.0.into_iter().map(|error| error.below("status")));
        }
        if let Some(scale) = &self.scale {
            scale.check_status(object, errors);
        }
        validation::check_lists(&self.schema, object, Some(old), errors);
        self.rules.check(&self.schema, object, Some(old), errors);
    }
}

impl Kind for CustomResource {
    fn permit(
        &self,
        _: &Ctx<'_>,
        name: &str,
        _: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        // Updates stay possible, so that finalizers can be removed and the deletion can end.
        match (&self.going, old) {
            (Some(definition), None) => {
                let (plural, group) = definition.split_once('.').unwrap_or_default();
                let why = "create not allowed while custom resource definition is terminating";
                let named = match name {
                    "" => definition.clone(),
                    name => format!("{definition} {}", quote(name)),
                };
                let mut status =
                    Status::new(403, "Forbidden", format!("{named} is forbidden: {why}"));
                status.details = Some(Box::new(Details {
                    name: name.to_owned(),
                    group: group.to_owned(),
                    kind: plural.to_owned(),
                    ..Details::default()
                }));
                Err(status)
            }
            _ => Ok(()),
        }
    }

    fn default(&self, object: &mut Value) {
        defaults::apply(&self.schema, object);
    }

    fn default_applied(&self, object: &mut Value) {
        defaults::apply_keeping_nulls(&self.schema, object);
    }

    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        self.check(object, None, errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        self.check(object, Some(old), errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        self.check_status(object, old, errors);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        finalizers::warnings(object, old)
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }

    fn conversion(&self) -> Option<&dyn Conversion> {
        Some(self)
    }
}

impl Printing for CustomResource {
    fn columns(&self) -> &[Column] {
        self.columns.definitions()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.columns.cells(object, now)
    }
}

impl FieldSelection for CustomResource {
    fn selectable_fields(&self) -> &[&'static str] {
        &self.selectable
    }

    fn selectable_value(&self, object: &Value, field: &str) -> String {
        let path = self
            .selectable
            .iter()
            .position(|known| *known == field)
            .and_then(|at| self.selectable_paths[at].as_ref());
        let found = path.and_then(|path| path.find(object).ok());
        match found.and_then(|found| found.first().copied()) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }
}

impl Conversion for CustomResource {
    fn to_served(&self, object: &mut Value) {
        decode::prune(&self.known, object);
        defaults::apply(&self.schema, object);
    }

    fn to_storage(&self, object: &mut Value) {
        if let Some(stored) = &self.stored {
            decode::prune(&stored.known, object);
            defaults::apply(&stored.schema, object);
        }
    }

    fn rewrites_stored(&self) -> bool {
        self.is_newer_than_objects
    }
}

/// Returns the rows of an accepted definition; the row of the storage version comes first.
pub(crate) fn rows(definition: &Value) -> Vec<Resource> {
    let mut versions: Vec<&Value> = definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    // The registry takes the first row's version as the stored one.
    versions.sort_by_key(|version| version["storage"].as_bool() != Some(true));
    let storage = versions.first().map(|version| {
        let schema = Schema::parse(&version["schema"]["openAPIV3Schema"]);
        let known = schema.to_type();
        Arc::new(Stored { schema, known })
    });
    let served = versions
        .into_iter()
        .filter(|version| version["served"].as_bool() == Some(true));
    storage.map_or_else(Vec::new, |storage| {
        served
            .map(|version| row(definition, version, &storage))
            .collect()
    })
}

fn row(definition: &Value, version: &Value, storage: &Arc<Stored>) -> Resource {
    let spec = &definition["spec"];
    let names = &definition["status"]["acceptedNames"];
    let text = |value: &Value| Cow::Owned(value.as_str().unwrap_or_default().to_owned());
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
    let source = &version["schema"]["openAPIV3Schema"];
    let schema = Schema::parse(source);
    let kind = schema.to_type();
    let (subresources, has_status) = subresources(version, &text(&names["kind"]));
    let selectable_paths: Vec<String> = version["selectableFields"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|field| field["jsonPath"].as_str().map(str::to_owned))
        .collect();
    let (group, plural): (Cow<'static, str>, Cow<'static, str>) =
        (text(&spec["group"]), text(&names["plural"]));
    Resource {
        storage: Cow::Owned(format!("{plural}.{group}")),
        kind: text(&names["kind"]),
        singular: text(&names["singular"]),
        short_names: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        schema: kind.clone(),
        rules: Rules {
            generation: Generation::CountsAllButStatus,
            unconditional_update: false,
            status_on_create: if has_status {
                StatusOnCreate::Clear
            } else {
                StatusOnCreate::Keep
            },
            closing: definition["metadata"].get("deletionTimestamp").is_some(),
            converted_by_webhook: spec["conversion"]["strategy"] == "Webhook"
                && version["storage"] != true,
            ..Rules::default()
        },
        subresources,
        list_kind: Some(text(&names["listKind"])).filter(|kind| !kind.is_empty()),
        deprecated: deprecation(spec, version),
        behaviour: Arc::new(CustomResource {
            rules: CelRules::compile(&schema, source, true),
            scale: scale::Paths::of(version),
            columns: Columns::of(version),
            selectable: selectable_paths
                .iter()
                .map(|path| intern(path.trim_start_matches('.')))
                .collect(),
            selectable_paths: selectable_paths
                .iter()
                .map(|path| JsonPath::parse(path).ok())
                .collect(),
            going: definition["metadata"]
                .get("deletionTimestamp")
                .map(|_| format!("{plural}.{group}")),
            known: kind.clone(),
            stored: (version["storage"] != true).then(|| storage.clone()),
            // The first generation's schema is the one that every object was stored with, so its bytes need no pruning.
            is_newer_than_objects: definition["metadata"]["generation"].as_i64().unwrap_or(1) > 1,
            schema,
        }),
        version: text(&version["name"]),
        group,
        plural,
    }
}

/// Returns the warning of a deprecated version: its own, or that of kube-apiserver, which names the version to use if one is served that is
/// preferred and not deprecated.
fn deprecation(spec: &Value, version: &Value) -> Option<Cow<'static, str>> {
    if version["deprecated"].as_bool() != Some(true) {
        return None;
    }
    if let Some(warning) = version["deprecationWarning"].as_str() {
        return Some(Cow::Owned(warning.to_owned()));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, kind) = (text(&spec["group"]), text(&spec["names"]["kind"]));
    let name = text(&version["name"]);
    let others = spec["versions"].as_array().into_iter().flatten();
    let usable = others.filter(|other| other["served"] == true && other["deprecated"] != true);
    let newest = usable
        .map(|other| text(&other["name"]))
        .min_by_key(|other| version_order::priority(other))
        .filter(|newest| version_order::priority(newest) < version_order::priority(&name));
    let advice = newest.map(|newest| format!("; use {group}/{newest} {kind}"));
    let advice = advice.unwrap_or_default();
    Some(Cow::Owned(format!(
        "{group}/{name} {kind} is deprecated{advice}"
    )))
}

fn subresources(version: &Value, kind: &str) -> (Vec<Subresource>, bool) {
    const VERBS: &[&str] = &["get", "patch", "update"];
    let given = &version["subresources"];
    let mut rows = Vec::new();
    let has_status = given.get("status").is_some_and(Value::is_object);
    if has_status {
        rows.push(Subresource {
            name: "status",
            group: None,
            version: None,
            kind: Cow::Owned(kind.to_owned()),
            verbs: VERBS,
            handler: SubresourceHandler::Status(StatusMetadata::KeepAll),
        });
    }
    if let Some(scale) = given.get("scale").filter(|scale| scale.is_object()) {
        let path = |field: &str| {
            scale[field]
                .as_str()
                .map(|path| path.trim_start_matches('.').to_owned())
        };
        rows.push(Subresource {
            name: "scale",
            group: Some("autoscaling"),
            version: Some("v1"),
            kind: Cow::Borrowed("Scale"),
            verbs: VERBS,
            handler: SubresourceHandler::Scale {
                spec_replicas: path("specReplicasPath").unwrap_or_default(),
                status_replicas: path("statusReplicasPath").unwrap_or_default(),
                selector: path("labelSelectorPath"),
            },
        });
    }
    (rows, has_status)
}
