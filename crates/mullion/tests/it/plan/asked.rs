//! `mullion plan` of manifests, saved clusters and a running one.

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, PATIENCE, text},
    process::ended,
};

pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// The root of the repository: commands of the documentation are run there.
pub(super) fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `mullion plan` with this on stdin.
pub(super) fn plan(args: &[&str], stdin: &str) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command.arg("plan").args(args).current_dir(root());
    let output = ended(&mut command, stdin, PATIENCE);
    Ended {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// The same for files of the documentation and the pools of `mullion up`, with no cluster.
fn offline(args: &[&str], files: &[&str]) -> Ended {
    let mut all = vec!["--offline", "--default-pools"];
    for file in files {
        all.extend(["-f", file]);
    }
    plan(&[&all[..], args].concat(), "")
}

const SHOP: &str = "docs/plan/shop.yaml";
pub(super) const CLUSTER: &str = "docs/plan/cluster.yaml";

pub(super) fn json_of(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).expect("one object")
}

#[test]
fn every_worked_question_of_the_documentation_has_the_answer_that_stands_there() {
    let page = std::fs::read_to_string(root().join("docs/plan.md")).expect("the page");
    let mut questions = 0;
    for block in page.split("```console\n").skip(1) {
        let (block, _) = block.split_once("```").expect("a block has an end");
        let (command, answer) = block.split_once('\n').expect("an answer");
        let words = command.strip_prefix("$ mullion plan ").expect(command);
        let words: Vec<_> = words
            .split(' ')
            .map(|word| word.trim_matches('\''))
            .collect();
        let said = plan(&words, "");
        assert_eq!(
            said.stdout.trim_end(),
            answer.trim_end(),
            "{command}\n{}",
            said.stderr
        );
        questions += 1;
    }
    assert!(questions >= 5, "{questions} questions");
}

#[test]
fn a_manifest_is_planned_for_by_its_replicas_without_a_cluster() {
    let said = offline(&["--pods"], &[SHOP]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(said.stdout);
}

#[test]
fn a_plan_as_data_says_the_same_in_json_and_yaml() {
    let json = json_of(&offline(&["-o", "json"], &[SHOP]));
    assert_eq!(json["pods"]["asked"], 27);
    assert_eq!(json["pods"]["unplaced"], 0);
    let nodes = json["nodes"].as_array().expect("nodes");
    let pods: usize = nodes
        .iter()
        .map(|node| node["pods"].as_array().map_or(0, Vec::len))
        .sum();
    assert_eq!(pods, 27);
    let price: f64 = nodes
        .iter()
        .filter_map(|node| node["usdPerHour"].as_f64())
        .sum();
    let bought = json["price"]["boughtUsdPerHour"].as_f64().expect("a price");
    assert!((price - bought).abs() < 1e-9, "{price} {bought}");
    let yaml = offline(&["-o", "yaml"], &[SHOP]).stdout;
    let yaml: Value = serde_saphyr::from_str(&yaml).expect("YAML");
    assert_eq!(yaml, json);
}

#[test]
fn a_plan_says_how_near_it_is_to_the_least_that_any_costs() {
    let whole = json_of(&offline(&["-o", "json"], &[SHOP]));
    let number = |name: &str| whole["price"][name].as_f64().expect("a number");
    let (bought, bound) = (number("boughtUsdPerHour"), number("boundUsdPerHour"));
    assert!(0.0 < bound && bound <= bought, "{bound} {bought}");
    let gap = (bought - bound) / bound * 100.0;
    assert!((number("gapPercent") - gap).abs() < 0.051, "{gap}");
    // The bound does not depend on how long a cheaper plan is searched for.
    let alone = json_of(&offline(&["-o", "json", "--bound-only"], &[SHOP]));
    assert_eq!(alone["boundUsdPerHour"], whole["price"]["boundUsdPerHour"]);
    let first = json_of(&offline(&["-o", "json", "--effort", "0"], &[SHOP]));
    assert!(
        first["price"]["boughtUsdPerHour"]
            .as_f64()
            .expect("a price")
            >= bought
    );
    let said = offline(&["--bound-only"], &[SHOP]);
    let told = format!(
        "New nodes for 27 pods cost at least {bound:.3} USD an hour, however the pods are packed.\n"
    );
    assert_eq!((said.code, said.stdout), (Some(0), told));
    let said = offline(&["--bound-only"], &["docs/plan/gpu.yaml"]);
    assert_eq!(said.code, Some(1));
    assert!(said.stdout.contains("1 has no place"), "{}", said.stdout);
}

#[test]
fn pods_of_a_manifest_are_planned_by_their_images_where_the_user_says_so() {
    let iis = "
apiVersion: v1
kind: Pod
metadata: {name: iis}
spec: {containers: [{name: iis, image: 'mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022'}]}
";
    let pools = |more: &[&str]| {
        let args = ["--offline", "--default-pools", "-f", "-", "-o", "json"];
        let said = plan(&[&args[..], more].concat(), iis);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let pool = json_of(&said)["nodes"][0]["nodePool"].clone();
        (pool, said.stderr)
    };
    assert_eq!(pools(&[]), (json!("linux"), String::new()));
    let (pool, note) = pools(&["--place-by-image", "on"]);
    assert_eq!(pool, "windows-2022");
    let told = "note:  pods of the manifest are placed by their images (--place-by-image on); --place-by-image off asks without it\n";
    assert_eq!(note, told);
    let (pool, note) = pools(&["--place-by-image", "off"]);
    assert_eq!((pool, note), (json!("linux"), String::new()));
}

#[test]
fn a_cheaper_type_that_is_too_small_for_windows_is_named_where_it_would_hold_the_pods() {
    let remarks = |cpu: &str, memory: &str| {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "iis"},
            "spec": {
                "nodeSelector": {"kubernetes.io/os": "windows", "node.kubernetes.io/windows-build": "10.0.20348"},
                "tolerations": [{"key": "os", "operator": "Exists"}],
                "containers": [{"name": "iis", "image": "iis", "resources": {"requests": {"cpu": cpu, "memory": memory}}}],
            },
        });
        let args = ["--offline", "--default-pools", "-f", "-", "-o", "json"];
        let said = plan(&args, &pod.to_string());
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        json_of(&said)["remarks"].clone()
    };
    let left_out = "windows-2022 buys nothing cheaper: c7a.medium has 2048 MiB of memory, and types with less than 4096 MiB are bought for Windows \
        only where the NodePool's requirements name instance types, sizes or memory";
    assert_eq!(remarks("100m", "64Mi"), json!([left_out]));
    // It has 329 MiB for pods.
    assert_eq!(remarks("100m", "400Mi"), json!(null));
    assert_eq!(remarks("1", "64Mi"), json!(null));
}

