//! Says what keeps pods on a node that is being emptied: PodDisruptionBudgets, and annotations that ask not to be disrupted.
//!
//! Which pods a node waits for is decided by [`drain`], and what a budget refuses by [`Budgets`], as the controllers decide it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mullion_api::{karpenter::NodeClaim, labels};
use mullion_controllers::{
    disruption::protection::Budgets,
    nodeclaim::{do_not_disrupt::Protection, drain},
    pods,
};
use serde::Serialize;

use super::count;
use crate::why::page::{Page, Row};

/// What keeps pods on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Drain {
    /// Whether the node is being removed.
    #[serde(skip)]
    pub(super) is_leaving: bool,
    /// The number of pods that the node waits for before it goes.
    #[serde(skip)]
    pub(super) waiting: usize,
    /// When all pods are deleted, whatever holds them; as the NodeClaim's annotation has it.
    #[serde(skip)]
    pub(super) deadline: Option<String>,
    /// The pods that are held.
    #[serde(rename = "heldPods", skip_serializing_if = "Vec::is_empty")]
    pub(super) held: Vec<HeldPod>,
}

/// A pod that does not leave its node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HeldPod {
    /// Namespace and name.
    pod: String,
    /// What holds the pod, as a sentence.
    reason: String,
    /// The budgets that hold the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pod_disruption_budgets: Vec<HoldingBudget>,
}

/// A PodDisruptionBudget that holds a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct HoldingBudget {
    /// Namespace and name.
    name: String,
    disruptions_allowed: i32,
}

impl Drain {
    /// Judges the pods on a node.
    pub(super) fn of(
        on_node: &[Pod],
        budgets: &Budgets,
        claim: Option<&NodeClaim>,
        is_leaving: bool,
        now: Timestamp,
    ) -> Self {
        let waited_for = on_node.iter().filter(|pod| drain::is_waited_for(pod, now));
        let held = waited_for.clone().filter_map(|pod| held(pod, budgets, now));
        // The reason why a node stays names the pod whose annotation keeps it.
        let held = held.filter(|own| is_leaving || !own.pod_disruption_budgets.is_empty());
        let deadline =
            claim.and_then(|claim| claim.annotations().get(labels::TERMINATION_TIMESTAMP));
        Drain {
            is_leaving,
            waiting: waited_for.clone().count(),
            deadline: deadline.filter(|_| is_leaving).cloned(),
            held: held.collect(),
        }
    }

    /// Prints which pods are held, and by what.
    pub(super) fn print(&self, page: &mut Page) {
        if self.held.is_empty() {
            return;
        }
        page.blank();
        page.title("pods that are held");
        let width = self.held.iter().map(|own| own.pod.len()).max().unwrap_or(0);
        let rows = self.held.iter().map(|own| Row {
            lead: format!("    {:width$}  ", own.pod),
            what: own.reason.clone(),
            aside: String::new(),
        });
        page.rows(&rows.collect::<Vec<_>>(), 0);
    }

    /// Returns how far the removal of the node is, for a sentence that begins with its name.
    pub(super) fn progress(&self) -> String {
        let have = match self.waiting {
            0 => return "is being removed: no pod is waited for".to_owned(),
            1 => "has",
            _ => "have",
        };
        let deadline = match &self.deadline {
            Some(at) => format!("; what is still there at {at} is deleted"),
            None => String::new(),
        };
        let pods = count(self.waiting, "pod");
        format!("is being removed: {pods} {have} not left it{deadline}")
    }
}

/// Returns what holds a pod; `None` if it leaves when it is asked to.
fn held(pod: &Pod, budgets: &Budgets, now: Timestamp) -> Option<HeldPod> {
    if pods::is_deleting(pod) {
        return None;
    }
    let holding = budgets.holding(pod).into_iter().map(|own| HoldingBudget {
        name: own.name,
        disruptions_allowed: own.disruptions_allowed,
    });
    let holding: Vec<_> = holding.collect();
    let reason = match holding.as_slice() {
        [] if Protection::of(pod, now).is_active() => {
            format!("its annotation {} asks for it", labels::DO_NOT_DISRUPT)
        }
        [] => return None,
        [one] => format!(
            "PodDisruptionBudget {} (disruptionsAllowed {})",
            one.name, one.disruptions_allowed
        ),
        several => {
            let named = several.iter().map(|own| {
                format!(
                    "{} (disruptionsAllowed {})",
                    own.name, own.disruptions_allowed
                )
            });
            format!(
                "several PodDisruptionBudgets select it, so the eviction API refuses it: {}",
                named.collect::<Vec<_>>().join(", ")
            )
        }
    };
    Some(HeldPod {
        pod: format!(
            "{}/{}",
            pod.metadata.namespace.as_deref().unwrap_or_default(),
            pod.name_any()
        ),
        reason,
        pod_disruption_budgets: holding,
    })
}
