//! One block of an interface and the state of each of its addresses.

use core::net::Ipv4Addr;

use smallvec::SmallVec;

use super::absent::Absent;
use super::cidr::{Cidr, Kind};
use super::event::PodUid;

/// The state of one address.
#[derive(Clone, Debug)]
pub(super) enum AddressState {
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
    pub(super) addresses: SmallVec<[AddressState; 1]>,
}

impl Block {
    /// Returns the number of warm addresses that can be given to pods.
    pub(super) fn warm(&self) -> usize {
        let warm = |state: &&AddressState| matches!(state, AddressState::Warm { .. });
        if self.giving_back {
            0
        } else {
            self.addresses.iter().filter(warm).count()
        }
    }

    /// Returns whether all addresses are warm, so that the block can be given back.
    pub(super) fn is_free(&self) -> bool {
        self.warm() == self.addresses.len()
    }

    /// Returns whether a pod has an address of the block.
    pub(super) fn is_used(&self) -> bool {
        self.addresses
            .iter()
            .any(|state| matches!(state, AddressState::Used(_)))
    }

    /// Returns the address number `index` in the form that pods get.
    pub(super) fn address(&self, index: usize) -> Cidr {
        let kind = if self.addresses.len() == 1 {
            Kind::Address
        } else {
            Kind::Prefix
        };
        kind.address(self.cidr, index)
    }

    /// Returns the index of `ip`, if the block holds it.
    pub(super) fn index(&self, ip: Ipv4Addr) -> Option<usize> {
        let index = ip.to_bits().checked_sub(self.cidr.ip.to_bits())? as usize;
        (index < self.addresses.len()).then_some(index)
    }

    /// Returns the index of the address that became warm first.
    pub(super) fn first_warm(&self) -> Option<usize> {
        let warm = self
            .addresses
            .iter()
            .enumerate()
            .filter_map(|(index, state)| match state {
                AddressState::Warm { order } => Some((*order, index)),
                _ => None,
            });
        warm.min().map(|(_, index)| index)
    }
}

/// How the addresses of a block start when the block is added to the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockStart<'a> {
    /// The time in milliseconds.
    pub(super) now: u64,
    /// The time until which addresses rest whose last user is unknown; `None` if no pod can have had them.
    pub(super) rest_until: Option<u64>,
    /// Addresses that do not rest even so.
    pub(super) known_warm: &'a [Ipv4Addr],
}

impl BlockStart<'_> {
    /// Returns the start of new blocks, whose addresses no pod had.
    pub(super) const fn new(now: u64) -> Self {
        BlockStart {
            now,
            rest_until: None,
            known_warm: &[],
        }
    }

    /// Returns the state in which `ip` starts. `order` is its place among warm or resting addresses.
    pub(super) fn initial_state(
        &self,
        ip: Ipv4Addr,
        order: u64,
        absent: &mut Absent,
    ) -> AddressState {
        if let Some(pod) = absent.reclaim(ip) {
            return AddressState::Used(pod);
        }
        let unknown = self.rest_until.filter(|_| !self.known_warm.contains(&ip));
        // The later of the two: a rest that is known must not be cut short.
        match absent.resting(ip, self.now).max(unknown) {
            Some(until) => AddressState::Cooling { until, order },
            None => AddressState::Warm { order },
        }
    }
}
