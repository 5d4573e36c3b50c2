//! How long nodes take until they are there, held against the figures of `docs/simulation.md`.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::Cluster,
};
use mullion_cloud::{CloudProvider, LaunchRequest, NodeTemplate, Speed, node_group};

use crate::whole::{Whole, is_ready, order};

const DOCS: &str = include_str!("../../../../docs/simulation.md");
/// What the docs say of node groups; the figures are those that are measured here.
const GROUPS: (&str, [(&str, u64); 2]) = (
    "only their network gets ready, in 8 s (Linux) or 20 s (Windows), divided by `--speed`",
    [("linux", 8), ("windows", 20)],
);
/// What the docs say of nodes that are bought.
const BOUGHT: (&str, [(AmiFamily, u64); 3]) = (
    "An instance is bought after 1.5 s, a Linux node registers about 45 s later, a Windows node about 5 min later (Server Core; with a desktop \
     6 min), divided by `--speed`",
    [
        (AmiFamily::AmazonLinux2023, 45),
        (WINDOWS_CORE, 300),
        (WINDOWS_FULL, 360),
    ],
);
const WINDOWS_CORE: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);
const WINDOWS_FULL: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Full);
const CLUSTER: &str = "
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: windows-karpenter-demo, region: us-west-2, version: '1.27'}
managedNodeGroups:
- {name: linux, instanceType: m5.large, amiFamily: AmazonLinux2023, desiredCapacity: 2}
- {name: windows, instanceType: m5.xlarge, amiFamily: WindowsServer2022CoreContainer, desiredCapacity: 2}
";

/// Fails unless the docs have a sentence, wherever they break its lines.
fn assert_documented(sentence: &str) {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words(DOCS).contains(&words(sentence)),
        "docs/simulation.md does not say {sentence:?}"
    );
}

/// Returns when each of these nodes is as `is_there` wants it, counted from now.
async fn times(
    whole: &Whole,
    names: &[String],
    is_there: fn(&Node) -> bool,
) -> BTreeMap<String, Duration> {
    let began = tokio::time::Instant::now();
    let mut times = BTreeMap::new();
    whole
        .until("all nodes are there", || {
            for node in whole.nodes() {
                if names.contains(&node.name_any()) && is_there(&node) {
                    times
                        .entry(node.name_any())
                        .or_insert_with(|| began.elapsed());
                }
            }
            (times.len() == names.len()).then_some(())
        })
        .await;
    times
}

/// The nodes of groups, at a speed: they are ready when their network is.
async fn groups_are_ready_at(speed: u32) {
    let whole = Whole::start_at(Speed::times(speed.into()).expect("above zero")).await;
    let cluster = Cluster::from_yaml(CLUSTER).expect("a ClusterConfig");
    let orders = node_group::orders(&cluster, &whole.ec2).expect("two groups");
    let group = |order: LaunchRequest| whole.ec2.provide(order).expect("there is capacity");
    let instances: Vec<_> = orders.into_iter().map(group).collect();
    assert_eq!(instances.len(), 4);
    let names = instances
        .iter()
        .map(|instance| instance.private_dns_name.clone());
    let names: Vec<String> = names.collect();
    let times = times(&whole, &names, is_ready).await;
    for instance in instances {
        let os = instance.os().as_str();
        let (_, seconds) = GROUPS
            .1
            .into_iter()
            .find(|(name, _)| *name == os)
            .expect("either");
        let (documented, took) = (
            Duration::from_secs(seconds) / speed,
            times[&instance.private_dns_name],
        );
        assert!(
            took.abs_diff(documented) <= Duration::from_millis(500),
            "{os} at speed {speed}: ready after {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_of_groups_are_ready_when_their_network_is_as_documented() {
    assert_documented(GROUPS.0);
    for speed in [1, 4] {
        groups_are_ready_at(speed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_bought_register_as_late_as_documented() {
    assert_documented(BOUGHT.0);
    let whole = Whole::start().await;
    for (family, documented) in BOUGHT.1 {
        let template = NodeTemplate::new(family, whole.ec2.config().version);
        let mut order = order(&format!("{family:?}"), template);
        order.options[0].instance_type = "m5.xlarge".to_owned();
        let began = tokio::time::Instant::now();
        let launch = whole.ec2.launch(order).await.expect("there is capacity");
        assert_eq!(began.elapsed(), Duration::from_millis(1500));
        let name = launch.instance.private_dns_name.clone();
        let took = times(&whole, std::slice::from_ref(&name), |_| true).await[&name];
        // "About" is a tenth.
        let documented = Duration::from_secs(documented);
        assert!(
            took.abs_diff(documented) <= documented / 10,
            "{family:?} registered after {took:?}"
        );
    }
}
