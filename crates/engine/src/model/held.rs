//! What a pod holds on its node while it is resized in place.

use super::{Quantity, ResourceMap};

/// What counts of the requests of a container, or of a pod as a whole, that runs: of each resource the most of what its spec asks for, what
/// it has and what it was promised. `infeasible`: its node cannot give it what the spec asks for, which then does not count (kube-scheduler:
/// `PodRequests` of component-helpers with the status).
pub fn hold<'a>(
    requests: &mut ResourceMap,
    infeasible: bool,
    held: impl IntoIterator<Item = &'a ResourceMap>,
) {
    if infeasible {
        requests.clear();
    }
    for (name, amount) in held.into_iter().flatten() {
        match requests.get_mut(name) {
            Some(most) => *most = Quantity::max(*most, *amount),
            None => {
                requests.insert(name.clone(), *amount);
            }
        }
    }
}

/// The condition that says what becomes of a resize, and its reason if nothing does.
pub const RESIZE_PENDING: (&str, &str) = ("PodResizePending", "Infeasible");

/// Raises the requests of a pod as a whole to what it holds, as [`hold`] does for a container. Only resources that the spec asks for as a
/// whole count, and the overhead comes on top of what the status says (kube-scheduler: `PodRequests` of component-helpers). A status without
/// `resources` says nothing; callers pass only `held` of one that has them.
pub fn hold_as_whole<'a>(
    requests: &mut ResourceMap,
    infeasible: bool,
    held: impl IntoIterator<Item = &'a ResourceMap>,
) {
    if infeasible {
        requests
            .values_mut()
            .for_each(|own| *own = Quantity::default());
    }
    for (name, amount) in held.into_iter().flatten() {
        if let Some(most) = requests.get_mut(name) {
            *most = Quantity::max(*most, *amount);
        }
    }
}
