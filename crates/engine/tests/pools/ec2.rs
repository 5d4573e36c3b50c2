//! EC2 as far as addresses go, slow and obvious: a subnet, the interfaces in it, and listings that lag.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use mullion_engine::ip::{Call, Cidr, Event, Failure, Kind, Listing, PREFIX_SIZE};

use crate::random::Random;

/// The longest time for which a listing may be behind.
pub(crate) const LAG_MS: u64 = 10_000;
/// The longest time after which a call takes effect whose answer got lost.
pub(crate) const LATE_MS: u64 = 8_000;
/// The mask of the subnet.
const MASK: u8 = 20;

/// One network interface.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nic {
    pub(crate) slots: usize,
    pub(crate) addresses: BTreeSet<u32>,
    pub(crate) prefixes: BTreeSet<u32>,
    /// Taken away behind the controller's back. Only this interface can get them again: two interfaces whose controllers
    /// both believe to have an address are beyond what a controller can prevent.
    pub(crate) stolen: BTreeSet<u32>,
    /// The same, and what came back since.
    pub(crate) ever_stolen: BTreeSet<u32>,
    /// What a listing would have shown, and since when.
    history: Vec<(u64, Listing)>,
}

/// A call that takes effect later although its caller never hears of it.
#[derive(Clone, Debug)]
struct Late {
    at: u64,
    nic: usize,
    call: Call,
}

/// A subnet and its interfaces.
#[derive(Clone, Debug)]
pub(crate) struct Ec2 {
    free: BTreeSet<u32>,
    pub(crate) nics: Vec<Nic>,
    late: Vec<Late>,
    time: u64,
}

fn cidr(ip: u32, bits: u8) -> Cidr {
    Cidr::new(Ipv4Addr::from_bits(ip), bits)
}

fn addresses_of(kind: Kind, base: u32) -> impl Iterator<Item = u32> {
    base..base + kind.size() as u32
}

impl Nic {
    pub(crate) fn blocks(&self, kind: Kind) -> &BTreeSet<u32> {
        match kind {
            Kind::Address => &self.addresses,
            Kind::Prefix => &self.prefixes,
        }
    }

    fn blocks_mut(&mut self, kind: Kind) -> &mut BTreeSet<u32> {
        match kind {
            Kind::Address => &mut self.addresses,
            Kind::Prefix => &mut self.prefixes,
        }
    }

    pub(crate) fn filled(&self) -> usize {
        self.addresses.len() + self.prefixes.len()
    }

    /// Whether pods with this address can be reached.
    pub(crate) fn has(&self, ip: Ipv4Addr) -> bool {
        let ip = ip.to_bits();
        self.addresses.contains(&ip) || self.prefixes.contains(&(ip - ip % PREFIX_SIZE as u32))
    }

    fn listing(&self) -> Listing {
        Listing {
            addresses: self.addresses.iter().map(|ip| cidr(*ip, MASK)).collect(),
            prefixes: self.prefixes.iter().map(|ip| cidr(*ip, 28)).collect(),
        }
    }
}

impl Ec2 {
    /// A subnet of `size` addresses of which `others` are used by somebody else.
    pub(crate) fn new(size: u32, others: usize, slots: &[usize], random: &mut Random) -> Self {
        let base = 0x0a00_0000;
        let mut free: BTreeSet<u32> = (base + 4..base + size - 1).collect();
        for _ in 0..others {
            free.remove(&(base + random.below(size as usize) as u32));
        }
        let nic = |slots: &usize| Nic {
            slots: *slots,
            history: vec![(0, Listing::default())],
            ..Nic::default()
        };
        Ec2 {
            free,
            nics: slots.iter().map(nic).collect(),
            late: Vec::new(),
            time: 0,
        }
    }

    /// Lets time pass: calls without an answer take effect.
    pub(crate) fn advance(&mut self, time: u64, random: &mut Random) {
        while let Some(at) = (0..self.late.len())
            .min_by_key(|at| self.late[*at].at)
            .filter(|at| self.late[*at].at <= time)
        {
            let late = self.late.remove(at);
            self.time = self.time.max(late.at);
            drop(self.call(late.nic, &late.call, random));
        }
        self.time = time;
    }

