//! Processes the results of the calls and writes that tasks made for the loop.

use std::sync::Arc;

use kube::Resource;
use mullion_cloud::AddressError;
use mullion_engine::ip::{Cidr, Event, Failure, Kind, PodUid};

use super::{Driver, RETRY, State, Work, objects::member};
use crate::{
    Key,
    informers::BY_NODE,
    ipam::{
        calls::{AnnotationResult, LoadedNode, NodeLifetime, Report, StartedCall},
        node_state::{NodeState, unsupported},
    },
    pods,
};

impl Driver {
    /// Processes the result of a call or a write.
    pub(super) fn report(&mut self, report: Report) {
        let now = self.now();
        match report {
            Report::Loaded(lifetimes, found) => {
                self.metrics.called("load", &found);
                if let Err(error) = &found {
                    tracing::debug!(%error, "the network interfaces of nodes cannot be read");
                }
                let mut found = found.unwrap_or_default();
                for lifetime in lifetimes {
                    let loaded = found.remove(&lifetime.node);
                    self.loaded(&lifetime, loaded, now);
                }
            }
            Report::Assigned(lifetime, begun, ended) => {
                self.metrics.called("assign", &ended);
                // The subnet is told first, so that the node's next wish is already judged by what was
                // learnt.
                self.assigned(&begun, &ended, now);
                if let Err(AddressError::NoPrefix) = ended {
                    self.record_no_prefix(&lifetime, now);
                }
                self.ended(&lifetime, ended.map(Event::Created), Event::NotCreated, now);
            }
            Report::GivenBack(lifetime, subnet, ended) => {
                self.metrics.called("give-back", &ended);
                let given = ended.is_ok();
                let event = ended.map(|()| Event::GivenBack);
                self.ended(&lifetime, event, Event::NotGivenBack, now);
                if given {
                    self.room(&subnet, now);
                }
            }
            Report::Listed(lifetime, ended) => {
                self.metrics.called("list", &ended);
                self.ended(&lifetime, ended.map(Event::Listed), Event::NotListed, now);
            }
            Report::Annotated(lifetime, pod, address, written) => {
                self.annotated(&lifetime, &pod, address, written, now);
            }
            Report::Recorded(lifetime, succeeded) => {
                if let Some(node_state) = self.node_state(&lifetime) {
                    node_state.recorded(succeeded, now);
                    self.touch(&lifetime.node, None, now);
                } else if self
                    .context
                    .informers
                    .nodes
                    .get("", &lifetime.node)
                    .is_none()
                {
                    // The write may have created the CNINode again after it was deleted.
                    self.calls.forget(lifetime.node);
                }
            }
            Report::Advertised(lifetime, succeeded) => {
                if let Some(node_state) = self.node_state(&lifetime) {
                    node_state.advertised(succeeded);
                    if !succeeded {
                        let node = Work::Node(lifetime.node.clone());
                        self.queue.add_after(node, RETRY.base);
                    }
                }
            }
        }
    }

    /// Returns the state of a node, unless the report is about an earlier node of that name.
    fn node_state(&mut self, lifetime: &NodeLifetime) -> Option<&mut NodeState> {
        match self.nodes.get_mut(&lifetime.node) {
            Some(State::Managed(node_state)) if node_state.lifetime == *lifetime => {
                Some(node_state)
            }
            _ => None,
        }
    }

    fn loaded(&mut self, lifetime: &NodeLifetime, loaded: Option<LoadedNode>, now: u64) {
        let name = &lifetime.node;
        if !matches!(self.nodes.get(name), Some(State::Loading(current)) if current == lifetime) {
            return;
        }
        // Removed before anything can return early: a node that is left as loading would never be tried
        // again.
        self.nodes.remove(name);
        let Some(node) = self.context.informers.nodes.get("", name) else {
            return;
        };
        let retry = Work::Node(name.clone());
        let Some(loaded) = loaded else {
            return self.queue.add_rate_limited(retry);
        };
        self.queue.forget(&retry);
        if let Some((message, has_addresses)) = unsupported(&loaded.facts, self.settings.kind(true))
        {
            self.events.unsupported(&node, message, now);
            if !has_addresses {
                self.nodes.insert(name.clone(), State::Unsupported);
                return;
            }
        }
        let here = self.context.informers.pods.by_index(BY_NODE, name);
        let alive = here.iter().filter(|pod| !pods::is_finished(pod));
        let members: Vec<_> = alive
            .filter_map(|pod| Some((Key::of(&**pod), member(pod)?)))
            .collect();
        let holders: Vec<_> = members
            .iter()
            .filter_map(|(_, (uid, _, annotation))| Some((uid.clone(), (*annotation)?)))
            .collect();
        let mut node_state = NodeState::from_loaded(
            lifetime.clone(),
            node,
            loaded,
            &holders,
            &self.settings,
            now,
        );
        for (key, (uid, member, annotation)) in members {
            self.pods.insert(key, (uid.clone(), name.clone()));
            node_state.observe_pod(uid, member, annotation, now, &mut self.events);
        }
        self.nodes
            .insert(name.clone(), State::Managed(Box::new(node_state)));
        self.touch(name, None, now);
    }

