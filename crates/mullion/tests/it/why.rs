//! `mullion why`: of many cases at once, of a file, and of a running cluster.

mod addresses;
mod buffers;
mod manifest;
mod refusals;
mod remedies;
mod running_pods;
mod standing;
mod workloads;

use std::{
    io::{BufRead, BufReader, Write},
    process::Command,
};

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, PATIENCE, text},
    process::ended,
};

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// What is said beside an answer where pods have no place and the state has no pools.
const NO_POOLS: &str = "note:  the state has no NodePools, so nothing is bought: kubectl get nodepools,nodeclaims,ec2nodeclasses adds them\n";

/// Runs `mullion why` with this on stdin.
fn why(args: &[&str], stdin: String) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    // A program that refuses its flags does not read.
    let output = ended(command.arg("why").args(args), &stdin, PATIENCE);
    Ended {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// A file with this text.
fn file(content: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(content.as_bytes()).expect("a writable file");
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("a UTF-8 path")
}

/// Two Linux nodes, one of them cordoned, and a tainted Windows node.
fn state() -> String {
    let node = |name: &str, os: &str, spec: Value| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/os": os, "kubernetes.io/hostname": name}},
            "spec": spec, "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "29"}},
        })
    };
    let taint = json!([{"key": "os", "value": "windows", "effect": "NoSchedule"}]);
    let pod = |name: &str, node: Option<&str>| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": name}},
            "spec": {
                "nodeName": node, "nodeSelector": {"kubernetes.io/os": "linux"},
                "containers": [{"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "1500m"}}}],
            },
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": [
        node("linux-1", "linux", json!({})),
        node("linux-2", "linux", json!({"unschedulable": true})),
        node("win-1", "windows", json!({"taints": taint})),
        pod("web", Some("linux-1")),
        pod("batch", None),
    ]})
    .to_string()
}

#[test]
fn cases_are_answered_as_kube_scheduler_answered_them() {
    let vectors = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../engine/testdata/scheduler-vectors.jsonl.gz"
    );
    let vectors = std::fs::File::open(vectors).expect("the engine's vectors");
    let lines: Vec<Value> = BufReader::new(GzDecoder::new(vectors))
        .lines()
        .map(|line| serde_json::from_str(&line.expect("gzip")).expect("JSON"))
        .collect();
    let cases: Vec<_> = lines
        .iter()
        .map(|line| json!({"items": line["items"], "pod": line["pod"]}).to_string())
        .collect();
    let ended = why(&["--cases", "-"], cases.join("\n"));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(ended.stdout.lines().count(), lines.len());
    for (line, answer) in lines.iter().zip(ended.stdout.lines()) {
        let mut ours: Value = serde_json::from_str(answer).expect("JSON");
        let mut theirs = line["answer"].clone();
        // Of evictions that upstream cannot tell apart, some were recorded; ours are all of them.
        let take = |answer: &mut Value| {
            answer
                .as_object_mut()
                .expect("an object")
                .remove("preemption")
        };
        let (ours_evict, theirs_evict) = (take(&mut ours), take(&mut theirs));
        assert_eq!(ours, theirs, "{}", line["id"]);
        assert_eq!(
            ours_evict.is_some(),
            theirs_evict.is_some(),
            "{}",
            line["id"]
        );
        for eviction in theirs_evict
            .iter()
            .flat_map(|some| some.as_array().expect("a list"))
        {
            let all = ours_evict
                .as_ref()
                .and_then(Value::as_array)
                .expect("a list");
            assert!(all.contains(eviction), "{}: {eviction}", line["id"]);
        }
    }
}

#[test]
fn a_line_that_is_no_case_says_so_in_its_place() {
    let cases =
        "{\"items\":[],\"pod\":{}}\nnonsense\n\n{\"items\":[{\"kind\":\"Node\"}],\"pod\":{}}";
    let ended = why(&["--cases", "-"], cases.into());
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    insta::assert_snapshot!(format!("{}{}", ended.stdout, ended.stderr));
}

