//! The inputs of an [`Interface`](super::Interface) (events) and its outputs (answers and calls).

use std::fmt;
use std::sync::Arc;

use super::cidr::{Cidr, Kind};
use super::targets::Targets;

/// The `metadata.uid` of a pod. Clones share the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// Returns the uid as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for PodUid {
    fn from(uid: &str) -> Self {
        PodUid(Arc::from(uid))
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Something that happened to the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A pod of the node needs an address. A pod that has an address already gets the same address again.
    PodNeeds(PodUid),
    /// A pod was deleted or has ended, or its annotation with the address could not be written. Its address must rest before another
    /// pod gets it. A pod whose annotation could not be written asks again with [`Event::PodNeeds`].
    PodGone(PodUid),
    /// A pod has an annotation with an address that this interface did not give. The pod keeps the address.
    PodHolds(PodUid, Cidr),
    /// The call [`Call::Assign`] succeeded and EC2 assigned these blocks. If they are fewer than requested, the subnet had no more.
    Created(Vec<Cidr>),
    /// The call [`Call::Assign`] failed.
    NotCreated(Failure),
    /// The call [`Call::GiveBack`] succeeded.
    GivenBack,
    /// The call [`Call::GiveBack`] failed.
    NotGivenBack(Failure),
    /// The call [`Call::List`] succeeded.
    Listed(Listing),
    /// The call [`Call::List`] failed.
    NotListed(Failure),
    /// The settings changed: the active kind and the targets of its pool. The other pool is drained.
    Configured(Kind, Targets),
    /// The subnet may have free addresses again, for example because another node gave one back. The interface tries to assign at once.
    Room,
    /// The caller doubts that the pools agree with EC2. The interface is listed.
    Recheck,
    /// The time that [`Interface::wake_at`](super::Interface::wake_at) returned has come.
    Wake,
}

/// How a call to EC2 failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// EC2 throttled the call (`RequestLimitExceeded`) and did nothing.
    Throttled,
    /// The subnet has no free address (`InsufficientFreeAddressesInSubnet`).
    NoAddress,
    /// The subnet has no free /28 (`InsufficientCidrBlocks`).
    NoPrefix,
    /// EC2 returned another error and did nothing.
    Other,
    /// No answer came (time-out, lost connection, status 5xx). EC2 may have executed the call, or may still do so.
    NoAnswer,
}

/// The blocks that EC2 has on the interface, without its primary address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Listing {
    /// The single addresses, each with the mask of the subnet.
    pub addresses: Vec<Cidr>,
    /// The /28 prefixes.
    pub prefixes: Vec<Cidr>,
}

impl Listing {
    /// Returns the blocks of `kind`.
    pub fn of(&self, kind: Kind) -> &[Cidr] {
        match kind {
            Kind::Address => &self.addresses,
            Kind::Prefix => &self.prefixes,
        }
    }
}

/// A message for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The pod has this address. The text of `address` is the value of the pod's annotation.
    Give {
        /// The pod's UID.
        pod: PodUid,
        /// The address with its mask.
        address: Cidr,
    },
    /// The pod waits for this reason. Sent once, and again when the reason's text changes. When the pod gets an address,
    /// [`Answer::Give`] follows by itself.
    Wait {
        /// The pod's UID.
        pod: PodUid,
        /// The reason.
        why: WaitReason,
    },
    /// EC2 no longer has the pod's address on the interface. No other pod gets that address while this pod lives.
    Lost {
        /// The pod's UID.
        pod: PodUid,
        /// The address that is gone.
        address: Cidr,
    },
}

/// A call to EC2. At most one call of each variant is in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Assign `count` blocks to the interface.
    Assign {
        /// The kind of blocks.
        kind: Kind,
        /// The number of blocks, at least one.
        count: u32,
    },
    /// Give these blocks back to the subnet.
    GiveBack {
        /// The kind of blocks.
        kind: Kind,
        /// The blocks in ascending order, at least one.
        blocks: Vec<Cidr>,
    },
    /// List what EC2 has on the interface.
    List,
}

/// Why a pod waits: the error kinds of VRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// All addresses that the interface can have are used.
    AtCapacity,
    /// All unused addresses are resting.
    Cooling,
    /// All unused addresses are being assigned or given back.
    Creating,
    /// No address is ready yet.
    Empty,
    /// EC2's last answer was that the subnet has no free /28.
    NoPrefix,
}

impl WaitReason {
    /// Returns the delay after which VRC retries, which its event names, in milliseconds; `None` at capacity, where the event names
    /// none.
    pub const fn retry_ms(self) -> Option<u64> {
        match self {
            WaitReason::AtCapacity => None,
            WaitReason::Cooling => Some(20_000),
            WaitReason::Creating | WaitReason::Empty => Some(600),
            WaitReason::NoPrefix => Some(120_000),
        }
    }

    /// Returns whether both reasons have the same text.
    pub(super) fn sounds_like(self, other: WaitReason) -> bool {
        // VRC has one text for both of these.
        let empty = |why| matches!(why, WaitReason::Creating | WaitReason::Empty);
        self == other || (empty(self) && empty(other))
    }
}

/// Formats VRC's text for the event on the pod, for the resource `vpc.amazonaws.com/PrivateIPv4Address`.
impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RESOURCE: &str = "vpc.amazonaws.com/PrivateIPv4Address";
        match self {
            WaitReason::AtCapacity => f.write_str("cannot assign any more resource from warm pool"),
            WaitReason::Cooling => write!(
                f,
                "Resource {RESOURCE} are being cooled down, will retry in 20s"
            ),
            WaitReason::Creating | WaitReason::Empty => {
                write!(
                    f,
                    "Warm pool for resource {RESOURCE} is currently empty, will retry in 600ms"
                )
            }
            WaitReason::NoPrefix => write!(
                f,
                "Warm pool for resource {RESOURCE} is currently empty because the specified subnet does not have enough free cidr \
                 blocks, will retry in 2m0s"
            ),
        }
    }
}