#[test]
fn windows_pods_ask_for_their_addresses_where_these_are_switched_on() {
    let json = json_of(&offline(&["-o", "json"], &[SHOP]));
    let windows = json["nodes"].as_array().expect("nodes").iter();
    let windows = windows.filter(|node| {
        node["os"]
            .as_str()
            .is_some_and(|os| os.starts_with("windows"))
    });
    let addresses: u64 = windows
        .filter_map(|node| {
            node["resources"]["vpc.amazonaws.com/PrivateIPv4Address"]["requested"].as_str()
        })
        .filter_map(|count| count.parse::<u64>().ok())
        .sum();
    assert_eq!(addresses, 9);
}

#[test]
fn a_pod_that_no_pool_takes_is_told_why_by_each() {
    let said = offline(&[], &["docs/plan/gpu.yaml"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(1), ""));
    insta::assert_snapshot!(said.stdout);
}

/// An overlay for one type with these fields.
fn overlay(name: &str, kind: &str, fields: Value) -> tempfile::NamedTempFile {
    let mut spec = fields;
    spec["requirements"] = json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [kind]}
    ]);
    let overlay = json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name}, "spec": spec,
    });
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), overlay.to_string()).expect("a writable file");
    file
}

#[test]
fn a_plan_counts_with_node_overlays_and_says_which() {
    let pod = |requests: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{containers: [{{name: c, image: i, resources: {{requests: {requests}, limits: {requests}}}}}]}}}}"
        )
    };
    let args = ["--offline", "--default-pools", "-f", "-", "-o", "json"];
    let cheap = overlay("cheap", "m5.4xlarge", json!({"price": "0.001"}));
    let cheap = cheap.path().to_str().expect("UTF-8");
    let small = pod("{cpu: 1}");
    let said = json_of(&plan(&[&args[..], &["-f", cheap]].concat(), &small));
    let node = &said["nodes"][0];
    assert_eq!(node["instanceType"], "m5.4xlarge", "{said}");
    // A root volume of 20 GiB is paid beside the machine.
    assert_eq!(node["usdPerHour"], 0.003191);
    let counts = "NodeOverlay cheap counts, which needs the feature gate NodeOverlay in a cluster";
    assert_eq!(said["remarks"], json!([counts]));
    // The same as a question.
    let both = json_of(&plan(&[&args[..], &["--overlay", cheap]].concat(), &small));
    assert_eq!(both["whatIf"], json!(["with NodeOverlay cheap"]));
    assert_ne!(both["now"]["nodes"][0]["instanceType"], "m5.4xlarge");
    assert_eq!(both["then"]["nodes"][0]["instanceType"], "m5.4xlarge");
    // Resources that no machine has by itself.
    let cards = overlay(
        "cards",
        "m5.xlarge",
        json!({"capacity": {"example.com/card": "2"}}),
    );
    let cards = cards.path().to_str().expect("UTF-8");
    let wanting = pod("{example.com/card: 2}");
    let said = plan(&args, &wanting);
    assert_eq!(said.code, Some(1), "{}", said.stdout);
    let said = json_of(&plan(&[&args[..], &["-f", cards]].concat(), &wanting));
    assert_eq!(said["nodes"][0]["instanceType"], "m5.xlarge");
    // Two that change the same.
    let other = overlay("other", "m5.4xlarge", json!({"price": "9"}));
    let other = other.path().to_str().expect("UTF-8");
    let said = json_of(&plan(
        &[&args[..], &["-f", cheap, "-f", other]].concat(),
        &small,
    ));
    let conflict = "NodeOverlay cheap does not count: NodeOverlay other has the same weight and changes the same machines";
    assert_eq!(said["remarks"][0], conflict);
    assert_ne!(said["nodes"][0]["instanceType"], "m5.4xlarge");
}

