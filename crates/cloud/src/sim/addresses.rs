//! The simulated EC2's network interfaces and subnets: [`Addresses`] for controllers, and what simulated kubelets ask for.
//!
//! Invariant: a call decides and records under one lock, so no address is on two interfaces and no interface has more than its slots.

use std::net::Ipv4Addr;

use mullion_engine::ip::{Cidr, Kind, Listing};

use super::{SimulatedEc2, State, interface};
use crate::{
    AddressError, Addresses, BoxFuture, CloudError, Instance, InstanceId, InstanceState,
    InterfaceFacts, InterfaceId, SubnetFacts,
};

impl Addresses for SimulatedEc2 {
    fn assign<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        count: u32,
    ) -> BoxFuture<'a, Result<Vec<Cidr>, AddressError>> {
        Box::pin(async move { self.state().assign(interface, kind, count) })
    }

    fn give_back<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        blocks: &'a [Cidr],
    ) -> BoxFuture<'a, Result<(), AddressError>> {
        Box::pin(async move { self.state().give_back(interface, kind, blocks) })
    }

    fn list<'a>(
        &'a self,
        interface: &'a InterfaceId,
    ) -> BoxFuture<'a, Result<Listing, AddressError>> {
        Box::pin(async move { self.state().listing(interface) })
    }

    fn interface_of<'a>(
        &'a self,
        instance: &'a InstanceId,
    ) -> BoxFuture<'a, Result<InterfaceFacts, AddressError>> {
        Box::pin(async move {
            let state = self.state();
            let known = state
                .fleet
                .get(instance)
                .filter(|instance| is_there(instance));
            let instance = known.ok_or_else(|| AddressError::NoInstance(instance.clone()))?;
            let subnet = state.network.subnet(&instance.subnet);
            let subnet =
                subnet.ok_or_else(|| AddressError::NoSubnet(instance.subnet.to_string()))?;
            let instance_type = &instance.instance_type;
            Ok(InterfaceFacts {
                id: interface::id_of(&instance.id),
                subnet: instance.subnet.clone(),
                subnet_cidr: subnet.cidr(),
                primary: instance.private_ip,
                slots: slots(instance),
                instance_type: instance_type.name.clone(),
                nitro: instance_type.is_nitro(),
            })
        })
    }

    fn subnet<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<SubnetFacts, AddressError>> {
        Box::pin(async move {
            let state = self.state();
            let subnet = state.network.subnet(id);
            let subnet = subnet.ok_or_else(|| AddressError::NoSubnet(id.to_owned()))?;
            Ok(SubnetFacts {
                cidr: subnet.cidr(),
                free_addresses: subnet.subnet.free_addresses,
                free_prefixes: subnet.free_prefixes(),
            })
        })
    }
}

impl SimulatedEc2 {
    /// A further private address for a living instance, from its subnet; it goes back when the instance does. How many an
    /// instance's interfaces can hold is for its kubelet to know.
    ///
    /// # Errors
    /// [`CloudError::NotFound`] for an instance that is gone, [`CloudError::NoFreeAddresses`] when its subnet is full.
    pub fn assign_address(&self, id: &InstanceId) -> Result<Ipv4Addr, CloudError> {
        let state = &mut *self.state();
        let instance = state.fleet.get(id);
        let alive = instance.filter(|instance| instance.state.is_alive());
        let subnet = alive
            .ok_or_else(|| CloudError::NotFound(id.clone()))?
            .subnet
            .clone();
        let taken = state
            .network
            .subnet_mut(&subnet)
            .and_then(|subnet| subnet.take(Kind::Address, &mut state.random));
        let address = taken.ok_or(CloudError::NoFreeAddresses(subnet))?;
        if let Some(interface) = state.fleet.interface(id) {
            interface.add(Kind::Address, &[address]);
        }
        state.save(id);
        Ok(address)
    }

    /// The further private addresses that an instance has.
    pub fn assigned_addresses(&self, id: &InstanceId) -> Vec<Ipv4Addr> {
        let mut state = self.state();
        let interface = state.fleet.interface(id);
        interface.map_or_else(Vec::new, |interface| {
            interface.blocks(Kind::Address).to_vec()
        })
    }
}

/// Returns whether the instance's interface exists: it goes when the instance is terminated.
fn is_there(instance: &Instance) -> bool {
    instance.state != InstanceState::Terminated
}

