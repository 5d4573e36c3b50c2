//! The Node object and Lease that a simulated kubelet writes.
//!
//! [`NodeFacts`] is what a booted instance knows about itself; everything here is a pure function of it and the
//! present time. Labels, addresses and conditions are those of an EKS node with Kubernetes 1.36.

use std::{collections::BTreeMap, net::Ipv4Addr};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{
            ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
            NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus,
            NodeSystemInfo, Taint,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time},
    },
};
use mullion_api::labels;
use mullion_cloud::sim::PullSpeed;
use mullion_engine::windows::Build;

use super::ids;

/// How long a node lease is valid, in seconds; the kubelet renews it four times as often.
pub const LEASE_DURATION_S: i32 = 40;
/// Namespace of the node leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The declared features of a 1.36 kubelet (`status.declaredFeatures`).
const FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// The facts that a booted instance knows about itself.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// The node's name: its private DNS name.
    pub name: String,
    /// `aws:///us-west-2a/i-0123456789abcdef0`.
    pub provider_id: String,
    /// Instance type.
    pub instance_type: String,
    /// Availability zone.
    pub zone: String,
    /// Region.
    pub region: String,
    /// `linux` or `windows`.
    pub os: String,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// The Windows build; `None` on Linux.
    pub windows_build: Option<Build>,
    /// Primary private address.
    pub internal_ip: Ipv4Addr,
    /// Public address, if the subnet gives one.
    pub external_ip: Option<Ipv4Addr>,
    /// Prefix length of the subnet, which follows the address of a Windows pod.
    pub subnet_prefix_len: u8,
    /// The column OS-IMAGE of `kubectl get nodes -o wide`.
    pub os_image: String,
    /// The column KERNEL-VERSION.
    pub kernel_version: String,
    /// The column CONTAINER-RUNTIME.
    pub container_runtime: String,
    /// The column VERSION, such as `v1.36.0-eks-1a2b3c4`.
    pub kubelet_version: String,
    /// Total resources.
    pub capacity: BTreeMap<String, String>,
    /// Resources available to pods.
    pub allocatable: BTreeMap<String, String>,
    /// Labels from the node group, in addition to those of every node.
    pub labels: BTreeMap<String, String>,
    /// `--register-with-taints`.
    pub taints: Vec<Taint>,
    /// The image pull speed, where it differs from the typical one.
    pub pull_speed: PullSpeed,
}

/// Whether the kubelet reports the node as ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The network plugin is not up yet.
    NetworkNotReady,
    /// The node is ready.
    Ready,
}

impl NodeFacts {
    /// Returns whether the node runs Windows.
    pub fn is_windows(&self) -> bool {
        self.os == "windows"
    }

    /// Returns all labels with which the node registers.
    pub fn all_labels(&self) -> BTreeMap<String, String> {
        let mut all = self.labels.clone();
        let own = [
            (labels::ARCH, &self.arch),
            (labels::BETA_ARCH, &self.arch),
            (labels::OS, &self.os),
            (labels::BETA_OS, &self.os),
            (labels::HOSTNAME, &self.name),
            (labels::INSTANCE_TYPE, &self.instance_type),
            (labels::BETA_INSTANCE_TYPE, &self.instance_type),
            (labels::ZONE, &self.zone),
            (labels::BETA_ZONE, &self.zone),
            (labels::REGION, &self.region),
            (labels::BETA_REGION, &self.region),
        ];
        // Last, because a label of the node group must not hide what the instance really is.
        all.extend(own.map(|(key, value)| (key.to_owned(), value.clone())));
        if let Some(build) = self.windows_build {
            all.insert(labels::WINDOWS_BUILD.to_owned(), build.to_string());
        }
        all
    }

