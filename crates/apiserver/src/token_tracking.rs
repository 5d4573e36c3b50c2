//! Records the use of tokens in Secrets: [`record_uses`] writes the day into a label of the Secret, and [`wanted`] is the ConfigMap
//! `kube-system/kube-apiserver-legacy-service-account-token-tracking` with the date since which it is recorded (kube-apiserver:
//! the legacytokentracking controller). Without it, kube-controller-manager's cleaner of such tokens reports an error. A valid date stays;
//! an invalid one is replaced.

use std::sync::{Arc, Weak};

use http::Method;
use jiff::civil::Date;
use mullion_kinds::request::Lookup;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    auth::secret_token::{LAST_USED, UsedSecret, day, is_unrecorded},
    own,
    state::ApiServer,
};

pub(crate) const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// Returns the ConfigMap as it should be, or `None` if it is up to date.
pub(crate) fn wanted(server: &Arc<ApiServer>) -> Option<Value> {
    let stored = server
        .registry()
        .find("", "configmaps", Some(NAMESPACE), NAME);
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

/// Writes the days of use to the Secrets, until the server is dropped.
pub(crate) async fn record_uses(server: Weak<ApiServer>, mut uses: UnboundedReceiver<UsedSecret>) {
    while let Some(UsedSecret { namespace, name }) = uses.recv().await {
        let Some(server) = server.upgrade() else {
            return;
        };
        // Many requests may have come before the first of them was recorded.
        let Some(secret) = server
            .registry()
            .find("", "secrets", Some(&namespace), &name)
        else {
            continue;
        };
        if !is_unrecorded(&secret, server.now()) {
            continue;
        }
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let change = json!({"metadata": {
            "uid": secret["metadata"]["uid"], "labels": {LAST_USED: day(server.now())},
        }});
        if let Err(status) = own::send(&server, Method::PATCH, &path, &change).await {
            tracing::warn!(%status, namespace, name, "the use of the token in a Secret cannot be recorded");
        }
    }
}
