//! Implements [`CloudProvider`] for the simulated EC2.
//!
//! Invariant: no lock is held across an await. A launch decides and records under one lock, so two launches never share an address, a quota
//! or a token.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mullion_api::{
    ami::{AmiFamily, Os},
    eksctl::KubernetesVersion,
    karpenter::{AmiSelectorTerm, CapacityReservationSelectorTerm, PlacementGroupSelector},
};
use tokio::time::{Instant, sleep, sleep_until};

use super::{SimulatedEc2, State, Zone, life, network, queue::AT_ONCE};
use crate::{
    BoxFuture, CapacityReservation, CapacityType, CloudError, CloudProvider, DeniedCall,
    FleetError, Impairment, Instance, InstanceId, InstanceState, Launch, LaunchOption,
    LaunchRequest, Message, Offer, Offering, PlacementGroup, SecurityGroup, SelectedImages,
    Shortage, Subnet, TagSelector, Tenancy, ZonalShift,
    catalogue::{self, Arch, InstanceType, allocatable, newest_generation, price},
    image::NodeImage,
};

/// The time for which a receiver waits for messages.
const LONG_POLL: Duration = Duration::from_secs(20);

impl CloudProvider for SimulatedEc2 {
    fn region(&self) -> &str {
        &self.inner.config.region
    }

