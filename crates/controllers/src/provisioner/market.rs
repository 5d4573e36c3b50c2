//! The instance types and offerings that a node class can buy: the cloud's offers, restricted by the class's image, subnets
//! and kubelet settings.
//!
//! Invariant: planning and launching use the same market, so a launch buys what was planned: a planned node has the labels
//! and allocatable of the later instance, and prices include its operating system.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mullion_api::{
    ami::Os,
    karpenter::{AmiStatus, EC2NodeClass, Operator, Requirement, ResourceList},
    labels,
};
use mullion_cloud::{
    CapacityType, CloudError, CloudProvider, LaunchOption, NodeTemplate, Offer, Offering,
    Placement, PlacementGroup, TemplateError, WindowsAddresses,
    catalogue::{InstanceType, Price, allocatable},
    image::NodeImage,
};
use mullion_engine::{
    model::{ResourceMap, StringMap},
    provision,
};

use super::{
    Settings,
    discovered::{self, Amounts, Book},
    requirements::admits,
    reserved,
    risk::Premiums,
};
use crate::{
    nodepool::{class::placement_group, hash::class_hash},
    overlays::Changed,
};

/// The maximum number of options of one launch (AWS provider: instance types in a fleet request).
const MAX_LAUNCH_OPTIONS: usize = 60;

/// Windows nodes with less memory are bought only if a pool asks for them, because Windows and the kubelet leave pods almost
/// nothing of 2 GiB.
pub const LEAST_WINDOWS_MIB: u64 = 4096;
/// Labels of requirements that ask for small instance types.
const SIZES: [&str; 3] = [
    labels::INSTANCE_TYPE,
    labels::INSTANCE_MEMORY,
    labels::INSTANCE_SIZE,
];

/// Why the market of a class cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum MarketError {
    /// The class does not describe a complete node.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The cloud did not answer.
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

/// The error about an instance type that is not sold for the operating system of a class.
#[derive(Debug, thiserror::Error)]
#[error("instance type {0:?} is not sold for the operating system of the class")]
pub struct TypeNotSold(String);

/// The instance types and offerings of one node class.
#[derive(Clone, Debug)]
pub struct Market {
    /// Image, volume and kubelet settings of the nodes.
    pub template: NodeTemplate,
    /// Subnets that nodes may be in.
    pub subnets: Vec<Arc<str>>,
    region: String,
    zones: BTreeSet<String>,
    /// The images of the class; empty while it has found none.
    images: Vec<AmiStatus>,
    /// The placement group that nodes are in.
    group: Option<PlacementGroup>,
    pub(crate) offers: Arc<[Offer]>,
    /// Risk premiums on the prices of spot offerings.
    pub(super) premiums: Premiums,
    /// Discovered capacity of the class's nodes, by instance type.
    discovered: BTreeMap<String, Amounts>,
    /// The changes by NodeOverlays, which are applied to `offers` and added to the types' resources.
    pub(crate) changed: Changed,
}

impl Market {
    /// Opens the market of a class whose status lists its subnets. `windows_addresses` is the present address mode, for a
    /// class with Windows nodes.
    ///
    /// # Errors
    /// Returns an error if the class is incomplete or the cloud does not answer.
    pub async fn open(
        class: &EC2NodeClass,
        version: mullion_api::eksctl::KubernetesVersion,
        windows_addresses: WindowsAddresses,
        cloud: &dyn CloudProvider,
    ) -> Result<Self, MarketError> {
        let template = NodeTemplate {
            windows_addresses,
            // Nodes get them if pods ask for them.
            has_efas: true,
            ..NodeTemplate::from_class(&class.spec, version)?
        };
        let offers = cloud.offers(template.family.os()).await?;
        let offers = reserved::with_reservations(offers, class, cloud).await?;
        let group = placement_group(cloud, &class.spec).await?;
        let subnets = class.status.iter().flat_map(|status| &status.subnets);
        let images = class.status.iter().flat_map(|status| &status.amis);
        Ok(Self {
            images: images.cloned().collect(),
            region: cloud.region().to_owned(),
            group,
            zones: subnets.clone().map(|subnet| subnet.zone.clone()).collect(),
            subnets: subnets.map(|subnet| subnet.id.as_str().into()).collect(),
            template,
            offers,
            premiums: Premiums::default(),
            discovered: BTreeMap::new(),
            changed: Changed::default(),
        })
    }

