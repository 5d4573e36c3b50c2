//! Names that Kubernetes, Karpenter, EKS and eksctl define: labels, taints, annotations, finalizers and resource names.
//!
//! Invariant: each such string is written only here, and other crates use the constant. [`WELL_KNOWN`] lists the labels whose value the
//! provisioner may choose.

/// Operating system of a node: `linux` or `windows`.
pub const OS: &str = "kubernetes.io/os";
/// Architecture of a node in Go's spelling: `amd64` or `arm64`.
pub const ARCH: &str = "kubernetes.io/arch";
/// Host name of a node.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// EC2 instance type of a node.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Availability zone of a node.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Region of a node.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Availability zone id (`usw2-az1`), the same zone in every account.
pub const ZONE_ID: &str = "topology.k8s.aws/zone-id";
/// Build of a Windows node, for example `10.0.20348`.
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
/// Old spelling of [`OS`], still set by the kubelet.
pub const BETA_OS: &str = "beta.kubernetes.io/os";
/// Old spelling of [`ARCH`], still set by the kubelet.
pub const BETA_ARCH: &str = "beta.kubernetes.io/arch";
/// Old spelling of [`INSTANCE_TYPE`], still set by the kubelet.
pub const BETA_INSTANCE_TYPE: &str = "beta.kubernetes.io/instance-type";
/// Old spelling of [`ZONE`].
pub const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
/// Old spelling of [`REGION`].
pub const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Keeps a node out of external load balancers; set while a node drains.
pub const EXCLUDE_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Recommended label naming an application.
pub const APP_NAME: &str = "app.kubernetes.io/name";
/// Recommended label naming an installation of an application.
pub const APP_INSTANCE: &str = "app.kubernetes.io/instance";

/// NodePool that a node or NodeClaim belongs to.
pub const NODEPOOL: &str = "karpenter.sh/nodepool";
/// Capacity reservation that a node runs in.
pub const CAPACITY_RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
/// Kind of that reservation: `default` or `capacity-block`.
pub const CAPACITY_RESERVATION_TYPE: &str = "karpenter.k8s.aws/capacity-reservation-type";
/// Whether the owner of that reservation may take the node back: `true` or `false`.
pub const CAPACITY_RESERVATION_INTERRUPTIBLE: &str =
    "karpenter.k8s.aws/capacity-reservation-interruptible";
/// Placement group that a node is in.
pub const PLACEMENT_GROUP_ID: &str = "karpenter.k8s.aws/placement-group-id";
/// Partition of that group, from 1 on.
pub const PLACEMENT_GROUP_PARTITION: &str = "karpenter.k8s.aws/placement-group-partition";
/// How a node is paid for: `on-demand`, `spot` or `reserved`.
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
/// `true` once a node is ready for pods.
pub const INITIALIZED: &str = "karpenter.sh/initialized";
/// `true` once a node has the labels and taints of its NodeClaim.
pub const REGISTERED: &str = "karpenter.sh/registered";
/// Makes registration leave the node's taints unchanged.
pub const DO_NOT_SYNC_TAINTS: &str = "karpenter.sh/do-not-sync-taints";
/// v1alpha5's label with the meaning of [`NODEPOOL`].
pub const PROVISIONER_NAME: &str = "karpenter.sh/provisioner-name";

