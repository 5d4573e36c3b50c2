//! `mullion why -f`: what a manifest would make of the cluster.

use serde_json::{Value, json};

use super::{file, node_of_4, path, pod_of, why};

/// What is said of the pods of a manifest among these objects.
pub(super) fn planned(items: &[Value], manifest: &str) -> (String, String, Value) {
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let manifest = file(manifest);
    let args = ["--state", path(&state), "-f", path(&manifest)];
    let text = why(&args, String::new());
    let json = why(&[&args[..], &["-o", "json"]].concat(), String::new());
    let data = serde_json::from_str(json.stdout.lines().next().unwrap_or("null"));
    let stderr = text.stderr.replace(path(&manifest), "FILE");
    (text.stdout, stderr, data.expect("JSON"))
}

fn score(said: &Value, node: &str, plugin: &str) -> i64 {
    let nodes = said["answer"]["nodes"].as_array().expect("nodes");
    let found = nodes.iter().find(|own| own["name"] == node);
    found.expect("the node")["scores"][plugin]
        .as_i64()
        .unwrap_or(0)
}

#[test]
fn what_comes_with_a_pod_is_there_when_it_is_asked_about() {
    let manifest = "
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {
  selector: {matchLabels: {app: web}},
  template: {metadata: {labels: {app: web}}, spec: {
    priorityClassName: gold, containers: [{name: c, image: nginx}],
    volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {
  accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: disks, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}},
  provisioner: example.com/disks, volumeBindingMode: WaitForFirstConsumer}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: gold}, value: 1000}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
";
    let (text, stderr, _) = planned(&[node_of_4("n0")], manifest);
    assert_eq!(stderr, "");
    let start = "a pod of Deployment shop/web goes to n0: 1 of 1 nodes fit.\n";
    assert!(text.starts_with(start), "{text}");

    let alone = manifest.split("---").next().expect("the Deployment");
    let (_, stderr, _) = planned(&[node_of_4("n0")], alone);
    assert_eq!(
        stderr,
        "error: FILE (Deployment shop/web): pods \"web\" is forbidden: no PriorityClass with name gold was found\n"
    );
    let classless = alone.replace("priorityClassName: gold,", "");
    let (text, _, _) = planned(&[node_of_4("n0")], &classless);
    let needed =
        "\nNo change to the pod places it: PersistentVolumeClaim data has to be created.\n";
    assert!(text.contains(needed), "{text}");
}

#[test]
fn a_pod_of_a_workload_keeps_away_from_its_siblings() {
    let mut items = vec![
        node_of_4("n0"),
        node_of_4("n1"),
        pod_of("other", "500m", 0, Some("n1")),
    ];
    for name in ["web-1", "web-2"] {
        let mut pod = pod_of(name, "100m", 0, Some("n0"));
        pod["metadata"]["labels"] = json!({"app": "web"});
        items.push(pod);
    }
    let set = |kind: &str| {
        let version = if kind == "ReplicationController" {
            "v1"
        } else {
            "apps/v1"
        };
        let selector = match kind {
            "ReplicationController" => json!({"app": "web"}),
            _ => json!({"matchLabels": {"app": "web"}}),
        };
        json!({
            "apiVersion": version, "kind": kind, "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"selector": selector, "template": {
                "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]},
            }},
        })
        .to_string()
    };
    for kind in ["ReplicaSet", "StatefulSet", "ReplicationController"] {
        let (_, _, said) = planned(&items, &set(kind));
        let spread = ["n0", "n1"].map(|node| score(&said, node, "PodTopologySpread"));
        assert!(spread[0] < spread[1], "{kind}: {spread:?}");
    }
    // Its own ReplicaSet is a new one, which has no pods yet.
    let (_, _, said) = planned(&items, &set("Deployment"));
    assert_eq!(
        score(&said, "n0", "PodTopologySpread"),
        score(&said, "n1", "PodTopologySpread")
    );
}

