//! Whole lives of simulated pods, as transcripts: what the kubelet writes and records, and when.

mod progress;

use std::{net::Ipv4Addr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use mullion_engine::windows::Build;
use serde_json::{Value, json};

use super::{
    addresses::Addresses,
    host::Host,
    images::ImageTable,
    node::{NodeFacts, Readiness},
    pace::Pace,
    pod::{Effect, Step},
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
    }
}

/// A node, the moment, and what has happened on it so far.
struct Scene {
    host: Host,
    now: Timestamp,
    lines: Vec<String>,
}

impl Scene {
    fn new(facts: NodeFacts, pace: Pace, addresses: u8) -> Self {
        let pool = Addresses::new((0..addresses).map(|n| Ipv4Addr::new(10, 0, 1, 100 + n)));
        let mut host = Host::new(
            facts.clone(),
            pool,
            Arc::new(ImageTable::default()),
            pace,
            start(),
        );
        host.observe_node(Arc::new(facts.node(Readiness::Ready, Vec::new(), start())));
        Self {
            host,
            now: start(),
            lines: Vec::new(),
        }
    }

    fn linux(pace: Pace) -> Self {
        Self::new(facts("linux", None), pace, 5)
    }

    fn windows(build: Build) -> Self {
        Self::new(facts("windows", Some(build)), Pace::INSTANT, 2)
    }

    /// Gives the kubelet a version of a pod.
    fn observe(&mut self, pod: &Value) -> Option<Timestamp> {
        let pod: Pod = serde_json::from_value(pod.clone()).expect("a pod");
        let step = self.host.observe_pod(Arc::new(pod), self.now);
        self.note(step)
    }

    /// Lets time pass until nothing more is due, or `until` seconds after the start.
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
        let seconds = self.now.duration_since(start()).as_millis() as f64 / 1_000.0;
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
                Effect::Delete => "delete".to_owned(),
            };
            self.lines.push(format!("{seconds}s {text}"));
        }
        step.wake
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
        .chain(status.container_statuses.iter().flatten());
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
    format!(
        "{}{reason}{ip} {}",
        status.phase.as_deref().unwrap_or_default(),
        containers.join(" ")
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

#[test]
fn without_delays_a_pod_becomes_running_and_ready_in_a_single_write() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let wake = scene.observe(&one("nginx:1.27"));
    assert_eq!(wake, None);
    scene.expect(&[
        "0s Normal Pulling: Pulling image \"nginx:1.27\"",
        "0s Normal Pulled: Successfully pulled image \"nginx:1.27\" in 0s (0s including waiting). Image size: 72000000 bytes.",
        "0s Normal Created: Container created",
        "0s Normal Started: Container started",
        "0s status Running 10.0.1.100 web=Running+",
    ]);
}

#[test]
fn at_real_pace_sandbox_pull_and_start_take_their_time() {
    let mut scene = Scene::linux(Pace::REAL);
    let wake = scene.observe(&one("nginx:1.27"));
    scene.run(wake, 60);
    scene.expect(&[
        "0s status Pending web=ContainerCreating",
        "0.8s Normal Pulling: Pulling image \"nginx:1.27\"",
        "0.8s status Pending 10.0.1.100 web=ContainerCreating",
        "2s Normal Pulled: Successfully pulled image \"nginx:1.27\" in 1.2s (1.2s including waiting). Image size: 72000000 bytes.",
        "2.15s Normal Created: Container created",
        "2.15s Normal Started: Container started",
        "2.15s status Running 10.0.1.100 web=Running+",
    ]);
}

