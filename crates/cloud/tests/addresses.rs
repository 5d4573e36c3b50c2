//! Pod addresses in the simulated EC2: what an interface and a subnet hold, and how calls about them fail.

use std::collections::{BTreeMap, BTreeSet};

use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
};
use mullion_cloud::{
    AddressError, Addresses, CapacityType, Clock, CloudProvider, InstanceId, InterfaceFacts,
    InterfaceId, LaunchOption, LaunchRequest, NodeTemplate, Registration, Speed,
    sim::{Config, SimulatedEc2},
};
use mullion_engine::ip::{Cidr, Failure, Kind};

const WINDOWS: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);

fn version() -> KubernetesVersion {
    KubernetesVersion::from_minor(35).unwrap()
}

fn ec2() -> SimulatedEc2 {
    let config = Config {
        speed: Speed::INSTANT,
        ..Config::new("demo", "us-west-2", version())
    };
    let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
    SimulatedEc2::new(config, Clock::starting_at(epoch))
}

/// Launches a Windows node in zone a.
async fn node(ec2: &SimulatedEc2, instance_type: &str, token: &str) -> InterfaceFacts {
    let launch = ec2.launch(LaunchRequest {
        client_token: token.into(),
        options: vec![LaunchOption {
            instance_type: instance_type.into(),
            zone: "us-west-2a".into(),
            capacity_type: CapacityType::OnDemand,
        }],
        subnets: Vec::new(),
        template: NodeTemplate::new(WINDOWS, version()),
        registration: Registration::default(),
        tags: BTreeMap::new(),
    });
    let instance = launch.await.unwrap().instance;
    ec2.interface_of(&instance.id).await.unwrap()
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
    let error = ec2.interface_of(&gone).await.unwrap_err();
    assert_eq!(error, AddressError::NoInstance(gone));
    assert!(error.is_not_found());
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
