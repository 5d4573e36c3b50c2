//! MutatingAdmissionPolicies: each of their mutations makes a patch, one after the other (upstream:
//! apiserver/pkg/admission/plugin/policy/mutating).
//!
//! A mutation that cannot be made refuses the write or is left out, as the policy's `failurePolicy` says. Nobody comes to own what a policy
//! sets beyond who writes.

use std::sync::Arc;

use mullion_cel::{self as cel, Budget};
use mullion_kinds::request::expression::{ExpectedType, Expression};
use mullion_kube_text::{golang::quote, status::Status};
use mullion_schema::{
    merge::{self, JsonPatchError},
    ownership,
    tree::Tree,
};
use serde_json::{Value, json};

use super::{BoundPolicy, Misconfigured, is_exempt, refusal};
use crate::admission::{
    Operation,
    webhook::{
        dispatch::{Stage, present},
        subject::{View, Views, aggregate},
    },
};

/// A policy as one binding puts it in force.
pub(in crate::admission::webhook) struct Policy {
    pub(in crate::admission::webhook) bound: BoundPolicy,
    mutations: Vec<Mutation>,
    /// True if the policy is evaluated again when the object has changed since (`reinvocationPolicy: IfNeeded`).
    reinvoked: bool,
}

struct Mutation {
    kind: Kind,
    expression: Result<Expression, String>,
}

/// The kind of patch that a mutation makes.
#[derive(Clone, Copy)]
enum Kind {
    /// An object that is merged into the one that is written.
    ApplyConfiguration,
    JsonPatch,
}

/// A policy with one of its parameters, by its place and the parameter's namespace and name.
pub(in crate::admission::webhook) type Key = (usize, String);

/// The error of a mutation that was not made.
enum Failure {
    /// The policy's own fault: its `failurePolicy` decides.
    Policy(String),
    /// The request ends with this.
    Request(Status),
}

impl Policy {
    /// Reads a policy and a binding that names it.
    pub(in crate::admission::webhook) fn of(
        policy: &Value,
        binding: &Value,
        is_first: bool,
    ) -> Policy {
        let (bound, scope) = BoundPolicy::of(policy, binding, is_first);
        let scope = scope.with_patches();
        let spec = &policy["spec"];
        let mutations = spec.items("mutations").iter().map(|mutation| {
            let (kind, field, wanted) = match mutation.text("patchType") {
                "JSONPatch" => (Kind::JsonPatch, "jsonPatch", ExpectedType::Operations),
                _ => (
                    Kind::ApplyConfiguration,
                    "applyConfiguration",
                    ExpectedType::Object,
                ),
            };
            let text = mutation[field].text("expression").trim();
            Mutation {
                kind,
                expression: Expression::compile_for(text, &scope, wanted).map_err(String::from),
            }
        });
        Policy {
            bound,
            mutations: mutations.collect(),
            reinvoked: spec.text("reinvocationPolicy") == "IfNeeded",
        }
    }

    /// Returns whether the policy's match conditions hold for a write.
    fn holds(
        &self,
        views: &Views<'_>,
        view: &View,
        objects: (Option<&Value>, Option<&Value>),
        param: &Value,
    ) -> Result<bool, String> {
        let matcher = &self.bound.matcher;
        if matcher.conditions.is_empty() {
            return Ok(true);
        }
        let values = self.bound.values(views, view, objects, param, &|_| false);
        let held = views.conditions_hold(matcher, &values, &mut Budget::default());
        held.map_err(|errors| aggregate(&errors))
    }

    /// Returns the object after a mutation, or `None` if the mutation does not change it.
    fn changed(
        &self,
        mutation: &Mutation,
        views: &Views<'_>,
        view: &View,
        (object, old): (&Value, Option<&Value>),
        param: &Value,
    ) -> Result<Option<Value>, Failure> {
        let expression = mutation.expression.as_ref();
        let expression = expression.map_err(|why| Failure::Policy(why.clone()))?;
        let objects = (Some(object), old);
        let mentions = |name: &str| expression.mentions(name);
        let mut values = self.bound.values(views, view, objects, param, &mentions);
        let mut budget = Budget::default();
        self.bound.give_names(views, view, &mut values, &mut budget);
        let made = expression.value(&values, &mut budget);
        let made = made.map_err(Failure::Policy)?;
        let shown = views.shown(view, object);
        let tree = match mutation.kind {
            Kind::ApplyConfiguration => {
                let (schema, _) = views.schema(view).map_err(Failure::Request)?;
                let configuration = configuration(&made, &shown).map_err(Failure::Policy)?;
                ownership::merge_unowned(&schema, &shown, &configuration)
                    .map_err(|why| Failure::Policy(format!("error applying patch: {why}")))?
            }
            Kind::JsonPatch => {
                let operations = operations(&made).map_err(Failure::Policy)?;
                match merge::json_patch(&shown, &operations) {
                    Ok(patched) => patched,
                    // A failed `test` is how a JSON patch says that it does not apply, so kube-apiserver does not treat it as an error.
                    Err(JsonPatchError::TestFailed(_)) => return Ok(None),
                    Err(why) => return Err(Failure::Policy(format!("JSON Patch: {why}"))),
                }
            }
        };
        let changed = views.read_again(view, &shown, tree, true);
        let changed = changed.map_err(Failure::Request)?;
        Ok((changed != shown).then_some(changed))
    }
}

