//! The errors of Go's JSON scanner for text that is not JSON.
//!
//! Used only after `serde_json` has refused a body, to give the error Go's message: it names the first invalid byte and what was expected
//! there.

/// The nesting limit: Go's scanner accepts 10,000 levels, but `serde_json`, which runs first, 127.
const MAX_LEVELS: usize = 127;

/// Returns Go's error, or `None` if the text is JSON after all.
pub(super) fn complaint(body: &[u8]) -> Option<String> {
    let mut scanner = Scanner {
        body,
        at: 0,
        levels: MAX_LEVELS,
    };
    match scanner.document() {
        Ok(()) => None,
        Err(None) => Some("unexpected end of JSON input".to_owned()),
        Err(Some(context)) => Some(format!(
            "invalid character {} {context}",
            quoted(body[scanner.at])
        )),
    }
}

/// Returns whether the text is exactly one number.
pub(super) fn is_number(text: &[u8]) -> bool {
    let mut scanner = Scanner {
        body: text,
        at: 0,
        levels: 0,
    };
    scanner.number().is_ok() && scanner.at == text.len()
}

/// The outcome of a scan: `Err(None)` if the text ended, `Err(Some(context))` if the byte at `at` is invalid there.
type Scan = Result<(), Option<&'static str>>;

struct Scanner<'a> {
    body: &'a [u8],
    at: usize,
    /// How many more levels a value may be nested.
    levels: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Result<u8, Option<&'static str>> {
        self.body.get(self.at).copied().ok_or(None)
    }

    fn space(&mut self) {
        while self
            .body
            .get(self.at)
            .is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
        {
            self.at += 1;
        }
    }

    fn document(&mut self) -> Scan {
        self.value()?;
        self.space();
        if self.at < self.body.len() {
            Err(Some("after top-level value"))
        } else {
            Ok(())
        }
    }

    fn value(&mut self) -> Scan {
        self.space();
        match self.peek()? {
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b'"' => self.string(),
            b't' => self.literal(
                b"true",
                [
                    "in literal true (expecting 'r')",
                    "in literal true (expecting 'u')",
                    "in literal true (expecting 'e')",
                    "",
                ],
            ),
            b'f' => self.literal(
                b"false",
                [
                    "in literal false (expecting 'a')",
                    "in literal false (expecting 'l')",
                    "in literal false (expecting 's')",
                    "in literal false (expecting 'e')",
                ],
            ),
            b'n' => self.literal(
                b"null",
                [
                    "in literal null (expecting 'u')",
                    "in literal null (expecting 'l')",
                    "in literal null (expecting 'l')",
                    "",
                ],
            ),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(Some("looking for beginning of value")),
        }
    }

    fn nested(&mut self, scan: fn(&mut Self) -> Scan) -> Scan {
        self.levels = self
            .levels
            .checked_sub(1)
            .ok_or(Some("exceeded max depth"))?;
        scan(self)?;
        self.levels += 1;
        Ok(())
    }

    fn object(&mut self) -> Scan {
        self.at += 1;
        self.space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.space();
            if self.peek()? != b'"' {
                return Err(Some("looking for beginning of object key string"));
            }
            self.string()?;
            self.space();
            if self.peek()? != b':' {
                return Err(Some("after object key"));
            }
            self.at += 1;
            self.value()?;
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(Some("after object key:value pair")),
            }
        }
    }

    fn array(&mut self) -> Scan {
        self.at += 1;
        self.space();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value()?;
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(Some("after array element")),
            }
        }
    }

    fn string(&mut self) -> Scan {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => {
                    self.at += 1;
                    match self.peek()? {
                        b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => self.at += 1,
                        b'u' => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek()?.is_ascii_hexdigit() {
                                    return Err(Some("in \\u hexadecimal character escape"));
                                }
                                self.at += 1;
                            }
                        }
                        _ => return Err(Some("in string escape code")),
                    }
                }
                0..=0x1f => return Err(Some("in string literal")),
                _ => self.at += 1,
            }
        }
    }

    fn literal(&mut self, word: &[u8], expecting: [&'static str; 4]) -> Scan {
        self.at += 1;
        for (&wanted, context) in word[1..].iter().zip(expecting) {
            if self.peek()? != wanted {
                return Err(Some(context));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn digits(&mut self, context: &'static str) -> Scan {
        if !self.peek()?.is_ascii_digit() {
            return Err(Some(context));
        }
        while self.body.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Scan {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.digits("in numeric literal")?;
        }
        if self.body.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits("after decimal point in numeric literal")?;
        }
        if matches!(self.body.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek()?, b'+' | b'-') {
                self.at += 1;
            }
            self.digits("in exponent of numeric literal")?;
        }
        Ok(())
    }
}

/// Returns a byte as Go quotes a character.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        0x20..=0x7e => format!("'{}'", byte as char),
        0x80.. if !(0xa1..).contains(&byte) || byte == 0xad => format!("'\\u00{byte:02x}'"),
        0x80.. => format!("'{}'", byte as char),
        other => format!("'\\x{other:02x}'"),
    }
}
