//! Computes how many replicas one metric asks for (kube-controller-manager: `replica_calculator.go`). Pure.
//!
//! Pods without metrics and pods that are not ready are counted conservatively: with a usage that dampens scaling, so that
//! they neither reverse its direction nor make it overshoot.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::ResourceExt;
use mullion_engine::model::Quantity;

use crate::{pods, state::requests::pod_requests};

/// How long after a pod's start its CPU usage may still be startup work
/// (`--horizontal-pod-autoscaler-cpu-initialization-period`).
const CPU_INITIALIZATION: SignedDuration = SignedDuration::from_mins(5);
/// A pod that became unready within this time after its start has never been ready
/// (`--horizontal-pod-autoscaler-initial-readiness-delay`).
const INITIAL_READINESS_DELAY: SignedDuration = SignedDuration::from_secs(30);

/// How far the ratio of usage to target may be from 1 before the target is scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerances {
    /// Below 1.
    pub(super) down: f64,
    /// Above 1.
    pub(super) up: f64,
}

impl Tolerances {
    /// The default for an autoscaler that sets no tolerance (`--horizontal-pod-autoscaler-tolerance`).
    pub(super) const USUAL: Self = Self { down: 0.1, up: 0.1 };

    fn take(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// The measured usage of one pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Thousandths of a core or of a byte.
    pub(super) milli: i64,
    /// The end of the measuring window.
    pub(super) at: Timestamp,
    /// The length of the measuring window.
    pub(super) window: SignedDuration,
}

/// Samples by pod name.
pub(super) type Samples = BTreeMap<String, Sample>;

/// The inputs of the computation for one metric of one autoscaler.
pub(super) struct MetricInputs<'a> {
    /// The target's `spec.replicas`.
    pub(super) current: i32,
    /// The pods that the target selects.
    pub(super) pods: &'a [Arc<Pod>],
    /// The resource's name, as `cpu` or `memory`.
    pub(super) resource: &'a str,
    /// The container whose usage counts; `None` for the sum over all containers.
    pub(super) container: Option<&'a str>,
    pub(super) tolerances: Tolerances,
    pub(super) now: Timestamp,
}

/// The replica count that one metric asks for, and the present value of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    /// Present utilization in percent of the requests, if the target is a utilization.
    pub(super) utilization: Option<i32>,
    /// Average usage per pod, in thousandths.
    pub(super) average_milli: i64,
}

/// Why no replica count can be computed, with kube-controller-manager's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Missing {
    #[error("no pods returned by selector while calculating replica count")]
    Pods,
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    Samples,
    #[error("no metrics returned matched known pods")]
    Requests,
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    Request {
        resource: String,
        container: String,
        pod: String,
    },
    #[error("missing pod-level request for {resource} in Pod {pod}")]
    PodRequest { resource: String, pod: String },
    #[error("container {container} not found in Pod {pod}")]
    Container { container: String, pod: String },
}

/// Usage as a ratio to its target.
#[derive(Clone, Copy)]
struct UsageRatio {
    ratio: f64,
    utilization: Option<i32>,
    average_milli: i64,
}

