//! Validation as data: tables of rules about single fields, each beside the code of its kind.
//!
//! A table lists fields of one struct in the order in which kube-apiserver checks them, and [`validate`] walks it. A kind calls it where
//! kube-apiserver has these checks, so causes have the same order. What depends on several fields, on the stored object or on the request is
//! code, before or after the table. The facts are those of the `+k8s:` tags of kube-apiserver's types, or of its `Validate` functions.
//!
//! Invariant: a valid object costs no allocation here, and each row of a table looks its field up once.

use mullion_kube_text::{
    field::{Errors, Path},
    names::Sentences,
    validation::{self, metadata, one_of, selector::label_selector},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

pub(crate) use Rule::{
    All, Among, Anything, AtLeast, AtMost, Code, Conditions, Each, Fields, Forbidden, Format,
    Items, Labels, MaxBytes, MaxItems, NonEmpty, Number, OneOf, Selector, Text, UpTo, Within,
};

/// A field of a struct, when it is validated, and its rule.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    name: &'static str,
    when: When,
    rule: Rule,
}

/// Which values of a field are validated. The zero value is Go's: an absent field, `""`, 0, `false` or an empty list or map.
#[derive(Clone, Copy)]
enum When {
    /// All values; an absent field as the zero value of its type.
    Always,
    /// All values but an absent one: a pointer in Go.
    Set,
    /// All values but the zero value.
    Filled,
    /// As `Filled`, and the zero value is an error with this detail.
    Required(&'static str),
    /// As `Set`, and an absent field is an error with this detail.
    Present(&'static str),
}

/// What a value must be.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    /// Anything: for fields that must only be there.
    Anything,
    /// What all of these rules say, in this order.
    All(&'static [Rule]),
    /// One of these texts, which errors print in this order (tags: `enum`).
    OneOf(&'static [&'static str]),
    /// One of these texts; the message for another one.
    Among(&'static [&'static str], &'static str),
    /// A text for which this check of [`mullion_kube_text::names`] returns no messages (tags: `format`).
    Format(fn(&str) -> Sentences),
    /// A text that this function accepts.
    Text(fn(&mut Errors, &Path<'_>, &str)),
    /// A text that is not empty, which is a missing value with this detail, and that follows the rule.
    NonEmpty(&'static str, &'static Rule),
    /// A number for which this check returns no messages.
    Number(fn(i64) -> Sentences),
    /// A number of at least this; the message for a smaller one (tags: `minimum`).
    AtLeast(i64, &'static str),
    /// A number of at most this; the message for a larger one (tags: `maximum`).
    AtMost(i64, &'static str),
    /// A number from the first to the second; the message for another one.
    Within(i64, i64, &'static str),
    /// A text of at most so many bytes (tags: `maxBytes`, and `maxLength` where the `Validate` function counts bytes). A limit in characters is
    /// a `Text`.
    MaxBytes(usize),
    /// A list of at most so many items (tags: `maxItems`).
    MaxItems(usize),
    /// As `MaxItems`, and the items of a list that is not longer follow the rule.
    UpTo(usize, &'static Rule),
    /// A list whose items this rule holds for.
    Items(&'static Rule),
    /// A list of structs with these fields.
    Each(&'static [Field]),
    /// A struct with these fields.
    Fields(&'static [Field]),
    /// Nothing: the field may not be set, for this reason (tags: `forbidden`).
    Forbidden(&'static str),
    /// A map of labels.
    Labels,
    /// A list of `metav1.Condition`.
    Conditions,
    /// A label selector.
    Selector,
    /// A value that this function accepts: code about one field.
    Code(fn(&Value, &Path<'_>, &mut Errors)),
}

/// A number that is not negative.
pub(crate) const NOT_NEGATIVE: Rule = AtLeast(0, "must be greater than or equal to 0");

/// Validates a field whether it is set or not; an absent field has the zero value of its type.
pub(crate) const fn always(name: &'static str, rule: Rule) -> Field {
    let when = When::Always;
    Field { name, when, rule }
}

/// Validates a field unless it is absent: a pointer in Go.
pub(crate) const fn set(name: &'static str, rule: Rule) -> Field {
    let when = When::Set;
    Field { name, when, rule }
}

/// Validates a field unless it has its zero value.
pub(crate) const fn filled(name: &'static str, rule: Rule) -> Field {
    let when = When::Filled;
    Field { name, when, rule }
}

/// Requires a field to have another value than the zero value.
pub(crate) const fn required(name: &'static str, rule: Rule) -> Field {
    let when = When::Required("");
    Field { name, when, rule }
}

/// Requires a field to be there: a pointer in Go, which may point to the zero value.
pub(crate) const fn present(name: &'static str, rule: Rule) -> Field {
    let when = When::Present("");
    Field { name, when, rule }
}

impl Field {
    /// Sets the detail of the error that a required field is missing. On a field that may be missing it does not compile.
    pub(crate) const fn because(self, detail: &'static str) -> Field {
        let when = match self.when {
            When::Present(_) => When::Present(detail),
            When::Required(_) => When::Required(detail),
            When::Always | When::Set | When::Filled => panic!("the field may be missing"),
        };
        Field { when, ..self }
    }
}

/// Validates the fields of a struct at `path`. The path of a whole object is [`Path::ROOT`].
pub(crate) fn validate(fields: &[Field], owner: &Value, path: &Path<'_>, errors: &mut Errors) {
    for field in fields {
        let value = owner.field(field.name);
        let is_validated = match field.when {
            When::Always => true,
            When::Set | When::Present(_) => value.is_some(),
            When::Filled | When::Required(_) => value.is_some_and(|value| !is_zero(value)),
        };
        if is_validated {
            let value = value.unwrap_or(&Value::Null);
            field.rule.validate(value, &path.child(field.name), errors);
        } else if let When::Required(detail) | When::Present(detail) = field.when {
            errors.required(&path.child(field.name), detail);
        }
    }
}

/// Requires fields of a struct at `path` to have the values of the stored one.
pub(crate) fn immutable(
    fields: &[&str],
    owner: &Value,
    old: &Value,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    for field in fields {
        validation::immutable(errors, &path.child(field), &owner[field], &old[field]);
    }
}

/// Returns whether Go's struct has the zero value for this.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}

impl Rule {
    fn validate(&self, value: &Value, path: &Path<'_>, errors: &mut Errors) {
        let items = || value.as_array().map_or(&[][..], Vec::as_slice);
        match self {
            Anything => {}
            All(rules) => {
                for rule in *rules {
                    rule.validate(value, path, errors);
                }
            }
            NonEmpty(why, _) if value.as_str().is_none_or(str::is_empty) => {
                errors.required(path, *why);
            }
            NonEmpty(_, rule) => rule.validate(value, path, errors),
            MaxItems(most) | UpTo(most, _) if items().len() > *most => {
                errors.too_many(path, items().len(), *most);
            }
            MaxItems(_) => {}
            UpTo(_, rule) => rule.validate(value, path, errors),
            Items(rule) => {
                for (index, item) in items().iter().enumerate() {
                    rule.validate(item, &path.index(index), errors);
                }
            }
            Each(fields) => {
                for (index, item) in items().iter().enumerate() {
                    validate(fields, item, &path.index(index), errors);
                }
            }
            Fields(fields) => validate(fields, value, path, errors),
            Forbidden(why) => errors.forbidden(path, *why),
            Labels => metadata::labels(errors, path, Some(value)),
            Conditions => metadata::conditions(errors, path, items()),
            Selector => label_selector(errors, path, value),
            Code(check) => check(value, path, errors),
            OneOf(_) | Among(..) | Format(_) | Text(_) | MaxBytes(_) => {
                self.validate_text(value.as_str().unwrap_or_default(), path, errors);
            }
            Number(_) | AtLeast(..) | AtMost(..) | Within(..) => {
                self.validate_number(value.as_i64().unwrap_or(0), path, errors);
            }
        }
    }

    #[inline]
    fn validate_text(&self, text: &str, path: &Path<'_>, errors: &mut Errors) {
        match self {
            OneOf(supported) => one_of(errors, path, text, supported),
            Among(known, why) if !known.contains(&text) => errors.invalid(path, text, *why),
            Format(format) => {
                for sentence in format(text) {
                    errors.invalid(path, text, sentence);
                }
            }
            Text(check) => check(errors, path, text),
            MaxBytes(most) if text.len() > *most => errors.too_long(path, *most),
            _ => {}
        }
    }

    #[inline]
    fn validate_number(&self, number: i64, path: &Path<'_>, errors: &mut Errors) {
        let (fits, why) = match self {
            Number(check) => {
                return check(number)
                    .into_iter()
                    .for_each(|sentence| errors.invalid(path, number, sentence));
            }
            AtLeast(least, why) => (number >= *least, why),
            AtMost(most, why) => (number <= *most, why),
            Within(least, most, why) => ((*least..=*most).contains(&number), why),
            _ => return,
        };
        if !fits {
            errors.invalid(path, number, *why);
        }
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::{field::causes, names};
    use serde_json::json;

    use super::*;

    fn found(fields: &[Field], owner: &Value) -> Vec<String> {
        causes(|errors| validate(fields, owner, Path::ROOT, errors))
    }

    #[test]
    fn an_absent_field_and_a_zero_value_are_validated_as_go_would() {
        const KNOWN: Rule = OneOf(&["a", "b"]);
        let table = [
            always("always", KNOWN),
            set("set", KNOWN),
            filled("filled", KNOWN),
            required("required", KNOWN),
            present("present", KNOWN).because("why"),
        ];
        let unsupported =
            |field: &str| format!(r#"{field}: Unsupported value: "": supported values: "a", "b""#);
        assert_eq!(
            found(&table, &json!({})),
            [
                unsupported("always"),
                "required: Required value".to_owned(),
                "present: Required value: why".to_owned(),
            ]
        );
        let empty = json!({"always": "", "set": "", "filled": "", "required": "", "present": ""});
        assert_eq!(
            found(&table, &empty),
            [
                unsupported("always"),
                unsupported("set"),
                "required: Required value".to_owned(),
                unsupported("present"),
            ]
        );
    }

    #[test]
    fn errors_come_in_the_order_of_the_table_and_name_items_by_their_index() {
        const PORT: &[Field] = &[
            required("name", Format(names::dns_label)),
            always("number", Within(1, 9, "must be 1 to 9")),
        ];
        let table = [
            always("ports", All(&[MaxItems(1), Each(PORT)])),
            always("hosts", UpTo(1, &Items(&MaxBytes(1)))),
            set("first", Forbidden("why")),
        ];
        let owner =
            json!({"first": {}, "hosts": ["aa"], "ports": [{"name": "a", "number": 9}, {}]});
        assert_eq!(
            found(&table, &owner),
            [
                "ports: Too many: 2: must have at most 1 item",
                "ports[1].name: Required value",
                "ports[1].number: Invalid value: 0: must be 1 to 9",
                "hosts[0]: Too long: may not be more than 1 byte",
                "first: Forbidden: why",
            ]
        );
        // The items of a list that is too long are not looked at.
        let owner = json!({"hosts": ["aa", "bb"]});
        assert_eq!(
            found(&table, &owner),
            ["hosts: Too many: 2: must have at most 1 item"]
        );
    }

    #[test]
    fn a_text_that_must_not_be_empty_is_missing_if_it_is() {
        let table = [set("a", NonEmpty("why", &Among(&["x"], "must be x")))];
        assert_eq!(found(&table, &json!({"a": ""})), ["a: Required value: why"]);
        assert_eq!(
            found(&table, &json!({"a": "y"})),
            [r#"a: Invalid value: "y": must be x"#]
        );
    }

    #[test]
    fn immutable_fields_are_compared_with_the_stored_ones() {
        let (now, old) = (json!({"a": 1, "b": 2}), json!({"a": 1}));
        assert_eq!(
            causes(|errors| immutable(&["a", "b"], &now, &old, &Path::new("spec"), errors)),
            ["spec.b: Invalid value: 2: field is immutable"]
        );
    }
}
