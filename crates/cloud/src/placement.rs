//! Placement groups, which decide how close together EC2 places the instances of a group.

use std::{fmt, sync::Arc};

use mullion_api::{karpenter::PlacementGroupSelector, labels};
use serde::{Deserialize, Serialize};

use crate::{LaunchOption, catalogue::InstanceType};

/// The maximum number of instances of a spread group in one zone (EC2).
pub const MOST_SPREAD: usize = 7;

/// How a group places its instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlacementStrategy {
    /// Close together, in one zone.
    Cluster,
    /// In this many partitions, which share no hardware.
    Partition(u32),
    /// Each instance on its own hardware.
    Spread,
}

/// A placement group as EC2 describes it (DescribePlacementGroups).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementGroup {
    /// EC2's id, `pg-0123456789abcdef0`.
    pub id: Arc<str>,
    /// Name.
    pub name: String,
    /// The way in which it places instances.
    pub strategy: PlacementStrategy,
    /// Recent launches into the group that EC2 refused.
    pub refused: Vec<LaunchOption>,
}

impl PlacementGroup {
    /// Returns whether a class's selector selects the group, by its name or else by its id.
    pub fn is_selected_by(&self, selector: &PlacementGroupSelector) -> bool {
        match (&selector.name, &selector.id) {
            (Some(name), _) => *name == self.name,
            (None, Some(id)) => **id == *self.id,
            (None, None) => false,
        }
    }

    /// Returns whether instances of a type can be in the group: burstable types and the flex types cannot be in a cluster group.
    pub fn admits(&self, instance_type: &InstanceType) -> bool {
        let parts = instance_type.parts();
        let is_shared = parts.category == Some("t") || parts.family.contains("-flex");
        self.strategy != PlacementStrategy::Cluster || !is_shared
    }

    /// Returns the places that planned nodes can have: each partition, or the group as a whole.
    pub fn places(&self) -> Vec<Placement> {
        match self.strategy {
            PlacementStrategy::Partition(count) => {
                let partitions = (1..=count).map(Some);
                partitions.map(|partition| self.place(partition)).collect()
            }
            PlacementStrategy::Cluster | PlacementStrategy::Spread => vec![self.place(None)],
        }
    }

    /// Returns the placement in a partition. With `None` EC2 chooses the partition, if the group has any.
    pub fn place(&self, partition: Option<u32>) -> Placement {
        Placement {
            group: Arc::clone(&self.id),
            partition,
        }
    }

    /// Returns whether a launch of this option was refused recently, in the same partition or in one that EC2 chose.
    pub fn has_refused(&self, option: &LaunchOption) -> bool {
        self.refused.iter().any(|own| {
            let partition = own.placement.as_ref().and_then(|own| own.partition);
            let wanted = option.placement.as_ref().and_then(|own| own.partition);
            own.instance_type == option.instance_type
                && own.zone == option.zone
                && own.capacity_type == option.capacity_type
                && own.reservation == option.reservation
                // A refusal where EC2 chose the partition means that no partition had room.
                && (partition.is_none() || partition == wanted)
        })
    }
}

/// The placement of an instance in a placement group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Id of the group.
    pub group: Arc<str>,
    /// The partition, from 1 on; `None` if EC2 chooses it or the group has no partitions.
    pub partition: Option<u32>,
}

impl Placement {
    /// Returns the labels of a node with this placement.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, String)> {
        let partition = self.partition.map(|number| number.to_string());
        [(labels::PLACEMENT_GROUP_ID, self.group.to_string())]
            .into_iter()
            .chain(partition.map(|number| (labels::PLACEMENT_GROUP_PARTITION, number)))
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            Some(partition) => write!(f, "partition {partition} of {}", self.group),
            None => f.write_str(&self.group),
        }
    }
}
