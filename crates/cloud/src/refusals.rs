//! Remembers which offerings the cloud refused, to avoid them for a while and then to retry them carefully. Pure; `now` is
//! an argument.
//!
//! Invariant: an offering is unavailable for [`UNAVAILABLE_FOR`] after its first refusal and twice as long after each
//! further one, up to [`LONGEST_UNAVAILABLE`]. Then it is on trial for half an hour: it is retried with one launch instead
//! of a whole batch, and no node is given up in the hope of it. A successful launch ends the trial, and so does the half
//! hour.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{CapacityType, LaunchOption, Offer, catalogue::TypeName};

/// How long an offering is unavailable after its first refusal (Karpenter's AWS provider: 3 minutes).
pub const UNAVAILABLE_FOR: Duration = Duration::from_secs(180);
/// The longest time for which a repeatedly refused offering is unavailable.
pub const LONGEST_UNAVAILABLE: Duration = Duration::from_secs(1800);
/// How long an offering is on trial afterwards.
const TRIAL: Duration = Duration::from_secs(1800);
/// How many types of a family must be refused in every zone before the whole family counts as refused.
const TYPES_OF_A_FAMILY: usize = 2;

/// The refused offerings.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    known: BTreeMap<LaunchOption, Refusal>,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    until: Instant,
    lasts: Duration,
}

impl Refusal {
    fn is_in_force(&self, now: Instant) -> bool {
        now < self.until
    }

    fn is_over(&self, now: Instant) -> bool {
        now >= self.until + TRIAL
    }
}

impl Refusals {
    /// Records a refusal; returns how long the offering is unavailable now. Refusals while it is unavailable already
    /// (launches that were under way) count as one.
    pub fn refuse(&mut self, option: LaunchOption, now: Instant) -> Duration {
        let last = self.known.get(&option).filter(|last| !last.is_over(now));
        let lasts = match last {
            None => UNAVAILABLE_FOR,
            // Launches that were under way do not double the time, but each starts it anew.
            Some(last) if last.is_in_force(now) => last.lasts,
            Some(last) => (last.lasts * 2).min(LONGEST_UNAVAILABLE),
        };
        let until = now + lasts;
        self.known.insert(option, Refusal { until, lasts });
        lasts
    }

    /// Returns whether an offering is unavailable because of a refusal.
    pub fn is_unavailable(&self, option: &LaunchOption, now: Instant) -> bool {
        let refusal = self.known.get(option);
        refusal.is_some_and(|refusal| refusal.is_in_force(now))
    }

    /// Returns the launches into a placement group that are unavailable because of a refusal.
    pub fn of_group(&self, group: &str, now: Instant) -> Vec<LaunchOption> {
        let known = self.known.iter().filter(|(option, refusal)| {
            let placement = option.placement.as_ref();
            placement.is_some_and(|own| *own.group == *group) && refusal.is_in_force(now)
        });
        known.map(|(option, _)| option.clone()).collect()
    }

    /// Drops the refusal of an offering that was just launched successfully.
    pub fn sold(&mut self, option: &LaunchOption) {
        self.known.remove(option);
    }

    /// Drops the refusals of the options for which `is_meant` is true.
    pub fn forget(&mut self, is_meant: impl Fn(&LaunchOption) -> bool) {
        self.known.retain(|option, _| !is_meant(option));
    }

    /// Returns the offers with refused offerings marked as unavailable or on trial.
    pub fn apply(&mut self, offers: &Arc<[Offer]>, now: Instant) -> Arc<[Offer]> {
        self.known.retain(|_, refusal| !refusal.is_over(now));
        if self.known.is_empty() {
            return Arc::clone(offers);
        }
        let mut offers = offers.to_vec();
        let types: BTreeSet<&str> = self.known.keys().map(|own| &*own.instance_type).collect();
        let touched = |offer: &&mut Offer| types.contains(&*offer.instance_type.name);
        for offer in offers.iter_mut().filter(touched) {
            let name = &offer.instance_type.name;
            for offering in &mut offer.offerings {
                let option = LaunchOption {
                    instance_type: name.to_string(),
                    zone: offering.zone.to_string(),
                    capacity_type: offering.capacity_type,
                    reservation: None,
                    placement: None,
                };
                if let Some(refusal) = self.known.get(&option) {
                    offering.available = !refusal.is_in_force(now);
                    offering.on_trial = !refusal.is_in_force(now);
                }
            }
        }
        refuse_families(&mut offers);
        offers.into()
    }
}

/// Marks all types of a family as unavailable if several of them are refused in every zone.
fn refuse_families(offers: &mut [Offer]) {
    let mut refused: BTreeMap<(String, CapacityType), usize> = BTreeMap::new();
    for offer in offers.iter() {
        for kind in [CapacityType::OnDemand, CapacityType::Spot] {
            let mut sold_so = offer
                .offerings
                .iter()
                .filter(|own| own.capacity_type == kind)
                .peekable();
            // `all` is true for a type that is not sold in this way, which says nothing about its capacity.
            if sold_so.peek().is_some() && sold_so.all(|own| !own.available) {
                *refused.entry((family(offer), kind)).or_default() += 1;
            }
        }
    }
    refused.retain(|_, types| *types >= TYPES_OF_A_FAMILY);
    if refused.is_empty() {
        return;
    }
    for offer in offers {
        let family = family(offer);
        for offering in &mut offer.offerings {
            if refused.contains_key(&(family.clone(), offering.capacity_type)) {
                offering.available = false;
                // A trial would buy the family again although most of it is refused.
                offering.on_trial = false;
            }
        }
    }
}

