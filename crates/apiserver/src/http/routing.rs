//! Which paths and methods about objects exist, and the endpoint behind each.
//!
//! kube-apiserver's router refuses a path or a method before it looks at anything else. The router knows no custom resources: their handler
//! refuses only unknown subresources and unknown methods this early, and other paths after the media type of the answer.

use http::Method;
use mullion_kinds::Subresource;
use mullion_kube_text::status::Status;

use super::{path::ObjectPath, subresource};
use crate::registry::Row;

/// What answers a request about objects.
#[derive(Clone, Copy)]
pub(super) enum Endpoint<'a> {
    Subresource(&'a Subresource),
    /// A POST to a kind whose objects are answered and never stored (reviews, bindings).
    Transient,
    /// A read of objects that the embedding program provides.
    Provided,
    List,
    Get,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// A PUT or PATCH to a collection of custom resources, which no router refuses.
    Nameless,
    /// A method that exists for other paths of the kind.
    Unhandled,
}

/// Returns the endpoint of a path and method, whose query may still make a watch of a read.
///
/// # Errors
/// The 404 or 405 for a path or method that does not exist.
pub(super) fn endpoint<'a>(
    row: &'a Row,
    path: &ObjectPath<'_>,
    method: &Method,
) -> Result<Endpoint<'a>, Status> {
    let resource = &row.resource;
    let in_place = path.namespace.is_some() == resource.namespaced;
    if let Some(name) = path.subresource {
        let mut known = resource.subresources.iter();
        let known = known.find(|known| known.name == name).filter(|_| in_place);
        return known.map(Endpoint::Subresource).ok_or_else(|| {
            if row.is_defined() {
                Status::not_found(resource, path.name.unwrap_or_default())
            } else {
                Status::no_such_path()
            }
        });
    }
    if row.is_defined() && is_unknown(method) {
        return Err(Status::not_supported(&**resource, ""));
    }
    // Only lists and watches span namespaces.
    let all_namespaces = resource.namespaced && path.namespace.is_none() && path.name.is_none();
    if !in_place && !all_namespaces {
        return Err(Status::no_such_path());
    }
    endpoint_without_subresource(row, path, method, all_namespaces)
}

/// Returns the endpoint of a path without a subresource.
fn endpoint_without_subresource<'a>(
    row: &Row,
    path: &ObjectPath<'_>,
    method: &Method,
    all_namespaces: bool,
) -> Result<Endpoint<'a>, Status> {
    let rules = &row.resource.rules;
    let on_collection = path.name.is_none();
    let reads = *method == Method::GET || (*method == Method::HEAD && row.is_defined());
    if rules.transient {
        return if *method == Method::POST && on_collection && !all_namespaces {
            Ok(Endpoint::Transient)
        } else {
            Err(method_not_allowed())
        };
    }
    if (path.watch || rules.read_only) && !reads {
        return Err(method_not_allowed());
    }
    Ok(match (method, on_collection) {
        _ if reads && row.is_provided() => Endpoint::Provided,
        (_, true) if reads => Endpoint::List,
        (_, false) if reads => Endpoint::Get,
        (&Method::POST, true) if !all_namespaces => Endpoint::Create,
        // Without a router nothing refuses the name in the path; the name in the body counts.
        (&Method::POST, false) if row.is_defined() => Endpoint::Create,
        (&Method::PUT, false) => Endpoint::Update,
        (&Method::PATCH, false) => Endpoint::Patch,
        (&Method::DELETE, false) => Endpoint::Delete,
        (&Method::DELETE, true) if !all_namespaces && rules.delete_collection => {
            Endpoint::DeleteCollection
        }
        (&Method::PUT | &Method::PATCH, true) if row.is_defined() => Endpoint::Nameless,
        _ => Endpoint::Unhandled,
    })
}

/// Returns the 404 or 405 for a path and method without a handler, also where the handler of the path would refuse the method itself.
pub(super) fn refusal(row: &Row, path: &ObjectPath<'_>, method: &Method) -> Option<Status> {
    // Without a router the handler of custom resources refuses the other paths and methods, after the media type.
    if row.is_defined() && path.subresource.is_none() && !is_unknown(method) {
        return None;
    }
    match endpoint(row, path, method) {
        Ok(Endpoint::Subresource(known)) => subresource::check_method(row, known, method).err(),
        Ok(Endpoint::Unhandled) => Some(method_not_allowed()),
        Ok(_) => None,
        Err(status) => Some(status),
    }
}

/// Returns whether custom resources of that scope exist at a path; only lists and watches span namespaces.
pub(super) fn is_in_scope(row: &Row, path: &ObjectPath<'_>, method: &Method) -> bool {
    let across = path.name.is_none() && matches!(*method, Method::GET | Method::HEAD);
    if row.resource.namespaced {
        path.namespace.is_some() || across || path.watch
    } else {
        path.namespace.is_none()
    }
}

/// Returns whether kube-apiserver knows no verb for a method.
fn is_unknown(method: &Method) -> bool {
    !matches!(
        *method,
        Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::PATCH | Method::DELETE
    )
}

/// Returns the 405 for a verb that a resource does not have.
pub(crate) fn method_not_allowed() -> Status {
    let mut status = Status::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    );
    status.details = Some(Box::default());
    status
}
