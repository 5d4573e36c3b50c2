//! The HorizontalPodAutoscaler controller (kube-controller-manager: horizontal-pod-autoscaler-controller).
//!
//! Every autoscaler is evaluated once per period. [`target`] reads and writes the Scale, [`metric`] reads one metric,
//! [`replicas`] computes the replicas that this metric asks for, [`limits`] applies stabilization and bounds. This file runs
//! these steps and writes the status with its conditions.

mod error;
mod limits;
mod metric;
mod replicas;
mod selector;
mod target;

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::{
    autoscaling::v2::{
        HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
        HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricStatus,
    },
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt,
    api::PostParams,
    core::{Selector, SelectorExt},
};

use self::{
    error::AutoscalerError,
    limits::{Bounds, History},
    metric::{Failure, Recommendation},
    replicas::Tolerances,
    target::Target,
};
use crate::{Context, Informer, Key, Queue, Recorder, api_error};

/// How often each autoscaler is evaluated (`--horizontal-pod-autoscaler-sync-period`).
pub const PERIOD: Duration = Duration::from_secs(15);
/// How many autoscalers are evaluated at the same time (`--concurrent-horizontal-pod-autoscaler-syncs`).
const WORKERS: usize = 5;

/// Starts the controller, which evaluates each autoscaler once per `period`.
pub fn start(context: &Context, period: Duration) {
    let queue: Queue<Key> = Queue::new("horizontalpodautoscaler");
    let autoscalers = Informer::new(
        Api::all(context.client.clone()),
        &[],
        context.tasks.clone(),
        context.shutdown.clone(),
    );
    autoscalers.on_change({
        let queue = queue.clone();
        // A change does not postpone an evaluation that is already queued, and does not bring it forward: only the period
        // decides.
        move |change| queue.add_after(Key::of(&**change.object()), period)
    });
    let controller = Arc::new(Controller {
        context: context.clone(),
        recorder: context.recorder("horizontal-pod-autoscaler"),
        autoscalers,
        states: Mutex::default(),
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if controller.autoscalers.synced().await && context.informers.pods.synced().await {
            queue.clone().run(&context, WORKERS, move |key| {
                let (controller, queue) = (Arc::clone(&controller), queue.clone());
                async move {
                    if controller.sync(&key).await {
                        queue.add_after(key, period);
                    }
                    Ok::<_, std::convert::Infallible>(())
                }
            });
        }
    });
}

struct Controller {
    context: Context,
    recorder: Recorder,
    autoscalers: Informer<HorizontalPodAutoscaler>,
    states: Mutex<BTreeMap<Key, AutoscalerState>>,
}

/// The state of an autoscaler that the API does not store.
#[derive(Default)]
struct AutoscalerState {
    history: History,
    /// The selector of the pods it scales; `None` until the target was read.
    selector: Option<Selector>,
}

/// The status that one evaluation builds up.
#[derive(Default)]
struct Evaluation {
    status: HorizontalPodAutoscalerStatus,
    /// The target's replicas before and after this evaluation; zeros until the Scale was read.
    replicas: (i32, i32),
    measured: Vec<MetricStatus>,
}

/// The decision of one evaluation.
struct Plan {
    wanted: i32,
    reason: String,
    /// The message about the metrics that failed, although others were enough to decide.
    trouble: Option<AutoscalerError>,
}

/// The result of carrying out a [`Plan`].
struct Scaled {
    rescaled: bool,
    trouble: Option<AutoscalerError>,
}

impl Controller {
    /// Evaluates one autoscaler; returns `false` if it no longer exists, so that it is not queued again.
    async fn sync(&self, key: &Key) -> bool {
        // Its selector must go as well, or its pods would stay ambiguous for another autoscaler.
        let Some(autoscaler) = self.autoscalers.get_key(key) else {
            self.states().remove(key);
            return false;
        };
        let mut evaluation = Evaluation {
            status: autoscaler.status.clone().unwrap_or_default(),
            ..Evaluation::default()
        };
        if let Err(error) = self.reconcile(key, &autoscaler, &mut evaluation).await {
            let error = error.to_string();
            tracing::debug!(autoscaler = %key, error, "an autoscaler could not do all of its work");
        }
        // Written after an error too: the conditions tell the user what is wrong.
        self.write(&autoscaler, evaluation.status).await;
        true
    }

