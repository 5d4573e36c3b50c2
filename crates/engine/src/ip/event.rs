//! What goes into an [`Interface`](super::Interface) and what comes out of it.

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
    /// A pod of the node needs an address. Sent again for a pod that has one, its address is given again.
    PodNeeds(PodUid),
    /// A pod is gone or has ended, or the annotation with its address could not be written: its address cools down. A pod
    /// whose annotation could not be written asks again with [`Event::PodNeeds`].
    PodGone(PodUid),
    /// A pod was seen with an annotation that this interface did not give: it keeps the address.
    PodHolds(PodUid, Cidr),
    /// The call [`Call::Assign`] ended well and EC2 assigned these blocks. Fewer than asked for means that there were no more.
    Created(Vec<Cidr>),
    /// The call [`Call::Assign`] failed.
    NotCreated(Failure),
    /// The call [`Call::GiveBack`] ended well.
    GivenBack,
    /// The call [`Call::GiveBack`] failed.
    NotGivenBack(Failure),
    /// The call [`Call::List`] ended well.
    Listed(Listing),
    /// The call [`Call::List`] failed.
    NotListed(Failure),
    /// The settings changed: which kind is active, and how many addresses its pool keeps ready. The other pool drains.
    Configured(Kind, Targets),
    /// The subnet may have addresses again, for example because another node gave one back: assigning is tried at once.
    Room,
    /// The caller doubts that the pools agree with EC2: the interface is listed.
    Recheck,
    /// The time that [`Interface::wake_at`](super::Interface::wake_at) named has come.
    Wake,
}

/// How a call to EC2 failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// EC2 refused the rate (`RequestLimitExceeded`) and did nothing.
    Throttled,
    /// The subnet has no free address (`InsufficientFreeAddressesInSubnet`).
    NoAddress,
    /// The subnet has no free /28 (`InsufficientCidrBlocks`).
    NoPrefix,
    /// EC2 answered with another error and did nothing.
    Other,
    /// No answer came (time-out, connection lost, error 5xx): EC2 may have done it, or may do it yet.
    NoAnswer,
}

/// Everything that EC2 has on the interface, without its primary address.
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

/// What a pod is to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The pod has this address. The text of `address` is the value of the pod's annotation.
    Give {
        /// Which pod.
        pod: PodUid,
        /// The address with its mask.
        address: Cidr,
    },
    /// The pod waits for this reason. Sent once, and again when the text of the reason changes; the address follows without a question.
    Wait {
        /// Which pod.
        pod: PodUid,
        /// The reason.
        why: WaitReason,
    },
    /// EC2 no longer has the pod's address on the interface. No other pod gets that address while this pod lives.
    Lost {
        /// Which pod.
        pod: PodUid,
        /// The address that is gone.
        address: Cidr,
    },
}

/// A call to EC2. One of each variant is under way at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Assign `count` blocks to the interface.
    Assign {
        /// Single addresses or prefixes.
        kind: Kind,
        /// How many: at least one.
        count: u32,
    },
    /// Give these blocks back to the subnet.
    GiveBack {
        /// Single addresses or prefixes.
        kind: Kind,
        /// Which, lowest first: at least one.
        blocks: Vec<Cidr>,
    },
    /// List what EC2 has on the interface.
    List,
}

/// Why a pod waits: the error kinds of VRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// Every address that the interface can have is used.
    AtCapacity,
    /// Every address that is not used cools down.
    Cooling,
    /// Every address that is not used is being assigned or given back.
    Creating,
    /// No address is ready yet.
    Empty,
    /// The subnet had no free /28 when EC2 was asked last.
    NoPrefix,
}

impl WaitReason {
    /// Returns after how many milliseconds VRC would ask again, which its event names; `None` at capacity, where it names none.
    pub const fn retry_ms(self) -> Option<u64> {
        match self {
            WaitReason::AtCapacity => None,
            WaitReason::Cooling => Some(20_000),
            WaitReason::Creating | WaitReason::Empty => Some(600),
            WaitReason::NoPrefix => Some(120_000),
        }
    }

    /// Returns whether both reasons have one text.
    pub(super) fn sounds_like(self, other: WaitReason) -> bool {
        let empty = |why| matches!(why, WaitReason::Creating | WaitReason::Empty);
        self == other || (empty(self) && empty(other))
    }
}

/// VRC's text for the event on the pod, with the resource `vpc.amazonaws.com/PrivateIPv4Address`.
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
