//! Defines the result of reading an object by the schema of its kind: unknown fields, values of other types, and values that the API server
//! refuses.

use crate::check::{path::Path, problem::joined};

/// The API versions of Karpenter before v1 whose fields are not checked.
pub(in crate::check) const BETA_VERSIONS: [&str; 2] =
    ["karpenter.sh/v1beta1", "karpenter.k8s.aws/v1beta1"];

/// What the schema of its kind says of an object.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::check) enum Reading {
    /// The object was read, with these faults.
    Read {
        /// The fields that the kind does not have.
        unknown: Vec<UnknownField>,
        /// The values that are of another type than their fields.
        misfits: Vec<Misfit>,
        /// What else the API server refuses.
        refused: Vec<Refused>,
        /// What the API server warns of.
        warned: Vec<Warned>,
    },
    /// The object has no kind, or no apiVersion.
    Nameless {
        /// The field that is missing: `kind` or `apiVersion`.
        lacks: &'static str,
        /// The API version in which the kind is.
        near: Option<&'static str>,
    },
    /// Kubernetes has the API version, or would have it, but not the kind. `near` is what may have been meant.
    NoSuchKind { near: Option<String> },
    /// Nothing is known of the kind, or of this version of the kind.
    Unknown { is_other_version: bool },
}

impl Reading {
    /// Returns the reading of an object without faults.
    pub(super) fn faultless() -> Self {
        Reading::Read {
            unknown: Vec::new(),
            misfits: Vec::new(),
            refused: Vec::new(),
            warned: Vec::new(),
        }
    }
}

/// A field that a kind does not have.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::check) struct UnknownField {
    /// The field as API servers name it, as in `spec.containers[0].imag`.
    pub(in crate::check) name: String,
    pub(in crate::check) path: Path,
    /// The field that may have been meant.
    pub(in crate::check) near: Option<String>,
}

/// A value of another type than its field.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::check) struct Misfit {
    /// The place of the value; the object as a whole where the value is not found.
    pub(in crate::check) path: Path,
    /// What the field takes, such as `a whole number`; `None` if that is not known.
    pub(in crate::check) expected: Option<&'static str>,
    pub(in crate::check) refusal: Refusal,
}

/// Who refuses a value, and in which words.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::check) enum Refusal {
    /// The API server refuses to decode the object, with this error.
    Decoding(String),
    /// The API server refuses the value of a custom resource, with this error.
    Validation(String),
    /// eksctl refuses the file.
    Eksctl,
}

/// A value that the API server refuses, or a field that it requires.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::check) struct Refused {
    /// The place of the field, or of the innermost field around it that the object has.
    pub(in crate::check) path: Path,
    /// The field as the API server names it.
    pub(in crate::check) field: String,
    /// The API server's message without the field.
    pub(in crate::check) why: String,
    /// The allowed value that may have been meant.
    pub(in crate::check) near: Option<String>,
    pub(in crate::check) is_missing: bool,
}

/// A warning of the API server.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::check) struct Warned {
    /// The place of the field, or of the innermost field around it that the object has.
    pub(in crate::check) path: Path,
    /// The warning.
    pub(in crate::check) text: String,
}

/// The objects of a kind that nothing is known of.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::check) struct UnknownKind {
    pub(in crate::check) api_version: String,
    pub(in crate::check) kind: String,
    /// Whether another version of the kind is known.
    pub(in crate::check) is_other_version: bool,
    /// The number of objects.
    pub(in crate::check) objects: usize,
}

/// Returns a remark for each of these kinds, and one for all those of Karpenter's v1beta1, which have findings of MUL077 besides.
pub(in crate::check) fn remarks(unknown: &[UnknownKind]) -> Vec<String> {
    let is_beta = |own: &&UnknownKind| BETA_VERSIONS.contains(&own.api_version.as_str());
    let (beta, others): (Vec<_>, Vec<_>) = unknown.iter().partition(is_beta);
    let mut remarks: Vec<_> = others.into_iter().map(UnknownKind::remark).collect();
    if !beta.is_empty() {
        let kinds = joined(beta.into_iter().map(|own| own.kind.clone()), "and");
        remarks.push(format!(
            "the fields of {kinds} of Karpenter's v1beta1 are not checked, but for what MUL077 says of v1"
        ));
    }
    remarks
}

impl UnknownKind {
    /// Returns the remark that nothing of the objects was checked.
    pub(in crate::check) fn remark(&self) -> String {
        let UnknownKind {
            api_version, kind, ..
        } = self;
        if self.is_other_version {
            format!("the fields of {kind} are not checked: its version {api_version} is not known")
        } else {
            format!(
                "nothing of {kind} ({api_version}) is checked: the kind is not known, unless its CustomResourceDefinition is checked with it"
            )
        }
    }
}
