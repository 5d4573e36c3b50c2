//! Switches and targets of the ConfigMap, and types that can have no addresses.

use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use mullion_controllers::ipam::Mode;
use serde_json::json;

use crate::{ec2::Ec2, world::World};

#[tokio::test(start_paused = true)]
async fn without_the_switch_nobody_gets_an_address_and_with_it_everybody() {
    let world = World::without_switch(Ec2::new("10.0.0.0/20")).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    world.pass(60).await;
    assert_eq!(world.annotation("a").await, None);
    assert_eq!(world.capacity("w1").await, None);
    assert!(world.ec2.calls("interfaces").is_empty());
    world.configure(&[("enable-windows-ipam", "T")]).await;
    let address = world.address("a").await;
    world.configure(&[("enable-windows-ipam", "false")]).await;
    world.pod("b", "w1").await;
    world.pass(60).await;
    assert_eq!(world.annotation("b").await, None);
    assert_eq!(world.address("a").await, address, "it keeps what it has");
    world.configure(&[("enable-windows-ipam", "true")]).await;
    assert_ne!(world.address("b").await.ip, address.ip);
}

#[tokio::test(start_paused = true)]
async fn without_its_config_map_it_is_off_and_pods_keep_their_addresses() {
    let mut world = World::new(Ec2::new("10.0.0.0/20")).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    let address = world.address("a").await;
    world.pass(60).await;
    let maps: Api<ConfigMap> = Api::namespaced(world.context.client.clone(), "kube-system");
    let deleted = maps.delete("amazon-vpc-cni", &Default::default()).await;
    deleted.expect("it is there");
    world.pod("b", "w1").await;
    world.pass(5).await;
    let calls = || {
        ["assign", "give-back", "list", "interfaces", "subnet"]
            .map(|name| world.ec2.calls(name).len())
    };
    let before = calls();
    world.pass(600).await;
    assert_eq!(world.annotation("b").await, None);
    assert_eq!(world.address("a").await, address, "it keeps what it has");
    assert_eq!(calls(), before, "EC2 is asked for nothing");
    // Neither a restart nor the ConfigMap's return takes the address from its pod.
    world.restart().await;
    world.pass(60).await;
    assert_eq!(world.address("a").await, address);
    world.configure(&[("enable-windows-ipam", "true")]).await;
    assert_ne!(world.address("b").await.ip, address.ip);
    assert_eq!(world.address("a").await, address);
}

#[tokio::test(start_paused = true)]
async fn a_legacy_controller_turns_it_off() {
    let world = World::without_switch(Ec2::new("10.0.0.0/20")).await;
    let deployments: Api<Deployment> = Api::namespaced(world.context.client.clone(), "kube-system");
    let labels = json!({"app": "vpc-resource-controller"});
    let legacy = json!({
        "metadata": {"name": "vpc-resource-controller"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    });
    let legacy = serde_json::from_value(legacy).expect("a deployment");
    let created = deployments.create(&PostParams::default(), &legacy).await;
    created.expect("it is accepted");
    world.configure(&[("enable-windows-ipam", "true")]).await;
    world.node("w1", "m5.large", 9).await;
    world.pass(60).await;
    assert_eq!(world.capacity("w1").await, None);
    let deleted = deployments
        .delete("vpc-resource-controller", &Default::default())
        .await;
    deleted.expect("it is there");
    world.until_capacity("w1", "9").await;
}

const HOLDER: &str = "ip-10-0-57-94_44ca490b";

/// Writes who holds the lease of EKS's controller, renewed so many seconds after some moment that its holder's clock says.
async fn hold(world: &World, holder: Option<&str>, renewed: u64) {
    let leases: Api<Lease> = Api::namespaced(world.context.client.clone(), "kube-system");
    let spec = json!({
        "holderIdentity": holder, "leaseDurationSeconds": 30,
        "renewTime": format!("2019-12-31T23:{:02}:{:02}.000000Z", renewed / 60, renewed % 60),
    });
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "cp-vpc-resource-controller"}, "spec": spec});
    let (params, lease) = (PatchParams::apply("test").force(), Patch::Apply(lease));
    let written = leases.patch("cp-vpc-resource-controller", &params, &lease);
    written.await.expect("it is accepted");
}

#[tokio::test(start_paused = true)]
async fn while_the_controller_of_eks_holds_its_lease_this_one_only_watches_unless_it_is_told_to_act()
 {
    let mut world = World::without_switch(Ec2::new("10.0.0.0/20")).await;
    hold(&world, Some(HOLDER), 0).await;
    world.configure(&[("enable-windows-ipam", "true")]).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    renew(&world, 1).await;
    assert_eq!(world.annotation("a").await, None);
    assert_eq!(world.capacity("w1").await, None);
    assert!(world.ec2.calls("interfaces").is_empty());
    hold(&world, None, 100).await;
    let address = world.address("a").await;
    hold(&world, Some(HOLDER), 200).await;
    world.pod("b", "w1").await;
    renew(&world, 201).await;
    assert_eq!(world.annotation("b").await, None);
    assert_eq!(world.address("a").await, address, "it keeps what it has");
    world.restart_as(Mode::On).await;
    assert_ne!(world.address("b").await.ip, address.ip);
}

