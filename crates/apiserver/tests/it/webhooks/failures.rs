//! Webhooks that cannot be asked, or answer nonsense.

use mullion_apiserver::{ApiServer, Config, Limits};
use serde_json::{Value, json};

use super::{
    MAPS, MUTATING, VALIDATING, api, configure, hook, map,
    program::{Program, Reply, allow},
    with,
};
use crate::{
    api::{Api, until},
    tls::{OVER_2, Served, empty, get},
};

async fn nobody() -> std::net::SocketAddr {
    // Bound and dropped at once: nothing listens there.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn the_failure_policy_decides_when_nobody_is_there() {
    let program = Program::start(allow).await;
    let address = nobody().await;
    let client = json!({"url": format!("https://{address}/x/"), "caBundle": program.bundle()});
    for (path, name) in [(MUTATING, "m"), (VALIDATING, "v")] {
        let api = api();
        let failing = hook(name, client.clone(), &["configmaps"]);
        configure(&api, path, std::slice::from_ref(&failing)).await;
        let answer = api.post(MAPS, map("m")).await;
        let why = format!(
            "failed calling webhook \"{name}.example.com\": failed to call webhook: Post \"https://{address}/x?timeout=10s\": \
             dial tcp {address}: connect: connection refused"
        );
        assert_eq!(
            answer.body,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 500, "reason": "InternalError",
                   "message": format!("Internal error occurred: {why}"), "details": {"causes": [{"message": why}]}})
        );
        let place = format!("{path}/{name}.example.com");
        let mut configuration = api.get(&place).await.ok();
        configuration["webhooks"][0]["failurePolicy"] = "Ignore".into();
        api.put(&place, configuration).await.ok();
        assert_eq!(api.post(MAPS, map("m")).await.status, 201);
    }
}

/// How a request fails whose webhook answers so.
async fn failure(reply: fn(&Value) -> Reply) -> String {
    let program = Program::start(reply).await;
    let api = api();
    let impatient = with(
        program.hook("m", &["configmaps"]),
        json!({"timeoutSeconds": 1}),
    );
    configure(&api, MUTATING, &[impatient]).await;
    let answer = api.post(MAPS, map("m")).await;
    assert_eq!(answer.status, 500, "{}", answer.body);
    let message = answer.body["message"].as_str().unwrap();
    let start = "Internal error occurred: failed calling webhook \"m.example.com\": ";
    let message = message.strip_prefix(start).expect(message);
    message.replace(&program.address.to_string(), "HOST")
}

#[tokio::test]
async fn a_webhook_has_its_time_and_no_more() {
    assert_eq!(
        failure(|_| Reply::Never).await,
        "failed to call webhook: Post \"https://HOST/review?timeout=1s\": context deadline exceeded"
    );
}

#[tokio::test]
async fn answers_that_make_no_sense_are_failures() {
    assert_eq!(
        failure(|_| Reply::Text(404, "404 page not found\n".into())).await,
        "failed to call webhook: the server could not find the requested resource"
    );
    assert_eq!(
        failure(|_| Reply::Text(500, "boom".into())).await,
        "failed to call webhook: an error on the server (\"boom\") has prevented the request from succeeding"
    );
    assert_eq!(
        failure(|_| Reply::Review(
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"})
        ))
        .await,
        "received invalid webhook response: webhook response was absent"
    );
    assert!(
        failure(|_| Reply::Text(200, "ok".into()))
            .await
            .starts_with("failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value of type struct {")
    );
    assert_eq!(
        failure(|review| Reply::Review(json!({
            "apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], "allowed": true},
        })))
        .await,
        "failed to call webhook: converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion"
    );
    assert_eq!(
        failure(|_| Reply::Text(200, " ".repeat(4 << 20))).await,
        "failed to call webhook: the answer has more than 3145728 bytes"
    );
}

