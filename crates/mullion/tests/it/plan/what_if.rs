//! `mullion plan` of what is not so: pools that are added or left out, nodes that go, and what consolidation would do.

use serde_json::{Value, json};

use super::ask::{CLUSTER, POOL, SHOP, json_of, offline, plan};

#[test]
fn what_if_puts_two_plans_side_by_side() {
    let said = offline(
        &[
            "--spot",
            "only",
            "--scale",
            "deployment/web=40",
            "-n",
            "shop",
        ],
        &[SHOP],
    );
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(said.stdout);
    let then = |args: &[&str]| {
        let said = offline(&[&["-o", "json"], args].concat(), &[SHOP]);
        assert_eq!(said.stderr, "", "{args:?}");
        let json = json_of(&said);
        (said.code, json)
    };
    let types = |json: &Value| -> Vec<String> {
        let nodes = json["then"]["nodes"].as_array().expect("nodes").iter();
        nodes
            .map(|node| node["instanceType"].as_str().expect("a type").to_owned())
            .collect()
    };
    let (code, only) = then(&["--types", "m7*,c7i.*"]);
    assert_eq!(code, Some(0));
    assert!(
        types(&only)
            .iter()
            .all(|name| name.starts_with("m7") || name.starts_with("c7i.")),
        "{:?}",
        types(&only)
    );
    let (_, without) = then(&["--without-types", "c6a*"]);
    assert!(
        types(&without).iter().all(|name| !name.starts_with("c6a")),
        "{:?}",
        types(&without)
    );
    let (code, refused) = then(&["--drop-pool", "windows-2022"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        refused["difference"]["newlyUnplaced"]
            .as_array()
            .map(Vec::len),
        Some(9)
    );
    // The API is spread over zones, of which only one is left.
    let (_, one_zone) = then(&["--zones", "a"]);
    let mut zones = one_zone["then"]["nodes"].as_array().expect("nodes").iter();
    assert!(zones.all(|node| node["zone"] == "us-west-2a"), "{one_zone}");
    let (_, daemon) = then(&["--daemon", "docs/plan/agent.yaml"]);
    assert!(
        daemon["difference"]["usdPerHour"]
            .as_f64()
            .expect("a price")
            >= 0.0
    );
    let (_, prefixes) = then(&["--prefix-delegation", "on"]);
    let less = prefixes["difference"]["usdPerHour"]
        .as_f64()
        .expect("a price");
    assert!(less <= 0.0, "{less}");
    let (code, gpu) = {
        let said = offline(
            &["--add-pool", "docs/plan/gpu-pool.yaml", "-o", "json"],
            &["docs/plan/gpu.yaml"],
        );
        (said.code, json_of(&said))
    };
    assert_eq!(code, Some(0));
    assert_eq!(gpu["difference"]["newlyPlaced"], json!(["default/train"]));
}

#[test]
fn preferences_that_cost_money_can_be_left_out_of_the_question() {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"app": "a"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/os": "linux"}, "containers": [{"name": "c", "image": "i"}],
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "a"}},
            }],
        },
    });
    let mut items = Vec::new();
    for name in ["a", "b", "c"] {
        pod["metadata"]["name"] = json!(name);
        items.push(pod.clone());
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let args = [
        "--offline",
        "--default-pools",
        "-f",
        "-",
        "--ignore-preferences",
        "-o",
        "json",
    ];
    let said = plan(&args, &list);
    let json = json_of(&said);
    assert_eq!(json["whatIf"], json!(["pods have no preferences"]));
    assert_eq!(json["then"]["nodes"].as_array().map(Vec::len), Some(1));
}

#[test]
fn consolidation_of_a_saved_cluster_shows_moves_and_why_others_stay() {
    let said = plan(&["--state", CLUSTER, "--consolidate"], "");
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(said.stdout);
    let json = json_of(&plan(
        &["--state", CLUSTER, "--consolidate", "-o", "json"],
        "",
    ));
    let (before, after) = (&json["beforeUsdPerHour"], &json["afterUsdPerHour"]);
    assert!(before.as_f64() > after.as_f64(), "{json}");
}

#[test]
fn a_node_that_goes_has_its_pods_planned_for() {
    let said = plan(
        &[
            "--state",
            CLUSTER,
            "--remove-node",
            "ip-10-0-1-22",
            "--pods",
        ],
        "",
    );
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(said.stdout);
    // A node that is named twice goes once.
    let node = ["--remove-node", "ip-10-0-1-22"];
    let asked = |nodes: &[&str]| {
        let flags = ["--state", CLUSTER, "-o", "json"];
        json_of(&plan(&[&flags[..], nodes].concat(), ""))
    };
    let (mut once, mut twice) = (asked(&node), asked(&[node, node].concat()));
    let notes = twice["remarks"].take();
    assert!(
        notes.to_string().contains("ip-10-0-1-22 is going already"),
        "{notes}"
    );
    once["remarks"].take();
    assert_eq!(once, twice);
}

#[test]
fn a_pool_that_no_api_server_takes_is_refused_without_a_cluster_too() {
    for flag in ["-f", "--add-pool"] {
        for (field, cause) in [
            ("wieght: 1", "unknown field \"spec.wieght\""),
            ("weight: -1", "spec.weight: Invalid value"),
        ] {
            let pool = POOL.replace("NAME", "gold").replace("FIELD", field);
            let said = plan(
                &["--offline", "--default-pools", "-f", SHOP, flag, "-"],
                &pool,
            );
            assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
            let start = "error: stdin (NodePool gold): ";
            assert!(
                said.stderr.starts_with(start) && said.stderr.contains(cause),
                "{flag} {field}: {}",
                said.stderr
            );
        }
    }
}

