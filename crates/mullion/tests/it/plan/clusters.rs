//! `mullion plan` for saved clusters and a running one.

use serde_json::{Value, json};

use super::ask::{CLUSTER, Ended, POOL, SHOP, json_of, plan, root};
use crate::cluster::Cluster;

#[test]
fn pods_of_a_saved_cluster_that_wait_are_planned_for_together_with_a_manifest() {
    let said = plan(
        &["--state", CLUSTER, "-f", SHOP, "-f", "docs/plan/agent.yaml"],
        "",
    );
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    insta::assert_snapshot!(said.stdout);
    // What a workload has there counts no more: the manifest is its new version.
    let same = plan(
        &[
            "--state",
            CLUSTER,
            "--scale",
            "deployment/web=4",
            "-n",
            "shop",
            "-o",
            "json",
        ],
        "",
    );
    let same = json_of(&same);
    assert_eq!(same["then"]["pods"]["asked"], 0, "{}", same["whatIf"]);
}

#[test]
fn spot_offerings_that_a_saved_cluster_knows_as_risky_count_for_more() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 6}}}]}}";
    let saved = std::fs::read_to_string(root().join(CLUSTER)).expect("a saved cluster");
    let saved = saved.replace("\"values\": [\"on-demand\"]", "\"values\": [\"spot\"]");
    let bought = |saved: &str| {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), saved).expect("a writable file");
        let state = file.path().to_str().expect("UTF-8");
        let said = json_of(&plan(&["--state", state, "-f", "-", "-o", "json"], pod));
        let node = &said["nodes"][0];
        let text = |key: &str| node[key].as_str().expect(key).to_owned();
        format!("{}/{}", text("instanceType"), text("zone"))
    };
    let first = bought(&saved);
    // Points whose time is yet to come have not decayed.
    let points = json!({ &first: { "points": 2.0, "at": "2100-01-01T00:00:00Z" } });
    let kept = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "mullion-discovered-capacity", "namespace": "kube-system" },
        "data": { "spot-risks": points.to_string() },
    });
    let second = bought(&format!("{saved}\n- {kept}\n"));
    assert_ne!(first, second);
}

#[test]
fn pods_that_wait_are_asked_about_where_there_are_no_pools() {
    let state = "apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {kubernetes.io/os: linux}}, status: {allocatable: {cpu: '2', memory: 4Gi, pods: '10'}}}
- {apiVersion: v1, kind: Pod, metadata: {name: ssd, namespace: default}, spec: {nodeSelector: {disk: ssd}, containers: [{name: c, image: nginx}]}, status: {phase: Pending}}
";
    let asked = plan(&["--state", "-"], state);
    assert_eq!(asked.code, Some(1), "{}{}", asked.stdout, asked.stderr);
    assert!(asked.stdout.contains("default/ssd"), "{}", asked.stdout);
    let note = "note:  the state has no NodePools, so nothing is bought";
    assert!(asked.stderr.starts_with(note), "{}", asked.stderr);
    let hint = "What would help: mullion why --state - pod ssd\n";
    assert!(asked.stdout.ends_with(hint), "{}", asked.stdout);
}

