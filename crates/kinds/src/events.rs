//! Events, served as core/v1 and as events.k8s.io/v1: the objects are stored in the core form, and the two APIs have different field names.
//!
//! The rules apply to the core form, so an event of the new API is converted first. An event of the new API must name its reporting
//! controller; one of the old API only has to be in the namespace of its object.

use jiff::{SignedDuration, Timestamp};
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    validation::{self, check},
};
use mullion_schema::tree::Tree;
use serde_json::{Map, Value};

use super::{
    Check, Column, Kind,
    podspec::internal,
    print::{column, since, wide},
};
use crate::{Conversion, FieldSelection, Printing, request::Ctx};

/// The core names and the events.k8s.io names of fields that differ.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];
/// The time for which events are kept (kube-apiserver: `--event-ttl`).
pub(super) const TTL: SignedDuration = SignedDuration::from_hours(1);
const MAX_TEXT: usize = 128;
const MAX_NOTE: usize = 1024;

const COLUMNS: &[Column] = &[
    column("Last Seen"),
    column("Type"),
    column("Reason"),
    column("Object"),
    wide("Subobject"),
    wide("Source"),
    column("Message"),
    wide("First Seen"),
    wide("Count"),
    Column {
        name: "Name",
        cell_type: "string",
        format: "name",
        priority: 1,
    },
];

/// core/v1 Event.
pub(crate) struct CoreEvent;

/// events.k8s.io/v1 Event.
pub(crate) struct Event;

/// As in kube-apiserver, the metadata of core events is not validated.
impl Kind for CoreEvent {
    fn creation_checks(&self) -> &'static [Check] {
        &[Check::Object]
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[Check::Object]
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        common(errors, &Face::Core(object), "reportingComponent");
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }
}

impl Printing for CoreEvent {
    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        cells(object, now)
    }
}

impl FieldSelection for CoreEvent {
    fn selectable_fields(&self) -> &[&'static str] {
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ]
    }

    fn selectable_value(&self, object: &Value, field: &str) -> String {
        match field {
            "source" => match object["source"].text("component") {
                "" => object.text("reportingComponent").to_owned(),
                component => component.to_owned(),
            },
            _ => at(object, field),
        }
    }
}

impl Kind for Event {
    fn creation_checks(&self) -> &'static [Check] {
        &[Check::Object, Check::Metadata, Check::Change]
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[Check::Object, Check::MetadataChange, Check::Change]
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        common(errors, &Face::New(object), "reportingController");
    }

    fn validate_creation(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        new_api(errors, &Face::New(object));
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let (core, old) = (core_form(object), core_form(old));
        if core["series"] != old["series"] {
            series(errors, &core["series"]);
        }
        unchanged(errors, &core, &old);
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

impl Printing for Event {
    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        cells(&core_form(object), now)
    }
}

impl FieldSelection for Event {
    fn selectable_fields(&self) -> &[&'static str] {
        &[
            "reason",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reportingController",
            "type",
        ]
    }

    fn selectable_value(&self, object: &Value, field: &str) -> String {
        at(object, field)
    }
}

impl Conversion for Event {
    fn to_storage(&self, object: &mut Value) {
        if let Some(object) = object.as_object_mut() {
            RENAMED
                .iter()
                .for_each(|(core, new)| rename(object, new, core));
            object.entry("source").or_insert_with(|| Map::new().into());
        }
    }

    fn to_served(&self, object: &mut Value) {
        if let Some(object) = object.as_object_mut() {
            RENAMED
                .iter()
                .for_each(|(core, new)| rename(object, core, new));
            // The core form always has these two fields; the new form has them only if they are set.
            for field in ["reportingController", "reportingInstance"] {
                if object.get(field).is_some_and(|text| text == "") {
                    object.remove(field);
                }
            }
        }
    }
}

