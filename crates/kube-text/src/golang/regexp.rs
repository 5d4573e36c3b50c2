//! Compiles regular expressions of Go's `regexp` with Rust's engine.
//!
//! The languages are nearly the same; where they differ, the pattern is translated: classes of letters and digits are ASCII, a brace that
//! is no repetition is literal, and `[\w-.]` and `[[a]` are classes. Invalid patterns get Go's error (source: Go's regexp/syntax,
//! parse.go).

mod classes;

use std::cell::RefCell;

use regex::{Regex, RegexBuilder};

/// The most bytes of a compiled pattern.
const SIZE_BYTES: usize = 32 << 20;
/// The most copies that nested repetitions may ask for.
const MAX_REPEAT: u64 = 1000;
/// The number of compiled patterns that each thread caches.
const KEPT: usize = 16;

/// The reason why Go refuses a pattern, with its message: ``error parsing regexp: missing closing ]: `[a` ``.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {fault}: `{part}`")]
pub struct PatternError {
    /// What is wrong.
    pub fault: PatternFault,
    /// The part of the pattern that is wrong.
    pub part: String,
}

/// What is wrong with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternFault {
    /// An escape has no meaning.
    #[error("invalid escape sequence")]
    Escape,
    /// A class has no end.
    #[error("missing closing ]")]
    OpenClass,
    /// A group has no end.
    #[error("missing closing )")]
    OpenGroup,
    /// A parenthesis closes no group.
    #[error("unexpected )")]
    Unopened,
    /// Nothing precedes a repetition operator.
    #[error("missing argument to repetition operator")]
    NoOperand,
    /// A repetition operator follows another one.
    #[error("invalid nested repetition operator")]
    NestedRepetition,
    /// A repetition has too many copies, or fewer at most than at least.
    #[error("invalid repeat count")]
    RepeatCount,
    /// A class has an unknown name, or a range whose end is before its start.
    #[error("invalid character class range")]
    ClassRange,
    /// The pattern ends in a backslash.
    #[error("trailing backslash at end of expression")]
    TrailingBackslash,
    /// Go does not have what follows `(?`.
    #[error("invalid or unsupported Perl syntax")]
    PerlSyntax,
    /// The name of a group is malformed.
    #[error("invalid named capture")]
    NamedCapture,
    /// The compiled pattern is too large.
    #[error("expression too large")]
    TooLarge,
}

impl PatternError {
    fn new((fault, part): Complaint<'_>) -> Self {
        PatternError {
            fault,
            part: part.to_owned(),
        }
    }
}

/// Compiles a pattern.
///
/// # Errors
/// Go refuses the pattern.
pub fn compile(pattern: &str) -> Result<Regex, PatternError> {
    let translated = Translator::new(pattern).run();
    let translated = translated.map_err(PatternError::new)?;
    let compiled = RegexBuilder::new(&translated)
        .size_limit(SIZE_BYTES)
        .build();
    compiled.map_err(|_| PatternError::new((PatternFault::TooLarge, pattern)))
}

/// Calls `work` with a compiled pattern from the thread's cache.
///
/// # Errors
/// The errors of [`compile`].
pub fn with<T>(pattern: &str, work: impl FnOnce(&Regex) -> T) -> Result<T, PatternError> {
    thread_local! {
        static RECENT: RefCell<Vec<(String, Regex)>> = const { RefCell::new(Vec::new()) };
    }
    RECENT.with_borrow_mut(|recent| {
        match recent.iter().position(|(known, _)| known == pattern) {
            // The front of the list has the patterns that were used last, so that `truncate` below drops the one that was unused for
            // longest.
            Some(at) => recent[..=at].rotate_right(1),
            None => {
                let compiled = compile(pattern)?;
                recent.truncate(KEPT - 1);
                recent.insert(0, (pattern.to_owned(), compiled));
            }
        }
        Ok(work(&recent[0].1))
    })
}

/// An error, and the part of the pattern that it is about.
type Complaint<'p> = (PatternFault, &'p str);
type Parsed<'p, T = ()> = Result<T, Complaint<'p>>;

