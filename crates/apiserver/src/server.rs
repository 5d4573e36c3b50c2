//! Starts a server, and gives it its router.
//!
//! [`ApiServer::router`] is the whole server without a socket. A request names its user by a [`User`] in its extensions or by a token;
//! without either it is anonymous. [`crate::listen`] adds TLS.

use std::{
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderValue, header::USER_AGENT},
};
use futures::FutureExt;
use mullion_kinds::request::User;
use mullion_store::{Store, StoreError};

use crate::{
    aggregation, boot, client_authority::Authorities, config::Config, definitions, flow_schemas,
    http as handlers, policy_types, state::ApiServer, token_tracking,
};

/// The longest time between two compactions of old events. No object expires sooner than this after its creation, so the next expiry is
/// always found in time.
const COMPACT_EVERY: Duration = Duration::from_secs(30);
/// The least time between two searches for expired objects (etcd: the lessor's checks).
const EXPIRE_EVERY: Duration = Duration::from_millis(500);

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
        let seeds = boot::Seeds {
            services: config.service_cidr.clone(),
            advertise: config.advertise.clone(),
            port: config.port,
            authorities: Authorities {
                clients: config.client_authority.clone(),
                front_proxies: config.front_proxy_authority.clone(),
            },
        };
        let (server, uses) = ApiServer::assemble(config, store);
        // Before the first request: lookups use the selectable fields and the stored definitions.
        server.registry().renew_selectable_fields();
        definitions::serve_established(&server);
        // Create the cluster's own objects, then start the loops that maintain them.
        boot::run(&server, &seeds).await;
        // Only now: the objects that every cluster has must not depend on a webhook that is not reachable yet.
        server.webhooks().wake();
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
        self.store().close().await;
    }
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
        let next = server.store().expire(now).await;
        server.store().compact(now);
        let until_next = next.and_then(|next| Duration::try_from(next.duration_since(now)).ok());
        wait = until_next
            .unwrap_or(COMPACT_EVERY)
            .clamp(EXPIRE_EVERY, COMPACT_EVERY);
    }
}
