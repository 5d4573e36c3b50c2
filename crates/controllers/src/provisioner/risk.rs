//! Risk premiums on spot offerings: an offering that EC2 refused repeatedly, or whose instances were interrupted within
//! minutes, counts as more expensive than its price.
//!
//! A plan that compares prices alone buys the cheapest spot offering again as soon as EC2 sells it, however short the last
//! instance lived. Each refusal and each early interruption adds points; points halve every hour, and each point adds
//! [`PER_POINT`] per cent to the price that the plan compares, up to the on-demand price of the same machine. The prices of
//! existing nodes are not changed.
//!
//! The points are kept in the ConfigMap of the discovered capacity ([`super::discovered`]), so that a new process and
//! `mullion plan` count them as well.
//!
//! Invariant: a premium only changes the order of offerings. Without any premium the plan is Karpenter's.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use mullion_api::{karpenter::NodeClaim, labels};
use mullion_cloud::{CapacityType, LaunchOption, Offer, Offering, UNAVAILABLE_FOR};
use serde::{Deserialize, Serialize};

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

/// Fewer points than this are forgotten.
const FORGOTTEN: f64 = REFUSED / 16.0;
/// The key of the ConfigMap's data under which the points are kept.
pub(super) const KEPT_AS: &str = "spot-risks";

/// The points of an offering as of its last event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Points {
    points: f64,
    at: Timestamp,
    /// When the last counted refusal happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<Timestamp>,
}

