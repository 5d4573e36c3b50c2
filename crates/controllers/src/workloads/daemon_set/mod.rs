//! The DaemonSet controller: one pod on every node that should have one, bound to that node by node affinity.
//!
//! The scheduler places the pods, but their affinity leaves it only one node. [`eligibility`] decides which nodes
//! get a pod, [`plan`] which pods are created and deleted, [`pod`] what a pod contains. This module carries both
//! decisions out, under the same expectations as the ReplicaSet controller. Every template is stored as a
//! ControllerRevision ([`history`], [`revisions`]), whose hash the pods carry as a label.

mod backoff;
mod eligibility;
mod history;
mod plan;
mod pod;
mod revisions;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetStatus},
    core::v1::{Node, Pod, Toleration},
};
use kube::{ResourceExt, core::Selector};

pub use self::eligibility::tolerations;
use self::{
    backoff::FailureBackoff,
    eligibility::{Eligibility, judge},
    plan::{Plan, Revision, View, Views},
    pod::{bind_by_affinity, pod_template, target_node},
    revisions::{Error, Revisions},
};
use super::{
    count,
    deployment::{Rounding, scaled},
    expectations::Expectations,
    nonzero,
    pod_control::{PodControl, pod_body},
    pod_watch::PodWatch,
    write_status,
};
use crate::{
    Change, Context, Informer, Key, Queue, api_error, ownership, pods, queue::collect_for,
};

/// The most pods created or deleted per sync.
const BURST: usize = 250;
const WORKERS: usize = 2;
/// The annotation with the template's generation, which the API server maintains.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("daemonset");
    let expectations = Arc::new(Expectations::default());
    let informers = &context.informers;

    informers.daemon_sets.on_change({
        let (queue, expectations) = (queue.clone(), Arc::clone(&expectations));
        move |change| {
            let key = Key::of(&**change.object());
            if change.is_deleted() {
                expectations.forget(&key);
            }
            queue.add(key);
        }
    });
    let watch = PodWatch {
        owners: informers.daemon_sets.clone(),
        pods: informers.pods.clone(),
        expectations: Arc::clone(&expectations),
        queue: queue.clone(),
    };
    informers
        .pods
        .on_change(move |change| watch.observe(change));
    informers.nodes.on_change({
        let (queue, sets, nodes) = (
            queue.clone(),
            informers.daemon_sets.clone(),
            informers.nodes.clone(),
        );
        move |change| node_changed(&sets, &nodes, &queue, change)
    });

    let recorder = context.recorder("daemonset-controller");
    let pods = PodControl {
        client: context.client.clone(),
        recorder,
    };
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
        expectations,
        failures: FailureBackoff::default(),
        revisions: Revisions::new(context, &queue),
        pods,
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        let informers = &context.informers;
        if informers.daemon_sets.synced().await
            && informers.nodes.synced().await
            && informers.pods.synced().await
            && controller.revisions.synced().await
        {
            queue.run(&context, WORKERS, move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.sync(&key).await }
            });
        }
    });
}

/// Wakes the DaemonSets whose eligibility changes with the node.
fn node_changed(
    sets: &Informer<DaemonSet>,
    nodes: &Informer<Node>,
    queue: &Queue<Key>,
    change: &Change<'_, Node>,
) {
    let node = change.object();
    let concerns = |node: &Node| {
        (
            node.metadata.labels.clone(),
            node.spec.as_ref().and_then(|spec| spec.taints.clone()),
        )
    };
    if change
        .previous()
        .is_some_and(|old| concerns(old) == concerns(node))
    {
        return;
    }
    for set in sets.list() {
        let tolerations = daemon_tolerations(&set);
        let before = change.previous().map(|old| judge(&set, &tolerations, old));
        let after = judge(&set, &tolerations, node);
        // A new node on which no pod of the set should run changes nothing.
        if before != Some(after) && (before.is_some() || after.should_run) {
            // Many nodes join together; one sync a little later serves all of them.
            queue.add_after(Key::of(&*set), collect_for(nodes.len()));
        }
    }
}

fn daemon_tolerations(set: &DaemonSet) -> Vec<Toleration> {
    set.spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref())
        .map(tolerations)
        .unwrap_or_default()
}

struct Controller {
    context: Context,
    queue: Queue<Key>,
    expectations: Arc<Expectations>,
    failures: FailureBackoff,
    revisions: Revisions,
    pods: PodControl,
}

