//! Translates character classes and escapes.

use regex::Regex;

use super::{Parsed, PatternFault, Translator, push_char};

/// The most Unicode classes in a pattern; Go limits the total number of ranges.
const MAX_NAMED: usize = 20_000;

/// Go's one-letter classes, as they are written inside brackets.
const PERL: &[(char, &str)] = &[
    ('d', "0-9"),
    ('D', "[^0-9]"),
    ('s', r"\t\n\x0C\r\x20"),
    ('S', r"[^\t\n\x0C\r\x20]"),
    ('w', "0-9A-Za-z_"),
    ('W', "[^0-9A-Za-z_]"),
];
const POSIX: &[&str] = &[
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];

impl<'p> Translator<'p> {
    /// Translates `\d` or `\p{Greek}` to the form that is written inside brackets.
    pub(super) fn named_class(&mut self) -> Parsed<'p, Option<String>> {
        let before = self.rest;
        let mut letters = before.chars();
        let ('\\', Some(letter)) = (letters.next().unwrap_or_default(), letters.next()) else {
            return Ok(None);
        };
        if let Some((_, class)) = PERL.iter().find(|(name, _)| *name == letter) {
            self.skip(2);
            return Ok(Some((*class).to_owned()));
        }
        if !matches!(letter, 'p' | 'P') {
            return Ok(None);
        }
        let name = match letters.next() {
            None => return Ok(None),
            Some('{') => {
                let end = before.find('}').ok_or((PatternFault::ClassRange, before))?;
                self.skip(end + 1);
                &before[3..end]
            }
            Some(single) => {
                self.skip(2 + single.len_utf8());
                &before[2..2 + single.len_utf8()]
            }
        };
        let (negated, name) = match name.strip_prefix('^') {
            Some(name) => (true, name),
            None => (false, name),
        };
        // Two negations cancel each other out.
        let sign = if negated == (letter == 'P') { 'p' } else { 'P' };
        let class = format!("\\{sign}{{{name}}}");
        // Rust's engine decides which names exist, but forms of its own, such as `sc=Greek`, are not Go's.
        let is_name = name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_- ".contains(c));
        self.named += 1;
        if self.named > MAX_NAMED {
            return Err((PatternFault::TooLarge, self.whole));
        }
        if is_name && Regex::new(&class).is_ok() {
            Ok(Some(class))
        } else {
            Err((PatternFault::ClassRange, self.since(before)))
        }
    }

    pub(super) fn class(&mut self) -> Parsed<'p> {
        let before = self.rest;
        self.skip(1);
        self.out.push('[');
        if self.rest.starts_with('^') {
            self.skip(1);
            self.out.push('^');
        }
        // A closing bracket at the start is a member of the class.
        let mut is_first = true;
        while is_first || !self.rest.starts_with(']') {
            is_first = false;
            if let Some(name) = self.posix_class()? {
                self.out.push_str(name);
                continue;
            }
            if let Some(class) = self.named_class()? {
                self.out.push_str(&class);
                continue;
            }
            let start = self.rest;
            let low = self.class_char(before)?;
            let mut high = low;
            // A hyphen before the closing bracket is a member of the class.
            if self.rest.starts_with('-') && self.rest.len() >= 2 && !self.rest.starts_with("-]") {
                self.skip(1);
                high = self.class_char(before)?;
                if high < low {
                    return Err((PatternFault::ClassRange, self.since(start)));
                }
            }
            push_char(&mut self.out, low);
            self.out.push('-');
            push_char(&mut self.out, high);
        }
        self.skip(1);
        self.out.push(']');
        self.level().push(1);
        Ok(())
    }

    /// Translates `[:alpha:]` inside brackets.
    fn posix_class(&mut self) -> Parsed<'p, Option<&'p str>> {
        let Some(end) = self
            .rest
            .strip_prefix("[:")
            .and_then(|rest| rest.find(":]"))
        else {
            return Ok(None);
        };
        let whole = &self.rest[..end + 4];
        let name = &whole[2..end + 2];
        self.skip(whole.len());
        if POSIX.contains(&name.strip_prefix('^').unwrap_or(name)) {
            Ok(Some(whole))
        } else {
            Err((PatternFault::ClassRange, whole))
        }
    }

    fn class_char(&mut self, class: &'p str) -> Parsed<'p, char> {
        match self.rest.chars().next() {
            None => Err((PatternFault::OpenClass, class)),
            Some('\\') => self.escaped(),
            Some(c) => {
                self.skip(c.len_utf8());
                Ok(c)
            }
        }
    }

    /// Returns the character that an escape stands for.
    pub(super) fn escaped(&mut self) -> Parsed<'p, char> {
        let before = self.rest;
        self.skip(1);
        let Some(c) = self.rest.chars().next() else {
            return Err((PatternFault::TrailingBackslash, ""));
        };
        self.skip(c.len_utf8());
        let octal = |text: &str| text.starts_with(|c| matches!(c, '0'..='7'));
        let number = match c {
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            // A single digit from 1 to 7 would be a back-reference, which Go does not support.
            '0' | '1'..='7' if c == '0' || octal(self.rest) => {
                let more = self.rest.bytes().take(2);
                let more = more.take_while(|b| matches!(b, b'0'..=b'7')).count();
                self.skip(more);
                let digits = &self.since(before)[1..];
                u32::from_str_radix(digits, 8).expect("they are octal digits")
            }
            'x' => self.hexadecimal(before)?,
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => u32::from(c),
            _ => return Err((PatternFault::Escape, self.since(before))),
        };
        // Surrogates are not text, so nothing matches them.
        Ok(char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// Parses `\x7F` or `\x{10FFFF}` after the first two characters.
    fn hexadecimal(&mut self, before: &'p str) -> Parsed<'p, u32> {
        let braced = self.rest.strip_prefix('{');
        let mut number = 0;
        if braced.is_some() {
            self.skip(1);
        }
        let mut digits = 0;
        while let Some(c) = self.rest.chars().next() {
            self.skip(c.len_utf8());
            if c == '}' && braced.is_some() && digits > 0 {
                return Ok(number);
            }
            match c.to_digit(16) {
                Some(digit) => number = number * 16 + digit,
                // Go consumes both digits before it reports an error.
                None if braced.is_none() && digits == 0 => {
                    let second = self.rest.chars().next().map_or(0, char::len_utf8);
                    self.skip(second);
                    break;
                }
                None => break,
            }
            digits += 1;
            if number > u32::from(char::MAX) {
                break;
            }
            if braced.is_none() && digits == 2 {
                return Ok(number);
            }
        }
        Err((PatternFault::Escape, self.since(before)))
    }
}
