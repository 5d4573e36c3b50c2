//! The way to AWS: region and credentials as the SDK finds them, one HTTP client with the TLS of the rest of the program.

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

/// How often a call that is throttled or gets no answer is made: the waits in between are random and double.
const ATTEMPTS: u32 = 5;
/// How often launch templates are looked through.
const TIDY: Duration = Duration::from_secs(60);

/// Why AWS cannot be asked.
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
        /// EKS's answer.
        error: CloudError,
    },
}

/// Region, credentials and endpoints as the SDK finds them: variables (AWS_REGION, AWS_PROFILE, AWS_ENDPOINT_URL, ...), files, the identity of the
/// pod, the instance's metadata service.
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
    /// Looks up what is missing of the cluster, and starts to tidy up launch templates. It ends when the last clone is dropped.
    ///
    /// # Errors
    /// There is no region, or the cluster's endpoint is neither given nor to be had.
    pub async fn connect(config: &SdkConfig, mut settings: Settings) -> Result<Self, ConnectError> {
        let region = config.region().ok_or(ConnectError::NoRegion)?.to_string();
        let limits = Limits::default();
        complete(&mut settings.cluster, config, &limits).await?;
        // The Pricing service is in few regions.
        let pricing = aws_sdk_pricing::config::Builder::from(config)
            .region(Region::new(pricing_region(&region)))
            .build();
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let (describing, ending) = (weak.clone(), weak.clone());
            Inner {
                ec2: aws_sdk_ec2::Client::new(config),
                iam: aws_sdk_iam::Client::new(config),
                pricing: aws_sdk_pricing::Client::from_conf(pricing),
                sqs: aws_sdk_sqs::Client::new(config),
                ssm: aws_sdk_ssm::Client::new(config),
                limits,
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

    /// The cluster that machines join.
    pub fn cluster(&self) -> &ClusterFacts {
        &self.inner.settings.cluster
    }
}

/// Deletes launch templates that nobody has used for a while.
async fn tidy(inner: Weak<Inner>) {
    let mut adopted = false;
    loop {
        tokio::time::sleep(TIDY).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        if !adopted {
            adopted = inner.adopt_templates().await;
        }
        inner.drop_unused_templates().await;
        lock(&inner.young).forget_grown();
    }
}

/// Asks EKS for what is missing. Without an endpoint nothing can join; a service CIDR only AL2023 needs.
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
