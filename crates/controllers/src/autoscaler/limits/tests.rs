//! Tests recommendations over time. A line of a story contains the time in seconds, the present replicas, the
//! recommendation, and the result.

use serde_json::{Value, json};

use super::*;

fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-01-27T10:00:00Z".parse().expect("a time");
    start + SignedDuration::from_secs(seconds)
}

/// Returns a `behavior` as the API server defaults it.
fn behavior(up: Value, down: Value) -> HorizontalPodAutoscalerBehavior {
    let policy =
        |kind: &str, value: i64| json!({ "type": kind, "value": value, "periodSeconds": 15 });
    let mut whole = json!({
        "scaleUp": {
            "stabilizationWindowSeconds": 0, "selectPolicy": "Max",
            "policies": [policy("Pods", 4), policy("Percent", 100)],
        },
        "scaleDown": { "selectPolicy": "Max", "policies": [policy("Percent", 100)] },
    });
    for (side, given) in [("scaleUp", up), ("scaleDown", down)] {
        for (field, value) in given.as_object().into_iter().flatten() {
            whole[side][field] = value.clone();
        }
    }
    serde_json::from_value(whole).expect("a behaviour")
}

/// Runs a story. Each line states its present replicas; a step whose result differs from them is recorded as a scale
/// event.
fn story(
    behavior: Option<&HorizontalPodAutoscalerBehavior>,
    (min, max): (i32, i32),
    steps: &[(i64, i32, i32, i32)],
) -> Vec<(&'static str, &'static str)> {
    let bounds = Bounds { min, max, behavior };
    let mut history = History::default();
    let mut said = Vec::new();
    for &(second, current, recommended, expected) in steps {
        history.begin(current, at(second));
        let outcome = history.judge(&bounds, current, recommended, at(second));
        assert_eq!(
            outcome.replicas, expected,
            "after {second} s, {recommended} instead of {current}: {outcome:?}"
        );
        if outcome.replicas != current {
            history.scaled(behavior, current, outcome.replicas, at(second));
        }
        let (limited, (why, _)) = outcome.scaling_limited;
        assert_eq!(limited, why != "DesiredWithinRange", "{outcome:?}");
        said.push((outcome.able_to_scale.0, why));
    }
    said
}

#[test]
fn without_a_behaviour_it_at_most_doubles_and_shrinks_after_five_minutes() {
    let said = story(
        None,
        (1, 100),
        &[
            (0, 1, 50, 4),
            (15, 4, 50, 8),
            (30, 8, 50, 16),
            (45, 16, 12, 32),
            (329, 12, 5, 24),
            (346, 12, 5, 5),
        ],
    );
    assert_eq!(
        said,
        [
            ("ReadyForNewScale", "ScaleUpLimit"),
            ("ReadyForNewScale", "ScaleUpLimit"),
            ("ReadyForNewScale", "ScaleUpLimit"),
            ("ScaleDownStabilized", "ScaleUpLimit"),
            ("ScaleDownStabilized", "ScaleUpLimit"),
            ("ReadyForNewScale", "DesiredWithinRange"),
        ]
    );
}

#[test]
fn bounds_hold_with_and_without_a_behaviour() {
    let free = behavior(json!({}), json!({ "stabilizationWindowSeconds": 0 }));
    for behavior in [None, Some(&free)] {
        let said = story(behavior, (2, 6), &[(0, 3, 9, 6)]);
        assert_eq!(said, [("ReadyForNewScale", "TooManyReplicas")]);
        // The first recommendation is the number of replicas at the beginning.
        let mut history = History::default();
        let bounds = Bounds {
            min: 2,
            max: 6,
            behavior,
        };
        let outcome = history.judge(&bounds, 4, 1, at(0));
        assert_eq!(
            (outcome.replicas, outcome.scaling_limited.1.0),
            (2, "TooFewReplicas")
        );
    }
}

