//! Validates probes, lifecycle hooks and their handlers.

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::fields::{
    self, Anything, AtLeast, Code, Field, NOT_NEGATIVE, Number, OneOf, always, required, set,
};

const PROBE_HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];
const HOOK_HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "sleep"];

const PROBE: &[Field] = &[
    set("initialDelaySeconds", NOT_NEGATIVE),
    set("timeoutSeconds", NOT_NEGATIVE),
    set("periodSeconds", NOT_NEGATIVE),
    set("successThreshold", NOT_NEGATIVE),
    set("failureThreshold", NOT_NEGATIVE),
    set(
        "terminationGracePeriodSeconds",
        AtLeast(1, "must be greater than 0"),
    ),
];
const EXEC: &[Field] = &[required("command", Anything)];
const HTTP: &[Field] = &[
    required("path", Anything),
    always("port", Code(port)),
    always("scheme", OneOf(&["HTTP", "HTTPS"])),
];
const TCP: &[Field] = &[always("port", Code(port))];
const GRPC: &[Field] = &[always("port", Number(names::port_number))];

/// Validates the probes of a container.
pub(super) fn validate(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (field, once) in [
        ("livenessProbe", true),
        ("readinessProbe", false),
        ("startupProbe", true),
    ] {
        let Some(probe) = container.field(field) else {
            continue;
        };
        let at = path.child(field);
        common(probe, &at, errors);
        if once {
            let threshold = probe.integer("successThreshold").unwrap_or(0);
            if threshold != 1 {
                errors.invalid(&at.child("successThreshold"), threshold, "must be 1");
            }
        } else if let Some(grace) = probe.integer("terminationGracePeriodSeconds") {
            // A failed readiness probe does not end the container, so there is no termination to wait for.
            errors.invalid(
                &at.child("terminationGracePeriodSeconds"),
                grace,
                "must not be set for readinessProbes",
            );
        }
    }
}

fn common(probe: &Value, path: &Path<'_>, errors: &mut Errors) {
    handler(probe, &PROBE_HANDLERS, None, path, errors);
    fields::validate(PROBE, probe, path, errors);
}

/// Validates the lifecycle hooks of a container; `grace` is the pod's termination grace period.
pub(super) fn validate_lifecycle(
    lifecycle: &Value,
    grace: Option<i64>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    for field in ["postStart", "preStop"] {
        if let Some(hook) = lifecycle.field(field) {
            handler(hook, &HOOK_HANDLERS, grace, &path.child(field), errors);
        }
    }
}

fn handler(
    handler: &Value,
    kinds: &[&str],
    grace: Option<i64>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let mut found = 0;
    for kind in kinds {
        let Some(action) = handler.field(kind) else {
            continue;
        };
        let at = path.child(kind);
        found += 1;
        if found > 1 {
            errors.forbidden(&at, "may not specify more than 1 handler type");
            continue;
        }
        match *kind {
            "exec" => fields::validate(EXEC, action, &at, errors),
            "httpGet" => http_get(action, &at, errors),
            "tcpSocket" => fields::validate(TCP, action, &at, errors),
            "grpc" => fields::validate(GRPC, action, &at, errors),
            "sleep" => sleep(action.integer("seconds").unwrap_or(0), grace, &at, errors),
            _ => {}
        }
    }
    if found == 0 {
        errors.required(path, "must specify a handler type");
    }
}

fn http_get(action: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(HTTP, action, path, errors);
    for header in action.items("httpHeaders") {
        let name = header.text("name");
        check(
            errors,
            // kube-apiserver leaves the header's index out of the path.
            &path.child("httpHeaders"),
            name,
            names::http_header(name),
        );
    }
}

/// Validates a port, which is a number or a name.
fn port(port: &Value, path: &Path<'_>, errors: &mut Errors) {
    match port {
        Value::String(name) => check(errors, path, name, names::port_name(name)),
        number => {
            let number = number.as_i64().unwrap_or(0);
            for sentence in names::port_number(number) {
                errors.invalid(path, number, sentence);
            }
        }
    }
}

fn sleep(seconds: i64, grace: Option<i64>, path: &Path<'_>, errors: &mut Errors) {
    let Some(grace) = grace else { return };
    if seconds < 0 || seconds > grace {
        let detail =
            // A hook may last as long as the grace period, although kube-apiserver's message says "less than".
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.invalid(path, seconds, detail);
    }
}