    async fn reconcile(
        &self,
        key: &Key,
        autoscaler: &HorizontalPodAutoscaler,
        evaluation: &mut Evaluation,
    ) -> Result<(), AutoscalerError> {
        let spec = &autoscaler.spec;
        let client = &self.context.client;
        let found = Target::find(client, key.namespace(), &spec.scale_target_ref).await;
        let target = match found {
            Ok(target) => target,
            Err(error) => {
                let why = error.to_string();
                self.recorder
                    .warning(autoscaler, "FailedGetScale", why.as_str());
                let message = format!(
                    "the HPA controller was unable to get the target's current scale: {why}"
                );
                self.set_condition(
                    evaluation,
                    "AbleToScale",
                    false,
                    ("FailedGetScale", &message),
                );
                return Err(error.into());
            }
        };
        let able = "the HPA controller was able to get the target's current scale";
        self.set_condition(evaluation, "AbleToScale", true, ("SucceededGetScale", able));
        let mut history = self.history(key);
        // On the steady clock, so that a jump of the wall clock does not end a stabilization window.
        history.begin(target.replicas(), self.context.clock.steady());
        let scaled = self
            .scale(key, autoscaler, target, &mut history, evaluation)
            .await;
        self.settle(
            evaluation,
            scaled.as_ref().is_ok_and(|scaled| scaled.rescaled),
        );
        // Kept even if the Scale could not be written; the recommendation was made all the same.
        self.remember(key, history);
        scaled?.trouble.map_or(Ok(()), Err)
    }

    /// Decides the replica count and writes it to the Scale if it differs.
    async fn scale(
        &self,
        key: &Key,
        autoscaler: &HorizontalPodAutoscaler,
        mut target: Target,
        history: &mut History,
        evaluation: &mut Evaluation,
    ) -> Result<Scaled, AutoscalerError> {
        let current = target.replicas();
        // If planning fails, the status keeps the last desired number.
        evaluation.replicas = (current, evaluation.status.desired_replicas);
        let plan = self
            .plan(key, autoscaler, &target, history, evaluation)
            .await?;
        let Plan {
            wanted,
            reason,
            trouble,
        } = plan;
        let rescaled = wanted != current;
        if rescaled {
            if let Err(error) = target.rescale(wanted).await {
                let error = AutoscalerError::Rescale(error);
                let message = format!("New size: {wanted}; reason: {reason}; error: {error}");
                self.recorder.warning(autoscaler, "FailedRescale", message);
                let message =
                    format!("the HPA controller was unable to update the target scale: {error}");
                self.set_condition(
                    evaluation,
                    "AbleToScale",
                    false,
                    ("FailedUpdateScale", &message),
                );
                return Err(error);
            }
            let message =
                format!("the HPA controller was able to update the target scale to {wanted}");
            self.set_condition(
                evaluation,
                "AbleToScale",
                true,
                ("SucceededRescale", &message),
            );
            let message = format!("New size: {wanted}; reason: {reason}");
            self.recorder
                .normal(autoscaler, "SuccessfulRescale", message);
            let behavior = autoscaler.spec.behavior.as_ref();
            // Only a change that was written counts against the policies' rates.
            history.scaled(behavior, current, wanted, self.context.clock.steady());
        }
        evaluation.replicas = (current, wanted);
        Ok(Scaled { rescaled, trouble })
    }

    /// Decides how many replicas the target should have, and the reason for the event.
    async fn plan(
        &self,
        key: &Key,
        autoscaler: &HorizontalPodAutoscaler,
        target: &Target,
        history: &mut History,
        evaluation: &mut Evaluation,
    ) -> Result<Plan, AutoscalerError> {
        let (spec, current) = (&autoscaler.spec, target.replicas());
        let plan = |wanted: i32, reason: &str| Plan {
            wanted,
            reason: reason.to_owned(),
            trouble: None,
        };
        let bounds = Bounds {
            min: spec.min_replicas.unwrap_or(1),
            max: spec.max_replicas,
            behavior: spec.behavior.as_ref(),
        };
        // Zero replicas turn autoscaling off. A number outside the bounds is corrected without looking at metrics.
        if current == 0 {
            let why = "scaling is disabled since the replica count of the target is zero";
            self.set_condition(evaluation, "ScalingActive", false, ("ScalingDisabled", why));
            return Ok(plan(current, ""));
        }
        if current > bounds.max {
            let reason = "Current number of replicas above Spec.MaxReplicas";
            return Ok(plan(bounds.max, reason));
        }
        if current < bounds.min {
            let reason = "Current number of replicas below Spec.MinReplicas";
            return Ok(plan(bounds.min, reason));
        }
        let asked = self.ask(key, autoscaler, spec, target, evaluation).await;
        let (recommended, metric, trouble) = asked.inspect_err(|why| {
            self.recorder
                .warning(autoscaler, "FailedComputeMetricsReplicas", why.to_string());
        })?;
        let reason = match recommended.cmp(&current) {
            Ordering::Greater => format!("{metric} above target"),
            Ordering::Less => "All metrics below target".to_owned(),
            Ordering::Equal => String::new(),
        };
        let outcome = history.judge(&bounds, current, recommended, self.context.clock.steady());
        self.set_condition(evaluation, "AbleToScale", true, outcome.able_to_scale);
        let (limited, why) = outcome.scaling_limited;
        self.set_condition(evaluation, "ScalingLimited", limited, why);
        Ok(Plan {
            wanted: outcome.replicas,
            reason,
            trouble,
        })
    }

