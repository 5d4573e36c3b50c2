//! Decides which events are written, only counted, or dropped (client-go: `EventCorrelator`).
//!
//! Pure: the time is in the occurrence, and the caller supplies the name of a new event. Equal events become one
//! with a count. From the tenth event on that differs from earlier ones only in its message, they become one
//! "combined" event. A source that records too many events about one object is cut off. Memory is bounded.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{EventType, Occurrence, Source};

/// The number of occurrences that differ only in their message, from which on they are combined.
const MERGE_FROM: usize = 10;
/// Similar events are forgotten when none came for this long.
const MERGE_WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// The number of events that a source may write about one object at once.
const BURST: f64 = 25.0;
/// The time after which a source may write one more event about the object.
const REFILL: SignedDuration = SignedDuration::from_secs(300);
/// The prefix of a combined event's message.
pub(super) const COMBINED: &str = "(combined from similar events): ";
/// The most entries per table.
const CAPACITY: usize = 4096;

/// The decision about an occurrence.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Write a new event.
    First { name: String, message: String },
    /// Raise the count of an event that was written before.
    Repeated {
        name: String,
        message: String,
        count: i32,
    },
    /// Drop the event: the source has recorded too many about this object.
    Suppressed,
}

/// Identifies a budget: one source and one object. The containers of a pod share its budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BudgetKey {
    source: Source,
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

/// The properties in which events must agree to be merged into one (client-go: `EventAggregatorByReasonFunc`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AggregationKey {
    subject: BudgetKey,
    kind: EventType,
    reason: String,
}

/// The field path of the object and the message: they distinguish events that are not merged.
type FieldPathAndMessage = (Option<String>, String);

#[derive(Default)]
pub(super) struct Correlator {
    aggregates: FxHashMap<AggregationKey, Aggregate>,
    written: FxHashMap<(AggregationKey, Option<FieldPathAndMessage>), WrittenEvent>,
    budgets: FxHashMap<BudgetKey, Budget>,
}

/// The different messages of events with one [`AggregationKey`], and when the last of these events happened.
struct Aggregate {
    messages: FxHashSet<String>,
    last: Timestamp,
}

/// An event that was written: its name, how often it has happened, and when it happened last.
struct WrittenEvent {
    name: String,
    count: i32,
    last: Timestamp,
}

struct Budget {
    tokens: f64,
    last: Timestamp,
}

impl Correlator {
    /// Decides about `occurrence`. `fresh_name` is used if it becomes a new event.
    pub(super) fn judge(&mut self, occurrence: &Occurrence, fresh_name: String) -> Verdict {
        let likeness = AggregationKey {
            subject: BudgetKey::new(occurrence.source.clone(), &occurrence.object),
            kind: occurrence.kind,
            reason: occurrence.reason.clone(),
        };
        let now = occurrence.at;
        let merged = occurrence.action.is_none()
            && self.exceeds_distinct_messages(&likeness, &occurrence.message, now);
        // client-go marks the message, so that readers know that other messages were left out.
        let message = if merged {
            format!("{COMBINED}{}", occurrence.message)
        } else {
            occurrence.message.clone()
        };
        let field_path = occurrence.object.field_path.clone();
        // All combined events of a likeness share one entry, so that they become one event.
        let distinct = (!merged).then(|| (field_path, occurrence.message.clone()));
        let key = (likeness, distinct);
        let subject = key.0.subject.clone();

        trim(&mut self.written, |written| written.last);
        let verdict = match self.written.get_mut(&key) {
            Some(written) => {
                written.count += 1;
                written.last = now;
                Verdict::Repeated {
                    name: written.name.clone(),
                    message,
                    count: written.count,
                }
            }
            None => {
                self.written.insert(
                    key,
                    WrittenEvent {
                        name: fresh_name.clone(),
                        count: 1,
                        last: now,
                    },
                );
                Verdict::First {
                    name: fresh_name,
                    message,
                }
            }
        };
        // Repetitions use up the budget as well as new events.
        if self.spend(subject, now) {
            verdict
        } else {
            Verdict::Suppressed
        }
    }

    fn exceeds_distinct_messages(
        &mut self,
        likeness: &AggregationKey,
        message: &str,
        now: Timestamp,
    ) -> bool {
        trim(&mut self.aggregates, |alike| alike.last);
        let alike = self
            .aggregates
            .entry(likeness.clone())
            .or_insert_with(|| Aggregate {
                messages: FxHashSet::default(),
                last: now,
            });
        if now.duration_since(alike.last) > MERGE_WINDOW {
            // A series that has paused starts anew, and its messages are shown one by one again.
            alike.messages.clear();
        }
        alike.last = now;
        if alike.messages.len() + 1 >= MERGE_FROM && !alike.messages.contains(message) {
            return true;
        }
        alike.messages.insert(message.to_owned());
        false
    }

    fn spend(&mut self, subject: BudgetKey, now: Timestamp) -> bool {
        trim(&mut self.budgets, |budget| budget.last);
        let budget = self.budgets.entry(subject).or_insert(Budget {
            tokens: BURST,
            last: now,
        });
        let earned = now.duration_since(budget.last).as_secs_f64() / REFILL.as_secs_f64();
        // Tokens are added for the time since the last event, so no timer is needed per object.
        budget.tokens = (budget.tokens + earned).min(BURST);
        budget.last = now;
        let affordable = budget.tokens >= 1.0;
        if affordable {
            budget.tokens -= 1.0;
        }
        affordable
    }
}