    /// Applies the settings for memory overhead and reserved network interfaces.
    pub fn with_settings(mut self, settings: &Settings) -> Self {
        self.template.memory_overhead = settings.vm_memory_overhead;
        self.template.reserved_enis = settings.reserved_enis;
        self
    }

    /// Applies the discovered capacity of the class's nodes.
    pub fn with_discovered(mut self, class: &EC2NodeClass, book: &Book) -> Self {
        if !book.is_empty() {
            let hash = class_hash(&class.spec);
            self.discovered = book.of_class(&discovered::images_of(class), &hash);
        }
        self
    }

    /// Returns how Windows pods get addresses; off if the nodes run another system.
    pub fn windows_addresses(&self) -> WindowsAddresses {
        match self.os() {
            Os::Windows => self.template.windows_addresses,
            Os::Linux => WindowsAddresses::Off,
        }
    }

    /// Restricts the market to the nodes of a claim with these requests: without Elastic Fabric Adapters unless it asks for
    /// some.
    pub fn for_requests(mut self, requests: &ResourceMap) -> Self {
        self.template.has_efas = requests.contains_key(labels::EFA);
        self
    }

    /// Returns the operating system of the nodes.
    pub fn os(&self) -> Os {
        self.template.family.os()
    }

    /// Returns the labels that every node of the class has.
    pub fn fixed_labels(&self) -> StringMap {
        let mut map = StringMap::from([
            (labels::OS.to_owned(), self.os().as_str().to_owned()),
            (labels::REGION.to_owned(), self.region.clone()),
        ]);
        if let Some(release) = self.template.family.windows_release() {
            map.insert(labels::WINDOWS_BUILD.to_owned(), release.build().to_owned());
        }
        if let Some(group) = &self.group {
            map.insert(labels::PLACEMENT_GROUP_ID.to_owned(), group.id.to_string());
        }
        map
    }

    /// Returns the price of an offering in micro-dollars per hour, operating system included; `None` if it is not sold here.
    pub fn price(&self, instance_type: &str, zone: &str, capacity_type: &str) -> Option<u64> {
        let mut offers = self.offers.iter();
        let offer = offers.find(|offer| &*offer.instance_type.name == instance_type)?;
        let sold = |capacity_type: &str| {
            let mut offerings = offer.offerings.iter();
            let offering = offerings
                .find(|own| &*own.zone == zone && own.capacity_type.as_str() == capacity_type)?;
            Some(offering.price)
        };
        let price = sold(capacity_type);
        // A node may outlive the reservation that it was bought from; then its price follows from the on-demand price.
        let price = match capacity_type {
            labels::RESERVED => price.or_else(|| Some(sold(labels::ON_DEMAND)?.as_reserved())),
            _ => price,
        };
        Some(price?.0)
    }

    /// Returns the price of a node's root volume, in micro-dollars per hour.
    pub fn volume_price(&self) -> u64 {
        Price::of_volume(self.template.root_volume_gib).0
    }

    /// Returns the instance types that can meet the requirements, in the engine's form, without offerings that cannot.
    pub fn machines(&self, requirements: &[Requirement]) -> Vec<Arc<provision::InstanceType>> {
        let fixed = self.fixed_labels();
        self.offers
            .iter()
            .filter_map(|offer| self.machine(offer, &fixed, requirements))
            .map(Arc::new)
            .collect()
    }

