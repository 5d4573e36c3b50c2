//! `mullion why` for running pods and for invalid arguments.

use serde_json::{Value, json};

use super::{file, node_of_4, path, pod_of, said_of, why};

#[test]
fn a_pod_that_runs_by_a_scheduler_nobody_configures_is_not_held_against_another() {
    let mut web = pod_of("web", "1", 0, Some("n0"));
    web["spec"]["schedulerName"] = json!("packing");
    let (text, code, said) = said_of("web", json!([node_of_4("n0"), web]));
    assert_eq!(
        text,
        "pod shop/web is on n0: nothing says how its scheduler packing decides, for the scheduler's only profile is default-scheduler.\n\
         --scheduler-config FILE asks by another configuration of the scheduler.\n"
    );
    assert_eq!((code, &said["answer"]["nodes"]), (Some(0), &json!([])));
}

#[test]
fn a_resize_that_waits_is_told() {
    let mut web = pod_of("web", "1", 0, Some("n0"));
    let message =
        "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000";
    web["status"] = json!({"conditions": [
        {"type": "Ready", "status": "True"},
        {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": message},
    ]});
    let (text, code, said) = said_of("web", json!([node_of_4("n0"), web]));
    assert!(
        text.contains(&format!("\nIts resize waits: Deferred: {message}.\n")),
        "{text}"
    );
    assert_eq!(
        (code, &said["resize"]),
        (Some(0), &json!(format!("Deferred: {message}")))
    );
}

/// A pod of the ReplicaSet web that has no sandbox; each try of its kubelet has another id.
fn without_sandbox(name: &str, node: &str) -> Value {
    let mut pod = pod_of(name, "1", 0, Some(node));
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true}]);
    pod["status"] = json!({
        "phase": "Pending", "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
        "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}],
    });
    pod
}

#[test]
fn pods_that_hang_in_a_full_subnet_are_told_so_once() {
    let state = |free: usize| {
        let node = |name: &str| {
            let mut node = node_of_4(name);
            node["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!("us-west-2a");
            node
        };
        let subnet = json!({"zone": "us-west-2a", "cidr": "10.0.0.0/28", "freeAddresses": free, "freePrefixes": 0});
        let account = json!({
            "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedAccount", "metadata": {"name": "aws"},
            "spec": {}, "status": {"subnets": {"subnet-a": subnet}},
        });
        let (a, b) = (
            without_sandbox("web-a", "n0"),
            without_sandbox("web-b", "n1"),
        );
        json!({"kind": "List", "items": [node("n0"), node("n1"), a, b, account]}).to_string()
    };
    let full = file(&state(0));
    let said = why(&["--state", path(&full)], String::new());
    let reason = "It gets no address, so that no sandbox is made for it: subnet-a in us-west-2a has 0 free addresses; \
                  nodes or pods that go give some back";
    assert!(said.stdout.contains(reason), "{}", said.stdout);
    assert!(
        said.stdout.contains("So for pod shop/web-b."),
        "{}",
        said.stdout
    );
    assert_eq!(said.stdout.matches("It does not run.").count(), 1);
    let free = file(&state(1));
    let said = why(&["--state", path(&free)], String::new());
    assert!(!said.stdout.contains("gets no address"), "{}", said.stdout);
    // Whoever names pods learns all about each.
    let both = why(
        &["--state", path(&full), "-n", "shop", "web-a", "web-b"],
        String::new(),
    );
    assert_eq!(both.stdout.matches("It does not run.").count(), 2);
}

#[test]
fn a_pod_that_is_bound_and_does_not_run_says_why() {
    let mut web = pod_of("web", "1", 0, Some("n0"));
    web["status"] = json!({
        "phase": "Pending",
        "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
        "containerStatuses": [{
            "name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"shop\""}},
        }],
    });
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "shop"},
        "type": "Warning", "reason": "FailedMount", "message": "MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found",
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web"}, "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    let (text, code, said) = said_of("web", json!([node_of_4("n0"), web, event]));
    let expected = "pod shop/web is on n0: 1 of 1 nodes fit, it would be chosen again.\n\
                    It does not run.\n    \
                    container c waits: ImagePullBackOff: Back-off pulling image \"shop\"\n    \
                    condition PodReadyToStartContainers is False\n    \
                    event: FailedMount: MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found\n";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(code, Some(0));
    assert_eq!(
        said["start"],
        json!({
            "phase": "Pending",
            "containers": [{"name": "c", "state": "waiting", "reason": "ImagePullBackOff", "message": "Back-off pulling image \"shop\""}],
            "conditions": [{"type": "PodReadyToStartContainers"}],
            "events": [{
                "last": "2026-01-01T00:00:00Z", "reason": "FailedMount",
                "message": "MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found",
            }],
        })
    );
}

