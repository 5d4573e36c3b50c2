//! The slow operations: calls to EC2 and writes to the Kubernetes API, each in a task that reports its result.
//!
//! Every task ends: calls to EC2 have a time limit, and after a write with an unknown result the object is read
//! until the result is known or the pod is gone.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mullion_api::{
    labels::PRIVATE_IPV4,
    vpc_resources::{CNINode, CNINodeSpec, CNINodeStatus, FINALIZER, Ipv4Status},
};
use mullion_cloud::{
    AddressError, Addresses, InstanceId, InterfaceFacts, InterfaceFound, InterfaceId,
};
use mullion_engine::ip::{Call, Cidr, Kind, Listing, PodUid};
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::driver::NodeName;
use crate::{Context, Key, api_error};

/// The time limit of a call to EC2 (VRC: 30 s). A cloud's own limit is shorter.
const PATIENCE: Duration = Duration::from_secs(40);
/// The pause after a failed write before the object is read.
const LOOK_UP_AFTER: Duration = Duration::from_secs(1);
/// The number of CNINodes that are read at once.
const READS: usize = 16;
/// The capacity of the report channel; tasks wait if it is full.
const REPORTS: usize = 256;

/// One lifetime of a node. A report may be about an earlier node of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeLifetime {
    pub(super) node: NodeName,
    pub(super) number: u64,
}

/// The result of a task.
#[derive(Debug)]
pub(super) enum Report {
    /// The loaded interfaces of nodes, by node name.
    Loaded(
        Vec<NodeLifetime>,
        Result<FxHashMap<NodeName, LoadedNode>, AddressError>,
    ),
    Assigned(NodeLifetime, StartedCall, Result<Vec<Cidr>, AddressError>),
    GivenBack(NodeLifetime, Arc<str>, Result<(), AddressError>),
    Listed(NodeLifetime, Result<Listing, AddressError>),
    /// Whether the annotation of a pod was written.
    Annotated(NodeLifetime, PodUid, Cidr, AnnotationResult),
    /// Whether the CNINode was written.
    Recorded(NodeLifetime, bool),
    /// Whether the capacity of the node was written.
    Advertised(NodeLifetime, bool),
}

/// A call to EC2 that has started: kind, number of blocks, subnet, and start time.
#[derive(Clone, Debug)]
pub(super) struct StartedCall {
    pub(super) kind: Kind,
    pub(super) count: u32,
    pub(super) subnet: Arc<str>,
    pub(super) at: u64,
}

/// The state of a node as found when it is loaded.
#[derive(Debug)]
pub(super) struct LoadedNode {
    pub(super) facts: InterfaceFacts,
    pub(super) listing: Listing,
    /// The status of the node's CNINode.
    pub(super) record: Option<Ipv4Status>,
}

/// The result of writing an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnotationResult {
    /// The pod has the annotation.
    Written,
    /// The API server refused the annotation, and the pod has none.
    Refused,
    /// The pod is gone.
    Gone,
}

/// Starts tasks.
#[derive(Clone)]
pub(super) struct Calls {
    context: Context,
    cloud: Arc<dyn Addresses>,
    reports: mpsc::Sender<Report>,
}

