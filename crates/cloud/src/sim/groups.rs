//! The placement groups of the simulated EC2.
//!
//! Invariant: a spread group has at most [`MOST_SPREAD`] instances in a zone, and a cluster group has instances in one zone.

use std::{collections::BTreeMap, sync::Arc};

use mullion_api::{account, karpenter::PlacementGroupSelector};

use super::{SimulatedEc2, State};
use crate::{
    CloudError, Instance, LaunchOption, MOST_SPREAD, Placement, PlacementGroup, PlacementStrategy,
    Shortage, image::fnv1a,
};

impl SimulatedEc2 {
    /// Replaces the placement groups, which are given by name. Instances stay where they are. A group whose strategy EC2 does
    /// not know is left out.
    pub fn group(&self, wanted: &BTreeMap<String, account::PlacementGroup>) {
        let groups = wanted.iter().filter_map(|(name, own)| {
            let strategy = match own.strategy.as_str() {
                "cluster" => PlacementStrategy::Cluster,
                "partition" => PlacementStrategy::Partition(own.partition_count.clamp(1, 7)),
                "spread" => PlacementStrategy::Spread,
                _ => return None,
            };
            Some(PlacementGroup {
                // From the name, so that instances keep their group when the groups are replaced.
                id: format!("pg-0{:016x}", fnv1a(name)).into(),
                name: name.clone(),
                strategy,
                refused: Vec::new(),
            })
        });
        self.state().groups = groups.collect();
    }

    /// Returns the placement group that a selector selects, with the launches into it that were refused lately.
    pub(super) fn selected_group(
        &self,
        selector: &PlacementGroupSelector,
    ) -> Option<PlacementGroup> {
        let state = self.state();
        let mut groups = state.groups.iter();
        let group = groups.find(|group| group.is_selected_by(selector))?;
        Some(PlacementGroup {
            refused: state.faults.refused_in(&group.id),
            ..group.clone()
        })
    }
}

impl State {
    /// Returns the placement of an instance in its placement group: `Ok(None)` if the option names no group, or the shortage
    /// if the group has no room in the option's zone.
    ///
    /// # Errors
    /// Returns an error if there is no such group.
    pub(super) fn place_in_group(
        &self,
        option: &LaunchOption,
    ) -> Result<Result<Option<Placement>, Shortage>, CloudError> {
        let Some(wanted) = &option.placement else {
            return Ok(Ok(None));
        };
        let mut groups = self.groups.iter();
        let group = groups
            .find(|group| group.id == wanted.group)
            .ok_or_else(|| {
                let id = &wanted.group;
                CloudError::Invalid(format!("The Placement Group '{id}' is unknown"))
            })?;
        let is_in = |own: &&Arc<Instance>| {
            let placement = own.placement.as_ref();
            own.state.is_alive() && placement.is_some_and(|own| own.group == group.id)
        };
        let members: Vec<&Arc<Instance>> = self.fleet.iter().filter(is_in).collect();
        let in_zone = || members.iter().filter(|own| *own.zone == *option.zone);
        let partition = match group.strategy {
            PlacementStrategy::Spread if in_zone().count() >= MOST_SPREAD => {
                return Ok(Err(Shortage::SpreadGroup));
            }
            // The first instance of a cluster group decides its zone.
            PlacementStrategy::Cluster if in_zone().count() < members.len() => {
                return Ok(Err(Shortage::Hosts {
                    elsewhere: vec![Arc::clone(&members[0].zone)],
                }));
            }
            PlacementStrategy::Spread | PlacementStrategy::Cluster => None,
            PlacementStrategy::Partition(count) => {
                let crowd = |partition: &u32| {
                    let own = in_zone().filter(|own| {
                        let placement = own.placement.as_ref();
                        placement.and_then(|own| own.partition) == Some(*partition)
                    });
                    own.count()
                };
                let emptiest = || (1..=count).min_by_key(crowd);
                wanted.partition.or_else(emptiest)
            }
        };
        Ok(Ok(Some(group.place(partition))))
    }
}
