//! What IAM does not allow the caller of the simulated EC2.

use mullion_api::{ami::AmiFamily, eksctl::KubernetesVersion};
use mullion_cloud::{
    CapacityType, Clock, CloudError, CloudProvider, LaunchCall, LaunchClass, LaunchOption,
    LaunchRequest, NodeTemplate, Speed,
    sim::{Config, SimulatedEc2},
};

use crate::order;

fn ec2() -> SimulatedEc2 {
    let config = Config {
        speed: Speed::INSTANT,
        ..Config::new("demo", "us-west-2", KubernetesVersion::NEWEST)
    };
    SimulatedEc2::new(config, Clock::system())
}

/// Returns the order of a node of a class, or of a node group.
fn node(token: &str, class: Option<LaunchClass>) -> LaunchRequest {
    let option = LaunchOption {
        instance_type: "m5.large".to_owned(),
        zone: "us-west-2a".to_owned(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
        placement: None,
    };
    let template = NodeTemplate::new(AmiFamily::AmazonLinux2023, KubernetesVersion::NEWEST);
    LaunchRequest {
        class: class.map(Box::new),
        ..order(token, option, template)
    }
}

fn of_class(token: &str) -> LaunchRequest {
    let class = LaunchClass {
        spec: Default::default(),
        instance_profile: "nodes".to_owned(),
    };
    node(token, Some(class))
}

#[tokio::test]
async fn a_denied_call_is_found_by_a_trial_and_fails_launches_of_classes() {
    let ec2 = ec2();
    assert_eq!(ec2.denied_call(of_class("a")).await, Ok(None));
    for call in LaunchCall::ALL {
        ec2.deny(&[call.action().to_owned()]);
        let denied = ec2.denied_call(of_class("a")).await;
        let denied = denied.expect("an answer").expect("it is denied");
        assert_eq!(denied.call, call);
        assert!(denied.message.contains(call.action()), "{denied:?}");
        let refused = ec2.launch(of_class("a")).await;
        let refused = refused.expect_err("it is denied");
        assert_eq!(refused, CloudError::Unauthorized(denied.message));
        assert!(ec2.instances().is_empty());
    }
    let of_group = ec2.launch(node("group", None)).await;
    of_group.expect("AWS's own role launches it");
    ec2.deny(&[]);
    ec2.launch(of_class("a")).await.expect("it is allowed");
}

#[tokio::test]
async fn the_first_denied_call_of_a_launch_is_told_and_others_do_not_matter() {
    let ec2 = ec2();
    let denied = ["ec2:RunInstances", "ec2:CreateFleet", "iam:GetRole"].map(str::to_owned);
    ec2.deny(&denied);
    let first = ec2.denied_call(of_class("a")).await;
    let first = first.expect("an answer").expect("it is denied");
    assert_eq!(first.call, LaunchCall::CreateFleet);
    ec2.deny(&denied[2..]);
    assert_eq!(ec2.denied_call(of_class("a")).await, Ok(None));
    ec2.throttle(1);
    let throttled = ec2.denied_call(of_class("a")).await;
    assert_eq!(throttled, Err(CloudError::Throttled));
}
