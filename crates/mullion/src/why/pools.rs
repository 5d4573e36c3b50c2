//! Determines what the state's NodePools can buy, by the provisioner's rules and the catalogue's prices, and what they have bought already.
//!
//! Prices and instance types come from the catalogue. What cannot be had at the moment is known of a simulated cloud only ([`faults`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use mullion_api::{
    account::{CapacityReservation, SimulatedAccount},
    eksctl::KubernetesVersion,
    karpenter::{
        EC2NodeClass, NodeClaim, NodeOverlay, NodePool, Operator, Requirement, SubnetStatus,
    },
    labels,
};
use mullion_cloud::{
    Clock, CloudProvider, Tenancy, WindowsAddresses,
    catalogue::{self, TypeLabel},
    sim::{Config, SimulatedEc2},
};
use mullion_controllers::{
    nodepool::class::reservation_status,
    overlays::{self, Verdict},
    provisioner::{
        self,
        in_flight::{expected_node, is_in_flight, prospect},
        market::{LEAST_WINDOWS_MIB, Market},
        markets::Markets,
        overhead, template,
    },
};
use mullion_engine::{
    Cluster, ModelError,
    ip::Settings,
    model::{OwnerRef, PodSpec, ResourceMap},
    provision::{self, InFlightNode, InstanceType, NodeTemplate, Plan, PlanRequest, PlannedNode},
    remedy::PrefixAddresses,
};

use super::{
    answer,
    buffers::Chunks,
    faults,
    state::State,
    subnets::{self, Subnets},
    unready,
};
use crate::failure::Failure;

/// The region that is assumed if the nodes do not name one.
pub(crate) const USUAL_REGION: &str = "us-west-2";

/// What can be bought, and which nodes are on their way.
#[derive(Default)]
pub(crate) struct Pools {
    pub(crate) templates: Vec<NodeTemplate>,
    pub(crate) in_flight: Vec<InFlightNode>,
    /// Existing nodes whose labels, taints or resources will change when they are initialized, as they will be then.
    pub(crate) reshaped: Vec<InFlightNode>,
    /// The object that a pool is a copy of, such as `Provisioner linux`, by the pool's name. Changes to the copy itself are undone.
    pub(crate) origins: BTreeMap<String, String>,
    /// The pools that buy nothing, each with the reason.
    pub(crate) unready: Vec<(String, String)>,
    /// Those of them that something outside their own requirements keeps from buying, such as their class, and whether their nodes would be
    /// Windows nodes.
    pub(super) broken: Vec<(String, bool)>,
    /// The pending pods, which share the nodes that are bought.
    pub(crate) waiting: Vec<PodSpec>,
    /// The chunks of CapacityBuffers, which are planned like pending pods.
    pub(crate) chunks: Vec<PodSpec>,
    /// The instance types that a pool does not buy for Windows because they are too small, cheapest first.
    pub(crate) too_small: BTreeMap<String, Vec<TooSmall>>,
    /// The number of addresses that Windows nodes have with prefix delegation, and whether it is on.
    pub(crate) prefixes: PrefixAddresses,
    /// Whether nodes are chosen by cost, as the provisioner does unless all pools are copies of Provisioners.
    pub(crate) by_cost: bool,
    /// The instance types and prices, by class and pool.
    pub(crate) markets: Markets,
    /// Remarks for the user about which NodeOverlays are in effect and which are not.
    pub(crate) overlays: Vec<String>,
    /// Remarks for the user about CapacityBuffers and faults of the simulated cloud.
    pub(crate) remarks: Vec<String>,
    /// The subnets of new nodes, and their free addresses as far as they are known.
    pub(crate) subnets: Subnets,
    /// How pods on new Windows nodes get addresses.
    pub(crate) windows: WindowsAddresses,
    /// The names of the SimulatedFaults that let a zone fail, by the zone.
    pub(super) outages: BTreeMap<String, String>,
    /// The nodes that are being removed. Their pods are among the pending ones.
    pub(crate) leaving: Vec<String>,
    /// The settings in the ConfigMap of the VPC resource controller, if it is known.
    pub(crate) address_settings: Option<Settings>,
    /// The settings of the provisioner.
    pub(crate) settings: provisioner::Settings,
    /// The namespace and name of each Windows pod that has an address.
    pub(crate) addressed: BTreeSet<(String, String)>,
}

