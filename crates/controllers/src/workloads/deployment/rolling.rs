//! The arithmetic of a rolling update: how far each ReplicaSet may grow or shrink now.
//!
//! Pure. Invariant: following [`step`] never has more than `desired + surge` pods, and never takes the number of
//! available ones below `desired - unavailable` by its own doing.

use k8s_openapi::{
    api::apps::v1::{Deployment, RollingUpdateDeployment},
    apimachinery::pkg::util::intstr::IntOrString,
};

/// The bounds of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// `spec.replicas`.
    pub(super) desired: i32,
    /// Pods above `desired` that may exist.
    pub(super) surge: i32,
    /// Pods below `desired` that may be missing.
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

    /// Surge rounds up and unavailable down; when both come out as zero, one pod may be unavailable, since otherwise
    /// nothing could ever move.
    fn resolve(
        desired: i32,
        surge: Option<&IntOrString>,
        unavailable: Option<&IntOrString>,
    ) -> Self {
        let surge = scaled(surge, desired, Rounding::Up);
        let unavailable = match scaled(unavailable, desired, Rounding::Down) {
            0 if surge == 0 => 1,
            unavailable => unavailable,
        };
        Self {
            desired,
            surge,
            unavailable: unavailable.min(desired),
        }
    }

    /// Pods that may exist at once.
    pub(super) fn most(&self) -> i32 {
        self.desired + self.surge
    }

    /// Pods that must be available.
    pub(super) fn fewest_available(&self) -> i32 {
        self.desired - self.unavailable
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Up,
    Down,
}

/// A count, or a percentage of `total`; missing and malformed values (which validation refuses) count as zero.
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

/// A ReplicaSet as far as a rollout is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// `spec.replicas`.
    pub(super) replicas: i32,
    /// `status.availableReplicas`.
    pub(super) available: i32,
}

/// What to do next; one kind of thing at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Resize the new ReplicaSet.
    New(i32),
    /// Resize old ReplicaSets, by index, in this order; one may appear twice.
    Old(Vec<(usize, i32)>),
    /// Nothing until something changes.
    Wait,
}

/// The next step from here; `old` is sorted oldest first.
pub(super) fn step(limits: Limits, new: Size, old: &[Size]) -> Step {
    let total = new.replicas + old.iter().map(|set| set.replicas).sum::<i32>();
    let target = new_size(limits, new.replicas, total);
    if target != new.replicas {
        return Step::New(target);
    }
    let mut old = old.to_vec();
    let mut resizes = Vec::new();
    let missing_in_new = new.replicas - new.available;
    let room = total - limits.fewest_available() - missing_in_new;
    if room > 0 {
        drop_unavailable(&mut old, room, &mut resizes);
        drop_available(limits, &mut old, new.available, &mut resizes);
    }
    if resizes.is_empty() {
        Step::Wait
    } else {
        Step::Old(resizes)
    }
}

/// Size of the new ReplicaSet, given all pods that the specs ask for.
pub(super) fn new_size(limits: Limits, current: i32, total: i32) -> i32 {
    if current > limits.desired {
        limits.desired
    } else {
        current + (limits.most() - total).min(limits.desired - current).max(0)
    }
}

/// Old pods that do not serve anyway go first.
fn drop_unavailable(old: &mut [Size], mut room: i32, resizes: &mut Vec<(usize, i32)>) {
    for (index, set) in old.iter_mut().enumerate() {
        let drop = room.min(set.replicas - set.available);
        if set.replicas > 0 && drop > 0 {
            set.replicas -= drop;
            room -= drop;
            resizes.push((index, set.replicas));
        }
    }
}

/// Old pods that serve go as far as enough others do.
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
mod tests {
    use super::*;

    fn percent(text: &str) -> IntOrString {
        IntOrString::String(text.to_owned())
    }

    fn limits(desired: i32, surge: i32, unavailable: i32) -> Limits {
        Limits {
            desired,
            surge,
            unavailable,
        }
    }

    fn size(replicas: i32, available: i32) -> Size {
        Size {
            replicas,
            available,
        }
    }