#[test]
fn conditions_carry_the_kubelets_reasons_and_move_only_when_their_status_moves() {
    let mut scene = Scene::linux(Pace::REAL);
    let spec = json!({
        "initContainers": [{ "name": "setup", "image": "busybox:1" }, { "name": "mesh", "image": "mesh:1", "restartPolicy": "Always" }],
        "containers": [{ "name": "web", "image": "nginx:1.27" }, { "name": "log", "image": "log:1" }],
        "readinessGates": [{ "conditionType": "example.com/lb" }],
    });
    let value: Pod = serde_json::from_value(pod(spec)).expect("a pod");
    let value = Arc::new(value);
    let mut step = scene.host.observe_pod(Arc::clone(&value), scene.now);
    let mut last: Option<Box<PodStatus>> = None;
    let mut seen = Vec::new();
    loop {
        for effect in std::mem::take(&mut step.effects) {
            if let Effect::Status { status, .. } = effect {
                for condition in status.conditions.iter().flatten() {
                    let text = format!(
                        "{} {} {} {}",
                        condition.type_,
                        condition.status,
                        condition.reason.as_deref().unwrap_or("-"),
                        condition.message.as_deref().unwrap_or("-")
                    );
                    if !seen.contains(&text) {
                        seen.push(text);
                    }
                }
                last = Some(status);
            }
        }
        let Some(wake) = step.wake else { break };
        scene.now = wake;
        step = scene.host.step("uid-1", wake);
    }
    assert_eq!(
        seen,
        [
            "PodReadyToStartContainers False - -",
            "Initialized False ContainersNotInitialized containers with incomplete status: [setup mesh]",
            "Ready False ContainersNotReady containers with unready status: [mesh web log]",
            "ContainersReady False ContainersNotReady containers with unready status: [mesh web log]",
            "PodScheduled True - -",
            "PodReadyToStartContainers True - -",
            "Initialized False ContainersNotInitialized containers with incomplete status: [mesh]",
            "Initialized True - -",
            "Ready False ContainersNotReady containers with unready status: [web log]",
            "ContainersReady False ContainersNotReady containers with unready status: [web log]",
            "Ready False ContainersNotReady containers with unready status: [log]",
            "ContainersReady False ContainersNotReady containers with unready status: [log]",
            "Ready False ReadinessGatesNotReady corresponding condition of pod readiness gate \"example.com/lb\" does not exist.",
            "ContainersReady True - -",
        ]
    );
    let conditions = last
        .and_then(|status| status.conditions)
        .expect("a last status");
    let since = |slot: usize| {
        conditions[slot]
            .last_transition_time
            .as_ref()
            .map(|at| at.0.duration_since(start()).as_millis())
    };
    assert_eq!(
        since(0),
        Some(800),
        "the sandbox came up after 0.8 s and stayed up"
    );
    assert_eq!(since(2), Some(0), "Ready never was anything but False");
    assert_eq!(conditions[3].status, "True");
}

#[test]
fn init_containers_run_in_order_and_a_sidecar_stays_up_beside_the_rest() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let containers = json!({
        "initContainers": [
            { "name": "first", "image": "app:1" },
            { "name": "mesh", "image": "app:1", "restartPolicy": "Always", "startupProbe": { "initialDelaySeconds": 3 } },
            { "name": "second", "image": "app:1" },
        ],
        "containers": [{ "name": "web", "image": "app:1" }],
    });
    let mut scene_real = Scene::linux(Pace::times(100.0));
    scene.observe(&pod(containers.clone()));
    assert_eq!(
        scene.lines.last().map(String::as_str),
        Some(
            "0s status Running 10.0.1.100 first=Completed(0)+ mesh=Running+ second=Completed(0)+ web=Running+"
        )
    );
    let wake = scene_real.observe(&pod(containers));
    scene_real.run(wake, 60);
    let statuses: Vec<_> = scene_real
        .lines
        .iter()
        .filter_map(|line| Some(line.split_once("status ")?.1))
        .collect();
    assert_eq!(
        statuses,
        [
            "Pending first=PodInitializing mesh=PodInitializing second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=PodInitializing mesh=PodInitializing second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Running mesh=PodInitializing second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=PodInitializing second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=Running second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=Running+ second=PodInitializing web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=Running+ second=Running web=PodInitializing",
            "Pending 10.0.1.100 first=Completed(0)+ mesh=Running+ second=Completed(0)+ web=PodInitializing",
            "Running 10.0.1.100 first=Completed(0)+ mesh=Running+ second=Completed(0)+ web=Running+",
        ]
    );
}

