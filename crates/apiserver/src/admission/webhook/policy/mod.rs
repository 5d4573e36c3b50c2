//! Admission policies where their bindings put them in force: rules about writes that the server checks and changes it makes itself
//! (upstream: apiserver/pkg/admission/plugin/policy).
//!
//! Both kinds share this module: a policy is evaluated once for each binding ([`BoundPolicy`]), and once for each parameter that the
//! binding refers to. [`validating`] judges, [`mutating`] changes.

pub(super) mod mutating;
pub(super) mod validating;

use std::{fmt, sync::Arc};

use mullion_cel::{self as cel, Budget};
use mullion_kinds::{
    Resource,
    request::{
        Lookup,
        expression::{ExpectedType, Expression, ExpressionError, Scope},
    },
};
use mullion_kube_text::{
    status::{Cause, Status},
    validation::selector::Selector,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    hook::Matcher,
    subject::{Subject, View, Views},
};
use crate::registry::Row;

/// Values by the names that expressions use.
type Values = Vec<(&'static str, cel::Value)>;

/// A policy as one binding puts it in force.
pub(super) struct BoundPolicy {
    pub(super) matcher: Matcher,
    /// The matcher of the binding, which narrows that of the policy.
    narrowed: Matcher,
    binding: String,
    /// True for the first binding of a policy, which reports errors of the policy itself.
    is_first: bool,
    /// The kind of the parameters.
    kind: Option<Kind>,
    /// Which of them; none for a binding that refers to none.
    params: Option<Params>,
    variables: Vec<(String, Result<Expression, ExpressionError>)>,
}

/// The kind of a policy's parameters.
#[derive(Clone, Debug)]
struct Kind {
    api_version: String,
    name: String,
}

/// The parameter objects that a binding refers to.
struct Params {
    namespace: String,
    name: String,
    selector: Option<Selector>,
    may_be_missing: bool,
}

/// A write that a policy is about.
struct PolicyInput {
    view: View,
    /// Null for a policy without parameters; or why there are none.
    params: Result<Vec<Value>, Misconfigured>,
}

/// A configuration error of a policy or of one of its bindings.
#[derive(Debug, thiserror::Error)]
enum Misconfigured {
    /// The kind of the policy's parameters is not served.
    #[error("failed to configure policy: failed to find resource referenced by paramKind: '{0}'")]
    Policy(Kind),
    /// The binding refers to no parameters.
    #[error("failed to configure binding: {0}")]
    Binding(#[from] ParamError),
}

/// The reason why a binding refers to no parameters.
#[derive(Debug, thiserror::Error)]
enum ParamError {
    /// A namespace is named, although the parameters have none.
    #[error("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")]
    UnwantedNamespace,
    /// The namespace would be that of an object that has none.
    #[error(
        "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
    )]
    NoNamespace,
    /// There are no such parameters.
    #[error("no params found for policy binding with `Deny` parameterNotFoundAction")]
    Missing,
}

/// Reads every policy with every binding that names it; the last argument of `of` says whether the binding is the policy's first.
pub(super) fn all_of<P>(
    policies: &[Value],
    bindings: &[Value],
    of: fn(&Value, &Value, bool) -> P,
) -> Vec<Arc<P>> {
    let each = policies.iter().flat_map(|policy| {
        let name = &policy["metadata"]["name"];
        let bindings = bindings.iter();
        let own = bindings.filter(move |binding| binding["spec"]["policyName"] == *name);
        let own = own.enumerate();
        own.map(move |(index, binding)| Arc::new(of(policy, binding, index == 0)))
    });
    each.collect()
}

/// Returns whether the request is exempt from all policies (upstream: pkg/kubeapiserver/admission/exclusion).
fn is_exempt(subject: &Subject<'_>) -> bool {
    let resource = &subject.row.resource;
    let groups = ["authentication.k8s.io", "authorization.k8s.io"];
    groups.contains(&&*resource.group) && resource.plural.ends_with("reviews")
}

