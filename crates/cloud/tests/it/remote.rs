//! A cloud behind a wire gives the same answers as the cloud itself.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Duration};

use mullion_api::{
    ami::{AmiFamily, Os, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
    fault::FaultKind,
    karpenter::AmiSelectorTerm,
};
use mullion_cloud::{
    AddressError, Addresses, BoxFuture, CapacityType, Clock, CloudError, CloudProvider, InstanceId,
    LaunchOption, LaunchRequest, NodeTemplate, Registration, Speed, TagSelector,
    catalogue::Arch,
    remote::{CallFaults, Remote, Unreliable, Wire, WireError, answer},
    sim::{Config, SimulatedEc2},
};
use mullion_engine::ip::Kind;

const WINDOWS: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);

fn ec2() -> SimulatedEc2 {
    let config = Config {
        speed: Speed::INSTANT,
        subnet_bits: Some(27),
        ..Config::new("demo", "us-west-2", version())
    };
    let ec2 = SimulatedEc2::new(
        config,
        Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")),
    );
    ec2.exhaust("c6a.xlarge/us-west-2a".parse().expect("a pattern"));
    ec2
}

fn version() -> KubernetesVersion {
    KubernetesVersion::from_minor(35).expect("a version")
}

fn order(token: &str, zones: &[&str]) -> LaunchRequest {
    let option = |zone: &&str| LaunchOption {
        instance_type: "c6a.xlarge".into(),
        zone: (*zone).into(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
        placement: None,
    };
    LaunchRequest {
        client_token: token.into(),
        options: zones.iter().map(option).collect(),
        images: Vec::new(),
        subnets: Vec::new(),
        security_groups: Vec::new(),
        template: NodeTemplate::new(WINDOWS, version()),
        registration: Registration::default(),
        tags: BTreeMap::from([("owner".to_owned(), "test".to_owned())]),
        class: None,
    }
}

/// Carries calls within this process.
#[derive(Debug)]
struct Direct(SimulatedEc2);

impl Wire for Direct {
    fn send(&self, call: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, WireError>> {
        Box::pin(async move { Ok(answer(&self.0, &call).await?) })
    }
}

/// Makes every call that controllers make, and records the answers.
async fn story<C: CloudProvider + Addresses>(cloud: &C) -> String {
    let mut told = String::new();
    let mut tell = |what: &str, answer: &dyn std::fmt::Debug| {
        writeln!(told, "{what}: {answer:?}").expect("a string takes all");
    };
    tell("region", &cloud.region());
    for _ in 0..2 {
        let offers = cloud.offers(Os::Windows).await.expect("offers");
        tell(
            "offers",
            &(offers.len(), &offers[0], &offers[offers.len() - 1]),
        );
    }
    let any = [TagSelector {
        tags: BTreeMap::from([("*".to_owned(), "*".to_owned())]),
        ..TagSelector::default()
    }];
    tell("subnets", &cloud.subnets(&any).await);
    tell("groups", &cloud.security_groups(&any).await);
    tell("reservations", &cloud.capacity_reservations(&[]).await);
    let image = cloud.newest_image(WINDOWS, version(), Arch::Amd64);
    tell("image", &image.await);
    for alias in ["al2023@latest", "al2023@v20250317", "al2023@v20991231"] {
        let term = AmiSelectorTerm {
            alias: Some(alias.to_owned()),
            ..AmiSelectorTerm::default()
        };
        let images = cloud.images(
            std::slice::from_ref(&term),
            AmiFamily::AmazonLinux2023,
            version(),
        );
        tell(alias, &images.await);
    }
    let trial = cloud.denied_call(order("t", &["us-west-2a"]));
    tell("allowed", &trial.await);
    tell("none", &cloud.launch(order("a", &["us-west-2a"])).await);
    let both = ["us-west-2a", "us-west-2b"];
    let launched = cloud.launch(order("b", &both)).await;
    tell("second choice", &launched);
    let id = launched.expect("there is one").instance.id.clone();
    tell("again", &cloud.launch(order("b", &both)).await);
    tell("get", &cloud.get(id.clone()).await);
    let tags = BTreeMap::from([("owner".to_owned(), "*".to_owned())]);
    tell("list", &CloudProvider::list(cloud, tags).await);
    let found = cloud.interfaces_of(std::slice::from_ref(&id)).await;
    tell("interface", &found);
    let facts = found.expect("an answer")[0].facts.clone();
    let assigned = cloud.assign(&facts.id, Kind::Address, 2).await;
    tell("assigned", &assigned);
    // A /27 has at most one free prefix.
    tell("prefixes", &cloud.assign(&facts.id, Kind::Prefix, 4).await);
    tell("on it", &Addresses::list(cloud, &facts.id).await);
    let blocks = assigned.expect("addresses");
    let back = cloud.give_back(&facts.id, Kind::Address, &blocks).await;
    tell("given back", &back);
    tell("subnet", &cloud.subnet(&facts.subnet).await);
    tell("no subnet", &cloud.subnet("subnet-0").await);
    let option = order("c", &["us-west-2c"]).options.remove(0);
    tell("marked", &cloud.mark_unavailable(option).await);
    tell("terminate", &cloud.terminate(id.clone()).await);
    tell("gone", &cloud.get(id).await);
    let messages = cloud.receive_messages().await;
    tell("messages", &messages);
    for message in messages.expect("an answer") {
        tell("deleted", &cloud.delete_message(&message).await);
    }
    tell("impairments", &cloud.impairments().await);
    tell("zonal shifts", &cloud.zonal_shifts().await);
    let unknown = InstanceId("i-0123456789abcdef0".into());
    tell("unknown", &cloud.terminate(unknown).await);
    told
}

#[tokio::test(start_paused = true)]
async fn a_cloud_behind_a_wire_gives_the_same_answers() {
    let shifted = || {
        let ec2 = ec2();
        let shift = ec2.fault(FaultKind::ZonalShift, "us-west-2b");
        ec2.cause(&shift.expect("there is such a zone"));
        ec2
    };
    let direct = story(&shifted()).await;
    assert!(direct.contains("usw2-az2"), "{direct}");
    let remote = Remote::connect(Arc::new(Direct(shifted()))).await;
    let remote = story(&remote.expect("it answers")).await;
    for (own, others) in direct.lines().zip(remote.lines()) {
        assert_eq!(own, others);
    }
    assert_eq!(direct.lines().count(), remote.lines().count());
}

/// A wire without a cloud at its end.
#[derive(Debug)]
struct Cut;

impl Wire for Cut {
    fn send(&self, _: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, WireError>> {
        Box::pin(async { Err(WireError::Cut("connection refused".to_owned())) })
    }
}

#[tokio::test]
async fn a_wire_that_is_cut_is_an_error_with_its_reason() {
    let refused = Remote::connect(Arc::new(Cut)).await.expect_err("nobody");
    assert_eq!(refused.to_string(), "connection refused");
}

/// A wire to a cloud with injected faults.
#[derive(Debug)]
struct Bad(Arc<Unreliable<SimulatedEc2>>);

impl Wire for Bad {
    fn send(&self, call: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, WireError>> {
        Box::pin(async move {
            let answer = self.0.answer(&call).await?;
            answer.ok_or_else(|| WireError::Cut("the answer is lost".to_owned()))
        })
    }
}

async fn unreliable(ec2: &SimulatedEc2, faults: &str) -> Remote {
    let faults: CallFaults = faults.parse().expect("faults");
    let bad = Bad(Arc::new(Unreliable::new(ec2.clone(), faults)));
    Remote::connect(Arc::new(bad)).await.expect("it answers")
}

#[tokio::test(start_paused = true)]
async fn throttled_calls_are_refused_with_the_error_of_their_kind() {
    let ec2 = ec2();
    let remote = unreliable(&ec2, "throttle=100%").await;
    let launched = remote.launch(order("a", &["us-west-2b"])).await;
    assert!(matches!(launched, Err(CloudError::Throttled)));
    let found = remote.interfaces_of(&[]).await;
    assert!(matches!(found, Err(AddressError::Throttled)));
    assert!(ec2.instances().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_launch_whose_answer_is_lost_buys_one_instance_however_often_it_is_repeated() {
    let ec2 = ec2();
    let remote = unreliable(&ec2, "lost=100%").await;
    let mut bought = Vec::new();
    for _ in 0..12 {
        let launched = remote.launch(order("a", &["us-west-2b"])).await;
        assert!(matches!(launched, Err(CloudError::NoAnswer(_))));
        bought.push(ec2.instances().len());
    }
    // Some calls arrive late, some never.
    tokio::time::sleep(Duration::from_secs(10)).await;
    bought.push(ec2.instances().len());
    assert_eq!(bought.last(), Some(&1), "{bought:?}");
    let listed = CloudProvider::list(&remote, BTreeMap::new()).await;
    assert_eq!(listed.map(|all| all.len()).ok(), Some(1));
}
