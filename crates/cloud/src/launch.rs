//! Launches: what is asked for, what is bought, and what is refused.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use mullion_api::{eksctl::Taint, karpenter::EC2NodeClassSpec};
use serde::{Deserialize, Serialize};

use crate::{CapacityType, Instance, NodeTemplate, Placement, image::ImageVariant};

/// One acceptable outcome of a launch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaunchOption {
    /// Instance type.
    pub instance_type: String,
    /// Availability zone.
    pub zone: String,
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// Id of the capacity reservation that it uses, if its capacity is reserved.
    pub reservation: Option<String>,
    /// The placement of the instance in a placement group.
    pub placement: Option<Placement>,
}

impl fmt::Display for LaunchOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} in {}",
            self.capacity_type, self.instance_type, self.zone
        )?;
        if let Some(id) = &self.reservation {
            write!(f, " from {id}")?;
        }
        match &self.placement {
            Some(placement) => write!(f, " in {placement}"),
            None => Ok(()),
        }
    }
}

/// The labels and taints that the kubelet of a new node registers with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// `--node-labels`, beyond those every kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// `--register-with-taints`.
    pub taints: Vec<Taint>,
}

/// The reason why EC2 has no capacity for an option.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shortage {
    /// The zone has no host left for the instance type.
    Hosts {
        /// Zones that have hosts left.
        elsewhere: Vec<Arc<str>>,
    },
    /// No spare capacity can be sold as spot.
    Spot,
    /// The capacity reservation has no instance left, or does not exist.
    Reservation,
    /// The spread placement group has as many instances in the zone as it can have.
    SpreadGroup,
    /// No requested subnet has a free address in the zone.
    Addresses,
    /// The account's vCPU limit does not allow another instance.
    Vcpus {
        /// The account's limit.
        limit: u64,
    },
    /// Another transient reason, such as a quota.
    Other {
        /// EC2's error code.
        code: String,
        /// EC2's message.
        message: String,
    },
}

impl Shortage {
    /// Returns EC2's error code.
    pub fn code(&self) -> &str {
        match self {
            Self::Other { code, .. } => code,
            Self::Hosts { .. } | Self::SpreadGroup => "InsufficientInstanceCapacity",
            Self::Spot => "UnfulfillableCapacity",
            Self::Reservation => "ReservationCapacityExceeded",
            Self::Addresses => "InsufficientFreeAddressesInSubnet",
            Self::Vcpus { .. } => "VcpuLimitExceeded",
        }
    }
}

/// An option that a launch could not get. Displayed with the code and message of EC2's CreateFleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetError {
    /// The option.
    pub option: LaunchOption,
    /// Why there was no capacity.
    pub shortage: Shortage,
    /// How long the option is assumed to be unavailable from now on.
    pub unavailable_for: Duration,
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaunchOption {
            instance_type,
            zone,
            ..
        } = &self.option;
        write!(f, "{}: ", self.shortage.code())?;
        match &self.shortage {
            Shortage::Hosts { elsewhere } => {
                write!(
                    f,
                    "We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested \
                     ({zone}). Our system will be working on provisioning additional capacity."
                )?;
                if elsewhere.is_empty() {
                    return Ok(());
                }
                write!(
                    f,
                    " You can currently get {instance_type} capacity by not specifying an Availability Zone in your \
                     request or choosing {}.",
                    elsewhere.join(", ")
                )
            }
            Shortage::Other { message, .. } => f.write_str(message),
            Shortage::Spot => f.write_str(
                "Unable to fulfill capacity due to your request configuration. Please adjust your request and try again.",
            ),
            Shortage::Reservation => f.write_str(
                "The requested reservation does not have sufficient compatible and available capacity for this request.",
            ),
            Shortage::SpreadGroup => f.write_str(
                "You've reached the limit of instances in this spread placement group. A spread placement group can have up to \
                 seven instances per Availability Zone.",
            ),
            Shortage::Addresses => f.write_str(
                "The specified subnet does not have enough free addresses to satisfy the request.",
            ),
            Shortage::Vcpus { limit } => write!(
                f,
                "You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance \
                 bucket that the specified instance type belongs to. Please visit \
                 http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
            ),
        }
    }
}

/// The result of a launch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Launch {
    /// The instance that was bought.
    pub instance: Arc<Instance>,
    /// Preferred options that had no capacity.
    pub refused: Vec<FleetError>,
}

/// A call of EC2's that a launch makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchCall {
    /// Creates the launch template.
    CreateLaunchTemplate,
    /// Requests the instance.
    CreateFleet,
    /// Runs the instance, on behalf of the fleet.
    RunInstances,
}

impl LaunchCall {
    /// All calls, in the order in which a launch needs them.
    pub const ALL: [Self; 3] = [
        Self::CreateLaunchTemplate,
        Self::CreateFleet,
        Self::RunInstances,
    ];

    /// Returns the action in the form of IAM policies.
    pub fn action(self) -> &'static str {
        match self {
            Self::CreateLaunchTemplate => "ec2:CreateLaunchTemplate",
            Self::CreateFleet => "ec2:CreateFleet",
            Self::RunInstances => "ec2:RunInstances",
        }
    }
}

/// A call of a launch that IAM does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedCall {
    /// The call.
    pub call: LaunchCall,
    /// EC2's message.
    pub message: String,
}

/// A request for one instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchRequest {
    /// A repeated token returns the instance that it bought the first time.
    pub client_token: String,
    /// Acceptable outcomes, best first.
    pub options: Vec<LaunchOption>,
    /// Subnets that the instance may be in; empty means all.
    pub subnets: Vec<Arc<str>>,
    /// Ids of its security groups; empty means the security groups of the cluster's nodes.
    pub security_groups: Vec<Arc<str>>,
    /// Image, volume and kubelet settings.
    pub template: NodeTemplate,
    /// The images that may be launched; an instance boots the first for its type. Empty means the newest of the template's
    /// family.
    pub images: Vec<LaunchImage>,
    /// The labels and taints that its kubelet registers with.
    pub registration: Registration,
    /// Tags of the instance.
    pub tags: BTreeMap<String, String>,
    /// The EC2NodeClass that it is launched from; `None` for a node of a node group.
    pub class: Option<Box<LaunchClass>>,
}

/// An image that a launch may boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchImage {
    /// Image id.
    pub id: String,
    /// The hardware that the class uses it for.
    pub variant: ImageVariant,
}

/// The parts of an EC2NodeClass that a launch needs besides the template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchClass {
    /// The class's spec: user data, volumes, metadata options and so on.
    pub spec: EC2NodeClassSpec,
    /// The instance profile in the class's status.
    pub instance_profile: String,
}