/// The fields that an event of the new API never changes: core names, and names in messages.
const IMMUTABLE: [(&str, &str); 14] = [
    ("involvedObject", "involvedObject"),
    ("reason", "reason"),
    ("message", "message"),
    ("source", "source"),
    ("firstTimestamp", "firstTimestamp"),
    ("lastTimestamp", "lastTimestamp"),
    ("count", "count"),
    // kube-apiserver checks `reason` twice, so a change is reported twice.
    ("reason", "reason"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingComponent", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

/// The fields of [`IMMUTABLE`] that are times, which are null in Go if they are removed.
const TIMES: [&str; 3] = ["firstTimestamp", "lastTimestamp", "eventTime"];

/// Records changes of fields that an event of the new API never changes. Both events are in the core form.
fn unchanged(errors: &mut Errors, event: &Value, old: &Value) {
    for (field, name) in IMMUTABLE {
        let (path, now) = (Path::new(name), &event[field]);
        let type_name = match field {
            "involvedObject" | "related" if now.is_object() => "ObjectReference",
            "source" if now.is_object() => "EventSource",
            _ => {
                if now != &old[field] {
                    // A removed text is an empty one in Go.
                    let is_text =
                        now.is_null() && old[field].is_string() && !TIMES.contains(&field);
                    let shown = if is_text { "".into() } else { now.clone() };
                    errors.invalid(&path, shown, validation::IMMUTABLE);
                }
                continue;
            }
        };
        if now != &old[field] {
            let text = internal::compact(type_name, now);
            errors.with_text(ErrorType::Invalid, &path, text, validation::IMMUTABLE);
        }
    }
}

fn rename(object: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.insert(to.to_owned(), value);
    }
}

fn core_form(object: &Value) -> Value {
    let mut core = object.clone();
    Event.to_storage(&mut core);
    core
}

/// An event with access to its fields by their core names.
enum Face<'a> {
    Core(&'a Value),
    New(&'a Value),
}

impl Face<'_> {
    /// Returns the field with a core name; null if the field is absent.
    fn at(&self, core: &str) -> &Value {
        match self {
            Face::Core(event) => &event[core],
            Face::New(event) => {
                let renamed = RENAMED.iter().find(|(old, _)| *old == core);
                &event[renamed.map_or(core, |(_, new)| new)]
            }
        }
    }

    fn text(&self, core: &str) -> &str {
        self.at(core).as_str().unwrap_or("")
    }
}

fn at(object: &Value, path: &str) -> String {
    let value = path.split('.').fold(object, |value, field| &value[field]);
    value.as_str().unwrap_or("").to_owned()
}

/// Validates the rules that both APIs share; `controller` is the API's value for the reporting controller.
fn common(errors: &mut Errors, event: &Face<'_>, controller: &str) {
    let namespace = event.at("metadata").text("namespace");
    let involved = event.at("involvedObject").text("namespace");
    let path = Path::new("involvedObject");
    let mut mismatch = || {
        errors.invalid(
            &path.child("namespace"),
            involved,
            "does not match event.namespace",
        )
    };
    if event.at("eventTime").is_null() {
        // legacyValidateEvent: events about cluster-scoped objects are in `default`, all others in the namespace of their object.
        if if involved.is_empty() {
            !matches!(namespace, "" | "default")
        } else {
            namespace != involved
        } {
            mismatch();
        }
    } else {
        // New events about cluster-scoped objects may also be in `kube-system`.
        if involved.is_empty() && !matches!(namespace, "default" | "kube-system") {
            mismatch();
        }
        reporter(errors, event, controller);
    }
    check(
        errors,
        // kube-apiserver's path leaves out `metadata`.
        &Path::new("namespace"),
        namespace,
        names::dns_subdomain(namespace),
    );
}

fn reporter(errors: &mut Errors, event: &Face<'_>, controller: &str) {
    let limited = |errors: &mut Errors, field: &str, limit: usize| {
        if event.text(field).len() > limit {
            errors.invalid(
                &Path::new(field),
                "",
                format!("can have at most {limit} characters"),
            );
        }
    };
    let name = event.text("reportingComponent");
    if name.is_empty() {
        errors.required(&Path::new(controller), "");
    }
    check(
        errors,
        &Path::new(controller),
        name,
        names::qualified_name(name),
    );
    for field in ["reportingInstance", "action", "reason"] {
        if event.text(field).is_empty() {
            errors.required(&Path::new(field), "");
        }
        limited(errors, field, MAX_TEXT);
    }
    limited(errors, "message", MAX_NOTE);
}

/// Validates the rules of `events.k8s.io/v1` for a new event.
fn new_api(errors: &mut Errors, event: &Face<'_>) {
    series(errors, event.at("series"));
    if event.at("eventTime").is_null() {
        errors.required(&Path::new("eventTime"), "");
    }
    let kind = event.text("type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid(&Path::new("type"), "", format!("has invalid value: {kind}"));
    }
    let source = event.at("source");
    let set = [
        ("firstTimestamp", !event.at("firstTimestamp").is_null()),
        ("lastTimestamp", !event.at("lastTimestamp").is_null()),
        ("count", event.at("count").as_i64().unwrap_or(0) != 0),
        (
            "source",
            !source.text("component").is_empty() || !source.text("host").is_empty(),
        ),
    ];
    // These are fields of the old API; kube-apiserver's errors show no value.
    for (field, _) in set.into_iter().filter(|(_, set)| *set) {
        errors.invalid(&Path::new(field), "", "needs to be unset");
    }
}

fn series(errors: &mut Errors, series: &Value) {
    if series.is_null() {
        return;
    }
    let path = Path::new("series");
    // An event becomes a series when it happens again.
    if series.integer("count").unwrap_or(0) < 2 {
        errors.invalid(&path.child("count"), "", "should be at least 2");
    }
    if series.text("lastObservedTime").is_empty() {
        errors.required(&path.child("lastObservedTime"), "");
    }
}

fn cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let mut first = since(event.text("firstTimestamp"), now);
    if !event.has("firstTimestamp") {
        first = since(event.text("eventTime"), now);
    }
    let mut last = if event.has("lastTimestamp") {
        since(event.text("lastTimestamp"), now)
    } else {
        first.clone()
    };
    // An event of the new API has no count unless it is a series.
    let mut count = event.integer("count").unwrap_or(0).max(1);
    if let Some(series) = event.field("series") {
        last = since(series.text("lastObservedTime"), now);
        count = series.integer("count").unwrap_or(0);
    }
    let involved = &event["involvedObject"];
    let kind = involved.text("kind").to_lowercase();
    let object = if involved.text("name").is_empty() {
        kind
    } else {
        format!("{kind}/{}", involved.text("name"))
    };
    vec![
        last.into(),
        event.text("type").into(),
        event.text("reason").into(),
        object.into(),
        involved.text("fieldPath").into(),
        source(event).into(),
        event.text("message").trim().into(),
        first.into(),
        count.into(),
        event["metadata"]["name"].clone(),
    ]
}

