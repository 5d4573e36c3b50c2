//! Pod addresses in the simulated EC2: the limits of interfaces and subnets, and the failures of calls about them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
};
use mullion_cloud::{
    AddressError, Addresses, CapacityType, Clock, CloudError, CloudProvider, InstanceId,
    InterfaceFacts, InterfaceId, LaunchOption, LaunchRequest, NodeTemplate, Speed,
    sim::{Config, SimulatedEc2},
};
use mullion_engine::ip::{Cidr, Failure, Kind};

use crate::ledger::Book;

const WINDOWS: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);

fn version() -> KubernetesVersion {
    KubernetesVersion::from_minor(35).unwrap()
}

fn ec2() -> SimulatedEc2 {
    ec2_with(|_| {})
}

fn ec2_with(edit: impl FnOnce(&mut Config)) -> SimulatedEc2 {
    let mut config = Config {
        speed: Speed::INSTANT,
        ..Config::new("demo", "us-west-2", version())
    };
    edit(&mut config);
    let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
    let ec2 = SimulatedEc2::new(config, Clock::starting_at(epoch));
    ec2.control_plane_addresses();
    ec2
}

/// Returns the request for a Windows node in zone a.
fn order(instance_type: &str, token: &str) -> LaunchRequest {
    crate::order(
        token,
        LaunchOption {
            instance_type: instance_type.into(),
            zone: "us-west-2a".into(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
            placement: None,
        },
        NodeTemplate::new(WINDOWS, version()),
    )
}

/// Launches a Windows node in zone a.
async fn launch(
    ec2: &SimulatedEc2,
    instance_type: &str,
    token: &str,
) -> Result<InstanceId, CloudError> {
    let launch = ec2.launch(order(instance_type, token)).await?;
    Ok(launch.instance.id.clone())
}

async fn node(ec2: &SimulatedEc2, instance_type: &str, token: &str) -> InterfaceFacts {
    let instance = launch(ec2, instance_type, token).await.unwrap();
    interface(ec2, &instance).await.unwrap()
}

async fn interface(ec2: &SimulatedEc2, instance: &InstanceId) -> Option<InterfaceFacts> {
    let instances = [instance.clone()];
    let found = ec2.interfaces_of(&instances).await.unwrap();
    found.into_iter().next().map(|found| found.facts)
}

#[tokio::test(start_paused = true)]
async fn the_interface_of_an_instance_is_described_by_type_and_subnet() {
    let ec2 = ec2();
    let facts = node(&ec2, "m5.large", "a").await;
    assert_eq!(facts.slots, 9);
    assert!(facts.nitro);
    assert_eq!(&*facts.instance_type, "m5.large");
    assert_eq!(facts.subnet_cidr, "10.0.0.0/18".parse().unwrap());
    assert!(!node(&ec2, "m4.large", "b").await.nitro);
    let gone = InstanceId("i-0".into());
    assert_eq!(interface(&ec2, &gone).await, None);
}

#[tokio::test(start_paused = true)]
async fn many_interfaces_are_found_in_one_call_with_what_is_on_them() {
    let ec2 = ec2();
    let first = node(&ec2, "m5.large", "a").await;
    let addresses = ec2.assign(&first.id, Kind::Address, 2).await.unwrap();
    let second = launch(&ec2, "m5.xlarge", "b").await.unwrap();
    let first = launch(&ec2, "m5.large", "a").await.unwrap();
    let asked = [first.clone(), InstanceId("i-0".into()), second.clone()];
    let found = ec2.interfaces_of(&asked).await.unwrap();
    let seen = found
        .iter()
        .map(|found| (&found.instance, found.listing.addresses.clone()));
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [(&first, addresses), (&second, vec![])]
    );
}