    /// Evaluates all metrics: returns the highest replica count that one asks for, that metric's name, and the message about
    /// metrics that failed.
    async fn ask(
        &self,
        key: &Key,
        autoscaler: &HorizontalPodAutoscaler,
        spec: &HorizontalPodAutoscalerSpec,
        target: &Target,
        evaluation: &mut Evaluation,
    ) -> Result<(i32, String, Option<AutoscalerError>), AutoscalerError> {
        let pods = self.pods(key, autoscaler, target.selector(), evaluation)?;
        let current = target.replicas();
        let target = metric::Target {
            client: &self.context.client,
            namespace: key.namespace(),
            selector: target.selector(),
            pods: &pods,
            current,
            tolerances: tolerances(spec),
            now: self.context.clock.now(),
        };
        let metrics = spec.metrics.as_deref().unwrap_or_default();
        let (mut best, mut first, mut failed): (Option<Recommendation>, Option<Failure>, usize) =
            (None, None, 0);
        for one in metrics {
            match metric::ask(&target, one).await {
                Ok(recommended) => {
                    evaluation.measured.push(recommended.status.clone());
                    if best
                        .as_ref()
                        .is_none_or(|best| recommended.replicas > best.replicas)
                    {
                        best = Some(recommended);
                    }
                }
                Err(failure) => {
                    // An empty entry keeps the others at the index of their metric.
                    evaluation.measured.push(MetricStatus::default());
                    self.recorder
                        .warning(autoscaler, failure.reason, failure.message.as_str());
                    failed += 1;
                    first = first.or(Some(failure));
                }
            }
        }
        let trouble = |first: &Failure| AutoscalerError::Metrics {
            failed,
            all: metrics.len(),
            first: first.in_all.clone(),
        };
        match (best, first) {
            // A failed metric might have asked for more, so while one fails the target is not scaled down.
            (Some(best), first) if first.is_none() || best.replicas >= current => {
                let message = format!(
                    "the HPA was able to successfully calculate a replica count from {}",
                    best.name
                );
                self.set_condition(
                    evaluation,
                    "ScalingActive",
                    true,
                    ("ValidMetricFound", &message),
                );
                Ok((best.replicas, best.name, first.as_ref().map(trouble)))
            }
            (_, Some(first)) => {
                let message = format!(
                    "the HPA was unable to compute the replica count: {}",
                    first.message
                );
                self.set_condition(evaluation, "ScalingActive", false, (first.reason, &message));
                Err(trouble(&first))
            }
            (_, None) => Err(AutoscalerError::NoMetrics),
        }
    }

    /// Returns the pods that the target selects; an error if another autoscaler selects one of them too.
    fn pods(
        &self,
        key: &Key,
        autoscaler: &HorizontalPodAutoscaler,
        text: &str,
        evaluation: &mut Evaluation,
    ) -> Result<Vec<Arc<Pod>>, AutoscalerError> {
        if text.is_empty() {
            let why = AutoscalerError::NoSelector;
            self.recorder
                .warning(autoscaler, "SelectorRequired", why.to_string());
            let message = "the HPA target's scale is missing a selector";
            self.set_condition(
                evaluation,
                "ScalingActive",
                false,
                ("InvalidSelector", message),
            );
            return Err(why);
        }
        let selector = selector::parse(text).map_err(|error| {
            let error = AutoscalerError::from(error);
            let why = error.to_string();
            self.recorder
                .warning(autoscaler, "InvalidSelector", why.as_str());
            self.set_condition(
                evaluation,
                "ScalingActive",
                false,
                ("InvalidSelector", &why),
            );
            error
        })?;
        let mut pods = self.context.informers.pods.in_namespace(key.namespace());
        pods.retain(|pod| selector.matches(pod.labels()));
        let rival = {
            let mut states = self.states();
            // Recorded before the comparison, under one lock, so that of two autoscalers at least the second
            // sees the other.
            states.entry(key.clone()).or_default().selector = Some(selector);
            let mut others = states
                .iter()
                .filter(|(other, _)| *other != key && other.namespace() == key.namespace());
            others
                .find(|(_, other)| {
                    let other = other.selector.as_ref();
                    other.is_some_and(|other| pods.iter().any(|pod| other.matches(pod.labels())))
                })
                .map(|(other, _)| other.clone())
        };
        match rival {
            None => Ok(pods),
            Some(rival) => {
                // The two names are sorted, so that both autoscalers report the same message.
                let [first, second] = if rival < *key {
                    [rival, key.clone()]
                } else {
                    [key.clone(), rival]
                };
                let error = AutoscalerError::Ambiguous {
                    selector: text.to_owned(),
                    first,
                    second,
                };
                let why = error.to_string();
                self.recorder
                    .warning(autoscaler, "AmbiguousSelector", why.as_str());
                self.set_condition(
                    evaluation,
                    "ScalingActive",
                    false,
                    ("AmbiguousSelector", &why),
                );
                Err(error)
            }
        }
    }

