//! A small cluster in one process: the API server, a client straight into its router, and machines that tests boot.
//!
//! Time is paused: whoever waits lets it pass, so an hour of cluster life costs what its events cost.

use std::{cell::RefCell, net::Ipv4Addr, sync::Arc, time::Duration};

use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Event, Node, Pod, ServiceAccount, Taint},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mullion_controllers::{
    Clock, Context,
    kubelet::{
        addresses::Addresses,
        driver::{self, MachineEvent, Options},
        node::NodeFacts,
        pace::Pace,
    },
};
use mullion_engine::windows::Build;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::served;

/// Longer than anything a test waits for.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How often a condition is looked at, in paused time.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) struct World {
    pub(crate) context: Context,
    machines: mpsc::UnboundedSender<MachineEvent>,
    booted: RefCell<Vec<NodeFacts>>,
}

impl World {
    /// An API server and simulated kubelets at `pace`; no nodes, no other controllers.
    pub(crate) async fn new(pace: Pace) -> Self {
        Self::by(served::clock(), pace).await
    }

    /// The same, with a clock of its own.
    pub(crate) async fn by(clock: Clock, pace: Pace) -> Self {
        let context = served::context_by(clock, Vec::new());
        let machines = start_kubelets(&context, pace);
        let world = Self {
            context,
            machines,
            booted: Default::default(),
        };
        // Pods are refused until their service account is there; a controller that is not part of this world makes it.
        world
            .create::<ServiceAccount>(serde_json::json!({ "metadata": { "name": "default" } }))
            .await;
        world
    }

    /// Boots a Linux machine and waits until its node is ready.
    pub(crate) async fn linux_node(&self) -> String {
        self.node("linux", None, &[]).await
    }

    /// Boots a Windows machine with `taints` (`key=value:Effect`) and waits until its node is ready.
    pub(crate) async fn windows_node(&self, build: Build, taints: &[&str]) -> String {
        self.node("windows", Some(build), taints).await
    }

    async fn node(&self, os: &str, windows_build: Option<Build>, taints: &[&str]) -> String {
        let number = u8::try_from(self.booted.borrow().len() + 1).expect("a few nodes");
        let amounts = [
            ("cpu", "4"),
            ("memory", "16Gi"),
            ("ephemeral-storage", "50Gi"),
            ("pods", "20"),
        ];
        let amounts = amounts.map(|(name, amount)| (name.to_owned(), amount.to_owned()));
        let name = format!("ip-10-0-{number}-1.us-west-2.compute.internal");
        let facts = NodeFacts {
            name: name.clone(),
            provider_id: format!("aws:///us-west-2a/i-{number:017x}"),
            instance_type: "c6a.xlarge".to_owned(),
            zone: "us-west-2a".to_owned(),
            region: "us-west-2".to_owned(),
            os: os.to_owned(),
            arch: "amd64".to_owned(),
            windows_build,
            internal_ip: Ipv4Addr::new(10, 0, number, 1),
            external_ip: None,
            subnet_prefix_len: 24,
            os_image: "Some OS".to_owned(),
            kernel_version: "1.2.3".to_owned(),
            container_runtime: "containerd://2.1.4".to_owned(),
            kubelet_version: "v1.36.0-eks-1".to_owned(),
            capacity: amounts.clone().into(),
            allocatable: amounts.into(),
            labels: Default::default(),
            taints: taints.iter().map(|taint| parse_taint(taint)).collect(),
            pull_speed: Default::default(),
        };
        self.boot(facts.clone());
        self.booted.borrow_mut().push(facts);
        self.until("the node is ready", || {
            let node = self.context.informers.nodes.get("", &name)?;
            (node_condition(&node, "Ready").as_deref() == Some("True")).then_some(())
        })
        .await;
        name
    }

    fn boot(&self, facts: NodeFacts) {
        let [a, b, c, _] = facts.internal_ip.octets();
        let addresses = Addresses::new((10..30).map(|host| Ipv4Addr::new(a, b, c, host)));
        self.tell(MachineEvent::Booted {
            facts: Box::new(facts),
            addresses,
        });
    }

