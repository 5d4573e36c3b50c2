//! `mullion why node` and `mullion why nodepool`.

use serde_json::{Value, json};

use super::{file, node_of_4, path, pod_of, why};

/// A saved cluster of the documentation.
const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plan/cluster.yaml");

#[test]
fn a_node_is_told_why_it_stays_or_how_it_could_go() {
    let said = why(
        &["node", "ip-10-0-1-22", "ip-10-0-0-12", "--state", CLUSTER],
        String::new(),
    );
    assert_eq!((said.code, said.stderr.as_str()), (Some(1), ""));
    insta::assert_snapshot!(said.stdout);
    let stays = ["node", "ip-10-0-1-22", "--state", CLUSTER, "-o", "json"];
    let stays = why(&stays, String::new());
    assert_eq!(stays.code, Some(0));
    let json: Value = serde_json::from_str(&stays.stdout).expect("one object");
    assert_eq!(json["nodePool"], "linux");
    let reason = json["stays"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("do-not-disrupt"), "{reason}");
}

#[test]
fn a_pool_is_told_what_it_buys() {
    let said = why(&["nodepool", "linux", "--state", CLUSTER], String::new());
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(said.stdout);
    for (args, expected) in [
        (
            &["nodepool", "gold", "--state", CLUSTER][..],
            "error: there is no NodePool gold\nhint:  there are linux\n",
        ),
        (
            &["node", "--state", CLUSTER],
            "error: which node? Its name is missing\nhint:  mullion why node NAME\n",
        ),
        (
            &["node", "a", "-l", "app=a"],
            "error: a node is asked about by its name: -f, -l and -n are about pods\nhint:  mullion why node NAME\n",
        ),
    ] {
        let said = why(args, String::new());
        assert_eq!((said.code, said.stderr.as_str()), (Some(2), expected));
    }
}

/// A NodePool with these conditions.
fn pool(conditions: Value) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "linux"},
        "spec": {"template": {"spec": {
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "linux"},
            "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.large"]}],
        }}},
        "status": {"conditions": conditions},
    })
}

fn condition(kind: &str, status: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": kind, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn class(conditions: Value) -> Value {
    json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "linux"},
        "spec": {"amiSelectorTerms": [{"alias": "al2023@latest"}]},
        "status": {"conditions": conditions, "subnets": [{"id": "subnet-1", "zone": "us-west-2a"}]},
    })
}

/// A NodeClaim of the pool; its node is there if it has a name.
fn claim(name: &str, node: &str, initialized: &str) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": name, "labels": {
            "karpenter.sh/nodepool": "linux", "node.kubernetes.io/instance-type": "m5.large", "kubernetes.io/os": "linux",
        }},
        "spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "linux"}, "requirements": []},
        "status": {"nodeName": node, "conditions": [condition("Initialized", initialized, "")]},
    })
}

fn node(name: &str) -> Value {
    let mut node = node_of_4(name);
    node["metadata"]["labels"] = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "karpenter.sh/nodepool": "linux",
        "node.kubernetes.io/instance-type": "m5.large",
    });
    node
}

/// Asks about an object in a file of these objects. Returns what is said, the exit code, and the answer as JSON.
fn asked(kind: &str, name: &str, items: Value) -> (String, Option<i32>, Value) {
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let args = [kind, name, "--state", path(&state)];
    let text = why(&args, String::new());
    let json = why(&[&args[..], &["-o", "json"]].concat(), String::new());
    let json = serde_json::from_str(&json.stdout).expect("one object");
    (text.stdout, text.code, json)
}

#[test]
fn nodes_on_their_way_are_counted_apart() {
    let ready = json!([condition("Ready", "True", "")]);
    let (text, code, json) = asked(
        "nodepool",
        "linux",
        json!([
            pool(ready.clone()),
            class(ready),
            node("n0"),
            claim("linux-0", "n0", "True"),
            node("n1"),
            claim("linux-1", "n1", "Unknown"),
            claim("linux-2", "", "Unknown"),
        ]),
    );
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("\n  1 node, 0.098 USD/h, 2 on their way, 0.196 USD/h"),
        "{text}"
    );
    assert_eq!(
        (&json["nodes"], &json["onTheirWay"]),
        (&json!(1), &json!(2))
    );
}

#[test]
fn a_pool_whose_class_is_not_ready_says_what_the_class_says() {
    let summary = "SubnetsReady=False";
    let subnets = "SubnetSelector did not match any Subnets";
    let items = json!([
        pool(json!([
            condition("NodeClassReady", "False", summary),
            condition("Ready", "False", "NodeClassReady=False"),
        ])),
        class(json!([
            condition("SubnetsReady", "False", subnets),
            condition("Ready", "False", summary),
        ])),
    ]);
    let (text, code, json) = asked("nodepool", "linux", items.clone());
    let why = format!("it is not ready: EC2NodeClass linux is not ready: {subnets}");
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with(&format!("NodePool linux buys nothing: {why}.\n")),
        "{text}"
    );
    assert_eq!(json["buysNothing"], why);
}

