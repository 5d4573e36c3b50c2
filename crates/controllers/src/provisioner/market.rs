//! The instance types and offerings that a node class can buy: the cloud's offers, restricted by the class's image, subnets
//! and kubelet settings.
//!
//! Invariant: planning and launching use the same market, so a launch buys what was planned: a planned node has the labels
//! and allocatable of the later instance, and prices include its operating system.

mod closed;
mod rules;
mod trial;

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
    discovered::{self, Amounts, CapacityRecords},
    requirements::admits,
    reserved,
    risk::Premiums,
};
use rules::{allows, has_tenancy, offering_labels};
pub(crate) use rules::{allows_offering, is_of_offering, launch_tenancy, node_labels, tenancies};

use crate::{
    nodepool::{class::placement_group, hash::class_hash},
    overlays::AppliedOverlays,
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
    pub(crate) changed: AppliedOverlays,
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
        // Reservations come after the offers because their price and zone id follow from the
        // on-demand offering.
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
            changed: AppliedOverlays::default(),
        })
    }

    /// Applies the settings for memory overhead and reserved network interfaces.
    pub fn with_settings(mut self, settings: &Settings) -> Self {
        self.template.memory_overhead = settings.vm_memory_overhead;
        self.template.reserved_enis = settings.reserved_enis;
        self
    }

    /// Applies the discovered capacity of the class's nodes.
    pub fn with_discovered(mut self, class: &EC2NodeClass, records: &CapacityRecords) -> Self {
        if !records.is_empty() {
            let hash = class_hash(&class.spec);
            self.discovered = records.of_class(&discovered::images_of(class), &hash);
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
        self.suitable(requirements)
            .filter(|(offer, _)| !self.is_too_small(offer, requirements))
            .filter_map(|(offer, labels)| self.machine(offer, labels, requirements))
            .map(Arc::new)
            .collect()
    }

    fn machine(
        &self,
        offer: &Offer,
        labels: StringMap,
        requirements: &[Requirement],
    ) -> Option<provision::InstanceType> {
        // Each partition of a placement group is an offering of its own, so that topology spread
        // can choose between them.
        let places = self.places(requirements);
        // So is each tenancy, so that pods can select one.
        let tenancies = tenancies(requirements);
        let placed = |offering| {
            let own = tenancies.iter();
            let own = own.filter(move |tenancy| has_tenancy(offering, **tenancy));
            own.flat_map(|tenancy| places.iter().map(move |place| (*tenancy, place)))
                .map(move |(tenancy, place)| (offering, place, tenancy))
        };
        let offerings: Vec<_> = self
            .sold_here(offer)
            .filter(|offering| allows_offering(requirements, offering))
            .flat_map(placed)
            .map(|(offering, place, tenancy)| provision::Offering {
                zone: offering.zone.to_string(),
                capacity_type: offering.capacity_type.as_str().to_owned(),
                price_micro_usd: self.premiums.price(&offer.instance_type.name, offering),
                available: self.is_available(&offer.instance_type, offering, place.as_ref()),
                labels: offering_labels(offering, place.as_ref(), tenancy),
                reservation: offering.reservation.as_ref().map(reserved::to_engine),
            })
            .collect();
        if offerings.is_empty() {
            return None;
        }
        let (capacity, allocatable) = self.resources(&offer.instance_type);
        if holds_nothing(&allocatable) {
            return None;
        }
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
        // The fleet request names one placement for all its options, so the place is chosen before
        // the options.
        let Some(place) = self.launch_place(requirements) else {
            return Vec::new();
        };
        let Some(tenancy) = launch_tenancy(requirements) else {
            return Vec::new();
        };
        let mut priced = Vec::new();
        for (offer, _) in self.suitable(requirements) {
            if self.is_too_small(offer, requirements) {
                continue;
            }
            let (_, room) = self.resources(&offer.instance_type);
            let holds = requests
                .iter()
                .all(|(name, amount)| *amount <= room.get(name).copied().unwrap_or_default());
            if !holds || holds_nothing(&room) {
                continue;
            }
            for offering in self.sold_here(offer) {
                if self.is_available(&offer.instance_type, offering, place.as_ref())
                    && allows_offering(requirements, offering)
                    && has_tenancy(offering, tenancy)
                {
                    priced.push((
                        self.premiums.price(&offer.instance_type.name, offering),
                        launch_option(&offer.instance_type, offering, place.as_ref()),
                    ));
                }
            }
        }
        // Ties are broken by the option itself, so the same input gives the same request.
        priced.sort();
        priced.truncate(MAX_LAUNCH_OPTIONS);
        priced.into_iter().map(|(_, option)| option).collect()
    }

    /// Returns the offers of types that nodes of the class can have and that meet the requirements, each with the labels of its
    /// nodes. Offerings are not looked at, and types too small for Windows are among them.
    fn suitable<'a>(
        &'a self,
        requirements: &[Requirement],
    ) -> impl Iterator<Item = (&'a Offer, StringMap)> {
        let fixed = self.fixed_labels();
        let labelled = self.offers.iter().map(move |offer| {
            let labels = node_labels(&offer.instance_type, &fixed);
            (offer, labels)
        });
        labelled.filter(move |(offer, labels)| {
            self.suits(&offer.instance_type, labels) && allows(requirements, labels)
        })
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
            // `NotIn t3.nano` is written to avoid a size; treating it as a wish for small types
            // would buy others just as small.
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
        let suitable = self.suitable(requirements).map(|(offer, _)| offer);
        let small = suitable.filter(|offer| {
            let mut sold = self.sold_here(offer);
            self.is_too_small(offer, requirements)
                && sold.any(|own| allows_offering(requirements, own))
        });
        let mut small: Vec<_> = small.collect();
        // Sorted by plain price: a premium for risk says nothing about the size of a type.
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
        let suitable = self.suitable(&[]);
        suitable.map(move |(offer, _)| (&*offer.instance_type, self.sold_here(offer)))
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

/// Returns whether a node with these amounts holds no pod at all, because a NodeOverlay makes one of them less than nothing (Karpenter:
/// `resources.Fits`).
fn holds_nothing(allocatable: &ResourceMap) -> bool {
    allocatable
        .values()
        .any(|amount| *amount < Default::default())
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
pub(crate) mod tests;
