//! Where something stands in an object: `spec.template.spec.containers[0].image`.

use std::fmt;

use serde_json::Value;

/// One step down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Step {
    /// Into the field of a map.
    Key(String),
    /// Into an element of a list.
    Index(usize),
}

/// A place in an object; the empty path is the object itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Path(pub(crate) Vec<Step>);

impl Path {
    /// Returns the path through fields of these names.
    pub(crate) fn of(keys: &[&str]) -> Self {
        Path(
            keys.iter()
                .map(|key| Step::Key((*key).to_owned()))
                .collect(),
        )
    }

    /// Returns the path one field further.
    pub(crate) fn key(&self, key: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        Path(steps)
    }

    /// Returns the path through several fields further.
    pub(crate) fn keys(&self, keys: &[&str]) -> Self {
        self.join(&Path::of(keys))
    }

    /// Returns the path one element further.
    pub(crate) fn index(&self, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        Path(steps)
    }

    /// Returns the path that goes on with `rest`.
    pub(crate) fn join(&self, rest: &Path) -> Self {
        Path(self.0.iter().chain(&rest.0).cloned().collect())
    }

    /// Returns what stands there, if anything does.
    pub(crate) fn get<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(value, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => value.get(index),
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(own) => write!(f, "[{own}]")?,
                // A dot in a name, as labels have them, would read as a step.
                Step::Key(key) if key.contains('.') => write!(f, "[{key}]")?,
                Step::Key(key) if index == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}
