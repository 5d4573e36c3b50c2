//! Faults as a user causes and ends them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mullion_api::fault::FaultKind;
use mullion_cloud::sim::Fault;
use serde_json::json;

use crate::{
    pools::one_node,
    whole::{Whole, is_ready},
};

async fn with_its_node() -> (Whole, Arc<Node>) {
    let whole = one_node().await;
    let node = Arc::clone(&whole.bought()[0]);
    (whole, node)
}

fn zone(node: &Node) -> String {
    node.labels()["topology.kubernetes.io/zone"].clone()
}

fn fault(whole: &Whole, kind: FaultKind, target: &str) -> Fault {
    whole.ec2.fault(kind, target).expect("it can be caused")
}

/// Waits until another node than this one is the only one that was bought.
async fn replaced(whole: &Whole, old: &Node) -> Arc<Node> {
    let node = whole
        .until("the node is replaced", || {
            let nodes = whole.bought();
            let other = nodes.iter().find(|node| node.name_any() != old.name_any());
            other.filter(|_| nodes.len() == 1).cloned()
        })
        .await;
    whole.until_running("web", 1).await;
    node
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_goes_down_is_left_and_its_nodes_come_back_with_it() {
    let (whole, old) = with_its_node().await;
    let down = fault(&whole, FaultKind::ZoneOutage, &zone(&old));
    // The Linux node that is no claim's is in the same zone or not; it comes back with its own.
    let said = whole.ec2.cause(&down);
    assert!(
        said.starts_with(&format!("{} is down: ", zone(&old))),
        "{said}"
    );
    let new = replaced(&whole, &old).await;
    assert_ne!(zone(&new), zone(&old));
    let others = || {
        let nodes = whole.nodes();
        let of_group = nodes
            .into_iter()
            .filter(|node| !node.labels().contains_key("karpenter.sh/nodepool"));
        of_group.collect::<Vec<_>>()
    };
    assert_eq!(zone(&others()[0]), "us-west-2a");
    if zone(&old) == "us-west-2a" {
        whole
            .until("the node of no pool is not ready", || {
                (!is_ready(&others()[0])).then_some(())
            })
            .await;
    }
    whole.ec2.heal(&down);
    whole
        .until("it is ready again", || is_ready(&others()[0]).then_some(()))
        .await;
    assert_eq!(others().len(), 1, "the node was not deleted meanwhile");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_bought_in_a_zone_that_the_cluster_is_shifted_away_from() {
    let (whole, old) = with_its_node().await;
    let shift = fault(&whole, FaultKind::ZonalShift, &zone(&old));
    whole.ec2.cause(&shift);
    whole.pass(31).await;
    let id = &old.labels()["topology.k8s.aws/zone-id"];
    let active = (
        "ZonalShiftActive".to_owned(),
        format!(
            "Zonal shift detected: offerings in zone {} ({id}) are unavailable for this NodePool",
            zone(&old)
        ),
    );
    assert!(whole.events("linux").await.contains(&active));

    // As many as need two further nodes.
    let requests = json!({ "requests": { "cpu": "1500m" } });
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "more", "image": "nginx", "resources": requests }]
    });
    whole.deployment("more", 2, spec.clone()).await;
    whole.until_running("more", 2).await;
    let bought = whole.bought();
    let there = bought.iter().filter(|node| zone(node) == zone(&old));
    let there: Vec<_> = there.map(|node| node.name_any()).collect();
    assert_eq!(there, [old.name_any()], "it stays, and no other is bought");

    // A pod that must be in that zone waits until the shift ends.
    let mut bound = spec;
    bound["nodeSelector"]["topology.kubernetes.io/zone"] = zone(&old).into();
    whole.deployment("bound", 1, bound).await;
    whole.pass(60).await;
    assert_eq!(whole.bought().len(), bought.len());
    whole.ec2.heal(&shift);
    whole.until_running("bound", 1).await;
    let cleared = (
        "ZonalShiftCleared".to_owned(),
        format!(
            "Zonal shift cleared: offerings in zone {} ({id}) are restored for this NodePool",
            zone(&old)
        ),
    );
    assert!(whole.events("linux").await.contains(&cleared));
}

