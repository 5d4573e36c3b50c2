//! Who owns what after creates, updates and patches.

mod model;
mod properties;

use serde_json::json;

use super::*;

fn writer<'a>(manager: &'a str, at: &str) -> Writer<'a> {
    Writer {
        manager,
        api_version: "v1",
        subresource: None,
        resets_status: true,
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
) -> Result<Value, crate::status::Status> {
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
