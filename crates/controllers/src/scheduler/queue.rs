//! The scheduling queue: which pod is tried next, and which wait for what.
//!
//! A plain struct over `now`. A pod is in one of four places: *active* (to be tried, by priority and time), *backing off*
//! (something may have changed for it, but it was refused a moment ago), *unschedulable* (nothing has changed for it), or
//! *gated* (its scheduling gates are not gone). kube-scheduler's rules, with its numbers.
//!
//! Invariant: a pod is in one place at most; one that was handed out is in none until it is given back.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use rustc_hash::FxHashMap;

use super::wake::{self, Event, Plugins};

/// How long a pod waits after it was refused: twice as long each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first time.
    pub initial_seconds: i64,
    /// At most; 0 for no waiting at all.
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
    /// How long a pod waits that was refused so often.
    fn after(self, refusals: u32) -> i64 {
        let Some(doublings) = refusals.checked_sub(1) else {
            return 0;
        };
        let halved = self.max_seconds.checked_shr(doublings).unwrap_or(0);
        if self.initial_seconds > halved {
            self.max_seconds
        } else {
            self.initial_seconds << doublings
        }
    }
}

/// Pods that nothing woke for so long are tried again; looked for this often.
const STALE: SignedDuration = SignedDuration::from_secs(5 * 60);
/// How often stale pods are looked for.
pub const STALE_CHECK: SignedDuration = SignedDuration::from_secs(30);

/// A pod in the queue, or handed out of it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The pod as last seen.
    pub pod: Arc<Pod>,
    /// How often plugins have refused it.
    refusals: u32,
    /// How often trying it failed for another reason, since plugins last had a say.
    failures: u32,
    rejectors: Plugins,
    backoff: Backoff,
    /// When it came, or last came back.
    since: Timestamp,
    sequence: u64,
}

/// By priority (higher first), then time, then arrival.
type Order = (Reverse<i32>, Timestamp, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Active,
    BackingOff(Timestamp),
    /// Backing off after an error, not a refusal.
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
    /// Pods that were handed out and not given back, with what became known of them since.
    out: FxHashMap<Arc<str>, Option<Arc<Pod>>>,
    sequence: u64,
    backoff: Backoff,
}

impl SchedulingQueue {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Self {
        SchedulingQueue {
            backoff,
            ..SchedulingQueue::default()
        }
    }

    /// A pending pod appeared or changed.
    pub fn set(&mut self, pod: Arc<Pod>, now: Timestamp) {
        let key = key(&pod);
        if let Some(newer) = self.out.get_mut(&key) {
            *newer = Some(pod);
            return;
        }
        let Some((mut entry, place)) = self.take(&key) else {
            self.sequence += 1;
            let entry = Entry {
                pod,
                refusals: 0,
                failures: 0,
                rejectors: Plugins::default(),
                backoff: self.backoff,
                since: now,
                sequence: self.sequence,
            };
            let place = if is_gated(&entry.pod) {
                Place::Gated
            } else {
                Place::Active
            };
            return self.put(key, entry, place);
        };
        let helped = wake::own_change_wakes(&entry.pod, &pod, entry.rejectors);
        entry.pod = pod;
        let place = match place {
            Place::Gated if is_gated(&entry.pod) => Place::Gated,
            Place::Gated => Place::Active,
            Place::Unschedulable if helped => entry.woken(now),
            place => place,
        };
        self.put(key, entry, place);
    }

    /// A pod is gone, or bound.
    pub fn remove(&mut self, pod: &Pod) {
        let key = key(pod);
        self.out.remove(&key);
        self.take(&key);
    }

