//! `mullion why`: the smallest change over nodes and over everything that pools could buy, and what pools say that they lack.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{said_of, why};

const OS: &str = "kubernetes.io/os";
const ARCH: &str = "kubernetes.io/arch";
const ZONE: &str = "topology.kubernetes.io/zone";
const TYPE: &str = "node.kubernetes.io/instance-type";
const CAPACITY: &str = "karpenter.sh/capacity-type";

/// Conditions of an object that is ready.
fn ready() -> Value {
    json!([{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
}

/// A node of a type that is sold in us-west-2a, with 1.93 cpu.
fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            OS: "linux", ARCH: "amd64", ZONE: "us-west-2a", TYPE: "m5.large", "kubernetes.io/hostname": name,
        }},
        "status": {"allocatable": {"cpu": "1930m", "memory": "7Gi", "pods": "29"}},
    })
}

fn class(name: &str, alias: &str) -> Value {
    let zone = |zone: &str| json!({"id": format!("subnet-{zone}"), "zone": zone});
    let subnets = ["us-west-2a", "us-west-2b", "us-west-2c"].map(zone);
    json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": name},
        "spec": {
            "role": "nodes", "amiSelectorTerms": [{"alias": alias}],
            "subnetSelectorTerms": [{"tags": {"cluster": "shop"}}], "securityGroupSelectorTerms": [{"tags": {"cluster": "shop"}}],
        },
        "status": {"subnets": subnets, "conditions": ready()},
    })
}

fn pool(name: &str, requirements: &[(&str, &str)], spec: Value) -> Value {
    let requirements = requirements.iter();
    let requirements: Vec<_> = requirements
        .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
        .collect();
    let mut pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
        "spec": {"template": {"spec": {
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": name}, "requirements": requirements,
        }}},
        "status": {"conditions": ready()},
    });
    for (key, value) in spec.as_object().expect("fields") {
        match key.as_str() {
            "taints" => pool["spec"]["template"]["spec"]["taints"] = value.clone(),
            _ => pool["spec"][key] = value.clone(),
        }
    }
    pool
}

