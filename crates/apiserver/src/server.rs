//! The server as a value: its configuration, its state, and the router that answers requests.
//!
//! [`ApiServer::router`] is the whole server without a socket; requests say who asks by a [`User`] in their extensions or by a
//! token, and those without either are anonymous. [`crate::listen`] puts TLS in front of it.

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
use serde_json::Value;

use crate::{
    admission::{self, DisabledPlugins, Lookup, Plugin, User, webhook::Webhooks},
    aggregation,
    auth::{
        key::SigningKey, rbac::Authorizer, service_account::Remembered, token_file::StaticTokens,
    },
    boot,
    client_authority::Authorities,
    crd,
    flow_schemas::{self, matching::Flows},
    http::{self as handlers, openapi, subresource::log::LogSource},
    kinds::{self, ServiceRange},
    limits::{Gate, Limits},
    metrics::Metrics,
    policy_types,
    provided::Provided,
    registry::Registry,
    store::{Key, Store, StoreError, Window},
};

/// How often past events that are too old are looked for. No object lives as shortly, so looking then for the next one that expires is
/// soon enough.
const COMPACT_EVERY: Duration = Duration::from_secs(30);
/// How often at most it is looked for objects that have expired (etcd: the lessor's checks).
const EXPIRE_EVERY: Duration = Duration::from_millis(500);

/// Where the store keeps the key of service accounts' tokens.
const KEY_NOTE: &str = "keys/service-account";
/// The issuer of a cluster that names none (kube-apiserver has no default; this is what test clusters use).
const ISSUER: &str = "https://kubernetes.default.svc";

/// The server's clock: everything it stamps comes from here.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What a server is made from.
pub struct Config {
    /// Where the time comes from.
    pub clock: Clock,
    /// The range cluster IPs are taken from.
    pub service_cidr: ServiceRange,
    /// Where pods reach the server: what the Endpoints and EndpointSlice `default/kubernetes` publish. Without any there are none.
    ///
    /// kube-apiserver publishes its advertise address, and one that listens on loopback advertises the host's first other address, since
    /// validation lets no loopback address be an endpoint. This server does not guess: the address of the machine it happens to run on
    /// would mean nothing inside a cluster whose nodes have a network of their own. Whoever makes the server knows what stands for it
    /// there (EKS: its network interfaces in the cluster's subnets).
    pub advertise: Vec<IpAddr>,
    /// Who signs clients' certificates, in PEM: told to servers that stand behind this one (kube-apiserver: `--client-ca-file`).
    pub client_authority: Option<String>,
    /// Who signs front proxies' certificates, in PEM: told to the same servers (kube-apiserver: `--requestheader-client-ca-file`). This server
    /// itself stands behind no front proxy: it takes no user from a request's headers.
    pub front_proxy_authority: Option<String>,
    /// Built-in admission plugins that do not run. Without a controller that makes service accounts, as in most tests of controllers, pods
    /// are refused unless this has `ServiceAccount`.
    pub disabled_admission: DisabledPlugins,
    /// Plugins that run after the built-in ones.
    pub admission: Vec<Arc<dyn Plugin>>,
    /// Resources of which nothing is stored, because the program that embeds the server answers for them.
    pub provided: Vec<Provided>,
    /// Where the logs of containers come from; without one, there are none.
    pub logs: Option<Arc<dyn LogSource>>,
    /// More text for `/metrics`, in the text format of Prometheus, from the program that embeds the server.
    pub metrics: Option<MetricsSource>,
    /// How many past events watches may ask for.
    pub window: Window,
    /// Tokens of users, beside the certificates that TLS knows.
    pub tokens: StaticTokens,
    /// What signs service accounts' tokens; if not given, the key that the store keeps, or a new one.
    pub signing_key: Option<SigningKey>,
    /// Who issues service accounts' tokens, as they say; also the audience of a token that names none.
    pub issuer: String,
    /// How much is done at once for clients on the network.
    pub limits: Limits,
}

/// Returns metrics of the moment.
pub type MetricsSource = Arc<dyn Fn() -> String + Send + Sync>;

