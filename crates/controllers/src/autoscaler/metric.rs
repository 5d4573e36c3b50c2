//! Reads one metric of an autoscaler and computes the replicas that it asks for, with kube-controller-manager's messages on
//! failure.
//!
//! Resource metrics are read from `metrics.k8s.io`. No adapter serves `custom.metrics.k8s.io` or `external.metrics.k8s.io`
//! here, so metrics of type Pods, Object and External fail as they do in a cluster without an adapter.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        autoscaling::v2::{
            ContainerResourceMetricStatus, MetricSpec, MetricStatus, MetricTarget,
            MetricValueStatus, ResourceMetricStatus,
        },
        core::v1::Pod,
    },
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use kube::Client;
use mullion_engine::model::Quantity;

use super::replicas::{MetricInputs, Missing, Proposal, Sample, Samples, Tolerances};
use crate::{
    api_error,
    metrics::{self, PodMetrics},
    pdb::go_text,
};

/// The scale target of an autoscaler, as every one of its metrics needs it.
pub(super) struct Target<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
    /// The label selector in the Scale's status, as text.
    pub(super) selector: &'a str,
    /// The pods that `selector` matches.
    pub(super) pods: &'a [Arc<Pod>],
    /// The `spec.replicas` of the Scale.
    pub(super) current: i32,
    pub(super) tolerances: Tolerances,
    pub(super) now: Timestamp,
}

/// The replica count that one metric asks for.
pub(super) struct Recommendation {
    pub(super) replicas: i32,
    /// The metric's name in events and conditions, as `cpu resource utilization (percentage of request)`.
    pub(super) name: String,
    pub(super) status: MetricStatus,
}

/// The failure to read a metric or to compute replicas from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The reason of the event and of the condition.
    pub(super) reason: &'static str,
    /// The message of the event and of the condition ScalingActive.
    pub(super) message: String,
    /// The message in the summary over all metrics.
    pub(super) in_all: String,
}

/// Reads one metric and computes the replicas that it asks for.
pub(super) async fn ask(target: &Target<'_>, spec: &MetricSpec) -> Result<Recommendation, Failure> {
    match spec.type_.as_str() {
        "Resource" => {
            let source = spec.resource.as_ref().ok_or_else(|| unknown(spec))?;
            let asked = resource(target, &source.name, None, &source.target).await;
            let (replicas, name, current) = asked.map_err(|error| Failure {
                reason: "FailedGetResourceMetric",
                in_all: format!(
                    "failed to get {} resource metric value: {error}",
                    source.name
                ),
                message: error.to_string(),
            })?;
            Ok(Recommendation {
                replicas,
                name,
                status: MetricStatus {
                    type_: spec.type_.clone(),
                    resource: Some(ResourceMetricStatus {
                        name: source.name.clone(),
                        current,
                    }),
                    ..MetricStatus::default()
                },
            })
        }
        "ContainerResource" => {
            let source = spec
                .container_resource
                .as_ref()
                .ok_or_else(|| unknown(spec))?;
            let (name, container) = (&source.name, &source.container);
            let asked = resource(target, name, Some(container), &source.target).await;
            let (replicas, named, current) = asked.map_err(|error| Failure {
                reason: "FailedGetContainerResourceMetric",
                in_all: format!("failed to get {container} container metric value: {error}"),
                message: error.to_string(),
            })?;
            Ok(Recommendation {
                replicas,
                name: named,
                status: MetricStatus {
                    type_: spec.type_.clone(),
                    container_resource: Some(ContainerResourceMetricStatus {
                        name: name.clone(),
                        container: container.clone(),
                        current,
                    }),
                    ..MetricStatus::default()
                },
            })
        }
        _ => Err(unanswered(target, spec)),
    }
}

/// The reason why a resource metric asks for no replicas.
#[derive(Debug, thiserror::Error)]
enum ResourceError {
    /// The metric has no target.
    #[error(
        "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set"
    )]
    NoTarget,
    /// The usage of the resource is unknown.
    #[error("failed to get {resource} usage: {why}")]
    Usage { resource: String, why: SamplesError },
    /// The usage of the resource is unknown as a part of what the pods request.
    #[error("failed to get {resource} utilization: {why}")]
    Utilization { resource: String, why: SamplesError },
}

