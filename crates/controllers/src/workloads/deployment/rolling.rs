//! Computes how far each ReplicaSet may grow or shrink in one step of a rolling update.
//!
//! Pure. Invariant: following [`step`] never results in more than `desired + surge` pods, and never itself takes
//! the number of available pods below `desired - unavailable`.

use k8s_openapi::{
    api::apps::v1::{Deployment, RollingUpdateDeployment},
    apimachinery::pkg::util::intstr::IntOrString,
};

/// The bounds of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// `spec.replicas`.
    pub(super) desired: i32,
    /// How many pods may exist above `desired`.
    pub(super) surge: i32,
    /// How many pods below `desired` may be unavailable.
    pub(super) unavailable: i32,
}

impl Limits {
    pub(super) fn of(deployment: &Deployment) -> Self {
        let spec = deployment.spec.as_ref();
        let desired = spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let strategy = spec.and_then(|spec| spec.strategy.as_ref());
        if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate") {
            return Self {
                desired,
                surge: 0,
                unavailable: 0,
            };
        }
        let default = RollingUpdateDeployment::default();
        let rolling = strategy
            .and_then(|strategy| strategy.rolling_update.as_ref())
            .unwrap_or(&default);
        Self::resolve(
            desired,
            rolling.max_surge.as_ref(),
            rolling.max_unavailable.as_ref(),
        )
    }

    /// Resolves percentages: surge rounds up and unavailable rounds down. If both are zero, one pod may be
    /// unavailable, since otherwise the rollout could never move.
    fn resolve(
        desired: i32,
        surge: Option<&IntOrString>,
        unavailable: Option<&IntOrString>,
    ) -> Self {
        let surge = scaled(surge, desired, Rounding::Up);
        let unavailable = match scaled(unavailable, desired, Rounding::Down) {
            // Validation refuses two zeros, but two percentages may still both round to zero.
            0 if surge == 0 => 1,
            unavailable => unavailable,
        };
        Self {
            desired,
            surge,
            unavailable: unavailable.min(desired),
        }
    }

    /// Returns how many pods may exist at once.
    pub(super) fn most(&self) -> i32 {
        self.desired + self.surge
    }

    /// Returns how many pods must be available.
    pub(super) fn fewest_available(&self) -> i32 {
        self.desired - self.unavailable
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Up,
    Down,
}

/// Resolves a count or a percentage of `total`. A missing or malformed value, which validation refuses, counts as
/// zero.
pub(crate) fn scaled(value: Option<&IntOrString>, total: i32, rounding: Rounding) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(count)) => *count,
        Some(IntOrString::String(text)) => {
            let Some(percent) = text
                .strip_suffix('%')
                .and_then(|number| number.parse::<i64>().ok())
            else {
                return 0;
            };
            let product = percent * i64::from(total);
            let whole = match rounding {
                Rounding::Up => product.div_euclid(100) + i64::from(product.rem_euclid(100) > 0),
                Rounding::Down => product.div_euclid(100),
            };
            i32::try_from(whole).unwrap_or(i32::MAX)
        }
    }
}

/// The sizes of a ReplicaSet that a rollout considers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// `spec.replicas`.
    pub(super) replicas: i32,
    /// `status.availableReplicas`.
    pub(super) available: i32,
}

/// The next step of a rollout, of one kind only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Resize the new ReplicaSet to this size.
    New(i32),
    /// Resize old ReplicaSets, by index, in this order. An index may appear twice.
    Old(Vec<(usize, i32)>),
    /// Do nothing until something changes.
    Wait,
}

/// Returns the next step. `old` is sorted oldest first.
pub(super) fn step(limits: Limits, new: Size, old: &[Size]) -> Step {
    let total = new.replicas + old.iter().map(|set| set.replicas).sum::<i32>();
    let target = new_size(limits, new.replicas, total);
    // Growing comes first and alone, so that old pods are removed on counts that include the new ones.
    if target != new.replicas {
        return Step::New(target);
    }
    let mut old = old.to_vec();
    // Available pods that a set scaled to zero still reports are about to be deleted.
    old.iter_mut()
        .filter(|set| set.replicas == 0)
        .for_each(|set| set.available = 0);
    let mut resizes = Vec::new();
    // New pods that do not serve yet may still fail, so they must not make room for removing old ones.
    let missing_in_new = new.replicas - new.available;
    let room = total - limits.fewest_available() - missing_in_new;
    if room > 0 && drop_unavailable(&mut old, room, &mut resizes) {
        drop_available(limits, &mut old, new.available, &mut resizes);
    }
    if resizes.is_empty() {
        Step::Wait
    } else {
        Step::Old(resizes)
    }
}

/// Returns the size of the new ReplicaSet. `total` is the number of pods in the specs of all sets.
pub(super) fn new_size(limits: Limits, current: i32, total: i32) -> i32 {
    if current > limits.desired {
        limits.desired
    } else {
        current + (limits.most() - total).min(limits.desired - current).max(0)
    }
}

/// Scales down old pods that do not serve. Returns whether the counts can be used for more: a set that reports more
/// available pods than its spec has replicas has not caught up with its last resize.
fn drop_unavailable(old: &mut [Size], mut room: i32, resizes: &mut Vec<(usize, i32)>) -> bool {
    for (index, set) in old.iter_mut().enumerate() {
        let drop = room.min(set.replicas - set.available);
        if room > 0 && drop < 0 {
            return false;
        }
        if drop > 0 {
            set.replicas -= drop;
            room -= drop;
            resizes.push((index, set.replicas));
        }
    }
    true
}

/// Scales down old pods that serve as far as enough others are available.
fn drop_available(
    limits: Limits,
    old: &mut [Size],
    new_available: i32,
    resizes: &mut Vec<(usize, i32)>,
) {
    let available = new_available + old.iter().map(|set| set.available).sum::<i32>();
    let mut surplus = available - limits.fewest_available();
    for (index, set) in old.iter_mut().enumerate() {
        let drop = surplus.min(set.replicas);
        if drop > 0 {
            set.replicas -= drop;
            surplus -= drop;
            resizes.push((index, set.replicas));
        }
    }
}

#[cfg(test)]
mod tests;