impl Default for Config {
    fn default() -> Self {
        Config {
            clock: Arc::new(Timestamp::now),
            service_cidr: ServiceRange::default(),
            advertise: Vec::new(),
            client_authority: None,
            front_proxy_authority: None,
            disabled_admission: DisabledPlugins::default(),
            admission: Vec::new(),
            provided: Vec::new(),
            logs: None,
            metrics: None,
            window: Window::default(),
            tokens: StaticTokens::default(),
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
    registry: Registry,
    plugins: Vec<Arc<dyn Plugin>>,
    webhooks: Webhooks,
    flows: Flows,
    logs: Option<Arc<dyn LogSource>>,
    openapi: openapi::Cache,
    claiming: tokio::sync::Mutex<()>,
    authorizer: Authorizer,
    tokens: StaticTokens,
    signing_key: SigningKey,
    remembered: Remembered,
    audiences: Vec<String>,
    external_url: String,
    gate: Arc<Gate>,
    metrics: Metrics,
    more_metrics: Option<MetricsSource>,
}

impl ApiServer {
    /// A server in memory with the built-in kinds, the default namespaces and the kubernetes Service. Custom resource definitions are
    /// served when it is made inside a tokio runtime.
    pub fn new(config: Config) -> Arc<Self> {
        let store = Arc::new(Store::new(config.window));
        let made = Self::with_store(config, store).now_or_never();
        made.expect("a write to memory does not wait")
    }

    /// The server that a directory keeps, as it was when it was last there; a new one in a new directory. Every write it answers
    /// outlives the process.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn open(config: Config, directory: &Path) -> Result<Arc<Self>, StoreError> {
        let store = Store::open(directory, config.window, (config.clock)())?;
        Ok(Self::with_store(config, Arc::new(store)).await)
    }

    /// The server of a store that is open already, for those who need its notes before.
    pub async fn with_store(config: Config, store: Arc<Store>) -> Arc<Self> {
        let provided = config.provided.into_iter().map(Provided::resource);
        let registry = Registry::new(
            store.clone(),
            kinds::builtins(config.service_cidr.clone()),
            provided.collect(),
        );
        let mut plugins = config.disabled_admission.without(admission::builtins());
        plugins.extend(config.admission);
        let signing_key = config.signing_key.unwrap_or_else(|| kept_key(&store));
        let external_url = match config.advertise.first() {
            Some(ip) => format!("https://{}", SocketAddr::new(*ip, boot::PORT)),
            None => format!("https://kubernetes.default.svc:{}", boot::PORT),
        };
        let server = Arc::new(ApiServer {
            clock: config.clock,
            authorizer: Authorizer::new(&store),
            tokens: config.tokens,
            signing_key,
            remembered: Remembered::default(),
            audiences: vec![config.issuer],
            external_url,
            flows: Flows::new(&store),
            store,
            webhooks: Webhooks::new(&registry),
            registry,
            plugins,
            logs: config.logs,
            openapi: openapi::Cache::default(),
            gate: Gate::new(config.limits),
            metrics: Metrics::default(),
            more_metrics: config.metrics,
            claiming: tokio::sync::Mutex::default(),
        });
        server.registry.renew_selectable_fields();
        crd::controller::serve_established(&server);
        let seeds = boot::Seeds {
            services: config.service_cidr,
            advertise: config.advertise,
            authorities: Authorities {
                clients: config.client_authority,
                front_proxies: config.front_proxy_authority,
            },
        };
        boot::run(&server, &seeds).await;
        server.webhooks.wake();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(crd::controller::run(Arc::downgrade(&server)));
            let changes = server.registry().changes();
            runtime.spawn(aggregation::tell_availability(
                Arc::downgrade(&server),
                changes.clone(),
            ));
            runtime.spawn(aggregation::run(Arc::downgrade(&server), changes));
            runtime.spawn(flow_schemas::run(Arc::downgrade(&server)));
            runtime.spawn(boot::keep(Arc::downgrade(&server), seeds));
            runtime.spawn(compact(Arc::downgrade(&server)));
        }
        server
    }

    /// Says in the status of ValidatingAdmissionPolicies what the types of objects say against their expressions, until the server is
    /// dropped. That is a controller's work (kube-controller-manager: validatingadmissionpolicy-status), which whoever runs controllers
    /// beside the server asks for.
    pub fn check_policies(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        policy_types::run(Arc::downgrade(self))
    }

