//! Evaluates ValidatingAdmissionPolicies. A binding decides whether a finding refuses the write or warns the client (upstream:
//! apiserver/pkg/admission/plugin/policy/validating).

use std::sync::Arc;

use mullion_cel::{self as cel, Budget};
use mullion_kinds::request::expression::{ExpectedType, Expression, ExpressionError, Scope};
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{BoundPolicy, Misconfigured, is_exempt, refusal};
use crate::admission::webhook::subject::{View, Views, aggregate};

/// The longest text that a `messageExpression` may make.
const MAX_MESSAGE: usize = 5 * 1024;

/// A policy as one binding puts it in force.
pub(in crate::admission::webhook) struct Policy {
    pub(in crate::admission::webhook) bound: BoundPolicy,
    validations: Vec<Validation>,
    /// Notes for an audit log that does not exist here; one that cannot be made refuses all the same.
    annotations: Vec<Result<Expression, ExpressionError>>,
    denies: bool,
    warns: bool,
}

struct Validation {
    text: String,
    expression: Result<Expression, ExpressionError>,
    message: String,
    message_expression: Option<Expression>,
    /// The reason of the refusal, such as `Forbidden`.
    reason: String,
}

/// Something that a policy finds wrong.
struct Finding {
    message: String,
    reason: String,
    /// True if the finding refuses the request regardless of the binding's actions.
    refuses: bool,
}

impl Policy {
    /// Reads a policy and a binding that names it.
    pub(in crate::admission::webhook) fn of(
        policy: &Value,
        binding: &Value,
        is_first: bool,
    ) -> Policy {
        let (bound, scope) = BoundPolicy::of(policy, binding, is_first);
        let validations = policy["spec"].items("validations").iter();
        let annotations = policy["spec"].items("auditAnnotations").iter();
        let annotations = annotations.map(|annotation| {
            let text = annotation.text("valueExpression").trim();
            Expression::compile_for(text, &scope, ExpectedType::TextOrNull)
                .map_err(ExpressionError::from)
        });
        let actions = binding["spec"].items("validationActions");
        let has = |action: &str| actions.iter().any(|other| other == action);
        Policy {
            bound,
            validations: validations
                .map(|validation| Validation::of(validation, &scope))
                .collect(),
            annotations: annotations.collect(),
            denies: has("Deny"),
            warns: has("Warn"),
        }
    }

    /// Returns the findings of the policy for a write, which are empty if the policy does not match.
    fn judge(
        &self,
        views: &Views<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Result<Vec<Finding>, Misconfigured>, Status> {
        let Some(concern) = self.bound.concern(views, object, old)? else {
            return Ok(Ok(Vec::new()));
        };
        Ok(concern.params.map(|params| {
            let params = params.iter();
            let findings =
                params.map(|param| self.judge_with(views, &concern.view, object, old, param));
            findings.flatten().collect()
        }))
    }

    /// Returns the finding for a policy that cannot be evaluated, or none with `failurePolicy: Ignore`.
    fn broken(&self, message: String) -> Vec<Finding> {
        if !self.bound.matcher.fails {
            return Vec::new();
        }
        vec![Finding {
            message,
            reason: String::new(),
            refuses: false,
        }]
    }

    fn judge_with(
        &self,
        views: &Views<'_>,
        view: &View,
        object: Option<&Value>,
        old: Option<&Value>,
        param: &Value,
    ) -> Vec<Finding> {
        let mentions = |name: &str| {
            let mut validations = self.validations.iter();
            let mut annotations = self.annotations.iter().flatten();
            validations.any(|validation| validation.mentions(name))
                || annotations.any(|annotation| annotation.mentions(name))
        };
        let objects = (object, old);
        let mut values = self.bound.values(views, view, objects, param, &mentions);
        let mut budget = Budget::default();
        match views.conditions_hold(&self.bound.matcher, &values, &mut budget) {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(errors) => return self.broken(aggregate(&errors)),
        }
        // kube-apiserver gives match conditions and validations a cost budget each, so expensive conditions leave the validations theirs.
        let mut budget = Budget::default();
        self.bound.give_names(views, view, &mut values, &mut budget);
        let validations = self.validations.iter();
        let mut findings: Vec<Finding> = validations
            .flat_map(|validation| {
                let holds = validation.expression.as_ref().map_err(Clone::clone);
                match holds.and_then(|expression| expression.is_true(&values, &mut budget)) {
                    Ok(true) => Vec::new(),
                    Ok(false) => vec![Finding {
                        message: validation.words(&values, &mut budget),
                        reason: validation.reason.clone(),
                        refuses: false,
                    }],
                    Err(error) => self.broken(error.to_string()),
                }
            })
            .collect();
        for annotation in &self.annotations {
            let made = annotation.as_ref().map_err(Clone::clone);
            if let Err(why) = made.and_then(|annotation| annotation.value(&values, &mut budget)) {
                let refuses = |finding| Finding {
                    refuses: true,
                    ..finding
                };
                findings.extend(self.broken(why.to_string()).into_iter().map(refuses));
            }
        }
        findings
    }
}

impl Validation {
    fn of(validation: &Value, scope: &Scope) -> Validation {
        let (text, message) = (
            validation.text("expression"),
            validation.text("messageExpression"),
        );
        // kube-apiserver gives `messageExpression` every variable but the authorizer.
        let message_expression = (!message.trim().is_empty()).then(|| {
            Expression::compile_for(message, &scope.without_authorizer(), ExpectedType::Text)
        });
        Validation {
            text: text.trim().to_owned(),
            expression: Expression::compile_for(text, scope, ExpectedType::Bool)
                .map_err(ExpressionError::from),
            message: validation.text("message").trim().to_owned(),
            message_expression: message_expression.and_then(Result::ok),
            reason: validation.text("reason").to_owned(),
        }
    }

