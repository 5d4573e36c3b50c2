//! Annotations that the API server refuses, or answers for in another way than expected.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, Request, Response};
use kube::{Client, ResourceExt, client::Body};
use serde_json::json;
use tower::BoxError;

use crate::{ec2::Ec2, served, world::World};

/// What becomes of the write of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The API server answers with this code and does nothing.
    Refused(u16),
    /// The API server does it, and the connection breaks before the answer.
    Unheard,
    /// The connection breaks before the request.
    Unsent,
}

/// The fates of the next writes. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
struct Fates(Arc<Mutex<VecDeque<Fate>>>);

impl Fates {
    fn meet(&self, fates: impl IntoIterator<Item = Fate>) {
        self.lock().extend(fates);
    }

    fn next(&self, request: &Request<Body>) -> Option<Fate> {
        let path = request.uri().path();
        let writes = request.method() == Method::PATCH && path.contains("/pods/");
        writes.then(|| self.lock().pop_front()).flatten()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Fate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a client whose writes meet these fates.
    fn over(self, client: Client) -> Client {
        let service = tower::service_fn(move |request| {
            let (fate, client) = (self.next(&request), client.clone());
            async move {
                match fate {
                    None => Ok(client.send(request).await?),
                    Some(Fate::Refused(code)) => Ok(refusal(code)),
                    Some(Fate::Unheard) => {
                        client.send(request).await?;
                        Err(BoxError::from("connection reset"))
                    }
                    Some(Fate::Unsent) => Err(BoxError::from("connection refused")),
                }
            }
        });
        Client::new(service, "default")
    }
}

fn refusal(code: u16) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": "Test", "message": "refused"});
    let body = Body::from(status.to_string().into_bytes());
    let response = Response::builder().status(code);
    let response = response.header("content-type", "application/json");
    response.body(body).expect("a response")
}

/// A node whose two slots are warm, and the fates of annotations.
async fn warm() -> (World<Ec2>, Fates) {
    let fates = Fates::default();
    let ours = fates.clone();
    let ec2 = Ec2::new("10.0.0.0/20");
    let world = World::through(served::context(), ec2, |client| ours.over(client)).await;
    world.configure(&[("enable-windows-ipam", "true")]).await;
    world.node("w1", "m5.large", 2).await;
    world.until_capacity("w1", "2").await;
    world.pass(30).await;
    (world, fates)
}

async fn uid(world: &World<Ec2>, pod: &str) -> String {
    let pod = world.pods().get(pod).await.expect("it is there");
    pod.uid().expect("it has a uid")
}

/// How often an event of this reason was sent about a pod.
async fn told(world: &World<Ec2>, uid: &str, reason: &str) -> i32 {
    let events = world.counted_events(uid).await;
    let ours = events.iter().filter(|((known, _), _)| known == reason);
    ours.map(|(_, count)| count).sum()
}

#[tokio::test(start_paused = true)]
async fn a_refused_annotation_lets_the_address_cool_and_nothing_says_success() {
    let (world, fates) = warm().await;
    fates.meet([Fate::Refused(403), Fate::Refused(422)]);
    let began = world.ec2.elapsed();
    world.pod("a", "w1").await;
    let uid = uid(&world, "a").await;
    let cool = async || {
        let counts = world.metrics.numbers().nodes["w1"].addresses;
        (counts.cooling == 2 && counts.used == 0).then_some(())
    };
    world.until("both addresses cool", cool).await;
    world.pass(10).await;
    assert_eq!(told(&world, &uid, "ResourceAllocated").await, 0);
    let address = world.address("a").await;
    let waited = (world.ec2.elapsed() - began).as_secs();
    assert!((30..34).contains(&waited), "it rests for 30 s: {waited}");
    world.pass(5).await;
    let events = world.counted_events(&uid).await;
    let allocated = events
        .iter()
        .filter(|((reason, _), _)| reason == "ResourceAllocated");
    let allocated: Vec<_> = allocated
        .map(|((_, message), count)| (message, *count))
        .collect();
    assert_eq!(allocated.len(), 1, "{events:?}");
    assert!(allocated[0].0.contains(&address.to_string()));
    assert_eq!(allocated[0].1, 1);
}

#[tokio::test(start_paused = true)]
async fn annotations_whose_write_is_not_known_are_looked_up_and_the_address_stays() {
    for fate in [
        Fate::Unheard,
        Fate::Unsent,
        Fate::Refused(409),
        Fate::Refused(429),
        Fate::Refused(500),
        Fate::Refused(503),
    ] {
        let (world, fates) = warm().await;
        fates.meet([fate]);
        let began = world.ec2.elapsed();
        world.pod("a", "w1").await;
        let address = world.address("a").await;
        assert!((world.ec2.elapsed() - began).as_secs() < 3, "{fate:?}");
        world.pass(60).await;
        let counts = world.metrics.numbers().nodes["w1"].addresses;
        assert_eq!((counts.used, counts.cooling), (1, 0), "{fate:?}");
        let uid = uid(&world, "a").await;
        assert_eq!(told(&world, &uid, "ResourceAllocated").await, 1, "{fate:?}");
        assert_eq!(world.address("a").await, address);
    }
}

#[tokio::test(start_paused = true)]
async fn the_address_of_a_pod_that_is_gone_cools_and_its_successor_gets_another() {
    for fate in [Fate::Refused(404), Fate::Refused(409), Fate::Unsent] {
        let (world, fates) = warm().await;
        fates.meet([fate]);
        world.pod("a", "w1").await;
        let first = uid(&world, "a").await;
        world.delete_pod("a").await;
        world.pod("a", "w1").await;
        world.address("a").await;
        world.pass(5).await;
        let counts = world.metrics.numbers().nodes["w1"].addresses;
        assert_eq!((counts.used, counts.cooling), (1, 1), "{fate:?}");
        assert_eq!(
            told(&world, &first, "ResourceAllocated").await,
            0,
            "{fate:?}"
        );
        let second = uid(&world, "a").await;
        assert_eq!(
            told(&world, &second, "ResourceAllocated").await,
            1,
            "{fate:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_hears_of_one_kind_of_event_once_a_minute() {
    let (world, fates) = warm().await;
    fates.meet([Fate::Refused(403); 1000]);
    world.pod("a", "w1").await;
    let uid = uid(&world, "a").await;
    world.pass(600).await;
    assert_eq!(world.annotation("a").await, None);
    let tried = 1000 - fates.lock().len();
    assert!(tried >= 10, "{tried} writes");
    let events = world.counted_events(&uid).await;
    assert!(!events.is_empty());
    for ((reason, message), count) in &events {
        assert_eq!(reason, "ResourceAllocationFailed", "{message}");
        assert!(
            (1..=10).contains(count),
            "{count} times in ten minutes: {message}"
        );
    }
}
