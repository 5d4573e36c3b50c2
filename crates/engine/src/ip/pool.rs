//! The addresses of one kind on one interface: which pod has which address, and what to change to meet the targets.
//!
//! A pool has the blocks that EC2 has on the interface, a state for each address, and the number of requested blocks;
//! everything else is computed. Formulas, the order of checks and choices follow VRC's pkg/pool/pool.go; where VRC takes any
//! address, a pool takes the lowest. A pool names the step it wants next. It does not limit itself to one call at a time;
//! [`Interface`](super::Interface) does.

use core::net::Ipv4Addr;

use smallvec::SmallVec;
use thiserror::Error;

use super::absent::Absent;
use super::block::{AddressState, Block, BlockStart};
use super::cidr::{Cidr, Kind};
use super::event::{Failure, PodUid, WaitReason};
use super::targets::{Counts, Goal};

/// Why a pod does not get an address, or cannot release one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// The pod has to wait.
    #[error("{0}")]
    Waits(WaitReason),
    /// The pod has an address already.
    #[error("resource is already assigned to the requestor")]
    AlreadyAssigned,
    /// The pod has no address of this pool.
    #[error("requested resource doesn't exist in used pool")]
    NotAssigned,
    /// The pod has another address.
    #[error("resource doesn't belong to the requestor")]
    NotYours,
}

/// The step that a pool wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// List what EC2 has: a call failed.
    List,
    /// Assign this many blocks.
    Create(u32),
    /// Give these blocks back.
    GiveBack(Vec<Cidr>),
}

/// The addresses of one kind.
#[derive(Clone, Debug)]
pub struct Pool {
    kind: Kind,
    /// The blocks, sorted by address.
    blocks: Vec<Block>,
    /// The number of requested blocks without an answer.
    creating: u32,
    must_list: bool,
    /// Whether EC2's last answer was that the subnet has no free prefix.
    no_prefix: bool,
    order: u64,
}

impl Pool {
    /// Creates a pool without addresses.
    pub fn new(kind: Kind) -> Self {
        Pool {
            kind,
            blocks: Vec::new(),
            creating: 0,
            must_list: false,
            no_prefix: false,
            order: 0,
        }
    }

    /// Returns the kind of its blocks.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Counts the addresses by state.
    pub fn counts(&self) -> Counts {
        let size = self.kind.size();
        let mut counts = Counts {
            creating: self.creating as usize * size,
            ..Counts::default()
        };
        for block in &self.blocks {
            // None of its addresses can be given to a pod, whatever their states say.
            if block.giving_back {
                counts.deleting += size;
                continue;
            }
            let before = counts.warm;
            for state in &block.addresses {
                match state {
                    AddressState::Warm { .. } => counts.warm += 1,
                    AddressState::Cooling { .. } => counts.cooling += 1,
                    AddressState::Used(_) => counts.used += 1,
                }
            }
            if self.kind == Kind::Prefix && counts.warm - before == size {
                counts.free_prefixes += 1;
            }
        }
        counts
    }

    /// Returns the number of slots that the pool holds or has requested.
    pub fn slots(&self) -> usize {
        self.blocks.len() + self.creating as usize
    }

    /// Returns the number of slots with an address that a pod has.
    pub fn used_slots(&self) -> usize {
        self.blocks.iter().filter(|block| block.is_used()).count()
    }

    /// Returns whether the pool needs a listing, because a call failed since the last one.
    pub fn must_list(&self) -> bool {
        self.must_list
    }

    /// Returns whether EC2's last answer was that the subnet has no free prefix.
    pub fn no_prefix(&self) -> bool {
        self.no_prefix
    }

    /// Returns the blocks, and whether each is being given back.
    pub fn blocks(&self) -> impl Iterator<Item = (Cidr, bool)> {
        self.blocks
            .iter()
            .map(|block| (block.cidr, block.giving_back))
    }

    /// Returns the block that starts at `ip`.
    pub(super) fn block(&self, ip: Ipv4Addr) -> Option<Cidr> {
        let at = self.find(ip).ok()?;
        Some(self.blocks[at].cidr)
    }

    /// Returns whether the block that starts at `ip` is being given back.
    pub(super) fn is_giving_back(&self, ip: Ipv4Addr) -> bool {
        self.find(ip).is_ok_and(|at| self.blocks[at].giving_back)
    }

    /// Returns the pods that have an address, with the address.
    pub fn used(&self) -> impl Iterator<Item = (&PodUid, Cidr)> {
        self.addresses().filter_map(|(address, state)| match state {
            AddressState::Used(pod) => Some((pod, address)),
            _ => None,
        })
    }

