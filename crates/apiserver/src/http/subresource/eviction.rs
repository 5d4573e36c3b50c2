//! `pods/eviction`: deletes a pod if its PodDisruptionBudget allows it.
//!
//! The budget is charged before the pod is deleted: one write decrements `disruptionsAllowed` and adds the pod to `disruptedPods`, so
//! that two evictions never use the same disruption. The disruption controller removes the entry once it sees the deletion.

use std::{future::Future, pin::Pin, sync::Arc};

use axum::body::Body;
use http::{Method, Response};
use mullion_kinds::request::Lookup;
use mullion_kube_text::{
    field::{Errors, Path},
    status::{Cause, Details, Status},
    validation::selector::Selector,
};
use mullion_schema::{
    Type,
    ownership::{self, Writer},
    tree::{Tree, object_at},
};
use mullion_store::Key;
use serde_json::{Value, json};

use super::binding::{set_condition, success};
use crate::{
    admission::Operation,
    http::{
        body,
        call::{Call, FieldValidation},
        delete::{self, DeleteOptions},
        reply,
        write::{self, Admission},
    },
    object::{metadata, type_meta::Expected},
};

/// The most evictions that may wait for the disruption controller.
const MAX_DISRUPTED_PODS: usize = 2000;
const BLOCKED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// Handles `pods/eviction`.
pub(crate) fn serve<'a>(
    call: &'a Call,
    _: Method,
    body: Body,
) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send + 'a>> {
    Box::pin(evict(call, body))
}

async fn evict(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    let write_options = call.write_options("CreateOptions")?;
    let mut eviction = read(call, body, write_options.validation).await?;
    if metadata::text(&eviction, "name") != call.name {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    refuse_breaking(call, &eviction)?;
    // An eviction is the creation of an Eviction, so webhooks that guard pods may refuse it before the budget is charged.
    let admission = Admission::new(call, &write_options, Operation::Create);
    admission.mutate(&call.name, &mut eviction, None).await?;
    admission.judge(&call.name, &mut eviction, None).await?;
    // Only the deletion validates the options, after the pod has been found.
    call.stored()?;
    let mut options = DeleteOptions::of(&eviction["deleteOptions"])?;
    options.dry_run |= write_options.dry_run;
    loop {
        let stored = call.stored()?;
        let permit = permit(call, &call.row.served(&stored), options.dry_run).await?;
        // Each attempt begins with the client's own options: the version that is added below belongs to this attempt alone.
        let mut attempt = options.clone();
        // Delete only the version that was judged, so that a change in between is noticed as a conflict.
        let pinned = permit == Permit::AsItIs && options.resource_version.is_none();
        if pinned {
            attempt.resource_version = Some(stored.revision().to_string());
        }
        match disrupt(call, attempt).await {
            Ok(()) => return Ok(reply::json(201, &success())),
            Err(status) => {
                // A pod that changed since the check is checked again, unless the client named a version. Other conflicts are returned.
                let again = pinned && status.code == 409;
                if !again || call.stored()?.revision() == stored.revision() {
                    return Err(status);
                }
            }
        }
    }
}

/// Refuses an Eviction that asks to delete a pod that cannot be read, which only a DELETE may do.
fn refuse_breaking(call: &Call, eviction: &Value) -> Result<(), Status> {
    const OPTION: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
    if !eviction["deleteOptions"].flag(OPTION) {
        return Ok(());
    }
    let mut errors = Errors::default();
    let why = "can not be set for pod eviction, try after removing the option";
    errors.invalid(&Path::new("deleteOptions").child(OPTION), true, why);
    Err(Status::invalid_kind(
        "policy", "Eviction", &call.name, &errors,
    ))
}

/// Decodes the Eviction in the body, in policy/v1 or in v1beta1, which old clients send.
async fn read(call: &Call, body: Body, validation: FieldValidation) -> Result<Value, Status> {
    let media = body::media(&call.headers)?;
    let bytes = body::read(body).await?;
    let schema = Type::builtin("api.policy.v1.Eviction")
        .ok_or_else(|| Status::internal("Eviction is not in the schema table"))?;
    let given = serde_json::from_slice::<Value>(&bytes).unwrap_or_default();
    let version = if given.text("apiVersion") == "policy/v1beta1" {
        "v1beta1"
    } else {
        "v1"
    };
    let expected = Expected {
        group: "policy",
        version,
        kind: "Eviction",
        schema: &schema,
        custom: false,
    };
    let mut eviction = body::object(call, &expected, media, &bytes, validation)?;
    metadata::settle_namespace(&mut eviction, call.namespace.as_deref())?;
    Ok(eviction)
}

/// The version of the pod that may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permit {
    /// Any version.
    InAnyCase,
    /// Only the version that was checked: a pod that starts or becomes ready meanwhile must be charged to its budget.
    AsItIs,
}

