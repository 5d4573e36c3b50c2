//! Selects the pods behind a Service and resolves the ports on which they serve it. Pure functions, shared by the
//! Endpoints and EndpointSlice controllers.

use k8s_openapi::{
    api::{
        core::v1::{Container, ContainerPort, ObjectReference, Pod, Service, ServicePort},
        discovery::v1::EndpointPort,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{Resource, ResourceExt};

use crate::pods;

pub(super) const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// Returns the selector of a Service whose endpoints are managed here. `None` for a Service without a selector,
/// whose endpoints a user writes, and for type ExternalName, which is only a DNS alias.
pub(super) fn selects(service: &Service) -> Option<&std::collections::BTreeMap<String, String>> {
    let spec = service
        .spec
        .as_ref()
        .filter(|spec| spec.type_.as_deref() != Some("ExternalName"))?;
    spec.selector
        .as_ref()
        .filter(|selector| !selector.is_empty())
}

/// Returns whether `service` selects `pod`. Both must be in the same namespace; the caller ensures it.
pub(super) fn matches(service: &Service, pod: &Pod) -> bool {
    let labels = pod.labels();
    selects(service).is_some_and(|selector| {
        selector
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
    })
}

/// Returns whether the Service has no cluster IP.
pub(super) fn is_headless(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    matches!(
        spec.and_then(|spec| spec.cluster_ip.as_deref()),
        None | Some("" | "None")
    )
}

/// Returns whether pods that are not ready are published as if they were (`publishNotReadyAddresses`).
pub(super) fn publishes_unready(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .and_then(|spec| spec.publish_not_ready_addresses)
        .unwrap_or_default()
}

/// Returns the pod's address in the given family; `None` for a finished pod, which has given its address up.
pub(super) fn address(pod: &Pod, ipv6: bool) -> Option<&str> {
    if pods::is_finished(pod) {
        return None;
    }
    let status = pod.status.as_ref()?;
    let all = status
        .pod_ips
        .iter()
        .flatten()
        .map(|ip| ip.ip.as_str())
        .chain(status.pod_ip.as_deref());
    all.filter(|ip| !ip.is_empty())
        // Only IPv6 addresses contain a colon.
        .find(|ip| ip.contains(':') == ipv6)
}

/// Returns whether the Service's first address family is IPv6.
pub(super) fn is_ipv6(service: &Service) -> bool {
    let families = service
        .spec
        .as_ref()
        .and_then(|spec| spec.ip_families.as_ref());
    families
        .and_then(|families| families.first())
        .is_some_and(|family| family == "IPv6")
}

/// Returns the host name under which the pod appears in the Service's DNS domain: only a pod whose subdomain is the
/// Service's name has one.
pub(super) fn hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec
        .hostname
        .as_ref()
        .filter(|hostname| !hostname.is_empty())?;
    (spec.subdomain.as_ref() == service.metadata.name.as_ref()).then(|| hostname.clone())
}

/// Returns a reference to the pod for an endpoint's `targetRef`.
pub(super) fn target(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some(Pod::kind(&()).into_owned()),
        namespace: pod.namespace(),
        name: pod.metadata.name.clone(),
        uid: pod.uid(),
        ..ObjectReference::default()
    }
}

/// Returns the ports on which the pod serves the Service, in the Service's order. A named target port that the pod
/// does not declare is left out.
pub(super) fn ports(pod: &Pod, service: &Service) -> Vec<EndpointPort> {
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(target_port(pod, port)?),
                protocol: Some(protocol(port.protocol.as_deref()).to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

fn protocol(protocol: Option<&str>) -> &str {
    protocol
        .filter(|protocol| !protocol.is_empty())
        .unwrap_or("TCP")
}

fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    match &port.target_port {
        None | Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) if name.is_empty() => Some(port.port),
        Some(IntOrString::String(name)) => {
            let same = |candidate: &&ContainerPort| {
                candidate.name.as_ref() == Some(name)
                    && protocol(candidate.protocol.as_deref()) == protocol(port.protocol.as_deref())
            };
            let mut ports =
                long_running(pod).flat_map(|container| container.ports.iter().flatten());
            ports.find(same).map(|port| port.container_port)
        }
    }
}

