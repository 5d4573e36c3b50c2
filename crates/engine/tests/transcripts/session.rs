//! The commands of the transcripts.
//!
//! `node`, `update-node`, `remove-node`, `pod` (bound), `remove-pod`, `service NAME KEY=VALUE` change the cluster.
//! `schedule` asks only, `bind` also binds, `why` asks every node, `score` shows the scores, `preempt` asks what to
//! evict, `fix` what to change. `profile` says by which rules pods of a scheduler name are decided. `type` and `pool` describe what can be bought, `plan NAME*COUNT` asks what to buy. `without NODE` asks
//! whether a node can go. `checkpoint` and `rollback` nest. The words about storage are in `storage.rs`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use mullion_engine::disrupt::Removal;
use mullion_engine::images::ImageTable;
use mullion_engine::model::{Operator, PodSpec, ServiceSpec, StringMap, label};
use mullion_engine::preempt::Preemption;
use mullion_engine::provision::{
    InstanceType, NodeTemplate, Offering, Plan, PlanRequest, Requirement,
};
use mullion_engine::remedy::{ChangedPlace, Facts, PrefixAddresses};
use mullion_engine::{Checkpoint, Cluster, Decision, Options, Outcome, Profile};

use crate::storage;
use crate::words::{self, Words};

pub(crate) struct Session {
    cluster: Cluster,
    profiles: Vec<Profile>,
    types: BTreeMap<String, Arc<InstanceType>>,
    pools: Vec<NodeTemplate>,
    images: ImageTable,
    prefixes: PrefixAddresses,
    checkpoints: Vec<Checkpoint>,
}

impl Default for Session {
    fn default() -> Self {
        let cluster = Cluster::new(Options::default());
        Session {
            cluster,
            profiles: Vec::new(),
            types: BTreeMap::new(),
            pools: Vec::new(),
            images: ImageTable::default(),
            prefixes: PrefixAddresses::default(),
            checkpoints: Vec::new(),
        }
    }
}

impl Session {
    /// Runs one command and gives what it says, with line ends.
    pub(crate) fn run(&mut self, line: &str) -> String {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let said = match command {
            "node" => self.apply(
                |cluster, words| cluster.add_node(&words::node(words)).map(drop),
                rest,
            ),
            "update-node" => self.apply(
                |cluster, words| cluster.update_node(&words::node(words)).map(drop),
                rest,
            ),
            "remove-node" => self.apply(|cluster, words| cluster.remove_node(words.name), rest),
            "pod" => self.apply(|cluster, words| cluster.add_pod(&words::pod(words)), rest),
            "remove-pod" => self.apply(
                |cluster, words| cluster.remove_pod(&format!("default/{}", words.name)),
                rest,
            ),
            "profile" => self.profile(&Words::read(rest)),
            "service" => self.service(&Words::read(rest)),
            "schedule" => self.schedule(&words::pod(&Words::read(rest))),
            "bind" => self.bind(&Words::read(rest)),
            "why" => self.why(&words::pod(&Words::read(rest))),
            "fix" => self.fix(&words::pod(&Words::read(rest))),
            "score" => self.score(&words::pod(&Words::read(rest))),
            "preempt" => self.preempt(&words::pod(&Words::read(rest))),
            "type" => self.instance_type(&Words::read(rest)),
            "pool" => self.pool(&Words::read(rest)),
            "prefixes" => self.prefixes(rest),
            "plan" => self.plan(rest),
            "without" => self.without(rest),
            "checkpoint" => {
                let checkpoint = self.cluster.checkpoint();
                self.checkpoints.push(checkpoint);
                String::new()
            }
            "rollback" => {
                let checkpoint = self.checkpoints.pop().expect("a checkpoint is open");
                self.cluster.rollback(checkpoint);
                String::new()
            }
            other => {
                let known = storage::apply(&mut self.cluster, other, rest);
                assert!(known, "unknown command {other}");
                String::new()
            }
        };
        if said.is_empty() || said.ends_with('\n') {
            said
        } else {
            said + "\n"
        }
    }

