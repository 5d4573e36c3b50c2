//! Which pods keep their node from being disrupted now: those that ask for it, and those that a PodDisruptionBudget holds. Pure.

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    ResourceExt,
    core::{Selector, SelectorExt},
};

use crate::{
    nodeclaim::{do_not_disrupt::Protection, drain::tolerates_the_end},
    ownership, pods,
    provisioner::pending::is_static,
};

/// What PodDisruptionBudgets allow at this moment.
#[derive(Default)]
pub struct Budgets(Vec<Budget>);

struct Budget {
    namespace: String,
    name: String,
    selector: Selector,
    allowed: i32,
    /// Pods that are not ready may always be evicted.
    spares_ready_only: bool,
    /// As many pods are healthy as the budget asks for, so that pods that are not ready may be evicted.
    is_met: bool,
}

/// A budget because of which a pod is not evicted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldingBudget {
    /// Namespace and name, as in `shop/web`.
    pub name: String,
    /// `status.disruptionsAllowed`; 0 if the status is not there yet.
    pub disruptions_allowed: i32,
}

impl Budgets {
    /// Reads what each budget allows now.
    pub fn of<'a>(budgets: impl Iterator<Item = &'a PodDisruptionBudget>) -> Self {
        let read = |budget: &PodDisruptionBudget| {
            let spec = budget.spec.as_ref()?;
            let status = budget.status.as_ref();
            Some(Budget {
                namespace: budget.namespace().unwrap_or_default(),
                name: budget.name_any(),
                selector: ownership::selector(spec.selector.as_ref())?,
                // A budget without a status was not computed yet. The eviction API refuses then, too.
                allowed: status
                    .and_then(|status| status.disruptions_allowed)
                    .unwrap_or(0),
                spares_ready_only: spec.unhealthy_pod_eviction_policy.as_deref()
                    == Some("AlwaysAllow"),
                is_met: status.is_some_and(|status| {
                    let desired = status.desired_healthy.unwrap_or(0);
                    desired > 0 && status.current_healthy.unwrap_or(0) >= desired
                }),
            })
        };
        Self(budgets.filter_map(read).collect())
    }

    /// Returns why one of the pods on a node may not be disrupted now, in Karpenter's words (core:
    /// `ValidatePodsDisruptable`); `None` if all may.
    pub fn refusal<'a>(
        &self,
        on_node: impl Iterator<Item = &'a Pod> + Clone,
        now: Timestamp,
    ) -> Option<String> {
        let mut active = on_node.clone().filter(|pod| pods::is_active(pod));
        // The annotation is judged for all pods before any budget, in upstream's order, so that the message
        // is the same.
        if let Some(pod) = active.find(|pod| Protection::of(pod, now).is_active()) {
            return Some(format!(
                "Pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod={})",
                key(pod)
            ));
        }
        on_node
            .filter(|pod| pods::is_active(pod) && !tolerates_the_end(pod) && !is_static(pod))
            .find_map(|pod| self.refuses(pod))
    }

    /// Returns the budgets because of which the eviction API refuses to evict a pod now, several if it refuses because they are
    /// several; none if it evicts the pod (kube-apiserver: `EvictionREST.Create`).
    pub fn holding(&self, pod: &Pod) -> Vec<HoldingBudget> {
        // No budget is asked about a pod that does not run.
        if pods::phase(pod) == "Pending" || pods::is_finished(pod) || pods::is_deleting(pod) {
            return Vec::new();
        }
        let covering = self.covering(pod);
        let is_free = match covering.as_slice() {
            [] => true,
            [budget] => {
                let spares = budget.spares_ready_only || budget.is_met;
                budget.allowed > 0 || spares && !pods::is_ready(pod)
            }
            _ => false,
        };
        if is_free {
            return Vec::new();
        }
        let holding = covering.iter().map(|budget| HoldingBudget {
            name: format!("{}/{}", budget.namespace, budget.name),
            disruptions_allowed: budget.allowed,
        });
        holding.collect()
    }

    fn covering(&self, pod: &Pod) -> Vec<&Budget> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let covers = |budget: &&Budget| {
            budget.namespace == namespace && budget.selector.matches(pod.labels())
        };
        self.0.iter().filter(covers).collect()
    }

    fn refuses(&self, pod: &Pod) -> Option<String> {
        let covering = self.covering(pod);
        let names = || {
            let names = covering
                .iter()
                .map(|own| format!("{}/{}", own.namespace, own.name));
            names.collect::<Vec<_>>().join(" ")
        };
        match covering.as_slice() {
            [] => None,
            [budget] => {
                let is_ill = budget.spares_ready_only
                    && pods::condition(pod, "Ready").is_some_and(|ready| ready.status == "False");
                (budget.allowed == 0 && !is_ill).then(|| {
                    format!(
                        "Pdb prevents pod evictions (PodDisruptionBudget=[{}])",
                        names()
                    )
                })
            }
            // The eviction subresource answers 500 when several budgets select a pod, so draining would never
            // end.
            _ => Some(format!(
                "Eviction does not support multiple PDBs (PodDisruptionBudget(s)=[{}])",
                names()
            )),
        }
    }
}

