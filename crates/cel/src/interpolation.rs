//! String formatting: `'%s has %d'.format([name, count])` (cel-go: ext/formatting.go, version 2 of the string library).
//!
//! [`filled`] formats at run time. Where format and arguments are literals, [`check()`] finds errors before.

mod check;

use std::fmt;

use kube_cel::cel::Value;
use mullion_kube_text::golang::{integer, quote};

pub(super) use self::check::check;
use super::{
    conversions::{as_text, special},
    error::EvalError,
    keyed::plain,
    maps::as_map,
    values::{TypeValue, VisitLimit, type_name},
};

/// The largest precision that is formatted; a larger one is refused.
const MOST_PLACES: usize = 999;
/// The number of decimal places where the clause names none (cel-go's default).
const PLACES: usize = 6;

/// The clause of a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clause {
    Text,
    Decimal,
    /// With this many decimal places.
    Fixed(usize),
    Scientific,
    Binary,
    Hexadecimal {
        capitals: bool,
    },
    Octal,
}

impl Clause {
    /// Returns the error for a value of a type that the clause cannot format.
    fn refusal(self, kind: &str) -> FormatError {
        FormatError::Type {
            rule: self.rule(),
            kind: kind.to_owned(),
        }
    }

    /// Returns which values the clause can format.
    fn rule(self) -> &'static str {
        match self {
            Clause::Text => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
            }
            Clause::Decimal => "decimal clause can only be used on integers",
            Clause::Fixed(_) => "fixed-point clause can only be used on doubles",
            Clause::Scientific => "scientific clause can only be used on doubles",
            Clause::Binary => "only integers and bools can be formatted as binary",
            Clause::Hexadecimal { .. } => {
                "only integers, byte buffers, and strings can be formatted as hex"
            }
            Clause::Octal => "octal clause can only be used on integers",
        }
    }
}

/// What is wrong with a clause of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClauseError {
    /// The format ends with a percent sign.
    Absent,
    /// The format ends within a precision.
    Endless,
    /// These digits of a precision are not a number.
    Precision(String),
    /// No clause has this letter.
    Unknown(char),
}

/// The reason why a value cannot be formatted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// The clause formats values of other types.
    Type {
        /// Which values the clause formats.
        rule: &'static str,
        /// The type of the value.
        kind: String,
    },
    /// The clause asks for too many decimal places.
    TooPrecise,
    /// Bytes are not text.
    NotUtf8,
    /// A key of a map has this type.
    Key(String),
    /// A part of a list or map has this type.
    Part(String),
}

impl fmt::Display for ClauseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == ClauseError::Absent {
            return f.write_str("unexpected end of string");
        }
        f.write_str("could not parse formatting clause: ")?;
        match self {
            ClauseError::Absent => Ok(()),
            ClauseError::Endless => f.write_str(
                "error while parsing precision: could not find end of precision specifier",
            ),
            ClauseError::Precision(digits) => write!(
                f,
                "error while parsing precision: error while converting precision to integer: {}",
                integer::fault("Atoi", digits)
            ),
            ClauseError::Unknown(letter) => {
                write!(f, "unrecognized formatting clause \"{letter}\"")
            }
        }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::Type { rule, kind } => write!(f, "{rule}, was given {kind}"),
            FormatError::TooPrecise => f.write_str("the precision is too large"),
            FormatError::NotUtf8 => {
                let why = quote(&EvalError::NotUtf8.to_string());
                write!(f, "could not convert argument {why} to string")
            }
            FormatError::Key(kind) => {
                write!(f, "no formatting function for map key of type {kind}")
            }
            FormatError::Part(kind) => write!(f, "no formatting function for {kind}"),
        }
    }
}

impl std::error::Error for ClauseError {}

impl std::error::Error for FormatError {}

/// Formats a text with values.
///
/// # Errors
/// An invalid format, or a value that its clause cannot format.
pub(super) fn filled(
    format: &str,
    values: &[Value],
    looks: &mut VisitLimit,
) -> Result<String, EvalError> {
    let mut filled = String::new();
    for part in Parts::of(format) {
        match part {
            Part::Text(text) => filled.push_str(text),
            Part::Clause { index, rest } => {
                let value = values.get(index).ok_or(EvalError::MissingArgument(index))?;
                let clause = clause(rest)?;
                // Charged before the text is built: a shared part is written once for each of its occurrences.
                look_at(value, looks)?;
                let text = written(clause, plain(value));
                filled.push_str(&text.map_err(|why| EvalError::Format(Box::new(why)))?);
            }
        }
    }
    Ok(filled)
}

