//! Annotations by which a pod controls its simulation.
//!
//! | annotation | value | meaning |
//! | --- | --- | --- |
//! | `mullion.dev/simulate-exit` | `1 after 5s`, `0` | every app container exits with that code, that long after its start |
//! | `mullion.dev/simulate-exit.NAME` | the same | container or init container NAME exits so |
//! | `mullion.dev/simulate-stop` | `20s` | containers take that long to obey the stop signal; past the grace period they are killed |
//! | `mullion.dev/simulate-readiness` | `fail`, `fail after 10s for 30s` | the readiness probe fails, from that long after the start, for that long (or for ever) |
//! | `mullion.dev/simulate-liveness`, `mullion.dev/simulate-startup` | the same | the liveness or startup probe does |
//! | `mullion.dev/simulate-pull` | `fail` | the image is neither on the node nor in its registry |
//! | `mullion.dev/simulate-usage` | `cpu=250m, memory=300Mi`, `cpu=4 shared` | what every app container uses; `shared`: what all ready pods of the workload use together |
//! | each of these with `.NAME` | the same | only container NAME |
//!
//! `simulate-usage` may also be set on the workload itself (see [`super::usage`]). Durations are simulated work, so
//! `--speed` divides them. Values that cannot be parsed are ignored, and [`complaints`] reports them. An annotation about a
//! probe that the container does not have has no effect. Annotations may be changed while the pod runs.

use std::{collections::BTreeMap, ops::Bound};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use mullion_engine::model::Quantity;

/// The prefix of all annotations in this module.
const PREFIX: &str = "mullion.dev/simulate-";
/// Annotation that makes containers exit by themselves.
pub const SIMULATE_EXIT: &str = "mullion.dev/simulate-exit";
/// Annotation that sets how long containers take to stop.
pub const SIMULATE_STOP: &str = "mullion.dev/simulate-stop";

/// Annotation that makes image pulls fail.
pub const SIMULATE_PULL: &str = "mullion.dev/simulate-pull";

/// Annotation that sets the CPU and memory that containers use.
pub const SIMULATE_USAGE: &str = "mullion.dev/simulate-usage";

const EXIT_FORM: &str =
    "an exit code from 0 to 255, alone or followed by when: \"1\", \"1 after 5s\"";
const FAILURE_FORM: &str =
    "fail, alone or followed by when and how long: \"fail\", \"fail after 10s for 30s\"";
const STOP_FORM: &str = "a duration: \"20s\", \"1.5m\"";
const PULL_FORM: &str = "fail";
const USAGE_FORM: &str = "cpu, memory or both: \"cpu=250m, memory=300Mi\", or for all ready pods together: \"cpu=4 shared\"";

/// A simulated exit of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitPlan {
    /// The exit code.
    pub code: i32,
    /// The time from the container's start to its exit, at pace 1.
    pub after: SignedDuration,
}

/// A kind of probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// The startup probe.
    Startup,
    /// The liveness probe.
    Liveness,
    /// The readiness probe.
    Readiness,
}

/// A period in which a probe fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeFailure {
    /// The time from the container's start to the first failure, at pace 1.
    pub after: SignedDuration,
    /// How long the probe fails; `None` for ever.
    pub lasts: Option<SignedDuration>,
}

/// The simulated usage of a container; `None` where no annotation sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsagePlan {
    /// Cores.
    pub cpu: Option<Amount>,
    /// Bytes.
    pub memory: Option<Amount>,
}

/// The usage of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The amount, in cores or bytes.
    pub quantity: Quantity,
    /// Whether all ready pods of the workload use the amount together.
    pub shared: bool,
}

/// Returns whether two versions of a pod have the same simulation annotations.
pub fn same_simulation(old: &Pod, new: &Pod) -> bool {
    asked(old).eq(asked(new))
}

/// Returns the simulation annotations of a pod.
fn asked(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let all = pod.metadata.annotations.iter();
    // The map is sorted, so all keys with the prefix stand together.
    all.flat_map(|all| all.range::<str, _>((Bound::Included(PREFIX), Bound::Unbounded)))
        .take_while(|(key, _)| key.starts_with(PREFIX))
}

/// Returns a warning for each annotation of `pod` that cannot be parsed and that `before` did not have, with the allowed
/// form.
pub fn complaints(pod: &Pod, before: Option<&Pod>) -> Vec<String> {
    let had = |key: &str, value: &str| {
        let before = before.and_then(|before| before.metadata.annotations.as_ref());
        before.is_some_and(|before| before.get(key).is_some_and(|old| old == value))
    };
    asked(pod)
        // A warning belongs to the write that caused it, not to every later update of the pod.
        .filter(|(key, value)| !had(key, value))
        .filter_map(|(key, value)| {
            let why = misunderstood(pod, key, value)?;
            Some(format!("Annotation {key}={value:?} is ignored: {why}"))
        })
        .collect()
}

