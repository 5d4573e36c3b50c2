//! `authorizer` in expressions: may the one who asks, or a service account, do something else as well?
//!
//! `authorizer.group('').resource('pods').namespace('n').check('delete').allowed()`, `authorizer.path('/x').check('get')`,
//! `authorizer.serviceAccount('n', 'a')`, `authorizer.requestResource.check('v')` (upstream: apiserver/pkg/cel/library/authz.go).

use std::{fmt, sync::Arc};

use mullion_cel::{Host, Value, host};
use mullion_kube_text::names;

use crate::request::{
    Authorize, Decision, User,
    attributes::{Attributes, Resource, Target},
    service_account,
};

pub(super) const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
pub(super) const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";

/// Somebody whose rights are asked about, and what the question is as far as it has been put.
#[derive(Clone)]
pub struct AccessQuery {
    authorizer: Arc<dyn Authorize>,
    user: Arc<User>,
    question: Question,
    /// The resource of the request, for `authorizer.requestResource`.
    request: Parts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    None,
    Path(String),
    Group(String),
    Resource(Parts),
}

/// A resource, in the terms of RBAC rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The API group; empty for core.
    pub group: String,
    /// The plural.
    pub resource: String,
    /// The subresource; empty if there is none.
    pub subresource: String,
    /// The namespace; empty for the cluster scope.
    pub namespace: String,
    /// The name of the object; empty for all.
    pub name: String,
}

impl AccessQuery {
    /// Creates the `authorizer` value for a user's request.
    pub fn new(authorizer: Arc<dyn Authorize>, user: User, request: Parts) -> Self {
        AccessQuery {
            authorizer,
            user: Arc::new(user),
            question: Question::None,
            request,
        }
    }

    /// The question about the very thing the request is about.
    pub(super) fn request_resource(&self) -> Value {
        self.asking(Question::Resource(self.request.clone()))
    }

    fn asking(&self, question: Question) -> Value {
        let asker = AccessQuery {
            question,
            ..self.clone()
        };
        asker.into()
    }

    /// The same questions about a service account, who has not been authenticated here.
    fn of_account(&self, namespace: &str, name: &str) -> Result<Value, &'static str> {
        if !names::dns_subdomain(name).is_empty() {
            return Err("Invalid service account name");
        }
        if !names::dns_label(namespace).is_empty() {
            return Err("Invalid service account namespace");
        }
        let user = User {
            name: service_account::username(namespace, name),
            groups: service_account::groups(namespace),
            ..User::default()
        };
        let asker = AccessQuery {
            user: Arc::new(user),
            ..self.clone()
        };
        Ok(asker.into())
    }

    fn check(&self, target: Target<'_>, verb: &str) -> Value {
        let attributes = Attributes {
            verb: verb.into(),
            target,
        };
        host(Answer(self.authorizer.decide(&self.user, &attributes)))
    }
}

impl From<AccessQuery> for Value {
    fn from(asker: AccessQuery) -> Self {
        host(asker)
    }
}

impl fmt::Debug for AccessQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, question) = (&self.user.name, &self.question);
        write!(f, "Authorizer({user}, {question:?})")
    }
}

impl Host for AccessQuery {
    fn type_name(&self) -> &'static str {
        match self.question {
            Question::None => AUTHORIZER,
            Question::Path(_) => "kubernetes.authorization.PathCheck",
            Question::Group(_) => "kubernetes.authorization.GroupCheck",
            Question::Resource(_) => RESOURCE_CHECK,
        }
    }

    fn call(&self, function: &str, arguments: &[Value]) -> Option<Result<Value, &'static str>> {
        let mut texts = Vec::with_capacity(arguments.len());
        for argument in arguments {
            match argument {
                Value::String(text) => texts.push(text.as_str()),
                _ => return None,
            }
        }
        let blank = |text: &str| text.trim().is_empty();
        Some(match (&self.question, function, texts.as_slice()) {
            (Question::None, "path", [path]) if blank(path) => Err("path must not be empty"),
            (Question::None, "path", [path]) => Ok(self.asking(Question::Path((*path).to_owned()))),
            (Question::None, "group", [group]) => {
                Ok(self.asking(Question::Group((*group).to_owned())))
            }
            (Question::None, "serviceAccount", [namespace, name]) => {
                self.of_account(namespace, name)
            }
            (Question::Group(_), "resource", [resource]) if blank(resource) => {
                Err("resource must not be empty")
            }
            (Question::Group(group), "resource", [resource]) => {
                Ok(self.asking(Question::Resource(Parts {
                    group: group.clone(),
                    resource: (*resource).to_owned(),
                    ..Parts::default()
                })))
            }
            (Question::Path(path), "check", [verb]) => Ok(self.check(Target::Path(path), verb)),
            (Question::Resource(parts), "check", [verb]) => {
                let target = Target::Resource(Resource {
                    group: &parts.group,
                    resource: &parts.resource,
                    subresource: &parts.subresource,
                    namespace: &parts.namespace,
                    name: parts.name.as_str().into(),
                });
                Ok(self.check(target, verb))
            }
            (Question::Resource(parts), function, [value]) => {
                let mut parts = parts.clone();
                match function {
                    "subresource" => parts.subresource = (*value).to_owned(),
                    "namespace" => parts.namespace = (*value).to_owned(),
                    "name" => parts.name = (*value).to_owned(),
                    // RBAC does not read selectors.
                    "fieldSelector" | "labelSelector" => {}
                    _ => return None,
                }
                Ok(self.asking(Question::Resource(parts)))
            }
            _ => return None,
        })
    }
}

/// The authorizer's answer.
#[derive(Debug)]
struct Answer(Decision);

impl Host for Answer {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }

    fn call(&self, function: &str, arguments: &[Value]) -> Option<Result<Value, &'static str>> {
        let text = |text: &str| Value::String(Arc::new(text.to_owned()));
        Some(Ok(match (function, arguments) {
            ("allowed", []) => Value::Bool(self.0.allowed),
            ("reason", []) => text(&self.0.reason),
            // The decision comes from stored roles and bindings, so no check can fail.
            ("errored", []) => Value::Bool(false),
            ("error", []) => text(""),
            _ => return None,
        }))
    }
}
