//! The state of a server: its parts, which handlers and loops take from it.
//!
//! [`crate::server`] starts a server and gives it its router. A part that needs no server but another part is given that part when it is
//! made: the [`Authenticator`] has the registry, and admission gets the registry and the authorizer with each write.

use std::{net::SocketAddr, sync::Arc};

use jiff::Timestamp;
use mullion_store::Store;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::{
    admission::{self, Plugin, webhook::Webhooks},
    auth::{
        AccessControl, Authenticator, key::SigningKey, rbac::Authorizer, secret_token::UsedSecret,
    },
    config::{Clock, Config, MetricsSource},
    crd::kind::CustomResourceDefinition,
    flows::Flows,
    limits::Gate,
    logs::LogSource,
    metrics::Metrics,
    openapi::documents::Cache,
    provided::Provided,
    registry::Registry,
};

/// The store's note that holds the signing key of service account tokens.
const KEY_NOTE: &str = "keys/service-account";

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
    /// Assembles the parts of a server, and returns with it the uses of the tokens in Secrets. Nothing runs yet, and nothing is written.
    pub(crate) fn assemble(
        config: Config,
        store: Arc<Store>,
    ) -> (Arc<Self>, UnboundedReceiver<UsedSecret>) {
        let provided = config.provided.into_iter().map(Provided::resource);
        let registry = Arc::new(Registry::new(
            store.clone(),
            mullion_kinds::builtins(config.service_cidr, CustomResourceDefinition),
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
        let server = ApiServer {
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
        };
        (Arc::new(server), uses)
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
