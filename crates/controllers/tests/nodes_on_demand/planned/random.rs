//! Random clusters: pools, DaemonSets and deployments whose pods are spread, kept apart or together, and have ports and wishes.

use serde_json::{Value, json};

use crate::whole::Whole;

/// A number that looks random and is the same every time.
pub(super) struct Dice(u64);

impl Dice {
    /// A die whose throws depend on `seed` alone.
    pub(super) fn new(seed: u64) -> Self {
        let mut dice = Self(seed);
        dice.below(1);
        dice
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    pub(super) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

const TYPES: [&str; 6] = [
    "m5.large",
    "m5.xlarge",
    "c5.large",
    "c5.2xlarge",
    "r5.large",
    "t3.medium",
];
/// Types of a second pool, of which each has room for any three pods.
const MORE_TYPES: [&str; 3] = ["m5.2xlarge", "c5.4xlarge", "r5.xlarge"];

/// An application: a deployment and what its pods have.
#[derive(Debug)]
pub(super) struct App {
    pub(super) name: String,
    pub(super) replicas: u32,
    pub(super) spec: Value,
    /// The operating system of its pods.
    os: &'static str,
}

/// Creates one or two pools and a class for each operating system.
pub(super) async fn pools(whole: &Whole, dice: &mut Dice) {
    for (os, alias) in [
        ("linux", "al2023@latest"),
        ("windows", "windows2022@latest"),
    ] {
        class(whole, os, alias).await;
        pool(whole, os, os, &TYPES, dice.pick(&[None, Some(10)])).await;
        if dice.one_in(2) {
            let weight = dice.pick(&[None, Some(5), Some(20)]);
            pool(whole, &format!("{os}-more"), os, &MORE_TYPES, weight).await;
        }
    }
}

/// Creates a class and a pool for Linux alone.
pub(super) async fn one_pool(whole: &Whole) {
    class(whole, "linux", "al2023@latest").await;
    pool(whole, "linux", "linux", &TYPES, None).await;
}

async fn class(whole: &Whole, os: &str, alias: &str) {
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
}

async fn pool(whole: &Whole, name: &str, os: &str, types: &[&str], weight: Option<u32>) {
    let taints = match os {
        "windows" => json!([{ "key": "os", "value": "windows", "effect": "NoSchedule" }]),
        _ => json!([]),
    };
    let mut spec = json!({
        "disruption": { "consolidateAfter": "Never" },
        "template": { "metadata": { "labels": { "team": os } }, "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": os },
            "expireAfter": "Never", "taints": taints,
            "requirements": [
                { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": types },
                { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] }
            ]
        } }
    });
    if let Some(weight) = weight {
        spec["weight"] = weight.into();
    }
    whole
        .create(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name }, "spec": spec
        }))
        .await;
}

/// Creates DaemonSets, or none.
pub(super) async fn daemons(whole: &Whole, dice: &mut Dice) {
    for os in ["linux", "windows"] {
        if !dice.one_in(2) {
            continue;
        }
        let name = format!("agent-{os}");
        whole
            .create(json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": name },
                "spec": {
                    "selector": { "matchLabels": { "app": name } },
                    "template": { "metadata": { "labels": { "app": name } }, "spec": {
                        "nodeSelector": { "kubernetes.io/os": os },
                        "tolerations": [{ "operator": "Exists" }],
                        "containers": [{ "name": "agent", "image": image(os),
                            "ports": [{ "containerPort": 9100, "hostPort": 9100 }],
                            "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } } }]
                    } }
                }
            }))
            .await;
    }
}

fn image(os: &str) -> &'static str {
    match os {
        "windows" => "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022",
        _ => "nginx",
    }
}