    fn apply<E: std::fmt::Display>(
        &mut self,
        delta: impl Fn(&mut Cluster, &Words<'_>) -> Result<(), E>,
        rest: &str,
    ) -> String {
        delta(&mut self.cluster, &Words::read(rest))
            .map_or_else(|error| format!("refused: {error}"), |()| String::new())
    }

    /// `profile NAME strategy=MostAllocated weight.PLUGIN=N off=PLUGIN ignore=RESOURCE spread=KEY:SKEW add.KEY=VALUE`,
    /// before anything else.
    fn profile(&mut self, words: &Words<'_>) -> String {
        assert_eq!(self.cluster.node_count(), 0, "profiles come first");
        self.profiles.push(words::profile(words));
        self.cluster = Cluster::with_profiles(Options::default(), &self.profiles);
        String::new()
    }

    fn service(&mut self, words: &Words<'_>) -> String {
        let selector = words
            .attributes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let service = ServiceSpec {
            namespace: "default".to_owned(),
            name: words.name.to_owned(),
            selector,
        };
        self.cluster.set_service(&service);
        String::new()
    }

    fn schedule(&mut self, pod: &PodSpec) -> String {
        match self.cluster.schedule_pod(pod, 0) {
            Err(error) => format!("refused: {error}"),
            Ok(Decision::Node(node)) => format!("{} -> {}", pod.name, self.cluster.node_name(node)),
            Ok(Decision::Unschedulable(refused)) => {
                format!("{}: {}", pod.name, self.cluster.message(&refused))
            }
        }
    }

    /// `bind web*3` binds web-0, web-1 and web-2.
    fn bind(&mut self, words: &Words<'_>) -> String {
        let mut said = String::new();
        for pod in pods(words) {
            let decision = self.schedule(&pod);
            if let Some((_, node)) = decision.split_once(" -> ") {
                self.cluster
                    .bind(&pod, node)
                    .expect("it was just scheduled");
            }
            said += &decision;
            said.push('\n');
        }
        said
    }

    /// `prefixes TYPE=N TYPE=N`: the addresses that nodes of the types have with prefix delegation.
    fn prefixes(&mut self, rest: &str) -> String {
        let all = rest.split_whitespace().map(|word| {
            let (kind, count) = word.split_once('=').expect("TYPE=N");
            (kind.to_owned(), count.parse().expect("a number"))
        });
        self.prefixes = all.collect();
        String::new()
    }

    fn why(&mut self, pod: &PodSpec) -> String {
        let class = self.cluster.pod_class(&pod.template).expect("a valid pod");
        let mut said = String::new();
        for node in self.cluster.answer(class).nodes {
            let name = self.cluster.node_name(node.node);
            let what = match node.outcome {
                Outcome::Fits { total, .. } => format!("fits, score {total}"),
                Outcome::Refused(refusal) => {
                    let details: Vec<_> = refusal
                        .reasons()
                        .map(|reason| self.cluster.reason_detail(reason))
                        .collect();
                    format!("{}: {}", refusal.plugin.name(), details.join("; "))
                }
            };
            let _ = writeln!(said, "{name}  {what}");
        }
        said
    }

    fn fix(&mut self, pod: &PodSpec) -> String {
        let facts = Facts {
            images: &self.images,
            prefixes: &self.prefixes,
            recorded: None,
        };
        let remedies = self
            .cluster
            .remedies(pod, &self.pools, facts, 3)
            .expect("valid amounts");
        if remedies.is_empty() {
            return "nothing to change\n".to_owned();
        }
        let mut out = String::new();
        for remedy in remedies {
            let changes: Vec<_> = remedy.changes.iter().map(ToString::to_string).collect();
            let place = match &remedy.place {
                ChangedPlace::Node(node) => self.cluster.node_name(*node).to_owned(),
                ChangedPlace::Bought {
                    pool,
                    instance_type,
                    price_micro_usd,
                    addresses,
                } => {
                    let addresses =
                        addresses.map(|count| format!(" with addresses for {count} pods"));
                    let addresses = addresses.unwrap_or_default();
                    format!("{pool} buys {instance_type} at {price_micro_usd}{addresses}")
                }
            };
            writeln!(out, "{} -> {place}", changes.join(", and ")).expect("a string takes it");
        }
        out
    }

    fn score(&mut self, pod: &PodSpec) -> String {
        let class = self.cluster.pod_class(&pod.template).expect("a valid pod");
        let mut said = String::new();
        for node in self.cluster.answer(class).nodes {
            if let Outcome::Fits { scores, total } = node.outcome {
                let scores: Vec<_> = scores
                    .iter()
                    .filter(|(_, score)| *score != 0)
                    .map(|(plugin, score)| format!("{} {score}", plugin.name()))
                    .collect();
                let _ = writeln!(
                    said,
                    "{}  {total} = {}",
                    self.cluster.node_name(node.node),
                    scores.join(" + ")
                );
            }
        }
        said
    }

    fn preempt(&mut self, pod: &PodSpec) -> String {
        let class = self.cluster.pod_class(&pod.template).expect("a valid pod");
        match self.cluster.schedule(class, 0) {
            Decision::Node(node) => format!("{} -> {}", pod.name, self.cluster.node_name(node)),
            Decision::Unschedulable(refused) => {
                match self.cluster.preempt(class, &pod.key(), &refused, 0) {
                    Preemption::Evict { chosen, .. } => {
                        let leaving = chosen.leaving.iter();
                        let leaving = leaving.map(|pod| format!("{pod} (leaving)"));
                        let pods: Vec<_> = chosen.victims.iter().cloned().chain(leaving).collect();
                        let node = self.cluster.node_name(chosen.node);
                        format!("evict {} from {node}", pods.join(", "))
                    }
                    other => self.cluster.message_with_preemption(&refused, &other),
                }
            }
        }
    }

    /// `type c6a.large os=windows cpu=2 ... price=169000 zones=a,b`; `soldout=a` makes a zone unavailable, `spot=70000` sells it as spot too.
    fn instance_type(&mut self, words: &Words<'_>) -> String {
        let mut kind = InstanceType {
            name: words.name.to_owned(),
            ..InstanceType::default()
        };
        kind.allocatable = words::resources(words);
        kind.allocatable
            .entry("pods".to_owned())
            .or_insert(words::quantity("110"));
        kind.capacity = kind.allocatable.clone();
        let labels = words.attributes.iter().filter(|(key, _)| *key != "zone");
        kind.labels = labels
            .filter_map(|(key, value)| Some((words::label_key(key)?, (*value).to_owned())))
            .collect();
        let price_micro_usd = words
            .value("price")
            .expect("a price")
            .parse()
            .expect("micro-dollars");
        for zone in words.value("zones").unwrap_or("a").split(',') {
            let available = !words
                .value("soldout")
                .unwrap_or_default()
                .split(',')
                .any(|sold| sold == zone);
            let spot = words.value("spot").map(|price| ("spot", price.parse()));
            let sold = [("on-demand", Ok(price_micro_usd))].into_iter().chain(spot);
            for (capacity_type, price) in sold {
                kind.offerings.push(Offering {
                    zone: zone.to_owned(),
                    capacity_type: capacity_type.to_owned(),
                    price_micro_usd: price.expect("micro-dollars"),
                    available,
                    labels: StringMap::new(),
                    reservation: None,
                });
            }
        }
        self.types.insert(kind.name.clone(), Arc::new(kind));
        String::new()
    }

    /// `pool NAME weight=1 taint=... label.K=V limit.cpu=16 require.KEY=a,b require.KEY/NotIn=c daemons.cpu=100m`, with all types known.
    fn pool(&mut self, words: &Words<'_>) -> String {
        let mut pool = NodeTemplate {
            pool: words.name.to_owned(),
            ..NodeTemplate::default()
        };
        pool.instance_types = self.types.values().cloned().collect();
        for (key, value) in &words.attributes {
            if let Some(resource) = key.strip_prefix("limit.") {
                pool.limits_remaining
                    .insert(resource.to_owned(), words::quantity(value));
            } else if let Some(resource) = key.strip_prefix("daemons.") {
                let daemon = words::daemon(resource, words::quantity(value));
                pool.daemons.push(daemon);
            } else if let Some(key) = key.strip_prefix("require.") {
                let (key, operator) = match key.split_once('/') {
                    Some((key, "NotIn")) => (key, Operator::NotIn),
                    Some((key, "Lt")) => (key, Operator::Lt),
                    _ => (key, Operator::In),
                };
                let key = words::label_key(key).unwrap_or_else(|| key.to_owned());
                let values = value.split(',').map(str::to_owned).collect();
                pool.requirements.push(Requirement {
                    key,
                    operator,
                    values,
                    ..Requirement::default()
                });
            } else if let Some(key) = words::label_key(key) {
                pool.labels.insert(key, (*value).to_owned());
            } else {
                match *key {
                    "weight" => pool.weight = value.parse().expect("a weight"),
                    "taint" => pool.taints.push(words::taint(value)),
                    "startup" => pool.startup_taints.push(words::taint(value)),
                    other => panic!("unknown word {other}"),
                }
            }
        }
        self.pools.retain(|known| known.pool != pool.pool);
        self.pools.push(pool);
        String::new()
    }

    /// `plan web*3 ATTRIBUTES; api*2 ATTRIBUTES`.
    fn plan(&mut self, rest: &str) -> String {
        let pods: Vec<_> = rest
            .split(';')
            .flat_map(|part| pods(&Words::read(part)))
            .collect();
        let request = PlanRequest {
            pods: pods.clone(),
            templates: self.pools.clone(),
            ..PlanRequest::default()
        };
        match self.cluster.plan(&request) {
            Ok(plan) => self.describe(&pods, &plan),
            Err(error) => format!("refused: {error}"),
        }
    }

    fn describe(&mut self, pods: &[PodSpec], plan: &Plan) -> String {
        let mut said = String::new();
        for (pod, node) in &plan.existing {
            let _ = writeln!(said, "{pod} -> {node}");
        }
        for node in &plan.nodes {
            let types: Vec<_> = node
                .options
                .iter()
                .map(|option| option.name.as_str())
                .collect();
            let zones = node
                .requirements
                .iter()
                .find(|requirement| requirement.key == label::ZONE);
            let zones = zones
                .map(|zones| zones.values.join(","))
                .unwrap_or_default();
            let price = node.options[0].price_micro_usd;
            let _ = writeln!(
                said,
                "buy for {}: {} in zone {zones}, {price} micro-USD/h",
                node.pool,
                types.join(", ")
            );
            let requests: Vec<_> = node
                .requests
                .iter()
                .map(|(name, amount)| format!("{name}={amount}"))
                .collect();
            let _ = writeln!(said, "  {} pods: {}", node.pods.len(), requests.join(" "));
        }
        for pod in &plan.unplaceable {
            let _ = writeln!(said, "{} cannot be placed", pod.pod);
            for refusal in pod.pools.iter() {
                let asked = pods.iter().find(|own| own.key() == pod.pod);
                let pool = self.pools.iter().find(|own| own.pool == refusal.pool);
                let (asked, pool) = asked.zip(pool).expect("what was asked about");
                let template = &asked.template;
                let words = self.cluster.pool_refusal(template, pool, &refusal.reason);
                let _ = writeln!(
                    said,
                    "  {}: {}",
                    refusal.pool,
                    words.expect("valid amounts")
                );
            }
        }
        said
    }

    fn without(&mut self, node: &str) -> String {
        match self.cluster.without_node(node, 0).expect("a known node") {
            Removal::Empty => format!("{node} is empty"),
            Removal::Movable(moves) => {
                let moves: Vec<_> = moves
                    .iter()
                    .map(|(pod, node)| format!("{pod} -> {node}"))
                    .collect();
                format!("{node} can go: {}", moves.join(", "))
            }
            Removal::Stuck(stuck) => {
                let stuck: Vec<_> = stuck.iter().map(|(pod, _)| pod.as_str()).collect();
                format!("{node} must stay for {}", stuck.join(", "))
            }
        }
    }
}

/// `web*3` is web-0, web-1 and web-2; `web` is itself.
fn pods(words: &Words<'_>) -> Vec<PodSpec> {
    let pod = words::pod(words);
    match words.name.split_once('*') {
        None => vec![pod],
        Some((name, count)) => {
            let count: usize = count.parse().expect("a count");
            (0..count)
                .map(|index| PodSpec {
                    name: format!("{name}-{index}"),
                    ..pod.clone()
                })
                .collect()
        }
    }
}
