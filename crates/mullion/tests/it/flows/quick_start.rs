//! The Kubernetes guide for Windows containers: a web server, two pods, a Service.

use crate::cluster::Cluster;

#[test]
fn two_windows_pods_become_ready_behind_a_service() {
    let cluster = Cluster::start(&["--config", "quick-start-cluster.yaml", "--speed", "1000"]);
    cluster.kubectl(&["apply", "-f", "win-webserver.yaml"]);
    cluster.kubectl(&[
        "rollout",
        "status",
        "deployment/win-webserver",
        "--timeout=60s",
    ]);

    let nodes = cluster.kubectl(&["get", "nodes", "-o", "wide"]);
    assert!(
        nodes.contains("Windows Server 2019 Datacenter") && nodes.contains("10.0.17763."),
        "{nodes}"
    );
    assert!(
        nodes.contains("Amazon Linux 2023") && nodes.contains("containerd://"),
        "{nodes}"
    );

    let windows = cluster.get(&["nodes", "-l", "kubernetes.io/os=windows"]);
    let windows = windows["items"][0]["metadata"]["name"]
        .as_str()
        .expect("there is a Windows node");
    let pods = cluster.get(&["pods", "-l", "app=win-webserver"]);
    let pods = pods["items"].as_array().expect("a list of pods");
    assert_eq!(pods.len(), 2);
    for pod in pods {
        assert_eq!(pod["spec"]["nodeName"], windows);
        assert_eq!(pod["status"]["containerStatuses"][0]["ready"], true);
    }

    let service = cluster.get(&["service", "win-webserver"]);
    assert!(
        service["spec"]["clusterIP"]
            .as_str()
            .is_some_and(|ip| ip.starts_with("172.20.")),
        "{service}"
    );
    let port = service["spec"]["ports"][0]["nodePort"]
        .as_u64()
        .expect("a node port");
    assert!((30_000..=32_767).contains(&port));
    let ready = [
        "get",
        "endpointslices",
        "-l",
        "kubernetes.io/service-name=win-webserver",
        "-o",
        "jsonpath={.items[*].endpoints[*].conditions.ready}",
    ];
    cluster.until("two endpoints", &ready, |ready| ready == "true true");

    let logs = cluster.kubectl(&["logs", "deployment/win-webserver"]);
    assert!(
        logs.lines()
            .next()
            .is_some_and(|line| line.contains("simulated")),
        "{logs}"
    );
    assert!(logs.contains("powershell.exe"), "{logs}");
}
