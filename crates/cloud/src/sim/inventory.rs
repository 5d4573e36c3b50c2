//! The complete content of the account for calls that describe it: all subnets, security groups, images and reservations.
//!
//! Invariant: these functions neither wait nor fail; the code that answers calls asks [`SimulatedEc2::throttles`] first.

use std::collections::BTreeMap;

use mullion_api::{ami::AmiFamily, eksctl::KubernetesVersion};
use mullion_engine::ip::{Cidr, Kind};

use super::SimulatedEc2;
use crate::{
    AddressError, CapacityReservation, InstanceId, InterfaceFound, InterfaceId, SecurityGroup,
    Subnet,
    image::{NodeImage, architectures},
};

impl SimulatedEc2 {
    /// Returns whether the next call is throttled ([`SimulatedEc2::throttle`]), and counts it.
    pub fn throttles(&self) -> bool {
        self.state().faults.is_throttled()
    }

    /// Returns every subnet with its free addresses.
    pub fn all_subnets(&self) -> Vec<Subnet> {
        let state = self.state();
        let subnets = state.network.subnets();
        subnets.map(|own| own.subnet.clone()).collect()
    }

    /// Returns every security group.
    pub fn all_security_groups(&self) -> Vec<SecurityGroup> {
        self.state().network.groups().to_vec()
    }

    /// Returns the id of the VPC, which has the digits of its own security group.
    pub fn vpc_id(&self) -> String {
        let state = self.state();
        let group = &state.network.groups()[1].id;
        group.replacen("sg-", "vpc-", 1)
    }

    /// Returns every image that can be launched.
    pub fn all_images(&self) -> Vec<NodeImage> {
        let families: Vec<AmiFamily> = AmiFamily::eksctl_names()
            .filter_map(|name| name.parse().ok())
            .chain([AmiFamily::Custom])
            .collect();
        let versions =
            (0..=KubernetesVersion::NEWEST.minor()).filter_map(KubernetesVersion::from_minor);
        let versions: Vec<_> = versions.collect();
        let state = self.state();
        let mut images: Vec<NodeImage> = Vec::new();
        for family in families {
            let releases: Vec<_> = state.releases.all(family).collect();
            for version in &versions {
                for arch in architectures(family.os()) {
                    for release in &releases {
                        let all = NodeImage::all_released(family, *version, *arch, *release);
                        // One image may be for two kinds of hardware.
                        for image in all {
                            let is_known = |own: &NodeImage| own.id == image.id;
                            if !images.iter().rev().take(2).any(is_known) {
                                images.push(image);
                            }
                        }
                    }
                }
            }
        }
        images
    }

    /// Returns the capacity reservations that have not ended, with their free instances.
    pub fn all_reservations(&self) -> Vec<CapacityReservation> {
        let state = self.state();
        self.active_reservations(&state)
    }

    /// Returns the primary network interface of an instance that is not terminated; recent changes may be missing.
    pub fn interface_of(&self, id: &InstanceId) -> Option<InterfaceFound> {
        self.state().find(id)
    }

    /// Assigns /28 prefixes to an interface as part of a launch, without delay and injected faults.
    ///
    /// # Errors
    /// Like [`crate::Addresses::assign`].
    pub fn assign_at_launch(
        &self,
        interface: &InterfaceId,
        prefixes: u32,
    ) -> Result<Vec<Cidr>, AddressError> {
        let speed = self.inner.config.speed;
        let given = self
            .state()
            .assign(interface, Kind::Prefix, prefixes, speed);
        self.inner.addresses_changed();
        given
    }

    /// Adds tags to an instance; existing keys are replaced. Returns whether the instance exists.
    pub fn tag(&self, id: &InstanceId, tags: BTreeMap<String, String>) -> bool {
        self.inner
            .update_when(id, |_| true, |instance| instance.tags.extend(tags))
    }
}
