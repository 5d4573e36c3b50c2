//! The interface to a cloud: offers, launching, listing and terminating instances.
//!
//! Invariant: controllers use a cloud only through [`CloudProvider`]. Launches are idempotent by client token, so a
//! controller may repeat one after a crash without buying twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use mullion_api::{
    ami::{AmiFamily, Os},
    eksctl::{KubernetesVersion, Taint},
    karpenter::{
        AmiSelectorTerm, CapacityReservationSelectorTerm, EC2NodeClass, EC2NodeClassSpec,
        PlacementGroupSelector,
    },
    labels,
};

use crate::{
    CapacityReservation, Impairment, Message, NodeTemplate, Placement, PlacementGroup, Reservation,
    ReservedShare, Resources,
    catalogue::{self, Arch, InstanceType, Price},
    image::{ImageVariant, NodeImage},
};
use serde::{Deserialize, Serialize};

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// EC2's id of an instance, `i-0123456789abcdef0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InstanceId(pub Arc<str>);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses the instance id out of a provider id such as `aws:///us-west-2a/i-0123456789abcdef0`.
pub fn instance_id(provider_id: &str) -> Option<InstanceId> {
    let (_, id) = provider_id.strip_prefix("aws:///")?.split_once('/')?;
    id.starts_with("i-").then(|| InstanceId(id.into()))
}

/// The way in which an instance is paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CapacityType {
    /// At list price, until terminated.
    OnDemand,
    /// Cheaper, but EC2 may interrupt it.
    Spot,
    /// Paid for whether it runs or not, as part of a capacity reservation.
    Reserved,
}

impl CapacityType {
    /// Returns the value of the label `karpenter.sh/capacity-type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => labels::ON_DEMAND,
            Self::Spot => labels::SPOT,
            Self::Reserved => labels::RESERVED,
        }
    }
}

impl fmt::Display for CapacityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One way to buy an instance type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offering {
    /// Availability zone.
    pub zone: Arc<str>,
    /// Availability zone id.
    pub zone_id: Arc<str>,
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// The price per hour with the operating system of the request.
    pub price: Price,
    /// Whether it is assumed to have capacity: it was not refused lately.
    pub available: bool,
    /// Whether it was refused lately and may be tried again, with a single launch at first.
    pub on_trial: bool,
    /// The share of a capacity reservation that it uses, if its capacity is reserved.
    pub reservation: Option<ReservedShare>,
}

/// An instance type and the ways to buy it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The type.
    #[serde(with = "catalogue::by_name")]
    pub instance_type: Arc<InstanceType>,
    /// Ways to buy it; never empty.
    pub offerings: Vec<Offering>,
}

/// The images that the terms of an EC2NodeClass select.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectedImages {
    /// The newest one of each architecture and variant.
    pub images: Vec<NodeImage>,
    /// Whether the terms select none, and these are the newest images of the family instead.
    pub is_fallback: bool,
}

/// A subnet nodes can be in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    /// Subnet id.
    pub id: Arc<str>,
    /// Availability zone.
    pub zone: Arc<str>,
    /// Availability zone id.
    pub zone_id: Arc<str>,
    /// CIDR block.
    pub cidr: String,
    /// Addresses left.
    pub free_addresses: usize,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// A security group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityGroup {
    /// Security group id.
    pub id: Arc<str>,
    /// Name.
    pub name: String,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// Selects by tags, id and name, like a selector term of an EC2NodeClass: all given fields must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagSelector {
    /// Tags that must all match; the value `*` matches any.
    pub tags: BTreeMap<String, String>,
    /// The exact id.
    pub id: Option<String>,
    /// The exact name.
    pub name: Option<String>,
}

impl TagSelector {
    /// Returns whether an object with this id, name and tags is selected. An empty selector selects nothing.
    pub fn matches(&self, id: &str, name: &str, tags: &BTreeMap<String, String>) -> bool {
        let given = !self.tags.is_empty() || self.id.is_some() || self.name.is_some();
        given
            && self.id.as_deref().is_none_or(|wanted| wanted == id)
            && self.name.as_deref().is_none_or(|wanted| wanted == name)
            && self.tags.iter().all(|(key, wanted)| {
                tags.get(key)
                    .is_some_and(|value| wanted == "*" || wanted == value)
            })
    }
}

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
    /// Where in a placement group the instance is to be.
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

