//! What an endpoint starts from.

use std::time::Duration;

use mullion_api::account;

/// What the account of an endpoint has beside the simulated EC2.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Id of the account.
    pub account_id: String,
    /// How long a new instance is not described, at the simulated EC2's speed 1 (EC2 is eventually consistent).
    pub unseen_for: Duration,
    /// URL of the cluster's API server, as EKS describes it.
    pub cluster_endpoint: String,
    /// Certificate authority of that server in base64, as EKS describes it.
    pub cluster_authority: String,
    /// Addresses of services, as EKS describes them.
    pub service_cidr: String,
    /// Name of the queue of messages about instances; where it is `None`, that of the cluster (Karpenter's guides set it so).
    pub queue: Option<String>,
    /// IAM roles that instance profiles may have, beside `KarpenterNodeRole-` with the cluster's name.
    pub roles: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            account_id: account::ID.to_owned(),
            unseen_for: Duration::from_millis(800),
            cluster_endpoint: "https://127.0.0.1:6443".to_owned(),
            cluster_authority: String::new(),
            service_cidr: "10.100.0.0/16".to_owned(),
            queue: None,
            roles: Vec::new(),
        }
    }
}