#[test]
fn pods_that_hang_on_their_nodes_are_asked_about_without_being_named() {
    let waits = |name: &str, since: &str, reason: &str| {
        let mut pod = pod_of(name, "1", 0, Some("n0"));
        pod["status"] = json!({
            "phase": "Pending", "startTime": since,
            "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": reason}}}],
        });
        pod
    };
    let items = json!([
        node_of_4("n0"),
        waits("image", "2999-01-01T00:00:00Z", "ImagePullBackOff"),
        waits("address", "2026-01-01T00:00:00Z", "ContainerCreating"),
        waits("started", "2999-01-01T00:00:00Z", "ContainerCreating"),
        pod_of("runs", "1", 0, Some("n0")),
    ]);
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let said = why(&["--state", path(&state), "-o", "json"], String::new());
    let named: Vec<String> = said
        .stdout
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).expect("an object");
            line["pod"].as_str().expect("a name").to_owned()
        })
        .collect();
    assert_eq!(named, ["pod shop/image", "pod shop/address"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_pod_whose_kubelet_is_lost_says_that_it_is_not_ready() {
    let mut web = pod_of("web", "1", 0, Some("n0"));
    web["status"] = json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "c", "ready": true, "started": true, "state": {"running": {}}}],
    });
    let (text, ..) = said_of("web", json!([node_of_4("n0"), web]));
    let expected = "\nIt runs and is not ready.\n    condition Ready is False\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn objects_of_files_are_named_without_their_kind() {
    for words in [&["daemonset/agent"][..], &["daemonset", "agent"]] {
        let ended = why(
            &[&["-f", "agent.yaml", "--state", "-"], words].concat(),
            r#"{"kind":"List","items":[]}"#.to_owned(),
        );
        assert_eq!(ended.code, Some(2));
        assert_eq!(
            ended.stderr,
            format!(
                "error: {}: objects of the files are named without their kind\nhint:  mullion why -f FILE agent\n",
                words.join(" ")
            )
        );
    }
}

#[test]
fn an_object_of_another_kind_is_named_with_what_to_ask_instead() {
    let said = |words: &[&str]| {
        // Nothing listens there, and nobody is asked.
        let flags = ["--kubeconfig", "/nowhere/config"];
        let ended = why(&[words, &flags].concat(), String::new());
        assert_eq!(ended.code, Some(2), "{words:?}");
        ended.stderr
    };
    let pods = "hint:  ask about its pods by their labels, `mullion why pod -l app=iis`, or by their names\n";
    let others = "hint:  mullion why pod NAME, mullion why node NAME, mullion why nodepool NAME\n";
    for (words, what, hint) in [
        (&["svc", "x"][..], "a service", pods),
        (&["svc/x"], "a service", pods),
        (&["hpa", "x"], "a horizontalpodautoscaler", pods),
        (&["pdb/x"], "a poddisruptionbudget", pods),
        (&["ing", "x"], "an ingress", others),
        (&["nodeclaims", "x"], "a nodeclaim", others),
    ] {
        assert_eq!(
            said(words),
            format!(
                "error: {}: pods, workloads, nodes and nodepools can be explained, not {what}\n{hint}",
                words.join(" ")
            )
        );
    }
    assert_eq!(
        said(&["pod", "node/n1"]),
        "error: node/n1: objects of one kind are asked about at a time, here pods\nhint:  mullion why node n1\n"
    );
}

