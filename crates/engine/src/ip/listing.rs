//! Compares a listing of EC2 with the pools.
//!
//! EC2 is eventually consistent: a listing may miss a change that was made shortly before it began. So recent changes are
//! remembered for [`SETTLE_MS`]. If a listing contradicts one of them, the change stands, and the interface is listed again
//! once the change has settled.

use core::net::Ipv4Addr;

use super::block::BlockStart;
use super::cidr::{Cidr, Kind};
use super::event::{Answer, Listing};
use super::interface::Interface;
use super::{COOL_DOWN_MS, SETTLE_MS};

/// Recent changes, and when to list again because of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    changes: Vec<Change>,
    /// Listings that began before this time may miss the effect of a call that had no answer.
    doubt_until: u64,
    /// When the next listing is due, apart from retries after failures.
    list_at: Option<u64>,
    /// The time from which on a listing confirms what a restart found.
    confirm_at: Option<u64>,
}

/// A change of one block.
#[derive(Clone, Copy, Debug)]
struct Change {
    kind: Kind,
    ip: Ipv4Addr,
    event: BlockEvent,
    /// The time from which on a listing shows the change.
    until: u64,
}

/// The event that changed a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockEvent {
    /// EC2 confirmed that it assigned the block.
    Arrived,
    /// A listing showed the block; the listing may have been outdated.
    Seen,
    Departed,
    /// The block was to be given back, and the result is not known.
    Doubtful,
}

impl Recent {
    /// Records that EC2 assigned blocks.
    pub(super) fn arrived(&mut self, kind: Kind, blocks: &[Cidr], now: u64) {
        self.note(kind, blocks, BlockEvent::Arrived, now);
    }

    /// Records that a listing showed unknown blocks.
    fn seen(&mut self, kind: Kind, blocks: &[Cidr], begun: u64) {
        self.note(kind, blocks, BlockEvent::Seen, begun);
    }

    /// Records that EC2 released blocks.
    pub(super) fn departed(&mut self, kind: Kind, blocks: &[Cidr], now: u64) {
        self.note(kind, blocks, BlockEvent::Departed, now);
    }

    /// Records that EC2 may have released blocks, and requests a listing for when that has settled.
    pub(super) fn doubtful(&mut self, kind: Kind, blocks: &[Cidr], now: u64) {
        self.note(kind, blocks, BlockEvent::Doubtful, now);
        if !blocks.is_empty() {
            let settled = now + SETTLE_MS;
            self.list_at = Some(self.list_at.map_or(settled, |at| at.min(settled)));
        }
    }

    fn note(&mut self, kind: Kind, blocks: &[Cidr], event: BlockEvent, now: u64) {
        let until = now + SETTLE_MS;
        self.changes.retain(|change| {
            let again = change.kind == kind && blocks.iter().any(|block| block.ip == change.ip);
            // A block's newest change replaces earlier ones; what has settled is shown by listings.
            change.until > now && !again
        });
        self.changes.extend(blocks.iter().map(|block| Change {
            kind,
            ip: block.ip,
            event,
            until,
        }));
    }

    /// Records that a listing which begins before `until` may be incomplete.
    pub(super) fn doubt_until(&mut self, until: u64) {
        self.doubt_until = self.doubt_until.max(until);
    }

    /// Requests a listing at `at` that confirms what a restart found.
    pub(super) fn confirm_at(&mut self, at: u64) {
        self.confirm_at = Some(at);
        self.list_at = Some(at);
    }

    /// Returns whether a listing has confirmed what a restart found; `true` without a restart.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirm_at.is_none()
    }

    /// Returns when the next listing is due, apart from retries after failures.
    pub(super) fn list_at(&self) -> Option<u64> {
        self.list_at
    }

    /// Returns the blocks of `kind` for which it is unknown at `now` whether EC2 released them.
    pub(super) fn doubted(&self, kind: Kind, now: u64) -> impl Iterator<Item = Ipv4Addr> {
        let changes = self.unsettled(kind, now);
        let doubtful = changes.filter(|change| change.event == BlockEvent::Doubtful);
        doubtful.map(|change| change.ip)
    }

    /// Returns the changes of `kind` that a listing which began at `begun` may miss.
    fn unsettled(&self, kind: Kind, begun: u64) -> impl Iterator<Item = &Change> {
        let changes = self.changes.iter();
        changes.filter(move |change| change.kind == kind && change.until > begun)
    }
}