    fn machine(
        &self,
        offer: &Offer,
        fixed: &StringMap,
        requirements: &[Requirement],
    ) -> Option<provision::InstanceType> {
        let labels = node_labels(&offer.instance_type, fixed);
        if !self.suits(&offer.instance_type, &labels)
            || !allows(requirements, &labels)
            || self.is_too_small(offer, requirements)
        {
            return None;
        }
        let places = self.places(requirements);
        let placed = |offering| places.iter().map(move |place| (offering, place));
        let offerings: Vec<_> = self
            .sold_here(offer)
            .filter(|offering| allows_offering(requirements, offering))
            .flat_map(placed)
            .map(|(offering, place)| provision::Offering {
                zone: offering.zone.to_string(),
                capacity_type: offering.capacity_type.as_str().to_owned(),
                price_micro_usd: self.premiums.price(&offer.instance_type.name, offering),
                available: self.is_available(&offer.instance_type, offering, place.as_ref()),
                labels: offering_labels(offering, place.as_ref()),
                reservation: offering.reservation.as_ref().map(reserved::to_engine),
            })
            .collect();
        if offerings.is_empty() {
            return None;
        }
        let (capacity, allocatable) = self.resources(&offer.instance_type);
        Some(provision::InstanceType {
            name: offer.instance_type.name.to_string(),
            labels,
            capacity,
            allocatable,
            offerings,
        })
    }

    /// Returns the expected capacity and allocatable of a node of this type, corrected by discovered capacity.
    pub fn resources(&self, instance_type: &InstanceType) -> (ResourceMap, ResourceMap) {
        let resources = allocatable::of(instance_type, &self.template);
        let mut capacity = amounts(&resources.capacity.to_list());
        let mut allocatable = amounts(&resources.allocatable.to_list());
        if let Some(seen) = self.discovered.get(&*instance_type.name) {
            seen.correct(&mut capacity, &mut allocatable);
        }
        self.add_overlaid(&instance_type.name, &mut capacity, &mut allocatable);
        (capacity, allocatable)
    }

    /// Returns the options of a launch, cheapest first: available offerings that meet the requirements and hold the
    /// requests.
    pub fn launch_options(
        &self,
        requirements: &[Requirement],
        requests: &ResourceMap,
    ) -> Vec<LaunchOption> {
        let fixed = self.fixed_labels();
        let Some(place) = self.launch_place(requirements) else {
            return Vec::new();
        };
        let mut priced = Vec::new();
        for offer in self.offers.iter() {
            let labels = node_labels(&offer.instance_type, &fixed);
            if !self.suits(&offer.instance_type, &labels)
                || !allows(requirements, &labels)
                || self.is_too_small(offer, requirements)
            {
                continue;
            }
            let (_, room) = self.resources(&offer.instance_type);
            let holds = requests
                .iter()
                .all(|(name, amount)| *amount <= room.get(name).copied().unwrap_or_default());
            if !holds {
                continue;
            }
            for offering in self.sold_here(offer) {
                if self.is_available(&offer.instance_type, offering, place.as_ref())
                    && allows_offering(requirements, offering)
                {
                    priced.push((
                        self.premiums.price(&offer.instance_type.name, offering),
                        launch_option(&offer.instance_type, offering, place.as_ref()),
                    ));
                }
            }
        }
        priced.sort();
        priced.truncate(MAX_LAUNCH_OPTIONS);
        priced.into_iter().map(|(_, option)| option).collect()
    }

    /// Returns whether nodes of the class can be of this type, whose nodes have these labels. An image of the class has to boot
    /// on it (Karpenter: types without an image are left out of the launch), or the node would be of another image and drift.
    fn suits(&self, instance_type: &InstanceType, labels: &StringMap) -> bool {
        let mut group = self.group.iter();
        self.template.suits(instance_type)
            && group.all(|group| group.admits(instance_type))
            && (self.images.is_empty() || self.image_for(labels).is_some())
    }

    /// Returns whether nodes of a type boot this image; any while the class has found none.
    ///
    /// # Errors
    /// The type is not sold, so its hardware is not known.
    pub fn boots(&self, image: &str, instance_type: &str) -> Result<bool, TypeNotSold> {
        let mut offers = self.offers.iter();
        let offer = offers.find(|offer| &*offer.instance_type.name == instance_type);
        let offer = offer.ok_or_else(|| TypeNotSold(instance_type.to_owned()))?;
        let labels = node_labels(&offer.instance_type, &self.fixed_labels());
        let own = self.image_for(&labels);
        Ok(self.images.is_empty() || own.is_some_and(|own| own.id == image))
    }

