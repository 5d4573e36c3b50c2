//! Nodes in capacity reservations: bought first, counted, and what becomes of them when their reservation ends.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mullion_api::{account::CapacityReservation, labels};
use mullion_cloud::{CapacityType, Speed};
use mullion_controllers::provisioner::FeatureGates;
use serde_json::{Value, json};

use crate::{
    pools::{self, change_class, class_status},
    whole::Whole,
};

const ID: &str = "cr-0123456789abcdef0";

fn of_two() -> CapacityReservation {
    CapacityReservation {
        instance_type: "m5.large".to_owned(),
        availability_zone: "us-west-2b".to_owned(),
        total_instance_count: 2,
        instance_match_criteria: "targeted".to_owned(),
        tags: BTreeMap::from([("team".to_owned(), "web".to_owned())]),
        ..CapacityReservation::default()
    }
}

fn reserve(whole: &Whole, own: CapacityReservation) {
    whole.ec2.reserve(&BTreeMap::from([(ID.to_owned(), own)]));
}

/// A pool and a class that selects the reservation by its tag, once the class has found it.
async fn pool(whole: &Whole, own: CapacityReservation, of_pool: Value) {
    reserve(whole, own);
    let capacity = ["reserved", "on-demand"];
    pools::linux_with(whole, &["m5.large"], &capacity, json!({}), of_pool).await;
    let terms = json!([{ "tags": { "team": "web" } }]);
    change_class(whole, json!({ "capacityReservationSelectorTerms": terms })).await;
    whole
        .until("the class has found it", || {
            let class = whole.karpenter.classes.get("", "linux")?;
            let status = class.status.as_ref()?;
            (!status.capacity_reservations.is_empty()).then_some(())
        })
        .await;
}

/// Pods of which an m5.large holds one.
async fn pods(whole: &Whole, count: u32) {
    let resources = json!({ "requests": { "cpu": "1200m" } });
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": resources }]
    });
    whole.deployment("web", count, spec).await;
    whole.until_running("web", count as usize).await;
}

fn bought_as(whole: &Whole, kind: &str) -> Vec<std::sync::Arc<Node>> {
    let mut nodes = whole.bought();
    nodes.retain(|node| node.labels()[labels::CAPACITY_TYPE] == kind);
    nodes
}

fn in_time(whole: &Whole, minutes: i64) -> String {
    let end = whole.context.clock.now() + SignedDuration::from_mins(minutes);
    end.to_string()
}

