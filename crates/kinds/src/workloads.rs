//! The kinds with a pod template: their common strategy, and the checks of selectors, templates, counts and percentages.
//!
//! A kind implements [`Workload`] with its own rules; [`WorkloadKind`] makes it a [`Kind`].

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    status::Status,
    validation::{
        IMMUTABLE, nonnegative,
        selector::{Selector, format_label_selector, label_selector},
    },
};
use mullion_schema::tree::{Tree, object_at};
use serde_json::{Map, Value};

use super::{
    Column, Kind,
    podspec::{self, internal},
};
use crate::{FieldSelection, Printing, request::Ctx};

/// The hooks in which the workload kinds differ.
pub(super) trait Workload: Send + Sync + 'static {
    /// Sets the defaults of the spec, except those of the template.
    fn default_spec(&self, spec: &mut Map<String, Value>);

    /// Checks whether kube-apiserver could convert the object to its internal type.
    fn readable(&self, object: &Value) -> Result<(), Status> {
        let _ = object;
        Ok(())
    }

    /// Like [`Kind::annotations_of_fields`].
    fn annotations_of_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// Sets the defaults outside of the spec.
    fn default_metadata(&self, object: &mut Value) {
        let _ = object;
    }

    /// Prepares a creation, or an update of `old`.
    fn prepare(&self, object: &mut Value, old: Option<&Value>) {
        let _ = (object, old);
    }

    /// Prepares an update of the status.
    fn prepare_status(&self, object: &mut Value, old: &Value) {
        let _ = (object, old);
    }

    /// Validates `spec`; `path` is the spec's.
    fn validate_spec(&self, spec: &Value, path: &Path<'_>, errors: &mut Errors);

    /// Validates the rules that apply only to a create.
    fn validate_creation(&self, object: &Value, errors: &mut Errors) {
        let _ = (object, errors);
    }

    /// Validates a change of the spec.
    fn validate_change(&self, object: &Value, old: &Value, errors: &mut Errors) {
        same_selector(object, old, errors);
    }

    /// Validates a change of the status.
    fn validate_status(&self, object: &Value, old: &Value, errors: &mut Errors);

    /// Returns the warnings, except those about the template.
    fn more_warnings(&self, object: &Value, new: bool) -> Vec<String> {
        let _ = (object, new);
        Vec::new()
    }

    /// Returns the columns of the table; the last ones are those of the wide cells.
    fn columns(&self) -> &[Column];

    /// Returns the cells before the wide ones.
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value>;

    /// Returns the cells that are shown only with `-o wide`.
    fn wide_cells(&self, object: &Value) -> Vec<Value> {
        let spec = &object["spec"];
        let mut cells = container_cells(&spec["template"]["spec"]).to_vec();
        cells.push(format_label_selector(&spec["selector"]).into());
        cells
    }

    /// Like [`FieldSelection::selectable_fields`].
    fn selectable_fields(&self) -> &[&'static str] {
        &[]
    }

    /// Like [`FieldSelection::selectable_value`].
    fn selectable_value(&self, object: &Value, field: &str) -> String {
        let _ = (object, field);
        String::new()
    }
}

/// The [`Kind`] of a [`Workload`].
pub(super) struct WorkloadKind<W>(pub(super) W);

impl<W: Workload> Kind for WorkloadKind<W> {
    fn permit(
        &self,
        _: &Ctx<'_>,
        _: &str,
        object: &Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        // A conversion error comes before validation and ends the request, so it is no error of a field.
        self.0.readable(object)
    }

    fn default(&self, object: &mut Value) {
        self.0.default_metadata(object);
        let Some(object) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(object, "spec");
        self.0.default_spec(spec);
        object_at(spec, "template");
        podspec::defaults::template(&mut spec["template"]);
    }

    fn annotations_of_fields(&self) -> &'static [&'static str] {
        self.0.annotations_of_fields()
    }

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        podspec::prepare::drop_disabled_spec(&mut object["spec"]["template"]["spec"]);
        self.0.prepare(object, None);
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, old: &Value) {
        podspec::prepare::drop_disabled_spec(&mut object["spec"]["template"]["spec"]);
        self.0.prepare(object, Some(old));
    }

    fn prepare_status(&self, _: &Ctx<'_>, object: &mut Value, old: &Value) {
        self.0.prepare_status(object, old);
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        self.0
            .validate_spec(&object["spec"], &Path::new("spec"), errors);
    }

    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        self.0.validate_creation(object, errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        self.0.validate_change(object, old, errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        self.0.validate_status(object, old, errors);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        if is_new_generation(object, old) {
            warnings = podspec::warnings::of_workload(object, old.is_none());
        }
        warnings.extend(self.0.more_warnings(object, old.is_none()));
        warnings
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }
}

