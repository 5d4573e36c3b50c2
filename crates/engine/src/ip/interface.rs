//! One network interface: two pools that share its slots, the waiting pods, and the calls that the caller has to make.

use core::net::Ipv4Addr;
use std::collections::VecDeque;

use super::absent::Absent;
use super::calls::{Assign, Calls, Retries};
use super::cidr::{Cidr, Kind};
use super::event::{Answer, Event, Failure, PodUid, WaitReason};
use super::listing::Recent;
use super::pool::Pool;
use super::targets::{Counts, Goal, Targets};
use super::{COOL_DOWN_MS, SETTLE_MS};

/// The addresses of one interface, as a state machine.
///
/// Guarantees, as long as every [`Call`](super::Call) that [`Interface::next_call`] returned is answered by one event:
/// - no two pods have the same address, and a released address rests for 30 s;
/// - the pools have the same addresses as EC2 once calls are answered and listings have settled;
/// - a waiting pod gets an address if there is a slot and the subnet has an address, whatever the targets are;
/// - while nothing changes there is nothing to do: [`Interface::wake_at`] returns `None`.
///
/// Caveats: if another client removes an address from the interface, only the next listing shows that ([`Event::Recheck`]). The
/// caller's clock may jump; if it goes back, no wait becomes longer.
#[derive(Clone, Debug)]
pub struct Interface {
    pub(super) slots: usize,
    /// The kind of addresses that new pods get.
    pub(super) active: Kind,
    pub(super) targets: Targets,
    pub(super) addresses: Pool,
    pub(super) prefixes: Pool,
    /// The waiting pods, first come first.
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) absent: Absent,
    pub(super) calls: Calls,
    pub(super) retries: Retries,
    pub(super) recent: Recent,
    /// Whether the caller forbids assignments at present.
    pub(super) held: bool,
    clock: Clock,
}

/// A pod that is waiting for an address.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The pod's UID.
    pub pod: PodUid,
    /// The start of the wait by the interface's own clock, which never goes back.
    since: u64,
    /// The reason that the pod was told last; `None` if it was told none yet.
    pub why: Option<WaitReason>,
}

/// A clock that never goes back: when the caller's clock goes back, the difference is added.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    now: u64,
    added: u64,
}

impl Clock {
    fn read(&mut self, now: u64) -> u64 {
        // Time stands still instead of going back, so no wait is measured twice.
        self.added = self.added.max(self.now.saturating_sub(now));
        self.now = now + self.added;
        self.now
    }
}

impl Interface {
    /// Creates an interface with `slots` slots (addresses per interface without the primary one), all of them empty.
    pub fn new(slots: u32, active: Kind, targets: Targets) -> Self {
        Interface {
            slots: slots as usize,
            active,
            targets,
            addresses: Pool::new(Kind::Address),
            prefixes: Pool::new(Kind::Prefix),
            waiting: VecDeque::new(),
            absent: Absent::default(),
            calls: Calls::default(),
            retries: Retries::default(),
            recent: Recent::default(),
            held: false,
            clock: Clock::default(),
        }
    }

    /// Processes an event at the time `now` and appends the messages for pods to `answers`.
    ///
    /// Calls are not among the answers: ask [`Interface::next_call`] afterwards, at once or when a call is permitted.
    pub fn handle(&mut self, event: Event, now: u64, answers: &mut Vec<Answer>) {
        let now = self.clock.read(now);
        match event {
            Event::PodNeeds(pod) => self.pod_needs(pod, now, answers),
            Event::PodGone(pod) => self.pod_gone(&pod, now),
            Event::PodHolds(pod, address) => self.pod_holds(pod, address, now),
            Event::Created(blocks) => self.created(&blocks, now),
            Event::NotCreated(failure) => self.not_created(failure, now),
            Event::GivenBack => self.given_back(now),
            Event::NotGivenBack(failure) => self.not_given_back(failure, now),
            Event::Listed(listing) => self.listed(&listing, now, answers),
            Event::NotListed(failure) => self.not_listed(failure, now),
            Event::Configured(kind, targets) => self.configured(kind, targets),
            Event::Room => self.room(),
            Event::Recheck => self.recheck(now),
            Event::Wake => {}
        }
        // After every event, because any of them may have made an address free or a reason to wait obsolete.
        self.warm_up(now);
        self.serve(answers);
    }

    fn pod_needs(&mut self, pod: PodUid, now: u64, answers: &mut Vec<Answer>) {
        if let Some(address) = self.address_of(&pod) {
            answers.push(Answer::Give { pod, address });
        // A pod may ask again while it waits; it keeps its place in the line.
        } else if !self.waiting.iter().any(|waiting| waiting.pod == pod) {
            let (since, why) = (now, None);
            self.waiting.push_back(Waiting { pod, since, why });
        }
    }