    /// Returns the image that nodes with these labels boot (AWS provider: `MapToInstanceTypes`).
    fn image_for(&self, labels: &StringMap) -> Option<&AmiStatus> {
        let mut images = self.images.iter();
        images.find(|image| allows(&image.requirements, labels))
    }

    /// Returns the places in the class's placement group that meet the requirements; one that is `None` if there is no group.
    fn places(&self, requirements: &[Requirement]) -> Vec<Option<Placement>> {
        let Some(group) = &self.group else {
            return vec![None];
        };
        let is_allowed = |place: &Placement| {
            let partition = place.partition.map(|number| number.to_string());
            requirements
                .iter()
                .filter(|own| own.key == labels::PLACEMENT_GROUP_PARTITION)
                .all(|own| admits(own, partition.as_deref()))
        };
        let places = group.places().into_iter();
        places.filter(is_allowed).map(Some).collect()
    }

    /// Returns the place that a launch asks for: the first partition that the requirements name, and the group as a whole if they
    /// name none. `None`: no partition meets them.
    fn launch_place(&self, requirements: &[Requirement]) -> Option<Option<Placement>> {
        let first = self.places(requirements).into_iter().next()?;
        let mut requirements = requirements.iter();
        let is_named = requirements.any(|own| own.key == labels::PLACEMENT_GROUP_PARTITION);
        Some(match (&self.group, is_named) {
            (Some(group), false) => Some(group.place(None)),
            _ => first,
        })
    }

    fn is_available(
        &self,
        instance_type: &InstanceType,
        offering: &Offering,
        place: Option<&Placement>,
    ) -> bool {
        let mut group = self.group.iter();
        offering.available
            && group.all(|group| !group.has_refused(&launch_option(instance_type, offering, place)))
    }

    /// Returns the image that an instance of this architecture boots.
    pub fn image(&self, arch: mullion_cloud::catalogue::Arch) -> NodeImage {
        NodeImage::new(self.template.family, self.template.version, arch)
    }

    /// Returns whether a type has less than [`LEAST_WINDOWS_MIB`] for Windows while no requirement asks for small types: by
    /// naming types or sizes, or by a bound on memory. A list of excluded types does not ask for small ones.
    fn is_too_small(&self, offer: &Offer, requirements: &[Requirement]) -> bool {
        let asks = |requirement: &Requirement| {
            let key = labels::normalized(&requirement.key);
            let excludes = matches!(
                requirement.operator,
                Operator::NotIn | Operator::DoesNotExist | Operator::Exists
            );
            SIZES.contains(&key) && !excludes
        };
        self.os() == Os::Windows
            && offer.instance_type.memory_mib < LEAST_WINDOWS_MIB
            && !requirements.iter().any(asks)
    }

    /// Returns the types that meet the requirements but are too small for Windows, cheapest first.
    pub fn too_small(&self, requirements: &[Requirement]) -> Vec<&InstanceType> {
        let fixed = self.fixed_labels();
        let small = self.offers.iter().filter(|offer| {
            let labels = node_labels(&offer.instance_type, &fixed);
            self.is_too_small(offer, requirements)
                && self.suits(&offer.instance_type, &labels)
                && allows(requirements, &labels)
                && self
                    .sold_here(offer)
                    .any(|own| allows_offering(requirements, own))
        });
        let mut small: Vec<_> = small.collect();
        small.sort_by_key(|offer| self.sold_here(offer).map(|own| own.price).min());
        small
            .into_iter()
            .map(|offer| &*offer.instance_type)
            .collect()
    }

    /// Returns the allocatable amounts of a node of this type.
    pub fn room(&self, instance_type: &InstanceType) -> ResourceMap {
        self.resources(instance_type).1
    }

