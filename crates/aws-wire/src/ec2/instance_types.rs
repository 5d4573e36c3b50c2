//! DescribeInstanceTypes and DescribeInstanceTypeOfferings, from the catalogue. Properties that the catalogue does not know are left out.

use std::{collections::BTreeMap, sync::Arc};

use mullion_api::{ami::Os, labels};
use mullion_cloud::{CloudProvider, Offer, catalogue::InstanceType};

use super::{Call, launch::architecture};
use crate::{
    filter::{Filters, one},
    page::{self, Page},
    refusal::Refusal,
    xml::Xml,
};

/// DescribeInstanceTypes.
pub(super) async fn describe(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let names = root.list("InstanceType");
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 5..=100, 100)?;
    page.not_with(!names.is_empty(), "InstanceTypes")?;
    if names.len() > 100 {
        return Err(Refusal::value(
            "The maximum number of instance types in a request is 100",
        ));
    }
    call.complete()?;
    let offers = call.ec2().offers(Os::Linux).await?;
    let unknown: Vec<_> = names
        .iter()
        .filter(|name| !offers.iter().any(|own| *own.instance_type.name == ***name))
        .copied()
        .collect();
    if !unknown.is_empty() {
        return Err(Refusal::new(
            "InvalidInstanceType",
            format!(
                "The following supplied instance types do not exist: [{}]",
                unknown.join(", ")
            ),
        ));
    }
    let mut found = Vec::new();
    for Offer { instance_type, .. } in offers.iter() {
        let is_named = names.is_empty() || names.contains(&&*instance_type.name);
        if matches(&filters, instance_type)? && is_named {
            found.push(Arc::clone(instance_type));
        }
    }
    let (found, token) = page.take(found, |own| own.name.to_string());
    Ok(call.answer(|xml| {
        xml.list("instanceTypeSet", &found, |xml, own| write(xml, own));
        page::next(xml, token);
    }))
}

fn matches(filters: &Filters, own: &InstanceType) -> Result<bool, Refusal> {
    filters.match_all(&BTreeMap::new(), |name| match name {
        "instance-type" => one(&own.name),
        "processor-info.supported-architecture" => one(architecture(own.arch)),
        "supported-virtualization-type" => one("hvm"),
        "supported-usage-class" => {
            Some(usage_classes(own).iter().map(ToString::to_string).collect())
        }
        "supported-root-device-type" => one("ebs"),
        "bare-metal" => one(own.bare_metal),
        "hypervisor" => one(&own.hypervisor),
        "current-generation" => one(true),
        "instance-storage-supported" => one(own.local_nvme_gb > 0),
        "memory-info.size-in-mib" => one(own.memory_mib),
        "vcpu-info.default-vcpus" => one(own.vcpus),
        "network-info.maximum-network-interfaces" => one(own.max_enis * own.network_cards),
        "network-info.efa-supported" => one(own.efa_interfaces > 0),
        "network-info.ipv4-addresses-per-interface" => one(own.ipv4_per_eni),
        _ => None,
    })
}

fn usage_classes(own: &InstanceType) -> &'static [&'static str] {
    if own.supports_spot {
        &["on-demand", "spot"]
    } else {
        &["on-demand"]
    }
}

