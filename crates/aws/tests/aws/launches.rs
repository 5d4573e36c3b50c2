//! Launches on AWS, and their failures.

use std::collections::BTreeMap;

use mullion_api::{
    ami::AmiFamily,
    eksctl::{Taint, TaintEffect},
    fault::FaultKind,
};
use mullion_cloud::{
    CapacityType, CloudError, CloudProvider, LaunchCall, LaunchImage, Registration, Shortage,
    catalogue::Arch,
    image::{ImageVariant, NodeImage},
};

use crate::world::{WINDOWS, World, option, order, version};

const AL2023: AmiFamily = AmiFamily::AmazonLinux2023;

const OFFERED: [(&str, &str); 3] = [
    ("m5.large", "us-west-2a"),
    ("m5.large", "us-west-2b"),
    ("m5a.large", "us-west-2a"),
];

fn options(capacity_type: CapacityType) -> Vec<mullion_cloud::LaunchOption> {
    let all = OFFERED.iter();
    all.map(|(name, zone)| option(name, zone, capacity_type))
        .collect()
}

#[tokio::test]
async fn a_claim_that_is_launched_again_by_another_process_buys_nothing_twice() {
    let world = World::new().await;
    let on_demand = options(CapacityType::OnDemand);
    let request = order("claim-1", WINDOWS, &on_demand);
    let first = world.aws.launch(request.clone()).await.expect("bought");
    let second = world.restarted().await;
    let again = second.launch(request).await.expect("found");
    assert_eq!(again.instance.id, first.instance.id);
    // The next process may prefer other options. EC2 then refuses the token, because the request differs, and the instance is found by its
    // tag.
    let other = order("claim-1", WINDOWS, &on_demand[1..]);
    let found = second.launch(other).await.expect("found by its tag");
    assert_eq!(found.instance.id, first.instance.id);
    assert_eq!(world.ec2.instances().len(), 1);
}

/// The class's images may be older than those that its alias selects now, and a process that has just started has looked up none.
#[tokio::test]
async fn an_instance_boots_the_image_that_its_class_has_for_the_hardware_of_its_type() {
    let world = World::new().await;
    let all = NodeImage::all_released(AL2023, version(), Arch::Amd64, 0);
    let images = all.map(|image| LaunchImage {
        id: image.id,
        variant: image.variant,
    });
    let images: Vec<_> = images.collect();
    let newer = world.ec2.fault(FaultKind::NewImage, "al2023@latest");
    world.ec2.cause(&newer.expect("it can be caused"));
    let restarted = world.restarted().await;
    for (name, variant) in [
        ("m5.large", ImageVariant::Standard),
        ("g4dn.xlarge", ImageVariant::Nvidia),
        ("inf1.xlarge", ImageVariant::Neuron),
    ] {
        let one = [option(name, "us-west-2a", CapacityType::OnDemand)];
        let mut request = order(name, AL2023, &one);
        request.images = images.clone();
        let launch = restarted.launch(request).await.expect(name);
        let wanted = images.iter().find(|own| own.variant == variant);
        let wanted = wanted.expect("it has one");
        assert_eq!(launch.instance.image.id, wanted.id, "{name}");
    }
}

#[tokio::test]
async fn on_demand_is_tried_when_spot_is_sold_out() {
    let world = World::new().await;
    world.ec2.exhaust("*/*/spot".parse().expect("a pattern"));
    let mut all = options(CapacityType::Spot);
    all.extend(options(CapacityType::OnDemand));
    let launch = world
        .aws
        .launch(order("c", WINDOWS, &all))
        .await
        .expect("bought");
    assert_eq!(launch.instance.capacity_type, CapacityType::OnDemand);
    assert_eq!(launch.refused.len(), 3);
    assert!(
        launch
            .refused
            .iter()
            .all(|own| own.shortage == Shortage::Spot)
    );
    let offers = world
        .aws
        .offers(mullion_api::ami::Os::Windows)
        .await
        .expect("offers");
    let m5 = offers
        .iter()
        .find(|own| &*own.instance_type.name == "m5.large")
        .expect("sold");
    let rests = m5.offerings.iter().filter(|own| !own.available);
    let rests: Vec<_> = rests.map(|own| (own.capacity_type, &*own.zone)).collect();
    assert_eq!(
        rests,
        [
            (CapacityType::Spot, "us-west-2a"),
            (CapacityType::Spot, "us-west-2b")
        ]
    );
}

#[tokio::test]
async fn a_node_registers_with_what_its_user_data_says() {
    let world = World::new().await;
    for (family, claim) in [
        (WINDOWS, "windows"),
        (AmiFamily::AmazonLinux2023, "al2023"),
        (AmiFamily::AmazonLinux2, "al2"),
        (AmiFamily::Bottlerocket, "bottlerocket"),
    ] {
        let mut request = order(claim, family, &options(CapacityType::OnDemand));
        request.registration = Registration {
            labels: BTreeMap::from([("team".to_owned(), claim.to_owned())]),
            taints: vec![Taint {
                key: "os".to_owned(),
                value: claim.to_owned(),
                effect: TaintEffect::NoSchedule,
            }],
        };
        let id = world
            .aws
            .launch(request)
            .await
            .expect("bought")
            .instance
            .id
            .clone();
        let bought = world.ec2.instance(&id).expect("it is there");
        assert_eq!(bought.registration.labels["team"], claim, "{claim}");
        let paid = &bought.registration.labels["karpenter.sh/capacity-type"];
        assert_eq!(paid, "on-demand", "{claim}");
        let taints = bought.registration.taints.iter();
        assert!(
            taints.clone().any(|own| own.value == claim),
            "{claim}: {taints:?}"
        );
        assert_eq!(bought.image.family, family);
    }
}

