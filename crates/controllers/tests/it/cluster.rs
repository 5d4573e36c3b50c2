//! The built-in controllers over the embedded API server, with pods played by the test instead of kubelets.
//!
//! Every pod that comes is bound to a node, runs and is ready at once, and is gone as soon as it is deleted, unless the
//! test says otherwise. Time is paused: whoever waits lets it pass.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet},
    core::v1::{Event, Node, Pod},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{DynamicObject, GroupVersionKind},
    discovery::pinned_kind,
};
use mullion_controllers::{
    Context, Key, Queue, autoscaler, cluster_role_aggregation, gc, namespace, pdb, podgc,
    pods::{is_deleting, is_ready, node_name, phase},
    quota,
    service::{self, ElasticLoadBalancers},
    serviceaccount, volume_protection, workloads,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{gauges::Gauges, served};

/// Longer than anything a test waits for.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How often a condition is looked at, in paused time.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct Cluster {
    pub(crate) context: Context,
    pub(crate) stage: Arc<Stage>,
}

/// What the test lets happen to pods.
#[derive(Default)]
pub(crate) struct Stage {
    /// Images whose pods run but do not become ready.
    unready: Mutex<BTreeSet<String>>,
    /// Pods are left alone: never bound, never started.
    frozen: Mutex<bool>,
}

impl Cluster {
    /// All controllers of this crate that need neither nodes nor a cloud.
    pub(crate) async fn start() -> Self {
        Self::over(served::context()).await
    }

    /// The same with `metrics.k8s.io` and autoscalers.
    pub(crate) async fn with_gauges() -> (Self, Gauges) {
        let gauges = Gauges::default();
        let context = served::context_with(vec![gauges.provided()]);
        gauges.serve(&context);
        (Self::over(context).await, gauges)
    }

    async fn over(context: Context) -> Self {
        autoscaler::start(&context, autoscaler::PERIOD);
        workloads::start(&context);
        service::start(&context, Arc::new(ElasticLoadBalancers::new("us-west-2")));
        serviceaccount::start(&context, Some("-----BEGIN CERTIFICATE-----".into()));
        namespace::start(&context);
        cluster_role_aggregation::start(&context);
        gc::start(&context);
        pdb::start(&context);
        quota::start(&context);
        podgc::start(&context);
        volume_protection::start(&context);
        let stage = Arc::new(Stage::default());
        play(&context, &stage);
        let cluster = Self { context, stage };
        let accounts = cluster.context.informers.service_accounts.clone();
        cluster
            .until("there is a default service account", || {
                accounts.get("default", "default")
            })
            .await;
        cluster
    }

    /// Pods of `image` do not become ready from now on (or do again).
    pub(crate) fn set_ready(&self, image: &str, ready: bool) {
        let mut unready = self.stage.unready.lock().expect("not poisoned");
        if ready {
            unready.remove(image)
        } else {
            unready.insert(image.to_owned())
        };
    }

    /// Pods are left alone from now on.
    pub(crate) fn freeze(&self) {
        *self.stage.frozen.lock().expect("not poisoned") = true;
    }

