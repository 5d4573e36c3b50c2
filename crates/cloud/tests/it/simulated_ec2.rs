//! The simulated EC2 under paused time: life cycle, boot times, refusals, repeatability.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use mullion_api::{
    ami::{AmiFamily, Os, WindowsEdition, WindowsRelease},
    eksctl::{Cluster, KubernetesVersion},
    fault::FaultKind,
};
use mullion_cloud::{
    CapacityType, Clock, CloudError, CloudProvider, FleetError, Instance, InstanceState,
    LaunchOption, LaunchRequest, NodeTemplate, Registration, Shortage, Speed, TagSelector, Tenancy,
    UNAVAILABLE_FOR, node_group,
    sim::{Config, Saved, SimulatedEc2},
};

use crate::ledger::Book;

const WINDOWS: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);

fn ec2(speed: Speed) -> SimulatedEc2 {
    let version = KubernetesVersion::from_minor(27).unwrap();
    let config = Config {
        speed,
        ..Config::new("demo", "us-west-2", version)
    };
    SimulatedEc2::new(
        config,
        Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()),
    )
}

fn option(instance_type: &str, zone: &str) -> LaunchOption {
    LaunchOption {
        instance_type: instance_type.into(),
        zone: zone.into(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
        placement: None,
    }
}

fn order(token: &str, family: AmiFamily, options: &[LaunchOption]) -> LaunchRequest {
    LaunchRequest {
        client_token: token.into(),
        options: options.to_vec(),
        images: Vec::new(),
        subnets: Vec::new(),
        security_groups: Vec::new(),
        template: NodeTemplate::new(family, KubernetesVersion::from_minor(27).unwrap()),
        registration: Registration::default(),
        tags: BTreeMap::from([("owner".to_owned(), token.to_owned())]),
        class: None,
    }
}

async fn booted_after(ec2: &SimulatedEc2, instance: &Instance) -> Duration {
    let start = tokio::time::Instant::now();
    let mut changed = ec2.changed();
    while !ec2.instance(&instance.id).unwrap().booted {
        changed.changed().await.unwrap();
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn linux_boots_in_under_a_minute_and_windows_in_about_five() {
    let ec2 = ec2(Speed::REAL);
    for (family, least, most) in [(AmiFamily::AmazonLinux2, 40, 55), (WINDOWS, 280, 330)] {
        let request = order(
            family.as_str(),
            family,
            &[option("c6a.xlarge", "us-west-2a")],
        );
        let instance = ec2.launch(request).await.unwrap().instance;
        assert_eq!(instance.state, InstanceState::Pending);
        let seconds = booted_after(&ec2, &instance).await.as_secs();
        assert!((least..most).contains(&seconds), "{family}: {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn at_infinite_speed_an_instance_is_booted_when_its_launch_returns() {
    let ec2 = ec2(Speed::INSTANT);
    let start = tokio::time::Instant::now();
    let request = order("a", WINDOWS, &[option("c6a.xlarge", "us-west-2a")]);
    let instance = ec2.launch(request).await.unwrap().instance;
    assert!(instance.booted && instance.state == InstanceState::Running);
    ec2.terminate(instance.id.clone()).await.unwrap();
    let gone = ec2.get(instance.id.clone()).await.unwrap_err();
    assert_eq!(gone, CloudError::NotFound(instance.id.clone()));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_instance_goes_through_its_states_in_order() {
    let ec2 = ec2(Speed::REAL);
    let request = order(
        "a",
        AmiFamily::AmazonLinux2,
        &[option("m5.large", "us-west-2b")],
    );
    let instance = ec2.launch(request).await.unwrap().instance;
    let mut seen = vec![(instance.state, instance.booted)];
    let (mut changed, mut cursor) = (ec2.changed(), 0);
    loop {
        changed.changed().await.unwrap();
        let changes = ec2.changes_since(cursor);
        cursor = changes.cursor;
        for instance in changes.instances {
            seen.push((instance.state, instance.booted));
            if instance.booted && instance.state == InstanceState::Running {
                ec2.terminate(instance.id.clone()).await.unwrap();
            }
        }
        if seen.last().unwrap().0 == InstanceState::Terminated {
            break;
        }
    }
    seen.dedup();
    use InstanceState::{Pending, Running, ShuttingDown, Terminated};
    assert_eq!(
        seen,
        [
            (Pending, false),
            (Running, false),
            (Running, true),
            (ShuttingDown, true),
            (Terminated, false)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_terminated_while_it_boots_never_comes_up() {
    let ec2 = ec2(Speed::REAL);
    let request = order("a", WINDOWS, &[option("c6a.xlarge", "us-west-2a")]);
    let instance = ec2.launch(request).await.unwrap().instance;
    ec2.terminate(instance.id.clone()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let instance = ec2.instance(&instance.id).unwrap();
    assert_eq!(instance.state, InstanceState::Terminated);
    assert!(!instance.booted);
}

#[tokio::test(start_paused = true)]
async fn repeating_a_client_token_buys_nothing_new() {
    let ec2 = ec2(Speed::REAL);
    let request = order(
        "same",
        AmiFamily::AmazonLinux2,
        &[option("m5.large", "us-west-2a")],
    );
    let (first, second) = tokio::join!(ec2.launch(request.clone()), ec2.launch(request));
    assert_eq!(first.unwrap().instance.id, second.unwrap().instance.id);
    assert_eq!(ec2.list(BTreeMap::new()).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn exhausted_options_are_passed_over_and_remembered() {
    let ec2 = ec2(Speed::INSTANT);
    let pattern: mullion_cloud::sim::CapacityPattern = "c6a.xlarge/*/*".parse().unwrap();
    ec2.exhaust(pattern.clone());
    let options = [
        option("c6a.xlarge", "us-west-2a"),
        option("c5a.xlarge", "us-west-2a"),
    ];
    let launch = ec2.launch(order("a", WINDOWS, &options)).await.unwrap();
    assert_eq!(&*launch.instance.instance_type.name, "c5a.xlarge");
    let refused = FleetError {
        option: options[0].clone(),
        shortage: Shortage::Hosts {
            elsewhere: Vec::new(),
        },
        unavailable_for: UNAVAILABLE_FOR,
    };
    assert_eq!(launch.refused, [refused]);
    let error = ec2
        .launch(order("b", WINDOWS, &options[..1]))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "InsufficientInstanceCapacity: We currently do not have sufficient c6a.xlarge capacity in the Availability \
         Zone you requested (us-west-2a). Our system will be working on provisioning additional capacity."
    );
    assert!(!available(&ec2, "c6a.xlarge", "us-west-2a").await);
    assert!(available(&ec2, "c6a.xlarge", "us-west-2b").await);
    tokio::time::sleep(Duration::from_secs(181)).await;
    assert!(available(&ec2, "c6a.xlarge", "us-west-2a").await);
    ec2.replenish(&pattern);
    let launch = ec2.launch(order("c", WINDOWS, &options)).await.unwrap();
    assert_eq!(&*launch.instance.instance_type.name, "c6a.xlarge");
}

async fn available(ec2: &SimulatedEc2, name: &str, zone: &str) -> bool {
    let offers = ec2.offers(Os::Windows).await.unwrap();
    let offer = offers
        .iter()
        .find(|o| &*o.instance_type.name == name)
        .unwrap();
    offer
        .offerings
        .iter()
        .any(|o| &*o.zone == zone && o.capacity_type == CapacityType::OnDemand && o.available)
}

#[tokio::test(start_paused = true)]
async fn quotas_and_throttling_are_told_in_ec2s_words() {
    let ec2 = ec2(Speed::INSTANT);
    ec2.limit_vcpus(Some(4));
    let options = [option("m5.large", "us-west-2a")];
    for token in ["a", "b"] {
        ec2.launch(order(token, AmiFamily::AmazonLinux2, &options))
            .await
            .unwrap();
    }
    let error = ec2
        .launch(order("c", AmiFamily::AmazonLinux2, &options))
        .await
        .unwrap_err();
    let refused = FleetError {
        option: options[0].clone(),
        shortage: Shortage::Vcpus { limit: 4 },
        unavailable_for: UNAVAILABLE_FOR,
    };
    assert_eq!(error, CloudError::InsufficientCapacity(vec![refused]));
    ec2.throttle(1);
    let error = ec2.list(BTreeMap::new()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "RequestLimitExceeded: Request limit exceeded."
    );
    assert_eq!(ec2.list(BTreeMap::new()).await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_is_sold_out_names_those_that_are_not() {
    let ec2 = ec2(Speed::INSTANT);
    ec2.exhaust("c6a.xlarge/us-west-2b/*".parse().unwrap());
    let refused = |capacity_type| {
        let ec2 = ec2.clone();
        async move {
            let option = LaunchOption {
                capacity_type,
                ..option("c6a.xlarge", "us-west-2b")
            };
            match ec2.launch(order("a", WINDOWS, &[option])).await {
                Err(CloudError::InsufficientCapacity(mut refused)) => refused.remove(0).shortage,
                other => panic!("{other:?}"),
            }
        }
    };
    let elsewhere = vec!["us-west-2a".into(), "us-west-2c".into()];
    let shortage = refused(CapacityType::OnDemand).await;
    assert_eq!(shortage, Shortage::Hosts { elsewhere });
    assert_eq!(refused(CapacityType::Spot).await, Shortage::Spot);
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_is_down_and_sold_out_is_refused_until_both_faults_have_ended() {
    let ec2 = ec2(Speed::REAL);
    let faults = [
        (FaultKind::ZoneOutage, "us-west-2a"),
        (FaultKind::Capacity, "*/us-west-2a"),
    ];
    let faults = faults.map(|(kind, target)| ec2.fault(kind, target).unwrap());
    let is_refused = || ec2.is_exhausted(&option("c6a.xlarge", "us-west-2a"));
    for ended in [[0, 1], [1, 0]] {
        faults.iter().for_each(|fault| drop(ec2.cause(fault)));
        ec2.heal(&faults[ended[0]]);
        assert!(is_refused(), "{ended:?}");
        ec2.heal(&faults[ended[1]]);
        assert!(!is_refused(), "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_calls_give_the_same_history() {
    async fn history() -> Vec<(String, String, String)> {
        let ec2 = ec2(Speed::INSTANT);
        for token in 0..20 {
            let options = [option("m5.large", "us-west-2c")];
            ec2.launch(order(&token.to_string(), AmiFamily::AmazonLinux2, &options))
                .await
                .unwrap();
        }
        let describe = |i: Arc<Instance>| {
            (
                i.id.to_string(),
                i.private_dns_name.clone(),
                i.subnet.to_string(),
            )
        };
        ec2.instances().into_iter().map(describe).collect()
    }
    assert_eq!(history().await, history().await);
}

#[tokio::test(start_paused = true)]
async fn subnets_and_security_groups_are_found_by_the_discovery_tag() {
    let ec2 = ec2(Speed::INSTANT);
    let select = |value: &str| TagSelector {
        tags: BTreeMap::from([("karpenter.sh/discovery".to_owned(), value.to_owned())]),
        ..TagSelector::default()
    };
    assert_eq!(ec2.subnets(&[select("demo")]).await.unwrap().len(), 3);
    assert_eq!(
        ec2.security_groups(&[select("demo")]).await.unwrap().len(),
        1
    );
    assert!(ec2.subnets(&[select("other")]).await.unwrap().is_empty());
    let by_name = TagSelector {
        name: Some("default".to_owned()),
        ..TagSelector::default()
    };
    let of_nodes = ec2.security_groups(&[select("demo")]).await.unwrap();
    let of_vpc = ec2.security_groups(&[by_name]).await.unwrap();
    assert_eq!(of_vpc.len(), 1, "the VPC's own is found by its name");
    assert_ne!(of_vpc[0].id, of_nodes[0].id);
    let options = [option("m5.large", "us-west-2c")];
    let mut wanted = order("a", AmiFamily::AmazonLinux2, &options);
    let plain = ec2.launch(wanted.clone()).await.unwrap();
    assert_eq!(plain.instance.security_groups, [of_nodes[0].id.clone()]);
    wanted.client_token = "b".to_owned();
    wanted.security_groups = vec![of_vpc[0].id.clone()];
    let other = ec2.launch(wanted).await.unwrap();
    assert_eq!(other.instance.security_groups, [of_vpc[0].id.clone()]);
}

#[tokio::test(start_paused = true)]
async fn clusters_of_older_versions_are_offered_the_hardware_of_their_day() {
    let ec2 = ec2(Speed::INSTANT);
    let offers = ec2.offers(Os::Windows).await.unwrap();
    // The cheapest type of the categories c, m and r that has ten addresses for Windows pods.
    let cheapest = offers
        .iter()
        .filter(|offer| {
            let parts = offer.instance_type.parts();
            matches!(parts.category, Some("c" | "m" | "r"))
                && parts.generation.is_some_and(|generation| generation > 2)
                && offer.instance_type.ipv4_per_eni > 10
        })
        .min_by_key(|offer| {
            let on_demand =
                |o: &&mullion_cloud::Offering| o.capacity_type == CapacityType::OnDemand;
            offer
                .offerings
                .iter()
                .filter(on_demand)
                .map(|o| o.price)
                .min()
        })
        .unwrap();
    assert_eq!(&*cheapest.instance_type.name, "c6a.xlarge");
}

#[tokio::test(start_paused = true)]
async fn what_nodes_are_labelled_with_by_themselves_a_group_does_not_change() {
    let answer = |fields: &str| {
        let text = format!(
            "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {{name: c, region: us-west-2}}\n\
             managedNodeGroups: [{{name: g, desiredCapacity: 1, {fields}}}]\n"
        );
        let cluster = Cluster::from_yaml(&text).unwrap();
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let ec2 = SimulatedEc2::new(Config::for_cluster(&cluster), clock);
        match node_group::orders(&cluster, &ec2) {
            Ok(_) => "taken".to_owned(),
            Err(error) => format!("{error}; {}", error.hint.as_deref().unwrap_or_default()),
        }
    };
    let windows = "amiFamily: WindowsServer2022CoreContainer, instanceType: m5.xlarge";
    let cases = [
        ("labels: {kubernetes.io/os: windows}".to_owned(), Some("kubernetes.io/os: \"windows\" is not what the nodes of this group have: linux; leave kubernetes.io/os out, every node has it by itself")),
        (format!("{windows}, labels: {{beta.kubernetes.io/os: linux}}"), Some("beta.kubernetes.io/os: \"linux\" is not what the nodes of this group have: windows; leave beta.kubernetes.io/os out, every node has it by itself")),
        ("instanceTypes: [m5.large, m5a.large], labels: {node.kubernetes.io/instance-type: m5.large}".to_owned(), Some("node.kubernetes.io/instance-type: \"m5.large\" is not what all nodes of this group have: m5.large or m5a.large; leave node.kubernetes.io/instance-type out, every node has its own by itself")),
        ("labels: {node.kubernetes.io/windows-build: 10.0.20348}".to_owned(), Some("node.kubernetes.io/windows-build: \"10.0.20348\" is not for a group to say: a node has this label from its machine, or has it not; leave node.kubernetes.io/windows-build out")),
        ("labels: {eks.amazonaws.com/nodegroup: other}".to_owned(), Some("eks.amazonaws.com/nodegroup: \"other\" is not what the nodes of this group have: g; leave eks.amazonaws.com/nodegroup out, every node has it by itself")),
        ("labels: {topology.kubernetes.io/region: us-east-1}".to_owned(), Some("topology.kubernetes.io/region: \"us-east-1\" is not what the nodes of this group have: us-west-2; leave topology.kubernetes.io/region out, every node has it by itself")),
        ("availabilityZones: [us-west-2b], labels: {topology.kubernetes.io/zone: us-west-2b, team: shop}".to_owned(), None),
        (format!("{windows}, labels: {{kubernetes.io/os: windows, kubernetes.io/arch: amd64}}"), None),
    ];
    for (fields, why) in cases {
        let expected = why.map_or("taken".to_owned(), |why| {
            format!("managedNodeGroups[0].labels.{why}")
        });
        assert_eq!(answer(&fields), expected, "{fields}");
    }
}

#[tokio::test(start_paused = true)]
async fn node_groups_become_instances_spread_over_the_zones() {
    let text = include_str!("../../../api/testdata/eksctl-windows-nodegroup.yaml");
    let cluster = Cluster::from_yaml(text).unwrap();
    let config = Config {
        speed: Speed::INSTANT,
        ..Config::for_cluster(&cluster)
    };
    let ec2 = SimulatedEc2::new(
        config,
        Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()),
    );
    let mut nodes = Vec::new();
    for order in node_group::orders(&cluster, &ec2).unwrap() {
        nodes.push(ec2.launch(order).await.unwrap().instance);
    }
    let zones: Vec<_> = nodes.iter().map(|node| &*node.zone).collect();
    assert_eq!(
        zones,
        ["us-west-2a", "us-west-2a", "us-west-2a", "us-west-2b"]
    );
    let labels = nodes[0].node_labels();
    for (key, value) in [
        ("kubernetes.io/os", "windows"),
        ("kubernetes.io/arch", "amd64"),
        ("node.kubernetes.io/windows-build", "10.0.20348"),
        ("node.kubernetes.io/instance-type", "m5.xlarge"),
        ("topology.kubernetes.io/zone", "us-west-2a"),
        ("topology.kubernetes.io/region", "us-west-2"),
        ("alpha.eksctl.io/nodegroup-name", "windows-ng"),
        ("nodeclass", "windows2022"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert_eq!(nodes[0].registration.taints[0].key, "os");
    assert_eq!(nodes[0].allocatable.private_ipv4(), 14);
    assert_eq!(
        nodes[3].node_labels()["eks.amazonaws.com/nodegroup"],
        "linux-ng"
    );
    assert!(
        !nodes[3]
            .node_labels()
            .contains_key("node.kubernetes.io/windows-build")
    );
}

#[tokio::test(start_paused = true)]
async fn groups_of_unknown_or_unfit_types_are_refused_with_their_path() {
    let cases = [
        (
            "instanceType: m5.big",
            "nodeGroups[0].instanceType: \"m5.big\" is not an EC2 instance type",
        ),
        (
            "instanceType: m6g.large, amiFamily: WindowsServer2022CoreContainer",
            "nodeGroups[0].instanceType: m6g.large cannot run WindowsServer2022CoreContainer",
        ),
    ];
    for (group, message) in cases {
        let text = format!(
            "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {{name: c, region: us-west-2}}\n\
             nodeGroups: [{{name: g, {group}}}]"
        );
        let cluster = Cluster::from_yaml(&text).unwrap();
        let ec2 = SimulatedEc2::new(
            Config::for_cluster(&cluster),
            Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()),
        );
        let error = node_group::orders(&cluster, &ec2).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert!(error.hint.is_some());
    }
}

impl Book {
    fn resume(self: &Arc<Self>, clock: &Clock) -> SimulatedEc2 {
        let version = KubernetesVersion::from_minor(27).unwrap();
        let config = Config::new("demo", "us-west-2", version);
        let saved = self.0.lock().unwrap().clone();
        SimulatedEc2::resume(config, clock.clone(), self.clone(), &saved).unwrap()
    }
}

/// Formats all instances, in the order of their ids.
fn told(ec2: &SimulatedEc2) -> Vec<String> {
    let all = ec2.instances();
    all.iter()
        .map(|i| format!("{i:?} {:?}", ec2.assigned_addresses(&i.id)))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_next_process_finds_every_instance_as_it_was_and_goes_on_with_it() {
    let book = Arc::<Book>::default();
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let ec2 = book.resume(&clock);
    let launch = async |ec2: &SimulatedEc2, token: &str, family| {
        let mut request = order(token, family, &[option("c6a.xlarge", "us-west-2a")]);
        if token == "booting" {
            request.template.tenancy = Tenancy::Dedicated;
        }
        ec2.launch(request).await.unwrap().instance
    };
    let booted = launch(&ec2, "booted", AmiFamily::AmazonLinux2023).await;
    booted_after(&ec2, &booted).await;
    let address = ec2.assign_address(&booted.id).unwrap();
    let ended = launch(&ec2, "ended", AmiFamily::Bottlerocket).await;
    ec2.terminate(ended.id.clone()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let booting = launch(&ec2, "booting", WINDOWS).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let before = told(&ec2);
    drop(ec2);

    let ec2 = book.resume(&clock);
    assert_eq!(told(&ec2), before);
    let tenancy = |id| ec2.instance(id).unwrap().tenancy;
    assert_eq!(tenancy(&booting.id), Tenancy::Dedicated);
    assert_eq!(tenancy(&booted.id), Tenancy::Default);
    let left = booted_after(&ec2, &booting).await.as_secs();
    assert!(
        (180..230).contains(&left),
        "{left} s of about 300 s are left"
    );
    let again = launch(&ec2, "booted", AmiFamily::AmazonLinux2023).await;
    assert_eq!(again.id, booted.id, "a token buys once");
    ec2.terminate(booted.id.clone()).await.unwrap();
    drop(ec2);

    let ec2 = book.resume(&clock);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let state = ec2.instance(&booted.id).unwrap().state;
    assert_eq!(state, InstanceState::Terminated, "its end goes on as well");
    let mut addresses = BTreeSet::from([booting.private_ip]);
    let mut ids = BTreeSet::from([&booted, &ended, &booting].map(|i| i.id.clone()));
    for token in ["a", "b", "c", "d"] {
        let new = launch(&ec2, token, WINDOWS).await;
        assert!(addresses.insert(new.private_ip) && ids.insert(new.id.clone()));
    }
    assert!(!addresses.contains(&address));
}

#[test]
fn what_is_no_ledger_is_refused_by_its_key() {
    let version = KubernetesVersion::from_minor(27).unwrap();
    let refused = |key: &str, value: &str| {
        let saved = Saved::from([(key.to_owned(), value.as_bytes().to_vec())]);
        let config = Config::new("demo", "us-west-2", version);
        let resumed = SimulatedEc2::resume(config, Clock::system(), Arc::<Book>::default(), &saved);
        resumed.unwrap_err().to_string()
    };
    assert_eq!(
        refused("random", "x"),
        "what is known of random cannot be understood: it is no number"
    );
    assert!(
        refused("instance/i-1", "{}")
            .starts_with("what is known of instance/i-1 cannot be understood: missing field")
    );
}
