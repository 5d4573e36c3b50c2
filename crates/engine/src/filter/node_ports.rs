//! kube-scheduler: NodePorts. A host port can be held once per protocol and address; the wildcard address clashes
//! with every address.

use crate::class::{HostPort, Shape};
use crate::intern::Symbol;
use crate::reason::Reason;

/// Returns the first host port of the pod that conflicts with a pod on the node. `used` has the ports of the node
/// with the number of pods that have each.
pub(crate) fn check(pod: &Shape, used: &[(HostPort, u32)]) -> Option<Reason> {
    first(pod, |wanted| {
        used.iter().any(|(held, _)| clashes(wanted, *held))
    })
}

/// Returns the first host port of the pod that conflicts with one of `held`.
pub(crate) fn taken(pod: &Shape, held: &[HostPort]) -> Option<Reason> {
    first(pod, |wanted| held.iter().any(|held| clashes(wanted, *held)))
}

fn first(pod: &Shape, is_held: impl Fn(HostPort) -> bool) -> Option<Reason> {
    let mut ports = pod.host_ports.iter();
    let port = ports.find(|port| is_held(**port))?;
    Some(Reason::PortTaken { port: port.port })
}

fn clashes(a: HostPort, b: HostPort) -> bool {
    let same_address = a.ip == b.ip || a.ip == Symbol::EMPTY || b.ip == Symbol::EMPTY;
    a.port == b.port && a.protocol == b.protocol && same_address
}
