//! Property tests: for random schemas, managers and writes, the stored object, its owners and the conflicts are those of the slow model.

use proptest::prelude::*;
use serde_json::json;

use super::{
    super::*,
    model::{Model, Owner, Paths, tree},
};
use crate::{choices::Choices, structural::Schema};

impl Choices {
    /// Returns a random schema of a value.
    fn schema(&mut self, depth: u64) -> Value {
        let scalar = json!({"type": "string"});
        match self.below(if depth == 0 { 4 } else { 8 }) {
            0 | 1 => scalar,
            2 => {
                json!({"type": "array", "items": scalar, "x-kubernetes-list-type": self.of(&["atomic", "set"])})
            }
            3 => {
                json!({"type": "object", "additionalProperties": scalar, "x-kubernetes-map-type": self.of(&["granular", "atomic"])})
            }
            4 | 5 => {
                let mut schema = self.object(depth - 1);
                schema["x-kubernetes-map-type"] =
                    self.of(&["granular", "granular", "atomic"]).into();
                schema
            }
            6 => {
                let mut item = self.object(depth - 1);
                item["properties"]["k"] = scalar.clone();
                item["properties"]["p"] = json!({"type": "string", "default": "x"});
                item["required"] = json!(["k"]);
                let keys = if self.below(2) == 0 {
                    json!(["k"])
                } else {
                    json!(["p", "k"])
                };
                json!({"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys})
            }
            _ => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        }
    }

    fn object(&mut self, depth: u64) -> Value {
        let mut properties = Map::new();
        for name in ["a", "b", "c"] {
            if self.below(4) > 0 {
                properties.insert(name.to_owned(), self.schema(depth));
            }
        }
        properties.insert("z".to_owned(), json!({"type": "string"}));
        json!({"type": "object", "properties": properties})
    }

    /// Returns a random value of a schema; small, so that managers conflict.
    fn instance(&mut self, schema: &Value) -> Value {
        match schema["type"].as_str() {
            Some("array") => {
                let names = ["u", "v", "w"].into_iter().filter(|_| self.below(2) == 0);
                let names: Vec<&str> = names.collect();
                let mut items: Vec<Value> = Vec::new();
                for name in names {
                    let mut item = self.instance(&schema["items"]);
                    if item.is_object() {
                        item["k"] = name.into();
                        items.push(item);
                    } else {
                        items.push(name.into());
                    }
                }
                items.into()
            }
            Some("object") if schema["x-kubernetes-preserve-unknown-fields"] == true => {
                let mut map = Map::new();
                for name in ["a", "b"] {
                    match self.below(5) {
                        0 => map.insert(name.to_owned(), self.of(&["1", "2"]).into()),
                        1 => map.insert(name.to_owned(), json!({"d": self.of(&["1", "2"])})),
                        2 => map.insert(name.to_owned(), json!([self.of(&["1", "2"])])),
                        _ => None,
                    };
                }
                map.into()
            }
            Some("object") => {
                let mut map = Map::new();
                let given = schema["properties"].as_object();
                for (name, schema) in given.into_iter().flatten() {
                    // Keys with a default are present after defaulting; configurations omit them.
                    if name != "k" && name != "p" && self.below(2) == 0 {
                        map.insert(name.clone(), self.instance(schema));
                    }
                }
                if schema.get("additionalProperties").is_some() {
                    for name in ["s", "t"] {
                        if self.below(2) == 0 {
                            map.insert(name.to_owned(), self.of(&["1", "2"]).into());
                        }
                    }
                }
                map.into()
            }
            _ => self.of(&["1", "2"]).into(),
        }
    }

    /// Returns a random object.
    fn resource(&mut self, schema: &Value) -> Value {
        let spec = self.instance(&schema["properties"]["spec"]);
        let mut object =
            json!({"apiVersion": "e.x/v1", "kind": "X", "metadata": {"name": "x"}, "spec": spec});
        if self.below(3) == 0 {
            object["metadata"]["labels"] = json!({"l": self.of(&["1", "2"])});
        }
        if self.below(6) == 0 {
            object.as_object_mut().map(|object| object.remove("spec"));
        }
        object
    }
}

/// Returns the owners of the fields according to the object.
fn owners(object: &Value) -> BTreeMap<Owner, Paths> {
    let entries = object.pointer("/metadata/managedFields");
    let entries = entries.and_then(Value::as_array).into_iter().flatten();
    let owner = |entry: &Value| {
        let operation = if entry["operation"] == "Apply" {
            "Apply"
        } else {
            "Update"
        };
        let mut paths = Paths::new();
        collect(&entry["fieldsV1"], &mut Vec::new(), &mut paths);
        let manager = entry["manager"].as_str().unwrap_or_default().to_owned();
        ((operation, manager), paths)
    };
    entries.map(owner).collect()
}

fn collect(fields: &Value, at: &mut Vec<String>, paths: &mut Paths) {
    let map = fields.as_object().expect("sets of fields are objects");
    for (name, below) in map {
        if name == "." {
            continue;
        }
        at.push(name.clone());
        let below_map = below.as_object().expect("sets of fields are objects");
        if below_map.is_empty() || below_map.contains_key(".") {
            paths.insert(at.clone());
        }
        collect(below, at, paths);
        at.pop();
    }
}

/// Normalises a tree for the comparison: all empty values are the same.
fn bare(mut value: Value) -> Value {
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    without_nulls(&mut value);
    value
}

fn without_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(without_nulls);
    }
}

