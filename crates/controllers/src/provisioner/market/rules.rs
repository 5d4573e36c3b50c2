//! Which labels decide what can be bought: those of types, and those of offerings.

use mullion_api::{karpenter::Requirement, labels};
use mullion_cloud::{CapacityType, Offering, Placement, Tenancy, catalogue::InstanceType};
use mullion_engine::model::StringMap;

use super::super::{requirements::admits, reserved};

/// Returns the labels of a node of this type that do not depend on the offering.
pub(crate) fn node_labels(instance_type: &InstanceType, fixed: &StringMap) -> StringMap {
    let own = instance_type.labels();
    let mut map = fixed.clone();
    map.extend(own.into_iter().map(|(key, value)| (key.to_owned(), value)));
    map
}

/// Returns the labels that nodes of an offering have in this place and with this tenancy, besides zone and capacity type.
pub(super) fn offering_labels(
    offering: &Offering,
    place: Option<&Placement>,
    tenancy: Tenancy,
) -> StringMap {
    let zone_id = (labels::ZONE_ID.to_owned(), offering.zone_id.to_string());
    let (key, value) = tenancy.label();
    let mut map = StringMap::from([zone_id, (key.to_owned(), value.to_owned())]);
    let own = place.into_iter().flat_map(Placement::labels);
    map.extend(own.map(|(key, value)| (key.to_owned(), value)));
    if let Some(share) = &offering.reservation {
        let own = share.reservation.labels().into_iter();
        map.extend(own.map(|(key, value)| (key.to_owned(), value)));
    }
    map
}

/// Returns whether the offering, and not the instance type, determines this label.
pub(crate) fn is_of_offering(key: &str) -> bool {
    matches!(
        key,
        labels::ZONE
            | labels::CAPACITY_TYPE
            | labels::ZONE_ID
            | labels::CAPACITY_RESERVATION_ID
            | labels::CAPACITY_RESERVATION_TYPE
            | labels::CAPACITY_RESERVATION_INTERRUPTIBLE
            | labels::PLACEMENT_GROUP_PARTITION
            | labels::INSTANCE_TENANCY
    )
}

/// Returns whether the type alone does not determine this label: the offering or the requirements do.
fn is_open(key: &str, labels: &StringMap) -> bool {
    // A label that no type has and that is not well known comes from the pool's template, so the
    // type must not be rejected for lacking it.
    is_of_offering(key)
        || key == labels::NODEPOOL
        || (!labels.contains_key(key) && !labels::WELL_KNOWN.contains(&key))
}

pub(super) fn allows(requirements: &[Requirement], labels: &StringMap) -> bool {
    requirements.iter().all(|requirement| {
        let key = labels::normalized(&requirement.key);
        is_open(key, labels) || admits(requirement, labels.get(key).map(String::as_str))
    })
}

/// Returns whether an offering meets the requirements on its zone, capacity type and reservation. It is in every partition of a
/// placement group and has every tenancy ([`has_tenancy`]).
pub(crate) fn allows_offering(requirements: &[Requirement], offering: &Offering) -> bool {
    requirements
        .iter()
        .all(|requirement| match labels::normalized(&requirement.key) {
            labels::ZONE => admits(requirement, Some(&offering.zone)),
            labels::ZONE_ID => admits(requirement, Some(&offering.zone_id)),
            labels::CAPACITY_TYPE => admits(requirement, Some(offering.capacity_type.as_str())),
            labels::PLACEMENT_GROUP_PARTITION | labels::INSTANCE_TENANCY => true,
            key if is_of_offering(key) => {
                let share = offering.reservation.as_ref();
                let own = share.and_then(|share| reserved::label(&share.reservation, key));
                admits(requirement, own.as_deref())
            }
            _ => true,
        })
}

/// Returns the tenancies that nodes with these requirements may have: the default one unless the requirements name another.
pub(crate) fn tenancies(requirements: &[Requirement]) -> Vec<Tenancy> {
    let named = || {
        let requirements = requirements.iter();
        requirements.filter(|own| labels::normalized(&own.key) == labels::INSTANCE_TENANCY)
    };
    if named().next().is_none() {
        return vec![Tenancy::Default];
    }
    let is_allowed =
        |tenancy: &Tenancy| named().all(|requirement| admits(requirement, Some(tenancy.as_str())));
    Tenancy::ALL.into_iter().filter(is_allowed).collect()
}

/// Returns the tenancy that a launch asks for: the default one if the requirements allow it. `None`: they allow none.
pub(crate) fn launch_tenancy(requirements: &[Requirement]) -> Option<Tenancy> {
    tenancies(requirements).into_iter().next()
}

/// Returns whether an offering has a tenancy: capacity reservations are for instances of the default one.
pub(super) fn has_tenancy(offering: &Offering, tenancy: Tenancy) -> bool {
    tenancy == Tenancy::Default || offering.capacity_type != CapacityType::Reserved
}