#[test]
fn a_stateful_set_brings_its_claims() {
    let manifest = "
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shop}, spec: {
  serviceName: db, selector: {matchLabels: {app: db}},
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /data}]}]}},
  volumeClaimTemplates: [{metadata: {name: data}, spec: {storageClassName: disks, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}
";
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disks"},
        "provisioner": "example.com/disks", "volumeBindingMode": "WaitForFirstConsumer",
    });
    let (text, stderr, _) = planned(&[node_of_4("n0"), class], manifest);
    assert_eq!(stderr, "");
    let start = "a pod of StatefulSet shop/db goes to n0: 1 of 1 nodes fit.\n";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn what_a_cluster_makes_for_a_pod_is_made() {
    let manifest = "
{apiVersion: v1, kind: Pod, metadata: {name: train, namespace: shop}, spec: {
  resourceClaims: [{name: gpu, resourceClaimTemplateName: gpus}],
  volumes: [{name: scratch, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: disks, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}],
  containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}, volumeMounts: [{name: scratch, mountPath: /scratch}]}]}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: gpus, namespace: shop}, spec: {spec: {devices: {
  requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}}}
---
{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpu.example.com}, spec: {selectors: [{cel: {expression: device.driver == 'gpu.example.com'}}]}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: n0}, spec: {
  nodeName: n0, driver: gpu.example.com, pool: {name: n0, generation: 1, resourceSliceCount: 1}, devices: [{name: a}]}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: disks}, provisioner: example.com/disks, volumeBindingMode: WaitForFirstConsumer}
";
    let (text, stderr, _) = planned(&[node_of_4("n0"), node_of_4("n1")], manifest);
    assert_eq!(stderr, "");
    let start = "pod shop/train goes to n0: 1 of 2 nodes fit.\n";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn a_daemon_set_has_a_pod_on_every_node_it_is_meant_for() {
    let mut cordoned = node_of_4("n2");
    cordoned["spec"] = json!({
        "unschedulable": true, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
    });
    let mut tainted = node_of_4("n3");
    tainted["spec"] = json!({"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]});
    let mut old = pod_of("agent-old", "1", 0, Some("n0"));
    old["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "agent", "controller": true,
    }]);
    let items = [
        node_of_4("n0"),
        node_of_4("n1"),
        cordoned,
        tainted,
        old,
        pod_of("web", "3", 0, Some("n0")),
        pod_of("big", "3500m", 0, Some("n1")),
    ];
    let manifest = "
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent, namespace: shop}, spec: {selector: {matchLabels: {app: agent}}, template: {
  metadata: {labels: {app: agent}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: '1'}}}]}}}}
";
    let (text, stderr, said) = planned(&items, manifest);
    assert_eq!(stderr, "");
    assert_eq!(said["daemon"]["runsOn"], json!(["n0", "n2"]));
    assert_eq!(said["daemon"]["waitsOn"], json!(["n1"]));
    insta::assert_snapshot!(text);
}

#[test]
fn several_files_and_directories_are_one_manifest() {
    let directory = tempfile::tempdir().expect("a directory");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: c, image: i}]}}";
    std::fs::write(directory.path().join("pod.yaml"), pod).expect("a file");
    let other = file(&pod.replace("web", "other"));
    let items = [node_of_4("n0"), pod_of("web", "1", 0, Some("n0"))];
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let shown = directory.path().to_str().expect("UTF-8");
    let both = ["--state", path(&state), "-f", shown, "-f", path(&other)];
    let ended = why(&both, String::new());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.starts_with("pod shop/web goes to n0"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.contains("So for pod shop/other."),
        "{}",
        ended.stdout
    );
    let note = "note:  pod shop/web exists: the answer is for another one like it; `mullion why pod web -n shop` asks about the one that is there\n";
    assert_eq!(ended.stderr, note);
}

#[test]
fn a_helm_chart_is_named_with_the_command_that_renders_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let chart = directory.path();
    std::fs::write(chart.join("Chart.yaml"), "name: shop\n").expect("a file");
    std::fs::write(chart.join("values.yaml"), "replicas: 3\n").expect("a file");
    let state = file(&json!({"kind": "List", "items": [node_of_4("n0")]}).to_string());
    for path_of in [chart.to_owned(), chart.join("values.yaml")] {
        let shown = path_of.to_str().expect("UTF-8");
        let ended = why(&["--state", path(&state), "-f", shown], String::new());
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let said = format!(
            "error: {shown} is of a Helm chart, which Helm renders\nhint:  helm template {} >all.yaml, and -f all.yaml\n",
            chart.display()
        );
        assert_eq!(ended.stderr, said);
    }
}