/// Returns why an annotation is ignored; `None` if it is valid.
fn misunderstood(pod: &Pod, key: &str, value: &str) -> Option<String> {
    let (what, container) = match key.strip_prefix(PREFIX)?.split_once('.') {
        Some((what, container)) => (what, Some(container)),
        None => (key.strip_prefix(PREFIX)?, None),
    };
    let (form, understood) = match what {
        "exit" => (EXIT_FORM, parse_exit(value).is_some()),
        "readiness" | "liveness" | "startup" => (FAILURE_FORM, parse_failure(value).is_some()),
        "pull" => (PULL_FORM, parse_pull(value)),
        "usage" => (USAGE_FORM, parse_usage(value).is_some()),
        "stop" if container.is_none() => (STOP_FORM, parse_duration(value).is_some()),
        "stop" => return Some(format!("only {SIMULATE_STOP} is known, for the whole pod")),
        _ => {
            let known = [
                "exit",
                "stop",
                "readiness",
                "liveness",
                "startup",
                "pull",
                "usage",
            ];
            let known = known.map(|what| format!("{PREFIX}{what}"));
            return Some(format!("known are {}", known.join(", ")));
        }
    };
    if !understood {
        return Some(format!("allowed is {form}"));
    }
    // A mistake in the value is reported first, since it is one wherever the annotation stands.
    let container = container.filter(|name| !has_container(pod, name))?;
    Some(format!("the pod has no container {container:?}"))
}

fn has_container(pod: &Pod, name: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(init)
    });
    containers
        .into_iter()
        .any(|container| container.name == name)
}

/// Returns whether pulling the image of `container` fails; `inherits` says whether the pod-wide annotation applies.
pub fn pull_fails(
    annotations: Option<&BTreeMap<String, String>>,
    container: &str,
    inherits: bool,
) -> bool {
    own_or_pods(annotations, SIMULATE_PULL, container, inherits).is_some_and(parse_pull)
}

/// Returns the value of `key` for `container`: the container's own, or the pod-wide one if `inherits`.
fn own_or_pods<'a>(
    annotations: Option<&'a BTreeMap<String, String>>,
    key: &str,
    container: &str,
    inherits: bool,
) -> Option<&'a str> {
    let annotations = annotations?;
    let own = annotations.get(&format!("{key}.{container}"));
    let value = own.or_else(|| annotations.get(key).filter(|_| inherits))?;
    Some(value)
}

/// Returns the period in which a probe of `container` fails; `inherits` says whether the pod-wide annotation applies.
pub fn probe_failure(
    annotations: Option<&BTreeMap<String, String>>,
    kind: ProbeKind,
    container: &str,
    inherits: bool,
) -> Option<ProbeFailure> {
    let key = match kind {
        ProbeKind::Startup => "mullion.dev/simulate-startup",
        ProbeKind::Liveness => "mullion.dev/simulate-liveness",
        ProbeKind::Readiness => "mullion.dev/simulate-readiness",
    };
    parse_failure(own_or_pods(annotations, key, container, inherits)?)
}

/// Returns the simulated exit of `container`; `inherits` says whether the pod-wide annotation applies.
pub fn exit_plan(
    annotations: Option<&BTreeMap<String, String>>,
    container: &str,
    inherits: bool,
) -> Option<ExitPlan> {
    parse_exit(own_or_pods(
        annotations,
        SIMULATE_EXIT,
        container,
        inherits,
    )?)
}

/// Returns the simulated usage of `container`; `inherits` says whether the annotation for all containers applies.
pub fn usage(
    annotations: Option<&BTreeMap<String, String>>,
    container: &str,
    inherits: bool,
) -> Option<UsagePlan> {
    parse_usage(own_or_pods(
        annotations,
        SIMULATE_USAGE,
        container,
        inherits,
    )?)
}

/// Returns how long the pod's containers take to stop, if the annotation sets it.
pub fn stop_delay(annotations: Option<&BTreeMap<String, String>>) -> Option<SignedDuration> {
    parse_duration(annotations?.get(SIMULATE_STOP)?)
}

fn parse_exit(value: &str) -> Option<ExitPlan> {
    let (code, after) = match value.split_once(" after ") {
        Some((code, after)) => (code, parse_duration(after)?),
        None => (value, SignedDuration::ZERO),
    };
    let code = code
        .trim()
        .parse()
        .ok()
        .filter(|code| (0..=255).contains(code))?;
    Some(ExitPlan { code, after })
}