impl<W: Workload> Printing for WorkloadKind<W> {
    fn columns(&self) -> &[Column] {
        self.0.columns()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut cells = self.0.cells(object, now);
        cells.extend(self.0.wide_cells(object));
        cells
    }
}

impl<W: Workload> FieldSelection for WorkloadKind<W> {
    fn selectable_fields(&self) -> &[&'static str] {
        self.0.selectable_fields()
    }

    fn selectable_value(&self, object: &Value, field: &str) -> String {
        self.0.selectable_value(object, field)
    }
}

/// The names of the owner of a selector and template, as error messages print them.
pub(super) struct Owner {
    /// The name in `empty selector is invalid for ...`.
    pub(super) selector_of: &'static str,
    /// The name in `activeDeadlineSeconds in ... is not Supported`.
    pub(super) deadline_in: &'static str,
}

/// The names for Deployments and ReplicaSets, which are the same in kube-apiserver's messages.
pub(super) const OF_DEPLOYMENT: Owner = Owner {
    selector_of: "deployment",
    deadline_in: "ReplicaSet",
};

/// Validates `spec.selector` and `spec.template`.
pub(super) fn selector_and_template(
    spec: &Value,
    owner: &Owner,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let none = Value::Null;
    let selector_path = path.child("selector");
    let selector = spec.get("selector").unwrap_or(&none);
    if selector.is_null() {
        errors.required(&selector_path, "");
    } else {
        label_selector(errors, &selector_path, selector);
        not_empty(selector, owner, &selector_path, errors);
    }
    match Selector::from_label_selector(selector) {
        // `label_selector` has reported what is wrong; kube-apiserver adds this error.
        Err(_) => errors.with_text(
            ErrorType::Invalid,
            &selector_path,
            internal::label_selector(selector),
            "invalid label selector",
        ),
        Ok(parsed) => template(
            spec.get("template").unwrap_or(&none),
            &parsed,
            owner,
            &path.child("template"),
            errors,
        ),
    }
}

/// Refuses an empty selector, which would select every pod.
pub(super) fn not_empty(selector: &Value, owner: &Owner, path: &Path<'_>, errors: &mut Errors) {
    let empty = selector.entries("matchLabels").next().is_none()
        && selector.items("matchExpressions").is_empty();
    if empty {
        let detail = format!("empty selector is invalid for {}", owner.selector_of);
        errors.with_text(
            ErrorType::Invalid,
            path,
            internal::label_selector(selector),
            detail,
        );
    }
}

fn template(
    template: &Value,
    selector: &Selector,
    owner: &Owner,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if !selector.is_everything() {
        selected(template, selector, path, errors);
    }
    template_of(template, owner, path, errors);
}

/// Requires the labels of a template to match the selector.
pub(super) fn selected(
    template: &Value,
    selector: &Selector,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let labels = template
        .get("metadata")
        .and_then(|metadata| metadata.get("labels"));
    if !selector.matches(labels) {
        let path = path.child("metadata");
        let path = path.child("labels");
        let labels = errors.map_as_sent(&path, labels.unwrap_or(&Value::Null));
        errors.invalid(&path, labels, "`selector` does not match template `labels`");
    }
}

/// Validates the template of a kind whose pods run until they are deleted.
pub(super) fn template_of(template: &Value, owner: &Owner, path: &Path<'_>, errors: &mut Errors) {
    podspec::validate_template(template, path, errors);
    let none = Value::Null;
    let (spec, at) = (template.get("spec").unwrap_or(&none), path.child("spec"));
    // The controllers of these kinds replace pods that end, so a pod that ends by design would come back forever.
    if spec.text("restartPolicy") != "Always" {
        errors.not_supported(
            &at.child("restartPolicy"),
            spec.text("restartPolicy"),
            &["Always"],
        );
    }
    if spec.has("activeDeadlineSeconds") {
        let detail = format!(
            "activeDeadlineSeconds in {} is not Supported",
            owner.deadline_in
        );
        errors.forbidden(&at.child("activeDeadlineSeconds"), detail);
    }
}