#[test]
fn a_manifest_without_pods_is_named() {
    let service =
        "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}";
    let (_, stderr, _) = planned(&[node_of_4("n0")], service);
    assert_eq!(
        stderr,
        "error: FILE: there is no pod and no workload with pods\n"
    );
}

pub(super) const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: c, image: i}]}}";

#[test]
fn what_the_cluster_has_made_of_an_object_stays() {
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "gold"},
        "spec": {"template": {"spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "c"}}}},
    });
    let mut there = pool.clone();
    there["status"] = json!({"conditions": [{
        "type": "Ready", "status": "False", "reason": "R", "message": "no subnets", "lastTransitionTime": "1970-01-01T00:00:00Z",
    }]});
    let manifest = format!("{POD}\n---\n{pool}\n");
    let (_, stderr, said) = planned(&[there], &manifest);
    assert_eq!(stderr, "");
    assert_eq!(
        said["pools"],
        json!([{"pool": "gold", "reason": "it is not ready: no subnets"}])
    );
    let (_, _, said) = planned(&[], &manifest);
    let unready = "its node class c is not there or not complete";
    assert_eq!(said["pools"], json!([{"pool": "gold", "reason": unready}]));
}

#[test]
fn a_claim_that_has_its_volume_and_one_that_has_its_device_keep_them() {
    let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "shop", "uid": "u"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "", "volumeName": "disk"},
    });
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "csi": {"driver": "d", "volumeHandle": "h"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]}},
        },
    });
    let device = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "gpu", "namespace": "shop"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    });
    let with_disk = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: c, image: i}],
        volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]}}";
    let with_device = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {
        containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}}], resourceClaims: [{name: gpu, resourceClaimName: gpu}]}}";
    let (mut own_claim, mut own_volume, mut own_device) =
        (claim.clone(), volume.clone(), device.clone());
    own_claim["metadata"]["annotations"] = bound;
    own_claim["status"] = json!({"phase": "Bound"});
    own_volume["spec"]["claimRef"] = json!({"namespace": "shop", "name": "data", "uid": "u"});
    own_volume["status"] = json!({"phase": "Bound"});
    own_device["status"] = json!({"allocation": {
        "devices": {"results": [{"request": "gpu", "driver": "d", "pool": "n1", "device": "a"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]},
    }});
    let items = [
        node_of_4("n0"),
        node_of_4("n1"),
        own_claim,
        own_volume,
        own_device,
    ];
    // As they are written down in a repository: of nobody and nowhere.
    let mut claim = claim;
    claim["spec"]["volumeName"].take();
    claim["metadata"]["uid"].take();
    let mut volume = volume;
    volume["spec"]["nodeAffinity"].take();
    for manifest in [
        format!("{with_disk}\n---\n{claim}\n---\n{volume}\n"),
        format!("{with_device}\n---\n{device}\n"),
    ] {
        let (text, stderr, _) = planned(&items, &manifest);
        assert_eq!(stderr, "");
        let start = "pod shop/web goes to n1: 1 of 2 nodes fit.\n";
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn nodes_of_a_manifest_are_there_and_keep_what_their_kubelets_say() {
    let new = node_of_4("n1");
    let cordon = "{apiVersion: v1, kind: Node, metadata: {name: n0}, spec: {taints: [{key: team, effect: NoSchedule}]}}";
    let manifest = format!("{POD}\n---\n{new}\n---\n{cordon}\n");
    let (text, stderr, said) = planned(&[node_of_4("n0")], &manifest);
    assert_eq!(stderr, "");
    assert!(
        text.starts_with("pod shop/web goes to n1: 1 of 2 nodes fit.\n"),
        "{text}"
    );
    let refused = said["refusals"][0]["reason"].as_str().expect("a reason");
    assert!(refused.contains("team"), "{refused}");
    let tolerant = manifest.replace(
        "spec: {containers",
        "spec: {nodeSelector: {kubernetes.io/os: linux}, tolerations: [{key: team}], containers",
    );
    let tolerant = tolerant.replace("key: team}]", "key: team, operator: Exists}]");
    let (text, _, _) = planned(&[node_of_4("n0")], &tolerant);
    assert!(text.contains("2 of 2 nodes fit"), "{text}");
}

#[test]
fn a_manifest_changes_of_a_node_that_is_there_what_it_says() {
    let mut there = node_of_4("n0");
    there["spec"] =
        json!({"unschedulable": true, "taints": [{"key": "team", "effect": "NoSchedule"}]});
    let asks = |selector: &str, node: &str| {
        let pod = POD.replace(
            "spec: {containers",
            &format!("spec: {{nodeSelector: {selector}, containers"),
        );
        let node = format!("{{apiVersion: v1, kind: Node, {node}}}");
        planned(&[there.clone()], &format!("{pod}\n---\n{node}\n")).0
    };
    let both = "{disk: ssd, kubernetes.io/os: linux}";
    let labelled = "metadata: {name: n0, labels: {disk: ssd}}";
    let fits = "pod shop/web goes to n0: 1 of 1 nodes fit.\n";
    let open = format!("{labelled}, spec: {{unschedulable: false, taints: []}}");
    assert!(asks(both, &open).starts_with(fits), "{}", asks(both, &open));
    let status = "status: {allocatable: {cpu: 8, memory: 8Gi, pods: 29}}";
    let text = asks(both, &format!("{open}, {status}"));
    assert!(text.starts_with(fits), "{text}");
    let [tainted, cordoned] = ["tolerate the taint team:NoSchedule", "uncordon node n0"];
    let as_before = format!("{tainted}, and {cordoned}");
    for (node, change) in [
        (labelled.to_owned(), &*as_before),
        (format!("{labelled}, {status}"), &*as_before),
        (format!("{labelled}, spec: {{taints: []}}"), cordoned),
        (
            format!("{labelled}, spec: {{unschedulable: false}}"),
            tainted,
        ),
    ] {
        let text = asks(both, &node);
        let sentence = format!("places it:\n    {change} ");
        assert!(text.contains(&sentence), "{node}: {text}");
    }
}

#[test]
fn what_nothing_is_taken_from_is_named() {
    let object = |kind: &str, name: &str| {
        format!("\n---\n{{apiVersion: v1, kind: {kind}, metadata: {{name: {name}}}}}")
    };
    let said = |more: &[(&str, &str)]| {
        let more: String = more.iter().map(|(kind, name)| object(kind, name)).collect();
        let (text, stderr, _) = planned(&[node_of_4("n0")], &format!("{POD}{more}"));
        assert!(
            text.starts_with("pod shop/web goes to n0"),
            "{text}{stderr}"
        );
        stderr
    };
    assert_eq!(said(&[]), "");
    assert_eq!(
        said(&[("Deploymnet", "a")]),
        "note:  FILE: document 2 (Deploymnet a): nothing is taken from it: there is no kind Deploymnet, the nearest is Deployment\n"
    );
    assert_eq!(
        said(&[("Secret", "a")]),
        "note:  nothing is taken from FILE: document 2 (Secret a): an object of its kind does not decide where pods go\n"
    );
    assert_eq!(
        said(&[("Secret", "a"), ("ConfigMap", "a")]),
        "note:  nothing is taken from FILE: document 2 (Secret a), FILE: document 3 (ConfigMap a): objects of these kinds do not decide where pods go\n"
    );
    let (_, stderr, _) = planned(&[node_of_4("n0")], "# nothing yet\n---\n");
    assert_eq!(
        stderr,
        "note:  FILE has no objects: nothing is taken from it\nerror: FILE: there is no pod and no workload with pods\n"
    );
}

#[test]
fn objects_of_a_file_of_objects_that_do_not_count_are_named() {
    let object = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "shop"}});
    let said = |items: &[Value]| {
        let items = [&[node_of_4("n0")], items].concat();
        let state = file(&json!({"kind": "List", "items": items}).to_string());
        let ended = why(&["--state", path(&state)], String::new());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr.replace(path(&state), "FILE")
    };
    let none = "note:  no pod waits for a node or hangs on one\n";
    assert_eq!(said(&[]), none);
    assert_eq!(
        said(&[
            object("Nod", "n1"),
            object("Secret", "a"),
            object("Secret", "b"),
            object("Role", "c")
        ]),
        format!(
            "note:  FILE: nothing is taken from Nod shop/n1: there is no kind Nod, the nearest is Node\n\
             note:  FILE: nothing is taken from Role shop/c, Secret (2): such objects do not decide where pods go\n{none}"
        )
    );
    for kind in ["Deployment", "StatefulSet", "ReplicaSet", "Job", "CronJob"] {
        let mut web = object(kind, "web");
        assert_eq!(
            said(&[web.clone()]),
            format!(
                "note:  FILE: {kind} shop/web has no pods here, because no controller has seen it: -f takes manifests, --state what a cluster has\n{none}"
            )
        );
        // Of a cluster, where it was scaled down.
        web["status"] = json!({"replicas": 0});
        assert_eq!(said(&[web]), none, "{kind}");
    }
}

