//! What the generic handlers have to know of a kind to serve it without knowing it: data, one value for each row of the registry.

use jiff::SignedDuration;

/// How the generic handlers treat a kind.
#[derive(Clone, Debug)]
pub struct Rules {
    /// When `metadata.generation` counts.
    pub generation: Generation,
    /// How names are checked.
    pub name: NameRule,
    /// Finalizers must be qualified or standard ones, which kinds ask for that are checked by core's rules of metadata.
    pub core_finalizers: bool,
    /// PUT to an absent name creates.
    pub create_on_update: bool,
    /// PUT without a resourceVersion overwrites.
    pub unconditional_update: bool,
    /// Deletion has a grace period that the kubelet ends (pods).
    pub graceful_deletion: bool,
    /// The first DELETE only marks, in code that upstream has for the kind alone; a second one, or the last finalizer, removes.
    pub two_step_deletion: bool,
    /// DELETE answers with the object instead of a Status when it is gone at once.
    pub delete_returns_object: bool,
    /// DELETE of a collection is served (not for namespaces).
    pub delete_collection: bool,
    /// Nothing is stored: POST is all there is, answered by a named handler (bindings).
    pub transient: bool,
    /// Only get and list are served.
    pub read_only: bool,
    /// Its definition is on its way out: discovery no longer tells of writes.
    pub closing: bool,
    /// Its objects are made of the stored ones by a conversion webhook, which this server does not call.
    pub converted_by_webhook: bool,
    /// What DELETE does to dependents when nothing is asked for.
    pub default_propagation: Propagation,
    /// What a client is told who deletes without saying what becomes of dependents.
    pub deletion_warning: Option<&'static str>,
    /// What CREATE does to `status`.
    pub status_on_create: StatusOnCreate,
    /// How long an object is kept after its last write; for good if `None`. An object whose time is over is deleted without any hook.
    pub ttl: Option<SignedDuration>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            generation: Generation::Never,
            name: NameRule::DnsSubdomain,
            core_finalizers: true,
            create_on_update: false,
            unconditional_update: true,
            graceful_deletion: false,
            two_step_deletion: false,
            delete_returns_object: false,
            delete_collection: true,
            transient: false,
            read_only: false,
            closing: false,
            converted_by_webhook: false,
            default_propagation: Propagation::Background,
            deletion_warning: None,
            status_on_create: StatusOnCreate::Clear,
            ttl: None,
        }
    }
}

/// The verbs of a resource that is stored.
const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

impl Rules {
    /// The verbs of a resource, as clients are told them.
    pub(crate) fn verbs(&self) -> Vec<&'static str> {
        VERBS
            .iter()
            .copied()
            .filter(|verb| *verb != "deletecollection" || self.delete_collection)
            .filter(|verb| *verb == "create" || !self.transient)
            .filter(|verb| matches!(*verb, "get" | "list") || !self.read_only)
            .filter(|verb| !matches!(*verb, "create" | "patch" | "update") || !self.closing)
            .collect()
    }
}

/// When `metadata.generation` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    Never,
    /// 1 at creation, +1 when these parts differ semantically from the stored ones.
    Counts(&'static [&'static str]),
    /// As `Counts` of one part, which Go compares to the letter: a list that is sent empty is another one than none.
    CountsToTheLetter(&'static str),
    /// As `Counts`, for anything but metadata and, where there is a status subresource, status.
    CountsAllButStatus,
    /// 1 at creation, never again.
    OnceAtCreate,
}

/// How `metadata.name` is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, 253 characters.
    DnsSubdomain,
    /// RFC 1123 label, 63 characters.
    DnsLabel,
    /// Anything that is one path segment (RBAC).
    PathSegment,
}

/// What a deletion does to dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The object goes at once, the collector removes dependents later.
    Background,
    /// Dependents go first.
    Foreground,
    /// Dependents stay.
    Orphan,
}

/// What CREATE does to `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusOnCreate {
    /// Removed (a kind's `prepare_create` may set a first status afterwards).
    Clear,
    /// Kept as sent (nodes; kinds without a status subresource).
    Keep,
}
