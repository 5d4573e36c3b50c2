//! `mullion plan` of manifests, with no cluster.

use serde_json::{Value, json};

use super::ask::{SHOP, json_of, offline, plan, root};

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
fn a_job_is_scaled_to_no_more_pods_than_it_needs_completions() {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [
        {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "1"}}},
    ]}});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
        "spec": {"parallelism": 2, "completions": 6, "template": template},
    });
    let scaled = |pods: &str| {
        let scale = format!("job/j={pods}");
        let flags = [
            "--offline",
            "--default-pools",
            "-o",
            "json",
            "-f",
            "-",
            "--scale",
            &scale,
        ];
        let said = plan(&flags, &job.to_string());
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let both = json_of(&said);
        (
            both["then"]["pods"]["asked"].clone(),
            both["whatIf"][0].clone(),
        )
    };
    let change = "Job default/j has 6 pods in place of 2, not 10: it needs 6 completions";
    assert_eq!(scaled("10"), (json!(6), json!(change)));
    let change = "Job default/j has 5 pods in place of 2";
    assert_eq!(scaled("5"), (json!(5), json!(change)));
    // What has succeeded needs no pod any more.
    let mut there = job.clone();
    there["metadata"]["namespace"] = json!("default");
    there["status"] = json!({"succeeded": 4});
    let state = tempfile::NamedTempFile::new().expect("a temporary file");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [there]});
    std::fs::write(state.path(), list.to_string()).expect("a writable file");
    let path = state.path().to_str().expect("UTF-8");
    let flags = [
        "--state",
        path,
        "--default-pools",
        "-o",
        "json",
        "--scale",
        "job/j=10",
    ];
    let said = plan(&flags, "");
    let both = json_of(&said);
    assert_eq!(
        both["whatIf"][0],
        "Job default/j has 2 pods in place of 0, not 10: 4 of its 6 completions are done",
        "{}",
        said.stderr
    );
}