#[test]
fn a_crashing_container_restarts_at_once_and_then_backs_off_ten_seconds_doubling() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let pod = annotated(one("app:1"), "mullion.dev/simulate-exit", "1 after 5s");
    let wake = scene.observe(&pod);
    scene.lines.clear();
    scene.run(wake, 71);
    let present = format!("Normal Pulled: Container image \"app:1\" {PRESENT}");
    let [created, started] = [
        "Normal Created: Container created",
        "Normal Started: Container started",
    ];
    let backoff = "Warning BackOff: Back-off restarting failed container web in pod p_ns(uid-1)";
    let again = |at: &str, delay: &str, restarts: u32| {
        vec![
            format!("{at}s {present}"),
            format!("{at}s {created}"),
            format!("{at}s {started}"),
            format!("{at}s {backoff}"),
            format!("{at}s status Running 10.0.1.100 web=CrashLoopBackOffx{restarts}"),
            delay.to_owned(),
        ]
    };
    let mut expected = Vec::new();
    for (at, restarts) in [("10", 2), ("30", 3), ("70", 4)] {
        let mut lines = again(at, "", restarts);
        lines.pop();
        expected.extend(lines);
    }
    assert_eq!(scene.lines, expected, "\n{}\n", scene.lines.join("\n"));
}

#[test]
fn two_containers_that_crash_together_are_restarted_one_after_the_other() {
    let mut scene = Scene::linux(Pace::REAL);
    let spec = json!({ "containers": [{ "name": "c", "image": "app:1" }, { "name": "d", "image": "app:1" }] });
    let pod = annotated(pod(spec), "mullion.dev/simulate-exit", "1 after 2s");
    let wake = scene.observe(&pod);
    scene.lines.clear();
    scene.run(wake, 20);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter_map(|line| line.split_once(" status Running 10.0.1.100 "))
        .collect();
    let expected = [
        ("2.6s", "c=Running+ d=Running+"),
        ("4.45s", "c=Error(1) d=Running+"),
        ("4.6s", "c=Error(1) d=Error(1)"),
        ("5.45s", "c=Error(1) d=Error(1)"),
        ("5.6s", "c=Running+x1 d=Error(1)"),
        ("5.75s", "c=Running+x1 d=Running+x1"),
        ("7.6s", "c=Error(1)x1 d=Running+x1"),
        ("7.75s", "c=Error(1)x1 d=Error(1)x1"),
        ("8.6s", "c=CrashLoopBackOffx1 d=Error(1)x1"),
        ("8.75s", "c=CrashLoopBackOffx1 d=CrashLoopBackOffx1"),
        ("17.6s", "c=Error(1)x1 d=CrashLoopBackOffx1"),
        ("17.75s", "c=Running+x2 d=Error(1)x1"),
        ("17.9s", "c=Running+x2 d=Running+x2"),
        ("19.75s", "c=Error(1)x2 d=Running+x2"),
        ("19.9s", "c=Error(1)x2 d=Error(1)x2"),
    ];
    assert_eq!(statuses, expected, "\n{}\n", scene.lines.join("\n"));
}

