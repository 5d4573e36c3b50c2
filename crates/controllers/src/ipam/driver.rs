//! The loop: what happens in the cluster goes to the books of the nodes, and the calls that they want get their turns.
//!
//! One task owns all state. Informers bring keys, tasks bring reports, and timers wake nodes and subnets; everything else is computed
//! from the books. A node's state is one of three: to be loaded, being loaded, or a [`Book`].

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Resource, ResourceExt};
use mullion_api::labels::{self, PRIVATE_IPV4};
use mullion_cloud::{AddressError, Addresses, InstanceId, instance_id};
use mullion_engine::ip::{Call, Cidr, Event, Failure, Kind, PodUid, Settings, Want};
use rustc_hash::FxHashMap;
use tokio::{sync::mpsc, time::sleep};

use super::{
    book::{Book, Member, unsupported},
    calls::{Begun, Calls, Life, Loaded, Report, Written},
    metrics::Metrics,
    settings::Switches,
    subnet::Subnet,
    turns::Turns,
    voice::{Voice, reference},
};
use crate::{
    Change, Context, Key, Queue, informers::BY_NODE, pods, queue::Backoff, timers::Timers,
};

/// The name of a node. Clones share the text.
pub(super) type NodeName = Arc<str>;

/// Upstream's name as the source of events.
const COMPONENT: &str = "vpc-resource-controller";
/// After how long a pod whose annotation was refused asks again, and how long loading a node rests after failures.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(120),
};

/// What is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Settings,
    Node(NodeName),
    Pod(Key),
}

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Alarm {
    Node(NodeName),
    Subnet(SubnetKey),
    Turns,
}

type SubnetKey = (Arc<str>, Kind);

/// Starts the controller over `cloud`, and returns its numbers.
///
/// # Guarantees
/// - A pod gets one address, and no two pods have one, whenever the process dies.
/// - At most 18 calls to EC2 at once and 12 a second in the long run.
///
/// # Assumptions
/// - No other controller gives addresses to the same nodes. A Deployment `kube-system/vpc-resource-controller` is taken for one.
pub fn start(context: &Context, cloud: Arc<dyn Addresses>) -> Metrics {
    let metrics = Metrics::default();
    let (calls, reports) = Calls::new(context, cloud);
    let queue = Queue::with_backoff("ipam", RETRY);
    let driver = Driver {
        context: context.clone(),
        queue: queue.clone(),
        switches: Switches::watch(context, {
            let queue = queue.clone();
            move || queue.add(Work::Settings)
        }),
        settings: Settings::default(),
        nodes: FxHashMap::default(),
        pods: FxHashMap::default(),
        turns: Turns::new(0),
        subnets: FxHashMap::default(),
        timers: Timers::default(),
        voice: Voice::new(context.recorder(COMPONENT)),
        metrics: metrics.clone(),
        began: context.clock.steady(),
        lives: 0,
        calls,
    };
    let shutdown = context.shutdown.clone();
    context.tasks.spawn(async move {
        shutdown.run_until_cancelled(driver.run(reports)).await;
    });
    metrics
}

enum State {
    /// Waits for its turn to be loaded.
    New(InstanceId),
    Loading(Life),
    Managed(Box<Book>),
    /// Windows pods can have no addresses there.
    Unsupported,
}

struct Driver {
    context: Context,
    queue: Queue<Work>,
    switches: Switches,
    /// With `windows_ipam` false there is nothing in `nodes`.
    settings: Settings,
    nodes: FxHashMap<NodeName, State>,
    /// The uid and the node under which a pod is known.
    pods: FxHashMap<Key, (PodUid, NodeName)>,
    turns: Turns,
    subnets: FxHashMap<SubnetKey, Subnet>,
    timers: Timers<Alarm>,
    voice: Voice,
    metrics: Metrics,
    began: Timestamp,
    lives: u64,
    calls: Calls,
}