    /// Returns the types that nodes of the class can have, each with its offerings.
    pub(super) fn sold(
        &self,
    ) -> impl Iterator<Item = (&InstanceType, impl Iterator<Item = &Offering>)> {
        let fixed = self.fixed_labels();
        let suits = move |offer: &&Offer| {
            let labels = node_labels(&offer.instance_type, &fixed);
            self.suits(&offer.instance_type, &labels)
        };
        let suitable = self.offers.iter().filter(suits);
        suitable.map(move |offer| (&*offer.instance_type, self.sold_here(offer)))
    }

    /// Returns the offerings of a type in the zones of the class.
    pub(crate) fn sold_here<'a>(&'a self, offer: &'a Offer) -> impl Iterator<Item = &'a Offering> {
        let zones = &self.zones;
        offer
            .offerings
            .iter()
            .filter(move |offering| zones.contains(&*offering.zone))
    }
}

/// Returns the labels of a node of this type that do not depend on the offering.
pub(crate) fn node_labels(instance_type: &InstanceType, fixed: &StringMap) -> StringMap {
    let own = instance_type.labels();
    let mut map = fixed.clone();
    map.extend(own.into_iter().map(|(key, value)| (key.to_owned(), value)));
    map
}

fn launch_option(
    instance_type: &InstanceType,
    offering: &Offering,
    place: Option<&Placement>,
) -> LaunchOption {
    let share = offering.reservation.as_ref();
    LaunchOption {
        instance_type: instance_type.name.to_string(),
        zone: offering.zone.to_string(),
        capacity_type: offering.capacity_type,
        reservation: share.map(|share| share.reservation.id.to_string()),
        placement: place.cloned(),
    }
}

/// Returns the labels that nodes of an offering have in this place besides zone and capacity type.
fn offering_labels(offering: &Offering, place: Option<&Placement>) -> StringMap {
    let zone_id = (labels::ZONE_ID.to_owned(), offering.zone_id.to_string());
    let mut map = StringMap::from([zone_id]);
    let own = place.into_iter().flat_map(Placement::labels);
    map.extend(own.map(|(key, value)| (key.to_owned(), value)));
    if let Some(share) = &offering.reservation {
        let own = share.reservation.labels().into_iter();
        map.extend(own.map(|(key, value)| (key.to_owned(), value)));
    }
    map
}

/// Returns whether the offering determines this label.
pub(crate) fn is_of_offering(key: &str) -> bool {
    matches!(
        key,
        labels::ZONE
            | labels::CAPACITY_TYPE
            | labels::ZONE_ID
            | labels::CAPACITY_RESERVATION_ID
            | labels::CAPACITY_RESERVATION_TYPE
            | labels::CAPACITY_RESERVATION_INTERRUPTIBLE
            | labels::PLACEMENT_GROUP_PARTITION
    )
}

/// Returns whether the type alone does not determine this label: the offering or the requirements do.
fn is_open(key: &str, labels: &StringMap) -> bool {
    is_of_offering(key)
        || key == labels::NODEPOOL
        || (!labels.contains_key(key) && !labels::WELL_KNOWN.contains(&key))
}

fn allows(requirements: &[Requirement], labels: &StringMap) -> bool {
    requirements.iter().all(|requirement| {
        let key = labels::normalized(&requirement.key);
        is_open(key, labels) || admits(requirement, labels.get(key).map(String::as_str))
    })
}

/// Returns whether an offering meets the requirements on its zone, capacity type and reservation. It is in every partition of a
/// placement group.
pub(crate) fn allows_offering(requirements: &[Requirement], offering: &Offering) -> bool {
    requirements
        .iter()
        .all(|requirement| match labels::normalized(&requirement.key) {
            labels::ZONE => admits(requirement, Some(&offering.zone)),
            labels::ZONE_ID => admits(requirement, Some(&offering.zone_id)),
            labels::CAPACITY_TYPE => admits(requirement, Some(offering.capacity_type.as_str())),
            labels::PLACEMENT_GROUP_PARTITION => true,
            key if is_of_offering(key) => {
                let share = offering.reservation.as_ref();
                let own = share.and_then(|share| reserved::label(&share.reservation, key));
                admits(requirement, own.as_deref())
            }
            _ => true,
        })
}

