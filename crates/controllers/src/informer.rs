//! One shared watch per kind: an in-memory copy of the API's objects and a fan-out of what changed.
//!
//! An [`Informer`] lists and watches a kind once per process, however many controllers read it. Objects are kept as
//! `Arc<K>` without their `managedFields` and never copied on read. Handlers see every change in order and are given
//! the object before and after it; they only enqueue keys (see [`crate::queue`]) and return at once.
//!
//! Invariant: when a handler runs, the store already contains the change that the handler gets.

mod key;
mod store;
mod undecoded;

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use futures::StreamExt;
use kube::{Api, Resource, ResourceExt, runtime::watcher};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use key::Key;
use store::Store;

/// What happened to one object.
#[derive(Debug)]
pub enum Change<'a, K> {
    /// The object is new (or was there when the handler registered).
    Added(&'a Arc<K>),
    /// The object was replaced by a newer version of itself.
    Updated {
        /// The last version seen before.
        old: &'a Arc<K>,
        /// The version that is in the store now.
        new: &'a Arc<K>,
    },
    /// The object is gone; this is the last version seen.
    Deleted(&'a Arc<K>),
}

impl<'a, K> Change<'a, K> {
    /// Returns the newest known version: the new one, or the last one of a deleted object.
    pub fn object(&self) -> &'a Arc<K> {
        match self {
            Self::Added(object) | Self::Updated { new: object, .. } | Self::Deleted(object) => {
                object
            }
        }
    }

    /// Returns the version before an update; `None` for other changes.
    pub fn previous(&self) -> Option<&'a Arc<K>> {
        match self {
            Self::Updated { old, .. } => Some(old),
            Self::Added(_) | Self::Deleted(_) => None,
        }
    }

    /// Returns whether the object was deleted.
    pub fn is_deleted(&self) -> bool {
        matches!(self, Self::Deleted(_))
    }
}

/// Calls back with each value of an index under which an object is stored.
pub type IndexFn<K> = fn(&K, &mut dyn FnMut(&str));

type Handler<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;

/// A shared, self-healing copy of all objects of one kind. Cheap to clone.
///
/// # Guarantees
/// - The watch starts with the first [`Informer::start`], [`Informer::synced`] or [`Informer::on_change`]; a kind
///   that no controller uses costs nothing.
/// - Each handler sees, for one object, `Added`, then `Updated`s, then `Deleted`, across relists too.
///
/// # Caveats
/// - Reads before [`Informer::synced`] may miss objects, and any read may lag behind a write just made.
pub struct Informer<K> {
    inner: Arc<Inner<K>>,
}

/// How a watch ended.
#[derive(PartialEq, Eq)]
enum Followed {
    /// It is over, which happens with the process.
    ToItsEnd,
    /// The list has an object that cannot be read.
    Unreadable,
}

/// How long after a list with an unreadable object the next one is asked for, as long as kube's watcher waits at most after errors.
const LIST_AGAIN: Duration = Duration::from_secs(30);

struct Inner<K> {
    open: Box<dyn Fn() -> undecoded::Events + Send + Sync>,
    url: String,
    decode: fn(&str) -> serde_json::Result<K>,
    trim: fn(&mut K),
    store: RwLock<Store<K>>,
    handlers: Mutex<Vec<Handler<K>>>,
    started: Mutex<bool>,
    synced: watch::Sender<bool>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<K> Debug for Informer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Informer")
            .field("synced", &self.is_synced())
            .field("objects", &self.read().len())
            .finish_non_exhaustive()
    }
}