impl BoundPolicy {
    /// Reads a policy and a binding, and returns them with the scope of the policy's expressions.
    fn of(policy: &Value, binding: &Value, is_first: bool) -> (BoundPolicy, Scope) {
        let (spec, bound) = (&policy["spec"], &binding["spec"]);
        let name = policy["metadata"].text("name");
        let kind = spec.field("paramKind");
        let mut scope = Scope::of_policy(kind.is_some());
        // A binding that refers to none leaves them null.
        let params = kind.and(bound.field("paramRef")).map(Params::of);
        let conditions = spec.items("matchConditions").iter();
        let conditions = conditions.map(|condition| {
            let text = condition.text("expression").trim();
            Expression::compile_for(text, &scope, ExpectedType::Bool).map_err(ExpressionError::from)
        });
        let mut matcher = Matcher::of(name, &spec["matchConstraints"], "resourceRules");
        matcher.conditions = conditions.collect();
        matcher.fails = spec.text("failurePolicy") != "Ignore";
        // After the match conditions, which may not use `variables`: kube-apiserver compiles them in a scope of their own.
        scope.compose();
        let mut variables = Vec::new();
        for variable in spec.items("variables") {
            let (name, text) = (variable.text("name"), variable.text("expression"));
            let expression = Expression::compile_for(text, &scope, ExpectedType::Anything)
                .map_err(ExpressionError::from);
            if let Ok(expression) = &expression {
                // In the order of the list: a variable may use those before it, and none after it.
                scope.declare(name, expression.result());
            }
            variables.push((name.to_owned(), expression));
        }
        let mut narrowed = Matcher::of(name, &bound["matchResources"], "resourceRules");
        narrowed.open = true;
        let bound = BoundPolicy {
            matcher,
            narrowed,
            binding: binding["metadata"].text("name").to_owned(),
            is_first,
            kind: kind.map(Kind::of),
            params,
            variables,
        };
        (bound, scope)
    }

    /// Returns how the policy applies to a write, or `None` if it does not match.
    fn concern(
        &self,
        views: &Views<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Option<PolicyInput>, Status> {
        let Some(view) = views.matched(&self.matcher, object, old)? else {
            return Ok(None);
        };
        let row = match &self.kind {
            None => None,
            Some(kind) => match kind.row(views.subject) {
                Some(row) => Some(row),
                // Said once for all bindings, whatever they leave of the policy.
                None if !self.is_first => return Ok(None),
                None => {
                    let params = Err(Misconfigured::Policy(kind.clone()));
                    return Ok(Some(PolicyInput { view, params }));
                }
            },
        };
        if views.matched(&self.narrowed, object, old)?.is_none() {
            return Ok(None);
        }
        let params = match row.zip(self.params.as_ref()) {
            None => Ok(vec![Value::Null]),
            Some((row, params)) => params
                .find(&row.resource, views.subject)
                .map_err(Misconfigured::from),
        };
        Ok(Some(PolicyInput { view, params }))
    }

    /// Returns the values of the variables that the policy's own expressions, and those behind `mentions`, name.
    fn values(
        &self,
        views: &Views<'_>,
        view: &View,
        (object, old): (Option<&Value>, Option<&Value>),
        param: &Value,
        mentions: &dyn Fn(&str) -> bool,
    ) -> Values {
        let named = self.variables.iter().map(|(_, expression)| expression);
        let own: Vec<&Expression> = named.chain(&self.matcher.conditions).flatten().collect();
        let mentions =
            |name: &str| mentions(name) || own.iter().any(|expression| expression.mentions(name));
        let mut values = views.variables(&mentions, view, object, old);
        if mentions("namespaceObject") {
            values.retain(|(name, _)| *name != "namespaceObject");
            values.push(("namespaceObject", namespace_of(views.subject)));
        }
        values.push(("params", cel::of_json(param)));
        values
    }

    /// Adds the values of the policy's variables. From here on `request` names the resource that the rules have matched.
    fn give_names(&self, views: &Views<'_>, view: &View, values: &mut Values, budget: &mut Budget) {
        let mut given = values.iter_mut();
        if let Some((_, request)) = given.find(|(name, _)| *name == "request") {
            *request = views.request(view, view);
        }
        let mut named: Vec<(String, cel::Value)> = Vec::new();
        for (name, expression) in &self.variables {
            // Each variable sees those before it, so the map is made anew for each.
            values.push(("variables", cel::map_of(&named)));
            if let Ok(expression) = expression {
                named.push((name.clone(), expression.named(name, values, budget)));
            }
            values.pop();
        }
        values.push(("variables", cel::map_of(&named)));
    }
}

/// Returns the namespace of a write; null for cluster-scoped objects and for Namespaces.
fn namespace_of(subject: &Subject<'_>) -> cel::Value {
    let resource = &subject.row.resource;
    if subject.namespace.is_empty() || (resource.group.is_empty() && resource.kind == "Namespace") {
        return cel::Value::Null;
    }
    let found = subject
        .registry
        .find("", "namespaces", None, subject.namespace);
    found.map_or(cel::Value::Null, |found| cel::of_json(&found))
}

impl Kind {
    fn of(kind: &Value) -> Kind {
        Kind {
            api_version: kind.text("apiVersion").to_owned(),
            name: kind.text("kind").to_owned(),
        }
    }