    fn offers(&self, os: Os) -> BoxFuture<'_, Result<Arc<[Offer]>, CloudError>> {
        Box::pin(async move {
            let all = self.all_offers(os);
            Ok(self.state().faults.apply(&all))
        })
    }

    fn subnets<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<Subnet>, CloudError>> {
        Box::pin(async move {
            let mut state = self.state();
            if state.faults.is_throttled() {
                Err(CloudError::Throttled)
            } else {
                Ok(state.network.select(selectors))
            }
        })
    }

    fn security_groups<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<SecurityGroup>, CloudError>> {
        Box::pin(async move {
            let mut state = self.state();
            if state.faults.is_throttled() {
                return Err(CloudError::Throttled);
            }
            Ok(state.network.select_groups(selectors))
        })
    }

    fn capacity_reservations<'a>(
        &'a self,
        terms: &'a [CapacityReservationSelectorTerm],
    ) -> BoxFuture<'a, Result<Vec<CapacityReservation>, CloudError>> {
        Box::pin(async move {
            let mut state = self.state();
            if state.faults.is_throttled() {
                return Err(CloudError::Throttled);
            }
            let mut selected = self.active_reservations(&state);
            selected.retain(|own| terms.iter().any(|term| own.is_selected_by(term)));
            Ok(selected)
        })
    }

    fn placement_group<'a>(
        &'a self,
        selector: &'a PlacementGroupSelector,
    ) -> BoxFuture<'a, Result<Option<PlacementGroup>, CloudError>> {
        Box::pin(async move {
            let throttled = self.state().faults.is_throttled();
            if throttled {
                Err(CloudError::Throttled)
            } else {
                Ok(self.selected_group(selector))
            }
        })
    }

    fn newest_image(
        &self,
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
    ) -> BoxFuture<'_, Result<NodeImage, CloudError>> {
        let release = self.state().releases.newest(family);
        Box::pin(async move { Ok(NodeImage::released(family, version, arch, release)) })
    }

    fn images<'a>(
        &'a self,
        terms: &'a [AmiSelectorTerm],
        family: AmiFamily,
        version: KubernetesVersion,
    ) -> BoxFuture<'a, Result<SelectedImages, CloudError>> {
        let selected = self.select_images(terms, family, version);
        Box::pin(async move { Ok(selected) })
    }

    fn denied_call(
        &self,
        request: LaunchRequest,
    ) -> BoxFuture<'_, Result<Option<DeniedCall>, CloudError>> {
        Box::pin(async move { self.dry_run(&request) })
    }

    fn launch(&self, request: LaunchRequest) -> BoxFuture<'_, Result<Launch, CloudError>> {
        Box::pin(async move {
            let delay = self.inner.config.speed.scale(life::LAUNCH_CALL);
            if !delay.is_zero() {
                sleep(delay).await;
            }
            let (id, refused, steps) = {
                let mut state = self.state();
                if state.faults.is_throttled() {
                    return Err(CloudError::Throttled);
                }
                state.check_permissions(&request)?;
                // A repeated call returns the first one's instance even if its options have no capacity any
                // more.
                if let Some(instance) = state.fleet.bought_with(&request.client_token) {
                    return Ok(Launch {
                        instance: Arc::clone(instance),
                        refused: Vec::new(),
                    });
                }
                let typical = self.inner.config.node_profiles.of(request.template.family);
                let (instance, refused) = self.place(&mut state, &request)?;
                let steps = life::Steps::of(typical, &mut state.random);
                let (instance, revision) = state.fleet.insert(request.client_token, instance);
                // Recorded before the lock is released and anyone can see the instance.
                state.save(&instance.id);
                self.inner.changed.send_replace(revision);
                (instance.id.clone(), refused, steps)
            };
            life::boot(&self.inner, &id, steps);
            let instance = self.instance(&id).ok_or(CloudError::NotFound(id))?;
            Ok(Launch { instance, refused })
        })
    }

    fn get(&self, id: InstanceId) -> BoxFuture<'_, Result<Arc<Instance>, CloudError>> {
        Box::pin(async move {
            let mut state = self.state();
            if state.faults.is_throttled() {
                return Err(CloudError::Throttled);
            }
            match state.fleet.get(&id) {
                Some(instance) if instance.state != InstanceState::Terminated => {
                    Ok(Arc::clone(instance))
                }
                _ => Err(CloudError::NotFound(id)),
            }
        })
    }

    fn list(
        &self,
        tags: BTreeMap<String, String>,
    ) -> BoxFuture<'_, Result<Vec<Arc<Instance>>, CloudError>> {
        Box::pin(async move {
            let mut state = self.state();
            if state.faults.is_throttled() {
                return Err(CloudError::Throttled);
            }
            let carries = |instance: &Instance| {
                tags.iter().all(|(key, wanted)| {
                    let value = instance.tags.get(key);
                    value.is_some_and(|value| wanted == "*" || wanted == value)
                })
            };
            Ok(state
                .fleet
                .iter()
                .filter(|instance| instance.state != InstanceState::Terminated)
                .filter(|instance| carries(instance))
                .cloned()
                .collect())
        })
    }

    fn terminate(&self, id: InstanceId) -> BoxFuture<'_, Result<(), CloudError>> {
        Box::pin(async move {
            {
                let mut state = self.state();
                if state.faults.is_throttled() {
                    return Err(CloudError::Throttled);
                }
                let instance = state.fleet.get(&id);
                if instance.is_none_or(|own| own.state == InstanceState::Terminated) {
                    return Err(CloudError::NotFound(id));
                }
            }
            self.end(&id);
            Ok(())
        })
    }

    fn mark_unavailable(
        &self,
        option: LaunchOption,
    ) -> BoxFuture<'_, Result<Duration, CloudError>> {
        let rests = self.state().faults.refuse(option);
        Box::pin(async move { Ok(rests) })
    }

    fn receive_messages(&self) -> BoxFuture<'_, Result<Vec<Message>, CloudError>> {
        Box::pin(self.receive_at_most(AT_ONCE))
    }

    fn delete_message(&self, message: &Message) -> BoxFuture<'_, Result<(), CloudError>> {
        self.delete_receipt(message.receipt);
        Box::pin(async { Ok(()) })
    }

    fn impairments(&self) -> BoxFuture<'_, Result<Vec<Impairment>, CloudError>> {
        Box::pin(async {
            let throttled = self.state().faults.is_throttled();
            if throttled {
                Err(CloudError::Throttled)
            } else {
                Ok(self.impaired())
            }
        })
    }

    fn zonal_shifts(&self) -> BoxFuture<'_, Result<Vec<ZonalShift>, CloudError>> {
        let shifts = self.zones_shifted_away();
        Box::pin(async move { Ok(shifts) })
    }
}

