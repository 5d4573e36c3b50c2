//! networking.k8s.io/v1 IngressClass: the controller that implements an Ingress.

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{IMMUTABLE, check, domain_prefixed_path},
};
use mullion_schema::tree::{Tree, set_default};
use serde_json::Value;

use super::{Check, Column, Kind, ingresses, print};
use crate::{
    Printing,
    fields::{self, All, Code, Field, MaxBytes, Text, always, set},
    request::Ctx,
};

/// networking.k8s.io/v1 IngressClass.
pub(super) struct IngressClass;

const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
const SPEC: &[Field] = &[
    always(
        "controller",
        All(&[MaxBytes(250), Text(domain_prefixed_path)]),
    ),
    set("parameters", Code(parameters)),
];
const COLUMNS: [Column; 4] = [
    print::NAME,
    print::column("Controller"),
    print::column("Parameters"),
    print::AGE,
];

/// Returns whether the class is the default for ingresses without a class.
pub fn is_default(class: &Value) -> bool {
    class["metadata"]["annotations"][DEFAULT] == "true"
}

impl Kind for IngressClass {
    fn default(&self, object: &mut Value) {
        let parameters = object
            .get_mut("spec")
            .and_then(|spec| spec.get_mut("parameters"))
            .and_then(Value::as_object_mut);
        if let Some(parameters) = parameters {
            set_default(parameters, "scope", "Cluster");
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        fields::validate(SPEC, &object["spec"], &Path::new("spec"), errors);
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[
            Check::MetadataChange,
            Check::Change,
            Check::Metadata,
            Check::Object,
        ]
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let controller = object["spec"].text("controller");
        if controller != old["spec"].text("controller") {
            let path = Path::new("spec");
            errors.invalid(&path.child("controller"), controller, IMMUTABLE);
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for IngressClass {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let parameters = match spec.field("parameters") {
            None => "<none>".to_owned(),
            Some(reference) => {
                let group = match reference.field("apiGroup").and_then(Value::as_str) {
                    Some(group) => format!(".{group}"),
                    None => String::new(),
                };
                format!(
                    "{}{group}/{}",
                    reference.text("kind"),
                    reference.text("name")
                )
            }
        };
        vec![
            print::name(object),
            spec.text("controller").into(),
            parameters.into(),
            print::age(object, now),
        ]
    }
}

fn parameters(reference: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(ingresses::LOCAL_REFERENCE, reference, path, errors);
    let at = path.child("namespace");
    let namespace = reference.field("namespace").and_then(Value::as_str);
    match (reference.text("scope"), namespace) {
        ("Namespace", None) => {
            errors.required(&at, "`parameters.scope` is set to 'Namespace'");
        }
        ("Namespace", Some(name)) => check(errors, &at, name, names::dns_label(name)),
        ("Cluster", Some(_)) => errors.forbidden(&at, "`parameters.scope` is set to 'Cluster'"),
        ("Cluster", None) => {}
        (other, _) => {
            errors.not_supported(&path.child("scope"), other, &["Cluster", "Namespace"]);
        }
    }
}