fn family(offer: &Offer) -> String {
    let name = TypeName::parse(&offer.instance_type.name);
    name.family.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Offering,
        catalogue::{self, Price},
    };

    const ZONES: [&str; 2] = ["a", "b"];

    fn offers(types: &[&str]) -> Arc<[Offer]> {
        let offer = |name: &&str| Offer {
            instance_type: Arc::clone(catalogue::get(name).expect("known")),
            offerings: ZONES
                .iter()
                .map(|zone| Offering {
                    zone: (*zone).into(),
                    zone_id: (*zone).into(),
                    capacity_type: CapacityType::OnDemand,
                    price: Price(1),
                    available: true,
                    on_trial: false,
                    reservation: None,
                })
                .collect(),
        };
        types.iter().map(offer).collect()
    }

    fn option(name: &str, zone: &str) -> LaunchOption {
        LaunchOption {
            instance_type: name.to_owned(),
            zone: zone.to_owned(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
            placement: None,
        }
    }

    /// Shows each offering as `+` if it is available, `?` if it is on trial, and `-` if it is unavailable; zone by zone.
    fn shown(refusals: &mut Refusals, all: &Arc<[Offer]>, now: Instant) -> String {
        let offers = refusals.apply(all, now);
        let offerings = offers.iter().flat_map(|offer| &offer.offerings);
        let sign = |own: &Offering| match (own.available, own.on_trial) {
            (true, false) => '+',
            (true, true) => '?',
            _ => '-',
        };
        offerings.map(sign).collect()
    }

    #[test]
    fn an_offering_rests_twice_as_long_each_time_it_is_refused_again() {
        let (mut refusals, all) = (Refusals::default(), offers(&["m5.large"]));
        let mut now = Instant::now();
        for minutes in [3, 6, 12, 24, 30, 30] {
            let rest = Duration::from_secs(60 * minutes);
            assert_eq!(refusals.refuse(option("m5.large", "a"), now), rest);
            // A launch that was under way at the same time changes nothing.
            assert_eq!(refusals.refuse(option("m5.large", "a"), now), rest);
            assert_eq!(shown(&mut refusals, &all, now), "-+");
            now += rest - Duration::from_millis(1);
            assert_eq!(shown(&mut refusals, &all, now), "-+");
            now += Duration::from_millis(1);
            assert_eq!(shown(&mut refusals, &all, now), "?+");
        }
        refusals.sold(&option("m5.large", "a"));
        assert_eq!(shown(&mut refusals, &all, now), "++");
        assert_eq!(
            refusals.refuse(option("m5.large", "a"), now),
            UNAVAILABLE_FOR
        );
    }

    #[test]
    fn a_trial_that_nobody_makes_ends() {
        let (mut refusals, all) = (Refusals::default(), offers(&["m5.large"]));
        let now = Instant::now();
        refusals.refuse(option("m5.large", "b"), now);
        assert_eq!(shown(&mut refusals, &all, now + UNAVAILABLE_FOR), "+?");
        let later = now + UNAVAILABLE_FOR + TRIAL;
        assert_eq!(shown(&mut refusals, &all, later), "++");
        assert_eq!(
            refusals.refuse(option("m5.large", "b"), later),
            UNAVAILABLE_FOR
        );
    }

    #[test]
    fn a_family_of_which_two_types_are_refused_in_every_zone_counts_as_a_whole() {
        let mut refusals = Refusals::default();
        let all = offers(&["m5.large", "m5.xlarge", "m5.2xlarge", "m5a.large"]);
        let now = Instant::now();
        for (name, zone) in [("m5.large", "a"), ("m5.large", "b"), ("m5.xlarge", "a")] {
            refusals.refuse(option(name, zone), now);
        }
        assert_eq!(shown(&mut refusals, &all, now), "---+++++");
        refusals.refuse(option("m5.xlarge", "b"), now + Duration::from_secs(1));
        assert_eq!(shown(&mut refusals, &all, now), "------++");
        // The family is available again as soon as the first of its types may be retried.
        let then = now + UNAVAILABLE_FOR;
        assert_eq!(shown(&mut refusals, &all, then), "???-++++");
    }

    #[test]
    fn what_is_forgotten_can_be_had() {
        let (mut refusals, all) = (Refusals::default(), offers(&["m5.large"]));
        let now = Instant::now();
        refusals.refuse(option("m5.large", "a"), now);
        refusals.refuse(option("m5.large", "b"), now);
        refusals.forget(|own| own.zone == "a");
        assert_eq!(shown(&mut refusals, &all, now), "+-");
    }
}
