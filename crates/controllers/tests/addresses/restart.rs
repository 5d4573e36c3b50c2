//! The controller dies and starts again.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use crate::{ec2::Ec2, world::World};

#[tokio::test(start_paused = true)]
async fn after_a_restart_pods_keep_their_addresses_and_warm_ones_are_given_at_once() {
    let world = World::new(Ec2::new("10.0.0.0/20")).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    let a = world.address("a").await;
    let settled = async || {
        let ipv4 = world.cni_node("w1").await?.status?.ipv4?;
        (ipv4.warm_addresses.len() == 3).then_some(ipv4.warm_addresses)
    };
    let warm = world
        .until("the CNINode lists the warm ones", settled)
        .await;
    let world = world.restarted().await;
    let began = world.ec2.elapsed();
    world.pod("b", "w1").await;
    let b = world.address("b").await;
    let waited = world.ec2.elapsed() - began;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    assert_ne!(a.ip, b.ip);
    assert!(warm.contains(&b.ip.to_string()), "{b} of {warm:?}");
}

#[tokio::test(start_paused = true)]
async fn killed_again_and_again_no_address_is_given_twice_or_too_early_or_lost() {
    let ec2 = Ec2::new("10.0.0.0/24");
    let mut world = World::new(ec2.clone()).await;
    world.node("w1", "m5.large", 9).await;
    world.node("w2", "m5.large", 9).await;
    // When an address was released, by the clock of EC2.
    let mut released: BTreeMap<Ipv4Addr, Duration> = BTreeMap::new();
    let mut alive: Vec<(String, Option<Ipv4Addr>)> = Vec::new();
    for round in 0..60_u64 {
        for node in ["w1", "w2"] {
            let name = format!("{node}-{round}");
            world.pod(&name, node).await;
            alive.push((name, None));
        }
        // Another moment of the controller's life each time.
        tokio::time::sleep(Duration::from_millis(round * 37 % 1_900)).await;
        let has = world.addresses().await;
        let now = ec2.elapsed();
        for (ip, pod) in &has {
            let known = alive.iter_mut().find(|known| known.0 == *pod);
            let known = known.expect("it was created");
            if known.1.is_none() {
                known.1 = Some(*ip);
                if let Some(at) = released.get(ip) {
                    let rested = now - *at;
                    assert!(rested.as_secs() >= 28, "{ip} rested {rested:?}");
                }
            }
            assert_eq!(known.1, Some(*ip), "{pod} keeps its address");
        }
        while alive.len() > 10 {
            let (pod, address) = alive.remove((round as usize * 7) % 5);
            world.delete_pod(&pod).await;
            released.extend(address.map(|ip| (ip, ec2.elapsed())));
        }
        if round % 3 == 0 {
            world = world.restarted().await;
        }
    }
    for (pod, _) in &alive {
        world.address(pod).await;
    }
    world.pass(200).await;
    for node in ["w1", "w2"] {
        let id = format!("i-{node}");
        let numbers = world.metrics.numbers();
        let counts = numbers.nodes[node].addresses;
        assert_eq!(counts.total(), ec2.has(&id).len(), "{}", numbers.text());
        assert_eq!(counts.warm, 3, "{}", numbers.text());
    }
    let has = world.addresses().await;
    let nodes = [ec2.has("i-w1"), ec2.has("i-w2")];
    for (ip, pod) in &has {
        let node = usize::from(pod.starts_with("w2"));
        assert!(nodes[node].contains(ip), "{pod} has {ip}");
    }
}
