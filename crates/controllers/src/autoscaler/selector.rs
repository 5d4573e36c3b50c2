//! Parses the label selector in a Scale's status, which is text: `app=web,tier in
//! (front,back),!canary`.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector};

/// The text is not a label selector; the field is the part that failed to parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unable to parse requirement: {0:?} is no requirement on a label")]
pub(super) struct SelectorError(String);

/// Parses a selector as Kubernetes' `labels.Parse` does, except for `<` and `>`, which no scale target
/// uses.
pub(super) fn parse(text: &str) -> Result<Selector, SelectorError> {
    requirements(text)
        .map(|part| requirement(part).ok_or_else(|| SelectorError(part.trim().to_owned())))
        .collect()
}

/// Splits a selector at its commas, except for commas inside the parentheses of a value list.
fn requirements(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    })
}

fn requirement(part: &str) -> Option<Expression> {
    let part = part.trim();
    if let Some(key) = part.strip_prefix('!') {
        return Some(Expression::DoesNotExist(name(key)?));
    }
    // The longer operators come first: `=` would also match inside `!=` and `==`.
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = part.split_once(operator) {
            let (key, value) = (name(key)?, token(value)?);
            return Some(if equal {
                Expression::Equal(key, value)
            } else {
                Expression::NotEqual(key, value)
            });
        }
    }
    let Some((head, values)) = part.split_once('(') else {
        return Some(Expression::Exists(name(part)?));
    };
    let values: Option<BTreeSet<String>> = values
        .trim_end()
        .strip_suffix(')')?
        .split(',')
        .map(token)
        .collect();
    let (key, operator) = head.trim().rsplit_once(char::is_whitespace)?;
    match operator {
        "in" => Some(Expression::In(name(key)?, values?)),
        "notin" => Some(Expression::NotIn(name(key)?, values?)),
        _ => None,
    }
}

fn name(text: &str) -> Option<String> {
    token(text).filter(|key| !key.is_empty())
}

/// Returns a key or a value without the blanks around it; `None` if blanks or operators are inside.
fn token(text: &str) -> Option<String> {
    let text = text.trim();
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    text.chars().all(plain).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_scale_says_is_read_and_written_alike() {
        for text in [
            "app=web",
            "app=web,tier in (back,front)",
            "tier notin (a),x,!y",
            "k8s.io/x_y.z=1,a!=b",
            "empty=",
        ] {
            assert_eq!(parse(text).expect(text).to_string(), text);
        }
        assert_eq!(
            parse(" app == web , t in (a , b)")
                .expect("blanks")
                .to_string(),
            "app=web,t in (a,b)"
        );
    }

    #[test]
    fn nonsense_is_refused_by_the_part_that_is_wrong() {
        for (text, part) in [
            ("a=b,=c", "=c"),
            ("a in b", "a in b"),
            ("a in (b", "a in (b"),
            ("a>1", "a>1"),
            ("a=b,,c", ""),
            ("x among (a)", "x among (a)"),
        ] {
            assert_eq!(parse(text), Err(SelectorError(part.to_owned())), "{text}");
        }
    }
}
