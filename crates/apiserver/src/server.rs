//! The server as a value: its configuration, its state, and the router that answers requests.
//!
//! [`ApiServer::router`] is the whole server without a socket. A request names its user by a [`User`] in its extensions or by a token;
//! without either it is anonymous. [`crate::listen`] adds TLS.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderValue, header::USER_AGENT},
};
use futures::FutureExt;
use jiff::Timestamp;
use mullion_kinds::{ServiceRange, request::User};
use mullion_store::{Store, StoreError, Window};
use tokio::sync::mpsc;

use crate::{
    admission::{self, DisabledPlugins, Plugin, webhook::Webhooks},
    aggregation,
    auth::{
        AccessControl, Authenticator, key::SigningKey, public_key::TokenKeys, rbac::Authorizer,
        token_file::StaticTokens,
    },
    boot,
    client_authority::Authorities,
    crd::kind::CustomResourceDefinition,
    definitions, flow_schemas,
    flows::Flows,
    http as handlers,
    limits::{Gate, Limits},
    logs::LogSource,
    metrics::Metrics,
    openapi::documents::Cache,
    policy_types,
    provided::Provided,
    registry::Registry,
    token_tracking,
};

/// The longest time between two compactions of old events. No object expires sooner than this after its creation, so the next expiry is
/// always found in time.
const COMPACT_EVERY: Duration = Duration::from_secs(30);
/// The least time between two searches for expired objects (etcd: the lessor's checks).
const EXPIRE_EVERY: Duration = Duration::from_millis(500);

/// The store's note that holds the signing key of service account tokens.
const KEY_NOTE: &str = "keys/service-account";
/// The default port (kube-apiserver: `--secure-port`).
const PORT: u16 = 6443;
/// The default issuer of tokens (kube-apiserver has none; test clusters use this one).
const ISSUER: &str = "https://kubernetes.default.svc";

/// The server's clock; all its timestamps come from here.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The configuration of a server.
pub struct Config {
    /// The source of the current time.
    pub clock: Clock,
    /// The range that cluster IPs are allocated from.
    pub service_cidr: ServiceRange,
    /// The addresses at which pods reach the server, published in the Endpoints and EndpointSlice `default/kubernetes`. If empty, neither
    /// exists.
    ///
    /// kube-apiserver publishes its advertise address; one that listens on loopback advertises the host's first other address, because
    /// validation refuses loopback addresses as endpoints. This server does not guess: the address of the machine it runs on would mean
    /// nothing in a cluster whose nodes have a network of their own. The program that creates the server knows the right address (EKS:
    /// its network interfaces in the cluster's subnets).
    pub advertise: Vec<IpAddr>,
    /// The port at which pods reach the server: `targetPort` of the Service `default/kubernetes`, and the port of its endpoints
    /// (kube-apiserver: `--secure-port`).
    pub port: u16,
    /// The CA of client certificates, in PEM, published for aggregated API servers (kube-apiserver: `--client-ca-file`).
    pub client_authority: Option<String>,
    /// The CA of front proxies, in PEM, published likewise (kube-apiserver: `--requestheader-client-ca-file`). This server itself has no
    /// front proxy and takes no user from request headers.
    pub front_proxy_authority: Option<String>,
    /// The built-in admission plugins that are disabled. Without a controller that creates service accounts, as in most controller tests,
    /// `ServiceAccount` must be among them, or all pods are refused.
    pub disabled_admission: DisabledPlugins,
    /// Admission plugins that run after the built-in ones.
    pub admission: Vec<Arc<dyn Plugin>>,
    /// Resources that are not stored, because the embedding program answers for them.
    pub provided: Vec<Provided>,
    /// The source of container logs; without one no container has logs.
    pub logs: Option<Arc<dyn LogSource>>,
    /// More metrics for `/metrics` in Prometheus' text format, from the embedding program.
    pub metrics: Option<MetricsSource>,
    /// How many past events watches can start from.
    pub window: Window,
    /// Static user tokens, in addition to client certificates.
    pub tokens: StaticTokens,
    /// More keys that service account tokens may be signed with (kube-apiserver: `--service-account-key-file`).
    pub token_keys: TokenKeys,
    /// The key that signs service account tokens; by default the key in the store, or a new one.
    pub signing_key: Option<SigningKey>,
    /// The issuer of service account tokens, and the audience of tokens that name none.
    pub issuer: String,
    /// The limits on concurrent work for clients on the network.
    pub limits: Limits,
}

/// A function that returns the current metrics.
pub type MetricsSource = Arc<dyn Fn() -> String + Send + Sync>;

