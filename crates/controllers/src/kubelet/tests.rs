//! Tests of whole lives of simulated pods as transcripts: what the kubelet writes and records, and when.

mod complaints;
mod config;
mod devices;
mod ephemeral;
mod identity;
mod images;
mod lives;
mod memory;
mod probes;
mod progress;
mod replaced;
mod resizes;
mod restarts;
mod statuses;
mod stops;

use std::{net::Ipv4Addr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use mullion_engine::windows::Build;
use serde_json::{Value, json};

use super::{
    addresses::Addresses,
    config::FoundObjects,
    host::Host,
    node::{NodeFacts, Readiness},
    pace::Pace,
    pod::{Effect, Step},
    pulls::ImageSources,
};

fn start() -> Timestamp {
    "2026-01-27T10:00:00Z".parse().expect("a timestamp")
}

pub(super) fn facts(os: &str, build: Option<Build>) -> NodeFacts {
    let amounts = [("cpu", "4"), ("memory", "8Gi"), ("pods", "110")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()));
    NodeFacts {
        name: "ip-10-0-1-9.us-west-2.compute.internal".to_owned(),
        provider_id: "aws:///us-west-2a/i-0123456789abcdef0".to_owned(),
        instance_type: "c6a.xlarge".to_owned(),
        zone: "us-west-2a".to_owned(),
        region: "us-west-2".to_owned(),
        os: os.to_owned(),
        arch: "amd64".to_owned(),
        windows_build: build,
        internal_ip: Ipv4Addr::new(10, 0, 1, 9),
        external_ip: None,
        subnet_prefix_len: 19,
        os_image: "Amazon Linux 2023".to_owned(),
        kernel_version: "6.1".to_owned(),
        container_runtime: "containerd://2.1.4".to_owned(),
        kubelet_version: "v1.36.0".to_owned(),
        capacity: amounts.clone().into(),
        allocatable: amounts.into(),
        labels: Default::default(),
        taints: Vec::new(),
        pull_speed: Default::default(),
    }
}

/// Returns a node that does not know its Node object yet.
fn unregistered(facts: NodeFacts, pace: Pace, addresses: u8) -> Host {
    let pool = Addresses::new((0..addresses).map(|n| Ipv4Addr::new(10, 0, 1, 100 + n)));
    let knowledge = ImageSources::default();
    Host::new(facts, pool, knowledge, pace, start())
}

/// A node, the present time, and the transcript so far.
struct Scene {
    host: Host,
    now: Timestamp,
    /// The ConfigMaps and Secrets that exist.
    objects: FoundObjects,
    lines: Vec<String>,
}

impl Scene {
    fn new(facts: NodeFacts, pace: Pace, addresses: u8) -> Self {
        let mut host = unregistered(facts.clone(), pace, addresses);
        let node = facts.node(Readiness::Ready, Vec::new(), start());
        host.observe_node(Arc::new(node), start());
        Self {
            host,
            now: start(),
            objects: FoundObjects::new(),
            lines: Vec::new(),
        }
    }

    /// Returns a Windows node whose pods get their addresses by annotations.
    fn annotated() -> Self {
        let facts = facts("windows", Some(Build::SERVER_2022));
        let mut scene = Self::new(facts.clone(), Pace::INSTANT, 0);
        let node = facts.node(Readiness::Ready, Vec::new(), start());
        let (pool, knowledge) = (Addresses::annotated(), ImageSources::default());
        scene.host = Host::new(facts, pool, knowledge, Pace::INSTANT, start());
        scene.host.observe_node(Arc::new(node), start());
        scene
    }

    /// Returns a Windows node whose images are those of `knowledge`.
    fn knowing(build: Build, knowledge: ImageSources) -> Self {
        let facts = facts("windows", Some(build));
        let mut scene = Self::windows(build);
        let node = facts.node(Readiness::Ready, Vec::new(), start());
        let pool = Addresses::new([Ipv4Addr::new(10, 0, 1, 100)]);
        scene.host = Host::new(facts, pool, knowledge, Pace::INSTANT, start());
        scene.host.observe_node(Arc::new(node), start());
        scene
    }

    fn linux(pace: Pace) -> Self {
        Self::new(facts("linux", None), pace, 5)
    }

    fn windows(build: Build) -> Self {
        Self::new(facts("windows", Some(build)), Pace::INSTANT, 2)
    }

    /// Passes a version of a pod to the kubelet.
    fn observe(&mut self, pod: &Value) -> Option<Timestamp> {
        let pod: Pod = serde_json::from_value(pod.clone()).expect("a pod");
        let step = self.host.observe_pod(Arc::new(pod), self.now);
        self.note(step)
    }

