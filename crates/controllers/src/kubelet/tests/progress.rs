//! Tests that a kubelet can be driven by the wake times of its pods: random pods, changes and restarts at random
//! times.
//!
//! Each pod is stepped only at the time that it reported, as the driver does. The test checks that this time is
//! always in the future, that nothing is due before it, and that the number of steps per second is bounded.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use mullion_engine::windows::Build;
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

use super::{facts, start};
use crate::kubelet::{
    addresses::Addresses,
    config::ObjectContents,
    host::Host,
    node::Readiness,
    pace::Pace,
    pod::{Effect, Step},
    pulls::ImageSources,
};

/// The end of the story, from its start.
const STORY_S: i64 = 120;

/// The time at which ConfigMaps and Secrets are created, from the start.
const OBJECTS_AT_S: i64 = 30;

/// Images that are quickly present, take a while, or are checked at every start.
const IMAGES: [&str; 4] = ["app:1", "app", "nginx:1.27", "redis"];
/// Images without a variant for one of the nodes, or with an invalid name.
const BROKEN: [&str; 3] = [
    "mcr.microsoft.com/windows/servercore:ltsc2022",
    "mcr.microsoft.com/windows/nanoserver:ltsc2019",
    "Nginx",
];

#[derive(Clone, Debug)]
enum Happening {
    Image {
        pod: usize,
        container: usize,
        image: &'static str,
    },
    Deletion {
        pod: usize,
        grace_s: i64,
    },
    /// The kubelets restart and read their pods from the API server.
    Restart,
}

#[derive(Clone, Debug)]
struct Story {
    windows: bool,
    pace: Pace,
    addresses: u8,
    pods: Vec<Value>,
    happenings: BTreeMap<i64, Happening>,
}

fn image() -> impl Strategy<Value = &'static str> {
    prop_oneof![9 => select(&IMAGES[..]), 1 => select(&BROKEN[..])]
}

fn container() -> impl Strategy<Value = Value> {
    let probe = || prop::option::of(0..6i64);
    let configured = any::<bool>();
    let parts = (image(), probe(), probe(), probe(), configured);
    parts.prop_map(|(image, startup, liveness, readiness, configured)| {
        let mut container = json!({ "image": image });
        if configured {
            container["envFrom"] = json!([{ "configMapRef": { "name": "settings" } }]);
        }
        let probes = [
            ("startupProbe", startup),
            ("livenessProbe", liveness),
            ("readinessProbe", readiness),
        ];
        for (probe, delay) in probes {
            if let Some(seconds) = delay {
                container[probe] = json!({ "initialDelaySeconds": seconds, "periodSeconds": 2 });
            }
        }
        container
    })
}

fn pod() -> impl Strategy<Value = Value> {
    let exit = || {
        let plans = [
            "0",
            "1",
            "1 after 250ms",
            "1 after 2s",
            "1 after 2050ms",
            "0 after 11s",
        ];
        prop::option::weighted(0.7, select(plans.to_vec()))
    };
    let failure = || {
        let failures = ["fail", "fail after 3s", "fail after 1s for 9s"];
        prop::option::weighted(0.3, select(failures.to_vec()))
    };
    let init = (container(), any::<bool>());
    (
        prop::collection::vec(init, 0..3),
        prop::collection::vec((container(), exit()), 1..4),
        exit(),
        prop::option::of(select(&["0s", "20s", "5m"][..])),
        select(&["Always", "OnFailure", "Never"][..]),
        prop::option::weighted(0.2, 1..60i64),
        [failure(), failure(), failure()],
        any::<bool>(),
    )
        .prop_map(|(inits, apps, exit, stop, policy, deadline, failures, mounts)| {
            let mut pod = json!({
                "metadata": { "name": "p", "namespace": "ns", "generation": 1, "annotations": {} },
                "spec": {
                    "nodeName": "ip-10-0-1-9.us-west-2.compute.internal", "restartPolicy": policy, "activeDeadlineSeconds": deadline,
                    "initContainers": [], "containers": [],
                },
            });
            if mounts {
                pod["spec"]["volumes"] = json!([{ "name": "keys", "secret": { "secretName": "keys" } }]);
            }
            let annotate = |pod: &mut Value, key: String, value: Option<&str>| {
                if let Some(value) = value {
                    pod["metadata"]["annotations"][key] = json!(value);
                }
            };
            annotate(&mut pod, "mullion.dev/simulate-exit".to_owned(), exit);
            annotate(&mut pod, "mullion.dev/simulate-stop".to_owned(), stop);
            for (kind, failure) in ["startup", "liveness", "readiness"].iter().zip(failures) {
                annotate(&mut pod, format!("mullion.dev/simulate-{kind}"), failure);
            }
            let inits = inits
                .into_iter()
                .enumerate()
                .map(|(n, (mut init, sidecar))| {
                    init["name"] = json!(format!("i{n}"));
                    if sidecar {
                        init["restartPolicy"] = json!("Always");
                    }
                    init
                });
            pod["spec"]["initContainers"] = inits.collect();
            let mut containers = Vec::new();
            for (n, (mut app, exit)) in apps.into_iter().enumerate() {
                app["name"] = json!(format!("c{n}"));
                annotate(&mut pod, format!("mullion.dev/simulate-exit.c{n}"), exit);
                containers.push(app);
            }
            pod["spec"]["containers"] = json!(containers);
            pod
        })
}

