//! What the controllers of nodes-on-demand share: the cloud, Karpenter's resources, the decision log.
//!
//! Invariant: all of them talk through the one client; what they remember here (nominations, how launches ended)
//! only spares work and may be lost at any time.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, PodTemplate};
use kube::{Api, Client, api::DeleteParams, runtime::watcher};
use mullion_api::{
    capacity_buffer::CapacityBuffer,
    eksctl::KubernetesVersion,
    karpenter::{ConsolidationPolicy, EC2NodeClass, NodeClaim, NodeOverlay, NodePool},
    labels,
};
use mullion_cloud::{CloudProvider, WindowsAddresses, instance_id};
use mullion_engine::ip::Settings;
use tokio::time::{sleep, timeout};

use super::{
    Batcher, DecisionLog, FeatureGates,
    discovered::Discovered,
    market::{Market, MarketError},
    metrics::{self, Metrics},
    nominations::Nominations,
    pending::is_reschedulable,
    risk::SpotRisks,
};
use crate::{
    Context, Informer, Recorder, api_error, buffers, disruption::Disrupting,
    nodepool::health::Registrations, overlays, state::SharedState, static_pools,
};

/// Index of NodeClaims by `status.providerID`.
pub const BY_PROVIDER_ID: &str = "providerID";
/// Index of NodeClaims by the id of their instance.
pub const BY_INSTANCE: &str = "instanceID";
/// Index of NodeClaims by NodePool.
pub const BY_POOL: &str = "nodepool";
/// Index of NodePools and NodeClaims by the name of their EC2NodeClass.
pub const BY_CLASS: &str = "nodeclass";

/// Namespace and name of the ConfigMap by which EKS switches addresses of Windows pods.
const VPC_CNI: (&str, &str) = ("kube-system", "amazon-vpc-cni");

/// How nodes are bought in this process.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the cluster; part of instance names, tags and profiles.
    pub cluster: String,
    /// Kubernetes version of new nodes.
    pub version: KubernetesVersion,
    /// Seed of ties between equally good nodes.
    pub seed: u64,
    /// Features that are off unless said otherwise.
    pub gates: FeatureGates,
    /// How pods are gathered and what plans heed.
    pub settings: super::Settings,
}

/// Shared surroundings of the controllers of nodes-on-demand. Cheap to clone.
#[derive(Clone)]
pub struct KarpenterContext {
    /// Client, clock, informers of the usual kinds, shutdown.
    pub base: Context,
    /// Where instances come from.
    pub cloud: Arc<dyn CloudProvider>,
    /// What was decided.
    pub log: DecisionLog,
    /// Settings.
    pub options: Arc<Options>,
    /// NodePools, by class ([`BY_CLASS`]).
    pub pools: Informer<NodePool>,
    /// NodeClaims, by provider id, instance, pool and class.
    pub claims: Informer<NodeClaim>,
    /// EC2NodeClasses.
    pub classes: Informer<EC2NodeClass>,
    /// NodeOverlays.
    pub overlays: Informer<NodeOverlay>,
    /// Those of them that count.
    pub counted_overlays: overlays::Counted,
    /// CapacityBuffers.
    pub buffers: Informer<CapacityBuffer>,
    /// PodTemplates; watched while the gate `CapacityBuffer` is open.
    pub pod_templates: Informer<PodTemplate>,
    /// The chunks of CapacityBuffers.
    pub chunks: buffers::Buffers,
    /// The ConfigMap that says how Windows pods get addresses.
    pub vpc_cni: Informer<ConfigMap>,
    /// The engine's cluster, which the scheduler decides on, too.
    pub state: SharedState,
    /// Wakes the provisioner.
    pub batcher: Batcher,
    /// Nodes that pods are about to go to.
    pub nominations: Nominations,
    /// Nodes that are being disrupted.
    pub disrupting: Disrupting,
    /// What is counted.
    pub metrics: Metrics,
    /// Who orders nodes of static pools at this moment.
    pub static_turn: static_pools::Turn,
    /// What nodes turned out to have.
    pub discovered: Discovered,
    /// What happened to spot offerings lately.
    pub risks: SpotRisks,
    /// How the last launches of each pool ended.
    pub registrations: Registrations,
    /// Events in Karpenter's name.
    pub recorder: Recorder,
}