/// Parses the quantities of a resource list; unreadable ones are left out.
pub fn amounts(list: &ResourceList) -> ResourceMap {
    list.iter()
        .filter_map(|(name, text)| Some((name.clone(), text.0.parse().ok()?)))
        .collect()
}

/// Formats amounts as a resource list.
pub fn resource_list(amounts: &ResourceMap) -> ResourceList {
    amounts
        .iter()
        .map(|(name, amount)| (name.clone(), amount.to_string()))
        .collect()
}

/// Returns the labels that a claim gets from its launched instance.
pub fn instance_labels(
    market: &Market,
    instance_type: &InstanceType,
    zone: &str,
    zone_id: &str,
    capacity_type: CapacityType,
) -> BTreeMap<String, String> {
    let mut map = node_labels(instance_type, &market.fixed_labels());
    map.insert(labels::ZONE.to_owned(), zone.to_owned());
    map.insert(labels::ZONE_ID.to_owned(), zone_id.to_owned());
    map.insert(
        labels::CAPACITY_TYPE.to_owned(),
        capacity_type.as_str().to_owned(),
    );
    map
}

#[cfg(test)]
mod tests {
    use mullion_api::eksctl::KubernetesVersion;
    use mullion_cloud::{
        Clock, Speed,
        image::ImageVariant,
        sim::{Config, SimulatedEc2},
    };
    use serde_json::json;

    use super::*;

    async fn market(family: &str, minor: u32) -> Market {
        market_with(family, minor, WindowsAddresses::Single).await
    }

    async fn market_with(family: &str, minor: u32, addresses: WindowsAddresses) -> Market {
        let version = KubernetesVersion::from_minor(minor).expect("known");
        let config = Config {
            speed: Speed::INSTANT,
            ..Config::new("demo", "us-west-2", version)
        };
        let ec2 = SimulatedEc2::new(
            config,
            Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")),
        );
        let class: EC2NodeClass = serde_json::from_value(json!({
            "metadata": { "name": "c" },
            "spec": { "amiFamily": family },
            "status": { "subnets": [
                { "id": "subnet-1", "zone": "us-west-2a" }, { "id": "subnet-2", "zone": "us-west-2b" }
            ]}
        }))
        .expect("a class");
        let market = Market::open(&class, version, addresses, &ec2);
        market.await.expect("a market")
    }

    fn blog_requirements() -> Vec<Requirement> {
        vec![
            Requirement::is(labels::CAPACITY_TYPE, "on-demand"),
            Requirement::is(labels::OS, "windows"),
            Requirement::is(labels::ARCH, "amd64"),
            Requirement::new(labels::INSTANCE_CATEGORY, Operator::In, ["c", "m", "r"]),
            Requirement::new(labels::INSTANCE_GENERATION, Operator::Gt, ["2"]),
        ]
    }

    fn requests(pairs: &[(&str, &str)]) -> ResourceMap {
        let parse = |(k, v): &(&str, &str)| ((*k).to_owned(), v.parse().expect("a quantity"));
        pairs.iter().map(parse).collect()
    }

    #[tokio::test]
    async fn types_on_which_no_image_of_the_class_boots_are_not_bought() {
        let mut market = market_with("AL2023", 31, WindowsAddresses::Off).await;
        let is_arm = |own: &LaunchOption| own.instance_type.starts_with("t4g.");
        let options = |market: &Market| market.launch_options(&[], &ResourceMap::new());
        assert!(options(&market).iter().any(is_arm));
        market.images = vec![AmiStatus {
            id: "ami-1".to_owned(),
            deprecated: false,
            name: "amd64".to_owned(),
            requirements: vec![Requirement::is(labels::ARCH, "amd64")],
        }];
        assert!(!options(&market).is_empty() && !options(&market).iter().any(is_arm));
        let machines = market.machines(&[]);
        let archs: BTreeSet<_> = machines
            .iter()
            .map(|own| own.labels[labels::ARCH].as_str())
            .collect();
        assert_eq!(archs, BTreeSet::from(["amd64"]));
    }

