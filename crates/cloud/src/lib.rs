//! The interface to clouds, and a simulated EC2 that implements it.
//!
//! Controllers use any cloud through [`CloudProvider`], the addresses of its nodes' network interfaces through [`Addresses`], and the rest
//! of an AWS account through [`Account`]. [`catalogue`] has EC2's instance types and the resources of their nodes, [`image`] has the values
//! that nodes of an image family report, and [`sim`] is the EC2 that is used without an AWS account.
//!
//! Invariant: nothing here uses Kubernetes' API. Time is tokio's, timestamps are from [`Clock`], and every random choice has a seed, so
//! that the history of a cluster repeats under paused time.

// An `expect` names the invariant that holds; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod account;
mod addresses;
pub mod catalogue;
mod clock;
pub mod image;
mod image_volumes;
mod instance;
mod launch;
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
mod tenancy;

pub use account::{Account, AccountChange, AccountError, Instances};
pub use addresses::{
    AddressError, Addresses, InterfaceFacts, InterfaceFound, InterfaceId, MOST_AT_ONCE, SubnetFacts,
};
pub use clock::Clock;
pub use image_volumes::ImageVolume;
pub use instance::{Instance, InstanceState};
pub use launch::{
    DeniedCall, FleetError, Launch, LaunchCall, LaunchClass, LaunchImage, LaunchOption,
    LaunchRequest, Registration, Shortage,
};
pub use message::{Impairment, Message, MessageKind, StatusCheck};
pub use placement::{MOST_SPREAD, Placement, PlacementGroup, PlacementStrategy};
pub use provider::{
    BoxFuture, CapacityType, CloudError, CloudProvider, InstanceId, Offer, Offering, SecurityGroup,
    SelectedImages, Subnet, TagSelector, ZonalShift, instance_id, subnet_for_launch,
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
pub use tenancy::Tenancy;
