//! Splits an expression into tokens. The grammar of the cel crate has run before and reported most errors, so few are found here.

use super::Problem;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    Int(i64),
    /// An integer that is valid only after a minus sign.
    LowestInt,
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// An operator or bracket.
    Mark(&'static str),
    End,
}

const MARKS: &[&str] = &[
    "&&", "||", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "!", "<", ">", "?", ":", ".", ",",
    "(", ")", "[", "]", "{", "}",
];

/// The tokens of an expression.
pub(super) struct Tokens {
    /// Each token with the number of characters before it.
    pub(super) all: Vec<(usize, Token)>,
    /// Errors in literals.
    pub(super) unread: Vec<Problem>,
    /// The expression for the grammar of the cel crate: literals that only cel-go accepts are replaced by others of the same length.
    pub(super) plain: String,
}

/// Splits an expression into tokens.
pub(super) fn tokens(source: &str) -> Result<Tokens, Problem> {
    let text: Vec<char> = source.chars().collect();
    let mut lexer = Lexer {
        plain: text.clone(),
        text,
        at: 0,
        unread: Vec::new(),
    };
    let mut all = Vec::new();
    loop {
        lexer.skip_space();
        let at = lexer.at;
        let token = lexer.next()?;
        let done = token == Token::End;
        all.push((at, token));
        if done {
            return Ok(Tokens {
                all,
                unread: lexer.unread,
                plain: lexer.plain.into_iter().collect(),
            });
        }
    }
}

struct Lexer {
    text: Vec<char>,
    /// The value of [`Tokens::plain`] so far.
    plain: Vec<char>,
    at: usize,
    unread: Vec<Problem>,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn wrong(&self, message: &str) -> Problem {
        Problem {
            at: self.at,
            message: message.to_owned(),
        }
    }

    fn skip_space(&mut self) {
        while let Some(next) = self.peek(0) {
            if next == '/' && self.peek(1) == Some('/') {
                while self.peek(0).is_some_and(|next| next != '\n') {
                    self.at += 1;
                }
            } else if next.is_whitespace() {
                self.at += 1;
            } else {
                return;
            }
        }
    }

    fn next(&mut self) -> Result<Token, Problem> {
        let Some(first) = self.peek(0) else {
            return Ok(Token::End);
        };
        // A string literal may start with letters (`r"..."`), so strings are tried before names.
        if let Some(text) = self.text_start() {
            return self.text(text);
        }
        let digit_after_dot =
            first == '.' && self.peek(1).is_some_and(|next| next.is_ascii_digit());
        if first.is_ascii_digit() || digit_after_dot {
            return self.number();
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let rest = self.text[self.at..].iter();
            let name: String = rest
                .take_while(|next| next.is_ascii_alphanumeric() || **next == '_')
                .collect();
            self.at += name.len();
            return Ok(Token::Name(name));
        }
        // The list has longer operators first, so that `<=` is not taken for `<`.
        for mark in MARKS {
            if mark
                .chars()
                .enumerate()
                .all(|(index, c)| self.peek(index) == Some(c))
            {
                self.at += mark.len();
                return Ok(Token::Mark(mark));
            }
        }
        Err(self.wrong(&format!(
            "Syntax error: token recognition error at: '{first}'"
        )))
    }

    fn number(&mut self) -> Result<Token, Problem> {
        if self.peek(0) == Some('0') && matches!(self.peek(1), Some('x' | 'X')) {
            let start = self.at;
            self.at += 2;
            let digits = self.take(|c| c.is_ascii_hexdigit());
            let number = self.integer(&digits, 16)?;
            // cel-go's grammar knows only `0x`; `0X` is left to the cel crate's grammar, which refuses it.
            if matches!(number, Token::Int(_) | Token::LowestInt) && self.text[start + 1] == 'x' {
                self.plain[start..self.at].fill('0');
            }
            return Ok(number);
        }
        let mut text = self.take(|c| c.is_ascii_digit());
        let mut is_double = false;
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(|next| next.is_ascii_digit()) {
            self.at += 1;
            text = format!("{text}.{}", self.take(|c| c.is_ascii_digit()));
            is_double = true;
        }
        if matches!(self.peek(0), Some('e' | 'E')) {
            self.at += 1;
            text.push('e');
            if let Some(sign @ ('+' | '-')) = self.peek(0) {
                self.at += 1;
                text.push(sign);
            }
            text.push_str(&self.take(|c| c.is_ascii_digit()));
            is_double = true;
        }
        if is_double {
            return match text.parse() {
                Ok(number) if f64::is_finite(number) => Ok(Token::Double(number)),
                _ => Err(self.wrong("invalid double literal")),
            };
        }
        self.integer(&text, 10)
    }

