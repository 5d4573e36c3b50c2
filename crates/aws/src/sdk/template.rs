//! The launch template of some options: all properties of a machine except its type, subnet and capacity type.
//!
//! Invariant: equal input gives a template with the same name, so every process of the cluster uses an existing template again (AWS
//! provider: `pkg/providers/launchtemplate`).

use std::{collections::BTreeMap, fmt::Write as _};

use aws_sdk_ec2::types::{
    CapacityReservationPreference, CapacityReservationTarget,
    ConnectionTrackingSpecificationRequest, LaunchTemplateBlockDeviceMappingRequest,
    LaunchTemplateCapacityReservationSpecificationRequest as ReservationRequest,
    LaunchTemplateCpuOptionsRequest, LaunchTemplateEbsBlockDeviceRequest,
    LaunchTemplateIamInstanceProfileSpecificationRequest,
    LaunchTemplateInstanceMarketOptionsRequest, LaunchTemplateInstanceMetadataOptionsRequest,
    LaunchTemplateInstanceMetadataTagsState,
    LaunchTemplateInstanceNetworkInterfaceSpecificationRequest as InterfaceRequest,
    LaunchTemplatePlacementRequest, LaunchTemplateTagSpecificationRequest,
    LaunchTemplatesMonitoringRequest, MarketType, RequestLaunchTemplateData, ResourceType,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use mullion_api::{
    ami::AmiFamily,
    karpenter::{BlockDevice, BlockDeviceMapping, EC2NodeClassSpec},
};
use mullion_cloud::{CapacityType, Placement, Reservation, ReservationKind, Tenancy};
use mullion_engine::model::Quantity;
use sha2::{Digest, Sha256};

use super::filters::to_tags;

/// The prefix of launch templates' names, which is Karpenter's.
pub(super) const NAME_PREFIX: &str = "karpenter.k8s.aws/";

/// The regions whose metadata service has no IPv6.
const WITHOUT_IPV6: [&str; 6] = [
    "us-iso-east-1",
    "us-iso-west-1",
    "us-isob-east-1",
    "us-isob-west-1",
    "us-isof-south-1",
    "us-isof-east-1",
];

/// The input of a launch template.
#[derive(Clone, Debug)]
pub(super) struct Parts<'a> {
    pub(super) region: &'a str,
    pub(super) class: &'a EC2NodeClassSpec,
    pub(super) family: AmiFamily,
    pub(super) root_volume_gib: u64,
    pub(super) image: &'a str,
    pub(super) profile: &'a str,
    pub(super) security_groups: &'a [String],
    /// Elastic Fabric Adapters of an instance whose class lists no interfaces.
    pub(super) efas: u64,
    pub(super) placement: Option<&'a Placement>,
    pub(super) tenancy: Tenancy,
    pub(super) user_data: &'a str,
    pub(super) tags: &'a BTreeMap<String, String>,
    pub(super) capacity_type: CapacityType,
    pub(super) reservation: Option<&'a Reservation>,
    /// Whether instances without a reservation do not use open ones (feature gate ReservedCapacity).
    pub(super) targets_reservations: bool,
    pub(super) ipv6: bool,
}

/// A template with its name.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) name: String,
    pub(super) data: RequestLaunchTemplateData,
}

