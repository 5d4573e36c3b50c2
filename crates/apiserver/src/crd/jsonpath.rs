//! JSONPath as client-go reads and walks it (`k8s.io/client-go/util/jsonpath`): what printer columns and selectable fields name.
//!
//! Fields, indexes, slices, unions, `*`, `..` and filters. A path that cannot be read is an error of the whole; one that cannot be walked in
//! an object, such as an index past a list's end, finds nothing there.

use serde_json::{Number, Value};

use crate::golang::number;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

/// One step of a path.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Slice(Slice),
    All,
    /// Every object, list and text below.
    Descend,
    Union(Vec<JsonPath>),
    Filter {
        left: JsonPath,
        operator: String,
        right: JsonPath,
    },
    /// A value that stands in the path itself.
    Literal(Value),
}

/// `[from:to:step]`; `to` is one past `from` where only that is given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Slice {
    from: Option<i64>,
    to: Option<i64>,
    step: Option<i64>,
    single: bool,
}

/// How many values a path may still look at: unions, lists and `..` after each other multiply them, and what takes longer is given up.
struct Looks(usize);

const MOST_LOOKS: usize = 1_000_000;

impl Looks {
    fn take(&mut self, count: usize) -> Result<(), Unusable> {
        self.0 = self.0.checked_sub(count).ok_or(Unusable)?;
        Ok(())
    }
}

/// Why a path finds nothing, or cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unusable;

impl JsonPath {
    /// Reads a path; texts behind it, which Go would print, are not.
    pub(crate) fn parse(text: &str) -> Result<JsonPath, Unusable> {
        let mut reader = Reader {
            chars: text.chars().collect(),
            at: 0,
        };
        reader.steps().map(JsonPath)
    }

    /// What the path finds.
    pub(crate) fn find<'v>(&'v self, root: &'v Value) -> Result<Vec<&'v Value>, Unusable> {
        self.find_within(root, &mut Looks(MOST_LOOKS))
    }

    fn find_within<'v>(
        &'v self,
        root: &'v Value,
        looks: &mut Looks,
    ) -> Result<Vec<&'v Value>, Unusable> {
        follow(vec![root], &self.0, looks)
    }
}

struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
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

    fn steps(&mut self) -> Result<Vec<Step>, Unusable> {
        let mut steps = Vec::new();
        while let Some(next) = self.peek() {
            match next {
                '}' => break,
                _ if self.starts_with("[?(") => steps.push(self.filter()?),
                _ if self.starts_with("..") => {
                    if steps.last() == Some(&Step::Descend) {
                        return Err(Unusable);
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
                _ => return Err(Unusable),
            }
        }
        Ok(steps)
    }

    /// Up to what ends a name; a backslash takes the next character along.
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

    /// Truth values; `range` and `end` have no place in a path.
    fn identifier(&mut self) -> Result<Step, Unusable> {
        let start = self.at;
        while self.peek().is_some_and(|next| !ends_a_name(next)) {
            self.at += 1;
        }
        match self.text(start, self.at).as_str() {
            "true" => Ok(Step::Literal(true.into())),
            "false" => Ok(Step::Literal(false.into())),
            _ => Err(Unusable),
        }
    }

    fn number(&mut self) -> Result<Step, Unusable> {
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
                Value::Number(float.ok_or(Unusable)?)
            }
        };
        Ok(Step::Literal(read))
    }

    fn quoted(&mut self, quote: char) -> Result<Step, Unusable> {
        let start = self.at + 1;
        self.at = start;
        loop {
            match self.peek().ok_or(Unusable)? {
                end if end == quote => break,
                '\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        let text = self.text(start, self.at);
        self.at += 1;
        Ok(Step::Literal(text.replace('\\', "").into()))
    }

    fn array(&mut self, steps: &mut Vec<Step>) -> Result<(), Unusable> {
        let start = self.at + 1;
        let length = self.chars[start..].iter().position(|next| *next == ']');
        let end = start + length.ok_or(Unusable)?;
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

    fn filter(&mut self) -> Result<Step, Unusable> {
        let start = self.at + "[?(".len();
        self.at = start;
        let (mut opened, mut closed) = (None, false);
        loop {
            let next = self.peek().ok_or(Unusable)?;
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
            return Err(Unusable);
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

fn slice(inside: &str) -> Result<Slice, Unusable> {
    if inside == "*" {
        return Ok(Slice::default());
    }
    let parts: Vec<&str> = inside.split(':').collect();
    if parts.len() > 3 {
        return Err(Unusable);
    }
    let part = |at: usize| match parts.get(at) {
        None | Some(&"") => Ok(None),
        Some(number) if number.starts_with('+') => Err(Unusable),
        Some(number) => number.parse::<i64>().map(Some).map_err(|_| Unusable),
    };
    Ok(Slice {
        from: part(0)?,
        to: part(1)?,
        step: part(2)?,
        single: parts.len() == 1,
    })
}

fn follow<'v>(
    mut found: Vec<&'v Value>,
    steps: &'v [Step],
    looks: &mut Looks,
) -> Result<Vec<&'v Value>, Unusable> {
    for step in steps {
        found = step.walk(found, looks)?;
    }
    Ok(found)
}

impl Step {
    fn walk<'v>(
        &'v self,
        values: Vec<&'v Value>,
        looks: &mut Looks,
    ) -> Result<Vec<&'v Value>, Unusable> {
        looks.take(values.len())?;
        let mut found = Vec::new();
        match self {
            Step::Literal(value) => found.push(value),
            Step::Field(name) => {
                found.extend(
                    values
                        .into_iter()
                        .filter_map(|value| value.as_object()?.get(name)),
                );
            }
            Step::All => {
                for value in values {
                    looks.take(length(value))?;
                    match value {
                        Value::Array(items) => found.extend(items),
                        Value::Object(map) => found.extend(map.values()),
                        _ => {}
                    }
                }
            }
            Step::Descend => {
                for value in values {
                    descend(value, &mut found, looks)?;
                }
            }
            Step::Union(paths) => {
                for path in paths {
                    looks.take(values.len())?;
                    found.extend(follow(values.clone(), &path.0, looks)?);
                }
            }
            Step::Slice(slice) => {
                for value in values {
                    match value {
                        Value::Null => {}
                        Value::Array(items) => slice.take(items, &mut found, looks)?,
                        _ => return Err(Unusable),
                    }
                }
            }
            Step::Filter {
                left,
                operator,
                right,
            } => {
                for value in values {
                    let Value::Array(items) = value else {
                        return Err(Unusable);
                    };
                    for item in items {
                        if passes(item, left, operator, right, looks)? {
                            found.push(item);
                        }
                    }
                }
            }
        }
        Ok(found)
    }
}

impl Slice {
    fn take<'v>(
        self,
        items: &'v [Value],
        found: &mut Vec<&'v Value>,
        looks: &mut Looks,
    ) -> Result<(), Unusable> {
        let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let given = self.from.unwrap_or(0);
        let from = if given < 0 {
            given.saturating_add(length)
        } else {
            given
        };
        let to = match self.to {
            _ if self.single => from.saturating_add(1),
            Some(to) if to < 0 => to.saturating_add(length),
            Some(to) => to,
            None => length,
        };
        if from == to {
            return Ok(());
        }
        if !(0..length).contains(&from) || !(0..=length).contains(&to) || from > to {
            return Err(Unusable);
        }
        let step = match self.step {
            None => 1,
            Some(step) => usize::try_from(step)
                .ok()
                .filter(|step| *step > 0)
                .ok_or(Unusable)?,
        };
        let (from, to) = (from as usize, to as usize);
        looks.take(to - from)?;
        found.extend(items[from..to].iter().step_by(step));
        Ok(())
    }
}

fn length(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    }
}

/// What has anything in it, and what is in that.
fn descend<'v>(
    value: &'v Value,
    found: &mut Vec<&'v Value>,
    looks: &mut Looks,
) -> Result<(), Unusable> {
    looks.take(1)?;
    let has_some = match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => false,
    };
    if has_some {
        found.push(value);
    }
    match value {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| descend(item, found, looks)),
        Value::Object(map) => map
            .values()
            .try_for_each(|item| descend(item, found, looks)),
        _ => Ok(()),
    }
}

fn passes(
    item: &Value,
    left: &JsonPath,
    operator: &str,
    right: &JsonPath,
    looks: &mut Looks,
) -> Result<bool, Unusable> {
    looks.take(1)?;
    let left = left.find_within(item, looks);
    if operator == "exists" {
        return Ok(left.is_ok_and(|found| !found.is_empty()));
    }
    let (left, right) = (left?, right.find_within(item, looks)?);
    let (left, right) = match (left.as_slice(), right.as_slice()) {
        ([], _) | ([_], []) => return Ok(false),
        ([left], [right]) => (left, right),
        _ => return Err(Unusable),
    };
    let order = match (left, right) {
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) if matches!(operator, "==" | "!=") => {
            left.cmp(right)
        }
        (Value::Number(left), Value::Number(right)) => match (settled(left), settled(right)) {
            (Ok(left), Ok(right)) => left.cmp(&right),
            (Err(left), Err(right)) => left.partial_cmp(&right).ok_or(Unusable)?,
            // Go compares no integers with fractions.
            _ => return Err(Unusable),
        },
        _ => return Err(Unusable),
    };
    match operator {
        "==" => Ok(order.is_eq()),
        "!=" => Ok(order.is_ne()),
        "<" => Ok(order.is_lt()),
        "<=" => Ok(order.is_le()),
        ">" => Ok(order.is_gt()),
        ">=" => Ok(order.is_ge()),
        _ => Err(Unusable),
    }
}

