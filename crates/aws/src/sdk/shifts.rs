//! Zonal shifts of the cluster, by Amazon's Application Recovery Controller.

use aws_sdk_arczonalshift::types::{AppliedStatus, ZonalShiftInResource};
use jiff::Timestamp;
use mullion_cloud::{CloudError, ZonalShift};

use super::{Inner, errors::Failed};
use crate::limits::Kind;

impl Inner {
    /// Returns the zonal shifts that are applied to the cluster now.
    pub(super) async fn zonal_shifts(&self) -> Result<Vec<ZonalShift>, CloudError> {
        let arn = self.cluster_arn.get_or_try_init(|| self.describe_arn());
        let arn = arn.await?;
        self.may(Kind::Other).await;
        let call = self.arc.get_managed_resource().resource_identifier(arn);
        let answer = call.send().await.map_err(Failed::of)?;
        Ok(answer.zonal_shifts().iter().filter_map(read).collect())
    }

    /// Returns the cluster's ARN, by which ARC knows it.
    async fn describe_arn(&self) -> Result<String, Failed> {
        self.may(Kind::Other).await;
        let name = &self.settings.cluster.name;
        let call = self.eks.describe_cluster().name(name);
        let answer = call.send().await.map_err(Failed::of)?;
        let arn = answer.cluster().and_then(|own| own.arn());
        arn.map(str::to_owned).ok_or_else(|| Failed {
            code: None,
            message: format!("EKS describes cluster {name:?} without its ARN"),
        })
    }
}

/// Reads a shift; `None` if it is not applied, because another one is.
fn read(own: &ZonalShiftInResource) -> Option<ZonalShift> {
    let expires = Timestamp::from_second(own.expiry_time().secs()).ok();
    (*own.applied_status() == AppliedStatus::Applied).then(|| ZonalShift {
        zone_id: own.away_from().into(),
        expires,
    })
}
