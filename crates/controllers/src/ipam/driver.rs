//! The loop of the controller: passes changes in the cluster to the states of the nodes, and schedules the EC2 calls that
//! they want.
//!
//! One task owns all state. Informers send keys, tasks send reports, and timers wake nodes and subnets; everything else is
//! computed from the states of all nodes. The state of a node is: not loaded, being loaded, unsupported, or a [`NodeState`].

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
    call_queue::CallQueue,
    calls::{Calls, NodeLifetime, Report},
    events::AddressEvents,
    metrics::Metrics,
    node_state::NodeState,
    settings::{FeatureSwitches, Mode},
    subnet::Subnet,
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
enum TimerKind {
    Lease,
    Node(NodeName),
    Subnet(SubnetKey),
    Calls,
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
        switches: FeatureSwitches::watch(
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
        call_queue: CallQueue::new(0),
        subnets: FxHashMap::default(),
        timers: Timers::default(),
        events: AddressEvents::new(context.recorder(COMPONENT)),
        metrics: metrics.clone(),
        started: context.clock.steady(),
        lifetimes: 0,
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
    Loading(NodeLifetime),
    Managed(Box<NodeState>),
    /// The instance type cannot have addresses for Windows pods.
    Unsupported,
}

struct Driver {
    context: Context,
    queue: Queue<Work>,
    switches: FeatureSwitches,
    /// While `windows_ipam` is false, `nodes` is empty.
    settings: Settings,
    nodes: FxHashMap<NodeName, State>,
    /// The uid and the node of each known pod.
    pods: FxHashMap<Key, (PodUid, NodeName)>,
    call_queue: CallQueue,
    subnets: FxHashMap<SubnetKey, Subnet>,
    timers: Timers<TimerKind>,
    events: AddressEvents,
    metrics: Metrics,
    started: Timestamp,
    lifetimes: u64,
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
        let passed = self.context.clock.steady().duration_since(self.started);
        u64::try_from(passed.as_millis()).unwrap_or(0)
    }

    fn until(&self, at: Timestamp) -> Duration {
        let now = self.context.clock.steady();
        Duration::try_from(at.duration_since(now)).unwrap_or_default()
    }

    fn moment(&self, at: u64) -> Timestamp {
        // The engine counts whole milliseconds, rounded down: the timer must not fire before the full number has passed.
        let after = Duration::from_millis(at);
        self.started.saturating_add(after).unwrap_or(Timestamp::MAX)
    }

    fn fire_timers(&mut self) {
        let due = self.timers.take_due(self.context.clock.steady());
        let now = self.now();
        for timer in due {
            match timer {
                TimerKind::Node(node) => self.touch(&node, Some(Event::Wake), now),
                TimerKind::Subnet(key) => self.open(&key, now),
                TimerKind::Lease => self.look_at_lease(),
                TimerKind::Calls => {}
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
        if let Some(State::Managed(node_state)) = self.nodes.get(name)
            // A node object that was deleted and created again between two events arrives as an update.
            && node_state.node.metadata.uid != node.metadata.uid
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
                self.call_queue.add(name, self.wants_loading(name));
            }
            Some(State::Managed(node_state)) => {
                node_state.observe_node(node);
                let now = self.now();
                self.touch(name, None, now);
            }
            Some(State::New(_)) => self.call_queue.add(name, self.wants_loading(name)),
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
        if let Some(State::Managed(node_state)) = state {
            self.room(&node_state.facts.subnet, now);
        }
    }

    /// Drops the timers, turns and metrics of a node.
    fn forget_node(&mut self, name: &NodeName) {
        self.call_queue.remove(name);
        self.timers.set(TimerKind::Node(name.clone()), None);
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
            if let Some(State::Managed(node_state)) = self.nodes.get_mut(&node) {
                node_state.forget_pod(&known, now, &mut self.events);
            }
            self.touch(&node, None, now);
        }
        let Some(pod) = pod else { return };
        let node: NodeName = pods::node_name(&pod).into();
        match self.nodes.get_mut(&node) {
            Some(State::Managed(node_state)) => {
                let Some((uid, member, annotation)) = member(&pod) else {
                    return;
                };
                self.pods.insert(key.clone(), (uid.clone(), node.clone()));
                node_state.observe_pod(uid, member, annotation, now, &mut self.events);
                self.touch(&node, None, now);
            }
            // A waiting pod raises the priority of loading its node.
            Some(State::New(_)) if waits(&pod) => self.call_queue.add(&node, CallPriority::Pods(1)),
            Some(State::New(_) | State::Loading(_) | State::Unsupported) | None => {}
        }
    }

