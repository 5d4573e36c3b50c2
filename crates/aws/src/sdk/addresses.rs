//! Implements the calls about pod addresses on network interfaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use mullion_cloud::{
    AddressError, Addresses, BoxFuture, InstanceId, InterfaceFacts, InterfaceFound, InterfaceId,
    MOST_AT_ONCE, SubnetFacts, catalogue::InstanceType,
};
use mullion_engine::ip::{Cidr, Kind, Listing, PREFIX_SIZE};

use super::{Aws, Inner, errors::Failed, filters::filter, lock};
use crate::limits;

/// States in which an instance keeps its interfaces.
const STATES: [&str; 4] = ["pending", "running", "stopping", "stopped"];

impl Inner {
    /// Returns the CIDR block of a subnet.
    async fn cidr_of(&self, subnet: &str) -> Result<Cidr, AddressError> {
        let known = lock(&self.network).get(subnet).map(|own| own.cidr.clone());
        let cidr = match known {
            Some(cidr) => cidr,
            None => {
                let found = self.describe_subnets(vec![filter("subnet-id", [subnet])]);
                let found = found.await?.into_iter().next();
                let found = found.ok_or_else(|| AddressError::NoSubnet(subnet.to_owned()))?;
                found.cidr
            }
        };
        cidr.parse()
            .map_err(|_| AddressError::Invalid(format!("subnet {subnet} has no IPv4 addresses")))
    }

    async fn describe_interface(
        &self,
        id: &InterfaceId,
    ) -> Result<aws_sdk_ec2::types::NetworkInterface, AddressError> {
        self.may(limits::Kind::Describe).await;
        let call = self
            .ec2
            .describe_network_interfaces()
            .network_interface_ids(&*id.0);
        let answer = call.send().await.map_err(Failed::of);
        let answer = answer.map_err(|failed| failed.of_interface(id))?;
        let found = answer.network_interfaces.unwrap_or_default();
        let found = found.into_iter().next();
        found.ok_or_else(|| AddressError::NoInterface(id.clone()))
    }

    async fn listing(&self, id: &InterfaceId) -> Result<(Listing, Cidr), AddressError> {
        let own = self.describe_interface(id).await?;
        let subnet = self.cidr_of(own.subnet_id().unwrap_or_default()).await?;
        let single = own.private_ip_addresses().iter();
        let single = single.filter(|own| own.primary() != Some(true));
        let single = single.filter_map(|own| own.private_ip_address());
        let prefixes = own.ipv4_prefixes().iter();
        let prefixes = prefixes.filter_map(|own| own.ipv4_prefix());
        Ok((listed(single, prefixes, subnet), subnet))
    }
}

fn listed<'a>(
    single: impl Iterator<Item = &'a str>,
    prefixes: impl Iterator<Item = &'a str>,
    subnet: Cidr,
) -> Listing {
    let single = single.filter_map(|text| text.parse().ok());
    Listing {
        addresses: single.map(|ip| Cidr::new(ip, subnet.bits)).collect(),
        prefixes: prefixes.filter_map(|text| text.parse().ok()).collect(),
    }
}