/// A deployment of a random size of pods with random rules. Every rule can be kept for all its pods on nodes that the pools sell.
pub(super) fn app(dice: &mut Dice, earlier: &[App]) -> App {
    let os = dice.pick(&["linux", "linux", "linux", "windows"]);
    let name = format!("web-{}", earlier.len());
    let mut replicas = 1 + dice.below(9) as u32;
    let mut spec = plain(dice, os);
    let selector = |app: &str| json!({ "matchLabels": { "app": app } });
    let (zone, host) = ("topology.kubernetes.io/zone", "kubernetes.io/hostname");
    let term =
        |key: &str, app: &str| json!([{ "topologyKey": key, "labelSelector": selector(app) }]);
    let spread = |key: &str, skew: u64, unsatisfiable: &str| json!({ "maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": unsatisfiable, "labelSelector": selector(&name) });
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let others: Vec<&App> = earlier.iter().filter(|other| other.os == os).collect();
    let skew = 1 + dice.below(2);
    match dice.below(14) {
        0 => spec["topologySpreadConstraints"] = json!([spread(zone, skew, "DoNotSchedule")]),
        1 => spec["topologySpreadConstraints"] = json!([spread(host, skew, "DoNotSchedule")]),
        2 => {
            let both = [
                spread(zone, skew, "DoNotSchedule"),
                spread(host, 2, "DoNotSchedule"),
            ];
            spec["topologySpreadConstraints"] = json!(both);
        }
        3 => {
            let both = [
                spread(zone, skew, "DoNotSchedule"),
                spread(host, 1, "ScheduleAnyway"),
            ];
            spec["topologySpreadConstraints"] = json!(both);
        }
        4 => spec["affinity"] = json!({ "podAntiAffinity": { required: term(host, &name) } }),
        5 => {
            // There are three zones.
            replicas = replicas.min(3);
            spec["affinity"] = json!({ "podAntiAffinity": { required: term(zone, &name) } });
        }
        6 => spec["affinity"] = json!({ "podAffinity": { required: term(zone, &name) } }),
        7 => {
            // As many as any node of the larger types has room for.
            replicas = replicas.min(3);
            spec["affinity"] = json!({ "podAffinity": { required: term(host, &name) } });
        }
        8 if !others.is_empty() => {
            let other = &dice.pick(&others).name;
            spec["affinity"] = json!({ "podAffinity": { required: term(zone, other) } });
        }
        9 if !others.is_empty() => {
            let other = &dice.pick(&others).name;
            spec["affinity"] = json!({ "podAntiAffinity": { required: term(host, other) } });
        }
        10 => {
            let apart = json!([{ "weight": 50, "podAffinityTerm": term(zone, &name)[0] }]);
            let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
            spec["affinity"] = json!({ "podAntiAffinity": { preferred: apart } });
        }
        11 => {
            let ports = json!([{ "containerPort": 80, "hostPort": 8080 }]);
            spec["containers"][0]["ports"] = ports;
        }
        _ => {}
    }
    App {
        name,
        replicas,
        spec,
        os,
    }
}

/// A deployment of pods that may go anywhere.
pub(super) fn plain_app(dice: &mut Dice) -> App {
    App {
        name: "web-0".to_owned(),
        replicas: 1 + dice.below(24) as u32,
        spec: plain(dice, "linux"),
        os: "linux",
    }
}

fn plain(dice: &mut Dice, os: &str) -> Value {
    let cpu = 100 * (1 + dice.below(12));
    let memory = 256 * (1 + dice.below(6));
    let mut requests = json!({ "cpu": format!("{cpu}m"), "memory": format!("{memory}Mi") });
    let mut limits = json!({});
    let mut tolerations = json!([]);
    if os == "windows" {
        requests["vpc.amazonaws.com/PrivateIPv4Address"] = "1".into();
        limits["vpc.amazonaws.com/PrivateIPv4Address"] = "1".into();
        tolerations = json!([{ "key": "os", "value": "windows", "effect": "NoSchedule" }]);
    }
    json!({
        "nodeSelector": { "team": os, "kubernetes.io/os": os },
        "tolerations": tolerations,
        "containers": [{ "name": "web", "image": image(os), "resources": { "requests": requests, "limits": limits } }]
    })
}
