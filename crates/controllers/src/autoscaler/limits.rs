//! Limits the replica count that the metrics recommend: stabilization, scaling policies, and the bounds of the spec
//! (kube-controller-manager: `horizontal.go`). Pure.
//!
//! [`History`] holds the past recommendations and scale events of one autoscaler. It lives in memory only, as
//! kube-controller-manager's does, so a restart forgets it.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior,
};

/// The window over which the highest recommendation delays scaling down
/// (`--horizontal-pod-autoscaler-downscale-stabilization`).
const DOWNSCALE_STABILIZATION: SignedDuration = SignedDuration::from_mins(5);

/// The past recommendations of one autoscaler, and its past scale events with the number of replicas that each added or
/// removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct History {
    recommendations: Vec<(Timestamp, i32)>,
    scale_ups: Vec<(Timestamp, i32)>,
    scale_downs: Vec<(Timestamp, i32)>,
}

/// The replica bounds and the `behavior` of an autoscaler's spec.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds<'a> {
    pub(super) min: i32,
    pub(super) max: i32,
    pub(super) behavior: Option<&'a HorizontalPodAutoscalerBehavior>,
}

/// The reason and the message of a condition.
pub(super) type ConditionText = (&'static str, &'static str);

/// The replica count after all limits, and the conditions that explain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) replicas: i32,
    /// Reason and message of the condition AbleToScale.
    pub(super) able_to_scale: ConditionText,
    /// Status, reason and message of the condition ScalingLimited.
    pub(super) scaling_limited: (bool, ConditionText),
}

const READY: ConditionText = ("ReadyForNewScale", "recommended size matches current size");
const DOWN_STABILIZED: ConditionText = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: ConditionText = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const WITHIN: ConditionText = (
    "DesiredWithinRange",
    "the desired count is within the acceptable range",
);
const TOO_MANY: ConditionText = (
    "TooManyReplicas",
    "the desired replica count is more than the maximum replica count",
);
const TOO_FEW: ConditionText = (
    "TooFewReplicas",
    "the desired replica count is less than the minimum replica count",
);
const TOO_FAST_UP: ConditionText = (
    "ScaleUpLimit",
    "the desired replica count is increasing faster than the maximum scale rate",
);
const TOO_FAST_DOWN: ConditionText = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

impl History {
    /// Records the current replicas as the first recommendation, so that a new autoscaler does not scale down at once.
    pub(super) fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Applies stabilization, policies and bounds to the `recommended` replica count, and records it as a recommendation made at
    /// `now`.
    pub(super) fn judge(
        &mut self,
        bounds: &Bounds<'_>,
        current: i32,
        recommended: i32,
        now: Timestamp,
    ) -> Outcome {
        let (stable, able_to_scale) = match bounds.behavior {
            None => self.stabilize(recommended, now),
            Some(behavior) => self.stabilize_by(behavior, current, recommended, now),
        };
        // The condition tells of stabilization only if stabilization changed the number.
        let able_to_scale = if stable == recommended {
            READY
        } else {
            able_to_scale
        };
        let (replicas, why) = match bounds.behavior {
            None => within(bounds, current, stable),
            Some(behavior) => self.within_rates(bounds, behavior, current, stable, now),
        };
        Outcome {
            replicas,
            able_to_scale,
            scaling_limited: (replicas != stable, why),
        }
    }

    /// Records a scale event for the rates of policies. Without a `behavior` there are no policies, so nothing is recorded.
    pub(super) fn scaled(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        from: i32,
        to: i32,
        now: Timestamp,
    ) {
        let Some(behavior) = behavior else {
            return;
        };
        let (events, rules) = if to > from {
            (&mut self.scale_ups, &behavior.scale_up)
        } else {
            (&mut self.scale_downs, &behavior.scale_down)
        };
        // Events older than the longest policy period can no longer count.
        let longest = policies(rules.as_ref())
            .map(|policy| policy.period_seconds)
            .max();
        let oldest = before(now, seconds(longest.unwrap_or_default()));
        events.retain(|(at, _)| *at >= oldest);
        events.push((now, (to - from).abs()));
    }

    /// Returns the highest recommendation of the default downscale window, `recommended` included.
    fn stabilize(&mut self, recommended: i32, now: Timestamp) -> (i32, ConditionText) {
        let oldest = before(now, DOWNSCALE_STABILIZATION);
        self.recommendations.retain(|(at, _)| *at >= oldest);
        let highest = self
            .recommendations
            .iter()
            .map(|(_, recommended)| *recommended)
            .max();
        // Recorded as wished, not as limited: the window is over what the metrics said.
        self.recommendations.push((now, recommended));
        (
            recommended.max(highest.unwrap_or(recommended)),
            DOWN_STABILIZED,
        )
    }

