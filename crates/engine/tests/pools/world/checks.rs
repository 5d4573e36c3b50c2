//! What must hold of every call, every answer and every interface, and of all of them when they have come to rest.

use mullion_engine::ip::{COOL_DOWN_MS, Call, Cidr, Kind, PodUid};

use super::{Checked, Flying, Pod, World};

impl World {
    pub(super) fn check_call(&self, node: usize, call: &Call) -> Checked {
        let same =
            |flying: &Flying| std::mem::discriminant(&flying.call) == std::mem::discriminant(call);
        if self.nodes[node].flying.iter().any(same) {
            return Err(format!("a second call of one kind: {call:?}"));
        }
        match call {
            Call::Assign { count, .. }
                if *count == 0 || *count as usize > self.ec2.nics[node].slots =>
            {
                Err(format!("asks for {count} blocks"))
            }
            Call::GiveBack { kind, blocks } => {
                let holds = |cidr: Cidr| {
                    let base = cidr.ip.to_bits() - cidr.ip.to_bits() % kind.size() as u32;
                    blocks.iter().any(|block| block.ip.to_bits() == base)
                };
                let on = |pod: &&Pod| pod.node == node && pod.address.is_some_and(holds);
                match self.pods.values().find(on) {
                    Some(pod) => Err(format!("gives back the address of {pod:?}")),
                    None if blocks.is_empty() => Err("gives back nothing".into()),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check_given(&self, node: usize, uid: &PodUid, address: Cidr) -> Checked {
        for pod in self.pods.values().filter(|pod| pod.uid != *uid) {
            if pod.address.is_some_and(|other| other.ip == address.ip) {
                return Err(format!("{uid} gets {address}, which {} has", pod.uid));
            }
        }
        let has = |pod: &&Pod| pod.uid == *uid && pod.address.is_some();
        if let Some(pod) = self.pods.values().find(has) {
            let same = pod.address.is_some_and(|has| has.ip == address.ip);
            return if same {
                Ok(())
            } else {
                Err(format!("{uid} has {:?} and gets {address}", pod.address))
            };
        }
        let nic = &self.ec2.nics[node];
        // Nobody can know when an address was released that was taken away and came back while the controller was dead.
        let forgotten = |released: &u64| {
            nic.ever_stolen.contains(&address.ip.to_bits()) && *released <= self.nodes[node].started
        };
        if let Some(released) = self.released.get(&address.ip)
            && self.time < released + COOL_DOWN_MS
            && !forgotten(released)
        {
            return Err(format!(
                "{uid} gets {address} {} ms after its release",
                self.time - released
            ));
        }
        if !nic.has(address.ip) && !nic.stolen.contains(&address.ip.to_bits()) {
            return Err(format!(
                "{uid} gets {address}, which is not on the interface"
            ));
        }
        Ok(())
    }

    pub(super) fn check_slots(&self, node: usize) -> Checked {
        let interface = &self.nodes[node].interface;
        let held: usize = Kind::ALL
            .iter()
            .map(|kind| interface.pool(*kind).slots())
            .sum();
        let slots = self.ec2.nics[node].slots;
        if held > slots && !self.thefts {
            Err(format!("holds {held} of {slots} slots"))
        } else {
            Ok(())
        }
    }

    pub(super) fn check_at_rest(&mut self, node: usize) -> Checked {
        let (interface, nic) = (&self.nodes[node].interface, &self.ec2.nics[node]);
        for kind in Kind::ALL {
            let ours: Vec<u32> = interface
                .pool(kind)
                .blocks()
                .map(|(block, _)| block.ip.to_bits())
                .collect();
            if !ours.iter().eq(nic.blocks(kind)) {
                return Err(format!("has {ours:x?} and EC2 has {:x?}", nic.blocks(kind)));
            }
        }
        let counts = interface.counts();
        if counts.creating + counts.deleting + counts.cooling > 0 {
            return Err(format!("is not at rest: {counts:?}"));
        }
        let active = interface.active();
        let can_assign = !self.ec2.assignable(node, active).is_empty();
        let ready = interface.pool(active).counts().warm;
        let pinned = Kind::ALL
            .iter()
            .map(|kind| interface.pool(*kind).used_slots())
            .sum::<usize>();
        if interface.waiting().len() > 0 && (ready > 0 || (pinned < nic.slots && can_assign)) {
            return Err(format!(
                "{} pods wait beside {ready} addresses and {pinned} used slots",
                interface.waiting().len()
            ));
        }
        if interface.wake_at().is_some() && can_assign {
            return Err(format!(
                "wants to be woken at {:?} though nothing changes",
                interface.wake_at()
            ));
        }
        for pod in self.pods.values().filter(|pod| pod.node == node) {
            let waits = interface.waiting().any(|waiting| waiting.pod == pod.uid);
            match pod.address {
                None if !waits => {
                    return Err(format!("{} neither waits nor has an address", pod.uid));
                }
                Some(address) if !nic.has(address.ip) && !pod.heard_of_loss => {
                    return Err(format!("{} has not heard that {address} is gone", pod.uid));
                }
                Some(address)
                    if interface.address_of(&pod.uid).map(|ours| ours.ip) != Some(address.ip) =>
                {
                    return Err(format!(
                        "{} has {address}, which the interface does not know",
                        pod.uid
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
