//! A cluster of nodes without kubelets, and the controller under test.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Event, Namespace, Node, Pod, ServiceAccount},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mullion_api::{crds::crds, labels::PRIVATE_IPV4, vpc_resources::CNINode};
use mullion_cloud::Addresses;
use mullion_controllers::{
    Context,
    ipam::{self, metrics::Metrics},
};
use mullion_engine::ip::Cidr;
use serde_json::json;

use crate::{ec2::Ec2, served};

/// Longer than anything a test waits for.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How often a condition is looked at, in paused time.
const LOOK: Duration = Duration::from_millis(10);

pub(crate) struct World<C = Ec2> {
    pub(crate) context: Context,
    pub(crate) ec2: C,
    pub(crate) metrics: Metrics,
}

impl World {
    /// A cluster in which Windows pods get addresses, with the controller over `ec2`.
    pub(crate) async fn new(ec2: Ec2) -> Self {
        let world = Self::without_switch(ec2).await;
        world.configure(&[("enable-windows-ipam", "true")]).await;
        world
    }

    /// The same without the ConfigMap.
    pub(crate) async fn without_switch(ec2: Ec2) -> Self {
        Self::over(ec2).await
    }

    /// A ready Windows node on an instance of `i-0` and `name`.
    pub(crate) async fn node(&self, name: &str, instance_type: &str, slots: usize) {
        let id = format!("i-{name}");
        self.ec2.instance(&id, instance_type, slots);
        self.ready_node(name, &id).await;
    }
}