async fn permit(call: &Call, pod: &Value, dry_run: bool) -> Result<Permit, Status> {
    if pod["metadata"].has("deletionTimestamp") {
        return Ok(Permit::InAnyCase);
    }
    match pod["status"].text("phase") {
        // kube-apiserver (canIgnorePDB): such a pod serves nobody, so no budget counts it. A pending one may start meanwhile.
        "Succeeded" | "Failed" => return Ok(Permit::InAnyCase),
        "Pending" => return Ok(Permit::AsItIs),
        _ => {}
    }
    let budgets = budgets_of(call, pod);
    let budget = match budgets.as_slice() {
        [] => return Ok(Permit::InAnyCase),
        [budget] => budget,
        _ => {
            let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Status::new(500, "", why));
        }
    };
    // A pod that is not ready is not among the healthy ones that the budget protects.
    if !is_ready(pod) && may_go_unready(budget) {
        return Ok(Permit::AsItIs);
    }
    let table = call.server.registry().table();
    let row = table
        .find("policy", "v1", "poddisruptionbudgets")
        .ok_or_else(Status::no_such_path)?;
    let key = Key::new(call.namespace.as_deref(), metadata::text(budget, "name"));
    // Check and charge in one conditional write: of two evictions at the same moment, the second sees the budget of the first.
    write::modify(row, call.now, &key, dry_run, |budget| {
        let before = budget.clone();
        check(budget)?;
        spend(budget, &call.name, call.now);
        let writer = Writer {
            manager: "kube-apiserver",
            api_version: row.api_version(),
            subresource: Some("status"),
            resets_status: true,
            resets: &[],
            now: call.now,
        };
        ownership::track(&row.resource.schema, &writer, budget, Some(&before));
        Ok(true)
    })
    .await?;
    Ok(Permit::InAnyCase)
}

fn budgets_of(call: &Call, pod: &Value) -> Vec<Arc<Value>> {
    let mut budgets =
        call.server
            .registry()
            .list("policy", "poddisruptionbudgets", call.namespace.as_deref());
    // A selector that does not parse matches nothing, as in kube-apiserver.
    budgets.retain(|budget| {
        let selector = Selector::from_label_selector(&budget["spec"]["selector"]);
        selector.is_ok_and(|selector| selector.matches(pod["metadata"].get("labels")))
    });
    budgets
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"].items("conditions").iter();
    conditions
        .any(|condition| condition.text("type") == "Ready" && condition.text("status") == "True")
}

/// Returns whether a pod that is not ready may be evicted without charging the budget.
fn may_go_unready(budget: &Value) -> bool {
    let status = |field: &str| budget["status"].integer(field).unwrap_or(0);
    budget["spec"].text("unhealthyPodEvictionPolicy") == "AlwaysAllow"
        || (status("desiredHealthy") > 0 && status("currentHealthy") >= status("desiredHealthy"))
}

