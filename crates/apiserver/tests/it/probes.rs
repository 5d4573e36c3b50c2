//! What is no API: probes, the version, keys, and the list of paths, by every method and with slashes behind.

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use mullion_apiserver::{ApiServer, Config, admission::User};
use serde_json::Value;
use tower::ServiceExt;

const NOT_FOUND: &str = "404 page not found\n";
const NOT_ALLOWED: &str = "the server does not allow this method on the requested resource";

/// Status, content type and text of an answer to an administrator, or to nobody.
async fn ask(method: &str, path: &str, is_known: bool) -> (u16, String, String) {
    let mut request = Request::builder().method(method).uri(path);
    if is_known {
        request = request.extension(User {
            name: "admin".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..User::default()
        });
    }
    let server = ApiServer::new(Config::default());
    let request = request.body(Body::empty()).unwrap();
    let response = server.router().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let content_type = parts.headers.get("content-type");
    let content_type = content_type.map(|value| value.to_str().unwrap().to_owned());
    let body = body.collect().await.unwrap().to_bytes();
    (
        parts.status.as_u16(),
        content_type.unwrap_or_default(),
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

/// A multiplexer by path looks at no method, a router has GET alone.
#[tokio::test(start_paused = true)]
async fn probes_answer_any_method_and_only_their_own_paths() {
    for (method, path, status, text) in [
        ("GET", "/healthz", 200, "ok"),
        ("POST", "/livez", 200, "ok"),
        ("OPTIONS", "/readyz", 200, "ok"),
        ("HEAD", "/readyz", 200, ""),
        ("GET", "/livez/etcd", 200, "ok"),
        ("GET", "/readyz/shutdown", 200, "ok"),
        ("GET", "/livez/shutdown", 404, NOT_FOUND),
        ("GET", "/healthz/", 404, NOT_FOUND),
        ("GET", "/metrics/", 404, NOT_FOUND),
        ("GET", "/logs", 404, NOT_FOUND),
        ("GET", "/debug/pprof/", 404, NOT_FOUND),
        ("GET", "/apis/unknown", 404, NOT_FOUND),
        ("GET", "/apis/unknown/v1", 404, NOT_FOUND),
        ("GET", "/openapi/v2/", 404, NOT_FOUND),
    ] {
        let (code, content_type, found) = ask(method, path, true).await;
        assert_eq!((code, &*found), (status, text), "{method} {path}");
        assert_eq!(content_type, "text/plain; charset=utf-8", "{method} {path}");
    }
    let (_, _, verbose) = ask("GET", "/readyz?verbose&exclude=etcd&exclude=x", true).await;
    assert_eq!(
        verbose,
        "[+]ping ok\n[+]log ok\n[+]etcd excluded: ok\n[+]etcd-readiness ok\n[+]informer-sync ok\n[+]shutdown ok\n\
         warn: some health checks cannot be excluded: no matches for \"x\"\nreadyz check passed\n"
    );
    for method in ["POST", "HEAD", "OPTIONS", "TRACE"] {
        for path in ["/version", "/openid/v1/jwks", "/api", "/apis/apps/v1"] {
            let (code, content_type, text) = ask(method, path, true).await;
            assert_eq!(
                (code, &*content_type),
                (405, "application/json"),
                "{method} {path}"
            );
            if method != "HEAD" {
                let status: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(status["message"], NOT_ALLOWED, "{method} {path}");
                assert_eq!(status["reason"], "MethodNotAllowed");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn documents_are_found_with_a_slash_behind_and_written_for_eyes() {
    for path in ["/version", "/version/", "/", "/index.html"] {
        let (code, content_type, text) = ask("GET", path, true).await;
        assert_eq!((code, &*content_type), (200, "application/json"), "{path}");
        assert!(text.starts_with("{\n  \""), "{path}: {text}");
    }
    for path in [
        "/openid/v1/jwks/",
        "/.well-known/openid-configuration/",
        "/api/",
        "/apis/",
        "/apis/apps/",
        "/apis/apps/v1/",
        "/api/v1/namespaces/",
    ] {
        assert_eq!(ask("GET", path, true).await.0, 200, "{path}");
    }
}

/// Only what `system:public-info-viewer` lets everybody read is for nobody.
#[tokio::test(start_paused = true)]
async fn nobody_reads_the_probes_and_no_more() {
    for path in [
        "/healthz",
        "/livez?verbose",
        "/readyz",
        "/version",
        "/version/",
    ] {
        assert_eq!(ask("GET", path, false).await.0, 200, "{path}");
    }
    for (method, path, status) in [
        ("HEAD", "/healthz", 403),
        ("POST", "/version", 403),
        ("GET", "/livez/ping", 401),
        ("GET", "/metrics", 401),
        ("GET", "/", 401),
    ] {
        let answer = ask(method, path, false).await;
        assert_eq!(answer.0, status, "{method} {path}");
    }
}
