//! What a plan for a recorded case must hold, said anew and slowly: nothing here is the engine's.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mullion_engine::model::{Quantity, ResourceMap};
use serde_json::Value;

use super::objects::*;

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const CAPACITY: &str = "karpenter.sh/capacity-type";
const HOST: &str = "kubernetes.io/hostname";
pub(super) const POOL: &str = "karpenter.sh/nodepool";

/// A recorded case with the machines it is about.
pub(crate) struct Case<'a> {
    case: &'a Value,
    /// By node class and type.
    machines: &'a HashMap<String, HashMap<String, Value>>,
    gone: BTreeSet<(String, String, String)>,
}

/// An offering: price, zone, capacity type.
type Offer = (u64, String, String);

impl<'a> Case<'a> {
    pub(crate) fn new(
        case: &'a Value,
        machines: &'a HashMap<String, HashMap<String, Value>>,
    ) -> Self {
        let gone =
            array(&case["unavailable"]).map(|one| (text(&one[0]), text(&one[1]), text(&one[2])));
        Case {
            case,
            machines,
            gone: gone.collect(),
        }
    }

    /// What is wrong with a plan, and its price in micro-dollars an hour: each node as its cheapest offering.
    pub(crate) fn check(&self, plan: &Value) -> (Vec<String>, u64) {
        let mut faults = Vec::new();
        let mut price = 0;
        let groups = self.groups();
        let mut told: HashMap<String, usize> = HashMap::new();
        let mut places = self.nodes();
        for (name, pods) in plan["existing"].as_object().into_iter().flatten() {
            let Some(place) = places.iter_mut().find(|place| place.name == *name) else {
                faults.push(format!("there is no node {name}"));
                continue;
            };
            for pod in array(pods).map(text) {
                let group = groups[&pod];
                *told.entry(pod).or_default() += 1;
                place.take(group);
            }
            for group in place.distinct() {
                let spec = &group["template"]["spec"];
                if !selects(spec, &place.labels) || !tolerates(spec, &place.taints) {
                    faults.push(format!("{} is not for {name}", text(&group["name"])));
                }
            }
            if let Some(resource) = exceeds(&place.used, &place.room) {
                faults.push(format!("{name} has too little {resource}"));
            }
        }
        let mut limits = self.limits();
        for (index, node) in array(&plan["nodes"]).enumerate() {
            let name = format!("new-{index}");
            let pods: Vec<String> = array(&node["pods"]).map(text).collect();
            for pod in &pods {
                *told.entry(pod.clone()).or_default() += 1;
            }
            let of: Vec<&Value> = pods.iter().map(|pod| groups[pod]).collect();
            match self.bought(&name, node, &of, &mut limits, &mut faults) {
                Some((own, place)) => {
                    price += own;
                    places.push(place);
                }
                None => faults.push(format!("{name} cannot be bought")),
            }
        }
        for (pool, left) in &limits {
            let over = left.iter().find(|(_, left)| left.is_negative());
            if let Some((resource, _)) = over
                && array(&plan["nodes"]).any(|node| node["nodePool"] == pool.as_str())
            {
                faults.push(format!("pool {pool} is over its limit of {resource}"));
            }
        }
        for pod in groups.keys() {
            let times = told.get(pod).copied().unwrap_or_default();
            if times + usize::from(!plan["unplaced"][pod].is_null()) != 1 {
                faults.push(format!("{pod} is told {times} times"));
            }
        }
        self.topology(&places, &mut faults);
        (faults, price)
    }

