//! The properties of a kind that the generic handlers need to serve it: one [`Rules`] value for each row of the registry.

use jiff::SignedDuration;
use mullion_kube_text::names::NameRule;

/// How the generic handlers treat a kind.
#[derive(Clone, Debug)]
pub struct Rules {
    /// When `metadata.generation` is incremented.
    pub generation: Generation,
    /// The rule for `metadata.name`.
    pub name: NameRule,
    /// Finalizers must be qualified names or one of core's standard ones. Kinds set this if core's metadata rules check them.
    pub core_finalizers: bool,
    /// A PUT to a name that does not exist creates the object.
    pub create_on_update: bool,
    /// A server-side apply to the status of a name that does not exist creates the object.
    pub create_on_status_apply: bool,
    /// A PUT without a resourceVersion overwrites the stored object.
    pub unconditional_update: bool,
    /// A DELETE starts a grace period, which the kubelet ends (pods).
    pub graceful_deletion: bool,
    /// The first DELETE only sets `deletionTimestamp`; a second DELETE, or the removal of the last finalizer, deletes. Upstream has code
    /// for this in the kind itself.
    pub two_step_deletion: bool,
    /// A DELETE that removes the object at once returns the object instead of a Status.
    pub delete_returns_object: bool,
    /// DELETE of a whole collection is served (not for namespaces).
    pub delete_collection: bool,
    /// Objects are not stored: only POST is served, by a named handler (bindings).
    pub transient: bool,
    /// Only get and list are served.
    pub read_only: bool,
    /// The CustomResourceDefinition is being deleted: discovery no longer lists create, patch and update.
    pub closing: bool,
    /// Versions are converted by a webhook, which this server does not call.
    pub converted_by_webhook: bool,
    /// The treatment of dependents when a DELETE does not specify a propagation policy.
    pub default_propagation: Propagation,
    /// The warning for a DELETE that does not specify a propagation policy.
    pub deletion_warning: Option<&'static str>,
    /// Fields that no write to the main endpoint owns, besides `status`: the paths' elements as in managedFields.
    pub resets: &'static [&'static [&'static str]],
    /// The treatment of `status` in a CREATE.
    pub status_on_create: StatusOnCreate,
    /// The time that an object is kept after its last write, or `None` to keep it forever. Expired objects are deleted without calling any
    /// hook.
    pub ttl: Option<SignedDuration>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            generation: Generation::Never,
            name: NameRule::DnsSubdomain,
            core_finalizers: true,
            create_on_update: false,
            create_on_status_apply: false,
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
            resets: &[],
            status_on_create: StatusOnCreate::Clear,
            ttl: None,
        }
    }
}

/// The verbs of a resource whose objects are stored.
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
    /// Returns the verbs that the resource supports, as discovery lists them.
    pub fn verbs(&self) -> Vec<&'static str> {
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

/// When `metadata.generation` is incremented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The kind has no generation.
    Never,
    /// The generation is 1 at creation, and grows by 1 when one of these parts differs semantically from the stored one.
    Counts(&'static [&'static str]),
    /// As `Counts` of one part, but compared with Go's `reflect.DeepEqual`: an empty list differs from an absent one.
    CountsToTheLetter(&'static str),
    /// As `Counts`, for everything but metadata and, if there is a status subresource, status.
    CountsAllButStatus,
    /// As `Counts`, but an object has no generation before its first change (CSIDrivers).
    CountsChanges(&'static [&'static str]),
    /// The generation is 1 at creation and never changes.
    OnceAtCreate,
}

/// The effect of a deletion on dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The object is removed at once, and the garbage collector deletes the dependents later.
    Background,
    /// The dependents are deleted before the object.
    Foreground,
    /// The dependents stay, without their owner reference.
    Orphan,
    /// Objects of the kind have no dependents: a deletion ignores the policy that it asks for, and removes the finalizers that carry one
    /// out (events).
    Unsupported,
}

/// The treatment of `status` in a CREATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusOnCreate {
    /// The status is removed (a kind's `prepare_create` may set a first status afterwards).
    Clear,
    /// The status is kept as sent (nodes; kinds without a status subresource).
    Keep,
}