fn parse_pull(value: &str) -> bool {
    value.trim() == "fail"
}

fn parse_failure(value: &str) -> Option<ProbeFailure> {
    let rest = value.trim().strip_prefix("fail")?;
    let (rest, lasts) = match rest.split_once(" for ") {
        Some((rest, lasts)) => (rest, Some(parse_duration(lasts)?)),
        None => (rest, None),
    };
    let after = match rest.trim() {
        "" => SignedDuration::ZERO,
        rest => parse_duration(rest.strip_prefix("after ")?)?,
    };
    Some(ProbeFailure { after, lasts })
}

/// Parses `cpu=250m` or `cpu=4 shared, memory=1Gi`: each resource at most once, in any order.
fn parse_usage(value: &str) -> Option<UsagePlan> {
    let mut plan = UsagePlan::default();
    for part in value.split(',') {
        let (resource, amount) = part.split_once('=')?;
        let mut words = amount.split_whitespace();
        let quantity: Quantity = words.next()?.parse().ok()?;
        let shared = match words.next() {
            None => false,
            Some("shared") => true,
            Some(_) => return None,
        };
        let place = match resource.trim() {
            "cpu" => &mut plan.cpu,
            "memory" => &mut plan.memory,
            _ => return None,
        };
        if quantity.is_negative() || words.next().is_some() || place.is_some() {
            return None;
        }
        *place = Some(Amount { quantity, shared });
    }
    Some(plan)
}

/// Parses a number with the unit `ms`, `s`, `m` or `h`; a number without a unit is in seconds.
fn parse_duration(text: &str) -> Option<SignedDuration> {
    let text = text.trim();
    let unit_at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let ms_per_unit = match unit {
        "ms" => 1.0,
        "" | "s" => 1_000.0,
        "m" => 60_000.0,
        "h" => 3_600_000.0,
        _ => return None,
    };
    let number: f64 = number
        .trim()
        .parse()
        .ok()
        .filter(|n: &f64| n.is_finite() && *n >= 0.0)?;
    Some(SignedDuration::from_millis((number * ms_per_unit) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_parse_with_and_without_a_delay_and_nonsense_is_ignored() {
        let plan = |code, ms| {
            Some(ExitPlan {
                code,
                after: SignedDuration::from_millis(ms),
            })
        };
        let cases = [
            ("1 after 5s", plan(1, 5_000)),
            ("0", plan(0, 0)),
            ("137 after 1.5m", plan(137, 90_000)),
            ("3 after 250ms", plan(3, 250)),
            ("0 after 10", plan(0, 10_000)),
            ("256", None),
            ("-1 after 5s", None),
            ("1 after soon", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_exit(text), expected, "{text:?}");
        }
    }

    #[test]
    fn probe_failures_say_when_they_begin_and_how_long_they_last() {
        let failure = |after_s, lasts_s: Option<i64>| {
            Some(ProbeFailure {
                after: SignedDuration::from_secs(after_s),
                lasts: lasts_s.map(SignedDuration::from_secs),
            })
        };
        let cases = [
            ("fail", failure(0, None)),
            ("fail after 10s", failure(10, None)),
            ("fail for 1m", failure(0, Some(60))),
            ("fail after 5s for 30s", failure(5, Some(30))),
            ("fail for 30s after 5s", None),
            ("failing", None),
            ("pass", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_failure(text), expected, "{text:?}");
        }
    }

    #[test]
    fn usage_names_each_resource_once_and_may_be_shared() {
        let amount = |text: &str, shared| {
            Some(Amount {
                quantity: text.parse().expect("a quantity"),
                shared,
            })
        };
        let plan = |cpu, memory| Some(UsagePlan { cpu, memory });
        let cases = [
            ("cpu=250m", plan(amount("250m", false), None)),
            (
                " memory=300Mi , cpu=4 shared",
                plan(amount("4", true), amount("300Mi", false)),
            ),
            ("cpu=0", plan(amount("0", false), None)),
            ("cpu=1,cpu=2", None),
            ("cpu=-1", None),
            ("cpu=1 each", None),
            ("cpu=1 shared twice", None),
            ("gpu=1", None),
            ("cpu", None),
            ("250m", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_usage(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_containers_own_annotation_wins_over_the_pods() {
        let annotations = BTreeMap::from([
            (SIMULATE_EXIT.to_owned(), "1".to_owned()),
            (format!("{SIMULATE_EXIT}.job"), "0 after 2s".to_owned()),
        ]);
        let code =
            |name, inherits| exit_plan(Some(&annotations), name, inherits).map(|plan| plan.code);
        assert_eq!(code("job", true), Some(0));
        assert_eq!(code("web", true), Some(1));
        assert_eq!(code("setup", false), None);
    }
}
