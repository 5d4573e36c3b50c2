//! Validates the status that a controller writes for a Job: a finished Job stays finished, counters do not fall, and indexes are valid.
//!
//! Most rules apply only to the parts that a write changes, so an invalid stored status can be corrected step by step.

use std::collections::HashSet;

use mullion_kube_text::field::{ErrorType, Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::indexes;
use crate::{podspec::internal, workloads};

/// Returns whether the status has the condition with the value `True`.
pub(super) fn is_true(status: &Value, condition: &str) -> bool {
    status
        .items("conditions")
        .iter()
        .any(|other| other.text("type") == condition && other.text("status") == "True")
}

/// Returns the cell of the Status column.
pub(super) fn word(job: &Value) -> &'static str {
    let is = |condition: &str| is_true(&job["status"], condition);
    // A Job can have several of these conditions at once, and shows the first of this order.
    match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if job["metadata"].has("deletionTimestamp") => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

/// An update of a Job's status: the old and the new one, and the spec.
struct Change<'a> {
    spec: &'a Value,
    new: &'a Value,
    old: &'a Value,
}

impl Change<'_> {
    fn changes(&self, fields: &[&str]) -> bool {
        fields.iter().any(|field| {
            let zero = |value: &Value| value.is_null() || *value == 0 || *value == "";
            let (new, old) = (&self.new[*field], &self.old[*field]);
            // In Go an absent number or text equals its zero value; `failedIndexes` is a pointer, where the two differ.
            new != old && !(zero(new) && zero(old) && *field != "failedIndexes")
        })
    }

    fn is(&self, condition: &str) -> bool {
        is_true(self.new, condition)
    }

    fn was(&self, condition: &str) -> bool {
        is_true(self.old, condition)
    }

    fn turns(&self, condition: &str) -> bool {
        self.is(condition) != self.was(condition)
    }

    fn is_finished(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn turns_finished(&self) -> bool {
        self.is_finished() != (self.was("Complete") || self.was("Failed"))
    }
}

/// Validates a write to `/status`.
pub(super) fn validate(object: &Value, old: &Value, errors: &mut Errors) {
    let change = Change {
        spec: &object["spec"],
        new: &object["status"],
        old: &old["status"],
    };
    let path = Path::new("status");
    let counts = ["active", "succeeded", "failed", "ready", "terminating"];
    workloads::counts(change.new, &counts, &path, errors);
    uncounted(change.new, &path.child("uncountedTerminatedPods"), errors);
    completion(&change, &path, errors);
    finished(&change, &path, errors);
    index_lists(&change, &path, errors);
    pods(&change, &path, errors);
    criteria(&change, &path.child("conditions"), errors);
    transitions(&change, &path, errors);
}

fn uncounted(status: &Value, path: &Path<'_>, errors: &mut Errors) {
    let pods = &status["uncountedTerminatedPods"];
    let mut seen: HashSet<&Value> = HashSet::new();
    for list in ["succeeded", "failed"] {
        let at = path.child(list);
        for (index, uid) in pods.items(list).iter().enumerate() {
            if uid == "" {
                errors.invalid(&at.index(index), "", "must not be empty");
            } else if !seen.insert(uid) {
                errors.duplicate(&at.index(index), uid.clone());
            }
        }
    }
}

fn completion(change: &Change<'_>, path: &Path<'_>, errors: &mut Errors) {
    let conditions = path.child("conditions");
    let completes = change.turns("Complete");
    if (completes || change.turns("Failed")) && change.is("Complete") && change.is("Failed") {
        errors.invalid_as_a_whole(
            &conditions,
            "cannot set Complete=True and Failed=true conditions",
        );
    }
    if (completes || change.turns("FailureTarget"))
        && change.is("Complete")
        && change.is("FailureTarget")
    {
        errors.invalid_as_a_whole(
            &conditions,
            "cannot set Complete=True and FailureTarget=true conditions",
        );
    }
    let at = path.child("completionTime");
    let time = change.new.field("completionTime");
    if completes || change.changes(&["completionTime"]) {
        match time {
            Some(time) if !change.is("Complete") => errors.invalid(
                &at,
                time.clone(),
                "cannot set completionTime when there is no Complete=True condition",
            ),
            None if change.is("Complete") => {
                errors.required(&at, "completionTime is required for Complete jobs");
            }
            _ => {}
        }
    }
    if change.changes(&["startTime", "completionTime"])
        && let (Some(start), Some(end)) = (change.new.field("startTime"), time)
        // Stored times are in UTC with whole seconds, so their texts compare like the times.
        && end.as_str() < start.as_str()
    {
        errors.invalid(&at, end.clone(), "must be equal to or after `startTime`");
    }
}

fn finished(change: &Change<'_>, path: &Path<'_>, errors: &mut Errors) {
    let conditions = path.child("conditions");
    if (change.turns("Failed") || change.changes(&["failedIndexes"]))
        && change.is("Failed")
        && !change.is("FailureTarget")
    {
        errors.invalid_as_a_whole(
            &conditions,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        );
    }
    if (change.turns("Complete") || change.turns("SuccessCriteriaMet"))
        && change.is("Complete")
        && !change.is("SuccessCriteriaMet")
    {
        errors.invalid_as_a_whole(
            &conditions,
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        );
    }
    let (finishes, is_finished) = (change.turns_finished(), change.is_finished());
    let active = change.new.integer("active").unwrap_or(0);
    if (finishes || change.changes(&["active"])) && active > 0 && is_finished {
        errors.invalid(
            &path.child("active"),
            active,
            "active>0 is invalid for finished job",
        );
    }
    if (finishes || change.changes(&["startTime"])) && !change.new.has("startTime") && is_finished {
        errors.required(
            &path.child("startTime"),
            "startTime is required for finished job",
        );
    }
    let pods = &change.new["uncountedTerminatedPods"];
    let any = !pods.items("succeeded").is_empty() || !pods.items("failed").is_empty();
    if (finishes || change.changes(&["uncountedTerminatedPods"])) && is_finished && any {
        errors.with_text(
            ErrorType::Invalid,
            &path.child("uncountedTerminatedPods"),
            internal::compact("UncountedTerminatedPods", pods),
            "uncountedTerminatedPods needs to be empty for finished job",
        );
    }
}