    /// Advances the time until nothing more is due, or until `until_s` seconds after the start.
    fn run(&mut self, mut wake: Option<Timestamp>, until_s: i64) -> Option<Timestamp> {
        let end = start() + SignedDuration::from_secs(until_s);
        while let Some(at) = wake.filter(|at| *at <= end) {
            assert!(
                at > self.now,
                "the machine asked to be woken at a moment that is over: {at}"
            );
            self.now = at;
            let step = self.host.step("uid-1", at);
            wake = self.note(step);
        }
        self.now = self.now.max(end);
        wake
    }

    fn note(&mut self, step: Step) -> Option<Timestamp> {
        let again = self.host.step("uid-1", self.now);
        assert!(
            again.effects.is_empty(),
            "stepping again at the same moment changed something: {again:?}"
        );
        let mut wake = step.wake;
        let seconds = self.now.duration_since(start()).as_millis() as f64 / 1_000.0;
        let mut questions = Vec::new();
        for effect in step.effects {
            let text = match effect {
                Effect::Event(event) => {
                    let kind = if event.warning { "Warning" } else { "Normal" };
                    format!("{kind} {}: {}", event.reason, event.message)
                }
                Effect::Status { status, address } => {
                    let address = address
                        .map(|address| format!(" annotated {address}"))
                        .unwrap_or_default();
                    format!("status {}{address}", summary(&status))
                }
                Effect::Ask(question) => {
                    questions.push(question);
                    continue;
                }
                Effect::Delete => "delete".to_owned(),
            };
            self.lines.push(format!("{seconds}s {text}"));
        }
        for question in questions {
            let mut found = self.objects.clone();
            found.retain(|object, _| question.objects.contains(object));
            self.host.answer("uid-1", question.purpose, found);
            let step = self.host.step("uid-1", self.now);
            wake = self.note(step);
        }
        wake
    }

    #[track_caller]
    fn expect(&mut self, lines: &[&str]) {
        let happened = std::mem::take(&mut self.lines);
        assert_eq!(happened, lines, "\n{}\n", happened.join("\n"));
    }
}

fn summary(status: &PodStatus) -> String {
    let container = |status: &ContainerStatus| {
        let state = status.state.as_ref().expect("every container has a state");
        let what = if let Some(waiting) = &state.waiting {
            waiting.reason.clone().unwrap_or_default()
        } else if let Some(terminated) = &state.terminated {
            format!(
                "{}({})",
                terminated.reason.as_deref().unwrap_or_default(),
                terminated.exit_code
            )
        } else {
            "Running".to_owned()
        };
        let ready = if status.ready { "+" } else { "" };
        let restarts = if status.restart_count > 0 {
            format!("x{}", status.restart_count)
        } else {
            String::new()
        };
        format!("{}={what}{ready}{restarts}", status.name)
    };
    let all = status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten())
        .chain(status.ephemeral_container_statuses.iter().flatten());
    let containers: Vec<_> = all.map(container).collect();
    let reason = status
        .reason
        .as_ref()
        .map(|reason| format!(" ({reason})"))
        .unwrap_or_default();
    let ip = status
        .pod_ip
        .as_ref()
        .map(|ip| format!(" {ip}"))
        .unwrap_or_default();
    let conditions = status.conditions.iter().flatten();
    let resizes = conditions.filter(|condition| condition.type_.starts_with("PodResize"));
    let resizes = resizes.map(|own| {
        let generation = own.observed_generation.unwrap_or_default();
        format!(" {} of {generation}", own.type_)
    });
    format!(
        "{}{reason}{ip} {}{}",
        status.phase.as_deref().unwrap_or_default(),
        containers.join(" "),
        resizes.collect::<String>()
    )
    .trim_end()
    .to_owned()
}

fn pod(spec: Value) -> Value {
    let mut pod = json!({
        "metadata": { "name": "p", "namespace": "ns", "uid": "uid-1", "generation": 1, "annotations": {} },
        "spec": spec,
    });
    pod["spec"]["nodeName"] = json!("ip-10-0-1-9.us-west-2.compute.internal");
    pod
}

fn one(image: &str) -> Value {
    pod(json!({ "containers": [{ "name": "web", "image": image }] }))
}

fn annotated(mut pod: Value, key: &str, value: &str) -> Value {
    pod["metadata"]["annotations"][key] = json!(value);
    pod
}

fn deleted(mut pod: Value, at_s: i64, grace_s: i64) -> Value {
    let stamp = start() + SignedDuration::from_secs(at_s + grace_s);
    pod["metadata"]["deletionTimestamp"] = json!(stamp.to_string());
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace_s);
    pod
}

const PRESENT: &str = "already present on machine and can be accessed by the pod";
