//! The network interfaces and subnets of the simulated EC2: [`Addresses`] for controllers, and the calls of simulated kubelets.
//!
//! Invariant: a call decides and records under one lock, so no address is on two interfaces, and no interface has more blocks than slots.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use mullion_api::{
    account::{self, SimulatedAccountStatus},
    ami::Os,
};
use mullion_engine::ip::{Cidr, Kind, Listing};
use tokio::time::{Instant, sleep};

use super::{
    AddressFaults, SimulatedEc2, State,
    address_faults::{CallOutcome, FaultyCalls},
    interface,
};
use crate::{
    AddressError, Addresses, BoxFuture, CloudError, Instance, InstanceId, InstanceState,
    InterfaceFacts, InterfaceFound, InterfaceId, MOST_AT_ONCE, Speed, SubnetFacts,
};

/// The duration of a call that changes something.
const CHANGE_CALL: Duration = Duration::from_millis(400);
const LOOK_CALL: Duration = Duration::from_millis(150);
/// The time for which a caller waits for a response (VRC: the HTTP client's timeout).
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between a caller's timeout and the late execution of its call.
const LATE: Duration = Duration::from_secs(5);

impl Addresses for SimulatedEc2 {
    fn assign<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        count: u32,
    ) -> BoxFuture<'a, Result<Vec<Cidr>, AddressError>> {
        let (interface, speed) = (interface.clone(), self.inner.config.speed);
        Box::pin(self.change(move |state| state.assign(&interface, kind, count, speed)))
    }

    fn give_back<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        blocks: &'a [Cidr],
    ) -> BoxFuture<'a, Result<(), AddressError>> {
        let (interface, blocks) = (interface.clone(), blocks.to_vec());
        let speed = self.inner.config.speed;
        Box::pin(self.change(move |state| state.give_back(&interface, kind, &blocks, speed)))
    }

    fn list<'a>(
        &'a self,
        interface: &'a InterfaceId,
    ) -> BoxFuture<'a, Result<Listing, AddressError>> {
        Box::pin(self.look(move |state| state.listing(interface)))
    }

    fn interfaces_of<'a>(
        &'a self,
        instances: &'a [InstanceId],
    ) -> BoxFuture<'a, Result<Vec<InterfaceFound>, AddressError>> {
        Box::pin(self.look(move |state| {
            if instances.len() > MOST_AT_ONCE {
                let text = format!("more than {MOST_AT_ONCE} values of a filter");
                return Err(AddressError::Invalid(text));
            }
            Ok(instances.iter().filter_map(|id| state.find(id)).collect())
        }))
    }

    fn subnet<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<SubnetFacts, AddressError>> {
        Box::pin(self.look(move |state| state.subnet_facts(id)))
    }
}

impl SimulatedEc2 {
    /// Replaces the faults of calls about addresses.
    pub fn set_address_faults(&self, faults: AddressFaults) {
        self.state().address_calls = FaultyCalls::new(faults);
    }

    /// Returns the current blocks of an instance's interface, each by its first address. Listings may be older.
    pub fn blocks_on(&self, id: &InstanceId) -> Vec<(Kind, Ipv4Addr)> {
        let mut state = self.state();
        let interface = state.fleet.interface(id);
        interface.map_or_else(Vec::new, |interface| interface.all().collect())
    }

    /// Returns the current state of a subnet.
    ///
    /// # Errors
    /// [`AddressError::NoSubnet`] if no subnet has this id.
    pub fn subnet_now(&self, id: &str) -> Result<SubnetFacts, AddressError> {
        self.state().subnet_facts(id)
    }