    fn pod_gone(&mut self, pod: &PodUid, now: u64) {
        self.waiting.retain(|waiting| waiting.pod != *pod);
        let until = now + COOL_DOWN_MS;
        // The pod may have an address of the draining kind.
        for kind in Kind::ALL {
            let (pool, absent) = self.pool_and_absent(kind);
            if let Some(address) = pool.address_of(pod) {
                let released = pool.release(pod, address.ip, until, absent);
                debug_assert_eq!(released, Ok(()), "the pod has this address");
            }
        }
        self.absent.release(pod, until);
    }

    fn pod_holds(&mut self, pod: PodUid, address: Cidr, now: u64) {
        if self.address_of(&pod).is_some() {
            return;
        }
        self.waiting.retain(|waiting| waiting.pod != pod);
        // First as lost, so that the pool can take it from there if it has the address, and the pod keeps it either
        // way.
        self.absent.lose(pod, address);
        let adopted = Kind::ALL.into_iter().any(|kind| {
            let (pool, absent) = self.pool_and_absent(kind);
            pool.adopt(address.ip, absent)
        });
        if !adopted {
            // The address may have been assigned by the process before this one, so recently that a listing misses
            // it.
            self.recent.doubt_until(now + SETTLE_MS);
            self.addresses.require_listing();
        }
    }

    fn created(&mut self, blocks: &[Cidr], now: u64) {
        // An answer to a call that is not known: the pools may be wrong, so EC2 is asked.
        let Some(assign) = self.calls.assign.take() else {
            return self.recheck(now);
        };
        let (kind, asked) = (assign.kind, assign.count);
        let mut blocks = blocks.to_vec();
        blocks.retain(|block| kind.accepts(*block));
        // EC2 gives each address to one block only, so what overlaps in the other pool cannot be there any more.
        self.lose_overlapping(kind, &blocks, now);
        let doubtful = |block: &&Cidr| assign.doubtful.contains(&block.ip);
        for block in blocks.iter().filter(doubtful) {
            self.pool_mut(kind).arrive_giving_back(*block);
        }
        self.note_unclear(kind, &blocks, now);
        let (pool, absent) = self.pool_and_absent(kind);
        pool.created(asked, &blocks, now, absent);
        let count = blocks.len();
        blocks.retain(|block| !self.pool(kind).is_giving_back(block.ip));
        self.recent.arrived(kind, &blocks, now);
        // Fewer than asked for means that the subnet is empty now, so the next call waits as after a failure.
        if count < asked as usize {
            let none_left = match kind {
                Kind::Address => Failure::NoAddress,
                Kind::Prefix => Failure::NoPrefix,
            };
            self.pool_mut(kind).not_created(0, none_left);
            self.retries.not_assigned(1, none_left, now);
        } else {
            self.retries.assigned();
        }
    }

    /// Records which of the newly assigned blocks are still being given back. It is not known whether EC2 assigned such a block
    /// before or after the release took effect, so no pod gets its addresses until a listing has settled.
    fn note_unclear(&mut self, kind: Kind, blocks: &[Cidr], now: u64) {
        let unclear = self.still_giving_back(kind, blocks.to_vec());
        self.recent.doubtful(kind, &unclear, now);
        if self.calls.give_back.is_some() {
            let unclear = unclear.iter().map(|block| (kind, block.ip));
            self.calls.unclear.extend(unclear);
        }
    }

    /// Removes the other pool's blocks that overlap with `blocks` of `kind`, as far as this pool does not know these yet.
    pub(super) fn lose_overlapping(&mut self, kind: Kind, blocks: &[Cidr], now: u64) {
        for block in blocks {
            if self.pool(kind).block(block.ip).is_none() {
                let (other, absent) = self.pool_and_absent(kind.other());
                let lost = other.lose_overlapping(*block, absent);
                self.recent.departed(kind.other(), &lost, now);
            }
        }
    }

    fn not_created(&mut self, failure: Failure, now: u64) {
        let Some(Assign { kind, count, .. }) = self.calls.assign.take() else {
            return self.recheck(now);
        };
        let asked = count;
        let none_left = self.retries.not_assigned(asked, failure, now);
        match failure {
            // The subnet may still have a prefix, though not as many as were asked for.
            Failure::NoPrefix if !none_left => {
                self.pool_mut(kind).not_created(asked, Failure::NoAddress)
            }
            _ => self.pool_mut(kind).not_created(asked, failure),
        }
        // EC2 may have assigned the blocks, and only a listing that began later can show it.
        if failure == Failure::NoAnswer {
            self.recent.doubt_until(now + SETTLE_MS);
        }
    }