#[test]
fn a_running_container_ends_while_another_waits_for_its_image() {
    let mut scene = Scene::linux(Pace::REAL);
    let version = |first: &str| {
        let spec = json!({ "containers": [{ "name": "c", "image": first }, { "name": "d", "image": "app:1" }] });
        annotated(pod(spec), "mullion.dev/simulate-exit.d", "1 after 7s")
    };
    let wake = scene.observe(&version("app:1"));
    scene.run(wake, 9);
    scene.lines.clear();
    // The pull takes from 9 s to 10.2 s, and d has run since 2.6 s.
    let wake = scene.observe(&version("nginx:1.27"));
    scene.run(wake, 11);
    let last: Vec<_> = scene
        .lines
        .iter()
        .filter_map(|line| line.split_once(" status Running 10.0.1.100 "))
        .collect();
    let expected = [
        ("9s", "c=Completed(0) d=Running+"),
        ("9.6s", "c=Completed(0) d=Error(1)"),
        ("10.35s", "c=Running+x1 d=Error(1)"),
        ("10.6s", "c=Running+x1 d=Error(1)"),
        ("10.75s", "c=Running+x1 d=Running+x1"),
    ];
    assert_eq!(last, expected, "\n{}\n", scene.lines.join("\n"));
}

#[test]
fn what_waits_to_be_restarted_is_left_alone_while_its_pod_stops() {
    let mut scene = Scene::linux(Pace::REAL);
    let spec = json!({ "containers": [{ "name": "c", "image": "app:1" }, { "name": "d", "image": "app:1" }] });
    let pod = annotated(pod(spec), "mullion.dev/simulate-exit.c", "1 after 2s");
    let pod = annotated(pod, "mullion.dev/simulate-stop", "25s");
    let wake = scene.observe(&pod);
    scene.run(wake, 10);
    scene.lines.clear();
    let wake = scene.observe(&deleted(pod, 10, 30));
    scene.run(wake, 60);
    scene.expect(&[
        "10s Normal Killing: Stopping container d",
        "35s status Failed 10.0.1.100 c=Error(1)x1 d=Completed(0)",
        "35s delete",
    ]);
}

#[test]
fn a_restarted_kubelet_takes_note_of_init_containers_that_have_ended() {
    let mut scene = Scene::linux(Pace::REAL);
    let mut pod = pod(json!({
        "initContainers": [{ "name": "setup", "image": "app:1" }],
        "containers": [{ "name": "web", "image": "app:1" }],
    }));
    pod["status"] = json!({
        "phase": "Running", "startTime": "2026-01-27T09:00:00Z", "podIP": "10.0.1.102",
        "initContainerStatuses": [{
            "name": "setup", "image": "docker.io/library/app:1", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "terminated": {
                "exitCode": 0, "startedAt": "2026-01-27T09:29:00Z", "finishedAt": "2026-01-27T09:29:30Z",
                "containerID": "containerd://1",
            } },
        }],
        "containerStatuses": [{
            "name": "web", "image": "docker.io/library/app:1", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "running": { "startedAt": "2026-01-27T09:30:00Z" } },
        }],
    });
    assert_eq!(scene.observe(&pod), None);
    scene.expect(&["0s status Running 10.0.1.102 setup=Completed(0)+ web=Running+"]);
}

#[test]
fn a_back_off_says_how_long_and_for_which_container() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let value: Pod =
        serde_json::from_value(annotated(one("app:1"), "mullion.dev/simulate-exit", "3"))
            .expect("a pod");
    let step = scene.host.observe_pod(Arc::new(value), scene.now);
    let status = step.effects.into_iter().find_map(|effect| match effect {
        Effect::Status { status, .. } => Some(status),
        _ => None,
    });
    let container = status
        .and_then(|status| status.container_statuses)
        .expect("statuses")
        .remove(0);
    let waiting = container
        .state
        .and_then(|state| state.waiting)
        .expect("it waits");
    assert_eq!(
        waiting.message.as_deref(),
        Some("back-off 10s restarting failed container=web pod=p_ns(uid-1)")
    );
    let last = container
        .last_state
        .and_then(|state| state.terminated)
        .expect("it ended");
    assert_eq!((last.exit_code, last.reason.as_deref()), (3, Some("Error")));
    assert_ne!(last.container_id, None);
}

