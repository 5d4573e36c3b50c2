//! Random clusters, what their nodes cost, and moves that are carried out in them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mullion_engine::disrupt::{Candidate, Consolidation, Move, Moves, PoolTerms};
use mullion_engine::model::{
    Affinity, Container, LabelSelector, NodeSpec, PodAffinity, PodAffinityTerm, PodSpec,
    PodTemplate, ResourceMap, StringMap, TopologySpreadConstraint, label,
};
use mullion_engine::provision::{InstanceType, NodeTemplate, Offering, PlanRequest, PlannedNode};
use mullion_engine::{Cluster, Options, Plugin};

fn amounts(pairs: &[(&str, String)]) -> ResourceMap {
    pairs
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), amount.parse().expect("a quantity")))
        .collect()
}

pub(crate) fn machine(
    name: &str,
    cpu: u64,
    gib: u64,
    price: u64,
    zones: &[&str],
    spot: bool,
) -> Arc<InstanceType> {
    let mut offerings = Vec::new();
    for zone in zones {
        let mut sell = |capacity_type: &str, price_micro_usd| {
            offerings.push(Offering {
                zone: (*zone).to_owned(),
                capacity_type: capacity_type.to_owned(),
                price_micro_usd,
                available: true,
                labels: StringMap::new(),
                reservation: None,
            });
        };
        sell("on-demand", price);
        if spot {
            sell("spot", price / 3);
        }
    }
    let capacity = amounts(&[
        ("cpu", cpu.to_string()),
        ("memory", format!("{gib}Gi")),
        ("pods", "30".to_owned()),
    ]);
    Arc::new(InstanceType {
        name: name.to_owned(),
        labels: StringMap::from([(label::OS.into(), "linux".into())]),
        allocatable: capacity.clone(),
        capacity,
        offerings,
    })
}

pub(crate) fn pod(name: &str, cpu_milli: u64, mib: u64) -> PodSpec {
    let mut container = Container::default();
    container.resources.requests = amounts(&[
        ("cpu", format!("{cpu_milli}m")),
        ("memory", format!("{mib}Mi")),
    ]);
    let template = PodTemplate {
        namespace: "ns".into(),
        containers: vec![container],
        ..PodTemplate::default()
    };
    PodSpec {
        name: name.to_owned(),
        template,
        ..PodSpec::default()
    }
}

/// A node that was bought.
#[derive(Clone)]
pub(crate) struct Bought {
    spec: NodeSpec,
    pool: String,
    pub(crate) price: u64,
    pub(crate) is_spot: bool,
}

/// A cluster, what its nodes cost, and where its pods are.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) templates: Vec<NodeTemplate>,
    pub(crate) nodes: BTreeMap<String, Bought>,
    pub(crate) pods: BTreeMap<String, (PodSpec, String)>,
    pub(crate) terms: PoolTerms,
    bought: usize,
    /// Whether the cheapest of what a plan allows is bought, or any of it.
    pub(crate) takes_cheapest: bool,
    pub(crate) random: Random,
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

impl World {
    pub(crate) fn new(templates: Vec<NodeTemplate>, seed: u64) -> Self {
        World {
            cluster: Cluster::new(Options::default()),
            templates,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            terms: PoolTerms {
                budget: usize::MAX,
                least_saving_per_mille: 30,
                boot_seconds: 60,
                balance: None,
            },
            bought: 0,
            takes_cheapest: false,
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        }
    }

    /// Buys a machine that the plan allows.
    pub(crate) fn buy(&mut self, planned: &PlannedNode) -> String {
        let mut pick = |count: usize| {
            if self.takes_cheapest {
                0
            } else {
                self.random.below(count as u64) as usize
            }
        };
        let option = &planned.options[pick(planned.options.len())];
        let sold = pick(option.offerings.len());
        let (zone, capacity_type, price) = option.offerings[sold].clone();
        let template = self.templates.iter().find(|own| own.pool == planned.pool);
        let types = template.iter().flat_map(|own| &own.instance_types);
        let spec = types
            .into_iter()
            .find(|own| own.name == option.name)
            .expect("a type of the pool");
        self.bought += 1;
        let name = format!("n{}", self.bought);
        let mut node = NodeSpec::named(&name);
        node.labels = spec.labels.clone();
        for own in planned.requirements.iter() {
            if let [value] = &own.values[..] {
                node.labels.insert(own.key.clone(), value.clone());
            }
        }
        for (key, value) in [
            (label::HOSTNAME, &name),
            (label::ZONE, &zone),
            (label::CAPACITY_TYPE, &capacity_type),
            (label::INSTANCE_TYPE, &spec.name),
            (label::NODE_POOL, &planned.pool),
        ] {
            node.labels.insert(key.to_owned(), value.clone());
        }
        node.capacity = spec.capacity.clone();
        node.allocatable = spec.allocatable.clone();
        self.cluster.add_node(&node).expect("a new node");
        let bought = Bought {
            spec: node,
            pool: planned.pool.clone(),
            price,
            is_spot: capacity_type == "spot",
        };
        self.nodes.insert(name.clone(), bought);
        name
    }

