//! Where custom resources are and where not: what is behind no router is refused in words of its own.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::{
    api::Api,
    custom_resources::{CRONTABS, crontab, crontabs, established},
};

const GROUP: &str = "/apis/stable.example.com";
const JSON: &str = "application/json";

#[tokio::test]
async fn paths_that_name_no_custom_resource_are_not_found_in_bare_text() {
    let api = Api::new(Config::default());
    established(&api, crontabs()).await;
    api.post(CRONTABS, crontab("a", json!({"cron": "*"})))
        .await
        .ok();
    for (method, path) in [
        ("GET", "/v1/namespaces/default/others"),
        ("GET", "/v2/namespaces/default/crontabs"),
        ("GET", "/v2"),
        ("GET", "/v1/crontabs/a"),
        ("GET", "/v1/crontabs/a/status"),
        ("POST", "/v1/crontabs"),
        ("PUT", "/v1/crontabs"),
        ("DELETE", "/v1/crontabs"),
        ("DELETE", "/v1/crontabs/a"),
    ] {
        let answer = api
            .send_text(method, &format!("{GROUP}{path}"), JSON, "{}")
            .await;
        assert_eq!(
            (answer.status, answer.body),
            (404, Value::Null),
            "{method} {path}"
        );
    }
    let listed = api.get(&format!("{GROUP}/v1/crontabs")).await.ok();
    assert_eq!(listed["items"][0]["metadata"]["name"], "a");
    // What is built in has a router before it.
    let path = "/apis/apps/v1/namespaces/default/others";
    let message = "the server could not find the requested resource";
    assert_eq!(api.get(path).await.refused(404), message);
}

#[tokio::test]
async fn verbs_and_parts_that_custom_resources_do_not_have_are_told_apart() {
    let api = Api::new(Config::default());
    established(&api, crontabs()).await;
    api.post(CRONTABS, crontab("a", json!({"cron": "*"})))
        .await
        .ok();
    let details = |name: &str| match name {
        "" => json!({"group": "stable.example.com", "kind": "crontabs"}),
        name => json!({"name": name, "group": "stable.example.com", "kind": "crontabs"}),
    };
    for (method, path, status, message, told) in [
        (
            "GET",
            "/a/log",
            404,
            r#"crontabs.stable.example.com "a" not found"#,
            details("a"),
        ),
        (
            "DELETE",
            "/b/log",
            404,
            r#"crontabs.stable.example.com "b" not found"#,
            details("b"),
        ),
        (
            "POST",
            "/a/status",
            405,
            r#"create is not supported on resources of kind "crontabs.stable.example.com""#,
            details(""),
        ),
        (
            "DELETE",
            "/a/scale",
            405,
            r#"delete is not supported on resources of kind "crontabs.stable.example.com""#,
            details(""),
        ),
        ("PUT", "", 400, "name must be provided", Value::Null),
    ] {
        let answer = api
            .send_text(method, &format!("{CRONTABS}{path}"), JSON, "{}")
            .await;
        assert_eq!(answer.body["details"], told, "{method} {path}");
        assert_eq!(answer.refused(status), message, "{method} {path}");
    }
    let named = api
        .post(&format!("{CRONTABS}/b"), crontab("c", json!({"cron": "*"})))
        .await
        .ok();
    assert_eq!(named["metadata"]["name"], "c");
    let patched = api.merge(CRONTABS, json!({})).await;
    assert_eq!(patched.refused(400), "name must be provided");
    let patched = api.send_text("PATCH", CRONTABS, "text/plain", "{}").await;
    assert_eq!(patched.status, 415);
}

#[tokio::test]
async fn a_scale_says_that_there_is_no_count() {
    let api = Api::new(Config::default());
    let mut definition = crontabs();
    let versions = &mut definition["spec"]["versions"];
    let spec = &mut versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    *spec = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    versions[0]
        .as_object_mut()
        .unwrap()
        .remove("selectableFields");
    established(&api, definition).await;
    api.post(CRONTABS, crontab("a", json!({}))).await.ok();
    let scale = format!("{CRONTABS}/a/scale");
    assert_eq!(
        api.get(&scale).await.refused(500),
        r#"Internal error occurred: the spec replicas field ".spec.replicas" does not exist"#
    );
    let labels = json!({"metadata": {"labels": {}}});
    assert_eq!(
        api.merge(&scale, labels).await.refused(400),
        r#"the spec replicas field ".spec.replicas" cannot be empty"#
    );
    let set = api
        .merge(&scale, json!({"spec": {"replicas": 0}}))
        .await
        .ok();
    assert_eq!(set["spec"], json!({}));
    assert_eq!(api.get(&scale).await.ok()["spec"], json!({}));
}

#[tokio::test]
async fn a_custom_resource_that_says_nothing_of_its_kind_is_not_recognized() {
    let api = Api::new(Config::default());
    established(&api, crontabs()).await;
    for (body, shown) in [
        ("{}", "'{}' ({})"),
        ("null", "'null' (6e756c6c)"),
        (
            r#"{"apiVersion":"stable.example.com/v1"}"#,
            r#"'{"apiVersion":"stable.example.com/v1"}' ({"apiVersion":"stable.example. ...)"#,
        ),
    ] {
        let answer = api.send_text("POST", CRONTABS, JSON, body).await;
        assert_eq!(
            answer.refused(400),
            format!(
                "the object provided is unrecognized (must be of type CronTab): Object 'Kind' is missing in {shown}"
            )
        );
    }
    let unchecked = format!("{CRONTABS}?fieldValidation=Ignore");
    assert_eq!(
        api.send_text("POST", &unchecked, JSON, "{}")
            .await
            .refused(400),
        r#"CronTab in version "v1" cannot be handled as a CronTab: Object 'Kind' is missing in '{}'"#
    );
    api.post(CRONTABS, crontab("a", json!({"cron": "*"})))
        .await
        .ok();
    let path = format!("{CRONTABS}/a");
    for (version, message) in [
        (
            "stable.example.com/v2",
            r#"CronTab.stable.example.com "a" is invalid: apiVersion: Invalid value: "stable.example.com/v2": must be stable.example.com/v1"#,
        ),
        (
            "foo/v1",
            r#"CronTab.foo "a" is invalid: apiVersion: Invalid value: "foo/v1": must be stable.example.com/v1"#,
        ),
    ] {
        let patched = api.merge(&path, json!({"apiVersion": version})).await;
        assert_eq!(patched.refused(422), message);
    }
}

#[tokio::test]
async fn whole_floats_of_custom_resources_are_whole_numbers() {
    let api = Api::new(Config::default());
    established(&api, crontabs()).await;
    let body = |spec: &str| {
        format!(
            r#"{{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{{"name":"a"}},"spec":{spec}}}"#
        )
    };
    let sent = body(r#"{"cron":"*","replicas":-5.0}"#);
    let answer = api.send_text("POST", CRONTABS, JSON, &sent).await;
    let message = answer.refused(422);
    assert!(
        message.contains(
            "Invalid value: -5: spec.replicas in body should be greater than or equal to 0"
        ),
        "{message}"
    );
    let sent = body(r#"{"cron":"*","free":{"a":[1e3,-0.0,2.5],"b":5.0}}"#);
    let answer = api.send_text("POST", CRONTABS, JSON, &sent).await.ok();
    assert_eq!(answer["spec"]["free"], json!({"a": [1000, 0, 2.5], "b": 5}));
}
