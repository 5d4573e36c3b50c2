//! Warnings about ports that are declared twice.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Warnings;
use crate::{
    field::{Path, quote},
    kinds::{podspec::CONTAINER_LISTS, tree::Tree},
};

/// Where a port stands: the list of containers, the container, the port.
type Place = (&'static str, usize, usize);

fn declared(spec: &Value) -> impl Iterator<Item = (Place, &Value)> {
    CONTAINER_LISTS.into_iter().flat_map(move |list| {
        spec.items(list)
            .iter()
            .enumerate()
            .flat_map(move |(container, value)| {
                let ports = value.items("ports").iter().enumerate();
                ports.map(move |(port, value)| ((list, container, port), value))
            })
    })
}

impl Warnings {
    /// Ports of one number and protocol, in whatever containers.
    pub(super) fn ports(&mut self, spec: &Value, path: &Path<'_>) {
        let all = || declared(spec);
        for (position, ((list, container, index), port)) in all().enumerate() {
            let at = path.child(list);
            let at = at.index(container);
            let at = at.child("ports");
            let at = at.index(index);
            let host = |port: &Value| port.integer("hostPort").unwrap_or(0);
            let (host_ip, host_port) = (port.text("hostIP"), host(port));
            if !host_ip.is_empty() && host_port == 0 {
                let (name, number, protocol) = (
                    port.text("name"),
                    port.integer("containerPort").unwrap_or(0),
                    port.text("protocol"),
                );
                let port = format!(
                    "{{Name:{name} HostPort:0 ContainerPort:{number} Protocol:{protocol} HostIP:{host_ip}}}"
                );
                self.add(&at, &format!("hostIP set without hostPort: {port}"));
            }
            let same = |other: &Value| {
                other.integer("containerPort") == port.integer("containerPort")
                    && other.text("protocol") == port.text("protocol")
            };
            for ((list, container, index), other) in
                all().take(position).filter(|(_, other)| same(other))
            {
                let (other_ip, other_port) = (other.text("hostIP"), host(other));
                let kind = if host_ip == other_ip && host_port == other_port {
                    "duplicate"
                } else if host_port == 0 || other_port == 0 {
                    "overlapping"
                } else if host_port == other_port && host_ip.is_empty() != other_ip.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                let other_at = path.child(list);
                let other_at = other_at.index(container);
                let other_at = other_at.child("ports");
                self.add(
                    &at,
                    &format!("{kind} port definition with {}", other_at.index(index)),
                );
            }
        }
    }

    /// Names that ports of two containers share.
    pub(super) fn port_names(&mut self, spec: &Value, path: &Path<'_>) {
        let mut seen: BTreeMap<&str, Place> = BTreeMap::new();
        for (place, port) in declared(spec) {
            let name = port.text("name");
            if name.is_empty() {
                continue;
            }
            let Some((list, container, index)) = seen.get(name) else {
                seen.insert(name, place);
                continue;
            };
            let other = format!("{path}.{list}[{container}].ports[{index}]");
            let message = format!(
                "duplicate port name {} with {other}, services and probes that select ports by name will use {other}",
                quote(name)
            );
            let (list, container, index) = place;
            let at = path.child(list);
            let at = at.index(container);
            self.add(&at.child("ports").index(index), &message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::of_pod;

    #[test]
    fn ports_of_one_number_are_worth_a_warning() {
        let pod = json!({"metadata": {"name": "x"}, "spec": {"containers": [
            {"ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}]},
            {"ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}]},
        ]}});
        assert_eq!(
            of_pod(&pod),
            [
                "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[0]: overlapping port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[0]: overlapping port definition with spec.containers[0].ports[1]",
            ]
        );
    }

    #[test]
    fn a_name_is_of_one_port_in_the_pod() {
        let pod = json!({"metadata": {"name": "x"}, "spec": {
            "initContainers": [{"ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}]}],
            "containers": [{"ports": [{"containerPort": 81, "protocol": "TCP", "name": "other"}, {"containerPort": 82, "protocol": "TCP", "name": "web"}]}],
        }});
        assert_eq!(
            of_pod(&pod),
            [
                r#"spec.containers[0].ports[1]: duplicate port name "web" with spec.initContainers[0].ports[0], services and probes that select ports by name will use spec.initContainers[0].ports[0]"#
            ]
        );
    }
}
