//! Connects `mullion controller` to AWS, with the facts about the cluster that its instances need and Karpenter's settings for AWS.

use super::{NodeCloud, args::ControllerArgs};
use crate::failure::Failure;

/// Fails, because this program was built without the feature `aws`; the flags were refused before.
#[cfg(not(feature = "aws"))]
pub(super) async fn connect(_: &kube::Client, args: &ControllerArgs) -> Result<NodeCloud, Failure> {
    args.parts()
        .and_then(|_| Err(Failure::input("--cloud aws needs the feature `aws`")))
}

#[cfg(feature = "aws")]
pub(super) async fn connect(
    client: &kube::Client,
    args: &ControllerArgs,
) -> Result<NodeCloud, Failure> {
    use mullion_aws::{Aws, ConnectError, Settings, bootstrap::ClusterFacts, sdk_config};

    let cluster = ClusterFacts {
        name: args.cluster_name.clone().unwrap_or_default(),
        endpoint: args.cluster_endpoint.clone().unwrap_or_default(),
        ca_bundle: args
            .cluster_ca_bundle
            .clone()
            .filter(|text| !text.is_empty()),
        dns: dns_address(client).await?,
        ..ClusterFacts::default()
    };
    let queue = args.interruption_queue.clone();
    let settings = Settings {
        cluster,
        interruption_queue: queue.filter(|name| !name.is_empty()),
        isolated_vpc: args.isolated_vpc,
        reserved_capacity: args.feature_gates.unwrap_or_default().reserved_capacity,
    };
    let version = super::own_cluster::kubernetes_version(client).await?;
    let aws = Aws::connect(&sdk_config().await, settings).await;
    let aws = aws.map_err(|error| match error {
        ConnectError::NoRegion => Failure::input(format!("--cloud aws: {error}")),
        ConnectError::Cluster { .. } => Failure::run(format!("--cloud aws: {error}")),
    })?;
    let endpoint = &aws.cluster().endpoint;
    tracing::info!("machines of AWS join the cluster at {endpoint}");
    let cloud = std::sync::Arc::new(aws);
    Ok(NodeCloud {
        addresses: cloud.clone(),
        cloud,
        version,
    })
}

/// Returns the address of the cluster's DNS Service, which kubelets pass to pods; `None` if there is no such Service.
#[cfg(feature = "aws")]
async fn dns_address(client: &kube::Client) -> Result<Option<String>, Failure> {
    use k8s_openapi::api::core::v1::Service;

    let services: kube::Api<Service> = kube::Api::namespaced(client.clone(), "kube-system");
    let found = services.get_opt("kube-dns").await;
    let found = found.map_err(|error| {
        Failure::run(format!(
            "Service kube-system/kube-dns cannot be read, whose address new nodes have to know: {error}"
        ))
        .hint("allow get of services in kube-system")
    })?;
    let address = found.and_then(|own| own.spec?.cluster_ip);
    Ok(address.filter(|ip| !ip.is_empty() && ip != "None"))
}
