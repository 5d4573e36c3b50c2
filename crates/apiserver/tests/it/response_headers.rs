//! Headers of answers that say how a request was treated.

use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use mullion_apiserver::{ApiServer, Config, admission::User};
use serde_json::json;
use tower::ServiceExt;

use crate::api::Api;

const FLOWS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The headers of an answer to somebody, if there is somebody.
async fn headers(
    server: &std::sync::Arc<ApiServer>,
    user: Option<(&str, &[&str])>,
    request: http::request::Builder,
) -> (StatusCode, HeaderMap) {
    let mut request: Request<Body> = request.body(Body::empty()).unwrap();
    if let Some((name, groups)) = user {
        request.extensions_mut().insert(User {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..User::default()
        });
    }
    let response = server.router().oneshot(request).await.unwrap();
    (response.status(), response.headers().clone())
}

const MASTER: Option<(&str, &[&str])> =
    Some(("admin", &["system:masters", "system:authenticated"]));
const JANE: Option<(&str, &[&str])> = Some(("jane", &["system:authenticated"]));

#[tokio::test(start_paused = true)]
async fn every_answer_has_an_audit_id_and_is_not_to_be_kept() {
    let server = ApiServer::new(Config::default());
    for (user, path, status) in [
        (MASTER, MAPS, 200),
        (MASTER, "/api/v1/namespaces/default/configmaps/x", 404),
        (MASTER, "/nowhere", 404),
        (MASTER, "/openapi/v2", 200),
        (MASTER, "/apis", 200),
        (JANE, MAPS, 403),
        (None, MAPS, 401),
        (None, "/healthz", 200),
        (None, "/version", 200),
    ] {
        let (code, headers) = headers(&server, user, Request::get(path)).await;
        assert_eq!(code, status, "{path}");
        assert_eq!(headers["cache-control"], "no-cache, private", "{path}");
        let id = headers["audit-id"].to_str().unwrap();
        assert!(uuid::Uuid::parse_str(id).is_ok(), "{path}: {id}");
    }
    for (given, echoed) in [("my id", true), ("", false)] {
        let request = Request::get(MAPS).header("audit-id", given);
        let (_, headers) = headers(&server, MASTER, request).await;
        assert_eq!(headers["audit-id"] == given, echoed);
    }
}

/// As kube-apiserver's priority and fairness finds it: by subjects and rules, the lowest precedence first.
#[tokio::test(start_paused = true)]
async fn an_answer_names_the_flow_schema_of_its_request_and_its_level() {
    let server = ApiServer::new(Config::default());
    let api = Api::of(&server);
    let uid = async |plural: &str, name: &str| {
        let object = api.get(&format!("{FLOWS}/{plural}/{name}")).await.ok();
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let flow_headers = async |user, request| {
        let (_, headers) = headers(&server, user, request).await;
        let flow_headers = |name: &str| Some(headers.get(name)?.to_str().unwrap().to_owned());
        (
            flow_headers("x-kubernetes-pf-flowschema-uid"),
            flow_headers("x-kubernetes-pf-prioritylevel-uid"),
        )
    };
    let account: Option<(&str, &[&str])> = Some((
        "system:serviceaccount:default:d",
        &["system:serviceaccounts", "system:authenticated"],
    ));
    let node: Option<(&str, &[&str])> =
        Some(("system:node:n", &["system:nodes", "system:authenticated"]));
    for (user, path, schema, level) in [
        (MASTER, MAPS, "exempt", "exempt"),
        (JANE, MAPS, "global-default", "global-default"),
        (JANE, "/healthz", "probes", "exempt"),
        (None, "/livez", "probes", "exempt"),
        (account, MAPS, "service-accounts", "workload-low"),
        (node, "/api/v1/nodes/n", "system-node-high", "node-high"),
        (node, MAPS, "system-nodes", "system"),
    ] {
        let wanted = (
            Some(uid("flowschemas", schema).await),
            Some(uid("prioritylevelconfigurations", level).await),
        );
        assert_eq!(
            flow_headers(user, Request::get(path)).await,
            wanted,
            "{path}"
        );
    }
    // Who is nobody has no flow, and what takes long is not counted.
    assert_eq!(flow_headers(None, Request::get(MAPS)).await, (None, None));
    let log = "/api/v1/namespaces/default/pods/p/log";
    assert_eq!(flow_headers(MASTER, Request::get(log)).await, (None, None));

    let schema = json!({
        "metadata": {"name": "janes"},
        "spec": {"matchingPrecedence": 2, "priorityLevelConfiguration": {"name": "exempt"}, "rules": [{
            "subjects": [{"kind": "User", "user": {"name": "jane"}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}],
        }]},
    });
    let schemas = format!("{FLOWS}/flowschemas");
    let made = api.post(&schemas, schema).await.ok();
    let (found, _) = flow_headers(JANE, Request::get(MAPS)).await;
    assert_eq!(found.as_deref(), made["metadata"]["uid"].as_str());
    // Whoever acts as somebody else belongs where that one does.
    let request = Request::get(MAPS).header("impersonate-user", "jane");
    let (found, _) = flow_headers(MASTER, request).await;
    assert_eq!(found.as_deref(), made["metadata"]["uid"].as_str());
}