impl Interface {
    /// Processes a listing. A listing that was not requested is ignored, because it may be older than the last change.
    pub(super) fn listed(&mut self, listing: &Listing, now: u64, answers: &mut Vec<Answer>) {
        let Some(begun) = self.calls.list.take() else {
            return;
        };
        self.retries.list.end();
        let restarted = !self.recent.is_confirmed();
        let arrival = BlockStart {
            now,
            rest_until: restarted.then_some(now + COOL_DOWN_MS),
            known_warm: &[],
        };
        let unconfirmed = self.unconfirmed(listing, begun);
        // Both kinds are compared before any pool changes, because each comparison reads both pools.
        let mut compared = Kind::ALL.map(|kind| self.compare(kind, listing.of(kind), begun, now));
        self.drop_excess(&mut compared);
        // A block may come back as the other kind, so both pools first drop what is gone.
        for (kind, (blocks, _)) in Kind::ALL.into_iter().zip(&compared) {
            let (pool, absent) = self.pool_and_absent(kind);
            pool.lose_unlisted(blocks, absent);
        }
        for (kind, (blocks, _)) in Kind::ALL.into_iter().zip(&compared) {
            self.lose_overlapping(kind, blocks, now);
        }
        // A recent block that the other pool just dropped as overlapping no longer stands against the listing.
        for (kind, (blocks, _)) in Kind::ALL.into_iter().zip(&mut compared) {
            let listed = listing.of(kind);
            blocks.retain(|block| {
                self.pool(kind).block(block.ip).is_some()
                    || listed.iter().any(|there| there.ip == block.ip)
            });
        }
        for (kind, (blocks, _)) in Kind::ALL.into_iter().zip(&compared) {
            let unknown = |block: &&Cidr| self.pool(kind).block(block.ip).is_none();
            let new: Vec<Cidr> = blocks.iter().filter(unknown).copied().collect();
            // EC2's servers differ in how current they are, so the next listing may be older than this one.
            self.recent.seen(kind, &new, begun);
            let (pool, absent) = self.pool_and_absent(kind);
            pool.listed_as(blocks, arrival, absent);
        }
        let recent = &mut self.recent;
        let confirm_at = recent.confirm_at.filter(|at| *at > begun);
        recent.confirm_at = confirm_at.max(unconfirmed.filter(|_| restarted));
        let doubt = Some(recent.doubt_until).filter(|until| *until > begun);
        let again = compared.iter().filter_map(|(_, again)| *again);
        // One listing at the latest of these times settles the earlier doubts too.
        recent.list_at = again.chain(doubt).chain(recent.confirm_at).max();
        self.report_lost_addresses(answers);
    }

    /// Returns the time until which it is open whether all blocks exist that earlier listings showed and this one does not;
    /// `None` if none is missing. The controller may have released them before its restart, which the earlier listing may have
    /// missed.
    fn unconfirmed(&self, listing: &Listing, begun: u64) -> Option<u64> {
        let of_kind = |kind| {
            let seen = self.recent.unsettled(kind, begun);
            seen.filter(move |change| {
                let there = || listing.of(kind).iter().any(|block| block.ip == change.ip);
                change.event == BlockEvent::Seen
                    && self.pool(kind).block(change.ip).is_some()
                    && !there()
            })
        };
        let all = Kind::ALL.into_iter().flat_map(of_kind);
        all.map(|change| change.until).max()
    }

    /// Drops listed blocks that the pools do not know and for which no slot is left beside the certain ones. The listing is
    /// outdated: EC2 had these blocks before.
    fn drop_excess(&self, compared: &mut [(Vec<Cidr>, Option<u64>); 2]) {
        let mut held = 0;
        for (kind, (blocks, _)) in Kind::ALL.into_iter().zip(compared.iter()) {
            let doubtful = self.pool(kind).blocks().filter(|(block, giving)| {
                *giving && !blocks.iter().any(|there| there.ip == block.ip)
            });
            held += blocks.len() + doubtful.count();
        }
        let mut excess = held.saturating_sub(self.slots);
        for (kind, (blocks, _)) in Kind::ALL.into_iter().zip(compared) {
            blocks.retain(|block| {
                let drops = excess > 0 && self.pool(kind).block(block.ip).is_none();
                excess -= usize::from(drops);
                !drops
            });
        }
    }

    /// Decides which blocks of `kind` exist after a listing, and resolves doubts about blocks that were given back. Returns
    /// the blocks, and when to list again if the listing contradicts a recent change.
    fn compare(
        &mut self,
        kind: Kind,
        listed: &[Cidr],
        begun: u64,
        now: u64,
    ) -> (Vec<Cidr>, Option<u64>) {
        let accepted = listed.iter().filter(|block| kind.accepts(**block));
        let mut blocks: Vec<Cidr> = accepted.copied().collect();
        let mut again: Option<u64> = None;
        for change in self.recent.unsettled(kind, begun) {
            let there = blocks.iter().any(|block| block.ip == change.ip);
            let known = self.pool(kind).block(change.ip);
            match (change.event, known) {
                // The change stands against the listing until it has settled.
                (BlockEvent::Arrived | BlockEvent::Seen, Some(block)) if !there => {
                    blocks.push(block);
                }
                (BlockEvent::Departed, None) if there => {
                    blocks.retain(|block| block.ip != change.ip);
                }
                // Neither side is believed; the next listing decides.
                (BlockEvent::Doubtful, Some(_)) => {}
                _ => continue,
            }
            again = again.max(Some(change.until));
        }
        let unsettled = |block: &Cidr| {
            let mut doubted = self.recent.doubted(kind, begun);
            doubted.any(|ip| ip == block.ip)
        };
        // Blocks that were being given back and about which no doubt is left: either EC2 still has them, or they are
        // gone.
        let decided = self.pool(kind).blocks().filter(|(_, giving)| *giving);
        let decided = decided
            .map(|(block, _)| block)
            .filter(|block| !unsettled(block));
        let (kept, gone): (Vec<_>, Vec<_>) =
            decided.partition(|block| blocks.iter().any(|there| there.ip == block.ip));
        let (pool, absent) = self.pool_and_absent(kind);
        pool.kept(&kept, now, absent);
        if !gone.is_empty() {
            pool.given_back(&gone);
            self.recent.departed(kind, &gone, now);
        }
        (blocks, again)
    }
}