fn write(xml: &mut Xml, own: &InstanceType) {
    let labels = own.labels();
    let encrypts = labels.get(labels::INSTANCE_ENCRYPTION);
    let encrypts = encrypts.is_some_and(|value| value == "true");
    xml.leaf("instanceType", &own.name);
    xml.leaf("currentGeneration", true);
    xml.texts("supportedUsageClasses", usage_classes(own));
    xml.texts("supportedRootDeviceTypes", ["ebs"]);
    xml.texts("supportedVirtualizationTypes", ["hvm"]);
    xml.leaf("bareMetal", own.bare_metal);
    let hypervisor = Some(&own.hypervisor).filter(|own| !own.is_empty());
    xml.maybe("hypervisor", hypervisor);
    xml.node("processorInfo", |xml| {
        xml.texts("supportedArchitectures", [architecture(own.arch)]);
        let maker = own.cpu_manufacturer.as_deref().map(|name| match name {
            "intel" => "Intel".to_owned(),
            other => other.to_ascii_uppercase(),
        });
        xml.maybe("manufacturer", maker);
        let ghz = own.clock_mhz.filter(|mhz| *mhz > 0);
        let ghz = ghz.map(|mhz| mhz as f64 / 1000.0);
        xml.maybe("sustainedClockSpeedInGhz", ghz);
    });
    xml.node("vCpuInfo", |xml| xml.leaf("defaultVCpus", own.vcpus));
    xml.node("memoryInfo", |xml| xml.leaf("sizeInMiB", own.memory_mib));
    xml.leaf("instanceStorageSupported", own.local_nvme_gb > 0);
    if own.local_nvme_gb > 0 {
        xml.node("instanceStorageInfo", |xml| {
            xml.leaf("totalSizeInGB", own.local_nvme_gb);
            xml.leaf("nvmeSupport", "required");
        });
    }
    xml.node("ebsInfo", |xml| match own.ebs_mbps {
        Some(mbps) => {
            xml.leaf("ebsOptimizedSupport", "default");
            xml.node("ebsOptimizedInfo", |xml| {
                xml.leaf("maximumBandwidthInMbps", mbps);
            });
        }
        None => xml.leaf("ebsOptimizedSupport", "unsupported"),
    });
    xml.node("networkInfo", |xml| {
        xml.leaf("maximumNetworkInterfaces", own.max_enis * own.network_cards);
        xml.leaf("maximumNetworkCards", own.network_cards);
        xml.leaf("defaultNetworkCardIndex", 0);
        xml.leaf("efaSupported", own.efa_interfaces > 0);
        if own.efa_interfaces > 0 {
            xml.node("efaInfo", |xml| {
                xml.leaf("maximumEfaInterfaces", own.efa_interfaces);
            });
        }
        xml.list("networkCards", 0..own.network_cards, |xml, card| {
            xml.leaf("networkCardIndex", card);
            xml.leaf("maximumNetworkInterfaces", own.max_enis);
            let gbps = own.network_mbps.map(|mbps| mbps as f64 / 1000.0);
            xml.maybe("baselineBandwidthInGbps", gbps);
        });
        xml.leaf("ipv4AddressesPerInterface", own.ipv4_per_eni);
        xml.leaf("encryptionInTransitSupported", encrypts);
    });
    if let Some(gpu) = &own.gpu {
        xml.node("gpuInfo", |xml| {
            xml.list("gpus", [gpu], |xml, gpu| {
                xml.leaf("name", gpu.name.to_ascii_uppercase());
                xml.leaf("manufacturer", gpu.manufacturer.to_ascii_uppercase());
                xml.leaf("count", gpu.count);
                if let Some(memory) = gpu.memory_mib {
                    xml.node("memoryInfo", |xml| xml.leaf("sizeInMiB", memory));
                }
            });
            let total = gpu.memory_mib.map(|memory| memory * gpu.count);
            xml.maybe("totalGpuMemoryInMiB", total);
        });
    }
    if let Some(device) = own.neuron_device() {
        xml.node("neuronInfo", |xml| {
            xml.list("neuronDevices", [device], |xml, device| {
                xml.leaf("count", own.neuron_devices);
                xml.leaf("name", device.name);
                xml.node("coreInfo", |xml| {
                    xml.leaf("count", device.cores);
                    xml.leaf("version", device.core_version);
                });
                xml.node("memoryInfo", |xml| {
                    xml.leaf("sizeInMiB", device.memory_mib);
                });
            });
            let total = device.memory_mib * own.neuron_devices;
            xml.leaf("totalNeuronDeviceMemoryInMiB", total);
        });
    }
}

/// DescribeInstanceTypeOfferings.
pub(super) async fn describe_offerings(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let kind = root.text("LocationType").unwrap_or("region");
    let region = &call.ec2().config().region;
    let subnets = call.ec2().all_subnets();
    let places: Vec<String> = match kind {
        "region" => vec![region.clone()],
        "availability-zone" => subnets.iter().map(|own| own.zone.to_string()).collect(),
        "availability-zone-id" => subnets.iter().map(|own| own.zone_id.to_string()).collect(),
        other => {
            return Err(Refusal::value(format!(
                "The location type '{other}' is not valid: it is region, availability-zone or availability-zone-id"
            )));
        }
    };
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 5..=1000, 1000)?;
    call.complete()?;
    let mut found = Vec::new();
    for offer in call.ec2().offers(Os::Linux).await?.iter() {
        let name = &offer.instance_type.name;
        for place in &places {
            let find = |filter: &str| match filter {
                "instance-type" => one(name),
                "location" => one(place),
                _ => None,
            };
            if filters.match_all(&BTreeMap::new(), find)? {
                found.push((Arc::clone(name), place.clone()));
            }
        }
    }
    let (found, token) = page.take(found, |(name, place)| format!("{name} {place}"));
    Ok(call.answer(|xml| {
        xml.list("instanceTypeOfferingSet", &found, |xml, (name, place)| {
            xml.leaf("instanceType", name);
            xml.leaf("locationType", kind);
            xml.leaf("location", place);
        });
        page::next(xml, token);
    }))
}
