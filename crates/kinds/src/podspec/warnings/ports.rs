//! Warnings about ports that are declared twice.

use std::collections::{BTreeMap, HashMap};

use mullion_kube_text::{field::Path, golang::quote};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::WarningList;
use crate::podspec::CONTAINER_LISTS;

/// The position of a port: the list of containers, the container's index, and the port's index.
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

/// A place with its position among all ports.
type Numbered = (usize, Place);

/// The ports with one number and protocol: for each host port (0 if there is none), the ports of each host address.
#[derive(Default)]
struct SamePort<'a>(HashMap<i64, HashMap<&'a str, Vec<Numbered>>>);

impl<'a> SamePort<'a> {
    fn add(&mut self, host_ip: &'a str, host_port: i64, place: Numbered) {
        let addresses = self.0.entry(host_port).or_default();
        addresses.entry(host_ip).or_default().push(place);
    }

    /// Returns the ports that conflict with a port, and how. Other ports are not visited.
    fn conflicts(&self, host_ip: &str, host_port: i64) -> Vec<(Numbered, &'static str)> {
        let mut found = Vec::new();
        let mut note = |places: &[Numbered], kind| {
            found.extend(places.iter().map(|place| (*place, kind)));
        };
        if host_port == 0 {
            for (other_port, addresses) in &self.0 {
                for (other_ip, places) in addresses {
                    let is_same = *other_port == 0 && *other_ip == host_ip;
                    note(places, if is_same { "duplicate" } else { "overlapping" });
                }
            }
            return found;
        }
        for places in self.0.get(&0).into_iter().flat_map(HashMap::values) {
            note(places, "overlapping");
        }
        let Some(addresses) = self.0.get(&host_port) else {
            return found;
        };
        if let Some(places) = addresses.get(host_ip) {
            note(places, "duplicate");
        }
        // One of the two ports takes the number on all addresses of the host.
        if host_ip.is_empty() {
            let others = addresses.iter().filter(|(other, _)| !other.is_empty());
            others.for_each(|(_, places)| note(places, "dangerously ambiguous"));
        } else if let Some(places) = addresses.get("") {
            note(places, "dangerously ambiguous");
        }
        found
    }
}

impl WarningList {
    /// Warns about ports with the same number and protocol, in all containers.
    pub(super) fn ports(&mut self, spec: &Value, path: &Path<'_>) {
        let mut seen: HashMap<(i64, &str), SamePort<'_>> = HashMap::new();
        for (position, ((list, container, index), port)) in declared(spec).enumerate() {
            if self.0.is_full() {
                return;
            }
            let at = path.child(list);
            let at = at.index(container);
            let at = at.child("ports");
            let at = at.index(index);
            let host_port = port.integer("hostPort").unwrap_or(0);
            let host_ip = port.text("hostIP");
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
            let number = port.integer("containerPort").unwrap_or(0);
            let others = seen.entry((number, port.text("protocol"))).or_default();
            let mut conflicts = others.conflicts(host_ip, host_port);
            // The warnings follow the order in which the ports are declared.
            conflicts.sort_unstable_by_key(|(other, _)| *other);
            for ((_, (list, container, index)), kind) in conflicts {
                if self.0.is_full() {
                    break;
                }
                let other_at = path.child(list);
                let other_at = other_at.index(container);
                let other_at = other_at.child("ports");
                self.add(
                    &at,
                    &format!("{kind} port definition with {}", other_at.index(index)),
                );
            }
            others.add(host_ip, host_port, (position, (list, container, index)));
        }
    }

    /// Warns about port names that several ports have.
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