/// A node, a pool of Linux nodes on demand, and one of tainted Windows nodes.
fn items() -> Vec<Value> {
    let linux = [
        (OS, "linux"),
        (ARCH, "amd64"),
        (CAPACITY, "on-demand"),
        (ZONE, "us-west-2a"),
    ];
    let windows = [(OS, "windows"), (ARCH, "amd64"), (CAPACITY, "on-demand")];
    let taints = json!([{"key": "os", "value": "windows", "effect": "NoSchedule"}]);
    vec![
        node("n1"),
        class("linux", "al2023@latest"),
        class("windows", "windows2022@latest"),
        pool("linux", &linux, json!({})),
        pool("windows", &windows, json!({"taints": taints})),
    ]
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": name},
        "spec": {"containers": [{"name": "c", "image": "web", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
    });
    for (key, value) in spec.as_object().expect("fields") {
        match key.as_str() {
            "requests" => {
                let requests = &mut pod["spec"]["containers"][0]["resources"]["requests"];
                let requests = requests.as_object_mut().expect("an object");
                requests.extend(value.as_object().expect("an object").clone());
            }
            _ => pod["spec"][key] = value.clone(),
        }
    }
    pod
}

/// What is said of each of these pods, alone in the cluster.
fn all_said(items: &[Value], pods: &[Value]) -> String {
    let mut text = String::new();
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let mut all = items.to_vec();
        all.push(pod.clone());
        let (said, _, _) = said_of(name, json!(all));
        let lines = said
            .lines()
            .filter(|line| !line.starts_with("FailedScheduling"));
        for line in lines.filter(|line| !line.is_empty()) {
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_smallest_change_may_be_one_to_what_a_pool_buys() {
    let select = |key: &str, value: &str| json!({"nodeSelector": {key: value}});
    insta::assert_snapshot!(all_said(
        &items(),
        &[
            pod("huge", json!({"requests": {"cpu": "897"}})),
            pod("arm", select(ARCH, "arm64")),
            pod("pages", json!({"requests": {"hugepages-2Mi": "64Mi"}})),
            pod(
                "mistaken",
                json!({"os": {"name": "linux"}, "nodeSelector": {OS: "windows"}})
            ),
            pod("spot", select(CAPACITY, "spot")),
            pod("elsewhere", select(ZONE, "us-west-2b")),
            pod(
                "team",
                json!({"nodeSelector": {"team": "a", "disk": "ssd"}})
            ),
        ],
    ));
}

#[test]
fn a_demand_that_nothing_meets_is_named_with_the_nearest_value_that_there_is() {
    let select =
        |key: &str, value: &str| json!({"requests": {"cpu": "3"}, "nodeSelector": {key: value}});
    insta::assert_snapshot!(all_said(
        &items(),
        &[
            pod("type", select(TYPE, "m5.xlarg")),
            pod("capacity", select(CAPACITY, "spott")),
            pod("zone", select(ZONE, "us-west-2d")),
            pod("family", select("karpenter.k8s.aws/instance-family", "m5z")),
            pod("arch", select(ARCH, "x86")),
            pod("pool", select("karpenter.sh/nodepool", "linus")),
        ],
    ));
}

#[test]
fn the_tenancy_of_nodes_is_changed_only_where_that_places_the_pod() {
    const TENANCY: &str = "karpenter.k8s.aws/instance-tenancy";
    let said = |tenancies: &[&str], pods: &[Value]| {
        let mut pool = pool("linux", &[(OS, "linux"), (ARCH, "amd64")], json!({}));
        let own = pool["spec"]["template"]["spec"]["requirements"].as_array_mut();
        let own = own.expect("a list");
        own.push(json!({"key": CAPACITY, "operator": "In", "values": ["on-demand"]}));
        own.push(json!({"key": TYPE, "operator": "In", "values": ["m5.large"]}));
        if !tenancies.is_empty() {
            own.push(json!({"key": TENANCY, "operator": "In", "values": tenancies}));
        }
        all_said(&[class("linux", "al2023@latest"), pool], pods)
    };
    let on = |name: &str, tenancy: &str, cpu: &str| {
        let spec = json!({"requests": {"cpu": cpu}, "nodeSelector": {TENANCY: tenancy}});
        pod(name, spec)
    };
    let big = pod("big", json!({"requests": {"cpu": "3"}}));
    insta::assert_snapshot!(
        said(&["dedicated"], &[big, on("shared", "default", "1")])
            + &said(
                &["default", "dedicated"],
                &[on("big-dedicated", "dedicated", "3")]
            )
            + &said(&[], &[on("dedicated", "dedicated", "1")])
    );
}

#[test]
fn what_a_mirror_of_a_provisioner_lacks_is_changed_in_the_provisioner() {
    let mut items = items();
    items[3]["metadata"]["annotations"] = json!({"mullion.dev/mirrored-from": "Provisioner/linux"});
    items[3]["spec"]["limits"] = json!({"cpu": "1"});
    insta::assert_snapshot!(all_said(
        &items,
        &[
            pod("team", json!({"nodeSelector": {"team": "a"}})),
            pod("arm", json!({"nodeSelector": {ARCH: "arm64"}})),
        ],
    ));
}

#[test]
fn a_pod_that_contradicts_itself_or_misspells_is_put_right() {
    let windows = json!({OS: "windows", "node.kubernetes.io/windows-build": "10.0.20348"});
    insta::assert_snapshot!(all_said(
        &items(),
        &[
            pod(
                "system",
                json!({"os": {"name": "linux"}, "nodeSelector": windows})
            ),
            pod(
                "build",
                json!({"os": {"name": "linux"}, "nodeSelector": {"node.kubernetes.io/windows-build": "10.0.20348"}})
            ),
            pod("swapped", json!({"nodeSelector": {ARCH: "amr64"}})),
            pod(
                "size",
                json!({"requests": {"cpu": "1000", "memory": "40Ti"}})
            ),
        ],
    ));
}

/// A node of this system that only pods go to which tolerate a taint.
fn tainted(name: &str, os: &str) -> Value {
    let mut node = node(name);
    node["metadata"]["labels"][OS] = json!(os);
    node["spec"] = json!({"taints": [{"key": "team", "value": os, "effect": "NoSchedule"}]});
    node
}

#[test]
fn no_change_leads_a_pod_to_a_system_on_which_its_images_do_not_run() {
    const IIS: &str = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022";
    const OWN: &str = "r.example.com/own:1";
    let placed = |runs: &str| {
        let report = json!({"os": "linux", "containers": {"c": {"image": OWN, "runsOn": runs, "source": "registry"}}});
        json!({"mullion.dev/placed-by-image": report.to_string()})
    };
    let declared = |runs: &str| json!({"mullion.dev/runs-on": runs});
    let select = |os: &str| json!({OS: os});
    let led = |image: &str, annotations: Value, selector: Value| {
        let mut web = pod("web", json!({"nodeSelector": selector}));
        web["spec"]["containers"][0]["image"] = json!(image);
        web["metadata"]["annotations"] = annotations;
        let mut items = items();
        items[0] = tainted("linux-1", "linux");
        items.extend([tainted("windows-1", "windows"), web]);
        // The pool of Linux nodes would take any pod that asks for none.
        items[3]["spec"]["limits"] = json!({"nodes": "0"});
        let (text, _, said) = said_of("web", json!(items));
        let changes = said["changes"].as_array().cloned().unwrap_or_default();
        let mut systems: Vec<String> = changes
            .iter()
            .map(|set| match set["node"].as_str() {
                Some(node) => node.trim_end_matches("-1").to_owned(),
                None => set["buys"]["pool"].as_str().expect("a pool").to_owned(),
            })
            .collect();
        systems.dedup();
        (systems, text)
    };
    let none = || json!({});
    for (image, annotations, selector, expected) in [
        ("nginx", none(), none(), Some("linux")),
        ("nginx", none(), select("linux"), Some("linux")),
        ("nginx", none(), select("windows"), None),
        ("nginx", none(), select("windws"), None),
        (IIS, none(), none(), Some("windows")),
        (IIS, none(), select("windows"), Some("windows")),
        (IIS, none(), select("linux"), None),
        (OWN, none(), none(), Some("linux")),
        (OWN, none(), select("windows"), Some("windows")),
        (OWN, declared("windows"), none(), Some("windows")),
        (OWN, declared("windows"), select("linux"), None),
        (OWN, declared("linux"), select("windows"), None),
        (
            OWN,
            declared("linux,windows"),
            select("windows"),
            Some("windows"),
        ),
        (
            OWN,
            placed("windows/amd64:10.0.20348"),
            none(),
            Some("windows"),
        ),
        (OWN, placed("linux/amd64"), select("windows"), None),
        // More is known than the name says.
        (IIS, placed("linux/amd64"), none(), Some("linux")),
    ] {
        let (systems, text) = led(image, annotations.clone(), selector.clone());
        let expected: Vec<String> = expected.map(str::to_owned).into_iter().collect();
        assert_eq!(
            systems, expected,
            "{image} {annotations} {selector}\n{text}"
        );
        let asks = "the pod asks for windows, but one of its images does not run there.";
        let for_windows = [select("windows"), select("windws")].contains(&selector);
        let in_vain = expected.is_empty() && for_windows;
        assert_eq!(text.contains(asks), in_vain, "{text}");
    }
}

#[test]
fn a_limit_and_a_requirement_go_together_where_neither_alone_is_enough() {
    let mut items = items();
    items[3]["spec"]["limits"] = json!({"cpu": "1"});
    insta::assert_snapshot!(all_said(
        &items,
        &[pod(
            "arm",
            json!({"requests": {"cpu": "3"}, "nodeSelector": {ARCH: "arm64"}})
        )],
    ));
}

#[test]
fn a_pod_is_told_what_the_next_pool_and_its_dearest_demand_cost() {
    let pool = |name: &str, types: &str| {
        let requirements = [(TYPE, types), (CAPACITY, "on-demand")];
        pool(name, &requirements, json!({}))
    };
    let web = |index: usize| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("web-{index}"), "namespace": "shop", "uid": index.to_string(), "labels": {"app": "web"}},
            "spec": {
                "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": "web"}},
                }],
                "containers": [{"name": "c", "image": "web", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
            },
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        })
    };
    let classes = ["cheap", "dear"].map(|name| class(name, "al2023@latest"));
    let pools = [pool("cheap", "m5a.large"), pool("dear", "m5.large")];
    let items: Vec<Value> = classes
        .into_iter()
        .chain(pools)
        .chain((0..3).map(web))
        .collect();
    let (text, code, json) = said_of("web-0", json!(items));
    assert_eq!(code, Some(0));
    assert_eq!(json["costs"]["nextPool"]["pools"], json!(["dear"]));
    assert_eq!(json["costs"]["without"]["percentLess"], 66);
    insta::assert_snapshot!(text);
}

