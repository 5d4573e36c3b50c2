//! What an instance is launched with, wherever a request says it: in a launch template, in an override of a fleet, in RunInstances.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use mullion_cloud::{
    CapacityType, CloudProvider, Instance, InstanceId, InterfaceId, LaunchImage, LaunchOption,
    LaunchRequest, NodeTemplate, Reservation, ReservationKind, Tenancy,
    catalogue::{Arch, InstanceType},
    default_volume_gib,
    image::{ImageVariant, NodeImage},
};
use tokio::{sync::Mutex, time::Instant};

use super::{Call, Name, instances::interface_id, launch_templates::tags_for, user_data::Kubelet};
use crate::{query::ParamScope, refusal::Refusal};

/// The number of client tokens that are remembered.
const MOST_TOKENS: usize = 20_000;
/// The maximum size of user data in bytes, before base64.
const MOST_USER_DATA: usize = 16 * 1024;

/// The facts about a launch that the instance does not have.
#[derive(Clone, Debug)]
pub(super) struct LaunchRecord {
    /// When Describe calls begin to show the instance.
    pub(super) seen_at: Instant,
    pub(super) client_token: String,
    pub(super) profile: Option<String>,
}

/// The settings of a launch template that have an effect here.
#[derive(Clone, Debug, Default)]
pub(super) struct LaunchSpec {
    pub(super) image: Option<String>,
    pub(super) instance_type: Option<String>,
    pub(super) subnet: Option<String>,
    pub(super) zone: Option<String>,
    security_groups: Vec<Name>,
    /// Name or ARN.
    pub(super) profile: Option<String>,
    /// Sizes of volumes by device.
    volumes: BTreeMap<String, u64>,
    /// The devices whose volumes begin with another snapshot than the image's.
    with_snapshots: BTreeSet<String>,
    /// In base64.
    pub(super) user_data: Option<String>,
    pub(super) is_spot: bool,
    /// The capacity reservation that the instance uses.
    pub(super) reservation: Option<String>,
    pub(super) tags: BTreeMap<String, String>,
    /// The number of prefixes that the interface gets at launch.
    prefixes: u32,
    /// `None` means the default one.
    tenancy: Option<Tenancy>,
}

/// Settings of an instance that nothing here depends on.
const WITHOUT_EFFECT: &[&str] = &[
    "MetadataOptions",
    "Monitoring",
    "EbsOptimized",
    "KeyName",
    "CreditSpecification",
    "CpuOptions",
    "EnclaveOptions",
    "HibernationOptions",
    "MaintenanceOptions",
    "PrivateDnsNameOptions",
    "NetworkPerformanceOptions",
    "DisableApiStop",
    "DisableApiTermination",
    "InstanceInitiatedShutdownBehavior",
];

