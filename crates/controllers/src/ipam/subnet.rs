//! Limits how often the nodes of one subnet may request addresses of one kind while it has few or none left.
//!
//! After a call that requested several addresses and got none, calls go one by one, each requesting half as many. A
//! call for a single address that gets none closes the subnet for all its nodes: for 2 s, and twice as long after
//! each further one, up to 2 min. Then one node may try. A success doubles how many calls may be in progress and
//! how many addresses each may request. An address that is returned to the subnet opens it at once. A call without
//! an answer blocks others for at most 2 s.

use std::collections::VecDeque;

use mullion_engine::ip::CallPriority;

use super::{call_queue::WaitingNodes, driver::NodeName};

const FIRST_MS: u64 = 2_000;
const MAX_MS: u64 = 120_000;
/// A call that takes longer than this does not count as in progress any more: its answer may be lost.
const SLOW_MS: u64 = 2_000;

/// The limits for one kind of address in one subnet.
#[derive(Debug)]
pub(super) struct Subnet {
    wait_ms: u64,
    /// The subnet is closed before this time.
    until: u64,
    /// How many calls may be in progress.
    window: usize,
    /// How many blocks a call may request.
    most: u32,
    /// The start times of the calls that have not ended, in order.
    under_way: VecDeque<u64>,
    /// The time of the last refusal. A refusal of a call that began earlier brings no new information.
    refused_at: Option<u64>,
    /// Nodes that wait to assign addresses.
    parked: WaitingNodes,
}

impl Default for Subnet {
    fn default() -> Self {
        Subnet {
            wait_ms: 0,
            until: 0,
            window: usize::MAX,
            most: u32::MAX,
            under_way: VecDeque::new(),
            refused_at: None,
            parked: WaitingNodes::default(),
        }
    }
}

impl Subnet {
    /// Returns whether a call may begin now.
    pub(super) fn is_open(&self, now: u64) -> bool {
        self.free(now) > 0
    }

    /// Returns how many calls may begin now.
    pub(super) fn free(&self, now: u64) -> usize {
        let under_way = self.under_way.iter();
        let counted = under_way.filter(|begun| **begun + SLOW_MS > now).count();
        if self.until <= now {
            self.window.saturating_sub(counted)
        } else {
            0
        }
    }

    /// Returns how many blocks a call may request.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// Returns when waiting nodes may continue, unless an answer lets them continue earlier.
    pub(super) fn opens_at(&self) -> Option<u64> {
        if self.parked.is_empty() {
            return None;
        }
        // The call at this position is the one whose end, or slowness, brings the number below the window.
        let decides = self.under_way.len().checked_sub(self.window);
        let begun = decides.and_then(|at| self.under_way.get(at));
        let free_at = begun.map_or(0, |begun| begun + SLOW_MS);
        Some(self.until.max(free_at))
    }

    /// Makes a node wait until the subnet is open.
    pub(super) fn park(&mut self, node: &NodeName, priority: CallPriority) {
        self.parked.add(node, priority);
    }

    /// Returns the next waiting node. The caller must check [`Subnet::is_open`] again when the node's turn comes.
    pub(super) fn unpark(&mut self) -> Option<NodeName> {
        self.parked.next()
    }

    /// Records that a call began.
    pub(super) fn began(&mut self, now: u64) {
        self.under_way.push_back(now);
    }

    /// Records that the call which began at `begun` ended. Its result is recorded separately.
    pub(super) fn ended(&mut self, begun: u64) {
        if let Some(at) = self.under_way.iter().position(|at| *at == begun) {
            self.under_way.remove(at);
        }
    }

    /// Records that a call got all the blocks that it requested.
    pub(super) fn succeeded(&mut self) {
        self.window = self.window.saturating_mul(2);
        self.most = self.most.saturating_mul(2);
        self.wait_ms = 0;
    }

    /// Records that the subnet has fewer blocks than the `asked` ones of a call.
    pub(super) fn has_less(&mut self, asked: u32) {
        self.window = 1;
        self.most = (asked / 2).clamp(1, self.most);
    }