impl Parts<'_> {
    pub(super) fn template(&self) -> Template {
        let data = self.data();
        let mut hash = Sha256::new();
        // The SDK omits user data from its debug output.
        // The debug output is not stable between versions of the SDK; after an update templates only get new
        // names.
        hash.update(format!("{data:?}"));
        hash.update(self.user_data);
        let mut name = NAME_PREFIX.to_owned();
        for byte in &hash.finalize()[..16] {
            write!(name, "{byte:02x}").expect("a string takes all");
        }
        Template { name, data }
    }

    fn data(&self) -> RequestLaunchTemplateData {
        let class = self.class;
        let tagged = match self.capacity_type {
            CapacityType::Spot => vec![
                ResourceType::NetworkInterface,
                ResourceType::SpotInstancesRequest,
            ],
            _ => vec![ResourceType::NetworkInterface],
        };
        let tagged = tagged.into_iter().map(|kind| {
            LaunchTemplateTagSpecificationRequest::builder()
                .resource_type(kind)
                .set_tags(Some(to_tags(self.tags)))
                .build()
        });
        let volumes = self.volumes();
        let cpu = class.cpu_options.as_ref();
        let cpu = cpu.and_then(|own| own.nested_virtualization.as_deref());
        RequestLaunchTemplateData::builder()
            .image_id(self.image)
            .set_iam_instance_profile((!self.profile.is_empty()).then(|| {
                LaunchTemplateIamInstanceProfileSpecificationRequest::builder()
                    .name(self.profile)
                    .build()
            }))
            .monitoring(
                LaunchTemplatesMonitoringRequest::builder()
                    .enabled(class.detailed_monitoring.unwrap_or_default())
                    .build(),
            )
            .user_data(STANDARD.encode(self.user_data))
            .metadata_options(self.metadata_options())
            // EC2 does not accept an empty list.
            .set_block_device_mappings((!volumes.is_empty()).then_some(volumes))
            .set_network_interfaces(Some(self.interfaces()))
            .set_tag_specifications(Some(tagged.collect()))
            .set_cpu_options(cpu.map(|nested| {
                LaunchTemplateCpuOptionsRequest::builder()
                    .nested_virtualization(nested.into())
                    .build()
            }))
            .placement(self.placement_request())
            .set_capacity_reservation_specification(self.reservation_request())
            .set_instance_market_options(self.market_options())
            .build()
    }

    fn metadata_options(&self) -> LaunchTemplateInstanceMetadataOptionsRequest {
        let own = self.class.metadata_options.clone().unwrap_or_default();
        let or = |text: Option<String>, usual: &str| text.unwrap_or_else(|| usual.to_owned());
        let ipv6 = or(own.http_protocol_ipv6, "disabled");
        let ipv6 = (!WITHOUT_IPV6.contains(&self.region)).then_some(ipv6);
        let hops = own.http_put_response_hop_limit.unwrap_or(1);
        LaunchTemplateInstanceMetadataOptionsRequest::builder()
            .http_endpoint(or(own.http_endpoint, "enabled").as_str().into())
            .set_http_protocol_ipv6(ipv6.map(|text| text.as_str().into()))
            .http_put_response_hop_limit(i32::try_from(hops).unwrap_or(1))
            .http_tokens(or(own.http_tokens, "required").as_str().into())
            // Our tag keys have slashes, which tags in the metadata service cannot have.
            .instance_metadata_tags(LaunchTemplateInstanceMetadataTagsState::Disabled)
            .build()
    }

    fn volumes(&self) -> Vec<LaunchTemplateBlockDeviceMappingRequest> {
        let own = &self.class.block_device_mappings;
        let usual;
        let mappings = if own.is_empty() {
            usual = default_volumes(self.family, self.root_volume_gib);
            &usual
        } else {
            own
        };
        let mappings = mappings.iter();
        mappings
            .map(|mapping| {
                LaunchTemplateBlockDeviceMappingRequest::builder()
                    .set_device_name(mapping.device_name.clone())
                    .set_ebs(mapping.ebs.as_ref().map(volume))
                    .build()
            })
            .collect()
    }

    fn interfaces(&self) -> Vec<InterfaceRequest> {
        let class = self.class;
        let prefixes = class.ip_prefix_count;
        let tracking = class.connection_tracking.as_ref().map(|own| {
            ConnectionTrackingSpecificationRequest::builder()
                .set_tcp_established_timeout(own.tcp_established_timeout)
                .set_udp_stream_timeout(own.udp_stream_timeout)
                .set_udp_timeout(own.udp_timeout)
                .build()
        });
        let interface = |takes_addresses: bool| {
            let groups = Some(self.security_groups.to_vec());
            let own = InterfaceRequest::builder().set_groups(groups);
            if takes_addresses {
                own.set_associate_public_ip_address(class.associate_public_ip_address)
                    .set_connection_tracking_specification(tracking.clone())
                    .set_ipv4_prefix_count(prefixes.filter(|_| !self.ipv6))
                    .set_ipv6_prefix_count(prefixes.filter(|_| self.ipv6))
                    .set_primary_ipv6(self.ipv6.then_some(true))
                    .set_ipv6_address_count(self.ipv6.then_some(1))
            } else {
                own
            }
        };
        if class.network_interfaces.is_empty() {
            let efas = i32::try_from(self.efas).unwrap_or(i32::MAX);
            // The first card's is the instance's primary interface; on the others device 0 would be a second primary one.
            let adapters = (0..efas).map(|card| {
                interface(true)
                    .network_card_index(card)
                    .device_index(card.min(1))
                    .interface_type("efa")
                    .build()
            });
            return match self.efas {
                0 => vec![interface(true).device_index(0).build()],
                _ => adapters.collect(),
            };
        }
        let all = class.network_interfaces.iter().map(|own| {
            interface(own.interface_type != "efa-only")
                .network_card_index(own.network_card_index)
                .device_index(own.device_index)
                .interface_type(&own.interface_type)
                .build()
        });
        all.collect()
    }

    fn reservation_request(&self) -> Option<ReservationRequest> {
        let request = ReservationRequest::builder();
        match self.reservation {
            Some(reservation) => {
                let target = CapacityReservationTarget::builder()
                    .capacity_reservation_id(&*reservation.id)
                    .build();
                let only = CapacityReservationPreference::CapacityReservationsOnly;
                let request = request.capacity_reservation_preference(only);
                Some(request.capacity_reservation_target(target).build())
            }
            None => {
                let none = CapacityReservationPreference::None;
                let request = request.capacity_reservation_preference(none).build();
                self.targets_reservations.then_some(request)
            }
        }
    }

    fn placement_request(&self) -> LaunchTemplatePlacementRequest {
        let group = self.placement.map(|own| own.group.to_string());
        let partition = self.placement.and_then(|own| own.partition);
        LaunchTemplatePlacementRequest::builder()
            .tenancy(self.tenancy.as_str().into())
            .set_group_id(group)
            .set_partition_number(partition.and_then(|own| i32::try_from(own).ok()))
            .build()
    }

    fn market_options(&self) -> Option<LaunchTemplateInstanceMarketOptionsRequest> {
        let reservation = self.reservation?;
        let market = match (reservation.kind, reservation.interruptible) {
            (ReservationKind::CapacityBlock, _) => MarketType::CapacityBlock,
            (_, true) => MarketType::InterruptibleCapacityReservation,
            _ => return None,
        };
        let request = LaunchTemplateInstanceMarketOptionsRequest::builder();
        Some(request.market_type(market).build())
    }
}

