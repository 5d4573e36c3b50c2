//! Jobs: defaults, the generated selector, validation and table columns (`pkg/apis/batch`, `pkg/registry/batch/job`).
//!
//! A Job selects its pods by its own uid, unless the user manages the selector (`manualSelector`). [`spec`] validates the spec, also of a
//! CronJob's template; [`update`] validates changes of it; [`status`] validates what a controller reports.

mod indexes;
mod policies;
pub(super) mod spec;
mod status;
mod update;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    golang::quote,
    names,
    validation::selector::{Selector, format_label_selector, label_selector},
};
use mullion_schema::tree::{Tree, object_at, set_default};
use serde_json::{Map, Value};

use super::{Check, Column, Kind, podspec, print, workloads};
use crate::{FieldSelection, Printing, podspec::internal, request::Ctx};

/// The behaviour of batch/v1 jobs.
pub(super) struct Jobs;

const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
const OLD_CONTROLLER_UID: &str = "controller-uid";
const OLD_JOB_NAME: &str = "job-name";

const COLUMNS: [Column; 8] = [
    print::NAME,
    print::column("Status"),
    print::column("Completions"),
    print::column("Duration"),
    print::AGE,
    print::wide("Containers"),
    print::wide("Images"),
    print::wide("Selector"),
];

impl Kind for Jobs {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::CHANGE_AND_WHOLE
    }

    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(root, "spec");
        if !is_set(spec, "parallelism") {
            // `parallelism` without `completions` is a work queue, whose number of completions is not known.
            if !is_set(spec, "completions") {
                set_default(spec, "completions", 1);
            }
            set_default(spec, "parallelism", 1);
        }
        // With a limit for each index, the limit of the whole Job must not end it first.
        let backoff = if is_set(spec, "backoffLimitPerIndex") {
            i32::MAX
        } else {
            6
        };
        set_default(spec, "backoffLimit", backoff);
        set_default(spec, "completionMode", "NonIndexed");
        set_default(spec, "suspend", false);
        set_default(spec, "manualSelector", false);
        // A failure policy judges how a pod ended, so a terminating pod is not replaced before it has.
        let replacement = if is_set(spec, "podFailurePolicy") {
            "Failed"
        } else {
            "TerminatingOrFailed"
        };
        set_default(spec, "podReplacementPolicy", replacement);
        default_template(spec);
        label_like_template(object);
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        podspec::prepare::drop_disabled_spec(&mut object["spec"]["template"]["spec"]);
        if !object["spec"].flag("manualSelector") {
            let template = &object["spec"]["template"]["metadata"];
            let is_shared = ctx.is_unlabelled && template.entries("labels").next().is_some();
            generate_selector(object);
            if is_shared {
                object["metadata"]["labels"] =
                    object["spec"]["template"]["metadata"]["labels"].clone();
            }
        }
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, _: &Value) {
        podspec::prepare::drop_disabled_spec(&mut object["spec"]["template"]["spec"]);
    }

    fn read_back(&self, object: &mut Value) {
        // The template may have got labels since the Job was decoded, and a write of the status may have taken the Job's.
        label_like_template(object);
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        if !object["spec"].flag("manualSelector") {
            generated_selector(object, errors);
        }
        with_selector(&object["spec"], &Path::new("spec"), errors);
        pod_names(object, errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let path = Path::new("spec");
        with_selector(&object["spec"], &path, errors);
        update::validate(object, old, &path, errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        status::validate(object, old, errors);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        if !workloads::is_new_generation(object, old) {
            return Vec::new();
        }
        let (spec, path, mut warnings) = (&object["spec"], Path::new("spec"), Vec::new());
        if old.is_none() {
            warnings = podspec::warnings::of_host_name(object);
        }
        warnings.extend(spec::warnings(spec, &path));
        let path = path.child("template");
        warnings.extend(podspec::warnings::of_template(&spec["template"], &path));
        warnings
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }
}

impl Printing for Jobs {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let mut cells = vec![
            print::name(object),
            status::word(object).into(),
            completions(object).into(),
            duration(&object["status"], now).into(),
            print::age(object, now),
        ];
        cells.extend(workloads::container_cells(&spec["template"]["spec"]));
        cells.push(format_label_selector(&spec["selector"]).into());
        cells
    }
}

impl FieldSelection for Jobs {
    fn selectable_fields(&self) -> &[&'static str] {
        &["status.successful"]
    }

    fn unselectable(&self, field: &str) -> Option<String> {
        Some(format!(
            "field label {} not supported for Job",
            quote(field)
        ))
    }

    fn selectable_value(&self, object: &Value, _: &str) -> String {
        object["status"]
            .integer("succeeded")
            .unwrap_or(0)
            .to_string()
    }
}

fn is_set(spec: &Map<String, Value>, field: &str) -> bool {
    spec.get(field).is_some_and(|value| !value.is_null())
}

