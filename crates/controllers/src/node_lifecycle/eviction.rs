//! Decides when a NoExecute taint evicts a pod (kube-controller-manager: taint eviction). A plain struct.
//!
//! Invariant: a pod's deadline stays until no taint evicts the pod any more or a taint leaves no time at all. A
//! change of the node's taints that still evicts the pod does not move the deadline.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use rustc_hash::FxHashMap;

use crate::state::taints::tolerates;

/// How long a pod may stay on a node with its NoExecute taints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TolerationPeriod {
    /// The pod may stay.
    Forever,
    /// The pod may stay this long from now.
    For(SignedDuration),
}

/// Returns how long a pod with `tolerations` may stay on a node with `taints`, of which only NoExecute ones count.
pub fn toleration_period(taints: &[Taint], tolerations: &[Toleration]) -> TolerationPeriod {
    let mut shortest = TolerationPeriod::Forever;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        let mut used = tolerations
            .iter()
            .filter(|toleration| tolerates(toleration, taint))
            .peekable();
        // One taint without toleration is enough, whatever time the others would leave.
        if used.peek().is_none() {
            return TolerationPeriod::For(SignedDuration::ZERO);
        }
        // kube-controller-manager takes the shortest time of all matching tolerations, not the longest.
        for seconds in used.filter_map(|toleration| toleration.toleration_seconds) {
            let time = SignedDuration::from_secs(seconds.max(0));
            shortest = match shortest {
                TolerationPeriod::For(other) if other <= time => shortest,
                _ => TolerationPeriod::For(time),
            };
        }
    }
    shortest
}

/// The consequence of considering a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing changes.
    None,
    /// The pod is evicted now.
    Evict {
        /// Whether an earlier deadline must be cancelled first.
        was_waiting: bool,
    },
    /// The pod is evicted at this time unless something changes.
    Wait(Timestamp),
    /// The pod was to be evicted but may stay.
    Reprieved,
}

/// The pods to be evicted, by UID.
#[derive(Debug, Default)]
pub struct Evictions {
    planned: FxHashMap<String, PlannedEviction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlannedEviction {
    /// The pod will be evicted at this time.
    At(Timestamp),
    /// The pod was evicted; each pod is evicted only once.
    Done,
}

impl Evictions {
    /// Considers a pod with its node's taints.
    pub fn consider(
        &mut self,
        uid: &str,
        taints: &[Taint],
        tolerations: &[Toleration],
        now: Timestamp,
    ) -> Change {
        let before = self.planned.get(uid).copied();
        let was_waiting = matches!(before, Some(PlannedEviction::At(_)));
        match toleration_period(taints, tolerations) {
            TolerationPeriod::Forever => {
                self.planned.remove(uid);
                if was_waiting {
                    Change::Reprieved
                } else {
                    Change::None
                }
            }
            TolerationPeriod::For(time) if time.is_zero() => {
                self.planned.remove(uid);
                Change::Evict { was_waiting }
            }
            // kube-controller-manager keeps the first deadline, whether other taints would allow more time or less.
            TolerationPeriod::For(_) if before.is_some() => Change::None,
            TolerationPeriod::For(time) => {
                let at = now.saturating_add(time).unwrap_or(Timestamp::MAX);
                self.planned.insert(uid.to_owned(), PlannedEviction::At(at));
                Change::Wait(at)
            }
        }
    }

    /// Returns whether the pod's time is up. The pod counts as evicted then.
    pub fn take_due(&mut self, uid: &str, now: Timestamp) -> bool {
        let is_due = matches!(self.planned.get(uid), Some(PlannedEviction::At(at)) if *at <= now);
        if is_due {
            self.planned.insert(uid.to_owned(), PlannedEviction::Done);
        }
        is_due
    }

