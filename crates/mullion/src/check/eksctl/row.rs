//! Defines a rule about fields of a ClusterConfig as data: where the rule counts, when eksctl refuses the file, and in which words.

use serde_json::Value;

use super::{Refusal, minor};
use crate::check::{path::Path, placeholder::is_filled_in_later};

/// The lists that the name `groups[]` stands for.
const GROUP_LISTS: [&str; 2] = ["nodeGroups", "managedNodeGroups"];

/// A rule about fields.
pub(super) struct Row {
    /// What the rule counts for: a path whose steps end with `[]` for each item of a list, such as `addons[]`. `groups[]` is each node group, and
    /// the empty path is the file.
    pub(super) at: &'static str,
    /// The field of the finding, from there; empty for the value itself.
    pub(super) field: &'static str,
    /// When eksctl refuses the file: all of these conditions hold.
    pub(super) when: &'static [Condition],
    /// eksctl's message. `{at}` is the path of what the rule counts for, `{}` the value of the field, and a field in braces has its value inserted.
    pub(super) words: &'static str,
}

/// A field with what it must be. The field is looked up from the place for which the rule counts, and from the file if it begins with `/`.
pub(super) type Condition = (&'static str, Is);

/// What a field is.
#[derive(Clone, Copy)]
pub(super) enum Is {
    /// It has a value, which may be empty.
    Set,
    /// It has no value.
    Absent,
    /// It has a value that is no empty text, list or map.
    Filled,
    /// It has no value, or an empty one.
    Empty,
    /// It is `true`.
    Yes,
    /// It is `false`.
    No,
    /// It is `false` or has no value.
    NotYes,
    /// A field below it is `true`.
    AnyYes,
    /// No field below it is `true`.
    NoneYes,
    /// It is one of these texts.
    In(&'static [&'static str]),
    /// It is a text other than these.
    NotIn(&'static [&'static str]),
    /// It is one of these texts, in letters of any case.
    Like(&'static [&'static str]),
    /// It has no value, or is a text other than these in letters of any case.
    Unlike(&'static [&'static str]),
    /// It is a number below this one.
    Below(i64),
    /// It is a number above this one.
    Above(i64),
    /// It is a number other than 0 and these.
    NumberNotIn(&'static [i64]),
    /// It is a list of fewer items.
    Fewer(usize),
    /// It is a list of more items.
    More(usize),
    /// It is a list with none of these texts.
    Lacks(&'static [&'static str]),
    /// It is a text that begins with none of these.
    NoPrefix(&'static [&'static str]),
    /// It is a text that begins with this one.
    Prefix(&'static str),
    /// It is a text with other characters than letters, digits and dashes.
    BadName,
    /// It is a text that is no name of a resource of AWS.
    NotArn,
    /// It is a text that is no range of addresses.
    NotCidr,
    /// The file names this minor version of Kubernetes or a later one.
    From(u64),
}

/// Returns a rule.
pub(super) const fn row(
    at: &'static str,
    field: &'static str,
    when: &'static [Condition],
    words: &'static str,
) -> Row {
    Row {
        at,
        field,
        when,
        words,
    }
}

impl Row {
    /// Returns what the rule refuses of a file.
    pub(super) fn refusals(&self, config: &Value) -> Vec<Refusal> {
        let mut places = vec![(Path::default(), config)];
        for step in self.at.split('.').filter(|step| !step.is_empty()) {
            places = places
                .into_iter()
                .flat_map(|own| below(own, step))
                .collect();
        }
        let places = places.into_iter();
        let refused = places.filter(|(_, base)| self.is_refused(base, config));
        let refused = refused.map(|(at, base)| Refusal {
            words: self.text(&at, base, config),
            at: innermost(&at, base, self.field),
        });
        refused.collect()
    }

    fn is_refused(&self, base: &Value, config: &Value) -> bool {
        self.when.iter().all(|(field, is)| {
            let value = lookup(field, base, config);
            !is_filled_in_later(value) && is.holds(value, config)
        })
    }

    /// Returns the message with the values inserted.
    fn text(&self, at: &Path, base: &Value, config: &Value) -> String {
        let mut parts = self.words.split('{');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once('}').unwrap_or(("", part));
            match name {
                "at" => text.push_str(&at.to_string()),
                "" => text.push_str(&shown(lookup(self.field, base, config))),
                name => text.push_str(&shown(lookup(name, base, config))),
            }
            text.push_str(rest);
        }
        text
    }
}