/// Requires numbers below `path` not to be negative.
pub(super) fn counts(owner: &Value, fields: &[&str], path: &Path<'_>, errors: &mut Errors) {
    for field in fields {
        if let Some(count) = owner.integer(field) {
            nonnegative(errors, &path.child(field), count);
        }
    }
}

/// Requires the counts in `parts` not to exceed `replicas`, and available pods not to exceed ready ones. `ready` is the name of ready pods
/// in the message.
pub(super) fn parts_of_replicas(status: &Value, parts: &[&str], ready: &str, errors: &mut Errors) {
    let path = Path::new("status");
    at_most(status, parts, "replicas", "status.replicas", &path, errors);
    let available = &["availableReplicas"];
    at_most(status, available, "readyReplicas", ready, &path, errors);
}

/// Requires numbers not to exceed another one.
fn at_most(
    status: &Value,
    fields: &[&str],
    most: &str,
    named: &str,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let bound = status.integer(most).unwrap_or(0);
    for field in fields {
        let count = status.integer(field).unwrap_or(0);
        if count > bound {
            errors.invalid(
                &path.child(field),
                count,
                format!("cannot be greater than {named}"),
            );
        }
    }
}

/// Validates an int-or-percent value: a valid percentage, or a number that is not negative.
pub(super) fn int_or_percent(value: &Value, path: &Path<'_>, errors: &mut Errors) {
    match value {
        Value::String(text) => {
            for sentence in names::percent(text) {
                errors.invalid(path, text.as_str(), sentence);
            }
        }
        number => nonnegative(errors, path, number.as_i64().unwrap_or(0)),
    }
}

/// Refuses percentages above 100%; numbers are not limited.
pub(super) fn at_most_all(value: &Value, path: &Path<'_>, errors: &mut Errors) {
    let percent = value.as_str().and_then(percentage);
    if percent.is_some_and(|percent| percent > 100) {
        errors.invalid(path, value.clone(), "must not be greater than 100%");
    }
}

/// Returns the number of a well-formed percentage.
fn percentage(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%')?;
    let well_formed = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // A percentage that overflows exceeds every limit.
    well_formed.then(|| digits.parse().unwrap_or(i64::MAX))
}

/// Returns the number of an int-or-percent value; a string that is only a number counts as one, as in Go's `IntValue`.
pub(super) fn number(value: &Value) -> i64 {
    match value {
        Value::String(text) => percentage(text).or_else(|| text.parse().ok()).unwrap_or(0),
        number => number.as_i64().unwrap_or(0),
    }
}

/// Requires `spec.selector` to be unchanged.
fn same_selector(object: &Value, old: &Value, errors: &mut Errors) {
    let selector = &object["spec"]["selector"];
    if *selector != old["spec"]["selector"] {
        let path = Path::new("spec");
        errors.with_text(
            ErrorType::Invalid,
            &path.child("selector"),
            internal::optional_selector(selector),
            IMMUTABLE,
        );
    }
}

/// Requires a counter not to fall.
pub(super) fn not_decremented(object: &Value, old: &Value, field: &str, errors: &mut Errors) {
    let (count, before) = (
        object["status"].integer(field),
        old["status"].integer(field),
    );
    if before.is_some_and(|before| count.is_none_or(|count| count < before)) {
        let path = Path::new("status");
        errors.invalid(
            &path.child(field),
            count.unwrap_or(0),
            "cannot be decremented",
        );
    }
}

/// Returns whether the template's warnings are due: for a new object, and whenever the generation changes.
pub(super) fn is_new_generation(object: &Value, old: Option<&Value>) -> bool {
    let generation = |object: &Value| object["metadata"]["generation"].clone();
    old.is_none_or(|old| generation(old) != generation(object))
}

/// Returns the names and the images of a pod spec's containers, for `-o wide`.
pub(super) fn container_cells(spec: &Value) -> [Value; 2] {
    let containers = spec.items("containers");
    ["name", "image"].map(|field| {
        let texts: Vec<&str> = containers
            .iter()
            .map(|container| container.text(field))
            .collect();
        texts.join(",").into()
    })
}
