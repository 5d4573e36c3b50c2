//! EKS: the description of the cluster.

use axum::{
    body::Body,
    http::{Method, Response, StatusCode},
};
use serde_json::{Value, json};

use super::{admit_by_path, respond_by_path, unknown_path};
use crate::{Endpoint, refusal::Refusal};

/// The prefix of EKS's paths.
pub(crate) const PATH: &str = "/clusters/";

/// Describes the cluster that a path names.
pub(crate) fn answer(
    endpoint: &Endpoint,
    method: &Method,
    path: &str,
    request_id: &str,
) -> Response<Body> {
    let name = path.strip_prefix(PATH).unwrap_or_default();
    respond_by_path(describe_cluster(endpoint, method, name), request_id)
}

/// Returns the ARN of the cluster.
pub(super) fn arn(endpoint: &Endpoint) -> String {
    let config = endpoint.ec2().config();
    let (account, region, name) = (
        &endpoint.settings().account_id,
        &config.region,
        &config.cluster,
    );
    format!("arn:aws:eks:{region}:{account}:cluster/{name}")
}

fn describe_cluster(endpoint: &Endpoint, method: &Method, name: &str) -> Result<Value, Refusal> {
    if *method != Method::GET || name.is_empty() || name.contains('/') {
        return Err(unknown_path(method, &format!("{PATH}{name}")));
    }
    admit_by_path(endpoint, "eks", "DescribeCluster")?;
    let config = endpoint.ec2().config();
    if name != config.cluster {
        return Err(Refusal::with(
            StatusCode::NOT_FOUND,
            "ResourceNotFoundException",
            format!("No cluster found for name: {name}."),
        ));
    }
    let settings = endpoint.settings();
    let account = &settings.account_id;
    let ec2 = endpoint.ec2();
    let subnets: Vec<_> = ec2
        .all_subnets()
        .iter()
        .map(|own| own.id.to_string())
        .collect();
    let groups = ec2.all_security_groups();
    Ok(json!({ "cluster": {
        "name": name,
        "arn": arn(endpoint),
        "version": config.version.to_string(),
        "endpoint": settings.cluster_endpoint,
        "certificateAuthority": { "data": settings.cluster_authority },
        "roleArn": format!("arn:aws:iam::{account}:role/{name}-cluster"),
        "status": "ACTIVE",
        "platformVersion": "eks.1",
        "kubernetesNetworkConfig": { "serviceIpv4Cidr": settings.service_cidr, "ipFamily": "ipv4" },
        "resourcesVpcConfig": {
            "subnetIds": subnets,
            "securityGroupIds": [],
            "clusterSecurityGroupId": groups.first().map(|own| own.id.to_string()),
            "vpcId": ec2.vpc_id(),
            "endpointPublicAccess": true,
            "endpointPrivateAccess": false,
        },
        "accessConfig": { "authenticationMode": "API_AND_CONFIG_MAP" },
        "tags": {},
    } }))
}
