//! The pod addresses of one simulated node.
//!
//! A node's network interfaces hold a limited number of secondary addresses of its subnet, which are requested from
//! the cloud when they are needed. A pod takes one when its sandbox is created and returns it when it ends. A
//! returned address cools down for 30 s, as in the VPC CNI and the VPC resource controller, because connections to
//! its last owner may still be open.
//!
//! On a Windows node another controller assigns the addresses ([`crate::ipam`]) and writes them to the pods'
//! annotations; the node only records which pod uses which address.
//!
//! Invariant: an address is free, cooling down or used by exactly one pod, never two of these.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    net::Ipv4Addr,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxBuildHasher;

/// How long a returned address cools down before it is used again.
pub const COOL_DOWN: SignedDuration = SignedDuration::from_secs(30);

/// The addresses of one node, by the UID of the pod that uses them.
#[derive(Default)]
pub struct Addresses {
    /// Whether pods get the addresses in their annotations instead of addresses from this pool.
    annotated: bool,
    more: Option<Source>,
    free: VecDeque<Ipv4Addr>,
    resting: VecDeque<(Timestamp, Ipv4Addr)>,
    used: HashMap<Arc<str>, Ipv4Addr, FxBuildHasher>,
}

impl Addresses {
    /// Creates a pool of the secondary addresses of a node's network interfaces.
    pub fn new(addresses: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        Self {
            free: addresses.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Creates the record for a Windows node, whose pods get the addresses in their annotations.
    pub fn annotated() -> Self {
        Self {
            annotated: true,
            ..Self::default()
        }
    }

    /// Returns whether pods get the addresses in their annotations.
    pub fn are_annotated(&self) -> bool {
        self.annotated
    }

    /// Creates a pool of at most `most` addresses. Each is requested by `take` when it is first needed.
    pub fn on_demand(most: usize, take: impl FnMut() -> Option<Ipv4Addr> + Send + 'static) -> Self {
        Self {
            more: Some(Source {
                left: most,
                take: Box::new(take),
            }),
            ..Self::default()
        }
    }

    /// Adds addresses that the node's interfaces already hold, as a restarted kubelet finds them. Only the pods
    /// tell which addresses are in use, so an address cools down until a pod adopts it.
    pub fn with_assigned(
        mut self,
        addresses: impl IntoIterator<Item = Ipv4Addr>,
        now: Timestamp,
    ) -> Self {
        let until = now.saturating_add(COOL_DOWN).unwrap_or(Timestamp::MAX);
        for address in addresses {
            if let Some(more) = &mut self.more {
                more.left = more.left.saturating_sub(1);
            }
            self.resting.push_back((until, address));
        }
        self
    }

    /// Returns the address of `pod`, and assigns one if it has none.
    ///
    /// # Errors
    /// Returns an error if every address is in use or cooling down, with the time at which one can be used again.
    pub fn assign(&mut self, pod: &Arc<str>, now: Timestamp) -> Result<Ipv4Addr, Exhausted> {
        // A sandbox that is created again keeps the pod's address.
        if let Some(address) = self.used.get(pod) {
            return Ok(*address);
        }
        // Cooled addresses come before new ones, because a new one costs a call to the cloud.
        self.wake(now);
        let free = self.free.pop_front().or_else(|| self.more.as_mut()?.next());
        let address = free.ok_or(Exhausted {
            until: self.resting.front().map(|(until, _)| *until),
        })?;
        self.used.insert(Arc::clone(pod), address);
        Ok(address)
    }

    /// Records that `pod` already uses `address`, as found after a restart. A fixed pool ignores an address that is
    /// not its own; a pool on demand assumes that the cloud assigned it to this node.
    pub fn adopt(&mut self, pod: &Arc<str>, address: Ipv4Addr) {
        if let Some(at) = self.free.iter().position(|free| *free == address) {
            self.free.remove(at);
        } else if let Some(at) = self
            .resting
            .iter()
            .position(|(_, resting)| *resting == address)
        {
            self.resting.remove(at);
        } else if let Some(more) = self.more.as_mut().filter(|more| more.left > 0) {
            more.left -= 1;
        } else if !self.annotated {
            return;
        }
        self.used.insert(Arc::clone(pod), address);
    }

    /// Takes the address of `pod` back. It can be used again after [`COOL_DOWN`].
    pub fn release(&mut self, pod: &str, now: Timestamp) {
        if let Some(address) = self.used.remove(pod)
            && !self.annotated
        {
            self.resting.push_back((
                now.saturating_add(COOL_DOWN).unwrap_or(Timestamp::MAX),
                address,
            ));
        }
    }

    /// Returns the number of addresses in use.
    pub fn used(&self) -> usize {
        self.used.len()
    }

    fn wake(&mut self, now: Timestamp) {
        while let Some((_, address)) = self.resting.pop_front_if(|(until, _)| *until <= now) {
            self.free.push_back(address);
        }
    }
}

/// The source from which a pool requests further addresses.
struct Source {
    left: usize,
    take: Box<dyn FnMut() -> Option<Ipv4Addr> + Send>,
}

impl Source {
    fn next(&mut self) -> Option<Ipv4Addr> {
        let address = (self.left > 0).then(|| (self.take)()).flatten()?;
        self.left -= 1;
        Some(address)
    }
}

impl fmt::Debug for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Addresses")
            .field("left", &self.more.as_ref().map_or(0, |more| more.left))
            .field("free", &self.free.len())
            .field("resting", &self.resting.len())
            .field("used", &self.used.len())
            .finish()
    }
}

