//! Serves the webhooks of `mullion controller`: the rules about pods ([`mullion_controllers::admission`]), for API servers other than
//! Mullion's own.
//!
//! [`configurations`] makes API servers call the webhooks, and [`authority`] makes them trust the certificates. Every replica answers,
//! whether it is the leader or not. If a rule cannot look something up, the webhook answers with an error, and its failure policy decides
//! about the pod.

mod authority;
mod configurations;

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    extract::State,
    http::{Request, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use futures::StreamExt;
use kube::Client;
use mullion_controllers::{
    Context,
    admission::{
        ClusterReader, Lookups, Rule, Verdict, Write,
        addresses::WindowsAddresses,
        gmsa::Gmsa,
        placement::{PlaceByImage, images_of, is_wanted, pull_secrets},
        review::Review,
    },
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::args::Parts;
use crate::{certs::CertificatePair, failure::Failure, image_facts::ImageFacts};

/// The largest review in bytes: an object and its old version, each of 1.5 MiB, with escapes.
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// The largest number of requests handled at the same time.
const MOST_AT_ONCE: usize = 128;
/// How long API servers may still call a process after it has reported that it is not ready.
const ENDPOINT_LAG: Duration = Duration::from_secs(5);
/// How long running requests may take after the shutdown has begun.
const LAST_REQUESTS: Duration = Duration::from_secs(3);
/// The JSON pointer to the pod template of a DaemonSet.
const TEMPLATE: &str = "/spec/template";

/// How API servers reach this process.
#[derive(Clone, Debug)]
pub(super) enum WebhookAddress {
    /// They use a Service of the cluster, on port 443.
    Service {
        /// The namespace of the Service.
        namespace: String,
        /// The name of the Service.
        name: String,
    },
    /// They use a URL without a path.
    Url {
        /// The URL.
        url: String,
        /// Whether the URL leads to this process alone, so that the configurations are deleted when it stops.
        is_own: bool,
    },
}

impl WebhookAddress {
    /// Returns the field `clientConfig` of a webhook, without the `caBundle`.
    fn client_config(&self, path: &str) -> Value {
        match self {
            WebhookAddress::Service { namespace, name } => {
                json!({"service": {"namespace": namespace, "name": name, "path": path, "port": 443}})
            }
            WebhookAddress::Url { url, .. } => json!({"url": format!("{url}{path}")}),
        }
    }

    /// Returns the names that the certificate must have.
    fn names(&self) -> Vec<String> {
        match self {
            WebhookAddress::Service { namespace, name } => vec![
                format!("{name}.{namespace}.svc"),
                format!("{name}.{namespace}.svc.cluster.local"),
            ],
            WebhookAddress::Url { url, .. } => {
                let url: Option<http::Uri> = url.parse().ok();
                let host = url.as_ref().and_then(|url| url.host()).unwrap_or_default();
                vec![host.trim_matches(['[', ']']).to_owned()]
            }
        }
    }

    /// Deletes the configurations if they lead to this process alone.
    pub(super) async fn withdraw(&self, client: &Client, parts: &Parts) {
        if let WebhookAddress::Url { url, is_own: true } = self {
            let hooks = WebhookSettings {
                parts: parts.clone(),
                address: self.clone(),
            };
            configurations::delete(client, &hooks, url).await;
        }
    }
}

/// The webhooks that API servers must call, and how they are reached.
#[derive(Clone, Debug)]
pub(super) struct WebhookSettings {
    /// The parts that run; each has its own webhooks.
    pub(super) parts: Parts,
    /// How this process is reached.
    pub(super) address: WebhookAddress,
}

/// The admission rules behind the webhooks.
pub(super) struct Rules {
    pub(super) placement: PlaceByImage,
    pub(super) facts: Arc<ImageFacts>,
    pub(super) addresses: WindowsAddresses,
    pub(super) gmsa: Gmsa,
}

/// A running webhook server.
pub(super) struct WebhookServer {
    handle: Handle<SocketAddr>,
    serving: JoinHandle<io::Result<()>>,
    is_in_cluster: bool,
}

struct Server {
    rules: Rules,
    lookups: Lookups,
}

/// Serves the webhooks on `address`, and makes API servers call them. Certificates are renewed until the context ends.
///
/// # Errors
/// The process cannot listen on the port, the authority cannot be read or created, or the API server does not accept the configurations.
pub(super) async fn serve(
    context: &Context,
    address: SocketAddr,
    namespace: &str,
    hooks: WebhookSettings,
    rules: Rules,
) -> Result<WebhookServer, Failure> {
    let (client, names) = (context.client.clone(), hooks.address.names());
    let shared = authority::shared(&client, namespace, context.clock.now()).await?;
    let own = shared.sign(context.clock.now(), &names)?;
    let tls = RustlsConfig::from_config(Arc::new(config(&own.pair)?));
    let listener = super::serving::listen(address, "webhooks").await?;
    let listener = listener.into_std().map_err(|error| {
        Failure::run(format!("webhooks cannot be served on {address}: {error}"))
    })?;
    let server = Arc::new(Server {
        rules,
        lookups: Lookups::new(context),
    });
    let places = Arc::new(Semaphore::new(MOST_AT_ONCE));
    let routes = Router::new()
        .route("/placement/pods", post(place_pod))
        .route("/placement/daemonsets", post(place_template))
        .route("/addresses/mutate", post(request_address))
        .route("/addresses/validate", post(judge_address))
        .route("/gmsa/mutate", post(expand_gmsa))
        .route("/gmsa/validate", post(judge_gmsa))
        .layer(middleware::from_fn_with_state(places, in_turn))
        .with_state(server);
    let handle = Handle::new();
    let serving = axum_server::from_tcp_rustls(listener, tls.clone())
        .map_err(|error| Failure::run(format!("webhooks cannot be served on {address}: {error}")))?
        .handle(handle.clone())
        .serve(routes.into_make_service());
    let serving = tokio::spawn(serving);
    // API servers may call as soon as the configurations are written, so the server is already running.
    configurations::write(&client, &hooks, &shared.trusted).await?;
    tracing::info!("webhooks on https://{address}");
    let is_in_cluster = matches!(hooks.address, WebhookAddress::Service { .. });
    let renewal = Renewal {
        context: context.clone(),
        hooks,
        namespace: namespace.to_owned(),
        names,
        tls,
        own,
        trusted: shared.trusted,
    };
    context.tasks.spawn(renewal.run());
    Ok(WebhookServer {
        handle,
        serving,
        is_in_cluster,
    })
}

/// Limits the number of requests that run at the same time, because each may take megabytes; others wait.
async fn in_turn(
    State(places): State<Arc<Semaphore>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let _place = places.acquire().await;
    next.run(request).await
}

impl WebhookServer {
    /// Waits until the server ends by itself, and returns a sentence that says why. API servers get no answers after that.
    pub(super) async fn failed(&mut self) -> String {
        let why = match (&mut self.serving).await {
            Ok(Ok(())) => "the server has ended".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        format!(
            "the webhooks are not served any more, so this process ends to be started again: {why}"
        )
    }

    /// Stops the server once no requests come any more. A process that is not ready stays an endpoint of its Service for a moment, so it
    /// still answers during that time.
    pub(super) async fn stop(self) {
        if self.is_in_cluster {
            sleep(ENDPOINT_LAG).await;
        }
        self.handle.graceful_shutdown(Some(LAST_REQUESTS));
        if !self.serving.is_finished() {
            // How the server ends does not matter any more.
            let _ = self.serving.await;
        }
    }
}

/// Keeps the certificates and the webhook configurations up to date.
struct Renewal {
    context: Context,
    hooks: WebhookSettings,
    namespace: String,
    names: Vec<String>,
    tls: RustlsConfig,
    own: authority::ServingCertificate,
    trusted: String,
}

impl Renewal {
    async fn run(mut self) {
        let shutdown = self.context.shutdown.clone();
        let changes = authority::changes(&self.context.client, &self.namespace);
        let looking = async {
            let mut changes = pin!(changes);
            loop {
                // The result is ignored: after a change and after the timeout alike, everything is checked.
                let _ = timeout(authority::LOOK_EVERY, changes.next()).await;
                if let Err(failure) = self.look().await {
                    tracing::warn!(
                        "the webhooks' certificates are looked at again in a minute: {failure}"
                    );
                }
            }
        };
        shutdown.run_until_cancelled(looking).await;
    }

    async fn look(&mut self) -> Result<(), Failure> {
        let now = self.context.clock.now();
        let client = &self.context.client;
        let shared = authority::shared(client, &self.namespace, now).await?;
        let is_another = shared.trusted != self.trusted;
        // This restores configurations that a user has deleted or changed.
        configurations::write(client, &self.hooks, &shared.trusted).await?;
        // After the configurations, which by then trust the new authority.
        if is_another || self.own.is_old(now) {
            self.own = shared.sign(now, &self.names)?;
            self.tls
                .reload_from_config(Arc::new(config(&self.own.pair)?));
            self.trusted = shared.trusted;
            tracing::info!("the webhooks have a new certificate");
        }
        Ok(())
    }
}

fn config(pair: &CertificatePair) -> Result<ServerConfig, Failure> {
    let failed =
        |why: String| Failure::run(format!("the webhooks' certificate cannot be used: {why}"));
    let certificate = CertificateDer::from_pem_slice(pair.cert.as_bytes())
        .map_err(|error| failed(error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())
        .map_err(|error| failed(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(vec![certificate], key)
        })
        .map_err(|error| failed(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Why a webhook gives no answer; the failure policy decides what the API server does then.
enum Unanswered {
    /// The request is invalid.
    Request(String),
    /// An object that the rule needs could not be read.
    Lookup(kube::Error),
}

impl IntoResponse for Unanswered {
    fn into_response(self) -> Response {
        match self {
            Unanswered::Request(why) => (StatusCode::BAD_REQUEST, why).into_response(),
            Unanswered::Lookup(error) => {
                tracing::warn!("a webhook has no answer: {error}");
                let why = format!("what the rule needs cannot be looked up: {error}");
                (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
            }
        }
    }
}

type Answer = Result<Json<Value>, Unanswered>;

async fn read(request: Request<Body>) -> Result<Review, Unanswered> {
    let body = to_bytes(request.into_body(), MOST_BYTES).await;
    let body = body.map_err(|error| Unanswered::Request(error.to_string()))?;
    Review::read(&body).map_err(|error| Unanswered::Request(error.to_string()))
}

async fn place_pod(State(server): State<Arc<Server>>, request: Request<Body>) -> Answer {
    let review = read(request).await?;
    let write = review.write();
    server.fetch_images(&write).await?;
    let rule = &server.rules.placement;
    let verdict = server.ask(|cluster| rule.mutate(&write, cluster)).await?;
    Ok(Json(review.answer(&verdict, "")))
}

async fn place_template(State(server): State<Arc<Server>>, request: Request<Body>) -> Answer {
    let review = read(request).await?;
    let Some(write) = review.write_of_template(TEMPLATE) else {
        return Ok(Json(review.allowed()));
    };
    server.fetch_images(&write).await?;
    let rule = &server.rules.placement;
    let verdict = server.ask(|cluster| rule.place_template(&write, cluster));
    Ok(Json(review.answer(&verdict.await?, TEMPLATE)))
}

async fn request_address(State(server): State<Arc<Server>>, request: Request<Body>) -> Answer {
    let review = read(request).await?;
    server.mutate(&server.rules.addresses, &review).await
}

async fn judge_address(State(server): State<Arc<Server>>, request: Request<Body>) -> Answer {
    let review = read(request).await?;
    server.validate(&server.rules.addresses, &review).await
}

async fn expand_gmsa(State(server): State<Arc<Server>>, request: Request<Body>) -> Answer {
    let review = read(request).await?;
    server.mutate(&server.rules.gmsa, &review).await
}

async fn judge_gmsa(State(server): State<Arc<Server>>, request: Request<Body>) -> Answer {
    let review = read(request).await?;
    server.validate(&server.rules.gmsa, &review).await
}

impl Server {
    async fn ask<T>(&self, decide: impl FnMut(&dyn ClusterReader) -> T) -> Result<T, Unanswered> {
        self.lookups.ask(decide).await.map_err(Unanswered::Lookup)
    }

    async fn mutate(&self, rule: &dyn Rule, review: &Review) -> Answer {
        let write = review.write();
        let verdict = self.ask(|cluster| rule.mutate(&write, cluster)).await?;
        Ok(Json(review.answer(&verdict, "")))
    }

    async fn validate(&self, rule: &dyn Rule, review: &Review) -> Answer {
        let write = review.write();
        let verdict = self.ask(|cluster| rule.validate(&write, cluster)).await?;
        let verdict = Verdict {
            // A validating webhook that returns a patch is an error to the API server.
            changes: Vec::new(),
            ..verdict
        };
        Ok(Json(review.answer(&verdict, "")))
    }

    /// Asks registries what the images of a pod run on, if the pod is to be placed by its images; waits at most one second.
    async fn fetch_images(&self, write: &Write<'_>) -> Result<(), Unanswered> {
        let spec = &write.pod["spec"];
        let images = self.rules.facts.permitted(images_of(spec));
        if images.is_empty() {
            return Ok(());
        }
        let secrets = self.ask(|cluster| {
            is_wanted(write, cluster).then(|| pull_secrets(spec, write.namespace, cluster))
        });
        if let Some(secrets) = secrets.await? {
            self.rules.facts.fetch(images, &secrets).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use k8s_openapi::api::{
        admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret,
    };
    use kube::{Api, api::DeleteParams};
    use mullion_apiserver::{ApiServer, Config, admission::User};
    use mullion_cloud::Clock;
    use mullion_images::{Registries, Settings, SystemDial};
    use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::up::images;

    fn context() -> (Arc<ApiServer>, Context) {
        let server = ApiServer::new(Config::default());
        let client = Client::new(server.router_as(User::administrator()), "default");
        (server, Context::new(client, Clock::system()))
    }

    /// Serves the GMSA webhooks behind a URL that several processes share.
    async fn served(context: &Context) -> (WebhookServer, SocketAddr) {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let address = free.and_then(|own| own.local_addr()).expect("a port");
        let facts = Arc::new(ImageFacts::new(Registries::new(
            Settings::default(),
            Arc::new(SystemDial::default()),
        )));
        let table = images::table(None).map_err(|failure| failure.to_string());
        let rules = Rules {
            placement: PlaceByImage {
                table: Arc::new(table.expect("it is built in")),
                facts: facts.clone(),
                gates_unknown: false,
            },
            facts,
            addresses: WindowsAddresses {
                controllers: Vec::new(),
            },
            gmsa: Gmsa::default(),
        };
        let hooks = WebhookSettings {
            parts: "gmsa".parse().expect("a part"),
            address: WebhookAddress::Url {
                url: "https://127.0.0.1:8443".to_owned(),
                is_own: false,
            },
        };
        let served = serve(context, address, "kube-system", hooks, rules).await;
        let served = served.map_err(|failure| failure.to_string());
        (served.expect("it is served"), address)
    }

    /// Returns the certificates that API servers trust.
    async fn trusted(context: &Context) -> RootCertStore {
        let api: Api<MutatingWebhookConfiguration> = Api::all(context.client.clone());
        let own = api
            .get("mullion-windows-gmsa")
            .await
            .expect("it is written");
        let hooks = own.webhooks.unwrap_or_default();
        let bundle = hooks[0]
            .client_config
            .ca_bundle
            .clone()
            .expect("an authority");
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&bundle.0) {
            roots.add(certificate.expect("PEM")).expect("an authority");
        }
        roots
    }

    async fn is_believed(address: SocketAddr, roots: RootCertStore) -> bool {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await.expect("it listens");
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.is_ok()
    }

    #[tokio::test]
    async fn a_server_that_ends_by_itself_is_a_sentence() {
        let (_server, context) = context();
        let (mut served, _) = served(&context).await;
        served.handle.shutdown();
        assert_eq!(
            served.failed().await,
            "the webhooks are not served any more, so this process ends to be started again: the server has ended"
        );
        served.stop().await;
    }

    #[tokio::test]
    async fn all_replicas_are_believed_soon_after_their_authority_was_deleted() {
        let (_server, context) = context();
        let (_first, one) = served(&context).await;
        let (_second, other) = served(&context).await;
        let before = trusted(&context).await;
        assert!(is_believed(one, before.clone()).await);
        assert!(is_believed(other, before.clone()).await);
        let secrets: Api<Secret> = Api::namespaced(context.client.clone(), "kube-system");
        let deleted = secrets
            .delete("mullion-webhook-ca", &DeleteParams::default())
            .await;
        deleted.expect("it is there");
        let again = async {
            loop {
                let now = trusted(&context).await;
                let is_new = now.roots != before.roots;
                if is_new && is_believed(one, now.clone()).await && is_believed(other, now).await {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        // The timeout is shorter than the interval of the regular checks, so only the watch can be the cause.
        let again = timeout(authority::LOOK_EVERY / 2, again).await;
        again.expect("they are believed");
    }
}