    /// The service that answers requests. A request's user is the [`User`] in its extensions.
    pub fn router(self: &Arc<Self>) -> Router {
        handlers::router(self.clone())
    }

    /// The same service for one client in this process: every request that does not name a user is this user's.
    pub fn router_as(self: &Arc<Self>, user: User) -> Router {
        // A name that is no header value cannot name a manager either.
        let agent = HeaderValue::from_str(user.name.rsplit(':').next().unwrap_or_default())
            .unwrap_or(HeaderValue::from_static("unknown"));
        let name_user = move |mut request: axum::extract::Request, next: axum::middleware::Next| {
            if request.extensions().get::<User>().is_none() {
                request.extensions_mut().insert(user.clone());
            }
            // Whoever writes through this router is named as the manager of what it writes.
            let headers = request.headers_mut();
            headers.entry(USER_AGENT).or_insert_with(|| agent.clone());
            next.run(request)
        };
        self.router().layer(axum::middleware::from_fn(name_user))
    }

    /// Makes everything permanent that was begun, and lets go of the directory of [`ApiServer::open`]. Writes after that are refused.
    pub async fn close(&self) {
        self.store.close().await;
    }

    /// The current time in whole seconds or finer, as the clock gives it.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The objects.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The kinds.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Where the logs of containers come from.
    pub fn logs(&self) -> Option<&Arc<dyn LogSource>> {
        self.logs.as_ref()
    }

    /// Who may do what.
    pub(crate) fn authorizer(&self) -> &Authorizer {
        &self.authorizer
    }

    /// The static tokens.
    pub(crate) fn tokens(&self) -> &StaticTokens {
        &self.tokens
    }

    /// What signs service accounts' tokens.
    pub fn signing_key(&self) -> &SigningKey {
        &self.signing_key
    }

    /// The service accounts' tokens that were verified.
    pub(crate) fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    /// Who issues service accounts' tokens.
    pub(crate) fn issuer(&self) -> &str {
        &self.audiences[0]
    }

    /// The audiences of a token that this server takes.
    pub(crate) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// Where clients in the cluster reach the server.
    pub(crate) fn external_url(&self) -> &str {
        &self.external_url
    }

    /// Returns the metrics of the program that embeds the server.
    pub(crate) fn more_metrics(&self) -> String {
        self.more_metrics
            .as_ref()
            .map_or_else(String::new, |more| more())
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Where requests of clients on the network take turns.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The OpenAPI documents that have been made.
    pub(crate) fn openapi(&self) -> &openapi::Cache {
        &self.openapi
    }

    /// The turn of a write to make its claims on other objects.
    pub(crate) async fn claiming(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.claiming.lock().await
    }

    /// Which requests belong together.
    pub(crate) fn flows(&self) -> &Flows {
        &self.flows
    }

    /// The admission webhooks.
    pub(crate) fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// The admission plugins in order.
    pub fn plugins(&self) -> &[Arc<dyn Plugin>] {
        &self.plugins
    }
}

/// The key that an earlier server on this store signed tokens with, or a new one.
fn kept_key(store: &Store) -> SigningKey {
    let kept = store.notes().get(KEY_NOTE);
    match kept.map(|pkcs8| SigningKey::from_pkcs8(&pkcs8)) {
        Some(Ok(key)) => return key,
        Some(Err(error)) => {
            tracing::error!(%error, "a new key is made; earlier tokens hold no more")
        }
        None => {}
    }
    // TLS would not work without randomness either.
    let key = SigningKey::generate().expect("the system gives random numbers");
    store.notes().put(KEY_NOTE, key.to_pkcs8().to_vec());
    key
}

/// Lets the store forget what is too old, for as long as the server is there.
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

impl Lookup for ApiServer {
    fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        let table = self.registry.table();
        let row = table.find_plural(group, plural)?;
        let object = row.collection.get(Key::new(namespace, name).as_str())?;
        Some(row.looked_up(&object))
    }

    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let table = self.registry.table();
        let Some(row) = table.find_plural(group, plural) else {
            return Vec::new();
        };
        row.collection
            .snapshot(namespace)
            .objects
            .iter()
            .map(|object| match namespace {
                // The namespaced kinds are the numerous ones, and no plugin lists them at every write.
                Some(_) => Arc::new(row.served(object)),
                None => row.looked_up(object),
            })
            .collect()
    }
}
