//! Sets of a Job's indexes, in the notation of the API: `1,3-5,7`. Pure.

use std::collections::BTreeSet;

/// A set of indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes(pub(super) BTreeSet<i32>);

impl Indexes {
    /// Parses a set. Indexes that are not below `completions`, and parts that are invalid, are left out.
    pub(super) fn parse(text: &str, completions: i32) -> Self {
        let mut indexes = BTreeSet::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
                // Bounded by the Job's size, so that a text such as `0-2000000000` cannot fill the memory.
                indexes.extend(first.max(0)..=last.min(completions - 1));
            }
        }
        Self(indexes)
    }

    /// Returns the number of indexes in the set.
    pub(super) fn count(&self) -> i32 {
        i32::try_from(self.0.len()).unwrap_or(i32::MAX)
    }

    pub(super) fn has(&self, index: i32) -> bool {
        self.0.contains(&index)
    }
}

impl std::fmt::Display for Indexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while rest.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            write!(f, "{separator}{first}")?;
            match last - first {
                0 => {}
                // Two neighbours are written as `3,4`, as kube-controller-manager does.
                1 => write!(f, ",{last}")?,
                _ => write!(f, "-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_ranges_and_read_back() {
        for text in ["", "0", "1,3-5,7", "0,1", "0-2,4,5", "10-99"] {
            assert_eq!(Indexes::parse(text, 100).to_string(), text);
        }
        assert_eq!(Indexes::parse("1-5,x,9", 4).to_string(), "1-3");
    }
}
