//! `mullion doctor --network`: the ways that traffic takes in a cluster, and what came back when probe pods tried them.
//!
//! The checklist is that of Kubernetes' guide for running Windows containers. [`hosts`] chooses the nodes and [`ways`] what is tried from
//! where; [`manifests`] makes the pods, [`probe`] runs them and removes them again, [`outcome`] reads what became of them. The rows of `rows/reach.rs` judge the answers.
//! Invariant: nothing is measured on simulated nodes, whose containers are no processes.

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

/// The image of the probes unless the user names another: that of Kubernetes' own end-to-end tests, for both systems.
pub(super) const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.53";
/// The annotation of KWOK's nodes, which run no process either.
const KWOK: &str = "kwok.x-k8s.io/node";
/// How many nodes of a system are tried: one for the pods that ask, and another one.
const HOSTS: usize = 2;

/// Where a connection comes from; it is always the first host of its system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The node itself: a pod in its network, on Windows a HostProcess pod.
    Node,
    Pod,
}

/// Where a connection goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Pod {
        os: Os,
        on_same_node: bool,
    },
    /// The address of a Service over pods of a system.
    Service(Os),
    /// The Service's name without its namespace.
    ShortName(Os),
    FullName(Os),
    /// The port of such a Service on a node of the system.
    NodePort(Os),
    OutsideAddress,
    OutsideName,
}

/// A way that traffic takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    pub(super) os: Os,
    pub(super) source: Source,
    pub(super) target: Target,
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// The right one, after so many seconds.
    Answered(f64),
    /// None, or a wrong one.
    Failed(String),
    /// The way was not tried, and why.
    Untried(String),
}

/// What is known of the ways.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Probes {
    /// Nothing, and what would be needed.
    None(String),
    Tried(BTreeMap<Way, Answer>),
}

/// A node on which probes run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// The label `kubernetes.io/hostname`, by which pods choose it.
    pub(super) host_name: String,
    /// Its address in the cluster's network, if it says one.
    pub(super) address: Option<String>,
}

/// The nodes on which probes run, by system; a system without a ready node is left out.
pub(super) type Hosts = BTreeMap<Os, Vec<Host>>;

/// Returns the nodes for probes: the first ready ones of each system that are real.
///
/// # Errors
/// The nodes may not be listed.
pub(super) fn hosts(snapshot: &Snapshot) -> Result<Hosts, Unknown> {
    let mut hosts = Hosts::new();
    if is_simulated(snapshot) {
        return Ok(hosts);
    }
    let is_real = |node: &&Value| node["metadata"]["annotations"][KWOK].is_null();
    let nodes = snapshot.all("Node")?.iter().filter(is_real);
    for node in nodes.filter(|node| is_ready(node) && node["spec"]["unschedulable"] != true) {
        let os = match is_windows(node) {
            true => Os::Windows,
            false => Os::Linux,
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

/// Returns what is tried between hosts. Windows hosts themselves do not reach Services, which is a limit of Windows.
pub(super) fn ways(hosts: &Hosts) -> Vec<Way> {
    let mut ways = Vec::new();
    for &os in hosts.keys() {
        for source in [Source::Node, Source::Pod] {
            let targets = targets(os, source, hosts).into_iter();
            ways.extend(targets.map(|target| Way { os, source, target }));
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

/// Returns a system's name as sentences have it.
pub(super) fn title(os: Os) -> &'static str {
    match os {
        Os::Linux => "Linux",
        Os::Windows => "Windows",
    }
}

impl Way {
    /// Whether the way begins there.
    pub(super) fn is_from(&self, os: Os, source: Source) -> bool {
        self.os == os && self.source == source
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            Source::Node => "node",
            Source::Pod => "pod",
        };
        write!(f, "a {} {source} to ", title(self.os))?;
        match self.target {
            Target::Pod { os, on_same_node } => {
                let place = match on_same_node {
                    true => "the same node",
                    false => "another node",
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
