//! What webhooks are sent, for which writes, and what a refusal looks like.

use serde_json::{Value, json};

use super::{
    MAPS, MUTATING, PODS, VALIDATING, account, api, configure, deployment, map, pod,
    program::{Program, allow, deny, warn},
    rules, with,
};

#[tokio::test]
async fn a_refusal_that_says_the_object_exists_is_believed_once() {
    let program = Program::start(|review| {
        deny(
            review,
            json!({"code": 409, "reason": "AlreadyExists", "message": "elsewhere"}),
        )
    })
    .await;
    let api = api();
    configure(&api, VALIDATING, &[program.hook("v", &["configmaps"])]).await;
    let path = format!("{MAPS}/x?fieldManager=m");
    let apply = "application/apply-patch+yaml";
    let body = map("x").to_string();
    let answer = api.send_text("PATCH", &path, apply, &body).await;
    assert_eq!(answer.status, 409, "{}", answer.body);
    assert_eq!(program.asked().len(), 1);
}

#[tokio::test]
async fn a_webhook_sees_the_write_and_may_refuse_it() {
    let program = Program::start(|review| {
        if review["request"]["name"] == "bad" {
            let why = json!({"code": 403, "reason": "Forbidden", "message": "no bad maps"});
            deny(review, why)
        } else {
            allow(review)
        }
    })
    .await;
    let api = api();
    configure(&api, VALIDATING, &[program.hook("v", &["configmaps"])]).await;

    let answer = api
        .post(&format!("{MAPS}?fieldManager=m"), map("good"))
        .await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let mut asked = program.asked();
    assert_eq!(asked.len(), 1);
    let mut request = asked.remove(0);
    let object = request["object"].take();
    assert!(request["uid"].as_str().is_some_and(|uid| uid.len() == 36));
    request.as_object_mut().unwrap().remove("uid");
    assert_eq!(
        request,
        json!({
            "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
            "resource": {"group": "", "version": "v1", "resource": "configmaps"},
            "requestKind": {"group": "", "version": "v1", "kind": "ConfigMap"},
            "requestResource": {"group": "", "version": "v1", "resource": "configmaps"},
            "name": "good", "namespace": "default", "operation": "CREATE",
            "userInfo": {"username": "admin", "groups": ["system:masters"]},
            "object": null, "oldObject": null, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "m"},
            "query": "timeout=10s",
        })
    );
    // It sees the object as it will be stored but for its version.
    let mut stored = api.get(&format!("{MAPS}/good")).await.ok();
    stored["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    assert_eq!(object, stored);

    let answer = api.post(MAPS, map("bad")).await;
    assert_eq!(
        answer.body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403, "reason": "Forbidden",
               "message": "admission webhook \"v.example.com\" denied the request: no bad maps"})
    );
    assert_eq!(api.get(&format!("{MAPS}/bad")).await.status, 404);
}

#[tokio::test]
async fn updates_and_deletions_show_what_was_there() {
    let program = Program::start(|review| {
        if review["request"]["operation"] == "DELETE" {
            return deny(review, json!({"message": "kept"}));
        }
        allow(review)
    })
    .await;
    let api = api();
    api.post(MAPS, map("m")).await.ok();
    configure(&api, VALIDATING, &[program.hook("v", &["configmaps"])]).await;

    let path = format!("{MAPS}/m");
    api.merge(&path, json!({"data": {"a": "2"}})).await.ok();
    let asked = program.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0]["operation"], "UPDATE");
    assert_eq!(
        asked[0]["options"],
        json!({"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"})
    );
    let data = |object: &Value| object["data"]["a"].clone();
    assert_eq!(
        (data(&asked[0]["oldObject"]), data(&asked[0]["object"])),
        ("1".into(), "2".into())
    );
    // The sets of managedFields are whole trees in both.
    for object in ["object", "oldObject"] {
        assert!(asked[0][object]["metadata"]["managedFields"][0]["fieldsV1"].is_object());
    }

    program.forget();
    let answer = api.delete(&path).await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.body["message"],
        "admission webhook \"v.example.com\" denied the request: kept"
    );
    let asked = program.asked();
    assert_eq!(
        (&asked[0]["object"], data(&asked[0]["oldObject"])),
        (&Value::Null, "2".into())
    );
    assert_eq!(asked[0]["options"]["kind"], "DeleteOptions");
    assert_eq!(api.get(&path).await.status, 200);
}

