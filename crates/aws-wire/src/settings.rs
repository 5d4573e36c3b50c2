//! The settings of an endpoint.

use std::time::Duration;

use mullion_api::account;

/// The properties of the endpoint's account that the simulated EC2 does not have.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The id of the account.
    pub account_id: String,
    /// How long Describe calls hide a new instance, at the simulated EC2's speed 1 (EC2 is eventually consistent).
    pub unseen_for: Duration,
    /// The URL of the cluster's API server, as EKS describes it.
    pub cluster_endpoint: String,
    /// The certificate authority of that server in base64, as EKS describes it.
    pub cluster_authority: String,
    /// The address range of Services, as EKS describes it.
    pub service_cidr: String,
    /// The name of the queue of messages about instances; `None` means the name of the cluster, as in Karpenter's guides.
    pub queue: Option<String>,
    /// The IAM roles that instance profiles may have, besides `KarpenterNodeRole-` with the cluster's name.
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
