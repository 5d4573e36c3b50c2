//! Manages the certificates of the webhooks: a certificate authority that all replicas share in a Secret, and a certificate that each
//! replica signs for itself.
//!
//! API servers trust the authority, because the webhook configurations contain its certificate. A replica's own certificate is valid for 90
//! days, is renewed after 60, and is kept in memory only. The authority is valid for ten years. In the last three of them a new authority
//! replaces it, and both are trusted until the old one expires, so that replicas can switch in any order.

use std::time::Duration;

use futures::{Stream, StreamExt, future::ready};
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, PostParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use tokio::time::timeout;

use crate::{
    certs::{Authority, CertificatePair},
    failure::Failure,
};

/// The name of the Secret.
const NAME: &str = "mullion-webhook-ca";
const CERTIFICATES: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The annotation with the time at which the authority was created, in RFC 3339.
const MADE: &str = "mullion.dev/made-at";
/// The timeout of one request.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the Secret is read again after another replica wrote it at the same time.
const TRIES: usize = 5;
/// The age in years at which the authority is replaced, three years before it expires.
const YEARS: i64 = 7;
/// The interval at which the authority and the configurations are checked, unless a change of the authority is seen earlier.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The age in days at which a replica's certificate is renewed.
const RENEW_AFTER_DAYS: i64 = 60;

/// The certificate authority that all replicas share.
pub(super) struct Shared {
    authority: Authority,
    /// The certificates that API servers must trust, as PEM: the authority's, then its predecessor's.
    pub(super) trusted: String,
}

/// A replica's certificate.
pub(super) struct ServingCertificate {
    /// The certificate and its key, as PEM.
    pub(super) pair: CertificatePair,
    /// The time at which the certificate was signed.
    made: Timestamp,
}

impl ServingCertificate {
    /// Returns whether the certificate must be renewed.
    pub(super) fn is_old(&self, now: Timestamp) -> bool {
        now.duration_since(self.made) > jiff::SignedDuration::from_hours(24 * RENEW_AFTER_DAYS)
    }
}

impl Shared {
    /// Signs a certificate for the names by which API servers call the webhooks.
    pub(super) fn sign(
        &self,
        now: Timestamp,
        names: &[String],
    ) -> Result<ServingCertificate, Failure> {
        let pair = self.authority.webhook(now, names).map_err(|error| {
            Failure::run(format!("the webhooks' certificate cannot be made: {error}"))
        })?;
        Ok(ServingCertificate { pair, made: now })
    }
}

/// Reads the authority from the cluster; creates or replaces it if that is due.
///
/// # Errors
/// The Secret cannot be read or written, or it has something else.
pub(super) async fn shared(
    client: &Client,
    namespace: &str,
    now: Timestamp,
) -> Result<Shared, Failure> {
    let failed = |why: &str| {
        Failure::run(format!(
            "Secret {namespace}/{NAME} with the webhooks' authority cannot be had: {why}"
        ))
        .hint("this program must be allowed to get, create and update it")
    };
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    for _ in 0..TRIES {
        let found = timeout(PATIENCE, api.get_opt(NAME)).await;
        let found = found
            .map_err(|_| failed("no answer"))?
            .map_err(|error| failed(&error.to_string()))?;
        let before = match &found {
            None => None,
            Some(secret) => {
                let (shared, made) = read(secret).ok_or_else(|| {
                    failed("it holds something else").hint(format!(
                        "delete it, and another one is made: kubectl delete secret -n {namespace} {NAME}"
                    ))
                })?;
                let ends = made.to_zoned(TimeZone::UTC).saturating_add(YEARS.years());
                if now < ends.timestamp() {
                    return Ok(shared);
                }
                Some(shared)
            }
        };
        let authority = Authority::generate(now)
            .map_err(|error| failed(&format!("a key cannot be made: {error}")))?;
        let mut trusted = authority.to_pem().0.to_owned();
        if let Some(before) = before {
            // Replicas serve certificates of the old authority until they have seen the new one.
            trusted += before.authority.to_pem().0;
        }
        let shared = Shared { authority, trusted };
        let written = write(&api, found, &shared, now);
        match timeout(PATIENCE, written).await {
            Err(_) => return Err(failed("no answer")),
            Ok(Ok(())) => return Ok(shared),
            // Another replica has written the Secret, so it is read again.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
            Ok(Err(error)) => return Err(failed(&error.to_string())),
        }
    }
    Err(failed("others write it all the time"))
}

