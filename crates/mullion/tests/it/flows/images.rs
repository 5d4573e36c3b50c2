//! Placement from images: pods that say nothing of an operating system land where their images run.

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, text},
    registry::{self, Odd, Registry},
};

fn pod(name: &str, images: &[&str]) -> Value {
    let containers = images
        .iter()
        .enumerate()
        .map(|(index, image)| json!({"name": format!("c{index}"), "image": image}));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers.collect::<Vec<_>>()}})
}

fn list(pods: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string()
}

/// What was added to a pod: system, architectures and builds it requires.
fn added(cluster: &Cluster, name: &str) -> String {
    let pod = cluster.get(&["pod", name]);
    let spec = &pod["spec"];
    let mut words = vec![
        spec["nodeSelector"]["kubernetes.io/os"]
            .as_str()
            .unwrap_or("-")
            .to_owned(),
    ];
    let required =
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let expressions = required["nodeSelectorTerms"][0]["matchExpressions"].as_array();
    for expression in expressions.into_iter().flatten() {
        words.push(expression["values"].to_string().replace('"', ""));
    }
    words.join(" ")
}

#[test]
fn images_with_usual_names_need_no_selector() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let iis = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022";
    let said = cluster.apply(&list(&[
        pod("iis", &[iis]),
        pod("web", &["nginx:1.27"]),
        pod("mixed", &[iis, "nginx:1.27"]),
    ]));
    assert!(
        said.contains("Warning: judging by the names of its images, no node can run all containers of this pod"),
        "{said}"
    );
    cluster.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/iis",
        "pod/web",
        "--timeout=110s",
    ]);
    let system = |name: &str| {
        let node = cluster.get(&["pod", name])["spec"]["nodeName"].clone();
        let node = cluster.get(&["node", node.as_str().expect("it has a node")]);
        node["metadata"]["labels"]["kubernetes.io/os"].clone()
    };
    assert_eq!(
        (system("iis"), system("web")),
        ("windows".into(), "linux".into())
    );
    assert_eq!(added(&cluster, "iis"), "windows [10.0.20348,10.0.26100]");
    let requests = &cluster.get(&["pod", "iis"])["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(requests["vpc.amazonaws.com/PrivateIPv4Address"], "1");
}

#[test]
fn pods_land_where_the_registries_on_this_machine_say_their_images_run() {
    let cluster = Cluster::start(&["--speed", "max"]);
    for (index, registry) in registry::at_hand(false).iter().enumerate() {
        registry.push_shop();
        let namespace = format!("shop-{index}");
        cluster.kubectl(&["create", "namespace", &namespace]);
        cluster.kubectl(&[
            "config",
            "set-context",
            "--current",
            "--namespace",
            &namespace,
        ]);
        let image = |name: &str| format!("{}/shop/{name}:1", registry.host);
        let pods: Vec<_> = ["mixed", "any", "linux", "win"]
            .into_iter()
            .map(|name| pod(name, &[&image(name)]))
            .collect();
        cluster.apply(&list(&pods));
        assert_eq!(added(&cluster, "mixed"), "linux [amd64]");
        assert_eq!(added(&cluster, "any"), "windows [amd64]");
        assert_eq!(added(&cluster, "linux"), "linux [amd64]");
        assert_eq!(
            added(&cluster, "win"),
            "windows [amd64] [10.0.20348,10.0.26100]"
        );
        let manifest = pod("odd", &[&image("win"), &image("linux")]).to_string();
        let refusal = cluster.refused(&["apply", "-f", "-"], &manifest);
        let expected = format!(
            "no node can run all containers of this pod: container \"c0\" ({}) needs Windows (amd64) of build 10.0.20348, container \"c1\" \
             ({}) needs Linux (amd64)",
            image("win"),
            image("linux")
        );
        assert!(refusal.contains(&expected), "{refusal}");
        let label = "mullion.dev/default-os=windows";
        cluster.kubectl(&["label", "namespace", &namespace, label]);
        cluster.apply(&pod("windows", &[&image("mixed")]).to_string());
        assert_eq!(
            added(&cluster, "windows"),
            "windows [amd64] [10.0.17763,10.0.20348,10.0.26100]"
        );
        cluster.kubectl(&[
            "wait",
            "--for=condition=Ready",
            "pod",
            "--all",
            "--timeout=110s",
        ]);
        let why = cluster.mullion(&[
            "why",
            "pod",
            "win",
            "-n",
            &namespace,
            "--kubeconfig",
            "kubeconfig",
        ]);
        let said = text(&why.stdout);
        let expected = format!(
            "Container c0 ({}) runs on Windows (amd64) of build 10.0.20348, says its registry.",
            image("win")
        );
        assert!(said.replace('\n', " ").contains(&expected), "{said}");
        // The kubelet pulls by the same facts: a pod that is kept out of placement is told so on the wrong node.
        let mut astray = pod("astray", &[&image("win")]);
        astray["metadata"]["labels"]["mullion.dev/place-by-image"] = "false".into();
        astray["spec"]["nodeSelector"]["kubernetes.io/os"] = "linux".into();
        cluster.apply(&astray.to_string());
        let events = [
            "get",
            "events",
            "--field-selector",
            "involvedObject.name=astray",
            "-o",
            "jsonpath={.items[*].message}",
        ];
        cluster.until("a failed pull", &events, |said| {
            said.contains("no match for platform in manifest: not found")
        });
    }
}

