//! What hooks of kinds and admission plugins learn of a request: its user, the other objects, and what the user may do.

pub mod attributes;
pub mod expression;
pub mod service_account;
pub mod warnings;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use mullion_kube_text::field::Emptied;
use serde_json::{Map, Value};

use self::{
    attributes::{Attributes, Resource, Target},
    warnings::Warnings,
};
use crate::rbac::rule::{MissingRole, Rule};

/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group that may do everything.
pub const MASTERS: &str = "system:masters";

/// The user that makes a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    /// The user's name, from the certificate's common name or the token.
    pub name: String,
    /// The groups, `system:authenticated` included.
    pub groups: Vec<String>,
    /// The user's uid, where the authenticator knows one.
    pub uid: String,
    /// Further attributes from the authenticator (the pod a token is bound to, the credential's id), by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Returns a user who may do everything (`system:masters`), with the name and groups of kubeadm's administrator certificate.
    pub fn administrator() -> Self {
        User {
            name: "kubernetes-admin".into(),
            groups: vec![MASTERS.into(), AUTHENTICATED.into()],
            ..User::default()
        }
    }

    /// Returns whether the user may do everything, as a member of `system:masters`.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// Returns the user as an authentication.k8s.io `UserInfo`.
    pub fn to_user_info(&self) -> Value {
        let mut info = Map::new();
        for (field, text) in [("username", &self.name), ("uid", &self.uid)] {
            if !text.is_empty() {
                info.insert(field.to_owned(), text.as_str().into());
            }
        }
        if !self.groups.is_empty() {
            info.insert("groups".to_owned(), self.groups.clone().into());
        }
        if !self.extra.is_empty() {
            let extra: Map<String, Value> = self
                .extra
                .iter()
                .map(|(key, values)| (key.clone(), values.clone().into()))
                .collect();
            info.insert("extra".to_owned(), extra.into());
        }
        info.into()
    }
}

/// Read access to the stored objects, for admission and validation. Objects are parsed on demand.
pub trait Lookup: Send + Sync {
    /// The object of that group, plural and name; `namespace` is `None` for cluster-scoped kinds.
    fn find(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Value>>;

    /// All objects of a kind, of one namespace or of all.
    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>>;
}

/// No stored objects, for rules that are asked without a server.
pub struct NoObjects;

impl Lookup for NoObjects {
    fn find(&self, _: &str, _: &str, _: Option<&str>, _: &str) -> Option<Arc<Value>> {
        None
    }

    fn list(&self, _: &str, _: &str, _: Option<&str>) -> Vec<Arc<Value>> {
        Vec::new()
    }
}

/// The context of a request, which is passed to every hook of a kind and every plugin.
pub struct Ctx<'a> {
    /// The server's clock at the start of the request.
    pub now: jiff::Timestamp,
    /// The user that makes the request.
    pub user: &'a User,
    /// The other objects.
    pub lookup: &'a dyn Lookup,
    /// The authorizer, for rules that check more rights than the request itself needs.
    pub authorizer: &'a dyn Authorize,
    /// The namespace in the path; empty for cluster-scoped requests.
    pub namespace: &'a str,
    /// The name in the path; empty for collections.
    pub path_name: &'a str,
    /// The request is a PATCH: who may update need not be allowed to patch.
    pub patches: bool,
    /// True for a dry run: nothing is stored, so nothing may be allocated for good.
    pub dry_run: bool,
    /// Sentences for the client's `Warning` headers, each once.
    pub warnings: &'a Mutex<Warnings>,
    /// Lists and maps that the client sent with nothing in them; the object does not have them.
    pub emptied: Emptied,
    /// The client sent the object without labels, and admission has not changed it since. Labels that defaults then copied from another
    /// field are one map with it in kube-apiserver: what is added to the one is added to the other.
    pub is_unlabelled: bool,
}

/// Something that a user may be allowed to do with an object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access<'a> {
    /// The verb to check, such as `use`.
    pub verb: &'a str,
    /// The object's API group; empty for core.
    pub group: &'a str,
    /// The object's kind, in the plural.
    pub plural: &'a str,
    /// The namespace of the question; empty for the cluster scope.
    pub namespace: &'a str,
    /// The object's name.
    pub name: &'a str,
}

impl Ctx<'_> {
    /// Returns whether a user may do something, and why: what a SubjectAccessReview answers.
    pub fn decide(&self, user: &User, access: &Access<'_>) -> Decision {
        let attributes = Attributes {
            verb: access.verb.into(),
            target: Target::Resource(Resource {
                group: access.group,
                resource: access.plural,
                namespace: access.namespace,
                name: access.name.into(),
                ..Resource::default()
            }),
        };
        self.authorizer.decide(user, &attributes)
    }

    /// Adds a `Warning` header to the response, once for each distinct text.
    pub fn warn(&self, text: String) {
        let warnings = self.warnings.lock();
        warnings.unwrap_or_else(PoisonError::into_inner).add(text);
    }
}

/// The answer to whether a user may perform an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if the action is allowed.
    pub allowed: bool,
    /// Which binding allows it, or what went wrong on the way to a refusal; may be empty.
    pub reason: String,
}

/// Decides what users may do, by the stored roles and bindings.
pub trait Authorize: Send + Sync {
    /// Returns whether a user may perform an action.
    fn allows(&self, user: &User, attributes: &Attributes<'_>) -> bool;

    /// Returns whether a user may perform an action, and the reason.
    fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// Returns all rules of a user in a namespace (empty: at cluster scope), and the roles that the user is bound to and that do not exist.
    fn rules(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<MissingRole>);

    /// Returns the rules of a role as a binding in a namespace refers to it.
    fn role(&self, kind: &str, name: &str, namespace: &str) -> Option<Arc<[Rule]>>;
}