/// Returns how many blocks fit on the primary interface beside the primary address.
fn slots(instance: &Instance) -> usize {
    instance.instance_type.ipv4_per_eni.saturating_sub(1) as usize
}

impl State {
    fn assign(
        &mut self,
        interface: &InterfaceId,
        kind: Kind,
        count: u32,
    ) -> Result<Vec<Cidr>, AddressError> {
        let instance = self.instance_with(interface)?;
        if count == 0 {
            let text = "the number of addresses must be greater than 0";
            return Err(AddressError::Invalid(text.into()));
        }
        if kind == Kind::Prefix && !instance.instance_type.is_nitro() {
            return Err(AddressError::Invalid(format!(
                "{} does not support prefix delegation: it is not built on Nitro",
                instance.instance_type.name
            )));
        }
        let (id, subnet, slots) = (
            instance.id.clone(),
            instance.subnet.clone(),
            slots(instance),
        );
        let on_it = self.fleet.interface(&id);
        if on_it.map_or(0, |on_it| on_it.slots_taken()) + count as usize > slots {
            return Err(AddressError::NoSlot);
        }
        let no_subnet = || AddressError::NoSubnet(subnet.to_string());
        let subnet = self.network.subnet_mut(&subnet).ok_or_else(no_subnet)?;
        let count = count as usize;
        let is_short = subnet.subnet.free_addresses < count * kind.size();
        match kind {
            Kind::Address if is_short => return Err(AddressError::NoAddress),
            Kind::Prefix if is_short => return Err(AddressError::NoRoom),
            Kind::Prefix if subnet.free_prefixes() < count => return Err(AddressError::NoPrefix),
            Kind::Address | Kind::Prefix => {}
        }
        let mut taken = Vec::with_capacity(count);
        taken.extend((0..count).map_while(|_| subnet.take(kind, &mut self.random)));
        let bits = match kind {
            Kind::Address => subnet.cidr().bits,
            Kind::Prefix => 28,
        };
        if let Some(on_it) = self.fleet.interface(&id) {
            on_it.add(kind, &taken);
        }
        self.save(&id);
        Ok(taken
            .into_iter()
            .map(|first| Cidr::new(first, bits))
            .collect())
    }

    fn give_back(
        &mut self,
        interface: &InterfaceId,
        kind: Kind,
        blocks: &[Cidr],
    ) -> Result<(), AddressError> {
        let instance = self.instance_with(interface)?;
        let (id, subnet) = (instance.id.clone(), instance.subnet.clone());
        let no_interface = || AddressError::NoInterface(interface.clone());
        let on_it = self.fleet.interface(&id).ok_or_else(no_interface)?;
        let there = on_it.blocks(kind);
        let foreign: Vec<_> = blocks
            .iter()
            .filter(|block| !there.contains(&block.ip))
            .collect();
        if !foreign.is_empty() {
            let texts: Vec<_> = foreign
                .iter()
                .map(|block| match kind {
                    Kind::Address => block.ip.to_string(),
                    Kind::Prefix => block.to_string(),
                })
                .collect();
            return Err(AddressError::Invalid(format!(
                "Some of [{}] are not assigned to interface {interface}",
                texts.join(", ")
            )));
        }
        let firsts: Vec<_> = blocks.iter().map(|block| block.ip).collect();
        on_it.remove(kind, &firsts);
        for first in firsts {
            self.network.give_back(&subnet, kind, first);
        }
        self.save(&id);
        Ok(())
    }

    fn listing(&mut self, interface: &InterfaceId) -> Result<Listing, AddressError> {
        let instance = self.instance_with(interface)?;
        let (id, bits) = (instance.id.clone(), instance.subnet_prefix_len);
        let no_interface = || AddressError::NoInterface(interface.clone());
        let on_it = self.fleet.interface(&id).ok_or_else(no_interface)?;
        let all = |kind, bits| {
            let blocks = on_it.blocks(kind).iter();
            blocks.map(|first| Cidr::new(*first, bits)).collect()
        };
        Ok(Listing {
            addresses: all(Kind::Address, bits),
            prefixes: all(Kind::Prefix, 28),
        })
    }

    /// Returns the instance whose primary interface this is.
    fn instance_with(&self, interface: &InterfaceId) -> Result<&Instance, AddressError> {
        interface::instance_of(interface)
            .and_then(|id| self.fleet.get(&id))
            .filter(|instance| is_there(instance))
            .map(|instance| &**instance)
            .ok_or_else(|| AddressError::NoInterface(interface.clone()))
    }
}
