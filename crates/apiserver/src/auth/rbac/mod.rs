//! Role-based access control: who may do what, from the stored roles and bindings (upstream: plugin/pkg/auth/authorizer/rbac).
//!
//! [`index`] finds the roles of a user, [`mullion_kinds::rbac::rule`] says what one of their rules allows, `escalation` beside it keeps writers of roles and bindings
//! from granting more than they have. The default roles come from [`crate::boot`]. There is no Node authorizer: the simulated kubelets are no
//! clients of their own, and a `system:node:` user has only the permissions that are bound to it.

mod index;

use std::sync::{Arc, RwLock, RwLockReadGuard};

use mullion_kinds::{
    rbac::rule::{MissingRole, Rule, aggregate},
    request::{Authorize, Decision, User, attributes::Attributes},
};
use mullion_kube_text::status::Status;
use mullion_store::Store;

use self::index::Index;
use super::impersonation::LastModes;

/// The RBAC authorizer.
pub(crate) struct Authorizer {
    index: RwLock<Index>,
    /// The mode in which each user last impersonated another.
    pub(super) last_modes: LastModes,
}

impl Authorizer {
    /// Creates an authorizer that follows a store.
    pub(crate) fn new(store: &Store) -> Self {
        Authorizer {
            index: RwLock::new(Index::new(store)),
            last_modes: LastModes::default(),
        }
    }

    /// Refuses what a user may not do with 403.
    pub(crate) fn require(&self, user: &User, attributes: &Attributes<'_>) -> Result<(), Status> {
        // The quick way first: `decide` also sorts the bindings and writes a reason, which only a refusal needs.
        if self.allows(user, attributes) {
            return Ok(());
        }
        let decision = self.decide(user, attributes);
        // A binding may have been added between the two answers.
        if decision.allowed {
            return Ok(());
        }
        Err(attributes.forbidden(&user.name, &decision.reason))
    }

    fn current(&self) -> RwLockReadGuard<'_, Index> {
        let read = || {
            self.index
                .read()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        };
        let index = read();
        if index.is_current() {
            return index;
        }
        // A reader that waited for the write lock while it holds the read lock would wait for itself.
        drop(index);
        self.index
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .catch_up();
        read()
    }
}

impl Authorize for Authorizer {
    fn allows(&self, user: &User, attributes: &Attributes<'_>) -> bool {
        if user.is_master() {
            return true;
        }
        let index = self.current();
        index
            .bindings(user, attributes.namespace())
            .filter_map(|binding| index.rules(binding).ok())
            .any(|rules| rules.iter().any(|rule| rule.allows(attributes)))
    }

    fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        let mut decision = Decision {
            allowed: user.is_master(),
            reason: String::new(),
        };
        if decision.allowed {
            return decision;
        }
        let index = self.current();
        let mut errors = Vec::new();
        for binding in index.sorted(user, attributes.namespace()) {
            match index.rules(binding) {
                Err(error) => errors.push(error.to_string()),
                Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                    let why = format!("RBAC: allowed by {}", binding.describe(user));
                    return Decision {
                        allowed: true,
                        reason: why,
                    };
                }
                Ok(_) => {}
            }
        }
        if !errors.is_empty() {
            decision.reason = format!("RBAC: {}", aggregate(errors));
        }
        decision
    }

    fn rules(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<MissingRole>) {
        let index = self.current();
        let (mut all, mut unknown) = (Vec::new(), Vec::new());
        for binding in index.sorted(user, namespace) {
            match index.rules(binding) {
                Ok(rules) => all.extend(rules.iter().cloned()),
                Err(role) => unknown.push(role),
            }
        }
        (all, unknown)
    }

    fn role(&self, kind: &str, name: &str, namespace: &str) -> Option<Arc<[Rule]>> {
        self.current().role(kind, name, namespace).cloned()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http::Method;
    use jiff::Timestamp;
    use mullion_store::{Change, Draft, EventType, Key, Window};
    use serde_json::{Value, json};

    use super::*;
    use crate::request::attributes::of_request;

    fn put(store: &Store, plural: &str, object: &Value) {
        let metadata = &object["metadata"];
        let key = Key::new(
            metadata["namespace"].as_str(),
            metadata["name"].as_str().unwrap(),
        );
        let draft = Draft::new(EventType::Added, object, Box::default(), 1);
        store
            .collection(&format!("{plural}.rbac.authorization.k8s.io"))
            .commit(Change::Create(key, draft), Timestamp::UNIX_EPOCH)
            .now_or_never()
            .expect("memory does not wait")
            .expect("the name is free");
    }

    /// A store where jane may get pods in her namespace, among so many bindings of others.
    fn store(others: usize) -> Store {
        let store = Store::new(Window::default());
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        put(
            &store,
            "clusterroles",
            &json!({"metadata": {"name": "r"}, "rules": rules}),
        );
        let bind = |name: &str, namespace: &str, user: &str| {
            json!({
                "metadata": {"name": name, "namespace": namespace}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "User", "name": user}],
            })
        };
        put(&store, "rolebindings", &bind("jane", "n", "jane"));
        for other in 0..others {
            let (name, namespace) = (format!("b{other}"), format!("n{}", other % 7));
            let user = format!("u{other}");
            put(&store, "rolebindings", &bind(&name, &namespace, &user));
        }
        store
    }

    fn jane() -> User {
        User {
            name: "jane".into(),
            groups: vec!["system:authenticated".into()],
            ..User::default()
        }
    }

    fn ask(authorizer: &Authorizer, path: &str) -> bool {
        let attributes = of_request(&Method::GET, path, None);
        authorizer.allows(&jane(), &attributes)
    }

    #[test]
    fn an_answer_costs_the_same_however_many_bindings_others_have() {
        let cost = |others| {
            let store = store(others);
            let authorizer = Authorizer::new(&store);
            assert!(ask(&authorizer, "/api/v1/namespaces/n/pods/p"));
            let counted = allocation_counter::measure(|| {
                assert!(ask(&authorizer, "/api/v1/namespaces/n/pods/p"));
                assert!(!ask(&authorizer, "/api/v1/namespaces/n1/pods/p"));
            });
            (counted.count_total, counted.bytes_total)
        };
        assert_eq!(cost(2000), cost(0));
    }

    #[test]
    fn the_index_follows_bindings_that_come_and_go() {
        let store = store(3);
        let authorizer = Authorizer::new(&store);
        let pod = "/api/v1/namespaces/n/pods/p";
        assert!(ask(&authorizer, pod));
        let bindings = store.collection("rolebindings.rbac.authorization.k8s.io");
        let binding = bindings.get("n/jane").unwrap();
        let deleted = bindings.commit(Change::Delete(binding), Timestamp::UNIX_EPOCH);
        deleted.now_or_never().unwrap().unwrap();
        assert!(!ask(&authorizer, pod));
        let group = json!({
            "metadata": {"name": "all"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "Group", "name": "system:authenticated"}],
        });
        put(&store, "clusterrolebindings", &group);
        assert!(ask(&authorizer, pod) && ask(&authorizer, "/api/v1/namespaces/x/pods/p"));
    }
}
