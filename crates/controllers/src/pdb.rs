//! The disruption controller: computes how many pods of a PodDisruptionBudget may be disrupted now.
//!
//! [`budget`] does the arithmetic and [`scale`] looks up how many replicas are expected; this module finds the pods
//! and writes the status. Evictions read `disruptionsAllowed`, which is 0 when it cannot be computed. [`stale`]
//! resets the condition of a disruption that did not happen.

mod budget;
mod scale;
mod stale;

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::Pod,
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    },
    apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time},
};
use kube::{
    Api, ResourceExt,
    api::PostParams,
    core::{Selector, SelectorExt},
};

use self::{
    budget::{Expected, Scale},
    scale::Unknown,
};
use crate::{
    Change, Context, Informer, Key, Queue, Recorder, api_error, ownership, pods, queue::collect_for,
};

/// The shortest time for which changes are collected.
const COLLECT: Duration = Duration::from_millis(10);

/// Starts the controller.
pub fn start(context: &Context) {
    stale::start(context);
    let queue = Queue::new("disruption");
    let recorder = context.recorder("controllermanager");
    let informers = &context.informers;
    informers.pod_disruption_budgets.on_change({
        let queue = queue.clone();
        move |change| queue.add(Key::of(&**change.object()))
    });
    informers.pods.on_change({
        let (queue, budgets) = (queue.clone(), informers.pod_disruption_budgets.clone());
        let (pods, recorder) = (informers.pods.clone(), recorder.clone());
        move |change| pod_changed(&budgets, &pods, &queue, &recorder, change)
    });
    // A scaled controller changes how many pods are expected.
    informers.replica_sets.start();
    informers.deployments.on_change({
        let (queue, budgets) = (queue.clone(), informers.pod_disruption_budgets.clone());
        move |change| {
            let replicas = |deployment: &k8s_openapi::api::apps::v1::Deployment| {
                deployment.spec.as_ref()?.replicas
            };
            let deployment = change.object();
            if change
                .previous()
                .is_some_and(|old| replicas(old) != replicas(deployment))
            {
                for budget in budgets.in_namespace(&deployment.namespace().unwrap_or_default()) {
                    queue.add(Key::of(&*budget));
                }
            }
        }
    });
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
        recorder,
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        let informers = &context.informers;
        if informers.pod_disruption_budgets.synced().await
            && informers.pods.synced().await
            && informers.replica_sets.synced().await
            && informers.deployments.synced().await
        {
            queue.run(&context, 1, move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.sync(&key).await }
            });
        }
    });
}