impl Controller {
    async fn sync(&self, key: &Key) -> Result<(), Error> {
        let Some(set) = self.context.informers.daemon_sets.get_key(key) else {
            self.expectations.forget(key);
            return Ok(());
        };
        let Some(spec) = &set.spec else { return Ok(()) };
        let Some(selector) = ownership::selector(Some(&spec.selector)) else {
            return Ok(());
        };
        if selector.selects_all() {
            let message =
                "This daemon set is selecting all pods. A non-empty selector is required.";
            self.pods.recorder.warning(&*set, "SelectingAll", message);
            return Ok(());
        }
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let pods = self.claim(&set, &selector).await?;
        let updated = match self.revisions.update(&set, &selector, &pods).await {
            // Nothing can be created in a terminating namespace, and the DaemonSet will be deleted soon.
            Err(Error::Api(error)) if api_error::is_namespace_terminating(&error) => return Ok(()),
            outcome => outcome?,
        };
        let revision = Revision {
            hash: updated.hash,
            generation: template_generation(&set),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or_default(),
        };

        let mut outcome = Ok(());
        // The expectations are read before the pods are listed: a write that the list does not show yet must not be
        // repeated. The pods are listed a second time here, because writing the revisions takes time.
        let may_act = self.expectations.are_met(key);
        let pods = self.claim(&set, &selector).await?;
        let mut views = self.view(&set, pods.iter().cloned());
        if may_act {
            outcome = self.keep_steady(key, &set, &views, &revision).await;
            // A rolling update begins only when nothing is missing or in surplus, or its counts would be
            // wrong.
            if outcome.is_ok() && self.expectations.are_met(key) && updates_by_rolling(&set) {
                views = self.view(&set, self.claim(&set, &selector).await?);
                outcome = self.roll(key, &set, &views, &revision).await;
            }
            if outcome.is_ok() {
                outcome = self.revisions.clean_up(&set, updated.old, &pods).await;
            }
        }
        self.report(key, &set, &views, &revision, may_act).await?;
        Ok(outcome?)
    }

    /// Returns the DaemonSet's pods after adopting orphans that match and releasing pods that no longer do.
    async fn claim(&self, set: &DaemonSet, selector: &Selector) -> kube::Result<Vec<Arc<Pod>>> {
        let (client, informer) = (&self.context.client, &self.context.informers.pods);
        ownership::claim_from(client, set, selector, informer, |_| true).await
    }

    /// Groups the DaemonSet's pods by the node they are meant for, and judges every node's eligibility.
    fn view(&self, set: &DaemonSet, claimed: impl IntoIterator<Item = Arc<Pod>>) -> Views {
        let tolerations = daemon_tolerations(set);
        let view_of = |node: &Arc<Node>| {
            let eligibility = Some(judge(set, &tolerations, node));
            (
                node.name_any(),
                View {
                    eligibility,
                    pods: Vec::new(),
                },
            )
        };
        let nodes = self.context.informers.nodes.list();
        let mut views: Views = nodes.iter().map(view_of).collect();
        for pod in claimed {
            // A finished pod that is being deleted neither serves nor blocks a new pod.
            if pods::is_finished(&pod) && pods::is_deleting(&pod) {
                continue;
            }
            if let Some(node) = target_node(&pod) {
                let view = views.entry(node).or_insert(View {
                    eligibility: None,
                    pods: Vec::new(),
                });
                view.pods.push(pod);
            }
        }
        views
    }

    async fn keep_steady(
        &self,
        key: &Key,
        set: &DaemonSet,
        views: &Views,
        revision: &Revision,
    ) -> kube::Result<()> {
        let (surge, _) = bounds(set, desired(views));
        let mut plan = plan::steady(views, revision, surge > 0, self.context.clock.now());
        let uid = set.metadata.uid.clone().unwrap_or_default();
        for (node, pod) in std::mem::take(&mut plan.failed) {
            // A daemon that fails at once would otherwise be deleted and created in a tight loop on its node.
            if let Some(wait) = self.failures.admit(&uid, &node) {
                self.queue.add_after(key.clone(), wait);
                continue;
            }
            let message = format!(
                "Found failed daemon pod {} on node {node}, will try to kill it",
                Key::of(&*pod)
            );
            self.pods.recorder.warning(set, "FailedDaemonPod", message);
            plan.delete.push(pod);
        }
        for (node, pod) in std::mem::take(&mut plan.succeeded) {
            let message = format!(
                "Found succeeded daemon pod {} on node {node}, will try to delete it",
                Key::of(&*pod)
            );
            self.pods
                .recorder
                .normal(set, "SucceededDaemonPod", message);
            plan.delete.push(pod);
        }
        self.carry_out(key, set, plan, revision).await
    }

    async fn roll(
        &self,
        key: &Key,
        set: &DaemonSet,
        views: &Views,
        revision: &Revision,
    ) -> kube::Result<()> {
        let (surge, unavailable) = bounds(set, desired(views));
        let plan = plan::rolling(
            views,
            revision,
            surge,
            unavailable,
            self.context.clock.now(),
        );
        self.carry_out(key, set, plan, revision).await
    }

