//! The tokens of service accounts that Secrets of type `kubernetes.io/service-account-token` hold (kube-apiserver: `pkg/serviceaccount`, the
//! legacy validator). kube-controller-manager signs them with `--service-account-private-key-file`.
//!
//! Such a token holds as long as its Secret holds it and its account is there with the same uid. When it was used is a label of the Secret.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use mullion_kinds::request::{AUTHENTICATED, Lookup, User, service_account};
use mullion_schema::tree::Tree;
use serde::Deserialize;
use serde_json::Value;
use subtle::ConstantTimeEq;

use super::Authenticator;

/// The issuer of such tokens.
pub(crate) const ISSUER: &str = "kubernetes/serviceaccount";
/// The label with the day on which the token of a Secret was used last.
pub(crate) const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// The label of a Secret whose token kube-controller-manager has withdrawn since it was not used.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// The claims of a token.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SecretClaims {
    #[serde(rename = "sub")]
    subject: String,
    /// Empty for a token of this server's; kube-controller-manager names none.
    #[serde(rename = "aud")]
    pub(super) audiences: Vec<String>,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
}

/// The error for a token in a Secret that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SecretTokenError {
    #[error("{0} claim is missing")]
    Missing(&'static str),
    #[error("sub claim is invalid")]
    Subject,
    #[error("Token has been invalidated")]
    Invalidated,
    #[error("Token does not match server's copy")]
    Another,
    #[error("serviceaccounts {0:?} not found")]
    NoAccount(String),
    #[error("ServiceAccount {0} has been deleted")]
    AccountDeleted(String),
    #[error("ServiceAccount UID ({found}) does not match claim ({claimed})")]
    AccountUid { found: String, claimed: String },
    #[error(
        "the token in secret {secret} for service account {account} has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the 'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"
    )]
    Withdrawn { secret: String, account: String },
}

/// A Secret whose token was used.
#[derive(Debug)]
pub(crate) struct UsedSecret {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Returns the user of a token whose signature was good.
pub(super) fn user(
    authenticator: &Authenticator,
    token: &str,
    claims: &SecretClaims,
    now: Timestamp,
) -> Result<User, SecretTokenError> {
    let SecretClaims {
        subject,
        namespace,
        secret,
        account,
        uid,
        audiences: _,
    } = claims;
    let wanted = [
        ("sub", subject),
        ("namespace", namespace),
        ("secretName", secret),
        ("serviceAccountName", account),
        ("serviceAccountUID", uid),
    ];
    if let Some((claim, _)) = wanted.iter().find(|(_, text)| text.is_empty()) {
        return Err(SecretTokenError::Missing(claim));
    }
    if service_account::split_username(subject) != Some((namespace.as_str(), account.as_str())) {
        return Err(SecretTokenError::Subject);
    }
    let holder = authenticator
        .registry()
        .find("", "secrets", Some(namespace), secret)
        .filter(|holder| !is_deleted(holder))
        .ok_or(SecretTokenError::Invalidated)?;
    let held = holder["data"].text("token").as_bytes();
    // In constant time: how long it takes must not tell how much of a token is right.
    if !bool::from(held.ct_eq(STANDARD.encode(token).as_bytes())) {
        return Err(SecretTokenError::Another);
    }
    let found = authenticator
        .registry()
        .find("", "serviceaccounts", Some(namespace), account)
        .ok_or_else(|| SecretTokenError::NoAccount(account.clone()))?;
    let full = |name: &str| format!("{namespace}/{name}");
    if is_deleted(&found) {
        return Err(SecretTokenError::AccountDeleted(full(account)));
    }
    if found["metadata"].text("uid") != uid {
        return Err(SecretTokenError::AccountUid {
            found: found["metadata"].text("uid").to_owned(),
            claimed: uid.clone(),
        });
    }
    // Before the check below: kube-apiserver records the use of a withdrawn token too, so that its users can be found.
    if is_unrecorded(&holder, now) {
        authenticator.record_use(UsedSecret {
            namespace: namespace.clone(),
            name: secret.clone(),
        });
    }
    if !holder["metadata"]["labels"].text(INVALID_SINCE).is_empty() {
        let (secret, account) = (full(secret), full(account));
        return Err(SecretTokenError::Withdrawn { secret, account });
    }
    let mut groups = service_account::groups(namespace);
    groups.push(AUTHENTICATED.to_owned());
    Ok(User {
        name: subject.clone(),
        groups,
        uid: uid.clone(),
        ..User::default()
    })
}

fn is_deleted(object: &Value) -> bool {
    !object["metadata"].text("deletionTimestamp").is_empty()
}

/// Returns whether the label with the day of the last use is neither today nor tomorrow: clocks of several servers may differ.
pub(crate) fn is_unrecorded(secret: &Value, now: Timestamp) -> bool {
    let used = secret["metadata"]["labels"].text(LAST_USED);
    used != day(now) && used != day(now + SignedDuration::from_hours(24))
}

/// Returns the day of a time as the label has it.
pub(crate) fn day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}