    /// Returns the registry row of the parameter kind, or `None` if the kind is not served.
    fn row(&self, subject: &Subject<'_>) -> Option<Arc<Row>> {
        let table = subject.registry.table();
        let mut rows = table.rows().iter();
        let row = rows.find(|row| {
            row.resource.kind == self.name && row.resource.api_version() == self.api_version
        });
        row.cloned()
    }
}

/// `example.com/v1, Kind=Limit`, and `/v1, Kind=ConfigMap` for kinds of the core.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.api_version.contains('/') {
            ""
        } else {
            "/"
        };
        write!(f, "{slash}{}, Kind={}", self.api_version, self.name)
    }
}

impl Params {
    fn of(reference: &Value) -> Params {
        let selector = reference.field("selector");
        Params {
            namespace: reference.text("namespace").to_owned(),
            name: reference.text("name").to_owned(),
            selector: selector.and_then(|given| Selector::from_label_selector(given).ok()),
            may_be_missing: reference.text("parameterNotFoundAction") == "Allow",
        }
    }

    fn find(&self, resource: &Resource, subject: &Subject<'_>) -> Result<Vec<Value>, ParamError> {
        let namespace = match (resource.namespaced, self.namespace.as_str()) {
            (false, "") => None,
            (false, _) => return Err(ParamError::UnwantedNamespace),
            (true, "") if subject.namespace.is_empty() => return Err(ParamError::NoNamespace),
            (true, "") => Some(subject.namespace),
            (true, given) => Some(given),
        };
        let (group, plural) = (&resource.group, &resource.plural);
        let found: Vec<Value> = match &self.selector {
            Some(selector) => {
                let all = subject.registry.list(group, plural, namespace).into_iter();
                let chosen = all.filter(|param| selector.matches(param["metadata"].get("labels")));
                chosen.map(|param| (*param).clone()).collect()
            }
            None => {
                let param = subject.registry.find(group, plural, namespace, &self.name);
                param.into_iter().map(|param| (*param).clone()).collect()
            }
        };
        if found.is_empty() && !self.may_be_missing {
            return Err(ParamError::Missing);
        }
        Ok(found)
    }
}

/// Returns the 403 for a write that was refused for one or several reasons; the first is the message.
fn refusal(subject: &Subject<'_>, causes: Vec<String>) -> Status {
    let first = causes.first().map(String::as_str).unwrap_or_default();
    let mut status = Status::forbidden(&subject.row.resource, subject.name, first);
    let causes = causes.into_iter().map(|message| Cause {
        reason: String::new(),
        message,
        field: String::new(),
    });
    if let Some(details) = &mut status.details {
        details.causes.extend(causes);
    }
    status
}
