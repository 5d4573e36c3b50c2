//! Maintains the ConfigMap `kube-system/kube-apiserver-legacy-service-account-token-tracking` with the date since which the use of tokens
//! in Secrets is recorded (kube-apiserver: the legacytokentracking controller). Without it, kube-controller-manager's cleaner of such
//! tokens reports an error. A valid date stays; an invalid one is replaced.

use std::sync::Arc;

use jiff::civil::Date;
use mullion_kinds::request::Lookup;
use serde_json::{Value, json};

use crate::server::ApiServer;

pub(crate) const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// Returns the ConfigMap as it should be, or `None` if it is up to date.
pub(crate) fn wanted(server: &Arc<ApiServer>) -> Option<Value> {
    let stored = server.find("", "configmaps", Some(NAMESPACE), NAME);
    let since = stored
        .as_deref()
        .and_then(|map| map["data"]["since"].as_str());
    if since.is_some_and(|since| Date::strptime("%Y-%m-%d", since).is_ok()) {
        return None;
    }
    Some(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {"since": server.now().strftime("%Y-%m-%d").to_string()},
    }))
}
