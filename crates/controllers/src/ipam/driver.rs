//! The loop of the controller: passes changes in the cluster to the books of the nodes, and schedules the EC2 calls that
//! they want.
//!
//! One task owns all state. Informers send keys, tasks send reports, and timers wake nodes and subnets; everything else is
//! computed from the books. The state of a node is: not loaded, being loaded, unsupported, or a [`Book`].

mod objects;
mod reports;
mod switching;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mullion_cloud::{Addresses, InstanceId, MOST_AT_ONCE, instance_id};
use mullion_engine::ip::{Call, CallPriority, Event, Kind, PodUid, Settings};
use rustc_hash::FxHashMap;
use tokio::{sync::mpsc, time::sleep};

use self::objects::{capacity, is_concerned, is_ready, is_windows, member, uid_of, waits};
use super::{
    book::Book,
    calls::{Calls, Life, Report},
    events::AddressEvents,
    metrics::Metrics,
    settings::{Mode, Switches},
    subnet::Subnet,
    turns::Turns,
};
use crate::{
    Change, Context, Key, Queue, informers::BY_NODE, pods, queue::Backoff, timers::Timers,
};

/// The name of a node. Clones share the text.
pub(super) type NodeName = Arc<str>;

/// The event source name of AWS's controller, which Mullion's events use too.
const COMPONENT: &str = "vpc-resource-controller";
/// The back-off after a pod's annotation was refused or loading a node failed.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(120),
};

/// An item of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Settings,
    Lease,
    Node(NodeName),
    Pod(Key),
}

/// The purpose of a timer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Alarm {
    Lease,
    Node(NodeName),
    Subnet(SubnetKey),
    Turns,
}

type SubnetKey = (Arc<str>, Kind);

