//! Placement groups.

use std::{collections::BTreeMap, time::Duration};

use aws_sdk_ec2::types::PlacementStrategy as Strategy;
use mullion_api::karpenter::PlacementGroupSelector;
use mullion_cloud::{CloudError, PlacementGroup, PlacementStrategy};
use tokio::time::Instant;

use super::{Dated, Inner, errors::Failed, filters::filter, forget_older, lock};
use crate::limits::Kind;

/// How long descriptions are used.
const DESCRIBED_FOR: Duration = Duration::from_secs(60);

/// The placement groups that selectors have found.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<String, Dated<Option<PlacementGroup>>>);

impl Inner {
    pub(super) async fn placement_group(
        &self,
        selector: &PlacementGroupSelector,
    ) -> Result<Option<PlacementGroup>, CloudError> {
        let key = format!("{selector:?}");
        let known = {
            let mut groups = lock(&self.groups);
            forget_older(&mut groups.0, DESCRIBED_FOR);
            groups.0.get(&key).map(|dated| dated.value.clone())
        };
        let found = match known {
            Some(found) => found,
            None => {
                let found = self.describe_group(selector).await?;
                let dated = Dated::now(found.clone());
                lock(&self.groups).0.insert(key, dated);
                found
            }
        };
        Ok(found.map(|group| PlacementGroup {
            refused: lock(&self.refusals).of_group(&group.id, Instant::now()),
            ..group
        }))
    }

    async fn describe_group(
        &self,
        selector: &PlacementGroupSelector,
    ) -> Result<Option<PlacementGroup>, Failed> {
        self.may(Kind::Describe).await;
        let ids = match &selector.name {
            Some(_) => None,
            None => selector.id.clone().map(|id| vec![id]),
        };
        let sent = self
            .ec2
            .describe_placement_groups()
            .set_group_names(selector.name.clone().map(|name| vec![name]))
            .set_group_ids(ids)
            .filters(filter("state", ["available"]))
            .send();
        match sent.await.map_err(Failed::of) {
            Ok(answer) => Ok(answer.placement_groups().iter().find_map(read)),
            Err(failed) if failed.is("InvalidPlacementGroup.Unknown") => Ok(None),
            Err(failed) => Err(failed),
        }
    }
}

fn read(own: &aws_sdk_ec2::types::PlacementGroup) -> Option<PlacementGroup> {
    let strategy = match own.strategy()? {
        Strategy::Cluster => PlacementStrategy::Cluster,
        Strategy::Spread => PlacementStrategy::Spread,
        Strategy::Partition => {
            let count = own.partition_count().unwrap_or(1);
            PlacementStrategy::Partition(u32::try_from(count).unwrap_or(1))
        }
        _ => return None,
    };
    Some(PlacementGroup {
        id: own.group_id()?.into(),
        name: own.group_name().unwrap_or_default().to_owned(),
        strategy,
        refused: Vec::new(),
    })
}
