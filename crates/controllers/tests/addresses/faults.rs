//! Answers of EC2 that come late, twice or never, and calls that it refuses.

use std::time::Duration;

use crate::{
    ec2::{Ec2, Fate},
    world::World,
};

/// How many addresses the interface of a node has, by the controller and by EC2.
fn both(world: &World, node: &str) -> (usize, usize) {
    let counts = world.metrics.numbers().nodes[node].addresses;
    (counts.total(), world.ec2.has(&format!("i-{node}")).len())
}

#[tokio::test(start_paused = true)]
async fn addresses_whose_assignment_was_answered_too_late_are_found_and_used() {
    let ec2 = Ec2::new("10.0.0.0/20");
    ec2.calls_meet("assign", &[Fate::Late]);
    let world = World::new(ec2.clone()).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    world.address("a").await;
    // One call of 40 s, and a listing.
    let waited = ec2.elapsed();
    assert!(waited < Duration::from_secs(42), "{waited:?}");
    world.pass(120).await;
    assert_eq!(both(&world, "w1"), (4, 4), "one is used and three are warm");
}

#[tokio::test(start_paused = true)]
async fn an_assignment_that_is_never_answered_is_made_again() {
    let ec2 = Ec2::new("10.0.0.0/20");
    ec2.calls_meet("assign", &[Fate::Never, Fate::Never]);
    let world = World::new(ec2.clone()).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    world.address("a").await;
    // Two calls of 40 s, and a listing after each.
    let waited = ec2.elapsed();
    assert!(waited < Duration::from_secs(90), "{waited:?}");
    world.pass(120).await;
    assert_eq!(both(&world, "w1"), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn addresses_of_an_assignment_that_was_done_twice_are_found_when_slots_are_short() {
    let ec2 = Ec2::new("10.0.0.0/20");
    ec2.calls_meet("assign", &[Fate::Twice]);
    let world = World::new(ec2.clone()).await;
    world.node("w1", "m5.large", 9).await;
    for pod in 0..9 {
        let pod = format!("p{pod}");
        world.pod(&pod, "w1").await;
        world.address(&pod).await;
    }
    assert_eq!(world.addresses().await.len(), 9);
    world.pass(60).await;
    assert_eq!(both(&world, "w1"), (9, 9));
}

#[tokio::test(start_paused = true)]
async fn addresses_whose_return_is_not_known_are_given_to_nobody_until_a_listing_shows_it() {
    for fate in [Fate::Late, Fate::Never] {
        let ec2 = Ec2::new("10.0.0.0/20");
        let world = World::new(ec2.clone()).await;
        world.node("w1", "m5.large", 9).await;
        world.until_capacity("w1", "9").await;
        world.pass(10).await;
        assert_eq!(both(&world, "w1"), (3, 3));
        ec2.calls_meet("give-back", &[fate]);
        let targets = [
            ("enable-windows-ipam", "true"),
            ("warm-ip-target", "1"),
            ("minimum-ip-target", "1"),
        ];
        world.configure(&targets).await;
        let unknown = async || {
            let counts = world.metrics.numbers().nodes["w1"].addresses;
            (counts.deleting == 2).then_some(())
        };
        world.until("two are being given back", unknown).await;
        world.pass(45).await;
        let counts = world.metrics.numbers().nodes["w1"].addresses;
        assert_eq!((counts.warm, counts.deleting), (1, 2), "{fate:?}");
        world.pass(120).await;
        assert_eq!(both(&world, "w1"), (1, 1), "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_ec2_refuses_for_their_rate_are_made_again_after_longer_and_longer_waits() {
    let ec2 = Ec2::new("10.0.0.0/20");
    ec2.calls_meet("assign", &[Fate::Throttled; 4]);
    ec2.calls_meet("interfaces", &[Fate::Throttled; 2]);
    let world = World::new(ec2.clone()).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    world.address("a").await;
    // 100 ms for the call itself.
    let waits = |name| {
        let calls = ec2.calls(name);
        let waits = calls.windows(2).map(|two| (two[1] - two[0]).as_millis());
        waits.collect::<Vec<_>>()
    };
    assert_eq!(waits("interfaces")[..2], [1_100, 2_100]);
    assert_eq!(waits("assign")[..4], [700, 1_300, 2_500, 4_900]);
    let text = world.metrics.numbers().text();
    let refused = "mullion_ipam_calls_total{kind=\"assign\",result=\"RequestLimitExceeded\"} 4\n";
    assert!(text.contains(refused), "{text}");
}
