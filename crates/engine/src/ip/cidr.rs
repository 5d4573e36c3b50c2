//! IPv4 addresses with a mask, and the two kinds of blocks that a slot of an interface can hold.

use core::net::Ipv4Addr;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The number of addresses in a /28 prefix (VRC: `NumIPv4AddrPerPrefix`).
pub const PREFIX_SIZE: usize = 16;

/// An IPv4 address with the length of its mask, such as `10.0.0.51/16`, or a prefix such as `10.1.0.112/28`.
///
/// The mask belongs to the value, so an address has the same form when it is assigned, given to a pod and given back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cidr {
    /// The address, or the first address of a prefix.
    pub ip: Ipv4Addr,
    /// The length of the mask, 0 to 32.
    pub bits: u8,
}

impl Cidr {
    /// Returns the block that starts at `ip` with a mask of `bits`.
    pub const fn new(ip: Ipv4Addr, bits: u8) -> Self {
        Cidr { ip, bits }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a text that is not an IPv4 address with a mask.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not an IPv4 address with a mask: expected for example 10.0.0.51/16")]
pub struct CidrError(String);

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || CidrError(text.to_owned());
        let (ip, bits) = text.split_once('/').ok_or_else(error)?;
        let ip = ip.parse().map_err(|_| error())?;
        // `parse` alone would accept a sign.
        let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        match bits.parse() {
            Ok(bits) if digits && bits <= 32 => Ok(Cidr { ip, bits }),
            _ => Err(error()),
        }
    }
}

/// The kind of block in a slot of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Kind {
    /// A single address (EC2: secondary private address). Pods get it with the mask of the subnet.
    Address,
    /// A /28 prefix. Pods get one of its 16 addresses, each with the mask /32.
    Prefix,
}

impl Kind {
    /// Both kinds.
    pub const ALL: [Kind; 2] = [Kind::Address, Kind::Prefix];

    /// Returns how many addresses one slot of this kind holds.
    pub const fn size(self) -> usize {
        match self {
            Kind::Address => 1,
            Kind::Prefix => PREFIX_SIZE,
        }
    }

    /// Returns the other kind, which shares the slots.
    pub const fn other(self) -> Kind {
        match self {
            Kind::Address => Kind::Prefix,
            Kind::Prefix => Kind::Address,
        }
    }

    /// Returns whether `block` is one block of this kind: any address, or an aligned /28.
    pub fn accepts(self, block: Cidr) -> bool {
        match self {
            Kind::Address => block.bits <= 32,
            Kind::Prefix => {
                block.bits == 28 && block.ip.to_bits().is_multiple_of(PREFIX_SIZE as u32)
            }
        }
    }

    /// Returns the start of the block of this kind that would hold `ip`.
    pub(super) fn base(self, ip: Ipv4Addr) -> Ipv4Addr {
        Ipv4Addr::from_bits(ip.to_bits() - ip.to_bits() % self.size() as u32)
    }

    /// Returns the address number `index` of `block`, in the form that pods get.
    pub(super) fn address(self, block: Cidr, index: usize) -> Cidr {
        match self {
            Kind::Address => block,
            Kind::Prefix => Cidr::new(Ipv4Addr::from_bits(block.ip.to_bits() + index as u32), 32),
        }
    }
}
