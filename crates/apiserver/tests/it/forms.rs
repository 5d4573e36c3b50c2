//! Forms of bodies and answers: YAML and protobuf beside JSON, bodies that are too big, fields that nobody knows.

use axum::body::Body;
use http::Method;
use http_body_util::BodyExt;
use serde_json::json;

use crate::semantics::{MAPS, cluster};

#[tokio::test(start_paused = true)]
async fn protobuf_and_yaml_bodies_are_objects_like_json_ones() {
    let cluster = cluster();
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  a: 'b'\n";
    let (code, object) = cluster
        .json(
            Method::POST,
            MAPS,
            &[("content-type", "application/yaml")],
            yaml,
        )
        .await;
    assert_eq!((code, &object["data"]["a"]), (201, &json!("b")));
    let accept = [("accept", "application/vnd.kubernetes.protobuf")];
    let response = cluster
        .send(Method::GET, &format!("{MAPS}/m"), &accept, Body::empty())
        .await;
    assert_eq!(
        response.headers()["content-type"],
        "application/vnd.kubernetes.protobuf"
    );
    let message = response.into_body().collect().await.unwrap().to_bytes();
    assert!(message.starts_with(b"k8s\0"));
    cluster
        .json(Method::DELETE, &format!("{MAPS}/m"), &[], Body::empty())
        .await;
    let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
    let (code, refused) = cluster
        .json(Method::PUT, &format!("{MAPS}/m"), &headers, message.clone())
        .await;
    assert_eq!((code, &refused["reason"]), (404, &json!("NotFound")));
    let (code, unversioned) = cluster.json(Method::POST, MAPS, &headers, message).await;
    assert_eq!(
        (code, &unversioned["message"]),
        (
            500,
            &json!("resourceVersion should not be set on objects to be created")
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_big_is_refused() {
    let cluster = cluster();
    let (code, refused) = cluster
        .json(Method::POST, MAPS, &[], vec![b' '; 3 * 1024 * 1024 + 1])
        .await;
    assert_eq!(
        (code, &refused["reason"]),
        (413, &json!("RequestEntityTooLarge"))
    );
}

#[tokio::test(start_paused = true)]
async fn warnings_say_which_fields_were_dropped() {
    let cluster = cluster();
    let body = json!({"metadata": {"name": "x"}, "foo": 1}).to_string();
    let response = cluster.send(Method::POST, MAPS, &[], body).await;
    assert_eq!(
        response.headers()["warning"],
        "299 - \"unknown field \\\"foo\\\"\""
    );
    let strict = format!("{MAPS}?fieldValidation=Strict");
    let (code, refused) = cluster
        .json(
            Method::POST,
            &strict,
            &[],
            json!({"metadata": {"name": "y"}, "foo": 1}).to_string(),
        )
        .await;
    assert_eq!(code, 400);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .ends_with("strict decoding error: unknown field \"foo\"")
    );
}

#[tokio::test(start_paused = true)]
async fn lists_and_watches_can_be_had_in_protobuf() {
    let cluster = cluster();
    cluster.create("x", json!({})).await;
    let accept = [("accept", "application/vnd.kubernetes.protobuf")];
    let list = cluster
        .send(Method::GET, MAPS, &accept, Body::empty())
        .await;
    let list = list.into_body().collect().await.unwrap().to_bytes();
    assert!(list.starts_with(b"k8s\0"));
    assert!(list.windows(13).any(|window| window == b"ConfigMapList"));
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true");
    let watch = cluster
        .send(Method::GET, &path, &accept, Body::empty())
        .await;
    assert_eq!(
        watch.headers()["content-type"],
        "application/vnd.kubernetes.protobuf;stream=watch"
    );
    let mut frames = &*watch.into_body().collect().await.unwrap().to_bytes();
    let mut events = Vec::new();
    while let Some((length, rest)) = frames.split_first_chunk() {
        let (frame, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        let word = &frame[2..2 + frame[1] as usize];
        events.push(String::from_utf8(word.to_vec()).unwrap());
        frames = rest;
    }
    assert_eq!(events, ["ADDED", "BOOKMARK"]);
}

#[tokio::test(start_paused = true)]
async fn refusals_scales_and_metadata_alone_can_be_had_in_protobuf() {
    let cluster = cluster();
    cluster.create("x", json!({})).await;
    let partial = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let partials =
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let plain = "application/vnd.kubernetes.protobuf";
    let one = format!("{MAPS}/x");
    let (absent, watched) = (
        format!("{MAPS}/y"),
        format!("{MAPS}?watch=1&timeoutSeconds=1"),
    );
    for (accept, path, code, kind) in [
        (partial, &one, 200, "PartialObjectMetadata"),
        (partials, &MAPS.to_owned(), 200, "PartialObjectMetadataList"),
        (partial, &watched, 200, "PartialObjectMetadata"),
        (plain, &absent, 404, "Status"),
    ] {
        let answer = cluster
            .send(Method::GET, path, &[("accept", accept)], Body::empty())
            .await;
        assert_eq!(answer.status(), code, "{path}");
        let media = answer.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(media.starts_with(plain), "{media}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let holds = |part: &[u8]| body.windows(part.len()).any(|window| window == part);
        assert!(holds(b"k8s\0") && holds(kind.as_bytes()), "{body:?}");
    }
    let table = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io";
    let refused = cluster
        .send(Method::GET, MAPS, &[("accept", table)], Body::empty())
        .await;
    assert_eq!(refused.status(), 406);
}
