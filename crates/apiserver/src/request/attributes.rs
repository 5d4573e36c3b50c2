//! Reads from a request what it does (apiserver: endpoints/request/requestinfo.go).

use http::Method;
use mullion_kinds::request::attributes::{Attributes, Resource, Target};
use mullion_kube_text::names;

use crate::request::query::Query;

/// Returns what a request does.
pub(crate) fn of_request<'a>(
    method: &Method,
    path: &'a str,
    query: Option<&str>,
) -> Attributes<'a> {
    resource_request(method, path, query).unwrap_or_else(|| Attributes {
        verb: method.as_str().to_ascii_lowercase().into(),
        target: Target::Path(path),
    })
}

/// Returns the attributes of a request for a resource, or `None` for a path that names no resource.
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

/// Returns the one name that a field selector leaves, or an empty text if it leaves others.
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
        let attributes = of_request(&method, path, Some(query));
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
