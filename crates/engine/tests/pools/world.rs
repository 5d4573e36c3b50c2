//! One or two nodes in a subnet: a controller that makes the calls and writes annotations, with faults, and what must hold.

mod checks;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use mullion_engine::ip::{
    Answer, Call, Cidr, Event, Failure, Interface, Kind, PodUid, RestartState, Targets,
};

use crate::ec2::{Ec2, LAG_MS, LATE_MS};
use crate::random::Random;

/// What is wrong, in a sentence.
pub(crate) type Checked = Result<(), String>;

/// A pod that is not gone.
#[derive(Clone, Debug)]
struct Pod {
    node: usize,
    uid: PodUid,
    /// Its annotation.
    address: Option<Cidr>,
    heard_of_loss: bool,
}

/// A call under way.
#[derive(Clone, Debug)]
struct Flying {
    call: Call,
    fate: Fate,
    /// How it ended, if it took effect at its begin.
    answer: Option<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Takes effect and is answered.
    Answered,
    /// Is refused without effect.
    Refused(Failure),
    /// Takes effect when the caller gives up.
    Unheard,
    /// Takes effect some seconds after the caller gave up.
    Late,
    /// Has no effect and no answer.
    Lost,
}

/// A node and its controller.
#[derive(Clone, Debug)]
struct Node {
    interface: Interface,
    flying: Vec<Flying>,
    /// When its controller started last.
    started: u64,
}

/// Everything.
pub(crate) struct World {
    pub(crate) random: Random,
    ec2: Ec2,
    nodes: Vec<Node>,
    pods: BTreeMap<u32, Pod>,
    next_pod: u32,
    /// When an address was released last.
    released: BTreeMap<Ipv4Addr, u64>,
    time: u64,
    /// How much the controller's clock lost in steps.
    lost_ms: u64,
    faults: bool,
    thefts: bool,
    trace: Option<Vec<String>>,
}

/// Before any of the steps backwards could lead below zero.
const START: u64 = 10_000_000;

fn uid(pod: u32) -> PodUid {
    PodUid::from(format!("p{pod}").as_str())
}

/// Targets as people write them, senseless ones among them.
pub(crate) fn targets(random: &mut Random) -> Targets {
    let mut target = || *random.pick(&[0, 0, 0, 1, 1, 2, 3, 5, 17, 40, -2]);
    Targets {
        warm_ip: target(),
        min_ip: target(),
        warm_prefix: target(),
    }
}

