//! Makes the same calls on the simulated EC2 in this process and on the provider over AWS's wire protocols; both give the same answers.

use std::{collections::BTreeMap, fmt::Write as _};

use mullion_api::{ami::Os, fault::FaultKind};
use mullion_cloud::{
    Addresses, CapacityType, CloudError, CloudProvider, FleetError, Instance, InstanceId, Launch,
    LaunchCall, MessageKind, StatusCheck, TagSelector, ZonalShift, catalogue::Arch,
    sim::SimulatedEc2,
};
use mullion_engine::ip::Kind;

use crate::world::{REGION, WINDOWS, World, option, order, version};

/// Formats the facts about an instance that both know. The address is unknown right after a launch.
fn shown(instance: &Instance) -> String {
    let tags = [
        "Name",
        "karpenter.sh/nodepool",
        "kubernetes.io/cluster/demo",
    ];
    let tags = tags.map(|key| instance.tags.get(key));
    format!(
        "{} {} {} {} in {} ({}) {} {:?} {} {} {} {:?}",
        instance.id,
        instance.provider_id,
        instance.capacity_type,
        instance.instance_type.name,
        instance.zone,
        instance.zone_id,
        instance.subnet,
        instance.security_groups,
        instance.price,
        instance.image.id,
        instance.image.name,
        tags
    )
}

fn refusals(refused: &[FleetError]) -> String {
    let all = refused.iter();
    let all = all.map(|own| format!("{} for {:?}: {own}", own.option, own.unavailable_for));
    all.collect::<Vec<_>>().join("; ")
}

fn launched(answer: &Result<Launch, CloudError>) -> String {
    match answer {
        Ok(launch) => format!(
            "{} after {}",
            shown(&launch.instance),
            refusals(&launch.refused)
        ),
        Err(CloudError::InsufficientCapacity(refused)) => format!("none: {}", refusals(refused)),
        Err(error) => error.to_string(),
    }
}

fn one(answer: Result<std::sync::Arc<Instance>, CloudError>) -> String {
    match answer {
        Ok(own) => format!("{} {} {}", shown(&own), own.state.as_str(), own.private_ip),
        Err(error) => error.to_string(),
    }
}