#[test]
fn a_case_with_a_misspelt_kind_or_without_a_pod_says_which_and_why() {
    let cases = [
        r#"{"items":[{"kind":"Nod","metadata":{"name":"n1"}}],"pod":{}}"#,
        r#"{"items":[{"kind":"Secret","metadata":{"name":"key"}}],"pod":{}}"#,
        r#"{"items":[]}"#,
        r#"{"items":[],"pod":null}"#,
        r#"{"items":[],"pod":[]}"#,
    ];
    let ended = why(&["--cases", "-"], cases.join("\n"));
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let none = r#"there is no pod: \"pod\": {...} says which one is asked about"#;
    let expected = [
        r#"{"error":"line 1: items[0] (Nod n1): there is no kind Nod, the nearest is Node"}"#
            .to_owned(),
        // Objects that do not decide where pods go may be there.
        r#"{"nodes":[],"best":null,"message":"no nodes available to schedule pods"}"#.to_owned(),
        format!(r#"{{"error":"line 3: {none}"}}"#),
        format!(r#"{{"error":"line 4: {none}"}}"#),
        r#"{"error":"line 5: pod: invalid type: sequence, expected a pod"}"#.to_owned(),
    ];
    assert_eq!(ended.stdout.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_file_of_objects_is_asked_without_a_cluster() {
    let state = file(&state());
    let waiting = why(&["--state", path(&state)], String::new());
    assert_eq!(waiting.code, Some(1), "{}", waiting.stderr);
    let bound = why(
        &["--state", path(&state), "pod", "web", "-n", "shop"],
        String::new(),
    );
    assert_eq!(bound.code, Some(0), "{}", bound.stderr);
    insta::assert_snapshot!(format!("{}\n{}", waiting.stdout, bound.stdout));
    let json = why(
        &["--state", path(&state), "-l", "app=batch", "-o", "json"],
        String::new(),
    );
    let json: Value = serde_json::from_str(&json.stdout).expect("one object");
    assert_eq!(
        json["changes"][0]["changes"],
        json!(["uncordon node linux-2"])
    );
    assert_eq!(json["refusals"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_file_without_objects_is_no_state() {
    let state = file("");
    let ended = why(&["--state", path(&state)], String::new());
    assert_eq!(ended.code, Some(2));
    let said = ended.stderr.replace(path(&state), "FILE");
    assert!(said.starts_with("error: FILE: it is empty\n"), "{said}");
    let text = file("hello world");
    let ended = why(&["--state", path(&text)], String::new());
    assert_eq!(ended.code, Some(2));
    let said = ended.stderr.replace(path(&text), "FILE");
    assert!(
        said.starts_with(
            "error: FILE: it is the text \"hello world\"\nhint:  it must be a list of objects: "
        ),
        "{said}"
    );
}

#[test]
fn an_object_that_is_wrong_is_named() {
    let said = |wrong: Value| {
        let items = json!([node_of_4("n0"), {"kind": "List", "items": []}, wrong]);
        let state = file(&json!({"kind": "List", "items": items}).to_string());
        let ended = why(&["--state", path(&state)], String::new());
        assert_eq!(ended.code, Some(2));
        ended.stderr.replace(path(&state), "FILE")
    };
    let mut pod = pod_of("web", "1", 0, None);
    pod["spec"]["priority"] = json!("high");
    assert_eq!(
        said(pod),
        "error: FILE: items[2] (Pod shop/web): invalid type: string \"high\", expected i32\n"
    );
    let bare = json!({"metadata": {"name": "bare"}});
    assert_eq!(
        said(bare),
        "error: FILE: items[2] (bare): an object without a kind\n"
    );
    let pool = json!({"kind": "NodePool", "metadata": {"name": "gold"}, "spec": 7});
    let refused = said(pool);
    let refused = refused.lines().last().unwrap_or_default();
    assert!(
        refused.starts_with("error: NodePool gold: invalid type"),
        "{refused}"
    );
}

#[test]
fn what_cannot_be_asked_is_named() {
    let said = |args: &[&str]| {
        let ended = why(args, String::new());
        assert_eq!(ended.code, Some(2), "{args:?}");
        ended.stderr
    };
    let missing = said(&["pod", "x", "--kubeconfig", "/nowhere/config"]);
    assert!(
        missing.starts_with(
            "error: there is no cluster to ask: kubeconfig /nowhere/config: there is no such file\nhint: "
        ),
        "{missing}"
    );
    // What a reader of YAML shows of the file is no sentence.
    let text = file("this: is: no kubeconfig");
    let broken = said(&["pod", "x", "--kubeconfig", path(&text)]);
    assert_eq!(broken.lines().count(), 2, "{broken}");
    assert!(
        broken.contains(": failed to parse kubeconfig YAML: line 1 column 9: mapping values"),
        "{broken}"
    );
    // Bound and dropped at once: nothing listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let port = port.expect("loopback has ports").port();
    let config = file(&format!(
        "{{clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}], users: [{{name: u, user: {{}}}}], \
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}], current-context: c}}"
    ));
    let gone = said(&["pod", "x", "--kubeconfig", path(&config)]);
    let start = format!("error: http://127.0.0.1:{port}/api/v1/nodes cannot be listed: Connection");
    assert!(
        gone.starts_with(&start) && !gone.contains("os error"),
        "{gone}"
    );
    let (state, broken) = (file(&state()), file("{a: [\n"));
    let broken = said(&["--state", path(&state), "-f", path(&broken)]);
    assert_eq!(broken.lines().count(), 1, "{broken}");
    let nobody = said(&[
        "--state",
        path(&state),
        "pod",
        "-n",
        "shop",
        "-l",
        "app=nobody",
    ]);
    assert_eq!(
        nobody,
        "error: no pod in namespace shop has the labels app=nobody\nhint:  kubectl get pods -A --show-labels\n"
    );
    let cases = said(&["--cases", "/nowhere/cases"]);
    assert!(
        cases.starts_with("error: cases /nowhere/cases cannot be read: there is no such file\n"),
        "{cases}"
    );
}

#[test]
fn a_misspelt_field_is_refused() {
    let state = file(&state());
    let pod = file(
        "{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {nodeSelectr: {a: b}, containers: [{name: c, image: i}]}}",
    );
    let ended = why(&["--state", path(&state), "-f", path(&pod)], String::new());
    assert_eq!(ended.code, Some(2), "{}", ended.stdout);
    let expected = format!(
        "error: {} (Pod x): Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.nodeSelectr\"\n",
        path(&pod)
    );
    assert_eq!(ended.stderr, expected);
}

#[test]
fn a_manifest_is_admitted_first_and_refused_in_the_api_servers_words() {
    let state = file(&state());
    let manifest = |os: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "iis", "namespace": "shop"},
            "spec": {"selector": {"matchLabels": {"app": "iis"}}, "template": {"metadata": {"labels": {"app": "iis"}}, "spec": {
                "os": {"name": os}, "securityContext": {"runAsUser": 1000}, "containers": [{"name": "c", "image": "i"}],
            }}},
        })
        .to_string()
    };
    let refused = file(&manifest("windows"));
    let ended = why(
        &["--state", path(&state), "-f", path(&refused)],
        String::new(),
    );
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("cannot be set for a windows pod"),
        "{}",
        ended.stderr
    );
    let fits = file(&manifest("linux"));
    let ended = why(&["--state", path(&state), "-f", path(&fits)], String::new());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended
            .stdout
            .starts_with("a pod of Deployment shop/iis goes to linux-1: 1 of 3 nodes fit."),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_running_cluster_says_what_its_pools_lack_and_what_would_help() {
    let cluster = Cluster::start(&["--speed", "max"]);
    cluster.apply(
        // Placement from its image would add the toleration.
        r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "iis", "labels": {"mullion.dev/place-by-image": "false"}}, "spec": {
            "os": {"name": "windows"}, "nodeSelector": {"node.kubernetes.io/windows-build": "10.0.20348"},
            "containers": [{"name": "c", "image": "mcr.microsoft.com/windows/nanoserver:ltsc2022"}]}}"#,
    );
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a UTF-8 path");
    let ended = why(
        &["pod", "iis", "--kubeconfig", kubeconfig, "-o", "json"],
        String::new(),
    );
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let said: Value = serde_json::from_str(&ended.stdout).expect("one object");
    assert_eq!(
        said["changes"][0]["changes"],
        json!(["tolerate the taint os=windows:NoSchedule"])
    );
    assert_eq!(said["changes"][0]["buys"]["pool"], "windows-2022");
    assert!(
        said["changes"][0]["buys"]["usdPerHour"]
            .as_f64()
            .is_some_and(|price| price > 0.0)
    );
    let pools = said["pools"].as_array().expect("every pool has its say");
    assert_eq!(pools.len(), 4, "{said}");
    a_file_of_its_objects_says_the_same(&cluster, kubeconfig);
}

/// By the command that docs/why.md gives.
fn a_file_of_its_objects_says_the_same(cluster: &Cluster, kubeconfig: &str) {
    let documentation = include_str!("../../../../docs/why.md");
    let command = documentation
        .lines()
        .skip_while(|line| !line.starts_with("kinds="))
        .take_while(|line| !line.starts_with("mullion"));
    let script: Vec<&str> = command.collect();
    let script = script.join("\n").replace("> state.json", "");
    let got = cluster.run("sh", &["-c", &script], "");
    assert!(got.status.success(), "{script}\n{}", text(&got.stderr));
    let live = why(&["pod", "iis", "--kubeconfig", kubeconfig], String::new());
    let from_file = why(&["pod", "iis", "--state", "-"], text(&got.stdout));
    assert_eq!(from_file.stdout, live.stdout);
    assert_eq!((from_file.code, from_file.stderr.as_str()), (live.code, ""));
    // A file without pools knows less, and says so.
    let nodes_and_pods = cluster.kubectl(&["get", "nodes,pods", "-A", "-o", "json"]);
    let less = why(&["pod", "iis", "--state", "-"], nodes_and_pods);
    assert_eq!((less.code, less.stderr.as_str()), (Some(1), NO_POOLS));
}

/// A node of 4 cpu.
fn node_of_4(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "29"}},
    })
}

