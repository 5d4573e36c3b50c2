//! What a cloud tells of its instances without being asked: messages in a queue, and checks that fail.
//!
//! On AWS the messages are EventBridge's, in an SQS queue, and the checks those of DescribeInstanceStatus.

use jiff::Timestamp;

use crate::{InstanceId, InstanceState};
use serde::{Deserialize, Serialize};

/// What a message says of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MessageKind {
    /// EC2 takes a spot instance back in two minutes.
    SpotInterruption,
    /// A spot instance is more likely than others to be taken back.
    RebalanceRecommendation,
    /// AWS Health: maintenance of the instance or its host is ahead.
    ScheduledChange,
    /// The instance has stopped.
    InstanceStopped,
    /// The instance is being terminated, or has been.
    InstanceTerminated,
}

impl MessageKind {
    /// Returns what is told of an instance that has reached a state, if that is worth telling.
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
    /// By which the queue knows the message.
    pub receipt: u64,
    /// What it says.
    pub kind: MessageKind,
    /// Of which instance.
    pub instance: InstanceId,
    /// When it was sent.
    pub sent_at: Timestamp,
}

/// A check of EC2's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StatusCheck {
    /// Whether the instance itself answers.
    Instance,
    /// Whether the host below it works.
    System,
    /// Whether maintenance is ahead of it.
    Event,
}

/// A check that an instance fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Impairment {
    /// The instance.
    pub instance: InstanceId,
    /// The check.
    pub check: StatusCheck,
    /// Since when.
    pub since: Timestamp,
}
