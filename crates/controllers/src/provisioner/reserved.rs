//! Reserved capacity as a way to buy machines.
//!
//! Invariant: the nodes planned for a reservation, together with the claims that are being launched
//! into it, never take more instances than it has.

use std::{collections::BTreeMap, sync::Arc};

use mullion_api::{
    karpenter::{
        CapacityReservationSelectorTerm, EC2NodeClass, NodeClaim, Operator,
        node_claim_condition as condition,
    },
    labels,
};
use mullion_cloud::{
    CapacityType, CloudError, CloudProvider, Offer, Offering, Reservation, ReservationKind,
    ReservedShare, catalogue::Price,
};
use mullion_engine::provision;

use super::{market::Market, markets::Markets};

/// The state of a capacity block in the status of a class whose nodes are given up because it ends soon.
pub(crate) const EXPIRING: &str = "expiring";

/// Adds to the offers the reservations that a class's status names, with the number of instances
/// that EC2 has left in each.
pub(super) async fn with_reservations(
    offers: Arc<[Offer]>,
    class: &EC2NodeClass,
    cloud: &dyn CloudProvider,
) -> Result<Arc<[Offer]>, CloudError> {
    let status = class.status.iter();
    let known: Vec<_> = status.flat_map(|own| &own.capacity_reservations).collect();
    if known.is_empty() {
        return Ok(offers);
    }
    let terms: Vec<_> = known.iter().map(|own| term(&own.id)).collect();
    let found = cloud.capacity_reservations(&terms).await?;
    let left: BTreeMap<&str, u32> = found
        .iter()
        .map(|own| (&*own.reservation.id, own.available))
        .collect();
    let mut offers = offers.to_vec();
    for own in known {
        let mut all = offers.iter_mut();
        let Some(offer) = all.find(|offer| *offer.instance_type.name == *own.instance_type) else {
            continue;
        };
        let in_zone = |sold: &&Offering| *sold.zone == *own.availability_zone;
        let Some(sibling) = offer.offerings.iter().find(in_zone) else {
            continue;
        };
        let (zone, zone_id) = (Arc::clone(&sibling.zone), Arc::clone(&sibling.zone_id));
        let mut on_demand = offer.offerings.iter();
        let on_demand = on_demand.find(|sold| sold.capacity_type == CapacityType::OnDemand);
        let kind = own.reservation_type.as_deref().unwrap_or_default();
        // A reservation that the class still lists and EC2 no longer shows is used up or gone.
        let left = left.get(&*own.id).copied().unwrap_or_default();
        offer.offerings.push(Offering {
            zone,
            zone_id,
            capacity_type: CapacityType::Reserved,
            // A reservation is paid for already; the small price only orders reservations by the
            // size of their machines.
            price: on_demand.map_or(Price(0), |sold| sold.price.as_reserved()),
            available: left > 0 && own.state.as_deref() != Some(EXPIRING),
            on_trial: false,
            reservation: Some(ReservedShare {
                reservation: Reservation {
                    id: own.id.as_str().into(),
                    kind: ReservationKind::parse(kind).unwrap_or_default(),
                    interruptible: own.interruptible.unwrap_or_default(),
                },
                left,
            }),
        });
    }
    Ok(offers.into())
}

/// Returns the term that selects one reservation by its id.
pub(crate) fn term(id: &str) -> CapacityReservationSelectorTerm {
    CapacityReservationSelectorTerm {
        id: Some(id.to_owned()),
        ..CapacityReservationSelectorTerm::default()
    }
}

/// Returns the value of a label that nodes in a reservation have.
pub(super) fn label(reservation: &Reservation, key: &str) -> Option<String> {
    let mut labels = reservation.labels().into_iter();
    labels.find_map(|(own, value)| (own == key).then_some(value))
}

/// Converts a share of a reservation to the engine's form.
pub(super) fn to_engine(share: &ReservedShare) -> provision::Reservation {
    provision::Reservation {
        id: share.reservation.id.to_string(),
        left: share.left,
    }
}

/// Returns how many instances of each reservation the claims that are not launched yet may still
/// take.
pub(super) fn held<'a>(claims: impl Iterator<Item = &'a NodeClaim>) -> BTreeMap<String, u32> {
    let mut held = BTreeMap::new();
    for claim in claims {
        // A launched claim is in EC2's own count already; counting it twice would leave capacity
        // unused.
        if claim.is(condition::LAUNCHED) || claim.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let mut requirements = claim.spec.requirements.iter();
        let names = requirements
            .find(|own| own.key == labels::CAPACITY_RESERVATION_ID && own.operator == Operator::In);
        for id in names.into_iter().flat_map(|names| &names.values) {
            // A claim may name several reservations and takes one; until its launch each of them
            // has to hold room.
            *held.entry(id.clone()).or_default() += 1;
        }
    }
    held
}

impl Markets {
    /// Subtracts what claims hold from each reservation. An offering with nothing left stays
    /// available, because the claims may still be launched elsewhere.
    pub(super) fn without(self, held: &BTreeMap<String, u32>) -> Self {
        if held.is_empty() {
            self
        } else {
            self.map(|market| market.without(held))
        }
    }
}

impl Market {
    fn without(mut self, held: &BTreeMap<String, u32>) -> Self {
        let is_reserved = |offer: &Offer| {
            let mut offerings = offer.offerings.iter();
            offerings.any(|own| own.reservation.is_some())
        };
        if self.offers.iter().any(is_reserved) {
            let mut offers = self.offers.to_vec();
            let offerings = offers.iter_mut().flat_map(|offer| &mut offer.offerings);
            for share in offerings.filter_map(|own| own.reservation.as_mut()) {
                let held = held.get(&*share.reservation.id).copied();
                share.left = share.left.saturating_sub(held.unwrap_or_default());
            }
            self.offers = offers.into();
        }
        self
    }
}