    /// Returns the addresses that are ready for pods.
    pub fn warm(&self) -> impl Iterator<Item = Cidr> {
        self.addresses().filter_map(|(address, state)| match state {
            AddressState::Warm { .. } => Some(address),
            _ => None,
        })
    }

    /// Returns the addresses of all blocks that are not being given back.
    fn addresses(&self) -> impl Iterator<Item = (Cidr, &AddressState)> {
        let blocks = self.blocks.iter().filter(|block| !block.giving_back);
        blocks.flat_map(|block| {
            let addresses = block.addresses.iter().enumerate();
            addresses.map(|(index, state)| (block.address(index), state))
        })
    }

    /// Returns the address that `pod` has.
    pub fn address_of(&self, pod: &PodUid) -> Option<Cidr> {
        let (block, index) = self.entry_of(pod)?;
        Some(self.blocks[block].address(index))
    }

    /// Gives `pod` an address: the lowest warm one or, with prefixes, the one that became warm first in the prefix with the
    /// fewest warm addresses. The pool may have `capacity` slots; the other pool will free `freeing` more soon.
    pub fn take(&mut self, pod: &PodUid, capacity: usize, freeing: usize) -> Result<Cidr, Refusal> {
        if self.entry_of(pod).is_some() {
            return Err(Refusal::AlreadyAssigned);
        }
        self.check(capacity, freeing).map_err(Refusal::Waits)?;
        // The fullest prefix is used first, so that other prefixes become free and can be given back.
        let with_warm = |(at, block): (usize, &Block)| Some((block.warm(), at)).filter(|x| x.0 > 0);
        let fewest = self.blocks.iter().enumerate().filter_map(with_warm).min();
        let empty = Refusal::Waits(WaitReason::Empty);
        let block = &mut self.blocks[fewest.ok_or(empty)?.1];
        let index = block.first_warm().ok_or(empty)?;
        block.addresses[index] = AddressState::Used(pod.clone());
        Ok(block.address(index))
    }

    /// Checks whether there is a warm address; otherwise returns the reason why a pod has to wait.
    pub fn check(&self, capacity: usize, freeing: usize) -> Result<(), WaitReason> {
        let counts = self.counts();
        let size = self.kind.size();
        // The order of these checks is VRC's, because each reason has its own text and retry time.
        let all = (capacity + freeing) * size;
        // Slots that the other pool still holds cannot be used yet, so the pod waits as for a creation.
        let taken = counts.used + freeing * size;
        if counts.used >= all {
            Err(WaitReason::AtCapacity)
        } else if counts.used + counts.cooling >= all {
            Err(WaitReason::Cooling)
        } else if taken + counts.cooling + counts.creating + counts.deleting >= all {
            Err(WaitReason::Creating)
        } else if counts.warm > 0 {
            Ok(())
        } else if self.no_prefix {
            Err(WaitReason::NoPrefix)
        } else {
            Err(WaitReason::Empty)
        }
    }

    /// Takes the address `ip` from `pod`. The address rests until `until`, unless another pod has the same address: then it
    /// belongs to that pod.
    pub fn release(
        &mut self,
        pod: &PodUid,
        ip: Ipv4Addr,
        until: u64,
        absent: &mut Absent,
    ) -> Result<(), Refusal> {
        let (block, index) = self.entry_of(pod).ok_or(Refusal::NotAssigned)?;
        if self.blocks[block].address(index).ip != ip {
            return Err(Refusal::NotYours);
        }
        self.order += 1;
        let order = self.order;
        // Another pod may hold the same address by its annotation; it gets the address, which then does not rest.
        self.blocks[block].addresses[index] = match absent.reclaim(ip) {
            Some(pod) => AddressState::Used(pod),
            None => AddressState::Cooling { until, order },
        };
        Ok(())
    }

    /// Makes rested addresses warm, in the order in which they were released.
    pub fn warm_up(&mut self, now: u64) {
        let mut rested: SmallVec<[_; 16]> = SmallVec::new();
        for (at, block) in self.blocks.iter().enumerate() {
            for (index, state) in block.addresses.iter().enumerate() {
                if let AddressState::Cooling { until, order } = state
                    && *until <= now
                {
                    rested.push((*until, *order, at, index));
                }
            }
        }
        // By the time and order of release, so that the address that rested longest is used first.
        rested.sort_unstable();
        for (_, _, at, index) in rested {
            self.order += 1;
            self.blocks[at].addresses[index] = AddressState::Warm { order: self.order };
        }
    }

    /// Returns when the next resting address becomes warm.
    pub fn next_warm(&self) -> Option<u64> {
        let until = self.addresses().filter_map(|(_, state)| match state {
            AddressState::Cooling { until, .. } => Some(*until),
            _ => None,
        });
        until.min()
    }

