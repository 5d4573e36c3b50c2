//! A whole cluster in one process, with an EC2 that boots its kubelets.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Event, Node, Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    discovery::pinned_kind,
};
use mullion_api::{ami::AmiFamily, crds::crds, eksctl::KubernetesVersion, karpenter::NodeClaim};
use mullion_cloud::{
    CapacityType, CloudProvider, LaunchOption, LaunchRequest, NodeTemplate, Registration, Speed,
    sim::{Config, NodeProfiles, SimulatedEc2},
};
use mullion_controllers::{
    Context, gc, ipam,
    kubelet::{driver, machines, pace::Pace},
    namespace, node_lifecycle, pdb, podgc,
    provisioner::{self, DecisionLog, FeatureGates, KarpenterContext},
    scheduler, serviceaccount,
    state::SharedState,
    traces::{self, Tracer},
    workloads,
};
use serde_json::{Value, json};

use crate::served;

/// Longer than anything a test waits for.
const PATIENCE: Duration = Duration::from_secs(7200);
/// How often a condition is looked at, in paused time.
const LOOK: Duration = Duration::from_millis(250);

pub(crate) struct Whole {
    pub(crate) context: Context,
    pub(crate) ec2: SimulatedEc2,
    pub(crate) karpenter: KarpenterContext,
    pub(crate) log: DecisionLog,
    gates: FeatureGates,
}

impl Whole {
    /// A cluster `windows-karpenter-demo` of Kubernetes 1.27 at real speed, with one Linux node.
    pub(crate) async fn start() -> Self {
        Self::start_at(Speed::REAL).await
    }

    /// The same at another speed.
    pub(crate) async fn start_at(speed: Speed) -> Self {
        Self::start_with(speed, FeatureGates::default()).await
    }

    /// The same with other gates.
    pub(crate) async fn start_with(speed: Speed, gates: FeatureGates) -> Self {
        Self::start_as(
            served::context(),
            speed,
            gates,
            NodeProfiles::default(),
            (None, None),
        )
        .await
    }

    /// The same at real speed with subnets of this prefix length.
    pub(crate) async fn start_in_subnets(bits: u8) -> Self {
        let (gates, profiles) = (FeatureGates::default(), NodeProfiles::default());
        let context = served::context();
        Self::start_as(context, Speed::REAL, gates, profiles, (None, Some(bits))).await
    }

    /// The same at real speed with nodes that are not as the catalogue has them.
    pub(crate) async fn start_on(profiles: NodeProfiles) -> Self {
        let gates = FeatureGates::default();
        Self::start_as(
            served::context(),
            Speed::REAL,
            gates,
            profiles,
            (None, None),
        )
        .await
    }

    /// The same at real speed with a scheduler that knows nothing of plans, as kube-scheduler does: it shares no state with the provisioner. `seed`
    /// breaks ties between its nodes.
    pub(crate) async fn start_with_foreign_scheduler(seed: u64) -> Self {
        let gates = FeatureGates::default();
        let (context, profiles) = (served::context(), NodeProfiles::default());
        Self::start_as(context, Speed::REAL, gates, profiles, (Some(seed), None)).await
    }

    /// The same at real speed, with traces.
    pub(crate) async fn start_traced(traces: Tracer) -> Self {
        let context = served::context().with_traces(traces);
        let (gates, profiles) = (FeatureGates::default(), NodeProfiles::default());
        Self::start_as(context, Speed::REAL, gates, profiles, (None, None)).await
    }

    async fn start_as(
        context: Context,
        speed: Speed,
        gates: FeatureGates,
        node_profiles: NodeProfiles,
        (foreign_scheduler, subnet_bits): (Option<u64>, Option<u8>),
    ) -> Self {
        let version = KubernetesVersion::from_minor(27).expect("known");
        let definitions: Api<CustomResourceDefinition> = Api::all(context.client.clone());
        for crd in crds() {
            definitions
                .create(&PostParams::default(), &crd)
                .await
                .expect("our definitions are accepted");
        }
        let config = Config {
            speed,
            node_profiles,
            subnet_bits,
            ..Config::new("windows-karpenter-demo", "us-west-2", version)
        };
        let ec2 = SimulatedEc2::new(config, context.clock.clone());
        let log = DecisionLog::new(context.clock.clone(), 10_000);
        let placement = mullion_engine::Options { os_filter: true };
        let state = SharedState::new(&context, placement);
        let karpenter = buy_nodes(&context, &state, &ec2, &log, version, gates);
        let cloud: Arc<dyn CloudProvider> = Arc::new(ec2.clone());
        match foreign_scheduler {
            Some(seed) => {
                let own = SharedState::new(&context, mullion_engine::Options::default());
                scheduler::start_over(&context, &own, seed);
            }
            None => scheduler::start_over(&context, &state, 0),
        }
        workloads::start(&context);
        serviceaccount::start(&context, None);
        namespace::start(&context);
        gc::start(&context);
        pdb::start(&context);
        podgc::start(&context);
        node_lifecycle::start(&context, Some(cloud));
        ipam::start(&context, Arc::new(ec2.clone()), ipam::Mode::Auto);
        give_windows_addresses(&context).await;
        let options = driver::Options {
            pace: Pace::from(speed),
            ..driver::Options::default()
        };
        driver::start(&context, options, machines::follow(&context, ec2.clone()));
        let whole = Self {
            context,
            ec2,
            karpenter,
            log,
            gates,
        };
        let accounts = whole.context.informers.service_accounts.clone();
        accounts.start();
        whole
            .until("there is a service account", || {
                accounts.get("default", "default")
            })
            .await;
        whole.linux_node(version).await;
        whole
    }

