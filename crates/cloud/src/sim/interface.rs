//! The addresses on the primary network interface of an instance besides the primary address.
//!
//! Invariant: single addresses and prefixes are each in the order of their assignment, and all of them are used in the instance's subnet
//! ([`super::network`]).

use std::net::Ipv4Addr;

use mullion_engine::ip::Kind;
use tokio::time::Instant;

use crate::{InstanceId, InterfaceId};

/// The single addresses and the first addresses of the /28 prefixes of an interface.
#[derive(Debug, Default)]
pub(super) struct Interface {
    addresses: Vec<Ipv4Addr>,
    prefixes: Vec<Ipv4Addr>,
    /// Changes that listings do not show yet, oldest first.
    unlisted: Vec<UnlistedChange>,
}

#[derive(Debug)]
struct UnlistedChange {
    kind: Kind,
    first: Ipv4Addr,
    arrived: bool,
    until: Instant,
}

impl Interface {
    pub(super) fn of(addresses: Vec<Ipv4Addr>, prefixes: Vec<Ipv4Addr>) -> Self {
        Self {
            addresses,
            prefixes,
            unlisted: Vec::new(),
        }
    }

    /// Returns the first addresses of all blocks of a kind.
    pub(super) fn blocks(&self, kind: Kind) -> &[Ipv4Addr] {
        match kind {
            Kind::Address => &self.addresses,
            Kind::Prefix => &self.prefixes,
        }
    }

    fn blocks_mut(&mut self, kind: Kind) -> &mut Vec<Ipv4Addr> {
        match kind {
            Kind::Address => &mut self.addresses,
            Kind::Prefix => &mut self.prefixes,
        }
    }

    /// Returns every block with its kind.
    pub(super) fn all(&self) -> impl Iterator<Item = (Kind, Ipv4Addr)> {
        let of = |kind| self.blocks(kind).iter().map(move |first| (kind, *first));
        Kind::ALL.into_iter().flat_map(of)
    }

    /// Returns the number of used slots: one for each single address and each prefix.
    pub(super) fn slots_taken(&self) -> usize {
        self.addresses.len() + self.prefixes.len()
    }

    /// Adds blocks to the interface; listings show them from `seen_at` on.
    pub(super) fn add(&mut self, kind: Kind, blocks: &[Ipv4Addr], seen_at: Instant) {
        self.blocks_mut(kind).extend_from_slice(blocks);
        self.note(kind, blocks, true, seen_at);
    }

    /// Removes blocks from the interface; listings show them until `seen_at`.
    pub(super) fn remove(&mut self, kind: Kind, blocks: &[Ipv4Addr], seen_at: Instant) {
        self.blocks_mut(kind)
            .retain(|first| !blocks.contains(first));
        self.note(kind, blocks, false, seen_at);
    }

    fn note(&mut self, kind: Kind, blocks: &[Ipv4Addr], arrived: bool, until: Instant) {
        let now = Instant::now();
        self.unlisted.retain(|change| change.until > now);
        let changes = blocks.iter().map(|first| UnlistedChange {
            kind,
            first: *first,
            arrived,
            until,
        });
        self.unlisted
            .extend(changes.filter(|change| change.until > now));
    }

    /// Returns the first addresses of the blocks of a kind that a listing shows now.
    pub(super) fn seen(&self, kind: Kind, now: Instant) -> Vec<Ipv4Addr> {
        let mut blocks = self.blocks(kind).to_vec();
        // Undone from the newest change on, so that a block that left and came back has its state of before
        // both.
        let unlisted = self.unlisted.iter().rev();
        for change in unlisted.filter(|change| change.kind == kind && change.until > now) {
            match change.arrived {
                true => blocks.retain(|first| *first != change.first),
                false if !blocks.contains(&change.first) => blocks.push(change.first),
                false => {}
            }
        }
        blocks
    }
}

/// Returns the id of an instance's primary interface. It has the digits of the instance's id, so that a reader of a log can see whose
/// interface it is.
pub(super) fn id_of(instance: &InstanceId) -> InterfaceId {
    let digits = instance.0.strip_prefix("i-").unwrap_or(&instance.0);
    InterfaceId(format!("eni-{digits}").into())
}

/// Returns the instance whose primary interface has this id.
pub(super) fn instance_of(interface: &InterfaceId) -> Option<InstanceId> {
    let digits = interface.0.strip_prefix("eni-")?;
    Some(InstanceId(format!("i-{digits}").into()))
}
