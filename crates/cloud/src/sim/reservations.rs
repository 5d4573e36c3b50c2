//! The capacity reservations of the simulated EC2, and the effects of their end.
//!
//! Invariant: a reservation never has more running instances than machines. When a reservation ends, its instances become on-demand
//! instances, or are terminated if it was a capacity block.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use mullion_api::account;
use tokio::time::sleep;

use super::{SimulatedEc2, State};
use crate::{
    CapacityReservation, CapacityType, Instance, InstanceId, InstanceState, LaunchOption,
    MatchCriteria, RECLAIMED_BEFORE_END, Reservation, ReservationKind,
    catalogue::{self, price},
};

/// The reason why a reservation of the custom resource is invalid, as EC2 gives it.
#[derive(Debug, thiserror::Error)]
enum ReservationError {
    /// The id has another form.
    #[error(
        "{0:?} is no id of a capacity reservation: it is cr- and then lower-case letters and digits"
    )]
    Id(String),
    /// The instance type is unknown.
    #[error("InvalidInstanceType: the instance type {0:?} does not exist")]
    InstanceType(String),
    /// The region has other zones.
    #[error("InvalidAvailabilityZone: {zone:?} is not a zone here; there are {zones}")]
    Zone {
        /// The zone.
        zone: String,
        /// The zones of the region.
        zones: String,
    },
    /// The kind is unknown.
    #[error("{0:?} is no kind of reservation: it is default or capacity-block")]
    Kind(String),
    /// The criteria are unknown.
    #[error("{0:?} is no instance match criteria: it is open or targeted")]
    MatchCriteria(String),
    /// The end is not a time.
    #[error("{0:?} is no time such as 2026-01-01T00:00:00Z, which endDate wants")]
    End(String),
}

/// The reservations by id, including those that have ended; `available` is not stored.
#[derive(Default)]
pub(super) struct Reservations {
    all: BTreeMap<String, Result<CapacityReservation, ReservationError>>,
    /// The number of times that the reservations have been replaced.
    generation: u64,
}

impl SimulatedEc2 {
    /// Replaces the capacity reservations. Instances in one that is no longer there lose it.
    pub fn reserve(&self, wanted: &BTreeMap<String, account::CapacityReservation>) {
        let zones = self.zones();
        let read = |(id, own): (&String, &account::CapacityReservation)| {
            (id.clone(), read(id, own, &zones))
        };
        let generation = {
            let reservations = &mut self.state().reservations;
            reservations.all = wanted.iter().map(read).collect();
            // Ends the task that waits for the former reservations.
            reservations.generation += 1;
            reservations.generation
        };
        self.release_ended();
        self.await_ends(generation);
    }

    /// Takes ended and deleted reservations from their instances: an instance becomes an on-demand one, or is terminated if it ran in a
    /// capacity block.
    fn release_ended(&self) {
        let now = self.inner.clock.now();
        let (mut lost, mut reclaimed): (Vec<InstanceId>, Vec<InstanceId>) = Default::default();
        {
            let state = self.state();
            for instance in state.fleet.iter().filter(|own| own.state.is_alive()) {
                let Some(own) = &instance.reservation else {
                    continue;
                };
                let known = state.reservations.all.get(&*own.id);
                let known = known.and_then(|known| known.as_ref().ok());
                let is_there = known.is_some_and(|known| !known.is_over(now));
                // EC2 takes the instances of a capacity block half an hour before its end.
                let is_reclaimed = known.is_none_or(|known| known.is_reclaimed(now));
                match own.kind {
                    ReservationKind::CapacityBlock if is_reclaimed || !is_there => {
                        reclaimed.push(instance.id.clone());
                    }
                    ReservationKind::Default if !is_there => lost.push(instance.id.clone()),
                    _ => {}
                }
            }
        }
        // Instances are changed after the lock on the state is released, because changing them takes it again.
        for id in reclaimed {
            self.end(&id);
        }
        for id in lost {
            self.inner.update(&id, |instance| {
                instance.capacity_type = CapacityType::OnDemand;
                instance.reservation = None;
                let (kind, os) = (&instance.instance_type, instance.os());
                let price = price::of(kind, os, CapacityType::OnDemand);
                instance.price = price.unwrap_or(instance.price);
            });
        }
        // The free instances of reservations are part of what followers show.
        self.inner.changed.send_modify(|_| {});
    }