fn pod_changed(
    budgets: &Informer<PodDisruptionBudget>,
    pods: &Informer<Pod>,
    queue: &Queue<Key>,
    recorder: &Recorder,
    change: &Change<'_, Pod>,
) {
    let pod = change.object();
    let same = |old: &Pod| {
        pods::is_ready(old) == pods::is_ready(pod)
            && pods::is_deleting(old) == pods::is_deleting(pod)
            && old.metadata.labels == pod.metadata.labels
    };
    if change.previous().is_some_and(|old| same(old)) {
        return;
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut matching = Vec::new();
    for budget in budgets.in_namespace(namespace) {
        let Some(selector) = selector(&budget) else {
            continue;
        };
        let matches = selector.matches(pod.labels());
        if matches {
            matching.push(budget.name_any());
        }
        if matches
            || change
                .previous()
                .is_some_and(|old| selector.matches(old.labels()))
        {
            // A sync reads all pods of the namespace, so the delay grows with their number.
            let delay = collect_for(pods.count_in_namespace(namespace)).max(COLLECT);
            queue.add_after(Key::of(&*budget), delay);
        }
    }
    if matching.len() > 1 {
        matching.sort_unstable();
        let (name, first) = (pod.name_any(), &matching[0]);
        // Evictions of such a pod are refused; the choice only determines which budget the event names.
        let message = format!(
            "Pod {namespace:?}/{name:?} matches multiple PodDisruptionBudgets.  Chose {first:?} arbitrarily."
        );
        recorder.warning(&**pod, "MultiplePodDisruptionBudgets", message);
    }
}

/// Returns the budget's selector. An empty one selects all pods of the namespace, a missing one none.
fn selector(budget: &PodDisruptionBudget) -> Option<Selector> {
    ownership::selector(budget.spec.as_ref()?.selector.as_ref())
}

struct Controller {
    context: Context,
    queue: Queue<Key>,
    recorder: Recorder,
}

impl Controller {
    async fn sync(&self, key: &Key) -> kube::Result<()> {
        let Some(budget) = self.context.informers.pod_disruption_budgets.get_key(key) else {
            return Ok(());
        };
        let mut members = self.context.informers.pods.in_namespace(key.namespace());
        let selector = selector(&budget);
        members.retain(|pod| {
            selector
                .as_ref()
                .is_some_and(|selector| selector.matches(pod.labels()))
        });
        if members.is_empty() {
            self.recorder
                .normal(&*budget, "NoPods", "No matching pods found");
        }
        let scale = match scale::expected(&self.context, &budget, &members).await {
            Ok(scale) => scale,
            // An error is no reason to retry at once: the budget is closed until something changes.
            Err(error) => return self.fail_safe(&budget, &error).await,
        };
        if let Scale::Sum { unmanaged: 1.., .. } = scale {
            self.warn_of_unmanaged_pods(&budget);
        }
        let expected = budget::expected(&budget, scale, members.len());
        let now = self.context.clock.now();
        let disrupted = budget::disrupted(&budget, &members, now);
        for pod in &disrupted.overdue {
            // kube-controller-manager prints the namespace twice instead of the budget's name.
            let namespace = key.namespace();
            let message = format!(
                "Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't"
            );
            self.recorder.warning(&**pod, "NotDeleted", message);
        }
        if let Some(again) = disrupted.recheck_in {
            self.queue
                .add_after(key.clone(), Duration::try_from(again).unwrap_or_default());
        }
        let healthy = budget::healthy(&members, &disrupted.pending, now);
        self.write(
            &budget,
            status(
                &budget,
                healthy,
                expected,
                disrupted.pending,
                self.context.now(),
            ),
        )
        .await
    }

    fn warn_of_unmanaged_pods(&self, budget: &PodDisruptionBudget) {
        let spec = budget.spec.as_ref();
        let selector = spec.and_then(|spec| spec.selector.as_ref());
        let selector = selector.map_or_else(|| "nil".to_owned(), go_text);
        let message = format!(
            "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, \
             the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account \
             for these pods please set \".spec.minAvailable\" field of the PDB to an integer value."
        );
        self.recorder.warning(budget, "UnmanagedPods", message);
    }

    /// Allows no disruption if the number of expected pods cannot be computed.
    async fn fail_safe(&self, budget: &PodDisruptionBudget, error: &Unknown) -> kube::Result<()> {
        let message = format!("Failed to calculate the number of expected pods: {error}");
        self.recorder
            .warning(budget, "CalculateExpectedPodCountFailed", message);
        let mut status = budget.status.clone().unwrap_or_default();
        status.disruptions_allowed = Some(0);
        // Only the failure was observed, so the observed generation does not change.
        let condition = Condition {
            observed_generation: status.observed_generation,
            ..condition(
                budget,
                "False",
                "SyncFailed",
                error.to_string(),
                self.context.now(),
            )
        };
        status.conditions = Some(vec![condition]);
        self.write(budget, status).await
    }

    async fn write(
        &self,
        budget: &PodDisruptionBudget,
        status: PodDisruptionBudgetStatus,
    ) -> kube::Result<()> {
        if budget.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let namespace = budget.namespace().unwrap_or_default();
        let api: Api<PodDisruptionBudget> =
            Api::namespaced(self.context.client.clone(), &namespace);
        let updated = PodDisruptionBudget {
            status: Some(status),
            ..budget.clone()
        };
        let written = api
            .replace_status(&budget.name_any(), &PostParams::default(), &updated)
            .await;
        api_error::ignore_not_found(written).map(drop)
    }
}

fn status(
    budget: &PodDisruptionBudget,
    healthy: i32,
    expected: Expected,
    disrupted: budget::Disrupted,
    now: Time,
) -> PodDisruptionBudgetStatus {
    // A budget without expected pods protects nothing, but must not allow evictions in advance either.
    let allowed = if expected.pods <= 0 {
        0
    } else {
        (healthy - expected.desired_healthy).max(0)
    };
    let (state, reason) = if allowed > 0 {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    };
    PodDisruptionBudgetStatus {
        conditions: Some(vec![condition(budget, state, reason, String::new(), now)]),
        current_healthy: Some(healthy),
        desired_healthy: Some(expected.desired_healthy),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected.pods),
        observed_generation: budget.metadata.generation,
    }
}

fn condition(
    budget: &PodDisruptionBudget,
    status: &str,
    reason: &str,
    message: String,
    now: Time,
) -> Condition {
    let before = budget
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    let same = before
        .into_iter()
        .find(|condition| condition.type_ == "DisruptionAllowed" && condition.status == status);
    Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: status.to_owned(),
        observed_generation: budget.metadata.generation,
        last_transition_time: same.map_or(now, |same| same.last_transition_time.clone()),
        reason: reason.to_owned(),
        message,
    }
}

/// Formats a label selector as Go prints it.
pub(crate) fn go_text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels
        .map(|(key, value)| format!("{key}: {value},"))
        .collect();
    let requirements = selector.match_expressions.iter().flatten();
    let requirements: String = requirements
        .map(|one| {
            let values = one.values.clone().unwrap_or_default().join(" ");
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},",
                one.key, one.operator
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{requirements}}},}}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_is_printed_as_go_does() {
        let selector = serde_json::from_value(json!({
            "matchLabels": {"app": "web", "tier": "front"},
            "matchExpressions": [{"key": "env", "operator": "In", "values": ["a", "b"]}],
        }))
        .expect("a selector");
        assert_eq!(
            go_text(&selector),
            "&LabelSelector{MatchLabels:map[string]string{app: web,tier: front,},MatchExpressions:\
             []LabelSelectorRequirement{LabelSelectorRequirement{Key:env,Operator:In,Values:[a b],},},}"
        );
    }
}
