//! Sends the writes of simulated kubelets to the API server.
//!
//! A fixed number of tasks share the pods by uid, so the writes of one pod keep their order while many pods proceed in
//! parallel. Leases, which are renewed in groups, have a task of their own that sends many at once. Response bodies are not
//! decoded, because the informers deliver the new objects.
//!
//! Invariant: a status write carries the pod's uid, so it cannot change a later pod of the same name.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::Request,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    node::{LEASE_NAMESPACE, NodeFacts},
    pod::{WINDOWS_ADDRESS, resize},
    status,
};
use crate::{Context, discarded_response, pods};

/// The number of parallel writers.
const WRITERS: usize = 16;

/// How many leases are renewed in parallel.
const RENEWALS: usize = 64;

/// The pause before a write that failed with a transient error is repeated.
const RETRY: Duration = Duration::from_millis(500);

/// One write to the API server.
#[derive(Debug)]
pub(super) enum Write {
    /// Writes the status of a pod.
    Status {
        pod: Arc<Pod>,
        status: Box<PodStatus>,
        address: Option<String>,
    },
    /// Deletes a pod whose containers have ended.
    Delete { pod: Arc<Pod> },
    /// Creates a node, or updates an existing one.
    Register {
        facts: Arc<NodeFacts>,
        node: Box<Node>,
    },
    /// Renews a node's lease.
    Renew {
        facts: Arc<NodeFacts>,
        node_uid: String,
        at: jiff::Timestamp,
    },
    /// Writes part of a node's status.
    NodeStatus { name: String, status: Value },
}

/// The queues of all writers.
#[derive(Clone, Debug)]
pub(super) struct Writers {
    queues: Arc<[mpsc::UnboundedSender<Write>]>,
    renewals: mpsc::UnboundedSender<Write>,
}

impl Writers {
    pub(super) fn start(context: &Context) -> Self {
        let queue = |at_once| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let (client, shutdown) = (context.client.clone(), context.shutdown.clone());
            context.tasks.spawn(async move {
                let drained = drain(client, receiver, at_once);
                shutdown.run_until_cancelled(drained).await;
            });
            sender
        };
        Self {
            queues: (0..WRITERS).map(|_| queue(1)).collect(),
            renewals: queue(RENEWALS),
        }
    }

    pub(super) fn send(&self, write: Write) {
        // A queue is closed only when the process stops, and then nothing needs to be written.
        let _ = self.queue(&write).send(write);
    }

    fn queue(&self, write: &Write) -> &mpsc::UnboundedSender<Write> {
        let key = match write {
            Write::Status { pod, .. } | Write::Delete { pod } => {
                pod.metadata.uid.as_deref().unwrap_or_default()
            }
            Write::Register { facts, .. } => &facts.name,
            Write::NodeStatus { name, .. } => name,
            // Renewals of many nodes come at the same moment and must not wait behind the statuses of pods.
            Write::Renew { .. } => return &self.renewals,
        };
        let slot = key.bytes().fold(0usize, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        &self.queues[slot % self.queues.len()]
    }
}

/// Carries out the writes of a queue, `at_once` in parallel; with 1 they keep their order.
async fn drain(client: Client, mut queue: mpsc::UnboundedReceiver<Write>, at_once: usize) {
    let writes = stream::poll_fn(|task| queue.poll_recv(task));
    let done = writes.for_each_concurrent(at_once, |write| until_done(&client, write));
    done.await;
}

