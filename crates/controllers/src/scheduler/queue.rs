//! The scheduling queue: the order in which pending pods are tried, and the pods that wait for an event.
//!
//! A plain struct; `now` is an argument. A pod is in one of these places: *active* (to be tried, by priority and time),
//! *backing off* (an event may have helped, but its last refusal is recent), *erring* (backing off after an error),
//! *unschedulable* (no event has helped yet), or *gated* (it has scheduling gates). Rules and numbers are kube-scheduler's.
//!
//! Invariant: a pod is in at most one place; a pod that was handed out is in none until it is given back.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    requirements::PodRequirements,
    wake::{self, Event, Plugins},
};

/// The back-off of a pod after a refusal, which doubles with each refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first back-off in seconds.
    pub initial_seconds: i64,
    /// The longest back-off in seconds; 0 disables back-offs.
    pub max_seconds: i64,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            initial_seconds: 1,
            max_seconds: 10,
        }
    }
}

impl Backoff {
    /// Returns the back-off in seconds after this number of refusals.
    fn after(self, refusals: u32) -> i64 {
        let Some(doublings) = refusals.checked_sub(1) else {
            return 0;
        };
        // Compared before shifting, so that many refusals cannot overflow.
        let halved = self.max_seconds.checked_shr(doublings).unwrap_or(0);
        if self.initial_seconds > halved {
            self.max_seconds
        } else {
            self.initial_seconds << doublings
        }
    }
}

/// Pods that no event has woken for this long are retried.
const STALE: SignedDuration = SignedDuration::from_secs(5 * 60);
/// How often the queue is searched for such pods.
pub const STALE_CHECK: SignedDuration = SignedDuration::from_secs(30);

/// A pod in the queue, or handed out of it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The pod as last seen.
    pub pod: Arc<Pod>,
    /// The pod's uid.
    key: Arc<str>,
    /// How often plugins have refused it.
    refusals: u32,
    /// How often it failed with an error since the last refusal by plugins.
    failures: u32,
    rejectors: Plugins,
    /// What it waits for since plugins refused it.
    requirements: PodRequirements,
    /// Whether pods are being evicted for it. Until all of them are, another try would evict further pods.
    evicting: bool,
    /// The uid of the last victim, once the others are evicted.
    last_victim: Option<Arc<str>>,
    backoff: Backoff,
    /// When the pod was added or given back.
    since: Timestamp,
    sequence: u64,
}

/// The order of active pods: higher priority first, then time, then arrival.
type Order = (Reverse<i32>, Timestamp, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Active,
    BackingOff(Timestamp),
    /// Backing off after an error instead of a refusal.
    Erring(Timestamp),
    Unschedulable,
    Gated,
}

/// The queue.
#[derive(Debug, Default)]
pub struct SchedulingQueue {
    entries: FxHashMap<Arc<str>, (Entry, Place)>,
    active: BTreeMap<Order, Arc<str>>,
    backing_off: BTreeSet<(Timestamp, Order, Arc<str>)>,
    erring: BTreeSet<(Timestamp, Order, Arc<str>)>,
    /// The unschedulable pods by the plugins that refused them. Pods that wait for evictions are not included: no event
    /// wakes them, and during large preemptions there are many of both.
    waiting: FxHashMap<Plugins, FxHashSet<Arc<str>>>,
    /// The last victims that have not left yet, each with the pod that waits for it.
    last_victims: BTreeSet<(Arc<str>, Arc<str>)>,
    /// Pods that are handed out, with the newer version that was seen meanwhile.
    out: FxHashMap<Arc<str>, Option<Arc<Pod>>>,
    sequence: u64,
    backoff: Backoff,
}

impl SchedulingQueue {
    /// Creates an empty queue.
    pub fn new(backoff: Backoff) -> Self {
        SchedulingQueue {
            backoff,
            ..SchedulingQueue::default()
        }
    }