/// Keeps a node or a pod from being disrupted when `true`.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// Hash of the NodePool's template a NodeClaim was made from.
pub const NODEPOOL_HASH: &str = "karpenter.sh/nodepool-hash";
/// Version of the algorithm behind [`NODEPOOL_HASH`].
pub const NODEPOOL_HASH_VERSION: &str = "karpenter.sh/nodepool-hash-version";
/// Value of [`NODEPOOL_HASH_VERSION`] that this program writes.
pub const NODEPOOL_HASH_VERSION_VALUE: &str = "v3";
/// When a terminating NodeClaim stops respecting PDBs (RFC 3339).
pub const TERMINATION_TIMESTAMP: &str = "karpenter.sh/nodeclaim-termination-timestamp";
/// On a NodeClaim: a NodeOverlay changed the price of a type that it lists.
pub const PRICE_OVERLAY_APPLIED: &str = "karpenter.sh/price-overlay-applied";
/// On a NodeClaim: a NodeOverlay changed the capacity of a type that it lists.
pub const CAPACITY_OVERLAY_APPLIED: &str = "karpenter.sh/capacity-overlay-applied";
/// Hash of the EC2NodeClass a NodeClaim was made from.
pub const EC2NODECLASS_HASH: &str = "karpenter.k8s.aws/ec2nodeclass-hash";
/// On a NodePool: the least saving of a replacement, as a part of the price, such as `5%`.
pub const MIN_SAVING: &str = "mullion.dev/min-saving";
/// On a NodePool: the price per hour of each of its nodes besides machine and root volume, in US dollars, for example for a licence per
/// host: `0.05`.
pub const NODE_PRICE: &str = "mullion.dev/node-price";
/// On a NodePool: the price increase of nodes that pods' preferences may cause, such as `10%`.
pub const PREFERENCE_PRICE: &str = "mullion.dev/preference-price";
/// On a NodeClaim: whether fewer values are possible than its pool's `minValues` requires.
pub const MIN_VALUES_RELAXED: &str = "karpenter.sh/nodeclaim-min-values-relaxed";
/// Version of the algorithm behind [`EC2NODECLASS_HASH`].
pub const EC2NODECLASS_HASH_VERSION: &str = "karpenter.k8s.aws/ec2nodeclass-hash-version";
/// Value of [`EC2NODECLASS_HASH_VERSION`] that this program writes. No version of Karpenter writes it: Karpenter's hash of a class also
/// covers the certificate authority of the cluster and differs between releases, so with equal versions, hashes with different meanings
/// would be compared.
pub const EC2NODECLASS_HASH_VERSION_VALUE: &str = "mullion-v1";
/// On a NodeClaim: the instance profile with which its instance was launched. Karpenter deletes profiles that no class and no claim names.
pub const INSTANCE_PROFILE: &str = "karpenter.k8s.aws/instance-profile-name";
/// Tag with the name of the cluster that an instance, launch template or instance profile belongs to.
pub const CLUSTER_TAG: &str = "eks:eks-cluster-name";
/// Marks an instance whose tags carry the NodeClaim and node names.
pub const TAGGED: &str = "karpenter.k8s.aws/tagged";
/// v1alpha5's annotation that keeps a pod from being evicted.
pub const DO_NOT_EVICT: &str = "karpenter.sh/do-not-evict";
/// v1alpha5's annotation that keeps a node from being consolidated.
pub const DO_NOT_CONSOLIDATE: &str = "karpenter.sh/do-not-consolidate";
/// Says that a NodePool or EC2NodeClass is the mirror of a legacy object (`Kind/name`).
pub const MIRRORED_FROM: &str = "mullion.dev/mirrored-from";

/// Annotation on a SimulatedFault that a flag of `mullion up` causes, for one start of the cluster; its value is the flag.
pub const FROM_FLAG: &str = "mullion.dev/from-flag";
/// Keeps NodeClaims and their nodes until pods are drained and the instance is gone.
pub const TERMINATION_FINALIZER: &str = "karpenter.sh/termination";
/// On a pod or namespace: `false` switches placement by image off, `true` on.
pub const PLACE_BY_IMAGE: &str = "mullion.dev/place-by-image";
/// On a namespace: the operating system for pods whose images run on Linux and on Windows (`linux` or `windows`).
pub const DEFAULT_OS: &str = "mullion.dev/default-os";
/// On a pod: the platform of its images, instead of the one in their registries (`windows/amd64:10.0.20348`).
pub const RUNS_ON: &str = "mullion.dev/runs-on";
/// Scheduling gate of a pod whose images were unknown when it was created.
pub const IMAGE_GATE: &str = "mullion.dev/image";
/// On a pod: the fields that placement by image has added, and the reasons (JSON).
pub const PLACED_BY_IMAGE: &str = "mullion.dev/placed-by-image";

/// Keeps EC2NodeClasses until no NodeClaim uses them.
pub const EC2NODECLASS_FINALIZER: &str = "karpenter.k8s.aws/termination";