#[test]
fn policies_count_what_was_done_in_their_period() {
    let slow = behavior(
        json!({ "policies": [{ "type": "Pods", "value": 3, "periodSeconds": 60 }] }),
        json!({
            "stabilizationWindowSeconds": 0,
            "policies": [{ "type": "Percent", "value": 10, "periodSeconds": 60 }],
        }),
    );
    let said = story(
        Some(&slow),
        (1, 100),
        &[
            (0, 10, 50, 13),
            (15, 13, 50, 13),
            (61, 13, 50, 16),
            // The policy allows 10 % of the replicas at the beginning of the period, which leaves 16 - 3, of which
            // 11 stay.
            (76, 16, 1, 11),
            (91, 11, 1, 11),
        ],
    );
    assert_eq!(said[1], ("ReadyForNewScale", "ScaleUpLimit"));
    assert_eq!(said[3], ("ReadyForNewScale", "ScaleDownLimit"));
    assert_eq!(said[4], ("ReadyForNewScale", "ScaleDownLimit"));
}

#[test]
fn of_several_policies_the_widest_the_narrowest_or_none_counts() {
    let policies = json!([
        { "type": "Pods", "value": 4, "periodSeconds": 60 },
        { "type": "Percent", "value": 50, "periodSeconds": 60 },
    ]);
    for (select, up, down) in [("Max", 30, 10), ("Min", 24, 16), ("Disabled", 20, 20)] {
        let rules = json!({ "policies": policies, "selectPolicy": select, "stabilizationWindowSeconds": 0 });
        let behavior = behavior(rules.clone(), rules);
        story(Some(&behavior), (1, 100), &[(0, 20, 90, up)]);
        story(Some(&behavior), (1, 100), &[(0, 20, 1, down)]);
    }
}

#[test]
fn a_percentage_grows_by_at_least_one() {
    let tenth = json!({ "policies": [{ "type": "Percent", "value": 10, "periodSeconds": 60 }] });
    let behavior = behavior(tenth, json!({}));
    story(Some(&behavior), (1, 100), &[(0, 1, 9, 2), (61, 2, 9, 3)]);
}

#[test]
fn windows_hold_back_both_directions() {
    let calm = behavior(
        json!({ "stabilizationWindowSeconds": 60 }),
        json!({ "stabilizationWindowSeconds": 120 }),
    );
    let said = story(
        Some(&calm),
        (1, 100),
        &[
            // The first recommendation is the 5 replicas at the beginning.
            (0, 5, 8, 5),
            (45, 5, 9, 5),
            (61, 5, 10, 9),
            (75, 9, 2, 9),
            (121, 9, 2, 9),
            (182, 9, 2, 2),
        ],
    );
    let able: Vec<&str> = said.iter().map(|(able, _)| *able).collect();
    assert_eq!(
        able,
        [
            "ScaleUpStabilized",
            "ScaleUpStabilized",
            "ScaleUpStabilized",
            "ScaleDownStabilized",
            "ScaleDownStabilized",
            "ReadyForNewScale",
        ]
    );
}

#[test]
fn what_is_too_old_to_count_is_forgotten() {
    let mut history = History::default();
    let policies = json!([{ "type": "Pods", "value": 4, "periodSeconds": 30 }]);
    let behavior = behavior(
        json!({ "policies": policies }),
        json!({ "policies": policies, "stabilizationWindowSeconds": 60 }),
    );
    let bounds = Bounds {
        min: 1,
        max: 1_000,
        behavior: Some(&behavior),
    };
    for step in 0..1_000 {
        let current = i32::try_from(step + 1).expect("small");
        history.judge(&bounds, current, current + 1, at(step * 15));
        history.scaled(Some(&behavior), current, current + 1, at(step * 15));
    }
    assert!(
        history.recommendations.len() <= 6,
        "{}",
        history.recommendations.len()
    );
    assert!(history.scale_ups.len() <= 4, "{}", history.scale_ups.len());
}
