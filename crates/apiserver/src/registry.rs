//! The served resources: built-in, from CustomResourceDefinitions, and provided. They are found by path or by plural, and listed for
//! discovery.
//!
//! The table is replaced as a whole when a definition is added, changed or removed; a request uses the table that it loaded first.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;
use mullion_kinds::{Resource, SubresourceHandler, request::Lookup};
use mullion_store::{Collection, Key, Object, Store};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use tokio::sync::watch;

/// A served resource in one version, with the collection of its objects.
pub struct Row {
    /// The resource's properties and behaviour.
    pub resource: Arc<Resource>,
    /// The objects, shared with the other rows of the same storage.
    pub collection: Arc<Collection>,
    /// The apiVersion of the stored bytes.
    pub stored_version: Arc<str>,
    /// Whether its schema is not built in, but comes from a CustomResourceDefinition or the embedding program.
    pub custom: bool,
    api_version: Box<str>,
    serves_stored_bytes: bool,
}

impl Row {
    /// Returns the kind of the resource's lists.
    pub(crate) fn list_kind(&self) -> String {
        match &self.resource.list_kind {
            Some(given) => given.to_string(),
            None => format!("{}List", self.resource.kind),
        }
    }

    /// Returns whether the resource has a protobuf form.
    pub(crate) fn has_messages(&self) -> bool {
        !self.custom || !self.resource.message().is_empty()
    }

    /// Returns whether a CustomResourceDefinition defines the resource. kube-apiserver serves such resources without its router, so their
    /// error messages differ.
    pub(crate) fn is_defined(&self) -> bool {
        self.custom && !self.is_provided()
    }

    /// Returns whether the embedding program provides the resource.
    pub(crate) fn is_provided(&self) -> bool {
        self.resource.source().is_some()
    }

    /// Returns the etcd prefix of the resource's objects below `/registry/` in kube-apiserver (`SpecialDefaultResourcePrefixes`). Servers
    /// with groups of their own put the group in front, as the one of custom resources does.
    pub(crate) fn etcd_folder(&self) -> Cow<'_, str> {
        let (group, plural) = (&*self.resource.group, &*self.resource.plural);
        match (group, plural) {
            _ if self.custom => format!("{group}/{plural}").into(),
            ("apiregistration.k8s.io" | "apiextensions.k8s.io", _) => {
                format!("{group}/{plural}").into()
            }
            ("", "replicationcontrollers") => "controllers".into(),
            ("", "endpoints") => "services/endpoints".into(),
            ("", "nodes") => "minions".into(),
            ("", "services") => "services/specs".into(),
            ("networking.k8s.io", "ingresses") => "ingress".into(),
            _ => plural.into(),
        }
    }

    /// Returns `group/version`, or `version` for the core group.
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// Returns whether the stored bytes can be served without a conversion.
    pub fn serves_stored_bytes(&self) -> bool {
        self.serves_stored_bytes
    }

    /// Returns whether the resource has a `status` subresource, so that its main endpoint does not change `status`.
    pub fn has_status_subresource(&self) -> bool {
        self.resource
            .subresources
            .iter()
            .any(|sub| matches!(sub.handler, SubresourceHandler::Status(_)))
    }

    /// Returns an object in the version that this row serves.
    pub fn served(&self, object: &Object) -> Value {
        let mut value = object.parse();
        self.to_served(&mut value);
        value
    }

    /// Does the same as [`Row::served`] with a folded tree ([`Object::parse_folded`]), for a write.
    pub fn served_folded(&self, object: &Object) -> Value {
        let mut value = object.parse_folded();
        self.to_served(&mut value);
        value
    }

    /// Does the same as [`Row::served`] for objects that are read often: where stored bytes are served, each version is parsed once.
    pub fn looked_up(&self, object: &Object) -> Arc<Value> {
        if self.serves_stored_bytes() {
            object.tree()
        } else {
            Arc::new(self.served(object))
        }
    }

    /// Converts from the stored version to the one that this row serves.
    pub fn to_served(&self, value: &mut Value) {
        if self.serves_stored_bytes() {
            return;
        }
        self.resource.to_served(value);
        value["apiVersion"] = self.api_version().into();
        value["kind"] = (*self.resource.kind).into();
    }

    /// Converts from the version that this row serves to the stored one.
    pub fn to_stored(&self, value: &mut Value) {
        self.resource.to_storage(value);
        value["apiVersion"] = (*self.stored_version).into();
        value["kind"] = (*self.resource.kind).into();
    }

    /// Returns the values of the selectable fields of an object in served form.
    pub fn selectable_values(&self, value: &Value) -> Box<[Box<str>]> {
        let Some(selection) = self.resource.behaviour.field_selection() else {
            return Box::default();
        };
        let fields = selection.selectable_fields().iter();
        fields
            .map(|field| selection.selectable_value(value, field).into())
            .collect()
    }
}

/// The served resources at one moment.
#[derive(Default)]
pub struct Table {
    rows: Vec<Arc<Row>>,
    by_path: FxHashMap<String, usize>,
    by_plural: FxHashMap<String, usize>,
}

