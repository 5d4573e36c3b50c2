//! The state of one Windows node: its interface, its pods, and the actions that wait until its CNINode is written.

use std::{collections::VecDeque, sync::Arc};

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use mullion_cloud::InterfaceFacts;
use mullion_engine::ip::{
    Answer, Call, Cidr, Event, Interface, Kind, PodUid, RestartState, Settings,
};
use rustc_hash::FxHashMap;

use super::{
    calls::{Calls, LoadedNode, NodeLifetime, StartedCall},
    events::AddressEvents,
    record::{self, Record},
};
use crate::Key;

/// A pod of the node that needs or has an address.
#[derive(Clone, Debug)]
pub(super) struct AddressedPod {
    pub(super) key: Key,
    pub(super) reference: ObjectReference,
    /// Whether the pod has the annotation or it is being written.
    written: bool,
}

/// The state of a node whose interface has been loaded.
pub(super) struct NodeState {
    pub(super) lifetime: NodeLifetime,
    pub(super) node: Arc<Node>,
    pub(super) facts: InterfaceFacts,
    pub(super) interface: Interface,
    pods: FxHashMap<PodUid, AddressedPod>,
    record: Record,
    /// Assignments whose annotation is written as soon as the CNINode no longer lists the address as warm.
    pending_assignments: Vec<(PodUid, Cidr)>,
    /// Calls that are made as soon as the CNINode lists the blocks which they return.
    pending_give_backs: VecDeque<(Call, StartedCall)>,
    /// Whether a capacity is being written.
    advertising: bool,
    /// The capacity that was written since the node was last observed.
    advertised: Option<usize>,
}

impl NodeState {
    /// Creates the state of a node from its loaded interface and CNINode.
    pub(super) fn from_loaded(
        lifetime: NodeLifetime,
        node: Arc<Node>,
        loaded: LoadedNode,
        pods: &[(PodUid, Cidr)],
        settings: &Settings,
        now: u64,
    ) -> Self {
        let LoadedNode {
            facts,
            listing,
            record,
        } = loaded;
        let (warm, giving_back) = record.as_ref().map(record::listed).unwrap_or_default();
        let state = RestartState {
            listing: &listing,
            pods,
            warm: &warm,
            giving_back: &giving_back,
        };
        let (slots, kind) = (slots(&facts), settings.kind(facts.nitro));
        let targets = settings.targets(kind);
        let mut interface = Interface::restore(slots, kind, targets, state, now);
        // Assignments wait until the driver has checked the limits of the subnet, which other nodes share.
        interface.hold(true);
        interface.leave_subnet_waits_to_caller();
        NodeState {
            lifetime,
            node,
            facts,
            interface,
            pods: FxHashMap::default(),
            record: record.as_ref().map(Record::found).unwrap_or_default(),
            pending_assignments: Vec::new(),
            pending_give_backs: VecDeque::new(),
            advertising: false,
            advertised: None,
        }
    }

    /// Applies new settings.
    pub(super) fn configure(&mut self, settings: &Settings, now: u64, events: &mut AddressEvents) {
        let kind = settings.kind(self.facts.nitro);
        let targets = settings.targets(kind);
        self.handle(Event::Configured(kind, targets), now, events);
    }

    /// Adds a pod that needs an address, or has one in its annotation.
    pub(super) fn observe_pod(
        &mut self,
        uid: PodUid,
        mut member: AddressedPod,
        annotation: Option<Cidr>,
        now: u64,
        events: &mut AddressEvents,
    ) {
        let known = self.pods.get(&uid);
        let written = known.is_some_and(|known| known.written);
        // A known pod is told to the interface again only when its annotation appears; anything else would
        // ask twice.
        if known.is_some() && (written || annotation.is_none()) {
            return;
        }
        member.written = annotation.is_some();
        self.pods.insert(uid.clone(), member);
        // The pod has its address; an assignment that still waits to be written must not give it a second
        // one.
        self.pending_assignments.retain(|(pod, _)| *pod != uid);
        let event = match annotation {
            Some(address) => Event::PodHolds(uid, address),
            None => Event::PodNeeds(uid),
        };
        self.handle(event, now, events);
    }

    /// Removes a pod that was deleted, has finished, or did not get its annotation.
    pub(super) fn forget_pod(&mut self, uid: &PodUid, now: u64, events: &mut AddressEvents) {
        if self.pods.remove(uid).is_some() || self.interface.address_of(uid).is_some() {
            self.pending_assignments.retain(|(pod, _)| pod != uid);
            self.handle(Event::PodGone(uid.clone()), now, events);
        }
    }

    /// Returns a pod of the node.
    pub(super) fn pod(&self, uid: &PodUid) -> Option<&AddressedPod> {
        self.pods.get(uid)
    }

