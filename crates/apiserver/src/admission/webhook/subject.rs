//! Shows a write to webhooks in the version that they ask for, and decides which of them want to see it.

use std::sync::{Arc, OnceLock};

use mullion_cel::{self as cel, Budget};
use mullion_kinds::{
    admissionregistration,
    request::{
        Lookup, User,
        expression::{AccessQuery, Parts, of_asker},
    },
};
use mullion_kube_text::{
    status::Status,
    validation::selector::{Selector, SelectorError},
};
use mullion_schema::Type;
use serde_json::Value;

use super::{
    client::Clients,
    hook::{Matcher, Rule},
    review::{GroupVersionKind, GroupVersionResource, Question},
};
use crate::{
    admission::Operation,
    auth::rbac::Authorizer,
    object::scale::Paths,
    registry::{Registry, Row},
};

/// The form in which a write shows its object to webhooks.
pub(crate) enum Form<'a> {
    /// The object itself.
    Whole,
    /// The Scale of the object.
    Scale(Paths<'a>),
    /// An object of another type that is never stored.
    Body(Type),
    /// The options of a connection.
    Options,
}

/// The properties of a write, without its objects.
pub(crate) struct Subject<'a> {
    /// The connections to webhooks.
    pub(crate) clients: &'a Clients,
    pub(crate) registry: &'a Arc<Registry>,
    pub(crate) authorizer: &'a Arc<Authorizer>,
    pub(crate) row: &'a Arc<Row>,
    pub(crate) user: &'a User,
    pub(crate) operation: Operation,
    /// Empty for the resource itself.
    pub(crate) subresource: &'a str,
    /// The form in which webhooks see the object.
    pub(crate) form: Form<'a>,
    /// The namespace of the write; for a Namespace, its own name.
    pub(crate) namespace: &'a str,
    /// Empty before `generateName` has been expanded.
    pub(crate) name: &'a str,
    pub(crate) dry_run: bool,
    /// The options of the operation.
    pub(crate) options: &'a Value,
    /// The requesting user, as a `UserInfo`.
    pub(crate) user_info: &'a Value,
    /// When the request has to be answered.
    pub(crate) deadline: tokio::time::Instant,
    /// Adds a warning for the client.
    pub(crate) warn: &'a (dyn Fn(String) + Sync),
}

/// One of several equivalent resources that serve the same objects.
#[derive(Clone)]
pub(super) struct View {
    pub(super) row: Arc<Row>,
    pub(super) kind: GroupVersionKind,
    pub(super) resource: GroupVersionResource,
}

impl View {
    /// Returns the view of a row and subresource, or `None` if the row has no such subresource.
    fn of(row: &Arc<Row>, subresource: &str) -> Option<Self> {
        let resource = &row.resource;
        let (mut group, mut version, mut kind) =
            (&*resource.group, &*resource.version, &*resource.kind);
        if !subresource.is_empty() {
            let mut parts = resource.subresources.iter();
            let part = parts.find(|part| part.name == subresource)?;
            (group, version) = (part.group.unwrap_or(group), part.version.unwrap_or(version));
            kind = &part.kind;
        }
        Some(View {
            kind: GroupVersionKind {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: kind.to_owned(),
            },
            resource: GroupVersionResource {
                group: resource.group.to_string(),
                version: resource.version.to_string(),
                resource: resource.plural.to_string(),
            },
            row: row.clone(),
        })
    }
}

/// Cached conversions and look-ups for a [`Subject`].
pub(super) struct Views<'a> {
    pub(super) subject: &'a Subject<'a>,
    pub(super) own: View,
    others: OnceLock<Vec<View>>,
}

impl<'a> Views<'a> {
    /// Creates the views of a write, or returns `None` for a write that no webhook is asked about.
    pub(super) fn of(subject: &'a Subject<'a>) -> Option<Self> {
        let resource = &subject.row.resource;
        // kube-apiserver does not ask webhooks about their own configurations: a broken webhook could otherwise never be removed.
        let exempt = resource.group == admissionregistration::GROUP
            && admissionregistration::EXEMPT.contains(&&*resource.plural);
        if exempt {
            return None;
        }
        Some(Views {
            own: View::of(subject.row, subject.subresource)?,
            others: OnceLock::new(),
            subject,
        })
    }

