//! Defines paths to fields in an object: `spec.template.spec.containers[0].image`.

use std::fmt;

use mullion_api::eksctl::fields::FieldStep;
use serde_json::Value;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Step {
    /// The step to a field of a map.
    Key(String),
    /// The step to an element of a list.
    Index(usize),
}

/// A path in an object; the empty path is the object itself.
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

    /// Returns the path in a file of eksctl.
    pub(crate) fn of_eksctl(steps: Vec<FieldStep>) -> Self {
        let steps = steps.into_iter().map(|step| match step {
            FieldStep::Field(name) => Step::Key(name),
            FieldStep::Item(index) => Step::Index(index),
        });
        Path(steps.collect())
    }

    /// Returns the path extended by one field.
    pub(crate) fn key(&self, key: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        Path(steps)
    }

    /// Returns the path extended by several fields.
    pub(crate) fn keys(&self, keys: &[&str]) -> Self {
        self.join(&Path::of(keys))
    }

    /// Returns the path extended by one element of a list.
    pub(crate) fn index(&self, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        Path(steps)
    }

    /// Returns the path extended by `rest`.
    pub(crate) fn join(&self, rest: &Path) -> Self {
        Path(self.0.iter().chain(&rest.0).cloned().collect())
    }

    /// Returns the value at the path, if there is one.
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
                // A dot in a key, as in label names, would look like another step.
                Step::Key(key) if key.contains('.') => write!(f, "[{key}]")?,
                Step::Key(key) if index == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}