/// Makes the calls that controllers make, and records every answer. `ec2` is where faults are injected.
async fn story<C: CloudProvider + Addresses>(cloud: &C, ec2: &SimulatedEc2) -> String {
    let mut told = String::new();
    let mut tell = |what: &str, answer: &dyn std::fmt::Display| {
        writeln!(told, "{what}: {answer}").expect("a string takes all");
    };
    let any = |answer: &dyn std::fmt::Debug| format!("{answer:?}");
    tell("region", &cloud.region());
    for os in [Os::Linux, Os::Windows] {
        let offers = cloud.offers(os).await.expect("offers");
        let of_type = offers
            .iter()
            .find(|own| &*own.instance_type.name == "c6a.xlarge");
        let offer = of_type.expect("it is sold");
        let mut sold: Vec<_> = offer
            .offerings
            .iter()
            .map(|own| {
                format!(
                    "{} {} {} {}",
                    own.capacity_type, own.zone, own.zone_id, own.price
                )
            })
            .collect();
        sold.sort();
        tell("offer", &any(&(offer.instance_type.as_ref(), sold)));
    }
    let discovery = [TagSelector {
        tags: BTreeMap::from([("karpenter.sh/discovery".to_owned(), "demo".to_owned())]),
        ..TagSelector::default()
    }];
    tell("subnets", &any(&cloud.subnets(&discovery).await));
    tell("groups", &any(&cloud.security_groups(&discovery).await));
    let default = [TagSelector {
        name: Some("default".to_owned()),
        ..TagSelector::default()
    }];
    tell("by name", &any(&cloud.security_groups(&default).await));
    let none = [TagSelector::default()];
    tell("none", &any(&cloud.subnets(&none).await));
    let image = cloud.newest_image(WINDOWS, version(), Arch::Amd64).await;
    tell("image", &any(&image));

    // IAM denies one call of a launch after another, before there is a launch template.
    let trial = || {
        order(
            "t",
            WINDOWS,
            &[option("m5.large", "us-west-2c", CapacityType::OnDemand)],
        )
    };
    for call in LaunchCall::ALL {
        ec2.deny(&[call.action().to_owned()]);
        let denied = cloud.denied_call(trial()).await;
        assert_eq!(
            denied.as_ref().map(|own| own.as_ref().map(|own| own.call)),
            Ok(Some(call))
        );
        tell("denied", &any(&denied));
        tell("launch denied", &launched(&cloud.launch(trial()).await));
    }
    ec2.deny(&[]);
    tell("allowed", &any(&cloud.denied_call(trial()).await));

    // No capacity, then a second choice, then the same order again.
    let (a, b) = ("us-west-2a", "us-west-2b");
    let on_demand = |zone: &str| option("c6a.xlarge", zone, CapacityType::OnDemand);
    ec2.exhaust("c6a.xlarge/us-west-2a".parse().expect("a pattern"));
    let none = cloud.launch(order("a", WINDOWS, &[on_demand(a)])).await;
    tell("no capacity", &launched(&none));
    let both = [on_demand(a), on_demand(b)];
    let second = cloud.launch(order("b", WINDOWS, &both)).await;
    tell("second choice", &launched(&second));
    let id = second.expect("there is one").instance.id.clone();
    let again = cloud.launch(order("b", WINDOWS, &both)).await;
    tell(
        "again",
        &again
            .map(|own| own.instance.id.clone())
            .expect("it is there"),
    );
    tell("get", &one(cloud.get(id.clone()).await));
    let ours = BTreeMap::from([("karpenter.sh/nodepool".to_owned(), "*".to_owned())]);
    for own in CloudProvider::list(cloud, ours).await.expect("a list") {
        tell("listed", &one(Ok(own)));
    }
    let offers = cloud.offers(Os::Windows).await.expect("offers");
    let rests = offers.iter().flat_map(|own| {
        let resting = own.offerings.iter().filter(|own| !own.available);
        resting.map(|offering| {
            format!(
                "{} {} {}",
                own.instance_type.name, offering.zone, offering.capacity_type
            )
        })
    });
    tell("rests", &any(&rests.collect::<Vec<_>>()));

    // Addresses until there is no prefix left in the small subnet.
    let found = cloud.interfaces_of(std::slice::from_ref(&id)).await;
    tell("interface", &any(&found));
    let facts = found.expect("an answer")[0].facts.clone();
    let assigned = cloud.assign(&facts.id, Kind::Address, 2).await;
    tell("assigned", &any(&assigned));
    for _ in 0..3 {
        tell(
            "prefix",
            &any(&cloud.assign(&facts.id, Kind::Prefix, 1).await),
        );
    }
    tell(
        "too many",
        &any(&cloud.assign(&facts.id, Kind::Address, 40).await),
    );
    tell("on it", &any(&Addresses::list(cloud, &facts.id).await));
    tell("subnet", &any(&cloud.subnet(&facts.subnet).await));
    let blocks = assigned.expect("addresses");
    tell(
        "given back",
        &any(&cloud.give_back(&facts.id, Kind::Address, &blocks).await),
    );
    tell(
        "not there",
        &any(&cloud.give_back(&facts.id, Kind::Address, &blocks).await),
    );
    tell("no subnet", &any(&cloud.subnet("subnet-0").await));

    // A spot instance is lost.
    let spot = option("m5.large", "us-west-2c", CapacityType::Spot);
    let spot = cloud.launch(order("c", WINDOWS, &[spot])).await;
    tell("spot", &launched(&spot));
    let spot = spot.expect("there is one").instance.id.clone();
    ec2.interrupt(&spot);
    ec2.recommend_rebalance(&spot);
    ec2.schedule_maintenance(&spot);
    let messages = cloud.receive_messages().await.expect("messages");
    let kinds: Vec<_> = messages
        .iter()
        .map(|own| (own.kind, own.instance.to_string()))
        .collect();
    tell("messages", &any(&kinds));
    assert_eq!(kinds[0].0, MessageKind::SpotInterruption);
    for message in &messages {
        cloud.delete_message(message).await.expect("it is deleted");
    }
    ec2.impair(&id, StatusCheck::System);
    let checks = cloud.impairments().await.expect("checks");
    let mut checks: Vec<_> = checks
        .iter()
        .map(|own| (own.check, own.instance.to_string()))
        .collect();
    checks.sort();
    tell("checks", &any(&checks));

    // The cluster is shifted away from a zone.
    let shift = ec2.fault(FaultKind::ZonalShift, "us-west-2b");
    let shift = shift.expect("there is such a zone");
    ec2.cause(&shift);
    let zones = |shifts: Vec<ZonalShift>| {
        let ids = shifts.into_iter().map(|own| own.zone_id);
        ids.collect::<Vec<_>>()
    };
    let shifted = cloud.zonal_shifts().await.map(zones);
    assert_eq!(shifted.as_ref().map(Vec::len), Ok(1));
    tell("shifted", &any(&shifted));
    ec2.heal(&shift);
    tell("not shifted", &any(&cloud.zonal_shifts().await.map(zones)));

    // Quotas, unknown things, and the end.
    ec2.limit_vcpus(Some(6));
    let quota = cloud
        .launch(order("d", WINDOWS, &[on_demand("us-west-2c")]))
        .await;
    tell("quota", &launched(&quota));
    let unknown = InstanceId("i-0123456789abcdef0".into());
    tell("unknown", &one(cloud.get(unknown.clone()).await));
    tell("unknown ends", &any(&cloud.terminate(unknown).await));
    tell("terminate", &any(&cloud.terminate(id.clone()).await));
    tell("gone", &one(cloud.get(id.clone()).await));
    tell("terminate twice", &any(&cloud.terminate(id.clone()).await));
    tell(
        "no interface",
        &any(&cloud.assign(&facts.id, Kind::Address, 1).await),
    );
    tell("none of it", &any(&cloud.interfaces_of(&[id]).await));
    told
}

#[tokio::test]
async fn a_cloud_and_its_wire_protocols_give_the_same_answers() {
    let small = |config: &mut mullion_cloud::sim::Config| config.subnet_bits = Some(27);
    let direct = World::with(small).await.ec2;
    let direct = story(&direct, &direct).await;
    let world = World::with(small).await;
    let wire = story(&world.aws, &world.ec2).await;
    assert!(direct.starts_with(&format!("region: {REGION}\n")));
    for (own, others) in direct.lines().zip(wire.lines()) {
        assert_eq!(own, others);
    }
    assert_eq!(direct.lines().count(), wire.lines().count());
}
