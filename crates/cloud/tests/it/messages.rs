//! The messages of the simulated EC2 about its instances.

use mullion_api::{ami::AmiFamily, eksctl::KubernetesVersion};
use mullion_cloud::{
    CapacityType, Clock, CloudProvider, InstanceId, InstanceState, LaunchOption, MessageKind,
    NodeTemplate, Speed, StatusCheck,
    sim::{Config, NOTICE, SimulatedEc2},
};
use tokio::time::Instant;

async fn instance() -> (SimulatedEc2, InstanceId) {
    let version = KubernetesVersion::NEWEST;
    let config = Config {
        speed: Speed::INSTANT,
        ..Config::new("demo", "us-west-2", version)
    };
    let ec2 = SimulatedEc2::new(config, Clock::system());
    let order = crate::order(
        "a",
        LaunchOption {
            instance_type: "m5.large".into(),
            zone: "us-west-2a".into(),
            capacity_type: CapacityType::Spot,
            reservation: None,
            placement: None,
        },
        NodeTemplate::new(AmiFamily::AmazonLinux2023, version),
    );
    let id = ec2.launch(order).await.unwrap().instance.id.clone();
    (ec2, id)
}

async fn told(ec2: &SimulatedEc2) -> Vec<MessageKind> {
    let messages = ec2.receive_messages().await.unwrap();
    for message in &messages {
        ec2.delete_message(message).await.unwrap();
    }
    messages.iter().map(|message| message.kind).collect()
}

fn state(ec2: &SimulatedEc2, id: &InstanceId) -> InstanceState {
    ec2.instance(id).unwrap().state
}

#[tokio::test(start_paused = true)]
async fn a_spot_instance_is_taken_back_two_minutes_after_it_was_told() {
    let (ec2, id) = instance().await;
    let began = Instant::now();
    ec2.interrupt(&id);
    assert_eq!(told(&ec2).await, [MessageKind::SpotInterruption]);
    while told(&ec2).await.is_empty() {}
    assert_eq!(began.elapsed(), NOTICE);
    assert_eq!(state(&ec2, &id), InstanceState::Terminated);
}

#[tokio::test(start_paused = true)]
async fn an_interruption_that_is_called_off_ends_nothing() {
    let (ec2, id) = instance().await;
    ec2.interrupt(&id);
    assert!(ec2.call_off_interruption(&id));
    assert_eq!(told(&ec2).await, [MessageKind::SpotInterruption]);
    tokio::time::sleep(2 * NOTICE).await;
    assert_eq!(state(&ec2, &id), InstanceState::Running);
    assert!(!ec2.call_off_interruption(&id));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_instance_is_told_of_and_can_be_started_or_terminated() {
    let (ec2, id) = instance().await;
    assert!(!ec2.start(&id), "it runs");
    assert!(ec2.stop(&id) && !ec2.stop(&id));
    let stopped = ec2.get(id.clone()).await.unwrap();
    assert!(!stopped.booted && stopped.state == InstanceState::Stopped);
    assert!(ec2.start(&id));
    assert_eq!(state(&ec2, &id), InstanceState::Running);
    assert_eq!(told(&ec2).await, [MessageKind::InstanceStopped]);
    ec2.stop(&id);
    ec2.terminate(id.clone()).await.unwrap();
    let ends = [
        MessageKind::InstanceStopped,
        MessageKind::InstanceTerminated,
        MessageKind::InstanceTerminated,
    ];
    assert_eq!(told(&ec2).await, ends);
    assert!(ec2.get(id).await.unwrap_err().is_not_found());
}

#[tokio::test(start_paused = true)]
async fn checks_fail_until_they_are_mended_and_only_of_running_instances() {
    let (ec2, id) = instance().await;
    ec2.impair(&id, StatusCheck::System);
    ec2.schedule_maintenance(&id);
    let failing = async || {
        let all = ec2.impairments().await.unwrap();
        all.iter().map(|own| own.check).collect::<Vec<_>>()
    };
    assert_eq!(failing().await, [StatusCheck::System, StatusCheck::Event]);
    ec2.stop(&id);
    assert_eq!(failing().await, []);
    ec2.start(&id);
    ec2.repair(&id);
    assert_eq!(failing().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_waits_for_the_next_message_and_gives_up_after_twenty_seconds() {
    let (ec2, id) = instance().await;
    let began = Instant::now();
    assert_eq!(told(&ec2).await, []);
    assert_eq!(began.elapsed().as_secs(), 20);
    let (received, ()) = tokio::join!(told(&ec2), async {
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        ec2.recommend_rebalance(&id);
    });
    assert_eq!(received, [MessageKind::RebalanceRecommendation]);
    assert_eq!(began.elapsed().as_secs(), 23);
}
