//! The lists, maps and byte strings that a client sent empty.
//!
//! Go distinguishes empty from absent ones until an object is stored; this server's trees leave empty ones out, because no response shows
//! the difference. The few rules that depend on it look here. Protobuf has no such difference.

use std::{collections::HashSet, fmt::Write as _, sync::Arc};

use super::{Path, Segment};

/// The paths of the fields that one body sent empty. Cheap to clone, and empty for most bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emptied(Option<Arc<Paths>>);

#[derive(Debug, PartialEq, Eq)]
struct Paths {
    all: HashSet<String>,
    /// The paths within the schemas of a CustomResourceDefinition's versions, relative to the schema.
    in_schemas: HashSet<String>,
}

impl Emptied {
    /// Returns whether this field was sent empty.
    pub fn has(&self, path: &Path<'_>) -> bool {
        self.0.is_some() && self.has_at(&Self::text(path))
    }

    /// Returns whether the field at a path from [`Emptied::text`] was sent empty.
    pub fn has_at(&self, path: &str) -> bool {
        self.0
            .as_ref()
            .is_some_and(|paths| paths.all.contains(path))
    }

    /// Returns a path in the form that is stored here.
    pub fn text(path: &Path<'_>) -> String {
        let mut text = String::new();
        walked(path, &mut text);
        text
    }

    /// Returns whether this field of a CustomResourceDefinition's schema was sent empty. Errors name a schema that all versions share as
    /// `spec.validation`, although each version sent it.
    pub fn has_in_schema(&self, path: &Path<'_>) -> bool {
        const SHARED: &str = "spec.validation.openAPIV3Schema";
        let Some(paths) = &self.0 else { return false };
        let text = Self::text(path);
        match text.strip_prefix(SHARED) {
            None => paths.all.contains(&text),
            Some(below) => paths.in_schemas.contains(below),
        }
    }

    /// Returns the paths that were sent empty: of a top-level field, and of what is below it.
    pub fn within<'e>(&'e self, field: &'e str) -> impl Iterator<Item = &'e str> {
        let paths = self.0.iter().flat_map(|paths| &paths.all);
        paths.map(String::as_str).filter(move |path| {
            path.strip_prefix(field)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }
}

/// Formats a path as the decoder does, which does not distinguish a map key from a field.
fn walked(path: &Path<'_>, text: &mut String) {
    if let Some(parent) = path.parent {
        walked(parent, text);
    }
    let written = match path.segment {
        Segment::Root => Ok(()),
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
        assert!(emptied.within("spec").next().is_some());
        assert!(emptied.within("webhooks").next().is_some());
        assert_eq!(emptied.within("web").next(), None);
        assert_eq!(Emptied::default().within("spec").next(), None);
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
