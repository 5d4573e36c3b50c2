//! Computes how many chunks a buffer has. Pure.

use k8s_openapi::api::core::v1::PodSpec;
use mullion_api::capacity_buffer::CapacityBufferSpec;

use crate::state::requests::{Amounts, amount, pod_requests};

/// The maximum number of chunks of a buffer, so that a mistyped number does not make a plan for millions of pods.
pub(super) const MOST: i64 = 10_000;

/// Returns how many chunks a buffer asks for, of pods with this spec. `workload` is the number of pods that its
/// workload wants. The larger of number and percentage counts, up to what fits the limits; without both, the limits
/// alone decide (karpenter: `computeReplicas`).
pub(super) fn chunks(spec: &CapacityBufferSpec, pod: &PodSpec, workload: Option<i32>) -> i64 {
    // A share of a workload that is scaled to zero would be zero chunks, so it does not count at all.
    let workload = workload.map(i64::from).filter(|replicas| *replicas > 0);
    let share = spec.percentage.map(i64::from).zip(workload);
    // Rounded up, so one at least where a share of something is asked for.
    let share = share.map(|(percent, replicas)| (replicas * percent + 99) / 100);
    let asked = share.max(spec.replicas.map(i64::from));
    let fits = fits(&limits(spec), &pod_requests(pod));
    match (asked, fits) {
        (Some(asked), Some(fits)) => asked.min(fits),
        (asked, fits) => asked.or(fits).unwrap_or(0),
    }
}

fn limits(spec: &CapacityBufferSpec) -> Amounts {
    let limits = spec.limits.iter();
    limits
        .map(|(name, limit)| (name.clone(), amount(name, limit)))
        .collect()
}

/// Returns how many pods fit into limits, by the resources that both name; none if there is no such resource.
fn fits(limits: &Amounts, requests: &Amounts) -> Option<i64> {
    let both = limits.iter().filter_map(|(name, limit)| {
        let request = requests.get(name).filter(|request| **request > 0)?;
        Some((limit / request).max(0))
    });
    both.min()
}

/// Limits a number of chunks to [`MOST`], and converts it to the status's type.
pub(super) fn bounded(chunks: i64) -> i32 {
    let bounded = chunks.clamp(0, MOST);
    i32::try_from(bounded).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value, workload: Option<i32>) -> i64 {
        let pod = json!({ "containers": [
            { "name": "c", "resources": { "requests": { "cpu": "1", "memory": "1Gi" } } }
        ]});
        let pod: PodSpec = serde_json::from_value(pod).expect("a spec");
        chunks(
            &serde_json::from_value(spec).expect("a spec"),
            &pod,
            workload,
        )
    }

    #[test]
    fn number_share_and_limits_are_put_together_as_karpenter_does() {
        // The table of Karpenter's documentation.
        let ten = Some(10);
        assert_eq!(of(json!({ "replicas": 5 }), None), 5);
        assert_eq!(of(json!({ "percentage": 20 }), ten), 2);
        assert_eq!(of(json!({ "replicas": 5, "percentage": 80 }), ten), 8);
        assert_eq!(
            of(json!({ "replicas": 10, "limits": { "cpu": 3 } }), None),
            3
        );
        let all = json!({ "replicas": 5, "percentage": 80, "limits": { "cpu": 4 } });
        assert_eq!(of(all, ten), 4);
        assert_eq!(of(json!({ "limits": { "cpu": 5 } }), None), 5);
        // And what it does not say.
        assert_eq!(of(json!({ "percentage": 1 }), Some(3)), 1);
        assert_eq!(of(json!({ "percentage": 50 }), Some(0)), 0);
        assert_eq!(of(json!({ "percentage": 50 }), None), 0);
        assert_eq!(of(json!({ "percentage": 50, "replicas": 2 }), Some(0)), 2);
        assert_eq!(
            of(
                json!({ "limits": { "cpu": "1500m", "memory": "9Gi" } }),
                None
            ),
            1
        );
        assert_eq!(of(json!({ "limits": { "example.com/card": 5 } }), None), 0);
        assert_eq!(
            of(
                json!({ "replicas": 3, "limits": { "example.com/card": 0 } }),
                None
            ),
            3
        );
        assert_eq!(
            of(json!({ "replicas": 3, "limits": { "cpu": 0 } }), None),
            0
        );
        assert_eq!(of(json!({}), ten), 0);
    }

    #[test]
    fn nobody_gets_more_than_the_most_and_less_than_none() {
        let most = i32::MAX;
        assert_eq!(
            of(json!({ "percentage": most }), Some(most)),
            (i64::from(most) * i64::from(most) + 99) / 100
        );
        assert_eq!(bounded(i64::MAX), 10_000);
        assert_eq!(bounded(-3), 0);
        assert_eq!(of(json!({ "limits": { "cpu": "-5" } }), None), 0);
    }
}
