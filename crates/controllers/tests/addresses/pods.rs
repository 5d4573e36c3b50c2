//! Pods get an address, keep it, and give it back.

use crate::{ec2::Ec2, world::World};

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_windows_node_gets_an_address_with_the_mask_of_its_subnet() {
    let world = World::new(Ec2::new("10.0.0.0/20")).await;
    world.node("w1", "m5.large", 9).await;
    world.until_capacity("w1", "9").await;
    world.pod("a", "w1").await;
    let address = world.address("a").await;
    assert_eq!(address.bits, 20);
    assert!(world.ec2.has("i-w1").contains(&address.ip));
    let events = world
        .until("an event tells", async || {
            let events = world.events("a").await;
            (!events.is_empty()).then_some(events)
        })
        .await;
    let allocated =
        format!("Allocated Resource vpc.amazonaws.com/PrivateIPv4Address: {address} to the pod");
    assert_eq!(
        events.last(),
        Some(&("ResourceAllocated".to_owned(), allocated))
    );
    let counts = world
        .until("the CNINode tells", async || {
            let node = world.cni_node("w1").await?;
            let ipv4 = node.status?.ipv4?;
            (ipv4.used == 1 && ipv4.warm == 3).then_some(ipv4)
        })
        .await;
    assert_eq!(counts.mode, "secondary");
    assert_eq!(counts.capacity, 9);
    assert_eq!(counts.warm_addresses.len(), 3);
    let text = world.metrics.numbers().text();
    assert!(
        text.contains("mullion_ipam_addresses{node=\"w1\",state=\"used\"} 1\n"),
        "{text}"
    );
    assert!(
        text.contains("mullion_ipam_calls_total{kind=\"assign\",result=\"success\"}"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_address_rests_after_its_pod_ended_or_is_gone_and_then_another_pod_gets_it() {
    let world = World::new(Ec2::new("10.0.0.0/20")).await;
    world.node("w1", "m5.large", 2).await;
    world.pod("a", "w1").await;
    world.pod("b", "w1").await;
    let (a, b) = (world.address("a").await, world.address("b").await);
    assert_ne!(a.ip, b.ip);
    world.pod("c", "w1").await;
    world.pod("d", "w1").await;
    world.pass(60).await;
    assert_eq!(world.annotation("c").await, None);
    let released = world.ec2.elapsed();
    world.phase("a", "Succeeded").await;
    world.delete_pod("b").await;
    let (c, d) = (world.address("c").await, world.address("d").await);
    let waited = world.ec2.elapsed() - released;
    assert!(
        waited.as_secs() >= 30 && waited.as_secs() < 32,
        "{waited:?}"
    );
    let mut again = [c.ip, d.ip];
    again.sort_unstable();
    assert_eq!(again, [a.ip.min(b.ip), a.ip.max(b.ip)]);
    let words = world.events("c").await;
    let reasons: Vec<_> = words.iter().map(|event| event.0.as_str()).collect();
    assert!(reasons.contains(&"ResourceAllocationFailed"), "{words:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_does_not_get_what_was_meant_for_the_one_before() {
    let world = World::new(Ec2::new("10.0.0.0/20")).await;
    world.node("w1", "m5.large", 4).await;
    world.until_capacity("w1", "4").await;
    for _ in 0..10 {
        world.pod("a", "w1").await;
        world.delete_pod("a").await;
    }
    world.pod("a", "w1").await;
    let address = world.address("a").await;
    world.pass(120).await;
    let metrics = world.metrics.numbers();
    assert_eq!(metrics.nodes["w1"].addresses.used, 1, "{}", metrics.text());
    assert_eq!(world.address("a").await, address);
}

#[tokio::test(start_paused = true)]
async fn the_cni_node_goes_with_its_node() {
    let world = World::new(Ec2::new("10.0.0.0/20")).await;
    world.node("w1", "m5.large", 4).await;
    world
        .until("there is a CNINode", async || world.cni_node("w1").await)
        .await;
    world.delete_node("w1").await;
    world
        .until("it is gone", async || {
            world.cni_node("w1").await.is_none().then_some(())
        })
        .await;
}
