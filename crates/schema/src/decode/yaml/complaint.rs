//! Translates the errors of our YAML parser into those of Go's, as far as they correspond; other errors keep our parser's text.

/// Returns Go's error for characters that YAML does not allow.
pub(super) fn of_characters(body: &[u8]) -> Option<String> {
    let is_control = |byte: &u8| matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 127);
    let found = body.iter().any(is_control);
    found.then(|| "yaml: control characters are not allowed".to_owned())
}

/// Returns Go's error for escapes that exist in JSON but not in YAML, such as surrogates (`\ud83d`) and `\/`, and for malformed ones. Only
/// documents that start with a brace are checked: elsewhere the same letters may be plain text.
pub(super) fn of_escapes(body: &[u8]) -> Option<String> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let (mut line, mut is_text, mut at) = (0, false, 0);
    while at < body.len() {
        match body[at] {
            b'\n' => line += 1,
            b'"' => is_text = !is_text,
            b'\\' if is_text => {
                // Half of a surrogate pair; YAML does not allow it even if the other half follows.
                let half = |digits: &[u8]| {
                    matches!(
                        digits,
                        [
                            b'u',
                            b'd' | b'D',
                            b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F',
                            ..,
                        ]
                    )
                };
                let rest = &body[at + 1..];
                let why = match rest {
                    rest if half(rest) => Some("found invalid Unicode character escape code"),
                    [letter @ (b'x' | b'u' | b'U'), digits @ ..] => {
                        let wanted = match letter {
                            b'x' => 2,
                            b'u' => 4,
                            _ => 8,
                        };
                        let found = digits.iter().take(wanted);
                        let found = found.take_while(|byte| byte.is_ascii_hexdigit()).count();
                        // Go's parser misspells the word.
                        (found < wanted).then_some("did not find expected hexdecimal number")
                    }
                    [
                        b'0' | b'a' | b'b' | b't' | b'\t' | b'n' | b'v' | b'f' | b'r' | b'e' | b' '
                        | b'"' | b'\'' | b'\\' | b'N' | b'_' | b'L' | b'P' | b'\n' | b'\r',
                        ..,
                    ]
                    | [] => None,
                    _ => Some("found unknown escape character"),
                };
                if let Some(why) = why {
                    let place = match line {
                        0 => String::new(),
                        line => format!("line {}: ", line + 1),
                    };
                    return Some(format!("yaml: {place}{why}"));
                }
                at += 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// A position, counted from one.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    column: usize,
}

impl Place {
    /// Splits the position off the end of one of our parser's messages.
    fn of(sentence: &str) -> Option<(&str, Place)> {
        let (words, place) = sentence.rsplit_once(" at line ")?;
        let (line, column) = place.split_once(", column ")?;
        let place = Place {
            line: line.parse().ok()?,
            column: column.parse().ok()?,
        };
        Some((words, place))
    }

    /// Returns the position in bytes.
    fn offset(self, text: &str) -> usize {
        let mut lines = text.split_inclusive('\n');
        let before = lines
            .by_ref()
            .take(self.line.saturating_sub(1))
            .map(str::len)
            .sum::<usize>();
        let line = lines.next().unwrap_or_default();
        let start = line.char_indices().nth(self.column.saturating_sub(1));
        before + start.map_or(line.len(), |(at, _)| at)
    }

    /// Returns the word at the position.
    fn word(self, text: &str) -> &str {
        let line = text.lines().nth(self.line - 1).unwrap_or_default();
        let start = line.char_indices().nth(self.column.saturating_sub(1));
        let rest = start.map_or("", |(at, _)| &line[at..]);
        let end = rest.find(|c: char| c.is_whitespace() || ",[]{}".contains(c));
        &rest[..end.unwrap_or(rest.len())]
    }
}

/// Returns the body with quotes around the number that is too large for a float, if that is what our parser complains about: Go's YAML
/// library reads such a number as a string.
pub(super) fn quoted_overflow(body: &[u8], ours: &str) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    let (words, place) = Place::of(ours)?;
    let word = place.word(text);
    // `.inf` and `.nan` have no digits.
    let is_number = word.contains(|c: char| c.is_ascii_digit());
    if !words.contains("non-finite float") || !is_number {
        return None;
    }
    let at = place.offset(text);
    let (before, rest) = text.split_at(at);
    let rest = rest.strip_prefix(word)?;
    Some(format!("{before}\"{word}\"{rest}").into_bytes())
}

/// Returns Go's message for one of our parser's.
pub(super) fn of(body: &[u8], ours: &str) -> String {
    let text = String::from_utf8_lossy(body);
    let (words, place) = match Place::of(ours) {
        Some((words, place)) => (words, Some(place)),
        None => (ours, None),
    };
    let word = place.map_or("", |place| place.word(&text));
    if words.contains("non-finite float") {
        let value = match word.to_lowercase() {
            nan if nan.contains("nan") => "NaN",
            negative if negative.starts_with('-') => "-Inf",
            _ => "+Inf",
        };
        return format!("json: unsupported value: {value}");
    }
    format!("yaml: {}", message(&text, words, ours, word, place))
}

fn message(text: &str, words: &str, ours: &str, word: &str, place: Option<Place>) -> String {
    // Go's scanner omits the number of the first line, and its parser counts lines from zero.
    let line = |line: usize| match line {
        0 => String::new(),
        line => format!("line {line}: "),
    };
    let scanned_at = |at: usize, why: &str| format!("{}{why}", line(if at > 1 { at } else { 0 }));
    let at = place.map_or(0, |place| place.line);
    let scanned = |why: &str| scanned_at(at, why);
    let parsed = |why: &str| format!("{}{why}", line(at.saturating_sub(1)));
    let anchor = word.trim_start_matches(['*', '&']);
    let ends = text.lines().count();
    // Messages that both parsers have; ours continues with the position.
    const SHARED: [&str; 6] = [
        "block sequence entries are not allowed in this context",
        "mapping keys are not allowed in this context",
        "mapping values are not allowed in this context",
        "did not find expected alphabetic or numeric character",
        "did not find expected comment or line break",
        "found unknown escape character",
    ];
    let shared = SHARED.iter().find(|shared| words.contains(*shared));
    match words {
        _ if words.contains("unclosed bracket")
            && text.trim_end().ends_with([',', ':', '{', '[']) =>
        {
            format!("line {ends}: did not find expected node content")
        }
        _ if words.contains("unclosed bracket '{'") => {
            format!("line {ends}: did not find expected ',' or '}}'")
        }
        _ if words.contains("unclosed bracket '['") => {
            format!("line {ends}: did not find expected ',' or ']'")
        }
        _ if words.contains("mismatched bracket '{'") => parsed("did not find expected ',' or '}'"),
        _ if words.contains("invalid trailing content after") && text.starts_with('{') => {
            parsed("did not find expected ',' or '}'")
        }
        _ if words.contains("mismatched bracket '['") => parsed("did not find expected ',' or ']'"),
        _ if words.contains("misplaced bracket") => parsed("did not find expected node content"),
        _ if words.contains("unclosed quote") => {
            let end = 1 + text.matches('\n').count();
            scanned_at(end, "found unexpected end of stream")
        }
        _ if words.contains("simple key expected ':'") => {
            // Go reports the missing colon at the next word.
            let mut after = text.lines().enumerate().skip(at);
            let has_words =
                |line: &str| !matches!(line.trim_start().chars().next(), None | Some('#'));
            let next = after
                .find(|(_, line)| has_words(line))
                .map(|(index, _)| index + 1);
            scanned_at(next.unwrap_or(at), "could not find expected ':'")
        }
        _ if words.contains("unknown anchor") && !anchor.is_empty() => {
            format!("unknown anchor '{anchor}' referenced")
        }
        _ if words.contains("recursive references") && !anchor.is_empty() => {
            format!("anchor '{anchor}' value contains itself")
        }
        _ if words.contains("unsupported YAML major version") => {
            parsed("found incompatible YAML document")
        }
        _ if words.starts_with("mapping values are not allowed") => {
            scanned("mapping values are not allowed in this context")
        }
        _ if words.starts_with("tabs disallowed") || words.starts_with("unexpected character") => {
            scanned("found character that cannot start any token")
        }
        _ if words.contains("did not find expected key") => parsed("did not find expected key"),
        _ if words.contains("did not find expected '-' indicator") => {
            parsed("did not find expected '-' indicator")
        }
        _ => match shared {
            Some(shared) => scanned(shared),
            None => ours.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn mistakes_are_told_as_go_tells_them() {
        for (body, why) in [
            (
                "a: b: c",
                "yaml: mapping values are not allowed in this context",
            ),
            ("a: 1\nb: *c\n", "yaml: unknown anchor 'c' referenced"),
            (
                "a: {b: \"x}\n",
                "yaml: line 2: found unexpected end of stream",
            ),
            ("a: {b: \"x}", "yaml: found unexpected end of stream"),
            (
                "a: 1\ndata\n  b: c\n",
                "yaml: line 3: could not find expected ':'",
            ),
            (
                "a: 1\nb:\n  k: - a\n",
                "yaml: line 3: block sequence entries are not allowed in this context",
            ),
            (
                "a: 1\nb: |x\n",
                "yaml: line 2: did not find expected comment or line break",
            ),
            ("a: {name: x]", "yaml: did not find expected ',' or '}'"),
            (
                "a: {name: *}",
                "yaml: did not find expected alphabetic or numeric character",
            ),
            (
                "{a: \"\\ud83d\\ude00\"}",
                "yaml: found invalid Unicode character escape code",
            ),
            (
                "{a: 1,\n b: \"\\\\\\uDC00\"}",
                "yaml: line 2: found invalid Unicode character escape code",
            ),
            (
                "{\"a\":",
                "yaml: line 1: did not find expected node content",
            ),
            (
                "{\"a\": 1,\n",
                "yaml: line 1: did not find expected node content",
            ),
            ("{\"a\": \"\\/x\"}", "yaml: found unknown escape character"),
            (
                "{\"a\": \"\\u12\"}",
                "yaml: did not find expected hexdecimal number",
            ),
            ("a: \u{1}", "yaml: control characters are not allowed"),
            ("a: .inf", "json: unsupported value: +Inf"),
            ("a: -.inf", "json: unsupported value: -Inf"),
            ("a: .nan", "json: unsupported value: NaN"),
        ] {
            let read = super::super::read(body.as_bytes()).map(|(value, _)| value);
            assert_eq!(
                read.map_err(|error| error.to_string()),
                Err(why.to_owned()),
                "{body}"
            );
        }
    }
}