#[tokio::test(start_paused = true)]
async fn single_addresses_and_prefixes_share_the_slots_of_the_interface() {
    let ec2 = ec2();
    let facts = node(&ec2, "m5.large", "a").await;
    let id = &facts.id;
    let addresses = ec2.assign(id, Kind::Address, 5).await.unwrap();
    assert!(addresses.iter().all(|address| address.bits == 18));
    let prefixes = ec2.assign(id, Kind::Prefix, 4).await.unwrap();
    assert!(prefixes.iter().all(|prefix| Kind::Prefix.accepts(*prefix)));
    for kind in Kind::ALL {
        let error = ec2.assign(id, kind, 1).await.unwrap_err();
        assert_eq!(error, AddressError::NoSlot);
        assert_eq!(
            error.to_string(),
            "PrivateIpAddressLimitExceeded: Number of private addresses will exceed limit."
        );
    }
    ec2.give_back(id, Kind::Address, &addresses[..2])
        .await
        .unwrap();
    let error = ec2.assign(id, Kind::Prefix, 3).await.unwrap_err();
    assert_eq!(error, AddressError::NoSlot, "nothing is assigned in part");
    let more = ec2.assign(id, Kind::Prefix, 2).await.unwrap();
    let listing = Addresses::list(&ec2, id).await.unwrap();
    assert_eq!(listing.addresses, addresses[2..]);
    assert_eq!(listing.prefixes, [prefixes, more].concat());
}

