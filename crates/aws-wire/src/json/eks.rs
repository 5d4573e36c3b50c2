//! EKS: the description of the cluster.

use axum::{
    body::Body,
    http::{HeaderValue, Method, Response, StatusCode},
};
use serde_json::{Value, json};

use super::respond;
use crate::{Endpoint, endpoint::Blocked, refusal::Refusal};

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
    match describe_cluster(endpoint, method, name) {
        Ok(value) => respond(StatusCode::OK, "application/json", &value, request_id),
        Err(refusal) => {
            let value = json!({ "message": refusal.message });
            let mut response = respond(refusal.status, "application/json", &value, request_id);
            // EKS has a REST protocol, in which the code of an error is a header and not part of the body.
            if let Ok(code) = HeaderValue::from_str(&refusal.code) {
                response.headers_mut().insert("x-amzn-errortype", code);
            }
            response
        }
    }
}

fn describe_cluster(endpoint: &Endpoint, method: &Method, name: &str) -> Result<Value, Refusal> {
    if *method != Method::GET || name.is_empty() || name.contains('/') {
        let text = format!("{method} {PATH}{name} is not served by the simulated AWS endpoint.");
        return Err(Refusal::with(
            StatusCode::NOT_FOUND,
            "UnknownOperationException",
            text,
        ));
    }
    endpoint
        .admit("eks", "DescribeCluster")
        .map_err(|blocked| match blocked {
            Blocked::Throttled => Refusal::with(
                StatusCode::TOO_MANY_REQUESTS,
                "ThrottlingException",
                "Rate exceeded",
            ),
            Blocked::Denied(why) => {
                Refusal::with(StatusCode::FORBIDDEN, "AccessDeniedException", why)
            }
        })?;
    let config = endpoint.ec2().config();
    if name != config.cluster {
        return Err(Refusal::with(
            StatusCode::NOT_FOUND,
            "ResourceNotFoundException",
            format!("No cluster found for name: {name}."),
        ));
    }
    let settings = endpoint.settings();
    let (account, region) = (&settings.account_id, &config.region);
    let ec2 = endpoint.ec2();
    let subnets: Vec<_> = ec2
        .all_subnets()
        .iter()
        .map(|own| own.id.to_string())
        .collect();
    let groups = ec2.all_security_groups();
    Ok(json!({ "cluster": {
        "name": name,
        "arn": format!("arn:aws:eks:{region}:{account}:cluster/{name}"),
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