impl Default for Config {
    fn default() -> Self {
        Config {
            clock: Arc::new(Timestamp::now),
            service_cidr: ServiceRange::default(),
            advertise: Vec::new(),
            port: PORT,
            client_authority: None,
            front_proxy_authority: None,
            disabled_admission: DisabledPlugins::default(),
            admission: Vec::new(),
            provided: Vec::new(),
            logs: None,
            metrics: None,
            window: Window::default(),
            tokens: StaticTokens::default(),
            token_keys: TokenKeys::default(),
            signing_key: None,
            issuer: ISSUER.to_owned(),
            limits: Limits::default(),
        }
    }
}

/// A Kubernetes API server.
pub struct ApiServer {
    clock: Clock,
    store: Arc<Store>,
    registry: Arc<Registry>,
    plugins: Vec<Arc<dyn Plugin>>,
    webhooks: Webhooks,
    access: AccessControl,
    logs: Option<Arc<dyn LogSource>>,
    openapi: Cache,
    claiming: tokio::sync::Mutex<()>,
    external_url: String,
    gate: Arc<Gate>,
    metrics: Metrics,
    more_metrics: Option<MetricsSource>,
}

impl ApiServer {
    /// Creates a server in memory with the built-in kinds, the default namespaces and the `kubernetes` Service. Custom resources are
    /// served only if the server is created inside a tokio runtime.
    pub fn new(config: Config) -> Arc<Self> {
        let store = Arc::new(Store::new(config.window));
        // Without a runtime nothing could wake a waiting future.
        let made = Self::with_store(config, store).now_or_never();
        made.expect("a write to memory does not wait")
    }

    /// Opens the server that a directory holds, or creates one in a new directory. Every write that it has answered survives the process.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open`].
    pub async fn open(config: Config, directory: &Path) -> Result<Arc<Self>, StoreError> {
        let store = Store::open(directory, config.window, (config.clock)())?;
        Ok(Self::with_store(config, Arc::new(store)).await)
    }

