//! Tests the bounds of a rolling update: single steps by example, whole rollouts by property.

use proptest::prelude::*;

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

#[test]
fn a_set_that_has_not_caught_up_with_its_last_resize_stops_the_others_too() {
    // Of the 10 available pods that the old set reports, 2 are about to be deleted.
    assert_eq!(
        step(limits(10, 0, 2), size(2, 2), &[size(8, 10)]),
        Step::Wait
    );
    assert_eq!(
        step(limits(10, 0, 2), size(2, 2), &[size(8, 8)]),
        Step::Old(vec![(0, 6)])
    );
}

#[test]
fn pods_that_a_set_sized_to_zero_still_reports_do_not_count() {
    let leaving = size(0, 4);
    assert_eq!(
        step(limits(10, 0, 2), size(2, 2), &[leaving, size(8, 6)]),
        Step::Old(vec![(1, 6)])
    );
}

/// The actual state of a ReplicaSet, and the state that it last reported.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Set {
    wanted: i32,
    ready: i32,
    unready: i32,
    reported: i32,
}

impl Set {
    fn new(ready: i32, unready: i32) -> Self {
        Self {
            wanted: ready + unready,
            ready,
            unready,
            reported: ready,
        }
    }

    fn size(&self) -> Size {
        size(self.wanted, self.reported)
    }

    /// Acts as the ReplicaSet controller: scales down pods that are not ready first.
    fn catch_up(&mut self) {
        let surplus = self.ready + self.unready - self.wanted;
        if surplus < 0 {
            self.unready -= surplus;
        } else {
            let unready = surplus.min(self.unready);
            self.unready -= unready;
            self.ready -= surplus - unready;
        }
        self.reported = self.ready;
    }

    fn one_becomes_ready(&mut self) {
        let one = self.unready.min(1);
        self.unready -= one;
        self.ready += one;
    }
}

/// A rollout whose parts act in any order.
struct Play {
    limits: Limits,
    /// The ReplicaSets, the new one last.
    sets: Vec<Set>,
    most: i32,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The Deployment controller takes a step from the reported state.
    Step,
    /// The ReplicaSet controller acts and reports.
    CatchUp(usize),
    /// A pod of the ReplicaSet becomes ready.
    Ready(usize),
}

impl Play {
    fn new(limits: Limits, old: &[(i32, i32)]) -> Self {
        let mut sets: Vec<_> = old
            .iter()
            .map(|&(ready, unready)| Set::new(ready, unready))
            .collect();
        sets.push(Set::new(0, 0));
        let most = sets
            .iter()
            .map(|set| set.wanted)
            .sum::<i32>()
            .max(limits.most());
        Self { limits, sets, most }
    }

    fn take(&mut self, turn: Turn) {
        match turn {
            Turn::Step => self.step(),
            Turn::CatchUp(index) => self.sets[index].catch_up(),
            Turn::Ready(index) => self.sets[index].one_becomes_ready(),
        }
    }

    fn step(&mut self) {
        let before = self.available();
        let sizes: Vec<_> = self.sets.iter().map(Set::size).collect();
        let (new, old) = sizes.split_last().expect("there is a new set");
        let resizes = match step(self.limits, *new, old) {
            Step::New(target) => vec![(old.len(), target)],
            Step::Old(resizes) => resizes,
            Step::Wait => Vec::new(),
        };
        for (index, target) in resizes {
            self.sets[index].wanted = target;
        }
        let after = self.available();
        assert!(
            after >= before.min(self.limits.fewest_available()),
            "from {before} to {after} available of {:?}: {:?}",
            self.limits,
            self.sets
        );
        let wanted: i32 = self.sets.iter().map(|set| set.wanted).sum();
        assert!(wanted <= self.most, "{wanted} of {:?}", self.limits);
    }

    /// Returns how many pods were available in the last report and still are.
    fn available(&self) -> i32 {
        let staying = |set: &Set| set.reported.min(set.wanted);
        self.sets.iter().map(staying).sum()
    }

    /// Lets all parts act until nothing is left to do.
    fn finish(&mut self) {
        let mut before = Vec::new();
        while before != self.sets {
            before.clone_from(&self.sets);
            self.take(Turn::Step);
            for index in 0..self.sets.len() {
                self.take(Turn::Ready(index));
                self.take(Turn::CatchUp(index));
            }
        }
        let (new, old) = self.sets.split_last().expect("there is a new set");
        assert_eq!(new.ready, self.limits.desired, "{:?}", self.limits);
        assert!(
            old.iter().all(|set| set.ready + set.unready == 0),
            "{old:?}"
        );
    }
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        Just(Turn::Step),
        (0..4_usize).prop_map(Turn::CatchUp),
        (0..4_usize).prop_map(Turn::Ready),
    ]
}

proptest! {
    #[test]
    fn a_rollout_keeps_its_bounds_in_whatever_order_its_parts_act_and_ends(
        desired in 1..12_i32,
        (surge, unavailable) in (0..4_i32, 0..4_i32),
        old in [(0..5_i32, 0..4_i32), (0..5_i32, 0..4_i32), (0..5_i32, 0..4_i32)],
        turns in proptest::collection::vec(turn(), 0..120),
    ) {
        let (surge, unavailable) = (IntOrString::Int(surge), IntOrString::Int(unavailable));
        let limits = Limits::resolve(desired, Some(&surge), Some(&unavailable));
        let mut play = Play::new(limits, &old);
        for turn in turns {
            play.take(turn);
        }
        play.finish();
    }
}
