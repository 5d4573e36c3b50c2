//! `mullion why -f`: which objects of a manifest are refused, in whose words, and what is said of several.

use serde_json::json;

use super::{
    manifest::{POD, planned},
    node_of_4,
};

#[test]
fn a_malformed_manifest_is_refused_with_a_sentence() {
    let workload = |kind: &str, spec: &str| {
        format!("{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: web}}, spec: {spec}}}")
    };
    let meta = "metadata: {name: web}";
    let manifests = [
        workload(
            "Deployment",
            "{selector: {}, template: {metadata: {labels: a}, spec: {containers: [{name: c, image: i}]}}}",
        ),
        workload("Deployment", "[a]"),
        workload("StatefulSet", "{template: {metadata: {labels: [a]}}}"),
        workload(
            "StatefulSet",
            "{volumeClaimTemplates: [{metadata: {name: data}}], template: {spec: [a]}}",
        ),
        workload("DaemonSet", "{template: {spec: [a]}}"),
        workload("DaemonSet", "{template: {spec: a}}"),
        "{apiVersion: v1, kind: Pod, metadata: a}".to_owned(),
        "{apiVersion: v1, kind: PodList, items: [a, 1]}".to_owned(),
        format!("{POD}\n---\n{{apiVersion: v1, kind: Service, metadata: [a]}}"),
        format!("{POD}\n---\n{{apiVersion: v1, kind: Service, metadata: {{generateName: a}}}}"),
        format!("{POD}\n---\n{{apiVersion: v1, kind: Service, {meta}, spec: [a]}}"),
        format!("{POD}\n---\n{{apiVersion: v1, kind: Node, {meta}, spec: [a]}}"),
        format!("{POD}\n---\n{{apiVersion: karpenter.sh/v1, kind: NodePool, {meta}, spec: [a]}}"),
        format!("{POD}\n---\n{{apiVersion: karpenter.sh/v1, kind: NodePool, {meta}, status: [a]}}"),
    ];
    for manifest in manifests {
        let (text, stderr, _) = planned(&[node_of_4("n0")], &manifest);
        let is_sentence = stderr.starts_with("error: ") && !stderr.contains("panicked");
        assert!(is_sentence && text.is_empty(), "{manifest}: {text}{stderr}");
    }
}

#[test]
fn every_kind_is_refused_with_fields_and_values_that_no_api_server_takes() {
    let class_ref = "nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: c}";
    let template = format!("template: {{spec: {{requirements: [], {class_ref}}}}}");
    let class = "role: nodes, amiSelectorTerms: [{alias: al2023@latest}], subnetSelectorTerms: [{id: subnet-1}], securityGroupSelectorTerms: [{id: sg-1}]";
    let overlay =
        "requirements: [{key: kubernetes.io/os, operator: In, values: [linux]}], price: '1'";
    let of = |version: &str, kind: &str, fields: &str| {
        format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: own}}, {fields}}}")
    };
    let pool = |more: &str| {
        of(
            "karpenter.sh/v1",
            "NodePool",
            &format!("spec: {{{more}{template}}}"),
        )
    };
    let unknown = "unknown field \"spec.wieght\"";
    let invalid = "spec.weight: Invalid value";
    for (object, cause) in [
        (pool("wieght: 1, "), unknown),
        (pool("weight: -1, "), invalid),
        (
            of(
                "karpenter.k8s.aws/v1",
                "EC2NodeClass",
                &format!("spec: {{{class}, wieght: 1}}"),
            ),
            unknown,
        ),
        (
            of(
                "karpenter.sh/v1alpha1",
                "NodeOverlay",
                &format!("spec: {{{overlay}, wieght: 1}}"),
            ),
            unknown,
        ),
        (
            of(
                "karpenter.sh/v1alpha1",
                "NodeOverlay",
                &format!("spec: {{{overlay}, weight: -1}}"),
            ),
            invalid,
        ),
        (
            of(
                "autoscaling.x-k8s.io/v1beta1",
                "CapacityBuffer",
                "spec: {podTemplateRef: {name: a}, replicas: 1, wieght: 1}",
            ),
            unknown,
        ),
        (
            of(
                "cloud.mullion.dev/v1alpha1",
                "SimulatedFault",
                "spec: {fault: zonal-shift, target: us-west-2a, wieght: 1}",
            ),
            unknown,
        ),
        (of("v1", "Node", "spec: {wieght: 1}"), unknown),
        (
            of("v1", "ConfigMap", "dta: {a: b}"),
            "unknown field \"dta\"",
        ),
    ] {
        let (text, stderr, _) = planned(&[node_of_4("n0")], &format!("{POD}\n---\n{object}"));
        assert!(
            stderr.contains("error: FILE: document 2 (") && stderr.contains(cause),
            "{object}: {text}{stderr}"
        );
    }
    // Nobody defines this version, so nobody can check it.
    let other = pool("wieght: 1, ").replace("karpenter.sh/v1", "karpenter.sh/v9");
    let (text, stderr, _) = planned(&[node_of_4("n0")], &format!("{POD}\n---\n{other}"));
    assert!(
        text.starts_with("pod shop/web goes to n0"),
        "{text}{stderr}"
    );
}