#[tokio::test(start_paused = true)]
async fn a_newer_image_makes_nodes_drift_until_all_run_it_and_an_older_one_again() {
    let (whole, old) = with_its_node().await;
    let image = |whole: &Whole| {
        let claims = whole.claims();
        let status = claims[0].status.clone().expect("launched");
        status.image_id
    };
    let before = image(&whole);
    let newer = fault(&whole, FaultKind::NewImage, "al2023@latest");
    let said = whole.ec2.cause(&newer);
    assert!(
        said.contains("amazon-eks-node-al2023-x86_64-standard-1.27-v20250417"),
        "{said}"
    );
    let new = replaced(&whole, &old).await;
    assert_ne!(image(&whole), before);
    let line = whole.line("marking drifted");
    assert_eq!(line["reason"], "AMIDrift");
    whole.pass(600).await;
    assert_eq!(
        whole.bought()[0].name_any(),
        new.name_any(),
        "it is the newest"
    );
    whole.ec2.heal(&newer);
    replaced(&whole, &new).await;
    assert_eq!(image(&whole), before);
}

#[tokio::test(start_paused = true)]
async fn a_crashed_node_is_replaced_and_one_of_no_pool_waits_for_its_instance() {
    let (whole, old) = with_its_node().await;
    let crash = fault(&whole, FaultKind::Crash, &old.name_any());
    whole.ec2.cause(&crash);
    replaced(&whole, &old).await;
    assert!(whole.ec2.is_over(&crash));
    let others = || {
        let nodes = whole.nodes();
        let mut of_group = nodes
            .into_iter()
            .filter(|node| !node.labels().contains_key("karpenter.sh/nodepool"));
        of_group.next().expect("it is there")
    };
    let crash = fault(&whole, FaultKind::Crash, &others().name_any());
    whole.ec2.cause(&crash);
    whole
        .until("its lease has run out", || {
            (!is_ready(&others())).then_some(())
        })
        .await;
    whole.pass(600).await;
    assert!(!whole.ec2.is_over(&crash));
    whole.ec2.heal(&crash);
    whole
        .until("it is ready again", || is_ready(&others()).then_some(()))
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_caused_is_refused_with_the_nearest_names() {
    let (whole, node) = with_its_node().await;
    let refused = |kind: FaultKind, target: &str| {
        let error = whole.ec2.fault(kind, target).expect_err("it is refused");
        (error.message, error.near)
    };
    let name = node.name_any();
    let misspelt = name.replace("ip-10", "ip-11");
    let (message, near) = refused(FaultKind::Crash, &misspelt);
    assert_eq!(
        message,
        format!("{misspelt} is no node, instance or NodeClaim")
    );
    assert!(near.contains(&name), "{near:?}");
    let (message, _) = refused(FaultKind::SpotInterruption, &name);
    let expected =
        format!("{name} is an on-demand instance, and EC2 takes back spot instances only");
    assert_eq!(message, expected);
    let (message, near) = refused(FaultKind::ZoneOutage, "us-west-2x");
    assert_eq!(message, "us-west-2x is no zone of us-west-2");
    assert_eq!(near, ["us-west-2a", "us-west-2b", "us-west-2c"]);
    let (message, near) = refused(FaultKind::Capacity, "m5.larg/us-west-2a");
    assert_eq!(message, "m5.larg is not an EC2 instance type");
    assert_eq!(near[0], "m5.large");
    let (message, near) = refused(FaultKind::NewImage, "al2032@latest");
    assert_eq!(message, "al2032@latest is no image alias or family");
    assert!(near.contains(&"al2023".to_owned()), "{near:?}");
    // A claim and an instance are other names of the same.
    let claim = whole.claims()[0].name_any();
    let by_claim = fault(&whole, FaultKind::Crash, &claim);
    assert_eq!(by_claim, fault(&whole, FaultKind::Crash, &name));
    assert!(whole.ec2.names(&by_claim).contains(&claim));
}