    /// Hands out up to `count` pods to be tried, best first. When none is active, the refused one closest to the end of
    /// its back-off is handed out (kube-scheduler: SchedulerPopFromBackoffQ).
    pub fn pop(&mut self, count: usize) -> Vec<Entry> {
        let mut keys: Vec<_> = self.active.values().take(count).cloned().collect();
        if keys.is_empty() {
            keys.extend(self.backing_off.first().map(|(_, _, key)| Arc::clone(key)));
        }
        let hand_out = |key: Arc<str>| {
            let (entry, _) = self.take(&key)?;
            self.out.insert(key, None);
            Some(entry)
        };
        keys.into_iter().filter_map(hand_out).collect()
    }

    /// A pod that was handed out got its node.
    pub fn placed(&mut self, entry: &Entry) {
        self.out.remove(&key(&entry.pod));
    }

    /// A pod that was handed out was refused by `rejectors`. If there are none (a cluster without nodes), no event could
    /// be known to help, so the pod is tried again after its back-off.
    pub fn refused(&mut self, mut entry: Entry, rejectors: Plugins, now: Timestamp) {
        if rejectors.is_empty() {
            return self.failed(entry, now);
        }
        entry.refusals += 1;
        entry.failures = 0;
        entry.rejectors = rejectors;
        self.give_back(entry, Place::Unschedulable, now);
    }

    /// Trying a pod, or binding it, failed for a reason that no plugin gave: it is tried again after its back-off.
    pub fn failed(&mut self, mut entry: Entry, now: Timestamp) {
        entry.failures += 1;
        entry.rejectors = Plugins::default();
        entry.since = now;
        let until = entry.backoff_ends();
        self.give_back(entry, Place::Erring(until), now);
    }

    fn give_back(&mut self, mut entry: Entry, place: Place, now: Timestamp) {
        let key = key(&entry.pod);
        // What is not out any more was removed while it was tried.
        let Some(newer) = self.out.remove(&key) else {
            return;
        };
        entry.since = now;
        let helped = newer
            .as_ref()
            .is_some_and(|newer| wake::own_change_wakes(&entry.pod, newer, entry.rejectors));
        entry.pod = newer.unwrap_or(entry.pod);
        let place = if helped { entry.woken(now) } else { place };
        self.put(key, entry, place);
    }

    /// Wakes the pods that any of these events may help.
    pub fn notify(&mut self, events: &[Event], now: Timestamp) {
        let waiting = self
            .entries
            .iter()
            .filter(|(_, (_, place))| *place == Place::Unschedulable);
        let helped = waiting.filter(|(_, (entry, _))| {
            let helps = |event| wake::wakes(&entry.pod, entry.rejectors, event);
            events.iter().any(helps)
        });
        let helped: Vec<_> = helped.map(|(key, _)| Arc::clone(key)).collect();
        for key in helped {
            self.relocate(&key, |entry| entry.woken(now));
        }
    }