/// Returns a stream that yields when the authority changes. A replica must react, because API servers reject certificates of an authority
/// that the webhook configurations do not contain.
pub(super) fn changes(client: &Client, namespace: &str) -> impl Stream<Item = ()> + use<> {
    let api: Api<PartialObjectMeta<Secret>> = Api::namespaced(client.clone(), namespace);
    let only = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let events = watcher(api, only).default_backoff();
    let changes = events.filter_map(|event| {
        use watcher::Event::{Apply, Delete, InitDone};
        // If the watch fails, the authority is still checked at intervals.
        let is_change = matches!(event, Ok(Apply(_) | Delete(_) | InitDone));
        ready(is_change.then_some(()))
    });
    // The caller has already handled what the first list returns.
    changes.skip(1)
}

fn read(secret: &Secret) -> Option<(Shared, Timestamp)> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    let made = secret.annotations().get(MADE)?.parse().ok()?;
    let authority = Authority::from_pem(text(CERTIFICATE)?, text(KEY)?);
    let trusted = text(CERTIFICATES)?;
    Some((Shared { authority, trusted }, made))
}

async fn write(
    api: &Api<Secret>,
    found: Option<Secret>,
    shared: &Shared,
    now: Timestamp,
) -> kube::Result<()> {
    let (certificate, key) = shared.authority.to_pem();
    let data = [
        (CERTIFICATES, shared.trusted.as_str()),
        (CERTIFICATE, certificate),
        (KEY, key),
    ];
    let data = data.map(|(name, text)| (name.to_owned(), ByteString(text.as_bytes().to_vec())));
    let is_new = found.is_none();
    let mut secret = found.unwrap_or_else(|| Secret {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    });
    secret.data = Some(data.into());
    secret
        .annotations_mut()
        .insert(MADE.to_owned(), now.to_string());
    let params = PostParams::default();
    if is_new {
        api.create(&params, &secret).await.map(drop)
    } else {
        api.replace(NAME, &params, &secret).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use mullion_apiserver::{ApiServer, Config, admission::User};

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a timestamp")
    }

    async fn of(client: &Client, now: &str) -> Shared {
        let shared = shared(client, "kube-system", at(now)).await;
        shared
            .map_err(|failure| failure.to_string())
            .expect("an authority")
    }

    #[tokio::test]
    async fn replicas_share_an_authority_that_is_followed_before_it_ends() {
        let server = ApiServer::new(Config::default());
        let client = Client::new(server.router_as(User::administrator()), "default");
        let first = of(&client, "2026-01-01T00:00:00Z").await;
        let second = of(&client, "2032-12-31T00:00:00Z").await;
        assert_eq!(first.trusted, second.trusted);
        let third = of(&client, "2033-01-02T00:00:00Z").await;
        assert_ne!(third.trusted, first.trusted);
        assert!(third.trusted.ends_with(&first.trusted));
        let fourth = of(&client, "2033-01-03T00:00:00Z").await;
        assert_eq!(fourth.trusted, third.trusted);
    }

    #[tokio::test]
    async fn a_certificate_is_renewed_after_two_months() {
        let server = ApiServer::new(Config::default());
        let client = Client::new(server.router_as(User::administrator()), "default");
        let shared = of(&client, "2026-01-01T00:00:00Z").await;
        let names = ["127.0.0.1".to_owned(), "mullion.kube-system.svc".to_owned()];
        let own = shared.sign(at("2026-01-01T00:00:00Z"), &names);
        let own = own.map_err(|failure| failure.to_string()).expect("signed");
        assert!(!own.is_old(at("2026-02-28T00:00:00Z")));
        assert!(own.is_old(at("2026-03-05T00:00:00Z")));
    }
}