    #[tokio::test]
    async fn a_node_boots_the_image_for_the_hardware_of_its_type() {
        let mut market = market_with("AL2023", 31, WindowsAddresses::Off).await;
        assert!(market.boots("ami-any", "m5.large").expect("sold"));
        let image = |id: &str, arch: &str, variant: ImageVariant| AmiStatus {
            id: id.to_owned(),
            deprecated: false,
            name: String::new(),
            requirements: [
                vec![Requirement::is(labels::ARCH, arch)],
                variant.requirements(),
            ]
            .concat(),
        };
        market.images = vec![
            image("ami-standard", "amd64", ImageVariant::Standard),
            image("ami-nvidia", "amd64", ImageVariant::Nvidia),
            image("ami-neuron", "amd64", ImageVariant::Neuron),
            image("ami-arm", "arm64", ImageVariant::Standard),
        ];
        for (name, own) in [
            ("m5.large", Some("ami-standard")),
            ("g4dn.xlarge", Some("ami-nvidia")),
            ("inf1.xlarge", Some("ami-neuron")),
            ("m6g.large", Some("ami-arm")),
            ("g5g.xlarge", None),
        ] {
            let ids = market.images.iter().map(|image| image.id.as_str());
            let boots = |id: &&str| market.boots(id, name).expect("sold");
            let booted: Vec<_> = ids.filter(boots).collect();
            assert_eq!(booted, Vec::from_iter(own), "{name}");
        }
        let error = market.boots("ami-standard", "x1.none").unwrap_err();
        assert_eq!(
            error.to_string(),
            "instance type \"x1.none\" is not sold for the operating system of the class"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn ten_windows_addresses_are_cheapest_on_a_c6a_xlarge() {
        let market = market("Windows2022", 27).await;
        let wanted = requests(&[("pods", "10"), (labels::PRIVATE_IPV4, "10")]);
        let options = market.launch_options(&blog_requirements(), &wanted);
        assert_eq!(options[0].to_string(), "on-demand c6a.xlarge in us-west-2a");
        assert_eq!(options[1].to_string(), "on-demand c6a.xlarge in us-west-2b");
        assert_eq!(options.len(), MAX_LAUNCH_OPTIONS);
    }

    #[tokio::test(start_paused = true)]
    async fn prefix_delegation_buys_smaller_machines_for_as_many_addresses() {
        let wanted = requests(&[("pods", "60"), (labels::PRIVATE_IPV4, "60")]);
        let first = async |addresses| {
            let market = market_with("Windows2022", 27, addresses).await;
            let options = market.launch_options(&blog_requirements(), &wanted);
            options.first().map(|option| option.instance_type.clone())
        };
        // 60 single addresses need an interface with more than 50: there is none.
        assert_eq!(first(WindowsAddresses::Single).await, None);
        let bought = first(WindowsAddresses::Prefixes).await.expect("a type");
        assert_eq!(bought, "c6a.large");
        assert_eq!(first(WindowsAddresses::Off).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn windows_nodes_under_four_gibibytes_are_bought_only_where_the_pool_asks_for_them() {
        let market = market("Windows2022", 36).await;
        let five = requests(&[("pods", "5"), (labels::PRIVATE_IPV4, "3")]);
        let cheapest = |requirements: &[Requirement]| {
            let options = market.launch_options(requirements, &five);
            options[0].instance_type.clone()
        };
        let mut pool = blog_requirements();
        let small = market.too_small(&pool);
        assert_eq!(small.first().map(|own| &*own.name), Some("c7a.medium"));
        let memory = |name: &str| {
            let kind = mullion_cloud::catalogue::get(name).expect("known");
            kind.memory_mib
        };
        assert!(memory(&cheapest(&pool)) >= LEAST_WINDOWS_MIB);
        assert!(
            market
                .machines(&pool)
                .iter()
                .all(|own| memory(&own.name) >= LEAST_WINDOWS_MIB)
        );
        let asking = [
            Requirement::new(labels::INSTANCE_SIZE, Operator::In, ["medium"]),
            Requirement::new(labels::INSTANCE_MEMORY, Operator::Lt, ["4096"]),
            Requirement::new(labels::INSTANCE_TYPE, Operator::In, ["c7a.medium"]),
        ];
        for requirement in asking {
            pool.push(requirement);
            assert_eq!(cheapest(&pool), "c7a.medium");
            assert!(market.too_small(&pool).is_empty());
            pool.pop();
        }
        let not = Requirement::new(labels::INSTANCE_TYPE, Operator::NotIn, ["c7i.large"]);
        pool.push(not);
        assert!(memory(&cheapest(&pool)) >= LEAST_WINDOWS_MIB);
    }

    #[tokio::test(start_paused = true)]
    async fn types_that_windows_does_not_run_on_are_never_bought_for_it() {
        let market = market("Windows2022", 36).await;
        let named = |name: &str| {
            let requirement = Requirement::new(labels::INSTANCE_TYPE, Operator::In, [name]);
            market.machines(&[requirement]).len()
        };
        let unknown = mullion_cloud::catalogue::all().iter().find(|own| {
            // x86-64, sold with Linux, and not in the table of the VPC resource controller.
            own.arch == mullion_cloud::catalogue::Arch::Amd64 && !own.windows_capable
        });
        assert_eq!(named(&unknown.expect("there are some").name), 0);
        assert_eq!(named("m6g.large"), 0, "arm64");
        assert_eq!(named("m5.large"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn machines_say_what_their_nodes_will_say() {
        let market = market("Windows2019", 27).await;
        let machines = market.machines(&blog_requirements());
        let c6a = machines
            .iter()
            .find(|m| m.name == "c6a.xlarge")
            .expect("sold");
        assert_eq!(c6a.labels[labels::WINDOWS_BUILD], "10.0.17763");
        assert_eq!(c6a.allocatable["cpu"].milli_value(), 3920);
        assert_eq!(c6a.allocatable[labels::PRIVATE_IPV4].value(), 14);
        assert_eq!(c6a.offerings.len(), 2, "two zones, on-demand only");
        assert!(c6a.offerings.iter().all(|o| o.price_micro_usd == 337_000));
        assert!(machines.iter().all(|m| m.labels[labels::ARCH] == "amd64"));
    }

    #[tokio::test(start_paused = true)]
    async fn settings_change_what_nodes_are_counted_with() {
        let settings = Settings {
            vm_memory_overhead: mullion_cloud::MemoryOverhead::of_fraction(0.02).expect("a part"),
            reserved_enis: 1,
            ..Settings::default()
        };
        let market = market("AL2023", 31).await.with_settings(&settings);
        let machines = market.machines(&[Requirement::is(labels::INSTANCE_TYPE, "m5.large")]);
        let m5 = &machines[0];
        assert_eq!(m5.capacity[labels::MEMORY].value(), 8028 << 20);
        assert_eq!(m5.allocatable[labels::PODS].value(), 20);
        let wanted = requests(&[("pods", "21")]);
        let options = market.launch_options(&[], &wanted);
        assert!(options.iter().all(|own| own.instance_type != "m5.large"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_requirement_on_a_label_of_the_users_own_excludes_no_machine() {
        let market = market("AL2023", 31).await;
        let mut own = vec![Requirement::is("example.com/team", "a")];
        let all = market.machines(&[]).len();
        assert_eq!(market.machines(&own).len(), all);
        own.push(Requirement::new(
            labels::INSTANCE_GPU_COUNT,
            Operator::Exists,
            [""; 0],
        ));
        let with_gpu = market.machines(&own);
        assert!(!with_gpu.is_empty() && with_gpu.len() < all / 5);
    }

    #[tokio::test(start_paused = true)]
    async fn windows_is_sold_at_its_own_price() {
        let windows = market("Windows2022", 31).await.machines(&[]);
        let linux = market("AL2023", 31).await.machines(&[]);
        let price = |machines: &[Arc<provision::InstanceType>]| {
            let m5 = machines
                .iter()
                .find(|m| m.name == "m5.large")
                .expect("sold");
            m5.offerings.iter().map(|o| o.price_micro_usd).max()
        };
        assert_eq!(price(&linux), Some(96_000));
        assert_eq!(price(&windows), Some(96_000 + 92_000));
    }
}