impl World {
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut random = Random::new(seed);
        let slots: Vec<usize> = (0..1 + random.below(2))
            .map(|_| 1 + random.below(6))
            .collect();
        let size = *random.pick(&[32, 64, 64, 128, 256]);
        let others = if random.percent(50) {
            0
        } else {
            random.below(size as usize)
        };
        let mut ec2 = Ec2::new(size, others, &slots, &mut random);
        ec2.advance(START, &mut random);
        let node = |slots: &usize| {
            let kind = *random.pick(&Kind::ALL);
            let interface = Interface::new(*slots as u32, kind, targets(&mut random));
            Node {
                interface,
                flying: Vec::new(),
                started: START,
            }
        };
        let nodes = slots.iter().map(node).collect();
        World {
            faults: random.percent(80),
            thefts: random.percent(25),
            random,
            ec2,
            nodes,
            pods: BTreeMap::new(),
            next_pod: 0,
            released: BTreeMap::new(),
            time: START,
            lost_ms: 0,
            trace: traced.then(Vec::new),
        }
    }

    pub(crate) fn trace(&self) -> String {
        self.trace.as_deref().unwrap_or_default().join("\n")
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>8} {}", self.time - START, line()));
        }
    }

    /// The time by the controller's clock.
    fn now(&self) -> u64 {
        self.time - self.lost_ms
    }

    /// One random step.
    pub(crate) fn step(&mut self) -> Checked {
        let node = self.random.below(self.nodes.len());
        match self.random.below(100) {
            0..20 => self.pod_comes(node)?,
            20..34 => self.pod_goes()?,
            34..60 => self.deliver(node)?,
            60..74 => self.pass_time()?,
            74..80 => self.configure(node)?,
            80..82 => self.handle(node, Event::Room)?,
            82..84 => self.handle(node, Event::Recheck)?,
            84..88 if self.faults => self.restart(node)?,
            88..90 => self.ask_again()?,
            90..92 => self.step_clock_back(),
            92..94 if self.thefts => self.steal(node),
            _ => self.handle(node, Event::Wake)?,
        }
        // A controller does not always have leave for a call.
        if self.random.percent(85) {
            self.call(node)
        } else {
            Ok(())
        }
    }

    fn pod_comes(&mut self, node: usize) -> Checked {
        for _ in 0..1 + self.random.below(3) {
            let pod = self.next_pod;
            self.next_pod += 1;
            self.pods.insert(
                pod,
                Pod {
                    node,
                    uid: uid(pod),
                    address: None,
                    heard_of_loss: false,
                },
            );
            self.handle(node, Event::PodNeeds(uid(pod)))?;
        }
        Ok(())
    }

    fn any_pod(&mut self) -> Option<u32> {
        let pods: Vec<u32> = self.pods.keys().copied().collect();
        (!pods.is_empty()).then(|| *self.random.pick(&pods))
    }

    fn pod_goes(&mut self) -> Checked {
        let Some(pod) = self.any_pod() else {
            return Ok(());
        };
        let gone = self.pods.remove(&pod).expect("it is there");
        if let Some(address) = gone.address {
            self.released.insert(address.ip, self.time);
        }
        self.handle(gone.node, Event::PodGone(gone.uid))
    }

    /// A pod that has an address asks again, or one that waits.
    fn ask_again(&mut self) -> Checked {
        let Some(pod) = self.any_pod() else {
            return Ok(());
        };
        let Pod { node, uid, .. } = self.pods[&pod].clone();
        self.handle(node, Event::PodNeeds(uid))
    }

    fn pass_time(&mut self) -> Checked {
        let ms = match self.random.below(10) {
            0..3 => self.random.below(300),
            3..6 => self.random.below(5_000),
            6..8 => self.random.below(31_000),
            8 => 30_000,
            _ => self.random.below(200_000),
        };
        self.advance(ms as u64);
        let node = self.random.below(self.nodes.len());
        self.handle(node, Event::Wake)
    }

    fn advance(&mut self, ms: u64) {
        self.time += ms;
        self.ec2.advance(self.time, &mut self.random);
    }

    fn step_clock_back(&mut self) {
        let ms = self.random.below(100_000) as u64;
        self.lost_ms = (self.lost_ms + ms).min(START);
        self.note(|| format!("the clock loses {ms} ms"));
    }

    fn steal(&mut self, node: usize) {
        self.note(|| format!("theft from node {node}"));
        self.ec2.steal(node, &mut self.random);
    }

    fn configure(&mut self, node: usize) -> Checked {
        let active = self.nodes[node].interface.active();
        let kind = if self.random.percent(50) {
            active.other()
        } else {
            active
        };
        let targets = targets(&mut self.random);
        self.handle(node, Event::Configured(kind, targets))
    }

    /// The controller of a node dies, perhaps before it heard the answers to an event, and starts anew.
    fn restart(&mut self, node: usize) -> Checked {
        if self.random.percent(30) {
            let (pod, now) = (self.next_pod, self.now());
            self.next_pod += 1;
            self.pods.insert(
                pod,
                Pod {
                    node,
                    uid: uid(pod),
                    address: None,
                    heard_of_loss: false,
                },
            );
            self.nodes[node]
                .interface
                .handle(Event::PodNeeds(uid(pod)), now, &mut Vec::new());
        }
        for flying in std::mem::take(&mut self.nodes[node].flying) {
            if flying.answer.is_none() && flying.call != Call::List && self.random.percent(50) {
                self.ec2.call_later(node, flying.call, &mut self.random);
            }
        }
        let old = &self.nodes[node].interface;
        let mut warm: Vec<Ipv4Addr> = Kind::ALL
            .iter()
            .flat_map(|kind| old.pool(*kind).warm())
            .map(|cidr| cidr.ip)
            .collect();
        let giving_back: Vec<_> = old.giving_back().collect();
        let (kind, slots) = (old.active(), self.ec2.nics[node].slots as u32);
        match self.random.below(3) {
            0 => warm.clear(),
            1 => warm.truncate(warm.len() / 2),
            _ => {}
        }
        let here = |pod: &&Pod| pod.node == node;
        let with_address = self
            .pods
            .values()
            .filter(here)
            .filter_map(|pod| Some((pod.uid.clone(), pod.address?)));
        let pods: Vec<_> = with_address.collect();
        let listing = self.ec2.list(node, &mut self.random);
        self.note(|| format!("node {node} restarts: {listing:?}, pods {pods:?}, warm {warm:?}"));
        let state = RestartState {
            listing: &listing,
            pods: &pods,
            warm: &warm,
            giving_back: &giving_back,
        };
        let targets = targets(&mut self.random);
        let now = self.now();
        self.nodes[node].started = self.time;
        self.nodes[node].interface = Interface::restore(slots, kind, targets, state, now);
        let waiting = self
            .pods
            .values()
            .filter(here)
            .filter(|pod| pod.address.is_none());
        let waiting: Vec<_> = waiting.map(|pod| pod.uid.clone()).collect();
        for pod in waiting {
            self.handle(node, Event::PodNeeds(pod))?;
        }
        Ok(())
    }

    /// Begins the calls that the interface of `node` wants.
    fn call(&mut self, node: usize) -> Checked {
        let now = self.now();
        while let Some(call) = self.nodes[node].interface.next_call(now) {
            self.note(|| format!("node {node} calls {call:?}"));
            self.check_call(node, &call)?;
            let fate = self.fate();
            let takes_effect = matches!(fate, Fate::Answered | Fate::Unheard);
            let answer = (takes_effect && self.random.percent(50))
                .then(|| self.ec2.call(node, &call, &mut self.random));
            self.nodes[node].flying.push(Flying { call, fate, answer });
        }
        Ok(())
    }

    fn fate(&mut self) -> Fate {
        if !self.faults || self.random.percent(65) {
            return Fate::Answered;
        }
        match self.random.below(6) {
            0 => Fate::Refused(Failure::Throttled),
            1 | 2 => Fate::Refused(Failure::Other),
            3 => Fate::Unheard,
            4 => Fate::Late,
            _ => Fate::Lost,
        }
    }

    /// Lets one call of `node` end.
    fn deliver(&mut self, node: usize) -> Checked {
        let count = self.nodes[node].flying.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.random.below(count);
        let Flying { call, fate, answer } = self.nodes[node].flying.remove(at);
        let failed = |failure| match call {
            Call::Assign { .. } => Event::NotCreated(failure),
            Call::GiveBack { .. } => Event::NotGivenBack(failure),
            Call::List => Event::NotListed(failure),
        };
        let event = match fate {
            Fate::Answered => {
                answer.unwrap_or_else(|| self.ec2.call(node, &call, &mut self.random))
            }
            Fate::Refused(failure) => failed(failure),
            Fate::Unheard => {
                if answer.is_none() {
                    drop(self.ec2.call(node, &call, &mut self.random));
                }
                failed(Failure::NoAnswer)
            }
            Fate::Late => {
                let event = failed(Failure::NoAnswer);
                if call != Call::List {
                    self.ec2.call_later(node, call, &mut self.random);
                }
                event
            }
            Fate::Lost => failed(Failure::NoAnswer),
        };
        self.handle(node, event)
    }

    /// Hands an event to the interface of `node`, and its answers to the pods.
    fn handle(&mut self, node: usize, event: Event) -> Checked {
        self.note(|| format!("node {node}: {event:?}"));
        let (now, mut answers) = (self.now(), Vec::new());
        self.nodes[node].interface.handle(event, now, &mut answers);
        let mut failed_writes = Vec::new();
        for answer in answers {
            self.note(|| format!("node {node} answers {answer:?}"));
            match answer {
                Answer::Give { pod, address } => {
                    self.check_given(node, &pod, address)?;
                    if self.faults && self.random.percent(5) {
                        failed_writes.push((pod, address));
                    } else {
                        self.pod_mut(&pod)?.address = Some(address);
                    }
                }
                Answer::Lost { pod, .. } => self.pod_mut(&pod)?.heard_of_loss = true,
                Answer::Wait { pod, .. } => drop(self.pod_mut(&pod)?),
            }
        }
        self.check_slots(node)?;
        for (pod, address) in failed_writes {
            self.pod_mut(&pod)?.address = None;
            self.released.insert(address.ip, self.time);
            self.handle(node, Event::PodGone(pod.clone()))?;
            self.handle(node, Event::PodNeeds(pod))?;
        }
        Ok(())
    }

    fn pod_mut(&mut self, uid: &PodUid) -> Result<&mut Pod, String> {
        let pod = self.pods.values_mut().find(|pod| pod.uid == *uid);
        pod.ok_or(format!("{uid} is gone and gets an answer"))
    }

    /// Lets everything come to rest without further faults, and looks at the whole.
    pub(crate) fn finish(&mut self) -> Checked {
        self.note(|| "the faults end".into());
        self.faults = false;
        self.advance(LATE_MS + LAG_MS);
        for node in 0..self.nodes.len() {
            self.handle(node, Event::Recheck)?;
        }
        self.rest()?;
        (0..self.nodes.len()).try_for_each(|node| self.check_at_rest(node))
    }

    /// Makes calls and wakes interfaces for 15 minutes or until none wants anything.
    fn rest(&mut self) -> Checked {
        let end = self.time + 15 * 60_000;
        for _ in 0..2_000 {
            for node in 0..self.nodes.len() {
                self.call(node)?;
                while !self.nodes[node].flying.is_empty() {
                    self.deliver(node)?;
                    self.call(node)?;
                }
            }
            let wakes = self
                .nodes
                .iter()
                .filter_map(|node| node.interface.wake_at());
            let Some(wake) = wakes
                .min()
                .map(|wake| wake + self.lost_ms)
                .filter(|wake| *wake < end)
            else {
                return Ok(());
            };
            if wake <= self.time {
                return Err("wants to be woken at once, and has nothing to do".into());
            }
            self.advance(wake - self.time);
            for node in 0..self.nodes.len() {
                self.handle(node, Event::Wake)?;
            }
        }
        Err("does not come to rest".into())
    }
}
