//! Capacity reservations: instances of one type in one zone that are paid for whether they run or not.
//!
//! Invariant: a reservation has the same id as an offering, as a launch option, and on the instance that runs in it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use mullion_api::{karpenter::CapacityReservationSelectorTerm, labels};
use serde::{Deserialize, Serialize};

/// How long before the end of a capacity block Karpenter drains its nodes: ten minutes before EC2 terminates the first
/// instance.
pub const EXPIRING_BEFORE_END: SignedDuration = SignedDuration::from_mins(40);
/// How long before the end of a capacity block EC2 terminates its instances.
pub const RECLAIMED_BEFORE_END: SignedDuration = SignedDuration::from_mins(30);

/// The kind of a reservation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum ReservationKind {
    /// An On-Demand Capacity Reservation: after its end its instances continue as on-demand instances.
    #[default]
    Default,
    /// A Capacity Block for ML: its instances are terminated before it ends.
    CapacityBlock,
}

impl ReservationKind {
    /// Returns EC2's name, the value of the label `karpenter.k8s.aws/capacity-reservation-type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::CapacityBlock => "capacity-block",
        }
    }

    /// Parses EC2's name; an empty name is the default.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "default" => Some(Self::Default),
            "capacity-block" => Some(Self::CapacityBlock),
            _ => None,
        }
    }
}

impl fmt::Display for ReservationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which instances may run in a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MatchCriteria {
    /// Any instance of its type and zone that does not opt out.
    #[default]
    Open,
    /// Only instances whose launch names it.
    Targeted,
}

impl MatchCriteria {
    /// Returns EC2's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Targeted => "targeted",
        }
    }

    /// Parses EC2's name; an empty name is the default.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "open" => Some(Self::Open),
            "targeted" => Some(Self::Targeted),
            _ => None,
        }
    }
}

/// The reservation that an offering uses or an instance runs in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Reservation {
    /// EC2's id, `cr-0123456789abcdef0`.
    pub id: Arc<str>,
    /// The kind of the reservation.
    pub kind: ReservationKind,
    /// Whether its owner may interrupt instances.
    pub interruptible: bool,
}

impl Reservation {
    /// Returns the labels of a node that runs in it, apart from the capacity type.
    pub fn labels(&self) -> [(&'static str, String); 3] {
        [
            (labels::CAPACITY_RESERVATION_ID, self.id.to_string()),
            (
                labels::CAPACITY_RESERVATION_TYPE,
                self.kind.as_str().to_owned(),
            ),
            (
                labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
                self.interruptible.to_string(),
            ),
        ]
    }
}

/// The part of a reservation that an offering can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedShare {
    /// The reservation.
    pub reservation: Reservation,
    /// How many more instances may be planned to run in it.
    pub left: u32,
}

/// A reservation as EC2 describes it (DescribeCapacityReservations).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityReservation {
    /// Id and kind.
    pub reservation: Reservation,
    /// Account that owns it.
    pub owner_id: String,
    /// Instance type.
    pub instance_type: String,
    /// Availability zone.
    pub zone: String,
    /// Which instances may run in it.
    pub match_criteria: MatchCriteria,
    /// The number of unused instances.
    pub available: u32,
    /// The total number of instances.
    pub total: u32,
    /// When it ends; `None` if it has no end.
    pub ends_at: Option<Timestamp>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

impl CapacityReservation {
    /// Returns whether it is a capacity block so close to its end that its nodes are drained (AWS provider: 40 minutes).
    pub fn is_expiring(&self, now: Timestamp) -> bool {
        self.ends_within(EXPIRING_BEFORE_END, now)
    }

    /// Returns whether it is a capacity block so close to its end that EC2 terminates its instances.
    pub fn is_reclaimed(&self, now: Timestamp) -> bool {
        self.ends_within(RECLAIMED_BEFORE_END, now)
    }

    /// Returns whether it has ended.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.ends_at.is_some_and(|end| end <= now)
    }

    fn ends_within(&self, time: SignedDuration, now: Timestamp) -> bool {
        let end = self
            .ends_at
            .filter(|_| self.reservation.kind == ReservationKind::CapacityBlock);
        end.is_some_and(|end| end.duration_since(now) <= time)
    }

    /// Returns whether a term of an EC2NodeClass selects it: by id, or by tags and match criteria, both of which an owner id
    /// can only narrow.
    pub fn is_selected_by(&self, term: &CapacityReservationSelectorTerm) -> bool {
        if let Some(id) = &term.id {
            return **id == *self.reservation.id;
        }
        let criteria = term.instance_match_criteria.as_deref();
        let is_said = !term.tags.is_empty() || criteria.is_some();
        is_said
            && term
                .owner_id
                .as_ref()
                .is_none_or(|own| *own == self.owner_id)
            && criteria.is_none_or(|own| own == self.match_criteria.as_str())
            && term.tags.iter().all(|(key, wanted)| {
                let value = self.tags.get(key);
                value.is_some_and(|value| wanted == "*" || wanted == value)
            })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reservation(kind: ReservationKind) -> CapacityReservation {
        CapacityReservation {
            reservation: Reservation {
                id: "cr-1".into(),
                kind,
                interruptible: false,
            },
            owner_id: "111122223333".to_owned(),
            instance_type: "m5.large".to_owned(),
            zone: "us-west-2a".to_owned(),
            match_criteria: MatchCriteria::Targeted,
            available: 1,
            total: 1,
            ends_at: Some("2026-01-01T10:00:00Z".parse().expect("a time")),
            tags: BTreeMap::from([("team".to_owned(), "ml".to_owned())]),
        }
    }

    #[test]
    fn a_term_selects_by_id_or_by_all_else_that_it_says() {
        let own = reservation(ReservationKind::Default);
        let is_selected = |term| {
            let term = serde_json::from_value(term).expect("a term");
            own.is_selected_by(&term)
        };
        assert!(is_selected(json!({ "id": "cr-1" })));
        assert!(!is_selected(json!({ "id": "cr-2" })));
        assert!(is_selected(json!({ "tags": { "team": "*" } })));
        assert!(!is_selected(json!({ "tags": { "team": "web" } })));
        assert!(is_selected(json!({ "instanceMatchCriteria": "targeted" })));
        let other = json!({ "instanceMatchCriteria": "open", "tags": { "team": "ml" } });
        assert!(!is_selected(other));
        let stranger = json!({ "ownerID": "444455556666", "tags": { "team": "ml" } });
        assert!(!is_selected(stranger));
        assert!(!is_selected(json!({ "ownerID": "111122223333" })));
    }

    #[test]
    fn only_a_capacity_block_expires_before_its_end() {
        let at = |text: &str| text.parse().expect("a time");
        let block = reservation(ReservationKind::CapacityBlock);
        assert!(!block.is_expiring(at("2026-01-01T09:19:59Z")));
        assert!(block.is_expiring(at("2026-01-01T09:20:00Z")));
        assert!(!block.is_reclaimed(at("2026-01-01T09:29:59Z")));
        assert!(block.is_reclaimed(at("2026-01-01T09:30:00Z")));
        let plain = reservation(ReservationKind::Default);
        assert!(!plain.is_expiring(at("2026-01-01T09:59:00Z")));
        assert!(!plain.is_over(at("2026-01-01T09:59:59Z")));
        assert!(plain.is_over(at("2026-01-01T10:00:00Z")));
    }
}
