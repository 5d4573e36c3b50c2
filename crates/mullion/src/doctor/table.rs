//! The checks: one table of ids, titles, explanations and what they ask. Ids are stable and never used again.
//!
//! `docs/doctor.md` and `mullion doctor --explain` are made of it.

use super::{
    found::Found,
    rows,
    snapshot::{Snapshot, Unknown},
};

/// What can be done about a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FixKind {
    /// `--fix` makes the change.
    Made,
    /// The command is shown: it costs something, or there is a choice.
    Shown,
}

impl FixKind {
    /// Returns what is written of a check's fix.
    pub(super) fn words(self) -> &'static str {
        match self {
            FixKind::Made => "made by `--fix`",
            FixKind::Shown => "shown",
        }
    }
}

/// A check.
pub(super) struct Check {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) explanation: &'static str,
    /// The lists and calls that it needs.
    pub(super) asks: &'static str,
    pub(super) fix: FixKind,
    pub(super) source: &'static str,
    pub(super) run: fn(&Snapshot) -> Result<Found, Unknown>,
}

/// Checks about one topic.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) checks: &'static [Check],
}

/// Returns the check with an id, in any case of letters.
pub(super) fn check(id: &str) -> Option<&'static Check> {
    all().find(|check| check.id.eq_ignore_ascii_case(id))
}

/// Returns every check, in the order of the ids.
pub(super) fn all() -> impl Iterator<Item = &'static Check> {
    let mut checks: Vec<_> = GROUPS.iter().flat_map(|group| group.checks).collect();
    checks.sort_by_key(|check| check.id);
    checks.into_iter()
}

use FixKind::{Made, Shown};

/// EKS's page about Windows.
const EKS: &str = "https://docs.aws.amazon.com/eks/latest/userguide/windows-support.html";
/// The controller that gives Windows pods their addresses.
const VRC: &str = "https://github.com/aws/amazon-vpc-resource-controller-k8s";

/// Every check, by topic.
pub(super) static GROUPS: [Group; 2] = [
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
                asks: "deployments and Services of kube-system, mutatingwebhookconfigurations, certificatesigningrequests, the secret vpc-admission-webhook-certs",
                fix: Made,
                source: VRC,
                run: rows::switches::legacy,
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
                id: "DOC11",
                title: "kube-proxy of Windows nodes may read Services",
                explanation: "The group eks:kube-proxy-windows, in which Windows nodes are, is bound to the role system:node-proxier. Without the binding kube-proxy crashes, and the node is Ready all the same.",
                asks: "clusterrolebindings",
                fix: Made,
                source: EKS,
                run: rows::system::proxy_binding,
            },
        ],
    },
];