impl KarpenterContext {
    /// Surroundings over a controller context; informers start with their first reader.
    pub fn new(
        base: &Context,
        state: &SharedState,
        cloud: Arc<dyn CloudProvider>,
        log: DecisionLog,
        options: Options,
    ) -> Self {
        let informer_parts = || (base.tasks.clone(), base.shutdown.clone());
        let (tasks, shutdown) = informer_parts();
        let pools = Informer::new(
            Api::all(base.client.clone()),
            &[(BY_CLASS, |pool: &NodePool, file_under| {
                file_under(&pool.spec.template.spec.node_class_ref.name);
            })],
            tasks,
            shutdown,
        );
        let (tasks, shutdown) = informer_parts();
        let claims = Informer::new(
            Api::all(base.client.clone()),
            &[
                (BY_PROVIDER_ID, |claim: &NodeClaim, file_under| {
                    file_under(claim.provider_id().unwrap_or_default());
                }),
                (BY_INSTANCE, |claim, file_under| {
                    let id = claim.provider_id().and_then(instance_id);
                    file_under(id.as_ref().map_or("", |id| &*id.0));
                }),
                (BY_POOL, |claim, file_under| {
                    file_under(claim.node_pool().unwrap_or_default());
                }),
                (BY_CLASS, |claim, file_under| {
                    file_under(&claim.spec.node_class_ref.name);
                }),
            ],
            tasks,
            shutdown,
        );
        let (tasks, shutdown) = informer_parts();
        let classes = Informer::new(Api::all(base.client.clone()), &[], tasks, shutdown);
        let (tasks, shutdown) = informer_parts();
        let overlays = Informer::new(Api::all(base.client.clone()), &[], tasks, shutdown);
        let (tasks, shutdown) = informer_parts();
        let buffers = Informer::new(Api::all(base.client.clone()), &[], tasks, shutdown);
        let (tasks, shutdown) = informer_parts();
        let pod_templates = Informer::new(Api::all(base.client.clone()), &[], tasks, shutdown);
        let (tasks, shutdown) = informer_parts();
        let vpc_cni = Informer::with_config(
            Api::<ConfigMap>::namespaced(base.client.clone(), VPC_CNI.0),
            watcher::Config::default().fields(&format!("metadata.name={}", VPC_CNI.1)),
            |_| {},
            &[],
            tasks,
            shutdown,
        );
        Self {
            cloud,
            log,
            pools,
            claims,
            classes,
            buffers,
            pod_templates,
            chunks: buffers::Buffers::default(),
            overlays,
            counted_overlays: overlays::Counted::default(),
            vpc_cni,
            state: state.clone(),
            batcher: Batcher::new(options.settings.batch_idle, options.settings.batch_max),
            options: Arc::new(options),
            nominations: Nominations::default(),
            disrupting: Disrupting::default(),
            metrics: Metrics::default(),
            static_turn: static_pools::Turn::default(),
            discovered: Discovered::default(),
            risks: SpotRisks::default(),
            registrations: Registrations::default(),
            recorder: base.recorder("karpenter"),
            base: base.clone(),
        }
    }

    /// Waits for the first complete picture of everything, which NodeOverlays count and what is kept of earlier nodes included; `false` on
    /// shutdown.
    pub async fn synced(&self) -> bool {
        let informers = &self.base.informers;
        let shutdown = &self.base.shutdown;
        let overlays_known = shutdown.run_until_cancelled(self.counted_overlays.known());
        let capacity_known = shutdown.run_until_cancelled(self.discovered.known());
        self.pools.synced().await
            && self.claims.synced().await
            && self.classes.synced().await
            && self.vpc_cni.synced().await
            && (!self.options.gates.capacity_buffer || self.buffers.synced().await)
            && overlays_known.await.is_some()
            && capacity_known.await.is_some()
            && informers.daemon_sets.synced().await
            && informers.nodes.synced().await
            && informers.pods.synced().await
            && informers.pod_disruption_budgets.synced().await
            && self.state.synced().await
    }

    /// Returns how pods of the next Windows nodes will get addresses. Where there is no ConfigMap, one by one, as Karpenter takes it.
    pub fn windows_addresses(&self) -> WindowsAddresses {
        let config = self.vpc_cni.get(VPC_CNI.0, VPC_CNI.1);
        config.map_or_else(WindowsAddresses::default, |config| {
            let data = config.data.clone().unwrap_or_default();
            WindowsAddresses::of(&Settings::read(&data).0)
        })
    }

