//! One subnet: its used addresses, and its free aligned /28 blocks.
//!
//! Invariant: an address is used at most once, alone or as part of a /28 block. The first four addresses and the last one are reserved, so
//! the first and the last block are never free. `free_addresses` of the [`Subnet`] is the number of unused addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use mullion_engine::ip::{Cidr, Kind, PREFIX_SIZE};

use super::Random;
use crate::Subnet;

/// AWS reserves the first four addresses (network, router, DNS, future use) and the last one (broadcast).
const RESERVED_HEAD: u32 = 4;
const RESERVED_TAIL: u32 = 1;
/// The number of addresses in a /28 block.
const BLOCK: u32 = PREFIX_SIZE as u32;

/// The addresses of a subnet, each as its distance from the first one.
pub(super) struct SubnetState {
    pub(super) subnet: Subnet,
    base: u32,
    bits: u8,
    /// Addresses that are used one by one.
    used: BTreeSet<u32>,
    /// The number of addresses that are used one by one in each /28 block that has any.
    crowded: BTreeMap<u32, u32>,
    /// /28 blocks that are used as a whole.
    prefixes: BTreeSet<u32>,
}

impl SubnetState {
    /// Creates a subnet without used addresses; `subnet` has its id, zone and tags.
    pub(super) fn new(mut subnet: Subnet, base: Ipv4Addr, bits: u8) -> Self {
        let hosts = 1_u32 << (32 - bits);
        subnet.cidr = format!("{base}/{bits}");
        subnet.free_addresses = (hosts - RESERVED_HEAD - RESERVED_TAIL) as usize;
        Self {
            subnet,
            base: base.to_bits(),
            bits,
            used: BTreeSet::new(),
            crowded: BTreeMap::new(),
            prefixes: BTreeSet::new(),
        }
    }

    pub(super) fn cidr(&self) -> Cidr {
        Cidr::new(Ipv4Addr::from_bits(self.base), self.bits)
    }

    fn hosts(&self) -> u32 {
        1 << (32 - self.bits)
    }

    fn blocks(&self) -> u32 {
        self.hosts() / BLOCK
    }

    /// Returns the number of /28 blocks without used addresses.
    pub(super) fn free_prefixes(&self) -> usize {
        // The first and the last block have reserved addresses, so they can never be prefixes.
        let inner = self.blocks().saturating_sub(2) as usize;
        let last = self.blocks() - 1;
        let is_inner = |block: &&u32| **block != 0 && **block != last;
        let crowded = self.crowded.keys().filter(is_inner).count();
        // A block is never in both sets: a prefix needs a block without used addresses, and its addresses
        // cannot be taken singly.
        inner - crowded - self.prefixes.len()
    }

    /// Allocates a random free address or /28 block and returns its first address, or `None` if there is none.
    pub(super) fn take(&mut self, kind: Kind, random: &mut Random) -> Option<Ipv4Addr> {
        let number = match kind {
            Kind::Address => self.free_address(random)?,
            Kind::Prefix => self.free_block(random)?,
        };
        self.mark(kind, number);
        Some(self.first(kind, number))
    }

    /// Allocates and returns the highest address that is not reserved, as the control plane's interfaces do.
    pub(super) fn take_last(&mut self) -> Ipv4Addr {
        let host = self.hosts() - RESERVED_TAIL - 1;
        // Asked a second time, the control plane already has this address.
        if self.is_free(Kind::Address, host) {
            self.mark(Kind::Address, host);
        }
        self.first(Kind::Address, host)
    }

    /// Marks exactly this address or block as used; returns false if it is used or reserved.
    pub(super) fn take_back(&mut self, kind: Kind, first: Ipv4Addr) -> bool {
        let taken = self
            .number(kind, first)
            .filter(|number| self.is_free(kind, *number));
        if let Some(number) = taken {
            self.mark(kind, number);
        }
        taken.is_some()
    }

    /// Frees an address or block; one that is not used stays as it is.
    pub(super) fn give_back(&mut self, kind: Kind, first: Ipv4Addr) {
        let Some(number) = self.number(kind, first) else {
            return;
        };
        let freed = match kind {
            Kind::Address => {
                let freed = self.used.remove(&number);
                if freed {
                    self.leave_block(number / BLOCK);
                }
                freed
            }
            Kind::Prefix => self.prefixes.remove(&number),
        };
        self.subnet.free_addresses += if freed { kind.size() } else { 0 };
    }

    /// Records that a /28 block has one used address less.
    fn leave_block(&mut self, block: u32) {
        if let Some(count) = self.crowded.get_mut(&block) {
            *count -= 1;
            if *count == 0 {
                self.crowded.remove(&block);
            }
        }
    }

    fn mark(&mut self, kind: Kind, number: u32) {
        match kind {
            Kind::Address => {
                self.used.insert(number);
                *self.crowded.entry(number / BLOCK).or_default() += 1;
            }
            Kind::Prefix => {
                self.prefixes.insert(number);
            }
        }
        self.subnet.free_addresses -= kind.size();
    }

    /// Returns the number of the address or block that starts at `first`, if it lies in the subnet and is aligned.
    fn number(&self, kind: Kind, first: Ipv4Addr) -> Option<u32> {
        let host = first.to_bits().checked_sub(self.base)?;
        let size = kind.size() as u32;
        (host < self.hosts() && host.is_multiple_of(size)).then_some(host / size)
    }

