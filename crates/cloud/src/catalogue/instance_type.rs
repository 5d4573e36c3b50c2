//! An instance type, and the labels of its nodes.
//!
//! Invariant: everything here follows from the type alone; the sibling modules compute what also depends on the image (pods, allocatable,
//! price).

use std::{collections::BTreeMap, sync::Arc};

use mullion_api::{ami::Os, labels};

use super::{Price, TypeName, encryption};
use serde::{Deserialize, Serialize};

/// CPU architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Arch {
    /// x86-64.
    Amd64,
    /// 64-bit Arm.
    Arm64,
}

impl Arch {
    /// Returns Go's name, the value of `kubernetes.io/arch`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

/// The GPUs of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The number of GPUs.
    pub count: u64,
    /// `nvidia` or `amd`.
    pub manufacturer: String,
    /// The name without the manufacturer, in lower case with dashes.
    pub name: String,
    /// The memory of one GPU in MiB, if known.
    pub memory_mib: Option<u64>,
}

/// A model of AWS Neuron devices, as EC2 describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeuronDevice {
    /// EC2's name, for example `Inferentia2`.
    pub name: &'static str,
    /// The NeuronCores of one device.
    pub cores: u64,
    /// The version of these cores.
    pub core_version: u64,
    /// The memory of one device in MiB.
    pub memory_mib: u64,
}

/// An EC2 instance type.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceType {
    /// The name, for example `c6a.xlarge`.
    pub name: Arc<str>,
    /// Number of vCPUs.
    pub vcpus: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Architecture.
    pub arch: Arch,
    /// `nitro`, `xen`, or empty if there is none.
    pub hypervisor: String,
    /// Whether it is bare metal, a whole machine.
    pub bare_metal: bool,
    /// The maximum number of network interfaces of each network card. Pods get addresses only from those of the first card.
    pub max_enis: u64,
    /// Network cards.
    pub network_cards: u64,
    /// Interfaces that can be Elastic Fabric Adapters.
    pub efa_interfaces: u64,
    /// IPv4 addresses of each interface.
    pub ipv4_per_eni: u64,
    /// The GPUs, if it has any.
    pub gpu: Option<Gpu>,
    /// The number of AWS Neuron devices.
    pub neuron_devices: u64,
    /// Local NVMe storage in GB.
    pub local_nvme_gb: u64,
    /// Baseline network bandwidth in Mbit/s, if known.
    pub network_mbps: Option<u64>,
    /// Maximum bandwidth to EBS in Mbit/s, if it is guaranteed to every instance and known.
    pub ebs_mbps: Option<u64>,
    /// Clock speed that all cores sustain, in MHz; 0 if EC2 reports none, `None` if unknown.
    pub clock_mhz: Option<u64>,
    /// Whether it is sold as spot.
    pub supports_spot: bool,
    /// `intel`, `amd` or `aws`, if known.
    pub cpu_manufacturer: Option<String>,
    /// Whether EKS runs Windows on it: x86-64 and known to the VPC resource controller.
    pub windows_capable: bool,
    /// Whether Windows nodes of it can use address prefixes.
    pub windows_prefix_delegation: bool,
    /// On-demand price with Linux.
    pub linux_price: Option<Price>,
    /// On-demand price with Windows.
    pub windows_price: Option<Price>,
}

