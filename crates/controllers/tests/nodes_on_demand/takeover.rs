//! A cluster that Karpenter has run is taken over as it is, and left so that Karpenter can take it back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{
    ami::AmiFamily,
    karpenter::{EC2NodeClass, NodeClaim, NodePool},
};
use mullion_cloud::{
    CloudProvider, Instance, LaunchRequest, NodeTemplate, Registration, TagSelector,
};
use serde_json::{Value, json};

use crate::whole::{Whole, is_ready, order};

const KARPENTER: &str = include_str!("karpenter-1.14.yaml");
const CLUSTER: &str = "windows-karpenter-demo";
/// The startup taint of the pool.
const STARTING: &str = "example.com/starting";
/// The claims of the two nodes.
const CLAIMS: [&str; 2] = ["default-4k7vz", "default-x9p2m"];

/// A document of the recorded objects, with its `$NAMES` filled in.
fn recorded(kind: &str, names: &[(&str, &str)]) -> Value {
    let mut text = KARPENTER.to_owned();
    for (name, value) in names {
        text = text.replace(&format!("${name}"), value);
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let mut documents = documents.into_iter();
    let found = documents.find(|document| document["kind"] == kind);
    found.expect("it is recorded")
}

/// The tags of an instance once Karpenter's tagging controller has seen its node.
fn tags(claim: &str, name: &str) -> BTreeMap<String, String> {
    [
        ("Name", name),
        ("cost-center", "web"),
        ("eks:eks-cluster-name", CLUSTER),
        ("karpenter.k8s.aws/ec2nodeclass", "default"),
        ("karpenter.sh/nodeclaim", claim),
        ("karpenter.sh/nodepool", "default"),
        ("kubernetes.io/cluster/windows-karpenter-demo", "owned"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

async fn discovered_groups(whole: &Whole) -> Vec<Arc<str>> {
    let discovery = ("karpenter.sh/discovery".to_owned(), CLUSTER.to_owned());
    let selector = TagSelector {
        tags: [discovery].into(),
        ..TagSelector::default()
    };
    let groups = whole.ec2.security_groups(&[selector]).await;
    let groups = groups.expect("there are some").into_iter();
    groups.map(|group| group.id).collect()
}

/// Buys an instance as Karpenter does, and gives its node and claim what Karpenter gives them.
async fn node_of_karpenter(whole: &Whole, claim: &str, pool_uid: &str) {
    let metadata = recorded("NodeClaim", &[("CLAIM", claim)])["metadata"].clone();
    let registration = Registration {
        labels: BTreeMap::from([("team".to_owned(), "web".to_owned())]),
        ..Registration::default()
    };
    let request = LaunchRequest {
        security_groups: discovered_groups(whole).await,
        tags: tags(claim, ""),
        registration,
        ..order(
            claim,
            NodeTemplate::new(AmiFamily::AmazonLinux2023, whole.ec2.config().version),
        )
    };
    let launched = whole.ec2.launch(request).await.expect("there is capacity");
    let instance: Arc<Instance> = launched.instance;
    let node = whole
        .until("its node is ready", || {
            let mut nodes = whole.nodes().into_iter();
            nodes.find(|node| {
                let id = node
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.provider_id.as_deref());
                id == Some(instance.provider_id.as_str()) && is_ready(node)
            })
        })
        .await;
    let name = node.name_any();
    assert!(whole.ec2.tag(&instance.id, tags(claim, &name)));
    let now = whole
        .context
        .clock
        .now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let own = recorded(
        "NodeClaim",
        &[
            ("CLAIM", claim),
            ("ZONE_ID", &instance.zone_id),
            ("ZONE", &instance.zone),
            ("POOL_UID", pool_uid),
            ("LAUNCHED", &now),
            ("IMAGE", &instance.image.id),
            ("NODE", &name),
            ("PROVIDER_ID", &instance.provider_id),
        ],
    );
    whole.create(own.clone()).await;
    let claims: Api<NodeClaim> = whole.karpenter.claim_api();
    let status = Patch::Merge(json!({ "status": own["status"] }));
    let patched = claims
        .patch_status(claim, &PatchParams::default(), &status)
        .await;
    let uid = patched.expect("it is accepted").uid().expect("set");
    let mut labels = own["metadata"]["labels"].clone();
    for key in ["karpenter.sh/registered", "karpenter.sh/initialized"] {
        labels[key] = json!("true");
    }
    let nodes: Api<Node> = Api::all(whole.context.client.clone());
    let registered = json!({ "metadata": {
        "labels": labels,
        "annotations": metadata["annotations"],
        "finalizers": ["karpenter.sh/termination"],
        "ownerReferences": [{
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": claim, "uid": uid, "blockOwnerDeletion": true
        }]
    }});
    whole.patch(nodes, &name, registered).await;
}

/// A cluster where no controller of nodes runs any more, with Karpenter's two nodes and a pod on each.
async fn left_by_karpenter() -> Whole {
    let whole = Whole::start().await;
    whole.karpenter.base.stop().await;
    whole.create(recorded("EC2NodeClass", &[])).await;
    whole.create(recorded("NodePool", &[])).await;
    let pools: Api<NodePool> = Api::all(whole.context.client.clone());
    let pool = pools.get("default").await.expect("it is there");
    for claim in CLAIMS {
        node_of_karpenter(&whole, claim, &pool.uid().expect("set")).await;
    }
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "1500m" } } }]
    });
    whole.deployment("web", 2, spec).await;
    whole.until_running("web", 2).await;
    whole
}

