//! What a pod asks of its simulation, through annotations.
//!
//! | annotation | value | meaning |
//! | --- | --- | --- |
//! | `mullion.dev/simulate-exit` | `1 after 5s`, `0` | every app container exits with that code, that long after its start |
//! | `mullion.dev/simulate-exit.NAME` | the same | container or init container NAME exits so |
//! | `mullion.dev/simulate-stop` | `20s` | containers take that long to obey the stop signal; past the grace period they are killed (137) |
//!
//! Durations are simulated work, so `--speed` divides them. A value that does not parse is ignored.

use std::collections::BTreeMap;

use jiff::SignedDuration;

/// Annotation that ends containers by themselves.
pub const SIMULATE_EXIT: &str = "mullion.dev/simulate-exit";
/// Annotation that says how long containers take to stop.
pub const SIMULATE_STOP: &str = "mullion.dev/simulate-stop";

/// That a container ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitPlan {
    /// Its exit code.
    pub code: i32,
    /// How long after its start, at pace 1.
    pub after: SignedDuration,
}

/// The exit plan for `container`; `inherits` says whether the pod-wide annotation counts for it.
pub fn exit_plan(
    annotations: Option<&BTreeMap<String, String>>,
    container: &str,
    inherits: bool,
) -> Option<ExitPlan> {
    let annotations = annotations?;
    let own = annotations.get(&format!("{SIMULATE_EXIT}.{container}"));
    let value = own.or_else(|| annotations.get(SIMULATE_EXIT).filter(|_| inherits))?;
    parse_exit(value)
}

/// How long this pod's containers take to stop, if it says so.
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

/// A number with unit `ms`, `s`, `m` or `h`; a plain number is seconds.
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