#[tokio::test(start_paused = true)]
async fn only_nitro_types_have_prefixes() {
    let ec2 = ec2();
    let facts = node(&ec2, "m4.large", "a").await;
    let error = ec2.assign(&facts.id, Kind::Prefix, 1).await.unwrap_err();
    assert_eq!(error.failure(), Failure::Other);
    assert!(ec2.assign(&facts.id, Kind::Address, 1).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_on_the_interface_cannot_be_given_back_and_then_nothing_is() {
    let ec2 = ec2();
    let facts = node(&ec2, "m5.large", "a").await;
    let mut blocks = ec2.assign(&facts.id, Kind::Address, 1).await.unwrap();
    blocks.push("10.0.9.9/18".parse().unwrap());
    let error = ec2
        .give_back(&facts.id, Kind::Address, &blocks)
        .await
        .unwrap_err();
    let expected = format!(
        "InvalidParameterValue: Some of [10.0.9.9] are not assigned to interface {}",
        facts.id
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(
        Addresses::list(&ec2, &facts.id).await.unwrap().addresses,
        blocks[..1]
    );
}

#[tokio::test(start_paused = true)]
async fn the_addresses_of_an_instance_go_back_when_it_is_terminated() {
    let ec2 = ec2();
    let first = node(&ec2, "m5.large", "a").await;
    let before = ec2.subnet(&first.subnet).await.unwrap();
    let facts = node(&ec2, "m5.large", "b").await;
    ec2.assign(&facts.id, Kind::Address, 3).await.unwrap();
    ec2.assign(&facts.id, Kind::Prefix, 2).await.unwrap();
    let left = ec2.subnet(&facts.subnet).await.unwrap();
    assert_eq!(left.free_addresses, before.free_addresses - 1 - 3 - 32);
    let instance = ec2.instances().into_iter().find(|instance| {
        // The digits of both ids agree.
        facts.id.0.strip_prefix("eni-") == instance.id.0.strip_prefix("i-")
    });
    ec2.terminate(instance.unwrap().id.clone()).await.unwrap();
    assert_eq!(ec2.subnet(&facts.subnet).await.unwrap(), before);
    let error = Addresses::list(&ec2, &facts.id).await.unwrap_err();
    assert_eq!(error, AddressError::NoInterface(facts.id.clone()));
    let stranger = InterfaceId("eni-1".into());
    assert!(
        Addresses::list(&ec2, &stranger)
            .await
            .unwrap_err()
            .is_not_found()
    );
}

#[tokio::test(start_paused = true)]
async fn no_address_is_given_twice_whatever_its_kind() {
    let ec2 = ec2();
    let mut seen = BTreeSet::new();
    for number in 0..40 {
        let facts = node(&ec2, "m5.large", &number.to_string()).await;
        assert!(seen.insert(facts.primary));
        for kind in Kind::ALL {
            for block in ec2.assign(&facts.id, kind, 4).await.unwrap() {
                assert!(in_subnet(block, facts.subnet_cidr));
                for offset in 0..kind.size() as u32 {
                    let address = (block.ip.to_bits() + offset).into();
                    assert!(seen.insert(address), "{address} twice");
                }
            }
        }
    }
}

fn in_subnet(block: Cidr, subnet: Cidr) -> bool {
    let shift = 32 - u32::from(subnet.bits);
    block.ip.to_bits() >> shift == subnet.ip.to_bits() >> shift
}

#[tokio::test(start_paused = true)]
async fn a_full_subnet_has_no_address_for_pods_or_instances() {
    let ec2 = ec2_with(|config| config.subnet_bits = Some(28));
    let facts = node(&ec2, "m5.4xlarge", "a").await;
    // Eleven addresses, one of the control plane, one of the instance.
    assert_eq!(ec2.subnet(&facts.subnet).await.unwrap().free_addresses, 9);
    let error = ec2.assign(&facts.id, Kind::Address, 10).await.unwrap_err();
    assert_eq!(error, AddressError::NoAddress);
    assert_eq!(
        error.to_string(),
        "InsufficientFreeAddressesInSubnet: The specified subnet does not have enough free addresses to satisfy the request."
    );
    let nine = ec2.assign(&facts.id, Kind::Address, 9).await.unwrap();
    assert_eq!(
        launch(&ec2, "m5.large", "b").await.unwrap_err().to_string(),
        "InsufficientFreeAddressesInSubnet: The specified subnet does not have enough free addresses to satisfy the request."
    );
    ec2.give_back(&facts.id, Kind::Address, &nine[..1])
        .await
        .unwrap();
    assert!(launch(&ec2, "m5.large", "b").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn prefixes_run_out_by_fragmentation_before_the_subnet_is_full() {
    let ec2 = ec2_with(|config| config.subnet_bits = Some(25));
    let facts = node(&ec2, "m5.4xlarge", "a").await;
    // The addresses are at random places, so after some time every block has one.
    let mut taken = Vec::new();
    let left = loop {
        let left = ec2.subnet(&facts.subnet).await.unwrap();
        if left.free_prefixes == 0 {
            break left;
        }
        taken.extend(ec2.assign(&facts.id, Kind::Address, 1).await.unwrap());
    };
    assert!(left.free_addresses > 64, "{left:?}");
    let error = ec2.assign(&facts.id, Kind::Prefix, 1).await.unwrap_err();
    assert_eq!(error, AddressError::NoPrefix);
    assert_eq!(
        error.to_string(),
        "InsufficientCidrBlocks: The specified subnet does not have enough free cidr blocks to satisfy the request."
    );
    ec2.give_back(&facts.id, Kind::Address, &taken)
        .await
        .unwrap();
    let free = ec2.subnet(&facts.subnet).await.unwrap().free_prefixes;
    assert!(free >= 5);
    let all = ec2
        .assign(&facts.id, Kind::Prefix, free as u32)
        .await
        .unwrap();
    let error = ec2.assign(&facts.id, Kind::Prefix, 1).await.unwrap_err();
    assert_eq!(all.len(), free);
    assert_eq!(error.failure(), Failure::NoPrefix);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_for_which_the_subnet_has_not_even_sixteen_addresses_is_refused_in_other_words() {
    let ec2 = ec2_with(|config| config.subnet_bits = Some(28));
    let facts = node(&ec2, "m5.large", "a").await;
    let error = ec2.assign(&facts.id, Kind::Prefix, 1).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "InvalidParameterValue: There aren't sufficient free Ipv4 addresses or prefixes"
    );
    assert_eq!(error.failure(), Failure::NoPrefix);
}

#[tokio::test(start_paused = true)]
async fn calls_take_time_and_a_listing_shows_a_change_later() {
    let ec2 = ec2_with(|config| {
        config.speed = Speed::REAL;
        config.address_faults = "lag=10s".parse().unwrap();
    });
    let facts = node(&ec2, "m5.large", "a").await;
    let begun = tokio::time::Instant::now();
    let blocks = ec2.assign(&facts.id, Kind::Address, 4).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_millis(400));
    let listed = async || Addresses::list(&ec2, &facts.id).await.unwrap().addresses;
    assert_eq!(listed().await, []);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(listed().await, blocks);
    ec2.give_back(&facts.id, Kind::Address, &blocks[1..])
        .await
        .unwrap();
    let still = BTreeSet::from_iter(listed().await);
    assert_eq!(still, BTreeSet::from_iter(blocks.clone()));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(listed().await, blocks[..1]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_leaves_open_what_ec2_has_done() {
    let ec2 = ec2_with(|config| {
        config.speed = Speed::REAL;
        config.address_faults = "lost=100%,lag=0s".parse().unwrap();
    });
    let facts = node(&ec2, "m5.4xlarge", "a").await;
    let listed = async || {
        Addresses::list(&ec2, &facts.id)
            .await
            .unwrap()
            .addresses
            .len()
    };
    let (mut at_once, mut later, mut never, mut there) = (0, 0, 0, 0);
    for _ in 0..16 {
        let begun = tokio::time::Instant::now();
        let error = ec2.assign(&facts.id, Kind::Address, 1).await.unwrap_err();
        assert_eq!(error, AddressError::NoAnswer);
        assert!(begun.elapsed() > Duration::from_secs(30));
        let heard = listed().await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        let in_the_end = listed().await;
        match (heard > there, in_the_end > there) {
            (true, _) => at_once += 1,
            (false, true) => later += 1,
            (false, false) => never += 1,
        }
        there = in_the_end;
    }
    assert!(
        at_once > 0 && later > 0 && never > 0,
        "{at_once} {later} {never}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_throttled_call_changes_nothing() {
    let ec2 = ec2_with(|config| config.address_faults = "throttle=50%".parse().unwrap());
    // The launch itself is another kind of call; a call that only reads may be throttled too.
    let launched = [launch(&ec2, "m5.4xlarge", "a").await.unwrap()];
    let facts = loop {
        match ec2.interfaces_of(&launched).await {
            Ok(found) => break found[0].facts.clone(),
            Err(error) => assert_eq!(error, AddressError::Throttled),
        }
    };
    let (mut assigned, mut refused) = (0, 0);
    for _ in 0..20 {
        match ec2.assign(&facts.id, Kind::Address, 1).await {
            Ok(_) => assigned += 1,
            Err(error) => {
                assert_eq!(error.failure(), Failure::Throttled);
                refused += 1;
            }
        }
    }
    assert!(assigned > 0 && refused > 0);
    ec2.set_address_faults("lag=0s".parse().unwrap());
    let listing = Addresses::list(&ec2, &facts.id).await.unwrap();
    assert_eq!(listing.addresses.len(), assigned);
    ec2.throttle(1);
    let error = ec2.subnet(&facts.subnet).await.unwrap_err();
    assert_eq!(error, AddressError::Throttled);
}

#[tokio::test(start_paused = true)]
async fn an_assignment_may_get_fewer_than_it_asked_for() {
    let ec2 = ec2_with(|config| config.address_faults = "partial=100%".parse().unwrap());
    let facts = node(&ec2, "m5.large", "a").await;
    for kind in Kind::ALL {
        let got = ec2.assign(&facts.id, kind, 4).await.unwrap().len();
        assert!((1..4).contains(&got), "{got}");
    }
    let listing = Addresses::list(&ec2, &facts.id).await.unwrap();
    assert!(listing.addresses.len() < 4 && listing.prefixes.len() < 4);
}

#[tokio::test(start_paused = true)]
async fn the_next_process_finds_every_block_on_its_interface_and_gives_none_of_them_again() {
    let book = Arc::<Book>::default();
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let resume = || {
        let config = Config {
            speed: Speed::INSTANT,
            subnet_bits: Some(26),
            ..Config::new("demo", "us-west-2", version())
        };
        let saved = book.0.lock().unwrap().clone();
        SimulatedEc2::resume(config, clock.clone(), book.clone(), &saved).unwrap()
    };
    let ec2 = resume();
    // A node of a node group was there before the simulation began.
    let provided = ec2.provide(order("m5.large", "group/w/0")).unwrap();
    let facts = interface(&ec2, &provided.id).await.unwrap();
    assert_eq!(facts.primary, provided.private_ip);
    let prefixes = ec2.assign(&facts.id, Kind::Prefix, 1).await.unwrap();
    let addresses = ec2.assign(&facts.id, Kind::Address, 3).await.unwrap();
    let left = ec2.subnet(&facts.subnet).await.unwrap();
    drop(ec2);

    let ec2 = resume();
    let listing = Addresses::list(&ec2, &facts.id).await.unwrap();
    assert_eq!(listing.prefixes, prefixes);
    assert_eq!(listing.addresses, addresses);
    assert_eq!(ec2.subnet(&facts.subnet).await.unwrap(), left);
    let other = node(&ec2, "m5.4xlarge", "b").await;
    let more = ec2.assign(&other.id, Kind::Address, 20).await.unwrap();
    let taken = |block: &Cidr| prefixes[0].ip.to_bits() / 16 == block.ip.to_bits() / 16;
    assert!(
        !more
            .iter()
            .any(|block| addresses.contains(block) || taken(block))
    );
}
