//! `pods/binding` and POST to `bindings`: binds a pod to a node.
//!
//! One write changes node, condition, labels and annotations together, and only if the pod is unbound, has no scheduling gates and is not
//! being deleted. The node need not exist. Errors name the resource `pods/binding`, as kube-apiserver's do.

use std::{future::Future, pin::Pin};

use axum::body::Body;
use http::{Method, Response};
use mullion_kube_text::{
    field::{Errors, FieldError, Path},
    status::Status,
};
use mullion_schema::{
    Type,
    tree::{Tree, object_at},
};
use mullion_store::Key;
use serde_json::{Map, Value, json};

use crate::{
    admission::Operation,
    http::{
        body,
        call::Call,
        reply,
        write::{self, Admission},
    },
    object::{metadata, type_meta::Expected},
};

/// Handles both paths to which a Binding can be posted.
pub(crate) fn serve<'a>(
    call: &'a Call,
    _: Method,
    body: Body,
) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send + 'a>> {
    Box::pin(bind(call, body))
}

async fn bind(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    let schema = Type::builtin("api.core.v1.Binding")
        .ok_or_else(|| Status::internal("Binding is not in the schema table"))?;
    let expected = Expected {
        group: "",
        version: "v1",
        kind: "Binding",
        schema: &schema,
        custom: false,
    };
    let options = call.write_options("CreateOptions")?;
    let media = body::media(&call.headers)?;
    let bytes = body::read(body).await?;
    let mut binding = body::object(call, &expected, media, &bytes, options.validation)?;
    metadata::settle_namespace(&mut binding, call.namespace.as_deref())?;
    let name = metadata::text(&binding, "name").to_owned();
    if !call.name.is_empty() && name != call.name {
        return Err(Status::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    let admission = Admission::new(call, &options, Operation::Create);
    admission.mutate(&name, &mut binding, None).await?;
    check(&binding)?;
    admission.judge(&name, &mut binding, None).await?;
    metadata::check_key(&name)?;
    let table = call.server.registry().table();
    let pods = table
        .find("", "v1", "pods")
        .ok_or_else(Status::no_such_path)?;
    let key = Key::new(call.namespace.as_deref(), &name);
    let bind = |pod: &mut Value| {
        // Inside the write, so that they hold for the very version that is replaced.
        preconditions(&binding, pod, &key)?;
        assign(&binding, pod, call.now)
    };
    // The scheduler binds thousands of pods, so parse only the fields that a binding changes.
    match pods
        .resource
        .behaviour
        .raw_field()
        .filter(|_| !options.dry_run)
    {
        Some(raw_field) => {
            write::modify_with_raw_field(pods, call.now, &key, raw_field, "nodeName", bind).await?;
        }
        None => {
            let bind = |pod: &mut Value| bind(pod).map(|()| true);
            write::modify(pods, call.now, &key, options.dry_run, bind).await?;
        }
    }
    Ok(reply::json(201, &success()))
}

/// Returns the Status of a subresource that has no object to answer with.
pub(super) fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

/// Validates a Binding. kube-apiserver answers these errors with 500, not 422.
fn check(binding: &Value) -> Result<(), Status> {
    let none = Value::Null;
    let (target, path) = (binding.get("target").unwrap_or(&none), Path::new("target"));
    let mut errors = Errors::default();
    let kind = target.text("kind");
    if !kind.is_empty() && kind != "Node" {
        errors.not_supported_text(&path.child("kind"), kind, &["Node", "<empty>"]);
    }
    if target.text("name").is_empty() {
        errors.required(&path.child("name"), "");
    }
    let text = |error: &FieldError| format!("{}: {}", error.field, error.body());
    match errors.0.as_slice() {
        [] => Ok(()),
        [error] => Err(Status::new(500, "", text(error))),
        all => Err(Status::new(
            500,
            "",
            format!("[{}]", all.iter().map(text).collect::<Vec<_>>().join(", ")),
        )),
    }
}

fn preconditions(binding: &Value, pod: &Value, key: &Key) -> Result<(), Status> {
    for (field, short) in [("uid", "UID"), ("resourceVersion", "RV")] {
        let (wanted, found) = (metadata::text(binding, field), metadata::text(pod, field));
        if !wanted.is_empty() && wanted != found {
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: /registry/pods/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {short} in precondition: {wanted}, {short} in object meta: {found}",
                key.as_str()
            );
            return Err(conflict("pods", key.name(), &why));
        }
    }
    Ok(())
}

fn conflict(resource: &str, name: &str, why: &str) -> Status {
    let mut status = Status::new(
        409,
        "Conflict",
        format!("Operation cannot be fulfilled on {resource} {name:?}: {why}"),
    );
    status.details = Some(Box::new(mullion_kube_text::status::Details {
        name: name.to_owned(),
        kind: resource.to_owned(),
        ..Default::default()
    }));
    status
}

fn assign(binding: &Value, pod: &mut Value, now: jiff::Timestamp) -> Result<(), Status> {
    let name = metadata::text(pod, "name");
    let refuse = |why: String| Err(conflict("pods/binding", name, &why));
    if pod["metadata"].has("deletionTimestamp") {
        return refuse(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    // kube-apiserver (setPodNodeAndMetadata): a pod is bound once, or two schedulers could place it on two nodes.
    let node = pod["spec"].text("nodeName");
    if !node.is_empty() {
        return refuse(format!("pod {name} is already assigned to node {node:?}"));
    }
    if !pod["spec"].items("schedulingGates").is_empty() {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    pod["spec"]["nodeName"] = binding["target"]["name"].clone();
    for field in ["labels", "annotations"] {
        let Some(given) = binding["metadata"].field(field).and_then(Value::as_object) else {
            continue;
        };
        object_at(metadata::of(pod), field).extend(
            given
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
    }
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("nominatedNodeName");
        set_condition(
            status,
            json!({"type": "PodScheduled", "status": "True"}),
            now,
        );
    }
    Ok(())
}

/// Sets a condition of a pod; `lastTransitionTime` changes only if the status does.
pub(super) fn set_condition(
    status: &mut Map<String, Value>,
    mut condition: Value,
    now: jiff::Timestamp,
) {
    let conditions = status
        .entry("conditions")
        .or_insert_with(|| Value::Array(Vec::new()));
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    let present = conditions
        .iter_mut()
        .find(|other| other["type"] == condition["type"]);
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = match &present {
        Some(other) if other["status"] == condition["status"] => {
            other["lastTransitionTime"].clone()
        }
        _ => metadata::stamp(now).into(),
    };
    match present {
        Some(other) => *other = condition,
        None => conditions.push(condition),
    }
}
