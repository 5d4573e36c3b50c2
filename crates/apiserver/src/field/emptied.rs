//! Lists, maps and bytes that a client sent and that had nothing in them.
//!
//! Go keeps them apart from absent ones until an object is stored; trees do not have them, as nothing shows them to anybody. The few rules
//! that ask whether a list is there at all, not what is in it, ask here. Protobuf knows no such difference.

use std::{fmt::Write as _, sync::Arc};

use super::Path;

/// The paths of what was sent empty in one body; cheap to copy, and nothing at all for most bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emptied(Option<Arc<[String]>>);

impl Emptied {
    /// Whether that very field was sent empty.
    pub fn has(&self, path: &Path<'_>) -> bool {
        let Some(paths) = &self.0 else { return false };
        let mut text = String::new();
        write!(text, "{path}").expect("writing to a string does not fail");
        paths.contains(&text)
    }

    /// Whether a top-level field was sent empty or anything in it.
    pub fn has_within(&self, field: &str) -> bool {
        let is_within = |path: &String| {
            path.strip_prefix(field)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.0.iter().flat_map(|paths| paths.iter()).any(is_within)
    }
}

impl From<Vec<String>> for Emptied {
    fn from(paths: Vec<String>) -> Self {
        Emptied((!paths.is_empty()).then(|| paths.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_whole_and_by_their_first_field() {
        let paths = ["spec.ports".to_owned(), "webhooks[0].rules".to_owned()];
        let emptied = Emptied::from(paths.to_vec());
        assert!(emptied.has(&Path::new("spec").child("ports")));
        assert!(!emptied.has(&Path::new("spec")));
        assert!(emptied.has_within("spec") && emptied.has_within("webhooks"));
        assert!(!emptied.has_within("web"));
        assert!(!Emptied::default().has_within("spec"));
    }
}
