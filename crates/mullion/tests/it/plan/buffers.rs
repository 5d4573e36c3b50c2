//! `mullion plan` with CapacityBuffers, whose chunks are planned like pods, and with zones that the cluster is shifted away from.

use serde_json::{Value, json};

use super::ask::{CLUSTER, json_of, plan, root};
use crate::cluster::Cluster;

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// A buffer of namespace default.
fn buffer(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

/// What the controller says of a buffer.
fn judged(mut buffer: Value, status: &str, reason: &str) -> Value {
    buffer["status"] = json!({"conditions": [{
        "type": "ReadyForProvisioning", "status": status, "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]});
    buffer
}

/// A template of pods with these requests.
fn template(name: &str, requests: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name, "namespace": "default"},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [
            {"name": "c", "image": "example.com/web", "resources": {"requests": requests}},
        ]}},
    })
}

fn shift(zone: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedFault", "metadata": {"name": "shift"},
        "spec": {"fault": "zonal-shift", "target": zone},
        "status": {"phase": phase, "message": "", "names": [zone], "near": []},
    })
}

/// The saved cluster of the documentation with these changes: a pod less, and objects more.
fn saved(without: &str, more: &[Value]) -> String {
    let text = std::fs::read_to_string(root().join(CLUSTER)).expect("the cluster");
    let mut list: Value = serde_saphyr::from_str(&text).expect("YAML");
    let items = list["items"].as_array_mut().expect("items");
    items.retain(|item| item["metadata"]["name"] != without);
    items.extend(more.iter().cloned());
    list.to_string()
}

#[test]
fn chunks_of_a_manifest_are_planned_like_pods_and_named_as_what_they_are() {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 4, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
                {"name": "c", "image": "example.com/web", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
            ]}},
        },
    });
    let scaled = json!({"scalableRef": {"kind": "Deployment", "name": "web"}, "percentage": 50});
    let of_template = json!({"podTemplateRef": {"name": "job"}, "replicas": 3});
    let manifest = list(&[
        deployment,
        buffer("share", scaled),
        buffer("jobs", of_template),
        buffer(
            "lost",
            json!({"podTemplateRef": {"name": "none"}, "replicas": 3}),
        ),
        template("job", json!({"cpu": "500m", "memory": "512Mi"})),
    ]);
    let ask = |more: &[&str]| {
        let flags = ["--offline", "--default-pools", "-f", "-"];
        plan(&[&flags[..], more].concat(), &manifest)
    };
    let said = ask(&["--pods"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(said.stdout);
    let json = json_of(&ask(&["-o", "json"]));
    assert_eq!(
        (&json["pods"]["asked"], &json["pods"]["chunks"]),
        (&json!(9), &json!(5))
    );
}

#[test]
fn a_buffer_whose_gate_is_off_keeps_no_room_and_the_plan_says_so() {
    let spec = json!({"podTemplateRef": {"name": "job"}, "replicas": 2});
    let ask = |buffer: Value| {
        let job = template("job", json!({"cpu": "500m"}));
        let state = list(&[buffer, job]);
        let said = plan(&["--state", "-", "--default-pools", "-o", "json"], &state);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
        let json = json_of(&said);
        (json["pods"]["asked"].clone(), json["remarks"].clone())
    };
    let off = judged(buffer("b", spec.clone()), "False", "FeatureGateClosed");
    let why = "CapacityBuffer default/b does not count: the feature gate CapacityBuffer of the cluster is off";
    assert_eq!(ask(off), (json!(0), json!([why])));
    let on = judged(buffer("b", spec), "True", "Resolved");
    let remark = "CapacityBuffer default/b keeps room for 2 pods";
    assert_eq!(ask(on), (json!(2), json!([remark])));
}

#[test]
fn a_chunk_without_a_place_is_no_pod_without_one() {
    let mut elsewhere = template("job", json!({"cpu": "500m"}));
    elsewhere["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/arch": "s390x"});
    let spec = json!({"podTemplateRef": {"name": "job"}, "replicas": 1});
    let manifest = list(&[elsewhere, buffer("b", spec)]);
    for more in [&[][..], &["--bound-only"]] {
        let flags = ["--offline", "--default-pools", "-f", "-"];
        let said = plan(&[&flags[..], more].concat(), &manifest);
        assert_eq!(said.code, Some(0), "{}", said.stdout);
        assert!(said.stdout.contains("1 has no place"), "{}", said.stdout);
    }
}