#[test]
fn a_daemon_set_says_how_many_nodes_were_asked_whether_it_makes_room_there() {
    let names: Vec<_> = (100..203).map(|number| format!("n{number}")).collect();
    let mut items: Vec<Value> = names.iter().map(|name| node_of_4(name)).collect();
    items.extend(
        names
            .iter()
            .map(|name| pod_of(&format!("big-{name}"), "4", 0, Some(name))),
    );
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    let manifest = file(
        "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent, namespace: shop}, spec: {selector: {matchLabels: {app: agent}}, template: {
          metadata: {labels: {app: agent}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: '1'}}}]}}}}",
    );
    let ended = why(
        &["--state", path(&state), "-f", path(&manifest)],
        String::new(),
    );
    let start = "a pod of DaemonSet shop/agent goes to none of 103 nodes.\n\
                 It waits on n100, n101, n102, n103 and 99 more.\n\
                 Of the 103 nodes that do not let it in, the first 100 were asked whether it makes room there.\n";
    assert!(ended.stdout.starts_with(start), "{}", ended.stdout);
}

#[test]
fn a_pod_that_runs_and_is_not_ready_says_what_it_waits_for() {
    let mut web = pod_of("web", "1", 0, Some("n0"));
    web["spec"]["containers"][0]["readinessProbe"] =
        json!({"httpGet": {"path": "/healthz", "port": 8080}});
    web["status"] = json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
        "containerStatuses": [{"name": "c", "ready": false, "started": true, "state": {"running": {}}}],
    });
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "shop"},
        "type": "Warning", "reason": "Unhealthy", "message": "Readiness probe failed: HTTP probe failed with statuscode: 503",
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web", "fieldPath": "spec.containers{c}"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    let (text, code, said) = said_of("web", json!([node_of_4("n0"), web, event]));
    let expected = "pod shop/web is on n0: 1 of 1 nodes fit, it would be chosen again.\n\
                    It runs and is not ready.\n    \
                    container c runs and is not ready: its readiness probe (HTTP GET /healthz on port 8080) has not succeeded\n    \
                    event: Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503\n\
                    Services send it no traffic until it is ready: `kubectl describe pod` shows what its probes are answered, `kubectl logs` what its containers say.\n";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(code, Some(0));
    assert_eq!(
        said["start"]["unready"],
        json!([{"name": "c", "probe": "readiness probe (HTTP GET /healthz on port 8080)"}])
    );
}

