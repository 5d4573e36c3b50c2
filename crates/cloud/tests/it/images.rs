//! The images that the terms of an EC2NodeClass select.

use std::collections::BTreeMap;

use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
    fault::FaultKind,
    karpenter::AmiSelectorTerm,
};
use mullion_cloud::{
    Clock, CloudProvider,
    catalogue::Arch,
    image::NodeImage,
    sim::{Config, SimulatedEc2},
};
use serde_json::{Value, json};

const WINDOWS: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);

fn version() -> KubernetesVersion {
    KubernetesVersion::from_minor(31).unwrap()
}

fn ec2() -> SimulatedEc2 {
    let start = "2026-01-01T00:00:00Z".parse().unwrap();
    SimulatedEc2::new(
        Config::new("demo", "us-west-2", version()),
        Clock::starting_at(start),
    )
}

/// The ids of what a term selects; none if it selects nothing.
async fn selected(ec2: &SimulatedEc2, family: AmiFamily, term: Value) -> Vec<String> {
    let term: AmiSelectorTerm = serde_json::from_value(term).unwrap();
    let found = ec2.images(&[term], family, version()).await.unwrap();
    match found.is_fallback {
        true => Vec::new(),
        false => found.images.into_iter().map(|own| own.id).collect(),
    }
}

fn id(family: AmiFamily, arch: Arch, release: u32) -> String {
    NodeImage::released(family, version(), arch, release).id
}

#[tokio::test(start_paused = true)]
async fn public_parameters_hold_the_ids_of_images() {
    let ec2 = ec2();
    let newer = ec2.fault(FaultKind::NewImage, "al2023@latest").unwrap();
    ec2.cause(&newer);
    let family = AmiFamily::AmazonLinux2023;
    let eks = "/aws/service/eks/optimized-ami/1.31/amazon-linux-2023";
    let cases = [
        (family, format!("{eks}/x86_64/standard/recommended/image_id"), Arch::Amd64, 1),
        (family, format!("{eks}/arm64/standard/recommended/image_id"), Arch::Arm64, 1),
        (
            family,
            format!("{eks}/x86_64/standard/amazon-eks-node-al2023-x86_64-standard-1.31-v20250317/image_id"),
            Arch::Amd64,
            0,
        ),
        (
            AmiFamily::Bottlerocket,
            "/aws/service/bottlerocket/aws-k8s-1.31/x86_64/latest/image_id".to_owned(),
            Arch::Amd64,
            0,
        ),
        (
            WINDOWS,
            "/aws/service/ami-windows-latest/Windows_Server-2022-English-Core-EKS_Optimized-1.31/image_id".to_owned(),
            Arch::Amd64,
            0,
        ),
    ];
    for (family, name, arch, release) in cases {
        let found = selected(&ec2, family, json!({ "ssmParameter": name })).await;
        assert_eq!(found, [id(family, arch, release)], "{name}");
        let value = ec2.parameter(&name).map(|own| own.value);
        assert_eq!(value, Some(id(family, arch, release)));
    }
    let others = [
        format!("{eks}/x86_64/nvidia/recommended/image_id"),
        "/aws/service/bottlerocket/aws-k8s-1.31/x86_64/latest/image_id".to_owned(),
        "/golden/ami".to_owned(),
    ];
    for name in others {
        let found = selected(&ec2, family, json!({ "ssmParameter": name })).await;
        assert!(found.is_empty(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn tags_and_parameters_of_the_account_select_images() {
    let ec2 = ec2();
    let family = AmiFamily::AmazonLinux2023;
    let (amd64, arm64) = (id(family, Arch::Amd64, 0), id(family, Arch::Arm64, 0));
    let tags = |team: &str| BTreeMap::from([("team".to_owned(), team.to_owned())]);
    ec2.name_images(
        &BTreeMap::from([(amd64.clone(), tags("web")), (arm64.clone(), tags("data"))]),
        &BTreeMap::from([("/golden/ami".to_owned(), arm64.clone())]),
    );
    let cases = [
        (json!({ "tags": { "team": "web" } }), vec![amd64.clone()]),
        (
            json!({ "tags": { "team": "*" } }),
            vec![amd64.clone(), arm64.clone()],
        ),
        (
            json!({ "tags": { "team": "*" }, "name": "*-arm64-*" }),
            vec![arm64.clone()],
        ),
        (
            json!({ "ssmParameter": "/golden/ami" }),
            vec![arm64.clone()],
        ),
        (json!({ "tags": { "team": "ops" } }), Vec::new()),
    ];
    for (term, expected) in cases {
        assert_eq!(
            selected(&ec2, family, term.clone()).await,
            expected,
            "{term}"
        );
    }
    ec2.name_images(&BTreeMap::new(), &BTreeMap::new());
    let term: AmiSelectorTerm =
        serde_json::from_value(json!({ "tags": { "team": "web" } })).unwrap();
    let found = ec2.images(&[term], family, version()).await.unwrap();
    assert!(found.is_fallback);
    let newest: Vec<_> = found.images.into_iter().map(|own| own.id).collect();
    assert_eq!(newest, [amd64, arm64]);
}
