//! Tokens: service accounts' own ones from request to expiry, static ones, and how others check them.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use http::Method;
use jiff::Timestamp;
use mullion_apiserver::{Config, StaticTokens, TokenKeys};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use serde_json::{Value, json};

use crate::identity::{Server, admin, user};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const START: i64 = 1_790_000_000;

/// A server whose clock is set by hand, with a service account `s`.
async fn server(tokens: StaticTokens) -> (Server, Arc<AtomicI64>) {
    let time = Arc::new(AtomicI64::new(START));
    let clock = time.clone();
    let server = Server::new(Config {
        clock: Arc::new(move || {
            Timestamp::from_second(clock.load(Ordering::Relaxed)).expect("a time of this century")
        }),
        tokens,
        ..Config::default()
    });
    let account = json!({"metadata": {"name": "s"}});
    assert_eq!(server.post(&admin(), ACCOUNTS, account).await.0, 201);
    (server, time)
}

async fn token(server: &Server, spec: Value) -> String {
    let path = format!("{ACCOUNTS}/s/token");
    let (status, body) = server.post(&admin(), &path, json!({"spec": spec})).await;
    assert_eq!(status, 201, "{body}");
    body["status"]["token"].as_str().unwrap().to_owned()
}

async fn whoami(server: &Server, token: &str) -> (u16, Value) {
    let header = format!("Bearer {token}");
    let headers = [("authorization", header.as_str())];
    let (status, body) = server
        .send(None, Method::POST, WHOAMI, &headers, json!({}))
        .await;
    (status, body["status"]["userInfo"].clone())
}

async fn review(server: &Server, spec: Value) -> Value {
    let (status, body) = server.post(&admin(), REVIEWS, json!({"spec": spec})).await;
    assert_eq!(status, 201, "{body}");
    body["status"].clone()
}

fn claims(token: &str) -> Value {
    let claims = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
}

#[tokio::test]
async fn a_token_identifies_its_service_account_until_it_expires() {
    let (server, time) = server(StaticTokens::default()).await;
    let token = token(&server, json!({"expirationSeconds": 600})).await;
    let (status, who) = whoami(&server, &token).await;
    assert_eq!(
        (status, who["username"].as_str()),
        (201, Some("system:serviceaccount:default:s"))
    );
    let groups = json!([
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated"
    ]);
    assert_eq!(who["groups"], groups);
    let id = format!("JTI={}", claims(&token)["jti"].as_str().unwrap());
    let key = "authentication.kubernetes.io/credential-id";
    assert_eq!(who["extra"][key], json!([id]));
    // A minute of leeway, as upstream gives.
    time.store(START + 660, Ordering::Relaxed);
    assert_eq!(whoami(&server, &token).await.0, 201);
    time.store(START + 661, Ordering::Relaxed);
    assert_eq!(whoami(&server, &token).await.0, 401);
    let status = review(&server, json!({"token": token})).await;
    let error = "[invalid bearer token, service account token has expired]";
    assert_eq!(status, json!({"user": {}, "error": error}));
}

#[tokio::test]
async fn a_token_goes_with_its_account() {
    let (server, _) = server(StaticTokens::default()).await;
    let token = token(&server, json!({})).await;
    assert_eq!(whoami(&server, &token).await.0, 201);
    let path = format!("{ACCOUNTS}/s");
    let deleted = server
        .send(Some(&admin()), Method::DELETE, &path, &[], Value::Null)
        .await;
    assert_eq!(deleted.0, 200);
    assert_eq!(whoami(&server, &token).await.0, 401);
    let account = json!({"metadata": {"name": "s"}});
    assert_eq!(server.post(&admin(), ACCOUNTS, account).await.0, 201);
    assert_eq!(whoami(&server, &token).await.0, 401);
}