/// The reason why the usage of a resource is unknown.
#[derive(Debug, thiserror::Error)]
enum SamplesError {
    /// The API of metrics has none.
    #[error(
        "unable to get metrics for resource {0}: no metrics returned from resource metrics API"
    )]
    NoMetrics(String),
    /// The API of metrics does not answer.
    #[error(
        "unable to get metrics for resource {resource}: unable to fetch metrics from resource metrics API: {}",
        api_text(.error, "pods.metrics.k8s.io")
    )]
    Api {
        resource: String,
        error: kube::Error,
    },
    /// Pods or their requests are missing.
    #[error(transparent)]
    Missing(#[from] Missing),
}

/// Reads a resource metric. Returns the replicas that it asks for, its name and its present value.
async fn resource(
    target: &Target<'_>,
    name: &str,
    container: Option<&str>,
    wanted: &MetricTarget,
) -> Result<(i32, String, MetricValueStatus), ResourceError> {
    let question = MetricInputs {
        current: target.current,
        pods: target.pods,
        resource: name,
        container,
        tolerances: target.tolerances,
        now: target.now,
    };
    if let Some(average) = &wanted.average_value {
        let samples = read(target, name, container).await;
        let proposal = samples.and_then(|own| Ok(question.by_average(own, milli(average))?));
        let proposal = proposal.map_err(|why| ResourceError::Usage {
            resource: name.to_owned(),
            why,
        })?;
        return Ok((
            proposal.replicas,
            format!("{name} resource"),
            present(name, &proposal),
        ));
    }
    let Some(percent) = wanted.average_utilization else {
        return Err(ResourceError::NoTarget);
    };
    let samples = read(target, name, container).await;
    let proposal = samples.and_then(|own| Ok(question.by_utilization(own, percent)?));
    let proposal = proposal.map_err(|why| ResourceError::Utilization {
        resource: name.to_owned(),
        why,
    })?;
    let of = match container {
        Some(_) => "container resource",
        None => "resource",
    };
    Ok((
        proposal.replicas,
        format!("{name} {of} utilization (percentage of request)"),
        present(name, &proposal),
    ))
}

/// Returns the samples of the target's pods from `metrics.k8s.io`.
async fn read(
    target: &Target<'_>,
    resource: &str,
    container: Option<&str>,
) -> Result<Samples, SamplesError> {
    let read = metrics::of_pods(target.client, target.namespace, target.selector).await;
    match read {
        // No metrics at all means that nothing is known, which must not look like zero usage.
        Ok(read) if !read.is_empty() => Ok(samples(&read, resource, container)),
        Ok(_) => Err(SamplesError::NoMetrics(resource.to_owned())),
        Err(error) => Err(SamplesError::Api {
            resource: resource.to_owned(),
            error,
        }),
    }
}

/// Sums the usage of each pod's containers (or of the one named). Pods with a container that has no sample are left out.
fn samples(read: &[PodMetrics], resource: &str, container: Option<&str>) -> Samples {
    let of_pod = |pod: &PodMetrics| {
        let counted = pod
            .containers
            .iter()
            .filter(|one| container.is_none_or(|name| one.name == name));
        let amounts: Option<Vec<i64>> = counted
            .map(|one| one.usage.get(resource).map(milli))
            .collect();
        let amounts = amounts.filter(|amounts| !amounts.is_empty())?;
        let sample = Sample {
            milli: amounts.into_iter().fold(0, i64::saturating_add),
            at: pod.timestamp.0,
            window: SignedDuration::try_from(std::time::Duration::from(pod.window))
                .unwrap_or(SignedDuration::MAX),
        };
        Some((pod.metadata.name.clone()?, sample))
    };
    read.iter().filter_map(of_pod).collect()
}

fn present(resource: &str, proposal: &Proposal) -> MetricValueStatus {
    MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: Some(amount(resource, proposal.average_milli)),
        value: None,
    }
}

