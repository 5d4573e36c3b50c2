//! Implements `mullion doctor --network`: the paths of traffic in a cluster, and the answers that probe pods got on them.
//!
//! The checklist is that of Kubernetes' guide for running Windows containers. [`hosts`] chooses the nodes and [`paths_to_test`] the paths to test;
//! [`manifests`] makes the pods, [`probe`] runs them and removes them again, [`outcome`] reads what became of them. The checks in
//! `rows/reach.rs` judge the answers. Invariant: nothing is measured on simulated nodes, whose containers are not processes.

mod manifests;
mod outcome;
pub(super) mod probe;
#[cfg(test)]
pub(super) mod tests;

use std::{collections::BTreeMap, fmt};

use mullion_api::{ami::Os, labels};
use serde_json::Value;

use super::{
    rows::{is_ready, is_simulated, is_windows},
    snapshot::{Snapshot, Unknown, name_of},
};

/// The default image of the probe pods: that of Kubernetes' own end-to-end tests, which exists for both operating systems.
pub(super) const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.53";
/// The annotation of KWOK's nodes, which do not run processes either.
const KWOK: &str = "kwok.x-k8s.io/node";
/// The number of nodes used per operating system: one for the client pods, and another one.
const HOSTS: usize = 2;

/// Where a connection starts; it is always the first host of its operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The node itself: a pod in the host's network, or a HostProcess pod on Windows.
    Node,
    Pod,
}

/// The target of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Pod {
        os: Os,
        on_same_node: bool,
    },
    /// The address of the Service for the server pods of an operating system.
    Service(Os),
    /// The Service's name without its namespace.
    ShortName(Os),
    FullName(Os),
    /// The Service's NodePort on a node of this operating system.
    NodePort(Os),
    OutsideAddress,
    OutsideName,
}

/// A path of traffic: where it starts, and its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrafficPath {
    pub(super) os: Os,
    pub(super) source: Source,
    pub(super) target: Target,
}

/// The result of testing a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// The expected answer came after this many seconds.
    Answered(f64),
    /// No answer came, or a wrong one; the text says which.
    Failed(String),
    /// The path was not tested, for this reason.
    Untried(String),
}

/// The results of the probe pods.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Probes {
    /// Nothing was measured; the text says what would be needed.
    None(String),
    Tried(BTreeMap<TrafficPath, Answer>),
}

/// A node on which probe pods run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// The value of the label `kubernetes.io/hostname`, by which the pods select the node.
    pub(super) host_name: String,
    /// The node's internal address, if it has one.
    pub(super) address: Option<String>,
}

/// The nodes on which probe pods run, by operating system; one without a ready node is left out.
pub(super) type Hosts = BTreeMap<Os, Vec<Host>>;

/// Returns the nodes for probe pods: the first ready ones of each operating system, without simulated nodes.
///
/// # Errors
/// The user may not list nodes.
pub(super) fn hosts(snapshot: &Snapshot) -> Result<Hosts, Unknown> {
    let mut hosts = Hosts::new();
    if is_simulated(snapshot) {
        return Ok(hosts);
    }
    let is_real = |node: &&Value| node["metadata"]["annotations"][KWOK].is_null();
    let nodes = snapshot.all("Node")?.iter().filter(is_real);
    for node in nodes.filter(|node| is_ready(node) && node["spec"]["unschedulable"] != true) {
        let os = if is_windows(node) {
            Os::Windows
        } else {
            Os::Linux
        };
        let own = hosts.entry(os).or_default();
        if own.len() < HOSTS {
            own.push(host(node));
        }
    }
    Ok(hosts)
}

fn host(node: &Value) -> Host {
    let addresses = node["status"]["addresses"].as_array();
    let mut addresses = addresses.into_iter().flatten();
    let internal = addresses.find(|own| own["type"] == "InternalIP");
    let host_name = node["metadata"]["labels"][labels::HOSTNAME].as_str();
    Host {
        host_name: host_name.unwrap_or(name_of(node)).to_owned(),
        address: internal.and_then(|own| own["address"].as_str().map(str::to_owned)),
    }
}

/// Returns the paths to test between hosts. Paths from Windows hosts to Services are left out, because Windows does not support them.
pub(super) fn paths_to_test(hosts: &Hosts) -> Vec<TrafficPath> {
    let mut ways = Vec::new();
    for &os in hosts.keys() {
        for source in [Source::Node, Source::Pod] {
            let targets = targets(os, source, hosts).into_iter();
            ways.extend(targets.map(|target| TrafficPath { os, source, target }));
        }
    }
    ways
}

fn targets(os: Os, source: Source, hosts: &Hosts) -> Vec<Target> {
    let mut targets = Vec::new();
    for (&other, there) in hosts {
        let pod = |on_same_node| Target::Pod {
            os: other,
            on_same_node,
        };
        targets.extend((other == os).then(|| pod(true)));
        targets.extend((other != os || there.len() > 1).then(|| pod(false)));
        match (source, os) {
            (Source::Pod, _) => targets.extend([
                Target::Service(other),
                Target::ShortName(other),
                Target::FullName(other),
            ]),
            (Source::Node, Os::Linux) => {
                targets.push(Target::Service(other));
                let has_address = there.first().is_some_and(|host| host.address.is_some());
                targets.extend(has_address.then_some(Target::NodePort(other)));
            }
            (Source::Node, Os::Windows) => {}
        }
    }
    if source == Source::Pod {
        targets.extend([Target::OutsideAddress, Target::OutsideName]);
    }
    targets
}

/// Returns the name of an operating system as it is used in sentences.
pub(super) fn title(os: Os) -> &'static str {
    match os {
        Os::Linux => "Linux",
        Os::Windows => "Windows",
    }
}

impl TrafficPath {
    /// Returns whether the path starts at this place.
    pub(super) fn is_from(&self, os: Os, source: Source) -> bool {
        self.os == os && self.source == source
    }
}

impl fmt::Display for TrafficPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            Source::Node => "node",
            Source::Pod => "pod",
        };
        write!(f, "a {} {source} to ", title(self.os))?;
        match self.target {
            Target::Pod { os, on_same_node } => {
                let place = if on_same_node {
                    "the same node"
                } else {
                    "another node"
                };
                write!(f, "a {} pod on {place}", title(os))
            }
            Target::Service(os) => write!(f, "the address of a Service of {} pods", title(os)),
            Target::ShortName(os) => write!(f, "the short name of a Service of {} pods", title(os)),
            Target::FullName(os) => write!(f, "the full name of a Service of {} pods", title(os)),
            Target::NodePort(os) => write!(f, "a NodePort of a {} node", title(os)),
            Target::OutsideAddress => f.write_str("an address outside"),
            Target::OutsideName => f.write_str("a name outside"),
        }
    }
}
