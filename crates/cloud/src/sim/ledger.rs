//! Persistence of the simulated EC2, so that a new process can continue: each instance with its addresses, and the state of
//! the random number generator.
//!
//! Invariant: a change is written to the [`Ledger`] before it becomes visible, under the same lock. So no address and no id
//! is given out twice, whenever the process dies.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr, sync::Arc};

use jiff::Timestamp;
use mullion_api::{
    ami::AmiFamily,
    eksctl::{KubernetesVersion, Taint},
};
use mullion_engine::ip::Kind;
use serde::{Deserialize, Serialize};

use super::interface::Interface;
use crate::{
    CapacityType, Instance, InstanceId, InstanceState, Placement, Registration, Reservation,
    ReservationKind, Resources, Tenancy,
    catalogue::{self, Price},
    image::{ImageVariant, NodeImage},
};

/// The key of the random number generator's state.
pub(super) const RANDOM: &str = "random";
/// The prefix of the keys of instances.
pub(super) const INSTANCE: &str = "instance/";

/// A key-value store that outlives the process.
pub trait Ledger: fmt::Debug + Send + Sync {
    /// Sets the value of a key, or removes it if `None`. Called under a lock, so it must not block. Writes must become
    /// durable in order: no later write may survive while an earlier one is lost.
    fn put(&self, key: &str, value: Option<Vec<u8>>);
}

/// The content of the ledger at the end of the previous process.
pub type Saved = BTreeMap<String, Vec<u8>>;

/// A value of the ledger that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is known of {key} cannot be understood: {why}")]
pub struct LedgerError {
    /// The key of the value.
    pub key: String,
    /// The reason.
    pub why: RestoreError,
}

/// The reason why a value of the ledger cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The state of the random number generator is not a number.
    #[error("it is no number")]
    Number,
    /// An instance is not JSON of its type, for the reason that the parser gives.
    #[error("{0}")]
    Form(String),
    /// The catalogue has no such type.
    #[error("{0:?} is not an EC2 instance type")]
    InstanceType(String),
    /// The image family is unknown.
    #[error("{0:?} is no image family")]
    Family(String),
    /// The minor version of Kubernetes is unknown.
    #[error("Kubernetes 1.{0} is not known")]
    Version(u32),
    /// The state is unknown.
    #[error("{0:?} is no state of an instance")]
    State(String),
    /// The kind of the reservation is unknown.
    #[error("{0:?} is no kind of reservation")]
    Reservation(String),
    /// The effect of a taint is unknown.
    #[error("{0:?} is no effect of a taint")]
    Effect(String),
    /// Another instance has the address, or the subnet does not.
    #[error("{address} is not free in subnet {subnet}")]
    Taken {
        /// The first address of the block.
        address: Ipv4Addr,
        /// The name of the subnet.
        subnet: String,
    },
}

/// The stored form of an instance, without what follows from its type, family and version.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct SavedInstance {
    id: String,
    /// The client token of its launch.
    pub(super) token: String,
    instance_type: String,
    region: String,
    zone: String,
    zone_id: String,
    subnet: String,
    #[serde(default)]
    security_groups: Vec<String>,
    subnet_prefix_len: u8,
    spot: bool,
    /// The capacity reservation that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reservation: Option<SavedReservation>,
    /// The placement group that it is in, and the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placement: Option<(String, Option<u32>)>,
    #[serde(default)]
    tenancy: Tenancy,
    price: u64,
    private_ip: Ipv4Addr,
    private_dns_name: String,
    /// Secondary addresses.
    secondary: Vec<Ipv4Addr>,
    /// First addresses of /28 prefixes.
    #[serde(default)]
    prefixes: Vec<Ipv4Addr>,
    family: String,
    minor: u32,
    /// The release of the image.
    #[serde(default)]
    release: u32,
    /// The hardware that the image is for.
    #[serde(default)]
    variant: ImageVariant,
    capacity: Amounts,
    allocatable: Amounts,
    labels: BTreeMap<String, String>,
    taints: Vec<[String; 3]>,
    tags: BTreeMap<String, String>,
    state: String,
    booted: bool,
    launched_at: Timestamp,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedReservation {
    id: String,
    kind: String,
    interruptible: bool,
}

#[derive(Debug, Deserialize, Serialize)]
struct Amounts {
    cpu_milli: u64,
    memory_bytes: u64,
    ephemeral_bytes: u64,
    pods: u64,
    extended: BTreeMap<String, u64>,
}

impl From<&Resources> for Amounts {
    fn from(resources: &Resources) -> Self {
        Amounts {
            cpu_milli: resources.cpu_milli,
            memory_bytes: resources.memory_bytes,
            ephemeral_bytes: resources.ephemeral_bytes,
            pods: resources.pods,
            extended: resources.extended.clone(),
        }
    }
}

impl From<Amounts> for Resources {
    fn from(amounts: Amounts) -> Self {
        Resources {
            cpu_milli: amounts.cpu_milli,
            memory_bytes: amounts.memory_bytes,
            ephemeral_bytes: amounts.ephemeral_bytes,
            pods: amounts.pods,
            extended: amounts.extended,
        }
    }
}

