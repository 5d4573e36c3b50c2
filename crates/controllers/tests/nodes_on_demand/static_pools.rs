//! Pools that keep a fixed number of nodes.

use k8s_openapi::api::{autoscaling::v1::Scale, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::karpenter::NodePool;
use mullion_cloud::Speed;
use mullion_controllers::provisioner::FeatureGates;
use serde_json::{Value, json};

use crate::{pools, whole::Whole};

/// A cluster whose pool `linux` of `m5.large` has these fields in its spec.
async fn with_pool(gates: FeatureGates, spec: Value) -> Whole {
    let whole = Whole::start_with(Speed::REAL, gates).await;
    pools::linux_with(&whole, &["m5.large"], &["on-demand"], json!({}), spec).await;
    whole
}

async fn static_pool(spec: Value) -> Whole {
    let open = FeatureGates {
        static_capacity: true,
        ..FeatureGates::default()
    };
    with_pool(open, spec).await
}

fn api(whole: &Whole) -> Api<NodePool> {
    Api::all(whole.context.client.clone())
}

/// As `kubectl scale nodepool linux --replicas=N`.
async fn scale(whole: &Whole, replicas: usize) -> Scale {
    let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    let scaled = api(whole)
        .patch_scale("linux", &PatchParams::default(), &patch)
        .await;
    scaled.expect("NodePools have a scale")
}

async fn until_nodes(whole: &Whole, count: usize) -> Vec<String> {
    whole
        .until(&format!("{count} nodes are initialized"), || {
            let claims = whole.claims();
            let is_ready = |node: &Node| node.labels().contains_key("karpenter.sh/initialized");
            let mut names: Vec<String> = whole
                .bought()
                .iter()
                .filter(|node| is_ready(node))
                .map(|node| node.name_any())
                .collect();
            names.sort();
            (names.len() == count && claims.len() == count).then_some(names)
        })
        .await
}

async fn web(whole: &Whole, name: &str, replicas: u32, annotations: Value) {
    whole
        .create(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name }, "annotations": annotations },
                    "spec": {
                        "nodeSelector": { "team": "web" },
                        "containers": [{
                            "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "1500m" } }
                        }]
                    }
                }
            }
        }))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pool_keeps_as_many_nodes_as_it_is_scaled_to() {
    let at_once = json!({ "consolidateAfter": "0s" });
    let whole = static_pool(json!({ "replicas": 2, "disruption": at_once })).await;
    let first = until_nodes(&whole, 2).await;
    let line = whole.line("provisioning nodeclaims to satisfy replica count");
    assert_eq!(line["controller"], "static.provisioning");
    assert_eq!(line["NodePool"]["name"], "linux");
    let counts = [&line["current"], &line["desired"], &line["provision-count"]];
    assert_eq!(counts, [&json!(0), &json!(2), &json!(2)]);
    // They are empty, and stay: the pool would consolidate at once if it were not static.
    whole.pass(900).await;
    assert_eq!(until_nodes(&whole, 2).await, first);
    assert!(
        whole
            .claims()
            .iter()
            .all(|claim| !claim.is("Consolidatable"))
    );
    scale(&whole, 4).await;
    until_nodes(&whole, 4).await;
    let status = api(&whole).get_scale("linux").await.expect("there is one");
    assert_eq!(status.status.map(|status| status.replicas), Some(4));
    scale(&whole, 1).await;
    until_nodes(&whole, 1).await;
    let line = whole.line("deprovisioning nodeclaims to satisfy replica count");
    assert_eq!(line["controller"], "static.deprovisioning");
    let counts = [
        &line["current"],
        &line["desired"],
        &line["deprovision-count"],
    ];
    assert_eq!(counts, [&json!(4), &json!(1), &json!(3)]);
    // A node that is taken away is replaced.
    let old = whole.claims()[0].name_any();
    whole.delete(whole.karpenter.claim_api(), &old).await;
    whole
        .until("another node is there", || {
            let claims = whole.claims();
            let is_new = claims.len() == 1 && claims[0].name_any() != old;
            (is_new && claims[0].is("Initialized")).then_some(())
        })
        .await;
    scale(&whole, 0).await;
    until_nodes(&whole, 0).await;
}