    /// Passes an event to a node's interface, starts the writes that are allowed, and schedules the node's next turn.
    fn touch(&mut self, name: &NodeName, event: Option<Event>, now: u64) {
        let Some(State::Managed(node_state)) = self.nodes.get_mut(name) else {
            return;
        };
        if let Some(event) = event {
            node_state.handle(event, now, &mut self.events);
        }
        // Writes that the event made possible start at once; only calls to EC2 wait for a turn.
        node_state.carry_out(now, &self.calls);
        let (ready, reported) = (is_ready(&node_state.node), capacity(&node_state.node));
        node_state.advertise(reported, ready, &self.calls);
        self.metrics.node(name, &node_state.interface);
        if let Some(want) = node_state.interface.wants_call(now) {
            self.call_queue.add(name, want);
        } else if let Some(kind) = node_state.interface.wants_to_assign(now) {
            let subnet = (node_state.facts.subnet.clone(), kind);
            let want = match node_state.interface.waiting().len() {
                0 => CallPriority::Upkeep,
                pods => CallPriority::Pods(pods),
            };
            let room = self.subnets.entry(subnet.clone()).or_default();
            if room.is_open(now) {
                self.call_queue.add(name, want);
            } else {
                // The subnet is closed. Its timer or a returned address wakes the node.
                room.park(name, want);
                let at = room.opens_at();
                self.set_timer(TimerKind::Subnet(subnet), at);
            }
        }
        let wake = match self.nodes.get(name) {
            Some(State::Managed(node_state)) => node_state.wake_at().filter(|at| *at > now),
            _ => None,
        };
        self.set_timer(TimerKind::Node(name.clone()), wake);
    }

    fn set_timer(&mut self, timer: TimerKind, at: Option<u64>) {
        let at = at.map(|at| self.moment(at));
        self.timers.set(timer, at);
    }

    /// Lets nodes continue that waited for free addresses in a subnet.
    fn open(&mut self, key: &SubnetKey, now: u64) {
        let mut free = self.subnets.get(key).map_or(0, |subnet| subnet.free(now));
        while free > 0
            && let Some(node) = self.subnets.get_mut(key).and_then(Subnet::unpark)
        {
            self.touch(&node, None, now);
            // A node that no longer wants a call uses no free address, so the next one gets its chance.
            free -= usize::from(self.call_queue.contains(&node));
        }
        let at = self.subnets.get(key).and_then(Subnet::opens_at);
        self.set_timer(TimerKind::Subnet(key.clone()), at.filter(|at| *at > now));
    }

    /// Makes the calls that the rate limit allows now.
    fn dispatch(&mut self, now: u64) {
        while let Some(name) = self.call_queue.next(now) {
            match self.nodes.get(&name) {
                Some(State::New(_)) => self.load(&name),
                Some(State::Managed(_)) => self.take_turn(&name, now),
                Some(State::Loading(_) | State::Unsupported) | None => {}
            }
        }
        let at = self.call_queue.next_at();
        self.set_timer(TimerKind::Calls, at);
    }

    /// Loads the interface of a node, and in the same call those of other nodes that are not loaded.
    fn load(&mut self, first: &NodeName) {
        // Spent before the call is made, since EC2 counts calls that fail as well.
        self.call_queue.spend();
        let others = self.nodes.iter().filter(|(name, _)| *name != first);
        let others = others.filter(|(_, state)| matches!(state, State::New(_)));
        let names: Vec<_> = others.map(|(name, _)| name.clone()).collect();
        let names = std::iter::once(first.clone()).chain(names);
        let mut asked = Vec::new();
        for node in names.take(MOST_AT_ONCE) {
            self.lifetimes += 1;
            let number = self.lifetimes;
            let lifetime = NodeLifetime { node, number };
            let state = State::Loading(lifetime.clone());
            if let Some(State::New(id)) = self.nodes.insert(lifetime.node.clone(), state) {
                asked.push((lifetime, id));
            }
        }
        self.calls.load(asked);
    }

    fn take_turn(&mut self, name: &NodeName, now: u64) {
        let Some(State::Managed(node_state)) = self.nodes.get_mut(name) else {
            return;
        };
        let kind = node_state.interface.wants_to_assign(now);
        let room = kind.map(|kind| {
            let key = (node_state.facts.subnet.clone(), kind);
            self.subnets.entry(key).or_default()
        });
        let may_assign = room.as_ref().is_some_and(|room| room.is_open(now));
        if let Some(room) = &room {
            node_state.interface.ask_for_at_most(room.most());
        }
        // The interface decides what to call for, and may assign only while its subnet has room for another
        // try.
        node_state.interface.hold(!may_assign);
        let call = node_state.interface.next_call(now);
        node_state.interface.hold(true);
        let assigns = matches!(call, Some(Call::Assign { .. }));
        if let Some(call) = call {
            if let Some(room) = room.filter(|_| assigns) {
                room.began(now);
            }
            self.call_queue.spend();
            node_state.call(call, now, &self.calls);
        }
        let subnet = node_state.facts.subnet.clone();
        self.touch(name, None, now);
        if let Some(kind) = kind.filter(|_| !assigns) {
            // The subnet may have let this node continue in place of another, which now gets its chance.
            self.open(&(subnet, kind), now);
        }
    }
}