/// Returns whether a pool's requirements ask for Windows nodes.
fn is_windows(pool: &NodePool) -> bool {
    let mut requirements = pool.spec.template.spec.requirements.iter();
    requirements.any(|own| {
        matches!(own.key.as_str(), labels::OS | labels::BETA_OS if own.values.iter().any(|value| value == labels::OS_WINDOWS))
            || own.key == labels::WINDOWS_BUILD
    })
}

/// An instance type that a pool's requirements allow, but that the pool does not buy.
pub(crate) struct TooSmall {
    instance_type: String,
    memory_mib: u64,
    price_micro_usd: u64,
    /// What is allocatable to pods and DaemonSets on the instance type.
    room: ResourceMap,
}

impl Pools {
    /// Returns the cheapest type that would hold the pods planned for a node at a lower price, but is not bought because it is too small
    /// for Windows.
    pub(crate) fn left_out_for(&self, node: &PlannedNode) -> Option<&TooSmall> {
        let price = node.options.first()?.price_micro_usd;
        let mut small = self.too_small.get(&node.pool)?.iter();
        let holds = |own: &TooSmall| {
            let has = |name: &String| own.room.get(name).copied().unwrap_or_default();
            node.requests
                .iter()
                .all(|(name, amount)| *amount <= has(name))
        };
        small.find(|own| own.price_micro_usd < price && holds(own))
    }
}

impl fmt::Display for TooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, mib) = (&self.instance_type, self.memory_mib);
        write!(
            f,
            "{kind} has {mib} MiB of memory, and types with less than {LEAST_WINDOWS_MIB} MiB are bought for Windows only where the NodePool's \
             requirements name instance types, sizes or memory"
        )
    }
}

