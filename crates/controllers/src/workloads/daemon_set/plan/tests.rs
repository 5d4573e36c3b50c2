//! Tests the steady state and rolling updates of daemon pods: single steps by example, whole updates by property.

use jiff::SignedDuration;
use k8s_openapi::{
    api::core::v1::{PodCondition, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use proptest::prelude::*;

use super::*;

const YES: Option<Eligibility> = Some(Eligibility {
    should_run: true,
    may_stay: true,
});
const STAY: Option<Eligibility> = Some(Eligibility {
    should_run: false,
    may_stay: true,
});
const NO: Option<Eligibility> = Some(Eligibility {
    should_run: false,
    may_stay: false,
});

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).expect("a valid moment")
}

fn revision() -> Revision {
    Revision {
        hash: "new".to_owned(),
        generation: None,
        min_ready_seconds: 0,
    }
}

/// Returns a pod named `name` that was created `age` seconds ago.
fn pod(name: &str, hash: &str, ready: bool, age: i64) -> Pod {
    let condition = PodCondition {
        type_: "Ready".to_owned(),
        status: if ready { "True" } else { "False" }.to_owned(),
        ..PodCondition::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(HASH_LABEL.to_owned(), hash.to_owned())].into()),
            creation_timestamp: Some(Time(now() - SignedDuration::from_secs(age))),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: Some("node".to_owned()),
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            phase: Some("Running".to_owned()),
            conditions: Some(vec![condition]),
            ..PodStatus::default()
        }),
    }
}

fn deleting(mut pod: Pod) -> Pod {
    pod.metadata.deletion_timestamp = Some(Time(now()));
    pod
}

fn in_phase(mut pod: Pod, phase: &str) -> Pod {
    pod.status.as_mut().expect("set by pod").phase = Some(phase.to_owned());
    pod
}