impl BudgetKey {
    fn new(source: Source, object: &ObjectReference) -> Self {
        let ObjectReference {
            kind,
            namespace,
            name,
            uid,
            ..
        } = object.clone();
        Self {
            source,
            kind,
            namespace,
            name,
            uid,
        }
    }
}

/// Drops the older half of a full table.
fn trim<K: std::hash::Hash + Eq, V>(table: &mut FxHashMap<K, V>, last: impl Fn(&V) -> Timestamp) {
    if table.len() < CAPACITY {
        return;
    }
    let mut times: Vec<_> = table.values().map(&last).collect();
    let (_, median, _) = times.select_nth_unstable(CAPACITY / 2);
    let median = *median;
    table.retain(|_, value| last(value) > median);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(message: &str, second: i64) -> Occurrence {
        Occurrence {
            source: Source {
                component: "test".into(),
                host: None,
            },
            object: ObjectReference {
                name: Some("object".to_owned()),
                ..ObjectReference::default()
            },
            related: None,
            kind: EventType::Normal,
            reason: "Reason".to_owned(),
            action: None,
            message: message.to_owned(),
            at: Timestamp::from_second(second).expect("a small number of seconds"),
        }
    }

    #[test]
    fn equal_events_are_counted_under_the_name_of_the_first() {
        let mut correlator = Correlator::default();
        let first = correlator.judge(&occurrence("same", 0), "one".to_owned());
        assert_eq!(
            first,
            Verdict::First {
                name: "one".to_owned(),
                message: "same".to_owned()
            }
        );
        let second = correlator.judge(&occurrence("same", 1), "two".to_owned());
        assert_eq!(
            second,
            Verdict::Repeated {
                name: "one".to_owned(),
                message: "same".to_owned(),
                count: 2
            }
        );
    }

    #[test]
    fn the_tenth_similar_event_and_those_after_it_are_combined() {
        let mut correlator = Correlator::default();
        for i in 0..9 {
            let verdict =
                correlator.judge(&occurrence(&format!("message {i}"), 0), format!("name {i}"));
            assert!(matches!(verdict, Verdict::First { .. }), "{i}: {verdict:?}");
        }
        let message = "(combined from similar events): message 9".to_owned();
        let tenth = correlator.judge(&occurrence("message 9", 0), "name 9".to_owned());
        assert_eq!(
            tenth,
            Verdict::First {
                name: "name 9".to_owned(),
                message
            }
        );
        let message = "(combined from similar events): message 10".to_owned();
        let next = correlator.judge(&occurrence("message 10", 0), "name 10".to_owned());
        assert_eq!(
            next,
            Verdict::Repeated {
                name: "name 9".to_owned(),
                message,
                count: 2
            }
        );
    }

    #[test]
    fn similarity_is_forgotten_after_ten_quiet_minutes() {
        let mut correlator = Correlator::default();
        for i in 0..9 {
            correlator.judge(&occurrence(&format!("message {i}"), 0), format!("name {i}"));
        }
        let later = correlator.judge(&occurrence("message 9", 601), "later".to_owned());
        assert_eq!(
            later,
            Verdict::First {
                name: "later".to_owned(),
                message: "message 9".to_owned()
            }
        );
    }

    #[test]
    fn a_chatty_source_is_cut_off_after_25_events_and_earns_one_per_five_minutes() {
        let mut correlator = Correlator::default();
        for i in 0..25 {
            let verdict = correlator.judge(&occurrence("same", 0), "name".to_owned());
            assert_ne!(verdict, Verdict::Suppressed, "event {i}");
        }
        assert_eq!(
            correlator.judge(&occurrence("same", 0), "name".to_owned()),
            Verdict::Suppressed
        );
        let paid = correlator.judge(&occurrence("same", 300), "name".to_owned());
        assert!(
            matches!(paid, Verdict::Repeated { count: 27, .. }),
            "{paid:?}"
        );
        assert_eq!(
            correlator.judge(&occurrence("same", 300), "name".to_owned()),
            Verdict::Suppressed
        );
    }

    #[test]
    fn the_containers_of_a_pod_share_its_budget_but_not_its_events() {
        let mut correlator = Correlator::default();
        let about = |container: usize| {
            let mut one = occurrence("same", 0);
            one.object.field_path = Some(format!("spec.containers{{c{container}}}"));
            one
        };
        let mut written = 0;
        for container in 0..30 {
            let verdict = correlator.judge(&about(container), format!("name {container}"));
            match verdict {
                Verdict::First { name, .. } => {
                    assert_eq!(name, format!("name {container}"));
                    written += 1;
                }
                other => assert_eq!(other, Verdict::Suppressed),
            }
        }
        assert_eq!(written, 25);
    }

    #[test]
    fn tables_stay_bounded_and_keep_what_is_recent() {
        let mut correlator = Correlator::default();
        for i in 0..3 * CAPACITY {
            let second = i64::try_from(i).expect("a small number");
            let mut one = occurrence("same", second);
            one.object.name = Some(format!("object {i}"));
            correlator.judge(&one, String::new());
        }
        assert!(correlator.written.len() <= CAPACITY);
        let mut again = occurrence("same", i64::try_from(3 * CAPACITY).expect("a small number"));
        again.object.name = Some(format!("object {}", 3 * CAPACITY - 1));
        assert!(matches!(
            correlator.judge(&again, String::new()),
            Verdict::Repeated { count: 2, .. }
        ));
    }
}
