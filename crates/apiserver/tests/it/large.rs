//! Requests that take long to work on, and large answers: they keep nobody waiting, and end when nobody waits for them.

use std::{
    io::Read,
    sync::{
        Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use axum::body::Body;
use flate2::read::GzDecoder;
use http_body_util::BodyExt;
use mullion_apiserver::{
    ApiServer, Config, Limits,
    admission::{Action, Ctx, Plugin, Request, User},
    status::Status,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    api::{Api, until},
    tls::{Client, OVER_1, OVER_2, Served, empty, get},
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// How long a test waits for what has to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Works on objects with the label `slow` until it is told to end, and says when it begins; blocks its thread as long checks do.
struct Slow {
    begins: SyncSender<()>,
    ends: Mutex<Receiver<()>>,
}

impl Plugin for Slow {
    fn name(&self) -> &'static str {
        "Slow"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        action.is("", "configmaps")
    }

    fn mutate(&self, _: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        if request.object["metadata"]["labels"].get("slow").is_some() {
            self.begins.send(()).unwrap();
            let ended = self.ends.lock().unwrap().recv_timeout(PATIENCE);
            ended.expect("others were answered meanwhile");
        }
        Ok(())
    }
}

struct Stage {
    served: Served,
    api: Api,
    begins: Receiver<()>,
    end: SyncSender<()>,
}

async fn stage(limits: Limits) -> Stage {
    let (begins_sender, begins) = sync_channel(1);
    let (end, ends) = sync_channel(1);
    let slow = Slow {
        begins: begins_sender,
        ends: Mutex::new(ends),
    };
    let server = ApiServer::new(Config {
        limits,
        admission: vec![std::sync::Arc::new(slow)],
        ..Config::default()
    });
    Stage {
        served: Served::new(&server).await,
        api: Api::of(&server),
        begins,
        end,
    }
}

/// A creation whose body is large.
fn create(name: &str, labels: Value) -> http::Request<Vec<u8>> {
    let map =
        json!({"metadata": {"name": name, "labels": labels}, "data": {"a": "x".repeat(100_000)}});
    http::Request::post(format!("https://localhost{MAPS}"))
        .header("host", "localhost")
        .body(map.to_string().into_bytes())
        .unwrap()
}

impl Stage {
    /// Sends a creation that goes on until it is told to end, and waits until it is being worked on.
    async fn begin(&self, name: &str) -> tokio::task::JoinHandle<u16> {
        let stream = self.served.connect(Some(&self.served.admin), OVER_2).await;
        let mut client = Client::new(stream, OVER_2).await;
        let request = create(name, json!({"slow": ""}));
        let answer = tokio::spawn(async move { client.send(request).await.status().as_u16() });
        until("it is worked on", async || self.begins.try_recv().ok()).await;
        answer
    }
}

/// Its runtime has one thread, which the large request would hold.
#[tokio::test]
async fn others_are_answered_while_a_large_request_is_worked_on() {
    let stage = stage(Limits::default()).await;
    let slow = stage.begin("slow").await;
    for protocol in [OVER_1, OVER_2] {
        for path in ["/readyz", MAPS] {
            let admin = Some(&stage.served.admin);
            let answer = stage.served.send(admin, protocol, empty(get(path))).await;
            assert_eq!(answer.status, 200);
        }
    }
    stage.end.send(()).unwrap();
    assert_eq!(slow.await.unwrap(), 201);
    stage.api.get(&format!("{MAPS}/slow")).await.ok();
}

#[tokio::test]
async fn a_large_request_that_takes_too_long_or_whose_client_has_left_writes_nothing() {
    let stage_of = |request| {
        stage(Limits {
            request,
            workers: 1,
            ..Limits::default()
        })
    };
    let too_long = stage_of(Duration::from_secs(2)).await;
    let answer = too_long.begin("m").await;
    assert_eq!(answer.await.unwrap(), 504);
    let left = stage_of(PATIENCE * 2).await;
    let answer = left.begin("m").await;
    answer.abort();
    assert!(answer.await.unwrap_err().is_cancelled());
    until("the server knows", async || {
        let admin = Some(&left.served.admin);
        let metrics = left.served.send(admin, OVER_2, empty(get("/metrics")));
        let none = "{request_kind=\"mutating\"} 0\n";
        metrics.await.text.contains(none).then_some(())
    })
    .await;
    for stage in [too_long, left] {
        stage.end.send(()).unwrap();
        // There is one worker: the next request is worked on when the one before has ended.
        let admin = Some(&stage.served.admin);
        let next = create("next", json!({}));
        assert_eq!(stage.served.send(admin, OVER_2, next).await.status, 201);
        stage.api.get(&format!("{MAPS}/m")).await.refused(404);
    }
}

/// The headers and the bytes of an answer to an administrator.
async fn read(
    server: &std::sync::Arc<ApiServer>,
    path: &str,
    headers: &[(&str, &str)],
) -> (http::HeaderMap, Vec<u8>) {
    let mut request = http::Request::get(path).extension(User::administrator());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    let (head, body) = server.router().oneshot(request).await.unwrap().into_parts();
    assert_eq!(head.status, 200);
    (
        head.headers,
        body.collect().await.unwrap().to_bytes().to_vec(),
    )
}

/// Large answers are made while they are sent, small ones at once.
#[tokio::test]
async fn a_large_list_is_in_every_form_what_its_pages_are() {
    const OBJECTS: usize = 200;
    // A table says how old an object is.
    let server = ApiServer::new(Config {
        clock: std::sync::Arc::new(|| jiff::Timestamp::UNIX_EPOCH),
        ..Config::default()
    });
    let api = Api::of(&server);
    for index in 0..OBJECTS {
        let map = json!({"metadata": {"name": format!("m{index:03}")}, "data": {"a": "\"items\":[]\\\"x".repeat(300)}});
        api.post(MAPS, map).await.ok();
    }
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    for (accept, field, is_streamed) in [
        ("application/json", "items", false),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", "rows", true),
        (
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            "items",
            true,
        ),
    ] {
        let query = "includeObject=Object";
        let path = format!("{MAPS}?{query}");
        let (headers, plain) = read(&server, &path, &[("accept", accept)]).await;
        let whole = json(&plain);
        let mut parts: Vec<Value> = Vec::new();
        let mut next = String::new();
        loop {
            let page = format!("{path}&limit=20&continue={next}");
            let (_, page) = read(&server, &page, &[("accept", accept)]).await;
            let mut page = json(&page);
            parts.extend(page[field].as_array().unwrap().iter().cloned());
            next = page["metadata"]["continue"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            page[field] = whole[field].clone();
            page["metadata"] = whole["metadata"].clone();
            assert!(page == whole, "{accept}");
            if next.is_empty() {
                break;
            }
        }
        assert_eq!(parts.len(), OBJECTS);
        assert!(whole[field] == Value::from(parts), "{accept}");
        assert!(headers.get("content-encoding").is_none());
        let gzip = [("accept", accept), ("accept-encoding", "gzip")];
        let (headers, packed) = read(&server, &path, &gzip).await;
        assert_eq!(headers["content-encoding"], "gzip");
        let mut unpacked = Vec::new();
        GzDecoder::new(&*packed).read_to_end(&mut unpacked).unwrap();
        assert!(packed.len() < plain.len() && unpacked == plain);
        let pretty = format!("{path}&pretty=true");
        let (_, pretty) = read(&server, &pretty, &[("accept", accept)]).await;
        assert!(pretty.starts_with(b"{\n  \"") && json(&pretty) == whole);
        let request = http::Request::get(&path)
            .extension(User::administrator())
            .header("accept", accept);
        let request = request.body(Body::empty()).unwrap();
        let mut body = server.router().oneshot(request).await.unwrap().into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(first.len() < 64 * 1024);
        // Whoever waits for the thread goes first.
        let second = futures::FutureExt::now_or_never(body.frame());
        assert_eq!(second.is_none(), is_streamed);
    }
}
