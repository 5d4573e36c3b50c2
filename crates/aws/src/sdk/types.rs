//! Converts EC2's descriptions of instance types.
//!
//! Size, interfaces, accelerators and disks are EC2's. The catalogue provides the rest: whether EKS runs Windows on a type, whether Windows
//! nodes of it can have prefixes (VPC resource controller), and the list price. A type that the catalogue does not have is for Linux only.

use aws_sdk_ec2::types::{
    ArchitectureType, EbsOptimizedSupport, EphemeralNvmeSupport, InstanceTypeInfo, UsageClassType,
};
use mullion_cloud::catalogue::{self, Arch, Gpu, InstanceType};

/// Converts a description. Returns `None` for Macs, and if size, interfaces or architecture are missing.
pub(super) fn read(info: &InstanceTypeInfo) -> Option<InstanceType> {
    let name = info.instance_type()?.as_str();
    let known = catalogue::get(name);
    let processor = info.processor_info()?;
    let architectures = processor.supported_architectures();
    let arch = if architectures.contains(&ArchitectureType::X8664) {
        Arch::Amd64
    } else if architectures.contains(&ArchitectureType::Arm64) {
        Arch::Arm64
    } else {
        return None;
    };
    let network = info.network_info()?;
    // Pods get addresses only on the default card, so its limits count and not the instance's.
    let card = network.default_network_card_index().unwrap_or_default();
    let cards = network.network_cards();
    let card = cards
        .iter()
        .find(|own| own.network_card_index() == Some(card));
    let enis = card.and_then(|card| card.maximum_network_interfaces());
    let baseline = card.and_then(|card| card.baseline_bandwidth_in_gbps());
    let storage = info.instance_storage_info().filter(|storage| {
        let nvme = storage.nvme_support();
        nvme.is_some_and(|nvme| *nvme != EphemeralNvmeSupport::Unsupported)
    });
    let number = |number: Option<i32>| number.and_then(|n| u64::try_from(n).ok());
    Some(InstanceType {
        name: name.into(),
        vcpus: number(info.v_cpu_info()?.default_v_cpus())?,
        memory_mib: u64::try_from(info.memory_info()?.size_in_mib()?).ok()?,
        arch,
        hypervisor: info
            .hypervisor()
            .map(|own| own.as_str().to_owned())
            .unwrap_or_default(),
        bare_metal: info.bare_metal().unwrap_or_default(),
        max_enis: number(enis.or_else(|| network.maximum_network_interfaces()))?,
        network_cards: u64::try_from(cards.len().max(1)).ok()?,
        efa_interfaces: network
            .efa_info()
            .and_then(|efa| number(efa.maximum_efa_interfaces()))
            .unwrap_or_default(),
        ipv4_per_eni: number(network.ipv4_addresses_per_interface())?,
        gpu: gpu(info),
        neuron_devices: neuron_devices(info),
        local_nvme_gb: storage
            .and_then(|storage| u64::try_from(storage.total_size_in_gb()?).ok())
            .unwrap_or_default(),
        network_mbps: baseline
            .map(|gbps| (gbps * 1000.0).round() as u64)
            .or_else(|| known.and_then(|own| own.network_mbps)),
        ebs_mbps: ebs_mbps(info),
        clock_mhz: processor
            .sustained_clock_speed_in_ghz()
            .map(|ghz| (ghz * 1000.0).round() as u64)
            // Karpenter's label says 0 where EC2 tells nothing.
            .or(Some(0)),
        supports_spot: info
            .supported_usage_classes()
            .contains(&UsageClassType::Spot),
        cpu_manufacturer: processor
            .manufacturer()
            .map(str::to_ascii_lowercase)
            .or_else(|| known.and_then(|own| own.cpu_manufacturer.clone())),
        windows_capable: known.is_some_and(|own| own.windows_capable),
        windows_prefix_delegation: known.is_some_and(|own| own.windows_prefix_delegation),
        linux_price: known.and_then(|own| own.linux_price),
        windows_price: known.and_then(|own| own.windows_price),
    })
}

/// Returns the maximum bandwidth to EBS that every instance of a type has.
fn ebs_mbps(info: &InstanceTypeInfo) -> Option<u64> {
    let ebs = info.ebs_info()?;
    let is_default = *ebs.ebs_optimized_support()? == EbsOptimizedSupport::Default;
    let mbps = ebs.ebs_optimized_info()?.maximum_bandwidth_in_mbps()?;
    u64::try_from(mbps).ok().filter(|_| is_default)
}

fn gpu(info: &InstanceTypeInfo) -> Option<Gpu> {
    let gpus = info.gpu_info()?.gpus();
    let first = gpus.first()?;
    let count: i32 = gpus.iter().filter_map(|gpu| gpu.count()).sum();
    Some(Gpu {
        count: u64::try_from(count).ok().filter(|count| *count > 0)?,
        manufacturer: first
            .manufacturer()
            .unwrap_or_default()
            .to_ascii_lowercase(),
        name: first
            .name()
            .unwrap_or_default()
            .to_ascii_lowercase()
            .replace(' ', "-"),
        memory_mib: first
            .memory_info()
            .and_then(|memory| u64::try_from(memory.size_in_mib()?).ok()),
    })
}

fn neuron_devices(info: &InstanceTypeInfo) -> u64 {
    let neuron: i32 = info
        .neuron_info()
        .iter()
        .flat_map(|own| own.neuron_devices())
        .filter_map(|device| device.count())
        .sum();
    let inferentia: i32 = info
        .inference_accelerator_info()
        .iter()
        .flat_map(|own| own.accelerators())
        .filter_map(|device| device.count())
        .sum();
    u64::try_from(neuron.max(inferentia)).unwrap_or_default()
}
