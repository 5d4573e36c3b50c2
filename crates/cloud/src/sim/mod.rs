//! A simulated EC2: it sells the instances of the catalogue, boots them with realistic delays, and can inject EC2's failures.
//!
//! Invariant: everything observable follows from the configuration, the seed and the order of calls. Delays are tokio's, divided by
//! [`Speed`]; at [`Speed::INSTANT`] an instance is booted when its launch returns. With a [`Ledger`], the next process continues the
//! simulation ([`SimulatedEc2::resume`]). Simulated kubelets follow instances through [`SimulatedEc2::changed`] and
//! [`SimulatedEc2::changes_since`].

mod account;
pub(crate) mod address_faults;
mod addresses;
mod boot;
mod cause;
mod failure;
mod fault;
mod fleet;
mod groups;
mod images;
mod interface;
mod inventory;
mod ledger;
mod life;
mod network;
mod permissions;
mod provider;
mod queue;
mod random;
mod region;
mod reservations;
mod subnet;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use jiff::Timestamp;
use mullion_api::{
    eksctl::{Cluster, KubernetesVersion},
    labels,
};
use mullion_engine::ip::Kind;
use tokio::{sync::watch, time::Instant};

pub use account::SimulatedAccount;
pub use address_faults::{AddressFaults, ParseFaultsError};
pub use boot::{Boot, Images, KeptMemory, NodeProfile, NodeProfiles, PullSpeed};
pub use cause::{Fault, RefusedFault};
pub use failure::NOTICE;
pub use fault::{CapacityPattern, ParsePatternError};
pub use fleet::Changes;
pub use images::Parameter;
pub use ledger::{Ledger, LedgerError, RestoreError, Saved};
pub use region::zone_id;

use crate::{
    Clock, Instance, InstanceId, InstanceState, LaunchOption, MessageKind, Offer, PlacementGroup,
    Speed, StatusCheck,
};
use address_faults::FaultyCalls;
use cause::{ActiveFaults, Releases};
use fault::Faults;
use fleet::Fleet;
use images::ImageNames;
use ledger::{INSTANCE, RANDOM, SavedInstance};
use network::Network;
use queue::Queue;
use random::Random;
use reservations::Reservations;

/// The configuration of a simulated EC2.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the cluster; part of names and tags.
    pub cluster: String,
    /// Region.
    pub region: String,
    /// Availability zones; empty means the region's first three.
    pub zones: Vec<String>,
    /// Kubernetes version, which decides the images and the newest hardware on sale.
    pub version: KubernetesVersion,
    /// Tags of subnets and security groups.
    pub tags: BTreeMap<String, String>,
    /// Divisor of delays.
    pub speed: Speed,
    /// Seed of all random choices.
    pub seed: u64,
    /// Prefix length of the subnets; `None` divides the VPC among them.
    pub subnet_bits: Option<u8>,
    /// Injected faults of calls about addresses.
    pub address_faults: AddressFaults,
    /// Boot times, pull speeds and memory of nodes, where they differ from the typical ones.
    pub node_profiles: NodeProfiles,
}

/// The smallest subnet that AWS has: a /28.
pub const SMALLEST_SUBNET: u8 = 28;

/// Returns the prefix length of the largest subnets with which the VPC, a /16, has one for each of `zones` zones.
pub fn largest_subnet(zones: usize) -> u8 {
    let index_bits = usize::BITS - zones.saturating_sub(1).leading_zeros();
    16 + index_bits as u8
}

impl Config {
    /// Returns the configuration of a region with three zones for a cluster of this name.
    pub fn new(cluster: &str, region: &str, version: KubernetesVersion) -> Self {
        Self {
            cluster: cluster.into(),
            region: region.into(),
            zones: Vec::new(),
            version,
            tags: BTreeMap::new(),
            speed: Speed::REAL,
            seed: 0,
            subnet_bits: None,
            address_faults: AddressFaults::default(),
            node_profiles: NodeProfiles::default(),
        }
    }

    /// Returns the configuration for a cluster from a ClusterConfig.
    pub fn for_cluster(cluster: &Cluster) -> Self {
        Self {
            zones: cluster.availability_zones.clone(),
            tags: cluster.tags.clone(),
            ..Self::new(&cluster.name, &cluster.region, cluster.version)
        }
    }
}

impl Config {
    fn zone_names(&self) -> Vec<String> {
        match self.zones.as_slice() {
            [] => region::default_zones(&self.region),
            zones => zones.to_vec(),
        }
    }

    /// Returns the number of zones, each of which has a subnet.
    pub fn zone_count(&self) -> usize {
        self.zone_names().len()
    }
}

/// The simulated EC2 of one account in one region. Clones are cheap and are the same EC2.
#[derive(Clone)]
pub struct SimulatedEc2 {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    clock: Clock,
    zones: Vec<Zone>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    addresses_changed: watch::Sender<u64>,
    linux_offers: OnceLock<Arc<[Offer]>>,
    windows_offers: OnceLock<Arc<[Offer]>>,
}