    /// The same cluster after its controllers and kubelets were stopped and started again.
    pub(crate) async fn restarted(self, pace: Pace) -> Self {
        self.context.stop().await;
        let context = Context::new(self.context.client.clone(), self.context.clock.clone());
        let machines = start_kubelets(&context, pace);
        let world = Self {
            context,
            machines,
            booted: self.booted,
        };
        for facts in world.booted.borrow().iter() {
            world.boot(facts.clone());
        }
        world
    }

    /// Tells the kubelets about machines.
    pub(crate) fn tell(&self, machine: MachineEvent) {
        self.machines.send(machine).expect("the kubelets run");
    }

    /// Creates an object of namespace `default`.
    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).expect("an object of that kind");
        let api: Api<K> = Api::namespaced(self.context.client.clone(), "default");
        api.create(&PostParams::default(), &object)
            .await
            .expect("it is accepted")
    }

    pub(crate) async fn delete_pod(&self, name: &str) {
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), "default");
        pods.delete(name, &DeleteParams::default())
            .await
            .expect("it is there");
    }

    /// Patches a node with a JSON merge patch.
    pub(crate) async fn patch_node(&self, name: &str, patch: Value) {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("it is accepted");
    }

    /// The pod as the informer has it.
    pub(crate) fn pod(&self, name: &str) -> Option<Arc<Pod>> {
        self.context.informers.pods.get("default", name)
    }

    pub(crate) fn phase(&self, name: &str) -> Option<String> {
        self.pod(name)?.status.as_ref()?.phase.clone()
    }

    /// Reason and message of the pod's condition, where it is not True.
    pub(crate) fn unmet(&self, pod: &str, condition: &str) -> Option<(String, String)> {
        let pod = self.pod(pod)?;
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let condition = conditions
            .iter()
            .find(|c| c.type_ == condition && c.status != "True")?;
        Some((
            condition.reason.clone().unwrap_or_default(),
            condition.message.clone().unwrap_or_default(),
        ))
    }

    pub(crate) async fn until_running(&self, pod: &str) -> Arc<Pod> {
        self.until(&format!("{pod} runs"), || {
            let pod = self.pod(pod)?;
            let status = pod.status.as_ref()?;
            let ready = status
                .conditions
                .iter()
                .flatten()
                .any(|c| c.type_ == "Ready" && c.status == "True");
            (status.phase.as_deref() == Some("Running") && ready).then(|| Arc::clone(&pod))
        })
        .await
    }

    /// Lets time pass until `look` finds what it looks for.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        self.context.informers.pods.start();
        self.context.informers.nodes.start();
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(found) = look() {
                    return found;
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        match waited.await {
            Ok(found) => found,
            Err(_) => {
                let pods: Vec<_> = self
                    .context
                    .informers
                    .pods
                    .list()
                    .iter()
                    .map(|pod| pod.status.clone())
                    .collect();
                panic!("never came true: {what}; pods: {pods:#?}")
            }
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
        let events = events.list(&params).await.expect("events are listed");
        events
            .items
            .into_iter()
            .map(|e| (e.reason.unwrap_or_default(), e.message.unwrap_or_default()))
            .collect()
    }

    pub(crate) fn node_taints(&self, name: &str) -> Vec<String> {
        let Some(node) = self.context.informers.nodes.get("", name) else {
            return Vec::new();
        };
        let taints = node
            .spec
            .iter()
            .flat_map(|spec| spec.taints.iter().flatten());
        taints
            .map(|taint| format!("{}:{}", taint.key, taint.effect))
            .collect()
    }
}

fn start_kubelets(context: &Context, pace: Pace) -> mpsc::UnboundedSender<MachineEvent> {
    let (machines, receiver) = mpsc::unbounded_channel();
    let options = Options {
        pace,
        ..Options::default()
    };
    driver::start(context, options, receiver);
    machines
}

pub(crate) fn node_condition(node: &Node, name: &str) -> Option<String> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == name)
        .map(|condition| condition.status.clone())
}

fn parse_taint(text: &str) -> Taint {
    let (key, rest) = text.split_once('=').expect("key=value:Effect");
    let (value, effect) = rest.split_once(':').expect("key=value:Effect");
    Taint {
        key: key.to_owned(),
        value: Some(value.to_owned()),
        effect: effect.to_owned(),
        time_added: None,
    }
}

/// A pod of one container.
pub(crate) fn pod(name: &str, image: &str) -> Value {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "web", "image": image }] },
    })
}
