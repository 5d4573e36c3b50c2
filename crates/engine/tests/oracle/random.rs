//! Random clusters: small, so that rules meet, with few names, so that they meet often.

use serde_json::{Map, Value, json};

use crate::storage;

/// SplitMix64: the same numbers for the same seed on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in 1..items.len() {
            items.swap(at, self.below(at + 1));
        }
    }

    pub(crate) fn text(&mut self, from: &[&str]) -> String {
        (*self.pick(from)).to_owned()
    }
}

/// A cluster and the pod that asks.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) items: Vec<Value>,
    pub(crate) pod: Value,
    /// Which profile decides; 0 for the default one.
    pub(crate) profile: u64,
}

const APPS: [&str; 5] = ["web", "db", "cache", "job", "iis"];
const NAMESPACES: [&str; 3] = ["default", "prod", "unlabelled"];
const KEYS: [&str; 5] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "rack",
    "disk",
];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const CPU: [&str; 6] = ["0", "50m", "100m", "250m", "1", "1500m"];
const MEMORY: [&str; 6] = ["0", "32Mi", "128Mi", "333M", "1Gi", "1500Mi"];
const PAGES: &str = "hugepages-2Mi";
const ADDRESS: &str = "vpc.amazonaws.com/PrivateIPv4Address";
const IMAGES: [(&str, i64); 5] = [
    ("busybox", 4_000_000),
    ("nginx:1.27", 70_000_000),
    ("registry.example.com:5000/shop", 900_000_000),
    (
        "mcr.microsoft.com/windows/servercore:ltsc2022",
        5_200_000_000,
    ),
    ("mcr.microsoft.com/windows/nanoserver:1809", 250_000_000),
];

/// How likely each feature is in this case: most cases are about few things.
struct Mood {
    affinity: usize,
    pods: usize,
    spread: usize,
    taints: usize,
    resources: usize,
    windows: usize,
    volumes: usize,
}