    /// Makes a call that changes nothing, with its simulated duration and faults.
    async fn look<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, AddressError>,
    ) -> Result<T, AddressError> {
        self.wait(LOOK_CALL).await;
        let state = &mut *self.state();
        match state.outcome(false) {
            CallOutcome::Throttled => Err(AddressError::Throttled),
            _ => act(state),
        }
    }

    /// Makes a call that changes something, with its simulated duration and faults.
    async fn change<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, AddressError> + Send + 'static,
    ) -> Result<T, AddressError> {
        // The time passes before the lock is taken; the call takes effect at its end.
        self.wait(CHANGE_CALL).await;
        {
            let state = &mut *self.state();
            match state.outcome(true) {
                CallOutcome::Answered => {
                    let done = act(state);
                    self.inner.addresses_changed();
                    return done;
                }
                CallOutcome::Throttled => return Err(AddressError::Throttled),
                CallOutcome::DoneUnheard => {
                    // The caller never learns whether the call succeeded.
                    let _ = act(state);
                    self.inner.addresses_changed();
                }
                CallOutcome::DoneLate => {
                    // A late call must not keep a stopped cloud alive.
                    let (weak, delay) = (Arc::downgrade(&self.inner), PATIENCE + LATE);
                    let delay = self.inner.config.speed.scale(delay);
                    tokio::spawn(async move {
                        sleep(delay).await;
                        if let Some(inner) = weak.upgrade() {
                            let _ = act(&mut inner.state());
                            inner.addresses_changed();
                        }
                    });
                }
                CallOutcome::NeverDone => {}
            }
        }
        self.wait(PATIENCE).await;
        Err(AddressError::NoAnswer)
    }

    async fn wait(&self, time: Duration) {
        let delay = self.inner.config.speed.scale(time);
        if !delay.is_zero() {
            sleep(delay).await;
        }
    }

    /// Assigns another private address from its subnet to a living instance; it is released with the instance. The kubelet must know how
    /// many addresses fit on the instance's interfaces.
    ///
    /// # Errors
    /// [`CloudError::NotFound`] for a terminated instance, [`CloudError::NoFreeAddresses`] if its subnet is full.
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
            interface.add(Kind::Address, &[address], Instant::now());
        }
        state.save(id);
        self.inner.addresses_changed();
        Ok(address)
    }

    /// Returns the free addresses of the account's subnets and the facts of its instances, except for terminated ones. `profile` returns
    /// the name of an instance's instance profile.
    pub fn facts(&self, profile: impl Fn(&Instance) -> String) -> SimulatedAccountStatus {
        let mut state = self.state();
        let subnets = state.network.subnets();
        let subnets = subnets.map(|own| {
            let facts = account::SubnetFacts {
                zone: own.subnet.zone.to_string(),
                cidr: own.subnet.cidr.clone(),
                free_addresses: own.subnet.free_addresses,
                free_prefixes: own.free_prefixes(),
            };
            (own.subnet.id.to_string(), facts)
        });
        let subnets = subnets.collect();
        let there: Vec<_> = state
            .fleet
            .iter()
            .filter(|own| is_there(own))
            .cloned()
            .collect();
        let (windows, linux): (Vec<_>, Vec<_>) =
            there.into_iter().partition(|own| own.os() == Os::Windows);
        let instances = windows.into_iter().map(|own| {
            let interface = state.fleet.interface(&own.id);
            let blocks = |kind| interface.as_ref().map_or(&[][..], |own| own.blocks(kind));
            let facts = account::InstanceFacts {
                image: own.image.id.clone(),
                instance_profile: profile(&own),
                subnet: own.subnet.to_string(),
                addresses: texts(blocks(Kind::Address), ""),
                prefixes: texts(blocks(Kind::Prefix), "/28"),
            };
            (own.id.to_string(), facts)
        });
        // Collected here, because the closures borrow the state that is read again below.
        let instances = instances.collect();
        let capacity_reservations = self.reservation_facts(&state);
        let linux_profiles = linux.iter().map(|own| profile(own)).collect();
        SimulatedAccountStatus {
            subnets,
            instances,
            capacity_reservations,
            linux_profiles,
        }
    }

    /// Returns the secondary private addresses of an instance.
    pub fn assigned_addresses(&self, id: &InstanceId) -> Vec<Ipv4Addr> {
        let mut state = self.state();
        let interface = state.fleet.interface(id);
        interface.map_or_else(Vec::new, |interface| {
            interface.blocks(Kind::Address).to_vec()
        })
    }
}

