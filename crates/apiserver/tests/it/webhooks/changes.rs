//! What webhooks change, and what becomes of it.

use serde_json::{Value, json};

use super::{
    MAPS, MUTATING, PODS, VALIDATING, account, api, configure, deployment, map, pod,
    program::{Program, allow, deny, patch},
    rules, with,
};

#[tokio::test]
async fn what_a_webhook_adds_gets_its_defaults_and_is_stored() {
    let program = Program::start(|review| {
        let sidecar = json!({"name": "sidecar", "image": "proxy:2"});
        patch(
            review,
            json!([
                {"op": "add", "path": "/spec/containers/-", "value": sidecar},
                {"op": "add", "path": "/metadata/labels", "value": {"injected": "yes"}},
                {"op": "add", "path": "/spec/unknown", "value": 1},
            ]),
        )
    })
    .await;
    let api = api();
    account(&api).await;
    let on_creation = rules("CREATE", "", "v1", "pods");
    configure(&api, MUTATING, &[with(program.hook("m", &[]), on_creation)]).await;
    let created = api.post(PODS, pod("p")).await.ok();
    assert_eq!(created["metadata"]["labels"], json!({"injected": "yes"}));
    let sidecar = &created["spec"]["containers"][1];
    assert_eq!(
        (
            &sidecar["image"],
            &sidecar["imagePullPolicy"],
            &sidecar["terminationMessagePath"]
        ),
        (
            &"proxy:2".into(),
            &"IfNotPresent".into(),
            &"/dev/termination-log".into()
        )
    );
    assert_eq!(created["spec"].get("unknown"), None);
    // The plugins looked at it again: its account's token is mounted there as well.
    assert_eq!(
        sidecar["volumeMounts"][0]["mountPath"],
        "/var/run/secrets/kubernetes.io/serviceaccount"
    );
    assert_eq!(api.get(&format!("{PODS}/p")).await.ok(), created);
}

#[tokio::test]
async fn what_a_webhook_makes_of_an_object_is_validated() {
    let program = Program::start(|review| {
        patch(
            review,
            json!([{"op": "replace", "path": "/spec/containers/0/name", "value": "Not A Name"}]),
        )
    })
    .await;
    let api = api();
    account(&api).await;
    configure(&api, MUTATING, &[program.hook("m", &["pods"])]).await;
    let answer = api.post(PODS, pod("p")).await;
    assert_eq!(answer.status, 422);
    let message = answer.body["message"].as_str().unwrap();
    assert!(
        message.contains("spec.containers[0].name: Invalid value: \"Not A Name\""),
        "{message}"
    );
}

/// Upstream compares versions when the object is as mutating admission leaves it, and before anybody judges it.
#[tokio::test]
async fn who_changes_is_asked_before_a_stale_version_is_refused_and_who_judges_is_not() {
    let denying = Program::start(|review| deny(review, json!({"message": "nope"}))).await;
    let api = api();
    let made = api.post(MAPS, map("m")).await.ok();
    let stale = json!({"metadata": {"resourceVersion": "1"}});
    let on_update = rules("UPDATE", "", "v1", "configmaps");
    let hook = with(denying.hook("v", &[]), on_update);
    configure(&api, VALIDATING, std::slice::from_ref(&hook)).await;
    let path = format!("{MAPS}/m");
    assert_eq!(api.merge(&path, stale.clone()).await.status, 409);
    assert!(denying.asked().is_empty());
    configure(&api, MUTATING, &[hook]).await;
    let mut put = made;
    put["metadata"]["resourceVersion"] = "1".into();
    for answer in [api.merge(&path, stale).await, api.put(&path, put).await] {
        assert_eq!(answer.status, 400, "{}", answer.body);
        let why = r#"admission webhook "v.example.com" denied the request: nope"#;
        assert_eq!(answer.body["message"], why);
    }
}

#[tokio::test]
async fn a_patch_that_does_not_apply_is_an_internal_error() {
    let program = Program::start(|review| {
        patch(
            review,
            json!([{"op": "remove", "path": "/spec/nothing/here"}]),
        )
    })
    .await;
    let api = api();
    let tolerant = with(
        program.hook("m", &["configmaps"]),
        json!({"failurePolicy": "Ignore"}),
    );
    configure(&api, MUTATING, &[tolerant]).await;
    let answer = api.post(MAPS, map("m")).await;
    assert_eq!(
        (answer.status, &answer.body["reason"]),
        (500, &"InternalError".into())
    );
    assert_eq!(
        answer.body["message"],
        "Internal error occurred: remove operation does not apply: doc is missing path: \"/spec/nothing/here\": missing value"
    );
    // A deletion has no object to change.
    let api = super::api();
    api.post(MAPS, map("m")).await.ok();
    configure(&api, MUTATING, &[program.hook("m", &["configmaps"])]).await;
    let answer = api.delete(&format!("{MAPS}/m")).await;
    assert_eq!(
        answer.body["message"],
        "Internal error occurred: admission webhook \"m.example.com\" attempted to modify the object, which is not supported for this operation"
    );
}

/// Of a built-in object upstream knows what it was; another kind is decoded, and nothing converts it.
#[tokio::test]
async fn a_webhook_may_leave_the_kind_away_and_not_change_it() {
    for (operation, status, message) in [
        (json!({"op": "remove", "path": "/kind"}), 201, Value::Null),
        (json!({"op": "remove", "path": "/apiVersion"}), 201, Value::Null),
        (
            json!({"op": "replace", "path": "/kind", "value": "Service"}),
            500,
            "converting (v1.Service) to (core.ConfigMap): unknown conversion".into(),
        ),
        (
            json!({"op": "replace", "path": "/kind", "value": 5}),
            500,
            "Internal error occurred: couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string"
                .into(),
        ),
    ] {
        let shown = operation.clone();
        let program = Program::start(move |review| patch(review, json!([operation]))).await;
        let api = api();
        configure(&api, MUTATING, &[program.hook("m", &["configmaps"])]).await;
        let answer = api.post(MAPS, map("m")).await;
        assert_eq!((answer.status, &answer.body["message"]), (status, &message), "{shown}");
    }
}

