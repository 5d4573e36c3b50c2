//! Which writes a webhook is asked about.

use serde_json::{Value, json};

use super::{
    Api, MAPS, VALIDATING, api, configure, hook, map,
    program::{Program, allow},
    with,
};

fn labelled(name: &str, labels: Value) -> Value {
    with(
        map(name),
        json!({"metadata": {"name": name, "labels": labels}}),
    )
}

fn names(program: &Program) -> Vec<String> {
    let name = |request: &Value| {
        let namespace = request["namespace"].as_str().unwrap_or("");
        format!("{namespace}/{}", request["name"].as_str().unwrap_or(""))
    };
    program.asked().iter().map(name).collect()
}

#[tokio::test]
async fn selectors_look_at_the_namespace_and_at_the_object_new_or_old() {
    let program = Program::start(allow).await;
    let api = api();
    let namespace =
        |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
    api.post(
        "/api/v1/namespaces",
        namespace("one", json!({"env": "prod"})),
    )
    .await
    .ok();
    api.post(
        "/api/v1/namespaces",
        namespace("two", json!({"env": "test"})),
    )
    .await
    .ok();
    let selective = json!({
        "namespaceSelector": {"matchLabels": {"env": "prod"}},
        "objectSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
    });
    let of_maps = with(program.hook("maps", &["configmaps"]), selective);
    let of_namespaces = with(
        program.hook("namespaces", &["namespaces"]),
        json!({"namespaceSelector": {"matchLabels": {"env": "prod"}}}),
    );
    configure(&api, VALIDATING, &[of_maps, of_namespaces]).await;

    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    for namespace in ["one", "two"] {
        api.post(&maps(namespace), labelled("with", json!({"app": "x"})))
            .await
            .ok();
        api.post(&maps(namespace), map("without")).await.ok();
    }
    assert_eq!(names(&program), ["one/with"]);
    program.forget();
    // The label goes, but it was there.
    api.merge(
        &format!("{}/with", maps("one")),
        json!({"metadata": {"labels": null}}),
    )
    .await
    .ok();
    api.merge(
        &format!("{}/with", maps("one")),
        json!({"data": {"b": "1"}}),
    )
    .await
    .ok();
    assert_eq!(names(&program), ["one/with"]);
    program.forget();
    // A namespace is selected by its own labels, as they will be.
    api.post(
        "/api/v1/namespaces",
        namespace("three", json!({"env": "prod"})),
    )
    .await
    .ok();
    api.post("/api/v1/namespaces", namespace("four", json!({})))
        .await
        .ok();
    api.merge(
        "/api/v1/namespaces/two",
        json!({"metadata": {"labels": {"env": "prod"}}}),
    )
    .await
    .ok();
    assert_eq!(names(&program), ["three/three", "two/two"]);
}

async fn configured(program: &Program, conditions: Value, policy: &str) -> Api {
    let api = api();
    let conditional = json!({"matchConditions": conditions, "failurePolicy": policy});
    configure(
        &api,
        VALIDATING,
        &[with(program.hook("v", &["configmaps"]), conditional)],
    )
    .await;
    api
}

fn conditions(expressions: &[&str]) -> Value {
    let named = |(index, expression): (usize, &&str)| json!({"name": format!("c{index}"), "expression": expression});
    expressions.iter().enumerate().map(named).collect()
}

#[tokio::test]
async fn match_conditions_see_the_object_the_old_one_the_request_and_the_rights() {
    let program = Program::start(allow).await;
    for (expression, asked) in [
        ("object.data.a == '1'", true),
        ("object.data.a == '2'", false),
        ("oldObject == null && request.operation == 'CREATE'", true),
        (
            "request.userInfo.username == 'admin' && 'system:masters' in request.userInfo.groups",
            true,
        ),
        (
            "request.namespace == 'default' && request.resource.resource == 'configmaps'",
            true,
        ),
        (
            "has(object.metadata.labels) && 'app.kubernetes.io/name' in object.metadata.labels",
            false,
        ),
        (
            "object.metadata.annotations['example.com/a.b'] == 'c'",
            true,
        ),
        (
            "object.metadata.managedFields.exists(m, m.manager == 'unknown')",
            true,
        ),
        (
            "authorizer.group('').resource('pods').namespace('default').check('create').allowed()",
            true,
        ),
        ("authorizer.requestResource.check('create').allowed()", true),
        (
            "authorizer.serviceAccount('default', 'default').path('/metrics').check('get').allowed()",
            false,
        ),
        // Everybody who is authenticated may ask for this; the account of an expression is not.
        (
            "authorizer.serviceAccount('default', 'default').path('/healthz').check('get').allowed()",
            false,
        ),
        (
            "!object.metadata.name.startsWith('m') || object.data.size() == 2",
            false,
        ),
    ] {
        let api = configured(&program, conditions(&["true", expression]), "Fail").await;
        let annotated = with(
            map("m"),
            json!({"metadata": {"name": "m", "annotations": {"example.com/a.b": "c"}}}),
        );
        let answer = api.post(MAPS, annotated).await;
        assert_eq!(answer.status, 201, "{expression}: {}", answer.body);
        assert_eq!(!program.asked().is_empty(), asked, "{expression}");
        program.forget();
    }
}

#[tokio::test]
async fn a_condition_without_a_value_is_settled_by_others_or_by_the_failure_policy() {
    let program = Program::start(allow).await;
    let odd = "object.data.none == '1'";
    let api = configured(&program, conditions(&[odd]), "Fail").await;
    let answer = api.post(MAPS, map("m")).await;
    assert_eq!(
        (answer.status, &answer.body["reason"]),
        (403, &"Forbidden".into())
    );
    assert_eq!(
        answer.body["message"],
        "configmaps \"m\" is forbidden: expression 'object.data.none == '1'' resulted in error: no such key: none"
    );
    let api = configured(&program, conditions(&[odd, "false"]), "Fail").await;
    assert_eq!(api.post(MAPS, map("m")).await.status, 201);
    let api = configured(&program, conditions(&[odd, "true"]), "Ignore").await;
    assert_eq!(api.post(MAPS, map("m")).await.status, 201);
    assert!(program.asked().is_empty());
}

#[tokio::test]
async fn conditions_are_compiled_when_they_are_written() {
    let api = api();
    let bad = |expression: &str| {
        let client = json!({"url": "https://127.0.0.1:1/"});
        let hook = with(
            hook("v", client, &["pods"]),
            json!({"matchConditions": conditions(&[expression])}),
        );
        json!({"metadata": {"name": "v"}, "webhooks": [hook]})
    };
    let message = async |expression: &str| {
        let answer = api.post(VALIDATING, bad(expression)).await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        answer.body["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        message("object.a == pod.b").await,
        "ValidatingWebhookConfiguration.admissionregistration.k8s.io \"v\" is invalid: webhooks[0].matchConditions[0].expression: Invalid value: \
         \"object.a == pod.b\": compilation failed: ERROR: <input>:1:13: undeclared reference to 'pod' (in container '')\n | object.a == pod.b\n | \
         ............^"
    );
    assert!(
        message("object.a ==")
            .await
            .contains("compilation failed: ERROR: <input>:1:12: ")
    );
    let not_bool = message("1 + 1").await;
    assert!(
        not_bool.ends_with("Invalid value: \"1 + 1\": must evaluate to bool but got int"),
        "{not_bool}"
    );
    let misspelt = message("request.nmae == 'x'").await;
    assert!(misspelt.contains("undefined field 'nmae'"), "{misspelt}");
    assert!(
        message(" ")
            .await
            .ends_with("webhooks[0].matchConditions[0].expression: Required value")
    );
}