    /// A node of the plan as a place, and its price.
    fn bought(
        &self,
        name: &str,
        node: &Value,
        pods: &[&'a Value],
        limits: &mut BTreeMap<String, ResourceMap>,
        faults: &mut Vec<String>,
    ) -> Option<(u64, Place<'a>)> {
        let pool = self.pool(&text(&node["nodePool"]))?;
        let spec = &pool["spec"]["template"]["spec"];
        let own = own_labels(pool);
        let mut used = ResourceMap::new();
        pods.iter()
            .for_each(|group| add(&mut used, &requests(&group["template"]["spec"])));
        let mut distinct = pods.to_vec();
        distinct.sort_by_key(|group| text(&group["name"]));
        distinct.dedup_by_key(|group| text(&group["name"]));
        let mut best: Option<(Offer, String)> = None;
        let mut largest: ResourceMap = ResourceMap::new();
        let types: Vec<String> = array(&node["types"]).map(text).collect();
        for kind in &types {
            let machine = self.machine(pool, kind)?;
            let listed = |key: &str, value: &str| array(&node[key]).any(|one| one == value);
            let mut offers = self.offers(pool, kind);
            offers.retain(|offer| listed("zones", &offer.1) && listed("capacityTypes", &offer.2));
            let Some(first) = offers.iter().min() else {
                faults.push(format!("{name}: {kind} cannot be bought"));
                continue;
            };
            if best.as_ref().is_none_or(|best| *first < best.0) {
                best = Some((first.clone(), kind.clone()));
            }
            let mut load = used.clone();
            add(&mut load, &self.daemons(pool, machine));
            if let Some(resource) = exceeds(&load, &map(&machine["allocatable"])) {
                faults.push(format!("{name}: {kind} has too little {resource}"));
            }
            for (resource, amount) in map(&machine["capacity"]) {
                let most = largest.entry(resource).or_default();
                *most = (*most).max(amount);
            }
            for group in &distinct {
                for (_, zone, capacity) in &offers {
                    let labels = labels_of(&own, machine, zone, capacity);
                    if !selects(&group["template"]["spec"], &labels) {
                        faults.push(format!(
                            "{name}: {} is not for {kind} {zone} {capacity}",
                            text(&group["name"])
                        ));
                    }
                }
            }
        }
        let taints: Vec<Value> = array(&spec["taints"]).cloned().collect();
        for group in &distinct {
            if !tolerates(&group["template"]["spec"], &taints) {
                faults.push(format!(
                    "{name}: {} does not tolerate the pool",
                    text(&group["name"])
                ));
            }
        }
        for requirement in array(&spec["requirements"]).filter(|_| types.len() < 60) {
            let key = text(&requirement["key"]);
            let values: BTreeSet<String> = types
                .iter()
                .filter_map(|kind| Some(text(self.machine(pool, kind)?["labels"].get(&key)?)))
                .collect();
            if (values.len() as u64) < requirement["minValues"].as_u64().unwrap_or_default() {
                faults.push(format!("{name} leaves too few {key}"));
            }
        }
        for (resource, left) in limits
            .get_mut(&text(&node["nodePool"]))
            .into_iter()
            .flatten()
        {
            let one = Quantity::from_units(1);
            let taken = if resource == "nodes" {
                one
            } else {
                largest.get(resource).copied().unwrap_or_default()
            };
            *left = left.saturating_sub(taken);
        }
        let ports = pods
            .iter()
            .flat_map(|group| array(&group["template"]["spec"]["containers"]));
        let ports = ports
            .flat_map(|container| array(&container["ports"]))
            .filter_map(|port| port["hostPort"].as_u64());
        let mut held = BTreeSet::new();
        for port in ports {
            if !held.insert(port) {
                faults.push(format!("{name} has host port {port} twice"));
            }
        }
        self.weights(name, pool, &distinct, faults);
        let ((price, zone, capacity), kind) = best?;
        let mut labels = labels_of(&own, self.machine(pool, &kind)?, &zone, &capacity);
        labels.insert(HOST.to_owned(), name.to_owned());
        let place = Place {
            name: name.to_owned(),
            labels,
            taints: Vec::new(),
            room: ResourceMap::new(),
            used: ResourceMap::new(),
            bound: Vec::new(),
            pods: pods.to_vec(),
        };
        Some((price, place))
    }

    /// A node of a pool is right only if one of its pods could not go alone on a pool of higher weight.
    fn weights(&self, name: &str, pool: &Value, groups: &[&Value], faults: &mut Vec<String>) {
        let weight = |pool: &Value| pool["spec"]["weight"].as_i64().unwrap_or_default();
        let higher: Vec<&Value> = array(&self.case["nodePools"])
            .filter(|other| weight(other) > weight(pool) && other["spec"]["limits"].is_null())
            .collect();
        let is_plain = |group: &&Value| {
            let spec = &group["template"]["spec"];
            let ports = array(&spec["containers"]).any(|container| !container["ports"].is_null());
            spec["topologySpreadConstraints"].is_null() && spec["affinity"].is_null() && !ports
        };
        let alone = |group: &&Value| higher.iter().any(|pool| self.alone(group, pool));
        if !higher.is_empty()
            && !groups.is_empty()
            && groups.iter().all(is_plain)
            && groups.iter().all(alone)
        {
            faults.push(format!(
                "{name} is of pool {}, though one of higher weight would do",
                text(&pool["metadata"]["name"])
            ));
        }
    }

    fn alone(&self, group: &Value, pool: &Value) -> bool {
        let spec = &pool["spec"]["template"]["spec"];
        let pod = &group["template"]["spec"];
        let taints: Vec<Value> = array(&spec["taints"]).cloned().collect();
        // A pool that demands a choice may refuse what a single type would hold.
        if !tolerates(pod, &taints)
            || array(&spec["requirements"]).any(|own| !own["minValues"].is_null())
        {
            return false;
        }
        let own = own_labels(pool);
        self.machines[&text(&spec["nodeClassRef"]["name"])]
            .values()
            .any(|machine| {
                let mut load = requests(pod);
                add(&mut load, &self.daemons(pool, machine));
                exceeds(&load, &map(&machine["allocatable"])).is_none()
                    && self.offers(pool, &text(&machine["name"])).iter().any(
                        |(_, zone, capacity)| {
                            selects(pod, &labels_of(&own, machine, zone, capacity))
                        },
                    )
            })
    }

    fn topology(&self, places: &[Place<'a>], faults: &mut Vec<String>) {
        for group in array(&self.case["pods"]) {
            let name = text(&group["name"]);
            let spec = &group["template"]["spec"];
            let own = &group["template"]["metadata"]["labels"];
            let mine: Vec<&Place<'_>> = places
                .iter()
                .filter(|place| place.pods.iter().any(|pod| pod["name"] == group["name"]))
                .collect();
            if mine.is_empty() {
                continue;
            }
            let counts = |key: &str, selector: &Value, only: bool| {
                let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
                for place in places {
                    if let Some(value) = place.labels.get(key)
                        && (!only || selects(spec, &place.labels))
                    {
                        *counts.entry(value).or_default() += place.matching(selector);
                    }
                }
                counts
            };
            let hard = array(&spec["topologySpreadConstraints"])
                .filter(|one| one["whenUnsatisfiable"] == "DoNotSchedule");
            for spread in hard {
                let key = text(&spread["topologyKey"]);
                let counts = counts(&key, &spread["labelSelector"], true);
                let zones = self.zones_for(group);
                let mut least = zones
                    .iter()
                    .map(|zone| counts.get(zone.as_str()).copied().unwrap_or(0))
                    .min()
                    .unwrap_or(0);
                if key == HOST
                    || (zones.len() as u64) < spread["minDomains"].as_u64().unwrap_or_default()
                {
                    least = 0;
                }
                for place in &mine {
                    let value = place.labels[&key].as_str();
                    if counts.get(value).copied().unwrap_or(0) - least
                        > spread["maxSkew"].as_i64().expect("a skew")
                    {
                        faults.push(format!("{name} is skewed over {key}: {value}"));
                    }
                }
            }
            let terms = |kind: &str| {
                array(&spec["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"])
            };
            for term in terms("podAntiAffinity") {
                let key = text(&term["topologyKey"]);
                let counts = counts(&key, &term["labelSelector"], false);
                let itself = i64::from(matches(&term["labelSelector"], own));
                if mine
                    .iter()
                    .any(|place| counts[place.labels[&key].as_str()] > itself)
                {
                    faults.push(format!("{name} is not apart over {key}"));
                }
            }
            for term in terms("podAffinity") {
                let key = text(&term["topologyKey"]);
                let counts = counts(&key, &term["labelSelector"], false);
                let itself = i64::from(matches(&term["labelSelector"], own));
                let is_first = itself == 1 && counts.values().sum::<i64>() == 1;
                if mine
                    .iter()
                    .any(|place| counts[place.labels[&key].as_str()] - itself < 1)
                    && !is_first
                {
                    faults.push(format!("{name} is far from its like over {key}"));
                }
            }
        }
    }

    /// Zones with a node that the group selects, there or to be bought.
    fn zones_for(&self, group: &Value) -> BTreeSet<String> {
        let spec = &group["template"]["spec"];
        let there = array(&self.case["nodes"]).map(|node| labels(&node["metadata"]["labels"]));
        let mut zones: BTreeSet<String> = there
            .filter(|labels| selects(spec, labels))
            .filter_map(|labels| labels.get(ZONE).cloned())
            .collect();
        for pool in array(&self.case["nodePools"]) {
            let own = own_labels(pool);
            let class = text(&pool["spec"]["template"]["spec"]["nodeClassRef"]["name"]);
            for machine in self.machines[&class].values() {
                for (_, zone, capacity) in self.offers(pool, &text(&machine["name"])) {
                    if !zones.contains(&zone)
                        && selects(spec, &labels_of(&own, machine, &zone, &capacity))
                    {
                        zones.insert(zone);
                    }
                }
            }
        }
        zones
    }

    fn groups(&self) -> HashMap<String, &'a Value> {
        let of = |group: &'a Value| {
            let count = group["count"].as_u64().expect("a count");
            (0..count).map(move |index| (format!("{}-{index}", text(&group["name"])), group))
        };
        array(&self.case["pods"]).flat_map(of).collect()
    }

