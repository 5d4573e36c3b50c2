//! The settings of a node that an EC2NodeClass or a node group determines before an instance type is chosen.
//!
//! Invariant: a [`NodeTemplate`] is complete: family, version, root volume and kubelet settings are set, so capacity and
//! allocatable of any instance type follow from it alone.

use mullion_api::{
    ami::AmiFamily,
    eksctl::KubernetesVersion,
    karpenter::{EC2NodeClassSpec, KubeletConfiguration, NetworkInterface, ResourceList},
    labels,
};
use mullion_engine::{
    ip::{PREFIX_SIZE, Settings},
    model::Quantity,
};

use crate::{Tenancy, catalogue::InstanceType};
use serde::{Deserialize, Serialize};

/// Image, root volume and kubelet settings of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTemplate {
    /// Image family.
    pub family: AmiFamily,
    /// Kubernetes version of the image.
    pub version: KubernetesVersion,
    /// Root volume in GiB.
    pub root_volume_gib: u64,
    /// Whether local NVMe disks hold the ephemeral storage.
    pub raid0: bool,
    /// Kubelet settings.
    pub kubelet: KubeletSettings,
    /// How pods get addresses if the node runs Windows.
    pub windows_addresses: WindowsAddresses,
    /// The part of an instance type's memory that nodes do not report.
    pub memory_overhead: MemoryOverhead,
    /// The number of network interfaces that are not used for pods where interfaces limit the number of pods (Karpenter:
    /// `RESERVED_ENIS`).
    pub reserved_enis: u64,
    /// The network interfaces that the class lists; if there are none, instances have one.
    pub interfaces: Vec<NetworkInterface>,
    /// Whether nodes of a class that lists no interfaces have the Elastic Fabric Adapters of their type, because pods ask for
    /// some.
    pub has_efas: bool,
    /// Whether virtual machines must be able to run virtual machines (`cpuOptions`).
    pub nests_virtual_machines: bool,
    /// Whether timeouts of tracked connections are set (`connectionTracking`).
    pub tracks_connections: bool,
    /// Whether instances share their hosts with other accounts.
    pub tenancy: Tenancy,
}

/// The part of a type's memory that hypervisor and kernel take, so that a node does not report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryOverhead {
    millionths: u32,
}

impl Default for MemoryOverhead {
    /// Karpenter's estimate, 7.5 % (`VM_MEMORY_OVERHEAD_PERCENT`).
    fn default() -> Self {
        Self { millionths: 75_000 }
    }
}

impl MemoryOverhead {
    /// Returns the overhead as a fraction of the memory, rounded to a millionth; `None` unless it is at least 0 and less
    /// than 1.
    pub fn of_fraction(fraction: f64) -> Option<Self> {
        let millionths = (fraction * 1e6).round();
        // NaN is in no range, so it gives `None`.
        (0.0..1e6).contains(&millionths).then_some(Self {
            millionths: millionths as u32,
        })
    }

    /// Returns the overhead as a fraction of the memory.
    pub fn fraction(self) -> f64 {
        f64::from(self.millionths) / 1e6
    }

    /// Returns the overhead of `memory_mib`, rounded up to a MiB.
    pub fn of_mib(self, memory_mib: u64) -> u64 {
        (memory_mib * u64::from(self.millionths)).div_ceil(1_000_000)
    }
}

/// How pods on Windows nodes get their addresses, as the ConfigMap `kube-system/amazon-vpc-cni` configures it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WindowsAddresses {
    /// Pods get no addresses (`enable-windows-ipam` is not true).
    Off,
    /// One secondary address per pod.
    #[default]
    Single,
    /// Addresses from /28 prefixes of 16, on instance types that support them (`enable-windows-prefix-delegation`).
    Prefixes,
}

impl WindowsAddresses {
    /// Returns the mode that the ConfigMap's settings select.
    pub fn of(settings: &Settings) -> Self {
        match (settings.windows_ipam, settings.prefix_delegation) {
            (false, _) => Self::Off,
            (true, false) => Self::Single,
            (true, true) => Self::Prefixes,
        }
    }

