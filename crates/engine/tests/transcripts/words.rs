//! The words of the transcripts, read into the engine's model.
//!
//! An object is a name and attributes `key=value`. Resources are `cpu=2`, `memory=4Gi`, `pods=110` and any name with a
//! slash; `ips=9` stands for the Windows addresses. Labels: `os=`, `zone=`, `build=` for nodes, `label.KEY=VALUE` for
//! all. For pods: `select.KEY=VALUE`, `tolerate=KEY=VALUE:EFFECT` or `tolerate=*`, `priority=`, `osname=`, `image=`, `port=`,
//! `affine=KEY/OPERATOR/VALUES`, `spread=KEY:SKEW`, `prefer-spread=KEY:SKEW`, `near=KEY`, `away=KEY` (the last three about pods with the pod's own labels), `owner=KIND/NAME`,
//! `namespace=`. `zone` and `host` stand for their topology keys.

use mullion_engine::model::{
    Affinity, Container, ContainerPort, LabelSelector, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, NodeSpec, Operator, OwnerRef, PodAffinity, PodAffinityTerm, PodSpec,
    PodTemplate, PreferredSchedulingTerm, Quantity, ResourceMap, Taint, TaintEffect, Toleration,
    TolerationOperator, TopologySpreadConstraint, WhenUnsatisfiable, label,
};

use mullion_engine::Profile;
use mullion_engine::profile::{DefaultSpread, ScoringStrategy};

use crate::storage::pod_volume;

const ADDRESS: &str = "vpc.amazonaws.com/PrivateIPv4Address";

/// A name and its attributes.
pub(crate) struct Words<'a> {
    pub(crate) name: &'a str,
    pub(crate) attributes: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    pub(crate) fn read(words: &'a str) -> Self {
        let mut words = words.split_whitespace();
        let name = words.next().expect("a name");
        let attributes = words
            .map(|word| word.split_once('=').unwrap_or((word, "")))
            .collect();
        Words { name, attributes }
    }

    pub(crate) fn value(&self, key: &str) -> Option<&'a str> {
        self.attributes
            .iter()
            .find(|attribute| attribute.0 == key)
            .map(|attribute| attribute.1)
    }
}

/// The resource that a key names, if it names one.
pub(crate) fn resource(key: &str) -> Option<String> {
    match key {
        "cpu" | "memory" | "pods" | "ephemeral-storage" => Some(key.to_owned()),
        "ips" => Some(ADDRESS.to_owned()),
        "pages" => Some("hugepages-2Mi".to_owned()),
        key if key.contains('/') && !key.contains("label.") && !key.contains("select.") => {
            Some(key.to_owned())
        }
        _ => None,
    }
}

pub(crate) fn resources(words: &Words<'_>) -> ResourceMap {
    let amounts = words
        .attributes
        .iter()
        .filter_map(|(key, value)| Some((resource(key)?, quantity(value))));
    amounts.collect()
}

pub(crate) fn quantity(text: &str) -> Quantity {
    text.parse().expect("a quantity")
}

/// The label that a key names, if it names one.
pub(crate) fn label_key(key: &str) -> Option<String> {
    let known = match key {
        "os" => label::OS,
        "zone" => label::ZONE,
        "build" => label::WINDOWS_BUILD,
        "arch" => label::ARCH,
        "type" => label::INSTANCE_TYPE,
        "capacity" => label::CAPACITY_TYPE,
        "family" => "karpenter.k8s.aws/instance-family",
        key => key.strip_prefix("label.")?,
    };
    Some(known.to_owned())
}

pub(crate) fn topology_key(key: &str) -> String {
    match key {
        "zone" => label::ZONE,
        "host" => label::HOSTNAME,
        key => key,
    }
    .to_owned()
}

pub(crate) fn taint(text: &str) -> Taint {
    let (pair, effect) = text.rsplit_once(':').expect("key=value:effect");
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: self::effect(effect),
    }
}

fn effect(text: &str) -> TaintEffect {
    match text {
        "NoSchedule" => TaintEffect::NoSchedule,
        "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
        "NoExecute" => TaintEffect::NoExecute,
        other => panic!("{other} is not an effect"),
    }
}

fn toleration(text: &str) -> Toleration {
    if text == "*" {
        return Toleration {
            operator: TolerationOperator::Exists,
            ..Toleration::default()
        };
    }
    let Taint { key, value, effect } = taint(text);
    Toleration {
        key,
        value,
        effect: Some(effect),
        ..Toleration::default()
    }
}

