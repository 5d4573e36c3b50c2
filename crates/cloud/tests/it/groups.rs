//! Placement groups of the simulated EC2: where their instances are, and what is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mullion_api::{
    account, ami::AmiFamily, eksctl::KubernetesVersion, karpenter::PlacementGroupSelector,
};
use mullion_cloud::{
    CapacityType, Clock, CloudError, CloudProvider, Instance, LaunchOption, NodeTemplate,
    PlacementGroup, Shortage, Speed, catalogue,
    sim::{Config, SimulatedEc2},
};

use crate::ledger::Book;

fn version() -> KubernetesVersion {
    KubernetesVersion::from_minor(31).unwrap()
}

fn resume(book: &Arc<Book>) -> SimulatedEc2 {
    let config = Config {
        speed: Speed::INSTANT,
        ..Config::new("demo", "us-west-2", version())
    };
    let saved = book.0.lock().unwrap().clone();
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    SimulatedEc2::resume(config, clock, book.clone(), &saved).unwrap()
}

fn make(ec2: &SimulatedEc2, strategy: &str, partition_count: u32) {
    let group = account::PlacementGroup {
        strategy: strategy.to_owned(),
        partition_count,
    };
    ec2.group(&BTreeMap::from([("near".to_owned(), group)]));
}

async fn group(ec2: &SimulatedEc2) -> PlacementGroup {
    let selector = PlacementGroupSelector {
        name: Some("near".to_owned()),
        id: None,
    };
    let found = ec2.placement_group(&selector).await.unwrap();
    found.expect("it is there")
}

async fn launch(
    ec2: &SimulatedEc2,
    token: &str,
    zone: &str,
    partition: Option<u32>,
) -> Result<Arc<Instance>, CloudError> {
    let request = crate::order(
        token,
        LaunchOption {
            instance_type: "m5.large".to_owned(),
            zone: zone.to_owned(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
            placement: Some(group(ec2).await.place(partition)),
        },
        NodeTemplate::new(AmiFamily::AmazonLinux2023, version()),
    );
    Ok(ec2.launch(request).await?.instance)
}

#[tokio::test(start_paused = true)]
async fn a_spread_group_refuses_the_eighth_instance_of_a_zone_and_nobody_else() {
    let ec2 = resume(&Arc::default());
    make(&ec2, "spread", 0);
    for index in 0..7 {
        let token = format!("own-{index}");
        launch(&ec2, &token, "us-west-2a", None).await.unwrap();
    }
    let error = launch(&ec2, "more", "us-west-2a", None).await.unwrap_err();
    let CloudError::InsufficientCapacity(refused) = &error else {
        panic!("{error}")
    };
    assert_eq!(refused[0].shortage, Shortage::SpreadGroup);
    let group = group(&ec2).await;
    assert!(group.has_refused(&refused[0].option));
    let elsewhere = LaunchOption {
        zone: "us-west-2b".to_owned(),
        ..refused[0].option.clone()
    };
    assert!(!group.has_refused(&elsewhere));
    launch(&ec2, "more", "us-west-2b", None).await.unwrap();
    let offers = ec2.offers(mullion_api::ami::Os::Linux).await.unwrap();
    let offerings = offers.iter().flat_map(|own| &own.offerings);
    let mut resting = offerings.filter(|own| !own.available);
    assert!(resting.next().is_none(), "outside the group nothing rests");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_group_is_in_the_zone_of_its_first_instance() {
    let ec2 = resume(&Arc::default());
    make(&ec2, "cluster", 0);
    let first = launch(&ec2, "first", "us-west-2b", None).await.unwrap();
    launch(&ec2, "away", "us-west-2a", None).await.unwrap_err();
    launch(&ec2, "near", "us-west-2b", None).await.unwrap();
    let group = group(&ec2).await;
    let admits = |name: &str| group.admits(catalogue::get(name).unwrap());
    assert!(admits("m5.large") && !admits("t3.large") && !admits("m7i-flex.large"));
    assert_eq!(first.placement, Some(group.place(None)));
}

#[tokio::test(start_paused = true)]
async fn instances_go_to_the_partition_that_is_asked_for_or_else_to_the_emptiest() {
    let book = Arc::default();
    let ec2 = resume(&book);
    make(&ec2, "partition", 3);
    let wanted = [Some(2), None, None, Some(1)];
    let mut partitions = Vec::new();
    for (index, wanted) in wanted.into_iter().enumerate() {
        let token = format!("own-{index}");
        let instance = launch(&ec2, &token, "us-west-2a", wanted).await.unwrap();
        partitions.push(instance.placement.as_ref().and_then(|own| own.partition));
    }
    assert_eq!(partitions, [Some(2), Some(1), Some(3), Some(1)]);
    // The next process knows where they are.
    let next = resume(&book);
    let kept = CloudProvider::list(&next, BTreeMap::new()).await.unwrap();
    let kept = kept.iter().map(|own| own.placement.clone());
    let kept: BTreeSet<_> = kept.map(|own| own.and_then(|own| own.partition)).collect();
    assert_eq!(kept, BTreeSet::from([Some(1), Some(2), Some(3)]));
}

#[tokio::test(start_paused = true)]
async fn a_group_is_found_by_name_or_by_id() {
    let ec2 = resume(&Arc::default());
    make(&ec2, "spread", 0);
    let id = group(&ec2).await.id.to_string();
    let selector = |name: Option<&str>, id: Option<&str>| PlacementGroupSelector {
        name: name.map(str::to_owned),
        id: id.map(str::to_owned),
    };
    let by_id = selector(None, Some(&id));
    assert!(ec2.placement_group(&by_id).await.unwrap().is_some());
    for none in [selector(Some("far"), None), selector(None, Some("pg-1"))] {
        assert_eq!(ec2.placement_group(&none).await, Ok(None));
    }
}