#[test]
fn a_plan_without_pools_says_what_to_do() {
    let said = plan(&["--offline", "-f", SHOP], "");
    assert_eq!(said.code, Some(1));
    assert_eq!(
        said.stderr,
        "note:  the files have no NodePools, so nothing is bought: add theirs with -f, --default-pools takes those of `mullion up`\n"
    );
}

#[test]
fn what_is_wrong_with_the_question_is_said_in_a_sentence() {
    let refused = |args: &[&str], stdin: &str| {
        let said = plan(args, stdin);
        assert_eq!(said.code, Some(2), "{args:?} {}", said.stdout);
        assert_eq!(said.stdout, "", "{args:?}");
        said.stderr
    };
    let shop = ["--offline", "--default-pools", "-f", SHOP];
    let with = |more: &[&'static str]| refused(&[&shop[..], more].concat(), "");
    let workload = |spec: &str| {
        let template = "{metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: i}]}}";
        let object = format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: a}}, spec: {{{spec}, template: {template}}}}}"
        );
        refused(&["--offline", "-f", "-"], &object)
    };
    let said = [
        with(&["--drop-pool", "gold"]),
        with(&["--types", "m77*"]),
        with(&["--zones", "us-west-2z"]),
        with(&["--scale", "deployment/nobody=3"]),
        with(&["--scale", "web"]),
        with(&["--add-pool", SHOP]),
        with(&["--daemon", "docs/plan/gpu-pool.yaml"]),
        with(&["--remove-node", "n1"]),
        with(&["-f", "docs/plan/none.yaml"]),
        refused(&["--offline"], ""),
        refused(
            &["--offline", "-f", "-"],
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeSelectr: {}, containers: [{name: c, image: i}]}}",
        ),
        refused(
            &["--offline", "-f", "-"],
            "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: -1}}}]}}",
        ),
        workload("replcas: 3, selector: {matchLabels: {app: a}}"),
        workload("selector: {matchLabels: {app: b}}"),
        workload("replicas: -5, selector: {matchLabels: {app: a}}"),
        refused(&["--state", "-"], "hello"),
        refused(&["--cases", "-"], ""),
        refused(&["--catalogue", "a", "--cases", "b", "--spot", "never"], ""),
    ];
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn a_stateful_set_has_claims_for_each_of_its_pods_and_a_daemon_set_room_on_each_node() {
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "containers": [{"name": "c", "image": "postgres", "resources": {"requests": {"cpu": "1"}}}],
            }},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "storageClassName": "gp3", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "9Gi"}},
            }}],
        },
    });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "gp3"},
        "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer",
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [set, class]}).to_string();
    let args = [
        "--offline",
        "--default-pools",
        "-f",
        "-",
        "-f",
        "docs/plan/agent.yaml",
        "-o",
        "json",
    ];
    let said = plan(&args, &list);
    assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
    let json = json_of(&said);
    assert_eq!(json["pods"]["onNewNodes"], 3);
    let node = &json["nodes"][0];
    let pods: Vec<_> = json["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .flat_map(|node| node["pods"].as_array().expect("pods"))
        .collect();
    assert!(pods.contains(&&json!("default/db-2")), "{pods:?}");
    assert_eq!(node["resources"]["cpu"]["daemonSets"], "200m");
}

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
fn a_workload_without_pods_can_be_scaled_up_by_its_manifest() {
    let idle = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 0, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: nginx, resources: {requests: {cpu: 1}}}]}}}}";
    let flags = ["--offline", "--default-pools", "-o", "json", "-f", "-"];
    let scaled = plan(
        &[&flags[..], &["--scale", "deployment/web=5"]].concat(),
        idle,
    );
    assert_eq!(scaled.code, Some(0), "{}", scaled.stderr);
    let both = json_of(&scaled);
    assert_eq!(both["then"]["pods"]["onNewNodes"], 5, "{both}");
    assert_eq!(
        both["whatIf"][0],
        "Deployment default/web has 5 pods in place of 0"
    );
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

/// A pool of the node class of `mullion up`'s Linux pool.
const POOL: &str = "{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: NAME}, spec: {FIELD, template: {spec: {
    nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: linux}, requirements: []}}}}";

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
    assert_eq!(
        said("{apiVersion: apps/v1, kind: Deploymnet, metadata: {name: web}}"),
        "note:  stdin (Deploymnet web): nothing is taken from it: there is no kind Deploymnet, the nearest is Deployment\n"
    );
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
