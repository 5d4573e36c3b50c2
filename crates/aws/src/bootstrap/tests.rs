//! Tests of the user data of each family for the same class.

use mullion_api::ami::{WindowsEdition, WindowsRelease};
use mullion_api::eksctl::{Taint, TaintEffect};
use serde_json::{Value, json};

use super::*;

const WINDOWS: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);

fn facts() -> ClusterFacts {
    ClusterFacts {
        name: "demo".into(),
        endpoint: "https://ABC.gr7.us-west-2.eks.amazonaws.com".into(),
        ca_bundle: Some("Y2EtYnVuZGxl".into()),
        dns: Some("10.100.0.10".into()),
        service_cidr: Some("10.100.0.0/16".into()),
    }
}

fn written(family: AmiFamily, spec: Value) -> Result<String, BootstrapError> {
    let class = serde_json::from_value(spec).expect("a class");
    let labels = [
        ("karpenter.sh/nodepool", "web"),
        ("karpenter.sh/capacity-type", "spot"),
        ("team.example.com/name", "shop"),
        // These are labels that a kubelet may not set.
        ("kubernetes.io/os", "windows"),
        ("node-restriction.kubernetes.io/tier", "a"),
        ("topology.k8s.io/x", "a"),
    ];
    let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let taint = |key: &str, value: &str, effect| Taint {
        key: key.into(),
        value: value.into(),
        effect,
    };
    let taints = [
        taint("karpenter.sh/unregistered", "", TaintEffect::NoExecute),
        taint("os", "windows", TaintEffect::NoSchedule),
    ];
    user_data(
        family,
        &Bootstrap {
            cluster: &facts(),
            class: &class,
            max_pods: 110,
            labels: &labels,
            taints: &taints,
            image_name: "bottlerocket-aws-k8s-1.33-x86_64-v1.40.0-431fe75a",
        },
    )
}

/// Returns kubelet settings of every kind.
fn kubelet() -> Value {
    json!({
        "maxPods": 42, "podsPerCore": 3,
        "kubeReserved": { "cpu": "100m", "memory": "1Gi" },
        "systemReserved": { "memory": "2Gi" },
        "evictionHard": { "memory.available": "5%", "nodefs.available": "10%" },
        "evictionSoft": { "memory.available": "500Mi" },
        "evictionSoftGracePeriod": { "memory.available": "1m" },
        "evictionMaxPodGracePeriod": 60,
        "imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 70,
        "cpuCFSQuota": false, "clusterDNS": ["10.0.0.10"]
    })
}

#[test]
fn a_windows_node_runs_the_users_lines_and_then_ekss_script() {
    let plain = written(WINDOWS, json!({})).expect("user data");
    insta::assert_snapshot!("windows", plain);
    let spec = json!({ "userData": "Write-Host \"mine\"", "kubelet": kubelet() });
    let merged = written(WINDOWS, spec).expect("user data");
    insta::assert_snapshot!("windows_merged", merged);
}

#[test]
fn an_al2023_node_is_given_a_node_config() {
    let plain = written(AmiFamily::AmazonLinux2023, json!({})).expect("user data");
    insta::assert_snapshot!("al2023", plain);
    let spec = json!({
        "userData": "#!/bin/bash\necho mine\n", "instanceStorePolicy": "RAID0",
        "kubelet": { "registryPullQPS": 10, "evictionHard": { "memory.available": "5%" } }
    });
    let merged = written(AmiFamily::AmazonLinux2023, spec).expect("user data");
    insta::assert_snapshot!("al2023_merged", merged);
}

#[test]
fn a_node_config_of_the_users_and_an_archive_come_before_ours() {
    let types = |user_data: &str| {
        let spec = json!({ "userData": user_data });
        let text = written(AmiFamily::AmazonLinux2023, spec).expect("user data");
        let lines = text.lines().filter(|line| line.starts_with("Content-Type"));
        let types = lines
            .skip(1)
            .map(|line| line["Content-Type: ".len()..].to_owned());
        types.collect::<Vec<_>>()
    };
    const CONFIG: &str = "application/node.eks.aws";
    const SHELL: &str = "text/x-shellscript; charset=\"us-ascii\"";
    let own = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n";
    assert_eq!(types(own), [CONFIG, CONFIG]);
    let archive = format!(
        "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"X\"\n\n--X\nContent-Type: {SHELL}\n\necho\n\
         --X\nContent-Type: {CONFIG}\n\n{own}--X--\n"
    );
    assert_eq!(types(&archive), [SHELL, CONFIG, CONFIG]);
}

#[test]
fn an_al2023_node_needs_the_service_cidr() {
    let class = Default::default();
    let bootstrap = Bootstrap {
        cluster: &ClusterFacts {
            service_cidr: None,
            ..facts()
        },
        class: &class,
        max_pods: 1,
        labels: &BTreeMap::new(),
        taints: &[],
        image_name: "",
    };
    let refused = user_data(AmiFamily::AmazonLinux2023, &bootstrap);
    assert_eq!(refused, Err(BootstrapError::NoServiceCidr));
}

#[test]
fn an_al2_node_calls_bootstrap_sh() {
    let plain = written(AmiFamily::AmazonLinux2, json!({})).expect("user data");
    insta::assert_snapshot!("al2", plain);
    let spec =
        json!({ "userData": "echo mine", "instanceStorePolicy": "RAID0", "kubelet": kubelet() });
    let merged = written(AmiFamily::Ubuntu2204, spec).expect("user data");
    insta::assert_snapshot!("ubuntu_merged", merged);
}

#[test]
fn bottlerocket_keeps_the_users_settings_but_for_what_is_decided() {
    let plain = written(AmiFamily::Bottlerocket, json!({})).expect("user data");
    insta::assert_snapshot!("bottlerocket", plain);
    let own = r#"
[settings.kubernetes]
api-server = 'replaced'
cloud-provider = 'external'
max-pods = 9999 # replaced

[settings.kubernetes.node-labels]
"custom" = "kept"
"karpenter.sh/nodepool" = "replaced"

[settings.kubernetes.node-taints]
"gone" = ["me:NoSchedule"]

[settings.ntp]
time-servers = ["169.254.169.123"]
"#;
    let spec = json!({ "userData": own, "instanceStorePolicy": "RAID0", "kubelet": kubelet() });
    let merged = written(AmiFamily::Bottlerocket, spec).expect("user data");
    insta::assert_snapshot!("bottlerocket_merged", merged);
    let refused = written(AmiFamily::Bottlerocket, json!({ "userData": "[settings" }));
    let refused = refused.expect_err("no TOML").to_string();
    assert!(
        refused.starts_with("spec.userData of the EC2NodeClass cannot be merged: it is no TOML"),
        "{refused}"
    );
}

#[test]
fn an_image_of_the_users_own_gets_the_users_own_alone() {
    let spec = json!({ "userData": "anything", "kubelet": kubelet() });
    assert_eq!(written(AmiFamily::Custom, spec), Ok("anything".to_owned()));
}
