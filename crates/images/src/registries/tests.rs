//! Tests with faulty registries under paused time. Connections are pipes in memory, so time passes only while a task waits for
//! it.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;
use crate::{
    dial::{Dialing, Io},
    exchange::MOST_BYTES,
};

type Reply = Response<Full<Bytes>>;
type Answering = dyn Fn(&str, &Request<Incoming>) -> Option<Reply> + Send + Sync;

/// All hosts of a test. A request for which `answering` has no response hangs.
struct Net {
    answering: Box<Answering>,
    requests: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

struct Pipes(Arc<Net>);

impl Dial for Pipes {
    fn dial(&self, to: Dialing) -> BoxFuture<'_, Result<Box<dyn Io>, AskError>> {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let net = self.0.clone();
        let host = format!("{}:{}", to.host, to.port);
        let service = service_fn(move |request| {
            let (net, host) = (net.clone(), host.clone());
            async move { net.answer(&host, &request).await }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(theirs), service));
        async move { Ok(Box::new(ours) as Box<dyn Io>) }.boxed()
    }
}

impl Net {
    fn of(
        answering: impl Fn(&str, &Request<Incoming>) -> Option<Reply> + Send + Sync + 'static,
    ) -> Arc<Net> {
        Arc::new(Net {
            answering: Box::new(answering),
            requests: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
        })
    }

    async fn answer(&self, host: &str, request: &Request<Incoming>) -> Result<Reply, AskError> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let Some(reply) = (self.answering)(host, request) else {
            return std::future::pending().await;
        };
        tokio::task::yield_now().await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        Ok(reply)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn registries(net: &Arc<Net>) -> Arc<Registries> {
    let settings = "all".parse().expect("a setting");
    Registries::new(settings, Arc::new(Pipes(net.clone())))
}

fn image(name: &str) -> ImageRef {
    ImageRef::parse(name).expect("the name is valid")
}

fn reply(status: u16, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = StatusCode::from_u16(status).expect("a status");
    reply
}

fn with(mut reply: Reply, name: header::HeaderName, value: &str) -> Reply {
    reply
        .headers_mut()
        .insert(name, value.parse().expect("a header"));
    reply
}

fn index() -> Value {
    let entry = |os: &str, c: &str| {
        json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": format!("sha256:{}", c.repeat(64)),
            "size": 1,
            "platform": {"os": os, "architecture": "amd64"},
        })
    };
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry("linux", "a"), entry("windows", "b")],
    })
}

