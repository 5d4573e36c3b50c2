//! Amounts of a resource in words, those of one sentence in one unit, so that they can be compared at a glance.

/// The bytes from which amounts that are no whole mebibytes are told in rounded ones.
const ROUNDED_FROM: i64 = 16 << 20;

/// The unit that some amounts of a resource are told in: milli-cores of `cpu`, bytes of memory, else pieces.
pub(crate) struct Unit {
    size: i64,
    suffix: &'static str,
}

impl Unit {
    /// The largest unit in which all of these are whole; of large amounts of bytes that are odd, mebibytes.
    pub(crate) fn of(resource: &str, amounts: &[i64]) -> Self {
        let whole = |size: i64| amounts.iter().all(|amount| amount % size == 0);
        let units: &[(i64, &str)] = match resource {
            "cpu" => &[(1_000, ""), (1, "m")],
            name if is_bytes(name) => &[(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"), (1, "")],
            _ => &[(1, "")],
        };
        let is_large = amounts.iter().any(|amount| *amount >= ROUNDED_FROM);
        let fits = |(size, suffix): &&(i64, &str)| whole(*size) || is_large && *suffix == "Mi";
        let (size, suffix) = units.iter().find(fits).copied().unwrap_or((1, ""));
        Unit { size, suffix }
    }

    /// What is there: never told as more than it is.
    pub(crate) fn at_most(&self, amount: i64) -> String {
        self.said(amount.div_euclid(self.size))
    }

    /// What is asked for: never told as less than it is.
    pub(crate) fn at_least(&self, amount: i64) -> String {
        self.said(self.rounded_up(amount))
    }

    /// The difference between what is asked for and what is there, as they are told.
    pub(crate) fn between(&self, asked: i64, there: i64) -> String {
        self.said(self.rounded_up(asked) - there.div_euclid(self.size))
    }

    fn rounded_up(&self, amount: i64) -> i64 {
        let whole = amount.div_euclid(self.size);
        whole.saturating_add(i64::from(amount.rem_euclid(self.size) != 0))
    }

    fn said(&self, units: i64) -> String {
        match units {
            0 => "0".to_owned(),
            units => format!("{units}{}", self.suffix),
        }
    }
}

fn is_bytes(resource: &str) -> bool {
    matches!(resource, "memory" | "ephemeral-storage" | "storage")
        || resource.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(resource: &str, asked: i64, there: i64) -> [String; 3] {
        let unit = Unit::of(resource, &[asked, there]);
        [
            unit.at_least(asked),
            unit.at_most(there),
            unit.between(asked, there),
        ]
    }

    #[test]
    fn amounts_of_a_sentence_have_one_unit() {
        assert_eq!(told("cpu", 1_500, 1_000), ["1500m", "1000m", "500m"]);
        assert_eq!(told("cpu", 6_000, 0), ["6", "0", "6"]);
        assert_eq!(
            told("memory", 3 << 29, 1 << 30),
            ["1536Mi", "1024Mi", "512Mi"]
        );
        assert_eq!(told("memory", 2 << 30, 1 << 30), ["2Gi", "1Gi", "1Gi"]);
        assert_eq!(told("example.com/gpu", 3, 2), ["3", "2", "1"]);
        assert_eq!(told("memory", 1_000, 512), ["1000", "512", "488"]);
    }

    #[test]
    fn what_is_asked_for_is_rounded_up_and_what_is_there_down() {
        let (asked, there) = ((64 << 20) + 1, (64 << 20) - 1);
        assert_eq!(told("memory", asked, there), ["65Mi", "63Mi", "2Mi"]);
    }
}
