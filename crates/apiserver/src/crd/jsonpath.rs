//! JSONPath with the semantics of `k8s.io/client-go/util/jsonpath`, for printer columns and selectable fields.
//!
//! Supports fields, indexes, slices, unions, `*`, `..` and filters. A path that cannot be parsed is an error. A path that cannot be
//! followed in an object, for example an index past a list's end, finds nothing there.

mod reader;
mod walk;

use serde_json::Value;

use self::{
    reader::Reader,
    walk::{VisitLimit, follow},
};

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

/// One step of a path.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Slice(Slice),
    All,
    /// All objects, lists and texts at any depth below (`..`).
    Descend,
    Union(Vec<JsonPath>),
    Filter {
        left: JsonPath,
        operator: String,
        right: JsonPath,
    },
    /// A constant in the path itself.
    Literal(Value),
}

/// `[from:to:step]`; `[from]` alone is a slice with `to` one past `from`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Slice {
    from: Option<i64>,
    to: Option<i64>,
    step: Option<i64>,
    single: bool,
}

/// The reason why a path cannot be parsed or finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JsonPathError;

impl JsonPath {
    /// Parses a path. Text after the path, which client-go would print, is ignored.
    pub(crate) fn parse(text: &str) -> Result<JsonPath, JsonPathError> {
        Reader::new(text).steps().map(JsonPath)
    }

    /// Returns the values that the path selects.
    pub(crate) fn find<'v>(&'v self, root: &'v Value) -> Result<Vec<&'v Value>, JsonPathError> {
        self.find_within(root, &mut VisitLimit::new())
    }

    fn find_within<'v>(
        &'v self,
        root: &'v Value,
        looks: &mut VisitLimit,
    ) -> Result<Vec<&'v Value>, JsonPathError> {
        follow(vec![root], &self.0, looks)
    }
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
        assert_eq!(found(30), Err(JsonPathError));
        // The limit holds for every kind of last step, even if that step finds little.
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
            assert_eq!(
                path(16, "[0,0]").find(&object),
                Err(JsonPathError),
                "{last}"
            );
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
            assert_eq!(read.find(&object), Err(JsonPathError), "{path}");
        }
        for path in [
            ".spec[",
            ".spec.l[?(@.x=]",
            ".spec.l[a]",
            "....a",
            ".spec['a\"]",
            ".a[1:2:3:4]",
        ] {
            assert_eq!(JsonPath::parse(path), Err(JsonPathError), "{path}");
        }
    }
}