    /// Sets a condition; its transition time changes only with its status.
    fn set_condition(
        &self,
        evaluation: &mut Evaluation,
        kind: &str,
        holds: bool,
        (reason, message): (&str, &str),
    ) {
        let conditions = evaluation.status.conditions.get_or_insert_default();
        let status = if holds { "True" } else { "False" };
        let at = conditions
            .iter()
            .position(|condition| condition.type_ == kind);
        let at = at.unwrap_or_else(|| {
            conditions.push(HorizontalPodAutoscalerCondition {
                type_: kind.to_owned(),
                ..HorizontalPodAutoscalerCondition::default()
            });
            conditions.len() - 1
        });
        let condition = &mut conditions[at];
        if condition.status != status {
            condition.last_transition_time = Some(self.context.now());
        }
        condition.status = status.to_owned();
        condition.reason = Some(reason.to_owned());
        condition.message = Some(message.to_owned());
    }

    /// Writes replicas, metrics and scale time of this evaluation into the status.
    fn settle(&self, evaluation: &mut Evaluation, rescaled: bool) {
        let (current, desired) = evaluation.replicas;
        let status = &mut evaluation.status;
        // The field is omitted at zero, as in Go's JSON (`omitempty`).
        status.current_replicas = (current != 0).then_some(current);
        status.desired_replicas = desired;
        let measured = std::mem::take(&mut evaluation.measured);
        status.current_metrics = (!measured.is_empty()).then_some(measured);
        if rescaled {
            status.last_scale_time = Some(self.context.now());
        }
    }

    async fn write(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        status: HorizontalPodAutoscalerStatus,
    ) {
        if autoscaler.status.as_ref() == Some(&status) {
            return;
        }
        let namespace = autoscaler.namespace().unwrap_or_default();
        let api: Api<HorizontalPodAutoscaler> =
            Api::namespaced(self.context.client.clone(), &namespace);
        let updated = HorizontalPodAutoscaler {
            status: Some(status),
            ..autoscaler.clone()
        };
        let name = autoscaler.name_any();
        let written = api
            .replace_status(&name, &PostParams::default(), &updated)
            .await;
        if let Err(error) = written {
            self.recorder
                .warning(autoscaler, "FailedUpdateStatus", api_error::message(&error));
        }
    }

    fn history(&self, key: &Key) -> History {
        let states = self.states();
        states
            .get(key)
            .map(|state| state.history.clone())
            .unwrap_or_default()
    }

    fn remember(&self, key: &Key, history: History) {
        self.states().entry(key.clone()).or_default().history = history;
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<Key, AutoscalerState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the tolerances of the autoscaler's `behavior`, and the default where it sets none.
fn tolerances(spec: &HorizontalPodAutoscalerSpec) -> Tolerances {
    let behavior = spec.behavior.as_ref();
    let tolerance = |rules: Option<&HPAScalingRules>| part(&rules?.tolerance.as_ref()?.0);
    let usual = Tolerances::USUAL;
    let down = behavior.and_then(|behavior| behavior.scale_down.as_ref());
    let up = behavior.and_then(|behavior| behavior.scale_up.as_ref());
    Tolerances {
        down: tolerance(down).unwrap_or(usual.down),
        up: tolerance(up).unwrap_or(usual.up),
    }
}

/// Parses the canonical form of a quantity below a thousand: digits and one of the suffixes `m`, `u`, `n`, or none.
fn part(quantity: &str) -> Option<f64> {
    let (digits, unit) = match quantity.char_indices().next_back()? {
        (at, 'm') => (&quantity[..at], 1e-3),
        (at, 'u') => (&quantity[..at], 1e-6),
        (at, 'n') => (&quantity[..at], 1e-9),
        _ => (quantity, 1.0),
    };
    Some(digits.parse::<f64>().ok()? * unit)
}
