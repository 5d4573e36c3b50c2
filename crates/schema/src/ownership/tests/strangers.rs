//! Tests of managedFields entries that this version cannot parse or does not need.

use serde_json::json;

use super::*;

fn stored(entries: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "managedFields": entries}, "data": {"a": "1"}})
}

fn entry(manager: &str, version: &str, fields: Value) -> Value {
    json!({"manager": manager, "operation": "Update", "apiVersion": version, "time": DAY, "fieldsType": "FieldsV1", "fieldsV1": fields})
}

#[test]
fn whose_version_is_no_more_owns_nothing_after_the_next_write() {
    let fields = json!({"f:data": {"f:a": {}}});
    let old = stored(json!([
        entry("now", "v1", fields.clone()),
        entry("then", "v0", fields.clone()),
    ]));
    let mut new = old.clone();
    new["data"]["b"] = "2".into();
    tracked(
        &config_map(),
        &writer("bob", NEXT_DAY),
        &mut new,
        Some(&old),
    );
    let bobs = json!({"f:data": {"f:b": {}}});
    let expected = [("now".to_owned(), fields.clone()), ("bob".to_owned(), bobs)];
    assert_eq!(owners(&new), expected);
    // An entry of an obsolete version neither causes pruning nor conflicts.
    let mut old = old;
    old["metadata"]["managedFields"][1]["operation"] = "Apply".into();
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"b": "2"}});
    let applied = apply(
        &config_map(),
        &writer("then", NEXT_DAY),
        false,
        &config,
        Some(&old),
    );
    let applied = applied.expect("nothing is in the way");
    assert_eq!(applied["data"], json!({"a": "1", "b": "2"}));
}

#[test]
fn elements_of_later_versions_are_left_out_and_broken_ones_refused() {
    let read = |fields: Value| FieldSet::from_json(&fields).map(FieldSet::into_json);
    let later = json!({"f:a": {"x:y": {"f:b": {}}}, "z:": {}});
    assert_eq!(read(later), Some(json!({"f:a": {}})));
    for broken in ["k:{", "k:[]", "v:", "v:{", "i:x", "f", "", "fa:b"] {
        assert_eq!(read(json!({"f:a": {broken: {}}})), None, "{broken}");
    }
    let known = json!({"k:{\"name\":\"a\"}": {}, "v:\"a\"": {}, "v:1": {}, "i:0": {}});
    assert_eq!(read(known.clone()), Some(known));
}
