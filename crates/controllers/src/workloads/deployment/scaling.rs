//! Scaling a Deployment in the middle of a rollout: every ReplicaSet keeps its share. Pure.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::rolling::Limits;

/// An active ReplicaSet whose size is to follow the Deployment's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// `spec.replicas`.
    pub(super) replicas: i32,
    /// Most pods of the whole Deployment when the set was last sized (its max-replicas annotation).
    pub(super) most_before: Option<i32>,
    /// Creation time and name: older sets come first.
    pub(super) age: (Option<Timestamp>, String),
}

/// The new size of each of `sets`; `status_replicas` stands in for sets that do not say what they were sized for.
pub(super) fn proportional(limits: Limits, status_replicas: i32, sets: &[Share]) -> Vec<i32> {
    let mut sizes: Vec<_> = sets.iter().map(|set| set.replicas).collect();
    let allowed = if limits.desired > 0 { limits.most() } else { 0 };
    let to_add = allowed - sizes.iter().sum::<i32>();
    if to_add == 0 {
        return sizes;
    }
    let mut order: Vec<_> = (0..sets.len()).collect();
    // Biggest first; of equals the newer grows first and the older shrinks first.
    if to_add > 0 {
        order.sort_by_key(|&i| (Reverse(sets[i].replicas), Reverse(&sets[i].age)));
    } else {
        order.sort_by_key(|&i| (Reverse(sets[i].replicas), &sets[i].age));
    }
    let mut added = 0;
    for &i in &order {
        let rest = to_add - added;
        if sets[i].replicas == 0 || rest == 0 {
            continue;
        }
        let share = fair_change(limits, status_replicas, &sets[i]);
        let change = if to_add > 0 {
            share.min(rest)
        } else {
            share.max(rest)
        };
        sizes[i] += change;
        added += change;
    }
    if let Some(&first) = order.first() {
        sizes[first] = (sizes[first] + to_add - added).max(0);
    }
    sizes
}

fn fair_change(limits: Limits, status_replicas: i32, set: &Share) -> i32 {
    if limits.desired == 0 {
        return -set.replicas;
    }
    let before = set.most_before.unwrap_or(status_replicas);
    if before <= 0 {
        return 0;
    }
    let size = f64::from(set.replicas) * f64::from(limits.most()) / f64::from(before);
    // Bounded by i32 in practice; a cast of a float saturates.
    size.round() as i32 - set.replicas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(desired: i32, surge: i32) -> Limits {
        Limits {
            desired,
            surge,
            unavailable: 0,
        }
    }

    fn share(replicas: i32, most_before: i32, second: i64) -> Share {
        let created = Timestamp::from_second(second).expect("a small number of seconds");
        Share {
            replicas,
            most_before: Some(most_before),
            age: (Some(created), format!("set-{second}")),
        }
    }

    #[test]
    fn sets_grow_in_proportion_to_their_size() {
        // The documented example: 10 replicas with surge 3, rolled out as 8 old and 5 new, scaled to 15.
        let sizes = proportional(limits(15, 3), 13, &[share(8, 13, 1), share(5, 13, 2)]);
        assert_eq!(sizes, [11, 7]);
    }

    #[test]
    fn sets_shrink_in_proportion_to_their_size() {
        assert_eq!(
            proportional(limits(5, 0), 10, &[share(5, 10, 1), share(5, 10, 2)]),
            [2, 3]
        );
        assert_eq!(
            proportional(limits(0, 3), 10, &[share(6, 10, 1), share(4, 10, 2)]),
            [0, 0]
        );
    }

    #[test]
    fn of_equal_sets_the_newer_takes_the_odd_one_out() {
        assert_eq!(
            proportional(limits(11, 0), 10, &[share(5, 10, 1), share(5, 10, 2)]),
            [5, 6]
        );
    }

    #[test]
    fn sizes_always_add_up_to_what_is_allowed() {
        for desired in 0..40 {
            for split in 0..=13 {
                let sets = [share(split, 13, 1), share(13 - split, 13, 2)];
                let active: Vec<_> = sets.into_iter().filter(|set| set.replicas > 0).collect();
                let expected = if desired == 0 { 0 } else { desired + 3 };
                let sizes = proportional(limits(desired, 3), 13, &active);
                assert_eq!(
                    sizes.iter().sum::<i32>(),
                    expected,
                    "desired {desired}, split {split}: {sizes:?}"
                );
                assert!(sizes.iter().all(|&size| size >= 0), "{sizes:?}");
            }
        }
    }

    #[test]
    fn a_set_that_does_not_say_what_it_was_sized_for_is_measured_by_the_status() {
        let set = Share {
            most_before: None,
            ..share(4, 0, 1)
        };
        assert_eq!(proportional(limits(8, 0), 4, &[set]), [8]);
    }
}