impl Calls {
    pub(super) fn new(
        context: &Context,
        cloud: Arc<dyn Addresses>,
    ) -> (Self, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS);
        let context = context.clone();
        let calls = Calls {
            context,
            cloud,
            reports,
        };
        (calls, receiver)
    }

    fn spawn(&self, task: impl Future<Output = Report> + Send + 'static) {
        let (reports, shutdown) = (self.reports.clone(), self.context.shutdown.clone());
        self.context.tasks.spawn(async move {
            let reported = async {
                // The send fails only when the process stops.
                let _ = reports.send(task.await).await;
            };
            shutdown.run_until_cancelled(reported).await;
        });
    }

    /// Reads the interfaces of nodes and their CNINodes.
    pub(super) fn load(&self, nodes: Vec<(NodeLifetime, InstanceId)>) {
        let (cloud, context) = (Arc::clone(&self.cloud), self.context.clone());
        self.spawn(async move {
            let (lifetimes, instances): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
            // One call describes the interfaces of all instances, because calls to EC2 are what is scarce.
            let found = limited(cloud.interfaces_of(&instances)).await;
            let found = match found {
                Ok(found) => found,
                Err(error) => return Report::Loaded(lifetimes, Err(error)),
            };
            let names = instances.iter().zip(&lifetimes);
            let names: FxHashMap<_, _> = names.map(|(id, lifetime)| (id, &lifetime.node)).collect();
            let api = Api::<CNINode>::all(context.client.clone());
            let loaded = found.into_iter().filter_map(|found| {
                let name = NodeName::clone(names.get(&found.instance)?);
                Some(async {
                    let record = read_record(&api, &name).await;
                    let InterfaceFound { facts, listing, .. } = found;
                    (
                        name,
                        LoadedNode {
                            facts,
                            listing,
                            record,
                        },
                    )
                })
            });
            let loaded = stream::iter(loaded).buffer_unordered(READS).collect().await;
            Report::Loaded(lifetimes, Ok(loaded))
        });
    }

    /// Makes a call to EC2.
    pub(super) fn make(
        &self,
        lifetime: NodeLifetime,
        interface: &InterfaceId,
        begun: StartedCall,
        call: Call,
    ) {
        let (cloud, interface) = (Arc::clone(&self.cloud), interface.clone());
        self.spawn(async move {
            match call {
                Call::Assign { kind, count } => {
                    let ended = limited(cloud.assign(&interface, kind, count)).await;
                    Report::Assigned(lifetime, begun, ended)
                }
                Call::GiveBack { kind, blocks } => {
                    let ended = limited(cloud.give_back(&interface, kind, &blocks)).await;
                    Report::GivenBack(lifetime, begun.subnet, ended)
                }
                Call::List => Report::Listed(lifetime, limited(cloud.list(&interface)).await),
            }
        });
    }

    /// Writes a pod's annotation, with the pod's UID as precondition.
    pub(super) fn annotate(&self, lifetime: NodeLifetime, pod: PodUid, key: &Key, address: Cidr) {
        let api = Api::<Pod>::namespaced(self.context.client.clone(), key.namespace());
        let name = key.name().to_owned();
        self.spawn(async move {
            let written = annotate(&api, &name, &pod, address).await;
            Report::Annotated(lifetime, pod, address, written)
        });
    }

    /// Writes the status of a node's CNINode, and creates the CNINode if needed.
    pub(super) fn record(&self, lifetime: NodeLifetime, node: &Node, status: Ipv4Status) {
        let api = Api::<CNINode>::all(self.context.client.clone());
        let wanted = cni_node(node);
        self.spawn(async move {
            let written = record(&api, &lifetime.node, wanted, status).await;
            if let Err(error) = &written {
                tracing::debug!(%error, node = &*lifetime.node, "CNINode cannot be written");
            }
            Report::Recorded(lifetime, written.is_ok())
        });
    }

    /// Deletes the CNINode of a node that is gone.
    pub(super) fn forget(&self, node: NodeName) {
        let (context, shutdown) = (self.context.clone(), self.context.shutdown.clone());
        self.context.tasks.spawn(async move {
            let api = Api::<CNINode>::all(context.client.clone());
            let removed = shutdown.run_until_cancelled(remove(&api, &node)).await;
            if let Some(Err(error)) = removed {
                tracing::debug!(%error, node = &*node, "CNINode cannot be removed");
            }
        });
    }

    /// Deletes the CNINodes of all nodes but `nodes`: their nodes were deleted while the controller was not
    /// running.
    pub(super) fn sweep(&self, nodes: BTreeSet<String>) {
        let (context, shutdown) = (self.context.clone(), self.context.shutdown.clone());
        self.context.tasks.spawn(async move {
            let api = Api::<CNINode>::all(context.client.clone());
            let swept = async {
                for found in api.list(&ListParams::default()).await? {
                    let name = found.name_any();
                    if !nodes.contains(&name) {
                        remove(&api, &name).await?;
                    }
                }
                Ok::<(), kube::Error>(())
            };
            if let Some(Err(error)) = shutdown.run_until_cancelled(swept).await {
                tracing::debug!(%error, "CNINodes cannot be swept");
            }
        });
    }

    /// Writes to the node's capacity how many of its pods can have an address.
    pub(super) fn advertise(&self, lifetime: NodeLifetime, capacity: usize) {
        let api = Api::<Node>::all(self.context.client.clone());
        let patch = json!({"status": {"capacity": {PRIVATE_IPV4: capacity.to_string()}}});
        self.spawn(async move {
            let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
            let written = api.patch_status(&lifetime.node, &params, &patch).await;
            if let Err(error) = &written {
                tracing::debug!(%error, node = &*lifetime.node, "capacity cannot be written");
            }
            Report::Advertised(lifetime, written.is_ok())
        });
    }
}