impl Table {
    fn new(store: &Store, rows: impl Iterator<Item = (Arc<Resource>, bool)>) -> Self {
        let mut table = Table::default();
        let mut stored_versions: FxHashMap<String, Arc<str>> = FxHashMap::default();
        for (resource, custom) in rows {
            let api_version = resource.api_version();
            // The first row of a storage decides the stored version, so definitions put theirs first.
            // All rows of a storage share one form on disk, or an object would change its version with each client that writes it.
            let stored_version = stored_versions
                .entry(resource.storage.to_string())
                .or_insert_with(|| api_version.as_str().into())
                .clone();
            let at = table.rows.len();
            table.by_path.insert(
                path_key(&resource.group, &resource.version, &resource.plural),
                at,
            );
            table
                .by_plural
                .entry(plural_key(&resource.group, &resource.plural))
                // The first version of a plural is the preferred one.
                .or_insert(at);
            let serves_stored_bytes =
                *api_version == *stored_version && !resource.rewrites_stored();
            let collection = store.collection(&resource.storage);
            if let Some(ttl) = resource.rules.ttl {
                collection.live_for(ttl);
            }
            table.rows.push(Arc::new(Row {
                collection,
                stored_version,
                custom,
                api_version: api_version.into(),
                serves_stored_bytes,
                resource,
            }));
        }
        table
    }

    /// Returns the row for `/apis/{group}/{version}/{plural}`; the group is empty for core.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Row>> {
        self.by_path
            .get(&path_key(group, version, plural))
            .map(|at| &self.rows[*at])
    }

    /// Returns the first row of a group with that plural, in any version.
    pub fn find_plural(&self, group: &str, plural: &str) -> Option<&Arc<Row>> {
        self.by_plural
            .get(&plural_key(group, plural))
            .map(|at| &self.rows[*at])
    }

    /// Returns all rows in discovery order.
    pub fn rows(&self) -> &[Arc<Row>] {
        &self.rows
    }

    /// Returns whether a group serves more than custom resources; the empty group is core.
    pub fn routes_group(&self, group: &str) -> bool {
        let mut rows = self.rows.iter();
        rows.any(|row| row.resource.group == group && !row.is_defined())
    }

    /// Returns whether a group and version is served.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.rows
            .iter()
            .any(|row| row.resource.group == group && row.resource.version == version)
    }
}

fn path_key(group: &str, version: &str, plural: &str) -> String {
    [group, "/", version, "/", plural].concat()
}

fn plural_key(group: &str, plural: &str) -> String {
    [group, "/", plural].concat()
}

/// The current table, and the operations that change it.
pub struct Registry {
    store: Arc<Store>,
    builtins: Vec<Arc<Resource>>,
    provided: Vec<Arc<Resource>>,
    definitions: Mutex<BTreeMap<String, Vec<Arc<Resource>>>>,
    table: ArcSwap<Table>,
    changes: watch::Sender<()>,
}

impl Registry {
    /// Creates a registry of the built-in resources and of those that the embedding program provides.
    pub fn new(store: Arc<Store>, builtins: Vec<Resource>, provided: Vec<Resource>) -> Self {
        let shared = |rows: Vec<Resource>| rows.into_iter().map(Arc::new).collect();
        let registry = Registry {
            store,
            builtins: shared(builtins),
            provided: shared(provided),
            definitions: Mutex::default(),
            table: ArcSwap::default(),
            changes: watch::Sender::default(),
        };
        registry.change(|_| {});
        registry
    }

    /// Returns the current table.
    pub fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Returns a receiver that is notified of every change of the table.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Recomputes the selectable fields of stored objects after a restart with a version of the program that selects other fields.
    pub fn renew_selectable_fields(&self) {
        let table = self.table();
        let mut seen = FxHashSet::default();
        for row in table.rows() {
            if row.custom || !seen.insert(row.resource.storage.to_string()) {
                continue;
            }
            let fields = row.resource.selectable_fields().join(",");
            let key = format!("selectable-fields/{}", row.resource.storage);
            let noted = self.store.notes().get(&key).unwrap_or_default();
            if noted == fields.as_bytes() {
                continue;
            }
            if row.collection.is_empty() {
                self.store.notes().put(key, fields);
            } else {
                // The objects on disk keep their old fields, so the note must stay as well for the next restart.
                row.collection
                    .select_by(|object| row.selectable_values(object));
            }
        }
    }

    /// Serves the versions of a CustomResourceDefinition, replacing its earlier ones. The storage version must come first.
    pub fn define(&self, definition: &str, rows: Vec<Resource>) {
        self.change(|definitions| {
            definitions.insert(
                definition.to_owned(),
                rows.into_iter().map(Arc::new).collect(),
            );
        });
    }

    /// Stops serving the resources of a CustomResourceDefinition.
    pub fn undefine(&self, definition: &str) {
        self.change(|definitions| {
            definitions.remove(definition);
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<Arc<Resource>>>)) {
        let mut definitions = self
            .definitions
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        change(&mut definitions);
        // The lock is held until the table is stored, so that two changes cannot overwrite each other.
        let builtins = self.builtins.iter().map(|row| (row.clone(), false));
        let custom = definitions
            .values()
            .flatten()
            .map(|row| (row.clone(), true));
        let provided = self.provided.iter().map(|row| (row.clone(), true));
        let rows = builtins.chain(custom).chain(provided);
        self.table.store(Arc::new(Table::new(&self.store, rows)));
        // After the store: whoever is notified must find the new table.
        self.changes.send_replace(());
    }
}

impl Lookup for Registry {
    fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>> {
        let table = self.table();
        let row = table.find_plural(group, plural)?;
        let object = row.collection.get(Key::new(namespace, name).as_str())?;
        Some(row.looked_up(&object))
    }

    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let table = self.table();
        let Some(row) = table.find_plural(group, plural) else {
            return Vec::new();
        };
        row.collection
            .snapshot(namespace)
            .objects
            .iter()
            .map(|object| match namespace {
                // Namespaced kinds have many objects, and no plugin lists them at every write, so do not cache their trees.
                Some(_) => Arc::new(row.served(object)),
                None => row.looked_up(object),
            })
            .collect()
    }
}