    /// Passes an event to the interface, and stores the addresses that the interface assigns for
    /// [`NodeState::carry_out`].
    pub(super) fn handle(&mut self, event: Event, now: u64, events: &mut AddressEvents) {
        let mut answers = Vec::new();
        self.interface.handle(event, now, &mut answers);
        for answer in answers {
            match answer {
                Answer::Give { pod, address } => {
                    if let Some(member) = self.pods.get_mut(&pod).filter(|pod| !pod.written) {
                        // Marked when the assignment is stored, not when it is written, so that the pod
                        // cannot be given two addresses.
                        member.written = true;
                        self.pending_assignments.push((pod, address));
                    }
                }
                Answer::Wait { pod, why } => {
                    if let Some(member) = self.pods.get(&pod) {
                        events.waits(member.reference.clone(), why, now);
                    }
                }
                Answer::Lost { pod, address } => {
                    if let Some(member) = self.pods.get(&pod) {
                        let node = &self.lifetime.node;
                        events.lost(member.reference.clone(), address, node, now);
                    }
                }
            }
        }
        self.record.changed(&self.interface, now);
    }

    /// Makes a call to EC2 that the interface requested: at once, or after the CNINode is written.
    pub(super) fn call(&mut self, call: Call, now: u64, calls: &Calls) {
        let begun = StartedCall {
            kind: self.interface.active(),
            count: 0,
            subnet: self.facts.subnet.clone(),
            at: now,
        };
        match call {
            Call::Assign { kind, count } => {
                let begun = StartedCall {
                    kind,
                    count,
                    ..begun
                };
                calls.make(self.lifetime.clone(), &self.facts.id, begun, call);
            }
            Call::List => calls.make(self.lifetime.clone(), &self.facts.id, begun, call),
            // A restart could otherwise assign a block as warm while EC2 is taking it back.
            Call::GiveBack { .. } => self.pending_give_backs.push_back((call, begun)),
        }
        self.record.changed(&self.interface, now);
    }

    /// Starts the writes and calls that are allowed now, and the write of the CNINode for which the others wait.
    pub(super) fn carry_out(&mut self, now: u64, calls: &Calls) {
        let record = &self.record;
        let ready = self
            .pending_assignments
            .extract_if(.., |(_, address)| record.may_give(*address));
        for (pod, address) in ready {
            if let Some(member) = self.pods.get(&pod) {
                calls.annotate(self.lifetime.clone(), pod, &member.key, address);
            }
        }
        // In order: the record lists blocks as they were handed in, so what the first one waits for the
        // others do, too.
        while let Some((Call::GiveBack { kind, blocks }, _)) = self.pending_give_backs.front()
            && self.record.may_give_back(*kind, blocks)
        {
            if let Some((call, begun)) = self.pending_give_backs.pop_front() {
                calls.make(self.lifetime.clone(), &self.facts.id, begun, call);
            }
        }
        let urgent = !self.pending_assignments.is_empty() || !self.pending_give_backs.is_empty();
        if let Some(status) = self.record.next_write(&self.interface, urgent, now) {
            calls.record(self.lifetime.clone(), &self.node, status);
        }
    }

    /// Records the result of writing the CNINode.
    pub(super) fn recorded(&mut self, succeeded: bool, now: u64) {
        self.record.wrote(succeeded, now);
    }

    /// Writes the node's capacity if the node is ready and reports another one.
    pub(super) fn advertise(&mut self, reported: Option<u64>, ready: bool, calls: &Calls) {
        let capacity = self.interface.capacity();
        // Right after a write the informer still shows the old capacity; comparing with it alone would write
        // again.
        let is_reported = reported == Some(capacity as u64) || self.advertised == Some(capacity);
        if ready && !self.advertising && !is_reported {
            self.advertising = true;
            self.advertised = Some(capacity);
            calls.advertise(self.lifetime.clone(), capacity);
        }
    }

    /// Records the result of writing the capacity.
    pub(super) fn advertised(&mut self, succeeded: bool) {
        self.advertising = false;
        self.advertised = self.advertised.filter(|_| succeeded);
    }

    /// Stores a newer version of the node.
    pub(super) fn observe_node(&mut self, node: Arc<Node>) {
        self.node = node;
        self.advertised = self.advertised.filter(|_| self.advertising);
    }

    /// Returns when the node must be processed again if nothing happens before.
    pub(super) fn wake_at(&self) -> Option<u64> {
        let times = [self.interface.wake_at(), self.record.due()];
        times.into_iter().flatten().min()
    }
}

impl AddressedPod {
    pub(super) fn new(key: Key, reference: ObjectReference) -> Self {
        AddressedPod {
            key,
            reference,
            written: false,
        }
    }
}

/// Returns the number of slots of an interface, which [`Interface`] counts in 32 bits.
fn slots(facts: &InterfaceFacts) -> u32 {
    u32::try_from(facts.slots).unwrap_or(u32::MAX)
}

/// Returns VRC's message if the node can have no addresses at all, or none of the requested kind. The flag is true if the
/// node can have addresses of the other kind.
pub(super) fn unsupported(facts: &InterfaceFacts, kind: Kind) -> Option<(String, bool)> {
    let name = &facts.instance_type;
    let known = mullion_cloud::catalogue::get(name).is_some_and(|known| known.windows_capable);
    if !known || facts.slots == 0 {
        let message = format!("The instance type {name} is not supported for Windows");
        return Some((message, false));
    }
    (kind == Kind::Prefix && !facts.nitro).then(|| {
        let message =
            format!("The instance type {name} is not supported for Windows prefix delegation");
        (message, true)
    })
}