/// An open group, or the whole pattern.
#[derive(Default)]
struct Level {
    /// Whether an operand precedes that can be repeated.
    has_operand: bool,
    /// The number of copies that the preceding operand asks for.
    operand: u64,
    /// The largest such number in the group so far.
    most: u64,
}

impl Level {
    fn push(&mut self, copies: u64) {
        self.has_operand = true;
        self.operand = copies;
        self.most = self.most.max(copies);
    }
}

struct Translator<'p> {
    whole: &'p str,
    rest: &'p str,
    out: String,
    levels: Vec<Level>,
    /// The pattern from the last repetition operator on, if the current position follows that operator directly.
    repeated: Option<&'p str>,
    /// The number of Unicode classes so far, each of which compiles to a large program.
    named: usize,
}

impl<'p> Translator<'p> {
    fn new(pattern: &'p str) -> Self {
        Translator {
            whole: pattern,
            rest: pattern,
            out: String::with_capacity(pattern.len() + 16),
            levels: vec![Level::default()],
            repeated: None,
            named: 0,
        }
    }

    fn run(mut self) -> Parsed<'p, String> {
        while let Some(c) = self.rest.chars().next() {
            let before = self.rest;
            let mut repeated = None;
            match c {
                '(' if self.rest.starts_with("(?") => self.group()?,
                '(' => {
                    self.skip(1);
                    // No caller uses captures, and groups without them are cheaper.
                    self.open("(?:");
                }
                ')' => {
                    self.skip(1);
                    let inner = self.levels.pop().filter(|_| !self.levels.is_empty());
                    let inner = inner.ok_or((PatternFault::Unopened, self.whole))?;
                    self.out.push(')');
                    self.level().push(inner.most.max(1));
                }
                '|' => {
                    self.skip(1);
                    self.out.push('|');
                    self.level().has_operand = false;
                }
                '^' | '$' | '.' => {
                    self.skip(1);
                    self.out.push(c);
                    self.level().push(1);
                }
                '[' => self.class()?,
                '*' | '+' | '?' => {
                    self.skip(1);
                    self.repeat(before, None)?;
                    repeated = Some(before);
                }
                '{' => match counts(before) {
                    Some((least, most, length)) => {
                        self.skip(length);
                        let is_small = |n: u64| n <= MAX_REPEAT;
                        let fits = is_small(least)
                            && most.is_none_or(|most| is_small(most) && least <= most);
                        if !fits {
                            return Err((PatternFault::RepeatCount, &before[..length]));
                        }
                        self.repeat(before, Some((least, most)))?;
                        repeated = Some(before);
                    }
                    None => {
                        self.skip(1);
                        self.literal('{');
                    }
                },
                '\\' => self.escape()?,
                c => {
                    self.skip(c.len_utf8());
                    self.literal(c);
                }
            }
            self.repeated = repeated;
        }
        match self.levels.len() {
            1 => Ok(self.out),
            _ => Err((PatternFault::OpenGroup, self.whole)),
        }
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("the whole is never closed")
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// Returns the text that was consumed since `before`.
    fn since(&self, before: &'p str) -> &'p str {
        &before[..before.len() - self.rest.len()]
    }

    fn open(&mut self, how: &str) {
        self.out.push_str(how);
        self.levels.push(Level::default());
    }

    fn literal(&mut self, c: char) {
        push_char(&mut self.out, c);
        self.level().push(1);
    }

    /// Writes a repetition operator that was consumed, if Go allows it here. `before` is the pattern from the operator on; `counts` are
    /// the bounds of an operator such as `{2,5}`.
    fn repeat(&mut self, before: &'p str, counts: Option<(u64, Option<u64>)>) -> Parsed<'p> {
        // `a*?` is one (lazy) repetition, not a repetition of a repetition.
        if self.rest.starts_with('?') {
            self.skip(1);
        }
        if let Some(earlier) = self.repeated {
            let both = self.since(earlier);
            return Err((PatternFault::NestedRepetition, both));
        }
        let operator = self.since(before);
        if !self.level().has_operand {
            return Err((PatternFault::NoOperand, operator));
        }
        self.out.push_str(operator);
        // The counts of nested repetitions multiply (Go: `repeatIsValid`).
        if let Some((least, most)) = counts {
            let level = self.level();
            let copies = match most {
                Some(0) => 1,
                most => level.operand.saturating_mul(most.unwrap_or(least).max(1)),
            };
            let is_counted = least >= 2 || most.is_some_and(|most| most >= 2);
            if is_counted && copies > MAX_REPEAT {
                return Err((PatternFault::RepeatCount, operator));
            }
            level.push(copies);
        }
        Ok(())
    }

    /// Translates a named group, flags, or a non-capturing group.
    fn group(&mut self) -> Parsed<'p> {
        let before = self.rest;
        for start in ["(?P<", "(?<"] {
            // Go looks for a name only if the pattern goes on after the `<`.
            if before.len() <= start.len() {
                continue;
            }
            let Some(named) = before.strip_prefix(start) else {
                continue;
            };
            let what = PatternFault::NamedCapture;
            let end = named.find('>').ok_or((what, before))?;
            self.skip(start.len() + end + 1);
            let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
            if end == 0 || !named[..end].chars().all(is_word) {
                return Err((what, self.since(before)));
            }
            self.open("(?:");
            return Ok(());
        }
        self.skip(2);
        let (mut on, mut off) = (String::new(), None::<String>);
        while let Some(c) = self.rest.chars().next() {
            self.skip(c.len_utf8());
            match (c, &mut off) {
                ('i' | 'm' | 's' | 'U', None) if !on.contains(c) => on.push(c),
                ('i' | 'm' | 's' | 'U', Some(off)) if !off.contains(c) => off.push(c),
                ('i' | 'm' | 's' | 'U', _) => {}
                ('-', None) => off = Some(String::new()),
                (':' | ')', off) if off.as_ref().is_none_or(|off| !off.is_empty()) => {
                    let off = off.take().unwrap_or_default();
                    on.retain(|flag| !off.contains(flag));
                    let dash = if off.is_empty() { "" } else { "-" };
                    if c == ':' {
                        self.open(&format!("(?{on}{dash}{off}:"));
                    } else if !(on.is_empty() && off.is_empty()) {
                        self.out.push_str(&format!("(?{on}{dash}{off})"));
                    }
                    return Ok(());
                }
                _ => break,
            }
        }
        Err((PatternFault::PerlSyntax, self.since(before)))
    }

    fn escape(&mut self) -> Parsed<'p> {
        let before = self.rest;
        let next = before[1..].chars().next();
        let same = match next {
            Some('A') => r"\A",
            Some('z') => r"\z",
            // Go's word boundaries are those of ASCII words.
            Some('b') => r"(?-u:\b)",
            Some('B') => r"(?-u:\B)",
            Some('C') => return Err((PatternFault::Escape, &before[..2])),
            Some('Q') => {
                self.skip(2);
                let (quoted, rest) = self.rest.split_once(r"\E").unwrap_or((self.rest, ""));
                self.rest = rest;
                quoted.chars().for_each(|c| self.literal(c));
                return Ok(());
            }
            _ => "",
        };
        if !same.is_empty() {
            self.skip(2);
            self.out.push_str(same);
        } else if let Some(class) = self.named_class()? {
            self.out.push_str(&format!("[{class}]"));
        } else {
            let c = self.escaped()?;
            push_char(&mut self.out, c);
        }
        self.level().push(1);
        Ok(())
    }
}