/// Iterates the containers that run as long as the pod: ordinary containers and sidecars, but not other init
/// containers, which end before the pod serves.
fn long_running(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    let init = spec
        .and_then(|spec| spec.init_containers.as_ref())
        .into_iter()
        .flatten();
    let sidecars = init.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    spec.map(|spec| spec.containers.as_slice())
        .unwrap_or_default()
        .iter()
        .chain(sidecars)
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::api::core::v1::{PodCondition, PodIP, PodSpec, PodStatus, ServiceSpec};

    use super::*;

    pub(in crate::service) fn service(ports: Vec<ServicePort>) -> Service {
        let mut service = Service::default();
        service.metadata.name = Some("web".to_owned());
        service.metadata.namespace = Some("ns".to_owned());
        service.metadata.uid = Some("service-uid".to_owned());
        service.spec = Some(ServiceSpec {
            selector: Some([("app".to_owned(), "web".to_owned())].into()),
            cluster_ip: Some("10.0.0.1".to_owned()),
            ports: Some(ports),
            ..ServiceSpec::default()
        });
        service
    }

    pub(in crate::service) fn port(
        name: &str,
        port: i32,
        target: Option<IntOrString>,
    ) -> ServicePort {
        ServicePort {
            name: Some(name.to_owned()),
            port,
            target_port: target,
            ..ServicePort::default()
        }
    }

    /// Returns a running pod `name` with address `ip` whose container port `http` is `port`.
    pub(in crate::service) fn pod(name: &str, ip: &str, ready: bool, port: i32) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        pod.metadata.uid = Some(format!("{name}-uid"));
        pod.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
        let http = ContainerPort {
            name: Some("http".to_owned()),
            container_port: port,
            ..ContainerPort::default()
        };
        let container = Container {
            ports: Some(vec![http]),
            ..Container::default()
        };
        pod.spec = Some(PodSpec {
            containers: vec![container],
            node_name: Some("node".to_owned()),
            ..PodSpec::default()
        });
        let condition = PodCondition {
            type_: "Ready".to_owned(),
            status: if ready { "True" } else { "False" }.to_owned(),
            ..PodCondition::default()
        };
        pod.status = Some(PodStatus {
            phase: Some("Running".to_owned()),
            pod_ip: Some(ip.to_owned()),
            pod_ips: Some(vec![PodIP { ip: ip.to_owned() }]),
            conditions: Some(vec![condition]),
            ..PodStatus::default()
        });
        pod
    }

    #[test]
    fn a_target_port_is_a_number_a_name_or_the_port_itself() {
        let by_name = IntOrString::String("http".to_owned());
        let service = service(vec![
            port("same", 80, None),
            port("number", 81, Some(IntOrString::Int(9090))),
            port("named", 82, Some(by_name)),
            port("unknown", 83, Some(IntOrString::String("grpc".to_owned()))),
        ]);
        let found = ports(&pod("a", "10.1.0.1", true, 8080), &service);
        let pairs: Vec<_> = found
            .iter()
            .map(|port| (port.name.as_deref(), port.port))
            .collect();
        assert_eq!(
            pairs,
            [
                (Some("same"), Some(80)),
                (Some("number"), Some(9090)),
                (Some("named"), Some(8080)),
            ]
        );
    }

    #[test]
    fn a_named_port_must_have_the_same_protocol() {
        let udp = ServicePort {
            protocol: Some("UDP".to_owned()),
            ..port("dns", 53, Some(IntOrString::String("http".to_owned())))
        };
        assert!(ports(&pod("a", "10.1.0.1", true, 8080), &service(vec![udp])).is_empty());
    }

    #[test]
    fn a_sidecar_serves_but_an_init_container_does_not() {
        let mut pod = pod("a", "10.1.0.1", true, 8080);
        let spec = pod.spec.as_mut().expect("set by pod");
        let mut init = spec.containers.remove(0);
        spec.init_containers = Some(vec![init.clone()]);
        let service = service(vec![port(
            "web",
            80,
            Some(IntOrString::String("http".to_owned())),
        )]);
        assert!(ports(&pod, &service).is_empty());
        init.restart_policy = Some("Always".to_owned());
        pod.spec.as_mut().expect("set by pod").init_containers = Some(vec![init]);
        assert_eq!(ports(&pod, &service)[0].port, Some(8080));
    }

    #[test]
    fn services_without_selector_and_aliases_are_left_alone() {
        let mut plain = service(vec![]);
        assert!(selects(&plain).is_some());
        plain.spec.as_mut().expect("set by service").type_ = Some("ExternalName".to_owned());
        assert!(selects(&plain).is_none());
        let mut bare = service(vec![]);
        bare.spec.as_mut().expect("set by service").selector = None;
        assert!(selects(&bare).is_none());
    }

    #[test]
    fn a_finished_pod_has_no_address() {
        let mut done = pod("a", "10.1.0.1", true, 8080);
        assert_eq!(address(&done, false), Some("10.1.0.1"));
        assert_eq!(address(&done, true), None);
        done.status.as_mut().expect("set by pod").phase = Some("Succeeded".to_owned());
        assert_eq!(address(&done, false), None);
    }
}
