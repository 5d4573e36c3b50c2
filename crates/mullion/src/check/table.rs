//! Lists the rules: one table of IDs, severities, titles, explanations and sources. IDs are stable and are never reused.
//!
//! `docs/check.md` and `mullion check --explain` are generated from it.

use std::fmt;

/// How severe a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// It is good to know, but not a problem.
    Info,
    /// It will cause trouble.
    Warn,
    /// The object will not run, or will run in the wrong place.
    Error,
}

impl Severity {
    pub(super) fn label(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warn => "warn",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// How a finding can be fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FixKind {
    /// `--fix` writes it: where the object worked before, the result means the same.
    Safe,
    /// `--fix --unsafe` writes it.
    Unsafe,
    /// The fix is only described in words.
    Words,
}

impl FixKind {
    /// Returns what the documentation says about a rule's fix.
    pub(super) fn description(self) -> &'static str {
        match self {
            FixKind::Safe => "written by `--fix` where it is certain",
            FixKind::Unsafe => "written by `--fix --unsafe` only",
            FixKind::Words => "said in words",
        }
    }
}

/// An entry of the table: a rule with its texts.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    /// The severity of the rule's findings, unless a finding sets another one.
    pub(super) severity: Severity,
    pub(super) title: &'static str,
    pub(super) explanation: &'static str,
    pub(super) source: &'static str,
    pub(super) fix: FixKind,
}

/// Rules about one topic.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) rules: &'static [Rule],
}

/// Returns the rule with this ID, ignoring case.
pub(super) fn rule(id: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.id.eq_ignore_ascii_case(id))
}

/// Returns all rules in the order of their IDs.
pub(super) fn all() -> impl Iterator<Item = &'static Rule> {
    GROUPS.iter().flat_map(|group| group.rules)
}

const fn rule_of(
    id: &'static str,
    severity: Severity,
    fix: FixKind,
    title: &'static str,
    explanation: &'static str,
    source: &'static str,
) -> Rule {
    Rule {
        id,
        severity,
        title,
        explanation,
        source,
        fix,
    }
}

use FixKind::{Safe, Unsafe, Words};
use Severity::{Error, Info, Warn};

