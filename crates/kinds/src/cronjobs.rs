//! CronJobs: defaults, validation and table columns (`pkg/apis/batch`, `pkg/registry/batch/cronjob`). [`cron`] validates the schedule.

use jiff::Timestamp;
use mullion_kube_text::{
    cron,
    field::{ErrorType, Errors, Path},
    golang::zone,
    validation::selector::format_label_selector,
};
use mullion_schema::tree::{Tree, object_at, set_default, set_zero};
use serde_json::Value;

use super::{
    Check, Column, Kind,
    jobs::{self, spec},
    podspec::{self, internal},
    print, workloads,
};
use crate::{
    Printing,
    fields::{self, Code, Field, Fields, NOT_NEGATIVE, OneOf, Text, always, required, set},
    request::Ctx,
};

/// The behaviour of batch/v1 cronjobs.
pub(super) struct CronJobs;

/// The longest name: the name of a Job is its CronJob's with 11 more characters, and a Job's name may have 63.
const MAX_NAME: usize = 52;
const SPEC: &[Field] = &[
    required("schedule", Text(schedule)),
    set("startingDeadlineSeconds", NOT_NEGATIVE),
    set("timeZone", Text(time_zone)),
    required("concurrencyPolicy", OneOf(&["Allow", "Forbid", "Replace"])),
    always("jobTemplate", Fields(JOB_TEMPLATE)),
    set("successfulJobsHistoryLimit", NOT_NEGATIVE),
    set("failedJobsHistoryLimit", NOT_NEGATIVE),
];
const JOB_TEMPLATE: &[Field] = &[always("spec", Code(job_template))];
const COLUMNS: [Column; 10] = [
    print::NAME,
    print::column("Schedule"),
    print::column("Timezone"),
    print::typed("Suspend", "boolean"),
    print::typed("Active", "integer"),
    print::column("Last Schedule"),
    print::AGE,
    print::wide("Containers"),
    print::wide("Images"),
    print::wide("Selector"),
];

impl Kind for CronJobs {
    fn status_checks(&self) -> &'static [Check] {
        &[Check::Change]
    }

    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        let spec = object_at(root, "spec");
        set_zero(spec, "concurrencyPolicy", "Allow");
        set_default(spec, "suspend", false);
        set_default(spec, "successfulJobsHistoryLimit", 3);
        set_default(spec, "failedJobsHistoryLimit", 1);
        let template = object_at(spec, "jobTemplate");
        object_at(template, "metadata");
        jobs::default_template(object_at(template, "spec"));
    }

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        drop_disabled(object);
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, _: &Value) {
        drop_disabled(object);
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        fields::validate(SPEC, &object["spec"], &Path::new("spec"), errors);
    }

    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let name = object["metadata"].text("name");
        // Only creations are checked, because stored CronJobs may have longer names.
        if name.len() > MAX_NAME {
            errors.invalid(
                &Path::new("metadata").child("name"),
                name,
                format!("must be no more than {MAX_NAME} characters"),
            );
        }
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        if !workloads::is_new_generation(object, old) {
            return Vec::new();
        }
        let path = Path::new("spec");
        let path = path.child("jobTemplate");
        let path = path.child("spec");
        let job = &object["spec"]["jobTemplate"]["spec"];
        let mut warnings = Vec::new();
        if old.is_none() {
            warnings.extend(podspec::warnings::of_host_name(object));
        }
        warnings.extend(spec::warnings(job, &path));
        let path = path.child("template");
        warnings.extend(podspec::warnings::of_template(&job["template"], &path));
        warnings
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for CronJobs {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let job = &spec["jobTemplate"]["spec"];
        let last = match status.text("lastScheduleTime") {
            "" => "<none>".to_owned(),
            time => print::since(time, now),
        };
        let mut cells = vec![
            print::name(object),
            spec.text("schedule").into(),
            print::or_none(spec.text("timeZone")).into(),
            print::flag(&spec["suspend"]).into(),
            status.items("active").len().into(),
            last.into(),
            print::age(object, now),
        ];
        cells.extend(workloads::container_cells(&job["template"]["spec"]));
        cells.push(format_label_selector(&job["selector"]).into());
        cells
    }
}

fn drop_disabled(object: &mut Value) {
    podspec::prepare::drop_disabled_spec(
        &mut object["spec"]["jobTemplate"]["spec"]["template"]["spec"],
    );
}

fn schedule(errors: &mut Errors, path: &Path<'_>, text: &str) {
    if let Err(error) = cron::check(text) {
        errors.invalid(path, text, error.to_string());
    }
    // The parser accepts a zone before the schedule, but the field `timeZone` has replaced it.
    if text.contains("TZ") {
        errors.invalid(
            path,
            text,
            "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        );
    }
}

/// Validates the name of a time zone: it must be in the time zone database, with parts of at most 14 characters.
fn time_zone(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        return errors.invalid(path, name, "timeZone must be nil or non-empty string");
    }
    let is_part = |part: &str| {
        !matches!(part, "" | "." | "..")
            && part.len() <= 14
            && !part.starts_with('-')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte))
    };
    if !name.split('/').all(is_part) {
        return errors.invalid(path, name, format!("unknown time zone {name}"));
    }
    // In Go, `Local` is the zone of the computer that kube-apiserver runs on.
    if name.eq_ignore_ascii_case("Local") {
        errors.invalid(
            path,
            name,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        );
    }
    if let Err(why) = zone::load(name) {
        errors.invalid(path, name, why.to_string());
    }
}

fn job_template(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    spec::validate(spec, path, errors);
    // Each Job gets a selector with its own uid.
    if spec.has("selector") {
        errors.with_text(
            ErrorType::Invalid,
            &path.child("selector"),
            internal::label_selector(&spec["selector"]),
            "`selector` will be auto-generated",
        );
    }
    if spec.flag("manualSelector") {
        errors.not_supported(&path.child("manualSelector"), true, &["nil", "false"]);
    }
}
