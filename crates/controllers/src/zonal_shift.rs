//! Reads the zonal shifts of the cluster, so that nothing is bought in a zone that Amazon's Application Recovery Controller shifts it away from
//! (AWS provider: `arczonalshift`).
//!
//! Invariant: a shift counts until it ends by itself, also while the cloud does not answer.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use mullion_api::{
    karpenter::{EC2NodeClass, NodePool},
    labels,
};
use mullion_cloud::{CloudError, ZonalShift};
use tokio::time::sleep;

use crate::provisioner::{KarpenterContext, requirements::admits};

/// How often the cloud is asked.
const EVERY: Duration = Duration::from_secs(30);

/// The zonal shifts that were last read. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShiftedZones(Arc<Mutex<Vec<ZonalShift>>>);

impl ShiftedZones {
    /// Returns the ids of the zones that the cluster is shifted away from.
    pub(crate) fn at(&self, now: Timestamp) -> BTreeSet<Arc<str>> {
        let shifts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let holding = shifts.iter().filter(|shift| shift.holds_at(now));
        holding.map(|shift| Arc::clone(&shift.zone_id)).collect()
    }

    fn set(&self, shifts: Vec<ZonalShift>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = shifts;
    }
}

/// Starts reading. NodePools get events only if `tells_pools`, so that one of several processes records them.
pub(crate) fn start(karpenter: &KarpenterContext, tells_pools: bool) {
    if !karpenter.options.settings.zonal_shift {
        return;
    }
    let own = karpenter.clone();
    let run = async move {
        if !own.synced().await {
            return;
        }
        let mut before = BTreeSet::new();
        loop {
            if let Err(error) = read(&own).await {
                tracing::warn!("zonal shifts of the cluster cannot be read, will retry: {error}");
            }
            // Asked for also after a failure: a shift may have ended by itself.
            let now = own.shifted_zones.at(own.base.clock.now());
            if now != before {
                if tells_pools {
                    tell_pools(&own, &before, &now);
                }
                own.batcher.trigger("zonalshift");
                before = now;
            }
            sleep(EVERY).await;
        }
    };
    let shutdown = karpenter.base.shutdown.clone();
    karpenter.base.tasks.spawn(async move {
        shutdown.run_until_cancelled(run).await;
    });
}

async fn read(karpenter: &KarpenterContext) -> Result<(), CloudError> {
    let shifts = karpenter.cloud.zonal_shifts().await?;
    karpenter.shifted_zones.set(shifts);
    Ok(())
}

/// Records on each NodePool which of its zones are shifted away from since then, and which no more.
fn tell_pools(karpenter: &KarpenterContext, before: &BTreeSet<Arc<str>>, now: &BTreeSet<Arc<str>>) {
    let recorder = &karpenter.recorder;
    for pool in karpenter.pools.list() {
        let class = &pool.spec.template.spec.node_class_ref.name;
        let Some(class) = karpenter.classes.get("", class) else {
            continue;
        };
        for id in now.difference(before) {
            if let Some(zone) = zone_of(&pool, &class, id) {
                let text = format!(
                    "Zonal shift detected: offerings in zone {zone} ({id}) are unavailable for this NodePool"
                );
                recorder.warning(&*pool, "ZonalShiftActive", text);
            }
        }
        for id in before.difference(now) {
            if let Some(zone) = zone_of(&pool, &class, id) {
                let text = format!(
                    "Zonal shift cleared: offerings in zone {zone} ({id}) are restored for this NodePool"
                );
                recorder.normal(&*pool, "ZonalShiftCleared", text);
            }
        }
    }
}

/// Returns the name of a zone if a pool can have nodes there: its class has a subnet in it, and its requirements admit it by name and id.
fn zone_of<'a>(pool: &NodePool, class: &'a EC2NodeClass, id: &str) -> Option<&'a str> {
    let status = class.status.as_ref()?;
    let mut subnets = status.subnets.iter();
    let zone = &*subnets.find(|subnet| subnet.zone_id == id)?.zone;
    let mut requirements = pool.spec.template.spec.requirements.iter();
    let admitted = requirements.all(|own| match labels::normalized(&own.key) {
        labels::ZONE => admits(own, Some(zone)),
        labels::ZONE_ID => admits(own, Some(id)),
        _ => true,
    });
    admitted.then_some(zone)
}

#[cfg(test)]
mod tests {
    use mullion_api::karpenter::{
        EC2NodeClassSpec, EC2NodeClassStatus, NodePoolSpec, Operator, Requirement, SubnetStatus,
    };

    use super::*;

    #[test]
    fn a_pool_is_told_of_zones_that_its_class_and_requirements_admit() {
        let mut class = EC2NodeClass::new("web", EC2NodeClassSpec::default());
        class.status = Some(EC2NodeClassStatus {
            subnets: vec![SubnetStatus {
                zone: "us-west-2a".to_owned(),
                zone_id: "usw2-az1".to_owned(),
                ..SubnetStatus::default()
            }],
            ..EC2NodeClassStatus::default()
        });
        let zone = |key: &str, operator: Operator, value: &str, id: &str| {
            let mut pool = NodePool::new("web", NodePoolSpec::default());
            let requirement = Requirement::new(key, operator, [value]);
            pool.spec.template.spec.requirements = vec![requirement];
            zone_of(&pool, &class, id).map(str::to_owned)
        };
        let found = Some("us-west-2a".to_owned());
        assert_eq!(
            zone("kubernetes.io/os", Operator::In, "linux", "usw2-az1"),
            found
        );
        assert_eq!(
            zone(labels::ZONE, Operator::In, "us-west-2a", "usw2-az1"),
            found
        );
        assert_eq!(
            zone(labels::ZONE, Operator::NotIn, "us-west-2a", "usw2-az1"),
            None
        );
        assert_eq!(
            zone(labels::ZONE_ID, Operator::In, "usw2-az2", "usw2-az1"),
            None
        );
        assert_eq!(
            zone("kubernetes.io/os", Operator::In, "linux", "usw2-az2"),
            None
        );
        let old = "failure-domain.beta.kubernetes.io/zone";
        assert_eq!(zone(old, Operator::In, "us-west-2b", "usw2-az1"), None);
    }

    #[test]
    fn a_shift_holds_until_it_ends_by_itself() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let zones = ShiftedZones::default();
        let shift = |id: &str, expires| ZonalShift {
            zone_id: id.into(),
            expires,
        };
        zones.set(vec![
            shift("usw2-az1", Some(at(100))),
            shift("usw2-az2", None),
        ]);
        assert_eq!(zones.at(at(99)).len(), 2);
        assert_eq!(zones.at(at(100)), BTreeSet::from(["usw2-az2".into()]));
    }
}
