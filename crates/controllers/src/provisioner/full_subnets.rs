//! Remembers subnets in which EC2 had no address for a launch, so that nothing is bought for a while in a zone whose subnets are all such.
//!
//! Invariant: a subnet is left out for [`UNAVAILABLE_FOR`] after the last refusal, as in Karpenter's AWS provider (`MarkSubnetUnavailable`).
//! A class is kept from a zone only if all of its subnets there are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use mullion_api::karpenter::{EC2NodeClass, SubnetStatus};
use mullion_cloud::UNAVAILABLE_FOR;

/// The subnets that are left out, each with the time until which it is. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct FullSubnets(Arc<Mutex<BTreeMap<String, Timestamp>>>);

impl FullSubnets {
    /// Records that a launch found no address in a class's subnets of a zone. A launch is sent to the subnet with the most free addresses,
    /// so if that has none, the others have none either.
    pub(crate) fn refused(&self, class: &EC2NodeClass, zone: &str, now: Timestamp) {
        let lasts = SignedDuration::try_from(UNAVAILABLE_FOR).unwrap_or_default();
        let Ok(until) = now.checked_add(lasts) else {
            return;
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, until| now < *until);
        let full = subnets(class).filter(|own| own.zone == zone);
        known.extend(full.map(|own| (own.id.clone(), until)));
    }

    /// Returns the zones in which all subnets of a class are left out.
    pub(crate) fn zones(&self, class: &EC2NodeClass, now: Timestamp) -> BTreeSet<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            return BTreeSet::new();
        }
        let is_full = |own: &SubnetStatus| known.get(&own.id).is_some_and(|until| now < *until);
        let (full, open): (Vec<_>, Vec<_>) = subnets(class).partition(|own| is_full(own));
        let open: BTreeSet<&str> = open.into_iter().map(|own| own.zone.as_str()).collect();
        let zones = full.into_iter().map(|own| &own.zone);
        let closed = zones.filter(|zone| !open.contains(zone.as_str()));
        closed.cloned().collect()
    }
}

fn subnets(class: &EC2NodeClass) -> impl Iterator<Item = &SubnetStatus> {
    class.status.iter().flat_map(|status| &status.subnets)
}

#[cfg(test)]
mod tests {
    use mullion_api::karpenter::EC2NodeClassStatus;

    use super::*;

    fn class(subnets: &[(&str, &str)]) -> EC2NodeClass {
        let subnets = subnets.iter().map(|(id, zone)| SubnetStatus {
            id: (*id).to_owned(),
            zone: (*zone).to_owned(),
            ..SubnetStatus::default()
        });
        let mut class = EC2NodeClass::new("c", Default::default());
        class.status = Some(EC2NodeClassStatus {
            subnets: subnets.collect(),
            ..EC2NodeClassStatus::default()
        });
        class
    }

    #[test]
    fn a_zone_is_closed_for_three_minutes_to_classes_whose_subnets_there_are_all_full() {
        let full = FullSubnets::default();
        let small = class(&[("s1", "a"), ("s2", "b")]);
        let large = class(&[("s1", "a"), ("s3", "a"), ("s2", "b")]);
        let start = Timestamp::UNIX_EPOCH;
        let at = |seconds| start + SignedDuration::from_secs(seconds);
        full.refused(&small, "a", start);
        let closed = |class, seconds| Vec::from_iter(full.zones(class, at(seconds)));
        assert_eq!(closed(&small, 179), ["a"]);
        // The other class has a subnet there that is not known to be full.
        assert!(closed(&large, 0).is_empty());
        assert!(closed(&small, 180).is_empty());
        // A refusal starts the time anew.
        full.refused(&large, "a", at(100));
        assert_eq!(
            (closed(&small, 279), closed(&large, 279)),
            (vec!["a".to_owned()], vec!["a".to_owned()])
        );
        assert!(closed(&large, 280).is_empty());
    }
}
