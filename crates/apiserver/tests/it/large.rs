//! Requests that take long to work on: they keep nobody waiting, and end when nobody waits for them.

use std::{
    sync::{
        Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use mullion_apiserver::{
    ApiServer, Config, Limits,
    admission::{Ctx, Plugin, Request, What},
    status::Status,
};
use serde_json::{Value, json};

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

    fn handles(&self, what: &What<'_>) -> bool {
        what.is("", "configmaps")
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
