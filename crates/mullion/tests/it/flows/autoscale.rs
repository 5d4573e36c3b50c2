//! Load that an annotation makes up: `kubectl top` shows it, an autoscaler follows it.

use crate::cluster::Cluster;

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  annotations: {mullion.dev/simulate-usage: "cpu=400m shared, memory=48Mi"}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: nginx
        image: nginx:1.27
        resources: {requests: {cpu: 100m, memory: 64Mi}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 10
  metrics:
  - type: Resource
    resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}
  behavior:
    scaleDown: {stabilizationWindowSeconds: 3}
"#;
const REPLICAS: &[&str] = &[
    "get",
    "deployment",
    "web",
    "-o",
    "jsonpath={.spec.replicas}",
];

#[test]
fn an_autoscaler_follows_the_load_up_and_down() {
    let cluster = Cluster::start(&[
        "--config",
        "eksctl-windows-nodegroup.yaml",
        "--speed",
        "max",
    ]);
    cluster.apply(WEB);
    cluster.until("the load of four pods needs eight", REPLICAS, |said| {
        said == "8"
    });
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let described = cluster.until("it says so", &["describe", "hpa", "web"], |described| {
        described.contains("New size: 8")
    });
    assert!(
        described.contains("reason: cpu resource utilization (percentage of request) above target"),
        "{described}"
    );
    let top = cluster.until(
        "eight pods share the load",
        &["top", "pods", "-l", "app=web", "--no-headers"],
        |top| top.lines().filter(|line| line.contains(" 50m ")).count() == 8,
    );
    assert!(top.lines().all(|line| line.contains("48Mi")), "{top}");
    cluster.until(
        "half of the requests is used",
        &["get", "hpa", "web", "--no-headers"],
        |shown| shown.contains("50%/50%") && shown.split_whitespace().any(|word| word == "8"),
    );
    // On the workload, so that no pod is replaced.
    let calm = "mullion.dev/simulate-usage=cpu=50m shared";
    cluster.kubectl(&["annotate", "deployment", "web", "--overwrite", calm]);
    cluster.until("one pod is enough", REPLICAS, |said| said == "1");
    cluster.until("it says why", &["describe", "hpa", "web"], |described| {
        described.contains("New size: 1; reason: All metrics below target")
    });
}
