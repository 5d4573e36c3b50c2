//! Tests of managedFields after creates, updates and patches.

mod model;
mod properties;
mod strangers;

use serde_json::json;

use super::*;
use crate::{Field, List, Name, Presence, Scalar, Struct};

fn writer<'a>(manager: &'a str, at: &str) -> Writer<'a> {
    Writer {
        manager,
        api_version: "v1",
        subresource: None,
        resets_status: true,
        resets: &[],
        now: at.parse().expect("the test gives a time"),
    }
}

fn tracked(kind: &Type, writer: &Writer<'_>, object: &mut Value, old: Option<&Value>) {
    track(kind, writer, object, old);
    unfold(object);
}

fn config_map() -> Type {
    Type::builtin("api.core.v1.ConfigMap").expect("config maps are built in")
}

const DAY: &str = "2024-05-01T00:00:00Z";
const NEXT_DAY: &str = "2024-05-02T00:00:00Z";

fn created(data: Value) -> Value {
    let mut object = json!({"metadata": {"name": "c", "uid": "u"}, "data": data});
    tracked(&config_map(), &writer("alice", DAY), &mut object, None);
    object
}

fn owners(object: &Value) -> Vec<(String, Value)> {
    let entries = object["metadata"]["managedFields"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let name = |entry: &Value| entry["manager"].as_str().unwrap_or_default().to_owned();
    entries
        .iter()
        .map(|entry| (name(entry), entry["fieldsV1"].clone()))
        .collect()
}

#[test]
fn the_creator_owns_what_it_sent_but_not_names_and_uids() {
    let object = created(json!({"a": "1"}));
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{"manager": "alice", "operation": "Update", "apiVersion": "v1", "time": DAY, "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {".": {}, "f:a": {}}}}])
    );
}

#[test]
fn whoever_changes_a_field_takes_it_from_its_owner() {
    let old = created(json!({"a": "1", "b": "1"}));
    let mut new = old.clone();
    new["data"] = json!({"a": "2", "c": "3"});
    tracked(
        &config_map(),
        &writer("bob", NEXT_DAY),
        &mut new,
        Some(&old),
    );
    assert_eq!(
        owners(&new),
        [
            ("alice".to_owned(), json!({"f:data": {}})),
            ("bob".to_owned(), json!({"f:data": {"f:a": {}, "f:c": {}}}))
        ]
    );
}

#[test]
fn a_write_without_change_leaves_the_times_alone() {
    let old = created(json!({"a": "1"}));
    let mut new = old.clone();
    tracked(
        &config_map(),
        &writer("alice", NEXT_DAY),
        &mut new,
        Some(&old),
    );
    assert_eq!(new, old);
    new["metadata"]["managedFields"][0]["time"] = NEXT_DAY.into();
    settle_times(&mut new, &old);
    assert_eq!(new, old);
}

#[test]
fn one_empty_entry_forgets_all_owners_for_good() {
    let old = created(json!({"a": "1"}));
    let mut reset = old.clone();
    reset["metadata"]["managedFields"] = json!([{}]);
    tracked(&config_map(), &writer("alice", DAY), &mut reset, Some(&old));
    assert_eq!(reset["metadata"].get("managedFields"), None);
    let mut later = reset.clone();
    later["data"]["a"] = "2".into();
    tracked(
        &config_map(),
        &writer("alice", DAY),
        &mut later,
        Some(&reset),
    );
    assert_eq!(later["metadata"].get("managedFields"), None);
}

#[test]
fn the_eleventh_manager_merges_the_oldest_two() {
    let mut object = created(json!({}));
    for day in 1..=12 {
        let old = object.clone();
        object["data"][format!("k{day}")] = "x".into();
        let (name, at) = (format!("m{day:02}"), format!("2024-06-{day:02}T00:00:00Z"));
        tracked(&config_map(), &writer(&name, &at), &mut object, Some(&old));
    }
    let names: Vec<String> = owners(&object).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 10);
    assert!(
        names.contains(&"ancient-changes".to_owned()) && !names.contains(&"m01".to_owned()),
        "{names:?}"
    );
}

