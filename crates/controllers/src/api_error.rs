//! Classifies errors of the Kubernetes API for controllers, by HTTP status code and `reason` as client-go's `apierrors`
//! does.

use kube::core::Status;

/// Returns the `Status` of `error`, or `None` if the error did not come from the API server (connection, decoding).
pub fn status(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// Returns whether the API server answered that the object does not exist (404).
pub fn is_not_found(error: &kube::Error) -> bool {
    status(error).is_some_and(|status| status.code == 404)
}

/// Returns whether a write lost a race: the object's resourceVersion changed or a precondition failed (409, other than
/// AlreadyExists).
pub fn is_conflict(error: &kube::Error) -> bool {
    status(error).is_some_and(|status| status.code == 409 && status.reason != "AlreadyExists")
}

/// Returns whether a create failed because an object of that name exists (409 AlreadyExists).
pub fn is_already_exists(error: &kube::Error) -> bool {
    status(error).is_some_and(|status| status.code == 409 && status.reason == "AlreadyExists")
}

/// Returns whether the API server rejected the object in validation (422).
pub fn is_invalid(error: &kube::Error) -> bool {
    status(error).is_some_and(|status| status.code == 422)
}

/// Returns whether a create failed because the namespace is being deleted and accepts no new objects.
pub fn is_namespace_terminating(error: &kube::Error) -> bool {
    let details = status(error).and_then(|status| status.details.as_ref());
    details.is_some_and(|details| {
        details
            .causes
            .iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
    })
}

/// Returns the error text for events and conditions: the API server's own message, or why the API server could not be
/// reached.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        kube::Error::Service(error) => {
            // The outer errors only say that the request failed; the innermost source names the cause.
            let mut inner: &(dyn std::error::Error + 'static) = error.as_ref();
            while let Some(source) = inner.source() {
                inner = source;
            }
            format!("the API server cannot be reached: {inner}")
        }
        _ => error.to_string(),
    }
}

/// Turns a 404 into `Ok(None)`, so that deleting an object that is already gone succeeds.
pub fn ignore_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
