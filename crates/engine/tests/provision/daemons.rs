//! What DaemonSets take of the nodes that are bought, and of those on their way.

use mullion_engine::Reason;
use mullion_engine::model::ContainerPort;

use super::*;

/// A pod that holds a port of its node.
fn on_port(mut template: PodTemplate, port: i32) -> PodTemplate {
    template.containers[0].ports.push(ContainerPort {
        host_port: port,
        ..ContainerPort::default()
    });
    template
}

fn with_port(name: &str, port: i32) -> PodSpec {
    let pod = pod(name, &[("cpu", "1")]);
    PodSpec {
        template: on_port(pod.template.clone(), port),
        ..pod
    }
}

fn selecting(mut template: PodTemplate, key: &str, value: &str) -> PodTemplate {
    template.node_selector.insert(key.into(), value.into());
    template
}

fn planned(pods: Vec<PodSpec>, templates: Vec<NodeTemplate>, by_cost: bool) -> Plan {
    let request = PlanRequest {
        pods,
        templates,
        by_cost,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    cluster.plan(&request).expect("valid")
}

#[test]
fn a_pod_with_the_rules_of_a_daemon_set_gets_the_nodes_that_it_selects() {
    // The cheapest type comes last, so that types are not in the order of their prices.
    let types = [
        kind("amd-large", "amd64", 8, 400),
        kind("arm-large", "arm64", 8, 380),
        kind("arm-small", "arm64", 2, 100),
        kind("amd-small", "amd64", 2, 90),
    ];
    for by_cost in [false, true] {
        let mut only = pool("p", &types);
        let agent = pod("agent", &[("cpu", "100m")]).template;
        only.daemons = vec![selecting(agent, label::OS, "arm64")];
        let mut web = pod("web", &[("cpu", "1")]);
        web.template = selecting(web.template, label::OS, "arm64");
        let plan = planned(vec![web], vec![only], by_cost);
        let mut types = plan.nodes[0].options.iter();
        assert!(types.all(|own| own.name.starts_with("arm")), "{plan:?}");
    }
}

#[test]
fn no_pod_is_planned_on_a_port_that_a_daemon_set_holds_there() {
    let exporter = on_port(agent("100m"), 9100);
    for by_cost in [false, true] {
        let mut only = pool("p", &linux());
        only.daemons = vec![exporter.clone()];
        let pods = || vec![with_port("same", 9100), with_port("other", 9200)];
        let plan = planned(pods(), vec![only.clone()], by_cost);
        assert_eq!(plan.nodes.len(), 1);
        assert_eq!(plan.nodes[0].pods, ["ns/other"]);
        let refused = &plan.unplaceable[0];
        assert_eq!(refused.pod, "ns/same");
        let reason = PoolReason::Incompatible {
            plugin: Plugin::NodePorts,
            reason: Reason::PortTaken { port: 9100 },
        };
        assert_eq!(refused.pools[0].reason, reason);
        assert_eq!(
            plan.daemons["p"],
            amounts(&[("cpu", "100m"), ("pods", "1")])
        );

        // The machines on which the DaemonSet does not run have the port free.
        only.daemons = vec![selecting(exporter.clone(), "size", "2")];
        let plan = planned(pods(), vec![only], by_cost);
        assert!(plan.unplaceable.is_empty());
        for node in &plan.nodes {
            let holds = node.pods.iter().any(|pod| pod == "ns/same");
            let is_small = node.options.iter().any(|option| option.name == "small");
            assert!(!(holds && is_small), "{node:?}");
        }
    }
}

#[test]
fn a_daemon_set_costs_only_the_machines_that_it_runs_on() {
    for by_cost in [false, true] {
        let mut pools = pool("p", &linux());
        // It leaves nothing of a small machine in zone b.
        let mut agent = selecting(agent("2"), "size", "2");
        agent.node_selector.insert(label::ZONE.into(), "b".into());
        pools.daemons = vec![agent];
        let plan = planned(vec![pod("one", &[("cpu", "2")])], vec![pools], by_cost);
        let node = &plan.nodes[0];
        let small = node.options.iter().find(|option| option.name == "small");
        let zones: Vec<_> = small.iter().flat_map(|option| &option.offerings).collect();
        assert!(zones.iter().all(|(zone, ..)| zone == "a"), "{node:?}");
        assert!(node.daemons.is_empty(), "{node:?}");
    }
}

#[test]
fn daemon_sets_hold_their_ports_on_nodes_on_their_way() {
    let mut node = NodeSpec::named("claim-1");
    node.allocatable = amounts(&[("cpu", "8"), ("pods", "10")]);
    let in_flight = vec![InFlightNode {
        node,
        pods: vec![PodSpec {
            template: on_port(agent("100m"), 9100),
            ..pod("exporter-claim-1", &[])
        }],
    }];
    let request = PlanRequest {
        pods: vec![with_port("same", 9100), with_port("other", 9200)],
        in_flight,
        templates: vec![pool("p", &linux())],
        by_cost: true,
        ..PlanRequest::default()
    };
    let mut cluster = Cluster::new(Options::default());
    let plan = cluster.plan(&request).expect("valid");
    let on_its_way = ("ns/other".to_owned(), "claim-1".to_owned());
    assert_eq!(plan.existing, [on_its_way]);
    assert_eq!(plan.nodes[0].pods, ["ns/same"]);
}
