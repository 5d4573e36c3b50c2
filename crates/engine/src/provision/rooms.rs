//! What the options of a pool have for pods once the pods of DaemonSets run there: resources and host ports.
//!
//! A DaemonSet counts on an option if the static filters let its pods run there, so one for another architecture, operating
//! system or zone takes nothing (Karpenter 1.14 counts per instance type, over all its zones).

use std::collections::BTreeMap;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use crate::class::{HostPort, PodClassId};
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::model::ResourceMap;
use crate::resources::Amounts;

use super::Unplaceable;
use super::catalog::Catalog;
use super::room_table::RoomTable;

/// The resources and ports of a machine that pods can have.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Room {
    pub(super) type_index: usize,
    /// The resources that DaemonSets take.
    pub(super) daemons: Amounts,
    /// The resources left for other pods; negative if the DaemonSets' own pods do not fit.
    pub(super) free: Amounts,
    /// The host ports that DaemonSets take.
    pub(super) ports: Vec<HostPort>,
}

impl Catalog {
    /// Computes what each option has left after the pods of the DaemonSets that run on it.
    ///
    /// # Errors
    /// Returns an error if a type has a negative amount of a resource.
    pub(super) fn make_rooms(
        &mut self,
        daemons: &[PodClassId],
        cluster: &mut Cluster,
    ) -> Result<(), ModelError> {
        let mut allocatable = Vec::with_capacity(self.types.len());
        for spec in &self.types {
            allocatable.push(Amounts::read(
                &spec.allocatable,
                &spec.name,
                cluster.names_mut(),
            )?);
        }
        let runs: Vec<FixedBitSet> = daemons
            .iter()
            .map(|class| self.verdicts(*class, cluster).fits.clone())
            .collect();
        // Options of a type on which the same DaemonSets run have equal room, so they share one.
        let mut known: FxHashMap<(usize, Vec<usize>), usize> = FxHashMap::default();
        for index in 0..self.options.len() {
            let type_index = self.options[index].type_index;
            let on_it: Vec<usize> = (0..daemons.len())
                .filter(|daemon| runs[*daemon].contains(index))
                .collect();
            let room = *known
                .entry((type_index, on_it))
                .or_insert_with_key(|(_, on_it)| {
                    let mut taken = Amounts::default();
                    let mut ports = Vec::new();
                    for daemon in on_it {
                        let shape = &cluster.class(daemons[*daemon]).shape;
                        taken.add(&shape.requests.real);
                        taken.pods += 1;
                        ports.extend(&shape.host_ports);
                    }
                    let mut free = allocatable[type_index].clone();
                    free.subtract(&taken);
                    self.rooms.push(Room {
                        type_index,
                        daemons: taken,
                        free,
                        ports,
                    });
                    self.rooms.len() - 1
                });
            self.options[index].room = room;
        }
        let selects = |class: &PodClassId| cluster.class(*class).shape.selects_by(&self.undecided);
        self.daemons_select_open_labels = daemons.iter().any(selects);
        self.daemons_hold_ports = self.rooms.iter().any(|room| !room.ports.is_empty());
        // Pods with a DaemonSet's rules must not share its verdicts: those know no ports, and are of options before they are sorted.
        self.forget_verdicts();
        Ok(())
    }

    /// Returns the amounts that every one of the options has at least; zero if there are no options.
    pub(super) fn least(&self, options: &FixedBitSet) -> Amounts {
        // Thousands of options share a few rooms, so rooms are compared and not options.
        let mut rooms = FixedBitSet::with_capacity(self.rooms.len());
        rooms.extend(options.ones().map(|option| self.options[option].room));
        let mut rooms = rooms.ones().map(|room| &self.rooms[room].free);
        let mut least = rooms.next().cloned().unwrap_or_default();
        rooms.for_each(|free| least.minimize(free));
        least
    }

    /// Returns those of the options that have room for `requests` beside their DaemonSets' pods.
    pub(super) fn holding(&self, options: &FixedBitSet, requests: &Amounts) -> FixedBitSet {
        let rooms = self.room_table.get_or_init(|| {
            RoomTable::of(self.options.len(), 4, |option, resource| {
                native(&self.room_of(option).free)[resource]
            })
        });
        let mut holding = options.clone();
        rooms.keep_holding(&native(requests), &mut holding);
        if !requests.scalars.is_empty() {
            let holds = |option: usize| requests.exceeds(&self.room_of(option).free).is_none();
            let others: Vec<usize> = holding.ones().filter(|option| !holds(*option)).collect();
            others
                .into_iter()
                .for_each(|other| holding.set(other, false));
        }
        holding
    }
}

/// Returns the amounts of the native resources.
fn native(amounts: &Amounts) -> [i64; 4] {
    [
        amounts.cpu_milli,
        amounts.memory_bytes,
        amounts.ephemeral_bytes,
        amounts.pods,
    ]
}

/// Returns the most that DaemonSets take of a node of each pool; nothing if no pool refused a pod.
pub(super) fn of_refusals(
    unplaceable: &[Unplaceable],
    catalogs: &[Catalog],
    cluster: &Cluster,
) -> BTreeMap<String, ResourceMap> {
    let mut refusals = unplaceable.iter().flat_map(|pod| &*pod.pools);
    if refusals.next().is_none() {
        return BTreeMap::new();
    }
    let most = |catalog: &Catalog| {
        let mut most = Amounts::default();
        for room in &catalog.rooms {
            most.maximize(&room.daemons);
        }
        (catalog.pool.clone(), most.to_map(cluster.names()))
    };
    catalogs.iter().map(most).collect()
}