#[test]
fn status_and_the_rest_have_different_owners() {
    let kind = Type::builtin("api.core.v1.Pod").expect("pods are built in");
    let spec = json!({"containers": [{"name": "a", "image": "i", "resources": {}}]});
    let mut pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec, "status": {"phase": "Running"}});
    tracked(&kind, &writer("alice", DAY), &mut pod, None);
    let containers =
        json!({"k:{\"name\":\"a\"}": {".": {}, "f:image": {}, "f:name": {}, "f:resources": {}}});
    assert_eq!(
        owners(&pod),
        [(
            "alice".to_owned(),
            json!({"f:spec": {"f:containers": containers}})
        )]
    );
    let old = pod.clone();
    pod["status"] = json!({"phase": "Failed", "conditions": [{"type": "Ready", "status": "False", "lastProbeTime": null}]});
    pod["spec"]["nodeName"] = "n".into();
    let kubelet = Writer {
        subresource: Some("status"),
        ..writer("kubelet", DAY)
    };
    tracked(&kind, &kubelet, &mut pod, Some(&old));
    assert_eq!(
        owners(&pod)[1],
        (
            "kubelet".to_owned(),
            json!({"f:status": {"f:phase": {}, "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}":
                {".": {}, "f:type": {}, "f:status": {}, "f:lastProbeTime": {}}}}})
        )
    );
}

fn applied(
    config: Value,
    manager: &str,
    force: bool,
    old: Option<&Value>,
) -> Result<Value, mullion_kube_text::status::Status> {
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": config});
    apply(&config_map(), &writer(manager, DAY), force, &config, old)
}

#[test]
fn an_apply_owns_what_it_names_and_gives_up_what_it_no_longer_names() {
    let first =
        applied(json!({"a": "1", "b": "1"}), "m", false, None).expect("nothing is there yet");
    assert_eq!(
        owners(&first),
        [("m".to_owned(), json!({"f:data": {"f:a": {}, "f:b": {}}}))]
    );
    let mut stored = first;
    stored["data"]["other"] = "x".into();
    let second = applied(json!({"a": "2"}), "m", false, Some(&stored)).expect("nobody else owns a");
    assert_eq!(second["data"], json!({"a": "2", "other": "x"}));
    assert_eq!(
        owners(&second),
        [("m".to_owned(), json!({"f:data": {"f:a": {}}}))]
    );
}

#[test]
fn what_another_manager_owns_is_refused_unless_forced_or_equal() {
    let stored =
        applied(json!({"a": "1", "b": "1"}), "m", false, None).expect("nothing is there yet");
    let refused =
        applied(json!({"a": "9", "b": "8"}), "n", false, Some(&stored)).expect_err("m owns both");
    assert_eq!(
        refused.message,
        "Apply failed with 2 conflicts: conflicts with \"m\":\n- .data.a\n- .data.b"
    );
    let forced = applied(json!({"a": "9"}), "n", true, Some(&stored)).expect("force wins");
    assert_eq!(
        owners(&forced),
        [
            ("m".to_owned(), json!({"f:data": {"f:b": {}}})),
            ("n".to_owned(), json!({"f:data": {"f:a": {}}}))
        ]
    );
    let shared = applied(json!({"a": "1"}), "n", false, Some(&stored))
        .expect("the same value is no conflict");
    assert_eq!(
        shared["metadata"]["managedFields"].as_array().map(Vec::len),
        Some(2)
    );
}

#[test]
fn an_object_that_nobody_owns_yet_was_there_before_the_first_apply() {
    let stored = json!({"metadata": {"name": "c", "uid": "u"}, "data": {"a": "1"}});
    let refused =
        applied(json!({"a": "2"}), "m", false, Some(&stored)).expect_err("somebody has set it");
    assert_eq!(
        refused.message,
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a"
    );
}

#[test]
fn applied_list_items_merge_by_their_keys_which_may_have_defaults() {
    let kind = Type::builtin("api.core.v1.Service").expect("services are built in");
    let service = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}});
    let first = apply(
        &kind,
        &writer("m", DAY),
        false,
        &service(json!([{"port": 53, "protocol": "UDP"}, {"port": 53}])),
        None,
    );
    let first = first.expect("the protocols differ");
    let config = service(json!([{"port": 53, "name": "dns", "protocol": "TCP"}]));
    let second =
        apply(&kind, &writer("n", DAY), false, &config, Some(&first)).expect("the name is new");
    assert_eq!(
        second["spec"]["ports"],
        json!([{"port": 53, "protocol": "UDP"}, {"port": 53, "name": "dns", "protocol": "TCP"}])
    );
    let twice = service(json!([{"port": 53}, {"port": 53, "protocol": "TCP"}]));
    let refused = apply(&kind, &writer("m", DAY), false, &twice, None).expect_err("one key twice");
    assert!(
        refused
            .message
            .ends_with(".spec.ports: duplicate entries for key [port=53,protocol=\"TCP\"]"),
        "{}",
        refused.message
    );
}

