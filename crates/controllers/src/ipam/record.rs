//! The status of a node's CNINode, and when it must be written before an address may be assigned or returned.
//!
//! After a restart the controller assigns the addresses listed as warm at once. So an address that is, or may be, listed is
//! removed from the list before a pod or EC2 gets it, and a block is listed as being returned before EC2 is asked to take
//! it. The first change clears the whole list, and it is filled again when the node has been quiet for a while.

use core::net::Ipv4Addr;
use std::collections::BTreeSet;

use mullion_api::vpc_resources::Ipv4Status;
use mullion_engine::ip::{Cidr, Interface, Kind};

/// How long after a change the list is filled again, in milliseconds.
const QUIET_MS: u64 = 2_000;

/// The known state of a node's CNINode. Times are in milliseconds since the controller started.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Addresses that the CNINode may list as warm.
    listed: BTreeSet<Ipv4Addr>,
    /// The status written last, if known.
    written: Option<Ipv4Status>,
    /// The status being written.
    writing: Option<Ipv4Status>,
    /// When the next write is due.
    due: Option<u64>,
    /// No write happens before this time, because one failed.
    not_before: u64,
}

/// Returns the blocks in the form in which a CNINode lists them.
fn texts(blocks: impl Iterator<Item = (Kind, Ipv4Addr)>) -> Vec<String> {
    let mut texts: Vec<_> = blocks.map(|(kind, ip)| text(kind, ip)).collect();
    texts.sort_unstable();
    texts
}

fn text(kind: Kind, ip: Ipv4Addr) -> String {
    match kind {
        Kind::Address => ip.to_string(),
        Kind::Prefix => format!("{ip}/28"),
    }
}

/// Parses the warm addresses of a status, and its blocks that are being returned.
pub(super) fn listed(status: &Ipv4Status) -> (Vec<Ipv4Addr>, Vec<(Kind, Ipv4Addr)>) {
    let warm = status.warm_addresses.iter();
    let warm = warm.filter_map(|text| text.parse().ok()).collect();
    let blocks = status.giving_back.iter();
    let blocks = blocks.filter_map(|text| match text.strip_suffix("/28") {
        Some(ip) => Some((Kind::Prefix, ip.parse().ok()?)),
        None => Some((Kind::Address, text.parse().ok()?)),
    });
    (warm, blocks.collect())
}

impl Record {
    /// Creates the record of a CNINode that has this status.
    pub(super) fn found(status: &Ipv4Status) -> Self {
        Record {
            listed: listed(status).0.into_iter().collect(),
            written: Some(status.clone()),
            ..Record::default()
        }
    }

    /// Returns whether a pod may get `address` before the next write.
    pub(super) fn may_give(&self, address: Cidr) -> bool {
        !self.listed.contains(&address.ip)
    }

    /// Returns whether EC2 may be asked to take `blocks` back before the next write.
    pub(super) fn may_give_back(&self, kind: Kind, blocks: &[Cidr]) -> bool {
        let written = self.written.as_ref().filter(|_| self.writing.is_none());
        let is_listed = |block: &Cidr| {
            written.is_some_and(|status| status.giving_back.contains(&text(kind, block.ip)))
        };
        // A listed warm address may lie in one of the blocks, so the list has to be empty first.
        self.listed.is_empty() && blocks.iter().all(is_listed)
    }

    /// Records that the addresses changed, so that a write becomes due.
    pub(super) fn changed(&mut self, interface: &Interface, now: u64) {
        if self.due.is_none() && self.written.as_ref() != Some(&full(interface)) {
            self.due = Some(now + QUIET_MS);
        }
    }

    /// Returns the status to write now, if any: at once and without warm addresses if `urgent`, otherwise when a write is
    /// due.
    pub(super) fn next_write(
        &mut self,
        interface: &Interface,
        urgent: bool,
        now: u64,
    ) -> Option<Ipv4Status> {
        if self.writing.is_some() || now < self.not_before {
            return None;
        }
        let mut status = full(interface);
        if urgent {
            status.warm_addresses.clear();
            self.due = Some(now + QUIET_MS);
        } else {
            self.due.take_if(|due| *due <= now)?;
            if self.written.as_ref() == Some(&status) {
                return None;
            }
        }
        // Until the write is known to have failed or succeeded, a restart may find the old list or the new
        // one.
        self.listed.extend(listed(&status).0);
        self.writing = Some(status.clone());
        Some(status)
    }

    /// Records whether the write succeeded; a failed one is repeated later.
    pub(super) fn wrote(&mut self, succeeded: bool, now: u64) {
        let status = self.writing.take();
        if let Some(status) = status.filter(|_| succeeded) {
            self.listed = listed(&status).0.into_iter().collect();
            self.written = Some(status);
        // A failed write may still have reached the API server, so `listed` keeps both versions.
        } else {
            self.not_before = now + QUIET_MS;
            self.due = Some(self.not_before);
        }
    }

    /// Returns when the next write is due.
    pub(super) fn due(&self) -> Option<u64> {
        self.due.filter(|_| self.writing.is_none())
    }
}

/// Returns the complete status of an interface.
fn full(interface: &Interface) -> Ipv4Status {
    let counts = interface.counts();
    let warm = Kind::ALL
        .into_iter()
        .flat_map(|kind| interface.pool(kind).warm());
    let mode = match interface.active() {
        Kind::Address => "secondary",
        Kind::Prefix => "prefix",
    };
    Ipv4Status {
        mode: mode.to_owned(),
        capacity: interface.capacity(),
        used: counts.used,
        warm: counts.warm,
        cooling: counts.cooling,
        creating: counts.creating,
        deleting: counts.deleting,
        waiting: interface.waiting().len(),
        warm_addresses: texts(warm.map(|address| (Kind::Address, address.ip))),
        giving_back: texts(interface.giving_back()),
    }
}