impl InstanceType {
    /// Parses a row of the table. Returns `None` for Macs, and for rows without size or network.
    pub(super) fn from_row(row: &str) -> Option<Self> {
        let columns: [&str; 26] = row.split(',').collect::<Vec<_>>().try_into().ok()?;
        let [
            name,
            vcpus,
            memory_mib,
            architectures,
            hypervisor,
            bare_metal,
            max_enis,
            ipv4_per_eni,
            gpu_count,
            gpu_name,
            gpu_memory_mib,
            neuron_devices,
            local_nvme_gb,
            network_baseline_gbps,
            _network_peak_gbps,
            supports_spot,
            _burstable,
            cpu_manufacturer,
            windows_capable,
            windows_prefix_delegation,
            linux_usd,
            windows_usd,
            network_cards,
            efa_interfaces,
            ebs_mbps,
            clock_mhz,
        ] = columns;
        let arch = match architectures {
            "arm64" => Arch::Arm64,
            _ if architectures.split(';').any(|a| a == "x86_64") => Arch::Amd64,
            _ => return None,
        };
        Some(Self {
            name: name.into(),
            vcpus: vcpus.parse().ok()?,
            memory_mib: memory_mib.parse().ok()?,
            arch,
            hypervisor: hypervisor.into(),
            bare_metal: bare_metal == "true",
            max_enis: max_enis.parse().ok()?,
            network_cards: network_cards.parse().ok()?,
            efa_interfaces: efa_interfaces.parse().unwrap_or_default(),
            ipv4_per_eni: ipv4_per_eni.parse().ok()?,
            gpu: gpu(gpu_count, gpu_name, gpu_memory_mib),
            neuron_devices: neuron_devices.parse().unwrap_or_default(),
            local_nvme_gb: local_nvme_gb.parse().unwrap_or_default(),
            network_mbps: network_baseline_gbps
                .parse::<f64>()
                .ok()
                .map(|gbps| (gbps * 1000.0).round() as u64),
            ebs_mbps: ebs_mbps.parse().ok(),
            clock_mhz: clock_mhz.parse().ok(),
            supports_spot: supports_spot == "true",
            cpu_manufacturer: (!cpu_manufacturer.is_empty())
                .then(|| cpu_manufacturer.to_ascii_lowercase()),
            windows_capable: windows_capable == "true" && arch == Arch::Amd64,
            windows_prefix_delegation: windows_prefix_delegation == "true",
            linux_price: Price::parse(linux_usd),
            windows_price: Price::parse(windows_usd),
        })
    }

