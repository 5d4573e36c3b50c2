//! MutatingAdmissionPolicies: each of their mutations makes a patch, one after the other (upstream:
//! apiserver/pkg/admission/plugin/policy/mutating).
//!
//! A mutation that cannot be made refuses the write or is left out, as the policy's `failurePolicy` says. Nobody comes to own what a policy
//! sets beyond who writes.

use std::sync::Arc;

use mullion_cel::{self as cel, Budget, JsonError, WrongNames};
use mullion_kinds::request::expression::{ExpectedType, Expression, ExpressionError};
use mullion_kube_text::{golang::quote, status::Status};
use mullion_schema::{
    merge::{self, JsonPatchError},
    ownership::{self, UnownedError},
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
    expression: Result<Expression, ExpressionError>,
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
    Policy(MutationError),
    /// The request ends with this.
    Request(Status),
}

/// The reason why a mutation cannot be made.
#[derive(Debug, thiserror::Error)]
enum MutationError {
    /// The expression has no value.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The value is not an object.
    #[error("unsupported return type from ApplyConfiguration expression")]
    NotAnObject,
    /// The value is not a list.
    #[error("{NO_PATCH}")]
    NotAList,
    /// An item of the list is not an operation.
    #[error("{NO_PATCH} of JSONPatch")]
    NotAnOperation,
    /// Objects have types that are not spelled by the fields around them.
    #[error("type mismatch: {0}")]
    Names(#[from] WrongNames),
    /// The object has no JSON form.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The value of an operation has no JSON form.
    #[error("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {0}")]
    ValueJson(JsonError),
    /// The configuration cannot be merged.
    #[error("error applying patch: {0}")]
    Apply(#[from] UnownedError),
    /// The patch cannot be applied.
    #[error("JSON Patch: {0}")]
    JsonPatch(#[from] JsonPatchError),
}

const NO_PATCH: &str = "type mismatch: JSONPatchType.expression should evaluate to array";

impl<E: Into<MutationError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Policy(error.into())
    }
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
                expression: Expression::compile_for(text, &scope, wanted)
                    .map_err(ExpressionError::from),
            }
        });
        Policy {
            bound,
            mutations: mutations.collect(),
            reinvoked: spec.text("reinvocationPolicy") == "IfNeeded",
        }
    }

    /// Returns whether the policy's match conditions hold for a write.
    ///
    /// # Errors
    /// The errors of the conditions.
    fn holds(
        &self,
        views: &Views<'_>,
        view: &View,
        objects: (Option<&Value>, Option<&Value>),
        param: &Value,
    ) -> Result<bool, Vec<String>> {
        let matcher = &self.bound.matcher;
        if matcher.conditions.is_empty() {
            return Ok(true);
        }
        let values = self.bound.values(views, view, objects, param, &|_| false);
        views.conditions_hold(matcher, &values, &mut Budget::default())
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
        let expression = mutation.expression.as_ref().map_err(Clone::clone)?;
        let objects = (Some(object), old);
        let mentions = |name: &str| expression.mentions(name);
        let mut values = self.bound.values(views, view, objects, param, &mentions);
        let mut budget = Budget::default();
        self.bound.give_names(views, view, &mut values, &mut budget);
        let made = expression.value(&values, &mut budget)?;
        let shown = views.shown(view, object);
        let tree = match mutation.kind {
            Kind::ApplyConfiguration => {
                let (schema, _) = views.schema(view).map_err(Failure::Request)?;
                let configuration = configuration(&made, &shown)?;
                ownership::merge_unowned(&schema, &shown, &configuration)?
            }
            Kind::JsonPatch => {
                let operations = operations(&made)?;
                match merge::json_patch(&shown, &operations) {
                    Ok(patched) => patched,
                    // A failed `test` is how a JSON patch says that it does not apply, so kube-apiserver does not treat it as an error.
                    Err(JsonPatchError::TestFailed(_)) => return Ok(None),
                    Err(why) => return Err(why.into()),
                }
            }
        };
        let changed = views.read_again(view, &shown, tree, true);
        let changed = changed.map_err(Failure::Request)?;
        Ok((changed != shown).then_some(changed))
    }
}

/// Converts the object that an expression has made to the apply configuration of the written object.
fn configuration(made: &cel::Value, shown: &Value) -> Result<Value, MutationError> {
    let message = cel::message(made).ok_or(MutationError::NotAnObject)?;
    message.check_names()?;
    let mut configuration = cel::to_json(made)?;
    // An expression cannot set these; the merge needs them, and they are those of the object.
    for field in ["apiVersion", "kind"] {
        configuration[field] = shown[field].clone();
    }
    Ok(configuration)
}

/// Converts the operations that an expression has made to a JSON patch.
fn operations(made: &cel::Value) -> Result<Value, MutationError> {
    let cel::Value::List(made) = made else {
        return Err(MutationError::NotAList);
    };
    let operations = made.iter().map(|made| {
        let message = cel::message(made).filter(|message| message.name == cel::JSON_PATCH);
        let fields = &message.ok_or(MutationError::NotAnOperation)?.fields;
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
                message.check_names()?;
            }
            operation["value"] = cel::to_json(value).map_err(MutationError::ValueJson)?;
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
            Err(errors) => {
                refuse(policy, binding, aggregate(&errors), true);
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
                Err(Failure::Policy(why)) => refuse(policy, binding, why.to_string(), true),
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