/// Uid and node of every pod that is not being deleted.
fn places(whole: &Whole) -> BTreeSet<(String, String)> {
    let pods = whole.pods("web").into_iter();
    pods.filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .map(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            (pod.uid().expect("set"), node.unwrap_or_default())
        })
        .collect()
}

fn alive(whole: &Whole) -> BTreeSet<String> {
    let instances = whole.ec2.instances().into_iter();
    instances
        .filter(|own| own.state.is_alive())
        .map(|own| own.id.to_string())
        .collect()
}

fn claim_names(whole: &Whole) -> BTreeSet<String> {
    whole.claims().iter().map(|own| own.name_any()).collect()
}

fn keys(map: &BTreeMap<String, String>) -> BTreeSet<&str> {
    map.keys().map(String::as_str).collect()
}

async fn scale(whole: &Whole, replicas: u32) {
    let deployments: Api<Deployment> = Api::namespaced(whole.context.client.clone(), "default");
    let patch = json!({ "spec": { "replicas": replicas } });
    whole.patch(deployments, "web", patch).await;
}

/// Takes the pool's startup taint off the node that has it, as what the taint waits for does.
async fn end_start(whole: &Whole) {
    let taints = |node: &Node| {
        let spec = node.spec.clone().unwrap_or_default();
        spec.taints.unwrap_or_default()
    };
    let node = whole
        .until("a registered node is starting", || {
            let registered = |node: &Node| node.labels().contains_key("karpenter.sh/registered");
            let mut nodes = whole.bought().into_iter();
            nodes.find(|node| {
                let mut taints = taints(node).into_iter();
                registered(node) && is_ready(node) && taints.any(|own| own.key == STARTING)
            })
        })
        .await;
    let mut left = taints(&node);
    left.retain(|own| own.key != STARTING);
    let nodes: Api<Node> = Api::all(whole.context.client.clone());
    let patch = json!({ "spec": { "taints": left } });
    whole.patch(nodes, &node.name_any(), patch).await;
}

async fn class(whole: &Whole) -> EC2NodeClass {
    let classes: Api<EC2NodeClass> = Api::all(whole.context.client.clone());
    classes.get("default").await.expect("it is there")
}