fn refused(conflicts: &BTreeMap<Owner, Paths>) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for ((operation, manager), paths) in conflicts {
        let mut set = FieldSet::default();
        for path in paths {
            set.insert(path);
        }
        let using = if *operation == "Update" {
            " using e.x/v1"
        } else {
            ""
        };
        let cause = format!("conflict with {manager:?}{using}");
        all.extend(set.paths().into_iter().map(|path| (cause.clone(), path)));
    }
    all.sort();
    all
}

fn live_through(seed: u64) -> Result<(), TestCaseError> {
    let mut choices = Choices(seed);
    let spec = choices.object(2);
    let source = json!({"type": "object", "properties": {"spec": spec}});
    let kind = Schema::parse(&source).to_type();
    let mut model = Model::default();
    let mut stored: Option<Value> = None;
    for step in 0..10 {
        let manager = choices.of(&["ann", "bob", "cyd"]);
        let now = format!("2024-06-{:02}T00:00:00Z", step + 1);
        let writer = Writer {
            manager,
            api_version: "e.x/v1",
            subresource: None,
            resets_status: false,
            resets: &[],
            now: now.parse().expect("it is a time"),
        };
        let sent = choices.resource(&source);
        let about = format!("{source}\nstep {step}: {manager} {sent}\non {stored:?}");
        if choices.below(3) == 0 {
            let mut object = sent.clone();
            // A client sends back the object that it has read.
            if let Some(entries) = stored
                .as_ref()
                .and_then(|old| old.pointer("/metadata/managedFields"))
            {
                object["metadata"]["managedFields"] = entries.clone();
            }
            track(&kind, &writer, &mut object, stored.as_ref());
            unfold(&mut object);
            model.update(manager, tree(Some(&kind), &bare(sent)));
            stored = Some(object);
        } else {
            let force = choices.below(2) == 0;
            let answer = apply(&kind, &writer, force, &sent, stored.as_ref());
            let expected = model.apply(manager, &tree(Some(&kind), &sent), force);
            match (answer, expected) {
                (Ok(mut object), Ok(())) => {
                    unfold(&mut object);
                    stored = Some(object);
                }
                (Err(status), Err(conflicts)) => {
                    let causes = status.details.map(|details| details.causes);
                    let causes = causes.unwrap_or_default().into_iter();
                    let mut told: Vec<(String, String)> =
                        causes.map(|cause| (cause.message, cause.field)).collect();
                    told.sort();
                    prop_assert_eq!(told, refused(&conflicts), "{}", about);
                    continue;
                }
                (answer, expected) => {
                    return Err(TestCaseError::fail(format!(
                        "{answer:?} {expected:?} {about}"
                    )));
                }
            }
        }
        let now_stored = stored.as_ref().expect("something was written");
        prop_assert_eq!(owners(now_stored), model.owners.clone(), "{}", about);
        let object = bare(now_stored.clone());
        let expected = model.object.as_ref().expect("something was written");
        prop_assert_eq!(
            &without_nothing(&tree(Some(&kind), &object)),
            &without_nothing(expected),
            "{}",
            about
        );
    }
    Ok(())
}

