//! Risk premiums on spot offerings: an offering that EC2 refused repeatedly, or whose instances were interrupted within
//! minutes, counts as more expensive than its price.
//!
//! A plan that compares prices alone buys the cheapest spot offering again as soon as EC2 sells it, however short the last
//! instance lived. Each refusal and each early interruption adds points; points halve every hour, and each point adds
//! [`PER_POINT`] per cent to the price that the plan compares, up to the on-demand price of the same machine. The prices of
//! existing nodes are not changed.
//!
//! Invariant: a premium only changes the order of offerings. Without any premium the plan is Karpenter's.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::SignedDuration;
use mullion_api::{karpenter::NodeClaim, labels};
use mullion_cloud::{CapacityType, LaunchOption, Offer, Offering, UNAVAILABLE_FOR};
use tokio::time::Instant;

use super::market::Market;

/// The time in which points halve.
const HALF_LIFE: Duration = Duration::from_secs(3600);
/// The premium of one point, in per cent of the offering's price.
const PER_POINT: f64 = 20.0;
/// An instance that is interrupted before this age counts as an early interruption.
const EARLY: SignedDuration = SignedDuration::from_mins(30);
/// The points of a refusal (less, because a single refusal means little) and of an early interruption.
const REFUSED: f64 = 0.5;
const TAKEN_BACK: f64 = 1.0;
/// Fewer points than this count as none: old events end, and a single refusal changes no price.
const NOTHING: f64 = 0.6;

/// The points of an offering as of its last event.
#[derive(Clone, Copy, Debug)]
struct Points {
    points: f64,
    at: Instant,
    /// When the last counted refusal happened.
    refused: Option<Instant>,
}

impl Points {
    fn now(self, now: Instant) -> f64 {
        let half_lives = now.duration_since(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.points * (-half_lives).exp2()
    }
}

#[derive(Clone, Copy)]
enum Event {
    Refused,
    TakenBack,
}

/// Instance type and zone of a spot offering.
type Place = (String, String);

/// The recent refusals and interruptions of spot offerings. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct SpotRisks(Arc<Mutex<BTreeMap<Place, Points>>>);

impl SpotRisks {
    /// Records that EC2 refused a spot offering. Refusals within [`UNAVAILABLE_FOR`] of the last counted one do not count,
    /// so concurrent launches count once.
    pub fn refused(&self, option: &LaunchOption) {
        if option.capacity_type == CapacityType::Spot {
            self.add(&option.instance_type, &option.zone, Event::Refused);
        }
    }

    /// Records that EC2 interrupts a claim's instance, if the claim is younger than 30 minutes.
    pub fn taken_back(&self, claim: &NodeClaim, now: jiff::Timestamp) {
        let born = claim.metadata.creation_timestamp.as_ref();
        let is_young = born.is_some_and(|born| now.duration_since(born.0) < EARLY);
        let place = (
            claim.label(labels::INSTANCE_TYPE),
            claim.label(labels::ZONE),
        );
        if let ((Some(instance_type), Some(zone)), true) = (place, is_young) {
            self.add(instance_type, zone, Event::TakenBack);
        }
    }

    fn add(&self, instance_type: &str, zone: &str, event: Event) {
        let now = Instant::now();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (instance_type.to_owned(), zone.to_owned());
        let before = known.get(&place).copied();
        let mut refused = before.and_then(|own| own.refused);
        let worth = match event {
            Event::TakenBack => TAKEN_BACK,
            Event::Refused if refused.is_some_and(|at| now - at < UNAVAILABLE_FOR) => return,
            Event::Refused => {
                refused = Some(now);
                REFUSED
            }
        };
        let own = Points {
            points: before.map_or(0.0, |own| own.now(now)) + worth,
            at: now,
            refused,
        };
        known.insert(place, own);
    }

    /// Returns the points of offerings that have at least [`NOTHING`], and drops offerings whose points are negligible.
    fn now(&self) -> BTreeMap<Place, f64> {
        let now = Instant::now();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, own| own.now(now) >= REFUSED / 16.0);
        let points = known
            .iter()
            .map(|(place, own)| (place.clone(), own.now(now)));
        points.filter(|(_, points)| *points >= NOTHING).collect()
    }
}

/// The premium of each spot offering in micro-dollars per hour, by instance type and zone.
#[derive(Clone, Debug, Default)]
pub(super) struct Premiums(BTreeMap<Place, u64>);