pub(crate) fn case(random: &mut Random) -> Case {
    let mut likely = || *random.pick(&[0, 0, 5, 40, 80]);
    let mood = Mood {
        affinity: likely(),
        pods: likely(),
        spread: likely(),
        taints: likely(),
        resources: likely(),
        windows: likely(),
        volumes: likely(),
    };
    let mut items = vec![
        json!({"kind": "Namespace", "metadata": {"name": "default", "labels": {"kubernetes.io/metadata.name": "default"}}}),
        json!({"kind": "Namespace", "metadata": {"name": "prod", "labels": {"kubernetes.io/metadata.name": "prod", "team": "a"}}}),
    ];
    let nodes = 1 + random.below(8);
    for index in 0..nodes {
        items.push(node(random, &mood, index));
    }
    for index in 0..random.below(2) + random.below(2) {
        items.push(json!({
            "kind": "Service", "metadata": {"name": format!("s{index}"), "namespace": random.text(&NAMESPACES)},
            "spec": {"selector": labels(random)},
        }));
    }
    if random.percent(30) {
        items.push(json!({
            "kind": *random.pick(&["ReplicaSet", "StatefulSet"]), "metadata": {"name": "owner", "namespace": random.text(&NAMESPACES)},
            "spec": {"selector": label_selector(random)},
        }));
    }
    for index in 0..random.below(14) {
        let mut placed = pod(random, &mood, &format!("e{index:02}"));
        placed["spec"]["nodeName"] = json!(format!("n{:02}", random.below(nodes + 1)));
        if random.percent(10) {
            placed["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        if random.percent(5) {
            placed["status"] = json!({"phase": "Succeeded"});
        } else if random.percent(mood.resources / 2) {
            placed["status"] = resized(random, &placed["spec"]);
        }
        items.push(placed);
    }
    let mut pod = pod(random, &mood, "incoming");
    if mood.volumes > 0 {
        items.extend(storage::objects(random, nodes));
    }
    if random.percent(5) {
        features(random, &mut items, &mut pod);
    }
    Case {
        items,
        pod,
        profile: 0,
    }
}

/// The status of a pod that is resized, or was: what its containers and the pod as a whole have and were promised.
fn resized(random: &mut Random, spec: &Value) -> Value {
    let mut has = |promised: bool| {
        let mut amounts = Map::new();
        for (name, values) in [("cpu", &CPU), ("memory", &MEMORY)] {
            if random.percent(80) {
                amounts.insert(name.into(), json!(random.text(values)));
            }
        }
        if random.percent(10) {
            amounts.insert(PAGES.into(), json!("4Mi"));
        }
        match random.percent(85) {
            true if promised => json!(amounts),
            true => json!({"requests": amounts}),
            false => Value::Null,
        }
    };
    let mut of = |container: &Value| {
        let (resources, promised) = (has(false), has(true));
        let mut status = json!({"name": container["name"]});
        for (field, value) in [("resources", resources), ("allocatedResources", promised)] {
            if !value.is_null() {
                status[field] = value;
            }
        }
        status
    };
    let mut all = |list: &str| -> Vec<Value> {
        let containers = spec[list].as_array().into_iter().flatten();
        containers.map(&mut of).collect()
    };
    let mut status = json!({
        "phase": "Running", "containerStatuses": all("containers"), "initContainerStatuses": all("initContainers"),
    });
    let whole = of(&Value::Null);
    for field in ["resources", "allocatedResources"] {
        if let Some(value) = whole.get(field) {
            status[field] = value.clone();
        }
    }
    if random.percent(40) {
        let reason = random.text(&["Infeasible", "Deferred"]);
        status["conditions"] =
            json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
    }
    status
}

/// Makes the pod need what only some kubelets declare, or nothing that any must.
fn features(random: &mut Random, items: &mut [Value], pod: &mut Value) {
    let action = *random.pick(&["RestartAllContainers", "RestartAllContainers", "Restart"]);
    pod["spec"]["containers"][0]["restartPolicyRules"] = json!([{"action": action}]);
    for node in items.iter_mut().filter(|item| item["kind"] == "Node") {
        let declared = *random.pick(&["RestartAllContainersOnContainerExits", "Other"]);
        node["status"]["declaredFeatures"] = json!([declared]);
    }
}

fn node(random: &mut Random, mood: &Mood, index: usize) -> Value {
    let name = format!("n{index:02}");
    let windows = random.percent(mood.windows);
    let mut labels = Map::new();
    let os = if windows { "windows" } else { "linux" };
    labels.insert("kubernetes.io/os".into(), json!(os));
    if random.percent(95) {
        // Two nodes may claim one hostname.
        let host = if random.percent(4) { "n00" } else { &name };
        labels.insert("kubernetes.io/hostname".into(), json!(host));
    }
    for (key, values, percent) in [
        ("topology.kubernetes.io/zone", &["a", "b", "c"][..], 90),
        ("topology.kubernetes.io/region", &["r1"][..], 95),
        ("topology.ebs.csi.aws.com/zone", &["a", "b"][..], 30),
        ("topology.gke.io/zone", &["a", "b"][..], 30),
        ("topology.csi.vmware.com/zone", &["a", "b"][..], 30),
        ("topology.csi.vmware.com/region", &["r1"][..], 50),
        ("rack", &["r1", "r2"][..], 50),
        ("disk", &["ssd", "hdd"][..], 50),
        ("gen", &["3", "7", "12", "new"][..], 40),
    ] {
        if random.percent(percent) {
            labels.insert(key.into(), json!(random.text(values)));
        }
    }
    if windows {
        let build = random.text(&["10.0.17763", "10.0.20348"]);
        labels.insert("node.kubernetes.io/windows-build".into(), json!(build));
    }
    let mut allocatable = json!({
        "cpu": random.text(&["0", "1", "2", "3920m", "8"]),
        "memory": random.text(&["2Gi", "6012Mi", "8Gi"]),
        "pods": random.text(&["2", "4", "29", "110"]),
    });
    if windows || random.percent(5) {
        allocatable[ADDRESS] = json!(random.text(&["1", "2", "9"]));
    }
    if random.percent(mood.resources / 4) {
        allocatable["example.com/gpu"] = json!(random.text(&["1", "4"]));
    }
    if random.percent(mood.resources / 3) {
        allocatable[PAGES] = json!(random.text(&["4Mi", "16Mi"]));
    }
    let mut taints = Vec::new();
    for _ in 0..random.below(3) {
        if random.percent(mood.taints) {
            taints.push(taint(random));
        }
    }
    let mut images = Vec::new();
    for (image, size) in IMAGES {
        if random.percent(20) {
            images.push(json!({"names": [image, format!("{image}@sha256:00")], "sizeBytes": size}));
        }
    }
    json!({
        "kind": "Node", "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": random.percent(mood.taints / 8)},
        "status": {"allocatable": allocatable, "images": images},
    })
}

fn taint(random: &mut Random) -> Value {
    let (key, value) = *random.pick(&[
        ("os", "windows"),
        ("dedicated", "a"),
        ("dedicated", "b"),
        ("node.kubernetes.io/unschedulable", ""),
    ]);
    json!({"key": key, "value": value, "effect": random.text(&EFFECTS)})
}

fn toleration(random: &mut Random) -> Value {
    let mut own = match random.below(4) {
        0 => json!({"operator": "Exists"}),
        1 => {
            json!({"key": random.text(&["os", "dedicated", "node.kubernetes.io/unschedulable"]), "operator": "Exists"})
        }
        2 => json!({"key": "os", "value": "windows"}),
        _ => json!({"key": "dedicated", "operator": "Equal", "value": random.text(&["a", "b"])}),
    };
    if random.percent(60) {
        own["effect"] = json!(random.text(&EFFECTS));
    }
    own
}