impl<C: Addresses + Clone + 'static> World<C> {
    /// A cluster without the ConfigMap, with the controller over `ec2`.
    pub(crate) async fn over(ec2: C) -> Self {
        Self::through(served::context(), ec2, |client| client).await
    }

    /// The same with a controller whose requests go through another client.
    pub(crate) async fn through(
        context: Context,
        ec2: C,
        client: impl FnOnce(Client) -> Client,
    ) -> Self {
        let definitions: Api<CustomResourceDefinition> = Api::all(context.client.clone());
        for crd in crds() {
            let created = definitions.create(&PostParams::default(), &crd).await;
            created.expect("our definitions are accepted");
        }
        let namespaces: Api<Namespace> = Api::all(context.client.clone());
        for name in ["default", "kube-system"] {
            let namespace = json!({"metadata": {"name": name}});
            let namespace = serde_json::from_value(namespace).expect("a namespace");
            // The API server may have made it.
            let _ = namespaces.create(&PostParams::default(), &namespace).await;
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(context.client.clone(), "default");
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}}));
        let account = account.expect("a service account");
        let created = accounts.create(&PostParams::default(), &account).await;
        created.expect("it is accepted");
        let client = client(context.client.clone());
        let seen = Context::new(client, context.clock.clone());
        let metrics = ipam::start(&seen, Arc::new(ec2.clone()), ipam::Mode::Auto);
        World {
            context: seen,
            ec2,
            metrics,
        }
    }

    /// The same cluster after the controller was killed and started again.
    pub(crate) async fn restarted(mut self) -> Self {
        self.restart().await;
        self
    }

    /// Kills the controller and starts it again.
    pub(crate) async fn restart(&mut self) {
        self.restart_as(ipam::Mode::Auto).await;
    }

    /// Kills the controller and starts it again in another mode.
    pub(crate) async fn restart_as(&mut self, mode: ipam::Mode) {
        self.context.stop().await;
        self.context = Context::new(self.context.client.clone(), self.context.clock.clone());
        self.metrics = ipam::start(&self.context, Arc::new(self.ec2.clone()), mode);
    }

    /// Writes the ConfigMap anew.
    pub(crate) async fn configure(&self, data: &[(&str, &str)]) {
        let api: Api<ConfigMap> = Api::namespaced(self.context.client.clone(), "kube-system");
        let data: BTreeMap<_, _> = data.iter().copied().collect();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"name": "amazon-vpc-cni"}});
        let params = PatchParams::apply("test").force();
        let written = api
            .patch("amazon-vpc-cni", &params, &Patch::Apply(map))
            .await;
        written.expect("it is accepted");
    }

    /// A ready Windows node on this instance.
    pub(crate) async fn ready_node(&self, name: &str, instance: &str) {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/os": "windows"}},
            "spec": {"providerID": format!("aws:///us-west-2a/{instance}")},
        });
        let node = serde_json::from_value(node).expect("a node");
        let created = nodes.create(&PostParams::default(), &node).await;
        created.expect("it is accepted");
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True",
            "lastHeartbeatTime": null, "lastTransitionTime": null, "reason": "KubeletReady", "message": ""}]}});
        let params = PatchParams::default();
        let written = nodes
            .patch_status(name, &params, &Patch::Merge(status))
            .await;
        written.expect("it is accepted");
    }

    /// A pod on `node` that asks for an address.
    pub(crate) async fn pod(&self, name: &str, node: &str) {
        let resources = json!({"requests": {PRIVATE_IPV4: "1"}, "limits": {PRIVATE_IPV4: "1"}});
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "web", "image": "iis", "resources": resources}]},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        let created = self.pods().create(&PostParams::default(), &pod).await;
        created.expect("it is accepted");
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.context.client.clone(), "default")
    }

    pub(crate) async fn delete_pod(&self, name: &str) {
        let params = DeleteParams::default().grace_period(0);
        self.pods()
            .delete(name, &params)
            .await
            .expect("it is there");
    }

    pub(crate) async fn delete_node(&self, name: &str) {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let deleted = nodes.delete(name, &DeleteParams::default()).await;
        deleted.expect("it is there");
    }

    /// Writes the phase of a pod.
    pub(crate) async fn phase(&self, name: &str, phase: &str) {
        let status = Patch::Merge(json!({"status": {"phase": phase}}));
        let (pods, params) = (self.pods(), PatchParams::default());
        let written = pods.patch_status(name, &params, &status);
        written.await.expect("it is accepted");
    }

    /// The pod's annotation.
    pub(crate) async fn annotation(&self, pod: &str) -> Option<String> {
        let pod = self.pods().get(pod).await.expect("it is there");
        pod.annotations().get(PRIVATE_IPV4).cloned()
    }

    /// The address that the pod has got, once it has one.
    pub(crate) async fn address(&self, pod: &str) -> Cidr {
        let what = format!("{pod} has an address");
        let text = self.until(&what, async || self.annotation(pod).await).await;
        text.parse().expect("an address with its mask")
    }

    /// The IPs of all pods that have one. No two are the same.
    pub(crate) async fn addresses(&self) -> BTreeMap<Ipv4Addr, String> {
        let pods = self.pods().list(&ListParams::default()).await;
        let mut all = BTreeMap::new();
        for pod in pods.expect("pods are listed") {
            if let Some(text) = pod.annotations().get(PRIVATE_IPV4) {
                let address: Cidr = text.parse().expect("an address with its mask");
                let other = all.insert(address.ip, pod.name_any());
                assert_eq!(other, None, "{} has the same {address}", pod.name_any());
            }
        }
        all
    }

    /// How many pods the node says can have an address.
    pub(crate) async fn capacity(&self, node: &str) -> Option<String> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let node = nodes.get(node).await.expect("it is there");
        let capacity = node.status?.capacity?;
        Some(capacity.get(PRIVATE_IPV4)?.0.clone())
    }

    pub(crate) async fn cni_node(&self, node: &str) -> Option<CNINode> {
        let nodes: Api<CNINode> = Api::all(self.context.client.clone());
        nodes.get_opt(node).await.expect("the kind is served")
    }

    /// Reason and message of the events about an object, oldest first.
    pub(crate) async fn events(&self, name: &str) -> Vec<(String, String)> {
        let events: Api<Event> = Api::all(self.context.client.clone());
        let params = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let events = events.list(&params).await.expect("events are listed");
        let words = |event: Event| {
            let reason = event.reason.unwrap_or_default();
            (reason, event.message.unwrap_or_default())
        };
        events.items.into_iter().map(words).collect()
    }

    /// Reason and message of the events about the object of a uid, each with how often it was sent.
    pub(crate) async fn counted_events(&self, uid: &str) -> BTreeMap<(String, String), i32> {
        let events: Api<Event> = Api::all(self.context.client.clone());
        let params = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let events = events.list(&params).await.expect("events are listed");
        let counted = |event: Event| {
            let words = (
                event.reason.unwrap_or_default(),
                event.message.unwrap_or_default(),
            );
            (words, event.count.unwrap_or(1))
        };
        events.items.into_iter().map(counted).collect()
    }

    /// Lets time pass until `look` finds what it looks for.
    pub(crate) async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        match waited.await {
            Ok(found) => found,
            Err(_) => panic!("never came true: {what}; {}", self.metrics.numbers().text()),
        }
    }

    /// Lets time pass until the node's capacity is `wanted`.
    pub(crate) async fn until_capacity(&self, node: &str, wanted: &str) {
        let what = format!("{node} has capacity {wanted}");
        let look = async || (self.capacity(node).await.as_deref() == Some(wanted)).then_some(());
        self.until(&what, look).await;
    }

    /// Lets `seconds` pass.
    pub(crate) async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}
