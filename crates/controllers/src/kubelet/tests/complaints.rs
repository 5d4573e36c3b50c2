//! Tests the events about simulation annotations that cannot be parsed.

use super::*;

/// Returns the pod's events about its annotations, and no others.
fn complaints(scene: &mut Scene) -> Vec<String> {
    let lines = std::mem::take(&mut scene.lines).into_iter();
    lines
        .filter_map(|line| {
            let (_, complaint) = line.split_once("Warning InvalidSimulation: ")?;
            Some(complaint.to_owned())
        })
        .collect()
}

#[test]
fn an_annotation_that_cannot_be_understood_is_named_with_its_value_and_what_is_allowed() {
    let cases = [
        (
            "exit",
            "banana",
            "allowed is an exit code from 0 to 255, alone or followed by when: \"1\", \"1 after 5s\"",
        ),
        (
            "exit.web",
            "256",
            "allowed is an exit code from 0 to 255, alone or followed by when: \"1\", \"1 after 5s\"",
        ),
        (
            "readiness",
            "no",
            "allowed is fail, alone or followed by when and how long: \"fail\", \"fail after 10s for 30s\"",
        ),
        ("stop", "soon", "allowed is a duration: \"20s\", \"1.5m\""),
        (
            "stop.web",
            "1s",
            "only mullion.dev/simulate-stop is known, for the whole pod",
        ),
        ("pull", "true", "allowed is fail"),
        ("pull.other", "fail", "the pod has no container \"other\""),
        (
            "exti",
            "1",
            "known are mullion.dev/simulate-exit, mullion.dev/simulate-stop, mullion.dev/simulate-readiness, \
             mullion.dev/simulate-liveness, mullion.dev/simulate-startup, mullion.dev/simulate-pull, mullion.dev/simulate-usage",
        ),
    ];
    for (what, value, why) in cases {
        let mut scene = Scene::linux(Pace::INSTANT);
        let key = format!("mullion.dev/simulate-{what}");
        scene.observe(&annotated(one("app:1"), &key, value));
        assert_eq!(
            complaints(&mut scene),
            [format!("Annotation {key}=\"{value}\" is ignored: {why}")]
        );
    }
}

#[test]
fn nothing_is_said_of_annotations_that_are_understood_or_are_not_about_the_simulation() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let mut pod = one("app:1");
    for (key, value) in [
        ("mullion.dev/simulate-exit.web", "0 after 1h"),
        ("mullion.dev/simulate-liveness", "fail after 1h"),
        ("mullion.dev/simulate-stop", "20s"),
        ("mullion.dev/other", "banana"),
        ("nonsense", "banana"),
    ] {
        pod = annotated(pod, key, value);
    }
    scene.observe(&pod);
    assert_eq!(complaints(&mut scene), [""; 0]);
}

#[test]
fn the_same_nonsense_is_said_once_and_other_nonsense_anew() {
    let mut scene = Scene::linux(Pace::INSTANT);
    let key = "mullion.dev/simulate-exit";
    let banana = annotated(one("app:1"), key, "banana");
    scene.observe(&banana);
    assert_eq!(complaints(&mut scene).len(), 1);
    scene.observe(&banana);
    scene.observe(&annotated(
        banana.clone(),
        "mullion.dev/simulate-stop",
        "1s",
    ));
    assert_eq!(complaints(&mut scene), [""; 0]);
    scene.observe(&annotated(banana.clone(), key, "cherry"));
    assert_eq!(complaints(&mut scene).len(), 1);
    let mut known = banana;
    known["status"] = json!({ "startTime": start().to_string(), "phase": "Pending" });
    let mut restarted = Scene::linux(Pace::INSTANT);
    restarted.observe(&known);
    assert_eq!(
        complaints(&mut restarted),
        [""; 0],
        "the kubelet before it has said so"
    );
}