    fn mentions(&self, name: &str) -> bool {
        let message = self.message_expression.as_ref();
        let mut all = self.expression.iter().chain(message);
        all.any(|expression| expression.mentions(name))
    }

    /// Returns the message of a failed validation: its `messageExpression`, `message`, or the expression itself.
    fn words(&self, values: &[(&str, cel::Value)], budget: &mut Budget) -> String {
        let made = self.message_expression.as_ref();
        let made = made.and_then(|expression| match expression.value(values, budget) {
            Ok(cel::Value::String(text)) => Some(text.trim().to_owned()),
            _ => None,
        });
        let is_good =
            |text: &String| !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
        // An expression that fails or makes an unfit message falls back to the static one; the refusal itself stands.
        if let Some(text) = made.filter(is_good) {
            return text;
        }
        match self.message.as_str() {
            "" => format!("failed expression: {}", self.text),
            message => message.to_owned(),
        }
    }
}

/// Evaluates all validating policies, including those that only warn. The first refusal is returned.
pub(in crate::admission::webhook) fn judge(
    policies: &[Arc<Policy>],
    views: &Views<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    if is_exempt(views.subject) {
        return Ok(());
    }
    let mut refused: Option<Status> = None;
    for policy in policies {
        let matcher = &policy.bound.matcher;
        let (name, binding) = (&matcher.name, &policy.bound.binding);
        let bound = format!("ValidatingAdmissionPolicy '{name}' with binding '{binding}'");
        let mut refuse = |why: String, reason: String| {
            refused.get_or_insert_with(|| {
                let mut status = refusal(views.subject, vec![why]);
                let (code, reason) = coded(reason);
                (status.code, status.reason) = (code, reason.into());
                status
            });
        };
        let findings = match policy.judge(views, object, old)? {
            Ok(findings) => findings,
            // Refuses whatever the binding's actions are.
            Err(why) => {
                let whom = match why {
                    Misconfigured::Policy(_) => format!("ValidatingAdmissionPolicy '{name}'"),
                    Misconfigured::Binding(_) => bound,
                };
                if matcher.fails {
                    refuse(format!("{whom} denied request: {why}"), String::new());
                }
                continue;
            }
        };
        for finding in findings {
            let Finding {
                message,
                reason,
                refuses,
            } = finding;
            // Every policy is evaluated even after a refusal: a later one may still have a warning for the client.
            if policy.warns && !refuses {
                (views.subject.warn)(format!("Validation failed for {bound}: {message}"));
            }
            if policy.denies || refuses {
                refuse(format!("{bound} denied request: {message}"), reason);
            }
        }
    }
    refused.map_or(Ok(()), Err)
}

/// Returns the HTTP status code of a reason, and the reason, which is `Invalid` if none is given.
fn coded(reason: String) -> (u16, String) {
    match reason.as_str() {
        "" => (422, "Invalid".to_owned()),
        "Forbidden" => (403, reason),
        "Unauthorized" => (401, reason),
        "RequestEntityTooLarge" => (413, reason),
        _ => (422, reason),
    }
}
