//! Formats the table cells that kinds share: ages, durations, labels, `<none>`, as kube-apiserver's printers do.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::Column;

/// Returns a column that is always shown.
pub const fn column(name: &'static str) -> Column {
    Column {
        name,
        cell_type: "string",
        format: "",
        priority: 0,
    }
}

/// The first column: the object's name.
pub(crate) const NAME: Column = Column {
    name: "Name",
    cell_type: "string",
    format: "name",
    priority: 0,
};

/// The column with the object's age.
pub(crate) const AGE: Column = column("Age");

/// Returns a column that is shown only with `-o wide`.
pub(crate) const fn wide(name: &'static str) -> Column {
    Column {
        name,
        cell_type: "string",
        format: "",
        priority: 1,
    }
}

/// Returns a column whose cells are not strings.
pub const fn typed(name: &'static str, cell_type: &'static str) -> Column {
    Column {
        name,
        cell_type,
        format: "",
        priority: 0,
    }
}

/// Formats seconds like apimachinery's `HumanDuration`: at most two units, and `<invalid>` for a negative span.
pub fn duration(seconds: i64) -> String {
    let two = |first: i64, unit: char, second: i64, smaller: char| {
        if second == 0 {
            format!("{first}{unit}")
        } else {
            format!("{first}{unit}{second}{smaller}")
        }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        // HumanDuration forgives clocks that differ by less than two seconds.
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, 'y', days % 365, 'd'),
        252_288_000.. => format!("{}y", days / 365),
    }
}

/// Formats the time since a timestamp; `<unknown>` if the text is not a timestamp.
pub(crate) fn since(timestamp: &str, now: Timestamp) -> String {
    match timestamp.parse::<Timestamp>() {
        Ok(then) => duration(now.duration_since(then).as_secs()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Returns the cell of the Age column.
pub fn age(object: &Value, now: Timestamp) -> Value {
    since(
        object["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap_or(""),
        now,
    )
    .into()
}

/// Returns the cell of the Name column.
pub(crate) fn name(object: &Value) -> Value {
    object["metadata"]["name"].clone()
}

/// Returns the text, or `<none>` if it is empty.
pub(crate) fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

/// Formats a boolean that may be unset.
pub(crate) fn flag(value: &Value) -> &'static str {
    match value.as_bool() {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    }
}

/// Formats labels as `k=v,l=w`, or `<none>`. The pairs are sorted as texts, as in `labels.Set`: `a-b=1` precedes `a=1`.
pub(crate) fn labels(labels: Option<&Map<String, Value>>) -> String {
    let mut pairs: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
        .collect();
    pairs.sort_unstable();
    or_none(&pairs.join(",")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_in_the_order_of_their_texts() {
        let given = serde_json::json!({"a": "1", "a-b": "2", "b": "3"});
        assert_eq!(labels(given.as_object()), "a-b=2,a=1,b=3");
        assert_eq!(labels(None), "<none>");
    }

    #[test]
    fn durations_have_at_most_two_units() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
            (-1, "0s"),
            (-2, "<invalid>"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }
}
