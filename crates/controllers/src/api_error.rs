//! What controllers ask about errors of the API.

use kube::core::Status;

/// The `Status` behind `error`, if the API server answered at all.
pub fn status(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// The object does not exist.
pub fn is_not_found(error: &kube::Error) -> bool {
    status(error).is_some_and(|status| status.code == 404)
}

/// Somebody changed the object in between, or a precondition did not hold.
pub fn is_conflict(error: &kube::Error) -> bool {
    status(error).is_some_and(|status| status.code == 409 && status.reason != "AlreadyExists")
}

/// An object of that name exists.
pub fn is_already_exists(error: &kube::Error) -> bool {
    status(error).is_some_and(|status| status.code == 409 && status.reason == "AlreadyExists")
}

/// The request was understood and refused as invalid.
pub fn is_invalid(error: &kube::Error) -> bool {
    status(error).is_some_and(|status| status.code == 422)
}

/// The namespace is being deleted and takes no new objects.
pub fn is_namespace_terminating(error: &kube::Error) -> bool {
    let details = status(error).and_then(|status| status.details.as_ref());
    details.is_some_and(|details| {
        details
            .causes
            .iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
    })
}

/// The text that upstream puts into events and conditions: the server's own message where there is one. Where the server was not reached it says so,
/// and why.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        kube::Error::Service(error) => {
            let mut inner: &(dyn std::error::Error + 'static) = error.as_ref();
            while let Some(source) = inner.source() {
                inner = source;
            }
            format!("the API server cannot be reached: {inner}")
        }
        _ => error.to_string(),
    }
}

/// `Ok` whether or not the object was still there.
pub fn ignore_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