#[test]
fn the_restart_policy_decides_what_an_exit_leads_to() {
    let cases = [
        (
            "Never",
            "0 after 2s",
            "status Succeeded 10.0.1.100 web=Completed(0)",
        ),
        (
            "Never",
            "7 after 2s",
            "status Failed 10.0.1.100 web=Error(7)",
        ),
        (
            "OnFailure",
            "0 after 2s",
            "status Succeeded 10.0.1.100 web=Completed(0)",
        ),
        (
            "OnFailure",
            "7 after 2s",
            "status Running 10.0.1.100 web=CrashLoopBackOffx1",
        ),
        (
            "Always",
            "0 after 2s",
            "status Running 10.0.1.100 web=CrashLoopBackOffx1",
        ),
    ];
    for (policy, exit, expected) in cases {
        let mut scene = Scene::linux(Pace::times(2.0));
        let mut pod = annotated(one("app:1"), "mullion.dev/simulate-exit", exit);
        pod["spec"]["restartPolicy"] = json!(policy);
        let wake = scene.observe(&pod);
        scene.run(wake, 9);
        let last = scene
            .lines
            .last()
            .and_then(|line| line.split_once("s "))
            .map(|(_, text)| text.to_owned());
        assert_eq!(last.as_deref(), Some(expected), "{policy} {exit}");
    }
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [{ "name": "setup", "image": "app:1" }],
        "containers": [{ "name": "web", "image": "app:1" }],
    });
    scene.observe(&annotated(
        pod(spec),
        "mullion.dev/simulate-exit.setup",
        "2",
    ));
    let last = scene.lines.pop();
    assert_eq!(
        last.as_deref(),
        Some("0s status Failed 10.0.1.100 setup=Error(2) web=PodInitializing")
    );
}

#[test]
fn deletion_stops_containers_writes_the_final_status_and_only_then_deletes() {
    let mut scene = Scene::linux(Pace::REAL);
    let wake = scene.observe(&one("nginx:1.27"));
    scene.run(wake, 10);
    scene.lines.clear();
    let wake = scene.observe(&deleted(one("nginx:1.27"), 10, 30));
    scene.run(wake, 60);
    scene.expect(&[
        "10s Normal Killing: Stopping container web",
        "10.4s status Succeeded 10.0.1.100 web=Completed(0)",
        "10.4s delete",
    ]);
}

#[test]
fn a_container_that_does_not_stop_in_time_is_killed_when_its_grace_ends() {
    let mut scene = Scene::linux(Pace::REAL);
    let pod = annotated(one("nginx:1.27"), "mullion.dev/simulate-stop", "1m");
    let wake = scene.observe(&pod);
    scene.run(wake, 10);
    scene.lines.clear();
    let wake = scene.observe(&deleted(pod.clone(), 10, 30));
    let wake = scene.run(wake, 20).map(|_| ());
    assert_eq!(wake, Some(()));
    let wake = scene.observe(&deleted(pod, 20, 5));
    scene.run(wake, 60);
    scene.expect(&[
        "10s Normal Killing: Stopping container web",
        "25s status Failed 10.0.1.100 web=Error(137)",
        "25s delete",
    ]);
}

#[test]
fn sidecars_are_told_to_stop_after_the_app_containers_have_stopped() {
    let mut scene = Scene::linux(Pace::times(4.0));
    let spec = json!({
        "initContainers": [{ "name": "mesh", "image": "app:1", "restartPolicy": "Always" }],
        "containers": [{ "name": "web", "image": "app:1" }],
    });
    let wake = scene.observe(&pod(spec.clone()));
    scene.run(wake, 10);
    scene.lines.clear();
    let wake = scene.observe(&deleted(pod(spec), 10, 30));
    scene.run(wake, 60);
    scene.expect(&[
        "10s Normal Killing: Stopping container web",
        "10.1s Normal Killing: Stopping container mesh",
        "10.1s status Running 10.0.1.100 mesh=Running+ web=Completed(0)",
        "10.2s status Succeeded 10.0.1.100 mesh=Completed(0) web=Completed(0)",
        "10.2s delete",
    ]);
}