    /// Returns the Node as its kubelet creates it.
    pub fn node(&self, readiness: Readiness, images: Vec<ContainerImage>, now: Timestamp) -> Node {
        let annotations = [
            ("node.alpha.kubernetes.io/ttl", "0".to_owned()),
            (
                "volumes.kubernetes.io/controller-managed-attach-detach",
                "true".to_owned(),
            ),
            (
                "alpha.kubernetes.io/provided-node-ip",
                self.internal_ip.to_string(),
            ),
        ];
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(self.all_labels()),
                annotations: Some(
                    annotations
                        .map(|(key, value)| (key.to_owned(), value))
                        .into(),
                ),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                provider_id: Some(self.provider_id.clone()),
                taints: (!self.taints.is_empty()).then(|| self.taints.clone()),
                ..NodeSpec::default()
            }),
            status: Some(self.status(readiness, images, None, now)),
        }
    }

    /// Returns the status of the node; transition times are taken from `before` where a condition has not changed.
    pub fn status(
        &self,
        readiness: Readiness,
        images: Vec<ContainerImage>,
        before: Option<&[NodeCondition]>,
        now: Timestamp,
    ) -> NodeStatus {
        NodeStatus {
            addresses: Some(self.addresses()),
            capacity: Some(quantities(&self.capacity)),
            allocatable: Some(quantities(&self.allocatable)),
            conditions: Some(self.conditions(readiness, before, now)),
            daemon_endpoints: Some(NodeDaemonEndpoints {
                kubelet_endpoint: Some(DaemonEndpoint { port: 10250 }),
            }),
            images: Some(images),
            runtime_handlers: self.runtime_handlers(),
            features: Some(NodeFeatures {
                supplemental_groups_policy: Some(!self.is_windows()),
            }),
            declared_features: Some(FEATURES.map(str::to_owned).into()),
            node_info: Some(self.system_info()),
            ..NodeStatus::default()
        }
    }

    /// Returns the conditions in the kubelet's order; transition times are taken from `before` where a condition has
    /// not changed.
    pub fn conditions(
        &self,
        readiness: Readiness,
        before: Option<&[NodeCondition]>,
        now: Timestamp,
    ) -> Vec<NodeCondition> {
        let ready = match readiness {
            Readiness::Ready => ("True", "KubeletReady", "kubelet is posting ready status"),
            Readiness::NetworkNotReady => (
                "False",
                "KubeletNotReady",
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                 message:Network plugin returns error: cni plugin not initialized",
            ),
        };
        let conditions = [
            (
                "MemoryPressure",
                (
                    "False",
                    "KubeletHasSufficientMemory",
                    "kubelet has sufficient memory available",
                ),
            ),
            (
                "DiskPressure",
                (
                    "False",
                    "KubeletHasNoDiskPressure",
                    "kubelet has no disk pressure",
                ),
            ),
            (
                "PIDPressure",
                (
                    "False",
                    "KubeletHasSufficientPID",
                    "kubelet has sufficient PID available",
                ),
            ),
            ("Ready", ready),
        ];
        let stamp = |(name, (status, reason, message)): (&str, (&str, &str, &str))| {
            let old = before
                .into_iter()
                .flatten()
                // Only a change of the status is a transition; a new reason or message keeps the time
                // (kubelet: `ReadyCondition`).
                .find(|condition| condition.type_ == name && condition.status == status);
            NodeCondition {
                type_: name.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                last_heartbeat_time: Some(Time(now)),
                last_transition_time: Some(
                    old.and_then(|c| c.last_transition_time.clone())
                        .unwrap_or(Time(now)),
                ),
            }
        };
        conditions.into_iter().map(stamp).collect()
    }

    /// Sets the condition MemoryPressure to True; its transition time is taken from `before` if it was True already.
    pub fn press_memory(status: &mut NodeStatus, before: Option<&[NodeCondition]>, now: Timestamp) {
        let is_it = |condition: &&NodeCondition| condition.type_ == "MemoryPressure";
        let before = before.into_iter().flatten().find(is_it);
        // The new conditions say False at first, so their own transition time would restart with every
        // status.
        let since = before.filter(|condition| condition.status == "True");
        let since = since.and_then(|condition| condition.last_transition_time.clone());
        let conditions = status.conditions.iter_mut().flatten();
        for condition in conditions.filter(|condition| is_it(&&**condition)) {
            condition.status = "True".to_owned();
            condition.reason = Some("KubeletHasInsufficientMemory".to_owned());
            condition.message = Some("kubelet has insufficient memory available".to_owned());
            condition.last_transition_time = Some(since.clone().unwrap_or(Time(now)));
        }
    }

    /// Returns the node's Lease with the present renew time.
    pub fn lease(&self, node_uid: &str, now: Timestamp) -> Lease {
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.name.clone(),
            uid: node_uid.to_owned(),
            ..OwnerReference::default()
        };
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(LEASE_NAMESPACE.to_owned()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.name.clone()),
                lease_duration_seconds: Some(LEASE_DURATION_S),
                renew_time: Some(MicroTime(now)),
                ..LeaseSpec::default()
            }),
        }
    }

    fn addresses(&self) -> Vec<NodeAddress> {
        let address = |kind: &str, address: String| NodeAddress {
            type_: kind.to_owned(),
            address,
        };
        let external = self
            .external_ip
            .map(|ip| address("ExternalIP", ip.to_string()));
        let mut addresses = vec![address("InternalIP", self.internal_ip.to_string())];
        addresses.extend(external);
        addresses.extend([
            address("InternalDNS", self.name.clone()),
            address("Hostname", self.name.clone()),
        ]);
        addresses
    }

    /// Returns the features of the container runtime on Linux: those of `runc`, which also is the default handler.
    fn runtime_handlers(&self) -> Option<Vec<NodeRuntimeHandler>> {
        let handler = |name: &str| NodeRuntimeHandler {
            name: Some(name.to_owned()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(true),
                user_namespaces: Some(true),
            }),
        };
        (!self.is_windows()).then(|| vec![handler(""), handler("runc")])
    }

    /// The boot count of a new Windows instance: the AMI boots several times while it is prepared.
    const WINDOWS_BOOTS: &'static str = "4";

    fn system_info(&self) -> NodeSystemInfo {
        // Derived from the instance, so that a restart of Mullion does not look like a reboot or another
        // machine.
        let id = ids::hex64(&[&self.provider_id]);
        let uuid = format!(
            "ec2{}-{}-{}-{}-{}",
            &id[3..8],
            &id[8..12],
            &id[12..16],
            &id[16..20],
            &id[20..32]
        );
        // Windows reports the computer name, which EC2 generates.
        let machine_id = if self.is_windows() {
            format!("EC2AMAZ-{}", id[..7].to_ascii_uppercase())
        } else {
            format!("ec2{}", &id[3..32])
        };
        // Windows reports its boot count and an upper-case UUID; Linux has a random boot id.
        let (boot_id, system_uuid) = if self.is_windows() {
            (Self::WINDOWS_BOOTS.to_owned(), uuid.to_ascii_uppercase())
        } else {
            let parts = [
                &id[32..40],
                &id[40..44],
                &id[44..48],
                &id[48..52],
                &id[52..64],
            ];
            (parts.join("-"), uuid)
        };
        NodeSystemInfo {
            architecture: self.arch.clone(),
            boot_id,
            container_runtime_version: self.container_runtime.clone(),
            kernel_version: self.kernel_version.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: self.kubelet_version.clone(),
            machine_id,
            operating_system: self.os.clone(),
            os_image: self.os_image.clone(),
            system_uuid,
            ..NodeSystemInfo::default()
        }
    }
}

fn quantities(amounts: &BTreeMap<String, String>) -> BTreeMap<String, Quantity> {
    amounts
        .iter()
        .map(|(name, amount)| (name.clone(), Quantity(amount.clone())))
        .collect()
}