impl MetricInputs<'_> {
    /// Returns the replicas with which pods use `target` percent of their requests on average.
    pub(super) fn by_utilization(
        &self,
        samples: Samples,
        target: i32,
    ) -> Result<Proposal, Missing> {
        let (samples, pods) = self.group(samples)?;
        let requests = self.requests()?;
        // A pod without a sample is assumed to use all it requests, or the target if that is more.
        // With a target above 100 % a full request would look like too little usage.
        let fallback = i64::from(target.max(100));
        let most = |pod: &str| {
            let requested = requests.get(pod).copied().unwrap_or_default();
            scaled(requested, fallback, 100)
        };
        let read = |samples: &Samples| utilization(samples, &requests, target);
        self.decide(samples, &pods, &read, &most)
    }

    /// Returns the replicas with which each pod uses `target_milli` on average.
    pub(super) fn by_average(
        &self,
        samples: Samples,
        target_milli: i64,
    ) -> Result<Proposal, Missing> {
        let (samples, pods) = self.group(samples)?;
        let read = |samples: &Samples| Ok(average(samples, target_milli));
        self.decide(samples, &pods, &read, &|_| target_milli)
    }

    /// Sorts the pods into groups, and drops the samples of pods that are ignored or unready.
    fn group(&self, mut samples: Samples) -> Result<(Samples, Groups), Missing> {
        if self.pods.is_empty() {
            return Err(Missing::Pods);
        }
        let groups = Groups::of(self, &samples);
        for pod in groups.ignored.iter().chain(&groups.unready) {
            samples.remove(pod);
        }
        if samples.is_empty() {
            return Err(Missing::Samples);
        }
        Ok((samples, groups))
    }

    fn decide(
        &self,
        mut samples: Samples,
        groups: &Groups,
        read: &dyn Fn(&Samples) -> Result<UsageRatio, Missing>,
        most: &dyn Fn(&str) -> i64,
    ) -> Result<Proposal, Missing> {
        let first = read(&samples)?;
        let proposal = |replicas| Proposal {
            replicas,
            utilization: first.utilization,
            average_milli: first.average_milli,
        };
        let direction = |ratio: f64| ratio.partial_cmp(&1.0).unwrap_or(Ordering::Equal);
        let grows = direction(first.ratio) == Ordering::Greater;
        let unready_counts = !groups.unready.is_empty() && grows;
        if !unready_counts && groups.missing.is_empty() {
            return Ok(proposal(if self.tolerances.take(first.ratio) {
                self.current
            } else {
                times(first.ratio, groups.ready)
            }));
        }
        let mut assume = |pods: &[String], milli: &dyn Fn(&str) -> i64| {
            for pod in pods {
                let sample = Sample {
                    milli: milli(pod),
                    at: self.now,
                    window: SignedDuration::ZERO,
                };
                samples.insert(pod.clone(), sample);
            }
        };
        // When scaling down, a pod without a sample counts as busy; when scaling up, as idle. Either dampens the change.
        match direction(first.ratio) {
            Ordering::Less => assume(&groups.missing, most),
            Ordering::Greater => assume(&groups.missing, &|_| 0),
            Ordering::Equal => {}
        }
        if unready_counts {
            assume(&groups.unready, &|_| 0);
        }
        // With these assumptions the ratio may turn around. Then the evidence is too weak to scale.
        let second = read(&samples)?.ratio;
        let turned = direction(first.ratio) == direction(second).reverse()
            && direction(second) != Ordering::Equal;
        if self.tolerances.take(second) || turned {
            return Ok(proposal(self.current));
        }
        let replicas = times(second, samples.len());
        let overshoots = match direction(second) {
            Ordering::Less => replicas > self.current,
            Ordering::Greater => replicas < self.current,
            Ordering::Equal => false,
        };
        Ok(proposal(if overshoots { self.current } else { replicas }))
    }

    /// Returns the request of each pod, in thousandths.
    fn requests(&self) -> Result<BTreeMap<String, i64>, Missing> {
        let one = |pod: &Arc<Pod>| Ok((pod.name_any(), self.request_of(pod)?));
        self.pods.iter().map(one).collect()
    }

    fn request_of(&self, pod: &Pod) -> Result<i64, Missing> {
        let Some(spec) = &pod.spec else {
            return Ok(0);
        };
        if self.container.is_none() && has_own_requests(spec) {
            let all = pod_requests(spec);
            let requested = all.get(self.resource).copied();
            let requested = requested.ok_or_else(|| Missing::PodRequest {
                resource: self.resource.to_owned(),
                pod: pod.name_any(),
            })?;
            // `pod_requests` counts cpu in thousandths already, everything else in whole units.
            return Ok(match self.resource {
                "cpu" => requested,
                _ => requested.saturating_mul(1000),
            });
        }
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|one| one.restart_policy.as_deref() == Some("Always"));
        let all = spec.containers.iter().chain(sidecars);
        let mut counted = all
            .filter(|one| self.container.is_none_or(|name| name == one.name))
            .peekable();
        if let (Some(name), None) = (self.container, counted.peek()) {
            return Err(Missing::Container {
                container: name.to_owned(),
                pod: pod.name_any(),
            });
        }
        counted.try_fold(0_i64, |sum, container| {
            let requested = requested_milli(container, self.resource);
            let requested = requested.ok_or_else(|| Missing::Request {
                resource: self.resource.to_owned(),
                container: container.name.clone(),
                pod: pod.name_any(),
            })?;
            Ok(sum.saturating_add(requested))
        })
    }
}

