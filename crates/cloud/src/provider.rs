//! The door to a cloud: what can be bought, launching, listing and terminating.
//!
//! Invariant: [`CloudProvider`] is all that controllers know of a cloud. Launches are idempotent by
//! client token, so a controller may repeat one after a crash without buying twice.

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
    karpenter::{AmiSelectorTerm, CapacityReservationSelectorTerm, EC2NodeClass, EC2NodeClassSpec},
    labels,
};

use crate::{
    CapacityReservation, Impairment, Message, NodeTemplate, Reservation, ReservedShare, Resources,
    catalogue::{self, Arch, InstanceType, Price},
    image::NodeImage,
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

/// The instance id in a provider id `aws:///us-west-2a/i-0123456789abcdef0`.
pub fn instance_id(provider_id: &str) -> Option<InstanceId> {
    let (_, id) = provider_id.strip_prefix("aws:///")?.split_once('/')?;
    id.starts_with("i-").then(|| InstanceId(id.into()))
}

/// How an instance is paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CapacityType {
    /// At list price, until terminated.
    OnDemand,
    /// Cheaper, and taken back when EC2 needs it.
    Spot,
    /// Paid for whether it runs or not, as part of a capacity reservation.
    Reserved,
}

impl CapacityType {
    /// Value of the label `karpenter.sh/capacity-type`.
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
    /// Price per hour at the operating system that was asked for.
    pub price: Price,
    /// Whether the last try, if it was recent, found capacity.
    pub available: bool,
    /// Whether it was refused lately and may be tried again, by one launch at first.
    pub on_trial: bool,
    /// What it draws on, if its capacity is reserved.
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

/// Chooses by tags, id or name, as a selector term of an EC2NodeClass does; fields are ANDed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagSelector {
    /// All of these; `*` matches any value.
    pub tags: BTreeMap<String, String>,
    /// Exactly this id.
    pub id: Option<String>,
    /// Exactly this name.
    pub name: Option<String>,
}

impl TagSelector {
    /// Whether something with this id, name and tags is chosen. An empty selector chooses nothing.
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
    /// Id of the capacity reservation that it draws on, if its capacity is reserved.
    pub reservation: Option<String>,
}

impl fmt::Display for LaunchOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} in {}",
            self.capacity_type, self.instance_type, self.zone
        )?;
        match &self.reservation {
            Some(id) => write!(f, " from {id}"),
            None => Ok(()),
        }
    }
}

/// What the kubelet of a new node says of itself when it registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// `--node-labels`, beyond those every kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// `--register-with-taints`.
    pub taints: Vec<Taint>,
}

/// Why EC2 does not sell an option now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shortage {
    /// The zone has no host left for the type.
    Hosts {
        /// Zones that have some.
        elsewhere: Vec<Arc<str>>,
    },
    /// No spare capacity is left to be sold as spot.
    Spot,
    /// The capacity reservation has no machine left, or there is no such reservation.
    Reservation,
    /// No subnet that was asked for has an address left in the zone.
    Addresses,
    /// The account may not run that many vCPUs more.
    Vcpus {
        /// The account's limit.
        limit: u64,
    },
    /// Another reason that may pass, such as a quota.
    Other {
        /// EC2's error code.
        code: String,
        /// EC2's sentence.
        message: String,
    },
}

impl Shortage {
    /// EC2's error code.
    pub fn code(&self) -> &str {
        match self {
            Self::Other { code, .. } => code,
            Self::Hosts { .. } => "InsufficientInstanceCapacity",
            Self::Spot => "UnfulfillableCapacity",
            Self::Reservation => "ReservationCapacityExceeded",
            Self::Addresses => "InsufficientFreeAddressesInSubnet",
            Self::Vcpus { .. } => "VcpuLimitExceeded",
        }
    }
}

/// An option that a launch did not get. Written as EC2's CreateFleet tells it, code and message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetError {
    /// What was asked for.
    pub option: LaunchOption,
    /// Why it was not to be had.
    pub shortage: Shortage,
    /// For how long it is taken to be unavailable now.
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

