//! Restores an interface after a restart of the controller.

use core::net::Ipv4Addr;

use super::block::BlockStart;
use super::cidr::{Cidr, Kind};
use super::event::{Listing, PodUid};
use super::interface::Interface;
use super::targets::Targets;
use super::{COOL_DOWN_MS, SETTLE_MS};

/// The facts that a restarted controller knows about an interface.
#[derive(Clone, Copy, Debug)]
pub struct RestartState<'a> {
    /// What EC2 has on the interface.
    pub listing: &'a Listing,
    /// The existing pods of the node that have an annotation, with the address in it.
    pub pods: &'a [(PodUid, Cidr)],
    /// Addresses that were warm before the restart. An address that has since been given to a pod or to EC2 must not be here,
    /// so whoever keeps this list removes an address before giving it away.
    pub warm: &'a [Ipv4Addr],
    /// Blocks that the previous controller was giving back ([`Interface::giving_back`]). Its calls may still take effect, so
    /// if EC2 assigns such a block in the meantime, no pod gets its addresses until that has settled.
    pub giving_back: &'a [(Kind, Ipv4Addr)],
}

impl Interface {
    /// Creates an interface with `slots` slots from the state that was read after a restart.
    ///
    /// Addresses without a pod rest for 30 s unless they are known to have been warm, because their pod may have ended a
    /// moment before. Calls of the previous controller may still be in progress and a listing may miss their effect, so the
    /// interface is listed again after [`SETTLE_MS`]. Until then no resting address becomes warm, and no pod is told that it
    /// lost its address.
    pub fn restore(
        slots: u32,
        active: Kind,
        targets: Targets,
        state: RestartState<'_>,
        now: u64,
    ) -> Self {
        let mut interface = Interface::new(slots, active, targets);
        let now = interface.time(now);
        // First as lost: when the blocks arrive below, their addresses go to the pods that hold them.
        for (pod, address) in state.pods {
            interface.absent.lose(pod.clone(), *address);
        }
        let arrival = BlockStart {
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
            // Only the address of the block is compared, so the mask does not matter.
            let doubtful: Vec<_> = doubtful.map(|(_, ip)| Cidr::new(*ip, 32)).collect();
            interface.recent.doubtful(kind, &doubtful, now);
        }
        interface.recent.confirm_at(now + SETTLE_MS);
        interface
    }
}
