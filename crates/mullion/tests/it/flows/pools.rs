//! What NodePools and their kin say of themselves when something is wrong or has no effect, as kubectl shows it.

use crate::cluster::{Cluster, text};

const POOLS: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: spott}
spec:
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 30s}
  template:
    spec:
      expireAfter: Never
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: linux}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [spott]}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: lost}
spec:
  replicas: 2
  limits: {nodes: 3}
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: nowhere}
      requirements: []
---
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: cheap}
spec:
  price: '0.01'
  requirements: []
---
apiVersion: autoscaling.x-k8s.io/v1beta1
kind: CapacityBuffer
metadata: {name: spare}
spec: {podTemplateRef: {name: chunk}, replicas: 2}
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: told}
spec:
  role: nodes
  userData: echo
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{tags: {karpenter.sh/discovery: mullion}}]
  securityGroupSelectorTerms: [{tags: {karpenter.sh/discovery: mullion}}]
";

#[test]
fn a_pool_that_cannot_work_says_why_and_fields_without_effect_are_named() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let said = cluster.apply(POOLS);
    for warning in [
        "Warning: spec.replicas has no effect: the pool keeps no fixed number of nodes and buys none for pods, because the feature gate StaticCapacity is off\n",
        "Warning: spec has no effect: no price and no capacity is changed, because the feature gate NodeOverlay is off\n",
        "Warning: spec has no effect: no room is kept free, because the feature gate CapacityBuffer is off\n",
        "Warning: spec.userData has no effect: it changes nothing about simulated instances\n",
    ] {
        assert!(said.contains(warning), "{said}");
    }
    assert_eq!(said.matches("Warning:").count(), 4, "{said}");
    let again = cluster.apply(POOLS);
    assert_eq!(again.matches("Warning:").count(), 0, "{again}");

    let described = |object: &str, words: &[&str]| {
        let args = ["describe", object];
        let shown = |text: &str| words.iter().all(|words| text.contains(words));
        cluster.until(&format!("{object} says {words:?}"), &args, shown)
    };
    let spott = described(
        "nodepool/spott",
        &[
            "NodePoolValidationFailed",
            "no valid values found in [spott] for karpenter.sh/capacity-type",
            "ValidationSucceeded=False",
        ],
    );
    assert!(!spott.contains("FieldsIgnored"), "{spott}");
    described(
        "nodepool/lost",
        &[
            "NodeClassNotFound",
            "NodeClass not found on cluster: there is no EC2NodeClass \"nowhere\"",
            "FieldsIgnored",
            "spec.replicas has no effect",
        ],
    );
    described("nodeoverlay/cheap", &["FieldsIgnored", "FeatureGateClosed"]);
    described(
        "capacitybuffer/spare",
        &["FieldsIgnored", "FeatureGateClosed"],
    );
    described(
        "ec2nodeclass/told",
        &["FieldsIgnored", "spec.userData has no effect"],
    );
    let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
    cluster.until(
        "only the default pools are ready",
        &["get", "nodepools", "-o", ready],
        |all| all == "True False False True True True",
    );
}

#[test]
fn a_provisioner_that_both_empties_and_consolidates_is_refused() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let provisioner = |rest: &str| {
        format!(
            "apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata: {{name: old}}\nspec: {{{rest}}}\n"
        )
    };
    let refused = |rest: &str| cluster.refused(&["apply", "-f", "-"], &provisioner(rest));
    let both = "ttlSecondsAfterEmpty: 30, consolidation: {enabled: true}, providerRef: {name: d}";
    let said = refused(both);
    assert!(
        said.contains(
            "expected exactly one, got both: spec.consolidation.enabled, spec.ttlSecondsAfterEmpty"
        ),
        "{said}"
    );
    let said = refused("ttlSecondsAfterEmpty: 30");
    assert!(
        said.contains("expected exactly one, got neither: spec.provider, spec.providerRef"),
        "{said}"
    );
    let said = refused("ttlSecondsAfterEmpty: -1, providerRef: {name: d}");
    assert!(
        said.contains("invalid value: cannot be negative: spec.ttlSecondsAfterEmpty"),
        "{said}"
    );
    let said = cluster.apply(&provisioner(
        "consolidation: {enabled: true}, providerRef: {name: d}",
    ));
    assert!(!said.contains("Warning"), "{said}");
}

#[test]
fn a_class_in_use_stays_until_its_last_claim_is_gone() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let overrides = r#"{"spec": {"nodeSelector": {"karpenter.sh/nodepool": "linux"}}}"#;
    let overrides = format!("--overrides={overrides}");
    cluster.kubectl(&["run", "web", "--image=nginx:1.26", &overrides]);
    cluster.kubectl(&["wait", "pod/web", "--for=condition=Ready", "--timeout=110s"]);
    let class = "ec2nodeclass/linux";
    cluster.kubectl(&["delete", class, "--wait=false"]);
    let claim = cluster.kubectl(&[
        "get",
        "nodeclaims",
        "-o",
        "jsonpath={.items[*].metadata.name}",
    ]);
    let message = format!("Waiting on NodeClaim termination for {claim}");
    cluster.until("the class names its claim", &["describe", class], |shown| {
        shown.contains("WaitingOnNodeClaimTermination") && shown.contains(&message)
    });
    cluster.until(
        "the pool is not ready",
        &["describe", "nodepool/linux"],
        |shown| shown.contains("NodeClassTerminating"),
    );
    let there = cluster.run("kubectl", &["get", class], "");
    assert!(there.status.success(), "{}", text(&there.stderr));
    cluster.kubectl(&["delete", "pod", "web"]);
    cluster.kubectl(&["delete", "nodeclaim", &claim]);
    cluster.kubectl(&["wait", class, "--for=delete", "--timeout=110s"]);
}
