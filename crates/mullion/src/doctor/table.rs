//! Lists the checks: one table of IDs, titles, explanations and required inputs. IDs are stable and are never reused.
//!
//! `docs/doctor.md` and `mullion doctor --explain` are generated from it.

use super::{
    findings::Findings,
    rows,
    snapshot::{Snapshot, Unknown},
};

/// How a problem can be fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FixKind {
    /// `--fix` makes the change.
    Made,
    /// The command is only shown, because it costs money or the user has a choice.
    Shown,
}

impl FixKind {
    /// Returns what the documentation says about a check's fix.
    pub(super) fn description(self) -> &'static str {
        match self {
            FixKind::Made => "made by `--fix`",
            FixKind::Shown => "shown",
        }
    }
}

/// An entry of the table: a check with its texts and its function.
pub(super) struct Check {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) explanation: &'static str,
    /// The lists and AWS calls that the check needs.
    pub(super) asks: &'static str,
    pub(super) fix: FixKind,
    pub(super) source: &'static str,
    pub(super) run: fn(&Snapshot) -> Result<Findings, Unknown>,
}

/// Checks about one topic.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) checks: &'static [Check],
}

/// Returns the check with this ID, ignoring case.
pub(super) fn check(id: &str) -> Option<&'static Check> {
    all().find(|check| check.id.eq_ignore_ascii_case(id))
}

/// Returns the network checks, or all others, in the order of their IDs.
pub(super) fn of(network: bool) -> impl Iterator<Item = &'static Check> {
    all().filter(move |check| check.id.starts_with("NET") == network)
}

/// Returns all checks in the order of their IDs.
pub(super) fn all() -> impl Iterator<Item = &'static Check> {
    let mut checks: Vec<_> = GROUPS.iter().flat_map(|group| group.checks).collect();
    checks.sort_by_key(|check| check.id);
    checks.into_iter()
}

use FixKind::{Made, Shown};

/// EKS's documentation about Windows.
const EKS: &str = "https://docs.aws.amazon.com/eks/latest/userguide/windows-support.html";
/// The controller that gives Windows pods their addresses: EKS's VPC resource controller.
const VRC: &str = "https://github.com/aws/amazon-vpc-resource-controller-k8s";

/// Kubernetes' guide for Windows containers, whose network checklist the NET checks follow.
const GUIDE: &str = "https://kubernetes.io/docs/concepts/windows/user-guide/";