/// Converts the object that an expression has made to the apply configuration of the written object.
fn configuration(made: &cel::Value, shown: &Value) -> Result<Value, String> {
    let Some(message) = cel::message(made) else {
        return Err("unsupported return type from ApplyConfiguration expression".to_owned());
    };
    let names = message.check_names();
    names.map_err(|why| format!("type mismatch: {why}"))?;
    let mut configuration = cel::to_json(made)?;
    // An expression cannot set these; the merge needs them, and they are those of the object.
    for field in ["apiVersion", "kind"] {
        configuration[field] = shown[field].clone();
    }
    Ok(configuration)
}

/// Converts the operations that an expression has made to a JSON patch.
fn operations(made: &cel::Value) -> Result<Value, String> {
    const NO_PATCH: &str = "type mismatch: JSONPatchType.expression should evaluate to array";
    let cel::Value::List(made) = made else {
        return Err(NO_PATCH.to_owned());
    };
    let operations = made.iter().map(|made| {
        let message = cel::message(made).filter(|message| message.name == cel::JSON_PATCH);
        let fields = &message
            .ok_or_else(|| format!("{NO_PATCH} of JSONPatch"))?
            .fields;
        let text = |field: &str| match fields.get(field) {
            Some(cel::Value::String(text)) => text.as_str(),
            _ => "",
        };
        let mut operation = json!({"op": text("op"), "path": text("path")});
        if !text("from").is_empty() {
            operation["from"] = text("from").into();
        }
        if let Some(value) = fields.get("value") {
            if let Some(message) = cel::message(value) {
                let names = message.check_names();
                names.map_err(|why| format!("type mismatch: {why}"))?;
            }
            operation["value"] = cel::to_json(value).map_err(|why| {
                format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {why}")
            })?;
        }
        Ok(operation)
    });
    operations.collect()
}

/// Lets the policies change an object; whether any has. They are found by the object as it is before any of them.
pub(in crate::admission::webhook) fn mutate(
    policies: &[Arc<Policy>],
    views: &Views<'_>,
    object: &mut Value,
    old: Option<&Value>,
    stage: &mut Stage<Key>,
) -> Result<bool, Status> {
    // A deletion has no object to change, so no policy is evaluated, not even one whose rules name all operations.
    if is_exempt(views.subject) || views.subject.operation == Operation::Delete {
        return Ok(false);
    }
    let mut refusals: Vec<(String, bool)> = Vec::new();
    let mut refuse = |policy: &Policy, binding: Option<&str>, why: String, is_invalid: bool| {
        let matcher = &policy.bound.matcher;
        let name = &matcher.name;
        if matcher.fails {
            let whom = match binding {
                Some(binding) => format!("policy '{name}' with binding '{binding}'"),
                None => format!("policy {}", quote(name)),
            };
            refusals.push((format!("{whom} denied request: {why}"), is_invalid));
        } else {
            tracing::warn!(policy = name, binding, why, "the request goes on");
        }
    };
    // All parameters are found before the first mutation, so that a policy cannot change which policies apply.
    let mut concerned = Vec::new();
    for (index, policy) in policies.iter().enumerate() {
        let Some(concern) = policy.bound.concern(views, present(object), old)? else {
            continue;
        };
        match concern.params {
            Ok(params) => concerned.extend(
                params
                    .into_iter()
                    .map(|param| (index, concern.view.clone(), param)),
            ),
            Err(why) => {
                let binding = match why {
                    Misconfigured::Policy(_) => None,
                    Misconfigured::Binding(_) => Some(&*policy.bound.binding),
                };
                refuse(policy, binding, why.to_string(), false);
            }
        }
    }
    stage.begin(object);
    // Upstream takes a patch that was made for a change, whatever it has changed.
    let mut is_patched = false;
    for (index, view, param) in concerned {
        let policy = &policies[index];
        let binding = Some(&*policy.bound.binding);
        match policy.holds(views, &view, (present(object), old), &param) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(why) => {
                refuse(policy, binding, why, true);
                continue;
            }
        }
        let metadata = &param["metadata"];
        let named = format!("{}/{}", metadata.text("namespace"), metadata.text("name"));
        let key = (index, named);
        if !stage.is_due(&key) {
            continue;
        }
        let mut has_changed = false;
        for mutation in &policy.mutations {
            if object.is_null() {
                break;
            }
            match policy.changed(mutation, views, &view, (object, old), &param) {
                Ok(None) => is_patched = true,
                Ok(Some(changed)) => {
                    (is_patched, has_changed) = (true, true);
                    views.adopt(&view, object, changed);
                }
                Err(Failure::Policy(why)) => refuse(policy, binding, why, true),
                Err(Failure::Request(status)) => return Err(status),
            }
        }
        if has_changed {
            stage.something_changed();
        }
        if policy.reinvoked {
            stage.invoked(key);
        }
    }
    if !refusals.is_empty() {
        let is_invalid = refusals[0].1;
        let causes = refusals.into_iter().map(|(why, _)| why).collect();
        let mut status = refusal(views.subject, causes);
        status.message = first_cause(&status);
        if is_invalid {
            status.reason = "Invalid".into();
        }
        return Err(status);
    }
    if is_patched {
        stage.something_changed();
    }
    stage.end(object);
    Ok(is_patched)
}

/// Returns the message of the first cause.
fn first_cause(status: &Status) -> String {
    let details = status.details.as_ref();
    let first = details.and_then(|details| details.causes.first());
    first.map(|cause| cause.message.clone()).unwrap_or_default()
}
