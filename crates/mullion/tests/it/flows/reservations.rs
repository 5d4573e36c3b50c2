//! Capacity reservations of the simulated account: made with kubectl, used by nodes, planned with.

use crate::cluster::{Cluster, text};

const ID: &str = "cr-0123456789abcdef0";
const CLASS_AND_POOL: &str = "\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: reserved}
spec:
  role: KarpenterNodeRole-mullion
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{tags: {karpenter.sh/discovery: mullion}}]
  securityGroupSelectorTerms: [{tags: {karpenter.sh/discovery: mullion}}]
  capacityReservationSelectorTerms: [{tags: {team: web}}]
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: reserved}
spec:
  template:
    metadata: {labels: {team: web}}
    spec:
      expireAfter: Never
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: reserved}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [reserved, on-demand]}
      - {key: node.kubernetes.io/instance-type, operator: In, values: [m5.large]}
";
const PODS: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {team: web}
      containers: [{name: web, image: 'nginx:1.26', resources: {requests: {cpu: 1200m}}}]
";

#[test]
fn a_reservation_that_is_made_in_the_account_has_a_node_and_is_planned_with() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let patch = format!(
        r#"{{"spec":{{"capacityReservations":{{"{ID}":{{"instanceType":"m5.large","availabilityZone":"us-west-2a",
           "totalInstanceCount":1,"tags":{{"team":"web"}}}},"cr-2":{{"instanceType":"m5.lage","availabilityZone":"us-west-2a",
           "totalInstanceCount":1}}}}}}}}"#
    );
    let account = ["patch", "simulatedaccount", "aws", "--type", "merge", "-p"];
    cluster.kubectl(&[&account[..], &[&patch]].concat());
    let facts = [
        "get",
        "simulatedaccount",
        "aws",
        "-o",
        "jsonpath={.status.capacityReservations}",
    ];
    cluster.until("the account says what there is", &facts, |facts| {
        let free = r#""availableInstanceCount":1"#;
        let wrong = "InvalidInstanceType: the instance type \\\"m5.lage\\\" does not exist";
        facts.contains(free) && facts.contains("active") && facts.contains(wrong)
    });
    cluster.apply(CLASS_AND_POOL);
    let found = [
        "get",
        "ec2nodeclass",
        "reserved",
        "-o",
        "jsonpath={.status.capacityReservations[*].id}",
    ];
    cluster.until("the class finds it", &found, |found| found == ID);
    let file = cluster.home().join("pods.yaml");
    std::fs::write(&file, PODS).expect("a file");
    let kubeconfig = cluster.kubeconfig();
    let (file, kubeconfig) = (
        file.to_str().expect("a path"),
        kubeconfig.to_str().expect("a path"),
    );
    let planned = cluster.mullion(&["plan", "--kubeconfig", kubeconfig, "-f", file]);
    let planned = text(&planned.stdout);
    assert!(planned.contains(&format!("reserved {ID}")), "{planned}");
    assert!(planned.contains("on-demand"), "{planned}");
    cluster.apply(PODS);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=110s"]);
    let nodes = [
        "get",
        "nodes",
        "-l",
        "team=web",
        "-o",
        "jsonpath={range .items[*]}{.metadata.labels.karpenter\\.sh/capacity-type} \
         {.metadata.labels.karpenter\\.k8s\\.aws/capacity-reservation-id}{\"\\n\"}{end}",
    ];
    let nodes = cluster.kubectl(&nodes);
    let mut nodes: Vec<&str> = nodes.lines().map(str::trim).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["on-demand", &format!("reserved {ID}")]);
    cluster.until("no machine is free", &facts, |facts| {
        facts.contains(r#""availableInstanceCount":0,"state":"active""#)
    });
}