    fn given_back(&mut self, now: u64) {
        let Some((kind, blocks)) = self.calls.give_back.take() else {
            return self.recheck(now);
        };
        let unclear = std::mem::take(&mut self.calls.unclear);
        let blocks = self.still_giving_back(kind, blocks);
        let (unclear, gone): (Vec<_>, Vec<_>) = blocks
            .into_iter()
            .partition(|block| unclear.contains(&(kind, block.ip)));
        self.pool_mut(kind).given_back(&gone);
        self.recent.departed(kind, &gone, now);
        self.recent.doubtful(kind, &unclear, now);
        // If another client had removed such a block, the assignment in progress may have assigned it before this release took
        // effect.
        if let Some(assign) = self.calls.assign.as_mut().filter(|call| call.kind == kind) {
            assign.doubtful.extend(gone.iter().map(|block| block.ip));
        }
        self.retries.give_back.end();
        // What was given back is free in the subnet now, so a wait for room can end.
        self.room();
    }

    fn not_given_back(&mut self, failure: Failure, now: u64) {
        let Some((kind, blocks)) = self.calls.give_back.take() else {
            return self.recheck(now);
        };
        self.retries.give_back.fail(failure, now);
        // The call has ended; what it may have released all the same is noted as doubtful below.
        self.calls.unclear.clear();
        let blocks = self.still_giving_back(kind, blocks);
        // A throttled call did nothing for certain; all other failures leave that open.
        if failure == Failure::Throttled {
            let (pool, absent) = self.pool_and_absent(kind);
            return pool.kept(&blocks, now, absent);
        }
        // EC2 refuses to release addresses that it does not have, so a listing must show which ones exist before a pod gets
        // one.
        self.pool_mut(kind).require_listing();
        if failure == Failure::NoAnswer {
            self.recent.doubtful(kind, &blocks, now);
        }
    }

    /// Returns those of `blocks` that are still being given back, without those that EC2 showed to be gone.
    fn still_giving_back(&self, kind: Kind, mut blocks: Vec<Cidr>) -> Vec<Cidr> {
        blocks.retain(|block| self.pool(kind).is_giving_back(block.ip));
        blocks
    }

    fn configured(&mut self, kind: Kind, targets: Targets) {
        // A subnet without prefixes may have addresses, and the other way round.
        if self.active != kind {
            self.retries.assign.end();
            self.retries.most = None;
        }
        self.active = kind;
        self.targets = targets;
    }

    fn room(&mut self) {
        self.retries.assign.end();
        self.prefixes.forget_no_prefix();
    }

    fn recheck(&mut self, now: u64) {
        self.addresses.require_listing();
        // A listing in progress began earlier, perhaps in the same millisecond, so it may not show the change and another one
        // is needed.
        if self.calls.list.is_some() {
            self.recent.doubt_until(now + 1);
        }
    }

    /// Makes rested addresses warm. After a restart a listing must confirm the addresses first.
    fn warm_up(&mut self, now: u64) {
        if self.recent.is_confirmed() {
            self.addresses.warm_up(now);
            self.prefixes.warm_up(now);
        }
        self.absent.prune(now);
    }

    /// Gives addresses to waiting pods, and tells pods that must go on waiting the reason if it is new to them.
    fn serve(&mut self, answers: &mut Vec<Answer>) {
        let (capacity, freeing) = self.room_for(self.active);
        while let Some(first) = self.waiting.pop_front() {
            let pool = self.pool_mut(self.active);
            match pool.take(&first.pod, capacity, freeing) {
                Ok(address) => answers.push(Answer::Give {
                    pod: first.pod,
                    address,
                }),
                // Pods are served strictly in turn: what the first cannot get, the others cannot either.
                Err(_) => {
                    self.waiting.push_front(first);
                    break;
                }
            }
        }
        if self.waiting.is_empty() {
            return;
        }
        let Err(why) = self.pool(self.active).check(capacity, freeing) else {
            return;
        };
        for waiting in &mut self.waiting {
            let heard = waiting.why.replace(why);
            // Compared by text, because the pod's event would say the same again.
            if !heard.is_some_and(|heard| heard.sounds_like(why)) {
                let pod = waiting.pod.clone();
                answers.push(Answer::Wait { pod, why });
            }
        }
    }

    /// Tells pods that they lost their address, once the last listing needs no repetition.
    pub(super) fn report_lost_addresses(&mut self, answers: &mut Vec<Answer>) {
        // A listing may be outdated, and a pod that was told cannot be told otherwise.
        if self.recent.list_at().is_none() {
            let losses = self.absent.take_unreported();
            answers.extend(losses.map(|(pod, address)| Answer::Lost { pod, address }));
        }
    }

