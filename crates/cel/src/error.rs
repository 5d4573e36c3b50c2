//! The errors of functions and operators, with the messages of cel-go and of kube-apiserver's libraries.

use std::fmt;

use mullion_kube_text::{
    golang::{integer, regexp::PatternError, url::UrlError, zone::ZoneError},
    quantity::QuantityError,
};

use super::{
    budget::Failure,
    interpolation::{ClauseError, FormatError},
};

/// The reason why a function or an operator has no result for its operands. Every step of an evaluation returns one or a value, so the large
/// variants are boxed.
#[derive(Clone, Debug, PartialEq)]
pub enum EvalError {
    /// No overload takes operands of these types; cel-go names the function in some cases.
    NoOverload(Option<String>),
    /// No variable has this name.
    NoAttribute(String),
    /// A field could not be evaluated, for this reason.
    Broken(String),
    /// A result is not an `int`.
    IntOverflow,
    /// A result is not a `uint`.
    UintOverflow,
    /// A time is outside of the years 1 to 9999.
    TimestampOverflow,
    /// A duration has more nanoseconds than an `int`.
    DurationOverflow,
    /// A number is divided by zero.
    DivisionByZero,
    /// The remainder of a division by zero.
    ModulusByZero,
    /// NaN has no order.
    NanOrder,
    /// A string is not the text of a value of this type.
    Conversion(&'static str),
    /// Bytes are not text.
    NotUtf8,
    /// A quantity is not a whole number, or too large.
    NotAnInteger,
    /// A map has no such key.
    NoKey(String),
    /// A macro makes two entries with this key.
    DuplicateKey(String),
    /// Go cannot compare values of this type, so they can be neither keys nor items of a set.
    Unhashable(String),
    /// A value of this Go type cannot be an index.
    Qualifier(String),
    /// A value of this type cannot be the index of a list.
    IndexType(String),
    /// This number is not the index of a list.
    IndexValue(String),
    /// A list has no such index.
    OutOfBounds(String),
    /// A text has no such index.
    OutOfRange(i64),
    /// The part of a text would end before its start.
    Substring(i64, i64),
    /// A list has no part with this start and end.
    Slice(Box<(i64, i64, SliceError)>),
    /// A list cannot be flattened by a negative number of levels.
    NegativeLevel,
    /// Values of the items' type have no order.
    Incomparable,
    /// The items to sort have several types.
    MixedTypes,
    /// This function has no result for an empty list.
    EmptyList(String),
    /// An item to join is not a text.
    Join(String),
    /// A macro goes over a value of this Go type.
    NotIterable(String),
    /// A macro with two variables goes over a value of this Go type.
    NotARange(String),
    /// This value is not an optional.
    NotOptional(String),
    /// The first, an optional part of a list, map or object, is not initialized from an optional, but from the second.
    Initializer(Box<(String, String)>),
    /// An empty optional has no value.
    NoValue,
    /// A format asks for an argument that is not there.
    MissingArgument(usize),
    /// A format has an invalid clause.
    Clause(ClauseError),
    /// A value cannot be formatted.
    Format(Box<FormatError>),
    /// A pattern of `matches` is invalid.
    Pattern(Box<PatternError>),
    /// A pattern of `find` or `findAll` is invalid.
    FindPattern(Box<PatternError>),
    /// There is no such time zone.
    Zone(ZoneError),
    /// The hours or minutes of an offset from UTC are not a number.
    Offset(String),
    /// A text is not a quantity.
    Quantity(QuantityError),
    /// A text is not a semantic version, for the reason that Go's library gives.
    Version(String),
    /// A version that is not written out has a suffix.
    ShortVersion,
    /// A text is not a URL.
    Url(Box<UrlError>),
    /// A function would look at too many values.
    TooLong,
    /// A function of the host program refuses its arguments.
    Host(&'static str),
    /// A function of the kube-cel crate, which knows its errors as texts only, refuses its arguments.
    Library(String),
}

/// The reason why a list has no such part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceError {
    /// The list has only so many items.
    Length(usize),
    /// The part would end before its start.
    Order,
    /// An index is negative.
    Negative,
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EvalError::NoOverload(None) => "no such overload",
            EvalError::NoOverload(Some(call)) => return write!(f, "no such overload: {call}"),
            EvalError::NoAttribute(name) => return write!(f, "no such attribute(s): {name}"),
            EvalError::Broken(why) | EvalError::Version(why) | EvalError::Library(why) => why,
            EvalError::IntOverflow => "integer overflow",
            EvalError::UintOverflow => "unsigned integer overflow",
            EvalError::TimestampOverflow => "timestamp overflow",
            EvalError::DurationOverflow => "duration overflow",
            EvalError::DivisionByZero => "division by zero",
            EvalError::ModulusByZero => "modulus by zero",
            EvalError::NanOrder => "NaN values cannot be ordered",
            EvalError::Conversion(kind) => {
                return write!(f, "type conversion error from 'string' to '{kind}'");
            }
            EvalError::NotUtf8 => "invalid UTF-8 in bytes, cannot convert to string",
            EvalError::NotAnInteger => "cannot convert value to integer",
            EvalError::NoKey(key) => return write!(f, "no such key: {key}"),
            EvalError::DuplicateKey(key) => {
                return write!(f, "insert failed: key {key} already exists");
            }
            EvalError::Unhashable(kind) => {
                return write!(
                    f,
                    "internal error: runtime error: hash of unhashable type {kind}"
                );
            }
            EvalError::Qualifier(kind) => return write!(f, "invalid qualifier type: {kind}"),
            EvalError::IndexType(kind) => {
                return write!(f, "unsupported index type '{kind}' in list");
            }
            EvalError::IndexValue(at) => return write!(f, "unsupported index value {at} in list"),
            EvalError::OutOfBounds(at) => return write!(f, "index out of bounds: {at}"),
            EvalError::OutOfRange(at) => return write!(f, "index out of range: {at}"),
            EvalError::Substring(from, to) => {
                return write!(f, "invalid substring range. start: {from}, end: {to}");
            }
            EvalError::Slice(part) => {
                let (from, to, why) = **part;
                return write!(f, "cannot slice({from}, {to}), {why}");
            }
            EvalError::NegativeLevel => "level must be non-negative",
            EvalError::Incomparable => "list elements must be comparable",
            EvalError::MixedTypes => "list elements must have the same type",
            EvalError::EmptyList(function) => {
                return write!(f, "{function} called on empty list");
            }
            EvalError::Join(value) => return write!(f, "join: invalid input: {value}"),
            EvalError::NotIterable(kind) => {
                return write!(f, "got '{kind}', expected iterable type");
            }
            EvalError::NotARange(kind) => {
                return write!(f, "unsupported comprehension range type: {kind}");
            }
            EvalError::NotOptional(value) => return write!(f, "value {value} is not optional"),
            EvalError::Initializer(parts) => {
                let (place, value) = &**parts;
                return write!(
                    f,
                    "cannot initialize optional {place} from non-optional value {value}"
                );
            }
            EvalError::NoValue => "optional.none() dereference",
            EvalError::MissingArgument(index) => return write!(f, "index {index} out of range"),
            EvalError::Clause(why) => return write!(f, "{why}"),
            EvalError::Format(why) => return write!(f, "error during formatting: {why}"),
            EvalError::Pattern(why) => return write!(f, "{why}"),
            EvalError::FindPattern(why) => return write!(f, "Illegal regex: {why}"),
            EvalError::Zone(why) => return write!(f, "{why}"),
            EvalError::Offset(text) => return f.write_str(&integer::fault("Atoi", text)),
            EvalError::Quantity(why) => return write!(f, "{why}"),
            EvalError::ShortVersion => "short version cannot contain PreRelease/Build meta data",
            EvalError::Url(why) => {
                return write!(f, "URL parse error during conversion from string: {why}");
            }
            EvalError::TooLong => return write!(f, "{}", Failure::TooLong),
            EvalError::Host(why) => why,
        })
    }
}

impl fmt::Display for SliceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SliceError::Length(length) => return write!(f, "list is length {length}"),
            SliceError::Order => "start index must be less than or equal to end index",
            SliceError::Negative => "negative indexes not supported",
        })
    }
}

impl std::error::Error for EvalError {}

impl From<ZoneError> for EvalError {
    fn from(why: ZoneError) -> Self {
        EvalError::Zone(why)
    }
}

impl From<QuantityError> for EvalError {
    fn from(why: QuantityError) -> Self {
        EvalError::Quantity(why)
    }
}

impl From<ClauseError> for EvalError {
    fn from(why: ClauseError) -> Self {
        EvalError::Clause(why)
    }
}

impl From<EvalError> for Failure {
    fn from(why: EvalError) -> Self {
        Failure::Error(why)
    }
}

// An `Err` must not make the results of all steps larger than a value does.
const _: () = assert!(size_of::<Failure>() <= 32);