/// A node; `pods=110` unless said otherwise.
pub(crate) fn node(words: &Words<'_>) -> NodeSpec {
    let mut node = NodeSpec::named(words.name);
    node.allocatable = resources(words);
    node.allocatable
        .entry("pods".to_owned())
        .or_insert(Quantity::from_units(110));
    node.labels
        .insert(label::HOSTNAME.to_owned(), words.name.to_owned());
    for (key, value) in &words.attributes {
        match (*key, label_key(key)) {
            ("taint", _) => node.taints.push(taint(value)),
            ("cordoned", _) => node.unschedulable = true,
            (_, Some(label)) => drop(node.labels.insert(label, (*value).to_owned())),
            _ => assert!(resource(key).is_some(), "unknown word {key}"),
        }
    }
    node
}

/// The pod of a DaemonSet that requests one resource and runs on nodes with any taints.
pub(crate) fn daemon(resource: &str, amount: Quantity) -> PodTemplate {
    let mut container = Container::default();
    container
        .resources
        .requests
        .insert(resource.to_owned(), amount);
    PodTemplate {
        containers: vec![container],
        tolerations: vec![Toleration {
            operator: TolerationOperator::Exists,
            ..Toleration::default()
        }],
        ..PodTemplate::default()
    }
}

/// A pod of one container in the namespace `default`.
pub(crate) fn pod(words: &Words<'_>) -> PodSpec {
    let mut pod = PodSpec {
        name: words.name.to_owned(),
        ..PodSpec::default()
    };
    let template = &mut pod.template;
    template.namespace = words.value("namespace").unwrap_or("default").to_owned();
    let mut container = Container::default();
    container.resources.requests = resources(words);
    for (key, value) in &words.attributes {
        if let Some(label) = key.strip_prefix("label.") {
            template
                .labels
                .insert(label.to_owned(), (*value).to_owned());
        } else if let Some(key) = key.strip_prefix("select.") {
            let key = label_key(key).unwrap_or_else(|| key.to_owned());
            template.node_selector.insert(key, (*value).to_owned());
        }
    }
    let own = LabelSelector {
        match_labels: template.labels.clone(),
        ..LabelSelector::default()
    };
    let term = |key: &str| PodAffinityTerm {
        label_selector: Some(own.clone()),
        topology_key: topology_key(key),
        ..PodAffinityTerm::default()
    };
    for (key, value) in &words.attributes {
        match *key {
            "node" => pod.node_name = Some((*value).to_owned()),
            "terminating" => pod.terminating = true,
            "tolerate" => template.tolerations.push(toleration(value)),
            "priority" => template.priority = value.parse().expect("a priority"),
            "image" => container.image = (*value).to_owned(),
            "osname" => template.os = Some((*value).to_owned()),
            "port" => container.ports.push(port(value)),
            "spread" => template
                .topology_spread_constraints
                .push(spread(value, &own)),
            "prefer-spread" => {
                let when_unsatisfiable = WhenUnsatisfiable::ScheduleAnyway;
                let preferred = TopologySpreadConstraint {
                    when_unsatisfiable,
                    ..spread(value, &own)
                };
                template.topology_spread_constraints.push(preferred);
            }
            "prefer" => prefer(&mut template.affinity, value),
            "affine" => affine(&mut template.affinity, value),
            "near" => required(&mut template.affinity.pod_affinity, term(value)),
            "away" => required(&mut template.affinity.pod_anti_affinity, term(value)),
            "owner" => {
                let (kind, name) = value.split_once('/').expect("kind/name");
                template.owner = Some(OwnerRef {
                    kind: kind.to_owned(),
                    name: name.to_owned(),
                });
            }
            "namespace" => {}
            "scheduler" => template.scheduler_name = (*value).to_owned(),
            key if key.starts_with("label.") || key.starts_with("select.") => {}
            key => match pod_volume(words.name, key, value) {
                Some(volume) => template.volumes.push(volume),
                None => assert!(resource(key).is_some(), "unknown word {key}"),
            },
        }
    }
    template.containers.push(container);
    pod
}

