//! What happens to the cluster, at random but the same for the same seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::ListParams};
use mullion_api::vpc_resources::CNINode;
use mullion_cloud::{Addresses, CloudProvider, Instance};
use mullion_controllers::Context;
use mullion_engine::ip::{Counts, Kind};
use tokio::time::Instant;

use super::{
    cloud::{Call, Cloud, interface_id},
    ledger::{Ledger, Start, Tenant},
};
use crate::{random::Random, world::World};

const NODES: usize = 200;
/// Two zones with room, one without a free /28, one without a free address.
const ZONES: [&str; 4] = ["us-west-2a", "us-west-2b", "us-west-2c", "us-west-2d"];
const FRAGMENTED: usize = 2;
const FULL: usize = 3;
/// Addresses that the full zone has for all its nodes.
const LEFT: usize = 70;
const TYPES: [&str; 5] = ["m5.large", "m5.large", "m5.xlarge", "c5.large", "m4.large"];

/// How long after a lost answer it is open what EC2 did: listings lag behind it.
const SETTLE: Duration = Duration::from_secs(20);
/// How long a controller that starts anew lets addresses rest that it finds: until a listing has settled, and 30 s more.
const UNSURE: Duration = Duration::from_secs(52);

const LENGTH: Duration = Duration::from_secs(360);
/// How many pods there are at most.
const PODS: usize = 600;

struct Host {
    name: String,
    instance: Arc<Instance>,
    slots: usize,
}

/// What happens at a set time.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The controller is killed and starts anew.
    Kill,
    Prefixes(bool),
    Faults(&'static str),
    NodeGoes,
    NodeComes,
}

pub(crate) struct Churn {
    pub(crate) world: World<Cloud>,
    pub(crate) ledger: Ledger,
    eyes: Context,
    random: Random,
    hosts: Vec<Option<Host>>,
    alive: Vec<String>,
    kind: Kind,
    named: usize,
    began: Instant,
    killed: Option<Instant>,
}

impl Churn {
    /// A cluster of 200 nodes, none of which has an address yet.
    pub(crate) async fn new(seed: u64) -> Self {
        let clock = crate::served::clock();
        let cloud = Cloud::new(&ZONES, clock, seed);
        let mut random = Random::new(seed);
        let world = World::over(cloud.clone()).await;
        let eyes = Context::new(world.context.client.clone(), world.context.clock.clone());
        let ledger = Ledger::default();
        ledger.follow(&eyes);
        let mut churn = Churn {
            world,
            ledger,
            eyes,
            random: Random::new(seed),
            hosts: Vec::new(),
            alive: Vec::new(),
            kind: Kind::Address,
            named: 0,
            began: Instant::now(),
            killed: None,
        };
        for node in 0..NODES {
            churn.node_comes(node % ZONES.len()).await;
        }
        crowd(&cloud, &mut random).await;
        churn.switch(false).await;
        churn
    }

    async fn switch(&mut self, prefixes: bool) {
        let text = prefixes.to_string();
        let data = [
            ("enable-windows-ipam", "true"),
            ("enable-windows-prefix-delegation", &text),
        ];
        self.world.configure(&data).await;
        self.kind = if prefixes {
            Kind::Prefix
        } else {
            Kind::Address
        };
    }

    async fn node_comes(&mut self, zone: usize) {
        let number = self.hosts.len();
        let instance_type = *self.random.pick(&TYPES);
        let name = format!("w{number}");
        let instance = self.world.ec2.instance(&name, ZONES[zone], instance_type);
        self.world.ready_node(&name, &instance.id.0).await;
        let slots = instance.instance_type.ipv4_per_eni as usize - 1;
        self.hosts.push(Some(Host {
            name,
            instance,
            slots,
        }));
    }