    fn first(&self, kind: Kind, number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base + number * kind.size() as u32)
    }

    fn is_free(&self, kind: Kind, number: u32) -> bool {
        match kind {
            Kind::Address => {
                (RESERVED_HEAD..self.hosts() - RESERVED_TAIL).contains(&number)
                    && !self.used.contains(&number)
                    && !self.prefixes.contains(&(number / BLOCK))
            }
            Kind::Prefix => {
                (1..self.blocks() - 1).contains(&number)
                    && !self.crowded.contains_key(&number)
                    && !self.prefixes.contains(&number)
            }
        }
    }

    /// Returns a free address: a random one, then the next free one above it, wrapping around.
    fn free_address(&self, random: &mut Random) -> Option<u32> {
        if self.subnet.free_addresses == 0 {
            return None;
        }
        let usable = self.hosts() - RESERVED_HEAD - RESERVED_TAIL;
        let start = random.below(u64::from(usable)) as u32;
        (0..usable)
            .map(|step| RESERVED_HEAD + (start + step) % usable)
            .find(|host| self.is_free(Kind::Address, *host))
    }

    /// Returns a free /28 block: a random one, then the next free one above it, wrapping around.
    fn free_block(&self, random: &mut Random) -> Option<u32> {
        if self.free_prefixes() == 0 {
            return None;
        }
        let blocks = self.blocks();
        let start = random.below(u64::from(blocks)) as u32;
        (0..blocks)
            .map(|step| (start + step) % blocks)
            .find(|block| self.is_free(Kind::Prefix, *block))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn subnet(bits: u8) -> (SubnetState, Random) {
        let subnet = Subnet {
            id: Arc::from("subnet-1"),
            zone: Arc::from("us-west-2a"),
            zone_id: Arc::from("usw2-az1"),
            cidr: String::new(),
            free_addresses: 0,
            tags: BTreeMap::new(),
        };
        let state = SubnetState::new(subnet, Ipv4Addr::new(10, 0, 4, 0), bits);
        (state, Random::new(3))
    }

    #[test]
    fn the_first_and_the_last_block_hold_reserved_addresses_and_are_never_given_whole() {
        let (mut subnet, mut random) = subnet(24);
        assert_eq!(subnet.subnet.cidr, "10.0.4.0/24");
        assert_eq!(subnet.subnet.free_addresses, 251);
        assert_eq!(subnet.free_prefixes(), 14);
        let mut taken = BTreeSet::new();
        while let Some(first) = subnet.take(Kind::Prefix, &mut random) {
            assert!(first.to_bits().is_multiple_of(16) && taken.insert(first));
        }
        assert_eq!(taken.len(), 14);
        // The remaining addresses are those of the two outer blocks that are not reserved.
        assert_eq!(subnet.subnet.free_addresses, 12 + 15);
        let mut last = BTreeSet::new();
        last.extend(std::iter::from_fn(|| {
            subnet.take(Kind::Address, &mut random)
        }));
        assert_eq!(last.first(), Some(&Ipv4Addr::new(10, 0, 4, 4)));
        assert_eq!(last.last(), Some(&Ipv4Addr::new(10, 0, 4, 254)));
        assert_eq!(last.len(), 27);
    }

    #[test]
    fn one_address_in_each_block_leaves_no_prefix_although_most_addresses_are_free() {
        let (mut subnet, mut random) = subnet(24);
        for block in 1..15 {
            let address = Ipv4Addr::new(10, 0, 4, 16 * block + 5);
            assert!(subnet.take_back(Kind::Address, address));
        }
        assert_eq!(subnet.subnet.free_addresses, 251 - 14);
        assert_eq!(subnet.free_prefixes(), 0);
        assert_eq!(subnet.take(Kind::Prefix, &mut random), None);
        subnet.give_back(Kind::Address, Ipv4Addr::new(10, 0, 4, 16 * 7 + 5));
        let freed = Ipv4Addr::new(10, 0, 4, 16 * 7);
        assert_eq!(subnet.take(Kind::Prefix, &mut random), Some(freed));
    }

    #[test]
    fn an_address_of_a_taken_block_and_the_block_of_a_taken_address_cannot_be_taken() {
        let (mut subnet, _) = subnet(24);
        let block = Ipv4Addr::new(10, 0, 4, 32);
        assert!(subnet.take_back(Kind::Prefix, block));
        assert!(!subnet.take_back(Kind::Prefix, block));
        assert!(!subnet.take_back(Kind::Address, Ipv4Addr::new(10, 0, 4, 40)));
        assert!(!subnet.take_back(Kind::Prefix, Ipv4Addr::new(10, 0, 4, 40)));
        assert!(subnet.take_back(Kind::Address, Ipv4Addr::new(10, 0, 4, 48)));
        assert!(!subnet.take_back(Kind::Prefix, Ipv4Addr::new(10, 0, 4, 48)));
        for reserved in [0, 3, 255] {
            assert!(!subnet.take_back(Kind::Address, Ipv4Addr::new(10, 0, 4, reserved)));
        }
        assert!(!subnet.take_back(Kind::Address, Ipv4Addr::new(10, 0, 5, 9)));
        subnet.give_back(Kind::Address, Ipv4Addr::new(10, 0, 4, 40));
        assert_eq!(subnet.subnet.free_addresses, 251 - 16 - 1);
    }

    #[test]
    fn the_smallest_subnet_has_eleven_addresses_and_no_prefix() {
        let (mut subnet, mut random) = subnet(28);
        assert_eq!(subnet.free_prefixes(), 0);
        assert_eq!(subnet.take_last(), Ipv4Addr::new(10, 0, 4, 14));
        assert_eq!(subnet.take(Kind::Prefix, &mut random), None);
        let left = std::iter::from_fn(|| subnet.take(Kind::Address, &mut random));
        assert_eq!(left.count(), 10);
    }
}