    /// Returns the parts of the name.
    pub fn parts(&self) -> TypeName<'_> {
        TypeName::parse(&self.name)
    }

    /// Returns the family, for example `c6a`.
    pub fn family(&self) -> &str {
        self.parts().family
    }

    /// Returns whether nodes of this type can run the operating system.
    pub fn runs(&self, os: Os) -> bool {
        match os {
            Os::Linux => true,
            Os::Windows => self.windows_capable,
        }
    }

    /// Returns whether it is built on EC2's Nitro System, as every bare-metal type is. Only such types have address prefixes.
    pub fn is_nitro(&self) -> bool {
        self.hypervisor == "nitro" || self.bare_metal
    }

    /// Returns the model of its Neuron devices, if it has any.
    pub fn neuron_device(&self) -> Option<NeuronDevice> {
        let device = |name, cores, core_version, memory_mib| NeuronDevice {
            name,
            cores,
            core_version,
            memory_mib,
        };
        let known = match self.family() {
            "inf1" => device("Inferentia", 4, 1, 8192),
            "inf2" => device("Inferentia2", 2, 2, 32_768),
            "trn1" | "trn1n" => device("Trainium", 2, 2, 32_768),
            "trn2" | "trn2u" => device("Trainium2", 8, 3, 98_304),
            _ => return None,
        };
        (self.neuron_devices > 0).then_some(known)
    }

    /// Returns the labels that every node of this type has, except for operating system, place and tenancy.
    pub fn labels(&self) -> BTreeMap<&'static str, String> {
        let parts = self.parts();
        let mut map = BTreeMap::from([
            (labels::INSTANCE_TYPE, self.name.to_string()),
            (labels::ARCH, self.arch.as_str().to_owned()),
            (labels::INSTANCE_FAMILY, parts.family.to_owned()),
            (labels::INSTANCE_SIZE, parts.size.to_owned()),
            (labels::INSTANCE_CPU, self.vcpus.to_string()),
            (labels::INSTANCE_MEMORY, self.memory_mib.to_string()),
            (labels::INSTANCE_HYPERVISOR, self.hypervisor.clone()),
            (
                labels::INSTANCE_CAPABILITY_FLEX,
                parts.family.contains("-flex").to_string(),
            ),
            (
                labels::INSTANCE_ENCRYPTION,
                encryption::between_instances(self).to_string(),
            ),
        ]);
        let optional = [
            (labels::INSTANCE_CATEGORY, parts.category.map(str::to_owned)),
            (
                labels::INSTANCE_GENERATION,
                parts.generation.map(|generation| generation.to_string()),
            ),
            (
                labels::INSTANCE_CPU_MANUFACTURER,
                self.cpu_manufacturer.clone(),
            ),
            (
                labels::INSTANCE_NETWORK_BANDWIDTH,
                self.network_mbps.map(|mbps| mbps.to_string()),
            ),
            (
                labels::INSTANCE_EBS_BANDWIDTH,
                self.ebs_mbps.map(|mbps| mbps.to_string()),
            ),
            (
                labels::INSTANCE_CPU_CLOCK_SPEED,
                self.clock_mhz.map(|mhz| mhz.to_string()),
            ),
            (
                labels::INSTANCE_LOCAL_NVME,
                (self.local_nvme_gb > 0).then(|| self.local_nvme_gb.to_string()),
            ),
        ];
        map.extend(
            optional
                .into_iter()
                .filter_map(|(key, value)| Some((key, value?))),
        );
        if let Some(gpu) = &self.gpu {
            map.insert(labels::INSTANCE_GPU_COUNT, gpu.count.to_string());
            map.insert(labels::INSTANCE_GPU_NAME, gpu.name.clone());
            map.insert(labels::INSTANCE_GPU_MANUFACTURER, gpu.manufacturer.clone());
            if let Some(memory) = gpu.memory_mib {
                map.insert(labels::INSTANCE_GPU_MEMORY, memory.to_string());
            }
        }
        if self.neuron_devices > 0 {
            map.insert(
                labels::INSTANCE_ACCELERATOR_COUNT,
                self.neuron_devices.to_string(),
            );
            map.insert(labels::INSTANCE_ACCELERATOR_MANUFACTURER, "aws".to_owned());
            if let Some(device) = self.neuron_device() {
                let name = device.name.to_ascii_lowercase();
                map.insert(labels::INSTANCE_ACCELERATOR_NAME, name);
            }
        }
        map
    }
}

