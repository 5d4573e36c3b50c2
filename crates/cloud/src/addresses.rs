//! Pod addresses on the network interface of an instance: assigning, returning and listing them.
//!
//! An interface has *slots*: EC2's limit of IPv4 addresses per interface minus the primary address. A slot holds one single
//! address or one /28 prefix ([`Kind`]). [`Addresses`] is the interface to the calls AssignPrivateIpAddresses,
//! UnassignPrivateIpAddresses, DescribeNetworkInterfaces and DescribeSubnets; the simulated EC2 implements it in
//! `sim/addresses.rs`.
//!
//! Invariant: a call that returns an error other than [`AddressError::NoAnswer`] has changed nothing.

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

/// The primary network interface of an instance and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceFacts {
    /// Interface id.
    pub id: InterfaceId,
    /// Subnet id.
    pub subnet: Arc<str>,
    /// CIDR block of the subnet.
    pub subnet_cidr: Cidr,
    /// The instance's primary address, which no [`Listing`] contains.
    pub primary: Ipv4Addr,
    /// The number of single addresses or /28 prefixes that fit in addition to the primary address.
    pub slots: usize,
    /// Instance type, for example `m5.large`.
    pub instance_type: Arc<str>,
    /// Whether the instance is built on Nitro (bare metal included); only then can the interface have prefixes.
    pub nitro: bool,
}

/// The maximum number of instances per call (EC2: a filter has up to 200 values).
pub const MOST_AT_ONCE: usize = 200;

/// An instance's primary interface as [`Addresses::interfaces_of`] finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceFound {
    /// The instance that it belongs to.
    pub instance: InstanceId,
    /// The interface.
    pub facts: InterfaceFacts,
    /// Its blocks besides the primary address.
    pub listing: Listing,
}

/// A subnet and its free addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetFacts {
    /// CIDR block.
    pub cidr: Cidr,
    /// The number of free addresses.
    pub free_addresses: usize,
    /// The number of aligned /28 blocks without a used address. Fragmentation makes them fewer than a sixteenth of the free
    /// addresses.
    pub free_prefixes: usize,
}

/// The reason why a call about addresses failed, with EC2's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum AddressError {
    /// The subnet has fewer free addresses than requested.
    #[error(
        "InsufficientFreeAddressesInSubnet: The specified subnet does not have enough free addresses to satisfy the request."
    )]
    NoAddress,
    /// The subnet has enough free addresses, but fewer free /28 blocks than requested, because it is fragmented.
    #[error(
        "InsufficientCidrBlocks: The specified subnet does not have enough free cidr blocks to satisfy the request."
    )]
    NoPrefix,
    /// The subnet has fewer free addresses than the requested /28 blocks contain.
    #[error("InvalidParameterValue: There aren't sufficient free Ipv4 addresses or prefixes")]
    NoRoom,
    /// The interface has fewer free slots than requested.
    #[error("PrivateIpAddressLimitExceeded: Number of private addresses will exceed limit.")]
    NoSlot,
    /// The rate limit was exceeded.
    #[error("RequestLimitExceeded: Request limit exceeded.")]
    Throttled,
    /// The interface does not exist, for example because its instance was terminated.
    #[error("InvalidNetworkInterfaceID.NotFound: The networkInterface ID '{0}' does not exist")]
    NoInterface(InterfaceId),
    /// The subnet does not exist.
    #[error("InvalidSubnetID.NotFound: The subnet ID '{0}' does not exist")]
    NoSubnet(String),
    /// The request can never succeed.
    #[error("InvalidParameterValue: {0}")]
    Invalid(String),
    /// No response arrived, so EC2 may have carried out the request or may do so later.
    #[error("RequestTimeout: no answer came from EC2 within 30s")]
    NoAnswer,
}

impl AddressError {
    /// Returns the error as the address pool ([`mullion_engine::ip::Interface`]) distinguishes it.
    pub fn failure(&self) -> Failure {
        match self {
            Self::NoAddress => Failure::NoAddress,
            // For the pool the two are the same: no prefix can be had for now.
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

/// A cloud that assigns pod addresses to network interfaces.
pub trait Addresses: fmt::Debug + Send + Sync {
    /// Assigns `count` single addresses (each with the subnet's prefix length) or /28 prefixes to an interface and returns
    /// them. They may be fewer than `count`, but at least one.
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

    /// Returns blocks to the subnet.
    ///
    /// # Errors
    /// [`AddressError::Invalid`] when one of them is not on the interface; then all stay.
    fn give_back<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        blocks: &'a [Cidr],
    ) -> BoxFuture<'a, Result<(), AddressError>>;

    /// Returns the blocks on an interface besides its primary address. A recent change may be missing
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
    /// [`AddressError::Throttled`] or [`AddressError::NoAnswer`]; then none of the interfaces is known.
    fn interfaces_of<'a>(
        &'a self,
        instances: &'a [InstanceId],
    ) -> BoxFuture<'a, Result<Vec<InterfaceFound>, AddressError>>;

    /// Returns a subnet and its free addresses.
    ///
    /// # Errors
    /// [`AddressError::NoSubnet`] if no subnet has this id.
    fn subnet<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<SubnetFacts, AddressError>>;
}