/// Charges for all of a value, including every occurrence of shared parts.
fn look_at(value: &Value, looks: &mut VisitLimit) -> Result<(), EvalError> {
    looks.take(1)?;
    match plain(value) {
        Value::String(text) => looks.take(text.len() as u64),
        Value::Bytes(bytes) => looks.take(bytes.len() as u64),
        Value::List(items) => items.iter().try_for_each(|item| look_at(item, looks)),
        other => match as_map(other) {
            Some(map) => map.iter().try_for_each(|(key, value)| {
                look_at(&key, looks)?;
                look_at(value, looks)
            }),
            None => Ok(()),
        },
    }
}

/// A part of a format.
enum Part<'f> {
    Text(&'f str),
    /// A placeholder for the value at an index; its clause is at the start of `rest`, after the percent sign.
    Clause {
        index: usize,
        rest: &'f str,
    },
}

/// An iterator over the parts of a format. An invalid clause ends it.
struct Parts<'f> {
    rest: &'f str,
    index: usize,
}

impl<'f> Parts<'f> {
    fn of(format: &'f str) -> Self {
        Parts {
            rest: format,
            index: 0,
        }
    }
}

impl<'f> Iterator for Parts<'f> {
    type Item = Part<'f>;

    fn next(&mut self) -> Option<Part<'f>> {
        if self.rest.is_empty() {
            return None;
        }
        if self.rest.starts_with("%%") {
            let text = &self.rest[..1];
            self.rest = &self.rest[2..];
            return Some(Part::Text(text));
        }
        if let Some(rest) = self.rest.strip_prefix('%') {
            let index = self.index;
            self.index += 1;
            // A placeholder ends after the letter that follows the precision; [`clause`] parses what is between.
            let precision = rest.strip_prefix('.').map_or(rest, |rest| {
                rest.trim_start_matches(|c: char| c.is_ascii_digit())
            });
            let mut after = precision.chars();
            after.next();
            self.rest = after.as_str();
            return Some(Part::Clause { index, rest });
        }
        let end = self.rest.find('%').unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(Part::Text(text))
    }
}

/// Parses a clause.
fn clause(rest: &str) -> Result<Clause, ClauseError> {
    if rest.is_empty() {
        return Err(ClauseError::Absent);
    }
    let (places, letter) = match rest.strip_prefix('.') {
        None => (PLACES, rest),
        Some(rest) => {
            let letter = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            if letter.is_empty() {
                return Err(ClauseError::Endless);
            }
            let digits = &rest[..rest.len() - letter.len()];
            let places: Option<i64> = digits.parse().ok();
            let places = places.ok_or_else(|| ClauseError::Precision(digits.to_owned()))?;
            (usize::try_from(places).unwrap_or(usize::MAX), letter)
        }
    };
    // Go reads a single byte here.
    let letter = letter.bytes().next().map_or('%', char::from);
    Ok(match letter {
        's' => Clause::Text,
        'd' => Clause::Decimal,
        'f' => Clause::Fixed(places),
        // The precision makes no difference here.
        'e' => Clause::Scientific,
        'b' => Clause::Binary,
        'x' | 'X' => Clause::Hexadecimal {
            capitals: letter == 'X',
        },
        'o' => Clause::Octal,
        other => return Err(ClauseError::Unknown(other)),
    })
}

/// Formats a value by a clause.
fn written(clause: Clause, value: &Value) -> Result<String, FormatError> {
    let refused = || Err(clause.refusal(type_name(value)));
    Ok(match (clause, value) {
        (Clause::Text, value) => return as_whole(value).unwrap_or_else(refused),
        (Clause::Decimal, Value::Int(number)) => number.to_string(),
        (Clause::Decimal, Value::UInt(number)) => number.to_string(),
        (Clause::Fixed(_) | Clause::Scientific, value) => {
            let number = match value {
                Value::Float(number) => *number,
                // NaN and the infinities may also be given as texts.
                Value::String(text)
                    if matches!(text.as_str(), "NaN" | "Infinity" | "-Infinity") =>
                {
                    text.parse().unwrap_or(f64::NAN)
                }
                _ => return refused(),
            };
            match clause {
                Clause::Fixed(places) if places > MOST_PLACES => {
                    return Err(FormatError::TooPrecise);
                }
                Clause::Fixed(places) => fixed(number, places),
                _ => scientific(number),
            }
        }
        (Clause::Binary, Value::Bool(truth)) => u8::from(*truth).to_string(),
        (Clause::Binary, Value::Int(number)) => {
            format!("{}{:b}", sign(*number), number.unsigned_abs())
        }
        (Clause::Binary, Value::UInt(number)) => format!("{number:b}"),
        (Clause::Octal, Value::Int(number)) => {
            format!("{}{:o}", sign(*number), number.unsigned_abs())
        }
        (Clause::Octal, Value::UInt(number)) => format!("{number:o}"),
        (Clause::Hexadecimal { capitals }, value) => {
            let text = match value {
                Value::Int(number) => format!("{}{:x}", sign(*number), number.unsigned_abs()),
                Value::UInt(number) => format!("{number:x}"),
                Value::String(text) => hexadecimal(text.as_bytes()),
                Value::Bytes(bytes) => hexadecimal(bytes),
                _ => return refused(),
            };
            if capitals { text.to_uppercase() } else { text }
        }
        _ => return refused(),
    })
}