    /// Reports the result of an assignment to its subnet, whether or not the node still exists.
    fn assigned(&mut self, begun: &StartedCall, ended: &Result<Vec<Cidr>, AddressError>, now: u64) {
        let key = (begun.subnet.clone(), begun.kind);
        let subnet = self.subnets.entry(key.clone()).or_default();
        let none_left = |error: &AddressError| {
            matches!(error.failure(), Failure::NoAddress | Failure::NoPrefix)
        };
        subnet.ended(begun.at);
        match ended {
            Ok(blocks) if blocks.len() as u64 >= u64::from(begun.count) => subnet.succeeded(),
            Err(error) if !none_left(error) => {}
            Err(_) if begun.count == 1 => subnet.refused(begun.at, now),
            // The next call requests fewer blocks, without a wait.
            Ok(_) | Err(_) => subnet.has_less(begun.count),
        }
        self.open(&key, now);
    }

    /// Wakes the nodes that wait for free addresses in a subnet, because some have become free.
    pub(super) fn room(&mut self, subnet: &Arc<str>, now: u64) {
        for kind in Kind::ALL {
            let key = (subnet.clone(), kind);
            if let Some(subnet) = self.subnets.get_mut(&key) {
                subnet.has_room();
                self.open(&key, now);
            }
        }
    }

    fn record_no_prefix(&mut self, lifetime: &NodeLifetime, now: u64) {
        if let Some(State::Managed(node_state)) = self.nodes.get(&lifetime.node) {
            self.events.no_prefix(node_state.node.object_ref(&()), now);
        }
    }

    fn ended(
        &mut self,
        lifetime: &NodeLifetime,
        ended: Result<Event, AddressError>,
        failed: fn(Failure) -> Event,
        now: u64,
    ) {
        if self.node_state(lifetime).is_none() {
            return;
        }
        if let Err(error) = &ended {
            tracing::debug!(%error, node = &*lifetime.node, "a call to EC2 failed");
            if error.is_not_found() {
                // The instance is gone and its node soon will be, or the node has another interface now.
                self.node_left(&lifetime.node, now);
                return self
                    .queue
                    .add_rate_limited(Work::Node(lifetime.node.clone()));
            }
        }
        let event = ended.unwrap_or_else(|error| failed(error.failure()));
        self.touch(&lifetime.node, Some(event), now);
    }

    fn annotated(
        &mut self,
        lifetime: &NodeLifetime,
        uid: &PodUid,
        address: Cidr,
        written: AnnotationResult,
        now: u64,
    ) {
        let Some(State::Managed(node_state)) = self.nodes.get_mut(&lifetime.node) else {
            return;
        };
        if node_state.lifetime != *lifetime {
            return;
        }
        let Some(member) = node_state.pod(uid).cloned() else {
            return;
        };
        let pod = Work::Pod(member.key.clone());
        match written {
            AnnotationResult::Written => {
                self.queue.forget(&pod);
                self.events.allocated(member.reference, address, now);
            }
            AnnotationResult::Refused | AnnotationResult::Gone => {
                // Forgetting the pod lets the retry add it as new, with a fresh request for an address.
                self.pods.remove(&member.key);
                node_state.forget_pod(uid, now, &mut self.events);
                if written == AnnotationResult::Refused {
                    self.queue.add_rate_limited(pod);
                }
            }
        }
        self.touch(&lifetime.node, None, now);
    }
}
