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
    eksctl::KubernetesVersion,
    karpenter::{
        AmiSelectorTerm, CapacityReservationSelectorTerm, EC2NodeClass, PlacementGroupSelector,
    },
    labels,
};

use crate::{
    CapacityReservation, DeniedCall, FleetError, Impairment, Instance, Launch, LaunchOption,
    LaunchRequest, Message, PlacementGroup, ReservedShare,
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

/// A subnet that nodes can be in.
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
    /// The number of free addresses.
    pub free_addresses: usize,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// Returns the subnet in which a launch takes its address, of those that it may use in one zone: the first of those with the most free addresses
/// (AWS provider: `ZonalSubnetsForLaunch`). No other one has an address if that has none.
pub fn subnet_for_launch<T>(
    of_zone: impl IntoIterator<Item = T>,
    free_addresses: impl Fn(&T) -> usize,
) -> Option<T> {
    of_zone.into_iter().reduce(|best, other| {
        if free_addresses(&other) > free_addresses(&best) {
            other
        } else {
            best
        }
    })
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
    /// The launch bought nothing for a reason other than missing capacity, which the error of each of its options names.
    #[error("{code}: {message}")]
    Unfulfilled {
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

/// A shift of a cluster's traffic away from a zone that is impaired, by Amazon's Application Recovery Controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZonalShift {
    /// Id of the zone, such as `usw2-az1`.
    pub zone_id: Arc<str>,
    /// The time at which the shift ends by itself.
    pub expires: Option<Timestamp>,
}

impl ZonalShift {
    /// Returns whether the shift has not ended by itself.
    pub fn holds_at(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| expires > now)
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

    /// Returns the first call of a launch that IAM does not allow; `None` if it allows all. Dry runs find out, so nothing is
    /// bought, but the launch template is created as for a launch.
    ///
    /// # Errors
    /// A dry run failed for another reason than a missing permission.
    fn denied_call(
        &self,
        request: LaunchRequest,
    ) -> BoxFuture<'_, Result<Option<DeniedCall>, CloudError>>;

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

    /// Returns the zonal shifts of the cluster that are applied now (ARC: GetManagedResource).
    fn zonal_shifts(&self) -> BoxFuture<'_, Result<Vec<ZonalShift>, CloudError>>;
}

#[cfg(test)]
mod tests {
    use crate::Shortage;

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
