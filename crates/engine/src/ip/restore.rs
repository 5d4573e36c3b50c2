//! Builds an interface after a restart of the controller.

use core::net::Ipv4Addr;

use super::cidr::{Cidr, Kind};
use super::event::{Listing, PodUid};
use super::interface::Interface;
use super::seats::Arrival;
use super::targets::Targets;
use super::{COOL_DOWN_MS, SETTLE_MS};

/// What a controller knows about an interface after a restart.
#[derive(Clone, Copy, Debug)]
pub struct RestartState<'a> {
    /// What EC2 has on the interface.
    pub listing: &'a Listing,
    /// The pods of the node that are not gone and have an annotation, with the address in it.
    pub pods: &'a [(PodUid, Cidr)],
    /// Addresses known to have been warm. An address that a pod got since, or that was to be given back since, must not be
    /// here: whoever keeps this list strikes an address off before giving it to a pod or back to EC2.
    pub warm: &'a [Ipv4Addr],
    /// Blocks that the controller before was giving back ([`Interface::giving_back`]). A call of it may take effect yet, so a
    /// block of these that EC2 assigns in the meantime goes to no pod until that has settled.
    pub giving_back: &'a [(Kind, Ipv4Addr)],
}

impl Interface {
    /// Returns an interface with `slots` slots and the state that was read after a restart.
    ///
    /// Addresses that no pod has rest for 30 s unless they are known to have been warm, because their pod may have gone a
    /// moment before. Calls of the controller before the restart may still be under way and a listing may miss what it did,
    /// so the interface is listed again after [`SETTLE_MS`]; until then nothing that rests becomes warm, and no pod hears
    /// that its address is lost.
    pub fn restore(
        slots: u32,
        active: Kind,
        targets: Targets,
        state: RestartState<'_>,
        now: u64,
    ) -> Self {
        let mut interface = Interface::new(slots, active, targets);
        let now = interface.time(now);
        for (pod, address) in state.pods {
            interface.absent.lose(pod.clone(), *address);
        }
        let arrival = Arrival {
            now,
            rest_until: Some(now + COOL_DOWN_MS),
            known_warm: state.warm,
        };
        for kind in Kind::ALL {
            let mut blocks = state.listing.of(kind).to_vec();
            blocks.retain(|block| kind.accepts(*block));
            let (pool, absent) = interface.pool_and_absent(kind);
            pool.listed_as(&blocks, arrival, absent);
            let doubtful = state.giving_back.iter().filter(|(of, _)| *of == kind);
            let doubtful: Vec<_> = doubtful.map(|(_, ip)| Cidr::new(*ip, 32)).collect();
            interface.recent.doubtful(kind, &doubtful, now);
        }
        interface.recent.confirm_at(now + SETTLE_MS);
        interface
    }
}