fn key(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", pod.name_any())
}

/// The disruption cost of a node without pods (core: `PerNodeBaseDisruptionCost`).
pub const NODE_MILLI: u64 = 1000;

/// Returns the disruption cost of a node, in thousandths: [`NODE_MILLI`], and the eviction cost of each pod that moves
/// (core: `EvictionCost`) if that is above zero.
pub fn disruption_milli<'a>(moving: impl Iterator<Item = &'a Pod>) -> u64 {
    NODE_MILLI + moving.map(eviction_milli).sum::<u64>()
}

/// Returns what the eviction of a pod costs, in thousandths: 0 to 10,000.
fn eviction_milli(pod: &Pod) -> u64 {
    (eviction_cost(pod).max(0.0) * 1000.0).round() as u64
}

/// Returns what the eviction of a pod costs (core: `EvictionCost`): 1, more or less by its deletion cost and its priority,
/// -10 to 10.
pub fn eviction_cost(pod: &Pod) -> f64 {
    const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    let deletion: Option<f64> = pod
        .annotations()
        .get(DELETION_COST)
        .and_then(|cost| cost.parse().ok());
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    // The divisors are upstream's: they map the whole range of either value to about 16 and 64 units before
    // the clamp.
    let cost = 1.0
        + deletion.filter(|cost| cost.is_finite()).unwrap_or(0.0) / 2_f64.powi(27)
        + f64::from(priority.unwrap_or(0)) / 2_f64.powi(25);
    cost.clamp(-10.0, 10.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, edit: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "d", "labels": { "app": name } },
            "spec": { "containers": [] }, "status": { "phase": "Running" }
        });
        edit(&mut pod);
        serde_json::from_value(pod).expect("a pod")
    }

    fn budgets(list: &[(&str, &str, i64)]) -> Budgets {
        let budgets: Vec<PodDisruptionBudget> = list
            .iter()
            .map(|(name, app, allowed)| {
                serde_json::from_value(json!({
                    "metadata": { "name": name, "namespace": "d" },
                    "spec": { "selector": { "matchLabels": { "app": app } } },
                    "status": { "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 }
                }))
                .expect("a budget")
            })
            .collect();
        Budgets::of(budgets.iter())
    }

    fn refusal(budgets: &Budgets, pods: &[Pod]) -> Option<String> {
        budgets.refusal(pods.iter(), "2026-01-01T00:10:00Z".parse().expect("a time"))
    }

    #[test]
    fn budgets_without_disruptions_left_hold_a_node() {
        let web = [pod("web", |_| {})];
        assert_eq!(refusal(&budgets(&[("b", "web", 1)]), &web), None);
        assert_eq!(
            refusal(&budgets(&[("b", "web", 0), ("c", "db", 0)]), &web).as_deref(),
            Some("Pdb prevents pod evictions (PodDisruptionBudget=[d/b])")
        );
        assert_eq!(
            refusal(&budgets(&[("b", "web", 1), ("c", "web", 1)]), &web).as_deref(),
            Some("Eviction does not support multiple PDBs (PodDisruptionBudget(s)=[d/b d/c])")
        );
        let done = [pod("web", |pod| {
            pod["status"]["phase"] = "Succeeded".into()
        })];
        assert_eq!(refusal(&budgets(&[("b", "web", 0)]), &done), None);
    }

    #[test]
    fn a_pod_is_held_by_the_budgets_that_refuse_its_eviction() {
        let held = |budgets: &Budgets, pod: &Pod| -> Vec<(String, i32)> {
            let held = budgets.holding(pod).into_iter();
            held.map(|own| (own.name, own.disruptions_allowed))
                .collect()
        };
        let ready = |status: &str, phase: &str| {
            pod("web", |pod| {
                pod["status"] = json!({
                    "phase": phase, "conditions": [{ "type": "Ready", "status": status }]
                });
            })
        };
        let spent = budgets(&[("b", "web", 0), ("c", "db", 0)]);
        let runs = ready("True", "Running");
        assert_eq!(held(&spent, &runs), [("d/b".to_owned(), 0)]);
        assert_eq!(held(&budgets(&[("b", "web", 1)]), &runs), []);
        // Enough others are healthy, so a pod that is not ready may go.
        assert_eq!(held(&spent, &ready("False", "Running")), []);
        assert_eq!(held(&spent, &ready("False", "Pending")), []);
        let two = budgets(&[("b", "web", 1), ("c", "web", 0)]);
        let both = [("d/b".to_owned(), 1), ("d/c".to_owned(), 0)];
        assert_eq!(held(&two, &runs), both);
    }

    #[test]
    fn a_pod_asks_not_to_be_disrupted_for_good_or_for_a_time() {
        let asks = |value: &str| {
            [pod("web", |pod| {
                pod["metadata"]["annotations"] = json!({ "karpenter.sh/do-not-disrupt": value });
                pod["status"]["startTime"] = "2026-01-01T00:00:00Z".into();
            })]
        };
        let held = Some("Pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod=d/web)");
        let none = Budgets::default();
        assert_eq!(refusal(&none, &asks("true")).as_deref(), held);
        assert_eq!(refusal(&none, &asks("15m")).as_deref(), held);
        assert_eq!(refusal(&none, &asks("5m")), None);
        assert_eq!(refusal(&none, &asks("soon")), None);
    }

    #[test]
    fn a_daemon_that_asks_not_to_be_disrupted_holds_its_node() {
        let daemon = |phase: &str| {
            [pod("d", |pod| {
                pod["metadata"]["annotations"] = json!({ "karpenter.sh/do-not-disrupt": "true" });
                pod["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true
                }]);
                pod["status"]["phase"] = phase.into();
            })]
        };
        let none = Budgets::default();
        assert!(crate::disruption::emptiness::is_empty(
            daemon("Running").iter()
        ));
        assert!(refusal(&none, &daemon("Running")).is_some());
        assert_eq!(refusal(&none, &daemon("Succeeded")), None);
    }

    #[test]
    fn priority_and_deletion_cost_weigh_an_eviction() {
        let cost = |edit: fn(&mut Value)| disruption_milli([pod("p", edit)].iter());
        assert_eq!(cost(|_| {}), 2000);
        assert_eq!(
            cost(|pod| pod["spec"]["priority"] = 1_000_000_000.into()),
            11_000
        );
        assert_eq!(
            cost(|pod| {
                pod["metadata"]["annotations"] =
                    json!({ "controller.kubernetes.io/pod-deletion-cost": "-2147483647" });
            }),
            1000
        );
    }
}
