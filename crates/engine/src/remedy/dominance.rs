//! Which alternatives are not worth showing beside a smaller set of changes.
//!
//! A larger set is worth showing only if it is better in something: another object is changed, the node costs less, or it leads somewhere
//! else at the same price by other values.

use super::{Change, Place, Set};

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

/// What a place costs, in micro-dollars per hour; a node that is there costs nothing more.
fn price(place: &Place) -> u64 {
    match place {
        Place::Node(_) => 0,
        Place::Bought {
            price_micro_usd, ..
        } => *price_micro_usd,
    }
}

/// Whether nothing speaks for the second set of changes, with the place it leads to, once the first is known, which is not larger.
pub(super) fn dominates((smaller, place): (&Set, &Place), (larger, other): (&Set, &Place)) -> bool {
    let touched: Vec<_> = larger.iter().map(object).collect();
    let same_objects = smaller.iter().all(|own| touched.contains(&object(own)));
    let (own, others) = (price(place), price(other));
    let is_cheaper = own < others || place == other;
    same_objects && own <= others && (is_cheaper || gives_up_more(larger, smaller))
}

/// Whether a set makes every change of another, or one that takes more of the same request.
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

    fn bought(price_micro_usd: u64) -> Place {
        bought_as("m5.large", price_micro_usd)
    }

    fn bought_as(instance_type: &str, price_micro_usd: u64) -> Place {
        Place::Bought {
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
        let dominated =
            |a: &Set, place: Place, b: &Set, other: Place| dominates((a, &place), (b, &other));
        let (here, there) = (bought_as("here", 0), bought_as("there", 0));
        // More of the request is given up for nothing.
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
        // The same node, by dropping what could be put right.
        assert!(dominated(
            &zone(Some("a")),
            bought(5),
            &zone(None),
            bought(5)
        ));
        // Another value leads to another node: for the user to choose, unless it costs more.
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
        // Somebody else's object is changed.
        assert!(!dominated(&zone(Some("a")), bought(5), &allow(), bought(6)));
        let mut both = zone(Some("a"));
        both.extend(allow());
        assert!(dominated(&allow(), bought(5), &both, bought(5)));
        assert!(!dominated(&allow(), bought(5), &zone(Some("a")), here));
    }
}
