//! Nodes and pod templates of the scenarios.

use super::Scenario;
use crate::cluster::Cluster;
use crate::model::{
    Container, CsiNodeSpec, LabelSelector, NodeAffinity, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, NodeSpec, Operator, PersistentVolumeClaimSpec, PersistentVolumeSpec,
    PodAffinity, PodAffinityTerm, PodTemplate, PodVolume, Quantity, Resources, ServiceSpec, Taint,
    TaintEffect, Toleration, TolerationOperator, TopologySpreadConstraint, VolumeSource,
    WeightedPodAffinityTerm, label,
};

/// The number of namespaces in the scenario that selects pods by namespace.
pub(super) const NAMESPACES: usize = 100;
/// The maximum number of pods on a node.
pub(super) const POD_SLOTS: usize = 110;
const APPS: usize = 40;
const APPS_OF_LARGE: usize = 200;
const WEIGHT: i32 = 10;

/// Returns a node with 32 cpu, 128Gi and 110 pod slots in one of three zones.
pub(super) fn node(index: usize, mixed: bool) -> NodeSpec {
    let windows = mixed && index % 10 < 3;
    let mut node = NodeSpec::named(format!("node-{index}"));
    let os = if windows { "windows" } else { "linux" };
    let zone = format!("zone-{}", index % 3);
    let labels = [
        (label::HOSTNAME, node.name.as_str()),
        (label::OS, os),
        (label::ZONE, &zone),
    ];
    node.labels = labels
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    if windows {
        node.taints.push(Taint {
            key: "os".into(),
            value: "windows".into(),
            effect: TaintEffect::NoSchedule,
        });
    }
    node.allocatable = [
        ("cpu".to_owned(), Quantity::from_units(32)),
        ("memory".to_owned(), Quantity::from_units(128 << 30)),
        ("pods".to_owned(), Quantity::from_units(POD_SLOTS as i64)),
    ]
    .into();
    node
}

pub(super) fn namespace(index: usize) -> String {
    format!("team-{index}")
}

/// Returns the service that selects a template's app group.
pub(super) fn service(template: &PodTemplate) -> ServiceSpec {
    ServiceSpec {
        namespace: template.namespace.clone(),
        name: template.labels["app"].clone(),
        selector: template.labels.clone(),
    }
}

/// Returns the templates of a scenario; pod i has template i modulo their number.
pub(super) fn templates(scenario: Scenario) -> Vec<PodTemplate> {
    let count = match scenario {
        Scenario::Large | Scenario::Requests => APPS_OF_LARGE,
        // One template for each combination of a group and a namespace that occurs.
        Scenario::NamespaceAntiAffinity => APPS * NAMESPACES / 20,
        Scenario::Mixed => 2 * APPS,
        _ => APPS,
    };
    let apps = match scenario {
        Scenario::Large | Scenario::Requests => APPS_OF_LARGE,
        _ => APPS,
    };
    (0..count)
        .map(|index| template(scenario, index, &format!("app-{}", index % apps)))
        .collect()
}

/// Returns one template per pod for scenarios whose pods cannot share templates; empty for the others.
pub(super) fn own_templates(scenario: Scenario, nodes: usize, pods: usize) -> Vec<PodTemplate> {
    let template = |index: usize| {
        let mut template = plain("default", &format!("app-{}", index % APPS));
        if scenario == Scenario::Volumes {
            let claim = claim(index);
            template.volumes = vec![PodVolume::Claim { claim }];
            return template;
        }
        let name = NodeSelectorRequirement {
            key: "metadata.name".into(),
            operator: Operator::In,
            values: vec![format!("node-{}", index % nodes)],
        };
        let term = NodeSelectorTerm {
            match_fields: vec![name],
            ..NodeSelectorTerm::default()
        };
        template.affinity.node_affinity = Some(NodeAffinity {
            required: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..NodeAffinity::default()
        });
        template
    };
    match scenario {
        Scenario::Volumes | Scenario::Daemons => (0..pods).map(template).collect(),
        _ => Vec::new(),
    }
}

fn claim(index: usize) -> String {
    format!("data-{index}")
}