    /// Returns how many pod addresses a Windows node of a type has: the slots of its first interface (its IPv4 limit minus
    /// the node's own address), and sixteen times as many with prefixes (VRC: `pkg/aws/vpc/limits.go`).
    pub fn on(self, instance_type: &InstanceType) -> u64 {
        let slots = instance_type.ipv4_per_eni.saturating_sub(1);
        match self {
            Self::Off => 0,
            Self::Prefixes if instance_type.windows_prefix_delegation => slots * PREFIX_SIZE as u64,
            Self::Single | Self::Prefixes => slots,
        }
    }
}

/// Kubelet settings that change the allocatable amounts of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletSettings {
    /// `--max-pods`.
    pub max_pods: Option<u64>,
    /// `podsPerCore`.
    pub pods_per_core: Option<u64>,
    /// `kubeReserved`; overrides the defaults.
    pub kube_reserved: Reserved,
    /// `systemReserved`.
    pub system_reserved: Reserved,
    /// The greater of `memory.available` in `evictionHard` and `evictionSoft`.
    pub memory_available: Option<Threshold>,
    /// The greater of `nodefs.available` in both maps.
    pub nodefs_available: Option<Threshold>,
}

/// Reserved amounts; `None` where the setting is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// Thousandths of a vCPU.
    pub cpu_milli: Option<u64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Ephemeral storage in bytes.
    pub ephemeral_bytes: Option<u64>,
}

/// An eviction threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Threshold {
    /// Bytes.
    Bytes(u64),
    /// Ten-thousandths of the capacity (`10%` is 1000).
    Share(u64),
}

impl Threshold {
    /// Returns the threshold in bytes for this capacity; a share is rounded up.
    pub fn of(self, capacity_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => {
                let bytes = (u128::from(capacity_bytes) * u128::from(share)).div_ceil(10_000);
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }

    /// Parses the kubelet's notation: a percentage or a quantity.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.parse().ok()?;
                (0.0..=100.0)
                    .contains(&percent)
                    .then_some(Self::Share((percent * 100.0).round() as u64))
            }
            None => bytes(text).map(Self::Bytes),
        }
    }
}

/// The reason why a class cannot be converted to a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Neither `amiFamily` nor an alias names a known family.
    #[error("neither amiFamily nor an alias in amiSelectorTerms names a known image family")]
    NoFamily,
    /// A quantity cannot be parsed.
    #[error("{field}: {text:?} is not a quantity")]
    Quantity {
        /// Path in the spec.
        field: String,
        /// The value there.
        text: String,
    },
}

/// Returns Karpenter's default size of the root volume: 50Gi on Windows, 20Gi elsewhere.
pub fn default_volume_gib(family: AmiFamily) -> u64 {
    match family {
        AmiFamily::Windows(..) => 50,
        _ => 20,
    }
}

/// Returns the image family of an EC2NodeClass (Karpenter: `EC2NodeClass.AMIFamily`).
pub fn family_of(spec: &EC2NodeClassSpec) -> Option<AmiFamily> {
    match &spec.ami_family {
        Some(name) => AmiFamily::from_karpenter(name),
        None => spec
            .ami_selector_terms
            .iter()
            .filter_map(|term| term.alias.as_deref())
            .find_map(AmiFamily::from_alias),
    }
}

impl NodeTemplate {
    /// Creates a template of the family with Karpenter's defaults.
    pub fn new(family: AmiFamily, version: KubernetesVersion) -> Self {
        Self {
            family,
            version,
            root_volume_gib: default_volume_gib(family),
            raid0: false,
            kubelet: KubeletSettings::default(),
            windows_addresses: WindowsAddresses::default(),
            memory_overhead: MemoryOverhead::default(),
            reserved_enis: 0,
            interfaces: Vec::new(),
            has_efas: false,
            nests_virtual_machines: false,
            tracks_connections: false,
            tenancy: Tenancy::Default,
        }
    }

