//! Which of some values a misspelt one was meant to be.

/// How many letters have to be added, removed or replaced to make one text of another.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, own) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (at, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(own != *other);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[b.len()]
}

/// Whether a value is most likely another one misspelt: two letters differ at most, and no more than one in four.
pub(crate) fn is_misspelt(wanted: &str, meant: &str) -> bool {
    let length = wanted.chars().count();
    let differ = wanted.chars().count().abs_diff(meant.chars().count());
    if differ > 2 {
        return false;
    }
    let differ = distance(wanted, meant);
    differ <= 2 && 4 * differ <= length
}

/// The value that is the least different from the one that is wanted; of equals the first.
pub(crate) fn nearest<'a>(
    wanted: &str,
    values: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    values
        .into_iter()
        .min_by_key(|value| distance(wanted, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_value_is_the_one_with_the_fewest_letters_to_change() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        let types = ["c5.large", "m5.large", "m5.xlarge"];
        assert_eq!(nearest("m5.larg", types), Some("m5.large"));
        assert_eq!(nearest("m5.larg", []), None);
    }

    #[test]
    fn another_value_is_no_misspelling() {
        assert!(is_misspelt("m5.larg", "m5.large"));
        assert!(is_misspelt("spott", "spot"));
        assert!(!is_misspelt("arm64", "amd64"));
        assert!(!is_misspelt("a", "b"));
        assert!(!is_misspelt("m5.large", "m5.24xlarge"));
    }
}