/// Taint of a node that is being removed (`NoSchedule`).
pub const DISRUPTED_TAINT: &str = "karpenter.sh/disrupted";
/// Taint of a node that has not been registered yet (`NoExecute`).
pub const UNREGISTERED_TAINT: &str = "karpenter.sh/unregistered";
/// Taint the node lifecycle controller sets on a node that is not ready.
pub const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
/// Taint that the node lifecycle controller sets on an unreachable node.
pub const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";
/// Taint of a cordoned node.
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";
/// Taint a kubelet with an external cloud provider registers with.
pub const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Domain of Karpenter's own labels.
pub const KARPENTER_DOMAIN: &str = "karpenter.sh";
/// API group of the AWS provider's resources and domain of its labels.
pub const AWS_GROUP: &str = "karpenter.k8s.aws";
/// EC2NodeClass a NodeClaim was made from.
pub const EC2NODECLASS: &str = "karpenter.k8s.aws/ec2nodeclass";
/// Instance category, the letters in front of the family's number (`c`, `m`, `r`).
pub const INSTANCE_CATEGORY: &str = "karpenter.k8s.aws/instance-category";
/// Whether the family shares its CPUs (`c7i-flex`).
pub const INSTANCE_CAPABILITY_FLEX: &str = "karpenter.k8s.aws/instance-capability-flex";
/// Whether the host is shared (`default`) or not (`dedicated`).
pub const INSTANCE_TENANCY: &str = "karpenter.k8s.aws/instance-tenancy";
/// Instance family (`c6a`).
pub const INSTANCE_FAMILY: &str = "karpenter.k8s.aws/instance-family";
/// Instance generation (`6`).
pub const INSTANCE_GENERATION: &str = "karpenter.k8s.aws/instance-generation";
/// Instance size (`xlarge`).
pub const INSTANCE_SIZE: &str = "karpenter.k8s.aws/instance-size";
/// Number of vCPUs.
pub const INSTANCE_CPU: &str = "karpenter.k8s.aws/instance-cpu";
/// Maker of the CPU (`intel`, `amd`, `aws`).
pub const INSTANCE_CPU_MANUFACTURER: &str = "karpenter.k8s.aws/instance-cpu-manufacturer";
/// Memory in MiB.
pub const INSTANCE_MEMORY: &str = "karpenter.k8s.aws/instance-memory";
/// Hypervisor (`nitro`, `xen`, empty on bare metal).
pub const INSTANCE_HYPERVISOR: &str = "karpenter.k8s.aws/instance-hypervisor";
/// Whether traffic between instances is encrypted by the hardware.
pub const INSTANCE_ENCRYPTION: &str = "karpenter.k8s.aws/instance-encryption-in-transit-supported";
/// Local NVMe storage in GB.
pub const INSTANCE_LOCAL_NVME: &str = "karpenter.k8s.aws/instance-local-nvme";
/// Baseline network bandwidth in Mbit/s.
pub const INSTANCE_NETWORK_BANDWIDTH: &str = "karpenter.k8s.aws/instance-network-bandwidth";
/// Name of the GPU.
pub const INSTANCE_GPU_NAME: &str = "karpenter.k8s.aws/instance-gpu-name";
/// Maker of the GPU.
pub const INSTANCE_GPU_MANUFACTURER: &str = "karpenter.k8s.aws/instance-gpu-manufacturer";
/// Number of GPUs.
pub const INSTANCE_GPU_COUNT: &str = "karpenter.k8s.aws/instance-gpu-count";
/// Memory of one GPU in MiB.
pub const INSTANCE_GPU_MEMORY: &str = "karpenter.k8s.aws/instance-gpu-memory";
/// Name of the machine-learning accelerator.
pub const INSTANCE_ACCELERATOR_NAME: &str = "karpenter.k8s.aws/instance-accelerator-name";
/// Maker of the machine-learning accelerator.
pub const INSTANCE_ACCELERATOR_MANUFACTURER: &str =
    "karpenter.k8s.aws/instance-accelerator-manufacturer";
/// Number of machine-learning accelerators.
pub const INSTANCE_ACCELERATOR_COUNT: &str = "karpenter.k8s.aws/instance-accelerator-count";
/// EBS bandwidth in Mbit/s.
pub const INSTANCE_EBS_BANDWIDTH: &str = "karpenter.k8s.aws/instance-ebs-bandwidth";
/// Clock speed that all cores keep, in MHz.
pub const INSTANCE_CPU_CLOCK_SPEED: &str =
    "karpenter.k8s.aws/instance-cpu-sustained-clock-speed-mhz";

/// EKS managed node group of a node.
pub const EKS_NODEGROUP: &str = "eks.amazonaws.com/nodegroup";
/// AMI of a node in an EKS managed node group.
pub const EKS_NODEGROUP_IMAGE: &str = "eks.amazonaws.com/nodegroup-image";
/// Capacity type of a managed node group: `ON_DEMAND` or `SPOT`.
pub const EKS_CAPACITY_TYPE: &str = "eks.amazonaws.com/capacityType";
/// Cluster name that eksctl puts on nodes.
pub const EKSCTL_CLUSTER: &str = "alpha.eksctl.io/cluster-name";
/// Node group name that eksctl puts on nodes.
pub const EKSCTL_NODEGROUP: &str = "alpha.eksctl.io/nodegroup-name";
/// Instance id that eksctl puts on nodes of unmanaged groups.
pub const EKSCTL_INSTANCE: &str = "alpha.eksctl.io/instance-id";
/// Tag by which the walkthroughs make Karpenter find subnets and security groups.
pub const DISCOVERY_TAG: &str = "karpenter.sh/discovery";

