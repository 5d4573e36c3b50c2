//! The kinds of interruption messages and status checks, with Karpenter's names, and the action for
//! each.

use mullion_cloud::{MessageKind, StatusCheck};

/// An interruption message or a failed status check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Message(MessageKind),
    Check(StatusCheck),
}

impl From<MessageKind> for Kind {
    fn from(kind: MessageKind) -> Self {
        Self::Message(kind)
    }
}

impl From<StatusCheck> for Kind {
    fn from(check: StatusCheck) -> Self {
        Self::Check(check)
    }
}

/// The action on the claims of the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The claim is deleted, and its node is drained.
    CordonAndDrain,
    /// The claim is deleted, and the drain does not wait for pods.
    ForcefulTermination,
    /// Only an event is recorded.
    None,
}

impl Action {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::CordonAndDrain => "CordonAndDrain",
            Self::ForcefulTermination => "ForcefulTermination",
            Self::None => "NoAction",
        }
    }
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Message(MessageKind::SpotInterruption) => "spot_interrupted",
            Self::Message(MessageKind::ReservationInterruption) => {
                "capacity_reservation_interrupted"
            }
            Self::Message(MessageKind::RebalanceRecommendation) => "rebalance_recommendation",
            Self::Message(MessageKind::ScheduledChange) => "scheduled_change",
            Self::Message(MessageKind::InstanceStopped) => "instance_stopped",
            Self::Message(MessageKind::InstanceTerminated) => "instance_terminated",
            Self::Check(StatusCheck::Instance) => "instance_status",
            Self::Check(StatusCheck::System) => "system_status",
            Self::Check(StatusCheck::Event) => "event_status",
        }
    }

    pub(super) fn action(self) -> Action {
        match self {
            Self::Message(MessageKind::RebalanceRecommendation) => Action::None,
            Self::Message(_) | Self::Check(StatusCheck::Event) => Action::CordonAndDrain,
            Self::Check(StatusCheck::Instance | StatusCheck::System) => Action::ForcefulTermination,
        }
    }

    /// Returns the reason and the message of the event.
    pub(super) fn event(self) -> (&'static str, &'static str) {
        match self {
            Self::Message(MessageKind::SpotInterruption) => {
                ("SpotInterrupted", "Spot interruption warning was triggered")
            }
            Self::Message(MessageKind::ReservationInterruption) => (
                "CapacityReservationInstanceInterrupted",
                "Capacity Reservation interruption warning was triggered",
            ),
            Self::Message(MessageKind::RebalanceRecommendation) => (
                "SpotRebalanceRecommendation",
                "Spot rebalance recommendation was triggered",
            ),
            Self::Message(MessageKind::InstanceStopped) => {
                ("InstanceStopping", "Instance is stopping")
            }
            Self::Message(MessageKind::InstanceTerminated) => {
                ("InstanceTerminating", "Instance is terminating")
            }
            Self::Message(MessageKind::ScheduledChange) | Self::Check(_) => (
                "InstanceUnhealthy",
                "An unhealthy warning was triggered for the instance",
            ),
        }
    }
}
