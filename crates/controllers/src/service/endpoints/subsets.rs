//! Groups the pods of a Service into the subsets of an Endpoints object: addresses that serve the same ports. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Pod, Service},
    discovery::v1,
};

use crate::{pods, service::backend};

/// The most addresses that an Endpoints object may hold; the rest is cut off and the object is annotated.
pub(super) const CAPACITY: usize = 1000;

/// A port in a form that can be compared: name, number, protocol, application protocol.
type Port = (String, i32, String, Option<String>);

/// The identity of an address: IP address and UID of the pod. Addresses are listed in this order.
type Host = (String, Option<String>);

/// Returns the subsets for the Service's pods. Ports that are served by the same pods share one subset, whatever
/// other ports these pods serve.
///
/// Kubernetes orders ports and subsets by the MD5 hash of a dump of the Go struct; here they are ordered by name.
pub(super) fn subsets<'a>(
    service: &Service,
    members: impl IntoIterator<Item = &'a Pod>,
) -> Vec<EndpointSubset> {
    let publishes_unready = backend::publishes_unready(service);
    let has_ports = service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.ports.iter().flatten().next().is_some());
    let mut addresses: BTreeMap<Host, EndpointAddress> = BTreeMap::new();
    // Maps each port to the hosts that serve it and whether they are ready. `None` is the port of a headless
    // Service without ports.
    let mut by_port: BTreeMap<Option<Port>, BTreeMap<Host, bool>> = BTreeMap::new();
    for pod in members {
        let Some(ip) = backend::address(pod, backend::is_ipv6(service)) else {
            continue;
        };
        if pods::is_deleting(pod) && !publishes_unready {
            continue;
        }
        let mut ports: Vec<_> = backend::ports(pod, service)
            .into_iter()
            .map(comparable)
            .map(Some)
            .collect();
        if !has_ports && backend::is_headless(service) {
            ports.push(None);
        }
        let host = (ip.to_owned(), pod.metadata.uid.clone());
        let is_ready = publishes_unready || pods::is_ready(pod);
        for port in ports {
            by_port
                .entry(port)
                .or_default()
                .insert(host.clone(), is_ready);
        }
        let node = pods::node_name(pod);
        let address = EndpointAddress {
            ip: ip.to_owned(),
            hostname: backend::hostname(pod, service),
            node_name: (!node.is_empty()).then(|| node.to_owned()),
            target_ref: Some(backend::target(pod)),
        };
        addresses.insert(host, address);
    }
    let mut by_hosts: BTreeMap<BTreeMap<Host, bool>, Vec<Option<Port>>> = BTreeMap::new();
    for (port, hosts) in by_port {
        // Grouped by the set of hosts including their readiness, as a subset lists its ports for all its
        // addresses.
        by_hosts.entry(hosts).or_default().push(port);
    }
    let mut subsets: Vec<_> = by_hosts.into_iter().collect();
    subsets.sort_by(|a, b| a.1.cmp(&b.1));
    subsets
        .into_iter()
        .map(|(hosts, ports)| subset(ports, &hosts, &addresses))
        .collect()
}

fn comparable(port: v1::EndpointPort) -> Port {
    (
        port.name.unwrap_or_default(),
        port.port.unwrap_or_default(),
        port.protocol.unwrap_or_default(),
        port.app_protocol,
    )
}

