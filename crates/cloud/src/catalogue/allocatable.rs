//! Computes the capacity and the allocatable amounts of a node as EKS does.
//!
//! Capacity:
//! - memory: the type's, less the part of hypervisor and kernel, 7.5 % unless the template says otherwise (rounded up to a MiB; Karpenter:
//!   `VM_MEMORY_OVERHEAD_PERCENT`);
//! - ephemeral storage: the root volume, or with RAID0 the local disks;
//! - pods: 110 on Windows; elsewhere the number of addresses on interfaces that are not reserved, `enis * (addresses - 1) + 2`; `maxPods`
//!   overrides both, `podsPerCore` limits them;
//! - Windows addresses: those of the first interface but its own, `addresses - 1`, or sixteen times as many with prefix delegation. The
//!   number of pods is limited by pod slots and by addresses.
//!
//! Allocatable is capacity less kube-reserved, system-reserved and hard eviction:
//! - CPU: 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of the rest;
//! - memory: 255 MiB, 11 MiB for each pod that the interfaces have an address for (Windows and Bottlerocket: for each pod slot), and 100
//!   MiB for eviction;
//! - ephemeral storage: 1 GiB, and 10 % for eviction.
//!
//! Invariant: the numbers equal Karpenter's, so that nodes report what was planned.

use mullion_api::{ami::AmiFamily, labels};

use super::InstanceType;
use crate::{NodeTemplate, Resources, template::Threshold};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const WINDOWS_PODS: u64 = 110;

/// Capacity and allocatable of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeResources {
    /// The capacity.
    pub capacity: Resources,
    /// The allocatable amounts.
    pub allocatable: Resources,
}

/// Returns the resources of a node of this type with this template.
pub fn of(instance_type: &InstanceType, template: &NodeTemplate) -> NodeResources {
    let capacity = capacity(instance_type, template);
    let reserved = reserved(instance_type, template, &capacity);
    let allocatable = Resources {
        cpu_milli: capacity.cpu_milli.saturating_sub(reserved.cpu_milli),
        memory_bytes: capacity.memory_bytes.saturating_sub(reserved.memory_bytes),
        ephemeral_bytes: capacity
            .ephemeral_bytes
            .saturating_sub(reserved.ephemeral_bytes),
        pods: capacity.pods,
        extended: capacity.extended.clone(),
    };
    NodeResources {
        capacity,
        allocatable,
    }
}

/// Returns the number of pods that a Linux node has addresses for when some of its interfaces are reserved (AWS: `eni-max-pods`).
pub fn eni_limited_pods(instance_type: &InstanceType, reserved_enis: u64) -> u64 {
    match instance_type.max_enis.saturating_sub(reserved_enis) {
        0 => 0,
        // The first address of each interface belongs to the node. Two more pods, the CNI plugin and kube-proxy, use the node's address.
        enis => enis * instance_type.ipv4_per_eni.saturating_sub(1) + 2,
    }
}

fn capacity(instance_type: &InstanceType, template: &NodeTemplate) -> Resources {
    let memory_mib = instance_type.memory_mib;
    let overhead_mib = template.memory_overhead.of_mib(memory_mib);
    // A RAID 0 of the local disks holds the ephemeral storage instead of the root volume.
    let ephemeral_bytes = if template.raid0 && instance_type.local_nvme_gb > 0 {
        instance_type.local_nvme_gb * 1_000_000_000
    } else {
        template.root_volume_gib * GIB
    };
    let mut resources = Resources {
        cpu_milli: instance_type.vcpus * 1000,
        memory_bytes: (memory_mib - overhead_mib) * MIB,
        ephemeral_bytes,
        pods: pods(instance_type, template),
        extended: Default::default(),
    };
    let mut extend = |name: &str, count: u64| {
        if count > 0 {
            resources.extended.insert(name.to_owned(), count);
        }
    };
    if let AmiFamily::Windows(..) = template.family {
        extend(
            labels::PRIVATE_IPV4,
            template.windows_addresses.on(instance_type),
        );
    }
    if let Some(gpu) = &instance_type.gpu {
        let name = match gpu.manufacturer.as_str() {
            "amd" => labels::AMD_GPU,
            _ => labels::NVIDIA_GPU,
        };
        extend(name, gpu.count);
    }
    extend(labels::AWS_NEURON, instance_type.neuron_devices);
    if let Some(device) = instance_type.neuron_device() {
        let cores = device.cores * instance_type.neuron_devices;
        extend(labels::AWS_NEURON_CORE, cores);
    }
    extend(labels::EFA, template.efas_on(instance_type));
    resources
}