#[test]
fn a_windows_image_of_another_build_ends_in_image_pull_back_off() {
    let mut scene = Scene::windows(Build::SERVER_2019);
    let image = "mcr.microsoft.com/windows/servercore:ltsc2022";
    let wake = scene.observe(&one(image));
    let error = format!(
        "rpc error: code = NotFound desc = failed to pull and unpack image \"{image}\": no match for platform in manifest: not found"
    );
    let attempt = |at: i64| {
        vec![
            format!("{at}s Normal Pulling: Pulling image \"{image}\""),
            format!("{at}s Warning Failed: Failed to pull image \"{image}\": {error}"),
            format!("{at}s Warning Failed: Error: ErrImagePull"),
            format!("{at}s Normal BackOff: Back-off pulling image \"{image}\""),
            format!("{at}s Warning Failed: Error: ImagePullBackOff"),
        ]
    };
    let mut expected = attempt(0);
    expected.push(
        "0s status Pending 10.0.1.100 web=ImagePullBackOff annotated 10.0.1.100/19".to_owned(),
    );
    expected.extend(attempt(10));
    expected.extend(attempt(30));
    scene.run(wake, 40);
    assert_eq!(scene.lines, expected, "\n{}\n", scene.lines.join("\n"));
}

#[test]
fn a_failed_pull_shows_its_error_first_and_then_the_back_off() {
    let mut scene = Scene::linux(Pace::REAL);
    let wake = scene.observe(&one("mcr.microsoft.com/windows/nanoserver:ltsc2022"));
    scene.run(wake, 5);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter(|line| line.contains("status"))
        .cloned()
        .collect();
    assert_eq!(
        statuses,
        [
            "0s status Pending web=ContainerCreating",
            "0.8s status Pending 10.0.1.100 web=ContainerCreating",
            "1.15s status Pending 10.0.1.100 web=ErrImagePull",
            "2.15s status Pending 10.0.1.100 web=ImagePullBackOff",
        ]
    );
}

#[test]
fn a_pod_whose_image_is_corrected_starts_without_waiting_for_the_back_off() {
    let mut scene = Scene::windows(Build::SERVER_2022);
    scene.observe(&one("nginx"));
    scene.lines.clear();
    scene.observe(&one("mcr.microsoft.com/windows/servercore:ltsc2022"));
    scene.expect(&[
        &format!("0s Normal Pulled: Container image \"mcr.microsoft.com/windows/servercore:ltsc2022\" {PRESENT}"),
        "0s Normal Created: Container created",
        "0s Normal Started: Container started",
        "0s status Running 10.0.1.100 web=Running+",
    ]);
}