/// Formats thousandths as the API server does: memory in whole bytes with a binary suffix where it divides evenly,
/// everything else in decimals.
fn amount(resource: &str, milli: i64) -> ApiQuantity {
    // Rounded up, as apimachinery's `Quantity.Value` does.
    let bytes = milli / 1000 + i64::from(milli % 1000 > 0);
    if resource != "memory" || bytes.abs() < 1024 {
        return ApiQuantity(match milli % 1000 {
            0 => (milli / 1000).to_string(),
            _ => format!("{milli}m"),
        });
    }
    let (mut rest, mut suffix) = (bytes, "");
    for next in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
        if rest % 1024 != 0 {
            break;
        }
        (rest, suffix) = (rest / 1024, next);
    }
    ApiQuantity(format!("{rest}{suffix}"))
}

/// Returns a quantity in thousandths. The API server has validated the text, so the zero for a parse error is never used.
fn milli(quantity: &ApiQuantity) -> i64 {
    let quantity: Quantity = quantity.0.parse().unwrap_or_default();
    quantity.milli_value()
}

/// Returns the message that client-go makes of an error: a 404 without a Status means that the API itself is not served.
fn api_text(error: &kube::Error, resource: &str) -> String {
    match api_error::status(error) {
        Some(status) if status.code == 404 && status.reason != "NotFound" => not_there(resource),
        _ => api_error::message(error),
    }
}

fn not_there(resource: &str) -> String {
    format!("the server could not find the requested resource (get {resource})")
}

/// Returns the failure of a metric whose API no server offers.
fn unanswered(target: &Target<'_>, spec: &MetricSpec) -> Failure {
    const CUSTOM: &str = "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered";
    if let ("Pods", Some(source)) = (spec.type_.as_str(), &spec.pods) {
        let message = format!("unable to get metric {}: {CUSTOM}", source.metric.name);
        Failure {
            reason: "FailedGetPodsMetric",
            in_all: format!("failed to get pods metric value: {message}"),
            message,
        }
    } else if let ("Object", Some(source)) = (spec.type_.as_str(), &spec.object) {
        let (metric, object) = (&source.metric.name, &source.described_object);
        let message = format!(
            "unable to get metric {metric} on {} {}/{}: {CUSTOM}",
            object.kind, target.namespace, object.name
        );
        let failure = match source.target.type_.as_str() {
            "AverageValue" => format!("failed to get {metric} object metric: {message}"),
            _ => message.clone(),
        };
        Failure {
            reason: "FailedGetObjectMetric",
            in_all: format!("failed to get object metric value: {failure}"),
            message,
        }
    } else if let ("External", Some(source)) = (spec.type_.as_str(), &spec.external) {
        let metric = &source.metric.name;
        let selector = source.metric.selector.as_ref();
        let message = format!(
            "unable to get external metric {}/{metric}/{}: unable to fetch metrics from external metrics API: {}",
            target.namespace,
            selector.map_or_else(|| "nil".to_owned(), go_text),
            not_there(&format!("{metric}.external.metrics.k8s.io"))
        );
        let failure = match source.target.average_value {
            Some(_) => format!("failed to get {metric} external metric: {message}"),
            None => format!("failed to get external metric {metric}: {message}"),
        };
        Failure {
            reason: "FailedGetExternalMetric",
            in_all: format!("failed to get {metric} external metric value: {failure}"),
            message,
        }
    } else {
        unknown(spec)
    }
}

fn unknown(spec: &MetricSpec) -> Failure {
    let message = format!("unknown metric source type {:?}", spec.type_);
    Failure {
        reason: "InvalidMetricSourceType",
        in_all: message.clone(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_upstream_writes_them() {
        let cases = [
            ("cpu", 250, "250m"),
            ("cpu", 2_000, "2"),
            ("cpu", 0, "0"),
            ("memory", 300 * 1024 * 1024 * 1000, "300Mi"),
            ("memory", 1_500, "1500m"),
            ("memory", 1_000_000_500, "1000001"),
            ("memory", 2_048_000, "2Ki"),
            ("ephemeral-storage", 1_024_000, "1024"),
        ];
        for (resource, milli, text) in cases {
            assert_eq!(amount(resource, milli).0, text, "{resource} {milli}");
        }
    }
}
