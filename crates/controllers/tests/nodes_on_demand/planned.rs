//! Every pod ends where the last plan had it, and no node is bought that stays empty: random clusters with spread, affinity, daemons, both operating
//! systems and pods that come while nodes boot.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::whole::Whole;

/// Clusters that are tried; the variable PLANNED_RUNS asks for more.
const RUNS: u64 = 12;

const TYPES: [&str; 6] = [
    "m5.large",
    "m5.xlarge",
    "c5.large",
    "c5.2xlarge",
    "r5.large",
    "t3.medium",
];

/// A number that looks random and is the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }
}

async fn pool(whole: &Whole, os: &str, alias: &str) {
    let discovery = json!([{ "tags": { "karpenter.sh/discovery": "windows-karpenter-demo" } }]);
    whole
        .create(json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": os },
            "spec": {
                "role": "KarpenterNodeRole-windows-karpenter-demo", "amiSelectorTerms": [{ "alias": alias }],
                "subnetSelectorTerms": discovery, "securityGroupSelectorTerms": discovery,
            }
        }))
        .await;
    let taints = match os {
        "windows" => json!([{ "key": "os", "value": "windows", "effect": "NoSchedule" }]),
        _ => json!([]),
    };
    whole
        .create(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": os },
            "spec": {
                "disruption": { "consolidateAfter": "Never" },
                "template": { "metadata": { "labels": { "team": os } }, "spec": {
                    "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": os },
                    "expireAfter": "Never", "taints": taints,
                    "requirements": [
                        { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": TYPES },
                        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] }
                    ]
                } }
            }
        }))
        .await;
}

/// A pod of a random size, whose like are spread, kept apart or together at random.
fn spec(dice: &mut Dice, app: &str) -> Value {
    let os = if dice.one_in(4) { "windows" } else { "linux" };
    let cpu = 100 * (1 + dice.below(12));
    let mut requests =
        json!({ "cpu": format!("{cpu}m"), "memory": format!("{}Mi", 256 * (1 + dice.below(6))) });
    if os == "windows" {
        requests["vpc.amazonaws.com/PrivateIPv4Address"] = "1".into();
    }
    let selector = json!({ "matchLabels": { "app": app } });
    let mut spec = json!({
        "nodeSelector": { "team": os, "kubernetes.io/os": os },
        "containers": [{ "name": "web", "image": "nginx", "resources": {
            "requests": requests,
            "limits": if os == "windows" { json!({ "vpc.amazonaws.com/PrivateIPv4Address": "1" }) } else { json!({}) }
        } }]
    });
    if os == "windows" {
        spec["tolerations"] = json!([{ "key": "os", "value": "windows", "effect": "NoSchedule" }]);
        spec["containers"][0]["image"] =
            "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022".into();
    }
    let term = |key: &str| json!([{ "topologyKey": key, "labelSelector": selector }]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    match dice.below(6) {
        0 => {
            let key = dice.pick(&["topology.kubernetes.io/zone", "kubernetes.io/hostname"]);
            spec["topologySpreadConstraints"] = json!([{
                "maxSkew": 1 + dice.below(2), "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector
            }]);
        }
        1 => {
            spec["affinity"] =
                json!({ "podAntiAffinity": { required: term("kubernetes.io/hostname") } });
        }
        2 => {
            spec["affinity"] =
                json!({ "podAffinity": { required: term("topology.kubernetes.io/zone") } });
        }
        _ => {}
    }
    spec
}

/// The claims that the last plan had for each pod.
async fn planned(whole: &Whole) -> BTreeMap<String, String> {
    let events: Api<Event> = Api::all(whole.context.client.clone());
    let params = ListParams::default().fields("reason=Nominated");
    let events = events.list(&params).await.expect("events are listed");
    let mut last = BTreeMap::new();
    for event in events {
        let pod = event.involved_object.name.unwrap_or_default();
        let said = event.message.unwrap_or_default();
        let place = said.split("nodeclaim/").nth(1).unwrap_or_default();
        let place = place.split(',').next().unwrap_or_default().to_owned();
        let at = event.last_timestamp.or(event.first_timestamp);
        let known = last
            .entry(pod)
            .or_insert_with(|| (at.clone(), place.clone()));
        if at >= known.0 {
            *known = (at, place);
        }
    }
    last.into_iter()
        .map(|(pod, (_, place))| (pod, place))
        .collect()
}

/// What went otherwise than planned in one random cluster.
async fn differences(seed: u64) -> Vec<String> {
    let mut dice = Dice(seed);
    let whole = Whole::start().await;
    pool(&whole, "linux", "al2023@latest").await;
    pool(&whole, "windows", "windows2022@latest").await;
    if dice.one_in(2) {
        whole
            .create(json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "agent" },
                "spec": {
                    "selector": { "matchLabels": { "app": "agent" } },
                    "template": { "metadata": { "labels": { "app": "agent" } }, "spec": {
                        "nodeSelector": { "kubernetes.io/os": "linux" },
                        "containers": [{ "name": "agent", "image": "agent",
                            "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } } }]
                    } }
                }
            }))
            .await;
    }
    let mut all = 0;
    for index in 0..1 + dice.below(5) {
        let app = format!("web-{index}");
        let replicas = 1 + dice.below(9) as u32;
        whole
            .deployment(&app, replicas, spec(&mut dice, &app))
            .await;
        all += replicas as usize;
        if dice.one_in(3) {
            // Others come while nodes are on their way, or just ready.
            whole.pass(1 + dice.below(200)).await;
        }
    }
    let web = |pod: &Pod| {
        pod.labels()
            .get("app")
            .is_some_and(|app| app.starts_with("web-"))
    };
    whole
        .until(&format!("all pods of cluster {seed} run"), || {
            let mut pods = whole.context.informers.pods.list();
            pods.retain(|pod| web(pod) && mullion_controllers::pods::is_ready(pod));
            (pods.len() == all).then_some(())
        })
        .await;
    let planned = planned(&whole).await;
    let mut differences = Vec::new();
    let mut used = Vec::new();
    for pod in whole.context.informers.pods.list() {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let node = node.unwrap_or_default();
        if !web(&pod) {
            continue;
        }
        used.push(node.clone());
        let claims = whole.claims();
        let claim = claims
            .iter()
            .find(|claim| claim.node_name() == Some(&node))
            .map(|claim| claim.name_any());
        let place = planned.get(&pod.name_any());
        if let Some(place) = place.filter(|place| Some(*place) != claim.as_ref()) {
            let events = whole.events(&pod.name_any()).await;
            let said: Vec<String> = events
                .into_iter()
                .filter(|(reason, _)| {
                    ["Nominated", "FailedScheduling", "Scheduled"].contains(&reason.as_str())
                })
                .map(|(reason, message)| format!("{reason}: {message}"))
                .collect();
            differences.push(format!(
                "cluster {seed}: {} was planned on {place} and runs on {claim:?}; it was told {said:#?}",
                pod.name_any()
            ));
        }
    }
    for node in whole.bought() {
        if !used.contains(&node.name_any()) {
            differences.push(format!("cluster {seed}: {} is empty", node.name_any()));
        }
    }
    whole.karpenter.base.stop().await;
    whole.context.stop().await;
    differences
}

