//! The server as a client in the same process sees it, through `kube::Client`.

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use mullion_apiserver::{ApiServer, Config, admission::User};
use serde_json::json;

fn admin() -> User {
    User {
        name: "admin".into(),
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        ..User::default()
    }
}

fn client() -> Client {
    Client::new(
        ApiServer::new(Config::default()).router_as(admin()),
        "default",
    )
}

fn config_map(name: &str, data: &str) -> ConfigMap {
    serde_json::from_value(
        json!({"metadata": {"name": name, "labels": {"app": "x"}}, "data": {"a": data}}),
    )
    .unwrap()
}

#[tokio::test]
async fn an_object_lives_through_all_verbs() {
    let maps: Api<ConfigMap> = Api::default_namespaced(client());
    let created = maps
        .create(&PostParams::default(), &config_map("x", "1"))
        .await
        .unwrap();
    assert!(created.uid().is_some());
    assert_eq!(maps.get("x").await.unwrap().data.unwrap()["a"], "1");

    let mut changed = created.clone();
    changed
        .data
        .as_mut()
        .unwrap()
        .insert("a".into(), "2".into());
    let replaced = maps
        .replace("x", &PostParams::default(), &changed)
        .await
        .unwrap();
    assert_ne!(replaced.resource_version(), created.resource_version());
    let conflict = maps
        .replace("x", &PostParams::default(), &changed)
        .await
        .unwrap_err();
    assert!(matches!(conflict, kube::Error::Api(status) if status.code == 409));

    let patched = maps
        .patch(
            "x",
            &PatchParams::default(),
            &Patch::Merge(json!({"data": {"b": "3"}})),
        )
        .await
        .unwrap();
    assert_eq!(patched.data.unwrap().len(), 2);
    assert_eq!(
        maps.list(&ListParams::default().labels("app=x"))
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    assert_eq!(
        maps.list(&ListParams::default().labels("app=y"))
            .await
            .unwrap()
            .items
            .len(),
        0
    );

    maps.delete("x", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("x").await.unwrap().is_none());
}

#[tokio::test]
async fn a_watch_sees_every_change_in_order() {
    let maps: Api<ConfigMap> = Api::default_namespaced(client());
    let created = maps
        .create(&PostParams::default(), &config_map("x", "1"))
        .await
        .unwrap();
    let events = maps
        .watch(
            &WatchParams::default(),
            &created.resource_version().unwrap(),
        )
        .await
        .unwrap();
    maps.patch(
        "x",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"a": "2"}})),
    )
    .await
    .unwrap();
    maps.delete("x", &DeleteParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &config_map("y", "1"))
        .await
        .unwrap();
    let mut events = std::pin::pin!(events);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(map) => format!("added {}", map.name_any()),
            WatchEvent::Modified(map) => {
                format!("modified {} {}", map.name_any(), map.data.unwrap()["a"])
            }
            WatchEvent::Deleted(map) => format!("deleted {}", map.name_any()),
            other => format!("{other:?}"),
        });
    }
    assert_eq!(seen, ["modified x 2", "deleted x", "added y"]);
}

#[tokio::test]
async fn a_request_without_a_user_gets_no_further_than_the_probes() {
    let client = Client::new(ApiServer::new(Config::default()).router(), "default");
    assert_eq!(client.apiserver_version().await.unwrap().minor, "36");
    let refused = client.list_core_api_versions().await.unwrap_err();
    assert!(
        matches!(refused, kube::Error::Api(status) if status.code == 401 && status.message == "Unauthorized")
    );
}

async fn answer(
    router: &axum::Router,
    path: &str,
    headers: &[(&str, &str)],
) -> (http::response::Parts, bytes::Bytes) {
    let mut request = http::Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = tower::ServiceExt::oneshot(
        router.clone(),
        request.body(axum::body::Body::empty()).unwrap(),
    )
    .await
    .unwrap();
    let (parts, body) = response.into_parts();
    (
        parts,
        http_body_util::BodyExt::collect(body)
            .await
            .unwrap()
            .to_bytes(),
    )
}