impl SimulatedEc2 {
    /// Does the same as [`CloudProvider::receive_messages`], but returns at most `most` messages.
    ///
    /// # Errors
    /// None at present: the queue is never throttled.
    pub async fn receive_at_most(&self, most: usize) -> Result<Vec<Message>, CloudError> {
        let patience = Instant::now() + LONG_POLL;
        let mut sent = self.state().queue.sent();
        loop {
            // Marked before the queue is read, so that a message sent in between ends the wait below.
            sent.mark_unchanged();
            let next = {
                let queue = &mut self.state().queue;
                let messages = queue.receive(most);
                if !messages.is_empty() {
                    return Ok(messages);
                }
                queue.next_visible()
            };
            // A hidden message may become visible before a new one is sent.
            let until = next.map_or(patience, |next| next.min(patience));
            tokio::select! {
                _ = sent.changed() => {}
                () = sleep_until(until) => if Instant::now() >= patience {
                    return Ok(Vec::new());
                },
            }
        }
    }

    /// Deletes the message with a receipt.
    pub fn delete_receipt(&self, receipt: u64) {
        self.state().queue.delete(receipt);
    }

    /// Adds an instance that existed before the simulation began: it is launched and booted without delay.
    ///
    /// # Errors
    /// Like [`CloudProvider::launch`], except for throttling.
    pub fn provide(&self, request: LaunchRequest) -> Result<Arc<Instance>, CloudError> {
        let mut state = self.state();
        if let Some(instance) = state.fleet.bought_with(&request.client_token) {
            return Ok(Arc::clone(instance));
        }
        let (mut instance, _) = self.place(&mut state, &request)?;
        instance.state = InstanceState::Running;
        instance.booted = true;
        let (instance, revision) = state.fleet.insert(request.client_token, instance);
        state.save(&instance.id);
        drop(state);
        self.inner.changed.send_replace(revision);
        Ok(instance)
    }
}

/// Returns the image that a launch boots: of those that it names for the type's hardware one with its drivers, else any of
/// them, else the newest of its family.
fn image(state: &State, request: &LaunchRequest, instance_type: &InstanceType) -> NodeImage {
    let (family, version) = (request.template.family, request.template.version);
    let of_release =
        |release| NodeImage::all_released(family, version, instance_type.arch, release);
    let all = state.releases.all(family).flat_map(of_release);
    let is_named = |image: &NodeImage| {
        let mut named = request.images.iter();
        named.any(|own| own.id == image.id && own.variant.fits(instance_type))
    };
    let named: Vec<NodeImage> = all.filter(is_named).collect();
    let mut fitting = named.iter();
    let fitting = fitting.find(|image| image.variant.fits(instance_type));
    fitting.or(named.first()).cloned().unwrap_or_else(|| {
        let newest = state.releases.newest(family);
        NodeImage::for_type(family, version, instance_type, newest)
    })
}

impl State {
    /// Refuses the volumes of a launch's class if they are smaller than the snapshots of the image that the launch boots on a type.
    pub(super) fn check_volumes(
        &self,
        request: &LaunchRequest,
        instance_type: &InstanceType,
    ) -> Result<(), CloudError> {
        let Some(class) = &request.class else {
            return Ok(());
        };
        let mappings = &class.spec.block_device_mappings;
        if mappings.is_empty() {
            return Ok(());
        }
        image(self, request, instance_type).check_mappings(mappings)
    }
}

/// The reason why an option of a launch was not bought.
enum Miss {
    /// The option has no capacity; the next one may have some.
    Short(Shortage),
    /// The option cannot be launched, for a reason that may not hold for the next one.
    Unlaunchable(CloudError),
    /// The request is invalid, so no option can be bought.
    Wrong(CloudError),
}