#[tokio::test(start_paused = true)]
async fn pods_provoke_no_purchase_from_a_static_pool_and_use_its_nodes() {
    let whole = static_pool(json!({ "replicas": 1 })).await;
    web(&whole, "web", 2, json!({})).await;
    whole
        .until("one pod runs", || {
            let pods = whole.pods("web");
            let ready = pods
                .iter()
                .filter(|pod| mullion_controllers::pods::is_ready(pod));
            (ready.count() == 1).then_some(())
        })
        .await;
    whole.pass(600).await;
    assert_eq!(whole.claims().len(), 1);
    scale(&whole, 2).await;
    whole.until_running("web", 2).await;
    assert_eq!(whole.claims().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_limit_on_nodes_holds() {
    let whole = static_pool(json!({ "replicas": 5, "limits": { "nodes": "3" } })).await;
    until_nodes(&whole, 3).await;
    whole.pass(600).await;
    until_nodes(&whole, 3).await;
    let line = whole.line("nodepool node limit reached");
    assert_eq!(line["controller"], "static.provisioning");
    let more = json!({ "spec": { "limits": { "nodes": "4" } } });
    whole.patch(api(&whole), "linux", more).await;
    until_nodes(&whole, 4).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_without_pods_go_first_and_protected_ones_last() {
    let whole = static_pool(json!({ "replicas": 4 })).await;
    until_nodes(&whole, 4).await;
    web(
        &whole,
        "held",
        1,
        json!({ "karpenter.sh/do-not-disrupt": "true" }),
    )
    .await;
    web(&whole, "web", 2, json!({})).await;
    whole.until_running("held", 1).await;
    whole.until_running("web", 2).await;
    let node_of = |app: &str| {
        let pods = whole.pods(app);
        let spec = pods[0].spec.as_ref().expect("a pod has a spec");
        spec.node_name.clone().expect("it runs")
    };
    let held = node_of("held");
    let webs: Vec<String> = whole
        .pods("web")
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    scale(&whole, 3).await;
    let left = until_nodes(&whole, 3).await;
    assert!(left.contains(&held) && webs.iter().all(|own| left.contains(own)));
    scale(&whole, 1).await;
    let left = whole
        .until("one claim stays", || {
            let claims = whole.claims();
            let mut stay = claims
                .iter()
                .filter(|claim| claim.metadata.deletion_timestamp.is_none());
            let first = stay.next()?.node_name()?.to_owned();
            stay.next().is_none().then_some(first)
        })
        .await;
    assert_eq!(left, held);
}

#[tokio::test(start_paused = true)]
async fn drifted_nodes_are_replaced_one_for_one_within_budget_and_limit() {
    let disruption = json!({ "consolidateAfter": "Never", "budgets": [{ "nodes": "3" }] });
    let spec = json!({ "replicas": 4, "limits": { "nodes": "6" }, "disruption": disruption });
    let whole = static_pool(spec).await;
    let old = until_nodes(&whole, 4).await;
    let drift =
        json!({ "spec": { "template": { "metadata": { "annotations": { "build": "2" } } } } });
    whole.patch(api(&whole), "linux", drift).await;
    let (mut most, mut least) = (0, usize::MAX);
    whole
        .until("all four are new", || {
            let claims = whole.claims();
            most = most.max(claims.len());
            let ready = claims
                .iter()
                .filter(|claim| {
                    claim.is("Initialized") && claim.metadata.deletion_timestamp.is_none()
                })
                .count();
            least = least.min(ready);
            let is_new =
                |name: Option<&str>| name.is_some_and(|name| !old.contains(&name.to_owned()));
            let all_new = claims.iter().all(|claim| is_new(claim.node_name()));
            (ready == 4 && claims.len() == 4 && all_new).then_some(())
        })
        .await;
    assert_eq!(most, 6, "two at a time: the limit lets no more");
    assert_eq!(least, 4, "each node goes after its replacement is ready");
    let line = whole.line("disrupting node(s)");
    assert_eq!(
        (&line["reason"], &line["decision"]),
        (&json!("drifted"), &json!("replace"))
    );
    assert_eq!(line["replacement-nodes"][0]["capacity-type"], "on-demand");
    // A budget of none closes.
    let again = json!({ "metadata": { "annotations": { "build": "3" } } });
    let closed = json!({ "disruption": { "budgets": [{ "nodes": "0" }] }, "template": again });
    let closed = json!({ "spec": closed });
    whole.patch(api(&whole), "linux", closed).await;
    let before = until_nodes(&whole, 4).await;
    whole.pass(600).await;
    assert_eq!(until_nodes(&whole, 4).await, before);
}

#[tokio::test(start_paused = true)]
async fn a_static_pool_waits_while_nothing_is_sold() {
    let whole = static_pool(json!({ "replicas": 0 })).await;
    whole
        .ec2
        .exhaust("m5.large/*/*".parse().expect("a pattern"));
    scale(&whole, 3).await;
    let skipped = "skipping, nodepool requirements filtered out all instance types";
    whole
        .until("it is told", || {
            whole
                .story()
                .iter()
                .any(|line| line == skipped)
                .then_some(())
        })
        .await;
    let pattern = "m5.large/*/*".parse().expect("a pattern");
    whole.ec2.replenish(&pattern);
    until_nodes(&whole, 3).await;
}

#[tokio::test(start_paused = true)]
async fn without_its_gate_a_static_pool_keeps_nothing_and_says_so() {
    let whole = with_pool(FeatureGates::default(), json!({ "replicas": 2 })).await;
    whole.pass(600).await;
    assert!(whole.claims().is_empty());
    let pool = api(&whole).get("linux").await.expect("it is there");
    let conditions = pool.status.expect("it has one").conditions;
    let ignored = conditions
        .iter()
        .find(|own| own.type_ == "FieldsIgnored")
        .expect("it is set");
    assert!(
        ignored.message.contains("StaticCapacity"),
        "{}",
        ignored.message
    );
}