/// A pod with this request of cpu, on a node or waiting.
fn pod_of(name: &str, cpu: &str, priority: i32, node: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": name},
        "spec": {
            "nodeName": node, "priority": priority,
            "containers": [{"name": "c", "image": "nginx", "resources": {"requests": {"cpu": cpu}}}],
        },
    })
}

/// What is said of a pod of the namespace `shop` among these objects: as text with the exit code, and as data.
fn said_of(pod: &str, items: Value) -> (String, Option<i32>, Value) {
    let is_pool = |item: &Value| item["kind"] == "NodePool";
    let has_pools = items
        .as_array()
        .is_some_and(|items| items.iter().any(is_pool));
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let args = ["--state", path(&state), "-n", "shop", "pod", pod];
    let text = why(&args, String::new());
    let note = match (text.code, has_pools) {
        (Some(0), _) | (_, true) => "",
        _ => NO_POOLS,
    };
    assert_eq!(text.stderr, note);
    let json = why(&[&args[..], &["-o", "json"]].concat(), String::new());
    let json = serde_json::from_str(&json.stdout).expect("one object");
    (text.stdout, text.code, json)
}

#[test]
fn a_pod_that_makes_room_for_itself_is_told_whom_it_evicts_and_to_change_nothing() {
    let mut items = vec![node_of_4("n0"), node_of_4("n1")];
    items.extend((0..6).map(|number| pod_of(&format!("low-{number}"), "500m", 0, Some("n0"))));
    items.push(pod_of("high", "4", 1_000, Some("n1")));
    items.push(pod_of("urgent", "4", 100, None));
    let (text, code, json) = said_of("urgent", json!(items));
    assert_eq!(code, Some(0));
    assert_eq!(json["changes"], json!([]));
    insta::assert_snapshot!(text);

    let unable = pod_of("unable", "4", 0, None);
    items.push(unable);
    let (text, code, json) = said_of("unable", json!(items));
    assert_eq!(code, Some(1));
    let event = "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available: \
                 2 No preemption victims found for incoming pod.";
    assert_eq!(json["event"], event);
    assert!(
        text.ends_with(&format!("FailedScheduling: {event}\n")),
        "{text}"
    );
}

