//! kube-scheduler: NodePorts. A host port can be held once per protocol and address; the wildcard address clashes
//! with every address.

use crate::class::{HostPort, Shape};
use crate::intern::Symbol;
use crate::reason::Reason;

pub(crate) fn check(pod: &Shape, used: &[(HostPort, u32)]) -> Option<Reason> {
    let clash = |wanted: &&HostPort| used.iter().any(|(held, _)| clashes(**wanted, *held));
    pod.host_ports
        .iter()
        .find(clash)
        .map(|port| Reason::PortTaken { port: port.port })
}

/// Whether a pod asks for a port that others hold.
pub(crate) fn clash(pod: &Shape, held: &[HostPort]) -> bool {
    let taken = |wanted: &HostPort| held.iter().any(|held| clashes(*wanted, *held));
    pod.host_ports.iter().any(taken)
}

fn clashes(a: HostPort, b: HostPort) -> bool {
    let same_address = a.ip == b.ip || a.ip == Symbol::EMPTY || b.ip == Symbol::EMPTY;
    a.port == b.port && a.protocol == b.protocol && same_address
}
