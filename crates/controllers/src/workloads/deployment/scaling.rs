//! Scales a Deployment in the middle of a rollout: every ReplicaSet keeps its share. Pure.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::rolling::Limits;

/// An active ReplicaSet that is scaled with its Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// `spec.replicas`.
    pub(super) replicas: i32,
    /// The most pods that the whole Deployment could have when the set was last scaled (its max-replicas
    /// annotation).
    pub(super) most_before: Option<i32>,
    /// Creation time and name, by which older sets come first.
    pub(super) age: (Option<Timestamp>, String),
}

/// Returns the new sizes of `sets`, by index and in the order in which they are written. `status_replicas` replaces
/// the missing annotation of a set that does not say what it was scaled for.
pub(super) fn proportional(
    limits: Limits,
    status_replicas: i32,
    sets: &[Share],
) -> Vec<(usize, i32)> {
    let mut order: Vec<_> = (0..sets.len()).collect();
    // Scaling to zero leaves no surge either.
    let allowed = if limits.desired > 0 { limits.most() } else { 0 };
    let to_add = allowed - sets.iter().map(|set| set.replicas).sum::<i32>();
    // The biggest set comes first. Of equal sets the newer one grows first, and the older one shrinks first.
    match to_add.signum() {
        1 => order.sort_by_key(|&i| (Reverse(sets[i].replicas), Reverse(&sets[i].age))),
        -1 => order.sort_by_key(|&i| (Reverse(sets[i].replicas), &sets[i].age)),
        _ => {}
    }
    let mut added = 0;
    let mut sizes = Vec::with_capacity(sets.len());
    for index in order {
        let set = &sets[index];
        let rest = to_add - added;
        let change = if set.replicas == 0 || rest == 0 {
            0
        } else if to_add > 0 {
            fair_change(limits, status_replicas, set).min(rest)
        } else {
            fair_change(limits, status_replicas, set).max(rest)
        };
        sizes.push((index, set.replicas + change));
        added += change;
    }
    // The remainder of the rounding goes to the biggest set, as far as it has pods.
    if let Some((_, size)) = sizes.first_mut() {
        *size = (*size + to_add - added).max(0);
    }
    sizes
}

fn fair_change(limits: Limits, status_replicas: i32, set: &Share) -> i32 {
    if limits.desired == 0 {
        return -set.replicas;
    }
    let before = match set.most_before {
        // Sets from before the annotation existed are judged by the pods that the Deployment reports.
        None | Some(0) => status_replicas,
        Some(before) => before,
    };
    if before == 0 {
        return 0;
    }
    let size = f64::from(set.replicas) * f64::from(limits.most()) / f64::from(before);
    // The value is within i32 in practice, and a cast of a float saturates.
    size.round() as i32 - set.replicas
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    /// Returns the new sizes in the order of `sets`.
    fn sizes(limits: Limits, status_replicas: i32, sets: &[Share]) -> Vec<i32> {
        let mut sizes = proportional(limits, status_replicas, sets);
        sizes.sort_unstable();
        sizes.into_iter().map(|(_, size)| size).collect()
    }

    #[test]
    fn sets_grow_in_proportion_to_their_size() {
        // The example in the Kubernetes documentation: 10 replicas with surge 3, rolled out as 8 old and 5 new,
        // scaled to 15.
        let sets = [share(8, 13, 1), share(5, 13, 2)];
        assert_eq!(sizes(limits(15, 3), 13, &sets), [11, 7]);
    }

    #[test]
    fn sets_shrink_in_proportion_to_their_size() {
        let halves = [share(5, 10, 1), share(5, 10, 2)];
        assert_eq!(sizes(limits(5, 0), 10, &halves), [2, 3]);
        let others = [share(6, 10, 1), share(4, 10, 2)];
        assert_eq!(sizes(limits(0, 3), 10, &others), [0, 0]);
    }

    #[test]
    fn of_equal_sets_the_newer_takes_the_odd_one_out() {
        let halves = [share(5, 10, 1), share(5, 10, 2)];
        assert_eq!(sizes(limits(11, 0), 10, &halves), [5, 6]);
    }

    #[test]
    fn the_biggest_set_is_written_first() {
        let sets = [share(2, 13, 1), share(8, 13, 2), share(3, 13, 3)];
        let order = |desired| -> Vec<_> {
            let sizes = proportional(limits(desired, 3), 13, &sets);
            sizes.into_iter().map(|(index, _)| index).collect()
        };
        assert_eq!((order(20), order(5)), (vec![1, 2, 0], vec![1, 2, 0]));
    }

    #[test]
    fn a_set_that_does_not_say_what_it_was_sized_for_is_measured_by_the_status() {
        for most_before in [None, Some(0)] {
            let silent = Share {
                most_before,
                ..share(4, 0, 1)
            };
            let sets = [silent, share(4, 8, 2)];
            assert_eq!(sizes(limits(16, 0), 8, &sets), [8, 8], "{most_before:?}");
        }
    }

    #[test]
    fn without_any_measure_the_biggest_set_takes_it_all() {
        let silent = |replicas, second| Share {
            most_before: None,
            ..share(replicas, 0, second)
        };
        let sets = [silent(4, 1), silent(2, 2)];
        assert_eq!(sizes(limits(10, 0), 0, &sets), [8, 2]);
    }

    proptest! {
        #[test]
        fn sizes_add_up_to_what_is_allowed_unless_rounding_asks_too_much_of_the_biggest_set(
            replicas in proptest::collection::vec(1..20_i32, 1..5),
            unused in 0..5_i32,
            (desired, surge) in (0..60_i32, 0..10_i32),
        ) {
            let before = replicas.iter().sum::<i32>() + unused;
            let sets: Vec<_> = (0..).zip(&replicas).map(|(age, &one)| share(one, before, age)).collect();
            let allowed = if desired == 0 { 0 } else { desired + surge };
            let sizes = proportional(limits(desired, surge), before, &sets);
            let (biggest, total) = (sizes[0].1, sizes.iter().map(|(_, size)| size).sum::<i32>());
            prop_assert!(sizes.iter().all(|&(_, size)| size >= 0), "{:?}", sizes);
            prop_assert!(total == allowed || (biggest == 0 && total > allowed), "{:?}", sizes);
            if sets.len() < 3 {
                prop_assert_eq!(total, allowed, "two sets round to the whole");
            }
        }
    }
}
