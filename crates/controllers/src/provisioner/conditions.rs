//! Edits the status conditions of Karpenter's objects.
//!
//! Invariant: a condition's transition time changes only with its status, and setting a condition to what it is
//! changes nothing, so that a status is patched only if it differs.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::context::whole_seconds;

/// The three values of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The condition is not decided yet.
    Unknown,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Edits a list of conditions at one point in time, for one generation of the object.
#[derive(Debug)]
pub struct Conditions<'a> {
    list: &'a mut Vec<Condition>,
    now: Timestamp,
    generation: Option<i64>,
}

impl<'a> Conditions<'a> {
    /// Creates an editor of `list`; `now` is cut to whole seconds, as `metav1.Time` has them.
    pub fn new(list: &'a mut Vec<Condition>, now: Timestamp, generation: Option<i64>) -> Self {
        Self {
            list,
            now: whole_seconds(now),
            generation,
        }
    }

    /// Sets a condition to `True`, with its own type as the reason, as Karpenter's status conditions do.
    pub fn set_true(&mut self, kind: &str) {
        self.set(kind, Status::True, kind, "");
    }

    /// Sets a condition. Returns whether its status changed.
    pub fn set(&mut self, kind: &str, status: Status, reason: &str, message: &str) -> bool {
        let at = Time(self.now);
        let found = self.list.iter_mut().find(|c| c.type_ == kind);
        let Some(condition) = found else {
            self.list.push(Condition {
                type_: kind.to_owned(),
                status: status.as_str().to_owned(),
                reason: reason.to_owned(),
                message: message.to_owned(),
                last_transition_time: at,
                observed_generation: self.generation,
            });
            // Karpenter keeps conditions sorted by type, for those who read them with kubectl.
            self.list.sort_by(|a, b| a.type_.cmp(&b.type_));
            return true;
        };
        // Reason and message may change without the time: `metav1.Condition` dates transitions of
        // the status only.
        let changed = condition.status != status.as_str();
        if changed {
            condition.last_transition_time = at;
            condition.status = status.as_str().to_owned();
        }
        condition.reason = reason.to_owned();
        condition.message = message.to_owned();
        condition.observed_generation = self.generation;
        changed
    }

    /// Sets a condition to `Unknown` with the reason AwaitingReconciliation, as Karpenter does before the first
    /// reconciliation.
    pub fn set_unknown(&mut self, kind: &str) {
        self.set(
            kind,
            Status::Unknown,
            "AwaitingReconciliation",
            "object is awaiting reconciliation",
        );
    }

    /// Drops a condition.
    pub fn clear(&mut self, kind: &str) {
        self.list.retain(|condition| condition.type_ != kind);
    }

    /// Returns whether a condition is `True`.
    pub fn is_true(&self, kind: &str) -> bool {
        is_true(self.list, kind)
    }

    /// Sets conditions that are missing to `Unknown`, as Karpenter initializes a new object's.
    pub fn initialize(&mut self, kinds: &[&str]) {
        for kind in kinds {
            if !self.list.iter().any(|condition| condition.type_ == *kind) {
                self.set_unknown(kind);
            }
        }
    }

    /// Sets `Ready` from the conditions it depends on: False if one is False, else Unknown if one is not True. The
    /// message names those that are not True.
    pub fn summarize(&mut self, dependents: &[&str]) {
        let mut open = Vec::new();
        let mut worst = Status::True;
        for kind in dependents {
            let status = self.list.iter().find(|c| c.type_ == *kind);
            match status.map(|condition| condition.status.as_str()) {
                Some("True") => {}
                Some("False") => {
                    worst = Status::False;
                    open.push(format!("{kind}=False"));
                }
                _ => {
                    if worst == Status::True {
                        worst = Status::Unknown;
                    }
                    open.push(format!("{kind}=Unknown"));
                }
            }
        }
        let reason = match worst {
            Status::True => "Ready",
            Status::False => "UnhealthyDependents",
            Status::Unknown => "ReconcilingDependents",
        };
        self.set("Ready", worst, reason, &open.join(", "));
    }
}

/// Returns whether a condition is in the list and `True`.
pub fn is_true(list: &[Condition], kind: &str) -> bool {
    list.iter()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Returns the transition time of a condition that is `True`; `None` otherwise.
pub fn true_since(list: &[Condition], kind: &str) -> Option<Timestamp> {
    list.iter()
        .find(|condition| condition.type_ == kind && condition.status == "True")
        .map(|condition| condition.last_transition_time.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn time_moves_only_when_the_status_does() {
        let mut list = Vec::new();
        Conditions::new(&mut list, at(1), Some(1)).set_true("Launched");
        let first = list.clone();
        Conditions::new(&mut list, at(9), Some(1)).set_true("Launched");
        assert_eq!(list, first);
        let mut later = Conditions::new(&mut list, at(9), Some(1));
        assert!(later.set("Launched", Status::False, "Gone", "it went"));
        assert_eq!(list[0].last_transition_time, Time(at(9)));
    }

    #[test]
    fn ready_is_the_worst_of_its_dependents() {
        let mut list = Vec::new();
        let mut conditions = Conditions::new(&mut list, at(1), None);
        conditions.initialize(&["Launched", "Registered"]);
        conditions.set_true("Launched");
        conditions.summarize(&["Launched", "Registered"]);
        let ready = |list: &[Condition]| {
            let ready = list.iter().find(|c| c.type_ == "Ready").expect("set");
            (
                ready.status.clone(),
                ready.reason.clone(),
                ready.message.clone(),
            )
        };
        assert_eq!(
            ready(&list),
            (
                "Unknown".into(),
                "ReconcilingDependents".into(),
                "Registered=Unknown".into()
            )
        );
        let mut conditions = Conditions::new(&mut list, at(2), None);
        conditions.set("Registered", Status::False, "X", "");
        conditions.summarize(&["Launched", "Registered"]);
        assert_eq!(
            ready(&list),
            (
                "False".into(),
                "UnhealthyDependents".into(),
                "Registered=False".into()
            )
        );
        let mut conditions = Conditions::new(&mut list, at(3), None);
        conditions.set_true("Registered");
        conditions.summarize(&["Launched", "Registered"]);
        assert_eq!(ready(&list), ("True".into(), "Ready".into(), String::new()));
    }
}
