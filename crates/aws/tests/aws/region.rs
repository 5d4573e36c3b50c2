//! Facts that are looked up in a region: images, instance profiles, prices.

use mullion_api::{
    ami::{AmiFamily, Os},
    karpenter::{AmiSelectorTerm, EC2NodeClass},
};
use mullion_cloud::{
    CapacityType, CloudProvider,
    catalogue::{Arch, price},
    image::{ImageVariant, NodeImage},
};
use serde_json::json;

use crate::world::{WINDOWS, World, version};

fn alias(text: &str) -> Vec<AmiSelectorTerm> {
    vec![AmiSelectorTerm {
        alias: Some(text.to_owned()),
        ..AmiSelectorTerm::default()
    }]
}

#[tokio::test]
async fn an_alias_finds_an_image_of_each_architecture() {
    let world = World::new().await;
    let terms = alias("al2023@latest");
    let images = world
        .aws
        .images(&terms, AmiFamily::AmazonLinux2023, version())
        .await;
    let images = images.expect("images").images;
    let plain = images
        .iter()
        .filter(|own| own.variant == ImageVariant::Standard);
    let arches: Vec<_> = plain.map(|own| own.arch).collect();
    assert!(
        arches.contains(&Arch::Amd64) && arches.contains(&Arch::Arm64),
        "{images:?}"
    );
    let windows = world
        .aws
        .images(&alias("windows2022@latest"), WINDOWS, version())
        .await;
    let windows = windows.expect("images").images;
    assert_eq!(
        windows[0].id,
        NodeImage::new(WINDOWS, version(), Arch::Amd64).id
    );
}

#[tokio::test]
async fn images_are_selected_by_id_and_by_name() {
    let world = World::new().await;
    let wanted = NodeImage::new(WINDOWS, version(), Arch::Amd64);
    let select = async |term: AmiSelectorTerm| {
        let images = world.aws.images(&[term], WINDOWS, version()).await;
        let images = images.expect("an answer").images.into_iter();
        images.map(|own| own.id).collect::<Vec<_>>()
    };
    let by_id = AmiSelectorTerm {
        id: Some(wanted.id.clone()),
        ..AmiSelectorTerm::default()
    };
    assert_eq!(select(by_id).await, [wanted.id.clone()]);
    let by_name = AmiSelectorTerm {
        name: Some(wanted.name.clone()),
        ..AmiSelectorTerm::default()
    };
    assert_eq!(select(by_name).await, [wanted.id]);
    let none = AmiSelectorTerm {
        id: Some("ami-0000000000000000f".to_owned()),
        ..AmiSelectorTerm::default()
    };
    assert!(select(none).await.is_empty());
}

#[tokio::test]
async fn a_class_keeps_the_profile_that_another_program_has_made_while_it_has_the_role() {
    let world = World::new().await;
    let class = |name: &str, role: &str, profile: &str| -> EC2NodeClass {
        let class = json!({
            "metadata": { "name": name, "uid": name },
            "spec": { "role": role },
            "status": { "instanceProfile": profile }
        });
        serde_json::from_value(class).expect("a class")
    };
    let role = "KarpenterNodeRole-demo";
    let ask = async |class: EC2NodeClass| world.aws.instance_profile(&class, "demo").await;
    // This program would not give that name to a profile of the other class.
    let theirs = ask(class("web", role, "")).await.expect("made");
    assert_eq!(ask(class("jobs", role, &theirs)).await, Ok(theirs.clone()));
    let path = format!("/nodes/{role}");
    assert_eq!(ask(class("jobs", &path, &theirs)).await, Ok(theirs.clone()));
    let ours = ask(class("jobs", role, "gone")).await.expect("made");
    assert!(ours != theirs && ours != "gone", "{ours}");
    assert_eq!(world.role_of(&ours).await, role);
    // The profile does not have the role that the class names now.
    let refused = ask(class("jobs", "nobody", &theirs)).await;
    let refused = refused.expect_err("there is no such role").to_string();
    assert!(refused.contains("NoSuchEntity"), "{refused}");
}

#[tokio::test]
async fn a_class_with_a_role_gets_a_profile_that_has_it() {
    let world = World::new().await;
    let class = |spec: serde_json::Value| -> EC2NodeClass {
        let class = json!({ "metadata": { "name": "web", "uid": "1" }, "spec": spec });
        serde_json::from_value(class).expect("a class")
    };
    let own = class(json!({ "instanceProfile": "mine" }));
    assert_eq!(
        world.aws.instance_profile(&own, "demo").await,
        Ok("mine".to_owned())
    );
    let role = class(json!({ "role": "KarpenterNodeRole-demo" }));
    let profile = world
        .aws
        .instance_profile(&role, "demo")
        .await
        .expect("made");
    assert!(profile.starts_with("demo_"), "{profile}");
    assert_eq!(world.role_of(&profile).await, "KarpenterNodeRole-demo");
    // Another process finds it.
    let second = world.restarted().await;
    assert_eq!(
        second.instance_profile(&role, "demo").await,
        Ok(profile.clone())
    );
    let unknown = class(json!({ "role": "nobody" }));
    let refused = world.aws.instance_profile(&unknown, "demo").await;
    let refused = refused.expect_err("there is no such role").to_string();
    assert!(refused.contains("NoSuchEntity"), "{refused}");
    let nothing = world.aws.instance_profile(&class(json!({})), "demo").await;
    let nothing = nothing.expect_err("neither").to_string();
    assert!(
        nothing.contains("neither a role nor an instance profile"),
        "{nothing}"
    );
}

#[tokio::test]
async fn prices_are_told_apart_by_operating_system() {
    let world = World::new().await;
    for os in [Os::Linux, Os::Windows] {
        let offers = world.aws.offers(os).await.expect("offers");
        assert!(offers.len() > 500, "{os}: {}", offers.len());
        for offer in offers.iter() {
            for own in &offer.offerings {
                let listed = price::of(&offer.instance_type, os, own.capacity_type);
                let name = &offer.instance_type.name;
                assert_eq!(Some(own.price), listed, "{name} {os} {}", own.capacity_type);
                assert_ne!(own.capacity_type, CapacityType::Reserved);
            }
        }
    }
}