impl From<CloudError> for Miss {
    fn from(error: CloudError) -> Self {
        Self::Wrong(error)
    }
}

type Prices = [(CapacityType, Option<price::Price>); 2];

impl SimulatedEc2 {
    /// Returns the types that are sold for this operating system, with their prices.
    fn on_sale(&self, os: Os) -> impl Iterator<Item = (&'static Arc<InstanceType>, Prices)> {
        let newest = newest_generation(self.inner.config.version);
        catalogue::all().iter().filter_map(move |instance_type| {
            // A type whose name has no generation cannot be judged by it, and is offered.
            let known = instance_type
                .parts()
                .generation
                .is_none_or(|generation| generation <= newest);
            let prices = [CapacityType::OnDemand, CapacityType::Spot]
                .map(|capacity_type| (capacity_type, price::of(instance_type, os, capacity_type)));
            let sold = prices.iter().any(|(_, price)| price.is_some());
            (known && sold && instance_type.runs(os)).then_some((instance_type, prices))
        })
    }

    /// Returns all offers, as if all of them had capacity. They are computed once.
    fn all_offers(&self, os: Os) -> Arc<[Offer]> {
        let offers = match os {
            Os::Linux => &self.inner.linux_offers,
            Os::Windows => &self.inner.windows_offers,
        };
        let all = offers.get_or_init(|| {
            self.on_sale(os)
                .map(|(instance_type, prices)| Offer {
                    instance_type: Arc::clone(instance_type),
                    offerings: self.offerings(&prices),
                })
                .collect()
        });
        Arc::clone(all)
    }

    fn offerings(&self, prices: &Prices) -> Vec<Offering> {
        let mut offerings = Vec::with_capacity(prices.len() * self.inner.zones.len());
        for (capacity_type, price) in prices {
            let Some(price) = price else { continue };
            offerings.extend(self.inner.zones.iter().map(|Zone { name, id }| Offering {
                zone: Arc::clone(name),
                zone_id: Arc::clone(id),
                capacity_type: *capacity_type,
                price: *price,
                available: true,
                on_trial: false,
                reservation: None,
            }));
        }
        offerings
    }

    /// Returns an instance of the first option with capacity, and the refusals of the options before it.
    fn place(
        &self,
        state: &mut State,
        request: &LaunchRequest,
    ) -> Result<(Instance, Vec<FleetError>), CloudError> {
        if request.options.is_empty() {
            return Err(CloudError::Invalid("no instance type was asked for".into()));
        }
        let mut refused = Vec::new();
        let mut lasting = None;
        for option in &request.options {
            let shortage = match self.try_option(state, request, option) {
                Ok(instance) => {
                    state.faults.sold(option);
                    return Ok((instance, refused));
                }
                Err(Miss::Short(shortage)) => shortage,
                Err(Miss::Unlaunchable(error)) => {
                    lasting.get_or_insert(error);
                    continue;
                }
                // An invalid request fails as a whole, whatever the other options are.
                Err(Miss::Wrong(error)) => return Err(error),
            };
            refused.push(FleetError {
                option: option.clone(),
                shortage,
                // CreateFleet tries the options in order and reports each that it could not get, even if a
                // later one succeeds.
                unavailable_for: state.faults.refuse(option.clone()),
            });
        }
        // As in Karpenter, the launch lacks capacity only if that is what is wrong with every option.
        Err(lasting.unwrap_or(CloudError::InsufficientCapacity(refused)))
    }

    /// Returns EC2's reason for an option whose capacity a fault has exhausted.
    fn exhausted(&self, state: &State, option: &LaunchOption) -> Shortage {
        match option.capacity_type {
            CapacityType::OnDemand => {}
            CapacityType::Spot => return Shortage::Spot,
            CapacityType::Reserved => return Shortage::Reservation,
        }
        let zones = self.inner.zones.iter().map(|zone| &zone.name);
        let has_some = |zone: &&Arc<str>| {
            !state.faults.is_exhausted(&LaunchOption {
                zone: zone.to_string(),
                ..option.clone()
            })
        };
        Shortage::Hosts {
            elsewhere: zones.filter(has_some).cloned().collect(),
        }
    }

