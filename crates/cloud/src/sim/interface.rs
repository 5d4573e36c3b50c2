//! What the primary network interface of an instance has beside the primary address.
//!
//! Invariant: single addresses and prefixes are each in the order in which they were assigned; every one of them is taken in the
//! instance's subnet ([`super::network`]).

use std::net::Ipv4Addr;

use mullion_engine::ip::Kind;

use crate::{InstanceId, InterfaceId};

/// The single addresses and the first addresses of the /28 prefixes of an interface.
#[derive(Debug, Default)]
pub(super) struct Interface {
    addresses: Vec<Ipv4Addr>,
    prefixes: Vec<Ipv4Addr>,
}

impl Interface {
    pub(super) fn of(addresses: Vec<Ipv4Addr>, prefixes: Vec<Ipv4Addr>) -> Self {
        Self {
            addresses,
            prefixes,
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

    /// Returns how many slots are taken: one for each single address and each prefix.
    pub(super) fn slots_taken(&self) -> usize {
        self.addresses.len() + self.prefixes.len()
    }

    pub(super) fn add(&mut self, kind: Kind, blocks: &[Ipv4Addr]) {
        self.blocks_mut(kind).extend_from_slice(blocks);
    }

    pub(super) fn remove(&mut self, kind: Kind, blocks: &[Ipv4Addr]) {
        self.blocks_mut(kind)
            .retain(|first| !blocks.contains(first));
    }
}

/// Returns the id of an instance's primary interface. It has the digits of the instance's id, so that a reader of a log sees whose it is.
pub(super) fn id_of(instance: &InstanceId) -> InterfaceId {
    let digits = instance.0.strip_prefix("i-").unwrap_or(&instance.0);
    InterfaceId(format!("eni-{digits}").into())
}

/// Returns the instance whose primary interface has this id.
pub(super) fn instance_of(interface: &InterfaceId) -> Option<InstanceId> {
    let digits = interface.0.strip_prefix("eni-")?;
    Some(InstanceId(format!("i-{digits}").into()))
}