/// Sets the defaults of a Job's template and policies; the template of a CronJob gets only these.
pub(super) fn default_template(spec: &mut Map<String, Value>) {
    policies::default(spec);
    object_at(spec, "template");
    podspec::defaults::template(&mut spec["template"]);
}

/// Copies the template's labels to a Job without labels.
fn label_like_template(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    let unlabelled = object["metadata"].entries("labels").next().is_none();
    if unlabelled && labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        object["metadata"]["labels"] = labels;
    }
}

fn generate_selector(object: &mut Value) {
    // A Job whose name is not known yet is refused, and its labels are empty texts as in Go.
    let name = Value::from(object["metadata"].text("name"));
    let uid = Value::from(object["metadata"].text("uid"));
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let template = object_at(spec, "template");
    let labels = object_at(object_at(template, "metadata"), "labels");
    // The labels without a prefix stay, because clients still select pods by them.
    for key in [OLD_JOB_NAME, JOB_NAME] {
        labels.entry(key).or_insert_with(|| name.clone());
    }
    for key in [OLD_CONTROLLER_UID, CONTROLLER_UID] {
        labels.entry(key).or_insert_with(|| uid.clone());
    }
    let selected = object_at(object_at(spec, "selector"), "matchLabels");
    selected.entry(CONTROLLER_UID).or_insert(uid);
}

/// Checks that the generated selector and labels are present and refer to this Job's uid and name.
fn generated_selector(object: &Value, errors: &mut Errors) {
    let (spec, metadata) = (&object["spec"], &object["metadata"]);
    // `with_selector` reports a missing selector, so this check adds nothing.
    if !spec.has("selector") {
        return;
    }
    if metadata.text("uid").is_empty() {
        errors.required(&Path::new("metadata").child("uid"), "");
    }
    let path = Path::new("spec");
    let path = path.child("template");
    let path = path.child("metadata");
    let path = path.child("labels");
    let labels = &spec["template"]["metadata"]["labels"];
    let mut expected = Map::new();
    for (key, from) in [
        (OLD_CONTROLLER_UID, "uid"),
        (OLD_JOB_NAME, "name"),
        (CONTROLLER_UID, "uid"),
        (JOB_NAME, "name"),
    ] {
        let wanted = metadata.text(from);
        let sentence = format!("must be '{wanted}'");
        match labels.get(key) {
            None => errors.required(&path.key(key), sentence),
            Some(label) if label != wanted => {
                errors.invalid(&path.key(key), labels.clone(), sentence);
            }
            Some(_) => {}
        }
        expected.insert(key.to_owned(), wanted.into());
    }
    if Selector::from_label_selector(&spec["selector"])
        .is_ok_and(|selector| !selector.matches(Some(&expected.into())))
    {
        errors.with_text(
            ErrorType::Invalid,
            &Path::new("spec").child("selector"),
            internal::label_selector(&spec["selector"]),
            "`selector` not auto-generated",
        );
    }
}

/// Validates the spec of a Job: it must have a selector that matches the template's pods.
fn with_selector(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    spec::validate(spec, path, errors);
    let at = path.child("selector");
    let selector = &spec["selector"];
    if selector.is_null() {
        errors.required(&at, "");
    } else {
        label_selector(errors, &at, selector);
    }
    if let Ok(selector) = Selector::from_label_selector(selector) {
        workloads::selected(
            &spec["template"],
            &selector,
            &path.child("template"),
            errors,
        );
    }
}

/// Checks that the name of an indexed Job's last pod, which ends with its index, is a valid host name.
fn pod_names(object: &Value, errors: &mut Errors) {
    let spec = &object["spec"];
    let Some(completions) = spec.integer("completions").filter(|count| *count > 0) else {
        return;
    };
    if spec.text("completionMode") != "Indexed" {
        return;
    }
    let name = object["metadata"].text("name");
    let last = format!("{name}-{}", completions - 1);
    if !names::dns_label(&last).is_empty() {
        errors.invalid(
            &Path::new("metadata").child("name"),
            name,
            // The grammar is kube-apiserver's.
            format!("will not able to create pod with invalid DNS label: {last}"),
        );
    }
}

fn completions(object: &Value) -> String {
    let spec = &object["spec"];
    let done = object["status"].integer("succeeded").unwrap_or(0);
    match (spec.integer("completions"), spec.integer("parallelism")) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        // A work queue has no number of completions, so printJob shows how many pods work on it.
        (None, Some(parallel)) if parallel > 1 => format!("{done}/1 of {parallel}"),
        (None, _) => format!("{done}/1"),
    }
}

fn duration(status: &Value, now: Timestamp) -> String {
    let Ok(start) = status.text("startTime").parse::<Timestamp>() else {
        return String::new();
    };
    let end = status.text("completionTime").parse().unwrap_or(now);
    print::duration(end.duration_since(start).as_secs())
}