    /// Returns the next step towards `goal` while `waiting` pods wait and the pool may have `capacity` slots.
    pub fn plan(&self, goal: Goal, waiting: usize, capacity: usize) -> Option<Step> {
        let counts = self.counts();
        if self.must_list {
            // A listing can be compared with the pool only while no other call is in progress.
            return (counts.creating + counts.deleting == 0).then_some(Step::List);
        }
        // If no more addresses can become available, nothing is planned, as in VRC; only draining goes on.
        let unchangeable = counts.total() - counts.warm;
        if unchangeable >= capacity * self.kind.size() && goal != Goal::Drain {
            return None;
        }
        let deviation = goal.deviation(self.kind, &counts, waiting);
        if deviation > 0 {
            let free = capacity.saturating_sub(self.slots());
            let count = free.min(usize::try_from(deviation).unwrap_or(usize::MAX));
            return (count > 0).then_some(Step::Create(count as u32));
        }
        let free = self.blocks.iter().filter(|block| block.is_free());
        let over = usize::try_from(-deviation).unwrap_or(0);
        let blocks: Vec<_> = free.take(over).map(|block| block.cidr).collect();
        (!blocks.is_empty()).then_some(Step::GiveBack(blocks))
    }

    /// Records that `count` blocks were requested.
    pub fn creating(&mut self, count: u32) {
        self.creating += count;
    }

    /// Records that `blocks` are being given back, so that no pod gets their addresses.
    pub fn giving_back(&mut self, blocks: &[Cidr]) {
        for block in blocks {
            if let Ok(at) = self.find(block.ip) {
                self.blocks[at].giving_back = true;
            }
        }
    }

    /// Adds the blocks that EC2 assigned after `asked` were requested.
    pub fn created(&mut self, asked: u32, blocks: &[Cidr], now: u64, absent: &mut Absent) {
        self.creating = self.creating.saturating_sub(asked);
        if !blocks.is_empty() {
            self.no_prefix = false;
        }
        for block in blocks {
            self.arrive(*block, BlockStart::new(now), absent);
        }
    }

    /// Records that EC2 assigned no more of the `asked` blocks.
    pub fn not_created(&mut self, asked: u32, failure: Failure) {
        self.creating = self.creating.saturating_sub(asked);
        self.no_prefix = failure == Failure::NoPrefix;
        // Throttling and shortage are clear answers; any other failure may mean that the pool is wrong about EC2.
        self.must_list |= matches!(failure, Failure::Other | Failure::NoAnswer);
    }

    /// Removes blocks that were being given back and that EC2 has released.
    pub fn given_back(&mut self, blocks: &[Cidr]) {
        // What was given back may make up a free prefix again.
        self.no_prefix = false;
        for block in blocks {
            if let Ok(at) = self.find(block.ip)
                && self.blocks[at].giving_back
            {
                self.blocks.remove(at);
            }
        }
    }

    /// Takes back blocks that could not be released.
    pub fn kept(&mut self, blocks: &[Cidr], now: u64, absent: &mut Absent) {
        for block in blocks {
            if let Ok(at) = self.find(block.ip)
                && self.blocks[at].giving_back
            {
                // Anew and not as before: pods may have come to hold its addresses by annotation in the meantime.
                self.reset_addresses(at, BlockStart::new(now), absent);
            }
        }
    }

    /// Records that the pool may not agree with EC2, so that it requests a listing.
    pub fn require_listing(&mut self) {
        self.must_list = true;
    }

    /// Forgets that the subnet had no free prefix.
    pub(super) fn forget_no_prefix(&mut self) {
        self.no_prefix = false;
    }

    /// Updates the pool to the blocks that EC2 has. Blocks that are being given back stay as they are. Addresses of missing
    /// blocks go to `absent` if a pod has them or they were released recently.
    pub fn listed(&mut self, blocks: &[Cidr], now: u64, absent: &mut Absent) {
        self.listed_as(blocks, BlockStart::new(now), absent);
    }

    /// Updates the pool like [`Pool::listed`]. `arrival` decides the state in which unknown addresses start.
    pub(super) fn listed_as(
        &mut self,
        blocks: &[Cidr],
        arrival: BlockStart<'_>,
        absent: &mut Absent,
    ) {
        self.must_list = false;
        self.lose_unlisted(blocks, absent);
        for block in blocks {
            if self.find(block.ip).is_err() {
                self.arrive(*block, arrival, absent);
            }
        }
    }

