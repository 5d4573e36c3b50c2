//! What requirements say of labels, on the API's own types.
//!
//! Invariant: the same answers as the engine gives for its requirements: absent labels fail `In`, `Exists` and the
//! comparisons, and pass `NotIn` and `DoesNotExist`.

use mullion_api::karpenter::{Operator, Requirement};
use mullion_engine::{
    model::{self, StringMap},
    provision,
};

/// Returns whether a label value (or its absence) meets a requirement.
pub fn admits(requirement: &Requirement, value: Option<&str>) -> bool {
    let values = &requirement.values;
    let listed = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let compare = |holds: fn(i64, i64) -> bool| {
        let value = value.and_then(|value| value.parse().ok());
        let bound = values.first().and_then(|bound| bound.parse().ok());
        value
            .zip(bound)
            .is_some_and(|(value, bound)| holds(value, bound))
    };
    match requirement.operator {
        Operator::In => listed(),
        Operator::NotIn => !listed(),
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
        Operator::Gt => compare(|value, bound| value > bound),
        Operator::Lt => compare(|value, bound| value < bound),
        Operator::Gte => compare(|value, bound| value >= bound),
        Operator::Lte => compare(|value, bound| value <= bound),
    }
}

/// Converts a requirement of the API to the engine's form.
pub fn to_engine(requirement: &Requirement) -> provision::Requirement {
    provision::Requirement {
        key: mullion_api::labels::normalized(&requirement.key).to_owned(),
        operator: match requirement.operator {
            Operator::In => model::Operator::In,
            Operator::NotIn => model::Operator::NotIn,
            Operator::Exists => model::Operator::Exists,
            Operator::DoesNotExist => model::Operator::DoesNotExist,
            Operator::Gt => model::Operator::Gt,
            Operator::Lt => model::Operator::Lt,
            Operator::Gte => model::Operator::Gte,
            Operator::Lte => model::Operator::Lte,
        },
        values: requirement.values.clone(),
        min_values: requirement.min_values,
    }
}

/// Returns the labels for which requirements leave a single value.
pub(crate) fn decided_labels(requirements: &[Requirement]) -> StringMap {
    let mut labels = StringMap::new();
    for requirement in requirements {
        if let (Operator::In, [value]) = (requirement.operator, requirement.values.as_slice()) {
            labels.insert(requirement.key.clone(), value.clone());
        }
    }
    labels
}

/// Converts a requirement of the engine to the form in which a NodeClaim keeps it.
pub fn from_engine(requirement: &provision::Requirement) -> Requirement {
    Requirement {
        key: requirement.key.clone(),
        operator: match requirement.operator {
            model::Operator::In => Operator::In,
            model::Operator::NotIn => Operator::NotIn,
            model::Operator::Exists => Operator::Exists,
            model::Operator::DoesNotExist => Operator::DoesNotExist,
            model::Operator::Gt => Operator::Gt,
            model::Operator::Lt => Operator::Lt,
            model::Operator::Gte => Operator::Gte,
            model::Operator::Lte => Operator::Lte,
        },
        values: requirement.values.clone(),
        min_values: requirement.min_values,
    }
}

/// Returns the only value that a label can have under these requirements; `None` if several are
/// left.
pub fn single_value<'a>(requirements: &'a [Requirement], key: &str) -> Option<&'a str> {
    requirements
        .iter()
        .filter(|requirement| requirement.key == key)
        .find_map(|requirement| match requirement.values.as_slice() {
            [value] if requirement.operator == Operator::In => Some(value.as_str()),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_treat_absence_as_the_engine_does() {
        let cases = [
            (Operator::In, &["8"][..], true, false),
            (Operator::NotIn, &["8"], false, true),
            (Operator::Exists, &[], true, false),
            (Operator::DoesNotExist, &[], false, true),
            (Operator::Gt, &["7"], true, false),
            (Operator::Lt, &["8"], false, false),
            (Operator::Gte, &["8"], true, false),
            (Operator::Lte, &["8"], true, false),
        ];
        for (operator, values, with, without) in cases {
            let requirement = Requirement::new("size", operator, values.iter().copied());
            assert_eq!(admits(&requirement, Some("8")), with, "{operator:?}");
            assert_eq!(admits(&requirement, None), without, "{operator:?} absent");
            assert_eq!(from_engine(&to_engine(&requirement)), requirement);
        }
    }
}
