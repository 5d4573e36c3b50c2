//! Admission: plugins that change or refuse a write between defaulting and the store.
//!
//! Plugins run in one fixed order (upstream's), first every [`Plugin::mutate`], then the mutating [`webhook`]s; after the kind's own
//! validation every [`Plugin::validate`], then the validating webhooks. They read other objects only through [`Ctx::lookup`] and never write;
//! what a write uses up of other objects they name as [`Claim`]s.

mod certificates;
mod chain;
mod claim_resize;
mod default_ingress_class;
mod default_storage_class;
mod default_tolerations;
mod limit_ranger;
mod namespace_lifecycle;
mod node_features;
mod pod_resize;
mod pod_security;
mod pod_topology;
mod priority;
mod quota;
mod runtime_class;
mod service_account;
mod storage_protection;
mod taint_nodes;
pub(crate) mod webhook;

pub use chain::{DisabledPlugins, UnknownPlugin, builtins};
pub use mullion_kinds::request::{Access, Ctx, Decision, Lookup, User};

use std::sync::Arc;

use futures::future::BoxFuture;
use mullion_kinds::Resource;
use mullion_kube_text::status::Status;
use mullion_schema::tree::Tree;
use serde_json::Value;

/// The operation of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// POST, or a PUT or PATCH that creates.
    Create,
    /// PUT or PATCH of an object that exists.
    Update,
    /// DELETE, or one object of a deletecollection.
    Delete,
    /// A subresource that is not stored (pods/eviction, pods/binding, pods/exec ...).
    Connect,
}

impl Operation {
    /// Returns the operation's name in webhook rules and AdmissionReviews.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// The action of a request: its operation, and the resource and subresource that it is about.
#[derive(Clone, Copy)]
pub struct Action<'a> {
    /// The operation.
    pub operation: Operation,
    /// The kind it is about.
    pub resource: &'a Resource,
    /// `status`, `binding`, `eviction` ...
    pub subresource: Option<&'a str>,
}

impl Action<'_> {
    /// Returns whether the request is for that resource, in any version, or for one of its subresources.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.resource.group == group && self.resource.plural == plural
    }

    /// Returns whether the request creates an object of that resource.
    pub fn creates(&self, group: &str, plural: &str) -> bool {
        self.operation == Operation::Create && self.is_whole(group, plural)
    }

    /// Returns whether the request updates an object of that resource, but not a subresource.
    pub fn updates(&self, group: &str, plural: &str) -> bool {
        self.operation == Operation::Update && self.is_whole(group, plural)
    }

    /// Returns whether the request creates or updates an object of that resource.
    pub fn writes(&self, group: &str, plural: &str) -> bool {
        self.creates(group, plural) || self.updates(group, plural)
    }

    fn is_whole(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_none() && self.is(group, plural)
    }
}

/// One write on its way to the store.
pub struct Request<'a> {
    /// The operation and its target.
    pub action: Action<'a>,
    /// The namespace in the path; `None` for cluster-scoped kinds.
    pub namespace: Option<&'a str>,
    /// The object's name; empty before `generateName` has been expanded.
    pub name: &'a str,
    /// The new object (for a subresource its body); `Null` for a deletion. Sets of fields in its managedFields are text
    /// ([`mullion_schema::ownership::unfold`] restores them before the object is shown).
    pub object: &'a mut Value,
    /// The stored object, if any.
    pub old: Option<&'a Value>,
    /// Sentences for the client's `Warning` headers.
    pub warnings: &'a mut Vec<String>,
}

impl Request<'_> {
    /// Returns the 403 of a plugin that refuses the request.
    pub fn forbidden(&self, why: &str) -> Status {
        let metadata = &self.object["metadata"];
        let known = [
            self.name,
            metadata["name"].as_str().unwrap_or(""),
            metadata["generateName"].as_str().unwrap_or(""),
        ];
        let name = known
            .into_iter()
            .find(|name| !name.is_empty())
            // kube-apiserver (extractResourceName) says so of an object that has no name yet.
            .unwrap_or("Unknown");
        Status::forbidden(self.action.resource, name, why)
    }
}

/// Returns the newest of the classes for which `is_meant` holds; of several with the same creation time, the first by name.
fn newest(classes: &[Arc<Value>], is_meant: impl Fn(&Value) -> bool) -> Option<&Value> {
    let text = |class: &Value, field: &str| -> String {
        let metadata = &class["metadata"];
        metadata[field].as_str().unwrap_or_default().to_owned()
    };
    let meant = classes.iter().map(|class| &**class);
    let age = |class: &Value| std::cmp::Reverse(text(class, "creationTimestamp"));
    meant
        .filter(|class| is_meant(class))
        .min_by_key(|class| (age(class), text(class, "name")))
}

/// Returns the node of a pod whose spec changes, or `None` if the pod has no node or its spec stays the same.
fn node_of_change(ctx: &Ctx<'_>, request: &Request<'_>) -> Result<Option<Arc<Value>>, Status> {
    let name = request.object["spec"].text("nodeName");
    let generation = |pod: &Value| pod["metadata"]["generation"].as_i64();
    let changes = request
        .old
        .is_some_and(|old| generation(old) != generation(request.object));
    if name.is_empty() || !changes {
        return Ok(None);
    }
    match ctx.lookup.find("", "nodes", None, name) {
        Some(node) => Ok(Some(node)),
        None => Err(request.forbidden(&format!("node {name:?} not found"))),
    }
}

/// One admission plugin.
pub trait Plugin: Send + Sync {
    /// Returns kube-apiserver's name of the plugin.
    fn name(&self) -> &'static str;

    /// Returns whether the plugin handles the request at all. For a write of the status that no plugin handles, most of the stored object
    /// may stay unparsed.
    fn handles(&self, action: &Action<'_>) -> bool;

    /// Returns what has to end before the plugins are asked, such as a look-up elsewhere. It must end by itself; the request holds no
    /// turn meanwhile, and its object may still change.
    fn prepare(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Option<BoxFuture<'static, ()>> {
        let _ = (ctx, request);
        None
    }

    /// Changes the object, or refuses the request.
    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        let _ = (ctx, request);
        Ok(())
    }

    /// Refuses the request or admits it; sees the object as it will be stored.
    fn validate(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<(), Status> {
        let _ = (ctx, request);
        Ok(())
    }

    /// Returns the changes to other objects that the write needs, after all plugins have admitted it. An error still refuses the write. A
    /// dry run makes no claims.
    fn claims(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Result<Vec<Claim>, Status> {
        let _ = (ctx, request);
        Ok(Vec::new())
    }
}

/// A change of another object, such as quota usage, that is written before the write itself is stored.
pub struct Claim {
    /// The other object's group.
    pub group: &'static str,
    /// The other object's plural.
    pub plural: &'static str,
    /// The other object's namespace.
    pub namespace: Option<String>,
    /// The other object's name.
    pub name: String,
    /// The version that was looked at; the claim holds for no other.
    pub version: String,
    /// Writes the claim down.
    pub take: Box<dyn Fn(&mut Value) + Send + Sync>,
    /// Undoes the claim in the current version of the object, whatever it is.
    pub give_back: Box<dyn Fn(&mut Value) + Send + Sync>,
}