impl Driver {
    async fn run(mut self, mut reports: mpsc::Receiver<Report>) {
        let informers = Arc::clone(&self.context.informers);
        // Who has which address must be known before the first is given.
        let synced = self.switches.synced().await
            && informers.nodes.synced().await
            && informers.pods.synced().await;
        if !synced {
            return;
        }
        let names = informers.nodes.list().into_iter();
        self.calls
            .sweep(names.map(|node| node.name_any()).collect());
        self.read_settings();
        self.follow();
        loop {
            self.ring();
            self.dispatch(self.now());
            let wake = self.timers.next().map(|at| self.until(at));
            let queue = self.queue.clone();
            tokio::select! {
                biased;
                report = reports.recv() => {
                    if let Some(report) = report {
                        self.report(report);
                    }
                }
                work = queue.next() => {
                    let Some(work) = work else { return };
                    self.look(work.key().clone());
                }
                () = sleep(wake.unwrap_or_default()), if wake.is_some() => {}
            }
        }
    }

    /// Follows nodes, and those pods that need or have an address.
    fn follow(&self) {
        let queue = self.queue.clone();
        let nodes = &self.context.informers.nodes;
        nodes.on_change(move |change: &Change<'_, Node>| {
            let node = change.object();
            if is_windows(node) {
                queue.add(Work::Node(node.name_any().into()));
            }
        });
        let queue = self.queue.clone();
        self.context.informers.pods.on_change(move |change| {
            if is_concerned(change.object()) {
                queue.add(Work::Pod(Key::of(&**change.object())));
            }
        });
    }

    /// Returns the time in milliseconds since the start.
    fn now(&self) -> u64 {
        let passed = self.context.clock.steady().duration_since(self.began);
        u64::try_from(passed.as_millis()).unwrap_or(0)
    }

    fn until(&self, at: Timestamp) -> Duration {
        let now = self.context.clock.steady();
        Duration::try_from(at.duration_since(now)).unwrap_or_default()
    }

    fn moment(&self, at: u64) -> Timestamp {
        // The engine counts whole milliseconds: none must be missing when the timer rings.
        let after = Duration::from_millis(at);
        self.began.saturating_add(after).unwrap_or(Timestamp::MAX)
    }

    fn ring(&mut self) {
        // All that are due come first: one that is set again for now rings in the next round, in which others have their turn too.
        let due = self.context.clock.steady();
        let alarms: Vec<_> = std::iter::from_fn(|| self.timers.pop_due(due)).collect();
        let now = self.now();
        for alarm in alarms {
            match alarm {
                Alarm::Node(node) => self.touch(&node, Some(Event::Wake), now),
                Alarm::Subnet(key) => self.open(&key, now),
                Alarm::Turns => {}
            }
        }
    }

    fn look(&mut self, work: Work) {
        match work {
            Work::Settings => self.read_settings(),
            Work::Node(name) => self.look_at_node(&name),
            Work::Pod(key) => self.look_at_pod(&key),
        }
    }

    fn read_settings(&mut self) {
        let (read, now) = (self.switches.read(), self.now());
        if let Some(map) = self.switches.config_map() {
            for value in &read.unreadable {
                self.voice.unreadable(&map, value, now);
            }
        }
        if read.settings == self.settings {
            return;
        }
        let before = std::mem::replace(&mut self.settings, read.settings);
        tracing::info!(
            on = read.settings.windows_ipam,
            prefixes = read.settings.prefix_delegation,
            "addresses of Windows pods: settings read"
        );
        if !self.settings.windows_ipam {
            for name in std::mem::take(&mut self.nodes).into_keys() {
                self.forget_node(&name);
            }
            self.pods.clear();
        } else if !before.windows_ipam {
            for node in self.context.informers.nodes.list() {
                if is_windows(&node) {
                    self.look_at_node(&node.name_any().into());
                }
            }
        } else {
            let names: Vec<_> = self.nodes.keys().cloned().collect();
            for name in names {
                if let Some(State::Managed(book)) = self.nodes.get_mut(&name) {
                    if let Some((message, true)) =
                        unsupported(&book.facts, wanted_kind(&self.settings))
                    {
                        self.voice.unsupported(&book.node, message, now);
                    }
                    book.configure(&self.settings, now, &mut self.voice);
                }
                self.touch(&name, None, now);
            }
        }
    }

    fn look_at_node(&mut self, name: &NodeName) {
        if !self.settings.windows_ipam {
            return;
        }
        let node = self.context.informers.nodes.get("", name);
        let Some(node) = node.filter(|node| is_windows(node)) else {
            if self.nodes.remove(name).is_some() {
                self.forget_node(name);
                self.calls.forget(name.clone());
            }
            return;
        };
        if let Some(State::Managed(book)) = self.nodes.get(name)
            && book.node.metadata.uid != node.metadata.uid
        {
            // Another node has the name now.
            self.nodes.remove(name);
            self.forget_node(name);
        }
        let spec = node.spec.as_ref();
        let id = spec.and_then(|spec| spec.provider_id.as_deref()?.into());
        let Some(id) = id.and_then(instance_id) else {
            return;
        };
        match self.nodes.get_mut(name) {
            None => {
                self.nodes.insert(name.clone(), State::New(id));
                self.turns.add(name, Want::Upkeep);
            }
            Some(State::Managed(book)) => {
                book.see(node);
                let now = self.now();
                self.touch(name, None, now);
            }
            Some(State::New(_)) => self.turns.add(name, Want::Upkeep),
            Some(State::Loading(_) | State::Unsupported) => {}
        }
    }

    /// Forgets what is kept of a node beside its state.
    fn forget_node(&mut self, name: &NodeName) {
        self.turns.remove(name);
        self.timers.set(Alarm::Node(name.clone()), None);
        self.metrics.node_is_gone(name);
    }

    fn look_at_pod(&mut self, key: &Key) {
        if !self.settings.windows_ipam {
            return;
        }
        let now = self.now();
        let pod = self.context.informers.pods.get_key(key);
        let pod = pod.filter(|pod| !pods::is_finished(pod));
        let uid = pod.as_ref().and_then(|pod| uid_of(pod));
        if let Some((known, node)) = self.pods.get(key).cloned()
            && uid.as_ref() != Some(&known)
        {
            self.pods.remove(key);
            if let Some(State::Managed(book)) = self.nodes.get_mut(&node) {
                book.pod_is_gone(&known, now, &mut self.voice);
            }
            self.touch(&node, None, now);
        }
        let Some(pod) = pod else { return };
        let node: NodeName = pods::node_name(&pod).into();
        if let Some(State::Managed(book)) = self.nodes.get_mut(&node)
            && let Some((uid, member, annotation)) = member(&pod)
        {
            self.pods.insert(key.clone(), (uid.clone(), node.clone()));
            book.pod_is(uid, member, annotation, now, &mut self.voice);
            self.touch(&node, None, now);
        }
    }

    /// Hands an event to a node's interface, carries out what may be carried out, and sees to its next turn.
    fn touch(&mut self, name: &NodeName, event: Option<Event>, now: u64) {
        let Some(State::Managed(book)) = self.nodes.get_mut(name) else {
            return;
        };
        if let Some(event) = event {
            book.handle(event, now, &mut self.voice);
        }
        book.carry_out(now, &self.calls);
        let (ready, said) = (is_ready(&book.node), capacity(&book.node));
        book.advertise(said, ready, &self.calls);
        self.metrics.node(name, &book.interface);
        if let Some(want) = book.interface.wants_call(now) {
            self.turns.add(name, want);
        } else if let Some(kind) = book.interface.wants_to_assign(now) {
            let subnet = (book.facts.subnet.clone(), kind);
            let want = match book.interface.waiting().len() {
                0 => Want::Upkeep,
                pods => Want::Pods(pods),
            };
            let room = self.subnets.entry(subnet.clone()).or_default();
            if room.is_open(now) {
                self.turns.add(name, want);
            } else {
                room.park(name.clone());
                let at = room.opens_at();
                self.set_alarm(Alarm::Subnet(subnet), at);
            }
        }
        let wake = match self.nodes.get(name) {
            Some(State::Managed(book)) => book.wake_at().filter(|at| *at > now),
            _ => None,
        };
        self.set_alarm(Alarm::Node(name.clone()), wake);
    }

    fn set_alarm(&mut self, alarm: Alarm, at: Option<u64>) {
        let at = at.map(|at| self.moment(at));
        self.timers.set(alarm, at);
    }

    /// Lets nodes go on that waited for a subnet.
    fn open(&mut self, key: &SubnetKey, now: u64) {
        let Some(subnet) = self.subnets.get_mut(key) else {
            return;
        };
        let released = subnet.released(now);
        let at = subnet.opens_at().filter(|at| *at > now);
        self.set_alarm(Alarm::Subnet(key.clone()), at);
        for node in released {
            self.touch(&node, None, now);
        }
    }

    /// Makes the calls that there is leave for.
    fn dispatch(&mut self, now: u64) {
        while let Some(name) = self.turns.next(now) {
            match self.nodes.get_mut(&name) {
                Some(State::New(id)) => {
                    // The interface, and what is on it.
                    self.turns.spend();
                    self.turns.spend();
                    self.lives += 1;
                    let life = Life {
                        node: name.clone(),
                        number: self.lives,
                    };
                    self.calls.load(life.clone(), id.clone());
                    self.nodes.insert(name, State::Loading(life));
                }
                Some(State::Managed(_)) => self.take_turn(&name, now),
                Some(State::Loading(_) | State::Unsupported) | None => {}
            }
        }
        let at = self.turns.next_at();
        self.set_alarm(Alarm::Turns, at);
    }

    fn take_turn(&mut self, name: &NodeName, now: u64) {
        let Some(State::Managed(book)) = self.nodes.get_mut(name) else {
            return;
        };
        let kind = book.interface.wants_to_assign(now);
        let room = kind.map(|kind| {
            let key = (book.facts.subnet.clone(), kind);
            self.subnets.entry(key).or_default()
        });
        let may_assign = room.as_ref().is_some_and(|room| room.is_open(now));
        book.interface.hold(!may_assign);
        let call = book.interface.next_call(now);
        book.interface.hold(true);
        if let Some(call) = call {
            if let (Call::Assign { .. }, Some(room)) = (&call, room) {
                room.began();
            }
            self.turns.spend();
            book.call(call, now, &self.calls);
        }
        self.touch(name, None, now);
    }

    fn report(&mut self, report: Report) {
        let now = self.now();
        match report {
            Report::Loaded(life, loaded) => self.loaded(&life, loaded, now),
            Report::Assigned(life, begun, ended) => {
                self.metrics.called("assign", &ended);
                self.assigned(&begun, &ended, now);
                if let Err(AddressError::NoPrefix) = ended {
                    self.tell_no_prefix(&life, now);
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
                    // It may have been written after it was removed.
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

    /// Returns the book of a node if that node still leads the life that a report is about.
    fn book(&mut self, life: &Life) -> Option<&mut Book> {
        match self.nodes.get_mut(&life.node) {
            Some(State::Managed(book)) if book.life == *life => Some(book),
            _ => None,
        }
    }

    fn loaded(&mut self, life: &Life, loaded: Result<Loaded, AddressError>, now: u64) {
        self.metrics.called("load", &loaded);
        let name = &life.node;
        if !matches!(self.nodes.get(name), Some(State::Loading(current)) if current == life) {
            return;
        }
        self.nodes.remove(name);
        let Some(node) = self.context.informers.nodes.get("", name) else {
            return;
        };
        let retry = Work::Node(name.clone());
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::debug!(%error, node = &**name, "the network interface cannot be read");
                return self.queue.add_rate_limited(retry);
            }
        };
        self.queue.forget(&retry);
        if let Some((message, has_addresses)) =
            unsupported(&loaded.facts, wanted_kind(&self.settings))
        {
            self.voice.unsupported(&node, message, now);
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
            book.pod_is(uid, member, annotation, now, &mut self.voice);
        }
        self.nodes
            .insert(name.clone(), State::Managed(Box::new(book)));
        self.touch(name, None, now);
    }

    /// Tells the subnet how an assignment ended, whether its node is still there or not.
    fn assigned(&mut self, begun: &Begun, ended: &Result<Vec<Cidr>, AddressError>, now: u64) {
        let key = (begun.subnet.clone(), begun.kind);
        let subnet = self.subnets.entry(key.clone()).or_default();
        let none_left = |error: &AddressError| {
            matches!(error.failure(), Failure::NoAddress | Failure::NoPrefix)
        };
        match ended {
            Ok(blocks) if blocks.len() as u64 >= u64::from(begun.count) => subnet.succeeded(),
            Err(error) if !none_left(error) => subnet.ended(),
            // Half as many are asked for at once.
            Err(_) if begun.count > 1 => subnet.has_less(),
            Ok(_) | Err(_) => subnet.refused(begun.at, now),
        }
        self.open(&key, now);
    }

    /// Lets nodes try again that wait for room in a subnet.
    fn room(&mut self, subnet: &Arc<str>, now: u64) {
        for kind in Kind::ALL {
            let key = (subnet.clone(), kind);
            if let Some(subnet) = self.subnets.get_mut(&key) {
                subnet.has_room();
                self.open(&key, now);
            }
        }
    }

    fn tell_no_prefix(&mut self, life: &Life, now: u64) {
        if let Some(State::Managed(book)) = self.nodes.get(&life.node) {
            self.voice.no_prefix(book.node.object_ref(&()), now);
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
                self.nodes.remove(&life.node);
                self.forget_node(&life.node);
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
                self.voice.allocated(member.reference, address, now);
            }
            Written::Refused | Written::Gone => {
                self.pods.remove(&member.key);
                book.pod_is_gone(uid, now, &mut self.voice);
                if written == Written::Refused {
                    self.queue.add_rate_limited(pod);
                }
            }
        }
        self.touch(&life.node, None, now);
    }
}