    /// Calls `release_ended` whenever a reservation ends, until the reservations are replaced.
    fn await_ends(&self, generation: u64) {
        let weak = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            loop {
                let Some(inner) = weak.upgrade() else { return };
                let ec2 = SimulatedEc2 { inner };
                let now = ec2.inner.clock.now();
                let next = {
                    let reservations = &ec2.state().reservations;
                    if reservations.generation != generation {
                        return;
                    }
                    reservations.next_end(now)
                };
                let Some(next) = next else { return };
                // The task must not keep the cloud alive while it sleeps.
                drop(ec2);
                let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default();
                sleep(wait).await;
                let Some(inner) = weak.upgrade() else { return };
                SimulatedEc2 { inner }.release_ended();
            }
        });
    }

    /// Returns the reservations that have not ended, with their free instances.
    pub(super) fn active_reservations(&self, state: &State) -> Vec<CapacityReservation> {
        let now = self.inner.clock.now();
        let known = state.reservations.all.values().flatten();
        known
            .filter(|own| !own.is_over(now))
            .map(|own| CapacityReservation {
                available: state.left_of(own, now),
                ..own.clone()
            })
            .collect()
    }

    /// Returns the reservation that an option uses, if it has a free machine.
    pub(super) fn reserved_for(&self, state: &State, option: &LaunchOption) -> Option<Reservation> {
        let id = option.reservation.as_ref()?;
        let known = state.reservations.all.get(id)?.as_ref().ok()?;
        let now = self.inner.clock.now();
        let is_meant = known.instance_type == option.instance_type && known.zone == option.zone;
        let has_some = !known.is_over(now) && state.free_of(known, now) > 0;
        (is_meant && has_some).then(|| known.reservation.clone())
    }

    /// Returns the status of the reservations for the custom resource.
    pub(super) fn reservation_facts(
        &self,
        state: &State,
    ) -> BTreeMap<String, account::ReservationFacts> {
        let now = self.inner.clock.now();
        let told = |own: &Result<CapacityReservation, ReservationError>| match own {
            Err(error) => account::ReservationFacts {
                state: "failed".to_owned(),
                message: error.to_string(),
                ..account::ReservationFacts::default()
            },
            Ok(own) if own.is_over(now) => account::ReservationFacts {
                state: "expired".to_owned(),
                ..account::ReservationFacts::default()
            },
            Ok(own) => account::ReservationFacts {
                state: "active".to_owned(),
                available_instance_count: state.free_of(own, now),
                message: String::new(),
            },
        };
        let all = state.reservations.all.iter();
        all.map(|(id, own)| (id.clone(), told(own))).collect()
    }
}

impl Reservations {
    /// Returns the time at which the next reservation ends or its instances are terminated.
    fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        let ends = self.all.values().flatten().filter_map(|own| {
            let end = own.ends_at?;
            let before = match own.reservation.kind {
                ReservationKind::CapacityBlock => end.checked_sub(RECLAIMED_BEFORE_END).ok(),
                ReservationKind::Default => None,
            };
            [before, Some(end)]
                .into_iter()
                .flatten()
                .find(|at| *at > now)
        });
        ends.min()
    }
}

impl State {
    /// Returns the number of machines of a reservation without an instance.
    fn free_of(&self, own: &CapacityReservation, now: Timestamp) -> u32 {
        if own.is_reclaimed(now) {
            return 0;
        }
        let runs_in = |instance: &&Arc<Instance>| {
            // A machine is free again only when its instance is terminated.
            let is_there =
                instance.state.is_alive() || instance.state == InstanceState::ShuttingDown;
            let runs_in = instance.reservation.as_ref();
            is_there && runs_in.is_some_and(|runs_in| runs_in.id == own.reservation.id)
        };
        let used = self.fleet.iter().filter(runs_in).count();
        own.total
            .saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }

    /// Returns the number of free machines, or 0 after a recent refusal by EC2.
    fn left_of(&self, own: &CapacityReservation, now: Timestamp) -> u32 {
        let option = LaunchOption {
            instance_type: own.instance_type.clone(),
            zone: own.zone.clone(),
            capacity_type: CapacityType::Reserved,
            reservation: Some(own.reservation.id.to_string()),
            placement: None,
        };
        if self.faults.is_unavailable(&option) {
            0
        } else {
            self.free_of(own, now)
        }
    }
}

/// Parses a reservation of the custom resource.
fn read(
    id: &str,
    own: &account::CapacityReservation,
    zones: &[Arc<str>],
) -> Result<CapacityReservation, ReservationError> {
    let name = id.strip_prefix("cr-").unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(ReservationError::Id(id.to_owned()));
    }
    if catalogue::get(&own.instance_type).is_none() {
        return Err(ReservationError::InstanceType(own.instance_type.clone()));
    }
    if !zones.iter().any(|zone| **zone == *own.availability_zone) {
        return Err(ReservationError::Zone {
            zone: own.availability_zone.clone(),
            zones: zones.join(", "),
        });
    }
    let kind = ReservationKind::parse(&own.reservation_type)
        .ok_or_else(|| ReservationError::Kind(own.reservation_type.clone()))?;
    let match_criteria = MatchCriteria::parse(&own.instance_match_criteria)
        .ok_or_else(|| ReservationError::MatchCriteria(own.instance_match_criteria.clone()))?;
    let ends_at = match own.end_date.as_str() {
        "" => None,
        text => {
            let end = text.parse();
            Some(end.map_err(|_| ReservationError::End(text.to_owned()))?)
        }
    };
    Ok(CapacityReservation {
        reservation: Reservation {
            id: id.into(),
            kind,
            interruptible: own.interruptible,
        },
        owner_id: match own.owner_id.as_str() {
            "" => account::ID.to_owned(),
            id => id.to_owned(),
        },
        instance_type: own.instance_type.clone(),
        zone: own.availability_zone.clone(),
        match_criteria,
        available: 0,
        total: own.total_instance_count,
        ends_at,
        tags: own.tags.clone(),
    })
}
