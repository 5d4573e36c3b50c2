//! Metrics about the offerings of instance types for the pools' classes, with their prices.
//!
//! Reading metrics makes no calls to the cloud. Plans read the offers often, and the last ones are reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mullion_api::{karpenter::NodePool, labels};

use super::{Metric, Numbers, series};
use crate::provisioner::market::Market;

/// The last market of each NodeClass, by the class's name. Cheap to clone; all clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::provisioner) struct Markets(Arc<Mutex<BTreeMap<String, Market>>>);

impl Markets {
    /// Replaces a class's market.
    pub(in crate::provisioner) fn keep(&self, class: String, market: Market) {
        self.lock().insert(class, market);
    }

    /// Adds the offerings for these pools, and drops the markets of classes that no pool uses (AWS provider:
    /// `cloudprovider.metrics`).
    pub(super) fn add(&self, numbers: &mut Numbers, pools: &[Arc<NodePool>], has_reserved: bool) {
        let class = |pool: &Arc<NodePool>| pool.spec.template.spec.node_class_ref.name.clone();
        let classes: BTreeSet<String> = pools.iter().map(class).collect();
        let mut markets = self.lock();
        markets.retain(|class, _| classes.contains(class));
        for market in markets.values() {
            add(numbers, market, has_reserved);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Market>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(numbers: &mut Numbers, market: &Market, has_reserved: bool) {
    for (instance_type, offerings) in market.sold() {
        let name = &*instance_type.name;
        let memory = instance_type.memory_mib as f64 * 1024.0 * 1024.0;
        for (metric, value) in [
            (Metric::TypeCpu, instance_type.vcpus as f64),
            (Metric::TypeMemory, memory),
        ] {
            let own = series(&[("instance_type", name)]);
            numbers.entry(metric).or_default().insert(own, value);
        }
        let mut zones = BTreeSet::new();
        let mut offer = |capacity_type: &str, zone: &str, is_available: bool, price: f64| {
            let own = series(&[
                ("capacity_type", capacity_type),
                ("instance_type", name),
                ("zone", zone),
            ]);
            // Nodes of several classes may be bought as this, by several systems: then it can be had if one has it, and the
            // highest price is shown.
            for (metric, value) in [
                (Metric::OfferingAvailable, f64::from(u8::from(is_available))),
                (Metric::OfferingPrice, price),
            ] {
                let known = numbers.entry(metric).or_default();
                let known = known.entry(own.clone()).or_default();
                *known = known.max(value);
            }
        };
        for own in offerings {
            let price = own.price.0 as f64 / 1e6;
            offer(own.capacity_type.as_str(), &own.zone, own.available, price);
            zones.insert(&*own.zone);
        }
        // While the gate is on, every type has an entry for reserved capacity; it is available only through a
        // reservation.
        for zone in zones.into_iter().filter(|_| has_reserved) {
            offer(labels::RESERVED, zone, false, 0.0);
        }
    }
}