/// Returns the volumes of a family where the class names none. Images of the user's own have their own.
fn default_volumes(family: AmiFamily, root_gib: u64) -> Vec<BlockDeviceMapping> {
    let encrypted = |device: &str, gib: u64| BlockDeviceMapping {
        device_name: Some(device.to_owned()),
        ebs: Some(BlockDevice {
            encrypted: Some(true),
            volume_type: Some("gp3".to_owned()),
            volume_size: Some(format!("{gib}Gi")),
            ..BlockDevice::default()
        }),
        root_volume: false,
    };
    match family {
        AmiFamily::Custom => Vec::new(),
        AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips => {
            vec![encrypted("/dev/xvda", 4), encrypted("/dev/xvdb", root_gib)]
        }
        AmiFamily::Windows(..) => vec![encrypted("/dev/sda1", root_gib)],
        AmiFamily::AmazonLinux2 | AmiFamily::AmazonLinux2023 => {
            vec![encrypted("/dev/xvda", root_gib)]
        }
        // This is the root device of Ubuntu.
        _ => vec![encrypted("/dev/sda1", root_gib)],
    }
}

fn volume(own: &BlockDevice) -> LaunchTemplateEbsBlockDeviceRequest {
    let number = |number: Option<i64>| number.and_then(|number| i32::try_from(number).ok());
    // EC2 takes whole GiB; the size is rounded up.
    let size = own.volume_size.as_deref().and_then(|text| {
        let bytes: Quantity = text.parse().ok()?;
        let bytes = u64::try_from(bytes.value()).ok()?;
        i32::try_from(bytes.div_ceil(1 << 30)).ok()
    });
    LaunchTemplateEbsBlockDeviceRequest::builder()
        .set_delete_on_termination(own.delete_on_termination)
        .set_encrypted(own.encrypted)
        .set_volume_type(own.volume_type.as_deref().map(Into::into))
        .set_iops(number(own.iops))
        .set_throughput(number(own.throughput))
        .set_kms_key_id(own.kms_key_id.clone())
        .set_snapshot_id(own.snapshot_id.clone())
        .set_volume_initialization_rate(own.volume_initialization_rate)
        .set_volume_size(size)
        .build()
}

