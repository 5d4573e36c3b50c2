//! The program beside Kubernetes' own: kube-apiserver, etcd, kube-controller-manager and kube-scheduler, as their makers build them.
//!
//! These tests are not part of `cargo test`, since they need those programs: `KUBEBUILDER_ASSETS=$(scripts/upstream) cargo test -p mullion
//! --test real` builds them once and runs the tests; with `--features aws` those of the provider for AWS, too.

#[cfg(feature = "aws")]
mod aws;
mod blog;
mod cluster;
mod failures;
#[path = "../installed/mod.rs"]
mod installed;
mod karpenter;
mod scale;
mod steps;

use serde_json::{Value, json};

use cluster::Cluster;
use installed::{
    Site,
    process::{Process, free_port},
    story::NODES,
};

/// The custom resource definition of GMSACredentialSpecs.
const GMSA_KIND: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../api/crds/windows.k8s.io_gmsacredentialspecs.yaml"
);

/// Karpenter's custom resource definitions, and ours.
const KINDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../api/crds");

fn deployment(name: &str, replicas: u32, spec: Value) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    })
}

fn start_nodes(cluster: &Cluster) -> Process {
    start_nodes_with(cluster, &[])
}

fn start_nodes_with(cluster: &Cluster, flags: &[&str]) -> Process {
    let config = cluster.write("cluster.yaml", NODES);
    let args: [&str; 5] = ["nodes", "--config", &config, "--speed", "max"];
    let nodes = cluster.mullion("nodes", &[&args[..], flags].concat());
    cluster.until("three nodes are ready", || {
        let ready = cluster.get(&[
            "get",
            "nodes",
            "-o",
            "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}",
        ]);
        ready == "True True True"
    });
    nodes
}

fn available(cluster: &Cluster, deployment: &str) -> String {
    cluster.get(&[
        "get",
        "deployment",
        deployment,
        "-o",
        "jsonpath={.status.availableReplicas}",
    ])
}

fn of_pods(cluster: &Cluster, app: &str, path: &str) -> String {
    let selector = format!("app={app}");
    let path = format!("jsonpath={{.items[*]{path}}}");
    cluster.get(&["get", "pods", "-l", &selector, "-o", &path])
}

#[test]
fn kube_scheduler_and_kube_controller_manager_run_both_systems_on_simulated_nodes() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    cluster.run_scheduler();
    let _nodes = start_nodes(&cluster);
    let (probes, metrics) = (free_port().to_string(), free_port().to_string());
    let hooks = free_port().to_string();
    let ports = [
        "--health-probe-port",
        &probes,
        "--metrics-port",
        &metrics,
        "--webhook-port",
        &hooks,
    ];
    let mut controller = cluster.mullion(
        "controller",
        &[
            &[
                "controller",
                "--only=placement,addresses,gmsa",
                "--registries=none",
            ][..],
            &ports,
        ]
        .concat(),
    );
    controller.says("webhooks on https://");
    // No pod says where it runs: the image does.
    let container = |image: &str| json!([{"name": "a", "image": image}]);
    let iis = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022";
    cluster.apply(&deployment("iis", 3, json!({"containers": container(iis)})));
    let web = json!({"containers": container("nginx:1.27")});
    cluster.apply(&deployment("web", 3, web));
    cluster.until("all pods are available", || {
        available(&cluster, "iis") == "3" && available(&cluster, "web") == "3"
    });
    let os = ".spec.nodeSelector.kubernetes\\.io/os";
    assert_eq!(of_pods(&cluster, "iis", os), "windows windows windows");
    let address = ".metadata.annotations.vpc\\.amazonaws\\.com/PrivateIPv4Address";
    let addresses = of_pods(&cluster, "iis", address);
    assert_eq!(addresses.split(' ').count(), 3, "{addresses}");

    let refused = |pod: Value| {
        let file = cluster.write("pod.json", &pod.to_string());
        cluster.refused(&["create", "-f", &file])
    };
    let said = refused(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": "chosen", "annotations": {"vpc.amazonaws.com/PrivateIPv4Address": "10.0.0.9/18"},
        },
        "spec": {"containers": container(iis)},
    }));
    assert!(
        said.contains("admission webhook \"addresses.mullion.dev\" denied the request: pod cannot be created with vpc.amazonaws.com/PrivateIPv4Address annotation"),
        "{said}"
    );
    let named = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gmsa"},
        "spec": {
            "containers": container(iis),
            "securityContext": {"windowsOptions": {"gmsaCredentialSpecName": "web"}},
        },
    });
    let said = refused(named.clone());
    assert!(
        said.contains("admission webhook \"gmsa.mullion.dev\" denied the request"),
        "{said}"
    );

    // The account of the pod may use the spec now, which is written into the pod.
    cluster.get(&["apply", "-f", GMSA_KIND]);
    // kubectl gives up on a definition whose conditions are still null, as they are just after its creation.
    cluster.until("the kind is established", || {
        let kind = "crd/gmsacredentialspecs.windows.k8s.io";
        let wait = ["wait", "--for=condition=Established", kind, "--timeout=10s"];
        cluster.kubectl(&wait).status.success()
    });
    cluster.apply(&json!({
        "apiVersion": "windows.k8s.io/v1", "kind": "GMSACredentialSpec", "metadata": {"name": "web"},
        "credspec": {"CmsPlugins": ["ActiveDirectory"]},
    }));
    let said = refused(named.clone());
    let not_allowed =
        "service account \"default\" is not authorized to `use` GMSA cred spec \"web\"";
    assert!(said.contains(not_allowed), "{said}");
    cluster.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "web"},
        "rules": [{
            "apiGroups": ["windows.k8s.io"], "resources": ["gmsacredentialspecs"],
            "resourceNames": ["web"], "verbs": ["use"],
        }],
    }));
    let account = "--serviceaccount=default:default";
    cluster.get(&["create", "rolebinding", "web", "--role=web", account]);
    let file = cluster.write("pod.json", &named.to_string());
    let contents = "jsonpath={.spec.securityContext.windowsOptions.gmsaCredentialSpec}";
    cluster.until("the pod is admitted with its spec", || {
        let dry = cluster.kubectl(&["create", "--dry-run=server", "-f", &file, "-o", contents]);
        dry.status.success() && dry.stdout == br#"{"CmsPlugins":["ActiveDirectory"]}"#
    });

    // Nobody answers any more: pods are admitted as they are, but for those that would run without their identity.
    drop(controller);
    let pod = |name: &str, image: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": container(image)},
        })
    };
    cluster.apply(&pod("later", "nginx:1.27"));
    let said = refused(named);
    assert!(said.contains("failed calling webhook"), "{said}");
}