/// Determines the pools of a state. Pools that are not ready, or whose class has no subnets, buy nothing; they are listed in `unready`.
pub(crate) async fn of(state: &State) -> Result<Pools, Failure> {
    let pools: Vec<NodePool> = state.kept("NodePool").map_err(Failure::input)?;
    let claims: Vec<NodeClaim> = state.kept("NodeClaim").map_err(Failure::input)?;
    let addresses = state.windows_addresses();
    let mut found = Pools {
        prefixes: prefixes(addresses),
        address_settings: state.address_settings(),
        addressed: state.pod_facts.addressed.clone(),
        windows: addresses,
        settings: state.settings,
        ..Pools::default()
    };
    let waits = |pod: &&PodSpec| {
        let waits = pod.node_name.is_none() && answer::passed_over(pod).is_none();
        let served = answer::unserved(&state.cluster, pod).is_none();
        waits && served && pod.template.scheduling_gates.is_empty()
    };
    found.waiting = state.pods.iter().filter(waits).cloned().collect();
    let chunks = Chunks::of(state)?;
    (found.chunks, found.remarks) = (chunks.pods, chunks.remarks);
    let accounts: Vec<SimulatedAccount> = state.kept("SimulatedAccount").map_err(Failure::input)?;
    if pools.is_empty() && claims.is_empty() {
        found.subnets = Subnets::of(&accounts, &[], &[], &[]);
        return Ok(found);
    }
    let mut classes: Vec<EC2NodeClass> = state.kept("EC2NodeClass").map_err(Failure::input)?;
    let daemons: Vec<DaemonSet> = state.kept("DaemonSet").map_err(Failure::input)?;
    let version = version(state);
    let region = classes
        .iter()
        .find_map(region)
        .unwrap_or(USUAL_REGION.to_owned());
    let zones: BTreeSet<String> = classes.iter().flat_map(zones).collect();
    // The simulated cloud is used only for its catalogue.
    let cloud = SimulatedEc2::new(
        Config {
            zones: zones.into_iter().collect(),
            ..Config::new("why", &region, version)
        },
        Clock::starting_at(Timestamp::UNIX_EPOCH),
    );
    // Before markets are opened, which offer the reserved machines.
    cloud.reserve(&unused(&accounts, &claims));
    resolve(&mut classes, &accounts, &cloud).await;
    let faults = faults::cause(state, &cloud)?;
    found.subnets = Subnets::of(&accounts, &classes, &pools, &claims);
    let has_faults = !faults.remarks.is_empty();
    found.remarks.extend(faults.remarks);
    found.remarks.extend(found.subnets.remark());
    found.outages = faults.outages;
    let shifted = cloud.zonal_shifts().await.unwrap_or_default();
    let shifted: BTreeSet<_> = shifted.into_iter().map(|shift| shift.zone_id).collect();
    let (discovered, risks) = (state.discovered_capacity(), state.spot_risks());
    let mut markets = BTreeMap::new();
    for class in &classes {
        if let Ok(market) = Market::open(class, version, addresses, &cloud).await {
            let market = market
                .with_settings(&state.settings)
                .without_zones(&shifted)
                .with_risks(&risks, Timestamp::now())
                .with_discovered(class, &discovered);
            let name = class.name_any();
            let full = found.subnets.full_zones(&name);
            let is_full = |zone: &str| full.is_some_and(|zones| zones.contains(zone));
            let market = if has_faults || full.is_some() {
                market.without_refused(|option| cloud.is_exhausted(option) || is_full(&option.zone))
            } else {
                market
            };
            markets.insert(name, market);
        }
    }
    found.markets = Markets::new(markets);
    found.overlay(state, &pools, &claims)?;
    let names_tenancy = names_tenancy(&state.pods, &pools);
    // The instance types that a class sells if pools set no requirements; by class, and by pool where pools differ.
    let mut for_sale: BTreeMap<(String, Option<String>), Vec<Arc<InstanceType>>> = BTreeMap::new();
    for pool in &pools {
        let name = pool.name_any();
        if let Some(origin) = pool.annotations().get(labels::MIRRORED_FROM) {
            found
                .origins
                .insert(name.clone(), origin.replacen('/', " ", 1));
        }
        let class = &pool.spec.template.spec.node_class_ref.name;
        let market = match found.markets.of_pool(pool) {
            _ if !template::may_buy(pool) => {
                let class = classes.iter().find(|own| own.name_any() == *class);
                Err(unready::reason(pool, class))
            }
            Some(market) => Ok(market),
            None => Err(format!(
                "its node class {class} is not there or not complete"
            )),
        };
        let market = match market {
            Ok(market) => market,
            Err(why) => {
                found.broken.push((name.clone(), is_windows(pool)));
                found.unready.push((name, why));
                continue;
            }
        };
        let requirements = &pool.spec.template.spec.requirements;
        if let Some(why) =
            unlisted(requirements).filter(|_| market.machines(requirements).is_empty())
        {
            found.unready.push((name, why));
            continue;
        }
        let small = market.too_small(requirements).into_iter();
        let small = small.map(|small| TooSmall {
            instance_type: small.name.to_string(),
            memory_mib: small.memory_mib,
            price_micro_usd: small.windows_price.map_or(u64::MAX, |price| price.0),
            room: market.room(small),
        });
        let small: Vec<_> = small.collect();
        if let Some(cheapest) = small.first() {
            if market.machines(requirements).is_empty() {
                found.unready.push((name, cheapest.to_string()));
                continue;
            }
            found.too_small.insert(name.clone(), small);
        }
        let own = |claim: &&NodeClaim| claim.labels().get(labels::NODEPOOL) == Some(&name);
        let own = claims.iter().filter(own);
        let is_overlaid = found.markets.is_overlaid(pool);
        let key = (class.clone(), is_overlaid.then(|| name.clone()));
        let for_sale = for_sale.entry(key);
        let mut template = template::of(pool, market, own, daemons.iter());
        // Dedicated machines multiply what is for sale, so they count only where somebody speaks of them.
        let open: &[Requirement] = if names_tenancy { &[any_tenancy()] } else { &[] };
        template.for_sale = for_sale.or_insert_with(|| market.machines(open)).clone();
        if names_tenancy && !requirements.iter().any(is_of_tenancy) {
            template.requirements.push(provision::Requirement {
                key: labels::INSTANCE_TENANCY.to_owned(),
                values: vec![Tenancy::Default.as_str().to_owned()],
                ..provision::Requirement::default()
            });
        }
        found.templates.push(template);
    }
    for claim in claims.iter().filter(|claim| is_in_flight(claim)) {
        let there = claim
            .node_name()
            .filter(|name| state.cluster.node(name).is_some());
        let market = found.markets.of_claim(claim);
        let node = expected_node(claim).or_else(|| template::expected_node(claim, market?));
        let Some(mut node) = node else { continue };
        node.name = there.unwrap_or(&node.name).to_owned();
        let sets = daemons
            .iter()
            .filter(|set| !there.is_some_and(|node| runs_on(set, node, state)));
        let pods = overhead::pods_on(sets, &prospect(claim), &node.name, addresses);
        let nodes = match there {
            // Its node exists but is not initialized, so it changes; a claim without a node adds one.
            Some(_) => &mut found.reshaped,
            None => &mut found.in_flight,
        };
        nodes.push(InFlightNode { node, pods });
    }
    let goes = |claim: &&NodeClaim| claim.metadata.deletion_timestamp.is_some();
    let leaving = claims.iter().filter(goes).filter_map(NodeClaim::node_name);
    found.leaving = leaving.map(str::to_owned).collect();
    found.by_cost = pools.is_empty() || found.origins.len() < pools.len();
    Ok(found)
}

