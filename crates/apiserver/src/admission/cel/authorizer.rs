//! `authorizer` in expressions: may the one who asks, or a service account, do something else as well?
//!
//! `authorizer.group('').resource('pods').namespace('n').check('delete').allowed()`, `authorizer.path('/x').check('get')`,
//! `authorizer.serviceAccount('n', 'a')`, `authorizer.requestResource.check('v')` (upstream: apiserver/pkg/cel/library/authz.go).

use std::sync::Arc;

use kube_cel::cel::{
    Context, ExecutionError, ResolveResult, Value as Cel, extractors::This, objects::Opaque,
};

use crate::{
    admission::User,
    auth::{
        attributes::{Attributes, Resource, Target},
        rbac::Decision,
        service_account,
    },
    server::ApiServer,
    validation::names,
};

/// Somebody whose rights are asked about, and what the question is as far as it has been put.
#[derive(Clone)]
pub(crate) struct Asker {
    server: Arc<ApiServer>,
    user: Arc<User>,
    question: Question,
    /// What the request is about.
    request: Parts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    None,
    Path(String),
    Group(String),
    Resource(Parts),
}

/// A resource in the words of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Asker {
    /// Who asks a server for something.
    pub(crate) fn new(server: Arc<ApiServer>, user: User, request: Parts) -> Self {
        Asker {
            server,
            user: Arc::new(user),
            question: Question::None,
            request,
        }
    }

    /// The question about the very thing the request is about.
    pub(super) fn request_resource(&self) -> Cel {
        self.asking(Question::Resource(self.request.clone()))
    }

    fn asking(&self, question: Question) -> Cel {
        Asker {
            question,
            ..self.clone()
        }
        .into()
    }

    fn check(&self, verb: &str) -> Option<Answer> {
        let target = match &self.question {
            Question::Path(path) => Target::Path(path),
            Question::Resource(parts) => Target::Resource(Resource {
                group: &parts.group,
                resource: &parts.resource,
                subresource: &parts.subresource,
                namespace: &parts.namespace,
                name: parts.name.as_str().into(),
            }),
            Question::None | Question::Group(_) => return None,
        };
        let attributes = Attributes {
            verb: verb.into(),
            target,
        };
        let decision = self.server.authorizer().decide(&self.user, &attributes);
        Some(Answer(decision))
    }
}

impl From<Asker> for Cel {
    fn from(asker: Asker) -> Self {
        Cel::Opaque(Arc::new(asker))
    }
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (user, question) = (&self.user.name, &self.question);
        write!(f, "Authorizer({user}, {question:?})")
    }
}

impl PartialEq for Asker {
    fn eq(&self, other: &Self) -> bool {
        self.user == other.user && self.question == other.question
    }
}

impl Eq for Asker {}

impl Opaque for Asker {
    fn runtime_type_name(&self) -> &str {
        match self.question {
            Question::None => "kubernetes.authorization.Authorizer",
            Question::Path(_) => "kubernetes.authorization.PathCheck",
            Question::Group(_) => "kubernetes.authorization.GroupCheck",
            Question::Resource(_) => "kubernetes.authorization.ResourceCheck",
        }
    }
}

/// What the authorizer says.
#[derive(Debug, PartialEq, Eq)]
struct Answer(Decision);

impl Opaque for Answer {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.authorization.Decision"
    }
}

type Text = Arc<String>;
type Part = fn(&mut Parts) -> &mut String;

/// Adds the functions.
pub(super) fn register(context: &mut Context<'_>) {
    context.add_function("path", |This(this): This<Cel>, path: Text| {
        ask(&this, |asker| match (&asker.question, path.is_empty()) {
            (Question::None, false) => Some(asker.asking(Question::Path(path.to_string()))),
            _ => None,
        })
    });
    context.add_function("group", |This(this): This<Cel>, group: Text| {
        ask(&this, |asker| match asker.question {
            Question::None => Some(asker.asking(Question::Group(group.to_string()))),
            _ => None,
        })
    });
    context.add_function(
        "serviceAccount",
        |This(this): This<Cel>, namespace: Text, name: Text| {
            ask(&this, |asker| {
                let is_name = |text: &str, check: fn(&str) -> Vec<String>| check(text).is_empty();
                let fits = asker.question == Question::None
                    && is_name(&namespace, names::dns_label)
                    && is_name(&name, names::dns_subdomain);
                let mut groups = service_account::groups(&namespace);
                groups.push("system:authenticated".to_owned());
                let user = User {
                    name: service_account::username(&namespace, &name),
                    groups,
                    ..User::default()
                };
                fits.then(|| {
                    let user = Arc::new(user);
                    Asker {
                        user,
                        ..asker.clone()
                    }
                    .into()
                })
            })
        },
    );
    context.add_function("resource", |This(this): This<Cel>, resource: Text| {
        ask(&this, |asker| match &asker.question {
            Question::Group(group) => Some(asker.asking(Question::Resource(Parts {
                group: group.clone(),
                resource: resource.to_string(),
                ..Parts::default()
            }))),
            _ => None,
        })
    });
    for (function, part) in PARTS {
        context.add_function(function, move |This(this): This<Cel>, value: Text| {
            ask(&this, |asker| match &asker.question {
                Question::Resource(parts) => {
                    let mut parts = parts.clone();
                    *part(&mut parts) = value.to_string();
                    Some(asker.asking(Question::Resource(parts)))
                }
                _ => None,
            })
        });
    }
    // RBAC does not read selectors.
    for function in ["fieldSelector", "labelSelector"] {
        context.add_function(function, |This(this): This<Cel>, _: Text| {
            ask(&this, |asker| match asker.question {
                Question::Resource(_) => Some(asker.clone().into()),
                _ => None,
            })
        });
    }
    context.add_function("check", |This(this): This<Cel>, verb: Text| {
        ask(&this, |asker| {
            Some(Cel::Opaque(Arc::new(asker.check(&verb)?)))
        })
    });
    let answer = |this: &Cel, read: fn(&Decision) -> Cel| match this {
        Cel::Opaque(value) => match value.downcast_ref::<Answer>() {
            Some(answer) => Ok(read(&answer.0)),
            None => Err(ExecutionError::NoSuchOverload),
        },
        _ => Err(ExecutionError::NoSuchOverload),
    };
    context.add_function("allowed", move |This(this): This<Cel>| {
        answer(&this, |decision| decision.allowed.into())
    });
    context.add_function("reason", move |This(this): This<Cel>| {
        answer(&this, |decision| decision.reason.as_str().into())
    });
    context.add_function("errored", move |This(this): This<Cel>| {
        answer(&this, |_| false.into())
    });
    context.add_function("error", move |This(this): This<Cel>| {
        answer(&this, |_| "".into())
    });
}

/// The functions that say more of a resource.
const PARTS: [(&str, Part); 3] = [
    ("subresource", |parts| &mut parts.subresource),
    ("namespace", |parts| &mut parts.namespace),
    ("name", |parts| &mut parts.name),
];

fn ask(this: &Cel, then: impl FnOnce(&Asker) -> Option<Cel>) -> ResolveResult {
    let asker = match this {
        Cel::Opaque(value) => value.downcast_ref::<Asker>(),
        _ => None,
    };
    asker.and_then(then).ok_or(ExecutionError::NoSuchOverload)
}
