//! Webhooks that ask their callers to come again, or to go elsewhere.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::{
    MAPS, SERVICES, VALIDATING, api, by_service, configure, hook, map,
    program::{Program, Reply, allow},
};
use crate::api::Api;

/// Configures a webhook and creates a map; why that fails, if it does.
async fn written(api: &Api, client: Value) -> Result<(), String> {
    configure(api, VALIDATING, &[hook("v", client, &["configmaps"])]).await;
    let answer = api.post(MAPS, map("m")).await;
    if answer.status == 201 {
        return Ok(());
    }
    let message = answer.body["message"].as_str().unwrap();
    let (_, why) = message
        .split_once("failed to call webhook: ")
        .expect(message);
    Err(why.to_owned())
}

#[tokio::test]
async fn a_webhook_that_is_busy_is_asked_again() {
    let tries = AtomicUsize::new(0);
    let program = Program::start(move |review| match tries.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::Header(429, "retry-after", "0".to_owned()),
        1 => Reply::Header(503, "retry-after", "0".to_owned()),
        _ => allow(review),
    })
    .await;
    assert_eq!(written(&api(), program.by_url()).await, Ok(()));
    let asked = program.asked();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|request| *request == asked[0]));
    assert_eq!(program.connections(), 1);
}

#[tokio::test]
async fn a_webhook_that_stays_busy_is_given_up() {
    let busy = |_: &Value| Reply::Header(429, "retry-after", "0".to_owned());
    let program = Program::start(busy).await;
    let why = "the server has received too many requests and has asked us to try again later";
    assert_eq!(written(&api(), program.by_url()).await, Err(why.to_owned()));
    assert_eq!(program.asked().len(), 11);
    let dated = |_: &Value| {
        Reply::Header(
            503,
            "retry-after",
            "Wed, 21 Oct 2026 07:28:00 GMT".to_owned(),
        )
    };
    let program = Program::start(dated).await;
    let why = "the server is currently unable to handle the request";
    assert_eq!(written(&api(), program.by_url()).await, Err(why.to_owned()));
    assert_eq!(program.asked().len(), 1);
}

#[tokio::test]
async fn redirects_that_keep_the_review_are_followed() {
    for status in [307, 308] {
        let program = Program::start(move |review| match review["target"].as_str() {
            Some("POST /review") => Reply::Header(status, "location", "../other?x=1".to_owned()),
            _ => allow(review),
        })
        .await;
        assert_eq!(written(&api(), program.by_url()).await, Ok(()));
        assert_eq!(program.targets(), ["POST /review", "POST /other"]);
        let asked = program.asked();
        assert_eq!(
            (asked[0]["query"].as_str(), asked[1]["query"].as_str()),
            (Some("timeout=10s"), Some("x=1"))
        );
        assert_eq!(asked[0]["object"], asked[1]["object"]);
    }
}

#[tokio::test]
async fn other_redirects_become_reads_without_the_review() {
    for status in [301, 302, 303] {
        let program = Program::start(move |review| match review["target"].as_str() {
            Some("POST /review") => Reply::Header(status, "location", "/a".to_owned()),
            // Nothing of the body comes back.
            Some("GET /a") => Reply::Header(307, "location", "/b".to_owned()),
            _ => Reply::Text(405, String::new()),
        })
        .await;
        let why = "the server does not allow this method on the requested resource";
        assert_eq!(written(&api(), program.by_url()).await, Err(why.to_owned()));
        assert_eq!(program.targets(), ["POST /review", "GET /a", "GET /b"]);
        assert_eq!(program.asked()[2]["object"], Value::Null);
    }
}

#[tokio::test]
async fn redirects_that_lead_nowhere_are_told_as_go_tells_them() {
    let cases = [
        (
            Some("/review?again"),
            10,
            r#"Post "/review?again": stopped after 10 redirects"#,
        ),
        (
            Some("ftp://example.com/x"),
            1,
            r#"Post "ftp://example.com/x": unsupported protocol scheme "ftp""#,
        ),
        (
            Some("https:///x"),
            1,
            r#"Post "https:///x": http: no Host in request URL"#,
        ),
        (
            Some("http://[::1"),
            1,
            r#"Post "https://HOST/review?timeout=10s": failed to parse Location header "http://[::1": parse "http://[::1": missing ']' in host"#,
        ),
        (
            None,
            1,
            "the server responded with the status code 308 but did not return more information",
        ),
    ];
    for (location, asked, why) in cases {
        let program = Program::start(move |_| match location {
            Some(location) => Reply::Header(308, "location", location.to_owned()),
            None => Reply::Text(308, String::new()),
        })
        .await;
        let said = written(&api(), program.by_url()).await.unwrap_err();
        assert_eq!(said.replace(&program.address.to_string(), "HOST"), why);
        assert_eq!(program.asked().len(), asked);
    }
}

/// Who vouches for the one must vouch for the other, whose certificate must be for the service.
#[tokio::test]
async fn a_service_may_lead_to_another_host() {
    let api = api();
    let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    api.post(SERVICES, service).await.ok();
    let program = Program::named(&["hook.default.svc"], |review| {
        match review["target"].as_str() {
            Some("POST /review") => {
                let port = review["port"].as_u64().unwrap_or_default();
                Reply::Header(307, "location", format!("https://127.0.0.1:{port}/x"))
            }
            _ => allow(review),
        }
    })
    .await;
    let client = by_service(&program, program.address.port());
    assert_eq!(written(&api, client).await, Ok(()));
    assert_eq!(program.targets(), ["POST /review", "POST /x"]);
}