#[tokio::test]
async fn a_pod_s_token_names_pod_and_node_and_ends_with_the_pod() {
    let (server, _) = server(StaticTokens::default()).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "serviceAccountName": "s", "nodeName": "n", "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}],
    }});
    let (status, body) = server.post(&admin(), pods, pod).await;
    assert_eq!(status, 201, "{body}");
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
    let spec = json!({"boundObjectRef": reference, "expirationSeconds": 3607});
    let token = token(&server, spec).await;
    let said = claims(&token);
    let bound = &said["kubernetes.io"];
    assert_eq!(bound["pod"]["uid"], body["metadata"]["uid"]);
    assert_eq!(bound["node"], json!({"name": "n"}));
    // The kind of token that admission mounts lives longer than it says.
    assert_eq!(bound["warnafter"], START + 3607);
    assert_eq!(said["exp"], START + 365 * 24 * 3600);
    let (_, who) = whoami(&server, &token).await;
    let extra = &who["extra"];
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], json!(["p"]));
    assert_eq!(
        extra["authentication.kubernetes.io/node-name"],
        json!(["n"])
    );
    let path = format!("{pods}/p");
    let body = json!({"gracePeriodSeconds": 0});
    let deleted = server
        .send(Some(&admin()), Method::DELETE, &path, &[], body)
        .await;
    assert_eq!(deleted.0, 200);
    assert_eq!(whoami(&server, &token).await.0, 401);
}

#[tokio::test]
async fn a_token_is_only_given_for_the_account_and_the_pod_that_are_meant() {
    let (server, _) = server(StaticTokens::default()).await;
    let pods = "/api/v1/namespaces/default/pods";
    let other = json!({"metadata": {"name": "default"}});
    assert_eq!(server.post(&admin(), ACCOUNTS, other).await.0, 201);
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(server.post(&admin(), pods, pod).await.0, 201);
    let path = format!("{ACCOUNTS}/s/token");
    let (status, given) = server.post(&admin(), &path, json!({})).await;
    assert_eq!(status, 201, "{given}");
    let uid = given["metadata"]["uid"].as_str().unwrap();
    let mismatch = format!(
        "Operation cannot be fulfilled on TokenRequest.authentication.k8s.io \"s\": the UID in the token request (x) does not match the UID of the service account ({uid})"
    );
    for (request, code, message) in [
        (json!({"metadata": {"uid": uid}}), 201, ""),
        (json!({"metadata": {"uid": "x"}}), 409, mismatch.as_str()),
        (
            json!({"metadata": {"name": "x"}}),
            422,
            "TokenRequest.authentication.k8s.io \"s\" is invalid: metadata.name: Invalid value: \"x\": must match the service account name if specified",
        ),
        (
            json!({"metadata": {"namespace": "x"}}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}}}),
            400,
            "cannot bind token for serviceaccount \"s\" to pod running with different serviceaccount name.",
        ),
    ] {
        let (status, body) = server.post(&admin(), &path, request).await;
        assert_eq!(status, code, "{body}");
        assert_eq!(body["message"].as_str().unwrap_or_default(), message);
    }
}

#[tokio::test]
async fn a_token_for_others_is_none_for_this_server() {
    let (server, _) = server(StaticTokens::default()).await;
    let token = token(&server, json!({"audiences": ["vault"]})).await;
    assert_eq!(whoami(&server, &token).await.0, 401);
    let status = review(
        &server,
        json!({"token": token, "audiences": ["vault", "x"]}),
    )
    .await;
    assert_eq!(
        (&status["authenticated"], &status["audiences"]),
        (&json!(true), &json!(["vault"]))
    );
    let status = review(&server, json!({"token": token})).await;
    let error = r#"[invalid bearer token, token audiences ["vault"] is invalid for the target audiences ["https://kubernetes.default.svc"]]"#;
    assert_eq!(status["error"], error);
}

#[tokio::test]
async fn a_token_that_was_tampered_with_or_signed_by_another_is_refused() {
    let (here, _) = server(StaticTokens::default()).await;
    let (there, _) = server(StaticTokens::default()).await;
    let good = token(&here, json!({})).await;
    let parts: Vec<&str> = good.split('.').collect();
    let mut said = claims(&good);
    said["sub"] = "system:serviceaccount:kube-system:root".into();
    let forged = URL_SAFE_NO_PAD.encode(said.to_string());
    let unsigned = URL_SAFE_NO_PAD.encode(json!({"alg": "none"}).to_string());
    for bad in [
        format!("{}.{forged}.{}", parts[0], parts[2]),
        format!("{unsigned}.{}.", parts[1]),
        format!("{unsigned}.{}.{}", parts[1], parts[2]),
        format!("{}.{}", parts[0], parts[1]),
        token(&there, json!({})).await,
        "nonsense".to_owned(),
    ] {
        assert_eq!(whoami(&here, &bad).await.0, 401, "{bad}");
    }
    assert_eq!(whoami(&here, &good).await.0, 201);
}