/// Adds a key to a map's data unless it is there.
fn adds(key: &'static str) -> impl Fn(&Value) -> super::program::Reply {
    move |review: &Value| {
        let data = &review["request"]["object"]["data"];
        if data.get(key).is_some() {
            return allow(review);
        }
        patch(
            review,
            json!([{"op": "add", "path": format!("/data/{key}"), "value": "x"}]),
        )
    }
}

#[tokio::test]
async fn webhooks_are_asked_by_name_and_again_if_they_want_when_something_changed() {
    let (first, second, third) = (
        Program::start(adds("first")).await,
        Program::start(adds("second")).await,
        Program::start(adds("third")).await,
    );
    let api = api();
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let of = |name: &str, program: &Program| program.hook(name, &["configmaps"]);
    // Configured in another order than that of their names.
    configure(&api, MUTATING, &[with(of("third", &third), again.clone())]).await;
    configure(&api, MUTATING, &[with(of("first", &first), again)]).await;
    configure(&api, MUTATING, &[of("second", &second)]).await;
    let created = api.post(MAPS, map("m")).await.ok();
    assert_eq!(
        created["data"],
        json!({"a": "1", "first": "x", "second": "x", "third": "x"})
    );
    let seen = |program: &Program| -> Vec<Vec<String>> {
        let keys = |request: &Value| {
            request["object"]["data"]
                .as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect()
        };
        program.asked().iter().map(keys).collect()
    };
    assert_eq!(
        seen(&first),
        [vec!["a"], vec!["a", "first", "second", "third"]]
    );
    assert_eq!(seen(&second), [["a", "first"]]);
    // Nothing has changed after it.
    assert_eq!(seen(&third), [["a", "first", "second"]]);
}

#[tokio::test]
async fn a_webhook_may_name_what_has_no_name_yet_but_not_move_it() {
    let program = Program::start(|review| {
        let path = if review["request"]["object"]["data"].get("move").is_some() {
            "/metadata/namespace"
        } else {
            "/metadata/name"
        };
        patch(
            review,
            json!([{"op": "add", "path": path, "value": "given"}]),
        )
    })
    .await;
    let api = api();
    configure(&api, MUTATING, &[program.hook("m", &["configmaps"])]).await;
    let unnamed = json!({"metadata": {"generateName": "g-"}});
    let created = api.post(MAPS, unnamed).await.ok();
    assert_eq!(created["metadata"]["name"], "given");
    let moved = json!({"metadata": {"name": "m"}, "data": {"move": "1"}});
    let answer = api.post(MAPS, moved).await;
    assert_eq!(
        answer.body["message"],
        "the namespace of the provided object does not match the namespace sent on the request"
    );
}

#[tokio::test]
async fn a_webhook_for_another_version_is_shown_that_version() {
    let program = Program::start(|review| {
        patch(
            review,
            json!([{"op": "replace", "path": "/spec/targetCPUUtilizationPercentage", "value": 55}]),
        )
    })
    .await;
    let api = api();
    let v1 = rules("CREATE", "autoscaling", "v1", "horizontalpodautoscalers");
    let exact = with(v1.clone(), json!({"matchPolicy": "Exact"}));
    configure(&api, MUTATING, &[with(program.hook("exact", &[]), exact)]).await;
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
                 "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]},
    });
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    api.post(&format!("{path}?dryRun=All"), scaler.clone())
        .await
        .ok();
    assert!(program.asked().is_empty());

    configure(&api, MUTATING, &[with(program.hook("m", &[]), v1)]).await;
    let created = api.post(path, scaler).await.ok();
    let asked = program.asked();
    assert_eq!(
        (
            &asked[0]["kind"]["version"],
            &asked[0]["requestKind"]["version"],
            &asked[0]["object"]["apiVersion"]
        ),
        (&"v1".into(), &"v2".into(), &"autoscaling/v1".into())
    );
    assert_eq!(created["apiVersion"], "autoscaling/v2");
    assert_eq!(
        created["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
        55
    );
}

#[tokio::test]
async fn broken_managed_fields_are_put_back() {
    let program = Program::start(|review| {
        patch(review, json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{"manager": "x", "operation": "Odd", "fieldsV1": {}}]}]))
    })
    .await;
    let api = api();
    configure(&api, MUTATING, &[program.hook("m", &["configmaps"])]).await;
    let answer = api.post(&format!("{MAPS}?fieldManager=me"), map("m")).await;
    assert_eq!(
        answer.body["metadata"]["managedFields"][0]["manager"], "me",
        "{}",
        answer.body
    );
    assert!(
        answer.warnings[0]
            .contains(".metadata.managedFields was in an invalid state after admission")
    );
}

#[tokio::test]
async fn a_scale_can_be_changed_on_its_way() {
    let program = Program::start(|review| {
        patch(
            review,
            json!([{"op": "replace", "path": "/spec/replicas", "value": 2}]),
        )
    })
    .await;
    let api = api();
    let path = deployment(&api).await;
    let scales = rules("UPDATE", "apps", "v1", "deployments/scale");
    configure(&api, MUTATING, &[with(program.hook("m", &[]), scales)]).await;
    api.merge(&format!("{path}/scale"), json!({"spec": {"replicas": 7}}))
        .await
        .ok();
    assert_eq!(api.get(&path).await.ok()["spec"]["replicas"], 2);
}
