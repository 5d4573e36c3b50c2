//! Subnets and security groups, and the choice of a launch's subnet in each zone.
//!
//! Invariant: a launch reduces the known free addresses of its subnet at once, before EC2 reports it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mullion_cloud::{CloudError, SecurityGroup, Subnet, TagSelector};

use super::{
    Dated, Inner,
    errors::Failed,
    filters::{filter, of_selectors, tag_map},
    lock,
};
use crate::limits::Kind;

/// The time for which the free addresses of a subnet are used (AWS provider: `AvailableIPAddressTTL`).
const SUBNETS_FOR: Duration = Duration::from_secs(300);
/// The tag by which subnets and security groups of a cluster are found if none are named.
pub(super) const DISCOVERY: &str = "karpenter.sh/discovery";

/// The known subnets by id.
#[derive(Debug, Default)]
pub(super) struct Network {
    subnets: BTreeMap<String, Dated<Subnet>>,
}

impl Network {
    fn learn(&mut self, subnets: &[Subnet]) {
        for subnet in subnets {
            let dated = Dated::now(subnet.clone());
            self.subnets.insert(subnet.id.to_string(), dated);
        }
    }

    /// Returns the subnet with the most free addresses in each zone.
    fn best(&self, ids: &[Arc<str>]) -> BTreeMap<Arc<str>, Subnet> {
        let mut best: BTreeMap<Arc<str>, Subnet> = BTreeMap::new();
        let subnets = ids.iter().filter_map(|id| self.subnets.get(&**id));
        for Dated { value: subnet, .. } in subnets {
            let zone = best.get(&subnet.zone);
            // As Karpenter does, so that the subnets of a zone fill evenly.
            if zone.is_none_or(|other| other.free_addresses < subnet.free_addresses) {
                best.insert(Arc::clone(&subnet.zone), subnet.clone());
            }
        }
        best
    }

    /// Counts an address as used.
    pub(super) fn take(&mut self, id: &str) {
        if let Some(known) = self.subnets.get_mut(id) {
            known.value.free_addresses = known.value.free_addresses.saturating_sub(1);
        }
    }

    /// Records that a subnet has no free address, as EC2 has reported.
    pub(super) fn is_full(&mut self, id: &str) {
        if let Some(known) = self.subnets.get_mut(id) {
            known.value.free_addresses = 0;
        }
    }

    /// Returns a known subnet, however old; id, zone and CIDR block never change.
    pub(super) fn get(&self, id: &str) -> Option<&Subnet> {
        self.subnets.get(id).map(|known| &known.value)
    }

    fn fresh(&self, id: &str) -> bool {
        let known = self.subnets.get(id);
        known.is_some_and(|known| known.younger_than(SUBNETS_FOR).is_some())
    }
}

/// Converts EC2's description of a subnet.
fn read(subnet: &aws_sdk_ec2::types::Subnet) -> Option<Subnet> {
    Some(Subnet {
        id: subnet.subnet_id()?.into(),
        zone: subnet.availability_zone()?.into(),
        zone_id: subnet.availability_zone_id().unwrap_or_default().into(),
        cidr: subnet.cidr_block().unwrap_or_default().to_owned(),
        free_addresses: subnet
            .available_ip_address_count()
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or_default(),
        tags: tag_map(subnet.tags()),
    })
}