impl LaunchSpec {
    /// Reads `LaunchTemplateData`, or the parameters of RunInstances, which are called the same.
    pub(super) fn of_template(at: &ParamScope<'_>) -> Result<Self, Refusal> {
        at.accept(WITHOUT_EFFECT);
        let mut spec = Self {
            image: owned(at.text("ImageId")),
            instance_type: owned(at.text("InstanceType")),
            subnet: owned(at.text("SubnetId")),
            zone: owned(at.at("Placement").text("AvailabilityZone")),
            tags: tags_for(at, "instance")?,
            ..Self::default()
        };
        let placement = at.at("Placement");
        let group = placement
            .text("GroupName")
            .or_else(|| placement.text("GroupId"));
        if let Some(group) = group {
            let text = format!("The Placement Group '{group}' is unknown.");
            return Err(Refusal::new("InvalidPlacementGroup.Unknown", text));
        }
        if let Some(text) = placement.text("Tenancy") {
            let tenancy = Tenancy::parse(text).ok_or_else(|| {
                Refusal::value(format!(
                    "The tenancy '{text}' is not supported: instances are 'default' or 'dedicated' here, without dedicated hosts"
                ))
            })?;
            spec.tenancy = Some(tenancy);
        }
        let profile = at.at("IamInstanceProfile");
        spec.profile = owned(profile.text("Arn").or_else(|| profile.text("Name")));
        let groups = at.list("SecurityGroupId");
        spec.security_groups = groups.into_iter().map(Name::from).collect();
        for interface in at.each("NetworkInterface") {
            spec.read_interface(&interface)?;
        }
        for device in at.each("BlockDeviceMapping") {
            let name = device.required("DeviceName")?;
            let volume = device.at("Ebs");
            if let Some(gib) = volume.number("VolumeSize")? {
                let gib = u64::try_from(gib)
                    .ok()
                    .filter(|gib| (1..=65_536).contains(gib));
                let gib = gib.ok_or_else(|| {
                    Refusal::value(format!("Volume of {name}: the size must be 1 to 65536 GiB"))
                })?;
                spec.volumes.insert(name.to_owned(), gib);
            }
            if volume.text("SnapshotId").is_some() {
                spec.with_snapshots.insert(name.to_owned());
            }
            device.accept(&["Ebs", "VirtualName", "NoDevice"]);
        }
        if let Some(text) = at.text("UserData") {
            let data = BASE64_STANDARD.decode(text).map_err(|_| {
                Refusal::new(
                    "InvalidUserData.Malformed",
                    "Invalid BASE64 encoding of user data.",
                )
            })?;
            if data.len() > MOST_USER_DATA {
                let text = "User data is limited to 16384 bytes";
                return Err(Refusal::new("InvalidUserData.Malformed", text));
            }
            spec.user_data = Some(text.to_owned());
        }
        let market = at.at("InstanceMarketOptions");
        match market.text("MarketType") {
            None => {}
            Some("spot") => spec.is_spot = true,
            Some("capacity-block" | "interruptible-capacity-reservation") => {}
            Some(other) => {
                return Err(Refusal::value(format!(
                    "The market type '{other}' is not valid"
                )));
            }
        }
        market.accept(&["SpotOptions"]);
        let reservation = at.at("CapacityReservationSpecification");
        reservation.accept(&["CapacityReservationPreference"]);
        let target = reservation.at("CapacityReservationTarget");
        spec.reservation = owned(target.text("CapacityReservationId"));
        Ok(spec)
    }

    fn read_interface(&mut self, at: &ParamScope<'_>) -> Result<(), Refusal> {
        at.accept(&[
            "AssociatePublicIpAddress",
            "DeleteOnTermination",
            "Description",
            "DeviceIndex",
            "InterfaceType",
            "NetworkCardIndex",
            "ConnectionTrackingSpecification",
            "Ipv6AddressCount",
            "PrimaryIpv6",
        ]);
        if let Some(prefixes) = at.number("Ipv4PrefixCount")? {
            let prefixes = u32::try_from(prefixes).ok();
            let wrong = || Refusal::value("Ipv4PrefixCount must not be negative");
            self.prefixes += prefixes.ok_or_else(wrong)?;
        }
        let groups = at.list("SecurityGroupId");
        self.security_groups
            .extend(groups.into_iter().map(Name::from));
        if let Some(subnet) = at.text("SubnetId") {
            self.subnet = Some(subnet.to_owned());
        }
        Ok(())
    }

    /// Returns these settings, completed by those of a template.
    pub(super) fn with_defaults_of(self, template: &Self) -> Self {
        let either = |own: Option<String>, other: &Option<String>| own.or_else(|| other.clone());
        let mut tags = template.tags.clone();
        tags.extend(self.tags);
        Self {
            image: either(self.image, &template.image),
            instance_type: either(self.instance_type, &template.instance_type),
            subnet: either(self.subnet, &template.subnet),
            zone: either(self.zone, &template.zone),
            security_groups: if self.security_groups.is_empty() {
                template.security_groups.clone()
            } else {
                self.security_groups
            },
            profile: either(self.profile, &template.profile),
            with_snapshots: if self.volumes.is_empty() {
                template.with_snapshots.clone()
            } else {
                self.with_snapshots
            },
            volumes: if self.volumes.is_empty() {
                template.volumes.clone()
            } else {
                self.volumes
            },
            user_data: either(self.user_data, &template.user_data),
            is_spot: self.is_spot || template.is_spot,
            reservation: either(self.reservation, &template.reservation),
            prefixes: self.prefixes.max(template.prefixes),
            tenancy: self.tenancy.or(template.tenancy),
            tags,
        }
    }