#[tokio::test]
async fn a_launch_template_serves_several_claims_and_one_that_was_deleted_is_made_again() {
    let world = World::new().await;
    let launch = async |claim: &str| {
        let request = order(claim, WINDOWS, &options(CapacityType::OnDemand));
        world.aws.launch(request).await.expect("bought")
    };
    launch("a").await;
    launch("b").await;
    let names = world.template_names().await;
    assert_eq!(names.len(), 1, "{names:?}");
    world.delete_template(&names[0]).await;
    launch("c").await;
    assert_eq!(world.template_names().await, names);
}

#[tokio::test]
async fn what_may_not_be_done_and_what_is_too_much_are_told_apart() {
    let world = World::new().await;
    let faults = world.endpoint.faults();
    let launch = async |claim: &str| {
        let request = order(claim, WINDOWS, &options(CapacityType::OnDemand));
        let refused = world.aws.launch(request).await;
        refused
            .map(|own| own.instance.id.clone())
            .expect_err("refused")
    };
    faults.throttle("ec2:CreateFleet", 1);
    assert_eq!(launch("a").await, CloudError::Throttled);
    faults.deny("ec2:CreateFleet");
    let CloudError::Unauthorized(message) = launch("b").await else {
        panic!("it may not be done")
    };
    assert!(message.contains("not authorized"), "{message}");
    assert!(world.ec2.instances().is_empty());
    faults.allow("ec2:CreateFleet");
    faults.throttle("ec2:DescribeInstances", 1);
    let refused = world.aws.list(BTreeMap::new()).await;
    assert_eq!(refused.expect_err("throttled"), CloudError::Throttled);
}

#[tokio::test]
async fn instances_are_looked_up_and_ended_together() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for claim in ["a", "b", "c"] {
        let request = order(claim, WINDOWS, &options(CapacityType::OnDemand));
        let launch = world.aws.launch(request).await.expect("bought");
        ids.push(launch.instance.id.clone());
    }
    // The unknown id makes the common call fail, so each instance is then described alone.
    let gone = mullion_cloud::InstanceId("i-0123456789abcdef0".into());
    let (a, b, c, none) = tokio::join!(
        world.aws.get(ids[0].clone()),
        world.aws.get(ids[1].clone()),
        world.aws.get(ids[2].clone()),
        world.aws.get(gone.clone())
    );
    for (found, id) in [a, b, c].into_iter().zip(&ids) {
        assert_eq!(found.expect("it is there").id, *id);
    }
    assert!(none.expect_err("there is none").is_not_found());
    let (a, b, none) = tokio::join!(
        world.aws.terminate(ids[0].clone()),
        world.aws.terminate(ids[1].clone()),
        world.aws.terminate(gone)
    );
    assert_eq!((a, b), (Ok(()), Ok(())));
    assert!(none.expect_err("there is none").is_not_found());
    let left = world.aws.list(BTreeMap::new()).await.expect("a list");
    let left: Vec<_> = left.iter().map(|own| own.id.clone()).collect();
    assert_eq!(left, [ids[2].clone()]);
}

#[tokio::test]
async fn a_launch_is_tried_without_buying_anything() {
    let world = World::new().await;
    let faults = world.endpoint.faults();
    let mut request = order("", WINDOWS, &options(CapacityType::OnDemand)[..2]);
    // A subnet that fails does not matter while another one does not.
    faults.throttle("ec2:RunInstances", 1);
    assert_eq!(world.aws.denied_call(request.clone()).await, Ok(None));
    assert_eq!(world.template_names().await.len(), 1);
    assert!(world.ec2.instances().is_empty());
    faults.throttle("ec2:RunInstances", 2);
    let throttled = world.aws.denied_call(request.clone()).await;
    assert_eq!(throttled, Err(CloudError::Throttled));
    faults.deny("ec2:RunInstances");
    let denied = world.aws.denied_call(request.clone()).await;
    let denied = denied.expect("an answer").expect("it is denied");
    assert_eq!(denied.call, LaunchCall::RunInstances);
    // Another process has deleted the template: the next trial creates it again.
    faults.allow("ec2:RunInstances");
    world
        .delete_template(&world.template_names().await[0])
        .await;
    let gone = world.aws.denied_call(request.clone()).await;
    assert!(matches!(gone, Err(CloudError::Refused { .. })), "{gone:?}");
    assert_eq!(world.aws.denied_call(request.clone()).await, Ok(None));
    let class = request.class.as_mut().expect("it has one");
    class.spec.user_data = Some("x".repeat(16 * 1024));
    let too_long = CloudError::Refused {
        code: "InvalidUserData.Malformed".to_owned(),
        message: "User data is limited to 16384 bytes".to_owned(),
    };
    assert_eq!(world.aws.denied_call(request).await, Err(too_long));
}