/// Removes fields without content from a tree.
fn without_nothing(tree: &super::model::Tree) -> super::model::Tree {
    use super::model::Tree;
    match tree {
        Tree::Leaf(_) | Tree::NoItems => tree.clone(),
        Tree::Inner(map) => {
            let left: BTreeMap<_, _> = map
                .iter()
                .map(|(name, (declared, below))| {
                    (name.clone(), (*declared, without_nothing(below)))
                })
                .filter(|(_, (_, below))| *below != Tree::Leaf(Value::Null))
                .collect();
            if left.is_empty() {
                return Tree::Leaf(json!({}));
            }
            Tree::Inner(left)
        }
    }
}

/// Updates an object by so many managers that the oldest are merged.
fn many_live_through(seed: u64) -> Result<(), TestCaseError> {
    let mut choices = Choices(seed);
    let source = json!({"type": "object", "properties": {"spec": choices.object(2)}});
    let kind = Schema::parse(&source).to_type();
    let mut model = Model::default();
    let mut stored: Option<Value> = None;
    for step in 0..16 {
        let manager = format!("m{:02}", choices.below(14));
        let writer = Writer {
            manager: &manager,
            api_version: "e.x/v1",
            subresource: None,
            resets_status: false,
            resets: &[],
            now: format!("2024-06-{:02}T00:00:00Z", step + 1)
                .parse()
                .expect("it is a time"),
        };
        let mut object = choices.resource(&source);
        // Each manager sets a label of its own, which no other removes.
        let labels = stored.as_ref().map(|old| old["metadata"]["labels"].clone());
        object["metadata"]["labels"] = labels.unwrap_or_else(|| json!({}));
        object["metadata"]["labels"][&manager] = "x".into();
        model.update(&manager, tree(Some(&kind), &bare(object.clone())));
        track(&kind, &writer, &mut object, stored.as_ref());
        unfold(&mut object);
        let told = owners(&object);
        prop_assert!(told.len() <= MAX_UPDATE_MANAGERS + 1, "{:?}", told.keys());
        let all = |owners: &BTreeMap<Owner, Paths>| -> Paths {
            owners.values().flatten().cloned().collect()
        };
        prop_assert_eq!(all(&told), all(&model.owners), "{}", source);
        // A manager that was merged and writes again owns only what it writes then; the rest stays merged.
        for (owner, paths) in told.iter().filter(|((_, name), _)| name != ANCIENT_CHANGES) {
            let all = model.owners.get(owner);
            prop_assert!(
                all.is_some_and(|all| paths.is_subset(all)),
                "{:?} {}",
                owner,
                source
            );
        }
        if !told.keys().any(|(_, name)| name == ANCIENT_CHANGES) {
            prop_assert_eq!(&told, &model.owners, "{}", source);
        }
        stored = Some(object);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn applies_and_updates_of_several_managers_are_as_the_slow_model_has_them(seed: u64) {
        live_through(seed)?;
    }

    #[test]
    fn of_many_managers_the_oldest_are_merged_and_nothing_owned_is_lost(seed: u64) {
        many_live_through(seed)?;
    }
}
