//! What it is worth to avoid spot capacity that EC2 does not have for long: a premium on the price of offerings that were refused again and again, or
//! whose instances were taken back within minutes.
//!
//! A plan that looks at prices alone buys the cheapest spot offering again as soon as EC2 sells it, however short the last instance lived. Each refusal
//! and each early end is a point; points halve every hour, and each adds [`PER_POINT`] to what the offering counts for, up to the on-demand price of the
//! same machine. What a node that is there costs stays what it is.
//!
//! Invariant: a premium only orders offerings. Who forgets all of them buys as Karpenter does.

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

/// Points halve in this time.
const HALF_LIFE: Duration = Duration::from_secs(3600);
/// What a point adds, in per cent of the offering's price.
const PER_POINT: f64 = 20.0;
/// An instance that is taken back before it is this old had not been worth its boot.
const EARLY: SignedDuration = SignedDuration::from_mins(30);
/// A refusal alone happens; several within hours are a pattern.
const REFUSED: f64 = 0.5;
const TAKEN_BACK: f64 = 1.0;
/// Fewer points are none, so that old stories end and a single refusal changes no price.
const NOTHING: f64 = 0.6;

/// Points as they were when something happened last.
#[derive(Clone, Copy, Debug)]
struct Points {
    points: f64,
    at: Instant,
    /// The last refusal that counted.
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

/// Type and zone of a spot offering.
type Place = (String, String);

/// What happened to spot offerings lately. Cheap to clone; all clones know the same.
#[derive(Clone, Debug, Default)]
pub struct SpotRisks(Arc<Mutex<BTreeMap<Place, Points>>>);

impl SpotRisks {
    /// Counts that EC2 refused an offering; only spot offerings count, and launches that were on their way together as one.
    pub fn refused(&self, option: &LaunchOption) {
        if option.capacity_type == CapacityType::Spot {
            self.add(&option.instance_type, &option.zone, Event::Refused);
        }
    }

    /// Counts that EC2 takes a claim's instance back, if that is young.
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

    /// The points of offerings that have enough to matter; forgets the others once they will not matter again.
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

/// By type and zone: what a spot offering counts for beyond its price, in micro-dollars an hour.
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

    /// What an offering of a type counts for.
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
    /// The market in which offerings count for what they are at risk of.
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
