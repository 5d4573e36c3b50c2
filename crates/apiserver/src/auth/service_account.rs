//! Issues and authenticates service account tokens: signed claims about an account and a bound object (upstream: pkg/serviceaccount).
//!
//! A token holds as long as its time lasts and its account, and the pod, secret or node it is bound to, are there with the same uid.
//! Checking a signature is what costs, so tokens whose signature was good are remembered; everything else is looked up every time.

use std::sync::{Arc, Mutex};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use mullion_kinds::request::{
    AUTHENTICATED, Lookup, User,
    service_account::{groups, username},
};
use mullion_kube_text::golang::quote_all;
use mullion_schema::tree::Tree;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    Authenticator,
    authentication::{AuthenticatedUser, CREDENTIAL_ID},
    key::SigningKeyError,
    secret_token::{self, SecretClaims, SecretTokenError},
};
use crate::registry::Registry;

/// The tolerated difference between clocks, in seconds.
const LEEWAY: i64 = 60;
/// The number of verified tokens that are remembered.
const REMEMBERED: usize = 4096;
/// The signing algorithms that service account tokens may name; other tokens are not service account tokens.
const SIGNED_BY: [&str; 4] = ["RS256", "ES256", "ES384", "ES512"];

/// The claims of a token.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Claims {
    #[serde(rename = "aud")]
    pub(crate) audiences: Vec<String>,
    #[serde(rename = "exp")]
    pub(crate) expires: i64,
    #[serde(rename = "iat")]
    pub(crate) issued: i64,
    #[serde(rename = "iss")]
    pub(crate) issuer: String,
    #[serde(rename = "jti")]
    pub(crate) id: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) bound: KubernetesClaim,
    #[serde(rename = "nbf")]
    pub(crate) not_before: i64,
    #[serde(rename = "sub")]
    pub(crate) subject: String,
}

/// The `kubernetes.io` claim: the service account of the token, and the object that the token is bound to.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct KubernetesClaim {
    pub(crate) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Reference>,
    #[serde(rename = "serviceaccount")]
    pub(crate) account: Reference,
    /// When the client should have taken a new token.
    #[serde(rename = "warnafter", skip_serializing_if = "Option::is_none")]
    pub(crate) warn_after: Option<i64>,
}

/// An object by name and uid.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Reference {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
}

impl Reference {
    /// Creates a reference to a stored object.
    pub(crate) fn to(object: &Value) -> Self {
        let metadata = &object["metadata"];
        Reference {
            name: metadata.text("name").to_owned(),
            uid: metadata.text("uid").to_owned(),
        }
    }
}

/// The error for a token of this server that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("invalid signature, no keys found")]
    UnknownKey,
    #[error("go-jose/go-jose: error in cryptographic primitive")]
    Signature,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("token audiences {given} is invalid for the target audiences {wanted}")]
    Audiences { given: String, wanted: String },
    #[error("serviceaccounts {0:?} not found")]
    NoAccount(String),
    #[error("service account {0} has been deleted")]
    AccountDeleted(String),
    #[error("service account UID ({found}) does not match claim ({claimed})")]
    AccountUid { found: String, claimed: String },
    #[error("service account token has been invalidated")]
    Invalidated,
    #[error("{kind} UID ({found}) does not match service account {kind} ref claim ({claimed})")]
    BoundUid {
        kind: &'static str,
        found: String,
        claimed: String,
    },
    #[error(transparent)]
    Secret(#[from] SecretTokenError),
}

/// The claims of a token whose signature was good.
enum VerifiedClaims {
    /// Of a token that was requested for an audience and a time.
    Bound(Box<Claims>),
    /// Of a token in a Secret.
    Secret(SecretClaims),
}

/// The tokens whose signature was good.
#[derive(Default)]
pub(crate) struct VerifiedTokens(Mutex<FxHashMap<[u8; 32], Arc<VerifiedClaims>>>);

impl VerifiedTokens {
    fn find(&self, digest: &[u8; 32]) -> Option<Arc<VerifiedClaims>> {
        self.lock().get(digest).cloned()
    }