/// Reads the columns about graphics processors, of which the last one is the memory of all of them together.
fn gpu(count: &str, name: &str, memory_mib: &str) -> Option<Gpu> {
    let count: u64 = count.parse().ok().filter(|count| *count > 0)?;
    let (maker, model) = name.split_once(' ').unwrap_or(("", name));
    Some(Gpu {
        count,
        manufacturer: maker.to_ascii_lowercase(),
        name: model.to_ascii_lowercase().replace(' ', "-"),
        memory_mib: memory_mib
            .parse()
            .ok()
            .filter(|memory: &u64| *memory > 0)
            .map(|memory| memory / count),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn nodes_carry_what_karpenter_says_of_their_type() {
        let labels = catalogue::get("c6a.xlarge").unwrap().labels();
        let expected = [
            ("karpenter.k8s.aws/instance-capability-flex", "false"),
            ("karpenter.k8s.aws/instance-category", "c"),
            ("karpenter.k8s.aws/instance-cpu", "4"),
            ("karpenter.k8s.aws/instance-cpu-manufacturer", "amd"),
            (
                "karpenter.k8s.aws/instance-cpu-sustained-clock-speed-mhz",
                "3600",
            ),
            ("karpenter.k8s.aws/instance-ebs-bandwidth", "10000"),
            (
                "karpenter.k8s.aws/instance-encryption-in-transit-supported",
                "true",
            ),
            ("karpenter.k8s.aws/instance-family", "c6a"),
            ("karpenter.k8s.aws/instance-generation", "6"),
            ("karpenter.k8s.aws/instance-hypervisor", "nitro"),
            ("karpenter.k8s.aws/instance-memory", "8192"),
            ("karpenter.k8s.aws/instance-network-bandwidth", "1562"),
            ("karpenter.k8s.aws/instance-size", "xlarge"),
            ("kubernetes.io/arch", "amd64"),
            ("node.kubernetes.io/instance-type", "c6a.xlarge"),
        ];
        let found: Vec<_> = labels.iter().map(|(k, v)| (*k, v.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn gpus_are_named_by_maker_and_model() {
        let g6 = catalogue::get("g6.xlarge").unwrap();
        let gpu = g6.gpu.as_ref().unwrap();
        assert_eq!(
            (gpu.manufacturer.as_str(), gpu.name.as_str()),
            ("nvidia", "l4")
        );
        let label = |name: &str| {
            let labels = catalogue::get(name).unwrap().labels();
            labels[labels::INSTANCE_GPU_MEMORY].clone()
        };
        assert_eq!(label("g6.xlarge"), "22888");
        assert_eq!(label("g6.48xlarge"), "22888", "of one of eight");
    }

    #[test]
    fn a_type_without_guaranteed_bandwidth_to_ebs_does_not_say_any() {
        let label = |name: &str, key: &str| catalogue::get(name).unwrap().labels().remove(key);
        let ebs = |name| label(name, labels::INSTANCE_EBS_BANDWIDTH);
        assert_eq!(ebs("m5.large").as_deref(), Some("4750"));
        assert_eq!(ebs("t2.micro"), None);
        let clock = |name| label(name, labels::INSTANCE_CPU_CLOCK_SPEED);
        assert_eq!(clock("t2.micro").as_deref(), Some("2500"));
        let known = catalogue::all().iter();
        let unknown = known.filter(|own| own.clock_mhz.is_none()).count();
        assert!(unknown < 50, "{unknown}");
    }

    #[test]
    fn pods_get_addresses_of_the_first_network_card_alone() {
        let p5 = catalogue::get("p5.48xlarge").unwrap();
        assert_eq!((p5.network_cards, p5.max_enis), (32, 2));
        assert_eq!(p5.efa_interfaces, 32);
        let linux = catalogue::allocatable::eni_limited_pods(p5, 0);
        assert_eq!(linux, 100);
    }

    #[test]
    fn accelerators_and_shared_cpus_are_named_by_family() {
        let label = |name: &str, key: &str| catalogue::get(name).unwrap().labels().remove(key);
        let device = |name| label(name, labels::INSTANCE_ACCELERATOR_NAME);
        assert_eq!(device("inf2.xlarge").as_deref(), Some("inferentia2"));
        assert_eq!(device("trn1n.32xlarge").as_deref(), Some("trainium"));
        assert_eq!(device("m5.large"), None);
        let known = catalogue::all().iter();
        let mut with_devices = known.filter(|own| own.neuron_devices > 0);
        assert!(with_devices.all(|own| own.neuron_device().is_some()));
        let flex = |name| label(name, labels::INSTANCE_CAPABILITY_FLEX);
        assert_eq!(flex("c7i-flex.large").as_deref(), Some("true"));
        assert_eq!(flex("c7i.large").as_deref(), Some("false"));
    }

    #[test]
    fn windows_needs_amd64() {
        let windows: Vec<_> = catalogue::all()
            .iter()
            .filter(|t| t.runs(Os::Windows))
            .collect();
        // 819 rows, 8 of which leave the number of vCPUs open.
        assert_eq!(windows.len(), 811);
        assert!(windows.iter().all(|t| t.arch == Arch::Amd64));
    }
}
