//! 200 Windows nodes for six minutes: pods come and go, EC2 refuses and forgets calls, one subnet is full and one fragmented, nodes come
//! and go, the mode is switched twice, and the controller is killed at random moments.
//!
//! At all times no two living pods have one address, no address is given within 30 s of its release, and what a pod has is on its node's
//! interface. At the end nothing is left but the warm addresses, and the CNINodes list them. Printed is how long pods waited, and
//! what happened to the slowest.
//!
//! `ADDRESS_SEEDS` says how many further seeds run.

mod churn;
mod cloud;
mod ledger;

use std::time::Duration;

use churn::Churn;
use ledger::{Inner, Start};

/// Returns how long ninety-nine of a hundred waited at most, and of how many.
fn p99(ledger: &Inner, start: Start) -> (Duration, usize) {
    let waits: Vec<_> = ledger.slowest(start).map(|(_, pod)| pod.waited()).collect();
    (waits[waits.len() / 100], waits.len())
}

#[allow(
    clippy::print_stdout,
    reason = "the numbers are read when the test is run by hand"
)]
async fn run(seed: u64) {
    let mut churn = Churn::new(seed).await;
    churn.live().await;
    churn.end().await;
    let ledger = churn.ledger.lock();
    let (warm, cold) = (p99(&ledger, Start::Warm), p99(&ledger, Start::Cold));
    let all = ledger.pods.len();
    println!("seed {seed}: {all} pods; warm {warm:?}, cold {cold:?}");
    println!("{:?}", churn.world.ec2.results());
    for start in [Start::Warm, Start::Cold] {
        for (name, pod) in ledger.slowest(start).take(12) {
            println!("{start:?} {}", churn.story(name, pod));
        }
    }
    assert!(ledger.wrong.is_empty(), "{:#?}", ledger.wrong);
}

#[tokio::test(start_paused = true)]
async fn two_hundred_nodes_keep_their_addresses_apart_seed_1() {
    run(1).await;
}

#[tokio::test(start_paused = true)]
async fn two_hundred_nodes_keep_their_addresses_apart_seed_2() {
    run(2).await;
}

#[tokio::test(start_paused = true)]
async fn two_hundred_nodes_keep_their_addresses_apart_further_seeds() {
    let text = std::env::var("ADDRESS_SEEDS").unwrap_or_default();
    for seed in 0..text.parse().unwrap_or(0) {
        run(100 + seed).await;
    }
}