/// The reason why a call to the cloud failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum CloudError {
    /// None of the options has capacity now.
    #[error("{}", distinct_messages(.0))]
    InsufficientCapacity(Vec<FleetError>),
    /// A subnet has no free address.
    #[error("InsufficientFreeAddressesInSubnet: no free address in {0}")]
    NoFreeAddresses(Arc<str>),
    /// The rate limit was exceeded.
    #[error("RequestLimitExceeded: Request limit exceeded.")]
    Throttled,
    /// The instance does not exist.
    #[error("InvalidInstanceID.NotFound: The instance ID '{0}' does not exist")]
    NotFound(InstanceId),
    /// The instance type does not exist.
    #[error("InvalidInstanceType: The instance type '{0}' does not exist")]
    UnknownInstanceType(String),
    /// The request can never succeed.
    #[error("InvalidParameterValue: {0}")]
    Invalid(String),
    /// The caller's permissions do not allow the call.
    #[error("UnauthorizedOperation: {0}")]
    Unauthorized(String),
    /// The cloud refused the call for another reason, named by its error code.
    #[error("{code}: {message}")]
    Refused {
        /// The cloud's error code.
        code: String,
        /// The cloud's message.
        message: String,
    },
    /// No response arrived, so the cloud may or may not have carried out the request.
    #[error("RequestTimeout: no answer came from the cloud: {0}")]
    NoAnswer(String),
}

/// Joins the messages of refusals, each once.
fn distinct_messages(refused: &[FleetError]) -> String {
    let texts: BTreeSet<_> = refused.iter().map(ToString::to_string).collect();
    texts.into_iter().collect::<Vec<_>>().join("; ")
}

impl CloudError {
    /// Returns whether the instance is known to be gone.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

/// A cloud that sells instances.
pub trait CloudProvider: fmt::Debug + Send + Sync + 'static {
    /// Returns the region in which instances are bought.
    fn region(&self) -> &str;

    /// Returns what can be bought for nodes of this operating system, with its price, in no particular order.
    fn offers(&self, os: Os) -> BoxFuture<'_, Result<Arc<[Offer]>, CloudError>>;

    /// Returns the subnets that any of the selectors selects, those with the most free addresses first.
    fn subnets<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<Subnet>, CloudError>>;

    /// Returns the security groups that any of the selectors selects.
    fn security_groups<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<SecurityGroup>, CloudError>>;

