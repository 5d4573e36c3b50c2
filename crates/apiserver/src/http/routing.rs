//! Decides which paths and methods exist, as kube-apiserver's router does before it looks at the Accept header.

use http::Method;
use mullion_kube_text::status::Status;

use super::{method_not_allowed, path::ObjectPath, subresource};
use crate::registry::Row;

/// Returns the 404 or 405 for a path and method that kube-apiserver does not route, `None` for those that it does.
///
/// kube-apiserver serves custom resources without a router: only an unknown subresource and an unknown method are refused.
pub(super) fn refusal(row: &Row, path: &ObjectPath<'_>, method: &Method) -> Option<Status> {
    let resource = &row.resource;
    let in_place = path.namespace.is_some() == resource.namespaced;
    if let Some(name) = path.subresource {
        let mut known = resource.subresources.iter();
        let known = known.find(|known| known.name == name).filter(|_| in_place);
        let Some(known) = known else {
            return Some(match row.is_defined() {
                true => Status::not_found(resource, path.name.unwrap_or_default()),
                false => Status::no_such_path(),
            });
        };
        // A proxy passes HEAD on.
        if *method == Method::HEAD && !row.is_defined() && name != "proxy" {
            return Some(method_not_allowed());
        }
        return subresource::check_method(row, known, method).err();
    }
    if row.is_defined() {
        return is_unknown(method).then(|| Status::not_supported(&**resource, ""));
    }
    let is_collection = path.name.is_none();
    let all_namespaces = resource.namespaced && path.namespace.is_none() && is_collection;
    if !in_place && !all_namespaces {
        return Some(Status::no_such_path());
    }
    let rules = &resource.rules;
    let reads_only = path.watch || rules.read_only;
    let is_routed = match *method {
        _ if rules.transient => *method == Method::POST && is_collection && !all_namespaces,
        Method::GET => true,
        _ if reads_only => false,
        Method::POST => is_collection && !all_namespaces,
        Method::DELETE if is_collection => !all_namespaces && rules.delete_collection,
        Method::PUT | Method::PATCH | Method::DELETE => !is_collection,
        _ => false,
    };
    (!is_routed).then(method_not_allowed)
}

/// Returns whether kube-apiserver knows no verb for a method.
fn is_unknown(method: &Method) -> bool {
    !matches!(
        *method,
        Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::PATCH | Method::DELETE
    )
}