#[test]
fn room_that_is_promised_to_a_pod_is_its_own() {
    let promised = |mut pod: Value, node: &str| {
        pod["status"] = json!({"nominatedNodeName": node});
        pod
    };
    let free = [
        node_of_4("n0"),
        node_of_4("n1"),
        promised(pod_of("own", "3", 10, None), "n1"),
    ];
    let (text, code, json) = said_of("own", json!(free));
    assert_eq!((code, &json["answer"]["best"]), (Some(0), &json!(["n1"])));
    assert!(
        text.starts_with("pod shop/own goes to n1, which is promised to it: 2 of 2 nodes fit.\n"),
        "{text}"
    );

    let mut leaving = pod_of("leaving", "3", 0, Some("n0"));
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let preempted =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
    leaving["status"] = json!({"conditions": preempted});
    let waits = [
        node_of_4("n0"),
        leaving,
        promised(pod_of("own", "3", 10, None), "n0"),
    ];
    let (text, code, json) = said_of("own", json!(waits));
    assert_eq!((code, &json["changes"]), (Some(0), &json!([])));
    assert!(
        text.starts_with("pod shop/own waits on n0, which is promised to it, until pods that are terminating there are gone:"),
        "{text}"
    );
    let end = "preemption: not eligible due to a terminating pod on the nominated node.\n";
    assert!(text.ends_with(end), "{text}");
}

