//! Messages of a cloud about its instances, and failed status checks.
//!
//! On AWS, the messages are EventBridge events in an SQS queue, and the checks are those of DescribeInstanceStatus.

use jiff::Timestamp;

use crate::{InstanceId, InstanceState};
use serde::{Deserialize, Serialize};

/// The subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MessageKind {
    /// EC2 interrupts a spot instance in two minutes.
    SpotInterruption,
    /// EC2 interrupts an instance of an interruptible capacity reservation in two minutes.
    ReservationInterruption,
    /// A spot instance has a higher risk of interruption than others.
    RebalanceRecommendation,
    /// AWS Health has scheduled maintenance of the instance or its host.
    ScheduledChange,
    /// The instance has stopped.
    InstanceStopped,
    /// The instance is being terminated, or has been.
    InstanceTerminated,
}

impl MessageKind {
    /// Returns the message about an instance that has reached a state, or `None` for states without a message.
    pub(crate) fn of(state: InstanceState) -> Option<Self> {
        match state {
            InstanceState::Pending | InstanceState::Running => None,
            InstanceState::Stopped => Some(Self::InstanceStopped),
            InstanceState::ShuttingDown | InstanceState::Terminated => {
                Some(Self::InstanceTerminated)
            }
        }
    }
}

/// A message about an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The handle of the message in the queue.
    pub receipt: u64,
    /// The subject.
    pub kind: MessageKind,
    /// The instance that it is about.
    pub instance: InstanceId,
    /// The time at which it was sent.
    pub sent_at: Timestamp,
}

/// A status check of EC2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StatusCheck {
    /// The check that the instance itself responds.
    Instance,
    /// The check that the instance's host works.
    System,
    /// The check that no maintenance is scheduled.
    Event,
}

/// A check that an instance fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Impairment {
    /// The instance.
    pub instance: InstanceId,
    /// The check.
    pub check: StatusCheck,
    /// The time since which it fails.
    pub since: Timestamp,
}