#[test]
fn a_pool_whose_instance_types_do_not_exist_says_so_first() {
    let ready = json!([condition("Ready", "True", "")]);
    let mut pool = pool(ready.clone());
    let requirement = &mut pool["spec"]["template"]["spec"]["requirements"][0];
    requirement["values"] = json!(["m5.lrge"]);
    let (text, code, json) = asked("nodepool", "linux", json!([pool, class(ready)]));
    let why = "as far as this version knows, there is no instance type m5.lrge (nearest: m5.large), and no other is allowed by the requirement node.kubernetes.io/instance-type";
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with(&format!("NodePool linux buys nothing: {why}.\n")),
        "{text}"
    );
    assert_eq!(json["buysNothing"], why);
}

#[test]
fn a_node_that_is_being_removed_names_the_pods_and_budgets_that_hold_it() {
    let mut going = node("n0");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let labelled = |name: &str| {
        let mut pod = pod_of(name, "1", 0, Some("n0"));
        pod["metadata"]["labels"] = json!({"app": name});
        pod["status"] =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        pod
    };
    let budget = |name: &str, allowed: i32| {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"selector": {"matchLabels": {"app": name}}, "minAvailable": 1},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
        })
    };
    let items = |node: &Value| {
        json!([
            node,
            claim("linux-0", "n0", "True"),
            labelled("web"),
            labelled("api"),
            budget("web", 0),
            budget("api", 1),
        ])
    };
    let (text, code, json) = asked("node", "n0", items(&going));
    assert_eq!(code, Some(0));
    let expected = "node n0 is being removed: 2 pods have not left it.\n  \
                    NodePool linux, m5.large, 0.096 USD/h, 2 pods to move\n\n  \
                    pods that are held\n    \
                    shop/web  PodDisruptionBudget shop/web (disruptionsAllowed 0)\n";
    assert_eq!(text, expected);
    assert_eq!(json["leaves"], json!({"waiting": 2}));
    assert_eq!(
        json["heldPods"],
        json!([{
            "pod": "shop/web", "reason": "PodDisruptionBudget shop/web (disruptionsAllowed 0)",
            "podDisruptionBudgets": [{"name": "shop/web", "disruptionsAllowed": 0}],
        }])
    );
    // A node that stays says so too.
    let (text, _, json) = asked("node", "n0", items(&node("n0")));
    assert!(
        text.contains("\n    shop/web  PodDisruptionBudget shop/web"),
        "{text}"
    );
    assert!(json["stays"].is_object(), "{json}");
}

#[test]
fn a_node_that_keeps_pods_off_says_by_what() {
    let mut cordoned = node("n0");
    cordoned["spec"] = json!({"unschedulable": true, "taints": [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "os", "value": "windows", "effect": "NoSchedule"},
        {"key": "gone", "effect": "NoExecute"},
        {"key": "slow", "effect": "PreferNoSchedule"},
    ]});
    let items = json!([cordoned, claim("linux-0", "n0", "True")]);
    let (text, _, json) = asked("node", "n0", items);
    let expected = "The node is cordoned (spec.unschedulable): no pod is placed there until `kubectl uncordon n0`, except pods that tolerate node.kubernetes.io/unschedulable.\n\
                    Taints keep pods off that do not tolerate all of them: os=windows:NoSchedule, gone:NoExecute.\n";
    assert!(text.contains(expected), "{text}");
    assert_eq!(
        (&json["unschedulable"], &json["taints"]),
        (
            &json!(true),
            &json!(["os=windows:NoSchedule", "gone:NoExecute"])
        )
    );
}

#[test]
fn a_node_may_be_named_by_the_begin_of_its_name() {
    let names = [
        "ip-10-0-1-2.ec2.internal",
        "ip-10-0-1-22.ec2.internal",
        "ip-10-0-2-7.ec2.internal",
    ];
    let items: Value = names.iter().map(|name| node(name)).collect();
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let ask = |name: &str| why(&["node", name, "--state", path(&state)], String::new());
    for (short, name) in [("ip-10-0-1-2", names[0]), ("ip-10-0-2", names[2])] {
        let said = ask(short);
        assert!(
            said.stdout.starts_with(&format!("node {name} ")),
            "{}{}",
            said.stdout,
            said.stderr
        );
    }
    let said = ask("ip-10-0-1");
    let expected = format!(
        "error: there is no node ip-10-0-1, and the names of 2 nodes begin with that\nhint:  name one of them: {}, {}\n",
        names[0], names[1]
    );
    assert_eq!((said.code, said.stderr), (Some(2), expected));
}

#[test]
fn a_pool_names_all_limits_because_of_which_it_buys_nothing() {
    let ready = json!([condition("Ready", "True", "")]);
    let mut limited = pool(ready.clone());
    limited["spec"]["limits"] = json!({"cpu": "1", "memory": "2Gi", "nodes": "9"});
    let items = json!([
        limited,
        class(ready),
        node("n0"),
        claim("linux-0", "n0", "True"),
    ]);
    let (text, code, json) = asked("nodepool", "linux", items);
    let why = json["buysNothing"].as_str().unwrap_or_default();
    let limits: Vec<_> = why.split("; ").collect();
    assert_eq!((code, limits.len()), (Some(1), 2), "{text}");
    assert!(limits[0].contains(" cpu"), "{text}");
    assert!(limits[1].contains(" memory"), "{text}");
}