/// What says that it is this server's is judged by its key and its signature; the rest is no token at all.
#[tokio::test]
async fn a_review_says_what_is_wrong_with_a_token() {
    let (server, _) = server(StaticTokens::default()).await;
    let good = token(&server, json!({})).await;
    let (header, rest) = good.split_once('.').unwrap();
    let (payload, signature) = rest.split_once('.').unwrap();
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let headed = |value: Value| format!("{}.{payload}.{signature}", part(value));
    let said = |value: Value| format!("{header}.{}.{signature}", part(value));
    let issuer = "https://kubernetes.default.svc";
    let unknown = Some("invalid bearer token".to_owned());
    let because = |why: &str| Some(format!("[invalid bearer token, {why}]"));
    let cases = [
        ("abc".to_owned(), unknown.clone()),
        (format!("{header}.{payload}"), unknown.clone()),
        (format!("{good}.x"), unknown.clone()),
        (format!("{header}.!!.{signature}"), unknown.clone()),
        (format!("!!.{payload}.{signature}"), unknown.clone()),
        (format!("{header}.{payload}.!!"), unknown.clone()),
        (said(json!([])), unknown.clone()),
        (said(json!({"iss": "https://example.com"})), unknown.clone()),
        (headed(json!("ES256")), unknown.clone()),
        (headed(json!({"alg": "none"})), unknown.clone()),
        (headed(json!({"alg": "HS256"})), unknown.clone()),
        (
            headed(json!({"alg": "ES256", "kid": "x"})),
            because("invalid signature, no keys found"),
        ),
        (
            headed(json!({"alg": "ES256"})),
            because("go-jose/go-jose: error in cryptographic primitive"),
        ),
        (
            headed(json!({"alg": "RS256"})),
            because("go-jose/go-jose: error in cryptographic primitive"),
        ),
        (
            said(json!({"iss": issuer})),
            because("go-jose/go-jose: error in cryptographic primitive"),
        ),
        (format!(" {good}"), None),
    ];
    for (token, wanted) in cases {
        let status = review(&server, json!({"token": token})).await;
        assert_eq!(status["user"], json!({}), "{token}");
        assert_eq!(
            status["error"].as_str().map(str::to_owned),
            wanted,
            "{token}"
        );
    }
    let status = review(&server, json!({"token": format!("{good} more")})).await;
    assert_eq!(status["authenticated"], true);
}

#[tokio::test]
async fn others_find_the_key_that_tokens_are_checked_with() {
    let (server, _) = server(StaticTokens::default()).await;
    let token = token(&server, json!({})).await;
    let header = format!("Bearer {token}");
    let headers = [("authorization", header.as_str())];
    let get = async |path| {
        let (status, body) = server
            .send(None, Method::GET, path, &headers, Value::Null)
            .await;
        assert_eq!(status, 200, "{body}");
        body
    };
    let configuration = get("/.well-known/openid-configuration").await;
    assert_eq!(configuration["issuer"], claims(&token)["iss"]);
    let uri = configuration["jwks_uri"].as_str().unwrap();
    assert!(uri.ends_with("/openid/v1/jwks"), "{uri}");
    let keys = get("/openid/v1/jwks").await;
    let head = URL_SAFE_NO_PAD
        .decode(token.split('.').next().unwrap())
        .unwrap();
    let head: Value = serde_json::from_slice(&head).unwrap();
    let key = &keys["keys"][0];
    assert_eq!((&key["kid"], &key["alg"]), (&head["kid"], &head["alg"]));
    let coordinate = |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str().unwrap()).unwrap();
    assert_eq!((coordinate("x").len(), coordinate("y").len()), (32, 32));
}

#[tokio::test]
async fn a_static_token_is_a_user_whom_rules_apply_to() {
    let tokens = StaticTokens::from_csv("abc,jane,7,dev\nroot,root,0,system:masters\n").unwrap();
    let (server, _) = server(tokens).await;
    let (status, who) = whoami(&server, "abc").await;
    assert_eq!(status, 201);
    assert_eq!(
        who,
        json!({"username": "jane", "uid": "7", "groups": ["dev", "system:authenticated"]})
    );
    assert_eq!(whoami(&server, "ab").await.0, 401);
    let get = async |token: &str| {
        let headers = [("authorization", token)];
        let path = "/api/v1/nodes";
        let answer = server.send(None, Method::GET, path, &headers, Value::Null);
        answer.await.0
    };
    assert_eq!(
        (get("Bearer abc").await, get("Bearer root").await),
        (403, 200)
    );
    // A certificate's user is who asks, whatever token comes along.
    let headers = [("authorization", "Bearer root")];
    let answer = server
        .send(
            Some(&user("joe")),
            Method::GET,
            "/api/v1/nodes",
            &headers,
            Value::Null,
        )
        .await;
    assert_eq!(answer.0, 403);
}

