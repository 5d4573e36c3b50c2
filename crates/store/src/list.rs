//! Reading a range of a collection, now or as it was at a past revision, in pages.
//!
//! A past state is the current one with the events since undone: for each key that changed, the version before its first later
//! event. It costs what has changed, and every page of one list is cut from the same revision however long the client takes.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, sync::atomic::Ordering};

use super::{Collection, Key, Object, collection::State};

/// Which objects to read.
#[derive(Clone, Debug, Default)]
pub struct PageRequest<'a> {
    /// Restricts the list to the objects of this namespace.
    pub namespace: Option<&'a str>,
    /// Restricts the list to keys from this one on.
    pub start: Option<&'a str>,
    /// At most this many objects.
    pub limit: Option<usize>,
    /// The state at this revision; the current one if not given.
    pub at: Option<u64>,
}

/// The objects of one answer.
#[derive(Debug, Default)]
pub struct Page {
    /// The objects of the page, in key order.
    pub objects: Vec<Arc<Object>>,
    /// The revision the page shows.
    pub revision: u64,
    /// The key at which the next page starts, if there is one.
    pub next: Option<String>,
    /// The number of keys after this page.
    pub remaining: usize,
}

/// Everything in a range at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The objects, in key order.
    pub objects: Vec<Arc<Object>>,
    /// The revision the snapshot shows.
    pub revision: u64,
}

/// The error for a revision whose state is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Events since then have been dropped.
    #[error("revision {revision} has been compacted")]
    Compacted {
        /// The revision asked for.
        revision: u64,
    },
    /// The revision has not been given out yet.
    #[error("revision is in the future; the current one is {current}")]
    Future {
        /// The current revision.
        current: u64,
    },
}

impl Collection {
    /// Returns the present objects of a namespace, or of all namespaces.
    pub fn snapshot(&self, namespace: Option<&str>) -> Snapshot {
        let state = self.read();
        let bounds = Bounds::new(namespace, None);
        let objects = state
            .objects
            .range::<str, _>(bounds.as_range())
            .map(|(_, object)| object.clone())
            .collect();
        Snapshot {
            objects,
            revision: self.revision.load(Ordering::Acquire),
        }
    }

    /// Returns one page of the objects that `matches` accepts.
    pub fn list(
        &self,
        request: &PageRequest<'_>,
        matches: impl Fn(&Object) -> bool,
    ) -> Result<Page, ListError> {
        let state = self.read();
        let current = self.revision.load(Ordering::Acquire);
        // Read under the lock, so that the revision is that of exactly this content.
        let revision = request.at.unwrap_or(current);
        if revision > current {
            return Err(ListError::Future { current });
        }
        if revision < state.log.compacted() {
            return Err(ListError::Compacted { revision });
        }
        let bounds = Bounds::new(request.namespace, request.start);
        let mut undone = undo(&state, revision);
        let mut page = Page {
            revision,
            ..Page::default()
        };
        let take = |object: &Arc<Object>, page: &mut Page| {
            if request
                .limit
                .is_some_and(|limit| page.objects.len() >= limit)
            {
                // Counted without `matches`, so that the rest of the list need not be examined.
                page.remaining += 1;
                if page.next.is_none() {
                    page.next = page
                        .objects
                        .last()
                        .map(|last| format!("{}\0", last.key().as_str()));
                }
            } else if matches(object) {
                page.objects.push(object.clone());
            }
        };
        for (key, object) in state.objects.range::<str, _>(bounds.as_range()) {
            // Objects that were deleted since are no longer in the index, so they are merged in where their
            // keys belong.
            while let Some((gone, _)) = undone.first_key_value().filter(|(gone, _)| *gone < key) {
                let gone = gone.clone();
                if let Some(Some(object)) = undone
                    .remove(&gone)
                    .filter(|_| bounds.contains(gone.as_str()))
                {
                    take(&object, &mut page);
                }
            }
            match undone.remove(key) {
                Some(Some(earlier)) => take(&earlier, &mut page),
                Some(None) => {}
                None => take(object, &mut page),
            }
        }
        // Deleted objects whose keys come after all present ones.
        for (key, earlier) in undone {
            if let Some(object) = earlier.filter(|_| bounds.contains(key.as_str())) {
                take(&object, &mut page);
            }
        }
        Ok(page)
    }
}

/// Returns, for every key that changed after a revision, its version at that revision (`None`: there was none).
fn undo(state: &State, revision: u64) -> BTreeMap<Key, Option<Arc<Object>>> {
    let mut undone = BTreeMap::new();
    for event in state.log.after(revision) {
        undone
            .entry(event.object.key().clone())
            .or_insert_with(|| event.previous.clone());
    }
    undone
}

/// The keys of a namespace from a start on.
struct Bounds {
    from: String,
    to: Option<String>,
}

impl Bounds {
    fn new(namespace: Option<&str>, start: Option<&str>) -> Self {
        let prefix = namespace
            .map(|namespace| [namespace, "/"].concat())
            .unwrap_or_default();
        // '0' follows '/': the first key behind every name of the namespace.
        let to = namespace.map(|namespace| [namespace, "0"].concat());
        let from = match start {
            Some(start) if *start > *prefix => start.to_owned(),
            _ => prefix,
        };
        // A start behind the range makes it empty rather than reversed.
        let from = match &to {
            Some(to) if from > *to => to.clone(),
            _ => from,
        };
        Bounds { from, to }
    }

    fn as_range(&self) -> (Bound<&str>, Bound<&str>) {
        let to = self.to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        (Bound::Included(self.from.as_str()), to)
    }

    fn contains(&self, key: &str) -> bool {
        *key >= *self.from && self.to.as_deref().is_none_or(|to| key < to)
    }
}
