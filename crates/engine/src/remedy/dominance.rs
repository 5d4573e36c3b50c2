//! Decides which alternatives are not worth showing beside a smaller set of changes.
//!
//! A larger set is shown only if it has an advantage: it changes another object, the node costs less, or it leads to another place at the
//! same price with other values.

use super::{Change, ChangedPlace, Set};

/// The object that a change is made to.
#[derive(PartialEq)]
enum Object<'a> {
    Pod,
    Node(&'a str),
    Pool(&'a str),
    AddressSettings,
}

fn object(change: &Change) -> Object<'_> {
    match change {
        Change::Uncordon { node } => Object::Node(node),
        Change::RaiseLimit { pool, .. }
        | Change::Allow { pool, .. }
        | Change::Label { pool, .. } => Object::Pool(pool),
        Change::DelegatePrefixes { .. } => Object::AddressSettings,
        _ => Object::Pod,
    }
}

/// Returns the price of a place in micro-dollars per hour; an existing node costs nothing more.
fn price(place: &ChangedPlace) -> u64 {
    match place {
        ChangedPlace::Node(_) => 0,
        ChangedPlace::Bought {
            price_micro_usd, ..
        } => *price_micro_usd,
    }
}

/// Returns whether the first set of changes makes the second one, which is not smaller, superfluous. Each set comes with the place that it
/// leads to.
pub(super) fn dominates(
    (smaller, place): (&Set, &ChangedPlace),
    (larger, other): (&Set, &ChangedPlace),
) -> bool {
    // A change of an object that the smaller set leaves alone may be the one that this user is allowed to make.
    let touched: Vec<_> = larger.iter().map(object).collect();
    let same_objects = smaller.iter().all(|own| touched.contains(&object(own)));
    let (own, others) = (price(place), price(other));
    let is_cheaper = own < others || place == other;
    same_objects && own <= others && (is_cheaper || gives_up_more(larger, smaller))
}

/// Returns whether a set makes every change of another set, or one that reduces the same request further.
fn gives_up_more(larger: &Set, smaller: &Set) -> bool {
    smaller.iter().all(|own| {
        larger.iter().any(|other| match (own, other) {
            (
                Change::Request { resource, to, .. },
                Change::Request {
                    resource: same,
                    to: less,
                    ..
                },
            ) => resource == same && less <= to,
            _ => own == other,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bought(price_micro_usd: u64) -> ChangedPlace {
        bought_as("m5.large", price_micro_usd)
    }

    fn bought_as(instance_type: &str, price_micro_usd: u64) -> ChangedPlace {
        ChangedPlace::Bought {
            pool: "linux".into(),
            instance_type: instance_type.into(),
            price_micro_usd,
            addresses: None,
        }
    }

    fn less_cpu(to: i64) -> Set {
        let (resource, from) = ("cpu".to_owned(), 8_000);
        Set::from([Change::Request { resource, from, to }])
    }

    fn zone(instead: Option<&str>) -> Set {
        Set::from([Change::Select {
            key: "topology.kubernetes.io/zone".into(),
            wanted: "d".into(),
            instead: instead.map(str::to_owned),
        }])
    }

    fn allow() -> Set {
        Set::from([Change::Allow {
            pool: "linux".into(),
            key: "topology.kubernetes.io/zone".into(),
            value: "d".into(),
            instead_of: None,
        }])
    }

    #[test]
    fn an_alternative_is_worth_showing_if_it_is_better_in_something() {
        let dominated = |a: &Set, place: ChangedPlace, b: &Set, other: ChangedPlace| {
            dominates((a, &place), (b, &other))
        };
        let (here, there) = (bought_as("here", 0), bought_as("there", 0));
        // A larger reduction of the request gains nothing.
        assert!(dominated(
            &less_cpu(6_000),
            here.clone(),
            &less_cpu(1_000),
            there.clone()
        ));
        assert!(!dominated(
            &less_cpu(6_000),
            bought(9),
            &less_cpu(1_000),
            bought(5)
        ));
        // The same node is reached by dropping a demand that could be corrected instead.
        assert!(dominated(
            &zone(Some("a")),
            bought(5),
            &zone(None),
            bought(5)
        ));
        // Another value leads to another node, which is the user's choice unless it costs more.
        assert!(!dominated(
            &zone(Some("a")),
            here.clone(),
            &zone(Some("b")),
            there
        ));
        assert!(dominated(
            &zone(Some("a")),
            bought(5),
            &zone(Some("b")),
            bought(6)
        ));
        // The two sets change different objects.
        assert!(!dominated(&zone(Some("a")), bought(5), &allow(), bought(6)));
        let mut both = zone(Some("a"));
        both.extend(allow());
        assert!(dominated(&allow(), bought(5), &both, bought(5)));
        assert!(!dominated(&allow(), bought(5), &zone(Some("a")), here));
    }
}
