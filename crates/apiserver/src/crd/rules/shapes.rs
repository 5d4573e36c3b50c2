//! Estimates the sizes of a schema's values, for the cost estimates of rules. Source: k8s.io/apiserver/pkg/cel/common: SchemaDeclType.

use std::collections::{BTreeMap, HashSet};

use mullion_cel::Shape;
use mullion_schema::structural::Schema;

use super::types::escape;

/// The largest size of a request, in bytes.
pub(crate) const REQUEST_BYTES: u64 = 3 * 1024 * 1024;
/// The largest number of bytes between two brackets or quotes of a request.
const INSIDE: u64 = REQUEST_BYTES - 2;

/// Returns the shape of values with a schema, or `None` if rules cannot see them. The root of a resource also has its type and name.
pub(crate) fn of_schema(schema: &Schema, is_resource: bool) -> Option<Shape> {
    if schema.int_or_string {
        return Some(sized(characters(schema).unwrap_or(INSIDE), 1));
    }
    match schema.kind.as_str() {
        "array" => {
            let items = schema.items.as_deref()?;
            let items = of_schema(items, items.embedded)?;
            let most = schema.max_items.unwrap_or(INSIDE / (items.least_bytes + 1));
            Some(Shape {
                items: Some(Box::new(items)),
                ..sized(most, 2)
            })
        }
        "object" => match schema.additional_schema() {
            Some(values) => {
                let values = of_schema(values, values.embedded)?;
                let most = schema
                    .max_properties
                    .unwrap_or(INSIDE / (values.least_bytes + 6));
                Some(Shape {
                    keys: Some(Box::new(sized(0, 2))),
                    items: Some(Box::new(values)),
                    ..sized(most, 2)
                })
            }
            None => Some(object(schema, is_resource)),
        },
        "string" => Some(text(schema)),
        "boolean" => Some(sized(0, 4)),
        "number" | "integer" => Some(sized(0, 1)),
        _ => None,
    }
}

fn sized(most: u64, least_bytes: u64) -> Shape {
    Shape {
        most,
        least_bytes,
        ..Shape::default()
    }
}

fn object(schema: &Schema, is_resource: bool) -> Shape {
    let any_text = || sized(INSIDE, 2);
    let mut below: BTreeMap<&str, Shape> = BTreeMap::new();
    for (name, property) in &schema.properties {
        if let Some(shape) = of_schema(property, property.embedded) {
            below.insert(name, shape);
        }
    }
    if is_resource {
        let names = ["name", "generateName"].map(|name| (name.to_owned(), any_text()));
        let metadata = Shape {
            fields: names.into(),
            ..sized(0, 2)
        };
        below.extend([
            ("apiVersion", any_text()),
            ("kind", any_text()),
            ("metadata", metadata),
        ]);
    }
    let has_default = |name: &str| {
        let property = schema.properties.get(name);
        property.is_some_and(|property| property.default.is_some())
    };
    let required: HashSet<&str> = schema.required.iter().map(|name| &**name).collect();
    let mut least_bytes = 2;
    let mut fields = BTreeMap::new();
    for (name, shape) in below {
        if required.contains(name) && !has_default(name) {
            least_bytes += name.len() as u64 + shape.least_bytes + 4;
        }
        if let Some(name) = escape(name) {
            fields.insert(name, shape);
        }
    }
    Shape {
        fields,
        ..sized(0, least_bytes)
    }
}

fn text(schema: &Schema) -> Shape {
    match schema.format.as_str() {
        "byte" => sized(schema.max_length.unwrap_or(INSIDE), 2),
        "duration" => sized(32, 3),
        "date" => sized(12, 12),
        "date-time" => sized(32, 21),
        _ => {
            let named = schema.enumeration.iter();
            let longest = named
                .map(|value| value.as_str().map_or(0, str::len) as u64)
                .max();
            sized(characters(schema).or(longest).unwrap_or(INSIDE), 2)
        }
    }
}

