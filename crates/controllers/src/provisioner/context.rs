//! What the node-provisioning controllers share: the cloud provider, informers of Karpenter's resources, the decision log.
//!
//! Invariant: all of them use one Kubernetes client; the state kept here (nominations, results of launches) only saves work
//! and may be lost at any time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, PodTemplate};
use kube::{Api, Client, ResourceExt, api::DeleteParams, runtime::watcher};
use mullion_api::{
    capacity_buffer::CapacityBuffer,
    eksctl::KubernetesVersion,
    karpenter::{ConsolidationPolicy, EC2NodeClass, NodeClaim, NodeOverlay, NodePool},
    labels,
};
use mullion_cloud::{CloudError, CloudProvider, InstanceId, WindowsAddresses, instance_id};
use mullion_engine::ip::Settings;
use tokio::time::{sleep, timeout};

use super::{
    Batcher, DecisionLog, FeatureGates,
    discovered::Discovered,
    full_subnets::FullSubnets,
    market::{Market, MarketError},
    metrics::{self, Metric, Metrics},
    nominations::Nominations,
    pending::is_reschedulable,
    risk::SpotRisks,
};
use crate::{
    Context, Informer, Recorder, api_error, buffers, disruption::Disrupting,
    informers::BY_PROVIDER_ID, nodepool::health::Registrations, overlays, state::SharedState,
    static_pools, zonal_shift::ShiftedZones,
};

/// Index of NodeClaims by the id of their instance.
pub const BY_INSTANCE: &str = "instanceID";
/// Index of NodeClaims by NodePool.
pub const BY_POOL: &str = "nodepool";
/// Index of NodePools and NodeClaims by the name of their EC2NodeClass.
pub const BY_CLASS: &str = "nodeclass";

/// Namespace and name of the ConfigMap in which EKS configures the addresses of Windows pods.
const VPC_CNI: (&str, &str) = ("kube-system", "amazon-vpc-cni");

/// Settings for buying nodes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the cluster; part of instance names, tags and profiles.
    pub cluster: String,
    /// Kubernetes version of new nodes.
    pub version: KubernetesVersion,
    /// Seed for choosing among equally good nodes.
    pub seed: u64,
    /// Karpenter's feature gates.
    pub gates: FeatureGates,
    /// Batching of pods and the policies of plans.
    pub settings: super::Settings,
}

/// The shared context of the node-provisioning controllers. Cheap to clone.
#[derive(Clone)]
pub struct KarpenterContext {
    /// Client, clock, informers of the built-in kinds, shutdown.
    pub base: Context,
    /// The provider that launches instances.
    pub cloud: Arc<dyn CloudProvider>,
    /// The log of decisions.
    pub log: DecisionLog,
    /// Settings for buying nodes.
    pub options: Arc<Options>,
    /// NodePools, by class ([`BY_CLASS`]).
    pub pools: Informer<NodePool>,
    /// NodeClaims, indexed by provider id, instance, pool and class.
    pub claims: Informer<NodeClaim>,
    /// EC2NodeClasses.
    pub classes: Informer<EC2NodeClass>,
    /// NodeOverlays.
    pub overlays: Informer<NodeOverlay>,
    /// The NodeOverlays that are valid and applied.
    pub effective_overlays: overlays::EffectiveOverlays,
    /// CapacityBuffers.
    pub buffers: Informer<CapacityBuffer>,
    /// PodTemplates; watched while the gate `CapacityBuffer` is open.
    pub pod_templates: Informer<PodTemplate>,
    /// The chunks of CapacityBuffers.
    pub chunks: buffers::Buffers,
    /// The ConfigMap that configures the addresses of Windows pods.
    pub vpc_cni: Informer<ConfigMap>,
    /// The engine's cluster, shared with the scheduler.
    pub state: SharedState,
    /// Wakes the provisioner.
    pub batcher: Batcher,
    /// Nodes that pods are expected to be bound to.
    pub nominations: Nominations,
    /// Nodes that are being disrupted.
    pub disrupting: Disrupting,
    /// Karpenter's metrics.
    pub metrics: Metrics,
    /// The lock that lets one controller at a time create nodes of static pools.
    pub static_pool_lock: static_pools::StaticPoolLock,
    /// Discovered capacity of nodes.
    pub discovered: Discovered,
    /// Recent refusals and interruptions of spot offerings.
    pub risks: SpotRisks,
    /// The zones that the cluster is shifted away from.
    pub(crate) shifted_zones: ShiftedZones,
    /// The subnets in which launches found no address of late.
    pub(crate) full_subnets: FullSubnets,
    /// Results of the last launches of each pool.
    pub registrations: Registrations,
    /// Records events as the component `karpenter`.
    pub recorder: Recorder,
}

