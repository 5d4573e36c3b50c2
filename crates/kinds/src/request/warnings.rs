//! The warnings of one response, bounded as the `Warning` headers are (kube-apiserver: `WithWarningRecorder`).
//!
//! All warnings together may have 4,096 characters. The warning that exceeds this limit truncates every warning to 256 characters; from
//! then on warnings are added until the truncated ones have 4,096 characters. After that [`Warnings::is_full`] is true and nothing more
//! is kept, so that code that looks for warnings can stop.

use indexmap::IndexSet;

/// The most characters that all warnings have together.
const MAX_CHARS: usize = 4 * 1024;
/// The most characters of a warning once they are truncated.
const MAX_CHARS_WHEN_CUT: usize = 256;

/// The texts of the response's `Warning` headers, in the order in which they were found, without duplicates.
#[derive(Clone, Debug, Default)]
pub struct Warnings {
    texts: IndexSet<String>,
    /// The characters of all warnings, truncated if `is_cut`.
    chars: usize,
    is_cut: bool,
}

impl Warnings {
    /// Adds a warning, unless it is empty, a duplicate, has control characters (which headers cannot hold), or there are enough.
    pub fn add(&mut self, text: String) {
        if self.is_full() || text.is_empty() || text.chars().any(char::is_control) {
            return;
        }
        let chars = text.chars().count();
        if !self.texts.insert(text) {
            return;
        }
        if self.is_cut {
            self.chars += chars.min(MAX_CHARS_WHEN_CUT);
        } else if self.chars + chars <= MAX_CHARS {
            self.chars += chars;
        } else {
            self.is_cut = true;
            let cut = |text: &String| text.chars().take(MAX_CHARS_WHEN_CUT).count();
            self.chars = self.texts.iter().map(cut).sum();
        }
    }

    /// Returns whether the limit is reached, so that further warnings are dropped.
    pub fn is_full(&self) -> bool {
        self.is_cut && self.chars >= MAX_CHARS
    }

    /// Returns the full warnings, for a caller that adds them to the warnings of a response.
    pub fn into_texts(self) -> Vec<String> {
        self.texts.into_iter().collect()
    }

    /// Returns the warnings as the headers hold them.
    pub fn shown(&self) -> impl Iterator<Item = &str> {
        self.texts
            .iter()
            .map(|text| if self.is_cut { cut(text) } else { text })
    }
}

impl Extend<String> for Warnings {
    /// Adds warnings until the limit is reached.
    fn extend<T: IntoIterator<Item = String>>(&mut self, texts: T) {
        for text in texts {
            if self.is_full() {
                break;
            }
            self.add(text);
        }
    }
}

/// Returns the first characters of a text, up to the limit.
fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_CHARS_WHEN_CUT);
    end.map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(warnings: &Warnings) -> Vec<&str> {
        warnings.shown().collect()
    }

    #[test]
    fn each_warning_is_kept_once_and_no_control_character_gets_into_a_header() {
        let mut warnings = Warnings::default();
        warnings.extend(["a", "b", "", "a", "c\nd"].map(str::to_owned));
        assert_eq!(shown(&warnings), ["a", "b"]);
        assert!(!warnings.is_full());
    }

    #[test]
    fn warnings_are_cut_when_they_are_too_long_together_and_end_when_the_cut_ones_are() {
        let mut warnings = Warnings::default();
        let long = |index: usize| format!("{index:04}{}", "ä".repeat(996));
        warnings.extend((0..4).map(long));
        assert!(
            shown(&warnings)
                .iter()
                .all(|text| text.chars().count() == 1000)
        );
        warnings.add(long(4));
        assert_eq!(warnings.shown().count(), 5);
        assert!(
            shown(&warnings)
                .iter()
                .all(|text| text.chars().count() == 256)
        );
        let mut taken = 0;
        warnings.extend((5..1_000_000).map(|index| {
            taken += 1;
            long(index)
        }));
        assert_eq!((warnings.shown().count(), taken), (16, 12));
        assert!(warnings.is_full());
        warnings.add("short".to_owned());
        assert_eq!(warnings.into_texts().len(), 16);
    }
}
