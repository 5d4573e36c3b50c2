use k8s_openapi::api::{
    core::v1::{NodeCondition, NodeStatus},
    discovery::v1::{EndpointConditions, EndpointPort},
};
use serde_json::json;

use super::*;
use crate::service::{
    backend::tests::service,
    slices::plan::{self, EndpointsByPorts, port_key},
};

/// Returns endpoint `number` in `zone`, on its own node.
fn endpoint(number: usize, zone: &str, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![format!("10.0.{}.{}", number / 250, number % 250)],
        node_name: Some(format!("node-{number}")),
        zone: (!zone.is_empty()).then(|| zone.to_owned()),
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        ..Endpoint::default()
    }
}

/// Returns ready endpoints, in each zone the given number.
fn spread(counts: &[(&str, usize)]) -> Vec<Endpoint> {
    let zones = counts
        .iter()
        .flat_map(|(zone, count)| std::iter::repeat_n(*zone, *count));
    zones
        .enumerate()
        .map(|(number, zone)| endpoint(number, zone, true))
        .collect()
}

fn node(zone: &str, cpu: &str) -> Arc<Node> {
    let mut node = Node::default();
    node.labels_mut()
        .insert("topology.kubernetes.io/zone".to_owned(), zone.to_owned());
    let ready = NodeCondition {
        type_: "Ready".to_owned(),
        status: "True".to_owned(),
        ..NodeCondition::default()
    };
    let allocatable = serde_json::from_value(json!({"cpu": cpu})).expect("a map of quantities");
    node.status = Some(NodeStatus {
        conditions: Some(vec![ready]),
        allocatable: Some(allocatable),
        ..NodeStatus::default()
    });
    Arc::new(node)
}

/// The slices of a Service over several syncs.
struct Life {
    topology: Topology,
    service: Service,
    nodes: Vec<Arc<Node>>,
    slices: Vec<Arc<EndpointSlice>>,
}

impl Life {
    fn new(annotation: Option<&str>, distribution: Option<&str>) -> Self {
        let mut service = service(vec![]);
        if let Some(value) = annotation {
            service
                .annotations_mut()
                .insert(ANNOTATIONS[1].to_owned(), value.to_owned());
        }
        service
            .spec
            .as_mut()
            .expect("set by service")
            .traffic_distribution = distribution.map(str::to_owned);
        Self {
            topology: Topology::default(),
            service,
            nodes: vec![node("a", "4"), node("b", "4")],
            slices: Vec::new(),
        }
    }