#[test]
fn a_daemon_set_s_template_is_placed_where_its_image_runs() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    cluster.run_scheduler();
    let _nodes = start_nodes(&cluster);
    let hooks = free_port().to_string();
    let mut controller = cluster.mullion(
        "controller",
        &[
            "controller",
            "--only=placement",
            "--registries=none",
            "--health-probe-port=0",
            "--metrics-port=0",
            "--webhook-port",
            &hooks,
        ],
    );
    controller.says("webhooks on https://");
    let labels = json!({"app": "agent"});
    cluster.apply(&json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [
                {"name": "a", "image": "mcr.microsoft.com/windows/nanoserver:ltsc2022"},
            ]}},
        },
    }));
    let number = |field: &str| {
        let path = format!("jsonpath={{.status.{field}}}");
        cluster.get(&["get", "daemonset", "agent", "-o", &path])
    };
    // Of three nodes one runs Windows.
    cluster.until("the daemon is scheduled on one node alone", || {
        number("desiredNumberScheduled") == "1" && number("currentNumberScheduled") == "1"
    });
    // A process that ends in order leaves no webhooks behind which nobody answers.
    assert_eq!(controller.terminate(), Some(0));
    let left = cluster.get(&["get", "mutatingwebhookconfigurations", "-o", "name"]);
    assert_eq!(left, "");
}

#[test]
fn the_scheduler_takes_the_place_of_kube_scheduler_and_hands_over_at_once() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    let _nodes = start_nodes(&cluster);
    let config = cluster.write(
        "scheduler.yaml",
        "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration}",
    );
    let start = |name: &str| {
        cluster.mullion(
            name,
            &[
                "controller",
                "--only=scheduler",
                "--health-probe-port=0",
                "--metrics-port=0",
                "--scheduler-config",
                &config,
            ],
        )
    };
    let mut first = start("first");
    first.says("this process leads");
    let mut second = start("second");
    second.says("this process waits");
    let windows = json!({
        "nodeSelector": {"kubernetes.io/os": "windows"},
        "tolerations": [{"key": "os", "operator": "Exists"}],
        "containers": [{
            "name": "a", "image": "mcr.microsoft.com/windows/nanoserver:ltsc2022",
            "resources": {"limits": {"vpc.amazonaws.com/PrivateIPv4Address": "1"}},
        }],
    });
    cluster.apply(&deployment("win", 2, windows));
    let linux = json!({"containers": [{"name": "a", "image": "nginx:1.27"}]});
    cluster.apply(&deployment("web", 4, linux));
    cluster.until("all pods are available", || {
        available(&cluster, "win") == "2" && available(&cluster, "web") == "4"
    });
    assert_eq!(first.terminate(), Some(0));
    let lease = ["get", "lease", "-n", "kube-system", "mullion-scheduler"];
    let holder = "jsonpath={.spec.holderIdentity} {.spec.leaseDurationSeconds}";
    let held = cluster.get(&[&lease[..], &["-o", holder]].concat());
    // It was given back, or the second one has it: nobody waits until it runs out.
    assert!(
        held == " 1" || held == "1" || second.said().contains("this process leads"),
        "{held}"
    );
    second.says("this process leads");
    cluster.get(&["scale", "deployment", "web", "--replicas=8"]);
    cluster.until("the second one schedules", || {
        available(&cluster, "web") == "8"
    });
}

