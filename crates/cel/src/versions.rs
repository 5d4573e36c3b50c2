//! Semantic versions in expressions (source: apiserver/pkg/cel/library/semverlib.go). As there, build metadata affects neither order nor
//! equality.

use std::{cmp::Ordering, sync::Arc};

use kube_cel::cel::{Value, objects::Opaque};
use mullion_kube_text::golang::semver::fault;
use semver::Version;

use super::error::EvalError;

#[derive(Debug)]
struct Semver(Version);

impl PartialEq for Semver {
    fn eq(&self, other: &Self) -> bool {
        self.0.cmp_precedence(&other.0) == Ordering::Equal
    }
}

impl Eq for Semver {}

impl Opaque for Semver {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.Semver"
    }
}

/// Parses a version.
///
/// # Errors
/// The message of `github.com/blang/semver/v4` for an invalid version.
pub fn version(text: &str) -> Result<Value, EvalError> {
    // The semver crate's messages differ from those of Go's library.
    if let Some(why) = fault(text) {
        return Err(EvalError::Version(why));
    }
    let version = Version::parse(text).map_err(|why| EvalError::Version(why.to_string()))?;
    Ok(Value::Opaque(Arc::new(Semver(version))))
}

/// Calls a version function; `None` if the function is not one.
pub(super) fn call(
    function: &str,
    target: Option<&Value>,
    arguments: &[Value],
) -> Option<Result<Value, EvalError>> {
    match (function, target, arguments) {
        ("semver" | "isSemver", None, [Value::String(text), rest @ ..]) => {
            let read = match rest {
                [] | [Value::Bool(false)] => version(text),
                [Value::Bool(true)] => normal(text).and_then(|text| version(&text)),
                _ => return None,
            };
            match function {
                "semver" => Some(read),
                _ => Some(Ok(Value::Bool(read.is_ok()))),
            }
        }
        (function, Some(target), arguments) => {
            let version = of(target)?;
            // Like Go's conversion, this wraps around for numbers beyond `i64`.
            let part = |number: u64| Value::Int(number as i64);
            let value = match (function, arguments) {
                ("major", []) => part(version.major),
                ("minor", []) => part(version.minor),
                ("patch", []) => part(version.patch),
                (function, [other]) => {
                    let order = version.cmp_precedence(of(other)?);
                    match function {
                        "isLessThan" => Value::Bool(order.is_lt()),
                        "isGreaterThan" => Value::Bool(order.is_gt()),
                        "compareTo" => Value::Int(order as i64),
                        _ => return None,
                    }
                }
                _ => return None,
            };
            Some(Ok(value))
        }
        _ => None,
    }
}

fn of(value: &Value) -> Option<&Version> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref().map(|Semver(version)| version),
        _ => None,
    }
}

/// Normalises a version: without its `v`, with three numbers, and without leading zeros.
fn normal(text: &str) -> Result<String, EvalError> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let plain = |part: &str| {
        if part.len() < 2 {
            return part.to_owned();
        }
        let rest = part.trim_start_matches('0');
        // One zero remains where no digit is left, also before a suffix as in `00-rc`.
        let begins_with_a_digit = rest.starts_with(|c: char| c.is_ascii_digit());
        let zero = if begins_with_a_digit { "" } else { "0" };
        format!("{zero}{rest}")
    };
    let mut parts: Vec<String> = text.splitn(3, '.').map(plain).collect();
    let last = parts.last().expect("a text has one part at least");
    if parts.len() < 3 && last.contains(['+', '-']) {
        return Err(EvalError::ShortVersion);
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_not_written_out_is_completed() {
        for (text, read) in [
            ("v1.2.3", Ok("1.2.3")),
            ("1", Ok("1.0.0")),
            ("v01.02", Ok("1.2.0")),
            ("00.1.007-rc.1+b", Ok("0.1.7-rc.1+b")),
            ("1.2.00-rc", Ok("1.2.0-rc")),
            ("1.2-rc", Err(EvalError::ShortVersion)),
            // Parts that are not numbers are left for the parser to refuse.
            ("x.1.2", Ok("x.1.2")),
        ] {
            assert_eq!(normal(text), read.map(str::to_owned), "{text}");
        }
    }
}
