//! Parses the text form of label selectors: a lexer, and a recursive descent parser with apimachinery's error messages.

use super::{Operator, Requirement, RequirementFault, SelectorError, requirement};
use crate::names;

/// Returns the requirements of a selector's text in their order.
pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let tokens = tokens(text);
    Parser {
        tokens: &tokens,
        position: 0,
    }
    .selector()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Error,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Word,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

fn keyword(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::Greater,
        "in" => Token::In,
        "<" => Token::Less,
        "!=" => Token::NotEquals,
        "notin" => Token::NotIn,
        "(" => Token::Open,
        _ => return None,
    })
}

fn is_symbol(c: char) -> bool {
    "=!(),><".contains(c)
}

/// Splits a selector into tokens; the last one is [`Token::End`].
fn tokens(text: &str) -> Vec<(Token, &str)> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t', '\r', '\n']);
    while let Some(first) = rest.chars().next() {
        let token = if is_symbol(first) {
            symbol(rest)
        } else {
            word(rest)
        };
        rest = rest[token.1.len()..].trim_start_matches([' ', '\t', '\r', '\n']);
        tokens.push(token);
    }
    tokens.push((Token::End, ""));
    tokens
}

/// Returns the longest run of symbols that is a keyword, such that every prefix after the first keyword is a keyword as well.
fn symbol(text: &str) -> (Token, &str) {
    let run = text.find(|c| !is_symbol(c)).unwrap_or(text.len());
    let mut found = None;
    for length in 1..=run {
        match keyword(&text[..length]) {
            Some(token) => found = Some((token, &text[..length])),
            None if found.is_some() => break,
            None => {}
        }
    }
    found.unwrap_or((Token::Error, &text[..run]))
}

fn word(text: &str) -> (Token, &str) {
    let end = text
        .find(|c| is_symbol(c) || " \t\r\n".contains(c))
        .unwrap_or(text.len());
    let word = &text[..end];
    (keyword(word).unwrap_or(Token::Word), word)
}

fn expected(found: &str, expected: &'static str) -> SelectorError {
    SelectorError::Token {
        found: found.to_owned(),
        expected,
    }
}

/// A recursive descent parser.
struct Parser<'t> {
    tokens: &'t [(Token, &'t str)],
    position: usize,
}

impl<'t> Parser<'t> {
    /// Returns the current token where keys and values are expected: `in` and `notin` are words there.
    fn peek(&self) -> (Token, &'t str) {
        let (token, literal) = self
            .tokens
            .get(self.position)
            .copied()
            .unwrap_or((Token::End, ""));
        if matches!(token, Token::In | Token::NotIn) {
            (Token::Word, literal)
        } else {
            (token, literal)
        }
    }

    fn next(&mut self) -> (Token, &'t str) {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (Token::Word | Token::Not, _) => {
                    let requirement = self
                        .requirement()
                        .map_err(|why| SelectorError::Requirement(Box::new(why)))?;
                    requirements.push(requirement);
                    match self.next() {
                        (Token::End, _) => return Ok(requirements),
                        (Token::Comma, _) => {
                            let (token, literal) = self.peek();
                            if !matches!(token, Token::Word | Token::Not) {
                                return Err(expected(literal, "identifier after ','"));
                            }
                        }
                        (_, literal) => {
                            return Err(expected(literal, "',' or 'end of string'"));
                        }
                    }
                }
                (Token::End, _) => return Ok(requirements),
                (_, literal) => {
                    return Err(expected(literal, "!, identifier, or 'end of string'"));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let (mut token, mut key) = self.next();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.next();
        }
        if token != Token::Word {
            return Err(expected(key, "identifier"));
        }
        if let Some(fault) = RequirementFault::text("<nil>", key, names::qualified_name(key)) {
            return Err(SelectorError::Invalid(vec![fault]));
        }
        if negated {
            return requirement(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return requirement(key, Operator::Exists, Vec::new());
        }
        // Not by `peek`, because `in` and `notin` are operators here.
        let (token, literal) = self
            .tokens
            .get(self.position)
            .copied()
            .unwrap_or((Token::End, ""));
        self.position += 1;
        let operator = match token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => {
                return Err(expected(literal, "in, notin, =, ==, !=, gt, lt"));
            }
        };
        let values = if matches!(operator, Operator::In | Operator::NotIn) {
            self.values()?
        } else {
            vec![self.value()?]
        };
        requirement(key, operator, values)
    }

    fn values(&mut self) -> Result<Vec<String>, SelectorError> {
        let (token, literal) = self.next();
        if token != Token::Open {
            return Err(SelectorError::NoList(literal.to_owned()));
        }
        match self.peek() {
            (Token::Word | Token::Comma, first) => {
                let values = self.list()?;
                if self.next().0 != Token::Close {
                    // apimachinery's message shows the first token of the list, not the one that was found.
                    return Err(expected(first, "')'"));
                }
                Ok(values)
            }
            // As in apimachinery, `in ()` has one value, which is empty.
            (Token::Close, _) => {
                self.next();
                Ok(vec![String::new()])
            }
            (_, literal) => Err(expected(literal, "',', ')' or identifier")),
        }
    }

    fn list(&mut self) -> Result<Vec<String>, SelectorError> {
        let mut values: Vec<String> = Vec::new();
        loop {
            match self.next() {
                (Token::Word, literal) => {
                    values.push(literal.to_owned());
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => return Ok(values),
                        (_, literal) => {
                            return Err(expected(literal, "',' or ')'"));
                        }
                    }
                }
                (Token::Comma, _) => {
                    let after = self.peek().0;
                    // `in (,a)` and `in (a,)` contain an empty value.
                    if values.is_empty() || matches!(after, Token::Close | Token::Comma) {
                        values.push(String::new());
                    }
                    if after == Token::Close {
                        return Ok(values);
                    }
                }
                (_, literal) => {
                    return Err(expected(literal, "',', or identifier"));
                }
            }
        }
    }

    fn value(&mut self) -> Result<String, SelectorError> {
        // `key=` compares with the empty text.
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            (Token::Word, literal) => Ok(literal.to_owned()),
            (_, literal) => Err(expected(literal, "identifier")),
        }
    }
}
