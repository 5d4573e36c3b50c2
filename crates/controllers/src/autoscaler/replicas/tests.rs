//! The cases of kube-controller-manager's own tests, and cases that they leave open.
//!
//! A pod is written as its sample in millicores (`-` for none) and a letter: `r` ready, `u` not ready since its
//! start, `h` just started, `p` pending, `f` failed, `d` being deleted. Every pod requests one core unless the case
//! says otherwise.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;

const WINDOW: SignedDuration = SignedDuration::from_mins(1);

fn now() -> Timestamp {
    "2026-01-27T10:00:00Z".parse().expect("a time")
}

fn pod(index: usize, letter: char, request: Value) -> Pod {
    let started = match letter {
        'h' => now(),
        _ => now() - SignedDuration::from_mins(3),
    };
    let phase = match letter {
        'p' => "Pending",
        'f' => "Failed",
        _ => "Running",
    };
    let ready = if matches!(letter, 'r' | 'h') {
        "True"
    } else {
        "False"
    };
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": format!("pod-{index}") },
        "spec": { "containers": [{ "name": "app", "resources": { "requests": request } }] },
        "status": {
            "phase": phase, "startTime": started.to_string(),
            "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": started.to_string() }],
        },
    }))
    .expect("a pod");
    pod.metadata.deletion_timestamp = (letter == 'd').then(|| Time(now()));
    pod
}

struct Case {
    pods: Vec<Arc<Pod>>,
    samples: Samples,
}

fn case(text: &str, requests: &[&str]) -> Case {
    let (mut pods, mut samples) = (Vec::new(), Samples::new());
    for (index, word) in text.split_whitespace().enumerate() {
        let (amount, letter) = word.split_at(word.len() - 1);
        let letter = letter.chars().next().expect("a letter");
        let request = requests.get(index).copied().unwrap_or("1");
        // A sample of a pod that no longer exists.
        if letter != 'x' {
            pods.push(Arc::new(pod(index, letter, json!({ "cpu": request }))));
        }
        if let Ok(milli) = amount.parse() {
            samples.insert(
                format!("pod-{index}"),
                Sample {
                    milli,
                    at: now(),
                    window: WINDOW,
                },
            );
        }
    }
    Case { pods, samples }
}

impl Case {
    fn question(&self, current: i32, tolerances: Tolerances) -> MetricInputs<'_> {
        MetricInputs {
            current,
            pods: &self.pods,
            resource: "cpu",
            container: None,
            tolerances,
            now: now(),
        }
    }
}

fn by_utilization(current: i32, pods: &str, target: i32) -> Result<(i32, i32, i64), Missing> {
    within(current, pods, &[], target, Tolerances::USUAL)
}

fn within(
    current: i32,
    pods: &str,
    requests: &[&str],
    target: i32,
    tolerances: Tolerances,
) -> Result<(i32, i32, i64), Missing> {
    let case = case(pods, requests);
    let question = case.question(current, tolerances);
    let proposal = question.by_utilization(case.samples.clone(), target)?;
    let utilization = proposal.utilization.expect("it was asked for");
    Ok((proposal.replicas, utilization, proposal.average_milli))
}

#[test]
fn utilization_asks_for_as_many_replicas_as_upstream() {
    let cases = [
        // It scales up, and less if pods are not ready, are starting, have ended or are being deleted.
        (3, "300r 500r 700r", 30, (5, 50, 500)),
        (3, "300u 500r 700r", 30, (4, 60, 600)),
        (3, "300h 500r 700r", 30, (4, 60, 600)),
        (3, "400r 500u 700u", 30, (3, 40, 400)),
        (3, "400r 500h 700h", 30, (3, 40, 400)),
        (2, "500r 700r -f -f", 30, (4, 60, 600)),
        (2, "500r 700r -d -d", 30, (4, 60, 600)),
        // It scales down by the usage of the ready pods.
        (5, "100r 300r 500r 250r 250r", 50, (3, 28, 280)),
        (5, "100r 300r 500r 250u 250u", 50, (2, 30, 300)),
        (5, "100r 300r 500r 250h 250h", 50, (2, 30, 300)),
        (5, "100r -p -p -p -p", 50, (1, 10, 100)),
        (5, "100r 300r 500r 250r 250r -f -d", 50, (3, 28, 280)),
        // Samples of unknown pods count only towards the number of samples.
        (
            4,
            "4000r 9500r 3000r 7000r 3200x 2000x",
            100,
            (24, 587, 5875),
        ),
        // Pods without a sample are assumed to use all their requests before a scale-down, and nothing before a
        // scale-up.
        (4, "400r 95r -r -r", 100, (3, 24, 247)),
        (2, "1000r -r", 100, (2, 100, 1000)),
        (2, "1900r -r", 100, (2, 190, 1900)),
        (2, "600r -r", 100, (2, 60, 600)),
        (3, "100u 450r -r", 50, (3, 45, 450)),
        (3, "100h 450r -r", 50, (3, 45, 450)),
        (3, "100u 2000r -r", 50, (4, 200, 2000)),
        (4, "100u 100r 100r -r", 50, (3, 10, 100)),
        // More pods than replicas, as during a rollout.
        (2, "100r 100r -r", 50, (2, 10, 100)),
    ];
    for (current, pods, target, expected) in cases {
        assert_eq!(
            by_utilization(current, pods, target),
            Ok(expected),
            "{current} {pods}"
        );
    }
}