/// An EC2NodeClass, and a NodePool that buys nodes of one system and capacity type by it.
fn bought_pool(name: &str, alias: &str, os: &str, capacity_type: &str) -> [Value; 2] {
    let terms = json!([{"tags": {"karpenter.sh/discovery": "mixed"}}]);
    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": name},
        "spec": {
            "amiSelectorTerms": [{"alias": alias}], "role": "KarpenterNodeRole-mixed",
            "subnetSelectorTerms": terms, "securityGroupSelectorTerms": terms,
        },
    });
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
        "spec": {
            "disruption": {
                "consolidationPolicy": "WhenEmpty", "consolidateAfter": "1s", "budgets": [{"nodes": "100%"}],
            },
            "template": {"spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": name},
                "requirements": [
                    {"key": "kubernetes.io/os", "operator": "In", "values": [os]},
                    {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type]},
                ],
            }},
        },
    });
    [class, pool]
}

/// A NodePool and an EC2NodeClass that buy Windows nodes of one release.
fn windows_pool(name: &str, alias: &str) -> [Value; 2] {
    let [class, mut pool] = bought_pool(name, alias, "windows", "on-demand");
    let taint = json!([{"key": "os", "value": "windows", "effect": "NoSchedule"}]);
    pool["spec"]["template"]["spec"]["taints"] = taint;
    [class, pool]
}

/// Pods that run on Windows nodes of one release alone.
fn of_release(build: &str, image: &str) -> Value {
    json!({
        "nodeSelector": {"kubernetes.io/os": "windows", "node.kubernetes.io/windows-build": build},
        "tolerations": [{"key": "os", "operator": "Exists"}],
        "containers": [{
            "name": "a", "image": image,
            "resources": {"limits": {"vpc.amazonaws.com/PrivateIPv4Address": "1", "cpu": "500m", "memory": "500Mi"}},
        }],
    })
}

#[test]
fn windows_nodes_are_bought_and_given_back_beside_kube_scheduler() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    cluster.run_scheduler();
    cluster.get(&["apply", "-f", KINDS]);
    let _nodes = start_nodes(&cluster);
    let mut controller = cluster.mullion(
        "controller",
        &[
            "controller",
            "--only=provisioner,disruption",
            "--cloud=simulated",
            "--cluster-name=mixed",
            "--health-probe-port=0",
            "--metrics-port=0",
        ],
    );
    controller.says("this process leads");
    for (name, alias) in [
        ("windows2022", "windows2022@latest"),
        ("windows2019", "windows2019@latest"),
    ] {
        let [class, mut pool] = windows_pool(name, alias);
        // The budget that a pool has of itself.
        pool["spec"]["disruption"] =
            json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1s"});
        cluster.apply(&class);
        cluster.apply(&pool);
    }
    let iis = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc";
    cluster.apply(&deployment(
        "iis-2022",
        10,
        of_release("10.0.20348", &format!("{iis}2022")),
    ));
    cluster.apply(&deployment(
        "iis-2019",
        10,
        of_release("10.0.17763", &format!("{iis}2019")),
    ));
    cluster.until("all pods are available", || {
        available(&cluster, "iis-2022") == "10" && available(&cluster, "iis-2019") == "10"
    });
    let bought = || cluster.get(&["get", "nodeclaims", "-o", "name"]);
    assert!(bought().lines().count() >= 2, "{}", bought());
    cluster.get(&[
        "scale",
        "deployment",
        "iis-2022",
        "iis-2019",
        "--replicas=0",
    ]);
    cluster.until("all bought nodes are given back", || bought().is_empty());
    let left = cluster.get(&["get", "nodes", "-o", "name"]);
    assert_eq!(left.lines().count(), 3, "{left}");
}

#[test]
fn the_chart_s_roles_are_what_the_program_needs_and_no_more() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    let helm = installed::clients::installed().join("bin/helm-4");
    let site = Site::new(cluster.path("admin").into(), cluster.path("").into(), helm);
    installed::story(&site);
}

#[test]
fn each_part_alone_has_the_rights_that_it_needs() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    let helm = installed::clients::installed().join("bin/helm-4");
    let site = Site::new(cluster.path("admin").into(), cluster.path("").into(), helm);
    installed::each_part(&site);
}