fn wanted_kind(settings: &Settings) -> Kind {
    settings.kind(true)
}

fn is_windows(node: &Node) -> bool {
    node.labels()
        .get(labels::OS)
        .is_some_and(|os| os == labels::OS_WINDOWS)
}

fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns how many addresses the node says that it has.
fn capacity(node: &Node) -> Option<u64> {
    let capacity = node.status.as_ref()?.capacity.as_ref()?;
    capacity.get(PRIVATE_IPV4)?.0.parse().ok()
}

fn uid_of(pod: &Pod) -> Option<PodUid> {
    pod.metadata.uid.as_deref().map(PodUid::from)
}

/// Returns whether a pod needs or has an address. VRC looks at the requests of the containers only.
fn is_concerned(pod: &Pod) -> bool {
    if pods::node_name(pod).is_empty() {
        return false;
    }
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut requests =
        containers.filter_map(|container| container.resources.as_ref()?.requests.as_ref());
    requests.any(|requests| requests.contains_key(PRIVATE_IPV4))
        || pod.annotations().contains_key(PRIVATE_IPV4)
}

/// Returns a pod as its node's book knows it, with the address that it has by its annotation; `None` if it needs none.
fn member(pod: &Pod) -> Option<(PodUid, Member, Option<Cidr>)> {
    if !is_concerned(pod) {
        return None;
    }
    let annotation = match pod.annotations().get(PRIVATE_IPV4) {
        Some(text) => Some(text.parse().ok()?),
        // A pod on its way out starts no container any more.
        None if pods::is_deleting(pod) => return None,
        None => None,
    };
    Some((
        uid_of(pod)?,
        Member::new(Key::of(pod), reference(pod)),
        annotation,
    ))
}
