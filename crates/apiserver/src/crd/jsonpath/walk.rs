//! Evaluates a JSONPath on an object.

use mullion_kube_text::golang::number;
use serde_json::{Number, Value};

use super::{JsonPath, JsonPathError, Slice, Step};

/// The number of values that a path may still visit. Consecutive unions, lists and `..` multiply the visits, and a path that exceeds the
/// limit fails.
pub(super) struct VisitLimit(usize);

const MOST_LOOKS: usize = 1_000_000;

impl VisitLimit {
    pub(super) fn new() -> VisitLimit {
        VisitLimit(MOST_LOOKS)
    }

    fn take(&mut self, count: usize) -> Result<(), JsonPathError> {
        self.0 = self.0.checked_sub(count).ok_or(JsonPathError)?;
        Ok(())
    }
}

pub(super) fn follow<'v>(
    mut found: Vec<&'v Value>,
    steps: &'v [Step],
    looks: &mut VisitLimit,
) -> Result<Vec<&'v Value>, JsonPathError> {
    for step in steps {
        found = step.walk(found, looks)?;
    }
    Ok(found)
}

impl Step {
    fn walk<'v>(
        &'v self,
        values: Vec<&'v Value>,
        looks: &mut VisitLimit,
    ) -> Result<Vec<&'v Value>, JsonPathError> {
        looks.take(values.len())?;
        let mut found = Vec::new();
        match self {
            Step::Literal(value) => found.push(value),
            Step::Field(name) => {
                found.extend(
                    values
                        .into_iter()
                        .filter_map(|value| value.as_object()?.get(name)),
                );
            }
            Step::All => {
                for value in values {
                    looks.take(length(value))?;
                    match value {
                        Value::Array(items) => found.extend(items),
                        Value::Object(map) => found.extend(map.values()),
                        _ => {}
                    }
                }
            }
            Step::Descend => {
                for value in values {
                    descend(value, &mut found, looks)?;
                }
            }
            Step::Union(paths) => {
                for path in paths {
                    looks.take(values.len())?;
                    found.extend(follow(values.clone(), &path.0, looks)?);
                }
            }
            Step::Slice(slice) => {
                for value in values {
                    match value {
                        Value::Null => {}
                        Value::Array(items) => slice.take(items, &mut found, looks)?,
                        _ => return Err(JsonPathError),
                    }
                }
            }
            Step::Filter {
                left,
                operator,
                right,
            } => {
                for value in values {
                    let Value::Array(items) = value else {
                        return Err(JsonPathError);
                    };
                    for item in items {
                        if passes(item, left, operator, right, looks)? {
                            found.push(item);
                        }
                    }
                }
            }
        }
        Ok(found)
    }
}

impl Slice {
    fn take<'v>(
        self,
        items: &'v [Value],
        found: &mut Vec<&'v Value>,
        looks: &mut VisitLimit,
    ) -> Result<(), JsonPathError> {
        let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let given = self.from.unwrap_or(0);
        let from = if given < 0 {
            given.saturating_add(length)
        } else {
            given
        };
        let to = match self.to {
            _ if self.single => from.saturating_add(1),
            Some(to) if to < 0 => to.saturating_add(length),
            Some(to) => to,
            None => length,
        };
        // client-go (evalArray) returns nothing for an empty slice, even if its bounds are outside the list.
        if from == to {
            return Ok(());
        }
        if !(0..length).contains(&from) || !(0..=length).contains(&to) || from > to {
            return Err(JsonPathError);
        }
        let step = match self.step {
            None => 1,
            Some(step) => usize::try_from(step)
                .ok()
                .filter(|step| *step > 0)
                .ok_or(JsonPathError)?,
        };
        let (from, to) = (from as usize, to as usize);
        looks.take(to - from)?;
        found.extend(items[from..to].iter().step_by(step));
        Ok(())
    }
}

fn length(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    }
}

/// Collects all non-empty values at and below a value (`..`).
fn descend<'v>(
    value: &'v Value,
    found: &mut Vec<&'v Value>,
    looks: &mut VisitLimit,
) -> Result<(), JsonPathError> {
    looks.take(1)?;
    let has_some = match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => false,
    };
    if has_some {
        found.push(value);
    }
    match value {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| descend(item, found, looks)),
        Value::Object(map) => map
            .values()
            .try_for_each(|item| descend(item, found, looks)),
        _ => Ok(()),
    }
}

fn passes(
    item: &Value,
    left: &JsonPath,
    operator: &str,
    right: &JsonPath,
    looks: &mut VisitLimit,
) -> Result<bool, JsonPathError> {
    looks.take(1)?;
    let left = left.find_within(item, looks);
    if operator == "exists" {
        return Ok(left.is_ok_and(|found| !found.is_empty()));
    }
    let (left, right) = (left?, right.find_within(item, looks)?);
    let (left, right) = match (left.as_slice(), right.as_slice()) {
        ([], _) | ([_], []) => return Ok(false),
        ([left], [right]) => (left, right),
        _ => return Err(JsonPathError),
    };
    let order = match (left, right) {
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) if matches!(operator, "==" | "!=") => {
            left.cmp(right)
        }
        (Value::Number(left), Value::Number(right)) => match (settled(left), settled(right)) {
            (Ok(left), Ok(right)) => left.cmp(&right),
            (Err(left), Err(right)) => left.partial_cmp(&right).ok_or(JsonPathError)?,
            // Go does not compare an integer with a fraction.
            _ => return Err(JsonPathError),
        },
        _ => return Err(JsonPathError),
    };
    match operator {
        "==" => Ok(order.is_eq()),
        "!=" => Ok(order.is_ne()),
        "<" => Ok(order.is_lt()),
        "<=" => Ok(order.is_le()),
        ">" => Ok(order.is_gt()),
        ">=" => Ok(order.is_ge()),
        _ => Err(JsonPathError),
    }
}

/// Returns a number as Go reads it from the store: an integer if it is whole.
fn settled(given: &Number) -> Result<i64, f64> {
    let float = given.as_f64().unwrap_or_default();
    given.as_i64().or_else(|| number::whole(float)).ok_or(float)
}