    /// Has a call take effect later.
    pub(crate) fn call_later(&mut self, nic: usize, call: Call, random: &mut Random) {
        let at = self.time + random.below(LATE_MS as usize) as u64;
        self.late.push(Late { at, nic, call });
    }

    /// The blocks of `kind` that the interface could be assigned.
    pub(crate) fn assignable(&self, nic: usize, kind: Kind) -> Vec<u32> {
        let stolen = &self.nics[nic].stolen;
        let available = |ip: &u32| self.free.contains(ip) || stolen.contains(ip);
        let starts = self.free.iter().chain(stolen).copied();
        let aligned = starts.filter(|ip| ip % kind.size() as u32 == 0);
        aligned
            .filter(|ip| addresses_of(kind, *ip).all(|ip| available(&ip)))
            .collect()
    }

    /// Does what a call asks for, and returns how it ends.
    pub(crate) fn call(&mut self, nic: usize, call: &Call, random: &mut Random) -> Event {
        let event = match call {
            Call::Assign { kind, count } => self.assign(nic, *kind, *count as usize, random),
            Call::GiveBack { kind, blocks } => self.give_back(nic, *kind, blocks),
            Call::List => return Event::Listed(self.list(nic, random)),
        };
        self.changed(nic);
        event
    }

    fn assign(&mut self, nic: usize, kind: Kind, count: usize, random: &mut Random) -> Event {
        if self.nics[nic].filled() + count > self.nics[nic].slots {
            return Event::NotCreated(Failure::Other);
        }
        let mut assignable = self.assignable(nic, kind);
        // In one of four cases EC2 gives what there is.
        let gives_fewer = random.percent(25) && !assignable.is_empty();
        if assignable.len() < count && !gives_fewer {
            return Event::NotCreated(match kind {
                Kind::Address => Failure::NoAddress,
                Kind::Prefix => Failure::NoPrefix,
            });
        }
        random.shuffle(&mut assignable);
        assignable.truncate(count);
        for base in &assignable {
            for ip in addresses_of(kind, *base) {
                self.free.remove(&ip);
                self.nics[nic].stolen.remove(&ip);
            }
            self.nics[nic].blocks_mut(kind).insert(*base);
        }
        let bits = if kind == Kind::Prefix { 28 } else { MASK };
        Event::Created(assignable.into_iter().map(|ip| cidr(ip, bits)).collect())
    }

    fn give_back(&mut self, nic: usize, kind: Kind, blocks: &[Cidr]) -> Event {
        let bases: Vec<u32> = blocks.iter().map(|block| block.ip.to_bits()).collect();
        if !bases
            .iter()
            .all(|base| self.nics[nic].blocks(kind).contains(base))
        {
            return Event::NotGivenBack(Failure::Other);
        }
        for base in bases {
            self.nics[nic].blocks_mut(kind).remove(&base);
            self.free.extend(addresses_of(kind, base));
        }
        Event::GivenBack
    }

    /// What a listing shows: the interface as it was up to [`LAG_MS`] ago.
    pub(crate) fn list(&self, nic: usize, random: &mut Random) -> Listing {
        let lag = if random.percent(50) {
            0
        } else {
            random.below(LAG_MS as usize) as u64
        };
        let shown = self.time.saturating_sub(lag);
        let history = &self.nics[nic].history;
        let past = history.iter().rev().find(|(since, _)| *since <= shown);
        past.unwrap_or(&history[0]).1.clone()
    }

    /// Takes a block away behind the controller's back.
    pub(crate) fn steal(&mut self, nic: usize, random: &mut Random) {
        let kind = *random.pick(&Kind::ALL);
        let blocks: Vec<u32> = self.nics[nic].blocks(kind).iter().copied().collect();
        if !blocks.is_empty() {
            let base = *random.pick(&blocks);
            self.nics[nic].blocks_mut(kind).remove(&base);
            self.nics[nic].stolen.extend(addresses_of(kind, base));
            self.nics[nic].ever_stolen.extend(addresses_of(kind, base));
            self.changed(nic);
        }
    }

    fn changed(&mut self, nic: usize) {
        let (time, nic) = (self.time, &mut self.nics[nic]);
        let listing = nic.listing();
        nic.history.push((time, listing));
    }
}
