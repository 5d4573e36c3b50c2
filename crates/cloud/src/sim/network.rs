//! The VPC: one subnet in each zone, with a limited number of addresses, and the security groups.
//!
//! Invariant: an address belongs to at most one instance ([`super::subnet`]).

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use mullion_engine::ip::Kind;

use super::{Random, SMALLEST_SUBNET, Zone, largest_subnet, subnet::SubnetState};
use crate::{SecurityGroup, Subnet, TagSelector, subnet_for_launch};

/// Prefix length of each subnet if there are at most four, which then fill the VPC's /16.
const SUBNET_BITS: u8 = 18;
/// EKS creates two network interfaces of the control plane in the cluster's subnets.
const CONTROL_PLANE_INTERFACES: usize = 2;

/// The place of a new instance in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) subnet: Arc<str>,
    pub(super) prefix_len: u8,
    pub(super) address: Ipv4Addr,
}

pub(super) struct Network {
    subnets: Vec<SubnetState>,
    /// The group of the cluster's nodes, and the default group of the VPC.
    security_groups: [SecurityGroup; 2],
}

impl Network {
    pub(super) fn new(
        cluster: &str,
        zones: &[Zone],
        bits: Option<u8>,
        tags: &BTreeMap<String, String>,
        random: &mut Random,
    ) -> Self {
        let tagged = |name: String| {
            let mut tags = tags.clone();
            tags.insert("Name".into(), name);
            tags.insert(format!("kubernetes.io/cluster/{cluster}"), "shared".into());
            tags
        };
        let largest = largest_subnet(zones.len());
        // Larger subnets than these would overlap or leave the VPC.
        let bits = bits.unwrap_or(SUBNET_BITS).clamp(largest, SMALLEST_SUBNET);
        let subnets = zones
            .iter()
            .enumerate()
            .map(|(index, zone)| {
                let offset = (index as u32) << (32 - bits);
                let first = Ipv4Addr::new(10, 0, 0, 0).to_bits() + offset;
                let subnet = Subnet {
                    id: random.id("subnet").into(),
                    zone: Arc::clone(&zone.name),
                    zone_id: Arc::clone(&zone.id),
                    cidr: String::new(),
                    free_addresses: 0,
                    tags: tagged(format!("{cluster}/SubnetPrivate{}", zone.name)),
                };
                SubnetState::new(subnet, Ipv4Addr::from_bits(first), bits)
            })
            .collect();
        let of_nodes = SecurityGroup {
            id: random.id("sg").into(),
            name: format!("{cluster}-node"),
            tags: tagged(format!("{cluster}/ClusterSharedNodeSecurityGroup")),
        };
        let of_vpc = SecurityGroup {
            id: another(&of_nodes.id).into(),
            name: "default".into(),
            tags: BTreeMap::new(),
        };
        Self {
            subnets,
            security_groups: [of_nodes, of_vpc],
        }
    }

    /// Returns the security groups that any of the selectors selects.
    pub(super) fn select_groups(&self, selectors: &[TagSelector]) -> Vec<SecurityGroup> {
        let groups = self.security_groups.iter();
        let is_chosen = |group: &&SecurityGroup| {
            let mut selectors = selectors.iter();
            selectors.any(|own| own.matches(&group.id, &group.name, &group.tags))
        };
        groups.filter(is_chosen).cloned().collect()
    }

    /// Returns all security groups: that of the cluster's nodes, and the VPC's default one.
    pub(super) fn groups(&self) -> &[SecurityGroup; 2] {
        &self.security_groups
    }

    /// Returns the id of the security group of the cluster's nodes.
    pub(super) fn node_group(&self) -> &Arc<str> {
        &self.security_groups[0].id
    }

    pub(super) fn select(&self, selectors: &[TagSelector]) -> Vec<Subnet> {
        let mut chosen: Vec<_> = self
            .subnets
            .iter()
            .map(|state| &state.subnet)
            .filter(|subnet| {
                selectors
                    .iter()
                    .any(|selector| selector.matches(&subnet.id, "", &subnet.tags))
            })
            .cloned()
            .collect();
        chosen.sort_by(|a, b| {
            b.free_addresses
                .cmp(&a.free_addresses)
                .then(a.id.cmp(&b.id))
        });
        chosen
    }

    /// Allocates an address in the zone, from the subnet with the most free ones; an empty `allowed` means any subnet. Returns `None` if
    /// all are full.
    pub(super) fn take(
        &mut self,
        zone: &str,
        allowed: &[Arc<str>],
        random: &mut Random,
    ) -> Option<Place> {
        let candidates = self
            .subnets
            .iter_mut()
            .filter(|state| &*state.subnet.zone == zone)
            .filter(|state| allowed.is_empty() || allowed.contains(&state.subnet.id));
        let state = subnet_for_launch(candidates, |state| state.subnet.free_addresses)?;
        let address = state.take(Kind::Address, random)?;
        Some(Place {
            subnet: Arc::clone(&state.subnet.id),
            prefix_len: state.cidr().bits,
            address,
        })
    }

    /// Returns every subnet.
    pub(super) fn subnets(&self) -> impl Iterator<Item = &SubnetState> {
        self.subnets.iter()
    }