impl Addresses for Aws {
    fn assign<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        count: u32,
    ) -> BoxFuture<'a, Result<Vec<Cidr>, AddressError>> {
        Box::pin(async move {
            let inner = &self.inner;
            // The prefix length is looked up first, so that no address is assigned that could not be returned.
            let bits = match kind {
                Kind::Prefix => 28,
                Kind::Address => {
                    let own = inner.describe_interface(interface).await?;
                    let subnet = own.subnet_id().unwrap_or_default();
                    inner.cidr_of(subnet).await?.bits
                }
            };
            let number = i32::try_from(count)
                .map_err(|_| AddressError::Invalid(format!("{count} are too many")))?;
            inner.may(limits::Kind::Change).await;
            let call = inner
                .ec2
                .assign_private_ip_addresses()
                .network_interface_id(&*interface.0);
            let call = match kind {
                Kind::Address => call.secondary_private_ip_address_count(number),
                Kind::Prefix => call.ipv4_prefix_count(number),
            };
            let answer = call.send().await.map_err(Failed::of);
            let answer = answer.map_err(|failed| failed.of_interface(interface))?;
            Ok(match kind {
                Kind::Address => answer
                    .assigned_private_ip_addresses()
                    .iter()
                    .filter_map(|own| own.private_ip_address()?.parse().ok())
                    .map(|ip| Cidr::new(ip, bits))
                    .collect(),
                Kind::Prefix => answer
                    .assigned_ipv4_prefixes()
                    .iter()
                    .filter_map(|own| own.ipv4_prefix()?.parse().ok())
                    .collect(),
            })
        })
    }

    fn give_back<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        blocks: &'a [Cidr],
    ) -> BoxFuture<'a, Result<(), AddressError>> {
        Box::pin(async move {
            self.inner.may(limits::Kind::Change).await;
            let call = self
                .inner
                .ec2
                .unassign_private_ip_addresses()
                .network_interface_id(&*interface.0);
            let blocks = blocks.iter();
            let call = match kind {
                Kind::Address => call
                    .set_private_ip_addresses(Some(blocks.map(|own| own.ip.to_string()).collect())),
                Kind::Prefix => {
                    call.set_ipv4_prefixes(Some(blocks.map(ToString::to_string).collect()))
                }
            };
            let answer = call.send().await.map_err(Failed::of);
            answer.map_err(|failed| failed.of_interface(interface))?;
            Ok(())
        })
    }

    fn list<'a>(
        &'a self,
        interface: &'a InterfaceId,
    ) -> BoxFuture<'a, Result<Listing, AddressError>> {
        Box::pin(async move {
            let (listing, _) = self.inner.listing(interface).await?;
            Ok(listing)
        })
    }

    fn interfaces_of<'a>(
        &'a self,
        instances: &'a [InstanceId],
    ) -> BoxFuture<'a, Result<Vec<InterfaceFound>, AddressError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let ids: BTreeSet<String> = instances.iter().map(ToString::to_string).collect();
            if ids.len() > MOST_AT_ONCE {
                return Err(AddressError::Invalid(format!(
                    "{} instances are too many for one call: at most {MOST_AT_ONCE}",
                    ids.len()
                )));
            }
            inner.may(limits::Kind::Describe).await;
            let mut pages = inner
                .ec2
                .describe_instances()
                // As a filter: an unknown id in the list of ids would fail the whole call.
                .filters(filter("instance-id", ids))
                .filters(filter("instance-state-name", STATES))
                .max_results(1000)
                .into_paginator()
                .send();
            let mut found: BTreeMap<String, InterfaceFound> = BTreeMap::new();
            while let Some(page) = pages.next().await {
                let page = page.map_err(Failed::of)?;
                let all = page.reservations().iter().flat_map(|own| own.instances());
                for own in all {
                    if let Some(one) = primary(inner, own).await? {
                        found.insert(one.instance.to_string(), one);
                    }
                }
            }
            let asked = instances.iter();
            // In the order of the question; terminated instances are left out.
            Ok(asked.filter_map(|id| found.remove(&*id.0)).collect())
        })
    }

    fn subnet<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<SubnetFacts, AddressError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let found = inner.describe_subnets(vec![filter("subnet-id", [id])]);
            let found = found.await?.into_iter().next();
            let subnet = found.ok_or_else(|| AddressError::NoSubnet(id.to_owned()))?;
            let cidr: Cidr = subnet
                .cidr
                .parse()
                .map_err(|_| AddressError::Invalid(format!("subnet {id} has no IPv4 addresses")))?;
            inner.may(limits::Kind::Describe).await;
            let mut pages = inner
                .ec2
                .describe_network_interfaces()
                .filters(filter("subnet-id", [id]))
                .max_results(1000)
                .into_paginator()
                .send();
            let mut taken = BTreeSet::new();
            while let Some(page) = pages.next().await {
                let page = page.map_err(Failed::of)?;
                for own in page.network_interfaces() {
                    let single = own.private_ip_addresses().iter();
                    let single = single.filter_map(|own| own.private_ip_address()?.parse().ok());
                    taken.extend(single.map(base));
                    let prefixes = own.ipv4_prefixes().iter();
                    let prefixes = prefixes.filter_map(|own| own.ipv4_prefix()?.parse().ok());
                    taken.extend(prefixes.map(|block: Cidr| base(block.ip)));
                }
            }
            Ok(SubnetFacts {
                cidr,
                free_addresses: subnet.free_addresses,
                free_prefixes: free_prefixes(cidr, &taken),
            })
        })
    }
}