    /// Removes the blocks that `blocks` lacks, except those that are being given back.
    pub(super) fn lose_unlisted(&mut self, blocks: &[Cidr], absent: &mut Absent) {
        self.remove_blocks(absent, |block| {
            let there = blocks.iter().any(|listed| listed.ip == block.cidr.ip);
            !there && !block.giving_back
        });
    }

    /// Removes and returns the blocks that overlap with `other`, a block of the other kind that EC2 put on the interface. EC2
    /// must have released them before, so the pool then requests a listing.
    pub(super) fn lose_overlapping(&mut self, other: Cidr, absent: &mut Absent) -> Vec<Cidr> {
        let (kind, base) = (self.kind, self.kind.other().base(other.ip));
        // Either block may be the larger one, so both are compared by the start of what would hold them.
        let overlaps = |ip| ip == kind.base(other.ip) || kind.other().base(ip) == base;
        let blocks = self.blocks.iter().map(|block| block.cidr);
        let overlapping: Vec<_> = blocks.filter(|block| overlaps(block.ip)).collect();
        if !overlapping.is_empty() {
            self.must_list = true;
            self.remove_blocks(absent, |block| overlaps(block.cidr.ip));
        }
        overlapping
    }

    /// Removes blocks. Their addresses go to `absent` if a pod has them or they were released recently.
    fn remove_blocks(&mut self, absent: &mut Absent, gone: impl Fn(&Block) -> bool) {
        self.blocks.retain(|block| {
            if !gone(block) {
                return true;
            }
            for (index, state) in block.addresses.iter().enumerate() {
                match state {
                    // The pod keeps the address; it comes back to the pod if a later listing shows it.
                    AddressState::Used(pod) => absent.lose(pod.clone(), block.address(index)),
                    AddressState::Cooling { until, .. } => {
                        absent.rest(block.address(index).ip, *until)
                    }
                    AddressState::Warm { .. } => {}
                }
            }
            false
        });
    }

    /// Gives `ip` to the pod that has it according to `absent`, unless another pod has it. Returns whether it did.
    pub(super) fn adopt(&mut self, ip: Ipv4Addr, absent: &mut Absent) -> bool {
        let Ok(at) = self.find(self.kind.base(ip)) else {
            return false;
        };
        let block = &mut self.blocks[at];
        let Some(index) = block.index(ip).filter(|_| !block.giving_back) else {
            return false;
        };
        if matches!(block.addresses[index], AddressState::Used(_)) {
            return false;
        }
        let Some(pod) = absent.reclaim(ip) else {
            return false;
        };
        block.addresses[index] = AddressState::Used(pod);
        true
    }

    /// Adds a block that EC2 put on the interface. A block that is being given back stays so, because it is unknown which of
    /// the two came last.
    fn arrive(&mut self, block: Cidr, arrival: BlockStart<'_>, absent: &mut Absent) {
        if let Err(at) = self.find(block.ip) {
            self.insert(at, block);
            self.reset_addresses(at, arrival, absent);
        }
    }

    /// Adds a block that EC2 put on the interface and may have released again. No pod gets an address of it.
    pub(super) fn arrive_giving_back(&mut self, block: Cidr) {
        if let Err(at) = self.find(block.ip) {
            self.insert(at, block);
            self.blocks[at].giving_back = true;
        }
    }

    fn insert(&mut self, at: usize, block: Cidr) {
        let addresses = (0..self.kind.size()).map(|_| AddressState::Warm { order: 0 });
        let block = Block {
            cidr: block,
            giving_back: false,
            addresses: addresses.collect(),
        };
        self.blocks.insert(at, block);
    }

    /// Resets the addresses of a block to their starting states.
    fn reset_addresses(&mut self, at: usize, arrival: BlockStart<'_>, absent: &mut Absent) {
        let block = &mut self.blocks[at];
        block.giving_back = false;
        for index in 0..block.addresses.len() {
            self.order += 1;
            let ip = block.address(index).ip;
            block.addresses[index] = arrival.initial_state(ip, self.order, absent);
        }
    }

    /// Returns the index of the block that starts at `ip`, or the index at which to insert it.
    fn find(&self, ip: Ipv4Addr) -> Result<usize, usize> {
        self.blocks.binary_search_by_key(&ip, |block| block.cidr.ip)
    }

    /// Returns the indexes of the block and of the address that `pod` has.
    fn entry_of(&self, pod: &PodUid) -> Option<(usize, usize)> {
        self.blocks.iter().enumerate().find_map(|(at, block)| {
            let has =
                |state: &AddressState| matches!(state, AddressState::Used(user) if user == pod);
            Some((at, block.addresses.iter().position(has)?))
        })
    }
}
