//! The configuration of a server: what the embedding program decides.

use std::{net::IpAddr, sync::Arc};

use jiff::Timestamp;
use mullion_kinds::ServiceRange;
use mullion_store::Window;

use crate::{
    admission::{DisabledPlugins, Plugin},
    auth::{key::SigningKey, public_key::TokenKeys, token_file::StaticTokens},
    limits::Limits,
    logs::LogSource,
    provided::Provided,
};

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
