//! What changes when pods come and go in thought. kube-scheduler does not work everything out again then, but corrects what it worked out for
//! the attempt, by rules that are not always those for pods that are really there.

use std::collections::BTreeSet;

use crate::filters::host_ports;
use crate::objects::{Node, Pod, World};
use crate::selectors::term_means_newcomer;
use crate::volumes;

/// The corrections so far.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// InterPodAffinity had nothing to say before, and is not asked.
    pub(crate) skips_affinity: bool,
    /// Names of the pod's claims for one pod; none if VolumeRestrictions had nothing to say before, and hears nothing.
    exclusive: Vec<String>,
    /// How many of them are taken.
    pub(crate) claims: i64,
    /// Ports of the node: address, protocol, number. Whoever goes frees them.
    pub(crate) ports: BTreeSet<(String, String, i32)>,
    pub(crate) away: Vec<Pod>,
    pub(crate) on: Vec<Pod>,
}

impl Trial {
    fn new(world: &World, pod: &Pod, node: &Node) -> Self {
        let affinity = &pod.spec.affinity;
        let own = &affinity.pod_affinity.required;
        let mut terms = own.iter().chain(&affinity.pod_anti_affinity.required);
        let kept_away = world.placed.iter().any(|other| {
            let theirs = &other.spec.affinity.pod_anti_affinity.required;
            let labels = &world.under(other).metadata.labels;
            theirs.iter().any(|term| {
                term_means_newcomer(term, &other.metadata, &pod.metadata, world)
                    && labels.contains_key(&term.topology_key)
            })
        });
        let mut exclusive = volumes::exclusive(world, pod);
        let taken = |name: &&String| volumes::is_used(world, &pod.metadata.namespace, name);
        let claims = exclusive.iter().filter(taken).count() as i64;
        if claims == 0 && !volumes::has_disks(pod) {
            exclusive.clear();
        }
        Trial {
            skips_affinity: terms.next().is_none() && !kept_away,
            exclusive,
            claims,
            ports: world.on(node).flat_map(held).collect(),
            away: Vec::new(),
            on: Vec::new(),
        }
    }

    fn users(&self, pod: &Pod) -> i64 {
        let claims = volumes::claims(pod);
        let counted = claims
            .iter()
            .filter(|(name, ephemeral)| !ephemeral && self.exclusive.contains(name));
        counted.count() as i64
    }
}

fn held(pod: &Pod) -> Vec<(String, String, i32)> {
    let or = |text: &str, default: &str| match text {
        "" => default.to_owned(),
        text => text.to_owned(),
    };
    let ports = host_ports(pod).into_iter();
    ports
        .map(|port| {
            (
                or(&port.host_ip, "0.0.0.0"),
                or(&port.protocol, "TCP"),
                port.host_port,
            )
        })
        .collect()
}

fn leave(pods: &mut Vec<Pod>, pod: &Pod) -> bool {
    let place = pods
        .iter()
        .position(|own| own.metadata.uid == pod.metadata.uid);
    place.map(|place| pods.remove(place)).is_some()
}

impl World {
    /// Pods of one node are tried for a pod from now on.
    pub(crate) fn begin_trial(&mut self, pod: &Pod, node: &Node) {
        if self.trial.is_none() {
            self.trial = Some(Trial::new(self, pod, node));
        }
    }

    pub(crate) fn try_on(&mut self, pod: &Pod) {
        self.placed.push(pod.clone());
        let trial = self.trial.as_mut().expect("a trial");
        if !leave(&mut trial.away, pod) {
            trial.on.push(pod.clone());
        }
        trial.claims += trial.users(pod);
        trial.ports.extend(held(pod));
    }

    pub(crate) fn take_off(&mut self, pod: &Pod) {
        leave(&mut self.placed, pod);
        let trial = self.trial.as_mut().expect("a trial");
        if !leave(&mut trial.on, pod) {
            trial.away.push(pod.clone());
        }
        trial.claims -= trial.users(pod);
        for port in held(pod) {
            trial.ports.remove(&port);
        }
    }
}