#[test]
fn a_node_that_keeps_room_for_chunks_is_not_empty() {
    let spec = json!({"podTemplateRef": {"name": "job"}, "replicas": 1});
    let large = template("job", json!({"cpu": "3500m", "memory": "12Gi"}));
    let counts = judged(buffer("b", spec.clone()), "True", "Resolved");
    let shut_out = judged(buffer("b", spec), "False", "FeatureGateClosed");
    let mut answers = Vec::new();
    for buffer in [counts, shut_out] {
        // The only pod of ip-10-0-0-12 is gone.
        let state = saved("web-5d9-3", &[large.clone(), buffer]);
        let state = state.replace("WhenEmptyOrUnderutilized", "WhenEmpty");
        let said = plan(&["--consolidate", "--state", "-"], &state);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
        answers.push(said.stdout);
    }
    insta::assert_snapshot!(answers.join("\n----\n"));
}

#[test]
fn nothing_is_bought_in_a_zone_that_the_cluster_is_shifted_away_from() {
    let pod = |zone: Option<&str>| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large"},
            "spec": {"containers": [
                {"name": "c", "image": "example.com/web", "resources": {"requests": {"cpu": "6"}}},
            ]},
        });
        if let Some(zone) = zone {
            pod["spec"]["nodeSelector"] = json!({"topology.kubernetes.io/zone": zone});
        }
        pod.to_string()
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let ask = |fault: Value, pod: String, more: &[&str]| {
        let state = directory.path().join("state.json");
        std::fs::write(&state, saved("", &[fault])).expect("a file");
        let state = state.to_str().expect("a UTF-8 path");
        plan(&[&["--state", state, "-f", "-"], more].concat(), &pod)
    };
    let zones = |phase: &str| {
        let json = json_of(&ask(shift("us-west-2a", phase), pod(None), &["-o", "json"]));
        (json["nodes"][0]["zones"].clone(), json["remarks"].clone())
    };
    let both = json!(["us-west-2a", "us-west-2b"]);
    assert_eq!(zones("Refused"), (both, Value::Null));
    let why =
        "SimulatedFault shift shifts the cluster away from us-west-2a: nothing is bought there";
    assert_eq!(zones("InForce"), (json!(["us-west-2b"]), json!([why])));
    let said = ask(shift("us-west-2a", "InForce"), pod(Some("us-west-2a")), &[]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(1), ""));
    let text = said.stdout.replace(
        directory.path().to_str().expect("a UTF-8 path"),
        "DIRECTORY",
    );
    insta::assert_snapshot!(text);
}

#[test]
fn buffers_and_shifts_of_a_running_cluster_count_as_for_its_provisioner() {
    let cluster = Cluster::start(&["--speed", "1000", "--feature-gates", "CapacityBuffer=true"]);
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a UTF-8 path");
    let spec = json!({"podTemplateRef": {"name": "job"}, "replicas": 2});
    let objects = list(&[
        template("job", json!({"cpu": "500m"})),
        buffer("b", spec),
        json!({
            "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedFault", "metadata": {"name": "shift"},
            "spec": {"fault": "zonal-shift", "target": "us-west-2a"},
        }),
    ]);
    let file = cluster.home().join("objects.json");
    std::fs::write(&file, objects).expect("a file");
    cluster.kubectl(&["apply", "-f", file.to_str().expect("a UTF-8 path")]);
    for (condition, object) in [
        ("jsonpath={.status.phase}=InForce", "simulatedfault/shift"),
        ("condition=Provisioning", "capacitybuffer/b"),
    ] {
        cluster.kubectl(&[
            "wait",
            &format!("--for={condition}"),
            object,
            "--timeout=120s",
        ]);
    }
    let said = plan(&["--kubeconfig", kubeconfig, "-o", "json"], "");
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let json = json_of(&said);
    assert_eq!(json["pods"]["chunks"], 2);
    assert_eq!(
        json["nodes"],
        json!([]),
        "the provisioner has bought what the plan asks for"
    );
    let remarks = json!([
        "CapacityBuffer default/b keeps room for 2 pods",
        "SimulatedFault shift shifts the cluster away from us-west-2a: nothing is bought there",
    ]);
    assert_eq!(json["remarks"], remarks);
}
