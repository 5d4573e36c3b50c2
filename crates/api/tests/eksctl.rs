//! Tests of ClusterConfig files: those of the walkthroughs, and many invalid ones.

use std::collections::BTreeMap;

use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::{Cluster, ConfigError, Taint, TaintEffect},
};

fn windows_taint() -> Taint {
    Taint {
        key: "os".into(),
        value: "windows".into(),
        effect: TaintEffect::NoSchedule,
    }
}

/// Returns a config with one unmanaged group and no managed one; the caller indents `group`.
fn with_group(group: &str) -> String {
    format!(
        "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {{name: c, region: us-west-2}}\n\
         nodeGroups:\n- name: ng\n{group}"
    )
}

#[test]
fn the_karpenter_walkthrough_is_read() {
    let cluster = Cluster::from_yaml(include_str!("../testdata/eksctl-cluster.yaml")).unwrap();
    assert_eq!(cluster.name, "windows-karpenter-demo");
    assert_eq!(cluster.region, "us-west-2");
    assert_eq!(cluster.version.to_string(), "1.27");
    assert_eq!(
        cluster.tags,
        BTreeMap::from([(
            "karpenter.sh/discovery".to_owned(),
            "windows-karpenter-demo".to_owned()
        )])
    );
    let [group] = cluster.node_groups.as_slice() else {
        panic!("one group");
    };
    assert!(group.managed);
    assert_eq!(group.ami_family, AmiFamily::AmazonLinux2);
    assert_eq!(group.instance_types, ["m5.large"]);
    assert_eq!((group.min, group.desired, group.max), (1, 2, 10));
    assert_eq!(cluster.ignored, ["iam"]);
    let [mapping] = cluster.identity_mappings.as_slice() else {
        panic!("{:?}", cluster.identity_mappings);
    };
    assert_eq!(
        (mapping.arn.as_str(), mapping.username.as_str()),
        (
            "arn:aws:iam::111122223333:role/KarpenterNodeRole-windows-karpenter-demo",
            "system:node:{{EC2PrivateDNSName}}"
        )
    );
    assert_eq!(mapping.groups, ["system:bootstrappers", "system:nodes"]);
    assert!(!cluster.has_windows());
}

#[test]
fn the_mixed_cluster_of_the_best_practices_guide_is_read() {
    let text = include_str!("../testdata/eksctl-windows-nodegroup.yaml");
    let cluster = Cluster::from_yaml(text).unwrap();
    assert!(cluster.has_windows());
    let [full, core, linux] = cluster.node_groups.as_slice() else {
        panic!("three groups");
    };
    assert_eq!(
        full.ami_family,
        AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Full)
    );
    assert_eq!(full.taints, [windows_taint()]);
    assert_eq!(full.labels["nodeclass"], "windows2022");
    assert_eq!(core.windows_release(), Some(WindowsRelease::V2019));
    assert_eq!((linux.desired, linux.managed), (2, true));
    assert_eq!(linux.volume_gib, 80);
}

#[test]
fn taints_may_be_a_map_or_a_list() {
    let forms = [
        "  taints: {os: \"windows:NoSchedule\"}",
        "  taints: [{key: os, value: windows, effect: NoSchedule}]",
    ];
    for form in forms {
        let cluster = Cluster::from_yaml(&with_group(form)).unwrap();
        assert_eq!(cluster.node_groups[0].taints, [windows_taint()], "{form}");
    }
    let bare = Cluster::from_yaml(&with_group("  taints: {a: NoExecute, b: \":NoExecute\"}"));
    for taint in &bare.unwrap().node_groups[0].taints {
        assert_eq!(
            (taint.value.as_str(), taint.effect),
            ("", TaintEffect::NoExecute)
        );
    }
}

#[test]
fn sizes_left_out_follow_the_others() {
    let cases = [
        ("", (2, 2, 2)),
        ("  minSize: 3", (3, 3, 3)),
        ("  maxSize: 1", (1, 1, 1)),
        ("  maxSize: 9", (2, 2, 9)),
        ("  desiredCapacity: 0", (0, 0, 0)),
        (
            "  desiredCapacity: 4\n  minSize: 1\n  maxSize: 5",
            (1, 4, 5),
        ),
    ];
    for (group, sizes) in cases {
        let cluster = Cluster::from_yaml(&with_group(group)).unwrap();
        let group = &cluster.node_groups[0];
        assert_eq!((group.min, group.desired, group.max), sizes, "{group:?}");
    }
}

#[test]
fn fields_without_effect_are_named_once() {
    let text = "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nvpc: {cidr: 10.0.0.0/16}\n\
         metadata: {name: c, region: us-west-2}\n\
         nodeGroups: [{name: a, ssh: {allow: true}}, {name: b, ssh: {allow: true}}]\n";
    let cluster = Cluster::from_yaml(text).unwrap();
    assert_eq!(cluster.ignored, ["vpc", "nodeGroups[].ssh"]);
}