#[test]
fn an_added_pool_that_buys_nothing_says_why() {
    let asked_for = |fields: &str, requirement: &str, files: &[&str]| {
        let pool = POOL.replace("NAME", "gold").replace("FIELD", fields);
        let pool = pool.replace("[]", &format!("[{requirement}]"));
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), pool).expect("a writable file");
        let path = file.path().to_str().expect("UTF-8");
        let text = offline(&["--add-pool", path], files).stdout;
        let data = json_of(&offline(&["--add-pool", path, "-o", "json"], files));
        let pools = data["then"]["idlePools"].clone();
        (text, pools)
    };
    let asked = |fields: &str, files: &[&str]| asked_for(fields, "", files);
    let gold = |reason: &str| json!([{"pool": "gold", "reason": reason}]);
    let empty = tempfile::NamedTempFile::new().expect("a temporary file");
    let empty = empty.path().to_str().expect("UTF-8");
    let none = "no pod waits for a node";
    let (text, pools) = asked("weight: 1", &[empty]);
    assert_eq!(pools, gold(none));
    assert!(
        text.contains(&format!("\n  pools that buy nothing\n    gold  {none}")),
        "{text}"
    );
    let (_, pools) = asked("limits: {nodes: 0}", &[SHOP]);
    let expected = [
        "limit reached: 0 nodes left",
        "kubernetes.io/os is linux, the pod needs windows; no label node.kubernetes.io/windows-build, the pod needs 10.0.20348",
    ];
    let expected = expected.map(|reason| json!({"pool": "gold", "reason": reason}));
    assert_eq!(pools, json!(expected));
    // A node with room for one of the pods leaves the reason of the others.
    let room = json!({"cpu": "1", "memory": "2Gi", "pods": "10"});
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "small", "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": "small"}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let resources = json!({"requests": {"cpu": "900m"}});
    let web = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "a", "image": "nginx", "resources": resources}]},
            },
        },
    });
    let both = tempfile::NamedTempFile::new().expect("a temporary file");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [node, web]});
    std::fs::write(both.path(), list.to_string()).expect("a writable file");
    let both = both.path().to_str().expect("UTF-8");
    let (text, pools) = asked("limits: {nodes: 0}", &[both]);
    // The node that is bought has room for two.
    assert!(text.contains("c6a.large  on-demand    1     1"), "{text}");
    assert_eq!(pools, gold("limit reached: 0 nodes left"), "{text}");
    // Machines that cost more than those of the other pools.
    let dear = "limits: {cpu: 1000}";
    let cards = "{key: karpenter.k8s.aws/instance-category, operator: In, values: [p]}";
    let (_, pools) = asked_for(dear, cards, &[SHOP]);
    let expected =
        "the pods that it could hold go to pools that cost no more or have a greater weight";
    assert_eq!(pools[0], json!({"pool": "gold", "reason": expected}));
    // The reasons of pods without a place stand beside the pods.
    let plain = cards.replace("[p]", "[m]");
    let (text, pools) = asked_for("weight: 1", &plain, &["docs/plan/gpu.yaml"]);
    assert!(pools.is_null(), "{pools}");
    assert!(text.contains("gold, linux "), "{text}");
}

#[test]
fn nodes_that_go_already_are_named_and_not_paid_for() {
    let labels = json!({
        "kubernetes.io/os": "linux", "karpenter.sh/nodepool": "gold", "node.kubernetes.io/instance-type": "m5.large",
        "topology.kubernetes.io/zone": "us-west-2a", "karpenter.sh/capacity-type": "on-demand",
    });
    let room = json!({"cpu": "2", "memory": "8Gi", "pods": "29"});
    let node = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
        })
    };
    let claim = |name: &str, node: &str| {
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name, "labels": labels},
            "spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "linux"}, "requirements": []},
            "status": {"nodeName": node, "conditions": [
                {"type": "Initialized", "status": "True", "reason": "a", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]},
        })
    };
    let mut going = claim("gold-1", "n1");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut marked = node("n2");
    marked["spec"] = json!({"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]});
    let items = json!([
        node("n0"),
        node("n1"),
        marked,
        claim("gold-0", "n0"),
        going,
        claim("gold-2", "n2"),
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), list.to_string()).expect("a writable file");
    let state = ["--state", file.path().to_str().expect("UTF-8")];
    let said = |flags: &[&str]| plan(&[&state[..], flags].concat(), "").stdout;
    let text = said(&["--consolidate"]);
    let expected = "3 nodes (2 go already and are not counted in the price), 0.096 USD an hour: none of the others can go.\n";
    assert!(text.starts_with(expected), "{text}");
    let json: Value =
        serde_json::from_str(&said(&["--consolidate", "-o", "json"])).expect("one object");
    assert_eq!(json["leavingNodes"], json!(["n1", "n2"]));
    // A plan takes a node for one that goes once its claim is being deleted, as the provisioner does.
    let json: Value =
        serde_json::from_str(&said(&["--remove-node", "n0", "-o", "json"])).expect("one object");
    assert_eq!(json["price"]["leavingNodes"], json!(["n1"]));
    let text = said(&["--remove-node", "n0"]);
    assert!(
        text.contains("  not counted   1 node that goes already: n1"),
        "{text}"
    );
}