/// What an order came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Launch {
    /// What was bought.
    pub instance: Arc<Instance>,
    /// Better options that were not to be had.
    pub refused: Vec<FleetError>,
}

/// An order for one instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchRequest {
    /// Repeating a token returns the instance it bought.
    pub client_token: String,
    /// Acceptable outcomes, best first.
    pub options: Vec<LaunchOption>,
    /// Subnets it may be in; empty means all.
    pub subnets: Vec<Arc<str>>,
    /// Ids of its security groups; empty means those of the cluster's nodes.
    pub security_groups: Vec<Arc<str>>,
    /// Image, volume and kubelet settings.
    pub template: NodeTemplate,
    /// Ids of the images that may be launched; empty means the newest of the template's family.
    pub images: Vec<String>,
    /// What its kubelet registers with.
    pub registration: Registration,
    /// Tags of the instance.
    pub tags: BTreeMap<String, String>,
    /// The EC2NodeClass that it is launched from; none for a node of a node group.
    pub class: Option<Box<LaunchClass>>,
}

/// What a launch takes from an EC2NodeClass beyond the template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchClass {
    /// What the class says: user data, volumes, metadata options and the like.
    pub spec: EC2NodeClassSpec,
    /// The instance profile that its status names.
    pub instance_profile: String,
}

/// Where an instance is in its life. States are in the order in which an instance passes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum InstanceState {
    /// Being placed on a host.
    Pending,
    /// Powered on; see [`Instance::booted`].
    Running,
    /// Powered off, with its disks and its address; it may be started again.
    Stopped,
    /// On its way out.
    ShuttingDown,
    /// Gone; kept in listings for a while.
    Terminated,
}

impl InstanceState {
    /// EC2's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
        }
    }

    /// Whether it works, or will soon.
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }
}

/// An instance and all that its node will say of itself.
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
    /// Prefix length of the subnet's CIDR block, as the metadata service tells an instance.
    pub subnet_prefix_len: u8,
    /// How it is paid for.
    pub capacity_type: CapacityType,
    /// The capacity reservation that it runs in, if its capacity is reserved.
    pub reservation: Option<Reservation>,
    /// Price per hour, operating system included.
    pub price: Price,
    /// First private address.
    pub private_ip: std::net::Ipv4Addr,
    /// Private DNS name, which is the node's name.
    pub private_dns_name: String,
    /// What it boots.
    pub image: NodeImage,
    /// What its node reports as capacity.
    pub capacity: Resources,
    /// What its node has for pods.
    pub allocatable: Resources,
    /// What its kubelet registers with.
    pub registration: Registration,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Where it is in its life.
    pub state: InstanceState,
    /// Whether the operating system is up, so that the kubelet runs.
    pub booted: bool,
    /// When it was bought.
    pub launched_at: Timestamp,
}

impl Instance {
    /// Operating system.
    pub fn os(&self) -> Os {
        self.image.os()
    }

    /// The labels its node registers with: those of kubelet and cloud provider, then those asked for.
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

/// Why a cloud did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum CloudError {
    /// None of the options can be had now.
    #[error("{}", told_once(.0))]
    InsufficientCapacity(Vec<FleetError>),
    /// A subnet has no address left.
    #[error("InsufficientFreeAddressesInSubnet: no free address in {0}")]
    NoFreeAddresses(Arc<str>),
    /// Too many calls.
    #[error("RequestLimitExceeded: Request limit exceeded.")]
    Throttled,
    /// No such instance.
    #[error("InvalidInstanceID.NotFound: The instance ID '{0}' does not exist")]
    NotFound(InstanceId),
    /// An instance type nobody has heard of.
    #[error("InvalidInstanceType: The instance type '{0}' does not exist")]
    UnknownInstanceType(String),
    /// A request that can never succeed.
    #[error("InvalidParameterValue: {0}")]
    Invalid(String),
    /// The caller's permissions do not allow the call.
    #[error("UnauthorizedOperation: {0}")]
    Unauthorized(String),
    /// The cloud refused the call for another reason, which its error code tells.
    #[error("{code}: {message}")]
    Refused {
        /// The cloud's error code.
        code: String,
        /// The cloud's sentence.
        message: String,
    },
    /// No answer came: the cloud may have done what it was asked.
    #[error("RequestTimeout: no answer came from the cloud: {0}")]
    NoAnswer(String),
}

