//! `proxy` of nodes, pods and Services: what is refused before anything is connected, and what nobody listens to.

use serde_json::json;

use crate::api::Api;

const CORE: &str = "/api/v1/namespaces/default";

#[tokio::test]
async fn what_cannot_be_reached_is_told_in_upstreams_words() {
    let api = Api::with_account().await;
    let pod = |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for name in ["p", "q"] {
        api.post(&format!("{CORE}/pods"), pod(name)).await.ok();
    }
    let running = json!({"status": {"podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}});
    api.merge(&format!("{CORE}/pods/q/status"), running)
        .await
        .ok();
    for name in ["s", "t"] {
        let service =
            json!({"metadata": {"name": name}, "spec": {"ports": [{"name": "web", "port": 80}]}});
        api.post(&format!("{CORE}/services"), service).await.ok();
    }
    let pod = json!({"kind": "Pod", "namespace": "default", "name": "q"});
    let subset = json!({"addresses": [{"ip": "10.1.2.3", "targetRef": pod}], "ports": [{"name": "web", "port": 8080}]});
    let endpoints = |name: &str, subsets| json!({"metadata": {"name": name}, "subsets": subsets});
    api.post(
        &format!("{CORE}/endpoints"),
        endpoints("s", json!([subset.clone()])),
    )
    .await
    .ok();
    api.post(&format!("{CORE}/endpoints"), endpoints("t", json!([])))
        .await
        .ok();
    api.post("/api/v1/nodes", json!({"metadata": {"name": "n"}}))
        .await
        .ok();
    let nobody = |what: &str| {
        format!("error trying to reach service: {what} is simulated: nothing listens there")
    };
    for (path, status, message) in [
        (
            format!("{CORE}/pods/p/proxy"),
            400,
            "address not allowed".to_owned(),
        ),
        (
            format!("{CORE}/pods/a:b:c:d/proxy"),
            400,
            r#"invalid pod request "a:b:c:d""#.to_owned(),
        ),
        (
            format!("{CORE}/pods/x:80/proxy/a/b/c"),
            404,
            r#"pods "x" not found"#.to_owned(),
        ),
        (
            format!("{CORE}/pods/http:q:80/proxy/a/b/c"),
            503,
            nobody(r#"pod "q""#),
        ),
        (
            format!("{CORE}/services/s:web/proxy/"),
            503,
            nobody(r#"service "s""#),
        ),
        (
            format!("{CORE}/services/s:80/proxy"),
            503,
            nobody(r#"service "s""#),
        ),
        (
            format!("{CORE}/services/s/proxy"),
            503,
            r#"no endpoints available for service "s""#.to_owned(),
        ),
        (
            format!("{CORE}/services/s:81/proxy"),
            503,
            r#"no service port 81 found for service "s""#.to_owned(),
        ),
        (
            format!("{CORE}/services/t/proxy"),
            503,
            r#"no endpoints available for service "t""#.to_owned(),
        ),
        (
            format!("{CORE}/services/x/proxy"),
            404,
            r#"services "x" not found"#.to_owned(),
        ),
        (
            "/api/v1/nodes/n/proxy/metrics".to_owned(),
            503,
            nobody(r#"node "n""#),
        ),
        (
            "/api/v1/nodes/m/proxy".to_owned(),
            404,
            r#"nodes "m" not found"#.to_owned(),
        ),
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let answer = api.send_text(method, &path, "text/plain", "").await;
            assert_eq!(answer.refused(status), message, "{method} {path}");
        }
    }
    // Nobody is asked whose address is no pod's.
    for (place, value) in [
        ("targetRef", json!(null)),
        ("targetRef", json!({"namespace": "other", "name": "q"})),
        ("targetRef", json!({"namespace": "default", "name": "p"})),
        ("ip", json!("10.1.2.4")),
    ] {
        let mut other = subset.clone();
        other["addresses"][0][place] = value;
        let body = endpoints("s", json!([other]));
        api.put(&format!("{CORE}/endpoints/s"), body).await.ok();
        let answer = api.get(&format!("{CORE}/services/s:web/proxy/")).await;
        let why = r#"no endpoints available for service "s:web""#;
        assert_eq!(answer.refused(503), why, "{other}");
    }
    let list = api.get("/api/v1").await.ok();
    let resources = list["resources"].as_array().unwrap().iter();
    let proxies =
        resources.filter(|resource| resource["name"].as_str().unwrap().ends_with("/proxy"));
    let kinds: Vec<_> = proxies.map(|resource| resource["kind"].clone()).collect();
    assert_eq!(
        kinds,
        ["NodeProxyOptions", "PodProxyOptions", "ServiceProxyOptions"]
    );
}