struct Zone {
    name: Arc<str>,
    id: Arc<str>,
}

struct State {
    random: Random,
    network: Network,
    fleet: Fleet,
    faults: Faults,
    address_calls: FaultyCalls,
    queue: Queue,
    releases: Releases,
    images: ImageNames,
    groups: Vec<PlacementGroup>,
    /// The actions that IAM denies.
    denied: BTreeSet<String>,
    in_force: ActiveFaults,
    /// The times at which interrupted spot instances are terminated.
    interrupted: BTreeMap<InstanceId, Instant>,
    reservations: Reservations,
    /// The failed checks of instances, and the times since which they fail.
    impaired: BTreeMap<(InstanceId, StatusCheck), Timestamp>,
    ledger: Option<Arc<dyn Ledger>>,
}

impl State {
    /// Writes the state of an instance and of the random number generator to the ledger. Must be called before the lock is released.
    fn save(&self, id: &InstanceId) {
        let Some(ledger) = &self.ledger else { return };
        let saved = self.fleet.saved(id).and_then(|saved| {
            // The fields can always be serialized.
            serde_json::to_vec(&saved).ok()
        });
        ledger.put(&format!("{INSTANCE}{id}"), saved);
        let random = self.random.state().to_string();
        // Whoever resumes draws the numbers that follow, so no id is given out twice.
        ledger.put(RANDOM, Some(random.into_bytes()));
    }

    /// Changes an instance. Returns the new revision, or `None` if the instance is unknown.
    fn update(&mut self, id: &InstanceId, edit: impl FnOnce(&mut Instance)) -> Option<u64> {
        let state = |fleet: &Fleet| fleet.get(id).map(|instance| instance.state);
        let before = state(&self.fleet);
        let (revision, forgotten) = self.fleet.update(id, edit)?;
        // EventBridge reports changes of state, not other changes such as tags.
        let after = state(&self.fleet).filter(|_| before != state(&self.fleet));
        if let Some(kind) = after.and_then(MessageKind::of) {
            self.queue.send(kind, id);
        }
        self.save(id);
        forgotten.iter().for_each(|id| self.save(id));
        Some(revision)
    }
}

impl fmt::Debug for SimulatedEc2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedEc2")
            .field("region", &self.inner.config.region)
            .field("instances", &self.state().fleet.len())
            .finish_non_exhaustive()
    }
}

impl SimulatedEc2 {
    /// Creates an EC2 without instances. Subnets and security groups have the configuration's tags and, unless these include it,
    /// `karpenter.sh/discovery` with the cluster's name.
    pub fn new(config: Config, clock: Clock) -> Self {
        let names = config.zone_names();
        let zones: Vec<_> = names
            .into_iter()
            .map(|name| Zone {
                id: zone_id(&name).into(),
                name: name.into(),
            })
            .collect();
        let mut random = Random::new(config.seed);
        let mut tags = config.tags.clone();
        tags.entry(labels::DISCOVERY_TAG.into())
            .or_insert_with(|| config.cluster.clone());
        let bits = config.subnet_bits;
        let network = Network::new(&config.cluster, &zones, bits, &tags, &mut random);
        let address_calls = FaultyCalls::new(config.address_faults.clone());
        let queue = Queue::new(clock.clone());
        Self {
            inner: Arc::new(Inner {
                config,
                clock,
                zones,
                state: Mutex::new(State {
                    random,
                    network,
                    fleet: Fleet::default(),
                    faults: Faults::default(),
                    address_calls,
                    queue,
                    releases: Releases::default(),
                    images: ImageNames::default(),
                    groups: Vec::new(),
                    denied: BTreeSet::new(),
                    in_force: ActiveFaults::default(),
                    interrupted: BTreeMap::new(),
                    reservations: Reservations::default(),
                    impaired: BTreeMap::new(),
                    ledger: None,
                }),
                changed: watch::Sender::new(0),
                addresses_changed: watch::Sender::new(0),
                linux_offers: OnceLock::new(),
                windows_offers: OnceLock::new(),
            }),
        }
    }