#[test]
fn a_running_cluster_is_planned_for() {
    let cluster = Cluster::start(&["--speed", "1000"]);
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a UTF-8 path");
    let ask = |args: &[&str]| {
        let said = plan(&[&["--kubeconfig", kubeconfig], args].concat(), "");
        assert_eq!(said.stderr, "", "{args:?}");
        (said.code, said.stdout)
    };
    let (code, text) = ask(&[]);
    assert_eq!(code, Some(0));
    // Pods of the cluster's own may wait for the scheduler still.
    assert!(!text.contains("  nodes  pool"), "{text}");
    // The last of the shop's workloads is the one on Windows.
    let shop = std::fs::read_to_string(root().join(SHOP)).expect("the shop");
    let (_, invoices) = shop.rsplit_once("---\n").expect("several documents");
    let file = cluster.home().join("invoices.yaml");
    std::fs::write(
        &file,
        invoices.replace("namespace: shop", "namespace: default"),
    )
    .expect("a file");
    let manifest = file.to_str().expect("a UTF-8 path");
    let (code, json) = ask(&["-f", manifest, "-o", "json"]);
    assert_eq!(code, Some(0), "{json}");
    let json: Value = serde_json::from_str(&json).expect("one object");
    let node = &json["nodes"][0];
    assert_eq!(node["nodePool"], "windows-2022");
    // What is planned is what is bought.
    cluster.kubectl(&["apply", "-f", manifest]);
    cluster.kubectl(&[
        "wait",
        "--for=condition=Available",
        "deployment",
        "--all",
        "-n",
        "default",
        "--timeout=120s",
    ]);
    let bought = cluster.kubectl(&["get", "nodeclaims", "-o", "json"]);
    let bought: Value = serde_json::from_str(&bought).expect("a list");
    let mut kinds: Vec<String> = bought["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|claim| claim["metadata"]["labels"]["node.kubernetes.io/instance-type"].to_string())
        .collect();
    let mut planned: Vec<String> = json["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| node["instanceType"].to_string())
        .collect();
    // Claims have random names.
    kinds.sort();
    planned.sort();
    assert_eq!(kinds, planned);
    let (code, text) = ask(&["--consolidate"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("no NodePool bought it"), "{text}");
    // The cluster's server says what it takes, also of a pool that is there and of a kind that decides nothing about pods.
    for flag in ["-f", "--add-pool"] {
        for (name, field, cause) in [
            ("gold", "wieght: 1", "unknown field \"spec.wieght\""),
            ("linux", "weight: -1", "spec.weight: Invalid value"),
        ] {
            let pool = cluster.home().join("pool.yaml");
            std::fs::write(&pool, POOL.replace("NAME", name).replace("FIELD", field))
                .expect("a file");
            let pool = pool.to_str().expect("a UTF-8 path");
            let said = plan(&["--kubeconfig", kubeconfig, flag, pool], "");
            assert_eq!(said.code, Some(2), "{flag} {name}: {}", said.stdout);
            let start = format!("error: {pool} (NodePool {name}): ");
            assert!(
                said.stderr.starts_with(&start) && said.stderr.contains(cause),
                "{flag}: {}",
                said.stderr
            );
        }
    }
}

#[test]
fn what_a_plan_takes_nothing_from_is_named() {
    let said = |stdin: &str| {
        let said = plan(&["--offline", "--default-pools", "-f", "-"], stdin);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stderr
    };
    for empty in [
        "",
        "# nothing yet\n",
        "{apiVersion: v1, kind: List, items: []}",
    ] {
        assert_eq!(
            said(empty),
            "note:  stdin has no objects: nothing is taken from it\n"
        );
    }
    let misspelt = "{apiVersion: apps/v1, kind: Deploymnet, metadata: {name: web}}";
    let service =
        "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}";
    assert_eq!(
        said(&format!("{misspelt}\n---\n{service}")),
        "note:  stdin: document 1 (Deploymnet web): nothing is taken from it: there is no kind Deploymnet, the nearest is Deployment\n"
    );
    // Where nothing else is asked about, the misspelt kind is what is wrong with the question.
    let alone = plan(&["--offline", "--default-pools", "-f", "-"], misspelt);
    let refused =
        "error: stdin (Deploymnet web): there is no kind Deploymnet, the nearest is Deployment\n";
    assert_eq!((alone.code, alone.stderr.as_str()), (Some(2), refused));
    assert_eq!(
        said("{apiVersion: v1, kind: Secret, metadata: {name: key}}"),
        "note:  nothing is taken from stdin (Secret key): an object of its kind does not decide where pods go\n"
    );
    // A list of objects is what a cluster has, not what a manifest would bring.
    let said = plan(&["--state", SHOP, "--default-pools"], "");
    assert_eq!(
        said.stderr,
        "note:  docs/plan/shop.yaml: Deployment shop/web, Deployment shop/api, Deployment shop/invoices have no pods here, because no controller has seen them: -f takes manifests, --state what a cluster has\n"
    );
}

#[test]
fn the_settings_of_a_running_cluster_count_for_its_plans() {
    let pod = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "a"}},
            "spec": {
                "nodeSelector": {"karpenter.sh/nodepool": "linux"},
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}],
                "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app": "a"}},
                }],
            },
        })
    };
    let items = ["a", "b", "c"].map(pod);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let nodes = |args: &[&str]| {
        let all = [args, &["-f", "-", "-o", "json"]].concat();
        let said = plan(&all, &list);
        assert_eq!(said.stderr, "", "{args:?}");
        json_of(&said)["nodes"].as_array().map(Vec::len)
    };
    assert_eq!(nodes(&["--offline", "--default-pools"]), Some(1));
    let cluster = Cluster::start(&[
        "--speed",
        "1000",
        "--preference-policy",
        "Respect",
        "--reserved-enis",
        "1",
    ]);
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a UTF-8 path");
    assert_eq!(nodes(&["--kubeconfig", kubeconfig]), Some(3));
    let published = [
        "get",
        "configmap",
        "-n",
        "kube-system",
        "mullion-provisioner",
    ];
    let data = cluster.kubectl(&[&published[..], &["-o", "jsonpath={.data}"]].concat());
    let data: Value = serde_json::from_str(&data).expect("an object");
    assert_eq!(
        data,
        json!({"PREFERENCE_POLICY": "Respect", "RESERVED_ENIS": "1"})
    );
}