/// Renews the lease every 15 s for two minutes, as upstream's controller does.
async fn renew(world: &World, from: u64) {
    for renewal in from..from + 8 {
        hold(world, Some(HOLDER), renewal).await;
        world.pass(15).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_counts_until_it_runs_out_and_at_once_when_it_is_renewed() {
    let mut world = World::without_switch(Ec2::new("10.0.0.0/20")).await;
    hold(&world, Some(HOLDER), 0).await;
    world.configure(&[("enable-windows-ipam", "true")]).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    world.pass(28).await;
    assert_eq!(world.annotation("a").await, None);
    world.pass(4).await;
    let address = world.address("a").await;
    // Its holder was away, and is there again.
    hold(&world, Some(HOLDER), 1).await;
    world.pass(1).await;
    world.pod("b", "w1").await;
    world.pass(25).await;
    assert_eq!(world.annotation("b").await, None);
    assert_eq!(world.address("a").await, address, "it keeps what it has");
    // Who starts anew cannot know how old the lease is.
    world.restart_as(Mode::Auto).await;
    world.pass(25).await;
    assert_eq!(world.annotation("b").await, None);
    assert_ne!(world.address("b").await.ip, address.ip);
}

#[tokio::test(start_paused = true)]
async fn switched_off_it_asks_ec2_for_nothing() {
    let mut world = World::without_switch(Ec2::new("10.0.0.0/20")).await;
    world.restart_as(Mode::Off).await;
    world.configure(&[("enable-windows-ipam", "true")]).await;
    world.node("w1", "m5.large", 9).await;
    world.pod("a", "w1").await;
    world.pass(60).await;
    assert_eq!(world.annotation("a").await, None);
    assert!(world.ec2.calls("interfaces").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_switch_of_the_mode_keeps_what_pods_have_and_says_what_the_rest_gives() {
    let world = World::new(Ec2::new("10.0.0.0/20")).await;
    world.node("w1", "m5.large", 9).await;
    world.until_capacity("w1", "9").await;
    for pod in ["a", "b"] {
        world.pod(pod, "w1").await;
        assert_eq!(world.address(pod).await.bits, 20);
    }
    let prefixes = [
        ("enable-windows-ipam", "true"),
        ("enable-windows-prefix-delegation", "true"),
    ];
    world.configure(&prefixes).await;
    world.until_capacity("w1", "114").await;
    world.pod("c", "w1").await;
    assert_eq!(world.address("c").await.bits, 32);
    let drained = async || (world.ec2.has("i-w1").len() == 2 + 16).then_some(());
    world
        .until("unused single addresses go back", drained)
        .await;
    world.delete_pod("a").await;
    world.until_capacity("w1", "129").await;
    world.configure(&prefixes[..1]).await;
    world.until_capacity("w1", "9").await;
    world.pod("d", "w1").await;
    assert_eq!(world.address("d").await.bits, 20);
    assert_eq!(world.addresses().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn types_that_can_have_no_addresses_or_no_prefixes_are_named() {
    let world = World::without_switch(Ec2::new("10.0.0.0/20")).await;
    let prefixes = [
        ("enable-windows-ipam", "true"),
        ("enable-windows-prefix-delegation", "true"),
        ("warm-ip-target", "5"),
        ("minimum-ip-target", "many"),
    ];
    world.configure(&prefixes).await;
    world.node("w1", "zz9.plural", 9).await;
    world.node("w2", "m4.large", 9).await;
    world.until_capacity("w2", "9").await;
    let ready = async || (world.ec2.has("i-w2").len() == 5).then_some(());
    world
        .until("the targets hold for single addresses", ready)
        .await;
    world.pass(10).await;
    let unsupported = |message: &str| ("Unsupported".to_owned(), message.to_owned());
    assert_eq!(
        world.events("w1").await,
        [unsupported(
            "The instance type zz9.plural is not supported for Windows"
        )]
    );
    assert_eq!(
        world.events("w2").await,
        [unsupported(
            "The instance type m4.large is not supported for Windows prefix delegation"
        )]
    );
    assert_eq!(world.capacity("w1").await, None);
    let events = world.events("amazon-vpc-cni").await;
    assert!(
        events[0].1.contains("minimum-ip-target is `many`"),
        "{events:?}"
    );
}
