//! Instances, with everything that their nodes report.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use mullion_api::{ami::Os, labels};
use serde::{Deserialize, Serialize};

use crate::{
    CapacityType, InstanceId, Placement, Registration, Reservation, Resources, Tenancy,
    catalogue::{self, InstanceType, Price},
    image::NodeImage,
};

/// The state of an instance. The variants are in the order of an instance's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum InstanceState {
    /// Being placed on a host.
    Pending,
    /// Powered on; see [`Instance::booted`].
    Running,
    /// Powered off, with its disks and its address; it may be started again.
    Stopped,
    /// Being shut down.
    ShuttingDown,
    /// Terminated; listed for a while.
    Terminated,
}

impl InstanceState {
    /// Returns EC2's name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
        }
    }

    /// Returns whether the instance runs or is starting.
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }
}

/// An instance, with everything that its node reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Instance {
    /// Instance id.
    pub id: InstanceId,
    /// `aws:///<zone>/<id>`, the node's `spec.providerID`.
    pub provider_id: String,
    /// Type.
    #[serde(with = "catalogue::by_name")]
    pub instance_type: Arc<InstanceType>,
    /// Region.
    pub region: Arc<str>,
    /// Availability zone.
    pub zone: Arc<str>,
    /// Availability zone id.
    pub zone_id: Arc<str>,
    /// Subnet.
    pub subnet: Arc<str>,
    /// Ids of its security groups; empty if they are not known.
    pub security_groups: Vec<Arc<str>>,
    /// Prefix length of the subnet's CIDR block, as the instance metadata service reports it.
    pub subnet_prefix_len: u8,
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// The capacity reservation that it runs in; `None` if its capacity is not reserved.
    pub reservation: Option<Reservation>,
    /// The placement group that it is in.
    pub placement: Option<Placement>,
    /// Whether it shares its host with other accounts.
    pub tenancy: Tenancy,
    /// Price per hour including the operating system.
    pub price: Price,
    /// First private address.
    pub private_ip: std::net::Ipv4Addr,
    /// Private DNS name, which is the node's name.
    pub private_dns_name: String,
    /// The image that it boots.
    pub image: NodeImage,
    /// The capacity that its node reports.
    pub capacity: Resources,
    /// The allocatable amounts of its node.
    pub allocatable: Resources,
    /// The labels and taints that its kubelet registers with.
    pub registration: Registration,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// The state of the instance.
    pub state: InstanceState,
    /// Whether the operating system has booted, so that the kubelet runs.
    pub booted: bool,
    /// When the instance was launched.
    pub launched_at: Timestamp,
}

impl Instance {
    /// Returns the operating system of the image.
    pub fn os(&self) -> Os {
        self.image.os()
    }

    /// Returns the labels that its node registers with: those of kubelet and cloud provider, then the requested ones, which
    /// take precedence.
    pub fn node_labels(&self) -> BTreeMap<String, String> {
        let (os, arch) = (self.os().as_str(), self.instance_type.arch.as_str());
        let kind = &*self.instance_type.name;
        let standard = [
            (labels::OS, os),
            (labels::BETA_OS, os),
            (labels::ARCH, arch),
            (labels::BETA_ARCH, arch),
            (labels::INSTANCE_TYPE, kind),
            (labels::BETA_INSTANCE_TYPE, kind),
            (labels::HOSTNAME, &self.private_dns_name),
            (labels::ZONE, &self.zone),
            (labels::BETA_ZONE, &self.zone),
            (labels::ZONE_ID, &self.zone_id),
            (labels::REGION, &self.region),
            (labels::BETA_REGION, &self.region),
        ];
        let mut all: BTreeMap<_, _> = standard
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let image = self.image.labels();
        all.extend(image.map(|(key, value)| (key.to_owned(), value.to_owned())));
        all.extend(self.registration.labels.clone());
        all
    }
}
