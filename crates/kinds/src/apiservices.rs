//! apiregistration.k8s.io/v1 APIService: the server that serves a group and version (`pkg/apis/apiregistration` of kube-aggregator).
//!
//! `apiserver::aggregation` keeps an object for every built-in or custom group and version, and writes whether they are available. Objects of
//! users are only stored: no request is forwarded to their Services.

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
};
use mullion_schema::{
    time,
    tree::{Tree, set_default},
};
use serde_json::{Value, json};

use super::{Column, Kind, print};
use crate::{
    Printing,
    fields::{self, Anything, Each, Field, Format, OneOf, Within, always, required},
    request::Ctx,
};

/// The behaviour of apiregistration.k8s.io/v1 apiservices.
pub(super) struct ApiServices;

const PORT: i64 = 443;
const COLUMNS: [Column; 4] = [
    print::NAME,
    print::column("Service"),
    print::column("Available"),
    print::AGE,
];

const SPEC: &[Field] = &[
    always("version", Format(names::dns1035_label)),
    // The maximum itself is valid, although kube-apiserver's message says "less than".
    always(
        "groupPriorityMinimum",
        Within(1, 20_000, "must be positive and less than 20000"),
    ),
    always(
        "versionPriority",
        Within(1, 1_000, "must be positive and less than 1000"),
    ),
];
const SERVICE: &[Field] = &[required("namespace", Anything), required("name", Anything)];
const STATUS: &[Field] = &[always("conditions", Each(CONDITION))];
const CONDITION: &[Field] = &[always("status", OneOf(&["True", "False", "Unknown"]))];

impl Kind for ApiServices {
    fn default(&self, object: &mut Value) {
        let service = object
            .get_mut("spec")
            .and_then(|spec| spec.get_mut("service"))
            .and_then(Value::as_object_mut);
        if let Some(service) = service {
            set_default(service, "port", PORT);
        }
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        // A group that this server serves itself is available at once.
        if !object["spec"].has("service") {
            object["status"] = json!({"conditions": [{
                "type": "Available", "status": "True", "reason": "Local",
                "message": "Local APIServices are always available",
                "lastTransitionTime": time::format_seconds(&ctx.now),
            }]});
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let (spec, path) = (&object["spec"], Path::new("spec"));
        let (group, version) = (spec.text("group"), spec.text("version"));
        let name = object["metadata"].text("name");
        // A missing name is reported with the metadata.
        if !name.is_empty() && name != format!("{version}.{group}") {
            let detail = format!("must be `spec.version+\".\"+spec.group`: \"{version}.{group}\"");
            errors.invalid(&Path::new("metadata").child("name"), name, detail);
        }
        if group.is_empty() {
            if version != "v1" {
                let detail = "only v1 may have an empty group and it better be legacy kube";
                errors.required(&path.child("group"), detail);
            }
        } else {
            for sentence in names::dns_subdomain(group) {
                errors.invalid(&path.child("group"), group, sentence);
            }
        }
        fields::validate(SPEC, spec, &path, errors);
        backend(spec, &path, errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        fields::validate(STATUS, &object["status"], &Path::new("status"), errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for ApiServices {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let service = match object["spec"].field("service") {
            Some(service) => format!("{}/{}", service.text("namespace"), service.text("name")),
            None => "Local".to_owned(),
        };
        let mut conditions = object["status"].items("conditions").iter();
        let available = conditions.find(|condition| condition.text("type") == "Available");
        let available = available.map_or_else(
            || "Unknown".to_owned(),
            |condition| match (condition.text("status"), condition.text("reason")) {
                ("True", _) => "True".to_owned(),
                (status, "") => status.to_owned(),
                (status, reason) => format!("{status} ({reason})"),
            },
        );
        vec![
            print::name(object),
            service.into(),
            available.into(),
            print::age(object, now),
        ]
    }
}

fn backend(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (insecure, bundle) = (spec.flag("insecureSkipTLSVerify"), spec.text("caBundle"));
    let skip = path.child("insecureSkipTLSVerify");
    let Some(service) = spec.field("service") else {
        if !bundle.is_empty() {
            // In base64, four characters encode three bytes.
            let bytes = bundle.trim_end_matches('=').len() * 3 / 4;
            let detail = "local APIServices may not have a caBundle";
            errors.invalid(&path.child("caBundle"), format!("{bytes} bytes"), detail);
        }
        if insecure {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            errors.invalid(&skip, true, detail);
        }
        return;
    };
    let at = path.child("service");
    fields::validate(SERVICE, service, &at, errors);
    let port = service.integer("port").unwrap_or(0);
    for sentence in names::port_number(port) {
        let detail = format!("port is not valid: {sentence}");
        errors.invalid(&at.child("port"), port, detail);
    }
    if insecure && !bundle.is_empty() {
        errors.invalid(&skip, true, "may not be true if caBundle is present");
    }
}