    /// Forgets a deleted pod. Returns whether it was still waiting for its deadline.
    pub fn forget(&mut self, uid: &str) -> bool {
        matches!(self.planned.remove(uid), Some(PlannedEviction::At(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint {
            key: key.to_owned(),
            effect: effect.to_owned(),
            value: None,
            time_added: None,
        }
    }

    fn toleration(key: &str, seconds: Option<i64>) -> Toleration {
        Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            toleration_seconds: seconds,
            value: None,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("within range")
    }

    #[test]
    fn the_shortest_toleration_in_use_decides_and_an_untolerated_taint_leaves_no_time() {
        let (a, b) = (taint("a", "NoExecute"), taint("b", "NoExecute"));
        let seconds = |seconds| TolerationPeriod::For(SignedDuration::from_secs(seconds));
        let cases = [
            (vec![], vec![], TolerationPeriod::Forever),
            (
                vec![taint("a", "NoSchedule")],
                vec![],
                TolerationPeriod::Forever,
            ),
            (vec![a.clone()], vec![], seconds(0)),
            (
                vec![a.clone()],
                vec![toleration("a", None)],
                TolerationPeriod::Forever,
            ),
            (
                vec![a.clone()],
                vec![toleration("a", Some(300))],
                seconds(300),
            ),
            (
                vec![a.clone()],
                vec![toleration("a", Some(300)), toleration("a", Some(60))],
                seconds(60),
            ),
            (
                vec![a.clone()],
                vec![toleration("a", None), toleration("a", Some(60))],
                seconds(60),
            ),
            (
                vec![a.clone(), b.clone()],
                vec![toleration("a", Some(300))],
                seconds(0),
            ),
            (
                vec![a.clone(), b],
                vec![toleration("a", Some(300)), toleration("b", None)],
                seconds(300),
            ),
            (vec![a], vec![toleration("a", Some(-5))], seconds(0)),
        ];
        for (taints, tolerations, expected) in cases {
            assert_eq!(
                toleration_period(&taints, &tolerations),
                expected,
                "{taints:?} {tolerations:?}"
            );
        }
    }

    #[test]
    fn the_first_deadline_stands_until_a_reprieve() {
        let mut evictions = Evictions::default();
        let tolerations = [toleration("a", Some(300)), toleration("b", Some(60))];
        let (a, b) = ([taint("a", "NoExecute")], [taint("b", "NoExecute")]);
        let mut look =
            |taints: &[Taint], second| evictions.consider("p", taints, &tolerations, at(second));
        assert_eq!(look(&a, 0), Change::Wait(at(300)));
        assert_eq!(look(&a, 100), Change::None);
        assert_eq!(
            look(&b, 50),
            Change::None,
            "a shorter toleration does not shorten it"
        );
        assert_eq!(look(&[], 60), Change::Reprieved);
        assert_eq!(look(&[], 61), Change::None);
        assert_eq!(look(&b, 100), Change::Wait(at(160)));
    }

    #[test]
    fn a_pod_goes_once_when_its_time_comes_and_at_once_when_it_has_none() {
        let mut evictions = Evictions::default();
        let patient = [toleration("a", Some(300))];
        let a = [taint("a", "NoExecute")];
        evictions.consider("p", &a, &patient, at(0));
        assert!(!evictions.take_due("p", at(299)));
        assert!(evictions.take_due("p", at(300)));
        assert!(!evictions.take_due("p", at(301)));
        assert_eq!(evictions.consider("p", &a, &patient, at(302)), Change::None);
        assert_eq!(
            evictions.consider("p", &a, &[], at(303)),
            Change::Evict { was_waiting: false }
        );
        evictions.consider("q", &a, &patient, at(0));
        assert_eq!(
            evictions.consider("q", &a, &[], at(1)),
            Change::Evict { was_waiting: true }
        );
    }

    #[test]
    fn a_pod_that_goes_for_another_reason_was_waiting_or_not() {
        let mut evictions = Evictions::default();
        let a = [taint("a", "NoExecute")];
        evictions.consider("p", &a, &[toleration("a", Some(300))], at(0));
        assert!(evictions.forget("p"));
        assert!(!evictions.forget("p"));
    }
}