/// Only what is meant for people is repeated to them.
#[tokio::test]
async fn the_text_of_a_refusal_counts_when_it_is_one() {
    let text: [fn(&Value) -> Reply; 4] = [
        |_| Reply::Text(500, String::new()),
        |_| Reply::Text(403, " go away ".into()),
        |_| Reply::Text(406, "only XML".into()),
        |_| Reply::Text(415, "no JSON".into()),
    ];
    let json: [fn(&Value) -> Reply; 4] = [
        |_| Reply::Json(500, r#"{"code":"internal_error"}"#.into()),
        |_| Reply::Json(403, "{}".into()),
        |_| Reply::Json(406, "{}".into()),
        |_| Reply::Json(415, "{}".into()),
    ];
    let sentences = [
        (
            r#"an error on the server ("") has prevented the request from succeeding"#,
            r#"an error on the server ("unknown") has prevented the request from succeeding"#,
        ),
        ("go away", "unknown"),
        (
            "only XML",
            "the server was unable to respond with a content type that the client supports",
        ),
        ("no JSON", "unknown"),
    ];
    for ((text, json), (of_text, of_json)) in text.into_iter().zip(json).zip(sentences) {
        assert_eq!(
            failure(text).await,
            format!("failed to call webhook: {of_text}")
        );
        assert_eq!(
            failure(json).await,
            format!("failed to call webhook: {of_json}")
        );
    }
    let status = |_: &Value| Reply::Json(503, r#"{"status":"Failure","message":"closed"}"#.into());
    assert_eq!(failure(status).await, "failed to call webhook: closed");
}

#[tokio::test]
async fn certificates_must_be_vouched_for_and_name_the_host() {
    let (program, other) = (
        Program::start(allow).await,
        Program::named(&["elsewhere.example.com"], allow).await,
    );
    let cases = [
        (
            json!({"url": format!("https://{}/", program.address), "caBundle": other.bundle()}),
            "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        ),
        (
            other.by_url(),
            "x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs",
        ),
        (
            json!({"url": format!("https://localhost:{}/", other.address.port()), "caBundle": other.bundle()}),
            "x509: certificate is valid for elsewhere.example.com, not localhost",
        ),
        (
            json!({"url": format!("https://{}/", program.address), "caBundle": "bm9uZQ=="}),
            "could not get REST client: unable to load root certificates: the webhook's caBundle holds no certificate in PEM form",
        ),
    ];
    for (client, why) in cases {
        let api = api();
        configure(&api, VALIDATING, &[hook("v", client, &["configmaps"])]).await;
        let answer = api.post(MAPS, map("m")).await;
        let message = answer.body["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
    assert!(program.asked().is_empty() && other.asked().is_empty());
}

#[tokio::test]
async fn who_waits_for_a_webhook_lets_others_have_the_turn() {
    let program = Program::start(|_| Reply::Never).await;
    let one_at_a_time = Config {
        limits: Limits {
            requests: 1,
            patience: std::time::Duration::from_secs(60),
            ..Limits::default()
        },
        ..Config::default()
    };
    let server = ApiServer::new(one_at_a_time);
    let api = Api::of(&server);
    configure(&api, VALIDATING, &[program.hook("v", &["configmaps"])]).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "jane"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    api.post(bindings, binding).await.ok();
    let served = Served::new(&server).await;
    let jane = served.user("jane", "developers");
    let create = http::Request::post(format!("https://localhost{MAPS}"))
        .header("host", "localhost")
        .body(map("m").to_string().into_bytes())
        .unwrap();
    let reading = async {
        until("the webhook is asked", async || {
            (!program.asked().is_empty()).then_some(())
        })
        .await;
        served.send(Some(&jane), OVER_2, empty(get(MAPS))).await
    };
    let read = tokio::select! {
        read = reading => read,
        // After the webhook's own timeout.
        written = served.send(Some(&jane), OVER_2, create) => panic!("{}", written.text),
    };
    assert_eq!(read.status, 200);
}