    async fn carry_out(
        &self,
        key: &Key,
        set: &DaemonSet,
        mut plan: Plan,
        revision: &Revision,
    ) -> kube::Result<()> {
        plan.create_on.truncate(BURST);
        plan.delete.truncate(BURST);
        if plan.create_on.is_empty() && plan.delete.is_empty() {
            return Ok(());
        }
        // Before the requests, because the watch may report their effects first.
        self.expectations.expect(
            key,
            plan.create_on.len(),
            plan.delete.iter().map(|pod| Key::of(&**pod)),
        );
        let template = set
            .spec
            .as_ref()
            .map(|spec| pod_template(&spec.template, revision))
            .unwrap_or_default();
        let reference = ownership::controller_reference(set);
        let name = set.name_any();
        let body = |node: &String| {
            pod_body(
                &template,
                &name,
                key.namespace(),
                reference.clone(),
                |pod| bind_by_affinity(pod, node),
            )
        };
        let bodies: Vec<_> = plan.create_on.iter().map(body).collect();
        let failed = || {
            self.expectations.created(key);
        };
        let creations = self.pods.create(set, &bodies, failed).await;
        let failed = |pod: &Pod| {
            self.expectations.deleted(key, &Key::of(pod));
        };
        let deletion_error = self.pods.delete(set, &plan.delete, failed).await;
        creations.error.or(deletion_error).map_or(Ok(()), Err)
    }

    async fn report(
        &self,
        key: &Key,
        set: &DaemonSet,
        views: &Views,
        revision: &Revision,
        acted: bool,
    ) -> kube::Result<()> {
        let now = self.context.clock.now();
        let mut status = DaemonSetStatus::default();
        let (mut updated, mut available, mut next) = (0, 0, None);
        for view in views.values() {
            let should_run = view
                .eligibility
                .is_some_and(|eligibility| eligibility.should_run);
            status.desired_number_scheduled += i32::from(should_run);
            let Some(pod) = view.senior() else { continue };
            if !should_run {
                // A pod for a node that does not exist counts nowhere.
                status.number_misscheduled += i32::from(view.eligibility.is_some());
                continue;
            }
            status.current_number_scheduled += 1;
            updated += i32::from(revision.is_current(pod));
            if let Some(wait) = pods::available_in(pod, revision.min_ready_seconds, now) {
                status.number_ready += 1;
                available += i32::from(wait.is_zero());
                next = next
                    .into_iter()
                    .chain(wait.is_positive().then_some(wait))
                    .min();
            }
        }
        if let Some(next) = next {
            self.queue
                .add_after(key.clone(), Duration::try_from(next).unwrap_or_default());
        }
        let before = set.status.clone().unwrap_or_default();
        status.updated_number_scheduled = nonzero(updated);
        status.number_available = nonzero(available);
        status.number_unavailable = nonzero(status.desired_number_scheduled - available);
        // A generation counts as observed only if the sync could act on it.
        status.observed_generation = if acted {
            set.metadata.generation
        } else {
            before.observed_generation
        };
        // These two are not computed here; leaving them out would clear them.
        status.collision_count = before.collision_count;
        status.conditions = before.conditions.clone();
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let written = DaemonSet {
            status: Some(status),
            ..set.clone()
        };
        write_status(&self.context.client, &written).await
    }
}

fn desired(views: &Views) -> i32 {
    let should_run = |view: &&View| {
        matches!(
            view.eligibility,
            Some(Eligibility {
                should_run: true,
                ..
            })
        )
    };
    count(views.values().filter(should_run).count())
}

fn template_generation(set: &DaemonSet) -> Option<i64> {
    set.annotations().get(TEMPLATE_GENERATION)?.parse().ok()
}

fn updates_by_rolling(set: &DaemonSet) -> bool {
    let strategy = set
        .spec
        .as_ref()
        .and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
}

/// Returns how many nodes may surge and how many may be without a pod. Both round up, and one of them is at least
/// 1.
fn bounds(set: &DaemonSet, desired: i32) -> (usize, usize) {
    if !updates_by_rolling(set) {
        return (0, 0);
    }
    let strategy = set
        .spec
        .as_ref()
        .and_then(|spec| spec.update_strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = scaled(
        rolling.and_then(|rolling| rolling.max_surge.as_ref()),
        desired,
        Rounding::Up,
    );
    let unavailable = scaled(
        rolling.and_then(|rolling| rolling.max_unavailable.as_ref()),
        desired,
        Rounding::Up,
    );
    let unavailable = if surge == 0 {
        unavailable.max(1)
    } else {
        unavailable
    };
    (
        usize::try_from(surge).unwrap_or_default(),
        usize::try_from(unavailable).unwrap_or_default(),
    )
}
