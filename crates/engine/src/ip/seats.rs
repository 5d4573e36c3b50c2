//! One block of an interface and the state of each of its addresses.

use core::net::Ipv4Addr;

use smallvec::SmallVec;

use super::absent::Absent;
use super::cidr::{Cidr, Kind};
use super::event::PodUid;

/// The state of one address.
#[derive(Clone, Debug)]
pub(super) enum Seat {
    /// Ready for a pod. `order` increases with the time at which addresses became ready.
    Warm { order: u64 },
    /// Released and resting until `until`. `order` increases with the time of the release.
    Cooling { until: u64, order: u64 },
    /// A pod has the address.
    Used(PodUid),
}

/// A single address or a prefix that EC2 has on the interface.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// The block as EC2 listed it.
    pub(super) cidr: Cidr,
    /// Whether the block is being given back, or was and the result is not known. All its addresses are
    /// warm then.
    pub(super) giving_back: bool,
    /// The state of each address.
    pub(super) seats: SmallVec<[Seat; 1]>,
}

impl Block {
    /// Returns the number of warm addresses that can be given to pods.
    pub(super) fn warm(&self) -> usize {
        let warm = |seat: &&Seat| matches!(seat, Seat::Warm { .. });
        if self.giving_back {
            0
        } else {
            self.seats.iter().filter(warm).count()
        }
    }

    /// Returns whether all addresses are warm, so that the block can be given back.
    pub(super) fn is_free(&self) -> bool {
        self.warm() == self.seats.len()
    }

    /// Returns whether a pod has an address of the block.
    pub(super) fn is_used(&self) -> bool {
        self.seats.iter().any(|seat| matches!(seat, Seat::Used(_)))
    }

    /// Returns the address number `index` in the form that pods get.
    pub(super) fn address(&self, index: usize) -> Cidr {
        let kind = if self.seats.len() == 1 {
            Kind::Address
        } else {
            Kind::Prefix
        };
        kind.address(self.cidr, index)
    }

    /// Returns the index of `ip`, if the block holds it.
    pub(super) fn index(&self, ip: Ipv4Addr) -> Option<usize> {
        let index = ip.to_bits().checked_sub(self.cidr.ip.to_bits())? as usize;
        (index < self.seats.len()).then_some(index)
    }

    /// Returns the index of the address that became warm first.
    pub(super) fn first_warm(&self) -> Option<usize> {
        let warm = self
            .seats
            .iter()
            .enumerate()
            .filter_map(|(index, seat)| match seat {
                Seat::Warm { order } => Some((*order, index)),
                _ => None,
            });
        warm.min().map(|(_, index)| index)
    }
}

/// How the addresses of a block start when the block is added to the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    /// The time in milliseconds.
    pub(super) now: u64,
    /// The time until which addresses rest whose last user is unknown; `None` if no pod can have had them.
    pub(super) rest_until: Option<u64>,
    /// Addresses that do not rest even so.
    pub(super) known_warm: &'a [Ipv4Addr],
}

impl Arrival<'_> {
    /// Returns the arrival of new blocks, whose addresses no pod had.
    pub(super) const fn new(now: u64) -> Self {
        Arrival {
            now,
            rest_until: None,
            known_warm: &[],
        }
    }

    /// Returns the state in which `ip` starts. `order` is its place among warm or resting addresses.
    pub(super) fn seat(&self, ip: Ipv4Addr, order: u64, absent: &mut Absent) -> Seat {
        if let Some(pod) = absent.reclaim(ip) {
            return Seat::Used(pod);
        }
        let unknown = self.rest_until.filter(|_| !self.known_warm.contains(&ip));
        // The later of the two: a rest that is known must not be cut short.
        match absent.resting(ip, self.now).max(unknown) {
            Some(until) => Seat::Cooling { until, order },
            None => Seat::Warm { order },
        }
    }
}