    /// A node without kubelet.
    pub(crate) async fn node(&self, name: &str, labels: Value, taints: Value) {
        self.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})).await;
        // A new node is tainted as not ready until it says otherwise, which nobody does for this one.
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        nodes
            .patch(name, &PatchParams::default(), &patch)
            .await
            .expect("it is accepted");
    }

    /// Creates any object, in namespace `default` unless it says otherwise.
    pub(crate) async fn create(&self, object: Value) -> DynamicObject {
        let (api, object) = self.address(object).await;
        api.create(&PostParams::default(), &object)
            .await
            .expect("it is accepted")
    }

    async fn address(&self, object: Value) -> (Api<DynamicObject>, DynamicObject) {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let types = object.types.clone().expect("apiVersion and kind");
        let (group, version) = types
            .api_version
            .split_once('/')
            .unwrap_or(("", &types.api_version));
        let gvk = GroupVersionKind::gvk(group, version, &types.kind);
        let (resource, capabilities) = pinned_kind(&self.context.client, &gvk)
            .await
            .expect("a served kind");
        let api = if capabilities.scope == kube::discovery::Scope::Namespaced {
            let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
            Api::namespaced_with(self.context.client.clone(), &namespace, &resource)
        } else {
            Api::all_with(self.context.client.clone(), &resource)
        };
        (api, object)
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.context.client.clone(), "default")
    }

    pub(crate) async fn patch<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let patch = Patch::Strategic(patch);
        self.api::<K>()
            .patch(name, &PatchParams::default(), &patch)
            .await
            .expect("it is accepted")
    }

    pub(crate) async fn delete<K>(&self, name: &str, params: &DeleteParams)
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        self.api::<K>()
            .delete(name, params)
            .await
            .expect("it is there");
    }

    pub(crate) fn deployment(&self, name: &str) -> Option<Arc<Deployment>> {
        self.context.informers.deployments.get("default", name)
    }

    pub(crate) fn daemon_set(&self, name: &str) -> Option<Arc<DaemonSet>> {
        self.context.informers.daemon_sets.get("default", name)
    }

    /// The Deployment's ReplicaSets by revision.
    pub(crate) fn replica_sets(&self, deployment: &str) -> Vec<Arc<ReplicaSet>> {
        let owned = |set: &Arc<ReplicaSet>| {
            set.owner_references()
                .iter()
                .any(|owner| owner.name == deployment)
        };
        let mut sets: Vec<_> = self
            .context
            .informers
            .replica_sets
            .list()
            .into_iter()
            .filter(owned)
            .collect();
        let revision = |set: &ReplicaSet| {
            let text = set.annotations().get("deployment.kubernetes.io/revision");
            text.and_then(|text| text.parse::<u32>().ok())
        };
        sets.sort_by_key(|set| revision(set));
        sets
    }

    /// Active pods labelled `app=<app>`.
    pub(crate) fn pods(&self, app: &str) -> Vec<Arc<Pod>> {
        let labelled = |pod: &Arc<Pod>| {
            pod.labels().get("app").is_some_and(|label| label == app) && !is_deleting(pod)
        };
        self.context
            .informers
            .pods
            .list()
            .into_iter()
            .filter(labelled)
            .collect()
    }

    /// Waits until the Deployment is rolled out as its spec says.
    pub(crate) async fn rolled_out(&self, name: &str) -> Arc<Deployment> {
        self.until(&format!("{name} is rolled out"), || {
            let deployment = self.deployment(name)?;
            let (spec, status) = (deployment.spec.as_ref()?, deployment.status.as_ref()?);
            let all = |count: Option<i32>| count.unwrap_or_default() == spec.replicas.unwrap_or(1);
            let done = status.observed_generation == deployment.metadata.generation
                && all(status.replicas)
                && all(status.updated_replicas)
                && all(status.available_replicas);
            let progressing = status
                .conditions
                .iter()
                .flatten()
                .find(|condition| condition.type_ == "Progressing");
            let settled = progressing
                .is_none_or(|one| one.reason.as_deref() == Some("NewReplicaSetAvailable"));
            (done && settled).then(|| Arc::clone(&deployment))
        })
        .await
    }

    /// Lets time pass until `look` finds what it looks for.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                // First of all, so that informers have seen what the test has just done.
                tokio::time::sleep(LOOK).await;
                if let Some(found) = look() {
                    return found;
                }
            }
        });
        match waited.await {
            Ok(found) => found,
            Err(_) => panic!("never came true: {what}"),
        }
    }

    /// Lets `seconds` pass.
    pub(crate) async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// Reason and message of the events about an object, oldest first.
    pub(crate) async fn events(&self, name: &str) -> Vec<(String, String)> {
        let events: Api<Event> = Api::all(self.context.client.clone());
        let params = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let mut events = events.list(&params).await.expect("events are listed").items;
        // Names end in the time of the first occurrence.
        events.sort_by_key(|event| {
            event
                .name_any()
                .rsplit_once('.')
                .map(|(_, time)| time.to_owned())
        });
        events
            .into_iter()
            .map(|e| (e.reason.unwrap_or_default(), e.message.unwrap_or_default()))
            .collect()
    }
}