fn pods(instance_type: &InstanceType, template: &NodeTemplate) -> u64 {
    let slots = template
        .kubelet
        .max_pods
        .unwrap_or_else(|| match template.family {
            AmiFamily::Windows(..) => WINDOWS_PODS,
            _ => {
                let reserved = template.reserved_enis + template.without_addresses();
                eni_limited_pods(instance_type, reserved)
            }
        });
    // Bottlerocket's kubelet has no podsPerCore.
    match (template.kubelet.pods_per_core, template.family) {
        (Some(per_core), family) if !family.is_bottlerocket() => {
            slots.min(per_core * instance_type.vcpus)
        }
        _ => slots,
    }
}

/// Returns the sum of kube-reserved, system-reserved and eviction.
fn reserved(
    instance_type: &InstanceType,
    template: &NodeTemplate,
    capacity: &Resources,
) -> Resources {
    let kubelet = &template.kubelet;
    let pods = match template.family {
        AmiFamily::Windows(..) | AmiFamily::Bottlerocket | AmiFamily::BottlerocketFips => {
            capacity.pods
        }
        // Unlike the pod limit above, Karpenter counts reserved interfaces here too.
        _ => eni_limited_pods(instance_type, template.without_addresses()),
    };
    let kube = &kubelet.kube_reserved;
    let system = &kubelet.system_reserved;
    let evict_memory = kubelet
        .memory_available
        .unwrap_or(Threshold::Bytes(100 * MIB));
    let evict_storage = kubelet.nodefs_available.unwrap_or(Threshold::Share(1000));
    Resources {
        cpu_milli: kube
            .cpu_milli
            .unwrap_or_else(|| reserved_cpu_milli(instance_type.vcpus))
            + system.cpu_milli.unwrap_or_default(),
        memory_bytes: kube.memory_bytes.unwrap_or((11 * pods + 255) * MIB)
            + system.memory_bytes.unwrap_or_default()
            + evict_memory.of(capacity.memory_bytes),
        ephemeral_bytes: kube.ephemeral_bytes.unwrap_or(GIB)
            + system.ephemeral_bytes.unwrap_or_default()
            + evict_storage.of(capacity.ephemeral_bytes),
        pods: 0,
        extended: Default::default(),
    }
}

/// Returns the reserved CPU: 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of the rest.
fn reserved_cpu_milli(vcpus: u64) -> u64 {
    // The sum is in hundredths of a milli-core; as in Karpenter, the remainder is dropped.
    const STEPS: [(u64, u64); 4] = [(1, 6000), (1, 1000), (2, 500), (u64::MAX, 250)];
    let mut left = vcpus;
    let mut hundredths = 0;
    for (cores, each) in STEPS {
        let taken = left.min(cores);
        hundredths += taken * each;
        left -= taken;
    }
    hundredths / 100
}

#[cfg(test)]
mod tests {
    use mullion_api::{
        ami::{WindowsEdition, WindowsRelease},
        eksctl::KubernetesVersion,
    };

    use super::*;
    use crate::{KubeletSettings, WindowsAddresses, catalogue};

