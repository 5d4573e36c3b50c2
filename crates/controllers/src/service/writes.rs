//! Remembers what was written until the informer shows it.
//!
//! Invariant: while something written for a Service is unseen, no second decision is taken for it, or it would be taken
//! on the state before the first.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{Resource, ResourceExt};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::Key;

/// Writes that stay unseen for this long were missed by the watch and no longer wait for it.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Objects written but not seen in the informer yet, by Service.
#[derive(Debug, Default)]
pub(super) struct Writes {
    services: Mutex<FxHashMap<Key, Pending>>,
}

/// By name of the object, with the time of the write.
type Pending = BTreeMap<String, (Written, Instant)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    AtVersion(u64),
    Deleted,
}

impl Writes {
    /// `object` was created or replaced.
    pub(super) fn note(&self, service: &Key, object: &impl Resource) {
        self.insert(service, object, Written::AtVersion(version(object)));
    }

    /// `object` was deleted.
    pub(super) fn note_deletion(&self, service: &Key, object: &impl Resource) {
        self.insert(service, object, Written::Deleted);
    }

    fn insert(&self, service: &Key, object: &impl Resource, written: Written) {
        self.lock()
            .entry(service.clone())
            .or_default()
            .insert(object.name_any(), (written, Instant::now()));
    }

    /// Whether `existing` lacks something written.
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

    /// Takes note of an informer's change. Returns whether it is a write of our own coming back.
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
            Written::AtVersion(written) if version(object) <= written => true,
            Written::AtVersion(_) => false,
            Written::Deleted => true,
        }
    }

    /// The Service is gone.
    pub(super) fn forget(&self, service: &Key) {
        self.lock().remove(service);
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<Key, Pending>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resource versions of one kind are ordered.
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
