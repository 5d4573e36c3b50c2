//! Decides what follows from the owner references of an object. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{FOREGROUND, ORPHAN};

/// The state of an owner, read from the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The owner exists and is not in foreground deletion.
    Solid,
    /// The owner does not exist, or another object has its name.
    Absent,
    /// The owner is in foreground deletion and waits for its dependents.
    WaitsForDependents,
}

/// The decision about an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// All of its owners exist.
    Keep,
    /// Some owner exists: the object stays, with only these references.
    KeepReferences(Vec<OwnerReference>),
    /// No owner keeps it.
    Delete(Propagation),
    /// Like `Delete`, but its references must stop blocking first, because the object and an owner wait for each other.
    UnblockAndDelete(Vec<OwnerReference>),
}

/// The propagation policy of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// Decides about an object with these owners.
///
/// `dependents` is the number of the object's own dependents; `dependent_waits` tells whether one of them is in
/// foreground deletion.
pub(super) fn judge(
    meta: &ObjectMeta,
    owners: &[(OwnerReference, Owner)],
    dependents: usize,
    dependent_waits: bool,
) -> Verdict {
    let with = |state: Owner| {
        owners
            .iter()
            .filter(move |(_, owner)| *owner == state)
            .map(|(reference, _)| reference)
    };
    if with(Owner::Solid).next().is_some() {
        // One living owner keeps the object. The dead references go, so that it is not judged for them again.
        let solid: Vec<_> = with(Owner::Solid).cloned().collect();
        return if solid.len() == owners.len() {
            Verdict::Keep
        } else {
            Verdict::KeepReferences(solid)
        };
    }
    // An object without owner references is never garbage.
    if owners.is_empty() {
        return Verdict::Keep;
    }
    // A waiting owner passes foreground deletion on, so that it also waits for the dependents of its dependents.
    if with(Owner::WaitsForDependents).next().is_some() && dependents > 0 {
        if dependent_waits {
            // A waiting dependent means that the owners may wait for each other in a circle, which unblocking
            // breaks.
            let unblocked = |(reference, _): &(OwnerReference, Owner)| OwnerReference {
                block_owner_deletion: Some(false),
                ..reference.clone()
            };
            return Verdict::UnblockAndDelete(owners.iter().map(unblocked).collect());
        }
        return Verdict::Delete(Propagation::Foreground);
    }
    let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|own| own == finalizer);
    Verdict::Delete(if has(ORPHAN) {
        Propagation::Orphan
    } else if has(FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(uid: &str) -> OwnerReference {
        OwnerReference {
            uid: uid.to_owned(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        }
    }

    fn decide(owners: &[(&str, Owner)], dependents: usize, dependent_waits: bool) -> Verdict {
        let owners: Vec<_> = owners
            .iter()
            .map(|(uid, owner)| (reference(uid), *owner))
            .collect();
        judge(&ObjectMeta::default(), &owners, dependents, dependent_waits)
    }

    #[test]
    fn one_living_owner_keeps_an_object_and_dead_references_are_dropped() {
        assert_eq!(decide(&[("a", Owner::Solid)], 0, false), Verdict::Keep);
        let mixed = [
            ("a", Owner::Absent),
            ("b", Owner::Solid),
            ("c", Owner::WaitsForDependents),
        ];
        assert_eq!(
            decide(&mixed, 0, false),
            Verdict::KeepReferences(vec![reference("b")])
        );
    }

    #[test]
    fn an_object_without_references_is_nobodys_business() {
        assert_eq!(decide(&[], 0, false), Verdict::Keep);
    }

    #[test]
    fn an_object_whose_owners_are_gone_goes() {
        assert_eq!(
            decide(&[("a", Owner::Absent)], 3, false),
            Verdict::Delete(Propagation::Background)
        );
    }

    #[test]
    fn a_foreground_owner_passes_its_policy_on_to_dependents_that_have_dependents() {
        let waiting = [("a", Owner::WaitsForDependents)];
        assert_eq!(
            decide(&waiting, 0, false),
            Verdict::Delete(Propagation::Background)
        );
        assert_eq!(
            decide(&waiting, 1, false),
            Verdict::Delete(Propagation::Foreground)
        );
    }

    #[test]
    fn a_circle_of_waiting_objects_is_broken() {
        let Verdict::UnblockAndDelete(references) =
            decide(&[("a", Owner::WaitsForDependents)], 1, true)
        else {
            panic!("the circle was not seen");
        };
        assert_eq!(references[0].block_owner_deletion, Some(false));
    }

    #[test]
    fn a_finalizer_on_the_object_sets_the_policy() {
        let absent = [(reference("a"), Owner::Absent)];
        let with = |finalizer: &str| {
            let meta = ObjectMeta {
                finalizers: Some(vec![finalizer.to_owned()]),
                ..ObjectMeta::default()
            };
            judge(&meta, &absent, 0, false)
        };
        assert_eq!(with(ORPHAN), Verdict::Delete(Propagation::Orphan));
        assert_eq!(with(FOREGROUND), Verdict::Delete(Propagation::Foreground));
        assert_eq!(
            with("example.com/other"),
            Verdict::Delete(Propagation::Background)
        );
    }
}