impl KarpenterContext {
    /// Creates the context from a base context; each informer starts with its first reader.
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
            // One named object is watched instead of all ConfigMaps of kube-system.
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
            effective_overlays: overlays::EffectiveOverlays::default(),
            vpc_cni,
            state: state.clone(),
            batcher: Batcher::new(options.settings.batch_idle, options.settings.batch_max),
            options: Arc::new(options),
            nominations: Nominations::default(),
            disrupting: Disrupting::default(),
            metrics: Metrics::default(),
            static_pool_lock: static_pools::StaticPoolLock::default(),
            discovered: Discovered::default(),
            risks: SpotRisks::default(),
            shifted_zones: ShiftedZones::default(),
            full_subnets: FullSubnets::default(),
            registrations: Registrations::default(),
            recorder: base.recorder("karpenter"),
            base: base.clone(),
        }
    }

    /// Waits until all informers have listed, the valid NodeOverlays are known and the discovered capacity is read; returns
    /// `false` on shutdown.
    pub async fn synced(&self) -> bool {
        let informers = &self.base.informers;
        let shutdown = &self.base.shutdown;
        // These two have no shutdown of their own, unlike the informers, whose waits end with
        // `false`.
        let overlays_known = shutdown.run_until_cancelled(self.effective_overlays.known());
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

    /// Returns how pods of the next Windows nodes get addresses. Without the ConfigMap: one secondary IP per pod,
    /// Karpenter's default.
    pub fn windows_addresses(&self) -> WindowsAddresses {
        let config = self.vpc_cni.get(VPC_CNI.0, VPC_CNI.1);
        config.map_or_else(WindowsAddresses::default, |config| {
            let data = config.data.clone().unwrap_or_default();
            WindowsAddresses::of(&Settings::read(&data).0)
        })
    }

    /// Returns the offerings that a class can buy now, with settings, spot risks and discovered capacity applied.
    ///
    /// # Errors
    /// Returns an error if the class is incomplete or the cloud does not answer.
    pub(crate) async fn market(&self, class: &EC2NodeClass) -> Result<Market, MarketError> {
        let addresses = self.windows_addresses();
        let market = Market::open(class, self.options.version, addresses, &*self.cloud).await?;
        let now = self.base.clock.now();
        let market = market
            .with_settings(&self.options.settings)
            .without_zones(&self.shifted_zones.at(now))
            .without_zones_named(&self.full_subnets.zones(class, now))
            .with_risks(&self.risks, now)
            .with_discovered(class, &self.discovered.records());
        let markets = &self.metrics.markets;
        markets.keep(class.name_any(), market.clone());
        Ok(market)
    }

    /// Returns the claim of a node, by provider id.
    pub fn claim_of(&self, node: &Node) -> Option<Arc<NodeClaim>> {
        let id = node.spec.as_ref()?.provider_id.as_deref()?;
        let found = self.claims.by_index(BY_PROVIDER_ID, id);
        found.into_iter().next()
    }

    /// Returns the claim behind a place of a plan, which is the name of a node or of a claim.
    pub(crate) fn claim_at(&self, place: &str) -> Option<Arc<NodeClaim>> {
        match self.base.informers.nodes.get("", place) {
            Some(node) => self.claim_of(&node),
            None => self.claims.get("", place),
        }
    }

    /// Returns the node of a claim: the one that the claim names, or the first with its provider id.
    pub fn node_of(&self, claim: &NodeClaim) -> Option<Arc<Node>> {
        claim.provider_id()?;
        let nodes = &self.base.informers.nodes;
        let named = claim.node_name().and_then(|name| nodes.get("", name));
        named.or_else(|| self.nodes_of(claim).into_iter().next())
    }

    /// Returns the nodes that have the provider id of a claim; more than one is an error of whoever registered them.
    pub(crate) fn nodes_of(&self, claim: &NodeClaim) -> Vec<Arc<Node>> {
        let nodes = &self.base.informers.nodes;
        let with_id = |id| nodes.by_index(BY_PROVIDER_ID, id);
        claim.provider_id().map(with_id).unwrap_or_default()
    }

    /// Returns the node of a claim if it holds room for chunks of CapacityBuffers.
    pub(crate) fn held_for_chunks(&self, claim: &NodeClaim) -> Option<Arc<Node>> {
        let node = self.node_of(claim)?;
        let [node_name, claim_name] = [&node.metadata.name, &claim.metadata.name]
            .map(|name| name.as_deref().unwrap_or_default());
        let holds = self.chunks.hold(node_name, claim_name);
        // Before the first plan it is not known which nodes hold chunks, so every node may.
        let may_hold = || self.options.gates.capacity_buffer && !self.buffers.list().is_empty();
        let holds = holds.unwrap_or_else(may_hold);
        holds.then_some(node)
    }

    /// Returns the pods bound to a node.
    pub fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        self.base
            .informers
            .pods
            .by_index(crate::informers::BY_NODE, node)
    }

    /// Returns the tags that every instance of this cluster has. A list by these tags excludes the
    /// instances of other clusters in the account (AWS provider: `instance.List`).
    pub(crate) fn instance_tags(&self) -> BTreeMap<String, String> {
        let any = |key: &str| (key.to_owned(), "*".to_owned());
        let cluster = (labels::CLUSTER_TAG.to_owned(), self.options.cluster.clone());
        [any(labels::NODEPOOL), any(labels::EC2NODECLASS), cluster].into()
    }

    /// Returns the API of NodeClaims.
    pub fn claim_api(&self) -> Api<NodeClaim> {
        Api::all(self.client())
    }

    /// Deletes a claim; succeeds if the claim is already gone.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or does not answer.
    pub async fn delete_claim(&self, name: &str) -> kube::Result<()> {
        let (api, params) = (self.claim_api(), DeleteParams::default());
        api_error::ignore_not_found(api.delete(name, &params).await).map(drop)
    }

    /// Waits until the informer shows that a claim is being deleted, so that the next reader does not count it; five seconds
    /// at most.
    pub(crate) async fn wait_until_going(&self, claim: &str) {
        const PATIENCE: Duration = Duration::from_secs(5);
        let stays = |claim: &NodeClaim| claim.metadata.deletion_timestamp.is_none();
        let seen = async {
            while self.claims.get("", claim).is_some_and(|own| stays(&own)) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        // After a timeout the next reconciliation sees the deletion.
        let _ = timeout(PATIENCE, seen).await;
    }

    /// Returns Karpenter's metrics in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        self.metrics.text(metrics::now(self))
    }

    /// Counts a claim as disrupted, with the pods on its node that must be rescheduled. `policy` is the pool's consolidation
    /// policy if consolidation disrupts the claim.
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

    /// Ends an instance in a zone, which is named by its name and its id, and counts if the cloud refuses that.
    ///
    /// # Errors
    /// Returns the cloud's error.
    pub(crate) async fn terminate(
        &self,
        instance: InstanceId,
        (zone, zone_id): (&str, &str),
    ) -> Result<(), CloudError> {
        let ended = self.cloud.terminate(instance).await;
        if ended.as_ref().is_err_and(|error| !error.is_not_found()) {
            // An instance that is gone already is what the caller wanted, so it is no failure.
            let labels = [("zone", zone), ("zone_id", zone_id)];
            self.metrics.count(Metric::TerminationFailures, &labels);
        }
        ended
    }

    /// Returns the API of NodePools.
    pub fn pool_api(&self) -> Api<NodePool> {
        Api::all(self.client())
    }

    /// Returns the API of EC2NodeClasses.
    pub fn class_api(&self) -> Api<EC2NodeClass> {
        Api::all(self.client())
    }

    /// Returns the API of nodes.
    pub fn node_api(&self) -> Api<Node> {
        Api::all(self.client())
    }

    fn client(&self) -> Client {
        self.base.client.clone()
    }
}

/// Returns whether a node was bought by these controllers, which the NodePool label shows.
pub fn is_managed(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels.is_some_and(|own| own.contains_key(labels::NODEPOOL))
}