#[tokio::test(start_paused = true)]
async fn nothing_moves_when_a_cluster_is_taken_over() {
    let mut whole = left_by_karpenter().await;
    let (pods, instances) = (places(&whole), alive(&whole));
    whole.restart_karpenter().await;
    whole.pass(4 * 3600).await;
    assert_eq!(places(&whole), pods, "no pod was moved");
    assert_eq!(alive(&whole), instances, "nothing was bought or ended");
    assert_eq!(claim_names(&whole), CLAIMS.map(str::to_owned).into());
    for node in whole.bought() {
        let spec = node.spec.clone().unwrap_or_default();
        assert_eq!(spec.taints.unwrap_or_default(), [], "{}", node.name_any());
        assert_eq!(spec.unschedulable, None);
    }
    for claim in whole.claims() {
        let marks = ["Drifted", "Disrupting", "Evicted"];
        for mark in marks {
            assert!(claim.condition(mark).is_none(), "{mark}");
        }
        assert_eq!(claim.metadata.deletion_timestamp, None);
        assert_eq!(claim.finalizers(), ["karpenter.sh/termination"]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_karpenter_has_written_stays_and_its_hashes_are_renewed() {
    let mut whole = left_by_karpenter().await;
    whole.restart_karpenter().await;
    whole.pass(600).await;
    let pools: Api<NodePool> = Api::all(whole.context.client.clone());
    let pool = pools.get("default").await.expect("it is there");
    let wanted = recorded("NodePool", &[])["metadata"]["annotations"].clone();
    assert_eq!(json!(pool.annotations()), wanted, "our hash is Karpenter's");
    let class = class(&whole).await;
    let (hash, version) = (
        "karpenter.k8s.aws/ec2nodeclass-hash",
        "karpenter.k8s.aws/ec2nodeclass-hash-version",
    );
    // What Karpenter takes for no version of its own, which makes it renew the hashes in turn.
    assert_eq!(class.annotations()[version], "mullion-v1");
    assert_eq!(class.finalizers(), ["karpenter.k8s.aws/termination"]);
    for claim in whole.claims() {
        let recorded = recorded("NodeClaim", &[])["metadata"]["annotations"].clone();
        let mut wanted: BTreeMap<String, String> = serde_json::from_value(recorded).expect("texts");
        for key in [hash, version] {
            wanted.insert(key.to_owned(), class.annotations()[key].clone());
        }
        assert_eq!(claim.annotations(), &wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_of_karpenters_drifts_with_its_class() {
    let mut whole = left_by_karpenter().await;
    whole.restart_karpenter().await;
    whole.pass(600).await;
    let classes: Api<EC2NodeClass> = Api::all(whole.context.client.clone());
    let other = json!({ "spec": { "detailedMonitoring": true } });
    whole.patch(classes, "default", other).await;
    let reason = whole
        .until("a node has drifted", || {
            let claims = whole.claims();
            let mut drifted = claims.iter().filter_map(|own| own.condition("Drifted"));
            drifted.next().map(|own| own.reason.clone())
        })
        .await;
    assert_eq!(reason, "NodeClassDrift");
}

#[tokio::test(start_paused = true)]
async fn the_pool_of_a_cluster_that_was_taken_over_grows_and_shrinks() {
    let mut whole = left_by_karpenter().await;
    let of_karpenter = whole.claims_now().await;
    whole.restart_karpenter().await;
    scale(&whole, 3).await;
    end_start(&whole).await;
    whole.until_running("web", 3).await;
    let ours = whole.claims_now().await;
    let ours: Vec<_> = ours
        .into_iter()
        .filter(|own| !CLAIMS.contains(&own.name_any().as_str()))
        .collect();
    let [claim] = ours.as_slice() else {
        panic!("{ours:?}")
    };
    leaves_what_karpenter_reads(&whole, claim, &of_karpenter[0]);
    scale(&whole, 1).await;
    whole
        .until("one node is left", || {
            (whole.bought().len() == 1 && whole.claims().len() == 1).then_some(())
        })
        .await;
    whole.pass(300).await;
    // The node that the cluster starts with, and the one of the pod.
    assert_eq!(alive(&whole).len(), 2);
    assert_eq!(places(&whole).len(), 1);
}

/// Checks that a node that was bought here has all that Karpenter reads of the nodes it buys.
fn leaves_what_karpenter_reads(whole: &Whole, claim: &NodeClaim, of_karpenter: &NodeClaim) {
    // Karpenter fills these in itself: it looks whether the tags are there that they speak of.
    let of_tagging = [
        "compatibility.karpenter.k8s.aws/cluster-name-tagged",
        "karpenter.k8s.aws/tagged",
    ];
    let mut wanted = keys(of_karpenter.annotations());
    wanted.retain(|key| !of_tagging.contains(key));
    assert_eq!(keys(claim.annotations()), wanted);
    let missing: Vec<_> = keys(of_karpenter.labels())
        .difference(&keys(claim.labels()))
        .map(|key| (*key).to_owned())
        .collect();
    assert_eq!(missing, [] as [String; 0], "labels of the claim");
    assert_eq!(claim.finalizers(), of_karpenter.finalizers());
    assert_eq!(
        json!(claim.owner_references()),
        json!(of_karpenter.owner_references())
    );
    let status = claim.status.as_ref().expect("it is launched");
    for condition in ["Launched", "Registered", "Initialized", "Ready"] {
        assert!(claim.is(condition), "{condition}");
    }
    assert!(!status.image_id.is_empty());
    let node = whole
        .bought()
        .into_iter()
        .find(|own| own.name_any() == status.node_name);
    let node = node.expect("it has joined");
    assert_eq!(node.finalizers(), ["karpenter.sh/termination"]);
    assert_eq!(node.owner_references()[0].uid, claim.uid().expect("set"));
    for key in ["karpenter.sh/registered", "karpenter.sh/initialized"] {
        assert_eq!(node.labels()[key], "true");
    }
    let instances = whole.ec2.instances().into_iter();
    let mut instances = instances.filter(|own| own.provider_id == status.provider_id);
    let instance = instances.next().expect("it was bought");
    let name = claim.name_any();
    assert_eq!(instance.tags, tags(&name, &name));
}