    /// Adds a pending pod, or updates it after a change.
    pub fn set(&mut self, pod: Arc<Pod>, now: Timestamp) {
        let key = key(&pod);
        if let Some(newer) = self.out.get_mut(key) {
            // The loop decides about the older version; the newer one is applied when the pod is given back.
            *newer = Some(pod);
            return;
        }
        let Some((mut entry, place)) = self.take(key) else {
            self.sequence += 1;
            let entry = Entry {
                key: key.into(),
                pod,
                refusals: 0,
                failures: 0,
                rejectors: Plugins::default(),
                requirements: PodRequirements::default(),
                evicting: false,
                last_victim: None,
                backoff: self.backoff,
                since: now,
                sequence: self.sequence,
            };
            let place = if is_gated(&entry.pod) {
                Place::Gated
            } else {
                Place::Active
            };
            return self.put(entry, place);
        };
        let helped = entry.renew(pod);
        let place = match place {
            Place::Gated if is_gated(&entry.pod) => Place::Gated,
            Place::Gated => Place::Active,
            // Pods that back off are tried again anyway, and a pod with victims must wait for them.
            Place::Unschedulable if helped && !entry.evicting => entry.woken(now),
            place => place,
        };
        self.put(entry, place);
    }

    /// Removes a pod that is gone or bound.
    pub fn remove(&mut self, pod: &Pod) {
        let key = key(pod);
        self.out.remove(key);
        if let Some((mut entry, _)) = self.take(key) {
            self.forget_victim(&mut entry);
        }
    }

    /// Hands out up to `count` pods in order. If none is active, the refused pod whose back-off ends first is handed out
    /// (kube-scheduler: SchedulerPopFromBackoffQ).
    pub fn pop(&mut self, count: usize) -> Vec<Entry> {
        let mut keys: Vec<_> = self.active.values().take(count).cloned().collect();
        if keys.is_empty() {
            // One at a time: with nothing else to do an early try costs nothing, but a new pod must not wait
            // behind many.
            keys.extend(self.backing_off.first().map(|(_, _, key)| Arc::clone(key)));
        }
        let hand_out = |key: Arc<str>| {
            let (entry, _) = self.take(&key)?;
            self.out.insert(key, None);
            Some(entry)
        };
        keys.into_iter().filter_map(hand_out).collect()
    }

    /// Drops a pod that was handed out and then bound, or that will not be tried again.
    pub fn finish(&mut self, entry: &Entry) {
        self.out.remove(&entry.key);
    }

    /// Takes back a pod that `rejectors` refused; it then waits for `requirements`. Without rejectors (a cluster without nodes) no
    /// event is known to help, so the pod is retried after its back-off. While pods are `evicting` for it, no event wakes it
    /// (kube-scheduler: DefaultPreemption's PreEnqueue).
    pub fn refused(
        &mut self,
        mut entry: Entry,
        rejectors: Plugins,
        requirements: PodRequirements,
        evicting: bool,
        now: Timestamp,
    ) {
        if rejectors.is_empty() {
            return self.failed(entry, now);
        }
        entry.refusals += 1;
        entry.failures = 0;
        entry.rejectors = rejectors;
        entry.requirements = requirements;
        entry.evicting = evicting;
        // The queue time counts from the last try, so among equal priorities refused pods go behind newer
        // ones.
        entry.since = now;
        self.give_back(entry, Place::Unschedulable, now);
    }

    /// Takes back a pod that cannot be tried yet because something that `rejectors` need does not exist (kube-scheduler:
    /// PreEnqueue). This does not count as a refusal.
    pub fn held(
        &mut self,
        mut entry: Entry,
        rejectors: Plugins,
        requirements: PodRequirements,
        now: Timestamp,
    ) {
        entry.failures = 0;
        entry.rejectors = rejectors;
        entry.requirements = requirements;
        entry.evicting = false;
        self.give_back(entry, Place::Unschedulable, now);
    }

    /// Takes back a pod whose scheduling or binding failed with an error; it is retried after its back-off.
    pub fn failed(&mut self, mut entry: Entry, now: Timestamp) {
        entry.failures += 1;
        entry.rejectors = Plugins::default();
        entry.requirements = PodRequirements::default();
        entry.since = now;
        let until = entry.backoff_ends();
        self.give_back(entry, Place::Erring(until), now);
    }

    fn give_back(&mut self, mut entry: Entry, place: Place, now: Timestamp) {
        // A pod that is not handed out any more was removed from the queue meanwhile.
        let Some(newer) = self.out.remove(&entry.key) else {
            return;
        };
        let helped = newer.is_some_and(|newer| entry.renew(newer));
        let place = if helped && !entry.evicting {
            entry.woken(now)
        } else {
            place
        };
        self.put(entry, place);
    }