/// Returns a custom resource's type with one field `spec`.
fn custom(spec: impl FnOnce(&mut Arena) -> TypeId) -> Type {
    let mut arena = Arena::default();
    let field = |name: &'static str, id| Field {
        name: Name::new(name),
        id,
        presence: Presence::Verbatim,
        go: "".into(),
        tags: Vec::new(),
        required: false,
        retain_keys: false,
        replace: false,
        declared: "".into(),
        place: 0,
    };
    let open = || Struct {
        preserve: true,
        custom: true,
        ..Struct::default()
    };
    let metadata = arena.push(Node::Struct(open()));
    let spec = spec(&mut arena);
    let fields = vec![field("metadata", metadata), field("spec", spec)];
    let root = arena.push(Node::Struct(Struct {
        fields,
        custom: true,
        ..Struct::default()
    }));
    Type::of(std::sync::Arc::new(arena), root)
}

fn map_of_text(atomic: bool) -> Type {
    custom(|arena| {
        let value = arena.push(Node::Scalar(Scalar::String));
        arena.push(Node::Map { value, atomic })
    })
}

fn items_by_name() -> Type {
    custom(|arena| {
        let item = arena.push(Node::Struct(Struct {
            preserve: true,
            custom: true,
            ..Struct::default()
        }));
        arena.push(Node::List(List {
            item,
            kind: ListKind::Map,
            declared: true,
            keys: vec!["name".into()],
            key_defaults: Vec::new(),
            merge_key: None,
            merge: false,
            retain_keys: false,
        }))
    })
}

fn applied_spec(kind: &Type, manager: &str, spec: Value, old: Option<&Value>) -> Value {
    let config = json!({"metadata": {}, "spec": spec});
    apply(kind, &writer(manager, DAY), false, &config, old).expect("nobody minds")
}

#[test]
fn an_applied_null_takes_nothing_away_that_others_own() {
    let kind = map_of_text(false);
    let old = applied_spec(&kind, "a", json!({"x": "1"}), None);
    let both = applied_spec(&kind, "b", json!(null), Some(&old));
    assert_eq!(both["spec"], json!({"x": "1"}));
    // The apply changes nothing, so the new owner has no time and is sorted first.
    assert_eq!(owners(&both)[0], ("b".to_owned(), json!({"f:spec": {}})));
    assert_eq!(
        applied_spec(&kind, "c", json!(null), None)["spec"],
        json!(null)
    );
}

#[test]
fn items_with_one_key_are_owned_as_one_until_one_is_left() {
    let kind = items_by_name();
    let mut twice = json!({"metadata": {}, "spec": [{"name": "a", "v": 1}, {"name": "a", "v": 2}]});
    tracked(&kind, &writer("u", DAY), &mut twice, None);
    let item = r#"k:{"name":"a"}"#;
    assert_eq!(
        owners(&twice),
        [("u".to_owned(), json!({"f:spec": {".": {}, item: {}}}))]
    );
    // An apply replaces all items with that key by one.
    let once = apply(
        &kind,
        &writer("a", DAY),
        true,
        &json!({"metadata": {}, "spec": [{"name": "a", "w": 3}]}),
        Some(&twice),
    )
    .expect("it is forced");
    assert_eq!(once["spec"], json!([{"name": "a", "w": 3}]));
    let mut one = twice.clone();
    one["spec"] = json!([{"name": "a", "v": 1}]);
    tracked(&kind, &writer("v", DAY), &mut one, Some(&twice));
    assert_eq!(
        owners(&one),
        [
            ("u".to_owned(), json!({"f:spec": {}})),
            (
                "v".to_owned(),
                json!({"f:spec": {item: {".": {}, "f:name": {}, "f:v": {}}}})
            )
        ]
    );
}