#[test]
fn a_pod_on_a_node_of_another_system_is_told_so_and_what_to_select() {
    let mut node = node_of_4("n0");
    node["metadata"]["labels"]["kubernetes.io/os"] = json!("windows");
    node["metadata"]["labels"]["node.kubernetes.io/windows-build"] = json!("10.0.20348");
    let mut web = pod_of("web", "1", 0, Some("n0"));
    web["status"] = json!({
        "phase": "Pending",
        "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
    });
    let (text, _, said) = said_of("web", json!([node, web]));
    let reason = "Image nginx does not start on n0, a Windows node of build 10.0.20348";
    let advice = "Select kubernetes.io/os: linux in the pod's node selector, and create the pod anew: no controller does";
    let guess = "Image nginx runs on Linux, by the repository docker.io/library/nginx (a guess)";
    assert!(
        text.contains(&format!("{guess}.\n{reason}.\n{advice}.\n")),
        "{text}"
    );
    let remains =
        "Even then nothing takes it: n0: kubernetes.io/os is windows, the pod needs linux";
    assert_eq!(
        said["wrongNode"],
        json!({"reason": reason, "advice": advice, "remains": remains})
    );
    assert!(text.contains(&format!("{advice}.\n{remains}.\n")), "{text}");
    // Its kubelet may have refused the pod.
    web["status"] = json!({
        "phase": "Failed", "reason": "PodOSSelectorNodeLabelDoesNotMatch",
        "message": "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    });
    let (text, _, said) = said_of("web", json!([node, web]));
    assert!(
        text.contains("\nIt has failed and is not started again: PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod"),
        "{text}"
    );
    assert_eq!(
        said["start"]["failed"]["reason"],
        "PodOSSelectorNodeLabelDoesNotMatch"
    );
}

#[test]
fn the_advice_to_a_pod_on_a_node_of_another_build_leads_to_a_pod_that_schedules() {
    let node = |name: &str, build: &str| {
        let mut node = node_of_4(name);
        node["metadata"]["labels"]["kubernetes.io/os"] = json!("windows");
        node["metadata"]["labels"]["node.kubernetes.io/windows-build"] = json!(build);
        node["spec"] =
            json!({"taints": [{"key": "os", "value": "windows", "effect": "NoSchedule"}]});
        node
    };
    let pod = |selector: Value| {
        let mut iis = pod_of("iis", "1", 0, Some("old"));
        iis["spec"]["nodeSelector"] = selector;
        iis["spec"]["containers"][0]["image"] =
            json!("mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022");
        iis["status"] = json!({
            "phase": "Pending",
            "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull"}}}],
        });
        iis
    };
    let both = [node("old", "10.0.17763"), node("new", "10.0.20348")];
    let first = "Select node.kubernetes.io/windows-build: 10.0.20348 in the pod's node selector, tolerate the taint os=windows:NoSchedule";
    let advice = format!("{first}, and create the pod anew: no controller does");
    for selector in [
        json!({"kubernetes.io/os": "windows"}),
        json!({"node.kubernetes.io/windows-build": "10.0.17763"}),
    ] {
        let (text, _, said) = said_of("iis", json!([both[0], both[1], pod(selector)]));
        assert_eq!(said["wrongNode"]["advice"], advice, "{text}");
        assert!(text.contains(&format!("\n{advice}.\n")), "{text}");
    }
    // What remains may be the node's own.
    let mut cordoned = both[1].clone();
    cordoned["spec"]["unschedulable"] = json!(true);
    let selector = json!({"kubernetes.io/os": "windows"});
    let (_, _, said) = said_of("iis", json!([both[0], cordoned, pod(selector)]));
    let advice = said["wrongNode"]["advice"].as_str().expect("advice");
    assert!(
        advice.starts_with(&format!("{first}, uncordon node new, and ")),
        "{advice}"
    );
}

#[test]
fn a_pending_pod_of_a_daemon_set_is_told_about_its_own_node() {
    let mut agent = pod_of("agent-1", "1", 0, None);
    agent["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "agent", "controller": true,
    }]);
    agent["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["n1"]},
    ]}]});
    let full = pod_of("full", "4", 0, Some("n1"));
    let nodes = [node_of_4("n0"), node_of_4("n1")];
    let list = json!({"kind": "List", "items": [nodes[0], nodes[1], full, agent]}).to_string();
    let ask = ["--state", "-", "-n", "shop", "pod", "agent-1"];
    // Nothing is ever bought for such a pod, so nothing is said about pools.
    let ended = why(&ask, list.clone());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), ""));
    let text = ended.stdout;
    let data = why(&[&ask[..], &["-o", "json"]].concat(), list).stdout;
    let said: Value = serde_json::from_str(&data).expect("JSON");
    assert_eq!(said["onlyNode"], "n1");
    let start = "pod shop/agent-1 is pending: its DaemonSet made it for n1, which does not let it in.\n\n  \
                 nodes\n        1  cpu: needs 1, 0 of 4 are free  ";
    assert!(text.starts_with(start), "{text}");
    let end = "No change to the pod, a cordon or a pool places it there.\n";
    assert!(text.contains(end), "{text}");
}