#[track_caller]
fn refused(text: &str, message: &str, hint: Option<&str>) {
    let ConfigError { hint: found, .. } = &Cluster::from_yaml(text).unwrap_err();
    let error = Cluster::from_yaml(text).unwrap_err();
    assert_eq!(error.to_string(), message);
    assert_eq!(found.as_deref(), hint, "{message}");
}

#[test]
fn wrong_groups_are_refused_with_path_and_way_out() {
    let effects = "is not one of NoSchedule, PreferNoSchedule, NoExecute";
    let map_hint = Some("os: \"windows:NoSchedule\"");
    let cases: &[(&str, String, Option<&str>)] = &[
        (
            "  taints: {os: \"windows:NoShedule\"}",
            format!("nodeGroups[0].taints.os: effect \"NoShedule\" {effects}"),
            map_hint,
        ),
        (
            "  taints: {os: windows}",
            format!("nodeGroups[0].taints.os: effect \"windows\" {effects}"),
            Some("os: \":NoSchedule\""),
        ),
        (
            "  taints: {os: \"a:b:NoSchedule\"}",
            "nodeGroups[0].taints.os: \"a:b:NoSchedule\" has more than one colon".into(),
            map_hint,
        ),
        (
            "  taints: [{key: os, value: windows, effect: noschedule}]",
            format!("nodeGroups[0].taints[0].effect: effect \"noschedule\" {effects}"),
            None,
        ),
        (
            "  taints: [{key: os, effect: NoSchedule, operator: Equal}]",
            "nodeGroups[0].taints[0].operator: unknown field".into(),
            Some("fields that count here: key, value, effect"),
        ),
        (
            "  taints: [{value: windows, effect: NoSchedule}]",
            "nodeGroups[0].taints[0].key: is required".into(),
            None,
        ),
        (
            "  taints: os",
            "nodeGroups[0].taints: the text \"os\" is not a map or a list".into(),
            Some("taints are a map (os: \"windows:NoSchedule\") or a list ({key, value, effect})"),
        ),
        (
            "  amifamily: AmazonLinux2",
            "nodeGroups[0].amifamily: unknown field".into(),
            Some("did you mean amiFamily?"),
        ),
        (
            "  amiFamily: WindowsServer20H2CoreContainer",
            "nodeGroups[0].amiFamily: AMI Family WindowsServer20H2CoreContainer is deprecated".into(),
            Some("amiFamily: WindowsServer2022CoreContainer"),
        ),
        (
            "  minSize: 5\n  maxSize: 2",
            "nodeGroups[0].minSize: 5 is greater than maxSize 2".into(),
            Some("minSize <= desiredCapacity <= maxSize"),
        ),
        (
            "  desiredCapacity: 9\n  maxSize: 2",
            "nodeGroups[0].desiredCapacity: 9 is greater than maxSize 2".into(),
            Some("minSize <= desiredCapacity <= maxSize"),
        ),
        (
            "  desiredCapacity: -1",
            "nodeGroups[0].desiredCapacity: -1 is not a whole number from 0 to 100000".into(),
            None,
        ),
        (
            "  desiredCapacity: two",
            "nodeGroups[0].desiredCapacity: the text \"two\" is not a whole number from 0 to 100000".into(),
            None,
        ),
        (
            "  availabilityZones: [eu-west-1a]",
            "nodeGroups[0].availabilityZones[0]: \"eu-west-1a\" is not a zone of region us-west-2".into(),
            Some("availabilityZones: [us-west-2a, us-west-2b]"),
        ),
        (
            "  labels: {gpu: true}",
            "nodeGroups[0].labels.gpu: true is not text".into(),
            Some("gpu: \"true\""),
        ),
        (
            "  labels: {team: \"a b\"}",
            "nodeGroups[0].labels.team: \"a b\" is not a label value: letters, digits, '-', '_' and '.', at most 63 long".into(),
            None,
        ),
        (
            "  instanceType: m5.large\n  instanceTypes: [m5.xlarge]",
            "nodeGroups[0].instanceType: \"m5.large\" stands beside a list of instance types".into(),
            Some("leave out instanceType, or the list"),
        ),
        (
            "  volumeSize: 0",
            "nodeGroups[0].volumeSize: 0 is not a whole number from 1 to 16384".into(),
            None,
        ),
        (
            "- name: ng",
            "nodeGroups[1].name: \"ng\" is the name of nodeGroups[0] already".into(),
            Some("names of node groups are unique in a cluster"),
        ),
    ];
    for (group, message, hint) in cases {
        refused(&with_group(group), message, *hint);
    }
}