    /// Refuses volumes that are smaller than the snapshots of the image.
    pub(super) fn check_volumes(&self, image: &NodeImage) -> Result<(), Refusal> {
        let is_of_image = |(device, _): &(&String, &u64)| !self.with_snapshots.contains(*device);
        let volumes = self.volumes.iter().filter(is_of_image);
        let volumes = volumes.map(|(device, gib)| (device.as_str(), *gib));
        Ok(image.check_volumes(volumes)?)
    }

    /// Refuses security groups that do not exist.
    pub(super) fn check_groups(&self, call: &Call<'_>) -> Result<(), Refusal> {
        let all = call.ec2().all_security_groups();
        let is_missing = |id: &&Name| !all.iter().any(|own| own.id == **id);
        match self.security_groups.iter().find(is_missing) {
            Some(id) => Err(Refusal::new(
                "InvalidGroup.NotFound",
                format!("The security group '{id}' does not exist"),
            )),
            None => Ok(()),
        }
    }

    /// Returns the order for one of these options, all of which boot the same image.
    pub(super) fn order(&self, order: LaunchOrder<'_>) -> LaunchRequest {
        let family = order.image.family;
        let kubelet = self.user_data.as_deref();
        let kubelet = kubelet.map(|text| Kubelet::read(text, family));
        let kubelet = kubelet.unwrap_or_default();
        let mut tags = self.tags.clone();
        tags.extend(order.tags);
        LaunchRequest {
            class: None,
            client_token: order.token,
            options: order.options,
            subnets: order.subnets,
            security_groups: self.security_groups.clone(),
            template: NodeTemplate {
                root_volume_gib: self.root_volume_gib(order.image),
                kubelet: kubelet.settings(),
                tenancy: self.tenancy.unwrap_or_default(),
                ..NodeTemplate::new(family, order.image.version)
            },
            images: vec![LaunchImage {
                id: order.image.id.clone(),
                variant: ImageVariant::Any,
            }],
            registration: kubelet.registration,
            tags,
        }
    }

    /// Completes the launch of an instance that was bought: hides it from Describe calls for a while, and assigns its prefixes. If they cannot be
    /// assigned, the instance is terminated.
    pub(super) async fn finish_launch(
        &self,
        call: &Call<'_>,
        instance: &Instance,
        client_token: &str,
    ) -> Result<(), Refusal> {
        // EC2 is eventually consistent: a new instance is missing in descriptions at first, and clients have to cope with that.
        let unseen = call.endpoint.settings().unseen_for;
        let launched = LaunchRecord {
            seen_at: Instant::now() + call.ec2().config().speed.scale(unseen),
            client_token: client_token.to_owned(),
            profile: self.profile.clone(),
        };
        let id = &instance.id;
        call.state().launched.insert(id.clone(), launched);
        if self.prefixes == 0 {
            return Ok(());
        }
        let interface = InterfaceId(interface_id(id).into());
        let given = call.ec2().assign_at_launch(&interface, self.prefixes);
        if given.is_err() {
            // Whether it could be terminated changes nothing for the caller, who learns of no instance.
            let _ = call.ec2().terminate(id.clone()).await;
        }
        given.map(drop).map_err(Refusal::from)
    }

    /// Returns the size of the volume with the pods' files: that of the image's last device, else of the only volume, else the family's default.
    fn root_volume_gib(&self, image: &NodeImage) -> u64 {
        let only = match self.volumes.len() {
            1 => self.volumes.values().next(),
            _ => None,
        };
        // Bottlerocket has its read-only system on the first volume, and containers on the second.
        let of_pods = image.volumes().pop().map(|own| own.device);
        let size = of_pods.and_then(|device| self.volumes.get(device));
        let size = size.or(only).copied();
        size.unwrap_or_else(|| default_volume_gib(image.family))
    }
}