#[cfg(test)]
mod tests {
    use mullion_api::ami::{WindowsEdition, WindowsRelease};
    use serde_json::json;

    use super::*;

    fn template(class: serde_json::Value, edit: impl FnOnce(&mut Parts<'_>)) -> Template {
        let class = serde_json::from_value(class).expect("a class");
        let groups = ["sg-1".to_owned()];
        let tags = BTreeMap::from([("team".to_owned(), "web".to_owned())]);
        let mut parts = Parts {
            region: "us-west-2",
            class: &class,
            family: AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core),
            root_volume_gib: 50,
            image: "ami-1",
            profile: "nodes",
            security_groups: &groups,
            efas: 0,
            placement: None,
            tenancy: Tenancy::Default,
            user_data: "<powershell></powershell>",
            tags: &tags,
            capacity_type: CapacityType::OnDemand,
            reservation: None,
            targets_reservations: true,
            ipv6: false,
        };
        edit(&mut parts);
        parts.template()
    }

    #[test]
    fn a_class_that_says_nothing_gets_safe_defaults() {
        let Template { name, data } = template(json!({}), |_| ());
        assert!(name.starts_with(NAME_PREFIX) && name.len() == NAME_PREFIX.len() + 32);
        let metadata = data.metadata_options().expect("set");
        assert_eq!(
            metadata.http_tokens().map(|own| own.as_str()),
            Some("required")
        );
        assert_eq!(metadata.http_put_response_hop_limit(), Some(1));
        let [volume] = data.block_device_mappings() else {
            panic!("one volume: {data:?}")
        };
        assert_eq!(volume.device_name(), Some("/dev/sda1"));
        let ebs = volume.ebs().expect("a volume");
        assert_eq!((ebs.volume_size(), ebs.encrypted()), (Some(50), Some(true)));
        let [interface] = data.network_interfaces() else {
            panic!("one interface: {data:?}")
        };
        assert_eq!(interface.groups(), ["sg-1"]);
        assert_eq!(interface.associate_public_ip_address(), None);
        let reservation = data.capacity_reservation_specification().expect("set");
        let preference = reservation.capacity_reservation_preference();
        assert_eq!(preference, Some(&CapacityReservationPreference::None));
    }

    #[test]
    fn what_a_class_says_is_asked_for() {
        let class = json!({
            "detailedMonitoring": true, "associatePublicIPAddress": false, "ipPrefixCount": 2,
            "metadataOptions": { "httpEndpoint": "enabled", "httpTokens": "optional", "httpPutResponseHopLimit": 3 },
            "blockDeviceMappings": [{ "deviceName": "/dev/sda1", "ebs": {
                "volumeSize": "1.5Gi", "volumeType": "io2", "iops": 1000, "kmsKeyID": "key", "deleteOnTermination": true
            } }],
            "connectionTracking": { "udpTimeout": 30 },
            "cpuOptions": { "nestedVirtualization": "enabled" },
        });
        let Template { data, .. } = template(class, |parts| parts.targets_reservations = false);
        assert_eq!(data.monitoring().and_then(|own| own.enabled()), Some(true));
        let interface = &data.network_interfaces()[0];
        assert_eq!(interface.associate_public_ip_address(), Some(false));
        assert_eq!(interface.ipv4_prefix_count(), Some(2));
        let tracking = interface.connection_tracking_specification();
        assert_eq!(tracking.and_then(|own| own.udp_timeout()), Some(30));
        let ebs = data.block_device_mappings()[0].ebs().expect("a volume");
        assert_eq!((ebs.volume_size(), ebs.iops()), (Some(2), Some(1000)));
        assert_eq!(ebs.volume_type().map(|own| own.as_str()), Some("io2"));
        let tokens = data.metadata_options().and_then(|own| own.http_tokens());
        assert_eq!(tokens.map(|own| own.as_str()), Some("optional"));
        assert!(data.cpu_options().is_some());
        assert!(data.capacity_reservation_specification().is_none());
    }

