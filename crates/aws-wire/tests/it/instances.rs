//! Describing and terminating instances, and faults of calls.

use std::{num::NonZeroU32, time::Duration};

use axum::{body::Body, http::Request};
use mullion_cloud::Speed;

use crate::wire::Wire;

#[tokio::test(start_paused = true)]
async fn an_instance_is_terminated_twice_and_then_described_as_terminated() {
    let wire = Wire::new();
    let id = wire.instance("t").await;
    let described = wire
        .ec2("DescribeInstances", &[("InstanceId.1", &id)])
        .await;
    assert_eq!(described.one("instanceType"), "m5.large");
    assert!(described.body.contains("<name>running</name>"));
    let first = wire
        .ec2("TerminateInstances", &[("InstanceId.1", &id)])
        .await;
    assert_eq!(first.all("name"), ["shutting-down", "running"]);
    let second = wire
        .ec2("TerminateInstances", &[("InstanceId.1", &id)])
        .await;
    assert_eq!(second.all("name"), ["terminated", "terminated"]);
    let filter = [
        ("Filter.1.Name", "instance-state-name"),
        ("Filter.1.Value.1", "terminated"),
    ];
    let gone = wire.ec2("DescribeInstances", &filter).await;
    assert_eq!(gone.one("instanceId"), id);
    assert_eq!(gone.all("privateIpAddress"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_new_instance_is_not_described_for_a_moment() {
    let wire = Wire::with(|config| config.speed = Speed::REAL);
    let id = wire.instance("t").await;
    let named = [("InstanceId.1", id.as_str())];
    let unseen = wire.ec2("DescribeInstances", &named).await;
    assert_eq!(
        unseen.refusal(),
        (400, "InvalidInstanceID.NotFound".to_owned())
    );
    assert_eq!(
        wire.ec2("DescribeInstances", &[])
            .await
            .one("reservationSet"),
        ""
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let seen = wire.ec2("DescribeInstances", &named).await;
    assert_eq!(seen.one("instanceId"), id);
}

#[tokio::test(start_paused = true)]
async fn ids_that_are_none_or_name_nothing_keep_everything_alive() {
    let wire = Wire::new();
    let id = wire.instance("t").await;
    let both = [
        ("InstanceId.1", id.as_str()),
        ("InstanceId.2", "i-00000000000000000"),
    ];
    let answer = wire.ec2("TerminateInstances", &both).await;
    assert_eq!(
        answer.refusal(),
        (400, "InvalidInstanceID.NotFound".to_owned())
    );
    let wrong = wire
        .ec2("TerminateInstances", &[("InstanceId.1", "web")])
        .await;
    assert_eq!(wrong.refusal().1, "InvalidInstanceID.Malformed");
    let none = wire.ec2("TerminateInstances", &[]).await;
    assert_eq!(none.refusal().1, "MissingParameter");
    let left = wire.ec2("DescribeInstances", &[]).await;
    assert!(left.body.contains("<name>running</name>"));
}

#[tokio::test(start_paused = true)]
async fn pages_of_instances_follow_each_other() {
    let wire = Wire::new();
    let mut ids = Vec::new();
    for number in 0..7 {
        ids.push(wire.instance(&number.to_string()).await);
    }
    let first = wire.ec2("DescribeInstances", &[("MaxResults", "5")]).await;
    let token = first.one("nextToken");
    let next = [("MaxResults", "5"), ("NextToken", token.as_str())];
    let second = wire.ec2("DescribeInstances", &next).await;
    let mut listed = first.all("instanceId");
    listed.extend(second.all("instanceId"));
    ids.sort();
    assert_eq!(listed, ids);
    assert_eq!(second.all("nextToken"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn calls_are_throttled_and_denied_by_their_action() {
    let wire = Wire::new();
    wire.endpoint.faults().throttle("ec2:DescribeSubnets", 1);
    let throttled = wire.ec2("DescribeSubnets", &[]).await;
    assert_eq!(
        throttled.refusal(),
        (503, "RequestLimitExceeded".to_owned())
    );
    assert_eq!(wire.ec2("DescribeSubnets", &[]).await.status, 200);
    wire.endpoint.faults().deny("ec2:DescribeSubnets");
    let denied = wire.ec2("DescribeSubnets", &[]).await;
    assert_eq!(denied.refusal(), (403, "UnauthorizedOperation".to_owned()));
    assert!(denied.one("Message").contains("ec2:DescribeSubnets"));
    wire.endpoint.faults().allow("ec2:DescribeSubnets");
    assert_eq!(wire.ec2("DescribeSubnets", &[]).await.status, 200);
    wire.endpoint.ec2().throttle(1);
    assert_eq!(wire.ec2("DescribeInstances", &[]).await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn so_many_calls_are_taken_a_second() {
    let wire = Wire::new();
    wire.endpoint
        .faults()
        .limit("ec2:DescribeSubnets", NonZeroU32::new(3));
    let taken = async || {
        let mut taken = 0;
        for _ in 0..10 {
            let status = wire.ec2("DescribeSubnets", &[]).await.status;
            assert!([200, 503].contains(&status), "{status}");
            taken += u32::from(status == 200);
        }
        taken
    };
    assert_eq!(taken().await, 3);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(taken().await, 2);
    assert_eq!(wire.ec2("DescribeInstances", &[]).await.status, 200);
    wire.endpoint.faults().limit("ec2:DescribeSubnets", None);
    assert_eq!(taken().await, 10);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_served_is_an_invalid_action() {
    let wire = Wire::new();
    let answer = wire.ec2("CreateVpc", &[("CidrBlock", "10.0.0.0/16")]).await;
    assert_eq!(answer.refusal(), (400, "InvalidAction".to_owned()));
    let unsigned = Request::post("/")
        .body(Body::from("Action=DescribeSubnets"))
        .unwrap();
    let answer = wire.send(unsigned).await;
    assert_eq!(
        answer.refusal(),
        (403, "MissingAuthenticationToken".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn types_and_subnets_are_those_of_the_simulated_ec2() {
    let wire = Wire::new();
    let named = [
        ("InstanceType.1", "m5.large"),
        ("InstanceType.2", "c6a.xlarge"),
    ];
    let types = wire.ec2("DescribeInstanceTypes", &named).await;
    assert_eq!(types.all("defaultVCpus"), ["4", "2"]);
    assert_eq!(types.all("ipv4AddressesPerInterface"), ["15", "10"]);
    let first = wire.ec2("DescribeInstanceTypes", &[]).await;
    assert_eq!(first.all("instanceType").len(), 100);
    first.one("nextToken");
    let unknown = wire
        .ec2("DescribeInstanceTypes", &[("InstanceType.1", "m5.huge")])
        .await;
    assert_eq!(unknown.refusal().1, "InvalidInstanceType");
    let filter = [
        ("Filter.1.Name", "tag:karpenter.sh/discovery"),
        ("Filter.1.Value.1", "demo"),
        ("Filter.2.Name", "availability-zone"),
        ("Filter.2.Value.1", "us-west-2b"),
    ];
    let subnets = wire.ec2("DescribeSubnets", &filter).await;
    assert_eq!(subnets.one("cidrBlock"), "10.0.64.0/18");
    assert_eq!(subnets.one("availabilityZoneId"), "usw2-az2");
}

#[tokio::test(start_paused = true)]
async fn memory_and_cores_of_accelerators_are_described() {
    let wire = Wire::new();
    let describe = async |name: &str| {
        let named = [("InstanceType.1", name)];
        wire.ec2("DescribeInstanceTypes", &named).await
    };
    let amd = describe("g4ad.8xlarge").await.one("gpuInfo");
    assert!(
        amd.contains("<memoryInfo><sizeInMiB>8192</sizeInMiB></memoryInfo>"),
        "{amd}"
    );
    // Karpenter reads the cores of every type with Neuron devices and ends if one has none.
    let neuron = describe("inf2.24xlarge").await.one("neuronInfo");
    let device = "<count>6</count><name>Inferentia2</name><coreInfo><count>2</count><version>2</version></coreInfo>";
    assert!(neuron.contains(device), "{neuron}");
    assert!(
        neuron.contains("<memoryInfo><sizeInMiB>32768</sizeInMiB></memoryInfo>"),
        "{neuron}"
    );
}
