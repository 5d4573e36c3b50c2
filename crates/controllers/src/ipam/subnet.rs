//! How often the nodes of one subnet may ask for addresses of one kind while it has none left.
//!
//! The first refusal closes the subnet for all its nodes: for 2 s, and twice as long after each further one, up to 2 min. Then one
//! node tries. A success doubles how many may try at once. An address given back there opens the subnet at once.

use std::collections::VecDeque;

use super::driver::NodeName;

const FIRST_MS: u64 = 2_000;
const MAX_MS: u64 = 120_000;

/// The room for assigning in one subnet.
#[derive(Debug)]
pub(super) struct Subnet {
    wait_ms: u64,
    /// Closed before this time.
    until: u64,
    /// How many calls may be under way.
    window: usize,
    under_way: usize,
    /// When the last refusal came: calls begun before it say nothing new.
    refused_at: Option<u64>,
    /// Nodes that want to assign, in the order in which they came.
    parked: VecDeque<NodeName>,
}

impl Default for Subnet {
    fn default() -> Self {
        Subnet {
            wait_ms: 0,
            until: 0,
            window: usize::MAX,
            under_way: 0,
            refused_at: None,
            parked: VecDeque::new(),
        }
    }
}

impl Subnet {
    /// Returns whether a call may begin now.
    pub(super) fn is_open(&self, now: u64) -> bool {
        self.until <= now && self.under_way < self.window
    }

    /// Returns when nodes that wait for their turn may go on, unless an answer lets them go on before.
    pub(super) fn opens_at(&self) -> Option<u64> {
        let waits = !self.parked.is_empty() && self.under_way < self.window;
        waits.then_some(self.until)
    }

    /// Lets a node wait until the subnet is open.
    pub(super) fn park(&mut self, node: NodeName) {
        if !self.parked.contains(&node) {
            self.parked.push_back(node);
        }
    }

    /// Returns the nodes that may go on now. Each is to ask [`Subnet::is_open`] again when its turn comes.
    pub(super) fn released(&mut self, now: u64) -> Vec<NodeName> {
        if !self.is_open(now) {
            return Vec::new();
        }
        let free = self.window - self.under_way;
        let count = free.min(self.parked.len());
        self.parked.drain(..count).collect()
    }

    /// Notes that a call began.
    pub(super) fn began(&mut self) {
        self.under_way += 1;
    }

    /// Notes that a call ended otherwise than by a full subnet or a success.
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// Notes that a call got all it asked for.
    pub(super) fn succeeded(&mut self) {
        self.under_way -= 1;
        self.window = self.window.saturating_mul(2);
        self.wait_ms = 0;
    }

    /// Notes that there is less than a call asked for: the next ones go one by one.
    pub(super) fn has_less(&mut self) {
        self.under_way -= 1;
        self.window = 1;
    }

    /// Notes that a call that began at `begun` found the subnet full.
    pub(super) fn refused(&mut self, begun: u64, now: u64) {
        self.under_way -= 1;
        self.window = 1;
        if self.refused_at.is_some_and(|at| begun < at) {
            return;
        }
        self.refused_at = Some(now);
        self.wait_ms = (self.wait_ms * 2).clamp(FIRST_MS, MAX_MS);
        self.until = now + self.wait_ms;
    }

    /// Notes that an address was given back.
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
        subnet.began();
    }

    #[test]
    fn waits_double_up_to_two_minutes_and_one_call_at_a_time_tries() {
        let mut subnet = Subnet::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..9 {
            call(&mut subnet, now);
            subnet.refused(now, now);
            subnet.park("a".into());
            let opens = subnet.opens_at().expect("a node waits");
            waits.push((opens - now) / 1000);
            assert!(subnet.released(opens - 1).is_empty());
            assert_eq!(subnet.released(opens).len(), 1);
            now = opens;
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 120, 120, 120]);
        call(&mut subnet, now);
        assert!(!subnet.is_open(now), "one tries at a time");
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
        subnet.refused(0, 400);
        subnet.refused(0, 401);
        subnet.refused(0, 402);
        assert!(!subnet.is_open(2_399));
        assert!(subnet.is_open(2_400));
    }

    #[test]
    fn an_address_given_back_opens_the_subnet_for_one_call() {
        let mut subnet = Subnet::default();
        call(&mut subnet, 0);
        subnet.refused(0, 0);
        subnet.has_room();
        for node in ["a", "b"] {
            subnet.park(node.into());
        }
        assert_eq!(subnet.released(1), ["a".into()]);
    }
}
