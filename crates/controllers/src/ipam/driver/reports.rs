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
        book::{Book, unsupported},
        calls::{Begun, Life, Loaded, Report, Written},
    },
    pods,
};

impl Driver {
    /// Processes the result of a call or a write.
    pub(super) fn report(&mut self, report: Report) {
        let now = self.now();
        match report {
            Report::Loaded(lives, found) => {
                self.metrics.called("load", &found);
                if let Err(error) = &found {
                    tracing::debug!(%error, "the network interfaces of nodes cannot be read");
                }
                let mut found = found.unwrap_or_default();
                for life in lives {
                    let loaded = found.remove(&life.node);
                    self.loaded(&life, loaded, now);
                }
            }
            Report::Assigned(life, begun, ended) => {
                self.metrics.called("assign", &ended);
                // The subnet is told first, so that the node's next wish is already judged by what was
                // learnt.
                self.assigned(&begun, &ended, now);
                if let Err(AddressError::NoPrefix) = ended {
                    self.record_no_prefix(&life, now);
                }
                self.ended(&life, ended.map(Event::Created), Event::NotCreated, now);
            }
            Report::GivenBack(life, subnet, ended) => {
                self.metrics.called("give-back", &ended);
                let given = ended.is_ok();
                let event = ended.map(|()| Event::GivenBack);
                self.ended(&life, event, Event::NotGivenBack, now);
                if given {
                    self.room(&subnet, now);
                }
            }
            Report::Listed(life, ended) => {
                self.metrics.called("list", &ended);
                self.ended(&life, ended.map(Event::Listed), Event::NotListed, now);
            }
            Report::Annotated(life, pod, address, written) => {
                self.annotated(&life, &pod, address, written, now);
            }
            Report::Recorded(life, succeeded) => {
                if let Some(book) = self.book(&life) {
                    book.recorded(succeeded, now);
                    self.touch(&life.node, None, now);
                } else if self.context.informers.nodes.get("", &life.node).is_none() {
                    // The write may have created the CNINode again after it was deleted.
                    self.calls.forget(life.node);
                }
            }
            Report::Advertised(life, succeeded) => {
                if let Some(book) = self.book(&life) {
                    book.advertised(succeeded);
                    if !succeeded {
                        let node = Work::Node(life.node.clone());
                        self.queue.add_after(node, RETRY.base);
                    }
                }
            }
        }
    }

    /// Returns the book of a node, unless the report is about an earlier node of that name.
    fn book(&mut self, life: &Life) -> Option<&mut Book> {
        match self.nodes.get_mut(&life.node) {
            Some(State::Managed(book)) if book.life == *life => Some(book),
            _ => None,
        }
    }

    fn loaded(&mut self, life: &Life, loaded: Option<Loaded>, now: u64) {
        let name = &life.node;
        if !matches!(self.nodes.get(name), Some(State::Loading(current)) if current == life) {
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
        let mut book = Book::open(life.clone(), node, loaded, &holders, &self.settings, now);
        for (key, (uid, member, annotation)) in members {
            self.pods.insert(key, (uid.clone(), name.clone()));
            book.pod_is(uid, member, annotation, now, &mut self.events);
        }
        self.nodes
            .insert(name.clone(), State::Managed(Box::new(book)));
        self.touch(name, None, now);
    }

    /// Reports the result of an assignment to its subnet, whether or not the node still exists.
    fn assigned(&mut self, begun: &Begun, ended: &Result<Vec<Cidr>, AddressError>, now: u64) {
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

    fn record_no_prefix(&mut self, life: &Life, now: u64) {
        if let Some(State::Managed(book)) = self.nodes.get(&life.node) {
            self.events.no_prefix(book.node.object_ref(&()), now);
        }
    }

    fn ended(
        &mut self,
        life: &Life,
        ended: Result<Event, AddressError>,
        failed: fn(Failure) -> Event,
        now: u64,
    ) {
        if self.book(life).is_none() {
            return;
        }
        if let Err(error) = &ended {
            tracing::debug!(%error, node = &*life.node, "a call to EC2 failed");
            if error.is_not_found() {
                // The instance is gone and its node soon will be, or the node has another interface now.
                self.node_left(&life.node, now);
                return self.queue.add_rate_limited(Work::Node(life.node.clone()));
            }
        }
        let event = ended.unwrap_or_else(|error| failed(error.failure()));
        self.touch(&life.node, Some(event), now);
    }

    fn annotated(&mut self, life: &Life, uid: &PodUid, address: Cidr, written: Written, now: u64) {
        let Some(State::Managed(book)) = self.nodes.get_mut(&life.node) else {
            return;
        };
        if book.life != *life {
            return;
        }
        let Some(member) = book.pod(uid).cloned() else {
            return;
        };
        let pod = Work::Pod(member.key.clone());
        match written {
            Written::Yes => {
                self.queue.forget(&pod);
                self.events.allocated(member.reference, address, now);
            }
            Written::Refused | Written::Gone => {
                // Forgetting the pod lets the retry add it as new, with a fresh request for an address.
                self.pods.remove(&member.key);
                book.pod_is_gone(uid, now, &mut self.events);
                if written == Written::Refused {
                    self.queue.add_rate_limited(pod);
                }
            }
        }
        self.touch(&life.node, None, now);
    }
}
