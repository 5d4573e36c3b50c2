//! Capacity reservations, and the launches that have used them since they were described.

use std::{collections::BTreeMap, time::Duration};

use aws_sdk_ec2::types::CapacityReservationType;
use jiff::Timestamp;
use mullion_api::karpenter::CapacityReservationSelectorTerm;
use mullion_cloud::{CapacityReservation, CloudError, MatchCriteria, Reservation, ReservationKind};

use super::{Dated, Inner, errors::Failed, filters::filter, filters::tag_map, lock};
use crate::limits::Kind;

/// The time for which descriptions are used.
const DESCRIBED_FOR: Duration = Duration::from_secs(60);

/// The region's active reservations.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    described: Option<Dated<BTreeMap<String, CapacityReservation>>>,
}

impl Reservations {
    fn edit(&mut self, id: &str, edit: impl FnOnce(&mut CapacityReservation)) {
        let described = self.described.as_mut();
        if let Some(own) = described.and_then(|dated| dated.value.get_mut(id)) {
            edit(own);
        }
    }
}

impl Inner {
    pub(super) async fn capacity_reservations(
        &self,
        terms: &[CapacityReservationSelectorTerm],
    ) -> Result<Vec<CapacityReservation>, CloudError> {
        if terms.is_empty() {
            return Ok(Vec::new());
        }
        let known = {
            let reservations = lock(&self.reservations);
            let described = reservations.described.as_ref();
            described.and_then(|dated| dated.younger_than(DESCRIBED_FOR).cloned())
        };
        let all = match known {
            Some(all) => all,
            None => {
                let all = self.describe_reservations().await?;
                lock(&self.reservations).described = Some(Dated::now(all.clone()));
                all
            }
        };
        let now = Timestamp::now();
        let selected = all
            .into_values()
            .filter(|own| !own.is_over(now) && terms.iter().any(|term| own.is_selected_by(term)));
        Ok(selected.collect())
    }

    async fn describe_reservations(&self) -> Result<BTreeMap<String, CapacityReservation>, Failed> {
        self.may(Kind::Describe).await;
        let mut pages = self
            .ec2
            .describe_capacity_reservations()
            .filters(filter("state", ["active"]))
            .max_results(1000)
            .into_paginator()
            .send();
        let mut all = BTreeMap::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(Failed::of)?;
            let own = page.capacity_reservations().iter().filter_map(read);
            all.extend(own.map(|own| (own.reservation.id.to_string(), own)));
        }
        Ok(all)
    }

    /// Returns the reservation with this id, or one of kind `default` if it is unknown.
    pub(super) fn reservation(&self, id: &str) -> Reservation {
        let reservations = lock(&self.reservations);
        let described = reservations.described.as_ref();
        let known = described.and_then(|dated| dated.value.get(id));
        match known {
            Some(known) => known.reservation.clone(),
            None => Reservation {
                id: id.into(),
                kind: ReservationKind::Default,
                interruptible: false,
            },
        }
    }

    /// Counts a launch in a reservation.
    pub(super) fn reservation_is_used(&self, id: &str) {
        let mut reservations = lock(&self.reservations);
        reservations.edit(id, |own| own.available = own.available.saturating_sub(1));
    }

    /// Records that a reservation is full, as EC2 has reported.
    pub(super) fn reservation_is_full(&self, id: &str) {
        lock(&self.reservations).edit(id, |own| own.available = 0);
    }
}

fn read(own: &aws_sdk_ec2::types::CapacityReservation) -> Option<CapacityReservation> {
    let count = |number: Option<i32>| {
        let number = number.and_then(|number| u32::try_from(number).ok());
        number.unwrap_or_default()
    };
    let kind = match own.reservation_type() {
        Some(CapacityReservationType::CapacityBlock) => ReservationKind::CapacityBlock,
        _ => ReservationKind::Default,
    };
    let criteria = own.instance_match_criteria().map(|own| own.as_str());
    Some(CapacityReservation {
        reservation: Reservation {
            id: own.capacity_reservation_id()?.into(),
            kind,
            interruptible: own.interruptible().unwrap_or_default(),
        },
        owner_id: own.owner_id().unwrap_or_default().to_owned(),
        instance_type: own.instance_type()?.to_owned(),
        zone: own.availability_zone()?.to_owned(),
        match_criteria: MatchCriteria::parse(criteria.unwrap_or_default())?,
        available: count(own.available_instance_count()),
        total: count(own.total_instance_count()),
        ends_at: own
            .end_date()
            .and_then(|at| Timestamp::from_second(at.secs()).ok()),
        tags: tag_map(own.tags()),
    })
}