fn index_lists(change: &Change<'_>, path: &Path<'_>, errors: &mut Errors) {
    let completions = change.spec.integer("completions");
    let (completed, failed) = (
        change.new.text("completedIndexes"),
        change.new.text("failedIndexes"),
    );
    let (completed_path, failed_path) =
        (path.child("completedIndexes"), path.child("failedIndexes"));
    let completed_changes = change.changes(&["completedIndexes"]);
    let failed_changes = change.changes(&["failedIndexes"]);
    let per_index = change.spec.has("backoffLimitPerIndex");
    if let Some(count) = completions {
        if completed_changes && let Err(error) = indexes::count(completed, count) {
            let detail = format!("error parsing completedIndexes: {error}");
            errors.invalid(&completed_path, completed, detail);
        }
        if failed_changes
            && per_index
            && let Err(error) = indexes::count(failed, count)
        {
            let detail = format!("error parsing failedIndexes: {error}");
            errors.invalid(&failed_path, failed, detail);
        }
    }
    if completed_changes && !completed.is_empty() && change.spec.text("completionMode") != "Indexed"
    {
        errors.invalid(
            &completed_path,
            completed,
            "cannot set non-empty completedIndexes when non-indexed completion mode",
        );
    }
    if failed_changes && !per_index && change.new.has("failedIndexes") {
        errors.invalid(
            &failed_path,
            failed,
            "cannot set non-null failedIndexes when backoffLimitPerIndex is null",
        );
    }
    if (failed_changes || completed_changes)
        && let Some(count) = completions
        && let Some(index) = indexes::overlap(completed, failed, count)
    {
        let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
        errors.invalid(&failed_path, failed, detail);
    }
}

fn pods(change: &Change<'_>, path: &Path<'_>, errors: &mut Errors) {
    let count = |field: &str| change.new.integer(field).unwrap_or(0);
    if (change.turns_finished() || change.changes(&["terminating"]))
        && count("terminating") > 0
        && change.is_finished()
    {
        errors.invalid(
            &path.child("terminating"),
            count("terminating"),
            "terminating>0 is invalid for finished job",
        );
    }
    if change.changes(&["ready", "active"]) && count("ready") > count("active") {
        errors.invalid(
            &path.child("ready"),
            count("ready"),
            "cannot set more ready pods than active",
        );
    }
}

fn criteria(change: &Change<'_>, path: &Path<'_>, errors: &mut Errors) {
    // Unlike the rules above, these hold for every write, whatever it changes.
    let met = change.is("SuccessCriteriaMet");
    if met && change.is("Failed") {
        errors.invalid_as_a_whole(
            path,
            "cannot set SuccessCriteriaMet=True and Failed=true conditions",
        );
    }
    if met && change.is("FailureTarget") {
        errors.invalid_as_a_whole(
            path,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        );
    }
    if change.spec.has("successPolicy") && !met && change.is("Complete") {
        errors.invalid_as_a_whole(
            path,
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        );
    }
}

/// Checks that terminal conditions, counters and other final facts are not reverted.
fn transitions(change: &Change<'_>, path: &Path<'_>, errors: &mut Errors) {
    let conditions = path.child("conditions");
    for condition in ["Failed", "Complete", "FailureTarget"] {
        if change.was(condition) && !change.is(condition) {
            errors.invalid_as_a_whole(
                &conditions,
                format!("cannot disable the terminal {condition}=True condition"),
            );
        }
    }
    // An Indexed Job with as many completions as parallel pods can be scaled down, which lowers `succeeded`.
    let elastic = change.spec.text("completionMode") == "Indexed"
        && change.spec["completions"] == change.spec["parallelism"];
    for counter in ["failed", "succeeded"] {
        let count = |status: &Value| status.integer(counter).unwrap_or(0);
        let may_fall = counter == "succeeded" && elastic;
        if !may_fall && count(change.new) < count(change.old) {
            errors.invalid(
                &path.child(counter),
                count(change.new),
                format!("cannot decrease the {counter} counter"),
            );
        }
    }
    let (new, old) = (
        change.new.field("completionTime"),
        change.old.field("completionTime"),
    );
    if let (Some(new), Some(old)) = (new, old)
        && new != old
    {
        errors.invalid(
            &path.child("completionTime"),
            new.clone(),
            "completionTime cannot be mutated",
        );
    }
    if change.old.has("startTime") && change.changes(&["startTime"]) && !change.spec.flag("suspend")
    {
        errors.required(
            &path.child("startTime"),
            "startTime cannot be removed for unsuspended job",
        );
    }
    if change.was("SuccessCriteriaMet") && !change.is("SuccessCriteriaMet") {
        errors.invalid_as_a_whole(
            &conditions,
            "cannot disable the SuccessCriteriaMet=True condition",
        );
    }
    if change.was("Complete")
        && !change.was("SuccessCriteriaMet")
        && change.is("SuccessCriteriaMet")
    {
        errors.invalid_as_a_whole(
            &conditions,
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
        );
    }
}
