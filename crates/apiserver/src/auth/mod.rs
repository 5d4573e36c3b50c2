//! Identity: who asks, as whom, and whether they may.
//!
//! A request goes [`authentication`] (certificate or token -> [`User`]) -> [`impersonation`] (`Impersonate-*` headers -> another user) ->
//! [`rbac`] (may this user do what [`attributes`] say?). Invariant: nothing but [`OPEN`] is answered to a request without a user, and
//! nothing is done that no rule allows; members of `system:masters` are asked nothing.
//!
//! Service accounts' tokens are made and checked in [`service_account`], those that Secrets hold in [`secret_token`]; [`oidc`] publishes the
//! keys ([`public_key`]) that others check them with. [`Authenticator`] holds what all of that needs to know of the server.

mod authentication;
mod authenticator;
mod impersonation;
pub(crate) mod key;
pub(crate) mod oidc;
pub(crate) mod public_key;
pub(crate) mod rbac;
pub(crate) mod secret_token;
pub(crate) mod service_account;
pub(crate) mod token_file;

use std::sync::Arc;

use http::request::Parts;
use jiff::Timestamp;
use mullion_kinds::request::User;
use mullion_kube_text::status::Status;

pub(crate) use self::{
    authentication::{authenticate_token, has_extra_space, names_of, of_certificate},
    authenticator::Authenticator,
};
use crate::{
    flows::{Flow, Flows},
    request::attributes,
};

/// The group of anonymous requests.
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The paths that anonymous requests may get too, if the role `system:public-info-viewer` allows it (kube-apiserver: the paths for which an
/// AuthenticationConfiguration lets requests be anonymous).
const OPEN: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Decides who asks, whether they may, and which flow the request belongs to.
pub(crate) struct AccessControl {
    pub(crate) authenticator: Authenticator,
    pub(crate) authorizer: Arc<rbac::Authorizer>,
    pub(crate) flows: Flows,
}

impl AccessControl {
    /// Authenticates and authorizes a request, and returns the user that it acts as. Sets `flow` to the flow named in the response's
    /// headers.
    ///
    /// # Errors
    /// 401 without a user where one is needed, 403 where a user may not act as another or not do this, 400 for impersonation headers
    /// without a user's name.
    pub(crate) fn admit(
        &self,
        parts: &mut Parts,
        path: &str,
        query: Option<&str>,
        now: Timestamp,
        flow: &mut Option<Flow>,
    ) -> Result<User, Status> {
        let user = match authentication::user(&self.authenticator, parts, now)? {
            Some(user) => user,
            None if OPEN.contains(&path) => nobody(),
            None => return Err(authentication::unauthorized()),
        };
        let wanted = impersonation::wanted(&parts.headers)?;
        let attributes = attributes::of_request(&parts.method, path, query);
        // kube-apiserver's privileged group is asked for no permission, so a broken role cannot lock administrators out.
        if wanted.is_none() && user.is_master() {
            *flow = self.flows.of(&user, &attributes);
            return Ok(user);
        }
        let user = match wanted {
            Some(wanted) => {
                impersonation::impersonate(&self.authorizer, &user, wanted, &attributes)?
            }
            None => user,
        };
        // Before the authorization, because refused requests carry the flow's headers too.
        *flow = self.flows.of(&user, &attributes);
        self.authorizer.require(&user, &attributes)?;
        Ok(user)
    }
}

/// Returns the user of a request without credentials.
fn nobody() -> User {
    User {
        name: impersonation::ANONYMOUS.to_owned(),
        groups: vec![UNAUTHENTICATED.to_owned()],
        ..User::default()
    }
}