    /// Plans pods one by one, as Karpenter does, and buys for them.
    pub(crate) fn add(&mut self, pods: Vec<PodSpec>) {
        let request = PlanRequest {
            pods: pods.clone(),
            templates: self.templates.clone(),
            ..PlanRequest::default()
        };
        let plan = self.cluster.plan(&request).expect("valid");
        let mut specs: BTreeMap<String, PodSpec> =
            pods.into_iter().map(|pod| (pod.key(), pod)).collect();
        let mut places = plan.existing.clone();
        for planned in &plan.nodes {
            let node = self.buy(planned);
            places.extend(planned.pods.iter().map(|key| (key.clone(), node.clone())));
        }
        for (key, node) in places {
            let spec = specs.remove(&key).expect("asked for");
            self.cluster.bind(&spec, &node).expect("a node");
            self.pods.insert(key, (spec, node));
        }
    }

    pub(crate) fn remove_pod(&mut self, key: &str) {
        self.cluster.remove_pod(key).expect("a pod");
        self.pods.remove(key);
    }

    pub(crate) fn price(&self) -> u64 {
        self.nodes.values().map(|node| node.price).sum()
    }

    pub(crate) fn question(&self) -> Consolidation {
        let candidates = self.nodes.iter().map(|(name, node)| {
            let pods = self
                .pods
                .values()
                .filter(|(_, place)| place == name)
                .count();
            Candidate {
                node: name.clone(),
                pool: node.pool.clone(),
                price_micro_usd: node.price,
                capacity: node.spec.capacity.clone(),
                disruption_milli: 1000 * (1 + pods as u64),
                is_spot: node.is_spot,
            }
        });
        let pools = self.templates.iter();
        Consolidation {
            candidates: candidates.collect(),
            pools: pools
                .map(|own| (own.pool.clone(), self.terms.clone()))
                .collect(),
            market: PlanRequest {
                templates: self.templates.clone(),
                ..PlanRequest::default()
            },
            ..Consolidation::default()
        }
    }

    pub(crate) fn moves(&mut self) -> Moves {
        let question = self.question();
        self.cluster.consolidate(&question).expect("valid")
    }

    /// Makes a move, and checks that it is cheaper and that each of its pods may be where it goes.
    pub(crate) fn make(&mut self, made: &Move) {
        let before: u64 = made.nodes.iter().map(|node| self.nodes[node].price).sum();
        let mut places: BTreeMap<String, String> = made.existing.iter().cloned().collect();
        let mut after = 0;
        for planned in &made.replacements {
            let node = self.buy(planned);
            after += self.nodes[&node].price;
            places.extend(planned.pods.iter().map(|key| (key.clone(), node.clone())));
        }
        assert!(after < before, "{after} in place of {before}: {made:?}");
        let on_them: BTreeSet<String> = self
            .pods
            .iter()
            .filter(|(_, (_, place))| made.nodes.contains(place))
            .map(|(key, _)| key.clone())
            .collect();
        let going: BTreeSet<String> = places.keys().cloned().collect();
        assert_eq!(on_them, going, "every pod of {:?} has a place", made.nodes);
        for key in &on_them {
            self.cluster.remove_pod(key).expect("a pod");
        }
        for node in &made.nodes {
            self.cluster.remove_node(node).expect("a node");
            self.nodes.remove(node);
        }
        for (key, node) in places {
            let (spec, place) = self.pods.get_mut(&key).expect("a pod");
            let class = self.cluster.pod_class(&spec.template).expect("valid");
            let id = self.cluster.node(&node).expect("it stays");
            let refused = self.cluster.refusals(class, &key);
            let refused = refused.iter().find(|(refuses, _)| *refuses == id);
            // Others of its kind are on their way at the same moment, so skew is what it is once all are there.
            if let Some((_, refusal)) =
                refused.filter(|(_, why)| why.plugin != Plugin::PodTopologySpread)
            {
                panic!("{key} on {node}: {refusal:?}");
            }
            self.cluster.bind(spec, &node).expect("a node");
            *place = node;
        }
    }

    /// Follows moves until there are none. Gives how many rounds had some.
    pub(crate) fn settle(&mut self) -> usize {
        for round in 0.. {
            let before = self.price();
            let moves = self.moves();
            if moves.moves.is_empty() {
                return round;
            }
            for made in &moves.moves {
                self.make(made);
            }
            assert!(self.price() < before);
            assert!(round < 40, "it does not end");
        }
        unreachable!("the loop returns")
    }

    /// Follows moves until there are none. Gives what is paid for old and new nodes together while the new ones boot, in micro-dollars.
    pub(crate) fn settle_for(&mut self) -> u128 {
        let mut paid = 0;
        loop {
            let moves = self.moves();
            if moves.moves.is_empty() {
                return paid;
            }
            for made in &moves.moves {
                let before: BTreeSet<String> = self.nodes.keys().cloned().collect();
                self.make(made);
                let new = self
                    .nodes
                    .iter()
                    .filter(|(name, _)| !before.contains(*name));
                let price: u64 = new.map(|(_, node)| node.price).sum();
                paid += u128::from(price) * u128::from(self.terms.boot_seconds) / 3600;
            }
        }
    }