#[tokio::test]
async fn a_document_stays_under_its_hash_and_moves_on_with_it() {
    let router = ApiServer::new(Config::default()).router_as(admin());
    let (_, index) = answer(&router, "/openapi/v3", &[]).await;
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    let (found, body) = answer(&router, url, &[]).await;
    assert_eq!(
        (
            found.status.as_u16(),
            found.headers["cache-control"].to_str().unwrap()
        ),
        (200, "public, immutable")
    );
    assert!(body.len() > 10_000);
    let tag = found.headers["etag"].to_str().unwrap().to_owned();
    let (known, body) = answer(&router, url, &[("if-none-match", &tag)]).await;
    assert_eq!((known.status.as_u16(), body.len()), (304, 0));
    let (stale, _) = answer(&router, "/openapi/v3/apis/apps/v1?hash=old", &[]).await;
    assert_eq!(
        (
            stale.status.as_u16(),
            stale.headers["location"].to_str().unwrap()
        ),
        (301, url)
    );
}

/// As kube-openapi's handlers and the aggregator's in front of them.
#[tokio::test]
async fn a_document_comes_in_the_form_that_is_wanted() {
    const OLD: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    const NEW: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
    let router = ApiServer::new(Config::default()).router_as(admin());
    let path = "/openapi/v3/apis/apps/v1";
    let (json, body) = answer(&router, path, &[]).await;
    assert_eq!(json.headers["content-type"], "application/json");
    assert_eq!(json.headers["cache-control"], "no-cache, private");
    assert!(json.headers.contains_key("last-modified") && body.starts_with(b"{"));
    for accept in [OLD, NEW] {
        let (found, message) = answer(&router, path, &[("accept", accept)]).await;
        assert_eq!(found.headers["content-type"], NEW);
        assert_eq!(found.headers["etag"], json.headers["etag"]);
        assert_eq!(found.headers["vary"], "Accept");
        // The specification's version, and the title.
        assert!(message.starts_with(b"\x0a\x053.0.0\x12\x15\x0a\x0aKubernetes2\x07v1.36."));
        assert!(message.len() > body.len() / 4);
    }
    for (path, accept, status) in [
        (path, "text/html", 406),
        ("/openapi/v2", "text/html", 406),
        ("/openapi/v2", NEW, 406),
        (path, "json", 200),
        ("/openapi/v3/apis/none/v1", "*/*", 404),
        ("/openapi/v3/", "*/*", 404),
    ] {
        let (found, body) = answer(&router, path, &[("accept", accept)]).await;
        assert_eq!((found.status.as_u16(), body.len()), (status, 0), "{path}");
        assert!(!found.headers.contains_key("content-type"), "{path}");
    }
    let (index, _) = answer(&router, "/openapi/v3", &[("accept", "image/png")]).await;
    assert_eq!(index.headers["content-type"], "text/plain; charset=utf-8");
    assert!(index.headers.contains_key("last-modified") && !index.headers.contains_key("etag"));
    let (stale, _) = answer(&router, &format!("{path}?hash=old"), &[("accept", NEW)]).await;
    assert_eq!(stale.status.as_u16(), 301);
    assert_eq!(stale.headers["cache-control"], "no-cache, private");
}

#[tokio::test]
async fn a_big_answer_is_compressed_for_clients_that_take_gzip() {
    let router = ApiServer::new(Config::default()).router_as(admin());
    let (plain, body) = answer(&router, "/openapi/v2", &[]).await;
    let (packed, small) = answer(&router, "/openapi/v2", &[("accept-encoding", "gzip")]).await;
    assert!(
        !plain.headers.contains_key("content-encoding")
            && packed.headers["content-encoding"] == "gzip"
    );
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*small), &mut unpacked).unwrap();
    assert!(small.len() < body.len() / 4 && unpacked == body);
    let (little, _) = answer(&router, "/api", &[("accept-encoding", "gzip")]).await;
    assert!(!little.headers.contains_key("content-encoding"));
}