/// Returns whether a pod or a pool speaks of the tenancy of nodes.
fn names_tenancy(pods: &[PodSpec], pools: &[NodePool]) -> bool {
    let mut pools = pools.iter();
    let by_pool =
        pools.any(|pool| (pool.spec.template.spec.requirements.iter()).any(is_of_tenancy));
    by_pool
        || pods.iter().any(|pod| {
            let template = &pod.template;
            let affinity = template.affinity.node_affinity.iter();
            let required = affinity.flat_map(|own| &own.required);
            let mut terms = required.flat_map(|own| &own.node_selector_terms);
            template
                .node_selector
                .contains_key(labels::INSTANCE_TENANCY)
                || terms.any(|term| {
                    let mut demands = term.match_expressions.iter();
                    demands.any(|own| own.key == labels::INSTANCE_TENANCY)
                })
        })
}

fn is_of_tenancy(requirement: &Requirement) -> bool {
    requirement.key == labels::INSTANCE_TENANCY
}

/// Returns a requirement that nodes of every tenancy meet.
fn any_tenancy() -> Requirement {
    Requirement::new(
        labels::INSTANCE_TENANCY,
        Operator::Exists,
        std::iter::empty::<&str>(),
    )
}

/// Returns the sentence about a requirement that names instance types, families or sizes none of which is in the catalogue.
pub(crate) fn unlisted(requirements: &[Requirement]) -> Option<String> {
    requirements.iter().find_map(|own| {
        let label = TypeLabel::of(&own.key).filter(|_| own.operator == Operator::In)?;
        let is_listed = |value: &String| label.lists(value);
        if own.values.is_empty() || own.values.iter().any(is_listed) {
            return None;
        }
        let near: Vec<_> = own
            .values
            .iter()
            .flat_map(|value| label.nearest(value))
            .collect();
        let near = match near.as_slice() {
            [] => String::new(),
            near => format!(" (nearest: {})", near.join(", ")),
        };
        Some(format!(
            "as far as this version knows, there is no {} {}{near}, and no other is allowed by the requirement {}",
            label.noun(),
            own.values.join(", "),
            own.key
        ))
    })
}

