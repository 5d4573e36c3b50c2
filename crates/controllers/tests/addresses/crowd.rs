//! Many nodes and too few addresses.

use std::time::Duration;

use crate::{ec2::Ec2, world::World};

#[tokio::test(start_paused = true)]
async fn five_hundred_nodes_on_a_full_subnet_make_at_most_one_call_a_second() {
    let ec2 = Ec2::new("10.0.0.0/20");
    ec2.fill_but(0);
    let world = World::new(ec2.clone()).await;
    for node in 0..500 {
        let name = format!("w{node}");
        world.node(&name, "m5.large", 9).await;
        world.pod(&format!("p{node}"), &name).await;
    }
    let managed = async || {
        let numbers = world.metrics.numbers();
        (numbers.nodes.len() == 500).then_some(())
    };
    world.until("every node is known", managed).await;
    let began = ec2.elapsed();
    world.pass(600).await;
    let calls = ec2.calls("assign");
    let later = calls.iter().filter(|at| **at >= began).count();
    assert!(later <= 600, "{later} calls in 600 s");
    let most = most_in_ten_seconds(&calls);
    assert!(most <= 30, "{most} calls in 10 s");
    let listings = ec2.calls("list").into_iter();
    let listings = listings.filter(|at| *at >= began + Duration::from_secs(60));
    assert_eq!(
        listings.count(),
        0,
        "a full subnet is no reason to look again"
    );
}

fn most_in_ten_seconds(calls: &[Duration]) -> usize {
    let windows = calls.iter().map(|begin| {
        let end = *begin + Duration::from_secs(10);
        calls
            .iter()
            .filter(|at| *begin <= **at && **at < end)
            .count()
    });
    windows.max().unwrap_or(0)
}

/// A full subnet, whose last address pod `a` on `w1` has. Pod `b` on `w2` has waited for so long that the subnet is asked rarely.
async fn full_subnet() -> World {
    let ec2 = Ec2::new("10.0.0.0/20");
    ec2.fill_but(3);
    let world = World::new(ec2).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    world.address("a").await;
    world.node("w2", "m5.large", 9).await;
    world.pod("b", "w2").await;
    world.pass(500).await;
    assert_eq!(world.annotation("b").await, None, "the subnet is full");
    world
}

#[tokio::test(start_paused = true)]
async fn an_address_given_back_ends_the_wait_of_its_subnet_at_once() {
    let world = full_subnet().await;
    let began = world.ec2.elapsed();
    let targets = [
        ("enable-windows-ipam", "true"),
        ("warm-ip-target", "1"),
        ("minimum-ip-target", "1"),
    ];
    world.configure(&targets).await;
    world.address("b").await;
    let waited = world.ec2.elapsed() - began;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_ends_the_wait_of_its_subnet_at_once() {
    let world = full_subnet().await;
    let began = world.ec2.elapsed();
    world.delete_pod("a").await;
    world.ec2.terminate("i-w1");
    world.delete_node("w1").await;
    world.address("b").await;
    let waited = world.ec2.elapsed() - began;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn two_hundred_nodes_are_known_after_one_call() {
    let ec2 = Ec2::new("10.0.0.0/20");
    let world = World::new(ec2.clone()).await;
    for node in 0..200 {
        world.node(&format!("w{node}"), "m5.large", 9).await;
    }
    world.pass(60).await;
    let began = ec2.elapsed();
    let world = world.restarted().await;
    let managed = async || (world.metrics.numbers().nodes.len() == 200).then_some(());
    world.until("every node is known", managed).await;
    let calls = ec2.calls("interfaces").into_iter();
    assert_eq!(calls.filter(|at| *at >= began).count(), 1);
    assert!(ec2.elapsed() - began < Duration::from_secs(1));
}