    pub(super) fn subnet(&self, id: &str) -> Option<&SubnetState> {
        self.subnets.iter().find(|state| &*state.subnet.id == id)
    }

    pub(super) fn subnet_mut(&mut self, id: &str) -> Option<&mut SubnetState> {
        self.subnets
            .iter_mut()
            .find(|state| &*state.subnet.id == id)
    }

    /// Marks an address or block of a subnet as used; returns false if that is impossible.
    pub(super) fn take_back(&mut self, subnet: &str, kind: Kind, first: Ipv4Addr) -> bool {
        self.subnet_mut(subnet)
            .is_some_and(|state| state.take_back(kind, first))
    }

    /// Allocates and returns the addresses of the control plane's network interfaces: the highest address of a subnet, in up to two zones.
    pub(super) fn control_plane(&mut self) -> Vec<Ipv4Addr> {
        let subnets = self.subnets.iter_mut().take(CONTROL_PLANE_INTERFACES);
        subnets.map(SubnetState::take_last).collect()
    }

    pub(super) fn give_back(&mut self, subnet: &str, kind: Kind, first: Ipv4Addr) {
        if let Some(state) = self.subnet_mut(subnet) {
            state.give_back(kind, first);
        }
    }
}

/// Returns the private DNS name of the instance with this address.
pub(super) fn private_dns_name(address: Ipv4Addr, region: &str) -> String {
    let [a, b, c, d] = address.octets();
    match region {
        "us-east-1" => format!("ip-{a}-{b}-{c}-{d}.ec2.internal"),
        other => format!("ip-{a}-{b}-{c}-{d}.{other}.compute.internal"),
    }
}

/// Derives another id from this one without a random number, so that the numbers that follow from a seed do not change.
fn another(id: &str) -> String {
    let (kind, digits) = id.split_once('-').unwrap_or(("sg", id));
    let turned = digits.bytes().map(|digit| match digit {
        b'0'..=b'9' => b'9' - (digit - b'0'),
        other => other,
    });
    let turned: String = turned.map(char::from).collect();
    format!("{kind}-{turned}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn network(zones: &[&str]) -> (Network, Random) {
        let zones: Vec<_> = zones
            .iter()
            .map(|name| Zone {
                name: (*name).into(),
                id: super::super::zone_id(name).into(),
            })
            .collect();
        let mut random = Random::new(7);
        let tags = BTreeMap::from([("karpenter.sh/discovery".to_owned(), "demo".to_owned())]);
        (
            Network::new("demo", &zones, None, &tags, &mut random),
            random,
        )
    }

    #[test]
    fn subnets_do_not_overlap() {
        let (network, _) = network(&["us-west-2a", "us-west-2b", "us-west-2c"]);
        let cidrs: Vec<_> = network
            .subnets
            .iter()
            .map(|s| s.subnet.cidr.clone())
            .collect();
        assert_eq!(cidrs, ["10.0.0.0/18", "10.0.64.0/18", "10.0.128.0/18"]);
        assert_eq!(network.subnets[0].subnet.free_addresses, 16_384 - 5);
    }

    #[test]
    fn six_zones_share_the_vpc() {
        let zones = ["a", "b", "c", "d", "e", "f"].map(|letter| format!("us-east-1{letter}"));
        let (mut network, mut random) = network(&zones.each_ref().map(String::as_str));
        assert_eq!(network.subnets[5].subnet.cidr, "10.0.160.0/19");
        let place = network.take("us-east-1f", &[], &mut random).unwrap();
        assert_eq!(place.prefix_len, 19);
    }

    #[test]
    fn addresses_are_unique_and_return_to_their_subnet() {
        let (mut network, mut random) = network(&["us-west-2a"]);
        let free = network.subnets[0].subnet.free_addresses;
        let mut seen = BTreeSet::new();
        let mut last = None;
        for _ in 0..free {
            let place = network.take("us-west-2a", &[], &mut random).unwrap();
            assert!(seen.insert(place.address));
            last = Some(place);
        }
        assert!(network.take("us-west-2a", &[], &mut random).is_none());
        let last = last.unwrap();
        network.give_back(&last.subnet, Kind::Address, last.address);
        let again = network.take("us-west-2a", &[], &mut random).unwrap();
        assert_eq!(again, last);
    }

    #[test]
    fn the_control_plane_keeps_an_address_in_two_zones() {
        let (mut network, _) = network(&["us-west-2a", "us-west-2b", "us-west-2c"]);
        let addresses = network.control_plane();
        assert_eq!(addresses.len(), 2);
        assert_eq!(addresses[0], Ipv4Addr::new(10, 0, 63, 254));
        assert_eq!(network.control_plane(), addresses);
        assert_eq!(network.subnets[1].subnet.free_addresses, 16_384 - 6);
    }

    #[test]
    fn names_follow_the_region() {
        let address = Ipv4Addr::new(10, 0, 1, 12);
        assert_eq!(
            private_dns_name(address, "us-west-2"),
            "ip-10-0-1-12.us-west-2.compute.internal"
        );
        assert_eq!(
            private_dns_name(address, "us-east-1"),
            "ip-10-0-1-12.ec2.internal"
        );
    }
}
