//! Tests of what a class can buy.

use mullion_api::eksctl::KubernetesVersion;
use mullion_cloud::{
    Clock, Speed,
    image::ImageVariant,
    sim::{Config, SimulatedEc2},
};
use serde_json::json;

use super::*;

/// Returns what can be bought with a class of this image family in a cluster of Kubernetes 1.`minor`.
pub(crate) async fn market(family: &str, minor: u32) -> Market {
    market_with(family, minor, WindowsAddresses::Single).await
}

async fn market_with(family: &str, minor: u32, addresses: WindowsAddresses) -> Market {
    let version = KubernetesVersion::from_minor(minor).expect("known");
    let config = Config {
        speed: Speed::INSTANT,
        ..Config::new("demo", "us-west-2", version)
    };
    let ec2 = SimulatedEc2::new(
        config,
        Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")),
    );
    let class: EC2NodeClass = serde_json::from_value(json!({
        "metadata": { "name": "c" },
        "spec": { "amiFamily": family },
        "status": { "subnets": [
            { "id": "subnet-1", "zone": "us-west-2a" }, { "id": "subnet-2", "zone": "us-west-2b" }
        ]}
    }))
    .expect("a class");
    let market = Market::open(&class, version, addresses, &ec2);
    market.await.expect("a market")
}

fn blog_requirements() -> Vec<Requirement> {
    vec![
        Requirement::is(labels::CAPACITY_TYPE, "on-demand"),
        Requirement::is(labels::OS, "windows"),
        Requirement::is(labels::ARCH, "amd64"),
        Requirement::new(labels::INSTANCE_CATEGORY, Operator::In, ["c", "m", "r"]),
        Requirement::new(labels::INSTANCE_GENERATION, Operator::Gt, ["2"]),
    ]
}

fn requests(pairs: &[(&str, &str)]) -> ResourceMap {
    let parse = |(k, v): &(&str, &str)| ((*k).to_owned(), v.parse().expect("a quantity"));
    pairs.iter().map(parse).collect()
}

#[tokio::test]
async fn types_on_which_no_image_of_the_class_boots_are_not_bought() {
    let mut market = market_with("AL2023", 31, WindowsAddresses::Off).await;
    let is_arm = |own: &LaunchOption| own.instance_type.starts_with("t4g.");
    let options = |market: &Market| market.launch_options(&[], &ResourceMap::new());
    assert!(options(&market).iter().any(is_arm));
    market.images = vec![AmiStatus {
        id: "ami-1".to_owned(),
        deprecated: false,
        name: "amd64".to_owned(),
        requirements: vec![Requirement::is(labels::ARCH, "amd64")],
    }];
    assert!(!options(&market).is_empty() && !options(&market).iter().any(is_arm));
    let machines = market.machines(&[]);
    let archs: BTreeSet<_> = machines
        .iter()
        .map(|own| own.labels[labels::ARCH].as_str())
        .collect();
    assert_eq!(archs, BTreeSet::from(["amd64"]));
}

#[tokio::test]
async fn a_node_boots_the_image_for_the_hardware_of_its_type() {
    let mut market = market_with("AL2023", 31, WindowsAddresses::Off).await;
    assert!(market.boots("ami-any", "m5.large").expect("sold"));
    let image = |id: &str, arch: &str, variant: ImageVariant| AmiStatus {
        id: id.to_owned(),
        deprecated: false,
        name: String::new(),
        requirements: [
            vec![Requirement::is(labels::ARCH, arch)],
            variant.requirements(),
        ]
        .concat(),
    };
    market.images = vec![
        image("ami-standard", "amd64", ImageVariant::Standard),
        image("ami-nvidia", "amd64", ImageVariant::Nvidia),
        image("ami-neuron", "amd64", ImageVariant::Neuron),
        image("ami-arm", "arm64", ImageVariant::Standard),
    ];
    for (name, own) in [
        ("m5.large", Some("ami-standard")),
        ("g4dn.xlarge", Some("ami-nvidia")),
        ("inf1.xlarge", Some("ami-neuron")),
        ("m6g.large", Some("ami-arm")),
        ("g5g.xlarge", None),
    ] {
        let ids = market.images.iter().map(|image| image.id.as_str());
        let boots = |id: &&str| market.boots(id, name).expect("sold");
        let booted: Vec<_> = ids.filter(boots).collect();
        assert_eq!(booted, Vec::from_iter(own), "{name}");
    }
    let error = market.boots("ami-standard", "x1.none").unwrap_err();
    assert_eq!(
        error.to_string(),
        "instance type \"x1.none\" is not sold for the operating system of the class"
    );
}

#[tokio::test(start_paused = true)]
async fn ten_windows_addresses_are_cheapest_on_a_c6a_xlarge() {
    let market = market("Windows2022", 27).await;
    let wanted = requests(&[("pods", "10"), (labels::PRIVATE_IPV4, "10")]);
    let options = market.launch_options(&blog_requirements(), &wanted);
    assert_eq!(options[0].to_string(), "on-demand c6a.xlarge in us-west-2a");
    assert_eq!(options[1].to_string(), "on-demand c6a.xlarge in us-west-2b");
    assert_eq!(options.len(), MAX_LAUNCH_OPTIONS);
}

#[tokio::test(start_paused = true)]
async fn prefix_delegation_buys_smaller_machines_for_as_many_addresses() {
    let wanted = requests(&[("pods", "60"), (labels::PRIVATE_IPV4, "60")]);
    let first = async |addresses| {
        let market = market_with("Windows2022", 27, addresses).await;
        let options = market.launch_options(&blog_requirements(), &wanted);
        options.first().map(|option| option.instance_type.clone())
    };
    // 60 single addresses need an interface with more than 50: there is none.
    assert_eq!(first(WindowsAddresses::Single).await, None);
    let bought = first(WindowsAddresses::Prefixes).await.expect("a type");
    assert_eq!(bought, "c6a.large");
    assert_eq!(first(WindowsAddresses::Off).await, None);
}