    fn try_option(
        &self,
        state: &mut State,
        request: &LaunchRequest,
        option: &LaunchOption,
    ) -> Result<Instance, Miss> {
        if state.faults.is_exhausted(option) {
            return Err(Miss::Short(self.exhausted(state, option)));
        }
        let config = &self.inner.config;
        let template = &request.template;
        let os = template.family.os();
        let instance_type = catalogue::get(&option.instance_type)
            .ok_or_else(|| CloudError::UnknownInstanceType(option.instance_type.clone()))?;
        let not_sold = || {
            CloudError::Invalid(format!(
                "{} is not sold with {os} as {}",
                option.instance_type, option.capacity_type
            ))
        };
        if !instance_type.runs(os) {
            return Err(not_sold().into());
        }
        let price = price::of(instance_type, os, option.capacity_type).ok_or_else(not_sold)?;
        let volumes = state.check_volumes(request, instance_type);
        volumes.map_err(Miss::Unlaunchable)?;
        let zone = self
            .inner
            .zones
            .iter()
            .find(|zone| *zone.name == option.zone)
            .ok_or_else(|| CloudError::Invalid(format!("{} is not a zone here", option.zone)))?;
        let reservation = match option.capacity_type {
            // Reservations are for instances of default tenancy.
            CapacityType::Reserved if template.tenancy != Tenancy::Default => {
                return Err(Miss::Short(Shortage::Reservation));
            }
            CapacityType::Reserved => Some(
                self.reserved_for(state, option)
                    .ok_or(Miss::Short(Shortage::Reservation))?,
            ),
            _ => None,
        };
        let placement = state.place_in_group(option)?.map_err(Miss::Short)?;
        if let Some(limit) = state.faults.vcpu_limit() {
            // Stopped instances do not count against the limit of running vCPUs.
            let alive = state.fleet.iter().filter(|i| i.state.is_alive());
            let running: u64 = alive.map(|i| i.instance_type.vcpus).sum();
            if running + instance_type.vcpus > limit {
                return Err(Miss::Short(Shortage::Vcpus { limit }));
            }
        }
        // The address is taken last, when no other check can fail, so that a refused option leaks none.
        let place = state
            .network
            .take(&zone.name, &request.subnets, &mut state.random)
            .ok_or(Miss::Short(Shortage::Addresses))?;
        let id = InstanceId(state.random.id("i").into());
        // The template has Karpenter's estimate of the memory overhead, but the node reports its real memory.
        let real = config.node_profiles.with_actual_memory(template);
        let resources = allocatable::of(instance_type, &real);
        let security_groups = match request.security_groups.as_slice() {
            [] => vec![Arc::clone(state.network.node_group())],
            groups => groups.to_vec(),
        };
        let mut tags = request.tags.clone();
        tags.entry(format!("kubernetes.io/cluster/{}", config.cluster))
            .or_insert_with(|| "owned".into());
        Ok(Instance {
            provider_id: format!("aws:///{}/{id}", zone.name),
            id,
            instance_type: Arc::clone(instance_type),
            region: config.region.as_str().into(),
            zone: Arc::clone(&zone.name),
            zone_id: Arc::clone(&zone.id),
            subnet: place.subnet,
            security_groups,
            subnet_prefix_len: place.prefix_len,
            capacity_type: option.capacity_type,
            reservation,
            placement,
            tenancy: template.tenancy,
            price,
            private_dns_name: network::private_dns_name(place.address, &config.region),
            private_ip: place.address,
            image: image(state, request, instance_type),
            capacity: resources.capacity,
            allocatable: resources.allocatable,
            registration: request.registration.clone(),
            tags,
            state: InstanceState::Pending,
            booted: false,
            launched_at: self.inner.clock.now(),
        })
    }
}