/// Returns the status of a node's CNINode. If it cannot be read, no address counts as warm.
async fn read_record(api: &Api<CNINode>, node: &str) -> Option<Ipv4Status> {
    match api.get_opt(node).await {
        Ok(found) => found?.status?.ipv4,
        Err(error) => {
            tracing::debug!(%error, node, "CNINode cannot be read");
            None
        }
    }
}

/// Limits the time of a call. EC2 may have carried out a call that timed out, or may still do so.
async fn limited<T>(
    call: impl Future<Output = Result<T, AddressError>>,
) -> Result<T, AddressError> {
    let ended = timeout(PATIENCE, call).await;
    ended.unwrap_or(Err(AddressError::NoAnswer))
}

async fn annotate(api: &Api<Pod>, name: &str, uid: &PodUid, address: Cidr) -> AnnotationResult {
    let text = address.to_string();
    let patch = Patch::Merge(json!({"metadata": {
        "uid": uid.as_str(),
        "annotations": {PRIVATE_IPV4: text},
    }}));
    loop {
        match api.patch(name, &PatchParams::default(), &patch).await {
            Ok(_) => return AnnotationResult::Written,
            Err(error) => {
                // A conflict may mean that another pod has the name now, or that another client changed this pod.
                if let Some(status) = api_error::status(&error)
                    && (400..500).contains(&status.code)
                    && ![409, 429].contains(&status.code)
                {
                    tracing::debug!(%error, pod = name, "annotation refused");
                    return if api_error::is_not_found(&error) {
                        AnnotationResult::Gone
                    } else {
                        AnnotationResult::Refused
                    };
                }
                tracing::debug!(%error, pod = name, "whether the annotation was written is not known");
            }
        }
        // After a time-out the patch may still arrive, so the pod is read until one of the two outcomes
        // shows.
        sleep(LOOK_UP_AFTER).await;
        match api.get_opt(name).await {
            Ok(Some(pod)) if pod.metadata.uid.as_deref() == Some(uid.as_str()) => {
                if pod.annotations().get(PRIVATE_IPV4) == Some(&text) {
                    return AnnotationResult::Written;
                }
            }
            Ok(_) => return AnnotationResult::Gone,
            Err(error) => tracing::debug!(%error, pod = name, "the pod cannot be read"),
        }
    }
}

fn cni_node(node: &Node) -> CNINode {
    let mut wanted = CNINode::new(&node.name_any(), CNINodeSpec::default());
    wanted.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    wanted.metadata.owner_references = kube::Resource::owner_ref(node, &()).map(|mut owner| {
        // VRC names the node as a plain owner, so that garbage collection removes the CNINode with it.
        owner.controller = None;
        vec![owner]
    });
    wanted
}

async fn record(
    api: &Api<CNINode>,
    name: &str,
    wanted: CNINode,
    status: Ipv4Status,
) -> kube::Result<()> {
    let ipv4 = Some(status);
    // A merge patch replaces lists as a whole, but empty lists are omitted when serialized, so they are added here.
    let mut patch = json!({"status": CNINodeStatus { ipv4 }});
    for list in ["warmAddresses", "givingBack"] {
        let field = &mut patch["status"]["ipv4"][list];
        if field.is_null() {
            *field = json!([]);
        }
    }
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match api.patch_status(name, &params, &patch).await {
        Err(error) if api_error::is_not_found(&error) => {
            match api.create(&PostParams::default(), &wanted).await {
                // The kind is not served, so no controller reads the status either.
                Err(error) if api_error::is_not_found(&error) => return Ok(()),
                Err(error) if api_error::is_already_exists(&error) => {}
                created => drop(created?),
            }
            api.patch_status(name, &params, &patch).await.map(drop)
        }
        written => written.map(drop),
    }
}

async fn remove(api: &Api<CNINode>, name: &str) -> kube::Result<()> {
    // The finalizer keeps others from deleting the CNINode of a live node; here the node is gone, so it is
    // released.
    api_error::ignore_not_found(api.delete(name, &DeleteParams::default()).await)?;
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let released = api.patch(name, &PatchParams::default(), &patch).await;
    api_error::ignore_not_found(released).map(drop)
}
