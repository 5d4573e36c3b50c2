//! Pod addresses on the network interface of an instance: what EC2 assigns, takes back and lists.
//!
//! An interface has *slots*: EC2's limit of IPv4 addresses per interface less the primary address. A slot holds one single address or one
//! /28 prefix ([`Kind`]). [`Addresses`] is the door to the calls AssignPrivateIpAddresses, UnassignPrivateIpAddresses,
//! DescribeNetworkInterfaces and DescribeSubnets; the simulated EC2 implements it in `sim/addresses.rs`.
//!
//! Invariant: a call that ends in an error other than [`AddressError::NoAnswer`] has changed nothing.

use std::{fmt, net::Ipv4Addr, sync::Arc};

use mullion_engine::ip::{Cidr, Failure, Kind, Listing};

use crate::{BoxFuture, InstanceId};
use serde::{Deserialize, Serialize};

/// EC2's id of a network interface, `eni-0123456789abcdef0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InterfaceId(pub Arc<str>);

impl fmt::Display for InterfaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The primary network interface of an instance, and what it can hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceFacts {
    /// Interface id.
    pub id: InterfaceId,
    /// Subnet id.
    pub subnet: Arc<str>,
    /// CIDR block of the subnet.
    pub subnet_cidr: Cidr,
    /// The instance's own address, which is on no [`Listing`].
    pub primary: Ipv4Addr,
    /// How many single addresses or /28 prefixes fit beside the primary address.
    pub slots: usize,
    /// Instance type, for example `m5.large`.
    pub instance_type: Arc<str>,
    /// Whether the instance is built on Nitro (bare metal included): only there can an interface have prefixes.
    pub nitro: bool,
}

/// How many instances one call may ask about (EC2: a filter has up to 200 values).
pub const MOST_AT_ONCE: usize = 200;

/// An instance's primary interface as [`Addresses::interfaces_of`] finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceFound {
    /// Whose it is.
    pub instance: InstanceId,
    /// The interface.
    pub facts: InterfaceFacts,
    /// What is on it beside the primary address.
    pub listing: Listing,
}

/// A subnet and what is left of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetFacts {
    /// CIDR block.
    pub cidr: Cidr,
    /// Addresses left.
    pub free_addresses: usize,
    /// Aligned /28 blocks of which not one address is taken. Fragmentation makes them fewer than a sixteenth of the free addresses.
    pub free_prefixes: usize,
}

/// Why a call about addresses failed, in EC2's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum AddressError {
    /// The subnet has fewer free addresses than were asked for.
    #[error(
        "InsufficientFreeAddressesInSubnet: The specified subnet does not have enough free addresses to satisfy the request."
    )]
    NoAddress,
    /// The subnet has enough free addresses, but fewer free /28 blocks than were asked for: it is fragmented.
    #[error(
        "InsufficientCidrBlocks: The specified subnet does not have enough free cidr blocks to satisfy the request."
    )]
    NoPrefix,
    /// The subnet has fewer free addresses than the /28 blocks that were asked for hold.
    #[error("InvalidParameterValue: There aren't sufficient free Ipv4 addresses or prefixes")]
    NoRoom,
    /// The interface has fewer free slots than were asked for.
    #[error("PrivateIpAddressLimitExceeded: Number of private addresses will exceed limit.")]
    NoSlot,
    /// Too many calls.
    #[error("RequestLimitExceeded: Request limit exceeded.")]
    Throttled,
    /// No such interface, for example because its instance was terminated.
    #[error("InvalidNetworkInterfaceID.NotFound: The networkInterface ID '{0}' does not exist")]
    NoInterface(InterfaceId),
    /// No such subnet.
    #[error("InvalidSubnetID.NotFound: The subnet ID '{0}' does not exist")]
    NoSubnet(String),
    /// A request that can never succeed.
    #[error("InvalidParameterValue: {0}")]
    Invalid(String),
    /// The answer was lost: EC2 may have done what it was asked, or may do it yet.
    #[error("RequestTimeout: no answer came from EC2 within 30s")]
    NoAnswer,
}

impl AddressError {
    /// Returns what the error means to an address pool ([`mullion_engine::ip::Interface`]).
    pub fn failure(&self) -> Failure {
        match self {
            Self::NoAddress => Failure::NoAddress,
            Self::NoPrefix | Self::NoRoom => Failure::NoPrefix,
            Self::Throttled => Failure::Throttled,
            Self::NoAnswer => Failure::NoAnswer,
            Self::NoSlot | Self::NoInterface(_) | Self::NoSubnet(_) | Self::Invalid(_) => {
                Failure::Other
            }
        }
    }

    /// Returns whether the interface or subnet is gone, so that repeating the call is pointless.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NoInterface(_) | Self::NoSubnet(_))
    }
}

/// A cloud that puts pod addresses on network interfaces.
pub trait Addresses: fmt::Debug + Send + Sync {
    /// Assigns `count` single addresses (each with the mask of the subnet) or /28 prefixes to an interface and returns them. They may be
    /// fewer, but at least one.
    ///
    /// # Errors
    /// [`AddressError::NoSlot`], [`AddressError::NoAddress`], [`AddressError::NoPrefix`] or [`AddressError::NoRoom`] when fewer than
    /// `count` can be had; then none is assigned. [`AddressError::Invalid`] for prefixes where [`InterfaceFacts::nitro`] is false.
    fn assign<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        count: u32,
    ) -> BoxFuture<'a, Result<Vec<Cidr>, AddressError>>;

    /// Gives blocks back to the subnet.
    ///
    /// # Errors
    /// [`AddressError::Invalid`] when one of them is not on the interface; then all stay.
    fn give_back<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        blocks: &'a [Cidr],
    ) -> BoxFuture<'a, Result<(), AddressError>>;

    /// Returns what is on an interface beside its primary address. A recent change may be missing
    /// ([`mullion_engine::ip::SETTLE_MS`]).
    ///
    /// # Errors
    /// [`AddressError::NoInterface`] when its instance was terminated.
    fn list<'a>(
        &'a self,
        interface: &'a InterfaceId,
    ) -> BoxFuture<'a, Result<Listing, AddressError>>;

    /// Returns the primary interfaces of up to [`MOST_AT_ONCE`] instances with what is on them, in one call. Instances that were
    /// terminated or never existed are left out. As in [`Addresses::list`], a recent change may be missing.
    ///
    /// # Errors
    /// [`AddressError::Throttled`] or [`AddressError::NoAnswer`]: nothing is known of any of them.
    fn interfaces_of<'a>(
        &'a self,
        instances: &'a [InstanceId],
    ) -> BoxFuture<'a, Result<Vec<InterfaceFound>, AddressError>>;

    /// Returns a subnet and what is left of it.
    ///
    /// # Errors
    /// [`AddressError::NoSubnet`] when there is none of this id.
    fn subnet<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<SubnetFacts, AddressError>>;
}