#[test]
fn a_volume_of_a_manifest_can_be_had() {
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "local", "local": {"path": "/d"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]}},
        },
    });
    let mut there = volume.clone();
    there["status"] = json!({"phase": "Available"});
    let manifest = format!(
        "
{{apiVersion: v1, kind: Pod, metadata: {{name: web, namespace: shop}}, spec: {{
  containers: [{{name: c, image: i}}], volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]}}}}
---
{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: data, namespace: shop}}, spec: {{
  accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}, storageClassName: local}}}}
---
{{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {{name: local}}, provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}}
---
{volume}
"
    );
    let nodes = ["n0", "n1"].map(node_of_4);
    for items in [vec![], vec![there]] {
        let (text, stderr, _) = planned(&[&nodes[..], &items].concat(), &manifest);
        assert_eq!(stderr, "");
        let start = "pod shop/web goes to n1: 1 of 2 nodes fit.\n";
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn a_budget_that_is_there_allows_what_it_did() {
    let mut web = pod_of("web", "4", 0, Some("n0"));
    web["metadata"]["labels"] = json!({"app": "web"});
    let other = pod_of("other", "4", 0, Some("n1"));
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    });
    let mut there = budget.clone();
    there["status"] = json!({"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 0, "expectedPods": 1});
    let class = "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: gold}, value: 1000}";
    let urgent = "{apiVersion: v1, kind: Pod, metadata: {name: urgent, namespace: shop}, spec: {
        priorityClassName: gold, containers: [{name: c, image: i, resources: {requests: {cpu: '4'}}}]}}";
    let nodes = ["n0", "n1"].map(node_of_4);
    let items = [&nodes[..], &[web, other, there]].concat();
    let manifest = format!("{urgent}\n---\n{class}\n---\n{budget}\n");
    let (text, stderr, _) = planned(&items, &manifest);
    assert_eq!(stderr, "");
    assert!(text.contains("Evictions on n1 are as good."), "{text}");
}