/// Returns the primary interface of an instance, with its addresses.
async fn primary(
    inner: &Inner,
    own: &aws_sdk_ec2::types::Instance,
) -> Result<Option<InterfaceFound>, AddressError> {
    let name = own.instance_type().map(|own| own.as_str().to_owned());
    let name = name.unwrap_or_default();
    let interface = own.network_interfaces().iter().find(|own| {
        let device = own.attachment().and_then(|own| own.device_index());
        device == Some(0)
    });
    let (Some(id), Some(interface)) = (own.instance_id(), interface) else {
        return Ok(None);
    };
    let subnet = interface.subnet_id().unwrap_or_default();
    let instance_type: Option<Arc<InstanceType>> = inner.instance_type(&name).await;
    let primary = interface.private_ip_address();
    let primary = primary.and_then(|text| text.parse::<Ipv4Addr>().ok());
    let (Some(instance_type), Some(primary), Some(interface_id)) =
        (instance_type, primary, interface.network_interface_id())
    else {
        return Ok(None);
    };
    let subnet_cidr = inner.cidr_of(subnet).await?;
    let single = interface.private_ip_addresses().iter();
    let single = single.filter(|own| own.primary() != Some(true));
    let single = single.filter_map(|own| own.private_ip_address());
    let prefixes = interface.ipv4_prefixes().iter();
    let prefixes = prefixes.filter_map(|own| own.ipv4_prefix());
    let slots = instance_type.ipv4_per_eni.saturating_sub(1);
    Ok(Some(InterfaceFound {
        instance: InstanceId(id.into()),
        listing: listed(single, prefixes, subnet_cidr),
        facts: InterfaceFacts {
            id: InterfaceId(interface_id.into()),
            subnet: subnet.into(),
            subnet_cidr,
            primary,
            slots: usize::try_from(slots).unwrap_or_default(),
            instance_type: Arc::clone(&instance_type.name),
            nitro: instance_type.is_nitro(),
        },
    }))
}

/// Returns the number of the /28 block with an address.
fn base(ip: Ipv4Addr) -> u32 {
    ip.to_bits() / PREFIX_SIZE as u32
}

/// Returns the number of aligned /28 blocks of a subnet without used addresses. EC2 reserves the first four addresses and the last one of a
/// subnet.
fn free_prefixes(cidr: Cidr, taken: &BTreeSet<u32>) -> usize {
    let size = 1u64 << (32 - u32::from(cidr.bits));
    let first = u64::from(cidr.ip.to_bits());
    let blocks = size / PREFIX_SIZE as u64;
    let reserved = [first, first + size - 1].map(|ip| ip / PREFIX_SIZE as u64);
    let start = first / PREFIX_SIZE as u64;
    let is_free = |block: &u64| {
        let is_taken = u32::try_from(*block).is_ok_and(|block| taken.contains(&block));
        !is_taken && !reserved.contains(block)
    };
    (start..start + blocks).filter(is_free).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_free_where_nothing_is_taken() {
        let cidr: Cidr = "10.0.0.0/24".parse().expect("a block");
        let taken = |ips: &[&str]| -> BTreeSet<u32> {
            let ips = ips.iter().map(|ip| ip.parse().expect("an address"));
            ips.map(base).collect()
        };
        // There are sixteen blocks, of which the first and the last have reserved addresses.
        assert_eq!(free_prefixes(cidr, &taken(&[])), 14);
        let some = ["10.0.0.17", "10.0.0.18", "10.0.0.32", "10.0.0.5"];
        assert_eq!(free_prefixes(cidr, &taken(&some)), 12);
        let small: Cidr = "10.0.0.0/28".parse().expect("a block");
        assert_eq!(free_prefixes(small, &taken(&[])), 0);
    }

    #[test]
    fn what_is_on_an_interface_has_the_mask_of_the_subnet() {
        let subnet = "10.0.0.0/18".parse().expect("a block");
        let single = ["10.0.0.7", "10.0.0.9"].into_iter();
        let listing = listed(single, ["10.0.0.32/28"].into_iter(), subnet);
        let addresses: Vec<_> = listing.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.7/18", "10.0.0.9/18"]);
        assert_eq!(listing.prefixes[0].to_string(), "10.0.0.32/28");
    }
}