    /// What a class can buy now.
    ///
    /// # Errors
    /// When the class is incomplete or the cloud does not answer.
    pub(crate) async fn market(&self, class: &EC2NodeClass) -> Result<Market, MarketError> {
        let addresses = self.windows_addresses();
        let market = Market::open(class, self.options.version, addresses, &*self.cloud).await?;
        Ok(market
            .with_settings(&self.options.settings)
            .with_risks(&self.risks)
            .with_discovered(class, &self.discovered.book()))
    }

    /// The claim behind a node, by provider id.
    pub fn claim_of(&self, node: &Node) -> Option<Arc<NodeClaim>> {
        let id = node.spec.as_ref()?.provider_id.as_deref()?;
        let found = self.claims.by_index(BY_PROVIDER_ID, id);
        found.into_iter().next()
    }

    /// The claim that is a place in a plan, or whose node is.
    pub(crate) fn claim_at(&self, place: &str) -> Option<Arc<NodeClaim>> {
        match self.base.informers.nodes.get("", place) {
            Some(node) => self.claim_of(&node),
            None => self.claims.get("", place),
        }
    }

    /// The node of a claim, by provider id.
    pub fn node_of(&self, claim: &NodeClaim) -> Option<Arc<Node>> {
        let id = claim.provider_id()?;
        let nodes = &self.base.informers.nodes;
        if let Some(node) = claim.node_name().and_then(|name| nodes.get("", name)) {
            return Some(node);
        }
        nodes.list().into_iter().find(|node| {
            let spec = node.spec.as_ref();
            spec.and_then(|spec| spec.provider_id.as_deref()) == Some(id)
        })
    }

    /// The node of a claim, if it holds room for chunks of CapacityBuffers.
    pub(crate) fn held_for_chunks(&self, claim: &NodeClaim) -> Option<Arc<Node>> {
        let node = self.node_of(claim)?;
        let [node_name, claim_name] = [&node.metadata.name, &claim.metadata.name]
            .map(|name| name.as_deref().unwrap_or_default());
        let holds = self.chunks.hold(node_name, claim_name);
        // Before the first plan every node may.
        let may_hold = || self.options.gates.capacity_buffer && !self.buffers.list().is_empty();
        let holds = holds.unwrap_or_else(may_hold);
        holds.then_some(node)
    }

    /// The pods bound to a node.
    pub fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        self.base
            .informers
            .pods
            .by_index(crate::informers::BY_NODE, node)
    }

    /// API of NodeClaims.
    pub fn claim_api(&self) -> Api<NodeClaim> {
        Api::all(self.client())
    }

    /// Deletes a claim. One that is gone is no error.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub async fn delete_claim(&self, name: &str) -> kube::Result<()> {
        let (api, params) = (self.claim_api(), DeleteParams::default());
        api_error::ignore_not_found(api.delete(name, &params).await).map(drop)
    }

    /// Waits until the watch shows that a claim goes, so that who counts claims next does not count it; five seconds at most.
    pub(crate) async fn wait_until_going(&self, claim: &str) {
        const PATIENCE: Duration = Duration::from_secs(5);
        let stays = |claim: &NodeClaim| claim.metadata.deletion_timestamp.is_none();
        let seen = async {
            while self.claims.get("", claim).is_some_and(|own| stays(&own)) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        // What the watch shows late is seen by the next look.
        let _ = timeout(PATIENCE, seen).await;
    }

    /// Returns Karpenter's metrics in the text format of Prometheus.
    pub fn metrics_text(&self) -> String {
        self.metrics.text(metrics::now(self))
    }

    /// Counts a claim as disrupted, with the pods of its node that need another place. `policy` is its pool's, if consolidation disrupts it.
    pub(crate) fn count_disrupted(
        &self,
        claim: &NodeClaim,
        policy: Option<ConsolidationPolicy>,
        reason: &str,
    ) {
        let on_node = claim.node_name().map(|node| self.pods_on(node));
        let pods = on_node.iter().flatten().filter(|pod| is_reschedulable(pod));
        self.metrics.disrupted(claim, policy, reason, pods.count());
    }

    /// API of NodePools.
    pub fn pool_api(&self) -> Api<NodePool> {
        Api::all(self.client())
    }

    /// API of EC2NodeClasses.
    pub fn class_api(&self) -> Api<EC2NodeClass> {
        Api::all(self.client())
    }

    /// API of nodes.
    pub fn node_api(&self) -> Api<Node> {
        Api::all(self.client())
    }

    fn client(&self) -> Client {
        self.base.client.clone()
    }
}

/// Whether a node was bought by these controllers and not made by a node group.
pub fn is_managed(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels.is_some_and(|own| own.contains_key(labels::NODEPOOL))
}