    /// Runs one sync. Returns how many slices were written, and the reason and message of the event.
    fn sync(&mut self, targets: Vec<Endpoint>) -> (usize, Option<(&'static str, String)>) {
        let ports = vec![EndpointPort {
            port: Some(80),
            ..EndpointPort::default()
        }];
        let wanted: EndpointsByPorts = [(port_key(&ports), (ports, targets))].into();
        let mut plan = plan::plan(&self.service, &self.slices, wanted, "IPv4");
        let nodes = || self.nodes.clone();
        let notice = apply(
            &self.topology,
            &self.service,
            &self.slices,
            &mut plan,
            "IPv4",
            nodes,
        );
        let writes = plan.create.len() + plan.update.len();
        self.slices = plan::tests::carry_out(std::mem::take(&mut self.slices), plan);
        (writes, notice.map(|(_, reason, message)| (reason, message)))
    }

    /// Returns the number of ready endpoints by the zones and nodes in their hints.
    fn hints(&self) -> std::collections::BTreeMap<(String, String), usize> {
        let mut counts = std::collections::BTreeMap::new();
        for endpoint in self.slices.iter().flat_map(|slice| endpoints(slice)) {
            let hints = endpoint.hints.clone().unwrap_or_default();
            let zones = hints
                .for_zones
                .iter()
                .flatten()
                .map(|zone| zone.name.as_str());
            let nodes = hints
                .for_nodes
                .iter()
                .flatten()
                .map(|node| node.name.as_str());
            let key = (
                zones.collect::<Vec<_>>().join(","),
                nodes.collect::<Vec<_>>().join(","),
            );
            *counts.entry(key).or_default() += 1;
        }
        counts
    }

    fn zones(&self) -> Vec<(String, usize)> {
        self.hints()
            .into_iter()
            .map(|((zone, _), count)| (zone, count))
            .collect()
    }
}

fn zones(counts: &[(&str, usize)]) -> Vec<(String, usize)> {
    counts
        .iter()
        .map(|(zone, count)| ((*zone).to_owned(), *count))
        .collect()
}

#[test]
fn close_traffic_gives_each_ready_endpoint_its_own_zone() {
    for distribution in ["PreferClose", "PreferSameZone"] {
        let mut life = Life::new(None, Some(distribution));
        let mut targets = spread(&[("a", 2), ("b", 1)]);
        targets.push(endpoint(9, "b", false));
        assert_eq!(life.sync(targets.clone()), (1, None));
        assert_eq!(life.zones(), zones(&[("", 1), ("a", 2), ("b", 1)]));
        assert_eq!(
            life.sync(targets),
            (0, None),
            "right hints are not written again"
        );
    }
}

#[test]
fn same_node_traffic_names_the_node_too() {
    let mut life = Life::new(None, Some("PreferSameNode"));
    life.sync(vec![endpoint(1, "a", true), endpoint(2, "", true)]);
    let expected = [("", "node-2"), ("a", "node-1")]
        .map(|(zone, node)| ((zone.to_owned(), node.to_owned()), 1));
    assert_eq!(life.hints(), expected.into());
}

#[test]
fn hints_go_when_nothing_asks_for_them_any_more() {
    let mut life = Life::new(None, Some("PreferClose"));
    life.sync(spread(&[("a", 1)]));
    life.service
        .spec
        .as_mut()
        .expect("set by service")
        .traffic_distribution = None;
    assert_eq!(life.sync(spread(&[("a", 1)])), (1, None));
    assert_eq!(life.zones(), zones(&[("", 1)]));
}

#[test]
fn a_zone_with_more_than_its_share_lends_to_one_with_less() {
    let mut life = Life::new(Some("Auto"), None);
    let enabled = "Topology Aware Hints has been enabled, addressType: IPv4".to_owned();
    let told = life.sync(spread(&[("a", 7), ("b", 3)])).1;
    assert_eq!(told, Some(("TopologyAwareHintsEnabled", enabled)));
    assert_eq!(life.zones(), zones(&[("a", 5), ("b", 5)]));
    assert_eq!(life.sync(spread(&[("a", 7), ("b", 3)])), (0, None));
}

#[test]
fn shares_follow_the_cpus_of_the_zones() {
    let mut life = Life::new(Some("auto"), None);
    life.nodes.push(node("a", "4"));
    life.sync(spread(&[("a", 3), ("b", 6)]));
    assert_eq!(life.zones(), zones(&[("a", 6), ("b", 3)]));
}

#[test]
fn why_there_are_no_proportional_hints_is_told() {
    let refusal = |life: &mut Life, targets| life.sync(targets).1.map(|(_, message)| message);
    let mut life = Life::new(Some("Auto"), Some("PreferClose"));
    assert_eq!(
        refusal(&mut life, spread(&[("a", 1)])).as_deref(),
        Some("Insufficient number of endpoints (1 endpoints, 2 zones), addressType: IPv4")
    );
    assert_eq!(
        refusal(&mut life, spread(&[("a", 3), ("", 1)])).as_deref(),
        Some("One or more endpoints do not have a zone specified, addressType: IPv4")
    );
    life.nodes.push(node("c", "0"));
    life.topology.nodes_changed(Vec::new);
    assert_eq!(
        refusal(&mut life, spread(&[("a", 3), ("b", 3)])).as_deref(),
        Some(
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4"
        )
    );
    assert_eq!(life.zones(), zones(&[("", 6)]));
    life.nodes = vec![node("a", "1"), node("b", "1"), node("c", "1")];
    life.topology.nodes_changed(Vec::new);
    assert_eq!(
        refusal(&mut life, spread(&[("a", 2), ("b", 2)])).as_deref(),
        Some(
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (4 endpoints, 3 zones), addressType: IPv4"
        )
    );
}

#[test]
fn taking_the_annotation_away_takes_the_hints_away_and_says_so() {
    let mut life = Life::new(Some("Auto"), None);
    life.sync(spread(&[("a", 2), ("b", 2)]));
    life.service.annotations_mut().clear();
    let disabled = "Topology Aware Hints has been disabled, addressType: IPv4".to_owned();
    let (writes, told) = life.sync(spread(&[("a", 2), ("b", 2)]));
    assert_eq!(
        (writes, told),
        (1, Some(("TopologyAwareHintsDisabled", disabled)))
    );
    assert_eq!(life.zones(), zones(&[("", 4)]));
}

#[test]
fn only_services_that_are_overloaded_are_looked_at_when_nodes_change() {
    let mut life = Life::new(Some("Auto"), None);
    life.sync(spread(&[("a", 5), ("b", 5)]));
    let nodes = life.nodes.clone();
    assert_eq!(life.topology.nodes_changed(|| nodes.clone()), []);
    let grown = [nodes, vec![node("b", "16")]].concat();
    assert_eq!(
        life.topology.nodes_changed(|| grown),
        [Key::of(&life.service)]
    );
}