#[test]
fn images_that_cannot_be_had_are_reported_as_the_kubelet_reports_them() {
    let mut never = one("app:1");
    never["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    let mut scene = Scene::linux(Pace::INSTANT);
    scene.observe(&never);
    scene.expect(&[
        "0s Warning ErrImageNeverPull: Container image \"app:1\" is not present with pull policy of Never",
        "0s Warning Failed: Error: ErrImageNeverPull",
        "0s status Pending 10.0.1.100 web=ErrImageNeverPull",
    ]);
    let mut scene = Scene::linux(Pace::INSTANT);
    scene.observe(&one("Nginx"));
    scene.expect(&[
        "0s Warning InspectFailed: Failed to apply default image tag \"Nginx\": couldn't parse image name \"Nginx\": \
         invalid reference format: repository name (library/Nginx) must be lowercase",
        "0s Warning Failed: Error: InvalidImageName",
        "0s status Pending 10.0.1.100 web=InvalidImageName",
    ]);
}

#[test]
fn a_windows_pod_waits_for_an_address_until_one_has_rested() {
    let mut scene = Scene::new(facts("windows", Some(Build::SERVER_2022)), Pace::INSTANT, 1);
    let mut first = one("app:1");
    first["metadata"]["uid"] = json!("uid-0");
    let first: Pod = serde_json::from_value(first).expect("a pod");
    scene.host.observe_pod(Arc::new(first), scene.now);
    let wake = scene.observe(&one("app:1"));
    assert!(scene.lines[0].starts_with("0s Warning FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox"));
    assert!(
        scene.lines[0].ends_with("pod does not have label vpc.amazonaws.com/PrivateIPv4Address"),
        "{}",
        scene.lines[0]
    );
    assert_eq!(scene.lines[1], "0s status Pending web=ContainerCreating");
    scene.host.forget_pod("uid-0", scene.now);
    scene.run(wake, 50);
    let last = scene.lines.last().map(String::as_str);
    assert_eq!(
        last,
        Some("30s status Running 10.0.1.100 web=Running+ annotated 10.0.1.100/19")
    );
}

#[test]
fn a_pod_on_the_host_network_has_the_nodes_address_and_takes_none() {
    let mut scene = Scene::new(facts("windows", Some(Build::SERVER_2022)), Pace::INSTANT, 0);
    let mut host_process = one("app:1");
    host_process["spec"]["hostNetwork"] = json!(true);
    scene.observe(&host_process);
    assert_eq!(
        scene.lines.last().map(String::as_str),
        Some("0s status Running 10.0.1.9 web=Running+")
    );
}

#[test]
fn a_refused_pod_fails_with_the_reason_and_is_never_started() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut windows = one("app:1");
    windows["spec"]["os"] = json!({ "name": "windows" });
    scene.observe(&windows);
    scene.expect(&[
        "0s Warning PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
        "0s status Failed (PodOSNotSupported)",
    ]);
}

#[test]
fn a_pod_past_its_active_deadline_fails() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut pod = one("app:1");
    pod["spec"]["activeDeadlineSeconds"] = json!(20);
    let wake = scene.observe(&pod);
    scene.lines.clear();
    scene.run(wake, 60);
    scene.expect(&[
        "20s Warning DeadlineExceeded: Pod was active on the node longer than the specified deadline",
        "20s Normal Killing: Stopping container web",
        "20s status Failed (DeadlineExceeded) 10.0.1.100 web=Completed(0)",
    ]);
}

#[test]
fn readiness_follows_the_probes_initial_delay() {
    let mut scene = Scene::linux(Pace::times(10.0));
    let mut pod = one("app:1");
    pod["spec"]["containers"][0]["readinessProbe"] = json!({ "initialDelaySeconds": 40 });
    let wake = scene.observe(&pod);
    scene.run(wake, 60);
    let statuses: Vec<_> = scene
        .lines
        .iter()
        .filter(|line| line.contains("Running 10"))
        .cloned()
        .collect();
    assert_eq!(
        statuses,
        [
            "0.245s status Running 10.0.1.100 web=Running",
            "4.245s status Running 10.0.1.100 web=Running+"
        ]
    );
}

#[test]
fn a_restarted_kubelet_goes_on_with_the_pods_it_finds_running() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut pod = one("nginx:1.27");
    pod["status"] = json!({
        "phase": "Running", "startTime": "2026-01-27T09:00:00Z", "podIP": "10.0.1.102",
        "containerStatuses": [{
            "name": "web", "image": "docker.io/library/nginx:1.27", "imageID": "", "ready": true, "restartCount": 2,
            "state": { "running": { "startedAt": "2026-01-27T09:30:00Z" } },
        }],
    });
    scene.observe(&pod);
    scene.expect(&["0s status Running 10.0.1.102 web=Running+x2"]);
}

#[test]
fn a_pod_that_had_ended_before_a_restart_is_left_alone() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut pod = one("nginx:1.27");
    pod["status"] =
        json!({ "phase": "Succeeded", "startTime": "2026-01-27T09:00:00Z", "podIP": "10.0.1.102" });
    scene.observe(&pod);
    scene.expect(&[]);
}