/// Stands in for scheduler and kubelets.
fn play(context: &Context, stage: &Arc<Stage>) {
    let queue: Queue<Key> = Queue::new("play");
    context.informers.nodes.start();
    context.informers.pods.on_change({
        let queue = queue.clone();
        move |change| queue.add(Key::of(&**change.object()))
    });
    let (client, pods, nodes) = (
        context.client.clone(),
        context.informers.pods.clone(),
        context.informers.nodes.clone(),
    );
    let stage = Arc::clone(stage);
    queue.clone().run(context, 8, move |key| {
        let (client, stage, queue) = (client.clone(), Arc::clone(&stage), queue.clone());
        let (pod, nodes) = (pods.get_key(&key), nodes.list());
        async move {
            let Some(pod) = pod else { return Ok(()) };
            if *stage.frozen.lock().expect("not poisoned") {
                return Ok(());
            }
            let api: Api<Pod> = Api::namespaced(client, key.namespace());
            if is_deleting(&pod) {
                // A little later than at once, so that terminating pods can be seen.
                tokio::time::sleep(Duration::from_millis(200)).await;
                let deleted = api.delete(key.name(), &DeleteParams::default().grace_period(0)).await;
                return mullion_controllers::api_error::ignore_not_found(deleted).map(drop);
            }
            if node_name(&pod).is_empty() {
                if let Some(node) = place(&pod, &nodes) {
                    let binding = json!({"metadata": {"name": key.name()}, "target": {"kind": "Node", "name": node}});
                    let _: Value = api.create_subresource("binding", key.name(), &PostParams::default(), &binding).await?;
                    return Ok(());
                }
                if !nodes.is_empty() {
                    queue.add_after(key, Duration::from_secs(1));
                    return Ok(());
                }
            }
            start(&api, &pod, &stage).await
        }
    });
}

/// The node a daemon pod is meant for, else the first.
fn place(pod: &Pod, nodes: &[Arc<Node>]) -> Option<String> {
    let affinity = pod
        .spec
        .as_ref()?
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let field = required.and_then(|required| {
        required
            .node_selector_terms
            .first()?
            .match_fields
            .as_ref()?
            .first()
    });
    match field.and_then(|field| field.values.as_ref()?.first()) {
        Some(name) => Some(name.clone()),
        None => nodes.iter().map(|node| node.name_any()).min(),
    }
}

async fn start(api: &Api<Pod>, pod: &Pod, stage: &Stage) -> kube::Result<()> {
    let image = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.containers.first()?.image.clone())
        .unwrap_or_default();
    let ready = !stage.unready.lock().expect("not poisoned").contains(&image);
    if phase(pod) != "Pending" && (is_ready(pod) || !ready) {
        return Ok(());
    }
    let ip = address(pod);
    let status = json!({"status": {
        "phase": "Running",
        "startTime": now(pod),
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": now(pod)}],
    }});
    let patched = api
        .patch_status(
            &pod.name_any(),
            &PatchParams::default(),
            &Patch::Strategic(status),
        )
        .await;
    mullion_controllers::api_error::ignore_not_found(patched).map(drop)
}

/// Ready as soon as created is close enough: tests that care about time look at other things.
fn now(pod: &Pod) -> Value {
    serde_json::to_value(&pod.metadata.creation_timestamp).expect("it serializes")
}

fn address(pod: &Pod) -> String {
    let hash = pod.name_any().bytes().fold(7_u32, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    });
    let [_, b, c, d] = hash.to_be_bytes();
    format!("10.{b}.{c}.{}", d.max(1))
}

/// A Deployment of `replicas` pods of `image`, labelled `app=<name>`.
pub(crate) fn deployment(name: &str, replicas: i32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": image, "ports": [{"name": "http", "containerPort": 8080}]}]},
            },
        },
    })
}

/// The same as a DaemonSet.
pub(crate) fn daemon_set(name: &str, image: &str) -> Value {
    let mut set = deployment(name, 0, image);
    set["kind"] = json!("DaemonSet");
    set["spec"]
        .as_object_mut()
        .expect("an object")
        .remove("replicas");
    set
}

/// A ConfigMap with owners.
pub(crate) fn config_map(name: &str, owners: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}})
}

/// A reference to `owner` that may block its deletion.
pub(crate) fn owned_by<K: Serialize>(owner: &K, blocks: bool) -> Value {
    let owner = serde_json::to_value(owner).expect("it serializes");
    json!({
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": blocks,
    })
}