    /// Creates a template from an EC2NodeClass.
    ///
    /// # Errors
    /// Returns an error if no family is named or a quantity cannot be parsed.
    pub fn from_class(
        spec: &EC2NodeClassSpec,
        version: KubernetesVersion,
    ) -> Result<Self, TemplateError> {
        let family = family_of(spec).ok_or(TemplateError::NoFamily)?;
        let kubelet = match &spec.kubelet {
            Some(kubelet) => KubeletSettings::read(kubelet)?,
            None => KubeletSettings::default(),
        };
        let cpu = spec.cpu_options.as_ref();
        let nested = cpu.and_then(|own| own.nested_virtualization.as_deref());
        Ok(Self {
            root_volume_gib: root_volume_gib(spec, family)?,
            raid0: spec.instance_store_policy.as_deref() == Some("RAID0"),
            kubelet,
            interfaces: spec.network_interfaces.clone(),
            nests_virtual_machines: nested.is_some_and(|nested| nested == "enabled"),
            tracks_connections: spec.connection_tracking.is_some(),
            ..Self::new(family, version)
        })
    }
}

/// Returns the size of the volume marked as root, else of the one at the family's root device, else the family's default.
/// For the family Custom, a single volume counts as the root volume.
fn root_volume_gib(spec: &EC2NodeClassSpec, family: AmiFamily) -> Result<u64, TemplateError> {
    let devices = &spec.block_device_mappings;
    let root = devices
        .iter()
        .find(|device| device.root_volume)
        .or_else(|| {
            let name = match family {
                // Bottlerocket has its system on /dev/xvda; the volume that holds images and logs is the
                // second one.
                AmiFamily::Windows(..) => "/dev/sda1",
                AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips => "/dev/xvdb",
                _ => "/dev/xvda",
            };
            devices
                .iter()
                .find(|device| device.device_name.as_deref() == Some(name))
        })
        .or_else(|| match devices.as_slice() {
            [only] if family == AmiFamily::Custom => Some(only),
            _ => None,
        });
    let size = root
        .and_then(|device| device.ebs.as_ref())
        .and_then(|volume| volume.volume_size.as_deref());
    let Some(text) = size else {
        return Ok(default_volume_gib(family));
    };
    volume_gib(text).ok_or_else(|| TemplateError::Quantity {
        field: "spec.blockDeviceMappings.ebs.volumeSize".into(),
        text: text.into(),
    })
}

/// Returns the size of a volume in GiB, rounded up; `None` if the text is not a quantity.
pub(crate) fn volume_gib(text: &str) -> Option<u64> {
    Some(bytes(text)?.div_ceil(1 << 30))
}

impl KubeletSettings {
    fn read(kubelet: &KubeletConfiguration) -> Result<Self, TemplateError> {
        let threshold = |signal: &str| {
            [
                ("evictionHard", &kubelet.eviction_hard),
                ("evictionSoft", &kubelet.eviction_soft),
            ]
            .into_iter()
            .filter_map(|(field, map)| Some((field, map.get(signal)?)))
            .map(|(field, text)| {
                Threshold::parse(text).ok_or_else(|| TemplateError::Quantity {
                    field: format!("spec.kubelet.{field}[{signal}]"),
                    text: text.clone(),
                })
            })
            .collect::<Result<Vec<_>, _>>()
            // A share and an amount cannot be compared directly, so both are applied to a capacity of 100 GiB.
            .map(|all| all.into_iter().max_by_key(|t| t.of(100 << 30)))
        };
        let count = |number: Option<i32>| number.and_then(|n| u64::try_from(n).ok());
        Ok(Self {
            max_pods: count(kubelet.max_pods),
            pods_per_core: count(kubelet.pods_per_core).filter(|per_core| *per_core > 0),
            kube_reserved: Reserved::read("spec.kubelet.kubeReserved", &kubelet.kube_reserved)?,
            system_reserved: Reserved::read(
                "spec.kubelet.systemReserved",
                &kubelet.system_reserved,
            )?,
            memory_available: threshold("memory.available")?,
            nodefs_available: threshold("nodefs.available")?,
        })
    }
}

