//! Parses JSONPaths.

use serde_json::{Number, Value};

use super::{JsonPath, JsonPathError, Slice, Step};

pub(super) struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    pub(super) fn new(text: &str) -> Reader {
        Reader {
            chars: text.chars().collect(),
            at: 0,
        }
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn starts_with(&self, text: &str) -> bool {
        let mut given = self.chars[self.at..].iter();
        text.chars().all(|wanted| given.next() == Some(&wanted))
    }

    fn text(&self, from: usize, to: usize) -> String {
        self.chars[from..to].iter().collect()
    }

    pub(super) fn steps(&mut self) -> Result<Vec<Step>, JsonPathError> {
        let mut steps = Vec::new();
        while let Some(next) = self.peek() {
            match next {
                '}' => break,
                _ if self.starts_with("[?(") => steps.push(self.filter()?),
                _ if self.starts_with("..") => {
                    if steps.last() == Some(&Step::Descend) {
                        return Err(JsonPathError);
                    }
                    self.at += 2;
                    steps.push(Step::Descend);
                    if self.peek().is_some_and(is_of_names) {
                        steps.push(self.field());
                    }
                }
                ' ' | '@' | '$' => self.at += 1,
                '[' => self.array(&mut steps)?,
                '"' | '\'' => steps.push(self.quoted(next)?),
                '.' => {
                    self.at += 1;
                    steps.push(self.field());
                }
                '+' | '-' => steps.push(self.number()?),
                digit if digit.is_numeric() => steps.push(self.number()?),
                letter if is_of_names(letter) => steps.push(self.identifier()?),
                _ => return Err(JsonPathError),
            }
        }
        Ok(steps)
    }

    /// Parses a name up to the character that ends it; a backslash escapes the next character.
    fn field(&mut self) -> Step {
        let start = self.at;
        while let Some(next) = self.peek().filter(|next| !ends_a_name(*next)) {
            self.at += if next == '\\' { 2 } else { 1 };
        }
        self.at = self.at.min(self.chars.len());
        match self.text(start, self.at).as_str() {
            "*" => Step::All,
            name => Step::Field(name.replace('\\', "")),
        }
    }

    /// Parses `true` or `false`. The keywords `range` and `end` are errors, because paths have no templates.
    fn identifier(&mut self) -> Result<Step, JsonPathError> {
        let start = self.at;
        while self.peek().is_some_and(|next| !ends_a_name(next)) {
            self.at += 1;
        }
        match self.text(start, self.at).as_str() {
            "true" => Ok(Step::Literal(true.into())),
            "false" => Ok(Step::Literal(false.into())),
            _ => Err(JsonPathError),
        }
    }

    fn number(&mut self) -> Result<Step, JsonPathError> {
        let start = self.at;
        self.at += 1;
        while self
            .peek()
            .is_some_and(|next| next == '.' || next.is_numeric())
        {
            self.at += 1;
        }
        let text = self.text(start, self.at);
        let read = match text.parse::<i64>() {
            Ok(whole) => whole.into(),
            Err(_) => {
                let float = text.parse().ok().and_then(Number::from_f64);
                Value::Number(float.ok_or(JsonPathError)?)
            }
        };
        Ok(Step::Literal(read))
    }

    fn quoted(&mut self, quote: char) -> Result<Step, JsonPathError> {
        let start = self.at + 1;
        self.at = start;
        loop {
            match self.peek().ok_or(JsonPathError)? {
                end if end == quote => break,
                '\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        let text = self.text(start, self.at);
        self.at += 1;
        Ok(Step::Literal(text.replace('\\', "").into()))
    }

    fn array(&mut self, steps: &mut Vec<Step>) -> Result<(), JsonPathError> {
        let start = self.at + 1;
        let length = self.chars[start..].iter().position(|next| *next == ']');
        let end = start + length.ok_or(JsonPathError)?;
        let inside = self.text(start, end);
        self.at = end + 1;
        if inside.contains(',') {
            let parts = inside.split(',').map(|part| {
                let part = part.trim_matches(' ');
                JsonPath::parse(&format!("[{part}]"))
            });
            steps.push(Step::Union(parts.collect::<Result<_, _>>()?));
            return Ok(());
        }
        let name = inside.strip_prefix('\'');
        if let Some(name) = name.and_then(|name| name.strip_suffix('\''))
            && !name.contains('\'')
        {
            steps.extend(JsonPath::parse(&format!(".{name}"))?.0);
            return Ok(());
        }
        steps.push(Step::Slice(slice(&inside)?));
        Ok(())
    }

    fn filter(&mut self) -> Result<Step, JsonPathError> {
        let start = self.at + "[?(".len();
        self.at = start;
        let (mut opened, mut closed) = (None, false);
        loop {
            let next = self.peek().ok_or(JsonPathError)?;
            match next {
                '"' | '\'' => match opened {
                    None => opened = Some(next),
                    Some(quote) => closed |= quote == next && self.chars[self.at - 1] != '\\',
                },
                ')' if opened.is_some() == closed => break,
                _ => {}
            }
            self.at += 1;
        }
        let condition = self.text(start, self.at);
        self.at += 1;
        if self.peek() != Some(']') {
            return Err(JsonPathError);
        }
        self.at += 1;
        let is_sign = |c: char| "!<>=".contains(c);
        let parts = condition.find(is_sign).and_then(|at| {
            let (left, rest) = condition.split_at(at);
            let end = rest.find(|c| !is_sign(c))?;
            let (operator, right) = rest.split_at(end);
            (!left.is_empty()).then_some((left, operator, right))
        });
        let (left, operator, right) = parts.unwrap_or((&condition, "exists", ""));
        Ok(Step::Filter {
            left: JsonPath::parse(left)?,
            operator: operator.to_owned(),
            right: JsonPath::parse(right)?,
        })
    }
}

fn is_of_names(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn ends_a_name(c: char) -> bool {
    matches!(
        c,
        ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}'
    )
}

fn slice(inside: &str) -> Result<Slice, JsonPathError> {
    if inside == "*" {
        return Ok(Slice::default());
    }
    let parts: Vec<&str> = inside.split(':').collect();
    if parts.len() > 3 {
        return Err(JsonPathError);
    }
    let part = |at: usize| match parts.get(at) {
        None | Some(&"") => Ok(None),
        Some(number) if number.starts_with('+') => Err(JsonPathError),
        Some(number) => number.parse::<i64>().map(Some).map_err(|_| JsonPathError),
    };
    Ok(Slice {
        from: part(0)?,
        to: part(1)?,
        step: part(2)?,
        single: parts.len() == 1,
    })
}