    /// Records the last victim of a pod whose other victims are evicted: no event wakes the pod until that one leaves
    /// ([`SchedulingQueue::left`]).
    pub fn awaits(&mut self, uid: &str, last_victim: &str) {
        if let Some((entry, _)) = self.entries.get_mut(uid)
            && entry.evicting
        {
            let victim: Arc<str> = last_victim.into();
            entry.last_victim = Some(Arc::clone(&victim));
            self.last_victims.insert((victim, Arc::clone(&entry.key)));
        }
    }

    /// Records that a bound pod leaves: from now on events may wake the pods that waited for it.
    pub fn left(&mut self, victim: &str) {
        for pod in self.waiting_for(victim) {
            self.evicted(&pod);
        }
    }

    /// Retries the pods that waited for a victim which was not evicted after all.
    pub fn spared(&mut self, victim: &str) {
        for pod in self.waiting_for(victim) {
            self.activate(&pod);
        }
    }

    fn waiting_for(&self, victim: &str) -> Vec<Arc<str>> {
        if self.last_victims.is_empty() {
            return Vec::new();
        }
        let of_it = self.last_victims.range((victim.into(), "".into())..);
        of_it
            .take_while(|(uid, _)| **uid == *victim)
            .map(|(_, pod)| Arc::clone(pod))
            .collect()
    }

    /// Records that no pod is being evicted for this pod any more, so that events wake it again.
    pub fn evicted(&mut self, uid: &str) {
        if let Some((mut entry, place)) = self.take(uid) {
            entry.evicting = false;
            self.forget_victim(&mut entry);
            self.put(entry, place);
        }
    }

    fn forget_victim(&mut self, entry: &mut Entry) {
        if let Some(victim) = entry.last_victim.take() {
            self.last_victims.remove(&(victim, Arc::clone(&entry.key)));
        }
    }

    /// Moves a pod to the active ones, whatever it waits for (kube-scheduler: `Activate`).
    pub fn activate(&mut self, uid: &str) {
        self.evicted(uid);
        let waits = |(_, place): &(Entry, Place)| {
            matches!(place, Place::Unschedulable | Place::BackingOff(_))
        };
        if self.entries.get(uid).is_some_and(waits) {
            self.relocate(uid, |_| Place::Active);
        }
    }

    /// Returns whether a pod waits that was refused by a plugin which registers for this event.
    pub fn cares_for(&self, event: &Event) -> bool {
        let interests = event.interests();
        self.waiting
            .keys()
            .any(|rejectors| rejectors.intersects(interests))
    }

    /// Wakes the pods that any of these events may help.
    pub fn notify(&mut self, events: &[Event], now: Timestamp) {
        let events: Vec<_> = events
            .iter()
            .map(|event| (event, event.interests()))
            .collect();
        let mut helped = Vec::new();
        // Pods with the same rejectors are stored together: an event that concerns none of them costs one
        // comparison.
        for (rejectors, keys) in &self.waiting {
            let of_interest = events
                .iter()
                .filter(|(_, interests)| rejectors.intersects(*interests));
            let of_interest: Vec<_> = of_interest.map(|(event, _)| *event).collect();
            if of_interest.is_empty() {
                continue;
            }
            let is_helped = |key: &&Arc<str>| {
                self.entries.get(*key).is_some_and(|(entry, _)| {
                    let helps = |event: &&Event| {
                        wake::wakes(&entry.pod, *rejectors, &entry.requirements, event)
                    };
                    of_interest.iter().any(helps)
                })
            };
            helped.extend(keys.iter().filter(is_helped).cloned());
        }
        for key in helped {
            self.relocate(&key, |entry| entry.woken(now));
        }
    }

    /// Moves pods whose back-off has ended to the active ones.
    pub fn flush_backoff(&mut self, now: Timestamp) {
        // Pods that failed with an error are never taken early, because the error needs time to pass.
        for erring in [false, true] {
            loop {
                let waiting = if erring {
                    &self.erring
                } else {
                    &self.backing_off
                };
                match waiting
                    .first()
                    .filter(|(until, _, _)| is_over(*until, now))
                    .cloned()
                {
                    Some((_, _, key)) => self.relocate(&key, |_| Place::Active),
                    None => break,
                }
            }
        }
    }