/// Returns the bounds of `{2,5}` and its length; `None` for a brace that is no repetition.
fn counts(text: &str) -> Option<(u64, Option<u64>, usize)> {
    let is_inside = |byte: &u8| byte.is_ascii_digit() || *byte == b',';
    let length = text.bytes().skip(1).take_while(is_inside).count();
    let inner = &text[1..=length];
    if text.as_bytes().get(length + 1) != Some(&b'}') {
        return None;
    }
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        // Go takes a count with a leading zero, such as `{01}`, as literal text.
        let is_plain = is_number && (digits.len() == 1 || !digits.starts_with('0'));
        is_plain.then(|| digits.parse().unwrap_or(u64::MAX))
    };
    let (least, most) = match inner.split_once(',') {
        None => (number(inner)?, Some(number(inner)?)),
        Some((least, "")) => (number(least)?, None),
        Some((least, most)) => (number(least)?, Some(number(most)?)),
    };
    Some((least, most, length + 2))
}

/// Appends a literal character, escaped if it could have a meaning.
fn push_char(out: &mut String, c: char) {
    if c.is_alphanumeric() {
        out.push(c)
    } else {
        out.push_str(&format!("\\x{{{:X}}}", u32::from(c)))
    }
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
            ("(+?)", "missing argument to repetition operator: `+?`"),
            ("a|{2}", "missing argument to repetition operator: `{2}`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a{2}?{3}", "invalid nested repetition operator: `{2}?{3}`"),
            ("a{2,1}", "invalid repeat count: `{2,1}`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("(a{100}b){11}", "invalid repeat count: `{11}`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("[[:foo:]]", "invalid character class range: `[:foo:]`"),
            (r"a\", "trailing backslash at end of expression: ``"),
            (r"\y", r"invalid escape sequence: `\y`"),
            (r"(a)\1", r"invalid escape sequence: `\1`"),
            (r"\u0041", r"invalid escape sequence: `\u`"),
            (r"\xzz", r"invalid escape sequence: `\xzz`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?x)a", "invalid or unsupported Perl syntax: `(?x`"),
            ("(?i-)a", "invalid or unsupported Perl syntax: `(?i-)`"),
            ("(?<=a)b", "invalid named capture: `(?<=a)b`"),
            ("(?P<a b>c)", "invalid named capture: `(?P<a b>`"),
            ("(?k)", "invalid or unsupported Perl syntax: `(?k`"),
            (r"a\p{Foo}b", r"invalid character class range: `\p{Foo}`"),
        ] {
            let refused = compile(pattern)
                .map(|regex| regex.to_string())
                .map_err(|error| error.to_string());
            let compile_error = format!("error parsing regexp: {why}");
            assert_eq!(refused, Err(compile_error), "{pattern}");
        }
    }

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        for (pattern, matches, others) in [
            ("^a{$", &["a{"][..], &["a"][..]),
            ("^a{,2}$", &["a{,2}"], &["aa"]),
            ("^a{1,x}$", &["a{1,x}"], &["a"]),
            ("^{}$", &["{}"], &[]),
            (r"^[\w-.]+$", &["a-b.c_1"], &["a b", "é"]),
            ("^[[a]$", &["[", "a"], &["]"]),
            ("^[a&&b]+$", &["a&b"], &["c"]),
            ("^[]a]+$", &["]a"], &["["]),
            ("^[^-a]$", &["b"], &["-", "a"]),
            (r"^\d+$", &["12"], &["٣"]),
            (r"^[^\d\s]$", &["x"], &["1", " "]),
            (r"^[\D]$", &["x", "٣"], &["1"]),
            (r"^a\s$", &["a "], &["a\u{b}", "a\u{a0}"]),
            (r"^\Qa.b\E.$", &["a.bc"], &["axbc"]),
            (r"^\101\x42\x{43}$", &["ABC"], &[]),
            (r"^\<\_\ \-$", &["<_ -"], &[]),
            ("^(?i)(?P<n>k)(?<m>s)$", &["KS", "ks"], &["kx"]),
            ("^(?:a|)b?()$", &["ab", ""], &["c"]),
            ("^(?)a(?ii)B$", &["ab"], &["Ab"]),
            (r"^[[:alpha:]]+\pN\p{^Greek}$", &["a1b"], &["a1α"]),
            (r"\bé\b", &["aéa"], &["é"]),
            ("(?s)^a.b$", &["a\nb"], &[]),
        ] {
            let regex = compile(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
            for text in matches {
                assert!(regex.is_match(text), "{pattern} {text:?}");
            }
            for text in others {
                assert!(!regex.is_match(text), "{pattern} {text:?}");
            }
        }
    }

    #[test]
    fn patterns_are_told_apart_however_many_are_kept() {
        for round in 0..3 {
            for number in 0..KEPT + 2 {
                let held = with(&format!("^{number}$"), |regex| regex.is_match("3"));
                assert_eq!(held, Ok(number == 3), "{round}");
            }
        }
        assert!(with("(", |_| ()).is_err());
    }
}