#[test]
fn a_pod_without_a_sample_counts_as_on_target_where_that_is_above_its_requests() {
    let requests = ["1", "1", "2", "2"];
    let asked = within(4, "200u 100r 100r -r", &requests, 300, Tolerances::USUAL);
    assert_eq!(asked, Ok((2, 6, 100)));
}

#[test]
fn tolerances_hold_in_their_direction_only() {
    let requests = ["900m", "1", "1100m"];
    let tolerances = |down, up| Tolerances { down, up };
    let cases = [
        ("1010r 1030r 1020r", tolerances(0.1, 0.1), (3, 102, 1020)),
        ("909r 1010r 1111r", tolerances(0.0, 0.0), (4, 101, 1010)),
        ("1890r 1910r 1900r", tolerances(0.1, 2.0), (3, 190, 1900)),
        ("1100r 1080r 1090r", tolerances(2.0, 0.08), (4, 109, 1090)),
        ("660r 640r 650r", tolerances(0.36, 0.1), (3, 65, 650)),
        ("660r 640r 650r", tolerances(0.34, 0.1), (2, 65, 650)),
    ];
    for (pods, tolerances, expected) in cases {
        let asked = within(3, pods, &requests, 100, tolerances);
        assert_eq!(asked, Ok(expected), "{pods} {tolerances:?}");
    }
}

#[test]
fn an_average_asks_for_as_many_replicas_as_upstream() {
    let cases = [
        ("cpu", 3, "20000r 10000r 30000r", 15_000, (4, 20_000)),
        // For other metrics than CPU, a pod that has just started counts like any other.
        ("memory", 3, "50000r 10000r 30000h", 15_000, (6, 30_000)),
        ("memory", 3, "50000h 15000r 30000h", 15_000, (7, 31_666)),
        (
            "cpu",
            5,
            "12000r 12000r 12000r 12000r 12000r",
            20_000,
            (3, 12_000),
        ),
        ("cpu", 3, "20000r 21000r 21000r", 20_000, (3, 20_666)),
        ("cpu", 5, "20000r 19000r 21000r -r -r", 20_000, (5, 20_000)),
        ("cpu", 2, "10000r 10000r -r", 17_000, (2, 10_000)),
    ];
    for (resource, current, pods, target, expected) in cases {
        let case = case(pods, &[]);
        let question = MetricInputs {
            resource,
            ..case.question(current, Tolerances::USUAL)
        };
        let asked = question.by_average(case.samples.clone(), target);
        let asked = asked.map(|asked| (asked.replicas, asked.average_milli));
        assert_eq!(asked, Ok(expected), "{resource} {current} {pods}");
    }
}

#[test]
fn what_is_not_known_is_said() {
    assert_eq!(by_utilization(1, "", 50), Err(Missing::Pods));
    assert_eq!(by_utilization(1, "-r", 50), Err(Missing::Samples));
    assert_eq!(by_utilization(1, "100u", 50), Err(Missing::Samples));
    assert_eq!(by_utilization(1, "-r 100x", 50), Err(Missing::Requests));
    let case = case("100r", &[]);
    let of = |container, resource| {
        let question = MetricInputs {
            container,
            resource,
            ..case.question(1, Tolerances::USUAL)
        };
        let asked = question.by_utilization(case.samples.clone(), 50);
        asked
            .map(|asked| asked.replicas)
            .map_err(|why| why.to_string())
    };
    assert_eq!(of(Some("app"), "cpu"), Ok(1));
    assert_eq!(
        of(Some("proxy"), "cpu"),
        Err("container proxy not found in Pod pod-0".to_owned())
    );
    assert_eq!(
        of(None, "memory"),
        Err("missing request for memory in container app of Pod pod-0".to_owned())
    );
}

#[test]
fn requests_of_the_pod_itself_count_instead_of_its_containers() {
    let mut pod = pod(0, 'r', json!({ "cpu": "1" }));
    let spec = pod.spec.as_mut().expect("a spec");
    spec.resources =
        serde_json::from_value(json!({ "requests": { "cpu": "4" } })).expect("requests");
    let pods = [Arc::new(pod)];
    let sample = Sample {
        milli: 1_000,
        at: now(),
        window: WINDOW,
    };
    let of = |container| {
        let question = MetricInputs {
            current: 1,
            pods: &pods,
            resource: "cpu",
            container,
            tolerances: Tolerances::USUAL,
            now: now(),
        };
        let samples = Samples::from([("pod-0".to_owned(), sample)]);
        question
            .by_utilization(samples, 50)
            .expect("known")
            .utilization
    };
    assert_eq!(of(None), Some(25));
    assert_eq!(of(Some("app")), Some(100));
}

#[test]
fn a_pod_that_was_ready_once_counts_though_it_is_not_after_its_first_minutes() {
    let started = now() - SignedDuration::from_mins(10);
    let pod = |changed_after_s: i64| -> Pod {
        let changed = started + SignedDuration::from_secs(changed_after_s);
        serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "status": {
                "phase": "Running", "startTime": started.to_string(),
                "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": changed.to_string() }],
            },
        }))
        .expect("a pod")
    };
    let sample = Sample {
        milli: 1,
        at: now(),
        window: WINDOW,
    };
    assert!(is_starting(&pod(29), &sample, now()));
    assert!(!is_starting(&pod(30), &sample, now()));
}