/// Resource and pod annotation of a Windows pod's address.
pub const PRIVATE_IPV4: &str = "vpc.amazonaws.com/PrivateIPv4Address";
/// Resource name of CPU.
pub const CPU: &str = "cpu";
/// Resource name of memory.
pub const MEMORY: &str = "memory";
/// Resource name of ephemeral storage.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Resource name of pod slots.
pub const PODS: &str = "pods";
/// Resource name of NVIDIA GPUs.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// Resource name of AMD GPUs.
pub const AMD_GPU: &str = "amd.com/gpu";
/// Resource name of Elastic Fabric Adapters.
pub const EFA: &str = "vpc.amazonaws.com/efa";
/// Resource name of AWS Neuron devices.
pub const AWS_NEURON: &str = "aws.amazon.com/neuron";
/// Resource name of the cores of AWS Neuron devices.
pub const AWS_NEURON_CORE: &str = "aws.amazon.com/neuroncore";

/// Value of [`OS`] on Linux nodes.
pub const OS_LINUX: &str = "linux";
/// Value of [`OS`] on Windows nodes.
pub const OS_WINDOWS: &str = "windows";
/// Value of [`CAPACITY_TYPE`] for on-demand instances.
pub const ON_DEMAND: &str = "on-demand";
/// Value of [`CAPACITY_TYPE`] for spot instances.
pub const SPOT: &str = "spot";
/// Value of [`CAPACITY_TYPE`]: paid for as part of a capacity reservation.
pub const RESERVED: &str = "reserved";

/// Labels whose values the provisioner knows, so that pods may request them although no NodePool names them (Karpenter:
/// `v1.WellKnownLabels` and the AWS provider's additions).
pub const WELL_KNOWN: &[&str] = &[
    NODEPOOL,
    ZONE,
    REGION,
    INSTANCE_TYPE,
    ARCH,
    OS,
    CAPACITY_TYPE,
    WINDOWS_BUILD,
    ZONE_ID,
    INSTANCE_CATEGORY,
    INSTANCE_CAPABILITY_FLEX,
    INSTANCE_TENANCY,
    INSTANCE_FAMILY,
    INSTANCE_GENERATION,
    INSTANCE_SIZE,
    INSTANCE_CPU,
    INSTANCE_CPU_MANUFACTURER,
    INSTANCE_MEMORY,
    INSTANCE_HYPERVISOR,
    INSTANCE_ENCRYPTION,
    INSTANCE_LOCAL_NVME,
    INSTANCE_NETWORK_BANDWIDTH,
    INSTANCE_EBS_BANDWIDTH,
    INSTANCE_CPU_CLOCK_SPEED,
    INSTANCE_GPU_NAME,
    INSTANCE_GPU_MANUFACTURER,
    INSTANCE_GPU_COUNT,
    INSTANCE_GPU_MEMORY,
    INSTANCE_ACCELERATOR_NAME,
    INSTANCE_ACCELERATOR_MANUFACTURER,
    INSTANCE_ACCELERATOR_COUNT,
    CAPACITY_RESERVATION_ID,
    CAPACITY_RESERVATION_TYPE,
    CAPACITY_RESERVATION_INTERRUPTIBLE,
    PLACEMENT_GROUP_ID,
    PLACEMENT_GROUP_PARTITION,
];

/// Returns the current name of a label; beta names are old names of the same label.
pub fn normalized(label: &str) -> &str {
    match label {
        BETA_OS => OS,
        BETA_ARCH => ARCH,
        BETA_INSTANCE_TYPE => INSTANCE_TYPE,
        BETA_ZONE => ZONE,
        BETA_REGION => REGION,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beta_names_are_read_as_their_successors() {
        assert_eq!(normalized("beta.kubernetes.io/os"), OS);
        assert_eq!(normalized("failure-domain.beta.kubernetes.io/zone"), ZONE);
        assert_eq!(normalized("example.com/team"), "example.com/team");
    }
}