fn source(event: &Value) -> String {
    let either = |old: &str, field: &str| match event["source"].text(old) {
        "" => event.text(field).to_owned(),
        text => text.to_owned(),
    };
    let (component, instance) = (
        either("component", "reportingComponent"),
        either("host", "reportingInstance"),
    );
    if instance.is_empty() {
        component
    } else {
        format!("{component}, {instance}")
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_two_faces_show_the_same_event() {
        let new = json!({"note": "n", "regarding": {"kind": "Pod"}, "reportingController": "c", "deprecatedSource": {}});
        let mut stored = new.clone();
        Event.to_storage(&mut stored);
        assert_eq!(
            stored,
            json!({"message": "n", "involvedObject": {"kind": "Pod"}, "reportingComponent": "c", "source": {}})
        );
        Event.to_served(&mut stored);
        assert_eq!(stored, new);
    }

    #[test]
    fn an_event_of_the_new_api_keeps_what_it_says() {
        let old =
            json!({"note": "n", "reason": "r", "type": "Normal", "regarding": {"kind": "Pod"}});
        let new = json!({"note": "n", "reason": "s", "type": "Warning", "regarding": {"kind": "Node", "apiVersion": "v1"}});
        assert_eq!(
            causes(|errors| unchanged(errors, &core_form(&new), &core_form(&old))),
            [
                r#"involvedObject: Invalid value: {"Kind":"Node","Namespace":"","Name":"","UID":"","APIVersion":"v1","ResourceVersion":"","FieldPath":""}: field is immutable"#,
                r#"reason: Invalid value: "s": field is immutable"#,
                r#"reason: Invalid value: "s": field is immutable"#,
                r#"type: Invalid value: "Warning": field is immutable"#,
            ]
        );
    }
}
