//! Lists, maps and bytes that a client sent and that had nothing in them.
//!
//! Go keeps them apart from absent ones until an object is stored; trees do not have them, as nothing shows them to anybody. The few rules
//! that ask whether a list is there at all, not what is in it, ask here. Protobuf knows no such difference.

use std::{collections::HashSet, fmt::Write as _, sync::Arc};

use super::{Path, Segment};

/// The paths of what was sent empty in one body; cheap to copy, and nothing at all for most bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emptied(Option<Arc<Paths>>);

#[derive(Debug, PartialEq, Eq)]
struct Paths {
    all: HashSet<String>,
    /// Those in the schemas of a definition's versions, as paths in their schema.
    in_schemas: HashSet<String>,
}

impl Emptied {
    /// Whether that very field was sent empty.
    pub fn has(&self, path: &Path<'_>) -> bool {
        self.0.is_some() && self.has_at(&Self::text(path))
    }

    /// Whether the field at a path that [`Emptied::text`] wrote was sent empty.
    pub fn has_at(&self, path: &str) -> bool {
        self.0
            .as_ref()
            .is_some_and(|paths| paths.all.contains(path))
    }

    /// A path as it is kept here.
    pub fn text(path: &Path<'_>) -> String {
        let mut text = String::new();
        walked(path, &mut text);
        text
    }

    /// Whether that field of a definition's schema was sent empty. A schema that all versions share is told of as `spec.validation`, and
    /// was sent in each of them.
    pub fn has_in_schema(&self, path: &Path<'_>) -> bool {
        const SHARED: &str = "spec.validation.openAPIV3Schema";
        let Some(paths) = &self.0 else { return false };
        let text = Self::text(path);
        match text.strip_prefix(SHARED) {
            None => paths.all.contains(&text),
            Some(below) => paths.in_schemas.contains(below),
        }
    }

    /// Whether a top-level field was sent empty or anything in it.
    pub fn has_within(&self, field: &str) -> bool {
        let is_within = |path: &String| {
            path.strip_prefix(field)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.0.iter().flat_map(|paths| &paths.all).any(is_within)
    }
}

/// A path as the decoder writes it, which does not know a key from a field.
fn walked(path: &Path<'_>, text: &mut String) {
    if let Some(parent) = path.parent {
        walked(parent, text);
    }
    let written = match path.segment {
        Segment::Index(index) => write!(text, "[{index}]"),
        Segment::Name(name) | Segment::Key(name) if text.is_empty() => write!(text, "{name}"),
        Segment::Name(name) | Segment::Key(name) => write!(text, ".{name}"),
    };
    written.expect("writing to a string does not fail");
}

impl From<Vec<String>> for Emptied {
    fn from(paths: Vec<String>) -> Self {
        let in_schema = |path: &String| {
            let (_, inside) = path.split_once(".schema.openAPIV3Schema")?;
            Some(inside.to_owned())
        };
        Emptied((!paths.is_empty()).then(|| {
            Arc::new(Paths {
                in_schemas: paths.iter().filter_map(in_schema).collect(),
                all: paths.into_iter().collect(),
            })
        }))
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
        let schema = "spec.versions[0].schema.openAPIV3Schema.properties.a.dependencies";
        let emptied = Emptied::from(vec![schema.to_owned()]);
        let spec = Path::new("spec");
        let shared = spec.child("validation");
        let shared = shared.child("openAPIV3Schema");
        let properties = shared.child("properties");
        let property = properties.key("a");
        assert!(emptied.has_in_schema(&property.child("dependencies")));
        assert!(!emptied.has_in_schema(&shared.child("dependencies")));
    }
}