/// Returns an error if the budget does not allow a disruption now.
fn check(budget: &Value) -> Result<(), Status> {
    let name = metadata::text(budget, "name");
    let status = &budget["status"];
    let count = |field: &str| status.integer(field).unwrap_or(0);
    // The status belongs to an older spec, so its numbers mean nothing yet.
    if count("observedGeneration") < budget["metadata"].integer("generation").unwrap_or(0) {
        return Err(blocked(
            format!("The disruption budget {name} is still being processed by the server."),
            10,
        ));
    }
    let refuse = |why: &str| {
        let message = format!("poddisruptionbudget.policy {name:?} is forbidden: {why}");
        let details = Details {
            name: name.to_owned(),
            group: "policy".into(),
            kind: "poddisruptionbudget".into(),
            ..Details::default()
        };
        let mut status = Status::new(403, "Forbidden", message);
        status.details = Some(Box::new(details));
        Err(status)
    };
    // The numbers are current; check whether they allow a disruption.
    let allowed = count("disruptionsAllowed");
    if allowed < 0 {
        return refuse("pdb disruptions allowed is negative");
    }
    // So many unconfirmed evictions mean that the disruption controller lags far behind.
    if status.entries("disruptedPods").count() > MAX_DISRUPTED_PODS {
        return refuse(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        );
    }
    if allowed > 0 {
        return Ok(());
    }
    let condition = status
        .items("conditions")
        .iter()
        .find(|condition| condition.text("type") == "DisruptionAllowed");
    let (healthy, desired) = (count("currentHealthy"), count("desiredHealthy"));
    let does_not = format!("The disruption budget {name} does not allow evicting pods currently");
    let why = match condition {
        Some(failed) if failed.text("reason") == "SyncFailed" => {
            format!(
                "{does_not} because it failed sync: {}",
                failed.text("message")
            )
        }
        _ if healthy <= desired => format!(
            "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        ),
        Some(condition) => format!(
            "{does_not} ({}): {}",
            condition.text("reason"),
            condition.text("message")
        ),
        None => does_not,
    };
    Err(blocked(why, 0))
}

fn blocked(why: String, retry_after_seconds: u32) -> Status {
    let mut status = Status::new(429, "TooManyRequests", BLOCKED);
    let cause = Cause {
        reason: "DisruptionBudget".into(),
        message: why,
        field: String::new(),
    };
    status.details = Some(Box::new(Details {
        causes: vec![cause],
        retry_after_seconds,
        ..Details::default()
    }));
    status
}

fn spend(budget: &mut Value, pod: &str, now: jiff::Timestamp) {
    let Some(status) = budget.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    let allowed = status
        .get("disruptionsAllowed")
        .and_then(Value::as_i64)
        .unwrap_or(0)
        - 1;
    status.insert("disruptionsAllowed".into(), allowed.into());
    // Until the controller sees the deletion, this entry keeps it from counting the pod as healthy and allowing one eviction more.
    object_at(status, "disruptedPods").insert(pod.to_owned(), metadata::stamp(now).into());
    if allowed > 0 {
        return;
    }
    let generation = status
        .get("observedGeneration")
        .cloned()
        .unwrap_or_default();
    let mut condition = json!({
        "type": "DisruptionAllowed", "status": "False", "observedGeneration": generation,
        "lastTransitionTime": metadata::stamp(now), "reason": "InsufficientPods", "message": "",
    });
    let conditions = status
        .entry("conditions")
        .or_insert_with(|| Value::Array(Vec::new()));
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    match conditions
        .iter_mut()
        .find(|other| other["type"] == condition["type"])
    {
        Some(other) => {
            if other["status"] == condition["status"] {
                condition["lastTransitionTime"] = other["lastTransitionTime"].clone();
            }
            *other = condition;
        }
        None => conditions.push(condition),
    }
}

/// Sets the pod's DisruptionTarget condition, then deletes the pod.
async fn disrupt(call: &Call, mut options: DeleteOptions) -> Result<(), Status> {
    if !options.dry_run {
        let outcome = write::modify(&call.row, call.now, &call.key(&call.name), false, |pod| {
            let [uid, revision] =
                ["uid", "resourceVersion"].map(|field| metadata::text(pod, field));
            // Before the condition is written: a refused eviction must leave no mark on the pod.
            delete::check_preconditions(call, &options, &call.name, uid, revision)?;
            let before = pod["status"].clone();
            if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
                let reason = json!({
                    "type": "DisruptionTarget", "status": "True",
                    "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
                });
                set_condition(status, reason, call.now);
            }
            Ok(pod["status"] != before)
        })
        .await?;
        // The condition was the server's own write, so the precondition moves on to it (kube-apiserver: addConditionAndDeletePod).
        if let (Some(version), reply::Outcome::Stored(pod)) =
            (&mut options.resource_version, outcome)
        {
            *version = pod.revision().to_string();
        }
    }
    delete::delete_named(call, &call.name, &options).await?;
    Ok(())
}