    /// Creates the server of a store that is open already, for callers that need the store's notes first.
    pub async fn with_store(config: Config, store: Arc<Store>) -> Arc<Self> {
        let provided = config.provided.into_iter().map(Provided::resource);
        let registry = Arc::new(Registry::new(
            store.clone(),
            mullion_kinds::builtins(config.service_cidr.clone(), CustomResourceDefinition),
            provided.collect(),
        ));
        let mut plugins = config.disabled_admission.without(admission::builtins());
        // The embedder's plugins come last, so that they see what the built-in ones have set.
        plugins.extend(config.admission);
        let signing_key = config.signing_key.unwrap_or_else(|| kept_key(&store));
        // Unbounded, because authentication must not wait for the writes that this causes.
        let (used_secrets, uses) = mpsc::unbounded_channel();
        let external_url = match config.advertise.first() {
            Some(ip) => format!("https://{}", SocketAddr::new(*ip, config.port)),
            None => format!("https://kubernetes.default.svc:{}", config.port),
        };
        let server = Arc::new(ApiServer {
            clock: config.clock,
            access: AccessControl {
                authenticator: Authenticator::new(
                    registry.clone(),
                    config.tokens,
                    signing_key,
                    config.token_keys,
                    config.issuer,
                    used_secrets,
                ),
                authorizer: Arc::new(Authorizer::new(&store)),
                flows: Flows::new(&store),
            },
            external_url,
            store,
            webhooks: Webhooks::new(&registry),
            registry,
            plugins,
            logs: config.logs,
            openapi: Cache::default(),
            gate: Gate::new(config.limits),
            metrics: Metrics::default(),
            more_metrics: config.metrics,
            claiming: tokio::sync::Mutex::default(),
        });
        // Before the first request: lookups use the selectable fields and the stored definitions.
        server.registry.renew_selectable_fields();
        definitions::serve_established(&server);
        let seeds = boot::Seeds {
            services: config.service_cidr,
            advertise: config.advertise,
            port: config.port,
            authorities: Authorities {
                clients: config.client_authority,
                front_proxies: config.front_proxy_authority,
            },
        };
        // Create the cluster's own objects, then start the loops that maintain them.
        boot::run(&server, &seeds).await;
        // Only now: the objects that every cluster has must not depend on a webhook that is not reachable yet.
        server.webhooks.wake();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Every loop holds the server weakly, so that dropping the last strong reference ends it.
            runtime.spawn(definitions::run(Arc::downgrade(&server)));
            let changes = server.registry().changes();
            runtime.spawn(aggregation::tell_availability(
                Arc::downgrade(&server),
                changes.clone(),
            ));
            runtime.spawn(aggregation::run(Arc::downgrade(&server), changes));
            runtime.spawn(flow_schemas::run(Arc::downgrade(&server)));
            runtime.spawn(boot::keep(Arc::downgrade(&server), seeds));
            runtime.spawn(token_tracking::record_uses(Arc::downgrade(&server), uses));
            runtime.spawn(compact(Arc::downgrade(&server)));
        }
        server
    }

    /// Writes the type checking results of ValidatingAdmissionPolicies to their status, until the server is dropped. This is a
    /// controller's work (kube-controller-manager: validatingadmissionpolicy-status), so the program that runs controllers calls it.
    pub fn check_policies(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        policy_types::run(Arc::downgrade(self))
    }

    /// Returns the service that answers requests. A request's user is the [`User`] in its extensions.
    pub fn router(self: &Arc<Self>) -> Router {
        handlers::router(self.clone())
    }

    /// Returns the same service for one client in this process: requests without a user are this user's.
    pub fn router_as(self: &Arc<Self>, user: User) -> Router {
        // A name that is no valid header value cannot be a field manager either.
        let agent = HeaderValue::from_str(user.name.rsplit(':').next().unwrap_or_default())
            .unwrap_or(HeaderValue::from_static("unknown"));
        let name_user = move |mut request: axum::extract::Request, next: axum::middleware::Next| {
            // A request that names its user already keeps it.
            if request.extensions().get::<User>().is_none() {
                request.extensions_mut().insert(user.clone());
            }
            // The User-Agent becomes the default field manager of writes through this router.
            let headers = request.headers_mut();
            headers.entry(USER_AGENT).or_insert_with(|| agent.clone());
            next.run(request)
        };
        self.router().layer(axum::middleware::from_fn(name_user))
    }

    /// Persists all writes that have begun, and releases the directory of [`ApiServer::open`]. Later writes are refused.
    pub async fn close(&self) {
        self.store.close().await;
    }

    /// Returns the current time of the server's clock.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Returns the registry of kinds.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns the source of container logs.
    pub fn logs(&self) -> Option<&Arc<dyn LogSource>> {
        self.logs.as_ref()
    }

    /// Returns what decides about requests.
    pub(crate) fn access(&self) -> &AccessControl {
        &self.access
    }

    /// Returns the authenticator.
    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.access.authenticator
    }

    /// Returns the authorizer.
    pub(crate) fn authorizer(&self) -> &Arc<Authorizer> {
        &self.access.authorizer
    }

    /// Returns the URL at which clients in the cluster reach the server.
    pub(crate) fn external_url(&self) -> &str {
        &self.external_url
    }

    /// Returns the metrics of the embedding program.
    pub(crate) fn more_metrics(&self) -> String {
        self.more_metrics
            .as_ref()
            .map_or_else(String::new, |more| more())
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the gate that limits concurrent requests from the network.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Returns the cache of OpenAPI documents.
    pub(crate) fn openapi(&self) -> &Cache {
        &self.openapi
    }

    /// Waits for the lock under which a write books its claims on other objects.
    pub(crate) async fn claiming(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.claiming.lock().await
    }

    /// Returns the admission webhooks.
    pub(crate) fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// Returns the admission plugins in the order in which they run.
    pub fn plugins(&self) -> &[Arc<dyn Plugin>] {
        &self.plugins
    }
}

/// Returns the signing key that an earlier server left in this store, or a new one.
fn kept_key(store: &Store) -> SigningKey {
    let kept = store.notes().get(KEY_NOTE);
    match kept.map(|pkcs8| SigningKey::from_pkcs8(&pkcs8)) {
        Some(Ok(key)) => return key,
        Some(Err(error)) => {
            tracing::error!(%error, "a new key is made; earlier tokens hold no more")
        }
        None => {}
    }
    // TLS needs randomness as well, so without it the server could not run anyway.
    let key = SigningKey::generate().expect("the system gives random numbers");
    store.notes().put(KEY_NOTE, key.to_pkcs8().to_vec());
    key
}

/// Removes expired objects and old events from the store, until the server is dropped.
async fn compact(server: Weak<ApiServer>) {
    let mut wait = COMPACT_EVERY;
    loop {
        tokio::time::sleep(wait).await;
        let Some(server) = server.upgrade() else {
            return;
        };
        let now = server.now();
        let next = server.store.expire(now).await;
        server.store.compact(now);
        let until_next = next.and_then(|next| Duration::try_from(next.duration_since(now)).ok());
        wait = until_next
            .unwrap_or(COMPACT_EVERY)
            .clamp(EXPIRE_EVERY, COMPACT_EVERY);
    }
}
