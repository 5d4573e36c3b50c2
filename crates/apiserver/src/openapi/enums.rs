//! The enumerations of string fields: Go's string types that Kubernetes marks with `+enum`.
//!
//! Each line of `enums.tsv` is one enumeration: the group and name of the type, then its values in document order, separated by tabs. The
//! lines are sorted. A type is listed under the group that declares it; other groups use only those of core.

use std::{collections::BTreeMap, sync::LazyLock};

static TEXT: &str = include_str!("enums.tsv");

/// Returns the values of a field whose Go type is `go`, or of its items; `None` if the type is no enumeration. `owner` is the full name
/// of the type that has the field.
pub(super) fn of(owner: &str, go: &str) -> Option<&'static [&'static str]> {
    static SETS: LazyLock<BTreeMap<&str, Vec<&str>>> = LazyLock::new(|| {
        let cells = TEXT.lines().map(|line| line.split('\t'));
        cells
            .filter_map(|mut cells| Some((cells.next()?, cells.collect())))
            .collect()
    });
    let (_, name) = go.rsplit_once('.')?;
    let own = owner.rsplit('.').nth(2)?;
    let find = |group: &str| SETS.get(format!("{group}.{name}").as_str());
    find(own).or_else(|| find("core")).map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mullion_schema::Type;

    use super::*;

    #[test]
    fn sets_and_their_values_are_sorted() {
        let names: Vec<&str> = TEXT
            .lines()
            .filter_map(|line| line.split('\t').next())
            .collect();
        assert!(names.is_sorted());
        for line in TEXT.lines() {
            let values: Vec<&str> = line.split('\t').skip(1).collect();
            assert!(values.is_sorted() && values.len() > 1, "{line}");
        }
    }

    #[test]
    fn every_set_is_that_of_a_field() {
        let mut used = BTreeSet::new();
        for kind in Type::every_builtin() {
            let mullion_schema::Node::Struct(fields) = kind.node() else {
                continue;
            };
            let sets = fields.fields.iter();
            used.extend(sets.filter_map(|field| of(&fields.name, &field.go)));
        }
        for line in TEXT.lines() {
            let values: Vec<&str> = line.split('\t').skip(1).collect();
            assert!(used.contains(values.as_slice()), "{line}");
        }
    }

    #[test]
    fn a_type_without_a_set_of_its_own_has_none() {
        assert_eq!(of("api.core.v1.Pod", "string"), None);
        assert_eq!(of("api.core.v1.Secret", "v1.SecretType"), None);
        assert_eq!(
            of("api.discovery.v1.EndpointPort", "*v1.Protocol"),
            Some(&["SCTP", "TCP", "UDP"][..])
        );
    }
}