#[tokio::test(start_paused = true)]
async fn windows_nodes_under_four_gibibytes_are_bought_only_where_the_pool_asks_for_them() {
    let market = market("Windows2022", 36).await;
    let five = requests(&[("pods", "5"), (labels::PRIVATE_IPV4, "3")]);
    let cheapest = |requirements: &[Requirement]| {
        let options = market.launch_options(requirements, &five);
        options[0].instance_type.clone()
    };
    let mut pool = blog_requirements();
    let small = market.too_small(&pool);
    assert_eq!(small.first().map(|own| &*own.name), Some("c7a.medium"));
    let memory = |name: &str| {
        let kind = mullion_cloud::catalogue::get(name).expect("known");
        kind.memory_mib
    };
    assert!(memory(&cheapest(&pool)) >= LEAST_WINDOWS_MIB);
    assert!(
        market
            .machines(&pool)
            .iter()
            .all(|own| memory(&own.name) >= LEAST_WINDOWS_MIB)
    );
    let asking = [
        Requirement::new(labels::INSTANCE_SIZE, Operator::In, ["medium"]),
        Requirement::new(labels::INSTANCE_MEMORY, Operator::Lt, ["4096"]),
        Requirement::new(labels::INSTANCE_TYPE, Operator::In, ["c7a.medium"]),
    ];
    for requirement in asking {
        pool.push(requirement);
        assert_eq!(cheapest(&pool), "c7a.medium");
        assert!(market.too_small(&pool).is_empty());
        pool.pop();
    }
    let not = Requirement::new(labels::INSTANCE_TYPE, Operator::NotIn, ["c7i.large"]);
    pool.push(not);
    assert!(memory(&cheapest(&pool)) >= LEAST_WINDOWS_MIB);
}

#[tokio::test(start_paused = true)]
async fn types_that_windows_does_not_run_on_are_never_bought_for_it() {
    let market = market("Windows2022", 36).await;
    let named = |name: &str| {
        let requirement = Requirement::new(labels::INSTANCE_TYPE, Operator::In, [name]);
        market.machines(&[requirement]).len()
    };
    let unknown = mullion_cloud::catalogue::all().iter().find(|own| {
        // x86-64, sold with Linux, and not in the table of the VPC resource controller.
        own.arch == mullion_cloud::catalogue::Arch::Amd64 && !own.windows_capable
    });
    assert_eq!(named(&unknown.expect("there are some").name), 0);
    assert_eq!(named("m6g.large"), 0, "arm64");
    assert_eq!(named("m5.large"), 1);
}

#[tokio::test(start_paused = true)]
async fn machines_say_what_their_nodes_will_say() {
    let market = market("Windows2019", 27).await;
    let machines = market.machines(&blog_requirements());
    let c6a = machines
        .iter()
        .find(|m| m.name == "c6a.xlarge")
        .expect("sold");
    assert_eq!(c6a.labels[labels::WINDOWS_BUILD], "10.0.17763");
    assert_eq!(c6a.allocatable["cpu"].milli_value(), 3920);
    assert_eq!(c6a.allocatable[labels::PRIVATE_IPV4].value(), 14);
    assert_eq!(c6a.offerings.len(), 2, "two zones, on-demand only");
    assert!(c6a.offerings.iter().all(|o| o.price_micro_usd == 337_000));
    assert!(machines.iter().all(|m| m.labels[labels::ARCH] == "amd64"));
}

#[tokio::test(start_paused = true)]
async fn settings_change_what_nodes_are_counted_with() {
    let settings = Settings {
        vm_memory_overhead: mullion_cloud::MemoryOverhead::of_fraction(0.02).expect("a part"),
        reserved_enis: 1,
        ..Settings::default()
    };
    let market = market("AL2023", 31).await.with_settings(&settings);
    let machines = market.machines(&[Requirement::is(labels::INSTANCE_TYPE, "m5.large")]);
    let m5 = &machines[0];
    assert_eq!(m5.capacity[labels::MEMORY].value(), 8028 << 20);
    assert_eq!(m5.allocatable[labels::PODS].value(), 20);
    let wanted = requests(&[("pods", "21")]);
    let options = market.launch_options(&[], &wanted);
    assert!(options.iter().all(|own| own.instance_type != "m5.large"));
}

#[tokio::test(start_paused = true)]
async fn a_requirement_on_a_label_of_the_users_own_excludes_no_machine() {
    let market = market("AL2023", 31).await;
    let mut own = vec![Requirement::is("example.com/team", "a")];
    let all = market.machines(&[]).len();
    assert_eq!(market.machines(&own).len(), all);
    own.push(Requirement::new(
        labels::INSTANCE_GPU_COUNT,
        Operator::Exists,
        [""; 0],
    ));
    let with_gpu = market.machines(&own);
    assert!(!with_gpu.is_empty() && with_gpu.len() < all / 5);
}

#[tokio::test(start_paused = true)]
async fn windows_is_sold_at_its_own_price() {
    let windows = market("Windows2022", 31).await.machines(&[]);
    let linux = market("AL2023", 31).await.machines(&[]);
    let price = |machines: &[Arc<provision::InstanceType>]| {
        let m5 = machines
            .iter()
            .find(|m| m.name == "m5.large")
            .expect("sold");
        m5.offerings.iter().map(|o| o.price_micro_usd).max()
    };
    assert_eq!(price(&linux), Some(96_000));
    assert_eq!(price(&windows), Some(96_000 + 92_000));
}
