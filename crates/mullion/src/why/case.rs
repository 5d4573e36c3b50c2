//! Reads a case of `--cases`: a small cluster and the pod to explain, on one line.

use std::fmt;

use mullion_engine::{Cluster, model::PodSpec};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::value::RawValue;

use super::{
    nulls::without_nulls,
    object::{Items, Text, fault, title},
    state::State,
};
use crate::input::{json, not_utf8};

/// A case: a cluster's state, and the pod to explain.
pub(super) struct Case {
    /// The state made of all objects in `items`.
    pub(super) state: State,
    /// The pod in the field `pod`.
    pub(super) pod: PodSpec,
}

impl Case {
    /// Reads a line `{"items": [...], "pod": {...}}` into a copy of `empty`; other fields are ignored.
    ///
    /// # Errors
    /// The line is malformed or contradicts itself.
    pub(super) fn read(line: &[u8], empty: &Cluster) -> Result<Self, serde_json::Error> {
        let visitor = || Line(State::of(empty.clone()));
        // Validating the line as UTF-8 once is faster than validating each of its strings.
        let case = match std::str::from_utf8(line) {
            Ok(text) => read(text, visitor()),
            Err(_) => Err(not_utf8(line)),
        };
        // Tried only after a failure: nulls are rare, and looking for them costs a pass over every line.
        case.or_else(|error| match without_nulls(line) {
            Some(text) => read(&text, visitor()),
            None => Err(error),
        })
    }

    /// Returns which object of a refused line is wrong, and why; `None` if the line itself is malformed.
    pub(super) fn find_invalid_object(line: &[u8], empty: &Cluster) -> Option<String> {
        #[derive(Deserialize)]
        struct Parts {
            #[serde(default)]
            items: Vec<Box<RawValue>>,
            pod: Option<Box<RawValue>>,
        }
        let parts: Parts = json(line).ok()?;
        let mut state = State::of(empty.clone());
        for (index, item) in parts.items.iter().enumerate() {
            if let Err(error) = state.add(item, "") {
                return Some(match title(item, "").as_str() {
                    "" => format!("items[{index}]: {}", fault(&error)),
                    title => format!("items[{index}] ({title}): {}", fault(&error)),
                });
            }
        }
        let Some(pod) = parts.pod else {
            return Some(
                "there is no pod: \"pod\": {...} says which one is asked about".to_owned(),
            );
        };
        let error = serde_json::from_str::<Fields>(pod.get()).err()?;
        Some(format!("pod: {}", fault(&error)))
    }
}

fn read(text: &str, visitor: Line) -> Result<Case, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let case = (&mut reader).deserialize_map(visitor)?;
    reader.end()?;
    Ok(case)
}

struct Line(State);

impl<'de> Visitor<'de> for Line {
    type Value = Case;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a case: {\"items\": [...], \"pod\": {...}}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Case, A::Error> {
        let mut state = self.0;
        let mut pod = None;
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match &*key.0 {
                "items" => map.next_value_seed(Items {
                    state: &mut state,
                    usual: "",
                })?,
                "pod" => pod = Some(map.next_value::<Fields>()?.0),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let pod = pod.ok_or_else(|| A::Error::missing_field("pod"))?;
        Ok(Case { state, pod })
    }
}

/// The pod of a case. Serde would also take a list of values for it.
struct Fields(PodSpec);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PodVisitor).map(Fields)
    }
}

struct PodVisitor;

impl<'de> Visitor<'de> for PodVisitor {
    type Value = PodSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pod")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PodSpec, A::Error> {
        PodSpec::deserialize(MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use mullion_engine::Options;

    use super::*;

    #[test]
    fn null_means_nothing() {
        let pod = r#"{"kind":"Pod","metadata":{"name":"a","ownerReferences":null},"spec":{"nodeName":"n","containers":null}}"#;
        let line = format!(r#"{{"items":[{pod}],"pod":{pod}}}"#);
        let case = Case::read(line.as_bytes(), &Cluster::new(Options::default()));
        assert_eq!(case.expect("a case").state.cluster.pod_count(), 1);
    }

    #[test]
    fn what_is_wrong_with_a_case_says_which_item() {
        let wrong = |line: &str| {
            let read = Case::read(line.as_bytes(), &Cluster::new(Options::default()));
            read.map(|_| ()).expect_err("refused").to_string()
        };
        let nameless = |kind: &str| {
            format!(
                r#"{{"items":[{{"kind":"{kind}","metadata":{{}},"spec":{{"nodeName":"n"}}}}],"pod":{{}}}}"#
            )
        };
        for kind in [
            "Pod",
            "Service",
            "Namespace",
            "PersistentVolume",
            "NodePool",
            "Node",
        ] {
            let said = wrong(&nameless(kind));
            assert!(
                said.starts_with("items[0]: an object without a name"),
                "{kind}: {said}"
            );
        }
        let twice = r#"{"items":[{"kind":"Node","metadata":{"name":"a"}},{"kind":"Node","metadata":{"name":"a"}}],"pod":{}}"#;
        assert!(wrong(twice).starts_with("items[1]: "), "{}", wrong(twice));
        let blame = |line: &str| {
            Case::find_invalid_object(line.as_bytes(), &Cluster::new(Options::default()))
        };
        let blamed = blame(twice).expect("an object");
        assert!(blamed.starts_with("items[1] (Node a): "), "{blamed}");
        let pod = blame(r#"{"items":[],"pod":{"spec":7}}"#).expect("the pod");
        assert!(pod.starts_with("pod: invalid type"), "{pod}");
        assert!(wrong(r#"{"items":[]}"#).contains("missing field `pod`"));
        assert!(wrong("[]").contains("a case"), "{}", wrong("[]"));
    }
}