impl Premiums {
    fn of(offers: &[Offer], risks: &SpotRisks) -> Self {
        let points = risks.now();
        let mut premiums = BTreeMap::new();
        for offer in offers.iter().filter(|_| !points.is_empty()) {
            for spot in &offer.offerings {
                let place = (offer.instance_type.name.to_string(), spot.zone.to_string());
                let Some(points) = points
                    .get(&place)
                    .filter(|_| spot.capacity_type == CapacityType::Spot)
                else {
                    continue;
                };
                let premium = (spot.price.0 as f64 * points * PER_POINT / 100.0).round() as u64;
                let on_demand = offer.offerings.iter().filter(|own| {
                    own.capacity_type == CapacityType::OnDemand && own.zone == spot.zone
                });
                let most = on_demand
                    .map(|own| own.price.0.saturating_sub(spot.price.0))
                    .min();
                premiums.insert(place, most.map_or(premium, |most| premium.min(most)));
            }
        }
        Self(premiums)
    }

    /// Returns the price of an offering with its premium, in micro-dollars per hour.
    pub(super) fn price(&self, instance_type: &str, offering: &Offering) -> u64 {
        let premium = match offering.capacity_type {
            CapacityType::Spot if !self.0.is_empty() => {
                let place = (instance_type.to_owned(), offering.zone.to_string());
                self.0.get(&place).copied().unwrap_or_default()
            }
            _ => 0,
        };
        offering.price.0 + premium
    }
}

impl Market {
    /// Returns the market with risk premiums on its spot offerings.
    pub fn with_risks(mut self, risks: &SpotRisks) -> Self {
        self.premiums = Premiums::of(&self.offers, risks);
        self
    }
}

#[cfg(test)]
mod tests {
    use mullion_cloud::catalogue::{self, Price};
    use serde_json::json;

    use super::*;

    fn offering(zone: &str, capacity_type: CapacityType, price: u64) -> Offering {
        Offering {
            zone: zone.into(),
            zone_id: zone.into(),
            capacity_type,
            price: Price(price),
            available: true,
            on_trial: false,
            reservation: None,
        }
    }

    fn offers() -> Vec<Offer> {
        vec![Offer {
            instance_type: Arc::clone(catalogue::get("m5.large").expect("known")),
            offerings: vec![
                offering("a", CapacityType::OnDemand, 100_000),
                offering("a", CapacityType::Spot, 40_000),
                offering("b", CapacityType::Spot, 40_000),
            ],
        }]
    }

    /// What the spot offering in zone a, the one in zone b, and the one on demand count for.
    fn counted(risks: &SpotRisks) -> [u64; 3] {
        let offers = offers();
        let premiums = Premiums::of(&offers, risks);
        [1, 2, 0].map(|index| premiums.price("m5.large", &offers[0].offerings[index]))
    }

    fn claim(created: &str) -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "c", "creationTimestamp": created, "labels": {
                "node.kubernetes.io/instance-type": "m5.large", "topology.kubernetes.io/zone": "a"
            }},
            "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] }
        }))
        .expect("a claim")
    }

    #[tokio::test(start_paused = true)]
    async fn an_early_end_counts_and_is_forgotten_within_an_hour() {
        let (risks, now) = (
            SpotRisks::default(),
            "2026-01-01T01:00:00Z".parse().expect("a time"),
        );
        risks.taken_back(&claim("2026-01-01T00:00:00Z"), now);
        assert_eq!(counted(&risks), [40_000, 40_000, 100_000], "it was old");
        risks.taken_back(&claim("2026-01-01T00:55:00Z"), now);
        assert_eq!(counted(&risks), [48_000, 40_000, 100_000]);
        tokio::time::advance(Duration::from_secs(1800)).await;
        assert_eq!(counted(&risks)[0], 40_000 + 5657, "a half of the half-life");
        tokio::time::advance(Duration::from_secs(1200)).await;
        assert_eq!(counted(&risks)[0], 40_000);
        tokio::time::advance(HALF_LIFE * 10).await;
        risks.now();
        let known = risks.0.lock().expect("nobody panics");
        assert!(known.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_refusal_is_chance_and_many_cost_no_more_than_on_demand() {
        let risks = SpotRisks::default();
        let option = |capacity_type| LaunchOption {
            instance_type: "m5.large".to_owned(),
            zone: "a".to_owned(),
            capacity_type,
            reservation: None,
            placement: None,
        };
        risks.refused(&option(CapacityType::Spot));
        assert_eq!(counted(&risks)[0], 40_000);
        risks.refused(&option(CapacityType::OnDemand));
        assert_eq!(counted(&risks)[0], 40_000);
        for _ in 0..50 {
            risks.refused(&option(CapacityType::Spot));
        }
        assert_eq!(counted(&risks)[0], 40_000, "they were asked together");
        for _ in 0..50 {
            tokio::time::advance(UNAVAILABLE_FOR).await;
            risks.refused(&option(CapacityType::Spot));
        }
        assert_eq!(counted(&risks), [100_000, 40_000, 100_000]);
    }
}