/// Two nodes of 4 cpu, a cpu of the first taken, and a pod for the scheduler `packing`, which takes the fuller one.
fn packing() -> (Value, tempfile::NamedTempFile) {
    let mut pod = pod_of("batch", "1", 0, None);
    pod["spec"]["schedulerName"] = json!("packing");
    let items = json!([
        node_of_4("n0"),
        node_of_4("n1"),
        pod_of("web", "1", 0, Some("n0")),
        pod,
    ]);
    let config = file(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: packing\n  plugins:\n    score:\n      \
         disabled: [{name: '*'}]\n      enabled: [{name: NodeResourcesFit}]\n  pluginConfig:\n  - name: NodeResourcesFit\n    \
         args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}\n",
    );
    (items, config)
}

#[test]
fn a_file_of_the_schedulers_configuration_decides_about_a_file_of_objects_and_about_cases() {
    let (items, config) = packing();
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let unserved = why(&["--state", path(&state)], String::new());
    assert_eq!(unserved.code, Some(1), "{}", unserved.stderr);
    let expected = "pod shop/batch is scheduled by nobody: its schedulerName is packing, and the scheduler's only profile is default-scheduler.\n";
    assert!(unserved.stdout.starts_with(expected), "{}", unserved.stdout);
    let flags = ["--scheduler-config", path(&config)];
    let served = why(
        &[&["--state", path(&state)], &flags[..]].concat(),
        String::new(),
    );
    assert_eq!(served.code, Some(0), "{}", served.stderr);
    let start = "pod shop/batch goes to n0: 2 of 2 nodes fit.\n";
    assert!(served.stdout.starts_with(start), "{}", served.stdout);

    let items = items.as_array().expect("a list");
    let case = json!({"items": items[..3], "pod": items[3]}).to_string();
    let best = |flags: &[&str]| {
        let ended = why(&[&["--cases", "-"], flags].concat(), case.clone());
        let said: Value = serde_json::from_str(&ended.stdout).expect("an answer");
        (said["best"].clone(), said["message"].clone())
    };
    assert_eq!(best(&flags), (json!(["n0"]), Value::Null));
    let unknown = "profile not found for scheduler name \"packing\"";
    assert_eq!(best(&[]), (Value::Null, json!(unknown)));
}

