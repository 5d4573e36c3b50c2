//! Candidates for one Lease: one leads, the next one takes over from a leader that stops and from one that vanishes, and whoever cannot
//! renew stops in time.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::Patch, api::PatchParams};
use mullion_controllers::leader::{DEADLINE, DURATION, Election, PERIOD};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::served;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "mullion";

fn candidate(context: &mullion_controllers::Context, identity: &str) -> Election {
    let client = context.client.clone();
    Election::new(client, context.clock.clone(), NAMESPACE, NAME, identity)
}

async fn lease(context: &mullion_controllers::Context) -> Lease {
    let api: Api<Lease> = Api::namespaced(context.client.clone(), NAMESPACE);
    api.get(NAME).await.expect("the lease is there")
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_hands_over_at_once() {
    let context = served::context();
    let (mut first, mut second) = (candidate(&context, "a"), candidate(&context, "b"));
    first.won().await;
    // For a minute the first renews and the second waits.
    let waits = timeout(Duration::from_secs(60), async {
        tokio::select! {
            why = first.lost() => panic!("{why}"),
            () = second.won() => panic!("there are two leaders"),
        }
    });
    assert!(waits.await.is_err());
    first.give_back().await;
    let begun = Instant::now();
    second.won().await;
    assert!(begun.elapsed() <= PERIOD + Duration::from_millis(500));
    let spec = lease(&context).await.spec.expect("a spec");
    assert_eq!(spec.holder_identity.as_deref(), Some("b"));
    assert_eq!(spec.lease_transitions, Some(1));
    // Whoever does not hold it takes nothing away.
    first.give_back().await;
    let spec = lease(&context).await.spec.expect("a spec");
    assert_eq!(spec.holder_identity.as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_vanishes_is_followed_when_its_time_is_over() {
    let context = served::context();
    candidate(&context, "a").won().await;
    let begun = Instant::now();
    candidate(&context, "b").won().await;
    let waited = begun.elapsed();
    assert!(
        (DURATION..DURATION + 2 * PERIOD).contains(&waited),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_replaced_or_cut_off_stops() {
    let context = served::context();
    let mut first = candidate(&context, "a");
    first.won().await;
    let api: Api<Lease> = Api::namespaced(context.client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"spec": {"holderIdentity": "c"}}));
    let patched = api.patch(NAME, &PatchParams::default(), &patch).await;
    patched.expect("it can be patched");
    assert_eq!(first.lost().await, "Lease kube-system/mullion is held by c");

    // A client whose server never answers.
    let mute = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
    });
    let client = kube::Client::new(mute, "default");
    let clock = context.clock.clone();
    let mut cut_off = Election::new(client, clock, NAMESPACE, NAME, "d");
    let begun = Instant::now();
    let why = cut_off.lost().await;
    assert_eq!(begun.elapsed(), DEADLINE);
    assert!(
        why.starts_with("Lease kube-system/mullion could not be renewed for 10 s: "),
        "{why}"
    );
}