impl Reserved {
    fn read(field: &str, list: &ResourceList) -> Result<Self, TemplateError> {
        let amount = |resource: &str, read: fn(&str) -> Option<u64>| {
            let Some(text) = list.text(resource) else {
                return Ok(None);
            };
            read(text).map(Some).ok_or_else(|| TemplateError::Quantity {
                field: format!("{field}[{resource}]"),
                text: text.into(),
            })
        };
        Ok(Self {
            cpu_milli: amount(labels::CPU, milli)?,
            memory_bytes: amount(labels::MEMORY, bytes)?,
            ephemeral_bytes: amount(labels::EPHEMERAL_STORAGE, bytes)?,
        })
    }
}

fn bytes(text: &str) -> Option<u64> {
    let quantity: Quantity = text.parse().ok()?;
    u64::try_from(quantity.value()).ok()
}

fn milli(text: &str) -> Option<u64> {
    let quantity: Quantity = text.parse().ok()?;
    u64::try_from(quantity.milli_value()).ok()
}

#[cfg(test)]
mod tests {
    use mullion_api::ami::{WindowsEdition, WindowsRelease};

    use super::*;

    fn class(json: serde_json::Value) -> EC2NodeClassSpec {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn an_alias_names_the_family() {
        let spec = class(serde_json::json!({
            "amiSelectorTerms": [{"alias": "windows2025@latest"}]
        }));
        let template = NodeTemplate::from_class(&spec, KubernetesVersion::NEWEST).unwrap();
        assert_eq!(
            template.family,
            AmiFamily::Windows(WindowsRelease::V2025, WindowsEdition::Core)
        );
        assert_eq!(template.root_volume_gib, 50);
    }

    #[test]
    fn the_root_device_sizes_the_volume() {
        let spec = class(serde_json::json!({
            "amiFamily": "AL2023",
            "blockDeviceMappings": [
                {"deviceName": "/dev/xvdz", "ebs": {"volumeSize": "500Gi"}},
                {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "100Gi"}},
            ]
        }));
        let template = NodeTemplate::from_class(&spec, KubernetesVersion::NEWEST).unwrap();
        assert_eq!(template.root_volume_gib, 100);
    }

    #[test]
    fn a_bad_quantity_is_named_with_its_path() {
        let spec = class(serde_json::json!({
            "amiFamily": "AL2023",
            "kubelet": {"kubeReserved": {"memory": "1 GB"}}
        }));
        let error = NodeTemplate::from_class(&spec, KubernetesVersion::NEWEST).unwrap_err();
        assert_eq!(
            error.to_string(),
            "spec.kubelet.kubeReserved[memory]: \"1 GB\" is not a quantity"
        );
    }

    #[test]
    fn a_memory_overhead_is_a_part_of_the_whole_rounded_up_to_a_mebibyte() {
        assert_eq!(MemoryOverhead::default().of_mib(8192), 615);
        let overhead = |fraction| MemoryOverhead::of_fraction(fraction);
        assert_eq!(overhead(0.075), Some(MemoryOverhead::default()));
        assert_eq!(overhead(0.0).map(|own| own.of_mib(8192)), Some(0));
        assert_eq!(overhead(0.999_999).map(|own| own.of_mib(1000)), Some(1000));
        for wrong in [-0.1, 1.0, 7.5, f64::NAN, f64::INFINITY] {
            assert_eq!(overhead(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn percentages_are_shares_of_the_capacity() {
        assert_eq!(Threshold::parse("10%").unwrap().of(50 << 30), 5 << 30);
        assert_eq!(Threshold::parse("100Mi").unwrap().of(1), 100 << 20);
        assert_eq!(Threshold::parse("150%"), None);
    }
}
