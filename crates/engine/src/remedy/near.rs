//! Finds the value that a misspelt one was probably meant to be.

use crate::model::label;

/// Returns all values that a label can have in any cluster; none if they depend on the cloud.
pub(crate) fn known_values(key: &str) -> &'static [&'static str] {
    match key {
        label::OS => &["linux", "windows"],
        label::ARCH => &["amd64", "arm64"],
        label::CAPACITY_TYPE => &["on-demand", "spot", "reserved"],
        _ => &[],
    }
}

/// Returns the edit distance of two texts: the number of characters to add, remove, replace or swap with a neighbour.
pub fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (index, own) in a.iter().enumerate() {
        let mut row = vec![index + 1];
        for (at, other) in b.iter().enumerate() {
            let replaced = last[at] + usize::from(own != other);
            let mut least = replaced.min(last[at + 1] + 1).min(row[at] + 1);
            // Two neighbours in the wrong order are one slip of the fingers, so they count as one change and not two.
            let swapped = index > 0 && at > 0 && *own == b[at - 1] && a[index - 1] == *other;
            if swapped && own != other {
                least = least.min(before[at - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Returns the edit distance of two texts if at most `most` characters differ. The lengths are compared first, because [`distance`] costs
/// their product and a text of a user may be of any length.
pub fn distance_within(a: &str, b: &str, most: usize) -> Option<usize> {
    if a.chars().count().abs_diff(b.chars().count()) > most {
        return None;
    }
    Some(distance(a, b)).filter(|differ| *differ <= most)
}

/// Returns whether two texts consist of the same characters in any order.
pub(super) fn are_swapped(a: &str, b: &str) -> bool {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    sorted(a) == sorted(b)
}

/// The most bytes of a name or of a value of a label. Longer texts are like no value, so their letters are not compared.
const LONGEST: usize = 253;

/// Returns the edit distance of two texts, and at most `most`: of a text that is longer than any name `most` itself.
pub(super) fn distance_up_to(a: &str, b: &str, most: usize) -> usize {
    if a.len().max(b.len()) > LONGEST {
        return most;
    }
    distance(a, b).min(most)
}

/// Returns whether a value is probably a misspelling of another: at most two characters differ, and at most one in four. A text that is longer
/// than any name is no misspelling.
pub(crate) fn is_misspelt(wanted: &str, meant: &str) -> bool {
    if wanted.len().max(meant.len()) > LONGEST {
        return false;
    }
    let length = wanted.chars().count();
    distance_within(wanted, meant, 2).is_some_and(|differ| 4 * differ <= length)
}

/// Returns the value closest to the wanted one. Of equally close ones it prefers one with the same characters, then the first. Nothing is
/// close to a text that is longer than any name.
pub(crate) fn nearest<'a>(
    wanted: &str,
    values: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if wanted.len() > LONGEST {
        return None;
    }
    values
        .into_iter()
        .min_by_key(|value| (distance(wanted, value), !are_swapped(wanted, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_longer_than_any_name_are_not_compared() {
        let long = "a".repeat(4_000_000);
        let other = format!("{long}b");
        assert_eq!(distance_up_to(&long, &other, 100), 100);
        assert_eq!(distance_up_to("amr64", "arm64", 100), 1);
        assert_eq!(distance_up_to(&"a".repeat(200), "", 100), 100);
        assert!(!is_misspelt(&long, &other));
        assert_eq!(nearest(&long, ["a"]), None);
    }

    #[test]
    fn the_nearest_value_is_the_one_with_the_fewest_letters_to_change() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        let types = ["c5.large", "m5.large", "m5.xlarge"];
        assert_eq!(nearest("m5.larg", types), Some("m5.large"));
        assert_eq!(nearest("m5.larg", []), None);
        assert_eq!(distance("amr64", "arm64"), 1);
        assert_eq!(nearest("amr64", ["amd64", "arm64"]), Some("arm64"));
    }

    #[test]
    fn nothing_is_near_a_text_without_end() {
        let long = "m5.large".repeat(1_000_000);
        assert_eq!(distance_within(&long, "m5.large", 2), None);
        assert_eq!(nearest(&long, ["m5.large"]), None);
        assert!(!is_misspelt(&long, "m5.large"));
        assert_eq!(distance_within("m5.lrge", "m5.large", 2), Some(1));
        assert_eq!(distance_within("m5.lrge", "m5.large", 0), None);
    }

    #[test]
    fn another_value_is_no_misspelling() {
        assert!(is_misspelt("m5.larg", "m5.large"));
        assert!(is_misspelt("spott", "spot"));
        assert!(is_misspelt("amr64", "arm64"));
        assert!(!is_misspelt("arm64", "amd64"));
        assert!(!is_misspelt("a", "b"));
        assert!(!is_misspelt("m5.large", "m5.24xlarge"));
    }
}
