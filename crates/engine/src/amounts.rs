//! Amounts of a resource as users write them: `500m`, `2`, `2Gi`.

const MEBIBYTE: i64 = 1 << 20;
const GIBIBYTE: i64 = 1 << 30;
/// Rounding of byte amounts: from the first number of a pair on, amounts are rounded to a multiple of the
/// second.
const ROUNDED: [(i64, i64); 2] = [(1 << 40, GIBIBYTE), (16 << 20, MEBIBYTE)];

/// Formats an available amount, rounded down. `cpu` is in thousandths, all other resources in whole units.
pub(crate) fn at_most(resource: &str, amount: i64) -> String {
    format_amount(resource, rounded_down(resource, amount))
}

/// Formats a requested amount, rounded up.
pub(crate) fn at_least(resource: &str, amount: i64) -> String {
    format_amount(resource, rounded_up(resource, amount))
}

/// Formats the difference between a requested and an available amount, both rounded as [`at_least`] and
/// [`at_most`] round them.
pub(crate) fn between(resource: &str, asked: i64, there: i64) -> String {
    // Users see all three numbers, so the difference is computed from the rounded ones: then the subtraction
    // comes out.
    let difference = rounded_up(resource, asked).saturating_sub(rounded_down(resource, there));
    format_amount(resource, difference)
}

/// Returns the unit to whose multiples an amount is rounded.
fn step(resource: &str, amount: i64) -> i64 {
    let mut rounded = ROUNDED.iter().filter(|(from, _)| amount >= *from);
    match rounded.next() {
        Some((_, step)) if is_bytes(resource) => *step,
        _ => 1,
    }
}

fn rounded_down(resource: &str, amount: i64) -> i64 {
    amount - amount.rem_euclid(step(resource, amount))
}

fn rounded_up(resource: &str, amount: i64) -> i64 {
    let step = step(resource, amount);
    match amount.rem_euclid(step) {
        0 => amount,
        rest => amount.saturating_add(step - rest),
    }
}

/// Formats an amount in the largest unit that divides it evenly.
fn format_amount(resource: &str, amount: i64) -> String {
    let units: &[(i64, &str)] = match resource {
        "cpu" => &[(1_000, ""), (1, "m")],
        name if is_bytes(name) => &[
            (1 << 40, "Ti"),
            (GIBIBYTE, "Gi"),
            (MEBIBYTE, "Mi"),
            (1 << 10, "Ki"),
            (1, ""),
        ],
        _ => &[(1, "")],
    };
    let mut whole = units.iter().filter(|(size, _)| amount % size == 0);
    match whole.next() {
        // Every unit divides 0, which would be written with the largest one.
        Some((size, suffix)) if amount != 0 => format!("{}{suffix}", amount / size),
        _ => amount.to_string(),
    }
}

fn is_bytes(resource: &str) -> bool {
    matches!(resource, "memory" | "ephemeral-storage" | "storage")
        || resource.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(resource: &str, asked: i64, there: i64) -> [String; 3] {
        [
            at_least(resource, asked),
            at_most(resource, there),
            between(resource, asked, there),
        ]
    }

    #[test]
    fn each_amount_is_written_as_a_user_would_write_it() {
        assert_eq!(formatted("cpu", 1_500, 1_000), ["1500m", "1", "500m"]);
        assert_eq!(formatted("cpu", 6_000, 0), ["6", "0", "6"]);
        assert_eq!(
            formatted("cpu", 897_000, 1_930),
            ["897", "1930m", "895070m"]
        );
        assert_eq!(
            formatted("memory", 3 << 29, 1 << 30),
            ["1536Mi", "1Gi", "512Mi"]
        );
        assert_eq!(
            formatted("memory", 2 << 30, 1 << 29),
            ["2Gi", "512Mi", "1536Mi"]
        );
        assert_eq!(formatted("example.com/gpu", 3, 2), ["3", "2", "1"]);
        assert_eq!(formatted("memory", 1_000, 512), ["1000", "512", "488"]);
    }

    #[test]
    fn what_is_asked_for_is_rounded_up_and_what_is_there_down() {
        let (asked, there) = ((64 << 20) + 1, (64 << 20) - 1);
        assert_eq!(formatted("memory", asked, there), ["65Mi", "63Mi", "2Mi"]);
        let (asked, there) = (40 << 40, (39 << 40) - 1);
        assert_eq!(
            formatted("memory", asked, there),
            ["40Ti", "39935Gi", "1025Gi"]
        );
    }
}
