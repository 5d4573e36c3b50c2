//! Decides which call to EC2 comes next and when the interface must be woken.
//!
//! At most one call of each kind is in progress, and no other call begins while a listing is due or in progress, so that a
//! listing can be compared with the pools.

use core::net::Ipv4Addr;

use super::backoff::Backoff;
use super::cidr::{Cidr, Kind};
use super::event::{Call, Failure};
use super::interface::Interface;
use super::pool::Step;

/// The calls in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    pub(super) assign: Option<Assign>,
    pub(super) give_back: Option<(Kind, Vec<Cidr>)>,
    /// Blocks that are being given back although EC2 assigned them again in the meantime.
    pub(super) unclear: Vec<(Kind, Ipv4Addr)>,
    /// When the listing in progress began.
    pub(super) list: Option<u64>,
}

/// The [`Call::Assign`] in progress.
#[derive(Clone, Debug)]
pub(super) struct Assign {
    pub(super) kind: Kind,
    pub(super) count: u32,
    /// Blocks whose release was not yet confirmed when this call began, and which may therefore be released after this call
    /// assigned them.
    pub(super) doubtful: Vec<Ipv4Addr>,
}

/// The waits after failed calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    pub(super) assign: Backoff,
    pub(super) give_back: Backoff,
    pub(super) list: Backoff,
    /// The maximum number of blocks to ask for while the subnet is short of them.
    pub(super) most: Option<u32>,
    /// Whether the caller decides how long to wait for a full subnet and how many blocks to ask for.
    pub(super) subnet_waits_elsewhere: bool,
}

impl Retries {
    /// Records that EC2 assigned all requested blocks; the next call may ask for twice as many.
    pub(super) fn assigned(&mut self) {
        self.assign.end();
        if !self.subnet_waits_elsewhere {
            self.most = self.most.map(|most| most.saturating_mul(2));
        }
    }

    /// Records that EC2 assigned none of `asked` blocks. EC2 assigns all or nothing, so half as many are asked for at once if
    /// the subnet has too few. Returns whether the subnet has not even one.
    pub(super) fn not_assigned(&mut self, asked: u32, failure: Failure, now: u64) -> bool {
        let short = matches!(failure, Failure::NoAddress | Failure::NoPrefix);
        // The caller halves and waits for all interfaces of the subnet together.
        if short && self.subnet_waits_elsewhere {
            return asked <= 1;
        }
        if short {
            self.most = Some((asked / 2).max(1));
        }
        // No wait yet: half as many may be there right now.
        if short && asked > 1 {
            return false;
        }
        self.assign.fail(failure, now);
        short
    }
}

/// The priority of the next call of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallPriority {
    /// The call serves the targets, gives something back or lists the interface.
    Upkeep,
    /// This many pods wait for the call.
    Pods(usize),
}

/// The calls that are due, each with the earliest time at which it may be made.
#[derive(Default)]
struct DueCalls {
    list: Option<u64>,
    assign: Option<(u64, Kind, u32)>,
    give_back: Option<(u64, Kind, Vec<Cidr>)>,
}

impl Interface {
    /// Returns the next call and marks it as begun; `None` if there is none to make now. Call this again until it returns
    /// `None`.
    ///
    /// The call fits the demand at this moment, so a caller that must wait before calling EC2 should ask only when it may call.
    /// Every call must be answered by one event, by [`Failure::NoAnswer`] if nothing else is known.
    pub fn next_call(&mut self, now: u64) -> Option<Call> {
        let now = self.time(now);
        let due_calls = self.due_calls(now);
        if due_calls.list.is_some_and(|at| at <= now) {
            self.calls.list = Some(now);
            return Some(Call::List);
        }
        // Assigning comes before giving back, because pods wait for it.
        if let Some((at, kind, count)) = due_calls.assign
            && at <= now
        {
            // EC2 may still carry out a release that had no answer, after it assigned the same block anew.
            let doubtful = self.recent.doubted(kind, now).collect();
            self.calls.assign = Some(Assign {
                kind,
                count,
                doubtful,
            });
            self.pool_mut(kind).creating(count);
            return Some(Call::Assign { kind, count });
        }
        let (_, kind, blocks) = due_calls.give_back.filter(|(at, ..)| *at <= now)?;
        self.calls.give_back = Some((kind, blocks.clone()));
        self.pool_mut(kind).giving_back(&blocks);
        Some(Call::GiveBack { kind, blocks })
    }