/// Pods of one workload that are spread over zones, of which the pools sell one. In another zone is a Windows node, which takes none of them.
fn spread_over_zones(pods: usize) -> Vec<Value> {
    let web = |index: usize| {
        let requests = json!({"requests": {"cpu": "100m", "memory": "16Mi"}});
        let mut web = pod(&format!("web-{index}"), requests);
        web["metadata"]["labels"] = json!({"app": "web"});
        web["spec"]["topologySpreadConstraints"] = json!([{
            "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}},
        }]);
        web["status"] = json!({"phase": "Pending"});
        web
    };
    let mut items = items();
    items[0] = tainted("n2", "windows");
    items[0]["metadata"]["labels"][ZONE] = json!("us-west-2b");
    items.extend((0..pods).map(web));
    items
}

#[test]
fn a_pod_that_other_pending_pods_leave_no_place_is_told_what_places_it_beside_them() {
    let items = spread_over_zones(3);
    let (first, code, _) = said_of("web-0", json!(items));
    assert_eq!(code, Some(0), "{first}");
    let (second, code, json) = said_of("web-1", json!(items));
    assert_eq!(code, Some(1), "{second}");
    let changes = json["changes"].as_array().expect("changes").iter();
    let shared: Vec<_> = changes.filter(|set| set["buys"]["pods"] == 2).collect();
    // The node that is bought for the first pod has room for it.
    assert_eq!(shared.len(), 1, "{second}");
    insta::assert_snapshot!(second);
}