    /// Takes away nodes without pods.
    pub(crate) fn remove_empty(&mut self) {
        let used: BTreeSet<String> = self.pods.values().map(|own| own.1.clone()).collect();
        let nodes = self.nodes.keys().cloned();
        let empty: Vec<String> = nodes.filter(|name| !used.contains(name)).collect();
        for name in empty {
            self.cluster.remove_node(&name).expect("a node");
            self.nodes.remove(&name);
        }
    }

    /// Has nodes cost what their types cost now.
    pub(crate) fn reprice(&mut self) {
        for node in self.nodes.values_mut() {
            let label = |key: &str| node.spec.labels[key].as_str();
            let types = self.templates.iter().flat_map(|own| &own.instance_types);
            let mut sold = types
                .filter(|own| own.name == label(label::INSTANCE_TYPE))
                .flat_map(|own| &own.offerings);
            let own = sold.find(|sold| {
                sold.zone == label(label::ZONE) && sold.capacity_type == label(label::CAPACITY_TYPE)
            });
            node.price = own.expect("its type is sold").price_micro_usd;
        }
    }

    /// The same cluster as another process sees it.
    pub(crate) fn anew(&self) -> Self {
        let mut other = World::new(self.templates.clone(), 1);
        other.terms = self.terms.clone();
        for node in self.nodes.values().rev() {
            other.cluster.add_node(&node.spec).expect("a new node");
        }
        other.nodes = self.nodes.clone();
        for (spec, node) in self.pods.values() {
            other.cluster.bind(spec, node).expect("a node");
        }
        other.pods = self.pods.clone();
        other
    }
}

pub(crate) fn pool(name: &str, types: &[Arc<InstanceType>]) -> NodeTemplate {
    NodeTemplate {
        pool: name.to_owned(),
        instance_types: types.to_vec(),
        ..NodeTemplate::default()
    }
}

/// A cluster that was bought for more pods than it has.
pub(crate) fn random_world(seed: u64) -> World {
    let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1);
    let mut types = Vec::new();
    for (family, gib, base) in [("c", 2, 40_000), ("m", 4, 48_000), ("r", 8, 60_000)] {
        for (size, cpu) in [("l", 2), ("x", 4), ("2x", 8), ("4x", 16)] {
            let price = cpu * base + random.below(20_000);
            let zones: &[&str] = if random.below(4) == 0 {
                &["a"]
            } else {
                &["a", "b", "c"]
            };
            types.push(machine(
                &format!("{family}.{size}"),
                cpu,
                cpu * gib,
                price,
                zones,
                random.below(3) == 0,
            ));
        }
    }
    let mut templates = vec![pool("p", &types)];
    if random.below(2) == 0 {
        let mut second = pool("q", &types[..6]);
        second.weight = random.below(3) as i32;
        templates.push(second);
    }
    if random.below(3) == 0 {
        templates[0].limits_remaining = amounts(&[("cpu", (20 + random.below(60)).to_string())]);
    }
    let mut world = World::new(templates, seed);
    world.terms.boot_seconds = random.below(300) as u32;
    if random.below(3) == 0 {
        world.terms.budget = 1 + random.below(3) as usize;
    }
    let mut pods = Vec::new();
    for app in 0..2 + random.below(4) {
        let (cpu, mib) = (100 + 100 * random.below(18), 128 << random.below(5));
        let kind = random.below(5);
        for index in 0..1 + random.below(12) {
            let mut pod = pod(&format!("app{app}-{index}"), cpu, mib);
            let name = format!("app{app}");
            pod.template.labels.insert("app".into(), name.clone());
            let selector = LabelSelector {
                match_labels: StringMap::from([("app".into(), name)]),
                ..LabelSelector::default()
            };
            if kind == 0 {
                pod.template.topology_spread_constraints = vec![TopologySpreadConstraint {
                    max_skew: 1,
                    topology_key: label::ZONE.into(),
                    label_selector: Some(selector),
                    ..TopologySpreadConstraint::default()
                }];
            } else if kind == 1 {
                let apart = PodAffinityTerm {
                    label_selector: Some(selector),
                    topology_key: label::HOSTNAME.into(),
                    ..PodAffinityTerm::default()
                };
                pod.template.affinity = Affinity {
                    pod_anti_affinity: Some(PodAffinity {
                        required: vec![apart],
                        preferred: Vec::new(),
                    }),
                    ..Affinity::default()
                };
            }
            pods.push(pod);
        }
    }
    world.add(pods);
    let keys: Vec<String> = world.pods.keys().cloned().collect();
    for key in keys {
        if world.random.below(2) == 0 {
            world.remove_pod(&key);
        }
    }
    world
}
