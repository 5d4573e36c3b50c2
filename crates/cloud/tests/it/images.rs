//! The images that the terms of an EC2NodeClass select.

use std::collections::BTreeMap;

use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
    fault::FaultKind,
    karpenter::{AmiSelectorTerm, Requirement},
    labels,
};
use mullion_cloud::{
    CapacityType, Clock, CloudProvider, LaunchImage, LaunchOption, NodeTemplate,
    catalogue::Arch,
    image::{ImageVariant, NodeImage},
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
    if found.is_fallback {
        Vec::new()
    } else {
        found.images.into_iter().map(|own| own.id).collect()
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
        format!("{eks}/arm64/neuron/recommended/image_id"),
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
    let plain = found.images.into_iter();
    let plain = plain.filter(|own| own.variant == ImageVariant::Standard);
    let newest: Vec<_> = plain.map(|own| own.id).collect();
    assert_eq!(newest, [amd64, arm64]);
}

/// What a term selects: variant and name.
async fn listed(ec2: &SimulatedEc2, family: AmiFamily, term: Value) -> Vec<(ImageVariant, String)> {
    let term: AmiSelectorTerm = serde_json::from_value(term).unwrap();
    let found = ec2.images(&[term], family, version()).await.unwrap();
    let images = found.images.into_iter();
    images.map(|own| (own.variant, own.name)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_alias_selects_an_image_for_each_kind_of_hardware() {
    let ec2 = ec2();
    use ImageVariant::{Neuron, Nvidia, Standard};
    let alias = |alias: &str| json!({ "alias": alias });
    let al2023 = listed(&ec2, AmiFamily::AmazonLinux2023, alias("al2023@v20250317")).await;
    let own = |(variant, word): (ImageVariant, &str)| {
        (
            variant,
            format!("amazon-eks-node-al2023-{word}-1.31-v20250317"),
        )
    };
    let expected = [
        (Standard, "x86_64-standard"),
        (Nvidia, "x86_64-nvidia"),
        (Neuron, "x86_64-neuron"),
        (Standard, "arm64-standard"),
        (Nvidia, "arm64-nvidia"),
    ];
    assert_eq!(al2023, expected.map(own));
    let bottlerocket = listed(&ec2, AmiFamily::Bottlerocket, alias("bottlerocket@latest")).await;
    let own = |(variant, word): (ImageVariant, &str)| {
        (
            variant,
            format!("bottlerocket-aws-k8s-1.31-{word}-v1.32.0-cacc4ce9"),
        )
    };
    let expected = [
        (Standard, "x86_64"),
        (Nvidia, "nvidia-x86_64"),
        (Neuron, "x86_64"),
        (Standard, "arm64"),
        (Nvidia, "nvidia-arm64"),
    ];
    assert_eq!(bottlerocket, expected.map(own));
    // What a name selects is for any hardware.
    let name = json!({ "name": "amazon-eks-node-al2023-x86_64-nvidia-*" });
    let named = listed(&ec2, AmiFamily::AmazonLinux2023, name).await;
    let nvidia = "amazon-eks-node-al2023-x86_64-nvidia-1.31-v20250317".to_owned();
    assert_eq!(named, [(ImageVariant::Any, nvidia)]);
}

#[tokio::test(start_paused = true)]
async fn every_image_is_listed_once_and_held_by_its_public_parameter() {
    let ec2 = ec2();
    let mut ids: Vec<String> = ec2.all_images().into_iter().map(|own| own.id).collect();
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), all);
    for (name, image) in [
        (
            "/aws/service/eks/optimized-ami/1.31/amazon-linux-2023/x86_64/neuron/recommended/image_id",
            "amazon-eks-node-al2023-x86_64-neuron-1.31-v20250317",
        ),
        (
            "/aws/service/bottlerocket/aws-k8s-1.31-nvidia/arm64/latest/image_id",
            "bottlerocket-aws-k8s-1.31-nvidia-arm64-v1.32.0-cacc4ce9",
        ),
        (
            "/aws/service/bottlerocket/aws-k8s-1.31-nvidia-fips/x86_64/latest/image_id",
            "bottlerocket-aws-k8s-1.31-nvidia-fips-x86_64-v1.32.0-cacc4ce9",
        ),
        (
            "/aws/service/eks/optimized-ami/1.31/amazon-linux-2-gpu/recommended/image_id",
            "amazon-eks-gpu-node-1.31-v20250317",
        ),
    ] {
        let all = ec2.all_images();
        let own = all.iter().find(|own| own.name == image).expect(image);
        let value = ec2.parameter(name).map(|own| own.value);
        assert_eq!(value.as_ref(), Some(&own.id), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_boots_the_image_for_its_accelerators() {
    let ec2 = ec2();
    let booted = async |family, name: &str, images: Vec<LaunchImage>| {
        let option = LaunchOption {
            instance_type: name.to_owned(),
            zone: "us-west-2a".to_owned(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
            placement: None,
        };
        let token = format!("{family} {name} {images:?}");
        let mut order = crate::order(&token, option, NodeTemplate::new(family, version()));
        order.images = images;
        ec2.launch(order).await.unwrap().instance.image.name.clone()
    };
    let al2023 = AmiFamily::AmazonLinux2023;
    for (name, word) in [
        ("m5.large", "x86_64-standard"),
        ("g4dn.xlarge", "x86_64-nvidia"),
        ("g5g.xlarge", "arm64-nvidia"),
        ("inf1.xlarge", "x86_64-neuron"),
    ] {
        let image = booted(al2023, name, Vec::new()).await;
        assert_eq!(
            image,
            format!("amazon-eks-node-al2023-{word}-1.31-v20250317")
        );
    }
    let bottlerocket = booted(AmiFamily::Bottlerocket, "g4dn.xlarge", Vec::new()).await;
    assert!(
        bottlerocket.contains("1.31-nvidia-x86_64"),
        "{bottlerocket}"
    );
    // Whoever names one image gets it on every type.
    let own = |variant| LaunchImage {
        id: id(al2023, Arch::Amd64, 0),
        variant,
    };
    let image = booted(al2023, "g4dn.xlarge", vec![own(ImageVariant::Any)]).await;
    assert!(image.contains("standard"), "{image}");
    // An image that a class uses for other hardware is not booted.
    let other = vec![own(ImageVariant::Standard)];
    let image = booted(al2023, "g4dn.xlarge", other).await;
    assert!(image.contains("nvidia"), "{image}");
}

#[test]
fn requirements_of_a_variant_name_it() {
    use ImageVariant::{Any, Neuron, Nvidia, Standard};
    for variant in [Any, Standard, Nvidia, Neuron] {
        let mut requirements = vec![Requirement::is(labels::ARCH, "amd64")];
        requirements.extend(variant.requirements());
        assert_eq!(ImageVariant::requiring(&requirements), variant);
    }
}
