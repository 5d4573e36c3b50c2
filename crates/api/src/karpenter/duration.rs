//! Durations in Karpenter's form: Go's (`1h30m`), or `Never` for timers that can be off.
//!
//! Invariant: a value keeps its original text, so that writing an object back changes nothing; values are equal if their durations are.

use std::{fmt, time::Duration};

use mullion_kube_text::golang::duration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration that may be `Never` (Karpenter: `NillableDuration`).
#[derive(Clone, Debug)]
pub struct NillableDuration {
    text: String,
    duration: Option<Duration>,
}

impl NillableDuration {
    /// Returns the duration of a timer that never fires.
    pub fn never() -> Self {
        Self {
            text: "Never".into(),
            duration: None,
        }
    }

    /// Returns a duration of whole seconds, written as `30s`.
    pub fn seconds(seconds: u64) -> Self {
        Self {
            text: format!("{seconds}s"),
            duration: Some(Duration::from_secs(seconds)),
        }
    }

    /// Parses `Never` or a Go duration. One that Karpenter's schema lets through and Go cannot hold counts as the longest that it can: an object
    /// that is stored must be readable, or its whole kind cannot be listed.
    ///
    /// # Errors
    /// The text is neither.
    pub fn parse(text: &str) -> Result<Self, ParseDurationError> {
        let duration = match text {
            "Never" => None,
            other if is_whole(other) => Some(go_duration(other).unwrap_or(LONGEST)),
            other => Some(go_duration(other)?),
        };
        Ok(Self {
            text: text.into(),
            duration,
        })
    }

    /// Returns the duration, or `None` for `Never`.
    pub fn duration(&self) -> Option<Duration> {
        self.duration
    }
}

impl PartialEq for NillableDuration {
    fn eq(&self, other: &Self) -> bool {
        self.duration == other.duration
    }
}

impl fmt::Display for NillableDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for NillableDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The original text, because `90m` that comes back as `1h30m0s` would look like a change of the spec.
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for NillableDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The error for a text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration such as 30s, 15m or 720h")]
pub struct ParseDurationError(String);

/// The longest duration of Go's: 292 years.
const LONGEST: Duration = Duration::from_nanos(i64::MAX as u64);

/// Returns whether a text is one that the schema of NodePools allows: whole numbers of hours, minutes and seconds.
fn is_whole(text: &str) -> bool {
    let digit = |c: char| c.is_ascii_digit();
    let mut rest = text;
    while let Some(after) = rest.strip_prefix(digit) {
        let unit = after.trim_start_matches(digit);
        let Some(next) = unit.strip_prefix(['s', 'm', 'h']) else {
            return false;
        };
        rest = next;
    }
    rest.is_empty() && !text.is_empty()
}

/// Parses a duration of Go's that is not negative.
fn go_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let nanoseconds = duration::parse(text).and_then(|parsed| u64::try_from(parsed).ok());
    nanoseconds
        .map(Duration::from_nanos)
        .ok_or_else(|| ParseDurationError(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        assert_eq!(go_duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(go_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(go_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(go_duration("720h0m0s"), Ok(Duration::from_secs(2_592_000)));
        assert_eq!(go_duration("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn a_duration_that_only_the_schema_allows_is_the_longest_one() {
        let read = |text: &str| NillableDuration::parse(text).map(|read| read.duration());
        assert_eq!(read("99999999999999h"), Ok(Some(LONGEST)));
        assert_eq!(read("1h99999999999999999999s"), Ok(Some(LONGEST)));
        assert_eq!(read("1h1m"), Ok(Some(Duration::from_secs(3_660))));
        for text in ["", "h", "1h1", "99999999999999999999d", "-99999999999999h"] {
            assert!(NillableDuration::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "5", "5d", "s", "-5s", "1h 30m", "99999999999999999999h"] {
            assert!(go_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn text_survives_a_round_trip() {
        for text in ["Never", "90m", "3600s"] {
            let json = format!("{text:?}");
            let value: NillableDuration = serde_json::from_str(&json).unwrap();
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
        }
        assert_eq!(NillableDuration::parse("Never").unwrap().duration(), None);
    }
}
