//! Roles and bindings in the form that questions need: bindings by subject, cluster-wide and by namespace, roles by name.
//!
//! Invariant: the index is brought up to date from the store's own logs before each answer, so a grant holds for the very next request;
//! a request costs a look at its own user and groups, however many bindings there are, a change costs what changed.

use std::sync::Arc;

use mullion_kinds::{
    rbac::rule::{MissingRole, Rule},
    request::{User, service_account},
};
use mullion_kube_text::golang::quote;
use mullion_schema::tree::Tree;
use mullion_store::{Collection, Cursor, Event, EventType, Object, Store};
use rustc_hash::FxHashMap;
use serde_json::Value;

/// A role given to subjects.
pub(super) struct Binding {
    /// `namespace/name`, or the name.
    key: String,
    /// Empty for a ClusterRoleBinding.
    namespace: String,
    role_kind: String,
    role_name: String,
    /// The users and groups, each once, with how the binding names them.
    users: Vec<(String, String)>,
    groups: Vec<(String, String)>,
}

impl Binding {
    fn of(key: &str, object: &Value) -> Self {
        let (metadata, role) = (&object["metadata"], &object["roleRef"]);
        let namespace = metadata.text("namespace").to_owned();
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for subject in object.items("subjects") {
            let (kind, name) = (subject.text("kind"), subject.text("name"));
            let simple = format!("{kind} {}", quote(name));
            match kind {
                "User" => users.push((name.to_owned(), simple)),
                "Group" => groups.push((name.to_owned(), simple)),
                "ServiceAccount" => {
                    let own = subject.text("namespace");
                    let home = if own.is_empty() { &namespace } else { own };
                    if !home.is_empty() {
                        let shown = format!("{kind} {}", quote(&format!("{name}/{home}")));
                        users.push((service_account::username(home, name), shown));
                    }
                }
                _ => {}
            }
        }
        Binding {
            key: key.to_owned(),
            namespace,
            role_kind: role.text("kind").to_owned(),
            role_name: role.text("name").to_owned(),
            users,
            groups,
        }
    }

    /// Returns the text for the binding in an authorization reason, with the first of its subjects that matches the user.
    pub(super) fn describe(&self, user: &User) -> String {
        let of_user = self.users.iter().find(|(name, _)| *name == user.name);
        let of_group = || {
            let mut groups = self.groups.iter();
            groups.find(|(name, _)| user.groups.contains(name))
        };
        let subject = of_user
            .or_else(of_group)
            .map_or("", |(_, shown)| shown.as_str());
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.key.clone())
        } else {
            let (namespace, name) = self.key.split_once('/').unwrap_or_default();
            ("RoleBinding", format!("{name}/{namespace}"))
        };
        format!(
            "{kind} {} of {} {} to {subject}",
            quote(&name),
            self.role_kind,
            quote(&self.role_name)
        )
    }
}

/// The bindings of one scope by who they are for.
#[derive(Default)]
struct Subjects {
    users: FxHashMap<String, Vec<Arc<Binding>>>,
    groups: FxHashMap<String, Vec<Arc<Binding>>>,
}

impl Subjects {
    fn insert(&mut self, binding: &Arc<Binding>) {
        let Subjects { users, groups } = self;
        for (names, map) in [(&binding.users, users), (&binding.groups, groups)] {
            for (name, _) in names {
                let bindings = map.entry(name.clone()).or_default();
                // A binding that names somebody twice has just been added.
                let last = bindings.last();
                if !last.is_some_and(|last| Arc::ptr_eq(last, binding)) {
                    bindings.push(binding.clone());
                }
            }
        }
    }

    fn remove(&mut self, binding: &Arc<Binding>) {
        let Subjects { users, groups } = self;
        for (names, map) in [(&binding.users, users), (&binding.groups, groups)] {
            for (name, _) in names {
                let Some(bindings) = map.get_mut(name) else {
                    continue;
                };
                bindings.retain(|other| !Arc::ptr_eq(other, binding));
                if bindings.is_empty() {
                    map.remove(name);
                }
            }
        }
    }