fn sign(number: i64) -> &'static str {
    if number < 0 { "-" } else { "" }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats a number like `12,345.678000`, as x/text does for English.
fn fixed(number: f64, places: usize) -> String {
    if let Some(word) = word(number) {
        return word.to_owned();
    }
    let text = format!("{number:.places$}");
    let end = text.find('.').unwrap_or(text.len());
    let (whole, fraction) = text.split_at(end);
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", whole),
    };
    let mut grouped = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

/// Formats a mantissa, times ten, and a superscript exponent of at least two digits, as x/text does for English.
fn scientific(number: f64) -> String {
    if let Some(word) = word(number) {
        return word.to_owned();
    }
    let text = format!("{number:.PLACES$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ("\u{207b}", digits),
        None => ("", exponent),
    };
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let digits = format!("{digits:0>2}");
    let raised = digits
        .bytes()
        .filter_map(|digit| RAISED.get(usize::from(digit.wrapping_sub(b'0'))));
    let raised: String = raised.collect();
    format!("{mantissa}\u{202f}×\u{202f}10{sign}{raised}")
}

/// Returns x/text's text for infinities and NaN.
fn word(number: f64) -> Option<&'static str> {
    special(number).map(|word| match word {
        "+Inf" => "∞",
        "-Inf" => "-∞",
        other => other,
    })
}

/// Converts a value to text; `None` if its type cannot be formatted.
fn as_whole(value: &Value) -> Option<Result<String, FormatError>> {
    Some(match value {
        Value::Null => Ok("null".to_owned()),
        Value::List(items) => listed(items),
        other if let Some(map) = as_map(other) => {
            let entries = map.iter();
            let entries =
                entries.map(|(key, value)| Ok((key_within(&key)?, within(plain(value))?)));
            let entries: Result<Vec<(String, String)>, FormatError> = entries.collect();
            entries.map(|mut entries| {
                // Maps have no order, but the same map must always give the same text.
                entries.sort();
                let entries: Vec<String> = entries
                    .into_iter()
                    .map(|(key, value)| format!("{key}:{value}"))
                    .collect();
                format!("{{{}}}", entries.join(", "))
            })
        }
        Value::Opaque(opaque) => {
            let TypeValue(name) = opaque.downcast_ref()?;
            Ok(name.clone())
        }
        other => as_text(other)?.map_err(|_| FormatError::NotUtf8),
    })
}

fn listed(items: &[Value]) -> Result<String, FormatError> {
    let items: Result<Vec<String>, FormatError> =
        items.iter().map(|item| within(plain(item))).collect();
    Ok(format!("[{}]", items?.join(", ")))
}

fn key_within(key: &Value) -> Result<String, FormatError> {
    match key {
        Value::String(text) => Ok(quote(text)),
        Value::Bool(_) | Value::Int(_) | Value::UInt(_) => Ok(as_text(key)
            .and_then(Result::ok)
            .expect("whole numbers and truths are texts too")),
        other => Err(FormatError::Key(type_name(other).to_owned())),
    }
}

/// Formats a value inside a list or map as a CEL literal.
fn within(value: &Value) -> Result<String, FormatError> {
    if let Value::Float(number) = value {
        return Ok(match special(*number) {
            Some(word) => quote(word),
            None => format!("{number:.PLACES$}"),
        });
    }
    let Some(text) = as_whole(value) else {
        return Err(FormatError::Part(type_name(value).to_owned()));
    };
    let text = text?;
    Ok(match value {
        Value::String(_) => quote(&text),
        Value::Bytes(_) => format!("b{}", quote(&text)),
        Value::Timestamp(_) => format!("timestamp({})", quote(&text)),
        Value::Duration(_) => format!("duration({})", quote(&text)),
        _ => text,
    })
}