#[test]
fn a_private_image_is_known_to_pods_with_its_pull_secret_alone() {
    let cluster = Cluster::start(&["--speed", "max"]);
    for (index, registry) in registry::at_hand(true).iter().enumerate() {
        registry.push_shop();
        let image = format!("{}/shop/win:1", registry.host);
        let name = |kind: &str| format!("{kind}-{index}");
        let (secret, account) = (name("pull"), name("robot"));
        let server = format!("--docker-server={}", registry.host);
        let user = format!("--docker-username={}", registry::USER);
        let password = format!("--docker-password={}", registry::PASSWORD);
        cluster.kubectl(&[
            "create",
            "secret",
            "docker-registry",
            &secret,
            &server,
            &user,
            &password,
        ]);
        let mut with = pod(&name("with"), &[&image]);
        with["spec"]["imagePullSecrets"] = json!([{"name": secret}]);
        let secrets = json!([{"name": secret}]);
        let robot = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}, "imagePullSecrets": secrets});
        let mut by_account = pod(&name("by-account"), &[&image]);
        by_account["spec"]["serviceAccountName"] = account.clone().into();
        cluster.apply(&list(&[
            robot,
            with,
            by_account,
            pod(&name("without"), &[&image]),
        ]));
        let windows = "windows [amd64] [10.0.20348,10.0.26100]";
        assert_eq!(added(&cluster, &name("with")), windows);
        assert_eq!(added(&cluster, &name("by-account")), windows);
        assert_eq!(added(&cluster, &name("without")), "-");
    }
}

#[test]
fn pods_are_admitted_whatever_their_registry_does_and_it_is_asked_once() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let (hanging, busy, down) = (Odd::hanging(), Odd::busy(), registry::down());
    let hosts = [hanging.host.as_str(), &busy.host, &down];
    for (index, host) in hosts.into_iter().enumerate() {
        let pods: Vec<_> = (0..3)
            .map(|pod_index| {
                pod(
                    &format!("p{index}-{pod_index}"),
                    &[&format!("{host}/shop:1")],
                )
            })
            .collect();
        cluster.apply(&list(&pods));
        assert_eq!(added(&cluster, &format!("p{index}-2")), "-");
    }
    assert_eq!((hanging.calls(), busy.calls()), (1, 1));
    // Another image of the registry that wants to be left alone does not disturb it either.
    cluster.apply(&pod("other", &[&format!("{}/other:1", busy.host)]).to_string());
    assert_eq!(busy.calls(), 1);
}

#[test]
fn a_daemon_set_runs_on_the_nodes_that_its_image_runs_on() {
    let cluster = Cluster::start(&["--config", "quick-start-cluster.yaml", "--speed", "max"]);
    let set = |name: &str, image: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{"name": "c", "image": image}]},
                },
            },
        })
    };
    let exporter = "ghcr.io/prometheus-community/windows-exporter:0.31.0";
    cluster.apply(&list(&[
        set("linux", "quay.io/prometheus/node-exporter:v1.9.0"),
        set("windows", exporter),
    ]));
    for name in ["linux", "windows"] {
        let nodes = cluster.get(&["nodes", "-l", &format!("kubernetes.io/os={name}")]);
        let count = nodes["items"].as_array().expect("a list").len();
        assert!(count > 0, "the cluster has nodes of {name}");
        let status = [
            "get",
            "daemonset",
            name,
            "-o",
            "jsonpath={.status.desiredNumberScheduled} {.status.numberReady}",
        ];
        cluster.until("ready daemons", &status, |said| {
            said == format!("{count} {count}")
        });
    }
}

#[test]
fn pods_of_a_registry_that_wakes_up_late_wait_behind_a_gate_and_land_where_their_images_run() {
    let cluster = Cluster::start(&["--speed", "max", "--unknown-images", "gate"]);
    let registry = Registry::ours(false);
    registry.push_shop();
    let image = |name: &str| format!("{}/shop/{name}:1", registry.host);
    let web = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image("win")}]},
            },
        },
    });
    registry.sleep(true);
    cluster.apply(&list(&[web, pod("linux", &[&image("linux")])]));
    registry.sleep(false);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=110s"]);
    cluster.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/linux",
        "--timeout=110s",
    ]);
    // Placed after it was created: only then can `spec.os` be set.
    assert_eq!(added(&cluster, "linux"), "linux [amd64]");
    let linux = cluster.get(&["pod", "linux"]);
    assert_eq!(linux["spec"]["os"], Value::Null);
    assert_eq!(linux["spec"]["schedulingGates"], Value::Null);
    // The first pod of the Deployment could get no address any more; the second has one.
    let pods = cluster.get(&["pods", "-l", "app=web"]);
    let spec = &pods["items"][0]["spec"];
    assert_eq!(spec["os"]["name"], "windows");
    let requests = &spec["containers"][0]["resources"]["requests"];
    assert_eq!(requests["vpc.amazonaws.com/PrivateIPv4Address"], "1");
    let events = [
        "get",
        "events",
        "--field-selector",
        "reason=ImageRunsOnWindows",
        "-o",
        "jsonpath={.items[*].message}",
    ];
    cluster.until("an event", &events, |said| {
        said.starts_with("deleted so that ReplicaSet web-")
    });
}
