//! The flow schemas and priority levels that every cluster has (`apiserver/pkg/apis/flowcontrol/bootstrap`). The mandatory ones cannot be changed.

use serde_json::{Value, json};

const MANDATORY: [&str; 2] = ["exempt", "catch-all"];
/// The annotation that says whether the server keeps the object up to date.
const KEPT: &str = "apf.kubernetes.io/autoupdate-spec";

/// The number of queues, and the hand size: the number of queues that a flow is dealt.
type Queues = (i64, i64);

/// The limited priority levels: name, concurrency shares, percentage that can be lent, and queues, if the level has any.
const LEVELS: [(&str, i64, i64, Option<Queues>); 7] = [
    ("catch-all", 5, 0, None),
    ("system", 30, 33, Some((64, 6))),
    ("node-high", 40, 25, Some((64, 6))),
    ("leader-election", 10, 0, Some((16, 4))),
    ("workload-high", 40, 50, Some((128, 6))),
    ("workload-low", 100, 90, Some((128, 6))),
    ("global-default", 20, 50, Some((128, 6))),
];
const QUEUE_LENGTH: i64 = 50;

/// Returns whether the object is mandatory, so that it must not differ from its default.
pub(super) fn is_mandatory(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str();
    name.is_some_and(|name| MANDATORY.contains(&name))
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": kind,
        "metadata": {"name": name, "annotations": {KEPT: "true"}}, "spec": spec,
    })
}

/// Returns the default priority levels.
pub fn levels() -> impl Iterator<Item = Value> {
    let exempt =
        json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let limited = LEVELS.iter().map(|(name, shares, lendable, queues)| {
        let response = match queues {
            None => json!({"type": "Reject"}),
            Some((queues, hand)) => json!({
                "type": "Queue",
                "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": QUEUE_LENGTH},
            }),
        };
        let limited = json!({"nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response});
        object(
            "PriorityLevelConfiguration",
            name,
            json!({"type": "Limited", "limited": limited}),
        )
    });
    std::iter::once(object("PriorityLevelConfiguration", "exempt", exempt)).chain(limited)
}

fn groups(names: &[&str]) -> Vec<Value> {
    let names = names.iter();
    names
        .map(|name| json!({"kind": "Group", "group": {"name": name}}))
        .collect()
}

fn users(names: &[&str]) -> Vec<Value> {
    let names = names.iter();
    names
        .map(|name| json!({"kind": "User", "user": {"name": name}}))
        .collect()
}

/// Returns subjects for service accounts in kube-system.
fn accounts(names: &[&str]) -> Vec<Value> {
    let names = names.iter();
    names
        .map(|name| json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": name}}))
        .collect()
}

fn resources(verbs: &[&str], group: &str, resources: &[&str], cluster: bool) -> Value {
    let mut rule =
        json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"]});
    if cluster {
        rule["clusterScope"] = true.into();
    }
    rule
}

fn everything(subjects: Vec<Value>) -> Value {
    json!([{
        "subjects": subjects,
        "resourceRules": [resources(&["*"], "*", &["*"], true)],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }])
}

fn some(subjects: Vec<Value>, rules: &[Value]) -> Value {
    json!([{"subjects": subjects, "resourceRules": rules}])
}

/// Returns the default flow schemas, in the order of their precedence.
pub fn schemas() -> impl Iterator<Item = Value> {
    const EVERYBODY: [&str; 2] = ["system:unauthenticated", "system:authenticated"];
    const MANAGER: &str = "system:kube-controller-manager";
    const SCHEDULER: &str = "system:kube-scheduler";
    let leases = resources(
        &["get", "create", "update"],
        "coordination.k8s.io",
        &["leases"],
        false,
    );
    let electors = [users(&[MANAGER, SCHEDULER]), accounts(&["*"])].concat();
    let probes = json!([{
        "subjects": groups(&EVERYBODY),
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
    }]);
    let nodes = [
        resources(&["*"], "", &["nodes", "nodes/status"], true),
        resources(&["*"], "coordination.k8s.io", &["leases"], false),
    ];
    let (by_user, by_namespace) = (Some("ByUser"), Some("ByNamespace"));
    [
        ("exempt", 1, "exempt", None, everything(groups(&["system:masters"]))),
        ("probes", 2, "exempt", None, probes),
        (
            "system-leader-election",
            100,
            "leader-election",
            by_user,
            some(electors, &[leases]),
        ),
        (
            "system-node-high",
            400,
            "node-high",
            by_user,
            some(groups(&["system:nodes"]), &nodes),
        ),
        ("system-nodes", 500, "system", by_user, everything(groups(&["system:nodes"]))),
        (
            "kube-controller-manager",
            800,
            "workload-high",
            by_namespace,
            everything(users(&[MANAGER])),
        ),
        (
            "kube-scheduler",
            800,
            "workload-high",
            by_namespace,
            everything(users(&[SCHEDULER])),
        ),
        (
            "kube-system-service-accounts",
            900,
            "workload-high",
            by_namespace,
            everything(accounts(&["*"])),
        ),
        (
            "service-accounts",
            9000,
            "workload-low",
            by_user,
            everything(groups(&["system:serviceaccounts"])),
        ),
        (
            "global-default",
            9900,
            "global-default",
            by_user,
            everything(groups(&EVERYBODY)),
        ),
        ("catch-all", 10_000, "catch-all", by_user, everything(groups(&EVERYBODY))),
    ]
    .into_iter()
    .map(|(name, precedence, level, method, rules)| {
        let mut spec = json!({
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": rules,
        });
        if let Some(method) = method {
            spec["distinguisherMethod"] = json!({"type": method});
        }
        object("FlowSchema", name, spec)
    })
}
