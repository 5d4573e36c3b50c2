//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration: webhooks that the server calls for writes.

use std::collections::HashSet;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::{Tree, object_at, set_default};
use serde_json::{Map, Value};

use super::{client_config::client_config, rules};
use crate::{
    Check, Column, Kind, Printing,
    fields::{
        self, Code, Field, Items, OneOf, Selector, Text, Within, always, present, required, set,
    },
    print,
    request::{Ctx, expression::Scope},
};

/// A webhook configuration; `changes` says whether its webhooks may change objects.
pub(crate) struct WebhookConfigurations {
    changes: bool,
}

/// admissionregistration.k8s.io/v1 MutatingWebhookConfiguration.
pub(crate) const MUTATING: WebhookConfigurations = WebhookConfigurations { changes: true };

/// admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration.
pub(crate) const VALIDATING: WebhookConfigurations = WebhookConfigurations { changes: false };

const DEFAULT_TIMEOUT_SECONDS: i64 = 10;
/// The versions of AdmissionReview that are sent, the preferred one first.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const HOOK: &[Field] = &[
    required("name", Text(fully_qualified)),
    always("rules", Items(&Code(rules::rule))),
    set("failurePolicy", OneOf(&["Fail", "Ignore"])),
    set("matchPolicy", OneOf(&["Equivalent", "Exact"])),
    // v1 has neither `Some` nor `Unknown`: a dry run must not call a webhook that could change something.
    present("sideEffects", OneOf(&["None", "NoneOnDryRun"]))
        .because("must specify one of None, NoneOnDryRun"),
    set(
        "timeoutSeconds",
        Within(1, 30, "the timeout value must be between 1 and 30 seconds"),
    ),
    set("namespaceSelector", Selector),
    set("objectSelector", Selector),
];
const MUTATING_HOOK: &[Field] = &[set("reinvocationPolicy", OneOf(&["IfNeeded", "Never"]))];
const CLIENT: &[Field] = &[always("clientConfig", Code(client_config))];
const COLUMNS: [Column; 3] = [print::NAME, print::typed("Webhooks", "integer"), print::AGE];

/// Returns the objects of a list, for their defaults to be set.
pub(super) fn each<'a>(
    parent: &'a mut Map<String, Value>,
    field: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> + use<'a> {
    let items = parent.get_mut(field).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Sets the defaults of a matcher: `Equivalent`, and selectors that match everything.
pub(super) fn default_match(matcher: &mut Map<String, Value>) {
    set_default(matcher, "matchPolicy", "Equivalent");
    object_at(matcher, "namespaceSelector");
    object_at(matcher, "objectSelector");
}

impl Kind for WebhookConfigurations {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::WHOLE
    }

    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        for hook in each(root, "webhooks") {
            set_default(hook, "failurePolicy", "Fail");
            default_match(hook);
            set_default(hook, "timeoutSeconds", DEFAULT_TIMEOUT_SECONDS);
            if self.changes {
                set_default(hook, "reinvocationPolicy", "Never");
            }
            for rule in each(hook, "rules") {
                set_default(rule, "scope", "*");
            }
            let service = object_at(hook, "clientConfig").get_mut("service");
            if let Some(service) = service.and_then(Value::as_object_mut) {
                set_default(service, "port", 443);
            }
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let hooks = object.items("webhooks");
        let path = Path::new("webhooks");
        let mut seen = HashSet::new();
        for (index, hook) in hooks.iter().enumerate() {
            let at = path.index(index);
            self.validate_hook(hook, &at, errors);
            let versions = hook.items("admissionReviewVersions");
            review_versions(versions, &at.child("admissionReviewVersions"), errors);
            let name = hook.text("name");
            if !name.is_empty() && !seen.insert(name) {
                errors.duplicate(&at.child("name"), name);
            }
        }
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for WebhookConfigurations {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            print::name(object),
            object.items("webhooks").len().into(),
            print::age(object, now),
        ]
    }
}

impl WebhookConfigurations {
    fn validate_hook(&self, hook: &Value, path: &Path<'_>, errors: &mut Errors) {
        fields::validate(HOOK, hook, path, errors);
        if self.changes {
            fields::validate(MUTATING_HOOK, hook, path, errors);
        }
        fields::validate(CLIENT, hook, path, errors);
        rules::conditions(
            hook.items("matchConditions"),
            &Scope::default(),
            &path.child("matchConditions"),
            errors,
        );
    }
}

fn fully_qualified(errors: &mut Errors, path: &Path<'_>, name: &str) {
    let problems = names::dns_subdomain(name);
    if !problems.is_empty() {
        errors.invalid(path, name, problems.join(","));
    } else if name.split('.').count() < 3 {
        let why = "should be a domain with at least three segments separated by dots";
        errors.invalid(path, name, why);
    }
}

fn review_versions(versions: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let known = REVIEW_VERSIONS.join(", ");
    if versions.is_empty() {
        return errors.required(path, format!("must specify one of {known}"));
    }
    let versions: Vec<&str> = versions.iter().filter_map(Value::as_str).collect();
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        let at = path.index(index);
        if !seen.insert(version) {
            errors.invalid(&at, *version, "duplicate version");
        } else {
            check(errors, &at, version, names::dns1035_label(version));
        }
    }
    // A webhook may list versions of newer servers, if this server knows one of the others.
    if !REVIEW_VERSIONS.iter().any(|known| versions.contains(known)) {
        errors.invalid(
            path,
            versions,
            format!("must include at least one of {known}"),
        );
    }
}