#[test]
fn what_planned_nodes_take_of_a_limit_is_not_there_for_a_changed_pod() {
    let mut items = spread_over_zones(3);
    // The first pod's node is all that the pool may buy, and the others are too large to share it.
    items[3]["spec"]["limits"] = json!({"nodes": "1"});
    for pod in &mut items[5..] {
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1500m");
    }
    items[3]["spec"]["template"]["spec"]["requirements"]
        .as_array_mut()
        .expect("requirements")
        .push(json!({"key": TYPE, "operator": "In", "values": ["m5.large"]}));
    let (text, _, _) = said_of("web-1", json!(items));
    insta::assert_snapshot!(text);
}

#[test]
fn a_pool_that_is_not_ready_is_named_to_pods_that_it_might_buy_for() {
    let mut items = items();
    for pool in &mut items[3..] {
        pool["status"]["conditions"][0]["status"] = json!("False");
    }
    let large = json!({"requests": {"cpu": "3"}});
    items.push(pod("linux", large.clone()));
    let mut windows = pod("windows", large);
    windows["spec"]["os"] = json!({"name": "windows"});
    items.push(windows);
    for name in ["linux", "windows"] {
        let (text, code, data) = said_of(name, json!(items));
        assert_eq!(code, Some(1), "{text}");
        assert_eq!(data["brokenPools"], json!([format!("NodePool {name}")]));
        let said = format!(
            "NodePool {name} is not ready for the reason above: it may buy a node for the pod once that is mended."
        );
        assert!(text.replace('\n', " ").contains(&said), "{text}");
    }
}