#[test]
fn wrong_files_are_refused_with_path_and_way_out() {
    let head = "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\n";
    let cases: &[(&str, &str, Option<&str>)] = &[
        ("", "the file is empty", None),
        (
            "apiVersion: v1\nkind: Pod",
            "it is a Pod, not a ClusterConfig",
            Some(
                "--config takes an eksctl ClusterConfig; manifests go in with kubectl apply -f once the cluster runs",
            ),
        ),
        (
            "a: 1\n---\nb: 2",
            "the file holds 2 documents, a config is one",
            Some("keep the ClusterConfig alone in a file; kubectl apply -f takes the others"),
        ),
        (
            "apiVersion: v1\nkind: Service\n---\napiVersion: apps/v1\nkind: Deployment",
            "the file holds 2 documents, none of which is a ClusterConfig",
            Some(
                "--config takes an eksctl ClusterConfig; manifests go in with kubectl apply -f once the cluster runs",
            ),
        ),
        ("[]", "the file is a list, not a map of fields", None),
        ("kind: ClusterConfig", "apiVersion: is required", None),
        (
            "apiVersion: eksctl.io/v1\nkind: ClusterConfig",
            "apiVersion: \"eksctl.io/v1\" is not eksctl.io/v1alpha5",
            Some("apiVersion: eksctl.io/v1alpha5"),
        ),
        (
            "apiVersion: eksctl.io/v1alpha5\nkind: Cluster",
            "kind: \"Cluster\" is not ClusterConfig",
            Some("kind: ClusterConfig"),
        ),
    ];
    for (text, message, hint) in cases {
        refused(text, message, *hint);
    }
    let cases: &[(&str, &str, Option<&str>)] = &[
        ("nodeGroups: []", "metadata: is required", None),
        ("metadata: {name: c}", "metadata.region: is required", None),
        (
            "metadata: {name: c, region: mars}",
            "metadata.region: \"mars\" is not a region of EC2",
            Some("region: us-west-2"),
        ),
        (
            "metadata: {name: 1c, region: us-west-2}",
            "metadata.name: \"1c\" is not a name of letters, digits and dashes that starts with a letter and is at most 100 long",
            None,
        ),
        (
            "metadata: {name: c, region: us-west-2, version: \"1.9\"}",
            "metadata.version: \"1.9\" is not one of 1.23 to 1.36",
            Some("version: \"1.36\""),
        ),
        (
            "metadata: {name: c, region: us-west-2, version: 1.30}",
            "metadata.version: the number 1.3 is not one of 1.23 to 1.36",
            Some("version: \"1.30\", in quotes: without them 1.30 is the number 1.3"),
        ),
        (
            "metadata: {name: c, region: us-west-2, tag: {}}",
            "metadata.tag: unknown field",
            Some("did you mean tags?"),
        ),
        (
            "metadata: {name: c, region: us-west-2}\nnodegroups: []",
            "nodegroups: unknown field",
            Some("did you mean nodeGroups?"),
        ),
        (
            "metadata: {name: c, region: us-west-2}\nnodeGroups: {}",
            "nodeGroups: a map is not a list",
            None,
        ),
        (
            "metadata: {name: c, region: us-west-2, version: \"1.34\"}\n\
             nodeGroups: [{name: w, amiFamily: WindowsServer2025CoreContainer}]",
            "nodeGroups[0].amiFamily: WindowsServer2025CoreContainer needs Kubernetes 1.35 or newer, metadata.version is 1.34",
            Some("metadata.version: \"1.35\""),
        ),
    ];
    for (tail, message, hint) in cases {
        refused(&format!("{head}{tail}"), message, *hint);
    }
}

#[test]
fn broken_yaml_is_one_line() {
    let error = Cluster::from_yaml("a: [1,\nb: }").unwrap_err();
    assert_eq!(error.path, "");
    assert!(
        error.message.starts_with("not a YAML document: "),
        "{error}"
    );
    assert_eq!(error.to_string().lines().count(), 1);
}

#[test]
fn an_unquoted_version_is_read_as_text() {
    let text = "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\n\
         metadata: {name: c, region: us-west-2, version: 1.31}\n";
    assert_eq!(
        Cluster::from_yaml(text).unwrap().version.to_string(),
        "1.31"
    );
}

#[test]
fn each_group_has_its_first_mistake() {
    let config = serde_json::json!({
        "apiVersion": "eksctl.io/v1alpha5", "kind": "ClusterConfig", "metadata": {"name": "shop", "region": "us-west-2"},
        "nodeGroups": [{"name": "a", "minSize": 3, "maxSize": 1}, {"name": "b"}],
        "managedNodeGroups": [{"name": "b"}, {"name": "c", "amiFamily": "WindowsServer2022"}],
    });
    let mistakes = Cluster::mistakes(&config);
    let paths: Vec<_> = mistakes.iter().map(|own| own.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "nodeGroups[0].minSize",
            "managedNodeGroups[0].name",
            "managedNodeGroups[1].amiFamily"
        ]
    );
    let hint = mistakes[2].hint.as_deref();
    assert_eq!(hint, Some("amiFamily: WindowsServer2022CoreContainer"));
    let nowhere = serde_json::json!({"apiVersion": "eksctl.io/v1alpha5", "kind": "ClusterConfig", "nodeGroups": [{}]});
    let mistakes = Cluster::mistakes(&nowhere);
    assert_eq!((mistakes.len(), &*mistakes[0].path), (1, "metadata"));
}