/// All rules, grouped by topic.
pub(super) static GROUPS: [Group; 8] = [
    Group {
        title: "Placement",
        rules: &[
            rule_of(
                "MUL001",
                Error,
                Safe,
                "a Windows image that may land on Linux",
                "Nothing tells the scheduler that the pod needs Windows: no operating system in the node selector, in required node affinity or in the RuntimeClass. On a Linux node the image pull fails. `nodeName` and `spec.os` are not enough: the scheduler reads neither.",
                "https://kubernetes.io/docs/concepts/windows/user-guide/",
            ),
            rule_of(
                "MUL002",
                Warn,
                Safe,
                "a pod without an operating system beside untainted Windows nodes",
                "The cluster has Windows nodes whose taints the pod tolerates, and nothing keeps the pod off them. It is a warning for a Linux image and a remark for an image that is not known.",
                "https://kubernetes.io/docs/concepts/windows/user-guide/",
            ),
            rule_of(
                "MUL003",
                Error,
                Words,
                "an image that contradicts the chosen system or architecture",
                "All containers of a pod run on one node. An image for Linux does not run on a Windows node, nor the other way round, and EKS has Windows for x86-64 alone.",
                "https://kubernetes.io/docs/concepts/windows/user-guide/",
            ),
            rule_of(
                "MUL004",
                Error,
                Safe,
                "a DaemonSet for one system that is sent to every node",
                "A DaemonSet without an operating system runs on every node whose taints it tolerates; its image is for one system, so its pods fail on the nodes of the other.",
                "https://github.com/aws-samples/amazon-cloudwatch-container-insights/issues/14",
            ),
            rule_of(
                "MUL005",
                Error,
                Safe,
                "a toleration of everything without an operating system",
                "A toleration with `operator: Exists` and no key tolerates the taint of Windows nodes too, so a Linux pod may land there.",
                "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/",
            ),
            rule_of(
                "MUL006",
                Error,
                Safe,
                "a Windows pod that tolerates no taint of the Windows nodes",
                "Every Windows node or pool carries a taint that the pod does not tolerate: it stays Pending. Taints that say how a node is at the moment (unreachable, cordoned, about to go) do not count. When no nodes are known, the usual taint `os=windows:NoSchedule` is looked for, and it is a warning.",
                "https://kubernetes.io/docs/concepts/windows/user-guide/",
            ),
            rule_of(
                "MUL007",
                Warn,
                Safe,
                "a deprecated beta label",
                "`beta.kubernetes.io/os` and `beta.kubernetes.io/arch` were replaced by `kubernetes.io/os` and `kubernetes.io/arch` in Kubernetes 1.14.",
                "https://kubernetes.io/docs/reference/labels-annotations-taints/",
            ),
            rule_of(
                "MUL008",
                Warn,
                Safe,
                "spec.os.name that is missing, or that is alone",
                "With `spec.os.name: windows` the API server refuses fields that Windows does not have, and the kubelet refuses a node of the other system. It does not choose the node: the scheduler ignores it.",
                "https://kubernetes.io/docs/concepts/workloads/pods/#pod-os",
            ),
            rule_of(
                "MUL009",
                Error,
                Words,
                "spec.os.name against the chosen system",
                "The kubelet refuses a pod whose `spec.os.name` is not the system of its node (PodOSSelectorNodeLabelDoesNotMatch).",
                "https://kubernetes.io/docs/concepts/workloads/pods/#pod-os",
            ),
            rule_of(
                "MUL010",
                Warn,
                Safe,
                "Windows that EKS's address webhook does not see",
                "The webhook that asks for a Windows pod's address reads the node selector alone (its RuntimeClass's too). A pod that chooses Windows by affinity or by build gets no address and stays in ContainerCreating.",
                "https://github.com/aws/amazon-vpc-resource-controller-k8s",
            ),
            rule_of(
                "MUL011",
                Info,
                Unsafe,
                "a preference where a requirement is meant",
                "Preferred node affinity for an operating system only orders nodes: when none of the preferred ones is free, the pod lands on the other system.",
                "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/",
            ),
            rule_of(
                "MUL012",
                Warn,
                Unsafe,
                "a topology spread that counts nodes the pod cannot use",
                "Without `nodeTaintsPolicy: Honor`, nodes with taints that the pod does not tolerate count as empty domains, and the pod may wait for them for ever.",
                "https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/",
            ),
            rule_of(
                "MUL013",
                Error,
                Safe,
                "an operating system or architecture that no kubelet writes",
                "Values of labels are case-sensitive: the kubelet writes `linux` or `windows` into kubernetes.io/os and Go's name of the architecture, such as `amd64` or `arm64`, into kubernetes.io/arch. `Windows` or `x86_64` in a node selector, node affinity, a RuntimeClass or the requirements of a NodePool fits no node. A value that is not another name of one of these is a warning, as kubelets that others build may write their own (`wasm32-wasi`).",
                "https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-os",
            ),
        ],
    },
    Group {
        title: "Builds and images",
        rules: &[
            rule_of(
                "MUL020",
                Error,
                Safe,
                "an image that does not run on the selected Windows build",
                "Windows containers share their host's kernel: hosts before Windows Server 2022 run images of their own build only, later ones also images of the release before.",
                "https://learn.microsoft.com/virtualization/windowscontainers/deploy-containers/version-compatibility",
            ),
            rule_of(
                "MUL021",
                Error,
                Safe,
                "Windows without a build where nodes of several builds are",
                "The image runs on some of the cluster's Windows builds only, and nothing keeps the pod off the others.",
                "https://aws.github.io/aws-eks-best-practices/windows/docs/heterogeneous/",
            ),
            rule_of(
                "MUL022",
                Error,
                Safe,
                "a Windows build in the wrong form",
                "The label node.kubernetes.io/windows-build has three numbers, such as 10.0.20348: no revision, no name, no year.",
                "https://kubernetes.io/docs/reference/labels-annotations-taints/#nodekubernetesiowindows-build",
            ),
            rule_of(
                "MUL023",
                Warn,
                Words,
                "an image of a build that nobody supports or EKS has no nodes for",
                "Microsoft has ended the support of the semi-annual releases and of Windows Server 2016; EKS has nodes of 2019, 2022 and, from Kubernetes 1.35 on, 2025.",
                "https://docs.aws.amazon.com/eks/latest/userguide/eks-optimized-windows-ami.html",
            ),
            rule_of(
                "MUL024",
                Warn,
                Words,
                "a Windows image without a tag of its own",
                "A Windows image is made for a build, and `latest` says none. Microsoft's base images have no tag `latest` at all: their pull fails.",
                "https://learn.microsoft.com/virtualization/windowscontainers/deploy-containers/version-compatibility",
            ),
            rule_of(
                "MUL025",
                Info,
                Words,
                "a very large Windows image",
                "The image is far larger than what the AMI keeps on disk: every new node pulls and unpacks it for minutes. Server Core or Nano Server are smaller.",
                "https://aws.github.io/aws-eks-best-practices/windows/docs/ami/",
            ),
            rule_of(
                "MUL026",
                Warn,
                Unsafe,
                "imagePullPolicy Always on a large Windows image",
                "The registry is asked at every start of the container, and a changed tag is pulled anew: minutes for an image of this size.",
                "https://aws.github.io/aws-eks-best-practices/windows/docs/ami/",
            ),
            rule_of(
                "MUL027",
                Info,
                Words,
                "a Windows entry of an image without os.version",
                "containerd takes such an entry for a match on every host: the pull works everywhere, and the start fails on a host of another build.",
                "https://github.com/containerd/containerd/pull/8101",
            ),
        ],
    },
    Group {
        title: "RuntimeClass",
        rules: &[
            rule_of(
                "MUL030",
                Error,
                Safe,
                "a RuntimeClass version that is gone",
                "node.k8s.io/v1beta1 was removed in Kubernetes 1.25, v1alpha1 before it.",
                "https://kubernetes.io/docs/reference/using-api/deprecation-guide/#runtimeclass-v125",
            ),
            rule_of(
                "MUL031",
                Warn,
                Words,
                "the handler docker",
                "dockershim was removed in Kubernetes 1.24; containerd's handler for Windows is runhcs-wcow-process.",
                "https://kubernetes.io/docs/concepts/containers/runtime-class/",
            ),
            rule_of(
                "MUL032",
                Error,
                Words,
                "a RuntimeClass that does not exist or that contradicts the pod",
                "A pod with a RuntimeClass that does not exist is refused, as is one whose node selector gives a label another value than the class does.",
                "https://kubernetes.io/docs/concepts/containers/runtime-class/#scheduling",
            ),
            rule_of(
                "MUL033",
                Info,
                Safe,
                "a RuntimeClass for Windows that does not say where",
                "With operating system, architecture and build in `scheduling.nodeSelector`, pods need to name the class only.",
                "https://kubernetes.io/docs/concepts/windows/user-guide/",
            ),
        ],
    },
    Group {
        title: "Pod specification",
        rules: &[
            rule_of(
                "MUL040",
                Error,
                Safe,
                "fields that Windows does not have",
                "The API server refuses these fields together with `spec.os.name: windows`; without it the kubelet ignores them. They are removed only where they are ignored today.",
                "https://kubernetes.io/docs/concepts/windows/intro/#compatibility-v1-pod-spec-containers-securitycontext",
            ),
            rule_of(
                "MUL041",
                Error,
                Safe,
                "windowsOptions on a Linux pod",
                "The API server refuses them together with `spec.os.name: linux`, and Linux ignores them.",
                "https://kubernetes.io/docs/concepts/windows/intro/",
            ),
            rule_of(
                "MUL042",
                Error,
                Words,
                "hostNetwork on a Windows pod",
                "Windows has host networking for HostProcess pods only.",
                "https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/",
            ),
            rule_of(
                "MUL043",
                Error,
                Safe,
                "a HostProcess pod that is refused",
                "A HostProcess pod needs `hostNetwork: true`, all of its containers must be HostProcess containers, and its namespace must allow privileged pods.",
                "https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/",
            ),
            rule_of(
                "MUL044",
                Error,
                Words,
                "a user that Windows refuses",
                "runAsUserName is USER or DOMAIN\\USER in the forms of Windows; ContainerAdministrator counts as root under runAsNonRoot; NT AUTHORITY accounts other than those of containers are for HostProcess containers.",
                "https://kubernetes.io/docs/tasks/configure-pod-container/configure-runasusername/",
            ),
            rule_of(
                "MUL045",
                Error,
                Words,
                "a volume or a mount that Windows does not have",
                "Windows has no memory-backed volumes, no huge pages, no mount propagation, no block devices, no Unix sockets, and nothing can be mounted on the root.",
                "https://kubernetes.io/docs/concepts/storage/windows-storage/",
            ),
            rule_of(
                "MUL046",
                Warn,
                Words,
                "a shell of the other system",
                "The program is not in an image of this system: the container or its probe fails to start.",
                "https://kubernetes.io/docs/concepts/windows/user-guide/",
            ),
            rule_of(
                "MUL047",
                Warn,
                Words,
                "devices and debugging that Windows does not have",
                "Device plugins for NVIDIA, AMD or Neuron do not run on Windows, and an ephemeral container cannot share another container's processes there.",
                "https://kubernetes.io/docs/concepts/windows/intro/",
            ),
            rule_of(
                "MUL048",
                Error,
                Words,
                "a GMSA credential that is missing",
                "A pod whose GMSACredentialSpec does not exist or may not be used by its service account is refused by the GMSA webhook, as is one with contents but no name.",
                "https://kubernetes.io/docs/tasks/configure-pod-container/configure-gmsa/",
            ),
        ],
    },
    Group {
        title: "Resources and scale",
        rules: &[
            rule_of(
                "MUL050",
                Warn,
                Unsafe,
                "a Windows container without a memory limit",
                "Windows has no OOM killer: a container without a limit grows until the node pages to disk and everything on it is slow.",
                "https://aws.github.io/aws-eks-best-practices/windows/docs/oom/",
            ),
            rule_of(
                "MUL051",
                Warn,
                Words,
                "less than a Windows container starts with",
                "Nano Server needs about 30 MB and Server Core 45 MB to start; below a tenth of a core the start takes too long.",
                "https://aws.github.io/aws-eks-best-practices/windows/docs/oom/",
            ),
            rule_of(
                "MUL052",
                Info,
                Unsafe,
                "Windows nodes that keep less than 2 GiB for themselves",
                "Windows and its services need about 2 GiB. What is not reserved is given to pods, and the node pages. Types below 4 GiB have too little left.",
                "https://aws.github.io/aws-eks-best-practices/windows/docs/oom/",
            ),
            rule_of(
                "MUL053",
                Error,
                Words,
                "more pods than the nodes have addresses for",
                "A Windows node gives each pod an address of its one network interface; these groups have fewer addresses than the workload has pods.",
                "https://docs.aws.amazon.com/eks/latest/userguide/windows-support.html",
            ),
            rule_of(
                "MUL054",
                Error,
                Words,
                "a load balancer over too many Windows pods",
                "A Service of type LoadBalancer serves at most 1024 Windows pods (64 before build 10.0.17763.2746).",
                "https://docs.aws.amazon.com/eks/latest/userguide/windows-support.html",
            ),
            rule_of(
                "MUL055",
                Warn,
                Words,
                "more than 100 Services without DSR",
                "kube-proxy takes ports of the Windows host for every Service and runs out of them; direct server return (WinDSR) needs fewer.",
                "https://aws.github.io/aws-eks-best-practices/windows/docs/networking/",
            ),
            rule_of(
                "MUL056",
                Info,
                Unsafe,
                "a probe that gives a Windows container too little time",
                "Windows containers start slowly; a probe that kills within the first minute may never let one start.",
                "https://aws.github.io/aws-eks-best-practices/windows/docs/oom/",
            ),
            rule_of(
                "MUL057",
                Warn,
                Safe,
                "an address request or annotation in a manifest",
                "The controller writes the annotation and the webhook the request: a manifest with the annotation is refused, and a pod needs exactly one address.",
                "https://github.com/aws/amazon-vpc-resource-controller-k8s",
            ),
        ],
    },
    Group {
        title: "Logs, names, network",
        rules: &[
            rule_of(
                "MUL060",
                Warn,
                Words,
                "logs that nobody sees",
                "IIS and ASP.NET write to ETW, the event log and files; `kubectl logs` shows what LogMonitor.exe copies to the container's output.",
                "https://kubernetes.io/docs/concepts/windows/user-guide/#capturing-logs-from-workloads",
            ),
            rule_of(
                "MUL061",
                Warn,
                Words,
                "a LogMonitor configuration that LogMonitor refuses",
                "LogMonitor ends, or shows nothing, with a configuration that it cannot read.",
                "https://github.com/microsoft/windows-container-tools/tree/main/LogMonitor",
            ),
            rule_of(
                "MUL062",
                Warn,
                Words,
                "a short Service name in a Windows pod",
                "Windows does not apply the search list to names of one label everywhere; the full name works.",
                "https://github.com/aws/containers-roadmap/issues/606",
            ),
            rule_of(
                "MUL063",
                Error,
                Words,
                "a network feature that Windows nodes of EKS do not have",
                "No IPv6, no custom networking (ENIConfig), no security groups for pods and no Fargate.",
                "https://docs.aws.amazon.com/eks/latest/userguide/windows-support.html",
            ),
            rule_of(
                "MUL064",
                Info,
                Words,
                "a Service that Windows hosts cannot reach",
                "Pods on Windows reach Services, Windows hosts do not: whatever runs on the host itself or in its network cannot call this Service, nor a node port of it.",
                "https://kubernetes.io/docs/concepts/windows/user-guide/",
            ),
        ],
    },
    Group {
        title: "eksctl, Karpenter, ConfigMaps",
        rules: &[
            rule_of(
                "MUL070",
                Error,
                Words,
                "a cluster with Windows nodes only",
                "CoreDNS and the controllers of EKS run on Linux: at least one Linux node group is needed.",
                "https://docs.aws.amazon.com/eks/latest/userguide/windows-support.html",
            ),
            rule_of(
                "MUL071",
                Error,
                Safe,
                "a role of Windows nodes without eks:kube-proxy-windows",
                "Without this group kube-proxy of a Windows node is refused by the API server: the node is Ready, and no Service and no name can be reached from it.",
                "https://docs.aws.amazon.com/eks/latest/userguide/windows-support.html",
            ),
            rule_of(
                "MUL072",
                Warn,
                Unsafe,
                "untainted Windows nodes beside pods without an operating system",
                "Pods that say no operating system may land on these nodes and fail there.",
                "https://kubernetes.io/docs/concepts/windows/user-guide/",
            ),
            rule_of(
                "MUL073",
                Error,
                Safe,
                "a node group that eksctl refuses, or a type that cannot run its images",
                "Managed groups take taints as a list only; effects are NoSchedule, PreferNoSchedule and NoExecute; amiFamily is one of eksctl's, with Core or Full in the name for Windows, and those of Windows Server 2004 and 20H2 are gone; Windows runs on x86-64 types that the VPC resource controller knows; kubeletExtraConfig is not for Windows. It is a warning for what `mullion up` refuses beside that, such as sizes out of order or two groups of one name.",
                "https://eksctl.io/usage/windows-worker-nodes/",
            ),
            rule_of(
                "MUL074",
                Error,
                Words,
                "a Windows NodePool that buys nothing or the wrong nodes",
                "Windows runs on x86-64 types that the VPC resource controller knows, in no Auto Mode pool, and the image family decides the operating system.",
                "https://karpenter.sh/docs/concepts/nodeclasses/",
            ),
            rule_of(
                "MUL075",
                Warn,
                Safe,
                "a NodePool without an operating system beside Windows DaemonSets",
                "Karpenter adds the requests of the Windows DaemonSets to the Linux nodes it plans when the pool does not say its system.",
                "https://github.com/kubernetes-sigs/karpenter/issues/1009",
            ),
            rule_of(
                "MUL076",
                Error,
                Safe,
                "a ConfigMap amazon-vpc-cni that gives Windows pods no addresses",
                "enable-windows-ipam must be \"true\" for Windows pods to get addresses; the targets are whole numbers from 0 on; only a minimum starves the pods beyond it.",
                "https://github.com/aws/amazon-vpc-resource-controller-k8s/blob/master/docs/windows/prefix_delegation_config_options.md",
            ),
            rule_of(
                "MUL077",
                Warn,
                Words,
                "Karpenter's v1alpha5 and v1alpha1",
                "Provisioner became NodePool and AWSNodeTemplate became EC2NodeClass; Karpenter 1 does not read the old kinds. Mullion mirrors them.",
                "https://karpenter.sh/v0.32/upgrading/v1beta1-migration/",
            ),
            rule_of(
                "MUL078",
                Warn,
                Words,
                "an instance type that the catalogue does not have",
                "Karpenter buys only what EC2 has: a requirement of a NodePool whose types, families or sizes do not exist buys nothing and says nothing, and a node group with such a type does not come up. The catalogue is compiled in, so EC2 may have newer types.",
                "https://karpenter.sh/docs/concepts/nodepools/#instance-types",
            ),
        ],
    },
    Group {
        title: "Fields and kinds",
        rules: &[
            rule_of(
                "MUL080",
                Error,
                Words,
                "a field that its kind does not have, or a value of another type",
                "`kubectl apply` refuses the object; a client that does not ask for validation has the field dropped without a word. Kinds are those of Kubernetes 1.36, Karpenter and Mullion, those of CustomResourceDefinitions among the checked files, and eksctl's ClusterConfig, which eksctl refuses. Nothing is said of objects of a cluster.",
                "https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation",
            ),
            rule_of(
                "MUL081",
                Error,
                Words,
                "a kind that its API version does not have",
                "`kubectl apply` finds no such kind in this group and version of Kubernetes. Kinds of other groups that are not known are not checked, and a note names each.",
                "https://kubernetes.io/docs/reference/using-api/deprecation-guide/",
            ),
            rule_of(
                "MUL082",
                Error,
                Safe,
                "an object without a kind or an apiVersion",
                "`kubectl apply` refuses the object, as neither its fields nor the place where it is stored are known without them. Documents that have neither of the two are passed over unless they have `metadata.name` and `spec` or `data`, those that have one of them, or one in other letters (`Kind`, `apiversion`), unless they have `metadata` or `spec`: they are for other programs. An object without an apiVersion is a warning where Kubernetes has no such kind, and files of kustomize are passed over.",
                "https://kubernetes.io/docs/concepts/overview/working-with-objects/#required-fields",
            ),
            rule_of(
                "MUL083",
                Error,
                Words,
                "a value that the API server refuses, or a required field that lacks",
                "The validation of Kubernetes 1.36 and of the CustomResourceDefinitions of Karpenter, Mullion and the checked files, with their rules in CEL, refuses the object when it is created. Admission, quotas and other objects are not asked. Nothing is said of the patches of a kustomization, which are parts of objects, of values with `${` in them, which another program replaces, and where another rule says the same.",
                "https://kubernetes.io/docs/reference/using-api/api-concepts/",
            ),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_in_order() {
        let ids: Vec<_> = all().map(|rule| rule.id).collect();
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    }
}
