//! When a NoExecute taint makes a pod go: kube-controller-manager's taint eviction, as a plain struct.
//!
//! Invariant: a pod's time runs from the moment its deadline was first set; a change of the node's taints that leaves it
//! doomed does not start it afresh.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use rustc_hash::FxHashMap;

use crate::state::taints::tolerates;

/// How long a pod may stay beside a node's NoExecute taints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// As long as it likes.
    Forever,
    /// This long from now.
    For(SignedDuration),
}

/// How long a pod with `tolerations` may stay beside `taints`, of which only NoExecute ones count.
pub fn stay(taints: &[Taint], tolerations: &[Toleration]) -> Stay {
    let mut shortest = Stay::Forever;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        let mut used = tolerations
            .iter()
            .filter(|toleration| tolerates(toleration, taint))
            .peekable();
        if used.peek().is_none() {
            return Stay::For(SignedDuration::ZERO);
        }
        // Upstream takes the shortest time of all tolerations that match, not the longest.
        for seconds in used.filter_map(|toleration| toleration.toleration_seconds) {
            let time = SignedDuration::from_secs(seconds.max(0));
            shortest = match shortest {
                Stay::For(other) if other <= time => shortest,
                _ => Stay::For(time),
            };
        }
    }
    shortest
}

/// What follows from looking at a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing new.
    None,
    /// It goes now.
    Evict,
    /// It goes then, unless something changes.
    Wait(Timestamp),
    /// It was to go and may stay.
    Reprieved,
}

/// The pods that are to go.
#[derive(Debug, Default)]
pub struct Evictions {
    /// When each was first doomed, and when it goes; by pod uid.
    doomed: FxHashMap<String, (Timestamp, Timestamp)>,
}

impl Evictions {
    /// Looks at a pod beside its node's taints.
    pub fn consider(
        &mut self,
        uid: &str,
        taints: &[Taint],
        tolerations: &[Toleration],
        now: Timestamp,
    ) -> Change {
        match stay(taints, tolerations) {
            Stay::Forever => match self.doomed.remove(uid) {
                Some(_) => Change::Reprieved,
                None => Change::None,
            },
            Stay::For(time) if time.is_zero() => {
                self.doomed.remove(uid);
                Change::Evict
            }
            Stay::For(time) => {
                let since = self.doomed.get(uid).map_or(now, |(since, _)| *since);
                let at = since.saturating_add(time).unwrap_or(Timestamp::MAX);
                if at <= now {
                    self.doomed.remove(uid);
                    return Change::Evict;
                }
                let before = self.doomed.insert(uid.to_owned(), (since, at));
                if before == Some((since, at)) {
                    Change::None
                } else {
                    Change::Wait(at)
                }
            }
        }
    }

    /// Whether the pod's time is up; it is not doomed any more then, because it goes.
    pub fn take_due(&mut self, uid: &str, now: Timestamp) -> bool {
        let due = self.doomed.get(uid).is_some_and(|(_, at)| *at <= now);
        if due {
            self.doomed.remove(uid);
        }
        due
    }

    /// The pod is gone.
    pub fn forget(&mut self, uid: &str) {
        self.doomed.remove(uid);
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
        let seconds = |seconds| Stay::For(SignedDuration::from_secs(seconds));
        let cases = [
            (vec![], vec![], Stay::Forever),
            (vec![taint("a", "NoSchedule")], vec![], Stay::Forever),
            (vec![a.clone()], vec![], seconds(0)),
            (vec![a.clone()], vec![toleration("a", None)], Stay::Forever),
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
                stay(&taints, &tolerations),
                expected,
                "{taints:?} {tolerations:?}"
            );
        }
    }

    #[test]
    fn the_time_runs_from_the_first_doom_and_a_reprieve_ends_it() {
        let mut evictions = Evictions::default();
        let tolerations = [toleration("a", Some(300)), toleration("b", Some(60))];
        let (a, b) = ([taint("a", "NoExecute")], [taint("b", "NoExecute")]);
        assert_eq!(
            evictions.consider("p", &a, &tolerations, at(0)),
            Change::Wait(at(300))
        );
        assert_eq!(
            evictions.consider("p", &a, &tolerations, at(100)),
            Change::None
        );
        assert_eq!(
            evictions.consider("p", &b, &tolerations, at(50)),
            Change::Wait(at(60))
        );
        assert!(!evictions.take_due("p", at(59)));
        assert_eq!(
            evictions.consider("p", &[], &tolerations, at(59)),
            Change::Reprieved
        );
        assert!(!evictions.take_due("p", at(400)));
        assert_eq!(evictions.consider("p", &a, &[], at(400)), Change::Evict);
    }
}
