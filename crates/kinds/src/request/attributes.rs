//! What a request does, in the terms that rules speak of, and the refusal that says so (apiserver: endpoints/request/requestinfo.go).

use std::borrow::Cow;

use mullion_kube_text::{
    golang::quote,
    status::{Details, Status},
};

/// One action that a user asks to perform.
#[derive(Clone, Debug, PartialEq)]
pub struct Attributes<'a> {
    /// The verb, such as `deletecollection`; for paths, the HTTP method in lower case.
    pub verb: Cow<'a, str>,
    /// The resource or path that the action is for.
    pub target: Target<'a>,
}

/// The target of an action.
#[derive(Clone, Debug, PartialEq)]
pub enum Target<'a> {
    /// An API resource.
    Resource(Resource<'a>),
    /// Any other path.
    Path(&'a str),
}

/// An API resource as rules name it; what does not apply is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resource<'a> {
    /// Empty for core.
    pub group: &'a str,
    /// The plural.
    pub resource: &'a str,
    /// The subresource, such as `status`; empty if there is none.
    pub subresource: &'a str,
    /// The namespace of the request; for a Namespace object, its own name.
    pub namespace: &'a str,
    /// The name of the object; for lists and watches, the one name that a field selector selects.
    pub name: Cow<'a, str>,
}

impl<'a> Attributes<'a> {
    /// The namespace, empty for what has none.
    pub fn namespace(&self) -> &str {
        match &self.target {
            Target::Resource(resource) => resource.namespace,
            Target::Path(_) => "",
        }
    }

    /// The 403 for a user who may not do this; `why` is what the authorizer adds, mostly nothing.
    pub fn forbidden(&self, user: &str, why: &str) -> Status {
        let mut sentence = self.sentence(user);
        if !why.is_empty() {
            sentence.push_str(": ");
            sentence.push_str(why);
        }
        let (subject, details) = match &self.target {
            Target::Path(_) => ("forbidden".to_owned(), Details::default()),
            Target::Resource(resource) => {
                let details = Details {
                    name: resource.name.clone().into_owned(),
                    group: resource.group.to_owned(),
                    kind: resource.resource.to_owned(),
                    ..Details::default()
                };
                (resource.subject(), details)
            }
        };
        let mut status = Status::new(403, "Forbidden", format!("{subject}: {sentence}"));
        status.details = Some(Box::new(details));
        status
    }

    fn sentence(&self, user: &str) -> String {
        let (user, verb) = (quote(user), &self.verb);
        let resource = match &self.target {
            Target::Path(path) => return format!("User {user} cannot {verb} path {}", quote(path)),
            Target::Resource(resource) => resource,
        };
        let scope = if resource.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {}", quote(resource.namespace))
        };
        format!(
            "User {user} cannot {verb} resource {} in API group {} {scope}",
            quote(&resource.combined()),
            quote(resource.group)
        )
    }
}

impl Resource<'_> {
    /// `pods` or `pods/log`.
    pub fn combined(&self) -> Cow<'_, str> {
        if self.subresource.is_empty() {
            Cow::Borrowed(self.resource)
        } else {
            Cow::Owned(format!("{}/{}", self.resource, self.subresource))
        }
    }

    /// `configmaps "x" is forbidden`.
    fn subject(&self) -> String {
        let mut subject = self.resource.to_owned();
        if !self.group.is_empty() {
            subject.push('.');
            subject.push_str(self.group);
        }
        if !self.name.is_empty() {
            subject.push(' ');
            subject.push_str(&quote(&self.name));
        }
        subject.push_str(" is forbidden");
        subject
    }
}