    /// Stops [`Interface::next_call`] from returning [`Call::Assign`] while `held`. A caller uses it if the subnet has no room
    /// for all interfaces.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Limits the next [`Call::Assign`] to `count` blocks. A caller uses it if the subnet is short of them.
    pub fn ask_for_at_most(&mut self, count: u32) {
        self.retries.most = Some(count.max(1));
    }

    /// Makes the caller responsible for waiting when the subnet is full, because the caller knows the subnet's other interfaces.
    /// The caller then uses [`Interface::hold`] and [`Interface::ask_for_at_most`].
    pub fn leave_subnet_waits_to_caller(&mut self) {
        self.retries.subnet_waits_elsewhere = true;
    }

    /// Returns the kind of blocks that the interface would ask EC2 for now, even while it is held.
    pub fn wants_to_assign(&self, now: u64) -> Option<Kind> {
        let now = self.peek_time(now);
        let (at, kind, _) = self.all_due_calls(now).assign?;
        (at <= now).then_some(kind)
    }

    /// Returns the priority of the call that [`Interface::next_call`] would return now; `None` if there is none.
    pub fn wants_call(&self, now: u64) -> Option<CallPriority> {
        let now = self.peek_time(now);
        let first = self.due_calls(now).first()?;
        (first <= now).then_some(match self.waiting.len() {
            0 => CallPriority::Upkeep,
            pods => CallPriority::Pods(pods),
        })
    }

    /// Returns when the interface needs [`Event::Wake`](super::Event::Wake) if nothing happens before. A time in the past means
    /// that [`Interface::next_call`] has a call.
    pub fn wake_at(&self) -> Option<u64> {
        let rested = Kind::ALL.map(|kind| self.pool(kind).next_warm());
        let rested = rested.into_iter().flatten().min();
        // Before that, resting addresses do not become warm, so waking for them would do nothing, again and again.
        let rested = rested.filter(|_| self.recent.is_confirmed());
        let call = self.due_calls(self.last_time()).first();
        let at = rested.into_iter().chain(call).min()?;
        Some(self.caller_time(at))
    }

    /// Records that a listing failed.
    pub(super) fn not_listed(&mut self, failure: Failure, now: u64) {
        self.calls.list = None;
        self.retries.list.fail(failure, now);
    }

    /// Returns the calls that may be made. While assigning is held, an assignment is included only if its time has not come, so
    /// that the caller is woken at that time and can ask for permission.
    fn due_calls(&self, now: u64) -> DueCalls {
        let mut due_calls = self.all_due_calls(now);
        if self.held {
            due_calls.assign = due_calls.assign.filter(|(at, ..)| *at > now);
        }
        due_calls
    }

    fn all_due_calls(&self, now: u64) -> DueCalls {
        let mut due_calls = DueCalls::default();
        if self.calls.list.is_some() {
            return due_calls;
        }
        let must_list = self.addresses.must_list() || self.prefixes.must_list();
        let retry = self.retries.list.until;
        let list = if must_list {
            Some(retry)
        } else {
            self.recent.list_at().map(|at| at.max(retry))
        };
        // While a listing is due no other call begins, so that those in progress end and the listing can start.
        if must_list || list.is_some_and(|at| at <= now) {
            let idle = self.calls.assign.is_none() && self.calls.give_back.is_none();
            due_calls.list = list.filter(|_| idle);
            return due_calls;
        }
        due_calls.list = list;
        // The active kind comes first, because its pods wait; the other kind only drains.
        for kind in [self.active, self.active.other()] {
            let (goal, waiting) = self.goal(kind);
            let (capacity, _) = self.room_for(kind);
            match self.pool(kind).plan(goal, waiting, capacity) {
                Some(Step::Create(count)) if self.calls.assign.is_none() => {
                    // Fewer at a time while the subnet is short, because EC2 assigns all or nothing.
                    let count = self.retries.most.map_or(count, |most| count.min(most));
                    due_calls.assign = Some((self.retries.assign.until, kind, count));
                }
                Some(Step::GiveBack(blocks))
                    if self.calls.give_back.is_none() && due_calls.give_back.is_none() =>
                {
                    due_calls.give_back = Some((self.retries.give_back.until, kind, blocks));
                }
                _ => {}
            }
        }
        due_calls
    }
}

impl DueCalls {
    /// Returns the earliest time at which one of the calls may be made.
    fn first(&self) -> Option<u64> {
        let assign = self.assign.map(|(at, ..)| at);
        let give_back = self.give_back.as_ref().map(|(at, ..)| *at);
        [self.list, assign, give_back].into_iter().flatten().min()
    }
}
