//! Offerings that are known not to be had at the moment, for a reason that the cloud does not show in its offers.

use std::{collections::BTreeSet, sync::Arc};

use mullion_cloud::{LaunchOption, Offering, catalogue::InstanceType};

use super::{Market, launch_option};

impl Market {
    /// Makes the offerings of zones unavailable, which are given by their ids.
    pub fn without_zones(self, zone_ids: &BTreeSet<Arc<str>>) -> Self {
        if zone_ids.is_empty() {
            self
        } else {
            self.closing(|_, offering| zone_ids.contains(&offering.zone_id))
        }
    }

    /// Makes the offerings in zones of these names unavailable.
    pub fn without_zones_named(self, zones: &BTreeSet<String>) -> Self {
        if zones.is_empty() {
            self
        } else {
            self.closing(|_, offering| zones.contains(&*offering.zone))
        }
    }

    /// Makes the offerings unavailable whose launches the cloud would refuse.
    pub fn without_refused(self, is_refused: impl Fn(&LaunchOption) -> bool) -> Self {
        self.closing(|kind, offering| is_refused(&launch_option(kind, offering, None)))
    }

    fn closing(mut self, is_closed: impl Fn(&InstanceType, &Offering) -> bool) -> Self {
        let mut offers = self.offers.to_vec();
        for offer in &mut offers {
            let kind = &offer.instance_type;
            let offerings = offer.offerings.iter_mut();
            for offering in offerings.filter(|own| is_closed(kind, own)) {
                offering.available = false;
            }
        }
        self.offers = offers.into();
        self
    }
}