/// Returns whether a node has a pod of a DaemonSet.
fn runs_on(set: &DaemonSet, node: &str, state: &State) -> bool {
    let owner = OwnerRef::new("apps/v1", "DaemonSet", &set.name_any());
    let namespace = set.namespace().unwrap_or_default();
    state.pods.iter().any(|pod| {
        pod.node_name.as_deref() == Some(node)
            && pod.template.owner.as_ref() == Some(&owner)
            && pod.template.namespace == namespace
    })
}

impl Pools {
    /// Makes a plan without nodes for which no subnet has a free address.
    ///
    /// # Errors
    /// A pod, a node or a pool has an impossible amount of a resource, such as a negative one.
    pub(crate) fn plan(
        &self,
        cluster: &mut Cluster,
        request: &PlanRequest,
    ) -> Result<Plan, ModelError> {
        cluster.plan_with_addresses(request, &self.subnets.addresses)
    }

    /// Applies the NodeOverlays of a state, and records which are in effect and which are not.
    fn overlay(
        &mut self,
        state: &State,
        pools: &[NodePool],
        claims: &[NodeClaim],
    ) -> Result<(), Failure> {
        let all: Vec<NodeOverlay> = state.kept("NodeOverlay").map_err(Failure::input)?;
        let (out, asked): (Vec<_>, Vec<_>) = all.iter().partition(|own| overlays::is_shut_out(own));
        let of_pools = pools.iter().filter_map(|pool| {
            let class = &pool.spec.template.spec.node_class_ref.name;
            Some((pool, self.markets.of_class(class)?))
        });
        let of_pools: Vec<_> = of_pools.collect();
        let judgement = overlays::judge(asked.iter().copied(), &of_pools);
        let mut remarks = Vec::new();
        for own in out {
            let why = "the feature gate NodeOverlay of the cluster is off";
            remarks.push(format!(
                "NodeOverlay {} does not count: {why}",
                own.name_any()
            ));
        }
        for own in asked {
            let name = own.name_any();
            remarks.push(match judgement.verdicts.get(&name) {
                Some(Verdict::Invalid(why)) => {
                    format!("NodeOverlay {name} does not count: {why}")
                }
                Some(Verdict::Conflict(other)) => format!(
                    "NodeOverlay {name} does not count: NodeOverlay {other} has the same weight and changes the same machines"
                ),
                _ if own.status.is_none() => format!(
                    "NodeOverlay {name} counts, which needs the feature gate NodeOverlay in a cluster"
                ),
                _ => format!("NodeOverlay {name} counts"),
            });
        }
        let (pools, claims) = (pools.iter(), claims.iter());
        let markets = std::mem::take(&mut self.markets);
        self.markets = markets.with_overlays(pools, claims, &judgement.overlays);
        self.overlays = remarks;
        Ok(())
    }

    /// Returns the object that a user must change to change a pool: the pool itself, or the object that it is a copy of.
    pub(super) fn owner(&self, pool: &str) -> String {
        let origin = self.origins.get(pool).cloned();
        origin.unwrap_or_else(|| format!("NodePool {pool}"))
    }
}