/// A pod for which nothing can be bought is looked at again every ten seconds. Pods that come just before that are planned together with
/// those that come just after.
#[tokio::test(start_paused = true)]
async fn a_second_look_at_waiting_pods_does_not_cut_a_batch_in_two() {
    let whole = Whole::start().await;
    pool(&whole, "linux", "al2023@latest").await;
    let containers =
        json!([{ "name": "a", "image": "nginx", "resources": { "requests": { "cpu": "1500m" } } }]);
    let nowhere = json!({ "nodeSelector": { "team": "nobody" }, "containers": containers });
    whole.deployment("nowhere", 1, nowhere).await;
    let alone = json!([{
        "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "Exists" }] },
        "topologyKey": "kubernetes.io/hostname",
    }]);
    let some = json!({
        "containers": containers,
        "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": alone } },
    });
    // Wherever the second look falls between the two, there is one plan for both.
    let waits_ms: Vec<u64> = (9_000..13_000).step_by(200).collect();
    let pairs = waits_ms.len();
    for (pair, wait_ms) in waits_ms.into_iter().enumerate() {
        for (wait_ms, name) in [(wait_ms, "before"), (600, "after")] {
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            let name = format!("{name}-{pair}");
            whole.deployment(&name, 1, some.clone()).await;
        }
    }
    whole
        .until_running(&format!("after-{}", pairs - 1), 1)
        .await;
    let story = whole.story();
    let plans = story
        .iter()
        .filter(|line| *line == "computed new nodeclaim(s) to fit pod(s)");
    assert_eq!(plans.count(), pairs, "{story:#?}");
}

#[tokio::test(start_paused = true)]
async fn pods_end_where_the_last_plan_had_them() {
    let runs = std::env::var("PLANNED_RUNS").ok();
    let runs = runs.map_or(RUNS, |runs| runs.parse().expect("a number"));
    let first = std::env::var("PLANNED_FIRST").ok();
    let first = first.map_or(0, |first| first.parse().expect("a number"));
    let mut all = Vec::new();
    for seed in first..first + runs {
        all.extend(differences(seed).await);
    }
    assert_eq!(all, [] as [String; 0], "of {runs} clusters");
}