#[test]
fn several_ports_and_several_terms_in_the_way_are_all_found() {
    let mut taken = pod_of("proxy", "1", 0, Some("n0"));
    taken["metadata"]["labels"] = json!({"app": "proxy"});
    taken["spec"]["containers"][0]["ports"] =
        json!([{"hostPort": 80, "containerPort": 80}, {"hostPort": 443, "containerPort": 443}]);
    let mut ports = pod_of("ports", "1", 0, None);
    ports["spec"]["containers"][0]["ports"] = taken["spec"]["containers"][0]["ports"].clone();
    let changes = |pod: Value| {
        let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
        let (_, code, said) = said_of(&name, json!([node_of_4("n0"), taken, pod]));
        assert_eq!(code, Some(1));
        said["changes"][0]["changes"].clone()
    };
    assert_eq!(
        changes(ports),
        json!(["give up host port 80", "give up host port 443"])
    );
    let term = |app: &str| json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}});
    let mut away = pod_of("away", "1", 0, None);
    let terms = json!([term("other"), term("proxy")]);
    away["spec"]["affinity"] =
        json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    let proxy = "drop the required anti-affinity to pods with app=proxy by kubernetes.io/hostname";
    assert_eq!(changes(away), json!([proxy]));
    let mut near = pod_of("near", "1", 0, None);
    let terms = json!([term("b"), term("proxy"), term("a")]);
    near["spec"]["affinity"] =
        json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    let words = |app: &str| {
        format!("drop the required affinity to pods with app={app} by kubernetes.io/hostname")
    };
    assert_eq!(changes(near), json!([words("a"), words("b")]));
}

#[test]
fn pods_of_one_template_make_room_one_after_the_other() {
    let mut items = vec![node_of_4("n0"), node_of_4("n1")];
    items.extend(["n0", "n1"].map(|node| pod_of(&format!("low-{node}"), "3", 0, Some(node))));
    items.extend((1..=3).map(|number| pod_of(&format!("urgent-{number}"), "3", 100, None)));
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let ended = why(&["--state", path(&state)], String::new());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn a_table_of_images_keeps_a_pod_from_builds_that_its_image_does_not_run_on() {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "w", "labels": {
            "kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64", "node.kubernetes.io/windows-build": "10.0.20348",
        }},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shop", "namespace": "default"},
        "spec": {
            "nodeSelector": {"kubernetes.io/os": "windows", "node.kubernetes.io/windows-build": "10.0.17763"},
            "containers": [{"name": "shop", "image": "registry.example.com/shop:1"}],
        },
    });
    let state =
        file(&json!({"kind": "List", "apiVersion": "v1", "items": [node, pod]}).to_string());
    let said = |images: Option<&str>| {
        let table = images.map(|build| {
            file(&format!(
                "images: [{{repository: registry.example.com/shop, os: windows, build: {build}}}]\n"
            ))
        });
        let mut args = vec!["pod", "shop", "--state", path(&state)];
        if let Some(table) = &table {
            args.extend(["--images", path(table)]);
        }
        let ended = why(&args, String::new());
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        ended.stdout
    };
    let advice = "ask for node.kubernetes.io/windows-build=10.0.20348";
    assert!(said(None).contains(advice), "{}", said(None));
    let newer = said(Some("10.0.20348"));
    assert!(newer.contains(advice), "{newer}");
    let older = said(Some("10.0.17763"));
    assert!(!older.contains(advice), "{older}");
    let source = "Image registry.example.com/shop:1 runs on Windows of build 10.0.17763, by the repository registry.example.com/shop (a guess)";
    assert!(older.contains(source), "{older}");
}