/// Signs a token as kube-controller-manager does for a Secret.
fn secret_token(key: &rcgen::KeyPair, claims: &Value) -> String {
    let random = SystemRandom::new();
    let der = key.serialize_der();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &random);
    let parts = [json!({"alg": "ES256"}), claims.clone()];
    let parts = parts.map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let signed = parts.join(".");
    let signature = pair.unwrap().sign(&random, signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test]
async fn a_token_in_a_secret_holds_as_long_as_the_secret_holds_it() {
    const SECRETS: &str = "/api/v1/namespaces/default/secrets";
    let key = rcgen::KeyPair::generate().unwrap();
    let mut token_keys = TokenKeys::default();
    token_keys.add_pem(key.public_key_pem().as_bytes()).unwrap();
    let server = Server::new(Config {
        clock: Arc::new(|| Timestamp::from_second(START).unwrap()),
        token_keys,
        ..Config::default()
    });
    let account = json!({"metadata": {"name": "s"}});
    let (_, account) = server.post(&admin(), ACCOUNTS, account).await;
    let claims = json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:s",
        "kubernetes.io/serviceaccount/namespace": "default",
        "kubernetes.io/serviceaccount/secret.name": "t",
        "kubernetes.io/serviceaccount/service-account.name": "s",
        "kubernetes.io/serviceaccount/service-account.uid": account["metadata"]["uid"],
    });
    let token = secret_token(&key, &claims);
    let error = async |token: &str| {
        let status = review(&server, json!({"token": token})).await;
        status["error"].as_str().unwrap_or_default().to_owned()
    };
    let before = error(&token).await;
    assert!(before.contains("Token has been invalidated"), "{before}");
    let secret = json!({
        "metadata": {"name": "t", "annotations": {"kubernetes.io/service-account.name": "s"}},
        "type": "kubernetes.io/service-account-token", "data": {"token": STANDARD.encode(&token)},
    });
    assert_eq!(server.post(&admin(), SECRETS, secret).await.0, 201);
    let (status, who) = whoami(&server, &token).await;
    assert_eq!(status, 201);
    let groups = json!([
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated"
    ]);
    assert_eq!(
        who,
        json!({"username": "system:serviceaccount:default:s", "uid": account["metadata"]["uid"], "groups": groups})
    );
    // It is for this server alone.
    let elsewhere = review(&server, json!({"token": token, "audiences": ["vault"]})).await;
    assert_ne!(elsewhere["authenticated"], true);

    // Its use is recorded.
    let path = format!("{SECRETS}/t");
    let mut day = None;
    for _ in 0..10_000 {
        let (_, secret) = server.get(&admin(), &path).await;
        let label = &secret["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"];
        day = label.as_str().map(str::to_owned);
        if day.is_some() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(day.as_deref(), Some("2026-09-21"));

    let mut wrong = claims.clone();
    wrong["sub"] = json!("system:serviceaccount:default:other");
    let said = error(&secret_token(&key, &wrong)).await;
    assert!(said.contains("sub claim is invalid"), "{said}");
    wrong = claims.clone();
    wrong["more"] = json!(1);
    let said = error(&secret_token(&key, &wrong)).await;
    assert!(
        said.contains("Token does not match server's copy"),
        "{said}"
    );
    let foreign = secret_token(&rcgen::KeyPair::generate().unwrap(), &claims);
    let said = error(&foreign).await;
    assert!(said.contains("error in cryptographic primitive"), "{said}");

    let label =
        json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": "2026-09-22"}}});
    let headers = [("content-type", "application/merge-patch+json")];
    let changed = server
        .send(Some(&admin()), Method::PATCH, &path, &headers, label)
        .await;
    assert_eq!(changed.0, 200);
    let said = error(&token).await;
    assert!(
        said.contains(
            "the token in secret default/t for service account default/s has been marked invalid"
        ),
        "{said}"
    );
    let (status, _) = server
        .send(Some(&admin()), Method::DELETE, &path, &[], Value::Null)
        .await;
    assert_eq!(status, 200);
    assert_eq!(whoami(&server, &token).await.0, 401);
}