    /// Moves pods whose back-off is over to the active ones.
    pub fn flush_backoff(&mut self, now: Timestamp) {
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
        let stale = |(entry, place): &(Entry, Place)| {
            *place == Place::Unschedulable && now.duration_since(entry.since) > STALE
        };
        let stale: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, at)| stale(at))
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in stale {
            self.relocate(&key, |entry| entry.woken(now));
        }
    }

    /// Whether a pod can be handed out now.
    pub fn has_work(&self) -> bool {
        !self.active.is_empty() || !self.backing_off.is_empty()
    }

    /// Number of pods in the queue (active, backing off, unschedulable, gated).
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

    /// Whether any pod waits for an event.
    pub fn has_unschedulable(&self) -> bool {
        self.entries.len() > self.active.len() + self.backing_off.len() + self.erring.len()
    }

    fn relocate(&mut self, key: &Arc<str>, to: impl FnOnce(&Entry) -> Place) {
        if let Some((entry, _)) = self.take(key) {
            let place = to(&entry);
            self.put(Arc::clone(key), entry, place);
        }
    }

    fn put(&mut self, key: Arc<str>, entry: Entry, place: Place) {
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
            Place::Unschedulable | Place::Gated => {}
        }
        self.entries.insert(key, (entry, place));
    }

    fn take(&mut self, key: &Arc<str>) -> Option<(Entry, Place)> {
        let (entry, place) = self.entries.remove(key)?;
        match place {
            Place::Active => {
                self.active.remove(&entry.order());
            }
            Place::BackingOff(until) => {
                self.backing_off
                    .remove(&(until, entry.order(), Arc::clone(key)));
            }
            Place::Erring(until) => {
                self.erring.remove(&(until, entry.order(), Arc::clone(key)));
            }
            Place::Unschedulable | Place::Gated => {}
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

    /// Where an event moves it: to the active pods, unless it was refused too recently.
    fn woken(&self, now: Timestamp) -> Place {
        let until = self.backoff_ends();
        if is_over(until, now) {
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

/// Ends are cut to whole seconds; so that this never shortens a back-off, its last second is waited out.
fn is_over(until: Timestamp, now: Timestamp) -> bool {
    until.as_second() < now.as_second()
}

fn key(pod: &Pod) -> Arc<str> {
    pod.metadata.uid.as_deref().unwrap_or_default().into()
}

fn is_gated(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref())
        .is_some_and(|gates| !gates.is_empty())
}

#[cfg(test)]
mod tests {
    use mullion_engine::Plugin;
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000 + second).expect("within range")
    }

    fn pod(name: &str, priority: i32) -> Arc<Pod> {
        let pod = json!({ "metadata": { "name": name, "uid": name }, "spec": { "priority": priority, "containers": [] } });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn gated(name: &str) -> Arc<Pod> {
        let mut pod = Pod::clone(&pod(name, 0));
        pod.spec.as_mut().expect("a spec").scheduling_gates = Some(vec![Default::default()]);
        Arc::new(pod)
    }

    fn names(entries: &[Entry]) -> Vec<&str> {
        entries
            .iter()
            .map(|entry| entry.pod.metadata.name.as_deref().unwrap_or_default())
            .collect()
    }

    fn fit() -> Plugins {
        Plugins::from_iter([Plugin::NodeResourcesFit])
    }

    #[test]
    fn pods_are_handed_out_by_priority_and_then_by_arrival() {
        let mut queue = SchedulingQueue::default();
        for (name, priority, second) in [("a", 0, 1), ("b", 10, 2), ("c", 0, 0), ("d", 10, 2)] {
            queue.set(pod(name, priority), at(second));
        }
        assert_eq!(names(&queue.pop(3)), ["b", "d", "c"]);
        assert_eq!(names(&queue.pop(3)), ["a"]);
        assert!(!queue.has_work());
    }

    #[test]
    fn a_refused_pod_waits_for_an_event_that_can_help_and_for_its_back_off() {
        let mut queue = SchedulingQueue::default();
        queue.set(pod("a", 0), at(0));
        let entry = queue.pop(1).remove(0);
        queue.refused(entry, fit(), at(0));
        queue.notify(&[Event::PodAdded(pod("x", 0))], at(0));
        assert_eq!(queue.depth(), [0, 0, 1, 0]);
        queue.notify(&[Event::PodDeleted(pod("x", 0))], at(0));
        assert_eq!(queue.depth(), [0, 1, 0, 0]);
        queue.flush_backoff(at(1));
        assert_eq!(queue.depth(), [0, 1, 0, 0]);
        queue.flush_backoff(at(2));
        assert_eq!(queue.depth(), [1, 0, 0, 0]);
    }

    #[test]
    fn a_pod_refused_by_nobody_is_tried_again_without_an_event() {
        let mut queue = SchedulingQueue::default();
        queue.set(pod("a", 0), at(0));
        let entry = queue.pop(1).remove(0);
        queue.refused(entry, Plugins::default(), at(0));
        assert!(!queue.has_work());
        queue.flush_backoff(at(2));
        assert_eq!(names(&queue.pop(5)), ["a"]);
    }

    #[test]
    fn an_event_after_the_back_off_makes_the_pod_active_at_once() {
        let mut queue = SchedulingQueue::default();
        queue.set(pod("a", 0), at(0));
        let entry = queue.pop(1).remove(0);
        queue.refused(entry, fit(), at(0));
        queue.notify(&[Event::PodDeleted(pod("x", 0))], at(2));
        assert_eq!(queue.depth(), [1, 0, 0, 0]);
    }

    #[test]
    fn rejections_in_a_row_back_off_one_two_four_eight_and_then_ten_seconds() {
        let mut queue = SchedulingQueue::default();
        queue.set(pod("a", 0), at(0));
        let mut waits = Vec::new();
        for now in (0..6).map(|round| at(round * 60)) {
            queue.flush_stale(now + SignedDuration::from_secs(600));
            queue.flush_backoff(now);
            let entry = queue.pop(1).remove(0);
            queue.refused(entry, fit(), now);
            let (entry, _) = queue.entries.values().next().expect("it waits");
            waits.push(entry.backoff_ends().as_second() - now.as_second());
        }
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn a_pod_that_backs_off_is_handed_out_when_there_is_nothing_else_to_do() {
        let mut queue = SchedulingQueue::default();
        queue.set(pod("a", 0), at(0));
        let entry = queue.pop(1).remove(0);
        queue.refused(entry, fit(), at(0));
        queue.notify(&[Event::PodDeleted(pod("x", 0))], at(0));
        queue.set(pod("b", 0), at(0));
        assert_eq!(names(&queue.pop(5)), ["b"]);
        let entry = queue.pop(5).remove(0);
        queue.failed(entry, at(0));
        assert!(
            !queue.has_work(),
            "after an error the back-off is waited out"
        );
        queue.flush_backoff(at(2));
        assert_eq!(names(&queue.pop(5)), ["a"]);
    }

    #[test]
    fn a_pod_that_nothing_woke_for_five_minutes_is_tried_again() {
        let mut queue = SchedulingQueue::default();
        queue.set(pod("a", 0), at(0));
        let entry = queue.pop(1).remove(0);
        queue.refused(entry, fit(), at(0));
        queue.flush_stale(at(300));
        assert_eq!(queue.depth(), [0, 0, 1, 0]);
        queue.flush_stale(at(301));
        assert_eq!(queue.depth(), [1, 0, 0, 0]);
    }

    #[test]
    fn a_gated_pod_waits_until_its_last_gate_is_gone() {
        let mut queue = SchedulingQueue::default();
        queue.set(gated("a"), at(0));
        queue.notify(&[Event::PodDeleted(pod("x", 0))], at(5));
        queue.flush_stale(at(1_000));
        assert_eq!(queue.depth(), [0, 0, 0, 1]);
        queue.set(pod("a", 0), at(6));
        assert_eq!(queue.depth(), [1, 0, 0, 0]);
    }

    #[test]
    fn what_changes_while_a_pod_is_tried_counts_when_it_comes_back() {
        let mut queue = SchedulingQueue::default();
        queue.set(pod("a", 0), at(0));
        queue.set(pod("b", 0), at(0));
        let mut entries = queue.pop(2);
        let mut tolerating = Pod::clone(&pod("a", 0));
        tolerating.spec.as_mut().expect("a spec").tolerations = Some(vec![Default::default()]);
        queue.set(Arc::new(tolerating), at(1));
        queue.remove(&pod("b", 0));
        let rejectors = Plugins::from_iter([Plugin::TaintToleration]);
        let (b, a) = (entries.remove(1), entries.remove(0));
        queue.refused(b, rejectors, at(1));
        queue.refused(a, rejectors, at(1));
        assert_eq!(
            queue.depth(),
            [0, 1, 0, 0],
            "a's toleration may help it, b is gone"
        );
    }
}
