//! Sets the condition `Ready` of the ServiceCIDR `kubernetes` (kube-apiserver: the controller defaultservicecidr). The object and its
//! condition exist before the first response; only the server itself allocates addresses from the range.

use std::sync::Arc;

use mullion_kinds::{ServiceRange, request::Lookup, services::objects::GROUP};
use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use crate::{http::path::ObjectPath, object::metadata, own, state::ApiServer};

const PLURAL: &str = "servicecidrs";
/// The ServiceCIDR with the range that the server was started with.
pub(crate) const NAME: &str = "kubernetes";
/// The field manager of the condition.
const MANAGER: &str = "kubernetes-service-cidr-controller";

/// Sets the condition, unless the object has one already or is about another range.
pub(crate) async fn settle(server: &Arc<ApiServer>, range: &ServiceRange) {
    let Some(object) = server.registry().find(GROUP, PLURAL, None, NAME) else {
        return;
    };
    let is_this = object["spec"]["cidrs"] == json!([range.to_string()]);
    let conditions = object["status"].items("conditions");
    let is_told = |condition: &Value| {
        condition.text("type") == "Ready" && condition.text("status") != "Unknown"
    };
    let is_going = object["metadata"].has("deletionTimestamp");
    if !is_this || is_going || conditions.iter().any(is_told) {
        return;
    }
    let condition = json!({
        "type": "Ready", "status": "True", "message": "Kubernetes default Service CIDR is ready",
        "lastTransitionTime": metadata::stamp(server.now()),
    });
    let configuration = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": NAME},
        "status": {"conditions": [condition]},
    });
    let path = ObjectPath {
        group: GROUP,
        version: "v1",
        plural: PLURAL,
        name: Some(NAME),
        ..ObjectPath::default()
    };
    if let Err(status) = own::apply_status(server, &path, MANAGER, &configuration).await {
        tracing::error!(%status, "the range of Services cannot be told to be ready");
    }
}
