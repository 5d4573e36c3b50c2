//! Two Windows builds and Linux side by side: taints, RuntimeClasses, and what is refused.

use crate::cluster::Cluster;

#[test]
fn every_workload_lands_on_its_operating_system_and_build() {
    let cluster = Cluster::start(&[
        "--config",
        "eksctl-windows-nodegroup.yaml",
        "--speed",
        "1000",
    ]);
    let warned = cluster.apply(include_str!(
        "../../../../../examples/runtimeclass-2022-v1beta1.yaml"
    ));
    assert!(
        warned.contains("node.k8s.io/v1beta1 RuntimeClass is deprecated"),
        "{warned}"
    );
    cluster.kubectl(&[
        "apply",
        "-f",
        "runtimeclass-2019.yaml",
        "-f",
        "iis-2019.yaml",
        "-f",
        "iis-2022.yaml",
    ]);
    cluster.kubectl(&[
        "create",
        "deployment",
        "web",
        "--image=nginx:1.27",
        "--replicas=6",
    ]);
    for deployment in ["iis-2019", "iis-2022", "web"] {
        cluster.kubectl(&[
            "rollout",
            "status",
            &format!("deployment/{deployment}"),
            "--timeout=60s",
        ]);
    }
    for (app, label, value) in [
        ("web", "kubernetes.io/os", "linux"),
        ("iis-2019", "node.kubernetes.io/windows-build", "10.0.17763"),
        ("iis-2022", "node.kubernetes.io/windows-build", "10.0.20348"),
    ] {
        let pods = cluster.get(&["pods", "-l", &format!("app={app}")]);
        for pod in pods["items"].as_array().expect("a list of pods") {
            let node = cluster.get(&[
                "node",
                pod["spec"]["nodeName"].as_str().expect("the pod is bound"),
            ]);
            assert_eq!(node["metadata"]["labels"][label], value, "{app}");
        }
    }
    let address = [
        "get",
        "service",
        "iis",
        "-o",
        "jsonpath={.status.loadBalancer.ingress[0].hostname}",
    ];
    cluster.until("a load balancer's address", &address, |hostname| {
        hostname.ends_with(".elb.amazonaws.com")
    });
}

#[test]
fn contradictions_are_refused_in_upstreams_words() {
    let cluster = Cluster::start(&[
        "--config",
        "eksctl-windows-nodegroup.yaml",
        "--speed",
        "1000",
    ]);
    cluster.kubectl(&["apply", "-f", "runtimeclass-2019.yaml"]);
    let refused = cluster.refused(
        &["create", "-f", "-"],
        "apiVersion: v1\nkind: Pod\nmetadata: {name: both}\nspec:\n  runtimeClassName: windows-2019\n  \
         nodeSelector: {node.kubernetes.io/windows-build: 10.0.20348}\n  containers: [{name: c, image: iis}]\n",
    );
    assert!(
        refused.contains("pods \"both\" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[node.kubernetes.io/windows-build] = 10.0.17763; pod.spec.nodeSelector[node.kubernetes.io/windows-build] = 10.0.20348"),
        "{refused}"
    );
    let refused = cluster.refused(
        &["create", "-f", "-"],
        "apiVersion: v1\nkind: Pod\nmetadata: {name: user}\nspec:\n  os: {name: windows}\n  \
         containers: [{name: c, image: iis, securityContext: {runAsUser: 1000}}]\n",
    );
    assert!(
        refused.contains("The Pod \"user\" is invalid: spec.containers[0].securityContext.runAsUser: Forbidden: cannot be set for a windows pod"),
        "{refused}"
    );
}
