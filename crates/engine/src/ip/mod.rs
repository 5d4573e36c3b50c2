//! The addresses of a Windows node's network interface: which pod gets which address, and what to request from EC2.
//!
//! An EC2 interface has *slots*. A slot holds one single address or one /28 prefix of 16 addresses. [`Interface`] has one
//! [`Pool`] for each kind, which share the slots, and a list of waiting pods. It is a state machine without a clock and
//! without I/O: the caller passes every [`Event`] together with the time in milliseconds, sends the [`Answer`]s to the pods,
//! makes the [`Call`]s that [`Interface::next_call`] returns, and reports the result of each call as another event.
//!
//! ```
//! use mullion_engine::ip::{Answer, Call, Event, Interface, Kind, PodUid, Targets};
//!
//! let mut interface = Interface::new(9, Kind::Address, Targets::ADDRESSES);
//! let mut answers = Vec::new();
//! interface.handle(Event::PodNeeds(PodUid::from("web")), 0, &mut answers);
//! let call = interface.next_call(0);
//! assert_eq!(call, Some(Call::Assign { kind: Kind::Address, count: 3 }));
//! let assigned = ["10.0.0.5/20", "10.0.0.6/20", "10.0.0.7/20"].map(|text| text.parse().unwrap());
//! interface.handle(Event::Created(assigned.to_vec()), 80, &mut answers);
//! assert_eq!(answers.last(), Some(&Answer::Give { pod: PodUid::from("web"), address: assigned[0] }));
//! ```
//!
//! The map:
//! - [`Settings`]: the contents of the ConfigMap `kube-system/amazon-vpc-cni`; [`Targets`]: how many addresses a pool keeps
//!   ready.
//! - [`Pool`]: the addresses of one kind and the formulas of amazon-vpc-resource-controller-k8s.
//! - [`Interface`]: both pools, the waiting pods, the calls in progress, retries and listings.
//!
//! Invariants: an address is in exactly one place, because it has one entry in its block and the entry has one state; counts are computed
//! from the states; a released address rests for [`COOL_DOWN_MS`] before another pod gets it.

mod absent;
mod backoff;
mod block;
mod calls;
mod cidr;
mod event;
mod interface;
mod listing;
mod pool;
mod restore;
mod settings;
mod targets;

pub use absent::Absent;
pub use calls::CallPriority;
pub use cidr::{Cidr, CidrError, Kind, PREFIX_SIZE};
pub use event::{Answer, Call, Event, Failure, Listing, PodUid, WaitReason};
pub use interface::{Interface, Waiting};
pub use pool::{Pool, Refusal, Step};
pub use restore::RestartState;
pub use settings::{Settings, Unreadable};
pub use targets::{Counts, Goal, Targets};

/// How long a released address rests before another pod may get it (VRC: `config.CoolDownPeriod`).
pub const COOL_DOWN_MS: u64 = 30_000;

/// How long a listing of EC2 may miss a change: a change made less than this before a listing began is checked again later.
/// It is shorter than [`COOL_DOWN_MS`], so that addresses found at a restart are confirmed before pods get them.
pub const SETTLE_MS: u64 = 20_000;