    /// Wakes pods that have waited for more than five minutes.
    pub fn flush_stale(&mut self, now: Timestamp) {
        let is_stale = |key: &&Arc<str>| {
            let entry = self.entries.get(*key);
            entry.is_some_and(|(entry, _)| now.duration_since(entry.since) > STALE)
        };
        let waiting = self.waiting.values().flatten();
        let stale: Vec<_> = waiting.filter(is_stale).cloned().collect();
        for key in stale {
            self.relocate(&key, |entry| entry.woken(now));
        }
    }

    /// Returns whether a pod can be handed out now.
    pub fn has_work(&self) -> bool {
        !self.active.is_empty() || !self.backing_off.is_empty()
    }

    /// Returns the number of pods in the queue: active, backing off, unschedulable, gated.
    pub fn depth(&self) -> [usize; 4] {
        let mut depth = [0; 4];
        for (_, place) in self.entries.values() {
            depth[match place {
                Place::Active => 0,
                Place::BackingOff(_) | Place::Erring(_) => 1,
                Place::Unschedulable => 2,
                Place::Gated => 3,
            }] += 1;
        }
        depth
    }

    fn relocate(&mut self, key: &str, to: impl FnOnce(&Entry) -> Place) {
        if let Some((entry, _)) = self.take(key) {
            let place = to(&entry);
            self.put(entry, place);
        }
    }

    fn put(&mut self, entry: Entry, place: Place) {
        let key = Arc::clone(&entry.key);
        match place {
            Place::Active => {
                self.active.insert(entry.order(), Arc::clone(&key));
            }
            Place::BackingOff(until) => {
                self.backing_off
                    .insert((until, entry.order(), Arc::clone(&key)));
            }
            Place::Erring(until) => {
                self.erring.insert((until, entry.order(), Arc::clone(&key)));
            }
            Place::Unschedulable if !entry.evicting => {
                let alike = self.waiting.entry(entry.rejectors).or_default();
                alike.insert(Arc::clone(&key));
            }
            Place::Unschedulable | Place::Gated => {}
        }
        self.entries.insert(key, (entry, place));
    }

    fn take(&mut self, key: &str) -> Option<(Entry, Place)> {
        let (key, (entry, place)) = self.entries.remove_entry(key)?;
        match place {
            Place::Active => {
                self.active.remove(&entry.order());
            }
            Place::BackingOff(until) => {
                self.backing_off.remove(&(until, entry.order(), key));
            }
            Place::Erring(until) => {
                self.erring.remove(&(until, entry.order(), key));
            }
            Place::Unschedulable => {
                if let Some(alike) = self.waiting.get_mut(&entry.rejectors) {
                    alike.remove(&key);
                    if alike.is_empty() {
                        self.waiting.remove(&entry.rejectors);
                    }
                }
            }
            Place::Gated => {}
        }
        Some((entry, place))
    }
}

impl Entry {
    fn order(&self) -> Order {
        let priority = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.priority)
            .unwrap_or(0);
        (Reverse(priority), self.since, self.sequence)
    }

    /// Replaces the pod with a newer version. Returns whether the change may help the pod with the plugins that
    /// refused it.
    fn renew(&mut self, newer: Arc<Pod>) -> bool {
        let old = std::mem::replace(&mut self.pod, newer);
        if self.rejectors.is_empty() {
            return false;
        }
        self.requirements = self.requirements.renewed(&self.pod, self.rejectors);
        wake::own_change_wakes(&old, &self.pod, self.rejectors, &self.requirements)
    }

    /// Returns the place to which an event moves the pod: active, or backing off if it was refused too recently.
    fn woken(&self, now: Timestamp) -> Place {
        let until = self.backoff_ends();
        let was_tried = self.refusals + self.failures > 0;
        if !was_tried || is_over(until, now) {
            Place::Active
        } else {
            Place::BackingOff(until)
        }
    }

    fn backoff_ends(&self) -> Timestamp {
        let count = if self.failures > 0 {
            self.failures
        } else {
            self.refusals
        };
        let backoff = self.backoff.after(count);
        Timestamp::from_second(self.since.as_second() + backoff).unwrap_or(Timestamp::MAX)
    }
}

/// Returns whether a back-off has ended. Its end is truncated to whole seconds, so the comparison waits for the end
/// of that second and never shortens the back-off.
fn is_over(until: Timestamp, now: Timestamp) -> bool {
    until.as_second() < now.as_second()
}

fn key(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn is_gated(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref())
        .is_some_and(|gates| !gates.is_empty())
}

#[cfg(test)]
mod tests;
