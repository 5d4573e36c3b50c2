//! ValidatingAdmissionPolicies where their bindings put them in force: rules about writes that the server checks itself (upstream:
//! apiserver/pkg/admission/plugin/policy/validating).
//!
//! A policy is asked once for each binding, and once for each parameter that the binding refers to. What it finds wrong is refused or
//! told to the client, as the binding says.

use std::sync::Arc;

use serde_json::Value;

use super::{
    hook::Matcher,
    subject::{Subject, View, Views},
};
use crate::{
    admission::{
        Lookup,
        cel::{Expression, Scope, Wanted},
    },
    cel::{self, Budget},
    kinds::tree::Tree,
    status::{Cause, Status},
    validation::selector::Selector,
};

/// The longest text that a `messageExpression` may make.
const MAX_MESSAGE: usize = 5 * 1024;

/// A policy as one binding puts it in force.
pub(super) struct Policy {
    pub(super) matcher: Matcher,
    /// What the binding leaves of it.
    narrowed: Matcher,
    binding: String,
    params: Option<Params>,
    variables: Vec<(String, Result<Expression, String>)>,
    validations: Vec<Validation>,
    denies: bool,
    warns: bool,
}

struct Validation {
    text: String,
    expression: Result<Expression, String>,
    message: String,
    message_expression: Option<Expression>,
    /// Of the refusal, as `Forbidden`.
    reason: String,
}

/// Where the parameters are.
struct Params {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
    selector: Option<Selector>,
    may_be_missing: bool,
}

/// Something that a policy finds wrong.
struct Finding {
    message: String,
    reason: String,
}

impl Policy {
    /// Every policy with every binding that names it.
    pub(super) fn all_of(policies: &[Value], bindings: &[Value]) -> Vec<Arc<Policy>> {
        let mut all = Vec::new();
        for policy in policies {
            let name = &policy["metadata"]["name"];
            for binding in bindings {
                if binding["spec"]["policyName"] == *name {
                    all.push(Arc::new(Policy::of(policy, binding)));
                }
            }
        }
        all
    }

    fn of(policy: &Value, binding: &Value) -> Policy {
        let (spec, bound) = (&policy["spec"], &binding["spec"]);
        let name = policy["metadata"].text("name");
        let fails = spec.text("failurePolicy") != "Ignore";
        let params = spec
            .field("paramKind")
            .map(|kind| Params::of(kind, &bound["paramRef"]));
        let mut scope = Scope::of_policy(params.is_some());
        let conditions = spec.items("matchConditions").iter();
        let conditions = conditions.map(|condition| {
            let text = condition.text("expression").trim();
            Expression::compile_for(text, &scope, Wanted::Bool)
        });
        let mut matcher = Matcher::of(name, &spec["matchConstraints"], "resourceRules");
        matcher.conditions = conditions.collect();
        matcher.fails = fails;
        let mut variables = Vec::new();
        for variable in spec.items("variables") {
            let (name, text) = (variable.text("name"), variable.text("expression"));
            let expression = Expression::compile_for(text, &scope, Wanted::Anything);
            if let Ok(expression) = &expression {
                scope.declare(name, expression.result());
            }
            variables.push((name.to_owned(), expression));
        }
        let mut narrowed = Matcher::of(name, &bound["matchResources"], "resourceRules");
        narrowed.open = true;
        let validations = spec.items("validations").iter();
        let actions = bound.items("validationActions");
        let has = |action: &str| actions.iter().any(|other| other == action);
        Policy {
            matcher,
            narrowed,
            binding: binding["metadata"].text("name").to_owned(),
            params,
            variables,
            validations: validations
                .map(|validation| Validation::of(validation, &scope))
                .collect(),
            denies: has("Deny"),
            warns: has("Warn"),
        }
    }

    /// What is wrong with a write; nothing if the policy is not about it.
    fn judge(
        &self,
        views: &Views<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Vec<Finding>, Status> {
        let Some(view) = views.matched(&self.matcher, object, old)? else {
            return Ok(Vec::new());
        };
        if views.matched(&self.narrowed, object, old)?.is_none() {
            return Ok(Vec::new());
        }
        let params = match &self.params {
            None => vec![Value::Null],
            Some(params) => match params.find(views.subject) {
                Ok(found) => found,
                Err(why) => return Ok(self.broken(format!("failed to configure binding: {why}"))),
            },
        };
        let mut findings = Vec::new();
        for param in params {
            findings.extend(self.judge_with(views, &view, object, old, &param));
        }
        Ok(findings)
    }

    /// A policy that cannot be asked refuses, unless it is to be ignored then.
    fn broken(&self, message: String) -> Vec<Finding> {
        if !self.matcher.fails {
            return Vec::new();
        }
        let reason = String::new();
        vec![Finding { message, reason }]
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
            let named = self.variables.iter().map(|(_, expression)| expression);
            let checks = self
                .validations
                .iter()
                .map(|validation| &validation.expression);
            let conditions = self.matcher.conditions.iter();
            let mut all = named.chain(checks).chain(conditions).flatten();
            let mut messages = self.validations.iter();
            all.any(|expression| expression.mentions(name))
                || messages.any(|validation| {
                    let message = validation.message_expression.as_ref();
                    message.is_some_and(|message| message.mentions(name))
                })
        };
        let mut values = views.variables(&mentions, view, object, old);
        if mentions("namespaceObject") {
            let namespace = views.subject.namespace;
            let found = views.subject.server.find("", "namespaces", None, namespace);
            let found = found.map_or(cel::Value::Null, |found| cel::of_json(&found));
            values.retain(|(name, _)| *name != "namespaceObject");
            values.push(("namespaceObject", found));
        }
        values.push(("params", cel::of_json(param)));
        let mut budget = Budget::default();
        match views.conditions_hold(&self.matcher, &values, &mut budget) {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(errors) => return self.broken(errors.join(", ")),
        }
        let mut budget = Budget::default();
        let mut named: Vec<(String, cel::Value)> = Vec::new();
        for (name, expression) in &self.variables {
            values.push(("variables", cel::map_of(&named)));
            // One that has no value is missed by those who ask for it.
            if let Ok(expression) = expression
                && let Ok(value) = expression.value(&values, &mut budget)
            {
                named.push((name.clone(), value));
            }
            values.pop();
        }
        values.push(("variables", cel::map_of(&named)));
        let validations = self.validations.iter();
        validations
            .flat_map(|validation| {
                let holds = validation.expression.as_ref().map_err(Clone::clone);
                match holds.and_then(|expression| expression.is_true(&values, &mut budget)) {
                    Ok(true) => Vec::new(),
                    Ok(false) => vec![Finding {
                        message: validation.words(&values, &mut budget),
                        reason: validation.reason.clone(),
                    }],
                    Err(error) => self.broken(error),
                }
            })
            .collect()
    }
}