    fn nodes(&self) -> Vec<Place<'a>> {
        let place = |node: &'a Value| {
            let name = text(&node["metadata"]["name"]);
            let mut place = Place {
                labels: labels(&node["metadata"]["labels"]),
                taints: array(&node["spec"]["taints"]).cloned().collect(),
                room: map(&node["status"]["allocatable"]),
                used: ResourceMap::new(),
                bound: Vec::new(),
                pods: Vec::new(),
                name,
            };
            for pod in array(&self.case["bound"])
                .filter(|pod| pod["spec"]["nodeName"] == place.name.as_str())
            {
                add(&mut place.used, &requests(&pod["spec"]));
                place.bound.push(&pod["metadata"]["labels"]);
            }
            place
        };
        array(&self.case["nodes"]).map(place).collect()
    }

    fn limits(&self) -> BTreeMap<String, ResourceMap> {
        let mut limits = BTreeMap::new();
        for pool in array(&self.case["nodePools"]) {
            let name = text(&pool["metadata"]["name"]);
            let mut left = if pool["spec"]["limits"].is_null() {
                ResourceMap::new()
            } else {
                map(&pool["spec"]["limits"])
            };
            for node in array(&self.case["nodes"])
                .filter(|node| node["metadata"]["labels"][POOL] == name.as_str())
            {
                let capacity = map(&node["status"]["capacity"]);
                for (resource, left) in &mut left {
                    let one = Quantity::from_units(1);
                    let taken = if resource == "nodes" {
                        one
                    } else {
                        capacity.get(resource).copied().unwrap_or_default()
                    };
                    *left = left.saturating_sub(taken);
                }
            }
            limits.insert(name, left);
        }
        limits
    }

    fn pool(&self, name: &str) -> Option<&'a Value> {
        array(&self.case["nodePools"]).find(|pool| pool["metadata"]["name"] == name)
    }

    fn machine(&self, pool: &Value, kind: &str) -> Option<&'a Value> {
        self.machines[&text(&pool["spec"]["template"]["spec"]["nodeClassRef"]["name"])].get(kind)
    }

    /// What a pool can buy of a type now.
    fn offers(&self, pool: &Value, kind: &str) -> Vec<Offer> {
        let spec = &pool["spec"]["template"]["spec"];
        let listed = &self.case["types"][text(&spec["nodeClassRef"]["name"])];
        let Some(machine) = self.machine(pool, kind) else {
            return Vec::new();
        };
        if array(listed).next().is_some() && !array(listed).any(|one| one == kind) {
            return Vec::new();
        }
        let admitted = |zone: &str, capacity: &str| {
            let labels = labels_of(&Labels::new(), machine, zone, capacity);
            array(&spec["requirements"]).all(|own| {
                let key = text(&own["key"]);
                let is_known = labels.contains_key(&key) || key.starts_with("karpenter.k8s.aws/");
                !is_known || admits(own, labels.get(&key))
            })
        };
        let offer = |sold: &Value| {
            let (zone, capacity) = (text(&sold["zone"]), text(&sold["capacityType"]));
            let is_there = !self
                .gone
                .contains(&(kind.to_owned(), zone.clone(), capacity.clone()));
            let price = (sold["price"].as_f64().expect("a price") * 1e6).round() as u64;
            (is_there && admitted(&zone, &capacity)).then_some((price, zone, capacity))
        };
        array(&machine["offerings"]).filter_map(offer).collect()
    }

    /// What the DaemonSets take of a machine.
    fn daemons(&self, pool: &Value, machine: &Value) -> ResourceMap {
        let mut labels = own_labels(pool);
        labels.extend(self::labels(&machine["labels"]));
        let taints: Vec<Value> = array(&pool["spec"]["template"]["spec"]["taints"])
            .cloned()
            .collect();
        let mut sum = ResourceMap::new();
        for set in array(&self.case["daemonSets"]) {
            let spec = &set["spec"]["template"]["spec"];
            if selects(spec, &labels) && tolerates(spec, &taints) {
                add(&mut sum, &requests(spec));
            }
        }
        sum
    }
}

/// A node, there or planned, and the pods on it.
struct Place<'a> {
    name: String,
    labels: Labels,
    taints: Vec<Value>,
    room: ResourceMap,
    used: ResourceMap,
    /// Labels of pods that were there before.
    bound: Vec<&'a Value>,
    /// The group of each pod of the plan.
    pods: Vec<&'a Value>,
}

impl<'a> Place<'a> {
    fn take(&mut self, group: &'a Value) {
        add(&mut self.used, &requests(&group["template"]["spec"]));
        self.pods.push(group);
    }

    fn distinct(&self) -> Vec<&'a Value> {
        let mut distinct = self.pods.clone();
        distinct.sort_by_key(|group| text(&group["name"]));
        distinct.dedup_by_key(|group| text(&group["name"]));
        distinct
    }

    fn matching(&self, selector: &Value) -> i64 {
        let planned = self
            .pods
            .iter()
            .map(|group| &group["template"]["metadata"]["labels"]);
        let all = planned.chain(self.bound.iter().copied());
        all.filter(|labels| matches(selector, labels)).count() as i64
    }
}