    const WINDOWS: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);

    fn node(name: &str, template: &NodeTemplate) -> NodeResources {
        of(catalogue::get(name).unwrap(), template)
    }

    fn template(family: AmiFamily) -> NodeTemplate {
        NodeTemplate::new(family, KubernetesVersion::NEWEST)
    }

    fn text(resources: &Resources) -> Vec<(String, String)> {
        let list = resources.to_list();
        list.iter().map(|(k, v)| (k.clone(), v.0.clone())).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn a_windows_node_has_what_the_karpenter_announcement_shows() {
        let node = node("c6a.xlarge", &template(WINDOWS));
        assert_eq!(
            text(&node.allocatable),
            pairs(&[
                ("cpu", "3920m"),
                ("ephemeral-storage", "44Gi"),
                ("memory", "6012Mi"),
                ("pods", "110"),
                ("vpc.amazonaws.com/PrivateIPv4Address", "14"),
            ])
        );
    }

    #[test]
    fn a_linux_node_has_as_many_pods_as_its_interfaces_address() {
        let node = node("m5.large", &template(AmiFamily::AmazonLinux2));
        assert_eq!(node.capacity.pods, 29);
        // 8192 - 615 - (11 * 29 + 255) - 100 MiB
        assert_eq!(
            text(&node.allocatable),
            pairs(&[
                ("cpu", "1930m"),
                ("ephemeral-storage", "17Gi"),
                ("memory", "6903Mi"),
                ("pods", "29"),
            ])
        );
    }

    #[test]
    fn reserved_interfaces_have_no_addresses_for_pods() {
        let pods = |reserved_enis, family| {
            let template = NodeTemplate {
                reserved_enis,
                ..template(family)
            };
            node("m5.large", &template)
        };
        let one = pods(1, AmiFamily::AmazonLinux2023);
        assert_eq!(one.capacity.pods, 2 * 9 + 2);
        let none = pods(0, AmiFamily::AmazonLinux2023);
        assert_eq!(one.allocatable.memory_bytes, none.allocatable.memory_bytes);
        assert_eq!(pods(3, AmiFamily::AmazonLinux2023).capacity.pods, 0);
        assert_eq!(pods(9, AmiFamily::AmazonLinux2023).capacity.pods, 0);
        // Bottlerocket reserves memory for the pods that it can have.
        let bottlerocket = |reserved| pods(reserved, AmiFamily::Bottlerocket).allocatable;
        let spared = bottlerocket(1).memory_bytes - bottlerocket(0).memory_bytes;
        assert_eq!(spared, 9 * 11 * MIB);
        assert_eq!(pods(1, WINDOWS).capacity.pods, 110);
    }

    #[test]
    fn a_smaller_memory_overhead_leaves_more_memory() {
        let template = NodeTemplate {
            memory_overhead: crate::MemoryOverhead::of_fraction(0.02).expect("a part"),
            ..template(AmiFamily::AmazonLinux2)
        };
        // 8192 - 164 MiB
        assert_eq!(
            node("m5.large", &template).capacity.memory_bytes,
            8028 * MIB
        );
    }

    #[test]
    fn large_machines_reserve_a_quarter_percent_of_each_further_core() {
        assert_eq!(reserved_cpu_milli(1), 60);
        assert_eq!(reserved_cpu_milli(2), 70);
        assert_eq!(reserved_cpu_milli(4), 80);
        assert_eq!(reserved_cpu_milli(8), 90);
        assert_eq!(reserved_cpu_milli(96), 310);
    }

    #[test]
    fn prefix_delegation_multiplies_addresses_and_not_pod_slots() {
        let addresses = |name: &str, windows_addresses| {
            let template = NodeTemplate {
                windows_addresses,
                ..template(WINDOWS)
            };
            let node = node(name, &template);
            (node.capacity.pods, node.allocatable.private_ipv4())
        };
        use WindowsAddresses::{Off, Prefixes, Single};
        assert_eq!(addresses("m5.large", Single), (110, 9));
        assert_eq!(addresses("m5.large", Prefixes), (110, 144));
        assert_eq!(addresses("m5.large", Off), (110, 0));
        assert_eq!(addresses("m4.large", Prefixes), (110, 9), "not on Nitro");
        assert_eq!(addresses("m5.metal", Prefixes), (110, 784));
        assert_eq!(addresses("c5.4xlarge", Prefixes), (110, 464));
    }

    #[test]
    fn kubelet_settings_take_precedence() {
        let mut template = template(WINDOWS);
        template.kubelet = KubeletSettings {
            max_pods: Some(10),
            ..KubeletSettings::default()
        };
        let node = node("c6a.xlarge", &template);
        assert_eq!(node.capacity.pods, 10);
        // 11 * 10 + 255 = 365 MiB instead of 1465.
        assert_eq!(node.allocatable.memory_bytes, (7577 - 365 - 100) * MIB);
    }

    #[test]
    fn pods_per_core_caps_the_slots() {
        let mut template = template(AmiFamily::AmazonLinux2023);
        template.kubelet.pods_per_core = Some(3);
        assert_eq!(node("m5.large", &template).capacity.pods, 6);
    }

    #[test]
    fn nothing_is_ever_negative() {
        for instance_type in catalogue::all() {
            for family in [WINDOWS, AmiFamily::AmazonLinux2023] {
                let node = of(instance_type, &template(family));
                assert!(node.allocatable.cpu_milli <= node.capacity.cpu_milli);
                assert!(node.allocatable.memory_bytes <= node.capacity.memory_bytes);
            }
        }
    }
}