/// A Deployment of an image for Windows Server 2022 that says nothing of an operating system.
const IIS: &str = "
{apiVersion: apps/v1, kind: Deployment, metadata: {name: iis, namespace: shop}, spec: {
  selector: {matchLabels: {app: iis}},
  template: {metadata: {labels: {app: iis}}, spec: {containers: [
    {name: iis, image: 'mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022'}]}}}}
";

/// Where the pod of [`IIS`] goes, and what is said beside it.
fn where_iis_goes(more: &[Value], args: &[&str]) -> (Option<String>, String) {
    let label = |node: &mut Value, key: &str, value: &str| {
        node["metadata"]["labels"][key] = value.into();
    };
    let mut windows = node_of_4("windows");
    label(&mut windows, "kubernetes.io/os", "windows");
    label(&mut windows, "kubernetes.io/arch", "amd64");
    label(
        &mut windows,
        "node.kubernetes.io/windows-build",
        "10.0.20348",
    );
    windows["spec"]["taints"] = json!([{"key": "os", "value": "windows", "effect": "NoSchedule"}]);
    let mut linux = node_of_4("linux");
    label(&mut linux, "kubernetes.io/os", "linux");
    let items = [&[windows, linux], more].concat();
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let manifest = file(IIS);
    let mut all = vec!["--state", path(&state), "-f", path(&manifest), "-o", "json"];
    all.extend(args);
    let said = why(&all, String::new());
    let answer: Value = serde_json::from_str(&said.stdout).unwrap_or_default();
    let best = answer["answer"]["best"][0].as_str().map(str::to_owned);
    (best, said.stderr.replace(path(&manifest), "FILE"))
}