/// Formats addresses, sorted.
fn texts(addresses: &[Ipv4Addr], suffix: &str) -> Vec<String> {
    let mut addresses = addresses.to_vec();
    addresses.sort_unstable();
    let texts = addresses.iter().map(|address| format!("{address}{suffix}"));
    texts.collect()
}

/// Returns whether the instance's interface exists: it is deleted when the instance is terminated.
fn is_there(instance: &Instance) -> bool {
    instance.state != InstanceState::Terminated
}

/// Returns the number of blocks that fit on the primary interface besides the primary address.
fn slots(instance: &Instance) -> usize {
    instance.instance_type.ipv4_per_eni.saturating_sub(1) as usize
}

impl State {
    fn outcome(&mut self, changes: bool) -> CallOutcome {
        if self.faults.is_throttled() {
            CallOutcome::Throttled
        } else {
            self.address_calls.outcome(changes)
        }
    }

    /// Returns the time from which listings show a change that is made now.
    fn seen_at(&mut self, speed: Speed) -> Instant {
        Instant::now() + speed.scale(self.address_calls.lag())
    }

    pub(super) fn assign(
        &mut self,
        interface: &InterfaceId,
        kind: Kind,
        count: u32,
        speed: Speed,
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
            // EC2 reports too few addresses before it looks for unfragmented blocks.
            Kind::Prefix if is_short => return Err(AddressError::NoRoom),
            Kind::Prefix if subnet.free_prefixes() < count => return Err(AddressError::NoPrefix),
            Kind::Address | Kind::Prefix => {}
        }
        let part = self.address_calls.part_of(count as u32);
        let taken = (0..part).map_while(|_| subnet.take(kind, &mut self.random));
        let taken: Vec<_> = taken.collect();
        let bits = match kind {
            Kind::Address => subnet.cidr().bits,
            Kind::Prefix => 28,
        };
        let seen_at = self.seen_at(speed);
        if let Some(on_it) = self.fleet.interface(&id) {
            on_it.add(kind, &taken, seen_at);
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
        speed: Speed,
    ) -> Result<(), AddressError> {
        // Drawn even if the call fails below, so that the numbers of later calls depend only on how many
        // there were.
        let seen_at = self.seen_at(speed);
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
        on_it.remove(kind, &firsts, seen_at);
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
        let now = Instant::now();
        let all = |kind, bits| {
            let blocks = on_it.seen(kind, now).into_iter();
            blocks.map(|first| Cidr::new(first, bits)).collect()
        };
        Ok(Listing {
            addresses: all(Kind::Address, bits),
            prefixes: all(Kind::Prefix, 28),
        })
    }

    fn subnet_facts(&self, id: &str) -> Result<SubnetFacts, AddressError> {
        let subnet = self.network.subnet(id);
        let subnet = subnet.ok_or_else(|| AddressError::NoSubnet(id.to_owned()))?;
        Ok(SubnetFacts {
            cidr: subnet.cidr(),
            free_addresses: subnet.subnet.free_addresses,
            free_prefixes: subnet.free_prefixes(),
        })
    }

    /// Returns the primary interface of an instance that is not terminated.
    pub(super) fn find(&mut self, id: &InstanceId) -> Option<InterfaceFound> {
        let instance = self.fleet.get(id).filter(|instance| is_there(instance))?;
        let instance_type = &instance.instance_type;
        let facts = InterfaceFacts {
            id: interface::id_of(&instance.id),
            subnet: instance.subnet.clone(),
            subnet_cidr: self.network.subnet(&instance.subnet)?.cidr(),
            primary: instance.private_ip,
            slots: slots(instance),
            instance_type: instance_type.name.clone(),
            nitro: instance_type.is_nitro(),
        };
        let listing = self.listing(&facts.id).ok()?;
        Some(InterfaceFound {
            instance: id.clone(),
            facts,
            listing,
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