    fn integer(&mut self, digits: &str, radix: u32) -> Result<Token, Problem> {
        let number = u64::from_str_radix(digits, radix);
        if matches!(self.peek(0), Some('u' | 'U')) {
            self.at += 1;
            return number
                .map(Token::Uint)
                .map_err(|_| self.wrong("invalid uint literal"));
        }
        match number {
            Ok(number) if number == 1 << 63 => Ok(Token::LowestInt),
            Ok(number) => match i64::try_from(number) {
                Ok(number) => Ok(Token::Int(number)),
                Err(_) => Err(self.wrong("invalid int literal")),
            },
            Err(_) => Err(self.wrong("invalid int literal")),
        }
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let rest = self.text[self.at..].iter();
        let taken: String = rest.take_while(|c| wanted(**c)).collect();
        self.at += taken.chars().count();
        taken
    }

    /// Returns the number of prefix letters of a string literal that starts here; `None` if none starts.
    fn text_start(&self) -> Option<usize> {
        // There are at most two prefix letters: `r` and `b`.
        (0..3)
            .find(|ahead| matches!(self.peek(*ahead), Some('"' | '\'')))
            .filter(|ahead| {
                (0..*ahead).all(|index| matches!(self.peek(index), Some('r' | 'R' | 'b' | 'B')))
            })
    }

    fn text(&mut self, letters: usize) -> Result<Token, Problem> {
        let start = self.at;
        let prefix: String = self.text[start..start + letters].iter().collect();
        let (raw, bytes) = (prefix.contains(['r', 'R']), prefix.contains(['b', 'B']));
        self.at += letters;
        let quote = self.text[self.at];
        let is_long = self.peek(1) == Some(quote) && self.peek(2) == Some(quote);
        let length = if is_long { 3 } else { 1 };
        self.at += length;
        let first = self.at;
        let mut out = Vec::new();
        let mut wrong = None;
        loop {
            let Some(next) = self.peek(0) else {
                return Err(self.wrong("unterminated string literal"));
            };
            if (0..length).all(|ahead| self.peek(ahead) == Some(quote)) {
                break;
            }
            self.at += 1;
            match next {
                '\\' if !raw => wrong = wrong.or(self.escape(bytes, &mut out)?),
                // Line ends are normalised.
                '\r' if self.peek(0) == Some('\n') => {}
                '\r' => push('\n', &mut out),
                next => push(next, &mut out),
            }
        }
        // The cel crate's grammar would misread some escapes and quotes, and it does not need the characters. Line
        // ends remain, so that positions stay right.
        if self.text[first..self.at]
            .iter()
            .any(|c| matches!(c, '\\' | '\'' | '"'))
        {
            let inside = self.plain[first..self.at].iter_mut();
            inside
                .filter(|c| !matches!(c, '\n' | '\r'))
                .for_each(|c| *c = 'a');
        }
        self.at += length;
        // cel-go finds this error after its grammar has run, so parsing goes on and may find more.
        if let Some(why) = wrong {
            let message = why.to_owned();
            self.unread.push(Problem { at: start, message });
            return Ok(Token::Text(String::new()));
        }
        if bytes {
            return Ok(Token::Bytes(out));
        }
        match String::from_utf8(out) {
            Ok(text) => Ok(Token::Text(text)),
            Err(_) => Err(self.wrong("invalid string literal")),
        }
    }

    /// Parses an escape after a backslash. An unknown escape is an error; for one that stands for no character, the reason is returned.
    fn escape(&mut self, bytes: bool, out: &mut Vec<u8>) -> Result<Option<&'static str>, Problem> {
        let wrong = self.wrong("invalid escape in a literal");
        let Some(kind) = self.peek(0) else {
            return Err(wrong);
        };
        self.at += 1;
        let (digits, radix) = match kind {
            'a' => return done(7, out),
            'b' => return done(8, out),
            'f' => return done(12, out),
            'n' => return done(10, out),
            'r' => return done(13, out),
            't' => return done(9, out),
            'v' => return done(11, out),
            '\\' | '\'' | '"' | '`' | '?' => return done(kind as u8, out),
            'x' | 'X' => (2, 16),
            'u' => (4, 16),
            'U' => (8, 16),
            '0'..='3' => {
                // An octal escape includes its first digit, which was read already.
                self.at -= 1;
                (3, 8)
            }
            _ => return Err(wrong),
        };
        let end = self.at + digits;
        let text: Option<String> = self
            .text
            .get(self.at..end)
            .map(|text| text.iter().collect());
        let text = text
            .filter(|text| text.chars().all(|digit| digit.is_digit(radix)))
            .ok_or_else(|| wrong.clone())?;
        self.at = end;
        let code = u32::from_str_radix(&text, radix).map_err(|_| wrong)?;
        // In bytes an escape stands for one byte, so `\u` and `\U` are not allowed.
        if bytes {
            return match u8::try_from(code) {
                Ok(byte) if matches!(digits, 2 | 3) => done(byte, out),
                _ => Ok(Some("unable to unescape string")),
            };
        }
        match char::from_u32(code) {
            Some(c) => push(c, out),
            None => return Ok(Some("invalid unicode code point")),
        }
        Ok(None)
    }
}

fn done(byte: u8, out: &mut Vec<u8>) -> Result<Option<&'static str>, Problem> {
    out.push(byte);
    Ok(None)
}

fn push(c: char, out: &mut Vec<u8>) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