fn labels(random: &mut Random) -> Value {
    let mut labels = Map::new();
    labels.insert("app".into(), json!(random.text(&APPS)));
    if random.percent(40) {
        labels.insert("tier".into(), json!(random.text(&["x", "y"])));
    }
    Value::Object(labels)
}

fn label_selector(random: &mut Random) -> Value {
    match random.below(12) {
        0 => json!({}),
        1 => {
            json!({"matchExpressions": [{"key": "tier", "operator": random.text(&["Exists", "DoesNotExist"])}]})
        }
        2 => {
            json!({"matchExpressions": [{"key": "app", "operator": random.text(&["In", "NotIn"]), "values": [random.text(&APPS), random.text(&APPS)]}]})
        }
        3 => {
            json!({"matchLabels": {"app": random.text(&APPS)}, "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]})
        }
        _ => json!({"matchLabels": {"app": random.text(&APPS)}}),
    }
}

fn container(random: &mut Random, mood: &Mood, name: &str) -> Value {
    let mut requests = Map::new();
    if random.percent(70) {
        requests.insert("cpu".into(), json!(random.text(&CPU)));
    }
    if random.percent(70) {
        requests.insert("memory".into(), json!(random.text(&MEMORY)));
    }
    if random.percent(mood.windows / 2) {
        requests.insert(ADDRESS.into(), json!("1"));
    }
    if random.percent(mood.resources / 4) {
        requests.insert(
            "example.com/gpu".into(),
            json!(random.text(&["0", "1", "2"])),
        );
    }
    if random.percent(mood.resources / 8) {
        requests.insert(PAGES.into(), json!(random.text(&["2Mi", "4Mi"])));
    }
    let mut own =
        json!({"name": name, "image": random.pick(&IMAGES).0, "resources": {"requests": requests}});
    if random.percent(mood.resources / 5) {
        let mut port = json!({"containerPort": 80, "hostPort": *random.pick(&[0, 80, 443])});
        if random.percent(40) {
            port["hostIP"] = json!(random.text(&["0.0.0.0", "127.0.0.1", "10.0.0.1"]));
        }
        if random.percent(40) {
            port["protocol"] = json!(random.text(&["TCP", "UDP"]));
        }
        own["ports"] = json!([port]);
    }
    own
}

fn pod(random: &mut Random, mood: &Mood, name: &str) -> Value {
    let namespace = if random.percent(70) {
        "default".to_owned()
    } else {
        random.text(&NAMESPACES)
    };
    let mut pod = json!({
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels(random)},
        "spec": {"containers": [container(random, mood, "c")]},
    });
    if random.percent(20) {
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": random.text(&["apps/v1", "apps/v1", "apps/v1", "example.com/v1"]),
            "kind": random.text(&["ReplicaSet", "StatefulSet", "DaemonSet"]), "name": "owner", "uid": "o", "controller": true,
        }]);
    }
    let spec = &mut pod["spec"];
    if random.percent(mood.resources / 2) {
        let more = container(random, mood, "d");
        spec["containers"]
            .as_array_mut()
            .expect("a list")
            .push(more);
        let inits: Vec<_> = (0..random.below(3))
            .map(|index| {
                let mut init = container(random, mood, &format!("i{index}"));
                if random.percent(40) {
                    init["restartPolicy"] = json!("Always");
                }
                init
            })
            .collect();
        spec["initContainers"] = json!(inits);
        if random.percent(20) {
            spec["overhead"] = json!({"cpu": "250m", "memory": "120Mi"});
        }
        if random.percent(30) {
            let mut whole = Map::new();
            for (name, values) in [
                ("cpu", &CPU[..]),
                ("memory", &MEMORY),
                (PAGES, &["2Mi", "8Mi"]),
            ] {
                if random.percent(45) {
                    whole.insert(name.into(), json!(random.text(values)));
                }
            }
            spec["resources"] = json!({"requests": whole});
        }
    }
    if random.percent(mood.windows / 2) {
        spec["os"] = json!({"name": random.text(&["linux", "windows"])});
    }
    if random.percent(mood.taints) {
        let some: Vec<_> = (0..1 + random.below(2))
            .map(|_| toleration(random))
            .collect();
        spec["tolerations"] = json!(some);
    }
    if random.percent(mood.affinity / 2) {
        spec["nodeSelector"] = json!({random.text(&["disk", "rack"]): random.text(&["ssd", "r1"])});
    }
    if random.percent(mood.volumes) {
        let some: Vec<_> = (0..1 + random.below(2))
            .map(|_| storage::volume(random))
            .collect();
        spec["volumes"] = json!(some);
    }
    if random.percent(mood.resources / 4) {
        let image = json!({"name": "files", "image": {"reference": random.pick(&IMAGES).0}});
        match spec["volumes"].as_array_mut() {
            Some(volumes) => volumes.push(image),
            None => spec["volumes"] = json!([image]),
        }
    }
    let mut affinity = Map::new();
    if random.percent(mood.affinity) {
        affinity.insert("nodeAffinity".into(), node_affinity(random));
    }
    for which in ["podAffinity", "podAntiAffinity"] {
        if random.percent(mood.pods) {
            affinity.insert(which.into(), pod_affinity(random));
        }
    }
    spec["affinity"] = Value::Object(affinity);
    if random.percent(mood.spread) {
        let some: Vec<_> = (0..1 + random.below(3)).map(|_| spread(random)).collect();
        spec["topologySpreadConstraints"] = json!(some);
    }
    pod
}