fn runs(known: &ImageLookup) -> Option<String> {
    match known {
        ImageLookup::Content(content) => content.runs().map(|runs| runs.to_string()),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_is_read_once_and_then_answered_from_memory() {
    let net = Net::of(|_, _| Some(reply(200, index().to_string())));
    let (registries, image) = (registries(&net), image("r.example.com/shop:1"));
    let keyring = Keyring::default();
    assert_eq!(registries.cached(&image, &keyring), ImageLookup::NotAsked);
    for _ in 0..3 {
        registries.fetch(&image, &keyring).await;
        let known = registries.cached(&image, &keyring);
        assert_eq!(runs(&known).as_deref(), Some("linux/amd64,windows/amd64"));
    }
    assert_eq!(net.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn sizes_come_from_the_layers_once_platforms_are_known() {
    let manifest = json!({
        "schemaVersion": 2,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": format!("sha256:{}", "c".repeat(64)), "size": 1},
        "layers": [{"digest": format!("sha256:{}", "d".repeat(64)), "size": 5}, {"digest": format!("sha256:{}", "e".repeat(64)), "size": 7}],
    })
    .to_string();
    let mut index = index();
    for entry in index["manifests"].as_array_mut().expect("a list") {
        let hex = Sha256::digest(manifest.as_bytes());
        let hex: String = hex.iter().map(|byte| format!("{byte:02x}")).collect();
        entry["digest"] = format!("sha256:{hex}").into();
    }
    let net = Net::of(move |_, request| {
        let whole = request.uri().path().ends_with("/manifests/1");
        Some(reply(
            200,
            if whole {
                index.to_string()
            } else {
                manifest.clone()
            },
        ))
    });
    let mut settings: Settings = "all".parse().expect("a setting");
    settings.sizes = true;
    let registries = Registries::new(settings, Arc::new(Pipes(net.clone())));
    let (image, keyring) = (image("r.example.com/shop:1"), Keyring::default());
    registries.fetch(&image, &keyring).await;
    let sizes = || {
        let content = registries.known_to_any(&image).expect("it is known");
        let variants = content.variants.expect("it is an index");
        variants
            .into_iter()
            .map(|one| one.bytes)
            .collect::<Vec<_>>()
    };
    while sizes() != [Some(12), Some(12)] {
        tokio::task::yield_now().await;
    }
    assert_eq!(net.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_hangs_costs_a_second_once_in_half_a_minute() {
    let net = Net::of(|_, _| None);
    let (registries, image) = (registries(&net), image("r.example.com/shop:1"));
    let keyring = Keyring::default();
    let waited = async || {
        let start = Instant::now();
        registries.fetch(&image, &keyring).await;
        start.elapsed()
    };
    assert_eq!(waited().await, CALL_PATIENCE);
    let known = registries.cached(&image, &keyring);
    assert!(
        matches!(known, ImageLookup::Failed(AskError::TimedOut { .. })),
        "{known:?}"
    );
    assert_eq!(waited().await, Duration::ZERO);
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(waited().await, CALL_PATIENCE);
    assert_eq!(net.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_a_second_however_long_the_queue_at_a_registry_is() {
    let net = Net::of(|_, _| None);
    let registries = registries(&net);
    let keyring = Keyring::default();
    let images: Vec<_> = (0..20)
        .map(|index| image(&format!("r.example.com/shop:{index}")))
        .collect();
    let start = Instant::now();
    let all = images.iter().map(|image| registries.fetch(image, &keyring));
    futures::future::join_all(all).await;
    assert_eq!(start.elapsed(), PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_for_the_same_image_meanwhile_shares_the_answer() {
    let net = Net::of(|_, _| Some(reply(200, index().to_string())));
    let registries = registries(&net);
    let (image, keyring) = (image("r.example.com/shop:1"), Keyring::default());
    let all = (0..20).map(|_| registries.fetch(&image, &keyring));
    futures::future::join_all(all).await;
    assert_eq!(net.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_registry_gets_four_requests_at_a_time() {
    let net = Net::of(|_, _| Some(reply(200, index().to_string())));
    let registries = registries(&net);
    let keyring = Keyring::default();
    let images: Vec<_> = (0..20)
        .map(|index| image(&format!("r.example.com/shop:{index}")))
        .collect();
    let all = images.iter().map(|image| registries.fetch(image, &keyring));
    futures::future::join_all(all).await;
    assert_eq!(net.requests(), 20);
    assert_eq!(net.most_running.load(Ordering::SeqCst), CALLS_PER_REGISTRY);
    let state = registries.state();
    assert!(state.asked.is_empty() && state.calls.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_wants_fewer_requests_is_left_alone_as_long_as_it_says() {
    let net = Net::of(|_, _| Some(with(reply(429, ""), header::RETRY_AFTER, "120")));
    let registries = registries(&net);
    let keyring = Keyring::default();
    for index in 0..10 {
        let image = image(&format!("r.example.com/shop:{index}"));
        registries.fetch(&image, &keyring).await;
    }
    assert_eq!(net.requests(), 1);
    tokio::time::advance(Duration::from_secs(120)).await;
    registries
        .fetch(&image("r.example.com/shop:11"), &keyring)
        .await;
    assert_eq!(net.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_date_until_which_a_registry_wants_to_be_left_alone_is_one_of_its_own_clock() {
    let net = Net::of(|_, _| {
        let reply = with(
            reply(429, ""),
            header::DATE,
            "Sat, 01 Jan 2000 00:00:00 GMT",
        );
        let until = "Sat, 01 Jan 2000 00:10:00 GMT";
        Some(with(reply, header::RETRY_AFTER, until))
    });
    let registries = registries(&net);
    let ask = async |tag: u64| {
        let image = image(&format!("r.example.com/shop:{tag}"));
        registries.fetch(&image, &Keyring::default()).await;
        net.requests()
    };
    assert_eq!(ask(1).await, 1);
    tokio::time::advance(Duration::from_secs(599)).await;
    assert_eq!(ask(2).await, 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(ask(3).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_wants_fewer_requests_is_passed_over_as_long_as_it_says() {
    let calls = Arc::new(AtomicUsize::new(0));
    let of_mirror = calls.clone();
    let net = Net::of(move |host, _| {
        if !host.starts_with("mirror.example.com") {
            return Some(reply(200, index().to_string()));
        }
        of_mirror.fetch_add(1, Ordering::SeqCst);
        Some(with(reply(429, ""), header::RETRY_AFTER, "120"))
    });
    let settings = "r.example.com=mirror.example.com".parse();
    let registries = Registries::new(settings.expect("a setting"), Arc::new(Pipes(net.clone())));
    let ask = async |tag: u64| {
        let image = image(&format!("r.example.com/shop:{tag}"));
        registries.fetch(&image, &Keyring::default()).await;
        let known = registries.cached(&image, &Keyring::default());
        assert!(runs(&known).is_some(), "{known:?}");
        calls.load(Ordering::SeqCst)
    };
    assert_eq!((ask(1).await, ask(2).await), (1, 1));
    tokio::time::advance(Duration::from_secs(120)).await;
    assert_eq!(ask(3).await, 2);
}

#[tokio::test(start_paused = true)]
async fn no_sizes_are_asked_of_a_registry_that_wants_fewer_requests() {
    let net = Net::of(|_, request| {
        if request.uri().path().contains("sha256:") {
            Some(with(reply(429, ""), header::RETRY_AFTER, "120"))
        } else {
            Some(reply(200, index().to_string()))
        }
    });
    let mut settings: Settings = "all".parse().expect("a setting");
    settings.sizes = true;
    let registries = Registries::new(settings, Arc::new(Pipes(net.clone())));
    let ask = async |tag: u64| {
        let image = image(&format!("r.example.com/shop:{tag}"));
        registries.fetch(&image, &Keyring::default()).await;
        // Sizes are requested after the answer has arrived; paused time advances only when no task can run, so they are there
        // after the sleep.
        tokio::time::sleep(Duration::from_millis(1)).await;
        net.requests()
    };
    assert_eq!((ask(1).await, ask(2).await), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_token_is_fetched_with_the_pod_s_credentials_which_go_nowhere_else() {
    let net = Net::of(|host, request| {
        let authorization = request.headers().get(header::AUTHORIZATION);
        let authorization = authorization.and_then(|value| value.to_str().ok());
        Some(match (host, authorization) {
            ("auth.example.com:443", Some(value)) if value.starts_with("Basic ") => {
                assert_eq!(
                    request.uri().path_and_query().map(|target| target.as_str()),
                    Some("/token?scope=repository%3Ashop%2Freport%3Apull&service=r.example.com")
                );
                reply(200, r#"{"access_token": "t0"}"#)
            }
            ("r.example.com:443", Some("Bearer t0")) => {
                let elsewhere = "https://cdn.example.com/manifest";
                with(reply(307, ""), header::LOCATION, elsewhere)
            }
            ("r.example.com:443", None) => {
                let challenge = r#"Bearer realm="https://auth.example.com/token",service="r.example.com",scope="repository:shop/report:pull,push""#;
                with(reply(401, ""), header::WWW_AUTHENTICATE, challenge)
            }
            ("cdn.example.com:443", None) => reply(200, index().to_string()),
            _ => reply(403, ""),
        })
    });
    let registries = registries(&net);
    let config = json!({"auths": {"r.example.com/shop": {"username": "u", "password": "p"}}});
    let data = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        config.to_string(),
    );
    let secret =
        json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": data}});
    let image = image("r.example.com/shop/report:1");
    let (keyring, nobody) = (Keyring::of(&[secret]), Keyring::default());
    registries.fetch(&image, &keyring).await;
    let known = registries.cached(&image, &keyring);
    assert_eq!(runs(&known).as_deref(), Some("linux/amd64,windows/amd64"));
    // An answer that one pod's credentials obtained must not be visible to a pod without them.
    assert_eq!(registries.cached(&image, &nobody), ImageLookup::NotAsked);
    registries.fetch(&image, &nobody).await;
    let known = registries.cached(&image, &nobody);
    assert!(
        matches!(known, ImageLookup::Failed(AskError::Unauthorized { .. })),
        "{known:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn answers_without_end_and_redirects_without_end_are_given_up() {
    let net = Net::of(|host, _| {
        Some(match host {
            "long.example.com:443" => reply(200, vec![b' '; MOST_BYTES + 1]),
            _ => with(reply(302, ""), header::LOCATION, "/again"),
        })
    });
    let registries = registries(&net);
    let keyring = Keyring::default();
    let failure = async |name: &str| {
        let image = image(name);
        registries.fetch(&image, &keyring).await;
        registries.cached(&image, &keyring)
    };
    let long = failure("long.example.com/a:1").await;
    assert!(
        matches!(long, ImageLookup::Failed(AskError::TooLong { .. })),
        "{long:?}"
    );
    let before = net.requests();
    let round = failure("round.example.com/a:1").await;
    assert!(
        matches!(round, ImageLookup::Failed(AskError::Redirects { .. })),
        "{round:?}"
    );
    assert_eq!(net.requests() - before, 4);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_led_to_a_place_without_tls() {
    let net = Net::of(|_, _| {
        let location = "http://169.254.169.254/latest/meta-data";
        Some(with(reply(302, ""), header::LOCATION, location))
    });
    let registries = registries(&net);
    let (image, keyring) = (image("r.example.com/a:1"), Keyring::default());
    registries.fetch(&image, &keyring).await;
    let known = registries.cached(&image, &keyring);
    assert!(
        matches!(known, ImageLookup::Failed(AskError::Unexpected { .. })),
        "{known:?}"
    );
    assert_eq!(net.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_named_by_a_digest_is_verified() {
    let body = index().to_string();
    let digest: String = Sha256::digest(body.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let net = Net::of(move |_, _| Some(reply(200, index().to_string())));
    let registries = registries(&net);
    let keyring = Keyring::default();
    let right = image(&format!("r.example.com/a@sha256:{digest}"));
    let wrong = image(&format!("r.example.com/a@sha256:{}", "0".repeat(64)));
    for image in [&right, &wrong] {
        registries.fetch(image, &keyring).await;
    }
    assert!(runs(&registries.cached(&right, &keyring)).is_some());
    let known = registries.cached(&wrong, &keyring);
    assert!(
        matches!(known, ImageLookup::Failed(AskError::Unexpected { .. })),
        "{known:?}"
    );
}

#[tokio::test]
async fn the_operating_system_s_connections_refuse_addresses_that_no_registry_has() {
    let settings = "all".parse().expect("a setting");
    let registries = Registries::new(settings, Arc::new(crate::SystemDial::default()));
    let (image, keyring) = (image("169.254.169.254/a:1"), Keyring::default());
    registries.fetch(&image, &keyring).await;
    let known = registries.cached(&image, &keyring);
    assert!(
        matches!(known, ImageLookup::Failed(AskError::Refused { .. })),
        "{known:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_can_wait_gives_a_slow_registry_five_seconds_and_asks_again_five_after_a_failure() {
    let net = Net::of(|_, _| None);
    let (registries, image) = (registries(&net), image("r.example.com/shop:1"));
    let keyring = Keyring::default();
    registries.fetch(&image, &keyring).await;
    let failed = Instant::now();
    // The failure counts as an answer for 30 s to callers that wait, and for 5 s to those that retry in the background.
    for (second, requests) in [(1, 1), (4, 1), (5, 2), (9, 2), (10, 2), (14, 2), (15, 3)] {
        tokio::time::sleep_until(failed + Duration::from_secs(second)).await;
        registries.ask_again(&image, &keyring);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(net.requests(), requests, "after {second} s");
    }
}