    /// Ends the controllers of nodes-on-demand where they are and starts them afresh, with nothing remembered.
    pub(crate) async fn restart_karpenter(&mut self) {
        self.karpenter.base.stop().await;
        let version = self.ec2.config().version;
        let state = &self.karpenter.state;
        let (ec2, log) = (&self.ec2, &self.log);
        self.karpenter = buy_nodes(&self.context, state, ec2, log, version, self.gates);
    }

    /// The same with another way to the cloud.
    pub(crate) async fn restart_karpenter_on(&mut self, cloud: Arc<dyn CloudProvider>) {
        self.karpenter.base.stop().await;
        let version = self.ec2.config().version;
        let state = &self.karpenter.state;
        self.karpenter = buy_nodes_of(&self.context, state, cloud, &self.log, version, self.gates);
    }

    async fn linux_node(&self, version: KubernetesVersion) {
        let order = order("linux", NodeTemplate::new(AmiFamily::AmazonLinux2, version));
        self.ec2.launch(order).await.expect("there is capacity");
        self.until("the Linux node is ready", || {
            self.nodes().iter().any(|node| is_ready(node)).then_some(())
        })
        .await;
    }

    /// Applies the documents of a YAML text.
    pub(crate) async fn apply(&self, text: &str) {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
        for document in documents {
            self.create(document).await;
        }
    }

    /// Creates an object of any kind, namespaced ones in `default`.
    pub(crate) async fn create(&self, object: Value) {
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let gvk = GroupVersionKind::gvk(group, version, &kind);
        let (resource, capabilities) = pinned_kind(&self.context.client, &gvk)
            .await
            .expect("the kind is served");
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let client = self.context.client.clone();
        let api: Api<DynamicObject> = match capabilities.scope {
            kube::discovery::Scope::Namespaced => {
                Api::namespaced_with(client, "default", &resource)
            }
            kube::discovery::Scope::Cluster => Api::all_with(client, &resource),
        };
        api.create(&PostParams::default(), &object)
            .await
            .expect("it is accepted");
    }

    pub(crate) async fn patch<K>(&self, api: Api<K>, name: &str, patch: Value)
    where
        K: Clone + serde::de::DeserializeOwned + Debug,
    {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("it is accepted");
    }

    /// A deployment of `replicas` pods that ask for one Windows address each, on a build.
    pub(crate) async fn windows_deployment(&self, name: &str, build: &str, replicas: u32) {
        let image = format!(
            "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc{}",
            year(build)
        );
        let address = json!({ "vpc.amazonaws.com/PrivateIPv4Address": "1" });
        let spec = json!({
            "nodeSelector": { "kubernetes.io/os": "windows", "node.kubernetes.io/windows-build": build },
            "containers": [{ "name": "iis", "image": image, "resources": { "requests": address, "limits": address } }]
        });
        self.deployment(name, replicas, spec).await;
    }