/// All checks, grouped by topic.
pub(super) static GROUPS: [Group; 5] = [
    Group {
        title: "Addresses",
        checks: &[
            Check {
                id: "DOC01",
                title: "Windows IP management is on",
                explanation: "Windows pods get addresses only while the ConfigMap kube-system/amazon-vpc-cni says enable-windows-ipam: \"true\". It is read as Go reads booleans; \"yes\" counts as false.",
                asks: "configmaps of kube-system",
                fix: Made,
                source: EKS,
                run: rows::switches::ip_management,
            },
            Check {
                id: "DOC02",
                title: "no legacy Windows support is left",
                explanation: "The Deployment vpc-resource-controller of the time before 2021 switches EKS's own controller off, and the webhook beside it changes pods that the new one changes too.",
                asks: "deployments of kube-system, services, mutatingwebhookconfigurations, certificatesigningrequests, the secret vpc-admission-webhook-certs",
                fix: Made,
                source: EKS,
                run: rows::switches::legacy,
            },
            Check {
                id: "DOC03",
                title: "a Windows pod gets its request for an address",
                explanation: "EKS's webhook gives the first container of a Windows pod a request for an address. Its failure policy is Ignore: when it is down, pods are created without the request and get no address. A dry run tells.",
                asks: "a dry run of a pod in the namespace default",
                fix: Shown,
                source: VRC,
                run: rows::pods::webhooks,
            },
            Check {
                id: "DOC04",
                title: "Windows nodes advertise their addresses",
                explanation: "The controller writes how many pods can have an address into a node's capacity, and the kubelet copies it to what can be scheduled. A type that the controller does not know gets none.",
                asks: "nodes, configmaps of kube-system",
                fix: Shown,
                source: VRC,
                run: rows::nodes::capacity,
            },
            Check {
                id: "DOC05",
                title: "every Windows pod has an address or waits for a good reason",
                explanation: "A Windows pod without the request gets no address and stays in ContainerCreating; so does one whose node or subnet has none left. A pod without the request that its controller replaces is deleted by `--fix`, once new pods get it.",
                asks: "pods, nodes, events",
                fix: Made,
                source: VRC,
                run: rows::without_address::check,
            },
            Check {
                id: "DOC06",
                title: "addresses of pods, annotations and interfaces agree",
                explanation: "The annotation says which address a pod was given, the status which it runs with, and EC2 which the interface has. They are one and the same, and no two pods have it. A pod that its controller replaces is deleted by `--fix`.",
                asks: "pods, nodes, cninodes, ec2:DescribeInstances, iam:GetInstanceProfile",
                fix: Made,
                source: VRC,
                run: rows::pods::agreement,
            },
            Check {
                id: "DOC14",
                title: "subnets of Windows nodes have room",
                explanation: "A node takes addresses, or /28 blocks with prefix delegation, from its subnet: for pods, and to keep some warm. A fragmented subnet has addresses and no block.",
                asks: "configmaps of kube-system, ec2:DescribeInstances, ec2:DescribeSubnets",
                fix: Shown,
                source: "https://aws.github.io/aws-eks-best-practices/windows/docs/networking/",
                run: rows::network::subnets,
            },
            Check {
                id: "DOC15",
                title: "prefix delegation holds on every node",
                explanation: "A node keeps the kind of addresses that its pods have, so that nodes from before a change of the mode have room for fewer pods than they say. Types that are not built on Nitro have no prefixes.",
                asks: "nodes, pods, configmaps of kube-system",
                fix: Shown,
                source: "https://aws.github.io/aws-eks-best-practices/windows/docs/networking/",
                run: rows::network::prefixes,
            },
            Check {
                id: "DOC23",
                title: "what the address controller knows",
                explanation: "The controller of EKS runs in the control plane and shows nothing. This row says its mode and targets, and for each node what is used, warm and cooling: from the node's CNINode where Mullion keeps one, else from annotations.",
                asks: "nodes, pods, cninodes, configmaps of kube-system",
                fix: Shown,
                source: VRC,
                run: rows::pods::what_the_controller_knows,
            },
        ],
    },
    Group {
        title: "The cluster",
        checks: &[
            Check {
                id: "DOC07",
                title: "Linux nodes run CoreDNS",
                explanation: "CoreDNS and the cluster's other parts run on Linux only: at least one Linux node or Fargate pod is needed, better two, with two CoreDNS pods that are not on one node.",
                asks: "nodes, pods, deployments of kube-system",
                fix: Made,
                source: EKS,
                run: rows::system::linux_and_names,
            },
            Check {
                id: "DOC08",
                title: "Kubernetes and its platform can run Windows",
                explanation: "From Kubernetes 1.24 on the address controller runs in the control plane, up to 1.31 from a certain platform version on.",
                asks: "GET /version, eks:DescribeCluster",
                fix: Shown,
                source: EKS,
                run: rows::access::versions,
            },
            Check {
                id: "DOC09",
                title: "the cluster's role may give addresses",
                explanation: "With the policy AmazonEKSVPCResourceController the control plane may give nodes network interfaces and addresses. Security groups for Linux pods need it too.",
                asks: "eks:DescribeCluster, iam:ListAttachedRolePolicies",
                fix: Made,
                source: EKS,
                run: rows::access::cluster_policies,
            },
            Check {
                id: "DOC10",
                title: "Windows nodes are known as such",
                explanation: "The role of Windows nodes is in the group eks:kube-proxy-windows, by the ConfigMap aws-auth or by an access entry of type EC2_WINDOWS. Without it kube-proxy crashes while the node stays Ready, and no Service and no name is reached from it. An entry wins over aws-auth and is for one system, so that with entries Windows nodes need a role of their own.",
                asks: "configmaps of kube-system, ec2nodeclasses, eks:DescribeCluster, eks:ListAccessEntries, eks:DescribeAccessEntry, ec2:DescribeInstances, iam:GetInstanceProfile",
                fix: Made,
                source: EKS,
                run: rows::access::node_roles,
            },
            Check {
                id: "DOC11",
                title: "kube-proxy of Windows nodes may read Services",
                explanation: "The group eks:kube-proxy-windows, in which Windows nodes are, is bound to the role system:node-proxier. Without the binding kube-proxy crashes, and the node is Ready all the same.",
                asks: "clusterrolebindings",
                fix: Made,
                source: EKS,
                run: rows::system::proxy_binding,
            },
            Check {
                id: "DOC12",
                title: "the cluster has IPv4 addresses",
                explanation: "Windows nodes of EKS have no IPv6.",
                asks: "services, or eks:DescribeCluster",
                fix: Shown,
                source: EKS,
                run: rows::network::ip_family,
            },
            Check {
                id: "DOC13",
                title: "nothing that Windows cannot have is meant for it",
                explanation: "Windows has no custom networking, no security groups for pods, no Fargate, no Auto Mode and no Hybrid Nodes.",
                asks: "pods, nodes, nodepools, securitygrouppolicies, daemonsets of kube-system, eks:DescribeFargateProfile",
                fix: Shown,
                source: EKS,
                run: rows::network::unsupported,
            },
        ],
    },
    Group {
        title: "Nodes",
        checks: &[
            Check {
                id: "DOC16",
                title: "Windows nodes are labelled, tainted alike and up to date",
                explanation: "Pods choose builds by label, and taints that only some Windows nodes have keep pods off those alone. A kubelet is at most three versions behind the cluster. EKS's Windows AMIs are public for four months.",
                asks: "nodes, GET /version, eks:DescribeCluster, ec2:DescribeInstances, ssm:GetParameter, ec2:DescribeImages",
                fix: Made,
                source: "https://docs.aws.amazon.com/eks/latest/userguide/eks-optimized-windows-ami.html",
                run: rows::nodes::makes,
            },
            Check {
                id: "DOC17",
                title: "kubelet and kube-proxy of Windows nodes are healthy",
                explanation: "A node is Ready while its kubelet answers, whether kube-proxy runs or not. kube-proxy crashes when the node is not known as a Windows node (DOC10, DOC11); other crashes show only when no Service is reached (`--network`). Both write into the event log EKS of the node, which keeps 200 MB.",
                asks: "nodes, what DOC10 and DOC11 ask",
                fix: Shown,
                source: EKS,
                run: rows::nodes::health,
            },
            Check {
                id: "DOC18",
                title: "Windows nodes keep 2 GiB for themselves",
                explanation: "Windows kills no process when memory runs out: it pages, and everything on the node is slow. Windows and its services need about 2 GiB, and a page file. EKS's defaults keep less.",
                asks: "nodes",
                fix: Shown,
                source: "https://aws.github.io/aws-eks-best-practices/windows/docs/oom/",
                run: rows::nodes::reserves,
            },
            Check {
                id: "DOC24",
                title: "NodePools and EC2NodeClasses are ready",
                explanation: "A NodePool that is not ready buys no nodes, and neither do the pools of an EC2NodeClass that is not: its subnets, security groups, images or instance profile are not found, or the controller lacks a right. Pods wait, and the nodes that are there go on. It is a failure where a pool for Windows has the condition Ready with status False, else a warning. In a simulated account, whose instance types are those of the catalogue, a pool that names only types that are not there is named as well.",
                asks: "nodepools, ec2nodeclasses",
                fix: Shown,
                source: "https://karpenter.sh/docs/concepts/nodeclasses/#status-conditions",
                run: rows::pools::ready,
            },
        ],
    },
    Group {
        title: "Workloads",
        checks: &[
            Check {
                id: "DOC19",
                title: "Services stay within what Windows serves",
                explanation: "A load balancer serves 1024 Windows pods at most, 64 where nodes are older than build 17763.2746. Beyond about 100 Services kube-proxy needs direct server return.",
                asks: "nodes, services, endpointslices",
                fix: Shown,
                source: EKS,
                run: rows::workloads::services,
            },
            Check {
                id: "DOC20",
                title: "workloads pass `mullion check`",
                explanation: "All rules of `mullion check` over the cluster's objects, but for those that other rows are about. Images are judged by their names; `mullion check --live` asks registries.",
                asks: "what `mullion check --live` lists",
                fix: Shown,
                source: "https://kubernetes.io/docs/concepts/windows/user-guide/",
                run: rows::workloads::manifests,
            },
            Check {
                id: "DOC21",
                title: "group managed service accounts can be used",
                explanation: "A pod that names a GMSACredentialSpec is refused unless its service account may `use` it. The webhook fails closed: when it must answer for kube-system, a cluster whose nodes were all gone does not come back.",
                asks: "gmsacredentialspecs, webhook configurations, namespaces, roles and bindings",
                fix: Made,
                source: "https://github.com/kubernetes-sigs/windows-gmsa/issues/113",
                run: rows::workloads::gmsa,
            },
            Check {
                id: "DOC22",
                title: "volumes of Windows pods have their driver",
                explanation: "A volume is mounted by the driver on the pod's node, which on Windows runs as a HostProcess pod or over csi-proxy. EFS has none.",
                asks: "pods, nodes, persistentvolumeclaims, persistentvolumes, csinodes",
                fix: Shown,
                source: EKS,
                run: rows::workloads::volumes,
            },
        ],
    },
    Group {
        title: "The network",
        checks: &[
            Check {
                id: "NET01",
                title: "Linux nodes reach pods",
                explanation: "The kubelet, load balancers and whoever is on a node reach pods by their addresses, on other nodes too, whatever system the pods run on.",
                asks: "nodes, probe pods",
                fix: Shown,
                source: GUIDE,
                run: rows::reach::from_linux_nodes,
            },
            Check {
                id: "NET02",
                title: "Windows nodes reach pods",
                explanation: "The same from a Windows node, asked from a HostProcess pod.",
                asks: "nodes, probe pods",
                fix: Shown,
                source: GUIDE,
                run: rows::reach::from_windows_nodes,
            },
            Check {
                id: "NET03",
                title: "pods reach pods",
                explanation: "Pods of both systems reach each other on one node and on different ones. A NetworkPolicy that shuts a whole namespace is named.",
                asks: "networkpolicies, daemonsets of kube-system, probe pods",
                fix: Shown,
                source: GUIDE,
                run: rows::reach::between_pods,
            },
            Check {
                id: "NET04",
                title: "Services are reached by their addresses",
                explanation: "kube-proxy on each node leads the address of a Service to its pods. Windows nodes themselves, and HostProcess pods, reach no Service, which is a limit of Windows.",
                asks: "services, endpointslices, daemonsets of kube-system, what DOC10 and DOC11 ask, probe pods",
                fix: Shown,
                source: GUIDE,
                run: rows::reach::services,
            },
            Check {
                id: "NET05",
                title: "Services are reached by their names",
                explanation: "CoreDNS answers the short name of a Service in the same namespace, and the full one from everywhere. Windows does not always try the search list for short names: a failure there is a warning.",
                asks: "services, endpointslices, probe pods",
                fix: Shown,
                source: GUIDE,
                run: rows::reach::names,
            },
            Check {
                id: "NET06",
                title: "NodePorts are reached",
                explanation: "The port of a Service is open on every node; it is tried from a Linux node at a node of each system.",
                asks: "nodes, probe pods",
                fix: Shown,
                source: GUIDE,
                run: rows::reach::node_ports,
            },
            Check {
                id: "NET07",
                title: "pods reach the outside",
                explanation: "Tried are an address (1.1.1.1) and a name (registry.k8s.io) of the internet, over HTTPS. A cluster that is meant to have no way out fails here rightly.",
                asks: "networkpolicies, probe pods",
                fix: Shown,
                source: GUIDE,
                run: rows::reach::outside,
            },
        ],
    },
];
