//! Decides how fast nodes that are not ready lose their pods: one at a time in each zone, slower when much of a
//! zone fails (kube-controller-manager: zone states).
//!
//! The more nodes are silent at once, the more likely it is that the nodes work and the network between fails. So
//! eviction slows down, and stops when every zone is silent.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use super::marks::EvictionTaints;

/// The time between two nodes of a zone that lose their pods.
const PACE: SignedDuration = SignedDuration::from_secs(10);
/// The same in a large zone of which most nodes have failed.
const SLOW_PACE: SignedDuration = SignedDuration::from_secs(100);
/// A zone with more nodes than this is large.
const LARGE: usize = 50;

/// The state of one zone.
#[derive(Debug, Default)]
struct Zone {
    ready: usize,
    not_ready: usize,
    waiting: VecDeque<String>,
    next: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Normal,
    Partial,
    Full,
}

impl Zone {
    fn state(&self) -> State {
        let all = self.ready + self.not_ready;
        match () {
            () if self.ready == 0 && self.not_ready > 0 => State::Full,
            () if self.not_ready > 2 && self.not_ready * 100 >= all * 55 => State::Partial,
            () => State::Normal,
        }
    }

    fn pace(&self) -> Option<SignedDuration> {
        match self.state() {
            State::Normal | State::Full => Some(PACE),
            State::Partial if self.ready + self.not_ready > LARGE => Some(SLOW_PACE),
            // Upstream's `ReducedQPSFunc`: a small zone stops, because a slow pace would empty it all the
            // same.
            State::Partial => None,
        }
    }
}

/// The facts about a node that its zone depends on.
#[derive(Clone, Debug)]
pub struct ZoneNode<'a> {
    /// The node's name.
    pub name: &'a str,
    /// The node's region and zone as one text.
    pub zone: String,
    /// Whether the node is ready.
    pub ready: bool,
    /// Whether the node is not ready and does not have the taint yet that evicts its pods.
    pub awaits_eviction: bool,
}

/// The zones, with the nodes that wait for their turn.
#[derive(Debug, Default)]
pub struct Zones {
    zones: BTreeMap<String, Zone>,
}

impl Zones {
    /// Processes the state of all nodes. Returns by name whether the pods of a node that is not ready may be
    /// evicted.
    pub fn round(
        &mut self,
        members: &[ZoneNode<'_>],
        now: Timestamp,
    ) -> BTreeMap<String, EvictionTaints> {
        for zone in self.zones.values_mut() {
            (zone.ready, zone.not_ready) = (0, 0);
            // A node that is ready again loses its place, so it starts at the end if it fails once more.
            zone.waiting.retain(|name| {
                members
                    .iter()
                    .any(|member| member.name == name && member.awaits_eviction)
            });
        }
        for member in members {
            let zone = self.zones.entry(member.zone.clone()).or_default();
            zone.ready += usize::from(member.ready);
            zone.not_ready += usize::from(!member.ready);
            if member.awaits_eviction && !zone.waiting.iter().any(|name| name == member.name) {
                zone.waiting.push_back(member.name.to_owned());
            }
        }
        self.zones.retain(|_, zone| zone.ready + zone.not_ready > 0);
        let all_down =
            !self.zones.is_empty() && self.zones.values().all(|zone| zone.state() == State::Full);
        let not_ready = members.iter().filter(|member| !member.ready);
        let default = if all_down {
            EvictionTaints::Never
        } else {
            EvictionTaints::NotYet
        };
        let mut verdicts: BTreeMap<_, _> = not_ready
            .map(|member| (member.name.to_owned(), default))
            .collect();
        if all_down {
            return verdicts;
        }
        for zone in self.zones.values_mut() {
            // A small zone that has mostly failed loses no pods at all.
            let Some(pace) = zone.pace() else { continue };
            if zone.next.is_none_or(|next| next <= now)
                && let Some(name) = zone.waiting.pop_front()
            {
                verdicts.insert(name, EvictionTaints::Now);
                zone.next = now.checked_add(pace).ok();
            }
        }
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("within range")
    }

    fn zone<'a>(zone: &str, names: &'a [String], down: usize) -> Vec<ZoneNode<'a>> {
        let member = |(index, name): (usize, &'a String)| ZoneNode {
            name,
            zone: zone.to_owned(),
            ready: index >= down,
            awaits_eviction: index < down,
        };
        names.iter().enumerate().map(member).collect()
    }

    fn names(prefix: &str, count: usize) -> Vec<String> {
        (0..count).map(|n| format!("{prefix}{n}")).collect()
    }

    fn evicted(verdicts: &BTreeMap<String, EvictionTaints>) -> Vec<&str> {
        verdicts
            .iter()
            .filter(|(_, verdict)| **verdict == EvictionTaints::Now)
            .map(|(name, _)| name.as_str())
            .collect()
    }

    #[test]
    fn a_zone_loses_one_node_every_ten_seconds() {
        let names = names("a", 10);
        let mut zones = Zones::default();
        let members = zone("a", &names, 2);
        assert_eq!(evicted(&zones.round(&members, at(0))), ["a0"]);
        let members = &members[1..];
        assert_eq!(evicted(&zones.round(members, at(5))).len(), 0);
        assert_eq!(evicted(&zones.round(members, at(10))), ["a1"]);
    }

    #[test]
    fn a_small_zone_that_mostly_failed_keeps_its_pods_and_a_large_one_loses_them_slowly() {
        let (small, large) = (names("s", 10), names("l", 60));
        let mut members = zone("small", &small, 6);
        members.extend(zone("large", &large, 40));
        let mut zones = Zones::default();
        assert_eq!(evicted(&zones.round(&members, at(0))), ["l0"]);
        members.retain(|member| member.name != "l0");
        assert_eq!(evicted(&zones.round(&members, at(99))).len(), 0);
        assert_eq!(evicted(&zones.round(&members, at(100))), ["l1"]);
    }

    #[test]
    fn when_every_zone_is_down_nothing_is_evicted_and_taints_are_taken_back() {
        let (a, b) = (names("a", 3), names("b", 2));
        let mut members = zone("a", &a, 3);
        members.extend(zone("b", &b, 2));
        let verdicts = Zones::default().round(&members, at(0));
        assert!(
            verdicts
                .values()
                .all(|verdict| *verdict == EvictionTaints::Never)
        );
        assert_eq!(verdicts.len(), 5);
    }

    #[test]
    fn one_zone_that_is_down_while_another_is_well_loses_its_pods_at_the_usual_pace() {
        let (a, b) = (names("a", 3), names("b", 2));
        let mut members = zone("a", &a, 3);
        members.extend(zone("b", &b, 0));
        assert_eq!(evicted(&Zones::default().round(&members, at(0))), ["a0"]);
    }
}