    /// Returns the capacity reservations that any of the terms selects and that have not ended (EC2:
    /// DescribeCapacityReservations). Callers ask often, so own launches count in `available` at once.
    fn capacity_reservations<'a>(
        &'a self,
        terms: &'a [CapacityReservationSelectorTerm],
    ) -> BoxFuture<'a, Result<Vec<CapacityReservation>, CloudError>>;

    /// Returns the placement group that a class selects (EC2: DescribePlacementGroups); `None` if there is no such group.
    /// Callers ask often.
    fn placement_group<'a>(
        &'a self,
        selector: &'a PlacementGroupSelector,
    ) -> BoxFuture<'a, Result<Option<PlacementGroup>, CloudError>>;

    /// Returns the newest image of a family (SSM: GetParameter).
    fn newest_image(
        &self,
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
    ) -> BoxFuture<'_, Result<NodeImage, CloudError>>;

    /// Returns the images that terms of an EC2NodeClass select.
    fn images<'a>(
        &'a self,
        terms: &'a [AmiSelectorTerm],
        family: AmiFamily,
        version: KubernetesVersion,
    ) -> BoxFuture<'a, Result<SelectedImages, CloudError>>;

    /// Returns the name of the instance profile for a class's instances: the one it names, or that of its role, which is
    /// created if it does not exist. A cloud without IAM creates none.
    fn instance_profile<'a>(
        &'a self,
        class: &'a EC2NodeClass,
        cluster: &'a str,
    ) -> BoxFuture<'a, Result<String, CloudError>> {
        let name = match &class.spec.instance_profile {
            Some(profile) => profile.clone(),
            None => {
                let name = class.metadata.name.as_deref().unwrap_or_default();
                format!("{cluster}_{name}")
            }
        };
        Box::pin(async move { Ok(name) })
    }

    /// Returns whether user data, volumes and similar settings of an EC2NodeClass have an effect. Simulated instances ignore
    /// them.
    fn heeds_machine_settings(&self) -> bool {
        false
    }

    /// Launches one instance with the first of the request's options that has capacity.
    fn launch(&self, request: LaunchRequest) -> BoxFuture<'_, Result<Launch, CloudError>>;

    /// Returns the present state of an instance; a terminated one is not found.
    fn get(&self, id: InstanceId) -> BoxFuture<'_, Result<Arc<Instance>, CloudError>>;

    /// Returns all instances that are not terminated and have all these tags (`*` matches any value).
    fn list(
        &self,
        tags: BTreeMap<String, String>,
    ) -> BoxFuture<'_, Result<Vec<Arc<Instance>>, CloudError>>;

    /// Terminates an instance. A repeated call succeeds until the instance is terminated, then it is not found.
    fn terminate(&self, id: InstanceId) -> BoxFuture<'_, Result<(), CloudError>>;

    /// Records that an option has no capacity, because the cloud has just interrupted such an instance. Returns how long the
    /// option is assumed to be unavailable.
    fn mark_unavailable(&self, option: LaunchOption)
    -> BoxFuture<'_, Result<Duration, CloudError>>;

    /// Waits up to 20 s for messages about instances and returns at most ten. A message that is not deleted within 20 s is
    /// returned again.
    fn receive_messages(&self) -> BoxFuture<'_, Result<Vec<Message>, CloudError>>;

    /// Deletes a message after it was handled.
    fn delete_message(&self, message: &Message) -> BoxFuture<'_, Result<(), CloudError>>;

    /// Returns the failed status checks and the scheduled maintenance of running instances (EC2: DescribeInstanceStatus).
    fn impairments(&self) -> BoxFuture<'_, Result<Vec<Impairment>, CloudError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_ids_name_their_instance() {
        let id = instance_id("aws:///us-west-2a/i-0123456789abcdef0");
        assert_eq!(id.unwrap().to_string(), "i-0123456789abcdef0");
        assert_eq!(instance_id("gce://project/zone/name"), None);
        assert_eq!(instance_id("aws:///us-west-2a/vol-1"), None);
    }

    #[test]
    fn a_refusal_is_told_once_in_ec2s_words() {
        let refused = |instance_type: &str, zone: &str, shortage: Shortage| FleetError {
            option: LaunchOption {
                instance_type: instance_type.into(),
                zone: zone.into(),
                capacity_type: CapacityType::OnDemand,
                reservation: None,
                placement: None,
            },
            shortage,
            unavailable_for: Duration::ZERO,
        };
        let elsewhere = vec!["us-west-2b".into(), "us-west-2c".into()];
        let error = CloudError::InsufficientCapacity(vec![
            refused("c5.large", "us-west-2a", Shortage::Spot),
            refused("c5.large", "us-west-2b", Shortage::Spot),
            refused("c6a.large", "us-west-2a", Shortage::Hosts { elsewhere }),
        ]);
        assert_eq!(
            error.to_string(),
            "InsufficientInstanceCapacity: We currently do not have sufficient c6a.large capacity in the Availability \
             Zone you requested (us-west-2a). Our system will be working on provisioning additional capacity. You can \
             currently get c6a.large capacity by not specifying an Availability Zone in your request or choosing \
             us-west-2b, us-west-2c.; UnfulfillableCapacity: Unable to fulfill capacity due to your request \
             configuration. Please adjust your request and try again."
        );
    }

    #[test]
    fn selectors_match_all_they_name_and_nothing_by_default() {
        let tags = BTreeMap::from([("team".to_owned(), "web".to_owned())]);
        let selector = |pairs: &[(&str, &str)]| TagSelector {
            tags: pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..TagSelector::default()
        };
        assert!(selector(&[("team", "*")]).matches("subnet-1", "", &tags));
        assert!(!selector(&[("team", "*"), ("tier", "*")]).matches("subnet-1", "", &tags));
        assert!(!TagSelector::default().matches("subnet-1", "", &tags));
    }
}