#[test]
fn lists_as_long_as_requests_are_merged_and_owned_item_by_item() {
    let kind = items_by_name();
    let items = |numbers: &mut dyn Iterator<Item = u32>| -> Value {
        numbers
            .map(|number| json!({"name": format!("n{number}")}))
            .collect()
    };
    let ascending = items(&mut (0..4_000));
    let descending = items(&mut (2_000..6_000).rev());
    let one = applied_spec(&kind, "a", ascending, None);
    let both = applied_spec(&kind, "b", descending, Some(&one));
    assert_eq!(both["spec"].as_array().map(Vec::len), Some(6_000));
    let mut few = both.clone();
    few["spec"] = items(&mut (0..2));
    tracked(&kind, &writer("u", DAY), &mut few, Some(&both));
    let item = json!({".": {}, "f:name": {}});
    let left = json!({"f:spec": {r#"k:{"name":"n0"}"#: item, r#"k:{"name":"n1"}"#: item}});
    assert_eq!(owners(&few), [("a".to_owned(), left)]);
}

#[test]
fn an_order_that_changes_is_a_change() {
    let kind = items_by_name();
    let (a, b) = (json!({"name": "a"}), json!({"name": "b"}));
    let old = applied_spec(&kind, "x", json!([a, b]), None);
    let config = json!({"metadata": {}, "spec": [b, a]});
    let new =
        apply(&kind, &writer("x", NEXT_DAY), false, &config, Some(&old)).expect("it is theirs");
    assert_eq!(new["spec"], json!([b, a]));
    assert_eq!(new["metadata"]["managedFields"][0]["time"], NEXT_DAY);
}

#[test]
fn who_owned_a_part_of_what_is_one_value_since_owns_the_value() {
    let old = applied_spec(&map_of_text(false), "a", json!({"x": "1"}), None);
    let one = map_of_text(true);
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"l": "1"});
    tracked(&one, &writer("u", DAY), &mut new, Some(&old));
    assert_eq!(owners(&new)[0], ("a".to_owned(), json!({"f:spec": {}})));
    let refused = apply(
        &one,
        &writer("b", DAY),
        false,
        &json!({"metadata": {}, "spec": {"y": "2"}}),
        Some(&old),
    );
    assert_eq!(
        refused.map_err(|status| status.message),
        Err("Apply failed with 1 conflict: conflict with \"a\": .spec".to_owned())
    );
}

#[test]
fn kubectl_keeps_the_annotation_of_its_client_side_applies_as_long_as_it_fits() {
    let last = |config: &Value| config["metadata"]["annotations"][apply::LAST_APPLIED].clone();
    let live = |text: &str| {
        let annotations = json!({apply::LAST_APPLIED: text});
        json!({"apiVersion": "v1", "metadata": {"name": "c", "annotations": annotations}, "data": {"a": "1"}})
    };
    let kubectl = |live: Value, config: &Value| {
        apply(
            &config_map(),
            &writer("kubectl", DAY),
            true,
            config,
            Some(&live),
        )
        .expect("it is forced")
    };
    let config =
        json!({"metadata": {"annotations": {apply::LAST_APPLIED: "mine"}}, "data": {"a": "2"}});
    assert_eq!(
        last(&kubectl(live("{}"), &config)),
        "{\"data\":{\"a\":\"2\"},\"metadata\":{\"annotations\":{}}}\n"
    );
    let large = json!({"metadata": {}, "data": {"a": "x".repeat(300_000)}});
    assert_eq!(last(&kubectl(live("{}"), &large)), Value::Null);
    assert_eq!(last(&kubectl(live(""), &json!({"metadata": {}}))), "");
}

#[test]
fn what_was_applied_by_a_client_in_another_version_is_no_excuse() {
    let text = |version: &str| {
        json!({"apiVersion": version, "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}).to_string()
    };
    let live = |version: &str| {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
            "metadata": {"name": "c", "annotations": {apply::LAST_APPLIED: text(version)}}});
        tracked(
            &config_map(),
            &writer("kubectl-client-side-apply", DAY),
            &mut object,
            None,
        );
        object
    };
    let config = json!({"metadata": {"name": "c"}, "data": {"a": "2"}});
    let kubectl = |live: &Value| {
        apply(
            &config_map(),
            &writer("kubectl", DAY),
            false,
            &config,
            Some(live),
        )
        .map(|new| new["data"]["a"].clone())
    };
    assert_eq!(kubectl(&live("v1")), Ok("2".into()));
    assert_eq!(kubectl(&live("v2")).map_err(|status| status.code), Err(409));
}