impl Is {
    fn holds(self, value: &Value, config: &Value) -> bool {
        let text = value.as_str();
        let items = || value.as_array().map(Vec::len);
        let among = |all: &[&str]| text.is_some_and(|text| all.contains(&text));
        let alike = |all: &[&str]| {
            text.is_some_and(|text| all.iter().any(|own| own.eq_ignore_ascii_case(text)))
        };
        let any_yes = || {
            let mut fields = value.as_object().into_iter().flatten();
            fields.any(|(_, own)| *own == true)
        };
        match self {
            Is::Set => !value.is_null(),
            Is::Absent => value.is_null(),
            Is::Filled => !is_empty(value),
            Is::Empty => is_empty(value),
            Is::Yes => *value == true,
            Is::No => *value == false,
            Is::NotYes => value.is_null() || *value == false,
            Is::AnyYes => any_yes(),
            Is::NoneYes => !any_yes(),
            Is::In(all) => among(all),
            Is::NotIn(all) => text.is_some() && !among(all),
            Is::Like(all) => alike(all),
            Is::Unlike(all) => value.is_null() || text.is_some() && !alike(all),
            Is::Below(least) => value.as_i64().is_some_and(|own| own < least),
            Is::Above(most) => value.as_i64().is_some_and(|own| own > most),
            Is::NumberNotIn(all) => value
                .as_i64()
                .is_some_and(|own| own != 0 && !all.contains(&own)),
            Is::Fewer(than) => items().is_some_and(|items| items < than),
            Is::More(than) => items().is_some_and(|items| items > than),
            Is::Lacks(all) => {
                let mut items = value.as_array().into_iter().flatten();
                !items.any(|item| item.as_str().is_some_and(|item| all.contains(&item)))
            }
            Is::NoPrefix(all) => {
                text.is_some_and(|text| !all.iter().any(|own| text.starts_with(own)))
            }
            Is::Prefix(prefix) => text.is_some_and(|text| text.starts_with(prefix)),
            Is::BadName => text.is_some_and(is_bad_name),
            Is::NotArn => text.is_some_and(|text| !text.is_empty() && !is_arn(text)),
            Is::NotCidr => text.is_some_and(|text| !text.is_empty() && !is_cidr(text)),
            Is::From(least) => minor(config).is_some_and(|minor| minor >= least),
        }
    }
}

/// Returns whether a value is what Go has for a field that is not set.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Returns whether a name has characters that eksctl refuses.
pub(super) fn is_bad_name(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !name.bytes().all(is_good)
}

/// Returns whether a text is the name of a resource of AWS (aws-sdk-go-v2: `arn.Parse`).
fn is_arn(text: &str) -> bool {
    text.starts_with("arn:") && text.splitn(6, ':').count() == 6
}

/// Returns whether a text is a range of addresses (Go: `net.ParseCIDR`).
fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let Ok(address) = address.parse::<std::net::IpAddr>() else {
        return false;
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let is_number = bits.bytes().all(|byte| byte.is_ascii_digit());
    is_number && bits.parse::<u32>().is_ok_and(|bits| bits <= most)
}

/// Returns the values of a step from a place.
fn below<'v>((at, value): (Path, &'v Value), step: &str) -> Vec<(Path, &'v Value)> {
    let Some(list) = step.strip_suffix("[]") else {
        let found = value.get(step).filter(|own| !own.is_null());
        return found.map(|own| (at.key(step), own)).into_iter().collect();
    };
    let named = [list];
    let lists: &[&str] = if list == "groups" {
        &GROUP_LISTS
    } else {
        &named
    };
    let mut places = Vec::new();
    for list in lists {
        let items = value[*list].as_array().into_iter().flatten().enumerate();
        places.extend(items.map(|(index, item)| (at.key(list).index(index), item)));
    }
    places
}

/// Returns the value of a field; `null` if there is none.
fn lookup<'v>(field: &str, base: &'v Value, config: &'v Value) -> &'v Value {
    let (start, field) = match field.strip_prefix('/') {
        Some(field) => (config, field),
        None => (base, field),
    };
    let steps = field.split('.').filter(|step| !step.is_empty());
    steps.fold(start, |value, step| &value[step])
}

/// Returns the path of a field, or of the innermost field around it that there is.
pub(super) fn innermost(at: &Path, base: &Value, field: &str) -> Path {
    let (mut at, mut value) = (at.clone(), base);
    for step in field.split('.').filter(|step| !step.is_empty()) {
        let Some(next) = value.get(step) else { break };
        at = at.key(step);
        value = next;
    }
    at
}

/// Returns a value as Go prints it in a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(shown).collect();
            items.join(" ")
        }
        value => value.to_string(),
    }
}
