//! Remembers the objects written for a Service until the informer shows them.
//!
//! Invariant: while a write for a Service is not yet visible, no other decision is made for that Service; it would
//! be based on the state before the write.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{Resource, ResourceExt};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::Key;

/// A write that stays invisible for this long was missed by the watch, and is no longer waited for.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Objects written but not yet seen in the informer, by Service.
#[derive(Debug, Default)]
pub(super) struct Writes {
    services: Mutex<FxHashMap<Key, Pending>>,
}

/// Writes by the name of the object, with the time of the write.
type Pending = BTreeMap<String, (Written, Instant)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    AtVersion(u64),
    Deleted,
}

impl Writes {
    /// Records that `object` was created or replaced.
    pub(super) fn note(&self, service: &Key, object: &impl Resource) {
        self.insert(service, object, Written::AtVersion(version(object)));
    }

    /// Records that `object` was deleted.
    pub(super) fn note_deletion(&self, service: &Key, object: &impl Resource) {
        self.insert(service, object, Written::Deleted);
    }

    fn insert(&self, service: &Key, object: &impl Resource, written: Written) {
        self.lock()
            .entry(service.clone())
            .or_default()
            .insert(object.name_any(), (written, Instant::now()));
    }

    /// Returns whether `existing` does not show all writes for the Service yet.
    pub(super) fn are_unseen(&self, service: &Key, existing: &[Arc<impl Resource>]) -> bool {
        let mut services = self.lock();
        let Some(writes) = services.get_mut(service) else {
            return false;
        };
        let seen: FxHashMap<_, _> = existing
            .iter()
            .map(|object| (object.name_any(), version(&**object)))
            .collect();
        writes.retain(|name, (written, at)| {
            let is_unseen = match (written, seen.get(name)) {
                (Written::AtVersion(written), Some(seen)) => seen < written,
                (Written::AtVersion(_), None) => true,
                (Written::Deleted, seen) => seen.is_some(),
            };
            is_unseen && at.elapsed() < GIVE_UP_AFTER
        });
        !writes.is_empty()
    }

    /// Processes a change from the informer. Returns whether it is the echo of this controller's own write.
    pub(super) fn observe(&self, service: &Key, object: &impl Resource, deleted: bool) -> bool {
        let mut services = self.lock();
        let Some(writes) = services.get_mut(service) else {
            return false;
        };
        let name = object.name_any();
        let Some(&(written, _)) = writes.get(&name) else {
            return false;
        };
        if deleted {
            writes.remove(&name);
            return written == Written::Deleted;
        }
        match written {
            // Only a version beyond the own write shows that someone else changed the object.
            Written::AtVersion(written) if version(object) <= written => true,
            Written::AtVersion(_) => false,
            // Changes from before the deletion may still arrive.
            Written::Deleted => true,
        }
    }

    /// Forgets a deleted Service.
    pub(super) fn forget(&self, service: &Key) {
        self.lock().remove(service);
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<Key, Pending>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the resource version as a number; the versions of one kind are ordered.
fn version(object: &impl Resource) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::discovery::v1::EndpointSlice;

    use super::*;

    const NOTHING: &[Arc<EndpointSlice>] = &[];

    fn slice(name: &str, version: &str) -> Arc<EndpointSlice> {
        let mut slice = EndpointSlice::default();
        slice.metadata.name = Some(name.to_owned());
        slice.metadata.resource_version = Some(version.to_owned());
        Arc::new(slice)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_never_seen_is_given_up() {
        let (writes, service) = (Writes::default(), Key::new("ns", "web"));
        writes.note(&service, &*slice("a", "10"));
        assert!(writes.are_unseen(&service, NOTHING));
        tokio::time::advance(GIVE_UP_AFTER).await;
        assert!(!writes.are_unseen(&service, NOTHING));
    }

    #[test]
    fn nothing_is_decided_until_the_informer_shows_what_was_written() {
        let (writes, service) = (Writes::default(), Key::new("ns", "web"));
        writes.note(&service, &*slice("a", "10"));
        writes.note_deletion(&service, &*slice("b", "5"));
        assert!(writes.are_unseen(&service, &[slice("b", "5")]));
        assert!(writes.are_unseen(&service, &[slice("a", "9")]));
        assert!(!writes.are_unseen(&service, &[slice("a", "10")]));
        assert!(
            !writes.are_unseen(&service, NOTHING),
            "once seen, a slice may go"
        );
    }

    #[test]
    fn a_change_by_somebody_else_is_told_from_an_echo() {
        let (writes, service) = (Writes::default(), Key::new("ns", "web"));
        writes.note(&service, &*slice("a", "10"));
        assert!(writes.observe(&service, &*slice("a", "10"), false));
        assert!(!writes.observe(&service, &*slice("a", "11"), false));
        assert!(!writes.observe(&service, &*slice("a", "11"), true));
        assert!(!writes.are_unseen(&service, NOTHING));
    }
}