#[test]
fn a_waiting_pod_that_names_another_scheduler_is_planned_for_if_a_profile_has_its_name() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "packed", "namespace": "default", "uid": "packed"},
        "spec": {
            "schedulerName": "mullion",
            "containers": [{"name": "a", "image": "nginx", "resources": {"requests": {"cpu": "1"}}}],
        },
        "status": {"phase": "Pending"},
    });
    let state = json!({"apiVersion": "v1", "kind": "List", "items": [pod]}).to_string();
    let asked = |more: &[&str]| {
        let flags = ["--state", "-", "--default-pools", "-o", "json"];
        plan(&[&flags[..], more].concat(), &state)
    };
    let config = path(
        "scheduler.yaml",
        "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: [{schedulerName: mullion}]}",
    );
    let nodes = |said: &Ended| json_of(said)["nodes"].as_array().map(Vec::len);
    let alone = asked(&[]);
    assert_eq!(nodes(&alone), Some(0));
    let left_out = json!(["1 pod names a scheduler that is not there and is left out"]);
    assert_eq!(json_of(&alone)["remarks"], left_out);
    assert_eq!(nodes(&asked(&["--scheduler-config", &config])), Some(1));
    // The same for a pod that does not exist yet, whoever would run it.
    let coming = |spec: Value| {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "coming"}, "spec": spec,
        });
        let flags = ["--offline", "--default-pools", "-f", "-", "-o", "json"];
        json_of(&plan(&flags, &manifest.to_string()))
    };
    let of_nobody = coming(json!({
        "schedulerName": "mullion",
        "containers": [{"name": "a", "image": "nginx"}],
    }));
    assert_eq!(
        (&of_nobody["nodes"], &of_nobody["remarks"]),
        (&json!([]), &left_out)
    );
    // A version that nobody serves is named, as by kubectl.
    let manifest = json!({
        "apiVersion": "app/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "a", "image": "nginx"}]},
            },
        },
    });
    let said = plan(
        &["--offline", "--default-pools", "-f", "-"],
        &manifest.to_string(),
    );
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    let expected = r#"no matches for kind "Deployment" in version "app/v1""#;
    assert!(said.stderr.contains(expected), "{}", said.stderr);
    let wrong = path("wrong.yaml", "{kind: KubeSchedulerConfiguration}");
    let said = asked(&["--scheduler-config", &wrong]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("wrong.yaml"), "{}", said.stderr);
}