    #[test]
    fn adapters_that_pods_ask_for_are_on_a_card_each() {
        let Template { data, .. } = template(json!({}), |parts| parts.efas = 2);
        let places = data.network_interfaces().iter().map(|own| {
            let kind = own.interface_type().unwrap_or_default();
            (own.network_card_index(), own.device_index(), kind)
        });
        let expected = [(Some(0), Some(0), "efa"), (Some(1), Some(1), "efa")];
        assert_eq!(places.collect::<Vec<_>>(), expected);
        let class = json!({ "networkInterfaces": [
            { "networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface" },
            { "networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only" },
        ]});
        let Template { data, .. } = template(class, |parts| parts.efas = 1);
        let kinds = data.network_interfaces().iter();
        let kinds: Vec<_> = kinds.filter_map(|own| own.interface_type()).collect();
        assert_eq!(kinds, ["interface", "efa-only"]);
    }

    #[test]
    fn a_placement_group_is_asked_for_by_its_id() {
        let place = Placement {
            group: "pg-1".into(),
            partition: Some(2),
        };
        // Parts borrow for as long as the caller likes.
        let place: &'static Placement = Box::leak(Box::new(place));
        let Template { data, .. } = template(json!({}), |parts| parts.placement = Some(place));
        let asked = data.placement().expect("asked for");
        assert_eq!(asked.group_id(), Some("pg-1"));
        assert_eq!(asked.partition_number(), Some(2));
        let Template { data, .. } = template(json!({}), |_| ());
        let asked = data.placement().expect("asked for");
        assert_eq!(asked.group_id(), None);
    }

    #[test]
    fn the_tenancy_is_asked_for() {
        let asked = |edit: fn(&mut Parts<'_>)| {
            let Template { data, .. } = template(json!({}), edit);
            data.placement().and_then(|own| own.tenancy().cloned())
        };
        assert_eq!(asked(|_| ()), Some("default".into()));
        let dedicated = asked(|parts| parts.tenancy = Tenancy::Dedicated);
        assert_eq!(dedicated, Some("dedicated".into()));
    }

    #[test]
    fn templates_are_told_apart_by_all_that_is_in_them() {
        let name = |edit: fn(&mut Parts<'_>)| template(json!({}), edit).name;
        let plain = name(|_| ());
        assert_eq!(plain, name(|_| ()));
        let others = [
            name(|parts| parts.user_data = "other"),
            name(|parts| parts.image = "ami-2"),
            name(|parts| parts.capacity_type = CapacityType::Spot),
            name(|parts| parts.profile = "other"),
            name(|parts| parts.family = AmiFamily::Bottlerocket),
        ];
        for other in &others {
            assert_ne!(*other, plain);
        }
        let block = Reservation {
            id: "cr-1".into(),
            kind: ReservationKind::CapacityBlock,
            interruptible: false,
        };
        let class = Default::default();
        let groups = Vec::new();
        let tags = BTreeMap::new();
        let data = Parts {
            region: "us-iso-east-1",
            class: &class,
            family: AmiFamily::Custom,
            root_volume_gib: 20,
            image: "ami-1",
            profile: "nodes",
            security_groups: &groups,
            efas: 0,
            placement: None,
            tenancy: Tenancy::Default,
            user_data: "",
            tags: &tags,
            capacity_type: CapacityType::Reserved,
            reservation: Some(&block),
            targets_reservations: true,
            ipv6: true,
        }
        .template()
        .data;
        let market = data.instance_market_options();
        assert_eq!(
            market.and_then(|own| own.market_type()),
            Some(&MarketType::CapacityBlock)
        );
        assert!(data.block_device_mappings().is_empty());
        let metadata = data.metadata_options().expect("set");
        assert_eq!(metadata.http_protocol_ipv6(), None);
        assert_eq!(data.network_interfaces()[0].primary_ipv6(), Some(true));
    }
}