impl Inner {
    /// Describes the subnets that match filters; without filters, all of the region.
    pub(super) async fn describe_subnets(
        &self,
        filters: Vec<aws_sdk_ec2::types::Filter>,
    ) -> Result<Vec<Subnet>, Failed> {
        self.may(Kind::Describe).await;
        let filters = (!filters.is_empty()).then_some(filters);
        let mut pages = self
            .ec2
            .describe_subnets()
            .set_filters(filters)
            .max_results(500)
            .into_paginator()
            .send();
        let mut found = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(Failed::of)?;
            found.extend(page.subnets().iter().filter_map(read));
        }
        lock(&self.network).learn(&found);
        Ok(found)
    }

    pub(super) async fn subnets(
        &self,
        selectors: &[TagSelector],
    ) -> Result<Vec<Subnet>, CloudError> {
        let mut all: BTreeMap<Arc<str>, Subnet> = BTreeMap::new();
        for filters in of_selectors(selectors, "subnet-id", "tag:Name") {
            let found = self.describe_subnets(filters).await?;
            let chosen = found.into_iter().filter(|subnet| {
                let name = subnet.tags.get("Name").map_or("", String::as_str);
                let mut selectors = selectors.iter();
                selectors.any(|own| own.matches(&subnet.id, name, &subnet.tags))
            });
            all.extend(chosen.map(|subnet| (Arc::clone(&subnet.id), subnet)));
        }
        let mut all: Vec<_> = all.into_values().collect();
        all.sort_by(|a, b| {
            let free = b.free_addresses.cmp(&a.free_addresses);
            free.then_with(|| a.id.cmp(&b.id))
        });
        Ok(all)
    }

    pub(super) async fn security_groups(
        &self,
        selectors: &[TagSelector],
    ) -> Result<Vec<SecurityGroup>, CloudError> {
        let mut all: BTreeMap<Arc<str>, SecurityGroup> = BTreeMap::new();
        for filters in of_selectors(selectors, "group-id", "group-name") {
            self.may(Kind::Describe).await;
            let mut pages = self
                .ec2
                .describe_security_groups()
                .set_filters(Some(filters))
                .max_results(500)
                .into_paginator()
                .send();
            while let Some(page) = pages.next().await {
                let page = page.map_err(Failed::of)?;
                for group in page.security_groups() {
                    let Some(id) = group.group_id() else { continue };
                    let found = SecurityGroup {
                        id: id.into(),
                        name: group.group_name().unwrap_or_default().to_owned(),
                        tags: tag_map(group.tags()),
                    };
                    let mut selectors = selectors.iter();
                    if selectors.any(|own| own.matches(id, &found.name, &found.tags)) {
                        all.insert(Arc::clone(&found.id), found);
                    }
                }
            }
        }
        Ok(all.into_values().collect())
    }

    /// Returns the subnet that a launch may use in each zone: one of the named subnets, else one with the cluster's discovery tag.
    pub(super) async fn launch_subnets(
        &self,
        named: &[Arc<str>],
    ) -> Result<BTreeMap<Arc<str>, Subnet>, CloudError> {
        let found: Vec<Arc<str>>;
        let ids: &[Arc<str>] = if named.is_empty() {
            let subnets = self.subnets(&[self.of_cluster()]).await?;
            found = subnets.into_iter().map(|subnet| subnet.id).collect();
            &found
        } else {
            // In a block, so that the lock is released before the call.
            let unknown: Vec<String> = {
                let network = lock(&self.network);
                let unknown = named.iter().filter(|id| !network.fresh(id));
                unknown.map(|id| id.to_string()).collect()
            };
            if !unknown.is_empty() {
                self.describe_subnets(vec![filter("subnet-id", unknown)])
                    .await?;
            }
            named
        };
        Ok(lock(&self.network).best(ids))
    }

    /// Returns a selector for objects with the cluster's discovery tag.
    pub(super) fn of_cluster(&self) -> TagSelector {
        let name = self.settings.cluster.name.clone();
        TagSelector {
            tags: BTreeMap::from([(DISCOVERY.to_owned(), name)]),
            ..TagSelector::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_uses_the_emptiest_subnet_of_a_zone_and_counts_at_once() {
        let subnet = |id: &str, zone: &str, free_addresses| Subnet {
            id: id.into(),
            zone: zone.into(),
            zone_id: zone.into(),
            cidr: "10.0.0.0/24".to_owned(),
            free_addresses,
            tags: BTreeMap::new(),
        };
        let mut network = Network::default();
        network.learn(&[
            subnet("s-1", "a", 5),
            subnet("s-2", "a", 6),
            subnet("s-3", "b", 1),
            subnet("s-4", "a", 100),
        ]);
        let ids: Vec<Arc<str>> = ["s-1", "s-2", "s-3"].map(Into::into).into();
        let best = |network: &Network| {
            let best = network.best(&ids).into_values();
            best.map(|subnet| subnet.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(best(&network), ["s-2", "s-3"]);
        network.take("s-2");
        network.take("s-2");
        assert_eq!(best(&network), ["s-1", "s-3"]);
        network.is_full("s-1");
        assert_eq!(best(&network), ["s-2", "s-3"]);
    }
}
