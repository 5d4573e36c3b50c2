//! Capacity reservations of the simulated EC2: they are counted, refused when full, kept for the next process, and ended in time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mullion_api::{
    account::CapacityReservation, ami::AmiFamily, eksctl::KubernetesVersion,
    karpenter::CapacityReservationSelectorTerm,
};
use mullion_cloud::{
    CapacityType, Clock, CloudError, CloudProvider, Instance, InstanceState, LaunchOption,
    NodeTemplate, Shortage, Speed,
    sim::{Config, SimulatedEc2},
};

use crate::ledger::Book;

fn version() -> KubernetesVersion {
    KubernetesVersion::from_minor(31).expect("known")
}

fn resume(book: &Arc<Book>, clock: &Clock) -> SimulatedEc2 {
    let config = Config {
        speed: Speed::INSTANT,
        ..Config::new("demo", "us-west-2", version())
    };
    let saved = book.0.lock().expect("nobody panicked").clone();
    SimulatedEc2::resume(config, clock.clone(), book.clone(), &saved).expect("it is its own")
}

fn clock() -> Clock {
    Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"))
}

fn of(total: u32, kind: &str, end: &str) -> CapacityReservation {
    CapacityReservation {
        instance_type: "m5.large".to_owned(),
        availability_zone: "us-west-2a".to_owned(),
        total_instance_count: total,
        reservation_type: kind.to_owned(),
        end_date: end.to_owned(),
        ..CapacityReservation::default()
    }
}

fn reserve(ec2: &SimulatedEc2, own: CapacityReservation) {
    ec2.reserve(&BTreeMap::from([("cr-1".to_owned(), own)]));
}

async fn launch(ec2: &SimulatedEc2, token: &str) -> Result<Arc<Instance>, CloudError> {
    let request = crate::order(
        token,
        LaunchOption {
            instance_type: "m5.large".to_owned(),
            zone: "us-west-2a".to_owned(),
            capacity_type: CapacityType::Reserved,
            reservation: Some("cr-1".to_owned()),
            placement: None,
        },
        NodeTemplate::new(AmiFamily::AmazonLinux2023, version()),
    );
    Ok(ec2.launch(request).await?.instance)
}

/// Returns the number of free machines, or `None` if the reservation does not exist.
async fn free(ec2: &SimulatedEc2) -> Option<u32> {
    let term = CapacityReservationSelectorTerm {
        id: Some("cr-1".to_owned()),
        ..CapacityReservationSelectorTerm::default()
    };
    let found = ec2
        .capacity_reservations(&[term])
        .await
        .expect("it answers");
    found.first().map(|own| own.available)
}

#[tokio::test(start_paused = true)]
async fn a_reservation_has_as_many_instances_as_machines() {
    let ec2 = resume(&Arc::default(), &clock());
    reserve(&ec2, of(2, "", ""));
    assert_eq!(free(&ec2).await, Some(2));
    let first = launch(&ec2, "first").await.expect("there is one");
    assert_eq!(first.capacity_type, CapacityType::Reserved);
    assert_eq!(
        &*first.reservation.as_ref().expect("it runs in it").id,
        "cr-1"
    );
    launch(&ec2, "second").await.expect("there is another");
    assert_eq!(free(&ec2).await, Some(0));
    let error = launch(&ec2, "third").await.expect_err("it is full");
    let CloudError::InsufficientCapacity(refused) = &error else {
        panic!("{error}")
    };
    assert_eq!(refused[0].shortage, Shortage::Reservation);
    assert!(
        error
            .to_string()
            .starts_with("ReservationCapacityExceeded: The requested reservation does not"),
        "{error}"
    );
    // After a refusal the reservation is avoided for a while, although a machine has become free.
    ec2.terminate(first.id.clone()).await.expect("it is there");
    assert_eq!(free(&ec2).await, Some(0));
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert_eq!(free(&ec2).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn the_next_process_counts_the_instances_of_a_reservation() {
    let (book, clock) = (Arc::<Book>::default(), clock());
    let ec2 = resume(&book, &clock);
    reserve(&ec2, of(2, "", ""));
    let before = launch(&ec2, "first").await.expect("there is one");
    drop(ec2);
    let ec2 = resume(&book, &clock);
    reserve(&ec2, of(2, "", ""));
    assert_eq!(free(&ec2).await, Some(1));
    let after = ec2.instance(&before.id).expect("it is there");
    assert_eq!(after.reservation, before.reservation);
    assert_eq!(after.capacity_type, CapacityType::Reserved);
    assert_eq!(after.price, before.price);
}

#[tokio::test(start_paused = true)]
async fn instances_go_on_when_a_reservation_ends_and_end_before_a_capacity_block_does() {
    for (kind, minutes) in [("default", 60), ("capacity-block", 30)] {
        let ec2 = resume(&Arc::default(), &clock());
        reserve(&ec2, of(1, kind, "2026-01-01T01:00:00Z"));
        let id = launch(&ec2, "first")
            .await
            .expect("there is one")
            .id
            .clone();
        let now = || ec2.instance(&id).expect("it is remembered");
        tokio::time::sleep(Duration::from_secs(60 * minutes - 1)).await;
        assert_eq!(now().capacity_type, CapacityType::Reserved, "{kind}");
        assert!(now().state.is_alive());
        tokio::time::sleep(Duration::from_secs(2)).await;
        match kind {
            "default" => {
                assert_eq!(now().capacity_type, CapacityType::OnDemand);
                assert_eq!(now().reservation, None);
                assert_eq!(now().price.0, 96_000);
                assert_eq!(free(&ec2).await, None);
            }
            _ => {
                assert!(now().state >= InstanceState::ShuttingDown);
                assert_eq!(free(&ec2).await, Some(0));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_reservation_is_told_why() {
    let ec2 = resume(&Arc::default(), &clock());
    let wrong = |own: CapacityReservation| {
        reserve(&ec2, own);
        let facts = ec2.facts(|_| String::new()).capacity_reservations;
        assert_eq!(facts["cr-1"].state, "failed");
        facts["cr-1"].message.clone()
    };
    let zone = CapacityReservation {
        availability_zone: "eu-west-1a".to_owned(),
        ..of(1, "", "")
    };
    assert_eq!(
        wrong(zone),
        "InvalidAvailabilityZone: \"eu-west-1a\" is not a zone here; there are us-west-2a, us-west-2b, us-west-2c"
    );
    assert_eq!(
        wrong(of(1, "", "tomorrow")),
        "\"tomorrow\" is no time such as 2026-01-01T00:00:00Z, which endDate wants"
    );
    assert_eq!(free(&ec2).await, None);
    ec2.reserve(&BTreeMap::from([("mine".to_owned(), of(1, "", ""))]));
    let facts = ec2.facts(|_| String::new()).capacity_reservations;
    assert!(
        facts["mine"]
            .message
            .starts_with("\"mine\" is no id of a capacity reservation")
    );
}