async fn until_done(client: &Client, write: Write) {
    loop {
        match carry_out(client, &write).await {
            Ok(()) => return,
            // The object is gone or was replaced, or the write is invalid: repeating it cannot help.
            Err(Error::Api(status)) if status.code < 500 && status.code != 429 => {
                tracing::debug!(%status, ?write, "kubelet write refused");
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "kubelet write failed, repeating it");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn carry_out(client: &Client, write: &Write) -> Result<(), Error> {
    match write {
        Write::Status {
            pod,
            status,
            address,
        } => {
            let collection = format!(
                "/api/v1/namespaces/{}/pods",
                pod.namespace().unwrap_or_default()
            );
            let body = Patch::Strategic(status_patch(pod, status, address.as_deref()));
            patch(client, collection, &pod.name_any(), Some("status"), &body).await
        }
        Write::Delete { pod } => {
            let api: Api<Pod> =
                Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            let preconditions = Preconditions {
                uid: pod.uid(),
                resource_version: None,
            };
            let params = DeleteParams {
                preconditions: Some(preconditions),
                ..DeleteParams::default()
            }
            // The pod has terminated already, so the API server removes the object at once.
            .grace_period(0);
            api.delete(&pod.name_any(), &params).await.map(drop)
        }
        Write::Register { facts, node } => register(client, facts, node).await,
        Write::Renew {
            facts,
            node_uid,
            at,
        } => renew(client, facts, node_uid, *at).await,
        Write::NodeStatus { name, status } => {
            let body = Patch::Strategic(json!({ "status": status }));
            patch(
                client,
                "/api/v1/nodes".to_owned(),
                name,
                Some("status"),
                &body,
            )
            .await
        }
    }
}

async fn register(client: &Client, facts: &NodeFacts, node: &Node) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    match nodes.create(&PostParams::default(), node).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if status.is_already_exists() => {
            // Taints are left alone: they may have been removed on purpose since the node registered first.
            let labels = json!({ "metadata": { "labels": facts.all_labels() } });
            nodes
                .patch(&facts.name, &PatchParams::default(), &Patch::Merge(labels))
                .await?;
            // Existing conditions are kept; the next heartbeats update them.
            let mut status = node.status.clone().unwrap_or_default();
            status.conditions = None;
            let status = json!({ "status": status });
            nodes
                .patch_status(
                    &facts.name,
                    &PatchParams::default(),
                    &Patch::Strategic(status),
                )
                .await
                .map(drop)
        }
        Err(error) => Err(error),
    }
}

async fn renew(
    client: &Client,
    facts: &NodeFacts,
    node_uid: &str,
    at: jiff::Timestamp,
) -> Result<(), Error> {
    let lease = facts.lease(node_uid, at);
    let renewal = Patch::Merge(json!({ "spec": lease.spec }));
    let collection = format!("/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases");
    match patch(client, collection, &facts.name, None, &renewal).await {
        // Only the first renewal of a node finds no lease, so the usual renewal costs one request.
        Err(Error::Api(status)) if status.is_not_found() => {
            let leases = Api::namespaced(client.clone(), LEASE_NAMESPACE);
            leases
                .create(&PostParams::default(), &lease)
                .await
                .map(drop)
        }
        other => other,
    }
}

/// Sends a patch; the response is decoded only if it is an error.
async fn patch(
    client: &Client,
    collection: String,
    name: &str,
    subresource: Option<&str>,
    body: &Patch<Value>,
) -> Result<(), Error> {
    let (request, params) = (Request::new(collection), PatchParams::default());
    let request = match subresource {
        Some(subresource) => request.patch_subresource(subresource, name, &params, body),
        None => request.patch(name, &params, body),
    };
    discarded_response::send(client, request).await
}

/// Returns the strategic merge patch that a kubelet sends: its own conditions in its own order; others stay as they are.
fn status_patch(pod: &Pod, status: &PodStatus, address: Option<&str>) -> Value {
    let mut metadata = json!({ "uid": pod.metadata.uid });
    if let Some(address) = address {
        metadata["annotations"] = json!({ WINDOWS_ADDRESS: address });
    }
    // A status is plain data, which JSON can always express.
    let mut status_json = serde_json::to_value(status).unwrap_or_default();
    if let Some(conditions) = status_json
        .get_mut("conditions")
        .and_then(Value::as_array_mut)
    {
        // Conditions are merged by type, so a reason or message that is gone has to be set to null.
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            for word in ["reason", "message"] {
                condition.entry(word).or_insert(Value::Null);
            }
        }
        let mut order: Vec<_> = status::ORDER
            .iter()
            .map(|name| json!({ "type": name }))
            .collect();
        for passing in resize::CONDITIONS {
            if conditions.iter().any(|own| own["type"] == passing) {
                order.push(json!({ "type": passing }));
            } else if pods::condition(pod, passing).is_some() {
                conditions.push(json!({ "type": passing, "$patch": "delete" }));
            }
        }
        status_json["$setElementOrder/conditions"] = Value::Array(order);
    }
    json!({ "metadata": metadata, "status": status_json })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodCondition;

    use super::*;

    #[test]
    fn a_status_patch_names_the_pods_uid_and_keeps_the_kubelets_order_of_conditions() {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "uid": "u" } }))
            .expect("a pod");
        let status = PodStatus {
            conditions: Some(vec![PodCondition::default()]),
            phase: Some("Running".to_owned()),
            ..PodStatus::default()
        };
        let patch = status_patch(&pod, &status, Some("10.0.1.7/19"));
        assert_eq!(patch["metadata"]["uid"], "u");
        assert_eq!(
            patch["metadata"]["annotations"][WINDOWS_ADDRESS],
            "10.0.1.7/19"
        );
        assert_eq!(patch["status"]["phase"], "Running");
        let condition = patch["status"]["conditions"][0]
            .as_object()
            .expect("a condition");
        assert_eq!(
            condition.get("message"),
            Some(&Value::Null),
            "an old message is taken away"
        );
        assert_eq!(
            patch["status"]["$setElementOrder/conditions"][4]["type"],
            "PodScheduled"
        );
    }

    #[test]
    fn what_is_no_more_to_be_said_of_a_resize_is_taken_away() {
        let pod = |status: Value| -> Pod {
            let pod = json!({ "metadata": { "name": "p", "uid": "u" }, "status": status });
            serde_json::from_value(pod).expect("a pod")
        };
        let status = |pod: &Pod| pod.status.clone().unwrap_or_default();
        for kind in ["PodResizePending", "PodResizeInProgress"] {
            let before = pod(json!({ "conditions": [{ "type": kind, "status": "True" }] }));
            let after = pod(json!({ "conditions": [] }));
            let patch = status_patch(&before, &status(&after), None);
            assert_eq!(
                patch["status"]["conditions"],
                json!([{ "type": kind, "$patch": "delete" }])
            );
            let patch = status_patch(&after, &status(&before), None);
            let order = patch["status"]["$setElementOrder/conditions"].as_array();
            let last = order.and_then(|order| order.last());
            assert_eq!(last, Some(&json!({ "type": kind })));
        }
    }
}
