//! Webhooks and policies, the rules of users about writes. A webhook is a program that may change or refuse a write (upstream:
//! apiserver/pkg/admission/plugin/webhook); a [`policy`] is evaluated by the server itself.
//!
//! [`hook`] is a configuration in the form that questions need, [`subject`] a write as webhooks see it and which of them want to, [`review`]
//! the question and its answer ([`answer`] reads it), [`client`] the way there, [`dispatch`] the order in which they are asked. Without a configuration a write
//! costs a look at two numbers ([`Webhooks::current`]).

mod answer;
mod client;
mod dispatch;
mod endpoint;
mod hook;
mod policy;
mod post;
mod review;
mod shown;
mod subject;
mod trust;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use mullion_kinds::{Resource, admissionregistration::GROUP};

use self::{
    client::Clients,
    hook::Hook,
    policy::{mutating, validating},
};
pub(crate) use self::{
    dispatch::{Reinvocation, judge, mutate},
    subject::{Form, Subject},
};
use crate::{
    admission::Operation,
    registry::{Registry, Row},
};

/// The webhooks of one server.
pub(crate) struct Webhooks {
    rows: [Arc<Row>; 6],
    hooks: ArcSwap<Hooks>,
    clients: Clients,
    awake: AtomicBool,
}

/// The webhooks at one moment, in the order of their configurations' names.
pub(crate) struct Hooks {
    mutating: Vec<Arc<Hook>>,
    validating: Vec<Arc<Hook>>,
    mutations: Vec<Arc<mutating::Policy>>,
    policies: Vec<Arc<validating::Policy>>,
    /// The last changes of the collections that are in it; `None` before anything was read.
    seen: Option<[u64; 6]>,
}

impl Webhooks {
    /// Creates the webhooks of a registry; none is called until [`Webhooks::wake`].
    pub(crate) fn new(registry: &Registry) -> Self {
        let table = registry.table();
        let row = |plural| {
            let row = table.find_plural(GROUP, plural);
            row.expect("webhook configurations are built in").clone()
        };
        Webhooks {
            rows: [
                row("mutatingwebhookconfigurations"),
                row("validatingwebhookconfigurations"),
                row("validatingadmissionpolicies"),
                row("validatingadmissionpolicybindings"),
                row("mutatingadmissionpolicies"),
                row("mutatingadmissionpolicybindings"),
            ],
            hooks: ArcSwap::from_pointee(Hooks {
                mutating: Vec::new(),
                validating: Vec::new(),
                mutations: Vec::new(),
                policies: Vec::new(),
                seen: None,
            }),
            clients: Clients::default(),
            awake: AtomicBool::new(false),
        }
    }

    /// Starts calling webhooks. Writes of the server itself during its start call none, because an unreachable webhook must not prevent the
    /// start.
    pub(crate) fn wake(&self) {
        self.awake.store(true, Ordering::Release);
    }

    /// Returns the connections to the webhooks.
    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Returns the current webhooks and policies, or `None` if there are none.
    pub(crate) fn current(&self) -> Option<Arc<Hooks>> {
        if !self.awake.load(Ordering::Acquire) {
            return None;
        }
        // Read before the objects: a change in between is found next time.
        let last = [0, 1, 2, 3, 4, 5].map(|at: usize| self.rows[at].collection.last_change());
        let mut hooks = self.hooks.load();
        if hooks.seen != Some(last) {
            self.read(last);
            hooks = self.hooks.load();
        }
        let is_empty = hooks.mutating.is_empty()
            && hooks.validating.is_empty()
            && hooks.mutations.is_empty()
            && hooks.policies.is_empty();
        (!is_empty).then(|| arc_swap::Guard::into_inner(hooks))
    }

    fn read(&self, last: [u64; 6]) {
        let all = |row: &Row| -> Vec<serde_json::Value> {
            let objects = row.collection.snapshot(None).objects;
            objects.iter().map(|object| row.served(object)).collect()
        };
        let of = |row: &Row| -> Vec<Arc<Hook>> {
            let configurations = all(row).into_iter();
            configurations
                .flat_map(|configuration| Hook::all_of(&configuration).collect::<Vec<_>>())
                .collect()
        };
        let hooks = Hooks {
            mutating: of(&self.rows[0]),
            validating: of(&self.rows[1]),
            policies: policy::all_of(
                &all(&self.rows[2]),
                &all(&self.rows[3]),
                validating::Policy::of,
            ),
            mutations: policy::all_of(
                &all(&self.rows[4]),
                &all(&self.rows[5]),
                mutating::Policy::of,
            ),
            seen: Some(last),
        };
        // Pools of webhooks that are gone would otherwise keep their connections open.
        self.clients.retain(|address| {
            let all = hooks.mutating.iter().chain(&hooks.validating);
            all.into_iter()
                .any(|hook| hook.address.as_ref().is_ok_and(|own| own == address))
        });
        self.hooks.store(Arc::new(hooks));
    }
}

impl Hooks {
    /// Returns whether any webhook or policy might match such a write to one of these resources, in some version, namespace and with some
    /// labels.
    pub(crate) fn may_want(
        &self,
        operation: Operation,
        resources: &[&Resource],
        subresource: &str,
    ) -> bool {
        let hooks = self.mutating.iter().chain(&self.validating);
        let hooks = hooks.map(|hook| &hook.matcher);
        let policies = self.policies.iter().map(|policy| &policy.bound.matcher);
        let mutations = self.mutations.iter().map(|policy| &policy.bound.matcher);
        let matchers = hooks.chain(policies).chain(mutations);
        let mut rules = matchers.flat_map(|matcher| &matcher.rules);
        rules.any(|rule| {
            resources.iter().any(|resource| {
                rule.concerns(operation, &resource.group, &resource.plural, subresource)
            })
        })
    }
}