#[tokio::test]
async fn a_dry_run_says_so_and_stores_nothing() {
    let program = Program::start(allow).await;
    let api = api();
    configure(&api, MUTATING, &[program.hook("m", &["configmaps"])]).await;
    let answer = api.post(&format!("{MAPS}?dryRun=All"), map("m")).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let asked = program.asked();
    assert_eq!(
        (&asked[0]["dryRun"], &asked[0]["options"]["dryRun"]),
        (&true.into(), &json!(["All"]))
    );
    assert_eq!(api.get(&format!("{MAPS}/m")).await.status, 404);
}

#[tokio::test]
async fn subresources_are_shown_as_what_they_are() {
    let program = Program::start(allow).await;
    let api = api();
    let all = with(program.hook("v", &[]), rules("*", "*", "*", "*/*"));
    let path = deployment(&api).await;
    account(&api).await;
    api.post(PODS, pod("p")).await.ok();
    configure(&api, VALIDATING, &[all]).await;

    let kinds = |asked: &[Value]| -> Vec<String> {
        let kind = |request: &Value| {
            format!(
                "{} {}/{} {} {}",
                request["operation"].as_str().unwrap(),
                request["resource"]["resource"].as_str().unwrap(),
                request["subResource"].as_str().unwrap_or(""),
                request["kind"]["kind"].as_str().unwrap(),
                request["object"]["kind"].as_str().unwrap_or("-"),
            )
        };
        asked.iter().map(kind).collect()
    };
    api.merge(&format!("{path}/scale"), json!({"spec": {"replicas": 3}}))
        .await
        .ok();
    let asked = program.asked();
    assert_eq!(kinds(&asked), ["UPDATE deployments/scale Scale Scale"]);
    assert_eq!(
        (
            &asked[0]["oldObject"]["spec"]["replicas"],
            &asked[0]["object"]["spec"]["replicas"]
        ),
        (&1.into(), &3.into())
    );

    // A patch of the status reads little of a pod where nobody looks; here somebody does.
    program.forget();
    api.merge(
        &format!("{PODS}/p/status"),
        json!({"status": {"phase": "Running"}}),
    )
    .await
    .ok();
    let asked = program.asked();
    assert_eq!(kinds(&asked), ["UPDATE pods/status Pod Pod"]);
    assert_eq!(asked[0]["object"]["spec"]["containers"][0]["name"], "c");
    assert_eq!(asked[0]["oldObject"]["status"]["phase"], "Pending");

    program.forget();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    assert_eq!(
        api.post(&format!("{PODS}/p/binding"), binding).await.status,
        201
    );
    assert_eq!(
        kinds(&program.asked()),
        ["CREATE pods/binding Binding Binding"]
    );

    // The deletion that an eviction brings about is the server's own.
    program.forget();
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    assert_eq!(
        api.post(&format!("{PODS}/p/eviction"), eviction)
            .await
            .status,
        201
    );
    assert_eq!(
        kinds(&program.asked()),
        ["CREATE pods/eviction Eviction Eviction"]
    );
}

#[tokio::test]
async fn configurations_of_webhooks_are_shown_to_none() {
    let program = Program::start(|review| deny(review, json!({}))).await;
    let api = api();
    let all = with(program.hook("all", &[]), rules("*", "*", "*", "*/*"));
    configure(&api, VALIDATING, std::slice::from_ref(&all)).await;
    configure(&api, MUTATING, &[all]).await;
    let answer = api.post(MAPS, map("m")).await;
    assert_eq!(
        answer.body["message"],
        "admission webhook \"all.example.com\" denied the request without explanation"
    );
    for path in [VALIDATING, MUTATING] {
        api.delete(&format!("{path}/all.example.com")).await.ok();
    }
    assert_eq!(api.post(MAPS, map("m")).await.status, 201);
    assert_eq!(program.asked().len(), 1);
}