/// The pods of a target, sorted by how their usage counts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Groups {
    ready: usize,
    /// Not started, or its CPU usage may be startup work.
    unready: Vec<String>,
    /// Running, but without a sample.
    missing: Vec<String>,
    /// Finished, failed, or being deleted.
    ignored: Vec<String>,
}

impl Groups {
    fn of(question: &MetricInputs<'_>, samples: &Samples) -> Self {
        let mut groups = Self::default();
        for pod in question.pods {
            let name = pod.name_any();
            let sample = samples.get(&name);
            if !pods::is_active(pod) {
                groups.ignored.push(name);
            } else if pods::phase(pod) == "Pending" {
                groups.unready.push(name);
            } else if let Some(sample) = sample {
                if question.resource == "cpu" && is_starting(pod, sample, question.now) {
                    groups.unready.push(name);
                } else {
                    groups.ready += 1;
                }
            } else {
                groups.missing.push(name);
            }
        }
        groups
    }
}

/// Returns whether a pod's CPU usage may be startup work and so says nothing about its load.
fn is_starting(pod: &Pod, sample: &Sample, now: Timestamp) -> bool {
    let started = pod
        .status
        .as_ref()
        .and_then(|status| status.start_time.as_ref());
    let (Some(ready), Some(started)) = (pods::condition(pod, "Ready"), started) else {
        return true;
    };
    let unready = ready.status == "False";
    let changed = ready
        .last_transition_time
        .as_ref()
        .map_or(Timestamp::MIN, |time| time.0);
    let after = |start: Timestamp, time| start.saturating_add(time).unwrap_or(Timestamp::MAX);
    if after(started.0, CPU_INITIALIZATION) > now {
        // While the pod initializes, its sample counts only if the whole window lies after the change to ready.
        unready || sample.at < after(changed, sample.window)
    } else {
        // The pod has never been ready: it became unready shortly after its start.
        unready && after(started.0, INITIAL_READINESS_DELAY) > changed
    }
}

/// Returns whether the pod has pod-level requests, which count instead of the sum over its containers.
fn has_own_requests(spec: &PodSpec) -> bool {
    let own = spec
        .resources
        .as_ref()
        .and_then(|own| own.requests.as_ref());
    own.is_some_and(|own| {
        own.keys()
            .any(|name| matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-"))
    })
}

fn requested_milli(container: &Container, resource: &str) -> Option<i64> {
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    let quantity: Quantity = requests.get(resource)?.0.parse().ok()?;
    Some(quantity.milli_value())
}

fn utilization(
    samples: &Samples,
    requests: &BTreeMap<String, i64>,
    target: i32,
) -> Result<UsageRatio, Missing> {
    let known = samples
        .iter()
        .filter_map(|(pod, sample)| Some((sample.milli, *requests.get(pod)?)));
    let (mut used, mut requested, mut pods) = (0_i64, 0_i64, 0_i64);
    for (sample, request) in known {
        used = used.saturating_add(sample);
        requested = requested.saturating_add(request);
        pods += 1;
    }
    if requested == 0 {
        return Err(Missing::Requests);
    }
    let utilization = i32::try_from(scaled(used, 100, requested)).unwrap_or(i32::MAX);
    Ok(UsageRatio {
        ratio: f64::from(utilization) / f64::from(target),
        utilization: Some(utilization),
        average_milli: used / pods,
    })
}

fn average(samples: &Samples, target_milli: i64) -> UsageRatio {
    let used = samples
        .values()
        .fold(0_i64, |sum, sample| sum.saturating_add(sample.milli));
    let pods = i64::try_from(samples.len()).unwrap_or(i64::MAX).max(1);
    UsageRatio {
        ratio: (used / pods) as f64 / target_milli as f64,
        utilization: None,
        average_milli: used / pods,
    }
}

/// Returns `amount * times / parts`, computed without intermediate overflow.
fn scaled(amount: i64, times: i64, parts: i64) -> i64 {
    let exact = i128::from(amount) * i128::from(times) / i128::from(parts);
    i64::try_from(exact).unwrap_or(i64::MAX)
}

/// Returns `ratio * pods`, rounded up.
fn times(ratio: f64, pods: usize) -> i32 {
    // Casts of floats saturate.
    (ratio * pods as f64).ceil() as i32
}

#[cfg(test)]
mod tests;