/// The error that no address can be assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// The time at which the first address has cooled down.
    pub until: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: u8) -> Addresses {
        Addresses::new((0..count).map(|n| Ipv4Addr::new(10, 0, 1, 10 + n)))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("within range")
    }

    #[test]
    fn an_adopted_address_counts_against_what_a_pool_may_ask_for() {
        let mut pool = Addresses::on_demand(2, || Some(Ipv4Addr::new(10, 0, 1, 99)));
        pool.adopt(&"a".into(), Ipv4Addr::new(10, 0, 1, 7));
        assert_eq!(
            pool.assign(&"a".into(), at(0)),
            Ok(Ipv4Addr::new(10, 0, 1, 7))
        );
        assert_eq!(
            pool.assign(&"b".into(), at(0)),
            Ok(Ipv4Addr::new(10, 0, 1, 99))
        );
        assert_eq!(
            pool.assign(&"c".into(), at(0)),
            Err(Exhausted { until: None })
        );
    }

    #[test]
    fn after_a_restart_addresses_belong_to_their_pods_and_the_others_rest() {
        let known = [7, 8].map(|n| Ipv4Addr::new(10, 0, 1, n));
        let mut pool = Addresses::on_demand(3, || Some(Ipv4Addr::new(10, 0, 1, 99)))
            .with_assigned(known, at(0));
        pool.adopt(&"a".into(), known[0]);
        let other = pool.assign(&"b".into(), at(1));
        assert_eq!(other, Ok(Ipv4Addr::new(10, 0, 1, 99)));
        let until = Some(at(30));
        assert_eq!(pool.assign(&"c".into(), at(1)), Err(Exhausted { until }));
        assert_eq!(pool.assign(&"c".into(), at(30)), Ok(known[1]));
        assert_eq!(pool.used(), 3);
    }

    #[test]
    fn addresses_are_taken_from_the_subnet_only_when_needed_and_only_so_many() {
        let mut next = 0;
        let mut pool = Addresses::on_demand(2, move || {
            next += 1;
            Some(Ipv4Addr::new(10, 0, 1, next))
        });
        assert_eq!(
            pool.assign(&"a".into(), at(0)).unwrap(),
            Ipv4Addr::new(10, 0, 1, 1)
        );
        assert_eq!(
            pool.assign(&"b".into(), at(0)).unwrap(),
            Ipv4Addr::new(10, 0, 1, 2)
        );
        assert_eq!(
            pool.assign(&"c".into(), at(0)),
            Err(Exhausted { until: None })
        );
    }

    #[test]
    fn a_pod_keeps_its_address_and_no_two_pods_share_one() {
        let mut pool = pool(2);
        let first = pool.assign(&"a".into(), at(0)).unwrap();
        assert_eq!(pool.assign(&"a".into(), at(1)).unwrap(), first);
        assert_ne!(pool.assign(&"b".into(), at(1)).unwrap(), first);
        assert_eq!(
            pool.assign(&"c".into(), at(1)),
            Err(Exhausted { until: None })
        );
    }

    #[test]
    fn a_freed_address_is_given_again_only_after_its_rest() {
        let mut pool = pool(1);
        let address = pool.assign(&"a".into(), at(0)).unwrap();
        pool.release("a", at(10));
        assert_eq!(
            pool.assign(&"b".into(), at(39)),
            Err(Exhausted {
                until: Some(at(40))
            })
        );
        assert_eq!(pool.assign(&"b".into(), at(40)), Ok(address));
    }

    #[test]
    fn an_address_found_after_a_restart_is_not_given_to_another_pod() {
        let mut pool = pool(2);
        pool.adopt(&"a".into(), Ipv4Addr::new(10, 0, 1, 10));
        pool.adopt(&"stranger".into(), Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(
            pool.assign(&"b".into(), at(0)),
            Ok(Ipv4Addr::new(10, 0, 1, 11))
        );
        assert_eq!(pool.used(), 2);
    }
}
