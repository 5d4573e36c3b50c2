//! kube-scheduler: NodeResourcesFit's score. It is the weighted mean of the scores that the profile's
//! strategy gives to each resource.

use super::resource_allocation::{Load, Requests, Stock, load};
use super::{MAX_SCORE, least_allocated};
use crate::class::Shape;
use crate::cluster::Node;
use crate::profile::{FitScore, Strategy};

pub(crate) fn raw(pod: &Shape, node: &Node, score: &FitScore, stock: Option<Stock<'_>>) -> i64 {
    let (strategy, resources) = match score {
        // The default profile, without the loop over resources: it is asked for every node and pod.
        FitScore::FreeCpuAndMemory => return least_allocated::raw(pod, node),
        FitScore::Of {
            strategy,
            resources,
        } => (strategy, resources),
    };
    let mut sum = 0_i64;
    let mut weights = 0_i64;
    for (resource, weight) in resources {
        let Some(load) = load(pod, true, node, *resource, Requests::Weighed, stock) else {
            continue;
        };
        let score = of_load(strategy, load);
        // kube-scheduler's `buildRequestedToCapacityRatioScorerFunction` leaves resources of score 0 out of the mean,
        // the others do not.
        if score <= 0 && matches!(strategy, Strategy::Ratio(_)) {
            continue;
        }
        sum = sum.saturating_add(score.saturating_mul(*weight));
        weights = weights.saturating_add(*weight);
    }
    match strategy {
        _ if weights == 0 => 0,
        // Rounded for this strategy and cut off for the others, as in kube-scheduler.
        Strategy::Ratio(_) => (sum as f64 / weights as f64).round() as i64,
        Strategy::Least | Strategy::Most => sum / weights,
    }
}

fn of_load(strategy: &Strategy, load: Load) -> i64 {
    let Load {
        requested,
        allocatable,
    } = load;
    let share =
        |part: i64| (i128::from(part) * i128::from(MAX_SCORE) / i128::from(allocatable)) as i64;
    match strategy {
        Strategy::Least if requested > allocatable => 0,
        Strategy::Least => share(allocatable.wrapping_sub(requested)),
        Strategy::Most => share(requested.min(allocatable)),
        // More than the node has counts as full (`maxUtilization`).
        Strategy::Ratio(points) if requested > allocatable => at(points, 100),
        Strategy::Ratio(points) => at(points, share(requested)),
    }
}

/// Returns the score of a curve at a utilization; the curve is flat before its first and after its last
/// point.
fn at(points: &[(i64, i64)], utilization: i64) -> i64 {
    let next = points.iter().position(|(to, _)| utilization <= *to);
    match next {
        Some(0) => points[0].1,
        Some(next) => {
            let ((from, low), (to, high)) = (points[next - 1], points[next]);
            let slope = (high - low).saturating_mul(utilization - from);
            // Two points of one utilization make a step and no slope.
            low + slope.checked_div(to - from).unwrap_or(0)
        }
        None => points.last().map_or(0, |(_, score)| *score),
    }
}

#[cfg(test)]
mod tests {
    use super::at;

    #[test]
    fn a_curve_is_flat_outside_and_rounds_toward_zero_inside() {
        let points = [(10, 0), (40, 100), (70, 33)];
        assert_eq!(at(&points, 0), 0);
        assert_eq!(at(&points, 10), 0);
        assert_eq!(at(&points, 20), 33);
        assert_eq!(at(&points, 41), 98);
        assert_eq!(at(&points, 100), 33);
        assert_eq!(at(&[], 5), 0);
    }
}