impl SavedInstance {
    pub(super) fn of(instance: &Instance, token: &str, interface: &Interface) -> Self {
        let taints = &instance.registration.taints;
        SavedInstance {
            id: instance.id.to_string(),
            token: token.to_owned(),
            instance_type: instance.instance_type.name.to_string(),
            region: instance.region.to_string(),
            zone: instance.zone.to_string(),
            zone_id: instance.zone_id.to_string(),
            subnet: instance.subnet.to_string(),
            security_groups: instance
                .security_groups
                .iter()
                .map(ToString::to_string)
                .collect(),
            subnet_prefix_len: instance.subnet_prefix_len,
            spot: instance.capacity_type == CapacityType::Spot,
            reservation: instance.reservation.as_ref().map(|own| SavedReservation {
                id: own.id.to_string(),
                kind: own.kind.as_str().to_owned(),
                interruptible: own.interruptible,
            }),
            placement: instance
                .placement
                .as_ref()
                .map(|own| (own.group.to_string(), own.partition)),
            tenancy: instance.tenancy,
            price: instance.price.0,
            private_ip: instance.private_ip,
            private_dns_name: instance.private_dns_name.clone(),
            secondary: interface.blocks(Kind::Address).to_vec(),
            prefixes: interface.blocks(Kind::Prefix).to_vec(),
            family: instance.image.family.as_str().to_owned(),
            minor: instance.image.version.minor(),
            release: instance.image.release,
            variant: instance.image.variant,
            capacity: Amounts::from(&instance.capacity),
            allocatable: Amounts::from(&instance.allocatable),
            labels: instance.registration.labels.clone(),
            taints: taints
                .iter()
                .map(|taint| {
                    let effect = taint.effect.as_str().to_owned();
                    [taint.key.clone(), taint.value.clone(), effect]
                })
                .collect(),
            tags: instance.tags.clone(),
            state: instance.state.as_str().to_owned(),
            booted: instance.booted,
            launched_at: instance.launched_at,
        }
    }

    /// Takes out the blocks of the instance's interface besides the primary address.
    pub(super) fn take_interface(&mut self) -> Interface {
        Interface::of(
            std::mem::take(&mut self.secondary),
            std::mem::take(&mut self.prefixes),
        )
    }

    /// Restores the instance.
    ///
    /// # Errors
    /// A part of the instance is unknown to this program.
    pub(super) fn instance(self) -> Result<Instance, RestoreError> {
        let instance_type = catalogue::get(&self.instance_type)
            .ok_or_else(|| RestoreError::InstanceType(self.instance_type.clone()))?;
        let family = match &*self.family {
            "Custom" => AmiFamily::Custom,
            name => name
                .parse()
                .map_err(|_| RestoreError::Family(name.to_owned()))?,
        };
        let version =
            KubernetesVersion::from_minor(self.minor).ok_or(RestoreError::Version(self.minor))?;
        let states = [
            InstanceState::Pending,
            InstanceState::Running,
            InstanceState::Stopped,
            InstanceState::ShuttingDown,
            InstanceState::Terminated,
        ];
        let state = states
            .into_iter()
            .find(|state| state.as_str() == self.state)
            .ok_or_else(|| RestoreError::State(self.state.clone()))?;
        let reservation = match self.reservation {
            None => None,
            Some(saved) => Some(Reservation {
                id: saved.id.into(),
                kind: ReservationKind::parse(&saved.kind)
                    .ok_or_else(|| RestoreError::Reservation(saved.kind.clone()))?,
                interruptible: saved.interruptible,
            }),
        };
        let taints = self.taints.into_iter().map(|[key, value, effect]| {
            let effect = effect
                .parse()
                .map_err(|()| RestoreError::Effect(effect.clone()))?;
            Ok(Taint { key, value, effect })
        });
        let arch = instance_type.arch;
        let mut images = NodeImage::all_released(family, version, arch, self.release);
        let image = images.find(|image| image.variant == self.variant);
        // Ledgers of older versions do not name the variant.
        let image =
            image.unwrap_or_else(|| NodeImage::released(family, version, arch, self.release));
        Ok(Instance {
            provider_id: format!("aws:///{}/{}", self.zone, self.id),
            id: InstanceId(self.id.into()),
            instance_type: Arc::clone(instance_type),
            region: self.region.into(),
            zone: self.zone.into(),
            zone_id: self.zone_id.into(),
            subnet: self.subnet.into(),
            security_groups: self.security_groups.into_iter().map(Into::into).collect(),
            subnet_prefix_len: self.subnet_prefix_len,
            capacity_type: match (self.spot, &reservation) {
                (true, _) => CapacityType::Spot,
                (false, Some(_)) => CapacityType::Reserved,
                (false, None) => CapacityType::OnDemand,
            },
            reservation,
            placement: self.placement.map(|(group, partition)| Placement {
                group: group.into(),
                partition,
            }),
            tenancy: self.tenancy,
            price: Price(self.price),
            private_ip: self.private_ip,
            private_dns_name: self.private_dns_name,
            image,
            capacity: self.capacity.into(),
            allocatable: self.allocatable.into(),
            registration: Registration {
                labels: self.labels,
                taints: taints.collect::<Result<_, RestoreError>>()?,
            },
            tags: self.tags,
            state,
            booted: self.booted,
            launched_at: self.launched_at,
        })
    }
}