#[test]
fn a_pod_that_a_quota_of_the_state_refuses_is_refused_as_by_the_api_server() {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": "shop"},
        "spec": {"hard": {"pods": "2"}}, "status": {"hard": {"pods": "2"}, "used": {"pods": "2"}},
    });
    let (_, stderr, _) = planned(&[node_of_4("n0"), quota.clone()], POD);
    let refused = "pods \"web\" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2";
    assert_eq!(stderr, format!("error: FILE (Pod shop/web): {refused}\n"));
    let elsewhere = POD.replace("shop", "other");
    let (_, stderr, _) = planned(&[node_of_4("n0"), quota], &elsewhere);
    assert_eq!(stderr, "");
}

#[test]
fn all_refused_objects_are_reported_together() {
    let pool = |field: &str| {
        format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {{name: gold}}, spec: {{{field}, template: {{spec: {{nodeClassRef: {{group: karpenter.k8s.aws, kind: EC2NodeClass, name: linux}}, requirements: []}}}}}}}}"
        )
    };
    let pod = |name: &str, field: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{field}: x, containers: [{{name: c, image: nginx}}]}}}}"
        )
    };
    let manifest = [
        pool("wieght: 1"),
        pod("a", "nodeNam"),
        pod("b", "hostname"),
        pod("c", "prioritty"),
    ]
    .join("\n---\n");
    let (text, stderr, _) = planned(&[node_of_4("n0")], &manifest);
    assert_eq!(text, "");
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines[0], "error: 3 objects are refused", "{stderr}");
    for (line, start, field) in [
        (1, "  FILE: document 1 (NodePool gold): ", "spec.wieght"),
        (2, "  FILE: document 2 (Pod a): ", "spec.nodeNam"),
        (3, "  FILE: document 4 (Pod c): ", "spec.prioritty"),
    ] {
        assert!(
            lines[line].starts_with(start) && lines[line].contains(field),
            "{stderr}"
        );
    }
    // So are objects that lack what every object has.
    let manifest = "{kind: Pod, metadata: {name: a}}\n---\n{apiVersion: v1, metadata: {name: b}}\n";
    let (_, stderr, _) = planned(&[node_of_4("n0")], manifest);
    assert_eq!(
        stderr,
        "error: 2 objects are refused\n  FILE: document 1 (Pod a): an object without an apiVersion\n  FILE: document 2 (b): an object without a kind\n"
    );
}

#[test]
fn a_refused_workload_is_named_with_everything_that_is_wrong_with_it() {
    let manifest = "
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {replica: 2, template: {
  metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}}}
";
    let (text, stderr, _) = planned(&[node_of_4("n0")], manifest);
    assert_eq!(text, "");
    for said in [
        "error: FILE (Deployment shop/web): ",
        "unknown field \"spec.replica\"",
        "Deployment.apps \"web\" is invalid: ",
        "spec.selector: Required value",
        "spec.template.spec.containers[0].image: Required value",
    ] {
        assert!(stderr.contains(said), "{said}: {stderr}");
    }
    assert!(!stderr.contains("Pod"), "{stderr}");
}

#[test]
fn refusals_come_in_the_order_of_the_file_and_name_those_that_follow_from_others() {
    let deployment =
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {
        selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {
        priorityClassName: gold, containers: [{name: c, image: nginx}]}}}}";
    let class = "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: gold}, value: 2000000000}";
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: Shop_A}, spec: {ports: [{port: 80}]}}";
    let home = "{apiVersion: v1, kind: Namespace, metadata: {name: Shop_A}}";
    let manifest = [
        home,
        service,
        "{metadata: {name: own}}",
        class,
        deployment,
        POD,
    ]
    .join("\n---\n");
    let (text, stderr, _) = planned(&[node_of_4("n0")], &manifest);
    assert_eq!(text, "");
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines[0], "error: 5 objects are refused", "{stderr}");
    for (line, start) in [
        (
            1,
            "  FILE: document 1 (Namespace Shop_A): Namespace \"Shop_A\" is invalid: ",
        ),
        (
            2,
            "  FILE: document 2 (Service Shop_A/web): refused because Namespace Shop_A above is refused",
        ),
        (3, "  FILE: document 3 (own): an object without a kind"),
        (
            4,
            "  FILE: document 4 (PriorityClass gold): PriorityClass.scheduling.k8s.io \"gold\" is invalid: ",
        ),
        (
            5,
            "  FILE: document 5 (Deployment shop/web): refused because PriorityClass gold above is refused",
        ),
    ] {
        assert!(lines[line].starts_with(start), "{stderr}");
    }
}

#[test]
fn a_manifest_of_misspelt_kinds_alone_is_refused() {
    let manifest = "{apiVersion: apps/v1, kind: Deploymnet, metadata: {name: web}}";
    let (text, stderr, _) = planned(&[node_of_4("n0")], manifest);
    let refused =
        "error: FILE (Deploymnet web): there is no kind Deploymnet, the nearest is Deployment\n";
    assert_eq!((text.as_str(), stderr.as_str()), ("", refused));
}