fn subset(
    ports: Vec<Option<Port>>,
    hosts: &BTreeMap<Host, bool>,
    addresses: &BTreeMap<Host, EndpointAddress>,
) -> EndpointSubset {
    let of = |ready: bool| {
        let hosts = hosts.iter().filter(|(_, is_ready)| **is_ready == ready);
        some(
            hosts
                .filter_map(|(host, _)| addresses.get(host).cloned())
                .collect(),
        )
    };
    let port = |(name, port, protocol, app_protocol): Port| EndpointPort {
        name: Some(name).filter(|name| !name.is_empty()),
        port,
        protocol: Some(protocol),
        app_protocol,
    };
    EndpointSubset {
        addresses: of(true),
        not_ready_addresses: of(false),
        ports: some(ports.into_iter().flatten().map(port).collect()),
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Cuts the subsets down to [`CAPACITY`] addresses in proportion to their sizes, dropping addresses that are not
/// ready first. Returns whether any address was cut.
pub(super) fn truncate(subsets: &mut Vec<EndpointSubset>) -> bool {
    let len = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let ready: usize = subsets.iter().map(|subset| len(&subset.addresses)).sum();
    let unready: usize = subsets
        .iter()
        .map(|subset| len(&subset.not_ready_addresses))
        .sum();
    if ready + unready <= CAPACITY {
        return false;
    }
    let cut_ready = ready > CAPACITY;
    let (most, total) = if cut_ready {
        (CAPACITY, ready)
    } else {
        (CAPACITY - ready, unready)
    };
    let mut room = most;
    for subset in subsets.iter_mut() {
        let list = if cut_ready {
            &mut subset.addresses
        } else {
            &mut subset.not_ready_addresses
        };
        // Rounded up, so that a small subset does not lose all its addresses while there is room.
        let share = (len(list) * most).div_ceil(total).min(room);
        if let Some(list) = list {
            list.truncate(share);
            room -= list.len();
        }
        if cut_ready {
            subset.not_ready_addresses = None;
        }
        for list in [&mut subset.addresses, &mut subset.not_ready_addresses] {
            if list.as_ref().is_some_and(Vec::is_empty) {
                *list = None;
            }
        }
    }
    subsets.retain(|subset| subset.addresses.is_some() || subset.not_ready_addresses.is_some());
    true
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString};

    use super::*;
    use crate::service::backend::tests::{pod, port, service};

    fn by_name() -> Service {
        service(vec![port(
            "web",
            80,
            Some(IntOrString::String("http".to_owned())),
        )])
    }

    fn ips(list: &Option<Vec<EndpointAddress>>) -> Vec<&str> {
        list.iter()
            .flatten()
            .map(|address| address.ip.as_str())
            .collect()
    }

    #[test]
    fn pods_on_the_same_ports_share_a_subset_sorted_by_address() {
        let pods = [
            pod("a", "10.1.0.9", true, 8080),
            pod("b", "10.1.0.2", true, 8080),
            pod("c", "10.1.0.3", false, 8080),
            pod("d", "10.1.0.4", true, 9090),
        ];
        let subsets = subsets(&by_name(), &pods);
        assert_eq!(subsets.len(), 2);
        assert_eq!(ips(&subsets[0].addresses), ["10.1.0.2", "10.1.0.9"]);
        assert_eq!(ips(&subsets[0].not_ready_addresses), ["10.1.0.3"]);
        assert_eq!(subsets[0].ports.as_ref().expect("ports")[0].port, 8080);
        assert_eq!(ips(&subsets[1].addresses), ["10.1.0.4"]);
    }

    #[test]
    fn ports_that_the_same_pods_serve_share_a_subset_and_others_do_not() {
        let service = service(vec![
            port("web", 80, Some(IntOrString::String("http".to_owned()))),
            port("metrics", 81, Some(IntOrString::Int(9100))),
            port("admin", 82, Some(IntOrString::Int(9200))),
        ]);
        let pods = [
            pod("a", "10.1.0.1", true, 8080),
            pod("b", "10.1.0.2", true, 9090),
        ];
        let found: Vec<_> = subsets(&service, &pods)
            .iter()
            .map(|subset| {
                let ports = subset.ports.iter().flatten().map(|port| port.port);
                let ips: Vec<_> = ips(&subset.addresses)
                    .into_iter()
                    .map(str::to_owned)
                    .collect();
                (ports.collect::<Vec<_>>(), ips)
            })
            .collect();
        let ips = |all: &[&str]| all.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            found,
            [
                (vec![9200, 9100], ips(&["10.1.0.1", "10.1.0.2"])),
                (vec![8080], ips(&["10.1.0.1"])),
                (vec![9090], ips(&["10.1.0.2"])),
            ]
        );
    }

    #[test]
    fn a_terminating_pod_leaves_unless_unready_pods_are_published() {
        let mut going = pod("a", "10.1.0.1", false, 8080);
        going.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        let mut service = by_name();
        assert!(subsets(&service, [&going]).is_empty());
        service
            .spec
            .as_mut()
            .expect("set by service")
            .publish_not_ready_addresses = Some(true);
        assert_eq!(ips(&subsets(&service, [&going])[0].addresses), ["10.1.0.1"]);
    }

    #[test]
    fn a_headless_service_without_ports_has_addresses_all_the_same() {
        let mut headless = service(vec![]);
        assert!(subsets(&headless, [&pod("a", "10.1.0.1", true, 80)]).is_empty());
        headless.spec.as_mut().expect("set by service").cluster_ip = Some("None".to_owned());
        let found = subsets(&headless, [&pod("a", "10.1.0.1", true, 80)]);
        assert_eq!(
            (ips(&found[0].addresses), &found[0].ports),
            (vec!["10.1.0.1"], &None)
        );
    }

    fn crowd(ready: usize, unready: usize) -> EndpointSubset {
        let addresses = |count| some(vec![EndpointAddress::default(); count]);
        EndpointSubset {
            addresses: addresses(ready),
            not_ready_addresses: addresses(unready),
            ports: None,
        }
    }

    fn truncated(mut subsets: Vec<EndpointSubset>) -> (bool, Vec<(usize, usize)>) {
        let cut = truncate(&mut subsets);
        let len = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
        (
            cut,
            subsets
                .iter()
                .map(|s| (len(&s.addresses), len(&s.not_ready_addresses)))
                .collect(),
        )
    }

    #[test]
    fn a_thousand_addresses_fit_and_more_are_cut_by_share_ready_ones_last() {
        assert_eq!(truncated(vec![crowd(600, 400)]), (false, vec![(600, 400)]));
        assert_eq!(truncated(vec![crowd(600, 600)]), (true, vec![(600, 400)]));
        assert_eq!(
            truncated(vec![crowd(1500, 10), crowd(500, 10)]),
            (true, vec![(750, 0), (250, 0)])
        );
        assert_eq!(
            truncated(vec![crowd(900, 100), crowd(0, 300)]),
            (true, vec![(900, 25), (0, 75)])
        );
    }
}