#[test]
fn a_pool_names_all_limits_that_keep_it_from_buying_for_a_pod() {
    let said = |limits: Value| {
        let mut items = items();
        items[3]["spec"]["limits"] = limits;
        let big = pod("big", json!({"requests": {"cpu": "3", "memory": "6Gi"}}));
        items.push(big);
        let (_, _, said) = said_of("big", json!(items));
        let pools = said["pools"].as_array().expect("pools").clone();
        let linux = pools.iter().find(|own| own["pool"] == "linux");
        linux.expect("the pool")["reason"].clone()
    };
    assert_eq!(
        said(json!({"cpu": "2", "memory": "3Gi", "nodes": "0"})),
        "limit reached: 2 cpu left; limit reached: 3Gi memory left; limit reached: 0 nodes left"
    );
    assert_eq!(
        said(json!({"cpu": "1000", "nodes": "0"})),
        "limit reached: 0 nodes left"
    );
}

#[test]
fn a_zone_in_which_nothing_is_sold_is_named_instead_of_its_types() {
    let fault = |kind: &str, target: &str| {
        json!({
            "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedFault", "metadata": {"name": "f"},
            "spec": {"fault": kind, "target": target},
        })
    };
    let big = pod(
        "big",
        json!({"requests": {"cpu": "3"}, "nodeSelector": {ZONE: "us-west-2a"}}),
    );
    let said_of_pool = |types: &[&str], fault: Value| {
        let mut items = items();
        let requirements = &mut items[3]["spec"]["template"]["spec"]["requirements"];
        if !types.is_empty() {
            let own = json!({"key": TYPE, "operator": "In", "values": types});
            requirements.as_array_mut().expect("a list").push(own);
        }
        items.extend([fault, big.clone()]);
        let list = json!({"kind": "List", "items": items}).to_string();
        let ask = ["--state", "-", "-n", "shop", "pod", "big", "-o", "json"];
        let ended = why(&ask, list);
        let said: Value = serde_json::from_str(&ended.stdout).expect("JSON");
        let pools = said["pools"].as_array().expect("pools").clone();
        let linux = pools.iter().find(|own| own["pool"] == "linux");
        linux.expect("the pool")["reason"].clone()
    };
    let said = |fault: Value| said_of_pool(&[], fault);
    let out = "no type of the pool can be bought in us-west-2a now, as while a zone is out";
    assert_eq!(said(fault("zone-outage", "us-west-2a")), out);
    assert_eq!(said(fault("capacity", "*/us-west-2a/*")), out);
    // Others are sold there still.
    let some = said_of_pool(&["m5.xlarge"], fault("capacity", "m5.xlarge/*/*"));
    assert_eq!(some, "every type that would hold the pod is sold out");
}

#[test]
fn a_node_in_a_zone_that_has_failed_is_not_proposed_without_a_word() {
    let fault = json!({
        "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedFault", "metadata": {"name": "f"},
        "spec": {"fault": "zone-outage", "target": "us-west-2a"},
    });
    let mut items = items();
    items.extend([fault, pod("web", json!({}))]);
    let (text, _, said) = said_of("web", json!(items));
    let outage = "n1 is in us-west-2a, which SimulatedFault f lets fail: no pod starts there, though the node may still count as ready";
    assert_eq!(said["outage"], outage);
    let start = format!("pod shop/web goes to n1: 1 of 1 nodes fit.\n{outage}.\n");
    assert!(text.starts_with(&start), "{text}");
}
