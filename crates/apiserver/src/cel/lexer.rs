//! Splits an expression into tokens. The text has been accepted by the grammar of the cel crate before, so what is malformed here is rare.

use super::Problem;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    Int(i64),
    /// An integer that is only valid with a minus before it.
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

/// The tokens with the number of characters before each.
pub(super) fn tokens(source: &str) -> Result<Vec<(usize, Token)>, Problem> {
    let mut lexer = Lexer {
        text: source.chars().collect(),
        at: 0,
    };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_space();
        let at = lexer.at;
        let token = lexer.next()?;
        let done = token == Token::End;
        tokens.push((at, token));
        if done {
            return Ok(tokens);
        }
    }
}

struct Lexer {
    text: Vec<char>,
    at: usize,
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
            self.at += 2;
            let digits = self.take(|c| c.is_ascii_hexdigit());
            return self.integer(&digits, 16);
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
                Ok(number) => Ok(Token::Double(number)),
                Err(_) => Err(self.wrong("invalid double literal")),
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

    /// How many letters stand before the quote of a string literal here.
    fn text_start(&self) -> Option<usize> {
        (0..3)
            .find(|ahead| matches!(self.peek(*ahead), Some('"' | '\'')))
            .filter(|ahead| {
                (0..*ahead).all(|index| matches!(self.peek(index), Some('r' | 'R' | 'b' | 'B')))
            })
    }

    fn text(&mut self, letters: usize) -> Result<Token, Problem> {
        let prefix: String = self.text[self.at..self.at + letters].iter().collect();
        let (raw, bytes) = (prefix.contains(['r', 'R']), prefix.contains(['b', 'B']));
        self.at += letters;
        let quote = self.text[self.at];
        let is_long = self.peek(1) == Some(quote) && self.peek(2) == Some(quote);
        let length = if is_long { 3 } else { 1 };
        self.at += length;
        let mut out = Vec::new();
        loop {
            let Some(next) = self.peek(0) else {
                return Err(self.wrong("unterminated string literal"));
            };
            if (0..length).all(|ahead| self.peek(ahead) == Some(quote)) {
                self.at += length;
                break;
            }
            self.at += 1;
            if next == '\\' && !raw {
                self.escape(bytes, &mut out)?;
            } else {
                push(next, &mut out);
            }
        }
        if bytes {
            return Ok(Token::Bytes(out));
        }
        match String::from_utf8(out) {
            Ok(text) => Ok(Token::Text(text)),
            Err(_) => Err(self.wrong("invalid string literal")),
        }
    }

    fn escape(&mut self, bytes: bool, out: &mut Vec<u8>) -> Result<(), Problem> {
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
                self.at -= 1;
                (3, 8)
            }
            _ => return Err(wrong),
        };
        let end = (self.at + digits).min(self.text.len());
        let text: String = self.text[self.at..end].iter().collect();
        self.at = end;
        let code = u32::from_str_radix(&text, radix).map_err(|_| wrong.clone())?;
        if bytes {
            return done(u8::try_from(code).map_err(|_| wrong)?, out);
        }
        push(char::from_u32(code).ok_or(wrong)?, out);
        Ok(())
    }
}

fn done(byte: u8, out: &mut Vec<u8>) -> Result<(), Problem> {
    out.push(byte);
    Ok(())
}

fn push(c: char, out: &mut Vec<u8>) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