impl<K> Informer<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Creates an informer over everything that `api` covers; the watch is not started yet.
    ///
    /// `indexes` are kept up to date with the store and read by [`Informer::by_index`]. The watch task is tracked by
    /// `tasks` and ends with `shutdown`.
    pub fn new(
        api: Api<K>,
        indexes: &[(&'static str, IndexFn<K>)],
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Self {
        Self::with_config(
            api,
            watcher::Config::default(),
            |_| {},
            indexes,
            tasks,
            shutdown,
        )
    }

    /// Creates an informer like [`Informer::new`] over the objects that `config` selects, each passed through `trim`
    /// to drop unused fields. `W` is the type that is decoded: the kind itself, or a smaller form of it.
    pub fn with_config<W>(
        api: Api<W>,
        config: watcher::Config,
        trim: fn(&mut K),
        indexes: &[(&'static str, IndexFn<K>)],
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Self
    where
        W: Resource + Clone + DeserializeOwned + Debug + Into<K> + Send + Sync + 'static,
    {
        let url = api.resource_url().to_owned();
        let client = api.into_client();
        let open = {
            let url = url.clone();
            move || undecoded::watch(client.clone(), &url, config.clone(), W::metadata_api())
        };
        Self {
            inner: Arc::new(Inner {
                open: Box::new(open),
                url,
                decode: |text| serde_json::from_str::<W>(text).map(Into::into),
                trim,
                store: RwLock::new(Store::new(indexes)),
                handlers: Mutex::default(),
                started: Mutex::new(false),
                synced: watch::Sender::new(false),
                tasks,
                shutdown,
            }),
        }
    }

    /// Starts the watch unless it runs already. Must be called within a tokio runtime.
    pub fn start(&self) {
        let mut started = lock(&self.inner.started);
        if !*started {
            *started = true;
            let inner = Arc::clone(&self.inner);
            self.inner.tasks.spawn(async move {
                let shutdown = inner.shutdown.clone();
                shutdown.run_until_cancelled(inner.watch()).await;
            });
        }
    }

    /// Waits until the first complete list is in the store; starts the watch if need be.
    ///
    /// Returns `false` if the process is shutting down instead.
    pub async fn synced(&self) -> bool {
        self.start();
        let mut synced = self.inner.synced.subscribe();
        let waited = self
            .inner
            .shutdown
            .run_until_cancelled(synced.wait_for(|synced| *synced))
            .await;
        matches!(waited, Some(Ok(_)))
    }

    /// Calls `handler` for every present object (as `Added`) and for every change from now on; starts the watch if it
    /// does not run.
    ///
    /// The handler runs on the watch task: it must not block, and must not register handlers on the same informer.
    pub fn on_change(&self, handler: impl Fn(&Change<'_, K>) + Send + Sync + 'static) {
        {
            // Holding the handlers' lock keeps changes out between the replay and the registration.
            let mut handlers = lock(&self.inner.handlers);
            let present = self.list();
            for object in &present {
                handler(&Change::Added(object));
            }
            handlers.push(Box::new(handler));
        }
        self.start();
    }
}

impl<K> Informer<K> {
    /// Returns whether the first complete list has arrived.
    pub fn is_synced(&self) -> bool {
        *self.inner.synced.borrow()
    }

    /// Returns the object `name` of `namespace` (empty for cluster-scoped kinds).
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get_key(&Key::new(namespace, name))
    }

    /// Returns the object of `key`.
    pub fn get_key(&self, key: &Key) -> Option<Arc<K>> {
        self.read().object(key).cloned()
    }

    /// Returns all objects, in no particular order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().objects().cloned().collect()
    }

    /// Returns all objects of one namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.by_index(store::NAMESPACE, namespace)
    }

    /// Returns all objects filed under `value` in the index `index`; none if the index was not declared.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        self.read().by_index(index, value).cloned().collect()
    }

    /// Returns at most `most` objects filed under `value` for which `wanted` is true.
    pub fn find_by_index(
        &self,
        index: &str,
        value: &str,
        most: usize,
        wanted: impl Fn(&K) -> bool,
    ) -> Vec<Arc<K>> {
        let store = self.read();
        let found = store.by_index(index, value).filter(|object| wanted(object));
        found.take(most).cloned().collect()
    }

    /// Returns the number of objects filed under `value` in the index `index`.
    pub fn count_by_index(&self, index: &str, value: &str) -> usize {
        self.read().by_index(index, value).len()
    }

    /// Returns the number of objects in a namespace.
    pub fn count_in_namespace(&self, namespace: &str) -> usize {
        self.count_by_index(store::NAMESPACE, namespace)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(&self) -> RwLockReadGuard<'_, Store<K>> {
        self.inner
            .store
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Inner<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    async fn watch(&self) {
        while self.follow((self.open)()).await == Followed::Unreadable {
            tokio::time::sleep(LIST_AGAIN).await;
        }
    }

    /// Brings what a watch tells into the store, until the watch ends or lists an object that cannot be read.
    async fn follow(&self, mut events: undecoded::Events) -> Followed {
        // What the list that runs has delivered, in which a hole is no object that is gone.
        let mut listed = Some(Vec::new());
        while let Some(event) = events.next().await {
            match event {
                // An interrupted list starts over, so what it has delivered so far does not count.
                Ok(watcher::Event::Init) => listed = Some(Vec::new()),
                Ok(watcher::Event::InitApply(text)) => match (self.decode(&text), &mut listed) {
                    (Some(object), Some(listed)) => listed.push(object),
                    _ => listed = None,
                },
                Ok(watcher::Event::InitDone) => match listed.replace(Vec::new()) {
                    Some(objects) => {
                        self.replace(objects);
                        // Announced after the handlers ran, so that whoever waits finds their work done.
                        self.synced.send_replace(true);
                    }
                    None => return Followed::Unreadable,
                },
                Ok(watcher::Event::Apply(text)) => {
                    if let Some(object) = self.decode(&text) {
                        self.apply(object);
                    }
                }
                Ok(watcher::Event::Delete(text)) => {
                    if let Some(object) = self.decode(&text) {
                        self.delete(object);
                    }
                }
                Err(error) => {
                    tracing::debug!(url = self.url, %error, "watch interrupted")
                }
            }
        }
        Followed::ToItsEnd
    }

    /// Decodes an object; `None`, with a warning that names the object, if it cannot be read.
    ///
    /// Controllers then keep what they knew: an object that they take for deleted could cost a node or a pod.
    fn decode(&self, text: &RawValue) -> Option<Arc<K>> {
        match (self.decode)(text.get()) {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                (self.trim)(&mut object);
                Some(Arc::new(object))
            }
            Err(error) => {
                let object = undecoded::key(text);
                tracing::warn!(url = self.url, %object, %error, "cannot read an object: controllers do not learn of its changes until it is mended");
                None
            }
        }
    }

    fn apply(&self, object: Arc<K>) {
        let handlers = lock(&self.handlers);
        let previous = self.write(|store| store.insert(Key::of(&*object), Arc::clone(&object)));
        match &previous {
            None => notify(&handlers, &Change::Added(&object)),
            Some(old) => notify_replaced(&handlers, old, &object),
        }
    }

    fn delete(&self, object: Arc<K>) {
        let handlers = lock(&self.handlers);
        let known = self.write(|store| store.remove(&Key::of(&*object)));
        // A watch may report the deletion of an object that the previous relist has already removed.
        if known.is_some() {
            notify(&handlers, &Change::Deleted(&object));
        }
    }

    fn replace(&self, objects: Vec<Arc<K>>) {
        let handlers = lock(&self.handlers);
        let (previous, gone) = self
            .write(|store| store.replace(objects.iter().map(|o| (Key::of(&**o), Arc::clone(o)))));
        for object in &gone {
            // Deletions come first: an object that was renamed must free what its successor needs.
            notify(&handlers, &Change::Deleted(object));
        }
        for (object, old) in objects.iter().zip(&previous) {
            match old {
                None => notify(&handlers, &Change::Added(object)),
                Some(old) if old.resource_version() == object.resource_version() => {}
                Some(old) => notify_replaced(&handlers, old, object),
            }
        }
    }

    fn write<R>(&self, edit: impl FnOnce(&mut Store<K>) -> R) -> R {
        edit(&mut self.store.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reports an object whose UID changed as deleted and added: the deletion of its predecessor was missed.
fn notify_replaced<K: Resource>(handlers: &[Handler<K>], old: &Arc<K>, new: &Arc<K>) {
    if old.meta().uid == new.meta().uid {
        notify(handlers, &Change::Updated { old, new });
    } else {
        notify(handlers, &Change::Deleted(old));
        notify(handlers, &Change::Added(new));
    }
}

fn notify<K>(handlers: &[Handler<K>], change: &Change<'_, K>) {
    for handler in handlers {
        handler(change);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