/// A number as Go has read it from the store.
fn settled(given: &Number) -> Result<i64, f64> {
    let float = given.as_f64().unwrap_or_default();
    given.as_i64().or_else(|| number::whole(float)).ok_or(float)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_that_finds_ever_more_is_given_up() {
        let nested = (0..30).fold(json!(1), |inner, _| json!([inner]));
        let object = json!({"a": nested});
        let found = |times: usize| {
            let read = JsonPath::parse(&format!(".a{}", "[0,0]".repeat(times))).unwrap();
            read.find(&object).map(|all| all.len())
        };
        assert_eq!(found(10), Ok(1024));
        assert_eq!(found(30), Err(Unusable));
        // Whatever the step is then, and however little it finds.
        let many: Vec<u32> = (0..2_000).collect();
        let object = json!({"a": (0..16).fold(json!(many), |inner, _| json!([inner]))});
        let name = ["'x'"; 100].join(",");
        for last in [
            "[*]",
            ".*",
            "[0:2000]",
            "[?(@>5000)]",
            "..",
            &format!("[{name}]"),
        ] {
            let path = |times: usize, index: &str| {
                let text = format!(".a{}{last}", index.repeat(times));
                JsonPath::parse(&text).expect("a path")
            };
            assert!(path(16, "[0]").find(&object).is_ok(), "{last}");
            assert_eq!(path(16, "[0,0]").find(&object), Err(Unusable), "{last}");
        }
    }

    #[test]
    fn paths_find_what_client_go_finds() {
        let object = json!({"status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]},
            "metadata": {"labels": {"a.b/c": "x"}}, "spec": {"l": [1, 2, 3], "lo": [{"n": "a", "v": 1}, {"n": "b", "v": 2}], "n": null}});
        for (path, found) in [
            (
                r#".status.conditions[?(@.type=="Ready")].status"#,
                json!(["True"]),
            ),
            (
                ".status.conditions[?(@.type=='Ready')].status",
                json!(["True"]),
            ),
            (
                ".status.conditions[?(@.type!='Ready')].status",
                json!(["False"]),
            ),
            (".status.conditions[?(@.none)].status", json!([])),
            (r".metadata.labels.a\.b/c", json!(["x"])),
            (r".metadata.labels['a\.b/c']", json!(["x"])),
            (".spec.l[*]", json!([1, 2, 3])),
            (".spec.l[-1]", json!([3])),
            (".spec.l[-2]", json!([2])),
            (".spec.l[0:2]", json!([1, 2])),
            (".spec.l[::2]", json!([1, 3])),
            (".spec.l[0,2]", json!([1, 3])),
            (".spec.lo[?(@.v>1)].n", json!(["b"])),
            (".spec.lo[?(@.v<=1)].n", json!(["a"])),
            (".spec.lo[?(@.v==2)].n", json!(["b"])),
            (".spec.lo[*].n", json!(["a", "b"])),
            (".spec.n", json!([null])),
            (".spec.none", json!([])),
            (".spec.lo..n", json!(["a", "b"])),
        ] {
            let read = JsonPath::parse(path).expect(path);
            let all = read.find(&object).expect(path).into_iter().cloned();
            assert_eq!(Value::Array(all.collect()), found, "{path}");
        }
        for path in [
            ".spec.l[3]",
            ".spec.l[2:1]",
            ".spec.l[0:9]",
            ".spec[0]",
            ".spec[?(@.a==1)]",
            ".spec.lo[?(@.v=='1')]",
        ] {
            let read = JsonPath::parse(path).expect(path);
            assert_eq!(read.find(&object), Err(Unusable), "{path}");
        }
        for path in [
            ".spec[",
            ".spec.l[?(@.x=]",
            ".spec.l[a]",
            "....a",
            ".spec['a\"]",
            ".a[1:2:3:4]",
        ] {
            assert_eq!(JsonPath::parse(path), Err(Unusable), "{path}");
        }
    }
}
