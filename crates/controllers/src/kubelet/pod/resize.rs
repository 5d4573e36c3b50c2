//! Resizes pods in place, and reports it (kubelet: pkg/kubelet/allocation and pkg/kubelet/events/resize.go). A
//! resize without room waits, and the pod keeps its present resources. In a simulation a granted resize takes
//! effect at once, so both events follow each other, unless containers have to be restarted for it
//! ([`super::replace`]).

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodCondition, ResourceClaim},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use serde::Serialize;

use super::{Lifecycle, PodSim};
use crate::{kubelet::admit::Pending, pods};

/// The condition of a pod whose resize waits.
const PENDING: &str = "PodResizePending";
/// The condition of a pod whose resize was granted while some container still runs without the new resources.
pub(super) const IN_PROGRESS: &str = "PodResizeInProgress";
/// The conditions about resizes, in the kubelet's order. A pod has them only while they are True.
pub(in crate::kubelet) const CONDITIONS: [&str; 2] = [PENDING, IN_PROGRESS];

/// A resize that is requested but not granted yet.
#[derive(Clone, Debug)]
pub(super) struct Resize {
    /// The version of the pod with its present resources.
    has: Arc<Pod>,
    reported: Option<ReportedResize>,
}

/// The pending resize that the pod's status and events report.
#[derive(Clone, Debug)]
struct ReportedResize {
    pending: Pending,
    generation: Option<i64>,
    since: Timestamp,
}

impl PodSim {
    /// Returns the version of the pod with its granted resources: the newest version, unless a resize waits.
    pub fn granted(&self) -> &Arc<Pod> {
        self.resize.as_ref().map_or(&self.pod, |resize| &resize.has)
    }

    /// Returns whether the pod requests other resources than it has.
    pub fn wants_resize(&self) -> bool {
        self.resize.is_some()
    }

    /// Records a resize if the new version requests other resources than `before`.
    pub(super) fn notice_resize(&mut self, before: Arc<Pod>) {
        // A pod that is stopping keeps what it has until it is gone.
        if self.lifecycle != Lifecycle::Active {
            return;
        }
        match &self.resize {
            None if is_resized(&before, &self.pod) => {
                self.resize = Some(Box::new(Resize {
                    has: before,
                    reported: None,
                }));
            }
            Some(resize) if !is_resized(&resize.has, &self.pod) => self.resize = None,
            _ => {}
        }
    }

