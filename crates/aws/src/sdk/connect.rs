//! Connects to AWS: region and credentials as the SDK finds them, and one HTTP client with the same TLS as the rest of the program.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use aws_config::{BehaviorVersion, Region, SdkConfig, retry::RetryConfig};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use mullion_cloud::CloudError;

use super::{Aws, Inner, Settings, errors::Failed, lock, queue::Queue};
use crate::{
    batch::{Batcher, OF_INSTANCES},
    bootstrap::ClusterFacts,
    limits::{Kind, Limits},
    prices::pricing_region,
};

/// The number of times that a call is made if it is throttled or not answered; the waits between them are random and double.
const ATTEMPTS: u32 = 5;
/// The interval at which unused launch templates are looked for.
const TIDY: Duration = Duration::from_secs(60);

/// The reason why there is no connection to AWS.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No region is configured.
    #[error(
        "no AWS region is known: set AWS_REGION, or a region in the profile that AWS_PROFILE names"
    )]
    NoRegion,
    /// EKS does not describe the cluster.
    #[error(
        "EKS does not describe cluster {name:?}: {error}; give CLUSTER_ENDPOINT, or allow eks:DescribeCluster"
    )]
    Cluster {
        /// The cluster.
        name: String,
        /// EKS's error.
        error: CloudError,
    },
}

/// Loads region, credentials and endpoints from the sources of the SDK: variables (AWS_REGION, AWS_PROFILE, AWS_ENDPOINT_URL, ...), files,
/// the identity of the pod, and the instance metadata service.
pub async fn sdk_config() -> SdkConfig {
    let client = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    aws_config::defaults(BehaviorVersion::latest())
        .http_client(client)
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
        .load()
        .await
}

impl Aws {
    /// Looks up missing facts about the cluster, and starts a task that deletes unused launch templates. The task ends when the last clone
    /// is dropped.
    ///
    /// # Errors
    /// There is no region, or the cluster's endpoint is neither given nor returned by EKS.
    pub async fn connect(config: &SdkConfig, mut settings: Settings) -> Result<Self, ConnectError> {
        let region = config.region().ok_or(ConnectError::NoRegion)?.to_string();
        let limits = Limits::default();
        complete(&mut settings.cluster, config, &limits).await?;
        // Only a few regions have a Pricing endpoint.
        let pricing = aws_sdk_pricing::config::Builder::from(config)
            .region(Region::new(pricing_region(&region)))
            .build();
        // The batchers hold weak references, or their tasks would keep the connection alive for ever.
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let (describing, ending) = (weak.clone(), weak.clone());
            Inner {
                arc: aws_sdk_arczonalshift::Client::new(config),
                ec2: aws_sdk_ec2::Client::new(config),
                eks: aws_sdk_eks::Client::new(config),
                iam: aws_sdk_iam::Client::new(config),
                pricing: aws_sdk_pricing::Client::from_conf(pricing),
                sqs: aws_sdk_sqs::Client::new(config),
                ssm: aws_sdk_ssm::Client::new(config),
                limits,
                cluster_arn: Default::default(),
                refusals: Default::default(),
                market: Default::default(),
                network: Default::default(),
                images: Default::default(),
                templates: Default::default(),
                profiles: Default::default(),
                reservations: Default::default(),
                groups: Default::default(),
                young: Default::default(),
                queue: Queue::default(),
                describe: Batcher::start(OF_INSTANCES, move |ids| {
                    let inner = describing.upgrade();
                    Box::pin(async move {
                        match inner {
                            Some(inner) => inner.describe_all(ids).await,
                            None => Vec::new(),
                        }
                    })
                }),
                terminate: Batcher::start(OF_INSTANCES, move |ids| {
                    let inner = ending.upgrade();
                    Box::pin(async move {
                        match inner {
                            Some(inner) => inner.terminate_all(ids).await,
                            None => Vec::new(),
                        }
                    })
                }),
                region,
                settings,
            }
        });
        tokio::spawn(tidy(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Returns the cluster that machines join.
    pub fn cluster(&self) -> &ClusterFacts {
        &self.inner.settings.cluster
    }
}

/// Deletes launch templates that have not been used for a while.
async fn tidy(inner: Weak<Inner>) {
    let mut adopted = false;
    loop {
        tokio::time::sleep(TIDY).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        // Tried again at every round, because the first calls may be throttled or not permitted yet.
        if !adopted {
            adopted = inner.adopt_templates().await;
        }
        inner.drop_unused_templates().await;
        lock(&inner.young).forget_grown();
    }
}

/// Gets missing facts about the cluster from EKS. Nodes cannot join without an endpoint; only AL2023 needs the service CIDR.
async fn complete(
    cluster: &mut ClusterFacts,
    config: &SdkConfig,
    limits: &Limits,
) -> Result<(), ConnectError> {
    if !cluster.endpoint.is_empty() && cluster.service_cidr.is_some() {
        return Ok(());
    }
    limits.wait(Kind::Other).await;
    let call = aws_sdk_eks::Client::new(config)
        .describe_cluster()
        .name(&cluster.name);
    match call.send().await.map_err(Failed::of) {
        Ok(answer) => {
            let found = answer.cluster();
            let endpoint = found.and_then(|own| own.endpoint());
            if cluster.endpoint.is_empty() {
                cluster.endpoint = endpoint.unwrap_or_default().to_owned();
            }
            let network = found.and_then(|own| own.kubernetes_network_config());
            let cidr =
                network.and_then(|own| own.service_ipv4_cidr().or_else(|| own.service_ipv6_cidr()));
            let bundle = found.and_then(|own| own.certificate_authority()?.data());
            cluster.service_cidr = cluster.service_cidr.take().or(cidr.map(str::to_owned));
            cluster.ca_bundle = cluster.ca_bundle.take().or(bundle.map(str::to_owned));
            Ok(())
        }
        Err(failed) if cluster.endpoint.is_empty() => Err(ConnectError::Cluster {
            name: cluster.name.clone(),
            error: failed.into(),
        }),
        Err(failed) => {
            let error = CloudError::from(failed);
            tracing::warn!(
                "EKS does not describe cluster {:?}, so AL2023 nodes cannot be launched: {error}",
                cluster.name
            );
            Ok(())
        }
    }
}
