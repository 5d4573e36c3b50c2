//! The disruption controller: how many pods of a PodDisruptionBudget may be taken away now.
//!
//! [`budget`] does the arithmetic; here are the pods found, the expected number of replicas looked up at their
//! controllers, and the status written. Evictions read `disruptionsAllowed`; when anything cannot be known it is 0.

mod budget;

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::Pod,
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
    },
    apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference},
};
use kube::{
    Api, ResourceExt,
    api::PostParams,
    core::{DynamicObject, GroupVersionKind, Selector, SelectorExt},
    discovery::pinned_kind,
};
use rustc_hash::FxHashMap;

use self::budget::{Expected, Scale};
use crate::{
    Change, Context, Informer, Key, Queue, Recorder, api_error, ownership, pods, queue::collect_for,
};

/// Changes are collected at least this long.
const COLLECT: Duration = Duration::from_millis(10);

/// Why the number of expected pods is unknown.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("{0} does not implement the scale subresource")]
    NoScale(String),
    #[error("found no controllers for pod \"{0}\"")]
    NoController(String),
}

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("disruption");
    let informers = &context.informers;
    informers.pod_disruption_budgets.on_change({
        let queue = queue.clone();
        move |change| queue.add(Key::of(&**change.object()))
    });
    informers.pods.on_change({
        let (queue, budgets) = (queue.clone(), informers.pod_disruption_budgets.clone());
        let pods = informers.pods.clone();
        move |change| pod_changed(&budgets, &pods, &queue, change)
    });
    // A change of scale changes what is expected.
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
    let recorder = context.recorder("controllermanager");
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
    for budget in budgets.in_namespace(namespace) {
        let Some(selector) = selector(&budget) else {
            continue;
        };
        let versions = change.previous().into_iter().chain([pod]);
        if versions
            .into_iter()
            .any(|pod| selector.matches(pod.labels()))
        {
            // A budget is looked at together with all pods of its namespace.
            let delay = collect_for(pods.count_in_namespace(namespace)).max(COLLECT);
            queue.add_after(Key::of(&*budget), delay);
        }
    }
}

/// An empty selector selects all pods of the namespace, a missing one none.
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
        let scale = match self.expected_scale(&budget, &members).await {
            Ok(scale) => scale,
            Err(error) => return self.fail_safe(&budget, &error).await,
        };
        let expected = budget::expected(&budget, scale, members.len());
        let now = self.context.clock.now();
        let disrupted = budget::disrupted(&budget, &members, now);
        for pod in &disrupted.overdue {
            let message = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
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

    /// The sum of the scales of all controllers of the pods, each once. Pods without a controller are not counted.
    async fn expected_scale(
        &self,
        budget: &PodDisruptionBudget,
        members: &[Arc<Pod>],
    ) -> Result<Scale, Error> {
        if !budget::needs_scale(budget) {
            return Ok(Scale::NotNeeded);
        }
        let mut scales: FxHashMap<String, i32> = FxHashMap::default();
        let mut seen: FxHashMap<String, ()> = FxHashMap::default();
        for pod in members {
            let Some(reference) = ownership::controller_of(&**pod) else {
                continue;
            };
            if seen.insert(reference.uid.clone(), ()).is_none() {
                let namespace = pod.namespace().unwrap_or_default();
                let (uid, scale) = self.scale_of(reference, &namespace, pod).await?;
                scales.insert(uid, scale);
            }
        }
        Ok(Scale::Sum(scales.values().sum()))
    }

    /// The uid and scale of what a controller reference leads to; a Deployment speaks for its ReplicaSets.
    async fn scale_of(
        &self,
        reference: &OwnerReference,
        namespace: &str,
        pod: &Pod,
    ) -> Result<(String, i32), Error> {
        let informers = &self.context.informers;
        if reference.kind == "ReplicaSet" && reference.api_version.starts_with("apps/") {
            let set = informers.replica_sets.get(namespace, &reference.name);
            let set = set.filter(|set| set.metadata.uid.as_ref() == Some(&reference.uid));
            let Some(set) = set else {
                return Err(Error::NoController(pod.name_any()));
            };
            let owner = ownership::controller_of(&*set).filter(|owner| owner.kind == "Deployment");
            let deployment = owner.and_then(|owner| {
                let deployment = informers.deployments.get(namespace, &owner.name);
                deployment.filter(|deployment| deployment.metadata.uid.as_ref() == Some(&owner.uid))
            });
            return Ok(match deployment {
                Some(deployment) => {
                    let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
                    (deployment.uid().unwrap_or_default(), replicas.unwrap_or(1))
                }
                None => {
                    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
                    (reference.uid.clone(), replicas.unwrap_or(1))
                }
            });
        }
        let (group, version) = reference
            .api_version
            .split_once('/')
            .unwrap_or(("", &reference.api_version));
        let gvk = GroupVersionKind::gvk(group, version, &reference.kind);
        let (resource, capabilities) = pinned_kind(&self.context.client, &gvk).await?;
        let name = if group.is_empty() {
            resource.plural.clone()
        } else {
            format!("{}.{group}", resource.plural)
        };
        if !capabilities
            .subresources
            .iter()
            .any(|(subresource, _)| subresource.plural == "scale")
        {
            return Err(Error::NoScale(name));
        }
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.context.client.clone(), namespace, &resource);
        match api.get_scale(&reference.name).await {
            Ok(scale) => {
                let replicas = scale
                    .spec
                    .and_then(|spec| spec.replicas)
                    .unwrap_or_default();
                Ok((reference.uid.clone(), replicas))
            }
            Err(error) if api_error::is_not_found(&error) => {
                Err(Error::NoController(pod.name_any()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What cannot be computed is not allowed.
    async fn fail_safe(&self, budget: &PodDisruptionBudget, error: &Error) -> kube::Result<()> {
        let message = format!("Failed to calculate the number of expected pods: {error}");
        self.recorder
            .warning(budget, "CalculateExpectedPodCountFailed", message);
        let mut status = budget.status.clone().unwrap_or_default();
        status.disruptions_allowed = Some(0);
        status.observed_generation = budget.metadata.generation;
        let condition = condition(
            budget,
            "False",
            "SyncFailed",
            error.to_string(),
            self.context.now(),
        );
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
    now: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time,
) -> PodDisruptionBudgetStatus {
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
    now: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time,
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
