//! Comma-separated values as Go's `encoding/csv` parses them by default: quoted fields may span lines, empty lines are skipped, nothing
//! is trimmed, and there are no comments.

/// An iterator over the records of a text, which ends at the first malformed one.
pub struct Records<'a> {
    rest: &'a str,
    /// The number of the last line that was read.
    line: u64,
}

/// A record.
#[derive(Debug, PartialEq)]
pub struct Record {
    /// The line in which the record begins, counted from 1.
    pub line: u64,
    /// The fields; at least one.
    pub fields: Vec<String>,
}

/// A malformed record. The message is Go's and contains nothing of the text.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{}parse error on line {line}, column {column}: {what}", record(*.start, *.line))]
pub struct Malformed {
    /// The line in which the record begins.
    start: u64,
    /// The line of the error.
    pub line: u64,
    /// The column in bytes, counted from 1.
    column: usize,
    what: &'static str,
}

const BARE_QUOTE: &str = "bare \" in non-quoted field";
const QUOTE: &str = "extraneous or missing \" in quoted-field";

fn record(start: u64, line: u64) -> String {
    if start == line {
        String::new()
    } else {
        format!("record on line {start}; ")
    }
}

/// Returns the records of a text.
pub fn records(text: &str) -> Records<'_> {
    Records {
        rest: text,
        line: 0,
    }
}

impl<'a> Records<'a> {
    /// Returns the next line, and whether a line feed follows it.
    fn line(&mut self) -> Option<(&'a str, bool)> {
        if self.rest.is_empty() {
            return None;
        }
        self.line += 1;
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        let ends = line.len() < self.rest.len();
        self.rest = rest;
        // Go drops a carriage return at the end of a line, even within quotes.
        Some((line.strip_suffix('\r').unwrap_or(line), ends))
    }

    fn fields(&mut self, (mut text, mut ends): (&'a str, bool)) -> Result<Vec<String>, Malformed> {
        let start = self.line;
        let wrong = |line, column, what| Malformed {
            start,
            line,
            column,
            what,
        };
        let (mut fields, mut column) = (Vec::new(), 1);
        'field: loop {
            let Some(quoted) = text.strip_prefix('"') else {
                let (field, more) = match text.split_once(',') {
                    Some((field, more)) => (field, Some(more)),
                    None => (text, None),
                };
                if let Some(at) = field.find('"') {
                    return Err(wrong(self.line, column + at, BARE_QUOTE));
                }
                fields.push(field.to_owned());
                column += field.len() + 1;
                match more {
                    Some(more) => text = more,
                    None => return Ok(fields),
                }
                continue;
            };
            (text, column) = (quoted, column + 1);
            let mut field = String::new();
            loop {
                let Some((before, after)) = text.split_once('"') else {
                    field.push_str(text);
                    column += text.len();
                    if ends {
                        field.push('\n');
                        column += 1;
                    }
                    let Some(next) = self.line() else {
                        return Err(wrong(self.line, column, QUOTE));
                    };
                    ((text, ends), column) = (next, 1);
                    continue;
                };
                field.push_str(before);
                (text, column) = (after, column + before.len() + 1);
                if let Some(more) = text.strip_prefix('"') {
                    field.push('"');
                    (text, column) = (more, column + 1);
                } else if let Some(more) = text.strip_prefix(',') {
                    fields.push(field);
                    (text, column) = (more, column + 1);
                    continue 'field;
                } else if text.is_empty() {
                    fields.push(field);
                    return Ok(fields);
                } else {
                    return Err(wrong(self.line, column - 1, QUOTE));
                }
            }
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = loop {
            let line = self.line()?;
            if !line.0.is_empty() {
                break line;
            }
        };
        let line = self.line;
        let read = self.fields(first);
        if read.is_err() {
            self.rest = "";
        }
        Some(read.map(|fields| Record { line, fields }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(u64, Vec<String>)>, Malformed> {
        records(text)
            .map(|read| read.map(|record| (record.line, record.fields)))
            .collect()
    }

    /// The cases follow the documented rules of encoding/csv.
    #[test]
    fn fields_are_as_they_stand_or_quoted() {
        for (text, records) in [
            ("a,b,c\n", vec![(1, vec!["a", "b", "c"])]),
            (
                "a, b\r\n\r\n\n,c\r",
                vec![(1, vec!["a", " b"]), (4, vec!["", "c"])],
            ),
            ("#a,\"b,c\",\"\"\n", vec![(1, vec!["#a", "b,c", ""])]),
            (
                "\"a \"\"word\"\"\",\"1\r\n2\",x\ny",
                vec![(1, vec!["a \"word\"", "1\n2", "x"]), (3, vec!["y"])],
            ),
            ("a,\n", vec![(1, vec!["a", ""])]),
            ("\n\n", vec![]),
        ] {
            let read = read(text).unwrap();
            let read: Vec<(u64, Vec<&str>)> = read
                .iter()
                .map(|(line, fields)| (*line, fields.iter().map(String::as_str).collect()))
                .collect();
            assert_eq!(read, records, "{text:?}");
        }
    }

    #[test]
    fn a_quote_in_the_wrong_place_is_told_in_go_s_words() {
        for (text, error) in [
            (
                "a,b\"c\n",
                "parse error on line 1, column 4: bare \" in non-quoted field",
            ),
            (
                "\n\"a\"b,c\n",
                "parse error on line 2, column 3: extraneous or missing \" in quoted-field",
            ),
            (
                "a,\"b",
                "parse error on line 1, column 5: extraneous or missing \" in quoted-field",
            ),
            (
                "t,joe,u,\"g1\nt2,root,u2,\"system:masters\"\n",
                "record on line 1; parse error on line 2, column 12: extraneous or missing \" in quoted-field",
            ),
            (
                "t,\"a\nb\n",
                "record on line 1; parse error on line 2, column 3: extraneous or missing \" in quoted-field",
            ),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), error, "{text:?}");
        }
    }
}