    /// A node is drained, its instance stops, and its object goes.
    async fn node_goes(&mut self) {
        let at = self.random.below(self.hosts.len());
        let Some(host) = self.hosts[at].take() else {
            return;
        };
        let of_node: Vec<_> = {
            let mut ledger = self.ledger.lock();
            let living = ledger.living().filter(|(_, pod)| pod.node == at);
            living.map(|(name, _)| name.clone()).collect()
        };
        for pod in of_node {
            self.alive.retain(|name| *name != pod);
            self.world.delete_pod(&pod).await;
        }
        self.world.pass(6).await;
        let stopped = self.world.ec2.ec2.terminate(host.instance.id.clone());
        stopped.await.expect("EC2 takes the order");
        // Karpenter lets the Node go when its instance is terminated.
        let nodes: Api<Node> = Api::all(self.world.context.client.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(30)).await;
            let deleted = nodes.delete(&host.name, &Default::default()).await;
            deleted.expect("it is there");
        });
    }

    /// The acts in the order of their times.
    fn script(&mut self) -> Vec<(Duration, Act)> {
        use Act::*;
        let mut script = vec![
            (50, Faults("throttle=20%,seed=1")),
            (80, Faults("lag=1s")),
            (120, Prefixes(true)),
            (
                150,
                Faults("throttle=5%,lost=10%,partial=30%,lag=8s,seed=2"),
            ),
            (200, Faults("lag=1s")),
            (240, Prefixes(false)),
            (270, Faults("lost=5%,partial=30%,lag=15s,seed=3")),
            (310, Faults("lag=1s")),
        ];
        script.extend((0..6).map(|_| (40 + self.random.below(310), Kill)));
        for _ in 0..5 {
            script.push((40 + self.random.below(310), NodeGoes));
            script.push((40 + self.random.below(310), NodeComes));
        }
        script.sort_by_key(|(at, _)| *at);
        let script = script.into_iter();
        script
            .map(|(at, act)| (Duration::from_secs(at as u64), act))
            .collect()
    }

    /// Lets everything happen.
    pub(crate) async fn live(&mut self) {
        self.began = Instant::now();
        let mut script = self.script().into_iter().peekable();
        while self.began.elapsed() < LENGTH {
            while let Some((_, act)) = script.next_if(|(at, _)| *at <= self.began.elapsed()) {
                self.act(act).await;
            }
            self.pods().await;
            self.observe();
            let pause = 100 + self.random.below(400) as u64;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.observe();
        }
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Kill => {
                // Not always when nothing is under way.
                let pause = self.random.below(900) as u64;
                tokio::time::sleep(Duration::from_millis(pause)).await;
                self.world.restart().await;
                self.killed = Some(Instant::now());
            }
            Act::Prefixes(on) => self.switch(on).await,
            Act::Faults(text) => {
                let faults = text.parse().expect("they are understood");
                self.world.ec2.ec2.set_address_faults(faults);
            }
            Act::NodeGoes => self.node_goes().await,
            Act::NodeComes => {
                let zone = self.random.below(FULL);
                self.node_comes(zone).await;
            }
        }
    }

    /// Pods come and go: mostly one, now and then a handful on one node.
    async fn pods(&mut self) {
        let count = if self.random.percent(8) {
            4 + self.random.below(4)
        } else {
            self.random.below(2)
        };
        let node = self.random.below(self.hosts.len());
        for _ in 0..count {
            self.pod_comes(node).await;
        }
        let crowded = self.alive.len() * 100 / PODS;
        if self.random.percent(crowded) || count > 2 && self.alive.len() > PODS / 2 {
            for _ in 0..count.max(1) {
                self.pod_goes().await;
            }
        }
    }

    async fn pod_comes(&mut self, node: usize) {
        let Some(host) = &self.hosts[node] else {
            return;
        };
        let (on_it, without) = {
            let mut ledger = self.ledger.lock();
            let living = ledger.living().filter(|(_, pod)| pod.node == node);
            let without = living.map(|(_, pod)| usize::from(pod.address.is_none()));
            without.fold((0, 0), |(all, none), one| (all + 1, none + one))
        };
        if on_it >= host.slots {
            return;
        }
        let numbers = self.world.metrics.numbers();
        let ready = numbers.nodes.get(&host.name);
        let start = if ready.is_some_and(|ready| ready.addresses.warm > without) {
            Start::Warm
        } else {
            Start::Cold
        };
        self.named += 1;
        let pod = format!("p{}", self.named);
        self.ledger.lock().bind(&pod, node, start);
        self.world.pod(&pod, &host.name).await;
        self.alive.push(pod);
    }

    async fn pod_goes(&mut self) {
        if self.alive.is_empty() {
            return;
        }
        let at = self.random.below(self.alive.len());
        let pod = self.alive.swap_remove(at);
        if self.random.percent(20) {
            self.world.phase(&pod, "Succeeded").await;
        }
        self.world.delete_pod(&pod).await;
    }

    /// Looks at every pod: what waits and why, and whether what it has is on its node's interface.
    fn observe(&self) {
        let mut wrong = Vec::new();
        let numbers = self.world.metrics.numbers();
        let mut ledger = self.ledger.lock();
        for (name, pod) in ledger.living() {
            let Some(host) = &self.hosts[pod.node] else {
                continue;
            };
            match pod.address {
                None => {
                    let known = numbers.nodes.get(&host.name).map(|node| node.addresses);
                    pod.hindered = pod.hindered.or(self.hindrance(host, pod.bound, known));
                    if pod.sight.is_empty() && pod.waited() > Duration::from_secs(1) {
                        let there = self.world.ec2.ec2.blocks_on(&host.instance.id).len();
                        let (waited, slots) = (pod.waited(), host.slots);
                        pod.sight = format!(
                            "after {waited:?}, {:?} after a kill, {there} of {slots} slots were taken, {known:?}",
                            self.killed.map(|at| at.elapsed()),
                        );
                    }
                }
                Some((ip, _)) => {
                    let blocks = self.world.ec2.ec2.blocks_on(&host.instance.id);
                    let holds = |(kind, first): &(Kind, std::net::Ipv4Addr)| {
                        let from = first.to_bits();
                        (from..from + kind.size() as u32).contains(&ip.to_bits())
                    };
                    if !blocks.iter().any(holds) {
                        wrong.push(format!("{ip} of {name} is not on {}", host.name));
                    }
                }
            }
        }
        ledger.wrong.extend(wrong);
        assert!(ledger.wrong.is_empty(), "{:#?}", ledger.wrong);
    }

    /// Returns why nobody could bring a pod of this node an address at once that was bound at `since`, if that is so. `known` is
    /// what the controller knows of the node.
    fn hindrance(
        &self,
        host: &Host,
        since: Instant,
        known: Option<Counts>,
    ) -> Option<&'static str> {
        let cloud = &self.world.ec2;
        let instance = &host.instance;
        let subnet = cloud.ec2.subnet_now(&instance.subnet).expect("it is there");
        let kind = if instance.instance_type.is_nitro() {
            self.kind
        } else {
            Kind::Address
        };
        let room = match kind {
            Kind::Address => subnet.free_addresses,
            Kind::Prefix => subnet.free_prefixes,
        };
        if *instance.zone == *ZONES[FULL] || room == 0 {
            return Some("its subnet has no room");
        }
        if cloud.ec2.blocks_on(&instance.id).len() >= host.slots {
            return Some("its node has no slot");
        }
        let interface = interface_id(&instance.id);
        let recent = cloud.calls(&interface, since - SETTLE);
        if recent.iter().any(Call::is_lost) {
            return Some("an answer was lost");
        }
        let calls = cloud.calls(&interface, since);
        if calls.iter().filter(|call| call.is_refused()).count() > 1 {
            return Some("EC2 refused several calls");
        }
        // Nobody knows when the controller that was killed released an address, and whether its last calls reached EC2.
        let resting = known.map_or(0, |known| known.used + known.cooling + known.deleting);
        let restarted = self.killed.is_some_and(|at| at + UNSURE >= since);
        (restarted && resting >= host.slots)
            .then_some("a restart found its slots in use or resting")
    }

    /// Returns what happened to a pod and on its node's interface while it waited, with times since it was bound.
    pub(crate) fn story(&self, name: &str, pod: &Tenant) -> String {
        let Some(host) = &self.hosts[pod.node] else {
            return format!("{name}: its node is gone");
        };
        let since = |at: Instant| match at.checked_duration_since(pod.bound) {
            Some(after) => format!("+{}", after.as_millis()),
            None => format!("-{}", (pod.bound - at).as_millis()),
        };
        let at = (pod.bound - self.began).as_secs_f32();
        let waited = pod.waited();
        let mut text = format!("{name} on {} at {at:.1} s: {waited:?};", host.name);
        let calls = self
            .world
            .ec2
            .calls(&interface_id(&host.instance.id), pod.bound);
        for call in calls.iter().filter(|call| call.began <= pod.bound + waited) {
            text += &format!(" {} {}", call.name, since(call.began));
            if let Some((at, result)) = &call.ended {
                text += &format!("..{} {result}", since(*at));
            }
            text += ";";
        }
        text + " " + &pod.sight
    }

    /// Ends all faults and pods, and looks for what is left.
    pub(crate) async fn end(&mut self) {
        self.act(Act::Faults("lag=1s")).await;
        self.switch(false).await;
        while !self.alive.is_empty() {
            self.pod_goes().await;
        }
        self.world.pass(240).await;
        self.observe();
        self.eyes.stop().await;
        let numbers = self.world.metrics.numbers();
        let cni_nodes: Api<CNINode> = Api::all(self.world.context.client.clone());
        let listed = cni_nodes
            .list(&ListParams::default())
            .await
            .expect("CNINodes are served");
        let listed: BTreeMap<_, _> = listed
            .into_iter()
            .map(|node| (node.name_any(), node))
            .collect();
        let hosts: Vec<_> = self.hosts.iter().flatten().collect();
        let names: BTreeSet<_> = hosts.iter().map(|host| &host.name).collect();
        assert_eq!(numbers.nodes.keys().collect::<BTreeSet<_>>(), names);
        assert_eq!(listed.len(), hosts.len());
        for host in hosts {
            let counts = numbers.nodes[&host.name].addresses;
            let blocks = self.world.ec2.ec2.blocks_on(&host.instance.id);
            assert!(
                blocks.iter().all(|(kind, _)| *kind == Kind::Address),
                "{}: {blocks:?}",
                host.name
            );
            assert_eq!(
                counts.total(),
                blocks.len(),
                "{} has {blocks:?}, {counts:?}",
                host.name
            );
            assert_eq!(counts.warm, counts.total(), "{}: {counts:?}", host.name);
            assert!(counts.warm <= 3, "{}: {counts:?}", host.name);
            let full = ZONES[FULL] == &*host.instance.zone;
            assert!(full || counts.warm == 3, "{}: {counts:?}", host.name);
            let status = listed[&host.name]
                .status
                .clone()
                .and_then(|status| status.ipv4);
            let status = status.expect("its CNINode tells");
            assert_eq!(
                (status.used, status.warm, status.capacity),
                (0, counts.warm, host.slots)
            );
            let warm = status.warm_addresses.iter().cloned();
            let mut on_it: Vec<_> = blocks.iter().map(|(_, ip)| ip.to_string()).collect();
            on_it.sort_unstable();
            assert_eq!(warm.collect::<Vec<_>>(), on_it, "{}", host.name);
        }
    }
}

/// Somebody else takes all addresses of the full zone but a few, and leaves the fragmented one without a free /28.
async fn crowd(cloud: &Cloud, random: &mut Random) {
    for (zone, left) in [(FULL, LEFT), (FRAGMENTED, 0)] {
        let hog = cloud.instance(&format!("hog-{zone}"), ZONES[zone], "m5.24xlarge");
        let free = cloud.ec2.subnet_now(&hog.subnet).expect("it is there");
        let mut taken: Vec<_> = (left..free.free_addresses)
            .map(|_| cloud.ec2.assign_address(&hog.id).expect("one is free"))
            .collect();
        if zone == FRAGMENTED {
            random.shuffle(&mut taken);
            let bits = free.cidr.bits;
            let back = taken[..taken.len() / 3].iter();
            let back: Vec<_> = back
                .map(|ip| mullion_engine::ip::Cidr::new(*ip, bits))
                .collect();
            let interface = interface_id(&hog.id);
            let given = cloud.ec2.give_back(&interface, Kind::Address, &back);
            given.await.expect("EC2 takes them back");
        }
    }
}