impl Validation {
    fn of(validation: &Value, scope: &Scope) -> Validation {
        let (text, message) = (
            validation.text("expression"),
            validation.text("messageExpression"),
        );
        let message_expression = (!message.trim().is_empty())
            .then(|| Expression::compile_for(message, &scope.without_authorizer(), Wanted::Text));
        Validation {
            text: text.trim().to_owned(),
            expression: Expression::compile_for(text, scope, Wanted::Bool),
            message: validation.text("message").trim().to_owned(),
            message_expression: message_expression.and_then(Result::ok),
            reason: validation.text("reason").to_owned(),
        }
    }

    /// What a client is told.
    fn words(&self, values: &[(&str, cel::Value)], budget: &mut Budget) -> String {
        let made = self.message_expression.as_ref();
        let made = made.and_then(|expression| match expression.value(values, budget) {
            Ok(cel::Value::String(text)) => Some(text.trim().to_owned()),
            _ => None,
        });
        let is_good =
            |text: &String| !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
        if let Some(text) = made.filter(is_good) {
            return text;
        }
        match self.message.as_str() {
            "" => format!("failed expression: {}", self.text),
            message => message.to_owned(),
        }
    }
}

impl Params {
    fn of(kind: &Value, reference: &Value) -> Params {
        let selector = reference.field("selector");
        Params {
            api_version: kind.text("apiVersion").to_owned(),
            kind: kind.text("kind").to_owned(),
            namespace: reference.text("namespace").to_owned(),
            name: reference.text("name").to_owned(),
            selector: selector.and_then(|given| Selector::from_label_selector(given).ok()),
            may_be_missing: reference.text("parameterNotFoundAction") == "Allow",
        }
    }

    fn find(&self, subject: &Subject<'_>) -> Result<Vec<Value>, String> {
        let table = subject.server.registry().table();
        let mut rows = table.rows().iter();
        let row = rows.find(|row| {
            row.resource.kind == self.kind && row.resource.api_version() == self.api_version
        });
        let Some(row) = row else {
            return Err(format!(
                "failed to find resource referenced by paramKind: '{}, Kind={}'",
                self.api_version, self.kind
            ));
        };
        let resource = &row.resource;
        let namespace = match (resource.namespaced, self.namespace.as_str()) {
            (false, _) => None,
            (true, "") => Some(subject.namespace),
            (true, given) => Some(given),
        };
        let (group, plural) = (&resource.group, &resource.plural);
        let found: Vec<Value> = match &self.selector {
            Some(selector) => {
                let all = subject.server.list(group, plural, namespace).into_iter();
                let chosen = all.filter(|param| selector.matches(param["metadata"].get("labels")));
                chosen.map(|param| (*param).clone()).collect()
            }
            None => {
                let param = subject.server.find(group, plural, namespace, &self.name);
                param.into_iter().map(|param| (*param).clone()).collect()
            }
        };
        if found.is_empty() && !self.may_be_missing {
            return Err(
                "no params found for policy binding with `Deny` parameterNotFoundAction".to_owned(),
            );
        }
        Ok(found)
    }
}

/// Asks the policies; the first refusal counts.
pub(super) fn judge(
    policies: &[Arc<Policy>],
    views: &Views<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    for policy in policies {
        let (name, binding) = (&policy.matcher.name, &policy.binding);
        for finding in policy.judge(views, object, old)? {
            let message = &finding.message;
            if policy.warns {
                (views.subject.warn)(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{binding}': {message}"
                ));
            }
            if policy.denies {
                let why = format!(
                    "ValidatingAdmissionPolicy '{name}' with binding '{binding}' denied request: {message}"
                );
                return Err(refusal(views.subject, why, finding.reason));
            }
        }
    }
    Ok(())
}

fn refusal(subject: &Subject<'_>, why: String, reason: String) -> Status {
    let mut status = Status::forbidden(&subject.row.resource, subject.name, &why);
    let (code, reason) = match reason.as_str() {
        "" => (422, "Invalid".to_owned()),
        "Forbidden" => (403, reason),
        "Unauthorized" => (401, reason),
        "RequestEntityTooLarge" => (413, reason),
        _ => (422, reason),
    };
    (status.code, status.reason) = (code, reason.into());
    let cause = Cause {
        reason: String::new(),
        message: why,
        field: String::new(),
    };
    if let Some(details) = &mut status.details {
        details.causes.push(cause);
    }
    status
}