#[test]
fn a_manifest_is_placed_by_its_images_where_the_state_the_flag_or_a_table_says_so() {
    let left = "note:  pods of the manifest are not placed by their images: nothing in the state says that its cluster does so; --place-by-image on places them\n";
    let placed = |reason: &str| {
        format!(
            "note:  pods of the manifest are placed by their images ({reason}); --place-by-image off asks without it\n"
        )
    };
    let linux = Some("linux".to_owned());
    let windows = Some("windows".to_owned());
    assert_eq!(where_iis_goes(&[], &[]), (linux.clone(), left.to_owned()));
    let on = ["--place-by-image", "on"];
    let off = ["--place-by-image", "off"];
    let by_flag = (windows.clone(), placed("--place-by-image on"));
    assert_eq!(where_iis_goes(&[], &on), by_flag);

    let mut pod = pod_of("web", "100m", 0, Some("linux"));
    pod["metadata"]["annotations"] = json!({"mullion.dev/placed-by-image": "{}"});
    let by_state = (windows.clone(), placed("pods of the state were"));
    assert_eq!(where_iis_goes(&[pod.clone()], &[]), by_state);
    let by_nothing = (linux.clone(), String::new());
    assert_eq!(where_iis_goes(&[pod.clone()], &off), by_nothing);

    let table = file("images: [{repository: registry.example.com/shop, os: windows}]\n");
    let by_table = (windows, placed("--images is given"));
    assert_eq!(where_iis_goes(&[], &["--images", path(&table)]), by_table);

    let labels = json!({"mullion.dev/place-by-image": "false"});
    let home = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": labels}});
    assert_eq!(where_iis_goes(&[pod, home], &[]), (linux, String::new()));
}

#[test]
fn images_that_no_node_runs_together_are_refused_where_the_user_says_what_they_run_on() {
    let mixed = IIS.replace(
        "{labels: {app: iis}}",
        "{labels: {app: iis}, annotations: {mullion.dev/runs-on: 'windows'}}",
    );
    let mixed = mixed.replace(
        "spec: {containers",
        "spec: {nodeSelector: {kubernetes.io/os: linux}, containers",
    );
    let state = file(&json!({"kind": "List", "items": [node_of_4("n0")]}).to_string());
    let manifest = file(&mixed);
    let args = [
        "--state",
        path(&state),
        "-f",
        path(&manifest),
        "--place-by-image",
        "on",
    ];
    let said = why(&args, String::new());
    assert_eq!(said.code, Some(2), "{}", said.stdout);
    let place = "(Deployment shop/iis): ";
    assert!(said.stderr.contains(place), "{}", said.stderr);
}

#[test]
fn a_pod_that_asks_for_a_system_on_which_its_images_may_not_run_is_warned_of_once() {
    let on_linux = IIS.replace(
        "spec: {containers",
        "spec: {nodeSelector: {kubernetes.io/os: linux}, containers",
    );
    let both = format!(
        "{on_linux}---{}",
        on_linux.replace("name: iis, namespace", "name: old, namespace")
    );
    let state = file(&json!({"kind": "List", "items": [node_of_4("n0")]}).to_string());
    let manifest = file(&both);
    let warned = |args: &[&str]| {
        let flags = ["--state", path(&state), "-f", path(&manifest)];
        let said = why(&[&flags[..], args].concat(), String::new());
        let lines = said.stderr.lines().map(str::to_owned);
        lines
            .filter(|line| line.contains("judging by"))
            .collect::<Vec<_>>()
    };
    let warning = "note:  a pod of Deployment shop/iis, a pod of Deployment shop/old: judging by the names of its images, this pod asks for Linux nodes, which cannot run all of its containers: ";
    for args in [&[][..], &["--place-by-image", "on"]] {
        let warned = warned(args);
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(warned[0].starts_with(warning), "{warned:?}");
    }
    assert_eq!(warned(&["--place-by-image", "off"]), [""; 0]);
}

#[test]
fn a_workload_that_makes_no_pods_is_asked_about_with_a_note() {
    let job = "{apiVersion: batch/v1, kind: Job, metadata: {name: batch, namespace: shop}, spec: {suspend: true,
        template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}";
    let (text, stderr, _) = planned(&[node_of_4("n0")], job);
    let start = "a pod of Job shop/batch goes to n0: 1 of 1 nodes fit.\n";
    assert!(text.starts_with(start), "{text}");
    let note = "note:  Job shop/batch makes no pods: spec.suspend is true; the answer is for one that it would make otherwise\n";
    assert_eq!(stderr, note);
}