/// The default profile under another name, changed.
pub(crate) fn profile(words: &Words<'_>) -> Profile {
    let mut profile = Profile {
        scheduler_name: words.name.to_owned(),
        ..Profile::default()
    };
    let plugin = |name: &str| {
        let scores = Profile::SCORES.iter().map(|(plugin, _)| *plugin);
        let mut known = Profile::FILTERS
            .into_iter()
            .chain(scores)
            .chain(Profile::POST_FILTERS);
        let found = known.find(|plugin| plugin.name() == name);
        found.unwrap_or_else(|| panic!("{name} is no plugin"))
    };
    for (key, value) in &words.attributes {
        if let Some(name) = key.strip_prefix("weight.") {
            let weight = value.parse().expect("a weight");
            profile.scores.insert(plugin(name), weight);
        } else if let Some(key) = key.strip_prefix("add.") {
            let requirement = NodeSelectorRequirement {
                key: label_key(key).unwrap_or_else(|| key.to_owned()),
                operator: Operator::In,
                values: vec![(*value).to_owned()],
            };
            profile.added_affinity.required = Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_expressions: vec![requirement],
                    ..NodeSelectorTerm::default()
                }],
            });
        } else {
            match *key {
                "strategy" => profile.fit.strategy = strategy(value),
                "off" => {
                    let plugin = plugin(value);
                    for list in [
                        &mut profile.pre_filters,
                        &mut profile.filters,
                        &mut profile.post_filters,
                    ] {
                        list.retain(|own| *own != plugin);
                    }
                    profile.scores.remove(&plugin);
                }
                "ignore" => drop(profile.fit.ignored_resources.insert((*value).to_owned())),
                "spread" => {
                    let constraint = spread(value, &LabelSelector::default());
                    profile.default_spread = DefaultSpread::List(vec![constraint]);
                }
                other => panic!("unknown word {other}"),
            }
        }
    }
    profile
}

/// `LeastAllocated`, `MostAllocated`, or a curve: `0:0,50:10,100:0`.
fn strategy(text: &str) -> ScoringStrategy {
    match text {
        "LeastAllocated" => ScoringStrategy::LeastAllocated,
        "MostAllocated" => ScoringStrategy::MostAllocated,
        curve => {
            let points = curve.split(',').map(|point| {
                let (at, score) = point.split_once(':').expect("utilization:score");
                let number = |text: &str| text.parse().expect("a number");
                (number(at), number(score))
            });
            ScoringStrategy::RequestedToCapacityRatio(points.collect())
        }
    }
}

fn port(text: &str) -> ContainerPort {
    ContainerPort {
        host_port: text.parse().expect("a port"),
        ..ContainerPort::default()
    }
}

/// Required node affinity: demands `KEY/OPERATOR/VALUE,VALUE` with `;` between them, terms with `|` between them.
fn affine(affinity: &mut Affinity, text: &str) {
    let demand = |text: &str| {
        let mut parts = text.splitn(3, '/');
        let (key, operator) = (parts.next().expect("KEY"), parts.next().expect("OPERATOR"));
        let values = parts
            .next()
            .into_iter()
            .flat_map(|values| values.split(','));
        NodeSelectorRequirement {
            key: label_key(key).unwrap_or_else(|| key.to_owned()),
            operator: match operator {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "Gt" => Operator::Gt,
                other => panic!("unknown operator {other}"),
            },
            values: values.map(str::to_owned).collect(),
        }
    };
    let term = |text: &str| NodeSelectorTerm {
        match_expressions: text.split(';').map(demand).collect(),
        ..NodeSelectorTerm::default()
    };
    affinity.node_affinity.get_or_insert_default().required = Some(NodeSelector {
        node_selector_terms: text.split('|').map(term).collect(),
    });
}

/// `KEY/OPERATOR/VALUE`, with the weight 1.
fn prefer(affinity: &mut Affinity, text: &str) {
    let (key, rest) = text.split_once('/').expect("KEY/OPERATOR/VALUE");
    let (operator, value) = rest.split_once('/').expect("KEY/OPERATOR/VALUE");
    let requirement = NodeSelectorRequirement {
        key: label_key(key).unwrap_or_else(|| key.to_owned()),
        operator: match operator {
            "Gt" => Operator::Gt,
            _ => Operator::In,
        },
        values: vec![value.to_owned()],
    };
    let preference = NodeSelectorTerm {
        match_expressions: vec![requirement],
        ..NodeSelectorTerm::default()
    };
    let term = PreferredSchedulingTerm {
        weight: 1,
        preference,
    };
    affinity
        .node_affinity
        .get_or_insert_default()
        .preferred
        .push(term);
}

fn required(affinity: &mut Option<PodAffinity>, term: PodAffinityTerm) {
    affinity.get_or_insert_default().required.push(term);
}

fn spread(text: &str, own: &LabelSelector) -> TopologySpreadConstraint {
    let (key, skew) = text.rsplit_once(':').expect("key:skew");
    TopologySpreadConstraint {
        max_skew: skew.parse().expect("a skew"),
        topology_key: topology_key(key),
        label_selector: Some(own.clone()),
        ..TopologySpreadConstraint::default()
    }
}