fn story() -> impl Strategy<Value = Story> {
    let happening = prop_oneof![
        3 => (0..2usize, 0..3usize, image())
            .prop_map(|(pod, container, image)| Happening::Image { pod, container, image }),
        1 => (0..2usize, 0..40i64).prop_map(|(pod, grace_s)| Happening::Deletion { pod, grace_s }),
        1 => Just(Happening::Restart),
    ];
    (
        any::<bool>(),
        select(vec![
            Pace::INSTANT,
            Pace::REAL,
            Pace::times(0.3),
            Pace::times(7.0),
        ]),
        1..4u8,
        prop::collection::vec(pod(), 1..3),
        prop::collection::btree_map(0..STORY_S * 1_000, happening, 0..10),
    )
        .prop_map(|(windows, pace, addresses, pods, happenings)| Story {
            windows,
            pace,
            addresses,
            pods,
            happenings,
        })
}

/// A node, the pods at the API server, and the wake times of the pods.
struct World {
    windows: bool,
    pace: Pace,
    addresses: u8,
    host: Host,
    now: Timestamp,
    pods: Vec<Option<(Value, Option<Timestamp>)>>,
    /// The number of steps in each second.
    steps: BTreeMap<i64, usize>,
}

impl World {
    fn new(story: &Story) -> Self {
        Self {
            windows: story.windows,
            pace: story.pace,
            addresses: story.addresses,
            host: host(story.windows, story.pace, story.addresses, start()),
            now: start(),
            pods: Vec::new(),
            steps: BTreeMap::new(),
        }
    }

    /// Returns the most steps per second that the node's pods may need: each container changes a few times before
    /// its back-off, and two of its probes may fail every tenth of a second.
    fn most_steps(&self) -> usize {
        let containers = |pod: &Value| {
            ["initContainers", "containers"]
                .map(|list| pod["spec"][list].as_array().map_or(0, Vec::len))
                .iter()
                .sum::<usize>()
        };
        let all: usize = self
            .pods
            .iter()
            .flatten()
            .map(|(pod, _)| containers(pod))
            .sum();
        40 * all + 8 * self.pods.len()
    }

    fn observe(&mut self, slot: usize) {
        let Some((pod, _)) = &self.pods[slot] else {
            return;
        };
        let step = self.host.observe_pod(parsed(pod), self.now);
        self.note(slot, step);
    }

    fn note(&mut self, slot: usize, step: Step) {
        let Some((pod, wake)) = &mut self.pods[slot] else {
            return;
        };
        assert!(
            step.wake.is_none_or(|at| at > self.now),
            "at {} pod {slot} asks to be woken at {:?}",
            self.now,
            step.wake
        );
        *wake = step.wake;
        let (mut gone, mut questions) = (false, Vec::new());
        for effect in step.effects {
            match effect {
                Effect::Status { status, .. } => pod["status"] = written(&status),
                Effect::Delete => gone = true,
                Effect::Ask(question) => questions.push(question),
                Effect::Event(_) => {}
            }
        }
        let echo = parsed(pod);
        self.host.refresh_pod(echo, self.now);
        if gone {
            self.pods[slot] = None;
            self.host.forget_pod(&uid(slot), self.now);
            return;
        }
        let all_there = self.now.duration_since(start()).as_secs() >= OBJECTS_AT_S;
        for question in questions {
            let objects = question.objects.into_iter().filter(|_| all_there);
            let found = objects
                .map(|object| (object, ObjectContents::default()))
                .collect();
            self.host.answer(&uid(slot), question.purpose, found);
            let step = self.host.step(&uid(slot), self.now);
            self.note(slot, step);
        }
    }