    #[test]
    fn surge_rounds_up_and_unavailable_down() {
        let quarter = percent("25%");
        assert_eq!(
            Limits::resolve(10, Some(&quarter), Some(&quarter)),
            limits(10, 3, 2)
        );
        assert_eq!(
            Limits::resolve(3, Some(&quarter), Some(&quarter)),
            limits(3, 1, 0)
        );
        assert_eq!(
            Limits::resolve(4, Some(&IntOrString::Int(2)), Some(&IntOrString::Int(9))),
            limits(4, 2, 4)
        );
    }

    #[test]
    fn at_least_one_pod_can_always_move() {
        let zero = IntOrString::Int(0);
        assert_eq!(
            Limits::resolve(10, Some(&zero), Some(&percent("5%"))),
            limits(10, 0, 1)
        );
        assert_eq!(
            Limits::resolve(0, Some(&zero), Some(&zero)),
            limits(0, 0, 0)
        );
    }

    #[test]
    fn the_new_set_grows_into_the_surge_and_no_further() {
        assert_eq!(
            step(limits(10, 3, 2), size(0, 0), &[size(10, 10)]),
            Step::New(3)
        );
        assert_eq!(
            step(limits(10, 3, 2), size(3, 0), &[size(8, 8)]),
            Step::New(5)
        );
        assert_eq!(step(limits(10, 3, 2), size(12, 0), &[]), Step::New(10));
    }

    #[test]
    fn old_pods_go_only_as_far_as_enough_pods_serve() {
        assert_eq!(
            step(limits(10, 3, 2), size(3, 0), &[size(10, 10)]),
            Step::Old(vec![(0, 8)])
        );
        assert_eq!(
            step(limits(10, 3, 2), size(5, 0), &[size(8, 8)]),
            Step::Wait
        );
        assert_eq!(
            step(limits(10, 3, 2), size(5, 2), &[size(8, 8)]),
            Step::Old(vec![(0, 6)])
        );
    }

    #[test]
    fn old_pods_that_do_not_serve_go_first_then_the_oldest() {
        let old = [size(4, 4), size(5, 0)];
        assert_eq!(
            step(limits(10, 1, 2), size(2, 2), &old),
            Step::Old(vec![(1, 2)])
        );
        let old = [size(4, 4), size(3, 2)];
        assert_eq!(
            step(limits(5, 1, 2), size(3, 3), &old),
            Step::Old(vec![(1, 2), (0, 0), (1, 0)])
        );
    }

    /// Plays rollouts to their end with pods that become ready one at a time, checking the bounds at every step.
    #[test]
    fn every_rollout_ends_within_its_bounds() {
        for desired in 0..8 {
            for surge in 0..4 {
                for unavailable in 0..=desired.min(3) {
                    if surge == 0 && unavailable == 0 && desired > 0 {
                        continue;
                    }
                    play(limits(desired, surge, unavailable));
                }
            }
        }
    }

    fn play(limits: Limits) {
        let mut new = size(0, 0);
        let mut old = [size(limits.desired / 3, limits.desired / 3); 2];
        old[1] = size(
            limits.desired - old[0].replicas,
            limits.desired - old[0].replicas,
        );
        for _ in 0..200 {
            match step(limits, new, &old) {
                Step::New(target) => new.replicas = target,
                Step::Old(resizes) => {
                    for (index, target) in resizes {
                        old[index].replicas = target;
                        old[index].available = old[index].available.min(target);
                    }
                }
                Step::Wait if new.available < new.replicas => new.available += 1,
                Step::Wait => break,
            }
            let total = new.replicas + old[0].replicas + old[1].replicas;
            let available = new.available + old[0].available + old[1].available;
            assert!(total <= limits.most(), "{limits:?}: {total} pods");
            assert!(
                available >= limits.fewest_available(),
                "{limits:?}: {available} available"
            );
        }
        assert_eq!(
            (new.available, old[0].replicas, old[1].replicas),
            (limits.desired, 0, 0),
            "{limits:?}"
        );
    }
}