/// Starts the controller over `cloud` and returns its metrics. `mode` decides whether it assigns addresses.
///
/// # Guarantees
/// - A pod gets one address, and no two pods have one, whenever the process dies.
/// - At most 18 calls to EC2 at once and 12 a second in the long run.
///
/// # Assumptions
/// - No other controller assigns addresses on the same nodes. A Deployment `kube-system/vpc-resource-controller` counts as
///   another controller, and so does what [`Mode::Auto`] describes.
pub fn start(context: &Context, cloud: Arc<dyn Addresses>, mode: Mode) -> Metrics {
    let metrics = Metrics::default();
    let (calls, reports) = Calls::new(context, cloud);
    let queue = Queue::with_backoff("ipam", RETRY);
    let driver = Driver {
        context: context.clone(),
        queue: queue.clone(),
        switches: Switches::watch(
            context,
            mode,
            {
                let queue = queue.clone();
                move || queue.add(Work::Settings)
            },
            {
                let queue = queue.clone();
                move || queue.add(Work::Lease)
            },
        ),
        settings: Settings::default(),
        nodes: FxHashMap::default(),
        pods: FxHashMap::default(),
        turns: Turns::new(0),
        subnets: FxHashMap::default(),
        timers: Timers::default(),
        events: AddressEvents::new(context.recorder(COMPONENT)),
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
    /// The node waits for its turn to be loaded.
    New(InstanceId),
    Loading(Life),
    Managed(Box<Book>),
    /// The instance type cannot have addresses for Windows pods.
    Unsupported,
}

struct Driver {
    context: Context,
    queue: Queue<Work>,
    switches: Switches,
    /// While `windows_ipam` is false, `nodes` is empty.
    settings: Settings,
    nodes: FxHashMap<NodeName, State>,
    /// The uid and the node of each known pod.
    pods: FxHashMap<Key, (PodUid, NodeName)>,
    turns: Turns,
    subnets: FxHashMap<SubnetKey, Subnet>,
    timers: Timers<Alarm>,
    events: AddressEvents,
    metrics: Metrics,
    began: Timestamp,
    lives: u64,
    calls: Calls,
}

impl Driver {
    async fn run(mut self, mut reports: mpsc::Receiver<Report>) {
        let informers = Arc::clone(&self.context.informers);
        // All addresses in use must be known before the first one is assigned.
        let synced = self.switches.synced().await
            && informers.nodes.synced().await
            && informers.pods.synced().await;
        if !synced {
            return;
        }
        let names = informers.nodes.list().into_iter();
        self.calls
            // Started before the first assignment can create a CNINode, so the sweep cannot remove a new
            // node's.
            .sweep(names.map(|node| node.name_any()).collect());
        self.look_at_lease();
        self.read_settings();
        self.follow();
        loop {
            self.fire_timers();
            if self.queue.is_empty() {
                // While there is queued work, calls wait: pods that arrive together are then served by one call.
                self.dispatch(self.now());
            }
            let wake = self.timers.next().map(|at| self.until(at));
            let queue = self.queue.clone();
            tokio::select! {
                // Reports first: they free addresses and tokens that the queued work may need.
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

    /// Starts to follow nodes, and the pods that need or have an address.
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

    /// Returns the time in milliseconds since the controller started.
    fn now(&self) -> u64 {
        let passed = self.context.clock.steady().duration_since(self.began);
        u64::try_from(passed.as_millis()).unwrap_or(0)
    }

    fn until(&self, at: Timestamp) -> Duration {
        let now = self.context.clock.steady();
        Duration::try_from(at.duration_since(now)).unwrap_or_default()
    }

    fn moment(&self, at: u64) -> Timestamp {
        // The engine counts whole milliseconds, rounded down: the timer must not fire before the full number has passed.
        let after = Duration::from_millis(at);
        self.began.saturating_add(after).unwrap_or(Timestamp::MAX)
    }

    fn fire_timers(&mut self) {
        let alarms = self.timers.take_due(self.context.clock.steady());
        let now = self.now();
        for alarm in alarms {
            match alarm {
                Alarm::Node(node) => self.touch(&node, Some(Event::Wake), now),
                Alarm::Subnet(key) => self.open(&key, now),
                Alarm::Lease => self.look_at_lease(),
                Alarm::Turns => {}
            }
        }
    }

    fn look(&mut self, work: Work) {
        match work {
            Work::Settings => self.read_settings(),
            Work::Lease => self.look_at_lease(),
            Work::Node(name) => self.look_at_node(&name),
            Work::Pod(key) => self.look_at_pod(&key),
        }
    }

    fn look_at_node(&mut self, name: &NodeName) {
        if !self.settings.windows_ipam {
            return;
        }
        let node = self.context.informers.nodes.get("", name);
        let Some(node) = node.filter(|node| is_windows(node)) else {
            self.node_left(name, self.now());
            return self.calls.forget(name.clone());
        };
        if let Some(State::Managed(book)) = self.nodes.get(name)
            // A node object that was deleted and created again between two events arrives as an update.
            && book.node.metadata.uid != node.metadata.uid
        {
            // The name now belongs to another node object.
            self.node_left(name, self.now());
        }
        let spec = node.spec.as_ref();
        let id = spec.and_then(|spec| spec.provider_id.as_deref()?.into());
        let Some(id) = id.and_then(instance_id) else {
            return;
        };
        match self.nodes.get_mut(name) {
            None => {
                self.nodes.insert(name.clone(), State::New(id));
                self.turns.add(name, self.wants_loading(name));
            }
            Some(State::Managed(book)) => {
                book.see(node);
                let now = self.now();
                self.touch(name, None, now);
            }
            Some(State::New(_)) => self.turns.add(name, self.wants_loading(name)),
            Some(State::Loading(_) | State::Unsupported) => {}
        }
    }

    /// Returns the priority of loading a node: nodes with waiting pods come first.
    fn wants_loading(&self, name: &str) -> CallPriority {
        let here = self.context.informers.pods.by_index(BY_NODE, name);
        let waiting = here.iter().filter(|pod| waits(pod)).count();
        match waiting {
            0 => CallPriority::Upkeep,
            pods => CallPriority::Pods(pods),
        }
    }

    /// Drops a node that is gone, or whose interface is. Its addresses return to the subnet when the instance terminates.
    fn node_left(&mut self, name: &NodeName, now: u64) {
        let state = self.nodes.remove(name);
        self.forget_node(name);
        if let Some(State::Managed(book)) = state {
            self.room(&book.facts.subnet, now);
        }
    }

    /// Drops the timers, turns and metrics of a node.
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
                book.pod_is_gone(&known, now, &mut self.events);
            }
            self.touch(&node, None, now);
        }
        let Some(pod) = pod else { return };
        let node: NodeName = pods::node_name(&pod).into();
        match self.nodes.get_mut(&node) {
            Some(State::Managed(book)) => {
                let Some((uid, member, annotation)) = member(&pod) else {
                    return;
                };
                self.pods.insert(key.clone(), (uid.clone(), node.clone()));
                book.pod_is(uid, member, annotation, now, &mut self.events);
                self.touch(&node, None, now);
            }
            // A waiting pod raises the priority of loading its node.
            Some(State::New(_)) if waits(&pod) => self.turns.add(&node, CallPriority::Pods(1)),
            Some(State::New(_) | State::Loading(_) | State::Unsupported) | None => {}
        }
    }

    /// Passes an event to a node's interface, starts the writes that are allowed, and schedules the node's next turn.
    fn touch(&mut self, name: &NodeName, event: Option<Event>, now: u64) {
        let Some(State::Managed(book)) = self.nodes.get_mut(name) else {
            return;
        };
        if let Some(event) = event {
            book.handle(event, now, &mut self.events);
        }
        // Writes that the event made possible start at once; only calls to EC2 wait for a turn.
        book.carry_out(now, &self.calls);
        let (ready, reported) = (is_ready(&book.node), capacity(&book.node));
        book.advertise(reported, ready, &self.calls);
        self.metrics.node(name, &book.interface);
        if let Some(want) = book.interface.wants_call(now) {
            self.turns.add(name, want);
        } else if let Some(kind) = book.interface.wants_to_assign(now) {
            let subnet = (book.facts.subnet.clone(), kind);
            let want = match book.interface.waiting().len() {
                0 => CallPriority::Upkeep,
                pods => CallPriority::Pods(pods),
            };
            let room = self.subnets.entry(subnet.clone()).or_default();
            if room.is_open(now) {
                self.turns.add(name, want);
            } else {
                // The subnet is closed. Its timer or a returned address wakes the node.
                room.park(name, want);
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

    /// Lets nodes continue that waited for free addresses in a subnet.
    fn open(&mut self, key: &SubnetKey, now: u64) {
        let mut free = self.subnets.get(key).map_or(0, |subnet| subnet.free(now));
        while free > 0
            && let Some(node) = self.subnets.get_mut(key).and_then(Subnet::unpark)
        {
            self.touch(&node, None, now);
            // A node that no longer wants a call uses no free address, so the next one gets its chance.
            free -= usize::from(self.turns.contains(&node));
        }
        let at = self.subnets.get(key).and_then(Subnet::opens_at);
        self.set_alarm(Alarm::Subnet(key.clone()), at.filter(|at| *at > now));
    }

    /// Makes the calls that the rate limit allows now.
    fn dispatch(&mut self, now: u64) {
        while let Some(name) = self.turns.next(now) {
            match self.nodes.get(&name) {
                Some(State::New(_)) => self.load(&name),
                Some(State::Managed(_)) => self.take_turn(&name, now),
                Some(State::Loading(_) | State::Unsupported) | None => {}
            }
        }
        let at = self.turns.next_at();
        self.set_alarm(Alarm::Turns, at);
    }

    /// Loads the interface of a node, and in the same call those of other nodes that are not loaded.
    fn load(&mut self, first: &NodeName) {
        // Spent before the call is made, since EC2 counts calls that fail as well.
        self.turns.spend();
        let others = self.nodes.iter().filter(|(name, _)| *name != first);
        let others = others.filter(|(_, state)| matches!(state, State::New(_)));
        let names: Vec<_> = others.map(|(name, _)| name.clone()).collect();
        let names = std::iter::once(first.clone()).chain(names);
        let mut asked = Vec::new();
        for node in names.take(MOST_AT_ONCE) {
            self.lives += 1;
            let number = self.lives;
            let life = Life { node, number };
            let state = State::Loading(life.clone());
            if let Some(State::New(id)) = self.nodes.insert(life.node.clone(), state) {
                asked.push((life, id));
            }
        }
        self.calls.load(asked);
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
        if let Some(room) = &room {
            book.interface.ask_for_at_most(room.most());
        }
        // The interface decides what to call for, and may assign only while its subnet has room for another
        // try.
        book.interface.hold(!may_assign);
        let call = book.interface.next_call(now);
        book.interface.hold(true);
        let assigns = matches!(call, Some(Call::Assign { .. }));
        if let Some(call) = call {
            if let Some(room) = room.filter(|_| assigns) {
                room.began(now);
            }
            self.turns.spend();
            book.call(call, now, &self.calls);
        }
        let subnet = book.facts.subnet.clone();
        self.touch(name, None, now);
        if let Some(kind) = kind.filter(|_| !assigns) {
            // The subnet may have let this node continue in place of another, which now gets its chance.
            self.open(&(subnet, kind), now);
        }
    }
}
