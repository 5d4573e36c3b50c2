//! What is wrong with a regular expression, as Go's `regexp/syntax` says it.

use regex_syntax::ast::{ErrorKind, Span, parse::Parser};

/// The sentence for an expression that cannot be compiled.
pub(super) fn complaint(pattern: &str) -> String {
    let (what, which) = match Parser::new().parse(pattern) {
        Err(error) => of_syntax(pattern, error.kind(), error.span()),
        // What can be read but not meant: a class of characters that there is not.
        Ok(_) => ("invalid character class range", class(pattern)),
    };
    format!("error parsing regexp: {what}: `{which}`")
}

fn of_syntax<'p>(pattern: &'p str, kind: &ErrorKind, span: &Span) -> (&'static str, &'p str) {
    let (start, end) = (span.start.offset, span.end.offset);
    let there = pattern.get(start..end).unwrap_or_default();
    let rest = pattern.get(start..).unwrap_or_default();
    match kind {
        ErrorKind::ClassUnclosed => ("missing closing ]", rest),
        ErrorKind::ClassRangeInvalid | ErrorKind::ClassRangeLiteral => {
            ("invalid character class range", there)
        }
        ErrorKind::GroupUnclosed => ("missing closing )", pattern),
        ErrorKind::GroupUnopened => ("unexpected )", pattern),
        ErrorKind::GroupNameDuplicate { .. } => ("duplicate capture group name", there),
        ErrorKind::GroupNameEmpty
        | ErrorKind::GroupNameInvalid
        | ErrorKind::GroupNameUnexpectedEof => {
            let begin = pattern.get(..start).and_then(|before| before.rfind('('));
            let group = begin.and_then(|begin| pattern.get(begin..));
            let group = group.unwrap_or(rest);
            let end = group.find('>').map_or(group.len(), |end| end + 1);
            ("invalid named capture", &group[..end])
        }
        ErrorKind::RepetitionMissing => {
            let length = if rest.get(1..2) == Some("?") { 2 } else { 1 };
            let operator = rest.get(..length).unwrap_or(rest);
            ("missing argument to repetition operator", operator)
        }
        ErrorKind::RepetitionCountInvalid => ("invalid repeat count", there),
        ErrorKind::EscapeUnexpectedEof => ("trailing backslash at end of expression", ""),
        // Before Go has a name it has looked for the end of it.
        ErrorKind::UnsupportedLookAround if there.starts_with("(?<") => {
            let end = rest.find('>').map_or(rest.len(), |end| end + 1);
            ("invalid named capture", &rest[..end])
        }
        ErrorKind::UnsupportedLookAround => ("invalid or unsupported Perl syntax", there),
        ErrorKind::FlagUnrecognized
        | ErrorKind::FlagDuplicate { .. }
        | ErrorKind::FlagRepeatedNegation { .. }
        | ErrorKind::FlagDanglingNegation
        | ErrorKind::FlagUnexpectedEof => {
            let begin = pattern.get(..start).and_then(|before| before.rfind("(?"));
            let flags = begin.and_then(|begin| pattern.get(begin..end));
            ("invalid or unsupported Perl syntax", flags.unwrap_or(there))
        }
        _ => ("invalid escape sequence", there),
    }
}

/// The first class by name, as `\p{Greek}`.
fn class(pattern: &str) -> &str {
    let begin = pattern.find("\\p").or(pattern.find("\\P"));
    let rest = begin.map_or(pattern, |begin| &pattern[begin..]);
    let end = match rest.get(2..3) {
        Some("{") => rest.find('}').map(|end| end + 1),
        _ => rest.char_indices().nth(3).map(|(end, _)| end),
    };
    &rest[..end.unwrap_or(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_pattern_is_told_as_go_tells_it() {
        for (pattern, why) in [
            ("a[b", "missing closing ]: `[b`"),
            ("a(b", "missing closing ): `a(b`"),
            ("a)b", "unexpected ): `a)b`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("a{2,1}", "invalid repeat count: `{2,1}`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            (r"a\", "trailing backslash at end of expression: ``"),
            (r"\y", r"invalid escape sequence: `\y`"),
            (r"(a)\1", r"invalid escape sequence: `\1`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?<=a)b", "invalid named capture: `(?<=a)b`"),
            ("(?P<a b>c)", "invalid named capture: `(?P<a b>`"),
            ("(?k)", "invalid or unsupported Perl syntax: `(?k`"),
            (r"a\p{Foo}b", r"invalid character class range: `\p{Foo}`"),
        ] {
            assert!(regex::Regex::new(pattern).is_err(), "{pattern}");
            assert_eq!(
                complaint(pattern),
                format!("error parsing regexp: {why}"),
                "{pattern}"
            );
        }
    }
}