    /// Records that a call which began at `begun` found the subnet full.
    pub(super) fn refused(&mut self, begun: u64, now: u64) {
        self.window = 1;
        self.most = 1;
        // Calls that were under way together meet the same full subnet; counted each, they would close it for
        // minutes.
        if self.refused_at.is_some_and(|at| begun < at) {
            return;
        }
        self.refused_at = Some(now);
        self.wait_ms = (self.wait_ms * 2).clamp(FIRST_MS, MAX_MS);
        self.until = now + self.wait_ms;
    }

    /// Records that an address was returned to the subnet.
    pub(super) fn has_room(&mut self) {
        self.wait_ms = 0;
        self.until = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(subnet: &mut Subnet, now: u64) {
        assert!(subnet.is_open(now));
        subnet.began(now);
    }

    fn refuse(subnet: &mut Subnet, begun: u64, now: u64) {
        subnet.ended(begun);
        subnet.refused(begun, now);
    }

    #[test]
    fn waits_double_up_to_two_minutes_and_one_call_at_a_time_tries() {
        let mut subnet = Subnet::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..9 {
            call(&mut subnet, now);
            refuse(&mut subnet, now, now);
            subnet.park(&"a".into(), CallPriority::Upkeep);
            let opens = subnet.opens_at().expect("a node waits");
            waits.push((opens - now) / 1000);
            assert!(!subnet.is_open(opens - 1));
            assert_eq!(subnet.free(opens), 1);
            assert_eq!(subnet.unpark(), Some("a".into()));
            now = opens;
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 120, 120, 120]);
        call(&mut subnet, now);
        assert!(!subnet.is_open(now), "one tries at a time");
        subnet.ended(now);
        subnet.succeeded();
        call(&mut subnet, now);
        call(&mut subnet, now);
        assert!(!subnet.is_open(now), "then two");
    }

    #[test]
    fn refusals_of_calls_that_were_under_way_together_count_once() {
        let mut subnet = Subnet::default();
        for _ in 0..3 {
            call(&mut subnet, 0);
        }
        refuse(&mut subnet, 0, 400);
        refuse(&mut subnet, 0, 401);
        refuse(&mut subnet, 0, 402);
        assert!(!subnet.is_open(2_399));
        assert!(subnet.is_open(2_400));
    }

    #[test]
    fn an_address_given_back_opens_the_subnet_for_one_call_of_a_node_with_pods() {
        let mut subnet = Subnet::default();
        call(&mut subnet, 0);
        refuse(&mut subnet, 0, 0);
        subnet.park(&"a".into(), CallPriority::Upkeep);
        subnet.park(&"b".into(), CallPriority::Pods(1));
        assert_eq!(subnet.free(1), 0);
        subnet.has_room();
        assert_eq!((subnet.free(1), subnet.most()), (1, 1));
        assert_eq!(subnet.unpark(), Some("b".into()));
    }

    #[test]
    fn what_one_node_does_not_get_the_next_one_does_not_ask_for() {
        let mut subnet = Subnet::default();
        let mut most = Vec::new();
        for asked in [9, 4, 2] {
            call(&mut subnet, 0);
            subnet.ended(0);
            subnet.has_less(asked);
            most.push(subnet.most());
        }
        subnet.succeeded();
        most.push(subnet.most());
        assert_eq!(most, [4, 2, 1, 2]);
    }

    #[test]
    fn a_call_without_an_answer_keeps_nobody_waiting_for_long() {
        let mut subnet = Subnet::default();
        subnet.has_less(2);
        call(&mut subnet, 100);
        subnet.park(&"a".into(), CallPriority::Pods(1));
        assert!(!subnet.is_open(101), "one call at a time");
        assert_eq!(subnet.opens_at(), Some(2_100));
        assert!(!subnet.is_open(2_099));
        call(&mut subnet, 2_100);
        subnet.ended(100);
        assert!(!subnet.is_open(2_101));
    }
}