/// Refusals in the words of EC2, each only once.
fn told_once(refused: &[FleetError]) -> String {
    let texts: BTreeSet<_> = refused.iter().map(ToString::to_string).collect();
    texts.into_iter().collect::<Vec<_>>().join("; ")
}

impl CloudError {
    /// Whether the instance is known to be gone.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

/// A cloud that sells instances.
pub trait CloudProvider: fmt::Debug + Send + Sync + 'static {
    /// Region that is bought in.
    fn region(&self) -> &str;

    /// What can be bought for nodes of this operating system, at its price, in no particular order.
    fn offers(&self, os: Os) -> BoxFuture<'_, Result<Arc<[Offer]>, CloudError>>;

    /// Subnets chosen by any of the selectors, those with most free addresses first.
    fn subnets<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<Subnet>, CloudError>>;

    /// Security groups chosen by any of the selectors.
    fn security_groups<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<SecurityGroup>, CloudError>>;

    /// Returns the capacity reservations that any of the terms selects and whose time is not over, by id (EC2: DescribeCapacityReservations).
    /// Who controls nodes asks often: launches count at once in what is available.
    fn capacity_reservations<'a>(
        &'a self,
        terms: &'a [CapacityReservationSelectorTerm],
    ) -> BoxFuture<'a, Result<Vec<CapacityReservation>, CloudError>>;

    /// Returns the newest image of a family (SSM: GetParameter).
    fn newest_image(
        &self,
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
    ) -> BoxFuture<'_, Result<NodeImage, CloudError>>;

    /// Returns the images that terms of an EC2NodeClass select, for each architecture the newest first.
    fn images<'a>(
        &'a self,
        terms: &'a [AmiSelectorTerm],
        family: AmiFamily,
        version: KubernetesVersion,
    ) -> BoxFuture<'a, Result<Vec<NodeImage>, CloudError>>;

    /// Returns the name of the instance profile that machines of a class get: its own, or the one of its role, which is made if it is not there.
    /// A cloud without identities makes none.
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

    /// Whether user data, volumes and the like that an EC2NodeClass asks for change the machines. Those of simulated machines change nothing.
    fn heeds_machine_settings(&self) -> bool {
        false
    }

    /// Buys one instance: the first of the request's options that has capacity.
    fn launch(&self, request: LaunchRequest) -> BoxFuture<'_, Result<Launch, CloudError>>;

    /// The instance as it is now; terminated ones are not found.
    fn get(&self, id: InstanceId) -> BoxFuture<'_, Result<Arc<Instance>, CloudError>>;

    /// All instances that are not terminated and carry all these tags (`*` matches any value).
    fn list(
        &self,
        tags: BTreeMap<String, String>,
    ) -> BoxFuture<'_, Result<Vec<Arc<Instance>>, CloudError>>;

    /// Starts the end of an instance; repeating it is fine until it is terminated, then it is not found.
    fn terminate(&self, id: InstanceId) -> BoxFuture<'_, Result<(), CloudError>>;

    /// Takes an option as refused, because the cloud has just taken such an instance back. Returns for how long it is taken to be unavailable.
    fn mark_unavailable(&self, option: LaunchOption)
    -> BoxFuture<'_, Result<Duration, CloudError>>;

    /// Waits for messages about instances, for 20 s at most, and returns ten of them at most. One that is not deleted within 20 s is
    /// returned again.
    fn receive_messages(&self) -> BoxFuture<'_, Result<Vec<Message>, CloudError>>;

    /// Deletes a message that has been dealt with.
    fn delete_message(&self, message: &Message) -> BoxFuture<'_, Result<(), CloudError>>;

    /// Returns what the cloud's own checks find wrong with running instances, and what maintenance is ahead of them (EC2:
    /// DescribeInstanceStatus).
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