    /// Applies the stabilization windows of `behavior`: the current number is raised only to the lowest recommendation of the
    /// scale-up window, and lowered only to the highest of the scale-down window.
    fn stabilize_by(
        &mut self,
        behavior: &HorizontalPodAutoscalerBehavior,
        current: i32,
        recommended: i32,
        now: Timestamp,
    ) -> (i32, ConditionText) {
        let window = |rules: &Option<HPAScalingRules>| {
            let window = rules
                .as_ref()
                .and_then(|rules| rules.stabilization_window_seconds);
            window.map(seconds)
        };
        // By default scaling up is not stabilized, and scaling down is by five minutes.
        let up = before(now, window(&behavior.scale_up).unwrap_or_default());
        let down = before(
            now,
            window(&behavior.scale_down).unwrap_or(DOWNSCALE_STABILIZATION),
        );
        let last = |since: Timestamp| {
            let recommendations = self
                .recommendations
                .iter()
                .filter(move |(at, _)| *at > since);
            recommendations.map(|(_, recommended)| *recommended)
        };
        let lowest = last(up)
            .min()
            .map_or(recommended, |lowest| lowest.min(recommended));
        let highest = last(down)
            .max()
            .map_or(recommended, |highest| highest.max(recommended));
        let stable = current.max(lowest).min(highest);
        // Only recommendations within the longer of the two windows can still count.
        self.recommendations.retain(|(at, _)| *at >= up.min(down));
        self.recommendations.push((now, recommended));
        let why = if recommended >= current {
            UP_STABILIZED
        } else {
            DOWN_STABILIZED
        };
        (stable, why)
    }

    fn within_rates(
        &self,
        bounds: &Bounds<'_>,
        behavior: &HorizontalPodAutoscalerBehavior,
        current: i32,
        recommended: i32,
        now: Timestamp,
    ) -> (i32, ConditionText) {
        // The narrower of the policies' limit and the bound applies, and determines the reason.
        if recommended > current {
            let limit = self
                .highest(behavior.scale_up.as_ref(), current, now)
                .max(current);
            let (most, why) = if bounds.max > limit {
                (limit, TOO_FAST_UP)
            } else {
                (bounds.max, TOO_MANY)
            };
            if recommended > most {
                return (most, why);
            }
        } else if recommended < current {
            let limit = self
                .lowest(behavior.scale_down.as_ref(), current, now)
                .min(current);
            let (fewest, why) = if bounds.min < limit {
                (limit, TOO_FAST_DOWN)
            } else {
                (bounds.min, TOO_FEW)
            };
            if recommended < fewest {
                return (fewest, why);
            }
        }
        (recommended, WITHIN)
    }

    /// Returns the highest replica count that the scale-up policies allow now.
    fn highest(&self, rules: Option<&HPAScalingRules>, current: i32, now: Timestamp) -> i32 {
        let to = policies(rules).map(|policy| {
            let start = self.at_start(policy, current, now);
            match policy.type_.as_str() {
                "Percent" => {
                    let factor = 1.0 + f64::from(policy.value) / 100.0;
                    (f64::from(start) * factor).ceil() as i32
                }
                _ => start.saturating_add(policy.value),
            }
        });
        match select(rules) {
            "Disabled" => current,
            "Min" => to.min().unwrap_or(i32::MAX),
            _ => to.max().unwrap_or(i32::MIN),
        }
    }

    /// Returns the lowest replica count that the scale-down policies allow now.
    fn lowest(&self, rules: Option<&HPAScalingRules>, current: i32, now: Timestamp) -> i32 {
        let to = policies(rules).map(|policy| {
            let start = self.at_start(policy, current, now);
            match policy.type_.as_str() {
                "Percent" => {
                    let factor = 1.0 - f64::from(policy.value) / 100.0;
                    (f64::from(start) * factor) as i32
                }
                _ => start.saturating_sub(policy.value),
            }
        });
        match select(rules) {
            "Disabled" => current,
            // Min selects the policy that changes least, which for scaling down is the highest number left.
            "Min" => to.max().unwrap_or(i32::MIN),
            _ => to.min().unwrap_or(i32::MAX),
        }
    }

    /// Returns the replica count at the start of the period of `policy`, by undoing the scale events since then.
    fn at_start(&self, policy: &HPAScalingPolicy, current: i32, now: Timestamp) -> i32 {
        let since = before(now, seconds(policy.period_seconds));
        let changed = |events: &[(Timestamp, i32)]| -> i32 {
            let events = events.iter().filter(|(at, _)| *at > since);
            events.map(|(_, change)| *change).sum()
        };
        current - changed(&self.scale_ups) + changed(&self.scale_downs)
    }
}

/// Limits `recommended` for an autoscaler without `behavior`: it at most doubles the replicas, or goes up to four, whichever is
/// more.
fn within(bounds: &Bounds<'_>, current: i32, recommended: i32) -> (i32, ConditionText) {
    let limit = current.saturating_mul(2).max(4);
    let (most, why) = if bounds.max > limit {
        (limit, TOO_FAST_UP)
    } else {
        (bounds.max, TOO_MANY)
    };
    if recommended < bounds.min {
        (bounds.min, TOO_FEW)
    } else if recommended > most {
        (most, why)
    } else {
        (recommended, WITHIN)
    }
}

fn policies(rules: Option<&HPAScalingRules>) -> impl Iterator<Item = &HPAScalingPolicy> {
    rules
        .and_then(|rules| rules.policies.as_ref())
        .into_iter()
        .flatten()
}

fn select(rules: Option<&HPAScalingRules>) -> &str {
    let policy = rules.and_then(|rules| rules.select_policy.as_deref());
    policy.unwrap_or("Max")
}

fn seconds(count: i32) -> SignedDuration {
    SignedDuration::from_secs(count.into())
}

fn before(now: Timestamp, time: SignedDuration) -> Timestamp {
    now.saturating_sub(time).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests;