fn views(nodes: impl IntoIterator<Item = (&'static str, Option<Eligibility>, Vec<Pod>)>) -> Views {
    let view = |eligibility, pods: Vec<Pod>| View {
        eligibility,
        pods: pods.into_iter().map(Arc::new).collect(),
    };
    nodes
        .into_iter()
        .map(|(name, eligibility, pods)| (name.to_owned(), view(eligibility, pods)))
        .collect()
}

fn names(pods: &[Arc<Pod>]) -> Vec<String> {
    pods.iter().map(|pod| pod.name_any()).collect()
}

#[test]
fn every_eligible_node_gets_one_pod_and_others_lose_theirs() {
    let views = views([
        ("empty", YES, vec![]),
        ("served", YES, vec![pod("keep", "new", true, 1)]),
        ("tainted", STAY, vec![pod("stay", "new", true, 1)]),
        ("tainted-empty", STAY, vec![]),
        ("unfit", NO, vec![pod("go", "new", true, 1)]),
    ]);
    let plan = steady(&views, &revision(), false, now());
    assert_eq!(plan.create_on, ["empty"]);
    assert_eq!(names(&plan.delete), ["go"]);
}

#[test]
fn a_node_waits_for_its_terminating_pod_before_it_gets_another() {
    let views = views([("node", YES, vec![deleting(pod("old", "new", true, 1))])]);
    assert_eq!(steady(&views, &revision(), false, now()), Plan::default());
}

#[test]
fn of_doubles_the_bound_then_the_oldest_stays() {
    let mut unbound = pod("unbound", "new", false, 99);
    unbound.spec.as_mut().expect("set by pod").node_name = None;
    let pods = vec![
        pod("young", "new", true, 1),
        unbound,
        pod("old", "new", true, 50),
    ];
    let plan = steady(&views([("node", YES, pods)]), &revision(), false, now());
    assert_eq!(names(&plan.delete), ["young", "unbound"]);
}

#[test]
fn finished_pods_are_told_apart() {
    let pods = vec![
        in_phase(pod("failed", "new", false, 1), "Failed"),
        in_phase(pod("done", "new", false, 1), "Succeeded"),
    ];
    let plan = steady(&views([("node", YES, pods)]), &revision(), false, now());
    assert_eq!((plan.failed.len(), plan.succeeded.len()), (1, 1));
    assert!(plan.create_on.is_empty() && plan.delete.is_empty());
}

#[test]
fn unbound_pods_for_a_vanished_node_are_deleted_and_bound_ones_left_to_the_collector() {
    let mut unbound = pod("unbound", "new", false, 1);
    unbound.spec.as_mut().expect("set by pod").node_name = None;
    let plan = steady(
        &views([("gone", None, vec![unbound, pod("bound", "new", true, 1)])]),
        &revision(),
        false,
        now(),
    );
    assert_eq!(names(&plan.delete), ["unbound"]);
}

#[test]
fn without_surge_old_pods_go_within_the_bound_and_broken_ones_at_once() {
    let nodes = views([
        ("a", YES, vec![pod("old-a", "old", true, 9)]),
        ("b", YES, vec![pod("old-b", "old", true, 9)]),
        ("c", YES, vec![pod("old-c", "old", false, 9)]),
        ("d", YES, vec![pod("new-d", "new", true, 9)]),
    ]);
    assert_eq!(
        names(&rolling(&nodes, &revision(), 0, 1, now()).delete),
        ["old-c"]
    );
    assert_eq!(
        names(&rolling(&nodes, &revision(), 0, 2, now()).delete),
        ["old-c", "old-a"]
    );
    assert_eq!(
        names(&rolling(&nodes, &revision(), 0, 9, now()).delete),
        ["old-c", "old-a", "old-b"]
    );
}

#[test]
fn nodes_between_two_pods_count_as_unavailable() {
    let nodes = views([
        ("a", YES, vec![pod("old-a", "old", true, 9)]),
        ("b", YES, vec![deleting(pod("old-b", "old", true, 9))]),
        ("c", YES, vec![pod("new-c", "new", false, 9)]),
        ("d", YES, vec![]),
    ]);
    assert!(rolling(&nodes, &revision(), 0, 3, now()).delete.is_empty());
    assert_eq!(
        names(&rolling(&nodes, &revision(), 0, 4, now()).delete),
        ["old-a"]
    );
}

#[test]
fn with_surge_new_pods_come_first_and_old_ones_go_when_those_serve() {
    let nodes = views([
        ("a", YES, vec![pod("old-a", "old", true, 9)]),
        (
            "b",
            YES,
            vec![pod("old-b", "old", true, 9), pod("new-b", "new", true, 1)],
        ),
        ("c", YES, vec![pod("old-c", "old", false, 9)]),
        ("d", YES, vec![pod("old-d", "old", true, 9)]),
    ]);
    let plan = rolling(&nodes, &revision(), 1, 0, now());
    assert_eq!(plan.create_on, ["c", "a"]);
    assert_eq!(names(&plan.delete), ["old-b"]);
}

#[test]
fn with_surge_a_pod_on_an_unwanted_node_stays_until_enough_others_serve() {
    let nodes = |elsewhere_serves| {
        views([
            ("a", YES, vec![pod("new-a", "new", elsewhere_serves, 9)]),
            ("b", STAY, vec![pod("old-b", "old", true, 9)]),
            ("c", STAY, vec![pod("old-c", "old", false, 9)]),
        ])
    };
    let deleted = |elsewhere_serves| {
        names(&rolling(&nodes(elsewhere_serves), &revision(), 1, 0, now()).delete)
    };
    assert_eq!(deleted(false), ["old-c"]);
    assert_eq!(deleted(true), ["old-c", "old-b"]);
}

#[test]
fn a_surged_node_waits_for_its_new_pod() {
    let both = || vec![pod("old", "old", true, 9), pod("new", "new", false, 1)];
    let nodes = views([
        ("a", YES, both()),
        ("b", YES, vec![pod("old-b", "old", true, 9)]),
    ]);
    let plan = rolling(&nodes, &revision(), 1, 0, now());
    assert_eq!(plan, Plan::default());
    assert_eq!(steady(&nodes, &revision(), true, now()), Plan::default());
    let broken = views([(
        "a",
        YES,
        vec![pod("old", "old", false, 9), pod("new", "new", false, 1)],
    )]);
    assert_eq!(
        names(&steady(&broken, &revision(), true, now()).delete),
        ["old"]
    );
}

#[test]
fn a_pod_of_the_current_template_generation_is_current_whatever_its_hash() {
    let mut labelled = pod("a", "other-scheme", true, 1);
    labelled
        .labels_mut()
        .insert(GENERATION_LABEL.to_owned(), "3".to_owned());
    let of = |generation| Revision {
        generation,
        ..revision()
    };
    assert!(of(Some(3)).is_current(&labelled));
    assert!(!of(Some(4)).is_current(&labelled));
    assert!(!of(None).is_current(&labelled));
}

/// A rolling update of nodes that all should run a pod, with its parts acting in any order.
struct Play {
    views: Views,
    surge: usize,
    unavailable: usize,
    made: usize,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Steady,
    Roll,
    /// All pods of the node become ready.
    Ready(usize),
}

impl Play {
    /// Creates one node per element of `ready`, with an old pod that is ready or not.
    fn new(ready: &[bool], surge: usize, unavailable: usize) -> Self {
        let view = |(index, &ready): (usize, &bool)| {
            let old = pod(&format!("old-{index}"), "old", ready, 100);
            let view = View {
                eligibility: YES,
                pods: vec![Arc::new(old)],
            };
            (format!("node-{index}"), view)
        };
        Self {
            views: ready.iter().enumerate().map(view).collect(),
            surge,
            unavailable,
            made: 0,
        }
    }

    fn serving(&self) -> usize {
        let serves = |view: &&View| view.pods.iter().any(|pod| pods::is_ready(pod));
        self.views.values().filter(serves).count()
    }

    fn take(&mut self, turn: Turn) {
        let (revision, before) = (revision(), self.serving());
        let plan = match turn {
            Turn::Steady => steady(&self.views, &revision, self.surge > 0, now()),
            Turn::Roll => rolling(&self.views, &revision, self.surge, self.unavailable, now()),
            Turn::Ready(index) => {
                let view = self.views.values_mut().nth(index);
                for pod in view.into_iter().flat_map(|view| &mut view.pods) {
                    let status = Arc::make_mut(pod).status.as_mut().expect("set by pod");
                    status.conditions.as_mut().expect("set by pod")[0].status = "True".to_owned();
                }
                return;
            }
        };
        for view in self.views.values_mut() {
            view.pods.retain(|pod| !plan.delete.contains(pod));
        }
        for node in plan.create_on {
            self.made += 1;
            let new = pod(&format!("new-{}", self.made), "new", false, 0);
            let view = self.views.get_mut(&node).expect("it has a view");
            view.pods.push(Arc::new(new));
        }
        let missing_at_most = if self.surge > 0 { 0 } else { self.unavailable };
        let floor = self.views.len().saturating_sub(missing_at_most);
        assert!(
            self.serving() >= before.min(floor),
            "{turn:?}: {:?}",
            self.views
        );
        // A new pod beside an old one that does not serve is no surge.
        let doubles =
            |view: &&View| view.pods.len() > 1 && view.pods.iter().any(|pod| pods::is_ready(pod));
        let doubled = self.views.values().filter(doubles).count();
        assert!(doubled <= self.surge, "{turn:?}: {:?}", self.views);
    }

    fn finish(&mut self) {
        for _ in 0..4 * self.views.len() {
            self.take(Turn::Steady);
            self.take(Turn::Roll);
            (0..self.views.len()).for_each(|index| self.take(Turn::Ready(index)));
        }
        for view in self.views.values() {
            let [pod] = &view.pods[..] else {
                panic!("not one pod: {view:?}");
            };
            assert!(
                revision().is_current(pod) && pods::is_ready(pod),
                "{view:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn an_update_keeps_its_bounds_in_whatever_order_its_parts_act_and_ends(
        ready in proptest::collection::vec(any::<bool>(), 1..6),
        (surge, unavailable) in prop_oneof![(Just(0), 1..4_usize), (1..4_usize, Just(0))],
        turns in proptest::collection::vec(
            prop_oneof![Just(Turn::Steady), Just(Turn::Roll), (0..6_usize).prop_map(Turn::Ready)],
            0..40,
        ),
    ) {
        let mut play = Play::new(&ready, surge, unavailable);
        for turn in turns {
            play.take(turn);
        }
        play.finish();
    }
}