    fn of<'a>(&'a self, user: &'a User) -> impl Iterator<Item = &'a Arc<Binding>> {
        let of_groups = user
            .groups
            .iter()
            .filter_map(|group| self.groups.get(group));
        let of_user = self.users.get(&user.name).into_iter();
        of_user.chain(of_groups).flatten()
    }
}

/// Which of the four collections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Roles,
    ClusterRoles,
    RoleBindings,
    ClusterRoleBindings,
}

/// A collection and how much of it is in the index.
struct Follower {
    source: Source,
    collection: Arc<Collection>,
    cursor: Option<Cursor>,
    seen: u64,
}

/// The index and what it follows.
pub(super) struct Index {
    followers: [Follower; 4],
    roles: FxHashMap<String, Arc<[Rule]>>,
    cluster_roles: FxHashMap<String, Arc<[Rule]>>,
    bindings: FxHashMap<String, Arc<Binding>>,
    cluster_bindings: FxHashMap<String, Arc<Binding>>,
    cluster: Subjects,
    namespaces: FxHashMap<String, Subjects>,
}

impl Index {
    pub(super) fn new(store: &Store) -> Self {
        let follow = |source, plural: &str| Follower {
            source,
            collection: store.collection(&format!("{plural}.rbac.authorization.k8s.io")),
            cursor: None,
            seen: 0,
        };
        Index {
            followers: [
                follow(Source::Roles, "roles"),
                follow(Source::ClusterRoles, "clusterroles"),
                follow(Source::RoleBindings, "rolebindings"),
                follow(Source::ClusterRoleBindings, "clusterrolebindings"),
            ],
            roles: FxHashMap::default(),
            cluster_roles: FxHashMap::default(),
            bindings: FxHashMap::default(),
            cluster_bindings: FxHashMap::default(),
            cluster: Subjects::default(),
            namespaces: FxHashMap::default(),
        }
    }

    /// Returns whether no role or binding has changed since the last [`Index::catch_up`].
    pub(super) fn is_current(&self) -> bool {
        self.followers.iter().all(|follower| {
            follower.cursor.is_some() && follower.collection.last_change() == follower.seen
        })
    }

    /// Applies the changes of roles and bindings since the last call.
    pub(super) fn catch_up(&mut self) {
        for at in 0..self.followers.len() {
            let follower = &mut self.followers[at];
            let (source, collection) = (follower.source, follower.collection.clone());
            // Taken before the events are read, so that a change in between makes the index look stale instead of current.
            let published = collection.last_change();
            let mut cursor = follower.cursor.take();
            let mut events: Vec<Event> = Vec::new();
            let is_behind_the_log = match &mut cursor {
                Some(cursor) => loop {
                    match cursor.poll() {
                        Ok(batch) if batch.is_empty() => break false,
                        Ok(batch) => events.extend(batch),
                        Err(_) => break true,
                    }
                },
                None => true,
            };
            if is_behind_the_log {
                let snapshot = collection.snapshot(None);
                // Events between the two reads would be taken twice, which changes nothing.
                cursor = Cursor::new(collection.clone(), snapshot.revision).ok();
                self.clear(source);
                for object in &snapshot.objects {
                    self.put(source, object);
                }
            } else {
                for event in &events {
                    self.apply(source, event);
                }
            }
            let follower = &mut self.followers[at];
            follower.cursor = cursor;
            follower.seen = published;
        }
    }

    fn clear(&mut self, source: Source) {
        match source {
            Source::Roles => self.roles.clear(),
            Source::ClusterRoles => self.cluster_roles.clear(),
            Source::RoleBindings => {
                self.bindings.clear();
                self.namespaces.clear();
            }
            Source::ClusterRoleBindings => {
                self.cluster_bindings.clear();
                self.cluster = Subjects::default();
            }
        }
    }