#[tokio::test]
async fn warnings_of_one_line_reach_the_client() {
    let program =
        Program::start(|review| warn(review, &["careful", "with \"this\"", "two\nlines"])).await;
    let api = api();
    configure(&api, VALIDATING, &[program.hook("v", &["configmaps"])]).await;
    let answer = api.post(MAPS, map("m")).await;
    assert_eq!(
        answer.warnings,
        [r#"299 - "careful""#, r#"299 - "with \"this\"""#]
    );
}

#[tokio::test]
async fn an_old_webhook_is_sent_the_old_version() {
    let program = Program::start(|review| {
        assert_eq!(review["apiVersion"], "admission.k8s.io/v1beta1");
        deny(review, json!({"message": "old"}))
    })
    .await;
    let api = api();
    let old = with(
        program.hook("v", &["configmaps"]),
        json!({"admissionReviewVersions": ["v2", "v1beta1", "v1"]}),
    );
    configure(&api, VALIDATING, &[old]).await;
    let answer = api.post(MAPS, map("m")).await;
    assert_eq!(
        answer.body["message"],
        "admission webhook \"v.example.com\" denied the request: old"
    );
}

#[tokio::test]
async fn a_webhook_that_wants_nothing_of_it_changes_no_byte_of_a_write() {
    let clock = || Config {
        clock: std::sync::Arc::new(|| "2026-01-01T00:00:00Z".parse().unwrap()),
        ..Config::default()
    };
    use mullion_apiserver::Config;
    let program = Program::start(|review| deny(review, json!({}))).await;
    let (with_hooks, without) = (super::Api::new(clock()), super::Api::new(clock()));
    let selective = with(
        program.hook("v", &["*"]),
        json!({"objectSelector": {"matchLabels": {"asked": "yes"}}}),
    );
    configure(&with_hooks, VALIDATING, std::slice::from_ref(&selective)).await;
    configure(&with_hooks, MUTATING, &[selective]).await;
    let writes = async |api: &super::Api| {
        let mut answers = Vec::new();
        account(api).await;
        answers.push(api.post(MAPS, map("m")).await.body);
        answers.push(
            api.merge(&format!("{MAPS}/m"), json!({"data": {"a": "2"}}))
                .await
                .body,
        );
        answers.push(api.post(PODS, pod("p")).await.body);
        let status = json!({"status": {"phase": "Running"}});
        answers.push(api.merge(&format!("{PODS}/p/status"), status).await.body);
        answers.push(api.delete(&format!("{MAPS}/m")).await.body);
        for answer in &mut answers {
            for (field, place) in [
                ("uid", "metadata"),
                ("resourceVersion", "metadata"),
                ("uid", "details"),
            ] {
                if let Some(place) = answer[place].as_object_mut() {
                    place.remove(field);
                }
            }
            if let Some(volumes) = answer["spec"]["volumes"].as_array_mut() {
                volumes[0]["name"] = "token".into();
                answer["spec"]["containers"][0]["volumeMounts"][0]["name"] = "token".into();
            }
        }
        answers
    };
    assert_eq!(writes(&with_hooks).await, writes(&without).await);
    assert!(program.asked().is_empty());
}

#[tokio::test]
async fn a_connection_is_shown_by_its_options() {
    let program = Program::start(|review| deny(review, json!({"message": "stay out"}))).await;
    let api = api();
    configure(&api, VALIDATING, &[program.hook("v", &["pods/exec"])]).await;
    let path = format!("{PODS}/p/exec?command=sh&command=-c&stdin=true&container=c");
    let answer = api.get(&path).await;
    assert_eq!(
        answer.body["message"],
        "admission webhook \"v.example.com\" denied the request: stay out"
    );
    let asked = program.asked();
    assert_eq!(
        (&asked[0]["operation"], &asked[0]["kind"]["kind"]),
        (&"CONNECT".into(), &"PodExecOptions".into())
    );
    assert_eq!(
        asked[0]["object"],
        json!({"kind": "PodExecOptions", "apiVersion": "v1", "stdin": true, "container": "c", "command": ["sh", "-c"]})
    );
    assert_eq!(
        (&asked[0]["oldObject"], &asked[0]["options"]),
        (&Value::Null, &Value::Null)
    );
    program.forget();
    configure(&api, VALIDATING, &[program.hook("w", &["pods/proxy"])]).await;
    for (rest, options) in [
        ("", json!({"kind": "PodProxyOptions", "apiVersion": "v1"})),
        (
            "/metrics/",
            json!({"kind": "PodProxyOptions", "apiVersion": "v1", "path": "/metrics/"}),
        ),
    ] {
        api.get(&format!("{PODS}/p/proxy{rest}")).await;
        assert_eq!(program.asked().pop().unwrap()["object"], options);
    }
}