/// Returns the largest number of bytes of a string with `maxLength`, at four bytes per character.
fn characters(schema: &Schema) -> Option<u64> {
    schema.max_length.map(|length| length.saturating_mul(4))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::crd::rules::{Rule, environment, types};

    fn cost(mut schema: Value, rule: &str) -> u64 {
        schema["x-kubernetes-validations"] = json!([{"rule": rule}]);
        let schema = Schema::parse(&schema);
        let kind = types::of_schema(&schema, false, "selfType").expect("rules can see it");
        let shape = of_schema(&schema, false).expect("rules can see it");
        let given = json!({"rule": rule});
        let compiled = Rule::compile(&schema, &kind, &given);
        let program = compiled.program.expect("there is a rule").expect(rule);
        program.most_cost(&environment(&kind, &given), &shape)
    }

    fn limited(mut schema: Value, limit: &str, most: u64) -> Value {
        schema[limit] = most.into();
        schema
    }

    /// The numbers are those of kube-apiserver's own tests.
    #[test]
    fn rules_cost_what_upstream_says() {
        let list = |items: Value| json!({"type": "array", "items": items});
        let map = |values: Value| json!({"type": "object", "additionalProperties": values});
        let of = |kind: &str| json!({"type": kind});
        let text = |format: &str| json!({"type": "string", "format": format});
        let either = json!({"x-kubernetes-int-or-string": true});
        let required = json!({"type": "object", "required": ["required"], "properties": {
            "required": {"type": "string"}, "optional": {"type": "string"}}});
        let enumeration = json!({"type": "string", "enum": ["A", "B", "C", "LongValue"]});
        let all = "self.all(x, true)";
        let twice = "self.all(x, self.all(y, true))";
        let thrice = "self.all(x, self.all(y, self.all(z, true)))";
        for (schema, limit, rule, open, most, closed) in [
            (list(of("number")), "maxItems", all, 4_718_591, 10, 32),
            (list(of("string")), "maxItems", all, 3_145_727, 20, 62),
            (list(of("boolean")), "maxItems", all, 1_887_437, 5, 17),
            (
                list(list(of("number"))),
                "maxItems",
                all,
                3_145_727,
                100,
                302,
            ),
            (map(of("number")), "maxProperties", all, 1_348_169, 10, 32),
            (map(of("string")), "maxProperties", all, 1_179_647, 3, 11),
            (map(of("boolean")), "maxProperties", all, 943_718, 100, 302),
            (
                of("string"),
                "maxLength",
                "self.contains('test')",
                314_574,
                10,
                5,
            ),
            (
                of("string"),
                "maxLength",
                "self.startsWith('test')",
                2,
                15,
                2,
            ),
            (of("string"), "maxLength", "self.endsWith('test')", 2, 30, 2),
            (
                of("string"),
                "maxLength",
                r#"size(self + "hello") > size("hello")"#,
                314_578,
                4,
                7,
            ),
            (list(of("number")), "maxItems", "self[1] == 0.0", 2, 5000, 2),
            (
                list(of("string")),
                "maxItems",
                "self[1] == self[1]",
                314_577,
                8,
                314_577,
            ),
            (list(of("number")), "maxItems", twice, u64::MAX, 10, 352),
            (list(of("number")), "maxItems", thrice, u64::MAX, 10, 3552),
            (
                of("string"),
                "maxLength",
                r#"self.matches("x")"#,
                314_574,
                50,
                22,
            ),
            (
                of("string"),
                "maxLength",
                r#""".matches("(((((((((())))))))))[0-9]")"#,
                7,
                10,
                7,
            ),
            (of("string"), "maxLength", r#"self.matches("")"#, 1, 100, 1),
            (
                map(of("string")),
                "maxProperties",
                "self.all(x, x.contains(self[x]))",
                2_752_507,
                10,
                72,
            ),
            (list(of("number")), "maxItems", "self[3] == 0.0", 2, 0, 2),
            (
                map(of("number")),
                "maxProperties",
                r#"self["x"] == 0.0"#,
                2,
                0,
                2,
            ),
            (of("string"), "maxLength", r#"self == "x""#, 2, 0, 1),
            (text("byte"), "maxLength", r#"self == b"x""#, 2, 0, 1),
            (
                list(of("number")),
                "maxItems",
                "self.all(x, x == 0.0)",
                6_291_454,
                3 * 1024 * 2048,
                25_165_826,
            ),
            (
                list(map(required.clone())),
                "maxItems",
                r#"self.all(x, x["y"].required == "z")"#,
                7_340_027,
                10,
                72,
            ),
            (list(either.clone()), "maxItems", all, 4_718_591, 10, 32),
            (list(either.clone()), "maxItems", "self[0] == 5", 3, 10, 3),
            (
                list(of("boolean")),
                "maxItems",
                "self[0] == false",
                2,
                25,
                2,
            ),
            (
                list(list(of("number"))),
                "maxItems",
                "self[0][0] == -1.0",
                3,
                51,
                3,
            ),
            (
                list(map(of("number"))),
                "maxItems",
                "self.all(x, x.y == 25.2)",
                6_291_452,
                12,
                74,
            ),
            (
                list(map(of("number"))),
                "maxItems",
                "self[0].x > 2.0",
                4,
                3000,
                4,
            ),
            (list(text("duration")), "maxItems", all, 2_359_295, 5, 17),
            (
                list(text("duration")),
                "maxItems",
                "self[0].getHours() == 2",
                4,
                525,
                4,
            ),
            (list(text("date")), "maxItems", all, 725_936, 15, 47),
            (list(text("date-time")), "maxItems", all, 428_963, 25, 77),
            (
                list(text("date-time")),
                "maxItems",
                "self[2].getMinutes() == 45",
                4,
                99,
                4,
            ),
            (map(either.clone()), "maxProperties", all, 1_348_169, 15, 47),
            (map(required.clone()), "maxProperties", all, 428_963, 20, 62),
            (
                map(text("duration")),
                "maxProperties",
                all,
                1_048_577,
                5,
                17,
            ),
            (map(text("date")), "maxProperties", all, 524_288, 10, 32),
            (
                map(text("date-time")),
                "maxProperties",
                all,
                349_526,
                25,
                77,
            ),
            (
                of("string"),
                "maxLength",
                "self.find('[0-9]+') == ''",
                629_147,
                10,
                11,
            ),
            (
                of("string"),
                "maxLength",
                "self.lowerAscii() == 'lower!'",
                314_575,
                10,
                6,
            ),
            (
                map(of("integer")),
                "maxProperties",
                "oldSelf.size() == self.size()",
                5,
                10,
                5,
            ),
            (
                map(text("date-time")),
                "maxProperties",
                r#"self["a"] == self["b"]"#,
                8,
                7,
                8,
            ),
            (
                map(text("duration")),
                "maxProperties",
                r#"self["c"] == self["d"]"#,
                8,
                42,
                8,
            ),
            (enumeration, "maxLength", "self.contains('A')", 2, 1000, 401),
        ] {
            let (found, found_closed) = (
                cost(schema.clone(), rule),
                cost(limited(schema, limit, most), rule),
            );
            match open {
                u64::MAX => assert!(found > 100_000_000, "{rule}: {found}"),
                open => assert_eq!(found, open, "{rule}"),
            }
            assert_eq!(found_closed, closed, "{rule} with {limit} {most}");
        }
    }

    /// Tests lists of texts and texts that functions build; the numbers are also those of kube-apiserver's tests.
    #[test]
    fn texts_that_are_made_cost_by_what_they_are_made_of() {
        let texts = |most: Option<u64>| match most {
            None => json!({"type": "array", "items": {"type": "string"}}),
            Some(most) => {
                json!({"type": "array", "maxItems": most, "items": {"type": "string", "maxLength": most}})
            }
        };
        for (rule, open, closed) in [
            ("self.join(' ') == 'aa bb'", 329_853_068_905, 43),
            ("self.isSorted() == true", 329_854_432_052, 52),
        ] {
            assert_eq!(
                (cost(texts(None), rule), cost(texts(Some(10)), rule)),
                (open, closed),
                "{rule}"
            );
        }
        let object = |most: Option<u64>| {
            let mut text = json!({"type": "string"});
            if let Some(most) = most {
                text["maxLength"] = most.into();
            }
            json!({"type": "object", "properties": {"str": text, "separator": text,
                "before": {"type": "string", "maxLength": 2}, "after": {"type": "string", "maxLength": 4}}})
        };
        for (rule, open, most, closed) in [
            (
                "self.str.replace(self.before, self.after) == 'does not matter'",
                629_154,
                4,
                12,
            ),
            ("self.str.split(self.separator) == []", 629_160, 10, 22),
        ] {
            assert_eq!(
                (cost(object(None), rule), cost(object(Some(most)), rule)),
                (open, closed),
                "{rule}"
            );
        }
    }
}
