//! What a cloud can do, and a simulated EC2 that does it.
//!
//! [`CloudProvider`] is the small door through which controllers reach any cloud, [`Addresses`] the one to the addresses of its nodes' network
//! interfaces, [`Account`] the one to what an AWS account has beside instances; [`catalogue`] holds
//! EC2's instance types with what a node of each offers pods; [`image`] knows what nodes of an image
//! family report; [`sim`] is the EC2 that answers when there is no AWS account.
//!
//! Invariant: nothing here speaks to Kubernetes. Time is tokio's, stamps come from [`Clock`], and
//! every random choice is seeded, so that a cluster's history repeats under paused time.

// An `expect` says which invariant holds; tests may do without.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod account;
mod addresses;
pub mod catalogue;
mod clock;
pub mod image;
mod machine;
mod message;
pub mod node_group;
mod parameters;
pub mod pattern;
mod placement;
mod provider;
mod refusals;
pub mod remote;
mod reservation;
mod resources;
pub mod sim;
mod speed;
mod template;

pub use account::{Account, AccountChange, AccountError, Instances};
pub use addresses::{
    AddressError, Addresses, InterfaceFacts, InterfaceFound, InterfaceId, MOST_AT_ONCE, SubnetFacts,
};
pub use clock::Clock;
pub use message::{Impairment, Message, MessageKind, StatusCheck};
pub use placement::{MOST_SPREAD, Placement, PlacementGroup, PlacementStrategy};
pub use provider::{
    BoxFuture, CapacityType, CloudError, CloudProvider, FleetError, Instance, InstanceId,
    InstanceState, Launch, LaunchClass, LaunchOption, LaunchRequest, Offer, Offering, Registration,
    SecurityGroup, SelectedImages, Shortage, Subnet, TagSelector, instance_id,
};
pub use refusals::{LONGEST_UNAVAILABLE, Refusals, UNAVAILABLE_FOR};
pub use reservation::{
    CapacityReservation, EXPIRING_BEFORE_END, MatchCriteria, RECLAIMED_BEFORE_END, Reservation,
    ReservationKind, ReservedShare,
};
pub use resources::{Resources, format_bytes, format_milli};
pub use speed::Speed;
pub use template::{
    KubeletSettings, MemoryOverhead, NodeTemplate, Reserved, TemplateError, Threshold,
    WindowsAddresses, default_volume_gib, family_of,
};
