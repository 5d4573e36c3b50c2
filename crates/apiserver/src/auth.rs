//! Who asks: the user that TLS or the embedding program has put into the request, or the one it asks to be taken for.
//!
//! Invariant: a request without a [`User`] gets no further than the probes. Administrators (`system:masters`) may impersonate.

use http::request::Parts;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{admission::User, status::Status};

const AUTHENTICATED: &str = "system:authenticated";
const ADMINISTRATORS: &str = "system:masters";

/// The user of a request; 401 if it has none.
pub(crate) fn user(parts: &Parts) -> Result<User, Status> {
    let Some(user) = parts.extensions.get::<User>() else {
        return Err(Status::new(401, "Unauthorized", "Unauthorized"));
    };
    let header = |name: &str| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let Some(name) = header("impersonate-user") else {
        return Ok(user.clone());
    };
    if !user.groups.iter().any(|group| group == ADMINISTRATORS) {
        let why = format!(
            "users {name:?} is forbidden: User {:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            user.name
        );
        return Err(Status::new(403, "Forbidden", why));
    }
    let values = parts.headers.get_all("impersonate-group").iter();
    let mut groups: Vec<String> = values
        .filter_map(|value| value.to_str().ok().map(str::to_owned))
        .collect();
    groups.push(AUTHENTICATED.to_owned());
    Ok(User {
        name: name.to_owned(),
        groups,
        uid: header("impersonate-uid").unwrap_or_default().to_owned(),
    })
}

/// The user a client certificate stands for: its common name, its organizations as groups.
pub(crate) fn of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let organizations = subject
        .iter_organization()
        .filter_map(|organization| organization.as_str().ok());
    let mut groups: Vec<String> = organizations.map(str::to_owned).collect();
    groups.push(AUTHENTICATED.to_owned());
    Some(User {
        name,
        groups,
        uid: String::new(),
    })
}