    fn keep(&self, digest: [u8; 32], claims: Arc<VerifiedClaims>) {
        let mut all = self.lock();
        // Clearing all is simple, and costs one signature check for each token that is still in use.
        if all.len() >= REMEMBERED {
            all.clear();
        }
        all.insert(digest, claims);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FxHashMap<[u8; 32], Arc<VerifiedClaims>>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Signs claims.
///
/// # Errors
/// The system gives no randomness.
pub(crate) fn issue(
    authenticator: &Authenticator,
    claims: &Claims,
) -> Result<String, SigningKeyError> {
    let claims = serde_json::to_vec(claims).expect("claims are strings and numbers");
    authenticator.signing_key().sign(&claims)
}

/// Authenticates a token, and returns `None` if its issuer is neither this server nor the one of tokens in Secrets.
pub(super) fn authenticate(
    authenticator: &Authenticator,
    token: &str,
    audiences: &[String],
    now: Timestamp,
) -> Result<Option<AuthenticatedUser>, TokenError> {
    // The cache holds digests alone, so that a memory dump reveals no tokens.
    let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
    let claims = match authenticator.verified_tokens().find(&digest) {
        Some(claims) => claims,
        None => {
            let Some(claims) = verified(authenticator, token)? else {
                return Ok(None);
            };
            authenticator.verified_tokens().keep(digest, claims.clone());
            claims
        }
    };
    // A token without audiences is for this server.
    let given = match &*claims {
        VerifiedClaims::Bound(claims) => &claims.audiences[..],
        VerifiedClaims::Secret(claims) if !claims.audiences.is_empty() => &claims.audiences[..],
        VerifiedClaims::Secret(_) => authenticator.audiences(),
    };
    let meant: Vec<String> = given
        .iter()
        .filter(|audience| audiences.contains(audience))
        .cloned()
        .collect();
    if meant.is_empty() {
        return Err(TokenError::Audiences {
            given: quote_all(given),
            wanted: quote_all(audiences),
        });
    }
    let user = match &*claims {
        VerifiedClaims::Bound(claims) => {
            // Checked for cached tokens too: a good signature stays good, but time passes and objects are deleted.
            check_time(claims, now)?;
            check_bound(authenticator.registry(), &claims.bound, now)?;
            user(claims)
        }
        VerifiedClaims::Secret(claims) => secret_token::user(authenticator, token, claims, now)?,
    };
    Ok(Some(AuthenticatedUser {
        user,
        audiences: meant,
    }))
}

/// Returns the claims of a token that one of the server's keys has signed; `None` if its issuer is another one, or it cannot be read.
fn verified(
    authenticator: &Authenticator,
    token: &str,
) -> Result<Option<Arc<VerifiedClaims>>, TokenError> {
    let parts: Vec<&str> = token.splitn(4, '.').collect();
    let &[header, payload, signature] = &parts[..] else {
        return Ok(None);
    };
    let object = |text: &str| {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let value: Value = serde_json::from_slice(&bytes).ok()?;
        value.is_object().then_some(value)
    };
    // kube-apiserver looks at the issuer first: a token of another issuer is left to other authenticators and is no error.
    let issuers = [authenticator.issuer(), secret_token::ISSUER];
    let Some(claims) = object(payload).filter(|claims| issuers.contains(&claims.text("iss")))
    else {
        return Ok(None);
    };
    let header = object(header).filter(|header| SIGNED_BY.contains(&header.text("alg")));
    let (Some(header), Ok(signature)) = (header, URL_SAFE_NO_PAD.decode(signature)) else {
        return Ok(None);
    };
    let named = header.text("kid");
    let keys = authenticator.token_keys();
    let mut keys = keys
        .filter(|key| named.is_empty() || named == key.id())
        .peekable();
    if keys.peek().is_none() {
        return Err(TokenError::UnknownKey);
    }
    let signed = &token[..token.rfind('.').unwrap_or_default()];
    if !keys.any(|key| {
        // The key decides about the algorithm: a token must not choose a weaker one.
        header.text("alg") == key.algorithm() && key.verifies(signed.as_bytes(), &signature)
    }) {
        return Err(TokenError::Signature);
    }
    let is_of_secret = claims.text("iss") == secret_token::ISSUER;
    // A token that one of the keys has signed is well-formed, so decoding it does not fail.
    let claims = if is_of_secret {
        serde_json::from_value(claims).map(VerifiedClaims::Secret)
    } else {
        serde_json::from_value(claims).map(VerifiedClaims::Bound)
    };
    Ok(claims.ok().map(Arc::new))
}

fn check_time(claims: &Claims, now: Timestamp) -> Result<(), TokenError> {
    let now = now.as_second();
    if now > claims.expires + LEEWAY {
        Err(TokenError::Expired)
    } else if now < claims.not_before - LEEWAY {
        Err(TokenError::NotYet)
    } else {
        Ok(())
    }
}

fn check_bound(
    registry: &Registry,
    bound: &KubernetesClaim,
    now: Timestamp,
) -> Result<(), TokenError> {
    let (namespace, account) = (&bound.namespace, &bound.account);
    let found = registry
        .find("", "serviceaccounts", Some(namespace), &account.name)
        .ok_or_else(|| TokenError::NoAccount(account.name.clone()))?;
    if is_gone(&found, now) {
        let name = format!("{namespace}/{}", account.name);
        return Err(TokenError::AccountDeleted(name));
    }
    let uid = found["metadata"].text("uid");
    if uid != account.uid {
        return Err(TokenError::AccountUid {
            found: uid.to_owned(),
            claimed: account.uid.clone(),
        });
    }
    // The node of a pod's token only records where the pod ran; the token is bound to the pod, and stays valid without the node.
    let node = bound.node.as_ref().filter(|_| bound.pod.is_none());
    let others = [
        ("secret", "secrets", Some(namespace), bound.secret.as_ref()),
        ("pod", "pods", Some(namespace), bound.pod.as_ref()),
        ("node", "nodes", None, node),
    ];
    for (kind, plural, namespace, reference) in others {
        let Some(reference) = reference else { continue };
        let found = registry
            .find("", plural, namespace.map(String::as_str), &reference.name)
            .filter(|found| !is_gone(found, now))
            .ok_or(TokenError::Invalidated)?;
        let uid = found["metadata"].text("uid");
        if uid != reference.uid {
            return Err(TokenError::BoundUid {
                kind,
                found: uid.to_owned(),
                claimed: reference.uid.clone(),
            });
        }
    }
    Ok(())
}

/// Returns whether the object's deletion is past its deadline, so that only finalizers keep the object.
fn is_gone(object: &Value, now: Timestamp) -> bool {
    let deleted = object["metadata"].text("deletionTimestamp").parse();
    deleted.is_ok_and(|at: Timestamp| at + SignedDuration::from_secs(LEEWAY) < now)
}

fn user(claims: &Claims) -> User {
    let bound = &claims.bound;
    let mut extra = vec![(CREDENTIAL_ID, format!("JTI={}", claims.id))];
    let references = [
        (
            &bound.pod,
            "authentication.kubernetes.io/pod-name",
            "authentication.kubernetes.io/pod-uid",
        ),
        (
            &bound.node,
            "authentication.kubernetes.io/node-name",
            "authentication.kubernetes.io/node-uid",
        ),
    ];
    for (reference, name_key, uid_key) in references {
        let Some(reference) = reference else { continue };
        extra.push((name_key, reference.name.clone()));
        if !reference.uid.is_empty() {
            extra.push((uid_key, reference.uid.clone()));
        }
    }
    let mut groups = groups(&bound.namespace);
    groups.push(AUTHENTICATED.to_owned());
    User {
        name: username(&bound.namespace, &bound.account.name),
        groups,
        uid: bound.account.uid.clone(),
        extra: extra
            .into_iter()
            .map(|(key, value)| (key.to_owned(), vec![value]))
            .collect(),
    }
}