/// Returns the number of addresses that each instance type has with prefix delegation, and whether that is on
/// already; empty if Windows pods get no addresses at all.
fn prefixes(now: WindowsAddresses) -> PrefixAddresses {
    let types = catalogue::all().iter();
    let types = types.filter(|kind| kind.windows_prefix_delegation);
    let all: PrefixAddresses = types
        .map(|kind| {
            let addresses = WindowsAddresses::Prefixes.on(kind);
            (kind.name.to_string(), addresses as i64)
        })
        .collect();
    match now {
        WindowsAddresses::Off => PrefixAddresses::default(),
        WindowsAddresses::Single => all,
        WindowsAddresses::Prefixes => all.enabled(),
    }
}

/// Returns the Kubernetes version of the cluster's kubelets, or the newest one if it is not known.
fn version(state: &State) -> KubernetesVersion {
    let text = state.kubelet_version.as_deref();
    let minor = text.and_then(|text| text.strip_prefix("v1.")?.split('.').next());
    minor
        .and_then(|minor| KubernetesVersion::from_minor(minor.parse().ok()?))
        .unwrap_or(KubernetesVersion::NEWEST)
}

/// Returns the zones of a class's subnets.
fn zones(class: &EC2NodeClass) -> impl Iterator<Item = String> + '_ {
    let subnets = class.status.iter().flat_map(|status| &status.subnets);
    subnets.map(|subnet| subnet.zone.clone())
}

/// Sets the status of classes that no controller has seen yet, such as those of a manifest: the subnets of the accounts or, if they have none,
/// one in each of the cloud's zones, and the capacity reservations that the class selects.
async fn resolve(
    classes: &mut [EC2NodeClass],
    accounts: &[SimulatedAccount],
    cloud: &SimulatedEc2,
) {
    let one_each: Vec<SubnetStatus> = cloud
        .zones()
        .iter()
        .map(|zone| SubnetStatus {
            id: format!("subnet-{zone}"),
            zone: zone.to_string(),
            ..SubnetStatus::default()
        })
        .collect();
    for class in classes.iter_mut().filter(|class| class.status.is_none()) {
        let terms = &class.spec.capacity_reservation_selector_terms;
        let reservations = cloud.capacity_reservations(terms).await.unwrap_or_default();
        let now = Timestamp::UNIX_EPOCH;
        let reservations = reservations.into_iter();
        let mut subnets = subnets::found_by(class, accounts);
        if subnets.is_empty() {
            subnets.clone_from(&one_each);
        }
        let status = class.status.get_or_insert_default();
        status.subnets = subnets;
        status.capacity_reservations = reservations
            .map(|own| reservation_status(own, now))
            .collect();
    }
}

/// Returns the active capacity reservations of the accounts. The instances that claims have or may get are subtracted from each.
fn unused(
    accounts: &[SimulatedAccount],
    claims: &[NodeClaim],
) -> BTreeMap<String, CapacityReservation> {
    let mut all = BTreeMap::new();
    for account in accounts {
        let status = account.status.as_ref();
        for (id, own) in &account.spec.capacity_reservations {
            let facts = status.and_then(|status| status.capacity_reservations.get(id));
            if facts.is_some_and(|facts| facts.state != "active") {
                continue;
            }
            let uses = |claim: &&NodeClaim| {
                let mut asked = claim.spec.requirements.iter();
                claim.label(labels::CAPACITY_RESERVATION_ID) == Some(id)
                    || asked.any(|asked| {
                        asked.key == labels::CAPACITY_RESERVATION_ID && asked.values.contains(id)
                    })
            };
            let used = claims.iter().filter(uses).count();
            let used = u32::try_from(used).unwrap_or(u32::MAX);
            let mut own = own.clone();
            own.total_instance_count = own.total_instance_count.saturating_sub(used);
            all.insert(id.clone(), own);
        }
    }
    all
}

/// Returns the region of a class's subnets: the zone's name without its last letter.
fn region(class: &EC2NodeClass) -> Option<String> {
    let subnet = class.status.as_ref()?.subnets.first()?;
    let region = subnet
        .zone
        .trim_end_matches(|c: char| c.is_ascii_lowercase());
    (!region.is_empty()).then(|| region.to_owned())
}