    /// Restores the EC2 that wrote a ledger, and writes to that ledger from now on. Instances that were booting or shutting down continue
    /// to do so. The configuration must be that of the first process, except for the speed.
    ///
    /// # Errors
    /// A value cannot be parsed, or an address is not in this VPC.
    pub fn resume(
        config: Config,
        clock: Clock,
        ledger: Arc<dyn Ledger>,
        saved: &Saved,
    ) -> Result<Self, LedgerError> {
        let ec2 = Self::new(config, clock);
        // The control plane got its addresses before the first instance did.
        ec2.control_plane_addresses();
        {
            let state = &mut *ec2.state();
            for (key, value) in saved {
                let wrong = |why: RestoreError| LedgerError {
                    key: key.clone(),
                    why,
                };
                if key == RANDOM {
                    let text = String::from_utf8_lossy(value);
                    let number = text.parse().map_err(|_| wrong(RestoreError::Number))?;
                    state.random.resume(number);
                } else if key.starts_with(INSTANCE) {
                    let instance = serde_json::from_slice(value);
                    let instance: SavedInstance =
                        instance.map_err(|error| wrong(RestoreError::Form(error.to_string())))?;
                    state.bring_back(instance).map_err(wrong)?;
                }
            }
            // Set only now, so that restoring writes nothing.
            state.ledger = Some(ledger);
        }
        for instance in ec2.instances() {
            life::go_on(&ec2.inner, &instance);
            // It is unknown whether a client has received the message before, so it is sent again.
            let told = MessageKind::of(instance.state);
            if let Some(kind) = told.filter(|_| instance.state != InstanceState::Terminated) {
                ec2.state().queue.send(kind, &instance.id);
            }
        }
        Ok(ec2)
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Returns the names of the availability zones.
    pub fn zones(&self) -> Vec<Arc<str>> {
        self.inner
            .zones
            .iter()
            .map(|zone| Arc::clone(&zone.name))
            .collect()
    }

    /// Returns the addresses of the control plane's network interfaces in the VPC, which no instance gets. Must be called before the first
    /// launch.
    pub fn control_plane_addresses(&self) -> Vec<Ipv4Addr> {
        self.state().network.control_plane()
    }

    /// Returns a counter that increases whenever an instance changes; [`SimulatedEc2::changes_since`] returns the changes.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    /// Returns a counter that increases whenever an address or block is allocated or released; [`SimulatedEc2::facts`] returns the current
    /// ones.
    pub fn addresses_changed(&self) -> watch::Receiver<u64> {
        self.inner.addresses_changed.subscribe()
    }

    /// Returns every instance that changed after `cursor`, in the order of its last change. The first cursor is 0.
    pub fn changes_since(&self, cursor: u64) -> Changes {
        self.state().fleet.changes_since(cursor)
    }

    /// Returns all instances, including terminated ones that are still remembered.
    pub fn instances(&self) -> Vec<Arc<Instance>> {
        self.state().fleet.iter().cloned().collect()
    }

    /// Returns the configured pull speed of an instance's nodes, where it differs from the typical one.
    pub fn pull_speed(&self, instance: &Instance) -> PullSpeed {
        self.inner.config.node_profiles.pulls(instance.image.family)
    }

    /// Returns the instance with this id, in any state.
    pub fn instance(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        self.state().fleet.get(id).cloned()
    }

    /// Removes the capacity of all options that match the pattern.
    pub fn exhaust(&self, pattern: CapacityPattern) {
        self.state().faults.exhaust(pattern);
    }

    /// Returns whether a launch is refused because its capacity has been removed.
    pub fn is_exhausted(&self, option: &LaunchOption) -> bool {
        self.state().faults.is_exhausted(option)
    }

    /// Undoes [`SimulatedEc2::exhaust`] of an equal pattern, and forgets its refusals.
    pub fn replenish(&self, pattern: &CapacityPattern) {
        self.state().faults.replenish(pattern);
    }

    /// Answers the next `calls` calls with `RequestLimitExceeded`.
    pub fn throttle(&self, calls: u32) {
        self.state().faults.throttle(calls);
    }

    /// Limits the number of vCPUs that the account may run; `None` removes the limit.
    pub fn limit_vcpus(&self, limit: Option<u64>) {
        self.state().faults.limit_vcpus(limit);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state()
    }
}

impl State {
    fn bring_back(&mut self, mut saved: SavedInstance) -> Result<(), RestoreError> {
        let token = std::mem::take(&mut saved.token);
        let interface = saved.take_interface();
        let instance = saved.instance()?;
        if instance.state != InstanceState::Terminated {
            let primary = (Kind::Address, instance.private_ip);
            for (kind, first) in interface.all().chain([primary]) {
                if !self.network.take_back(&instance.subnet, kind, first) {
                    return Err(RestoreError::Taken {
                        address: first,
                        subnet: instance.subnet.to_string(),
                    });
                }
            }
        }
        self.fleet.bring_back(token, instance, interface);
        Ok(())
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // After a panic while the lock was held, at worst an instance never boots.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the followers of addresses.
    fn addresses_changed(&self) {
        self.addresses_changed
            .send_modify(|revision| *revision += 1);
    }

    /// Changes an instance and notifies its followers.
    fn update(&self, id: &InstanceId, edit: impl FnOnce(&mut Instance)) {
        let revision = self.state().update(id, edit);
        if let Some(revision) = revision {
            self.changed.send_replace(revision);
        }
    }
}