    fn apply(&mut self, source: Source, event: &Event) {
        if event.event_type == EventType::Deleted {
            self.take(source, event.object.key().as_str());
        } else {
            self.put(source, &event.object);
        }
    }

    fn put(&mut self, source: Source, object: &Object) {
        let key = object.key().as_str();
        // The old version first: a binding that no longer names a subject must lose it.
        self.take(source, key);
        let tree = object.parse();
        match source {
            Source::Roles => drop(self.roles.insert(key.to_owned(), Rule::all_of(&tree))),
            Source::ClusterRoles => {
                drop(
                    self.cluster_roles
                        .insert(key.to_owned(), Rule::all_of(&tree)),
                );
            }
            Source::RoleBindings => {
                let binding = Arc::new(Binding::of(key, &tree));
                let subjects = self.namespaces.entry(binding.namespace.clone());
                subjects.or_default().insert(&binding);
                self.bindings.insert(key.to_owned(), binding);
            }
            Source::ClusterRoleBindings => {
                let binding = Arc::new(Binding::of(key, &tree));
                self.cluster.insert(&binding);
                self.cluster_bindings.insert(key.to_owned(), binding);
            }
        }
    }

    fn take(&mut self, source: Source, key: &str) {
        match source {
            Source::Roles => drop(self.roles.remove(key)),
            Source::ClusterRoles => drop(self.cluster_roles.remove(key)),
            Source::RoleBindings => {
                let Some(binding) = self.bindings.remove(key) else {
                    return;
                };
                if let Some(subjects) = self.namespaces.get_mut(&binding.namespace) {
                    subjects.remove(&binding);
                    // Otherwise the map would keep an entry for each namespace that ever had a binding.
                    if subjects.users.is_empty() && subjects.groups.is_empty() {
                        self.namespaces.remove(&binding.namespace);
                    }
                }
            }
            Source::ClusterRoleBindings => {
                if let Some(binding) = self.cluster_bindings.remove(key) {
                    self.cluster.remove(&binding);
                }
            }
        }
    }

    /// Returns the bindings of a user in a namespace (empty: at the cluster scope). A binding to several groups of the user comes several
    /// times.
    pub(super) fn bindings<'a>(
        &'a self,
        user: &'a User,
        namespace: &str,
    ) -> impl Iterator<Item = &'a Arc<Binding>> {
        let local = self.namespaces.get(namespace).into_iter();
        self.cluster
            .of(user)
            .chain(local.flat_map(|subjects| subjects.of(user)))
    }

    /// Returns the rules of a binding's role.
    ///
    /// # Errors
    /// The role does not exist.
    pub(super) fn rules(&self, binding: &Binding) -> Result<&Arc<[Rule]>, MissingRole> {
        let (kind, name) = (&binding.role_kind, &binding.role_name);
        let found = self.role(kind, name, &binding.namespace);
        found.ok_or_else(|| MissingRole {
            kind: kind.clone(),
            name: name.clone(),
        })
    }

    /// Returns the rules of a role that a binding in a namespace refers to.
    pub(super) fn role(&self, kind: &str, name: &str, namespace: &str) -> Option<&Arc<[Rule]>> {
        match kind {
            "ClusterRole" => self.cluster_roles.get(name),
            _ => self.roles.get(&format!("{namespace}/{name}")),
        }
    }

    /// Returns the bindings in the order of their names, each once.
    pub(super) fn sorted<'a>(&'a self, user: &'a User, namespace: &str) -> Vec<&'a Arc<Binding>> {
        let mut bindings: Vec<_> = self.bindings(user, namespace).collect();
        bindings.sort_by_key(|binding| (!binding.namespace.is_empty(), &binding.key));
        bindings.dedup_by(|left, right| Arc::ptr_eq(left, right));
        bindings
    }
}