fn node_term(random: &mut Random) -> Value {
    let expressions: Vec<_> = (0..random.below(3))
        .map(|_| match random.below(6) {
            0 => json!({"key": "gen", "operator": random.text(&["Gt", "Lt"]), "values": [random.text(&["2", "7"])]}),
            1 => json!({"key": random.text(&KEYS), "operator": random.text(&["Exists", "DoesNotExist"])}),
            2 => json!({"key": "kubernetes.io/os", "operator": "In", "values": [random.text(&["linux", "windows"])]}),
            3 => json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n01"]}),
            _ => json!({"key": "topology.kubernetes.io/zone", "operator": random.text(&["In", "NotIn"]), "values": [random.text(&["a", "b"]), "c"]}),
        })
        .collect();
    let mut term = json!({"matchExpressions": expressions});
    if random.percent(10) {
        let name = format!("n{:02}", random.below(3));
        term["matchFields"] = json!([{"key": "metadata.name", "operator": random.text(&["In", "NotIn"]), "values": [name]}]);
    }
    term
}

fn node_affinity(random: &mut Random) -> Value {
    let mut own = Map::new();
    if random.percent(60) {
        let terms: Vec<_> = (0..1 + random.below(2))
            .map(|_| node_term(random))
            .collect();
        own.insert(
            "requiredDuringSchedulingIgnoredDuringExecution".into(),
            json!({"nodeSelectorTerms": terms}),
        );
    }
    if random.percent(60) {
        let wishes: Vec<_> = (0..1 + random.below(3))
            .map(|_| json!({"weight": 1 + random.below(100), "preference": node_term(random)}))
            .collect();
        own.insert(
            "preferredDuringSchedulingIgnoredDuringExecution".into(),
            json!(wishes),
        );
    }
    Value::Object(own)
}

fn pod_term(random: &mut Random) -> Value {
    let mut term = json!({"topologyKey": random.text(&KEYS)});
    if random.percent(95) {
        term["labelSelector"] = label_selector(random);
    }
    if random.percent(15) {
        term["namespaces"] = json!([random.text(&NAMESPACES)]);
    }
    if random.percent(15) {
        let team = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "team", "operator": operator, "values": values}]});
        term["namespaceSelector"] = match random.below(6) {
            0 => json!({}),
            1 => json!({"matchLabels": {"team": "a"}}),
            2 => team("NotIn", &["a"]),
            3 => team("In", &["a", "b"]),
            4 => team("Exists", &[]),
            _ => team("DoesNotExist", &[]),
        };
    }
    term
}

fn pod_affinity(random: &mut Random) -> Value {
    let mut own = Map::new();
    if random.percent(60) {
        let terms: Vec<_> = (0..1 + random.below(2)).map(|_| pod_term(random)).collect();
        own.insert(
            "requiredDuringSchedulingIgnoredDuringExecution".into(),
            json!(terms),
        );
    }
    if random.percent(50) {
        let wishes: Vec<_> = (0..1 + random.below(2))
            .map(|_| json!({"weight": 1 + random.below(100), "podAffinityTerm": pod_term(random)}))
            .collect();
        own.insert(
            "preferredDuringSchedulingIgnoredDuringExecution".into(),
            json!(wishes),
        );
    }
    Value::Object(own)
}

fn spread(random: &mut Random) -> Value {
    let hard = random.percent(50);
    let mut own = json!({
        "maxSkew": 1 + random.below(3), "topologyKey": random.text(&KEYS),
        "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
    });
    if random.percent(95) {
        own["labelSelector"] = label_selector(random);
    }
    if hard && random.percent(20) {
        own["minDomains"] = json!(1 + random.below(4));
    }
    for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
        if random.percent(30) {
            own[policy] = json!(random.text(&["Honor", "Ignore"]));
        }
    }
    if random.percent(20) {
        own["matchLabelKeys"] = json!([random.text(&["tier", "absent"])]);
    }
    own
}