#[tokio::test(start_paused = true)]
async fn pods_get_nodes_of_a_reservation_until_it_is_full() {
    let whole = Whole::start().await;
    pool(&whole, of_two(), json!({})).await;
    let status = class_status(&whole);
    let found = serde_json::to_value(&status.capacity_reservations).expect("JSON");
    let expected = json!([{
        "availabilityZone": "us-west-2b", "id": ID, "instanceMatchCriteria": "targeted",
        "instanceType": "m5.large", "interruptible": false, "ownerID": "111122223333",
        "reservationType": "default", "state": "active",
    }]);
    assert_eq!(found, expected);
    let conditions = status.conditions.iter();
    let mut ready = conditions.filter(|own| own.type_ == "CapacityReservationsReady");
    assert_eq!(ready.next().expect("it is set").status, "True");
    pods(&whole, 3).await;
    let reserved = bought_as(&whole, "reserved");
    assert_eq!(reserved.len(), 2);
    for node in &reserved {
        let own = node.labels();
        assert_eq!(own[labels::CAPACITY_RESERVATION_ID], ID);
        assert_eq!(own[labels::CAPACITY_RESERVATION_TYPE], "default");
        assert_eq!(own[labels::CAPACITY_RESERVATION_INTERRUPTIBLE], "false");
        assert_eq!(own[labels::ZONE], "us-west-2b");
    }
    let others = bought_as(&whole, "on-demand");
    assert_eq!(others.len(), 1);
    assert!(
        !others[0]
            .labels()
            .contains_key(labels::CAPACITY_RESERVATION_ID)
    );
    let line = whole.line(
        "deferring scheduling decision for provisionable pod(s) to future simulation due to limited reserved offering capacity",
    );
    assert_eq!(line["controller"], "provisioner");
    let facts = whole.ec2.facts(|_| String::new());
    assert_eq!(facts.capacity_reservations[ID].available_instance_count, 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_goes_on_as_an_on_demand_one_when_its_reservation_ends() {
    let whole = Whole::start().await;
    let ends = CapacityReservation {
        end_date: in_time(&whole, 90),
        ..of_two()
    };
    pool(&whole, ends, json!({})).await;
    pods(&whole, 1).await;
    let node = bought_as(&whole, "reserved")[0].name_any();
    whole.pass(60 * 80).await;
    assert_eq!(bought_as(&whole, "reserved").len(), 1);
    whole
        .until("the node is on demand", || {
            bought_as(&whole, "on-demand").first().map(|_| ())
        })
        .await;
    let nodes = whole.bought();
    assert_eq!(nodes[0].name_any(), node);
    let line = whole.line("updated capacity type for nodeclaims");
    assert_eq!(line["controller"], "capacityreservation.capacitytype");
    whole.pass(1800).await;
    let claims = whole.claims();
    assert_eq!(claims.len(), 1);
    for own in [claims[0].labels(), whole.bought()[0].labels()] {
        assert_eq!(own[labels::CAPACITY_TYPE], "on-demand");
        assert!(!own.keys().any(|key| key.contains("capacity-reservation")));
    }
    assert!(
        claims[0].condition("Drifted").is_none(),
        "it is what the pool asks for"
    );
    let instances = whole.ec2.instances();
    let mut reserved = instances
        .iter()
        .filter(|own| own.capacity_type == CapacityType::Reserved);
    assert!(reserved.next().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_nodes_of_a_capacity_block_are_given_up_forty_minutes_before_it_ends() {
    let whole = Whole::start().await;
    let block = CapacityReservation {
        end_date: in_time(&whole, 120),
        reservation_type: "capacity-block".to_owned(),
        ..of_two()
    };
    let end = whole.context.clock.now() + SignedDuration::from_mins(120);
    pool(&whole, block, json!({})).await;
    pods(&whole, 1).await;
    let old = whole.claims()[0].name_any();
    let node = &bought_as(&whole, "reserved")[0];
    assert_eq!(
        node.labels()[labels::CAPACITY_RESERVATION_TYPE],
        "capacity-block"
    );
    whole
        .until("the node is given up", || {
            let claim = whole.karpenter.claims.get("", &old);
            claim
                .is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
                .then_some(())
        })
        .await;
    let left = end.duration_since(whole.context.clock.now());
    assert!(left <= SignedDuration::from_mins(40), "{left}");
    assert!(left >= SignedDuration::from_secs(38 * 60), "{left}");
    let line = whole.line("initiating delete for capacity block expiration");
    assert_eq!(line["NodeClaim"]["name"], old.as_str());
    assert_eq!(line["capacity-reservation-id"], ID);
    whole
        .until("its pod has another node", || {
            let nodes = bought_as(&whole, "on-demand");
            (nodes.len() == 1 && whole.bought().len() == 1).then_some(())
        })
        .await;
    whole.until_running("web", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_of_a_reservation_that_its_class_no_longer_selects_is_replaced() {
    let whole = Whole::start().await;
    pool(&whole, of_two(), json!({})).await;
    pods(&whole, 1).await;
    assert_eq!(bought_as(&whole, "reserved").len(), 1);
    change_class(&whole, json!({ "capacityReservationSelectorTerms": null })).await;
    let mut why = None;
    whole
        .until("it is replaced", || {
            for claim in whole.claims() {
                let drifted = claim.condition("Drifted").map(|own| own.reason.clone());
                why = why.take().or(drifted);
            }
            let nodes = whole.bought();
            (nodes.len() == 1 && bought_as(&whole, "on-demand").len() == 1).then_some(())
        })
        .await;
    assert_eq!(why.as_deref(), Some("CapacityReservationDrift"));
}

#[tokio::test(start_paused = true)]
async fn pods_go_elsewhere_when_ec2_does_not_give_what_is_reserved() {
    let whole = Whole::start().await;
    pool(&whole, of_two(), json!({})).await;
    whole
        .ec2
        .exhaust("*/*/reserved".parse().expect("a pattern"));
    pods(&whole, 1).await;
    assert_eq!(bought_as(&whole, "on-demand").len(), 1);
    let line = whole.line("removing offering from offerings");
    assert_eq!(line["reason"], "ReservationCapacityExceeded");
    assert_eq!(line["capacity-type"], "reserved");
}

#[tokio::test(start_paused = true)]
async fn pods_of_an_on_demand_node_move_to_reserved_capacity_that_comes() {
    let whole = Whole::start().await;
    let none = CapacityReservation {
        total_instance_count: 0,
        ..of_two()
    };
    let consolidates = json!({ "disruption": {
        "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s",
    }});
    pool(&whole, none, consolidates).await;
    pods(&whole, 1).await;
    whole.pass(600).await;
    assert_eq!(bought_as(&whole, "on-demand").len(), 1);
    reserve(&whole, of_two());
    whole
        .until("it runs in the reservation", || {
            let is_moved = bought_as(&whole, "reserved").len() == 1 && whole.bought().len() == 1;
            is_moved.then_some(())
        })
        .await;
    whole.until_running("web", 1).await;
    let before = whole.bought()[0].name_any();
    whole.pass(3600).await;
    assert_eq!(whole.bought()[0].name_any(), before, "it stays there");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_reserved_while_the_gate_is_closed() {
    let gates = FeatureGates {
        reserved_capacity: false,
        ..FeatureGates::default()
    };
    let whole = Whole::start_with(Speed::REAL, gates).await;
    reserve(&whole, of_two());
    pools::linux(&whole, &["m5.large"], &["reserved", "on-demand"], json!({})).await;
    let terms = json!([{ "id": ID }]);
    change_class(&whole, json!({ "capacityReservationSelectorTerms": terms })).await;
    pods(&whole, 1).await;
    assert_eq!(bought_as(&whole, "on-demand").len(), 1);
    let status = class_status(&whole);
    assert!(status.capacity_reservations.is_empty());
    let mut conditions = status.conditions.iter();
    assert!(!conditions.any(|own| own.type_ == "CapacityReservationsReady"));
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_reservation_is_interrupted_is_replaced_elsewhere() {
    let whole = Whole::start().await;
    let own = CapacityReservation {
        interruptible: true,
        ..of_two()
    };
    pool(&whole, own, json!({})).await;
    pods(&whole, 1).await;
    let old = bought_as(&whole, "reserved")[0].clone();
    let id = old.spec.as_ref().and_then(|spec| spec.provider_id.clone());
    let id = id.as_deref().and_then(mullion_cloud::instance_id);
    whole.ec2.interrupt(&id.expect("an instance"));
    // What is left of the reservation is not bought again for a while.
    whole
        .until("the node is replaced on demand", || {
            let is_left = bought_as(&whole, "reserved").is_empty();
            (is_left && bought_as(&whole, "on-demand").len() == 1).then_some(())
        })
        .await;
    let line = whole.line("initiating delete from interruption message");
    assert_eq!(line["messageKind"], "capacity_reservation_interrupted");
    let said = (
        "CapacityReservationInstanceInterrupted".to_owned(),
        "Capacity Reservation interruption warning was triggered".to_owned(),
    );
    let events = whole.events(&old.name_any()).await;
    assert!(events.contains(&said), "{events:#?}");
}