/// The parts of an order that are not in its launch template.
pub(super) struct LaunchOrder<'a> {
    pub(super) token: String,
    pub(super) image: &'a NodeImage,
    pub(super) options: Vec<LaunchOption>,
    pub(super) subnets: Vec<Name>,
    pub(super) tags: BTreeMap<String, String>,
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

/// Returns the image of an id.
pub(super) fn image(images: &[NodeImage], id: &str) -> Result<NodeImage, Refusal> {
    if !id.starts_with("ami-") {
        let text = format!("Invalid id: \"{id}\" (expecting \"ami-...\")");
        return Err(Refusal::new("InvalidAMIID.Malformed", text));
    }
    let found = images.iter().find(|own| own.id == id);
    found.cloned().ok_or_else(|| {
        Refusal::new(
            "InvalidAMIID.NotFound",
            format!("The image id '[{id}]' does not exist"),
        )
    })
}

/// Returns EC2's name of an architecture.
pub(super) fn architecture(arch: Arch) -> &'static str {
    match arch {
        Arch::Amd64 => "x86_64",
        Arch::Arm64 => "arm64",
    }
}

/// Refuses an image that machines of a type cannot boot.
pub(super) fn check_architecture(
    instance_type: &InstanceType,
    image: &NodeImage,
) -> Result<(), Refusal> {
    if instance_type.arch == image.arch {
        Ok(())
    } else {
        Err(Refusal::value(format!(
            "The architecture '{}' of the specified instance type does not match the architecture '{}' of the specified AMI. Specify an instance type and an AMI that have matching architectures, and try again.",
            architecture(instance_type.arch),
            architecture(image.arch)
        )))
    }
}

/// Returns the refusal of a type that is not sold with the image's operating system.
pub(super) fn unsupported(name: &str, image: &NodeImage, capacity_type: CapacityType) -> Refusal {
    let text = format!(
        "The requested configuration is currently not supported: {name} with {} as {capacity_type}. Please check the documentation for supported configurations.",
        image.os()
    );
    Refusal::new("Unsupported", text)
}

/// Returns EC2's name of a purchasing option.
pub(super) fn lifecycle(
    capacity_type: CapacityType,
    reservation: Option<&Reservation>,
) -> &'static str {
    match (capacity_type, reservation) {
        (CapacityType::Spot, _) => "spot",
        (CapacityType::Reserved, Some(own)) if own.kind == ReservationKind::CapacityBlock => {
            "capacity-block"
        }
        (CapacityType::Reserved, Some(own)) if own.interruptible => {
            "interruptible-capacity-reservation"
        }
        (CapacityType::Reserved | CapacityType::OnDemand, _) => "on-demand",
    }
}

/// Returns the refusal of a client token that another request has used.
pub(super) fn mismatch() -> Refusal {
    Refusal::new(
        "IdempotentParameterMismatch",
        "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
    )
}

/// The results of requests with client tokens.
///
/// Invariant: of the requests with one token only one runs at a time, and the others return its result.
#[derive(Default)]
pub(crate) struct ClientTokens {
    all: HashMap<String, Arc<Mutex<Option<IdempotentResult>>>>,
    order: VecDeque<String>,
}

/// A request that came with a token, and its result.
#[derive(Clone, Debug)]
pub(super) struct IdempotentResult {
    pub(super) fingerprint: String,
    pub(super) instances: Vec<InstanceId>,
    pub(super) xml: Vec<u8>,
}

impl ClientTokens {
    /// Returns the place for the result of the requests with a token.
    pub(super) fn of(&mut self, token: &str) -> Arc<Mutex<Option<IdempotentResult>>> {
        if !self.all.contains_key(token) {
            self.order.push_back(token.to_owned());
            if self.order.len() > MOST_TOKENS
                && let Some(oldest) = self.order.pop_front()
            {
                self.all.remove(&oldest);
            }
        }
        Arc::clone(self.all.entry(token.to_owned()).or_default())
    }
}