impl Points {
    fn now(self, now: Timestamp) -> f64 {
        // Another process may have written a time that is yet to come here.
        let age = now.duration_since(self.at).as_secs_f64().max(0.0);
        self.points * (-age / HALF_LIFE.as_secs_f64()).exp2()
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
    /// so concurrent launches count once. Returns whether it counts.
    pub fn refused(&self, option: &LaunchOption, now: Timestamp) -> bool {
        let (name, zone) = (&option.instance_type, &option.zone);
        option.capacity_type == CapacityType::Spot && self.add(name, zone, Event::Refused, now)
    }

    /// Records that EC2 interrupts a claim's instance, if the claim is younger than 30 minutes. Returns whether it is.
    pub fn taken_back(&self, claim: &NodeClaim, now: Timestamp) -> bool {
        let born = claim.metadata.creation_timestamp.as_ref();
        let is_young = born.is_some_and(|born| now.duration_since(born.0) < EARLY);
        let place = (
            claim.label(labels::INSTANCE_TYPE),
            claim.label(labels::ZONE),
        );
        match (place, is_young) {
            ((Some(instance_type), Some(zone)), true) => {
                self.add(instance_type, zone, Event::TakenBack, now)
            }
            _ => false,
        }
    }

    fn add(&self, instance_type: &str, zone: &str, event: Event, now: Timestamp) -> bool {
        let mut known = self.known();
        let place = (instance_type.to_owned(), zone.to_owned());
        let before = known.get(&place).copied();
        let mut refused = before.and_then(|own| own.refused);
        let worth = match event {
            Event::TakenBack => TAKEN_BACK,
            Event::Refused if refused.is_some_and(|at| is_recent(at, now)) => return false,
            Event::Refused => {
                refused = Some(now);
                REFUSED
            }
        };
        // Points decay from the time of the last event, so the old ones are brought to now before
        // the new ones are added.
        let own = Points {
            points: before.map_or(0.0, |own| own.now(now)) + worth,
            at: now,
            refused,
        };
        known.insert(place, own);
        true
    }

    /// Returns the points of offerings that have at least [`NOTHING`], and drops offerings whose points are negligible.
    fn now(&self, now: Timestamp) -> BTreeMap<Place, f64> {
        let mut known = self.known();
        known.retain(|_, own| own.now(now) >= FORGOTTEN);
        let points = known
            .iter()
            .map(|(place, own)| (place.clone(), own.now(now)));
        points.filter(|(_, points)| *points >= NOTHING).collect()
    }

    /// Reads the points in the ConfigMap's data. `None` if they cannot be parsed; data without points has none.
    pub fn read(data: &BTreeMap<String, String>) -> Option<Self> {
        let mut known = BTreeMap::new();
        if let Some(text) = data.get(KEPT_AS) {
            let kept: BTreeMap<String, Points> = serde_json::from_str(text).ok()?;
            for (place, points) in kept {
                let (instance_type, zone) = place.split_once('/')?;
                known.insert((instance_type.to_owned(), zone.to_owned()), points);
            }
        }
        Some(Self(Arc::new(Mutex::new(known))))
    }

    /// Adds the points that an earlier process kept. Those that this process has counted already remain as they are.
    pub(super) fn merge(&self, kept: &Self) {
        let kept = kept.known().clone();
        let mut known = self.known();
        for (place, points) in kept {
            // This process counted its own events on top of nothing, but they are newer than what
            // was kept.
            known.entry(place).or_insert(points);
        }
    }

    /// Returns the points as the text that the ConfigMap keeps; `None` if no offering has any.
    pub(super) fn text(&self, now: Timestamp) -> Option<String> {
        let mut known = self.known();
        known.retain(|_, own| own.now(now) >= FORGOTTEN);
        let name = |((instance_type, zone), own): (&Place, &Points)| {
            (format!("{instance_type}/{zone}"), *own)
        };
        let points: BTreeMap<String, Points> = known.iter().map(name).collect();
        if points.is_empty() {
            None
        } else {
            // Serializing plain fields cannot fail.
            serde_json::to_string(&points).ok()
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Place, Points>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a refusal is so recent that another request may have been under way at the same
/// time.
fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).unsigned_abs() < UNAVAILABLE_FOR
}

/// The premium of each spot offering in micro-dollars per hour, by instance type and zone.
#[derive(Clone, Debug, Default)]
pub(super) struct Premiums(BTreeMap<Place, u64>);

impl Premiums {
    fn of(offers: &[Offer], risks: &SpotRisks, now: Timestamp) -> Self {
        let points = risks.now(now);
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
                // The premium ends at the on-demand price: a risky spot machine is never worse than
                // buying the same one on demand.
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
    pub fn with_risks(mut self, risks: &SpotRisks, now: Timestamp) -> Self {
        self.premiums = Premiums::of(&self.offers, risks, now);
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

    /// Returns what the spot offering in zone a, the one in zone b, and the one on demand count for.
    fn counted(risks: &SpotRisks, now: Timestamp) -> [u64; 3] {
        let offers = offers();
        let premiums = Premiums::of(&offers, risks, now);
        [1, 2, 0].map(|index| premiums.price("m5.large", &offers[0].offerings[index]))
    }

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn option(capacity_type: CapacityType) -> LaunchOption {
        LaunchOption {
            instance_type: "m5.large".to_owned(),
            zone: "a".to_owned(),
            capacity_type,
            reservation: None,
            placement: None,
        }
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

    #[test]
    fn an_early_end_counts_and_is_forgotten_within_an_hour() {
        let (risks, now) = (SpotRisks::default(), at("2026-01-01T01:00:00Z"));
        assert!(!risks.taken_back(&claim("2026-01-01T00:00:00Z"), now));
        assert_eq!(
            counted(&risks, now),
            [40_000, 40_000, 100_000],
            "it was old"
        );
        assert!(risks.taken_back(&claim("2026-01-01T00:55:00Z"), now));
        assert_eq!(counted(&risks, now), [48_000, 40_000, 100_000]);
        let later = now + Duration::from_secs(1800);
        assert_eq!(
            counted(&risks, later)[0],
            40_000 + 5657,
            "a half of the half-life"
        );
        assert_eq!(
            counted(&risks, later + Duration::from_secs(1200))[0],
            40_000
        );
        risks.now(later + HALF_LIFE * 10);
        assert!(risks.known().is_empty());
    }

    #[test]
    fn one_refusal_is_chance_and_many_cost_no_more_than_on_demand() {
        let (risks, mut now) = (SpotRisks::default(), at("2026-01-01T01:00:00Z"));
        assert!(risks.refused(&option(CapacityType::Spot), now));
        assert_eq!(counted(&risks, now)[0], 40_000);
        assert!(!risks.refused(&option(CapacityType::OnDemand), now));
        assert_eq!(counted(&risks, now)[0], 40_000);
        for _ in 0..50 {
            assert!(!risks.refused(&option(CapacityType::Spot), now));
        }
        assert_eq!(counted(&risks, now)[0], 40_000, "they were asked together");
        for _ in 0..50 {
            now += UNAVAILABLE_FOR;
            risks.refused(&option(CapacityType::Spot), now);
        }
        assert_eq!(counted(&risks, now), [100_000, 40_000, 100_000]);
    }

    #[test]
    fn points_are_read_as_they_were_kept_and_go_on_to_decay() {
        let (risks, now) = (SpotRisks::default(), at("2026-01-01T01:00:00Z"));
        assert_eq!(risks.text(now), None);
        risks.taken_back(&claim("2026-01-01T00:55:00Z"), now);
        let text = risks.text(now).expect("an offering has points");
        insta::assert_snapshot!(text, @r#"{"m5.large/a":{"points":1.0,"at":"2026-01-01T01:00:00Z"}}"#);
        let kept = BTreeMap::from([(KEPT_AS.to_owned(), text)]);
        let read = SpotRisks::read(&kept).expect("readable");
        let later = now + Duration::from_secs(1800);
        assert_eq!(counted(&read, later), counted(&risks, later));
        // What this process has counted itself is not counted twice.
        let own = SpotRisks::default();
        own.refused(&option(CapacityType::Spot), now);
        own.merge(&read);
        assert_eq!(counted(&own, now)[0], 40_000);
        assert_eq!(risks.text(now + HALF_LIFE * 10), None);
        let strange = BTreeMap::from([(KEPT_AS.to_owned(), "none".to_owned())]);
        assert!(SpotRisks::read(&strange).is_none());
    }
}
