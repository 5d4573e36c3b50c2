//! Quotes strings like Go's `strconv.Quote`.

/// Returns whether Go's `unicode.IsPrint` holds for a character.
pub fn is_printable(c: char) -> bool {
    // `escape_debug` escapes quotes and backslashes although they are printable. The ASCII space is
    // the only space that Go prints.
    c == ' '
        || c == '\''
        || c == '"'
        || c == '\\'
        || (!c.is_whitespace() && c.escape_debug().next() != Some('\\'))
}

/// Quotes a string as Go's `%q` does.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if is_printable(c) => quoted.push(c),
            c if c.is_ascii() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if u32::from(c) < 0x10000 => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// Formats a list of strings as Go's `%q` does: `["a" "b"]`.
pub fn quote_all(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quote(text)).collect();
    format!("[{}]", quoted.join(" "))
}