    /// Restores the present resources of a pod with a waiting resize from its status, after a restart of the
    /// kubelet.
    pub(super) fn adopt_resize(&mut self) {
        if pods::condition(&self.pod, PENDING).is_none() {
            return;
        }
        let mut has = Pod::clone(&self.pod);
        let status = self.pod.status.iter();
        let statuses = status.flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            init.chain(status.container_statuses.iter().flatten())
        });
        for status in statuses.filter(|status| status.resources.is_some()) {
            let spec = has.spec.iter_mut();
            let mut containers = spec.flat_map(|spec| {
                let init = spec.init_containers.iter_mut().flatten();
                init.chain(&mut spec.containers)
            });
            if let Some(container) = containers.find(|container| container.name == status.name) {
                container.resources.clone_from(&status.resources);
            }
        }
        self.notice_resize(Arc::new(has));
    }

    /// Grants the waiting resize, or records why it is not granted. Returns whether anything changed.
    pub fn decide_resize(&mut self, verdict: Result<(), Pending>, now: Timestamp) -> bool {
        let generation = self.pod.metadata.generation;
        let Some(resize) = &mut self.resize else {
            return false;
        };
        let Err(pending) = verdict else {
            let has = resize.has.clone();
            self.resize = None;
            let summary = summary(&self.pod, generation, None);
            self.record_resize_event(false, "ResizeStarted", "started", &summary);
            self.replace(&has, now);
            return true;
        };
        let reported = resize.reported.as_ref();
        // A reason is reported once per generation, however often the resize is decided again.
        if reported.is_some_and(|reported| {
            reported.pending == pending && reported.generation == generation
        }) {
            return false;
        }
        resize.reported = Some(ReportedResize {
            // The condition stays True while the resize waits, so its transition time is that of the first
            // report.
            since: reported.map_or(now, |reported| reported.since),
            pending: pending.clone(),
            generation,
        });
        let reason = match pending.reason {
            "Infeasible" => "ResizeInfeasible",
            _ => "ResizeDeferred",
        };
        let summary = summary(&self.pod, generation, Some(&pending.message));
        self.record_resize_event(true, reason, pending.reason, &summary);
        true
    }

    /// Records the event that the granted resize of that generation is complete.
    pub(super) fn complete_resize(&mut self, generation: Option<i64>) {
        let summary = summary(self.granted(), generation, None);
        self.record_resize_event(false, "ResizeCompleted", "completed", &summary);
    }

    /// Returns the conditions about a waiting resize and one in progress. A pod that is over has none.
    pub(super) fn resize_conditions(&self) -> impl Iterator<Item = PodCondition> {
        let is_over = matches!(self.lifecycle, Lifecycle::Ended { .. });
        let conditions = [self.pending_condition(), self.progress_condition()];
        conditions.into_iter().flatten().filter(move |_| !is_over)
    }

    fn pending_condition(&self) -> Option<PodCondition> {
        let reported = self.resize.as_ref()?.reported.as_ref()?;
        Some(PodCondition {
            type_: PENDING.to_owned(),
            status: "True".to_owned(),
            reason: Some(reported.pending.reason.to_owned()),
            message: Some(reported.pending.message.clone()),
            observed_generation: reported.generation,
            last_probe_time: None,
            last_transition_time: Some(Time(reported.since)),
        })
    }

    /// Returns whether the API server still shows a condition of a resize that has ended.
    pub(super) fn is_resize_outdated(&self) -> bool {
        let of = |condition| pods::condition(&self.pod, condition).is_some();
        self.resize.is_none() && of(PENDING) || self.replacing.is_none() && of(IN_PROGRESS)
    }

    fn record_resize_event(
        &mut self,
        warning: bool,
        reason: &'static str,
        verb: &str,
        summary: &str,
    ) {
        let message = format!("Pod resize {verb}: {summary}");
        self.event(warning, reason, message, None);
    }
}

fn is_resized(before: &Pod, pod: &Pod) -> bool {
    let (Some(before), Some(spec)) = (&before.spec, &pod.spec) else {
        return false;
    };
    let containers = |list: &[Container], other: &[Container]| {
        let mut pairs = list.iter().zip(other);
        pairs.any(|(one, other)| one.resources != other.resources)
    };
    let [init, init_before] = [spec, before].map(|spec| spec.init_containers.as_deref());
    before.resources != spec.resources
        || containers(&before.containers, &spec.containers)
        || containers(init_before.unwrap_or_default(), init.unwrap_or_default())
}

/// The containers' resources in an event's message, in the order of the kubelet's Go struct.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Named<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Named<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
    resources: Resources<'a>,
}

pub(super) type Amounts = BTreeMap<String, Quantity>;

#[derive(Default, Serialize)]
struct Resources<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<&'a Amounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a Amounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: Option<&'a [ResourceClaim]>,
}

impl<'a> Named<'a> {
    fn of(container: &'a Container) -> Self {
        let given = |list: &'a Option<Amounts>| list.as_ref().filter(|list| !list.is_empty());
        let resources = container.resources.as_ref();
        Named {
            name: &container.name,
            resources: resources.map_or_else(Resources::default, |resources| Resources {
                limits: given(&resources.limits),
                requests: given(&resources.requests),
                claims: resources.claims.as_deref(),
            }),
        }
    }
}

fn summary(pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref());
    let summary = Summary {
        init_containers: init.into_iter().flatten().map(Named::of).collect(),
        containers: spec
            .into_iter()
            .flat_map(|spec| &spec.containers)
            .map(Named::of)
            .collect(),
        generation: generation.unwrap_or_default(),
        error,
    };
    // The summary is plain data, which JSON can always express.
    serde_json::to_string(&summary).unwrap_or_default()
}