/// Adds a bound claim for each pod, whose volume is reachable from one of the zones. The attach limit of a node equals
/// its pod slots.
pub(super) fn store(cluster: &mut Cluster, nodes: usize, pods: usize) {
    const DRIVER: &str = "ebs.csi.aws.com";
    for index in 0..nodes {
        cluster.set_csi_node(&CsiNodeSpec {
            name: format!("node-{index}"),
            limits: vec![(DRIVER.into(), POD_SLOTS as i64)],
            migrated_plugins: Vec::new(),
        });
    }
    for index in 0..pods {
        let demand = NodeSelectorRequirement {
            key: label::ZONE.into(),
            operator: Operator::In,
            values: vec![format!("zone-{}", index % 3)],
        };
        let term = NodeSelectorTerm {
            match_expressions: vec![demand],
            ..NodeSelectorTerm::default()
        };
        cluster.set_volume(&PersistentVolumeSpec {
            name: claim(index),
            node_affinity: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            source: Some(VolumeSource::Csi {
                driver: DRIVER.into(),
                handle: claim(index),
            }),
            ..PersistentVolumeSpec::default()
        });
        cluster.set_claim(&PersistentVolumeClaimSpec {
            namespace: "default".into(),
            name: claim(index),
            volume: claim(index),
            bind_completed: true,
            ..PersistentVolumeClaimSpec::default()
        });
    }
}

fn template(scenario: Scenario, index: usize, app: &str) -> PodTemplate {
    let mut template = plain("default", app);
    match scenario {
        Scenario::Requests => {
            let requests = &mut template.containers[0].resources.requests;
            requests.insert("cpu".into(), Quantity::from_milli(100 + index as i64));
            let memory = Quantity::from_units((128 + index as i64) << 20);
            requests.insert("memory".into(), memory);
        }
        Scenario::Mixed if index % 2 == 1 => {
            template.node_selector = [(label::OS.to_owned(), "windows".to_owned())].into();
            template.tolerations.push(Toleration {
                key: "os".into(),
                operator: TolerationOperator::Equal,
                value: "windows".into(),
                effect: Some(TaintEffect::NoSchedule),
                toleration_seconds: None,
            });
        }
        Scenario::ZoneSpread => {
            template
                .topology_spread_constraints
                .push(TopologySpreadConstraint {
                    max_skew: 1,
                    topology_key: label::ZONE.into(),
                    label_selector: Some(selector("app", app)),
                    ..TopologySpreadConstraint::default()
                })
        }
        Scenario::Affinity => {
            template.affinity.pod_affinity = Some(required(term(label::ZONE, app)));
        }
        Scenario::AntiAffinity => {
            template.affinity.pod_anti_affinity = Some(required(term(label::HOSTNAME, app)));
        }
        Scenario::NamespaceAntiAffinity => {
            template.namespace = namespace(index % NAMESPACES);
            let mut term = term(label::HOSTNAME, app);
            term.namespace_selector = Some(selector("team", "devops"));
            template.affinity.pod_anti_affinity = Some(required(term));
        }
        Scenario::Preferred => {
            template.affinity.pod_affinity = Some(preferred(term(label::ZONE, app)));
            template.affinity.pod_anti_affinity = Some(preferred(term(label::HOSTNAME, app)));
        }
        Scenario::Preemption => template.priority = 1000,
        _ => {}
    }
    template
}

/// Returns a pod that requests more than any node has.
pub(super) fn misfit() -> PodTemplate {
    let mut template = plain("default", "misfit");
    template.containers[0]
        .resources
        .requests
        .insert("cpu".into(), Quantity::from_units(64));
    template
}

/// Returns a pod of low priority.
pub(super) fn filler() -> PodTemplate {
    plain("default", "filler")
}

fn plain(namespace: &str, app: &str) -> PodTemplate {
    let requests = [
        ("cpu".to_owned(), Quantity::from_milli(100)),
        ("memory".to_owned(), Quantity::from_units(128 << 20)),
    ];
    PodTemplate {
        namespace: namespace.to_owned(),
        labels: [("app".to_owned(), app.to_owned())].into(),
        containers: vec![Container {
            image: "registry.k8s.io/pause:3.10".into(),
            resources: Resources {
                requests: requests.into(),
                ..Resources::default()
            },
            ..Container::default()
        }],
        ..PodTemplate::default()
    }
}

fn selector(key: &str, value: &str) -> LabelSelector {
    LabelSelector {
        match_labels: [(key.to_owned(), value.to_owned())].into(),
        ..LabelSelector::default()
    }
}

fn term(key: &str, app: &str) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: Some(selector("app", app)),
        topology_key: key.to_owned(),
        ..PodAffinityTerm::default()
    }
}

fn required(term: PodAffinityTerm) -> PodAffinity {
    PodAffinity {
        required: vec![term],
        ..PodAffinity::default()
    }
}

fn preferred(term: PodAffinityTerm) -> PodAffinity {
    let term = WeightedPodAffinityTerm {
        weight: WEIGHT,
        pod_affinity_term: term,
    };
    PodAffinity {
        preferred: vec![term],
        ..PodAffinity::default()
    }
}