    /// A deployment of pods with this spec.
    pub(crate) async fn deployment(&self, name: &str, replicas: u32, spec: Value) {
        self.create(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": { "metadata": { "labels": { "app": name } }, "spec": spec }
            }
        }))
        .await;
    }

    pub(crate) async fn delete<K>(&self, api: Api<K>, name: &str)
    where
        K: Clone + serde::de::DeserializeOwned + Debug,
    {
        api.delete(name, &DeleteParams::default())
            .await
            .expect("it is there");
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.context.informers.nodes.start();
        self.context.informers.nodes.list()
    }

    /// Nodes that were bought.
    pub(crate) fn bought(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.nodes();
        nodes.retain(|node| node.labels().contains_key("karpenter.sh/nodepool"));
        nodes
    }

    pub(crate) fn claims(&self) -> Vec<Arc<NodeClaim>> {
        self.karpenter.claims.list()
    }

    /// The claims as the API server has them, whoever runs.
    pub(crate) async fn claims_now(&self) -> Vec<NodeClaim> {
        let (claims, all) = (self.karpenter.claim_api(), ListParams::default());
        claims.list(&all).await.expect("claims are listed").items
    }

    pub(crate) fn pods(&self, app: &str) -> Vec<Arc<Pod>> {
        let mut pods = self.context.informers.pods.list();
        pods.retain(|pod| pod.labels().get("app").map(String::as_str) == Some(app));
        pods
    }

    pub(crate) async fn until_running(&self, app: &str, count: usize) {
        self.until(&format!("{count} pods of {app} are ready"), || {
            let pods = self.pods(app);
            let ready = pods
                .iter()
                .filter(|pod| mullion_controllers::pods::is_ready(pod))
                .count();
            (ready == count).then_some(())
        })
        .await;
    }

    /// Messages of the decision log, in order.
    pub(crate) fn story(&self) -> Vec<String> {
        let (lines, _) = self.log.since(0);
        let message = |text: &str| {
            let line: Value = serde_json::from_str(text).expect("every line is JSON");
            line["message"].as_str().unwrap_or_default().to_owned()
        };
        lines.iter().map(|line| message(&line.text)).collect()
    }

    /// The first line of the log with this message.
    pub(crate) fn line(&self, message: &str) -> Value {
        let (lines, _) = self.log.since(0);
        let parsed = lines
            .iter()
            .map(|line| serde_json::from_str::<Value>(&line.text).expect("every line is JSON"));
        let mut found = parsed.filter(|line| line["message"] == message);
        found
            .next()
            .unwrap_or_else(|| panic!("no line says {message:?}: {:#?}", self.story()))
    }

    /// Reason and message of the events about an object.
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

    /// Lets time pass until `look` finds what it looks for; gives how long that took, too.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
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
            Err(_) => panic!(
                "never came true: {what}\nlog: {:#?}\nclaims: {:#?}\npods: {:#?}\nnodes: {:#?}",
                self.log
                    .since(0)
                    .0
                    .iter()
                    .map(|line| line.text.clone())
                    .collect::<Vec<_>>(),
                self.claims()
                    .iter()
                    .map(|claim| (claim.name_any(), claim.status.clone()))
                    .collect::<Vec<_>>(),
                self.context
                    .informers
                    .pods
                    .list()
                    .iter()
                    .map(|pod| (
                        pod.name_any(),
                        pod.status
                            .as_ref()
                            .map(|s| (s.phase.clone(), s.conditions.clone()))
                    ))
                    .collect::<Vec<_>>(),
                self.nodes()
                    .iter()
                    .map(|node| (node.name_any(), node.spec.clone()))
                    .collect::<Vec<_>>(),
            ),
        }
    }

    /// Lets `seconds` pass.
    pub(crate) async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// Starts the controllers of nodes-on-demand in a context of their own.
fn buy_nodes(
    context: &Context,
    state: &SharedState,
    ec2: &SimulatedEc2,
    log: &DecisionLog,
    version: KubernetesVersion,
    gates: FeatureGates,
) -> KarpenterContext {
    let cloud = Arc::new(ec2.clone());
    buy_nodes_of(context, state, cloud, log, version, gates)
}

fn buy_nodes_of(
    context: &Context,
    state: &SharedState,
    cloud: Arc<dyn CloudProvider>,
    log: &DecisionLog,
    version: KubernetesVersion,
    gates: FeatureGates,
) -> KarpenterContext {
    let own = Context::new(context.client.clone(), context.clock.clone());
    let own = own.with_traces(context.traces.clone());
    let options = provisioner::Options {
        cluster: "windows-karpenter-demo".to_owned(),
        version,
        seed: 0,
        gates,
        settings: provisioner::Settings {
            zonal_shift: true,
            ..provisioner::Settings::default()
        },
    };
    let karpenter = provisioner::start(&own, state, cloud, log.clone(), options);
    traces::follow(&own, Some(&karpenter));
    karpenter
}

fn year(build: &str) -> &'static str {
    match build {
        "10.0.17763" => "2019",
        _ => "2022",
    }
}

/// An order of one m5.large for no pool.
pub(crate) fn order(token: &str, template: NodeTemplate) -> LaunchRequest {
    LaunchRequest {
        client_token: token.to_owned(),
        options: vec![LaunchOption {
            instance_type: "m5.large".to_owned(),
            zone: "us-west-2a".to_owned(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
            placement: None,
        }],
        images: Vec::new(),
        subnets: Vec::new(),
        security_groups: Vec::new(),
        template,
        registration: Registration::default(),
        tags: BTreeMap::new(),
        class: None,
    }
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Switches on the addresses of Windows pods.
async fn give_windows_addresses(context: &Context) {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), "kube-system");
    let map =
        json!({"metadata": {"name": "amazon-vpc-cni"}, "data": {"enable-windows-ipam": "true"}});
    let map = serde_json::from_value(map).expect("a ConfigMap");
    let created = maps.create(&PostParams::default(), &map).await;
    created.expect("it is accepted");
}