    /// Returns how many slots a pool may have now, and how many more it gets once the other pool gives up unused ones.
    pub(super) fn room_for(&self, kind: Kind) -> (usize, usize) {
        let other = self.pool(kind.other());
        let held = other.slots();
        (
            self.slots.saturating_sub(held),
            held - other.used_slots().min(held),
        )
    }

    /// Returns the goal of the pool of `kind` and the number of pods that wait for its addresses.
    pub(super) fn goal(&self, kind: Kind) -> (Goal, usize) {
        if kind == self.active {
            (Goal::Keep(self.targets), self.waiting.len())
        } else {
            (Goal::Drain, 0)
        }
    }

    /// Returns the pool of `kind`.
    pub fn pool(&self, kind: Kind) -> &Pool {
        match kind {
            Kind::Address => &self.addresses,
            Kind::Prefix => &self.prefixes,
        }
    }

    pub(super) fn pool_mut(&mut self, kind: Kind) -> &mut Pool {
        self.pool_and_absent(kind).0
    }

    pub(super) fn pool_and_absent(&mut self, kind: Kind) -> (&mut Pool, &mut Absent) {
        let pool = match kind {
            Kind::Address => &mut self.addresses,
            Kind::Prefix => &mut self.prefixes,
        };
        (pool, &mut self.absent)
    }

    /// Returns the kind of addresses that new pods get.
    pub fn active(&self) -> Kind {
        self.active
    }

    /// Returns the number of pods that can have an address: those with an address of the draining kind, and as many as fit into
    /// the remaining slots with the active kind. The node's capacity should show this number.
    pub fn capacity(&self) -> usize {
        let draining = self.pool(self.active.other());
        let slots = self.slots.saturating_sub(draining.used_slots());
        draining.counts().used + slots * self.active.size()
    }

    /// Counts the addresses of both pools by state.
    pub fn counts(&self) -> Counts {
        let (addresses, prefixes) = (self.addresses.counts(), self.prefixes.counts());
        Counts {
            used: addresses.used + prefixes.used,
            warm: addresses.warm + prefixes.warm,
            cooling: addresses.cooling + prefixes.cooling,
            creating: addresses.creating + prefixes.creating,
            deleting: addresses.deleting + prefixes.deleting,
            free_prefixes: prefixes.free_prefixes,
        }
    }

    /// Returns the address of a pod, even if EC2 has it no more.
    pub fn address_of(&self, pod: &PodUid) -> Option<Cidr> {
        let in_pool = |kind| self.pool(kind).address_of(pod);
        in_pool(Kind::Address)
            .or_else(|| in_pool(Kind::Prefix))
            .or_else(|| self.absent.of(pod))
    }

    /// Returns the waiting pods, first come first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.waiting.iter()
    }

    /// Returns how long a pod had waited at the last event, in milliseconds.
    pub fn waited_ms(&self, waiting: &Waiting) -> u64 {
        self.clock.now - waiting.since
    }

    /// Returns the blocks that are being given back or whose release had no clear result. A restarted controller needs them
    /// ([`RestartState::giving_back`](super::RestartState::giving_back)).
    pub fn giving_back(&self) -> impl Iterator<Item = (Kind, Ipv4Addr)> {
        Kind::ALL.into_iter().flat_map(move |kind| {
            let blocks = self.pool(kind).blocks().filter(|(_, giving)| *giving);
            let doubted = self.recent.doubted(kind, self.last_time());
            let apart = doubted.filter(move |ip| !self.pool(kind).is_giving_back(*ip));
            let ips = blocks.map(|(block, _)| block.ip).chain(apart);
            ips.map(move |ip| (kind, ip))
        })
    }

    /// Returns the pods whose address is not on the interface.
    pub fn lost(&self) -> impl Iterator<Item = (&PodUid, Cidr)> {
        self.absent.lost()
    }

    /// Returns the interface's own time at the caller's time `now`.
    pub(super) fn time(&mut self, now: u64) -> u64 {
        self.clock.read(now)
    }

    /// Returns the interface's own time at the caller's time `now`, without advancing it.
    pub(super) fn peek_time(&self, now: u64) -> u64 {
        { self.clock }.read(now)
    }

    /// Returns the interface's own time at the last event or call.
    pub(super) fn last_time(&self) -> u64 {
        self.clock.now
    }

    /// Returns the caller's time at the interface's own time `at`.
    pub(super) fn caller_time(&self, at: u64) -> u64 {
        at.saturating_sub(self.clock.added)
    }
}
