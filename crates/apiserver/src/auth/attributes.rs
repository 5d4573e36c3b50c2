//! What a request does, in the terms that rules speak of (apiserver: endpoints/request/requestinfo.go), and the refusal that says so.

use std::borrow::Cow;

use http::Method;
use mullion_kube_text::{golang::quote, names};

use crate::{
    http::query::Query,
    status::{Details, Status},
};

/// One action that a user asks to perform.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attributes<'a> {
    /// The verb, such as `deletecollection`; for paths, the HTTP method in lower case.
    pub verb: Cow<'a, str>,
    /// The resource or path that the action is for.
    pub target: Target<'a>,
}

/// The target of an action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target<'a> {
    /// An API resource.
    Resource(Resource<'a>),
    /// Any other path.
    Path(&'a str),
}

/// An API resource as rules name it; what does not apply is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Resource<'a> {
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
    /// Reads them from a request.
    pub(crate) fn of_request(method: &Method, path: &'a str, query: Option<&str>) -> Self {
        resource_request(method, path, query).unwrap_or_else(|| Attributes {
            verb: method.as_str().to_ascii_lowercase().into(),
            target: Target::Path(path),
        })
    }

    /// The namespace, empty for what has none.
    pub(crate) fn namespace(&self) -> &str {
        match &self.target {
            Target::Resource(resource) => resource.namespace,
            Target::Path(_) => "",
        }
    }

    /// The 403 for a user who may not do this; `why` is what the authorizer adds, mostly nothing.
    pub(crate) fn forbidden(&self, user: &str, why: &str) -> Status {
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
    pub(crate) fn combined(&self) -> Cow<'_, str> {
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

/// `None` for a path that names no resource.
fn resource_request<'a>(
    method: &Method,
    path: &'a str,
    query: Option<&str>,
) -> Option<Attributes<'a>> {
    let mut parts = path.trim_matches('/').split('/').peekable();
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    parts.next()?;
    let watches = parts.peek()? == &"watch";
    if watches {
        parts.next();
    }
    let (mut resource, mut namespace) = (parts.next()?, "");
    let mut rest = parts.collect::<Vec<_>>();
    if let ("namespaces", [name, ..]) = (resource, rest.as_slice()) {
        namespace = name;
        // The subresources of namespaces are told from resources in a namespace by name.
        if rest.len() > 1 && !["status", "finalize"].contains(&rest[1]) {
            resource = rest[1];
            rest.drain(..2);
        }
    }
    let mut target = Resource {
        group,
        resource,
        subresource: rest.get(1).copied().unwrap_or_default(),
        namespace,
        name: rest.first().copied().unwrap_or_default().into(),
    };
    let collection = target.name.is_empty();
    let verb = match *method {
        _ if watches => "watch",
        Method::GET | Method::HEAD if collection => {
            let query = Query::parse(query);
            target.name = selected_name(&query).into();
            match query.flag("watch") {
                Some(true) => "watch",
                _ => "list",
            }
        }
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if collection => "deletecollection",
        Method::DELETE => "delete",
        _ => "",
    };
    Some(Attributes {
        verb: verb.into(),
        target: Target::Resource(target),
    })
}

/// The one name that a field selector leaves; empty if it leaves others.
fn selected_name(query: &Query) -> String {
    let selector = query.get("fieldSelector").unwrap_or_default();
    let names = selector.split(',').filter_map(|term| {
        let (field, value) = term.split_once('=')?;
        (field == "metadata.name").then(|| value.strip_prefix('=').unwrap_or(value))
    });
    let name = names.into_iter().next().unwrap_or_default();
    if names::path_segment(name).is_empty() {
        name.to_owned()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: Method, path: &str) -> String {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let attributes = Attributes::of_request(&method, path, Some(query));
        attributes.forbidden("u", "").message
    }

    #[test]
    fn requests_are_put_into_the_words_of_rules() {
        let cases = [
            (
                Method::GET,
                "/api/v1/namespaces/n/pods/p/log",
                r#"pods "p" is forbidden: User "u" cannot get resource "pods/log" in API group "" in the namespace "n""#,
            ),
            (
                Method::GET,
                "/apis/apps/v1/deployments?watch=1",
                r#"deployments.apps is forbidden: User "u" cannot watch resource "deployments" in API group "apps" at the cluster scope"#,
            ),
            (
                Method::GET,
                "/api/v1/watch/namespaces/n/pods",
                r#"pods is forbidden: User "u" cannot watch resource "pods" in API group "" in the namespace "n""#,
            ),
            (
                Method::GET,
                "/api/v1/namespaces/n/secrets?fieldSelector=metadata.name%3Ds",
                r#"secrets "s" is forbidden: User "u" cannot list resource "secrets" in API group "" in the namespace "n""#,
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/n/pods",
                r#"pods is forbidden: User "u" cannot deletecollection resource "pods" in API group "" in the namespace "n""#,
            ),
            (
                Method::PUT,
                "/api/v1/namespaces/n/finalize",
                r#"namespaces "n" is forbidden: User "u" cannot update resource "namespaces/finalize" in API group "" in the namespace "n""#,
            ),
            (
                Method::GET,
                "/api/v1/namespaces",
                r#"namespaces is forbidden: User "u" cannot list resource "namespaces" in API group "" at the cluster scope"#,
            ),
            (
                Method::POST,
                "/metrics",
                r#"forbidden: User "u" cannot post path "/metrics""#,
            ),
            (
                Method::GET,
                "/apis/apps/v1",
                r#"forbidden: User "u" cannot get path "/apis/apps/v1""#,
            ),
        ];
        for (method, path, text) in cases {
            assert_eq!(read(method, path), text);
        }
    }
}