    /// Returns the other resources that are views of the same objects.
    fn others(&self) -> &[View] {
        self.others.get_or_init(|| {
            let subject = self.subject;
            let table = subject.registry.table();
            let same = |row: &&Arc<Row>| {
                row.resource.storage == subject.row.resource.storage
                    && !Arc::ptr_eq(row, subject.row)
            };
            let rows = table.rows().iter().filter(same);
            rows.filter_map(|row| View::of(row, subject.subresource))
                .filter(|view| view.resource != self.own.resource)
                .collect()
        })
    }

    /// Returns the resource as which a webhook matches the write, or `None` if it does not match. It is an error if a match condition fails
    /// to evaluate and the failure policy is `Fail`.
    pub(super) fn wanted(
        &self,
        hook: &Matcher,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Option<View>, Status> {
        let Some(view) = self.matched(hook, object, old)? else {
            return Ok(None);
        };
        if hook.conditions.is_empty() {
            return Ok(Some(view));
        }
        let holds = self.holds(hook, &view, object, old);
        let holds = holds.map_err(|errors| {
            let resource = &self.subject.row.resource;
            Status::forbidden(resource, self.subject.name, &aggregate(&errors))
        })?;
        Ok(holds.then_some(view))
    }

    /// Returns the resource as which a matcher's rules and selectors match the write, or `None` if they do not.
    pub(super) fn matched(
        &self,
        hook: &Matcher,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Option<View>, Status> {
        let Some(view) = self.matching(hook) else {
            return Ok(None);
        };
        let is_meant = self.in_namespace(hook, object)? && self.selected(hook, object, old)?;
        Ok(is_meant.then_some(view))
    }

    fn matching(&self, hook: &Matcher) -> Option<View> {
        let subject = self.subject;
        let is_namespace =
            subject.row.resource.group.is_empty() && subject.row.resource.plural == "namespaces";
        let in_namespace = !subject.namespace.is_empty() && !is_namespace;
        let matches = |rule: &Rule, view: &View| {
            let resource = &view.resource;
            rule.matches(
                subject.operation,
                &resource.group,
                &resource.version,
                &resource.resource,
                subject.subresource,
                in_namespace,
            ) && rule.is_for(subject.name)
        };
        // Exclusions come first: they win over every rule that matches.
        if hook.excluded.iter().any(|rule| matches(rule, &self.own)) {
            return None;
        }
        if hook.open && hook.rules.is_empty() {
            return Some(self.own.clone());
        }
        // The resource that was asked for is preferred, because it needs no conversion.
        if hook.rules.iter().any(|rule| matches(rule, &self.own)) {
            return Some(self.own.clone());
        }
        if !hook.equivalent {
            return None;
        }
        let mut rules = hook.rules.iter();
        rules.find_map(|rule| {
            let mut others = self.others().iter();
            others.find(|view| matches(rule, view)).cloned()
        })
    }

    /// Returns whether the namespace selector matches. It always does for cluster-scoped objects other than Namespaces.
    fn in_namespace(&self, hook: &Matcher, object: Option<&Value>) -> Result<bool, Status> {
        let subject = self.subject;
        let is_namespace = subject.row.resource.plural == "namespaces";
        if subject.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let selector = selector(&hook.namespaces)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let writes = matches!(subject.operation, Operation::Create | Operation::Update);
        // A Namespace is matched by its own new labels: the stored ones are absent at its creation and old at an update.
        if is_namespace && subject.subresource.is_empty() && writes {
            return Ok(selector.matches(object.and_then(labels)));
        }
        let namespace = subject.namespace;
        let found = subject.registry.find("", "namespaces", None, namespace);
        let found = found.ok_or_else(|| Status::core_not_found("namespaces", namespace))?;
        Ok(selector.matches(labels(&found)))
    }

    /// Returns whether the object selector matches the labels of the new or of the old object.
    fn selected(
        &self,
        hook: &Matcher,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, Status> {
        let selector = selector(&hook.objects)?;
        if selector.is_everything() {
            return Ok(true);
        }
        // The options of a connection have no metadata.
        let candidates = match self.subject.form {
            Form::Options => [None, None],
            _ => [object, old],
        };
        let mut candidates = candidates.into_iter().flatten();
        Ok(candidates.any(|candidate| selector.matches(labels(candidate))))
    }

    /// Returns whether all match conditions hold. One that is false decides; errors of the others are returned only with `failurePolicy:
    /// Fail`.
    fn holds(
        &self,
        hook: &Matcher,
        view: &View,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, Vec<String>> {
        let mentions = |name: &str| {
            let mut conditions = hook.conditions.iter().flatten();
            conditions.any(|condition| condition.mentions(name))
        };
        let variables = self.variables(&mentions, view, object, old);
        self.conditions_hold(hook, &variables, &mut Budget::default())
    }

    /// Returns whether all match conditions hold with these values.
    pub(super) fn conditions_hold(
        &self,
        hook: &Matcher,
        variables: &[(&str, cel::Value)],
        budget: &mut Budget,
    ) -> Result<bool, Vec<String>> {
        let mut errors = Vec::new();
        for condition in &hook.conditions {
            let condition = condition.as_ref().map_err(Clone::clone);
            let value = condition.and_then(|condition| condition.is_true(variables, budget));
            match value {
                // kube-apiserver (matchconditions): one condition that is false decides, whatever errors the others have.
                Ok(false) => return Ok(false),
                Ok(true) => {}
                Err(error) => errors.push(error.to_string()),
            }
        }
        match (errors.is_empty(), hook.fails) {
            (true, _) => Ok(true),
            (false, true) => {
                tracing::warn!(
                    name = hook.name,
                    ?errors,
                    "match conditions cannot be evaluated: the request fails"
                );
                Err(errors)
            }
            (false, false) => Ok(false),
        }
    }

    /// Returns the values of the variables that the expressions mention.
    pub(super) fn variables(
        &self,
        mentions: &dyn Fn(&str) -> bool,
        view: &View,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Vec<(&'static str, cel::Value)> {
        let subject = self.subject;
        let resource = &subject.row.resource;
        let asker = AccessQuery::new(
            subject.authorizer.clone(),
            subject.user.clone(),
            Parts {
                group: resource.group.to_string(),
                resource: resource.plural.to_string(),
                subresource: subject.subresource.to_owned(),
                namespace: subject.namespace.to_owned(),
                name: subject.name.to_owned(),
            },
        );
        let shown = |object: Option<&Value>| match object {
            Some(object) => cel::of_json(&self.shown(view, object)),
            None => cel::Value::Null,
        };
        let mut variables = Vec::from(of_asker(asker));
        for name in ["object", "oldObject", "request", "namespaceObject"] {
            // Converting an object to CEL values is costly, so only what is mentioned is converted.
            if mentions(name) {
                let value = match name {
                    "object" => shown(object),
                    "oldObject" => shown(old),
                    // Conditions see the kind that the rules have matched, but the resource that was asked for.
                    "request" => self.request(view, &self.own),
                    // A configuration's conditions have no namespace to look at.
                    _ => cel::Value::Null,
                };
                variables.push((name, value));
            }
        }
        variables
    }

    /// Returns the variable `request` of expressions.
    pub(super) fn request(&self, of_kind: &View, of_resource: &View) -> cel::Value {
        let question = Question {
            kind: &of_kind.kind,
            ..self.question(of_resource)
        };
        let request = serde_json::to_value(question);
        cel::of_json(&request.unwrap_or_default())
    }

    /// Returns the AdmissionRequest without its objects.
    pub(super) fn question<'q>(&'q self, view: &'q View) -> Question<'q> {
        let subject = self.subject;
        Question {
            kind: &view.kind,
            resource: &view.resource,
            sub_resource: subject.subresource,
            request_kind: &self.own.kind,
            request_resource: &self.own.resource,
            request_sub_resource: subject.subresource,
            name: subject.name,
            namespace: subject.namespace,
            operation: subject.operation.as_str(),
            user_info: subject.user_info,
            dry_run: subject.dry_run,
            options: subject.options,
        }
    }
}

fn labels(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("labels")
}

fn selector(parsed: &Result<Selector, SelectorError>) -> Result<&Selector, Status> {
    let parsed = parsed.as_ref();
    parsed.map_err(|error| Status::internal(error.to_string()))
}

/// Formats several errors as Go's `Aggregate` prints them.
pub(super) fn aggregate(errors: &[String]) -> String {
    match errors {
        [error] => error.clone(),
        errors => format!("[{}]", errors.join(", ")),
    }
}