    /// Steps every pod that is due until `end`.
    fn run_until(&mut self, end: Timestamp) {
        loop {
            let wakes = self.pods.iter().enumerate();
            let next = wakes
                .filter_map(|(slot, pod)| Some((pod.as_ref()?.1?, slot)))
                .min();
            let stop = next.map_or(end, |(at, _)| at.min(end));
            self.step_idly(stop);
            self.now = stop;
            let Some((_, slot)) = next.filter(|(at, _)| *at <= end) else {
                return;
            };
            let second = self.now.duration_since(start()).as_secs();
            let most = self.most_steps();
            let steps = self.steps.entry(second).or_default();
            *steps += 1;
            assert!(*steps <= most, "{steps} steps in second {second}");
            let step = self.host.step(&uid(slot), self.now);
            self.note(slot, step);
        }
    }

    /// Checks that nothing is due between the reported wake times.
    fn step_idly(&mut self, next: Timestamp) {
        let half = next.duration_since(self.now) / 2;
        let between = self.now + half;
        for (slot, pod) in self.pods.iter().enumerate() {
            let Some((_, wake)) = pod else { continue };
            if wake.is_some_and(|at| at <= between) {
                continue;
            }
            let step = self.host.step(&uid(slot), between);
            assert_eq!(
                step,
                Step {
                    effects: Vec::new(),
                    wake: *wake
                },
                "pod {slot} at {between}, between {} and {next}",
                self.now
            );
        }
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Image {
                pod: slot,
                container,
                image,
            } => {
                let Some(Some((pod, _))) = self.pods.get_mut(*slot) else {
                    return;
                };
                if let Some(container) = pod["spec"]["containers"].get_mut(*container) {
                    container["image"] = json!(image);
                    self.observe(*slot);
                }
            }
            Happening::Deletion { pod: slot, grace_s } => {
                let Some(Some((pod, _))) = self.pods.get_mut(*slot) else {
                    return;
                };
                let at = self.now + SignedDuration::from_secs(*grace_s);
                pod["metadata"]["deletionTimestamp"] = json!(at.to_string());
                pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace_s);
                self.observe(*slot);
            }
            Happening::Restart => {
                self.host = host(self.windows, self.pace, self.addresses, self.now);
                for slot in 0..self.pods.len() {
                    self.observe(slot);
                }
            }
        }
    }
}

fn host(windows: bool, pace: Pace, addresses: u8, now: Timestamp) -> Host {
    let facts = if windows {
        facts("windows", Some(Build::SERVER_2022))
    } else {
        facts("linux", None)
    };
    let pool = Addresses::new((0..addresses).map(|n| Ipv4Addr::new(10, 0, 1, 100 + n)));
    let mut host = Host::new(facts.clone(), pool, ImageSources::default(), pace, now);
    let node = facts.node(Readiness::Ready, Vec::new(), now);
    host.observe_node(Arc::new(node), now);
    host
}

fn uid(slot: usize) -> String {
    format!("uid-{slot}")
}

fn parsed(pod: &Value) -> Arc<Pod> {
    Arc::new(serde_json::from_value(pod.clone()).expect("a pod"))
}

fn written(status: &PodStatus) -> Value {
    serde_json::to_value(status).expect("a status is plain data")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn a_pod_wakes_only_ahead_and_only_so_often_and_does_nothing_in_between(story in story()) {
        let mut world = World::new(&story);
        for (slot, pod) in story.pods.iter().enumerate() {
            let mut pod = pod.clone();
            pod["metadata"]["uid"] = json!(uid(slot));
            world.pods.push(Some((pod, None)));
            world.observe(slot);
            let taken = world.host.pod(&uid(slot)).is_some() && world.pods[slot].as_ref().is_some_and(|(pod, _)| pod["status"]["reason"].is_null());
            prop_assert!(taken, "pod {slot} was refused: {:?}", world.pods[slot]);
        }
        for (ms, happening) in &story.happenings {
            world.run_until(start() + SignedDuration::from_millis(*ms));
            world.happen(happening);
        }
        world.run_until(start() + SignedDuration::from_secs(STORY_S));
    }
}
