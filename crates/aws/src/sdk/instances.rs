//! Instances: describes, lists and terminates them.
//!
//! EC2 is eventually consistent: an instance that was just launched may not be described yet. Invariant: an instance that this process
//! launched less than a minute ago exists until it is described or terminated.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use aws_sdk_ec2::types::{
    CapacityReservationPreference, Filter, InstanceLifecycleType, InstanceStateName,
};
use jiff::Timestamp;
use mullion_api::ami::Os;
use mullion_cloud::{
    CapacityType, CloudError, Impairment, Instance, InstanceId, InstanceState, NodeTemplate,
    Placement, Registration, Reservation, ReservationKind, StatusCheck, Tenancy,
    catalogue::allocatable,
};
use tokio::time::Instant;

use super::{
    Aws, Described, Ended, Inner,
    errors::Failed,
    filters::{filter, of_tags, tag_map},
    lock,
};
use crate::limits::Kind;

/// The time for which a launched instance is assumed to exist although EC2 does not describe it.
const YOUNG: Duration = Duration::from_secs(60);
/// The maximum number of instances on a page.
const PAGE: i32 = 1000;
/// The states in which an instance still matters.
const STATES: [&str; 5] = ["pending", "running", "stopping", "stopped", "shutting-down"];
/// The maintenance events for which a node is replaced (AWS provider: `providers/instancestatus`).
const EVENTS: [&str; 5] = [
    "instance-reboot",
    "system-reboot",
    "system-maintenance",
    "instance-retirement",
    "instance-stop",
];

/// The instances that were launched within the last minute.
#[derive(Debug, Default)]
pub(super) struct Young(BTreeMap<InstanceId, (Instant, Arc<Instance>)>);

impl Young {
    pub(super) fn add(&mut self, instance: &Arc<Instance>) {
        let own = (Instant::now(), Arc::clone(instance));
        self.0.insert(instance.id.clone(), own);
    }

    pub(super) fn get(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        let (at, instance) = self.0.get(id)?;
        (at.elapsed() < YOUNG).then(|| Arc::clone(instance))
    }

    pub(super) fn remove(&mut self, id: &InstanceId) {
        self.0.remove(id);
    }

    pub(super) fn forget_grown(&mut self) {
        self.0.retain(|_, (at, _)| at.elapsed() < YOUNG);
    }
}

fn state_of(state: &InstanceStateName) -> InstanceState {
    match state {
        InstanceStateName::Pending => InstanceState::Pending,
        InstanceStateName::Running => InstanceState::Running,
        InstanceStateName::Stopping | InstanceStateName::Stopped => InstanceState::Stopped,
        InstanceStateName::ShuttingDown => InstanceState::ShuttingDown,
        _ => InstanceState::Terminated,
    }
}

impl Inner {
    /// Describes the instances that match filters, all pages of them.
    async fn describe_by(&self, filters: Vec<Filter>) -> Result<Vec<Arc<Instance>>, Failed> {
        self.may(Kind::Describe).await;
        let mut pages = self
            .ec2
            .describe_instances()
            .set_filters(Some(filters))
            .filters(filter("instance-state-name", STATES))
            .max_results(PAGE)
            .into_paginator()
            .send();
        let mut found = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(Failed::of)?;
            let reservations = page.reservations.unwrap_or_default().into_iter();
            found.extend(reservations.flat_map(|own| own.instances.unwrap_or_default()));
        }
        self.read_all(&found).await
    }

    /// Converts descriptions, after looking up unknown images and subnets.
    async fn read_all(
        &self,
        found: &[aws_sdk_ec2::types::Instance],
    ) -> Result<Vec<Arc<Instance>>, Failed> {
        let images: BTreeSet<_> = found.iter().filter_map(|own| own.image_id()).collect();
        self.learn_images(images.into_iter().map(str::to_owned).collect())
            .await?;
        let unknown: BTreeSet<String> = {
            let network = lock(&self.network);
            let subnets = found.iter().filter_map(|own| own.subnet_id());
            let unknown = subnets.filter(|id| network.get(id).is_none());
            unknown.map(str::to_owned).collect()
        };
        if !unknown.is_empty() {
            self.describe_subnets(vec![filter("subnet-id", unknown)])
                .await?;
        }
        let mut instances = Vec::with_capacity(found.len());
        for own in found {
            instances.extend(self.read_instance(own).await.map(Arc::new));
        }
        Ok(instances)
    }

    /// Converts a description to an instance. The resources of its node are the usual ones of its type and image, as far as those are
    /// known.
    async fn read_instance(&self, own: &aws_sdk_ec2::types::Instance) -> Option<Instance> {
        let id = own.instance_id()?;
        let instance_type = self.instance_type(own.instance_type()?.as_str()).await?;
        let placement = own.placement();
        let zone = placement.and_then(|own| own.availability_zone())?;
        let os = match own.platform() {
            Some(_) => Os::Windows,
            None => Os::Linux,
        };
        let image = self.image(own.image_id().unwrap_or_default(), os, instance_type.arch);
        let subnet = own.subnet_id().unwrap_or_default();
        let (zone_id, cidr) = {
            let network = lock(&self.network);
            let known = network.get(subnet);
            let zone_id = known.map(|own| Arc::clone(&own.zone_id));
            let cidr = known.map(|own| own.cidr.clone());
            (zone_id.unwrap_or_default(), cidr.unwrap_or_default())
        };
        let prefix_len = cidr.split_once('/').and_then(|(_, bits)| bits.parse().ok());
        let (capacity_type, reservation) = paid(own);
        let template = NodeTemplate::new(image.family, image.version);
        let resources = allocatable::of(&instance_type, &template);
        let state = own.state().and_then(|own| own.name()).map(state_of)?;
        let price = self.price(&instance_type, os, zone, capacity_type).await;
        let launched = own
            .launch_time()
            .and_then(|at| Timestamp::from_second(at.secs()).ok());
        Some(Instance {
            provider_id: format!("aws:///{zone}/{id}"),
            id: InstanceId(id.into()),
            region: self.region.as_str().into(),
            zone: zone.into(),
            zone_id,
            subnet: subnet.into(),
            security_groups: own
                .security_groups()
                .iter()
                .filter_map(|group| group.group_id().map(Into::into))
                .collect(),
            subnet_prefix_len: prefix_len.unwrap_or_default(),
            capacity_type,
            reservation,
            placement: placement.and_then(placed),
            tenancy: placement
                .and_then(|own| own.tenancy())
                .and_then(|own| Tenancy::parse(own.as_str()))
                .unwrap_or_default(),
            price,
            private_ip: own
                .private_ip_address()
                .and_then(|text| text.parse().ok())
                .unwrap_or(Ipv4Addr::UNSPECIFIED),
            private_dns_name: own.private_dns_name().unwrap_or_default().to_owned(),
            image,
            capacity: resources.capacity,
            allocatable: resources.allocatable,
            registration: Registration::default(),
            tags: tag_map(own.tags()),
            state,
            booted: state == InstanceState::Running,
            launched_at: launched.unwrap_or(Timestamp::UNIX_EPOCH),
            instance_type,
        })
    }

    pub(super) async fn list(
        &self,
        tags: &BTreeMap<String, String>,
    ) -> Result<Vec<Arc<Instance>>, CloudError> {
        let mut found = self.describe_by(of_tags(tags)).await?;
        let carries = |instance: &Instance| {
            tags.iter().all(|(key, wanted)| {
                let value = instance.tags.get(key);
                value.is_some_and(|value| wanted == "*" || wanted == value)
            })
        };
        found.retain(|own| own.state != InstanceState::Terminated && carries(own));
        let seen: BTreeSet<_> = found.iter().map(|own| own.id.clone()).collect();
        let young = lock(&self.young);
        let unseen = young.0.keys().filter(|id| !seen.contains(id));
        let unseen = unseen.filter_map(|id| young.get(id));
        found.extend(unseen.filter(|own| carries(own)));
        Ok(found)
    }

    /// Answers a batch of questions, each about one instance. If one id makes the common call fail, each instance is described alone.
    pub(super) async fn describe_all(&self, ids: Vec<InstanceId>) -> Vec<Described> {
        let unique: BTreeSet<String> = ids.iter().map(ToString::to_string).collect();
        let mut known: BTreeMap<InstanceId, Described> = BTreeMap::new();
        match self.describe_ids(unique.iter().cloned().collect()).await {
            Ok(found) => known.extend(found.into_iter().map(|own| (own.id.clone(), Ok(own)))),
            // One unknown id fails the call for all, so each is described alone below.
            Err(failed) if failed.is_not_found() => {}
            Err(failed) => {
                let error = CloudError::from(failed);
                return ids.iter().map(|_| Err(error.clone())).collect();
            }
        }
        let missing: Vec<_> = unique
            .iter()
            .map(|id| InstanceId(id.as_str().into()))
            .filter(|id| !known.contains_key(id))
            .collect();
        for id in missing {
            let alone = match unique.len() {
                // The instance was already described alone.
                1 => Ok(Vec::new()),
                _ => self.describe_ids(vec![id.to_string()]).await,
            };
            let described = match alone {
                Ok(found) => found.into_iter().find(|own| own.id == id).ok_or(None),
                Err(failed) if failed.is_not_found() => Err(None),
                Err(failed) => Err(Some(CloudError::from(failed))),
            };
            let described = described
                .or_else(|error| match error {
                    None => lock(&self.young).get(&id).ok_or(None),
                    error => Err(error),
                })
                .map_err(|error| error.unwrap_or_else(|| CloudError::NotFound(id.clone())));
            known.insert(id, described);
        }
        let answer = |id: &InstanceId| {
            let found = known.get(id).cloned();
            match found.unwrap_or_else(|| Err(CloudError::NotFound(id.clone()))) {
                // EC2 describes terminated instances for about an hour.
                Ok(own) if own.state == InstanceState::Terminated => {
                    Err(CloudError::NotFound(id.clone()))
                }
                other => other,
            }
        };
        ids.iter().map(answer).collect()
    }

    async fn describe_ids(&self, ids: Vec<String>) -> Result<Vec<Arc<Instance>>, Failed> {
        self.may(Kind::Describe).await;
        let call = self.ec2.describe_instances().set_instance_ids(Some(ids));
        let answer = call.send().await.map_err(Failed::of)?;
        let reservations = answer.reservations.unwrap_or_default().into_iter();
        let found: Vec<_> = reservations
            .flat_map(|own| own.instances.unwrap_or_default())
            .collect();
        self.read_all(&found).await
    }

    /// Terminates a batch of instances. If that fails for one of them, each is terminated alone.
    pub(super) async fn terminate_all(&self, ids: Vec<InstanceId>) -> Vec<Ended> {
        let unique: BTreeSet<InstanceId> = ids.iter().cloned().collect();
        let mut ended: BTreeMap<InstanceId, Ended> = BTreeMap::new();
        match self.terminate_ids(unique.iter()).await {
            Ok(all) => ended.extend(all),
            Err(failed) if unique.len() == 1 => {
                ended.extend(
                    unique
                        .iter()
                        .map(|id| (id.clone(), gone(failed.clone(), id))),
                );
            }
            Err(failed)
                // Without an answer, or at the rate limit, single calls would fare no better and only add to
                // the load.
                if failed.code.is_none()
                    || CloudError::from(failed.clone()) == CloudError::Throttled =>
            {
                let error = CloudError::from(failed);
                ended.extend(unique.iter().map(|id| (id.clone(), Err(error.clone()))));
            }
            Err(_) => {}
        }
        for id in unique {
            if let Entry::Vacant(place) = ended.entry(id) {
                let id = place.key().clone();
                let alone = match self.terminate_ids(std::iter::once(&id)).await {
                    Ok(all) => all.get(&id).cloned().unwrap_or(Ok(())),
                    Err(failed) => gone(failed, &id),
                };
                place.insert(alone);
            }
        }
        for id in ended.keys() {
            lock(&self.young).remove(id);
        }
        let answer = |id: &InstanceId| ended.get(id).cloned().unwrap_or(Ok(()));
        ids.iter().map(answer).collect()
    }

    /// Terminates instances, and returns those that are shutting down now. An instance that was terminated before is not found, although
    /// EC2 accepts the call.
    async fn terminate_ids<'a>(
        &self,
        ids: impl Iterator<Item = &'a InstanceId>,
    ) -> Result<BTreeMap<InstanceId, Ended>, Failed> {
        self.may(Kind::Terminate).await;
        let ids = ids.map(ToString::to_string).collect();
        let call = self.ec2.terminate_instances().set_instance_ids(Some(ids));
        let answer = call.send().await.map_err(Failed::of)?;
        let mut ended = BTreeMap::new();
        for change in answer.terminating_instances() {
            let state = |own: Option<&aws_sdk_ec2::types::InstanceState>| {
                own.and_then(|own| own.name()).map(state_of)
            };
            let is_ending = state(change.current_state()) >= Some(InstanceState::ShuttingDown);
            if let (Some(id), true) = (change.instance_id(), is_ending) {
                let id = InstanceId(id.into());
                let was_gone = state(change.previous_state()) == Some(InstanceState::Terminated);
                let own = if was_gone {
                    Err(CloudError::NotFound(id.clone()))
                } else {
                    Ok(())
                };
                ended.insert(id, own);
            }
        }
        Ok(ended)
    }

    /// Returns failed status checks and scheduled maintenance.
    pub(super) async fn impairments(&self) -> Result<Vec<Impairment>, CloudError> {
        let mut found = BTreeMap::new();
        let now = Timestamp::now();
        for filters in [
            filter("instance-status.status", ["impaired"]),
            filter("system-status.status", ["impaired"]),
            filter("event.code", EVENTS),
        ] {
            self.may(Kind::Describe).await;
            let mut pages = self
                .ec2
                .describe_instance_status()
                .filters(filters)
                .into_paginator()
                .send();
            while let Some(page) = pages.next().await {
                let page = page.map_err(Failed::of)?;
                for own in page.instance_statuses() {
                    for impairment in impairments_of(own, now) {
                        let key = (impairment.instance.clone(), impairment.check);
                        found.insert(key, impairment);
                    }
                }
            }
        }
        Ok(found.into_values().collect())
    }
}

fn gone(failed: Failed, id: &InstanceId) -> Ended {
    if failed.is_not_found() {
        Err(CloudError::NotFound(id.clone()))
    } else {
        Err(failed.into())
    }
}

/// Returns the capacity type of an instance, and its reservation. An instance that only happens to use an open reservation counts as
/// on-demand.
fn paid(own: &aws_sdk_ec2::types::Instance) -> (CapacityType, Option<Reservation>) {
    let lifecycle = own.instance_lifecycle();
    if own.spot_instance_request_id().is_some() || lifecycle == Some(&InstanceLifecycleType::Spot) {
        return (CapacityType::Spot, None);
    }
    let preference = own
        .capacity_reservation_specification()
        .and_then(|own| own.capacity_reservation_preference());
    let only = preference == Some(&CapacityReservationPreference::CapacityReservationsOnly);
    match own.capacity_reservation_id() {
        Some(id) if only => {
            let kind = match lifecycle {
                Some(InstanceLifecycleType::CapacityBlock) => ReservationKind::CapacityBlock,
                _ => ReservationKind::Default,
            };
            let interruptible =
                lifecycle == Some(&InstanceLifecycleType::InterruptibleCapacityReservation);
            let reservation = Reservation {
                id: id.into(),
                kind,
                interruptible,
            };
            (CapacityType::Reserved, Some(reservation))
        }
        _ => (CapacityType::OnDemand, None),
    }
}

/// Returns the placement group that an instance is in.
fn placed(own: &aws_sdk_ec2::types::Placement) -> Option<Placement> {
    let partition = own.partition_number();
    Some(Placement {
        group: own.group_id()?.into(),
        partition: partition.and_then(|number| u32::try_from(number).ok()),
    })
}

fn impairments_of(own: &aws_sdk_ec2::types::InstanceStatus, now: Timestamp) -> Vec<Impairment> {
    let Some(id) = own.instance_id() else {
        return Vec::new();
    };
    let checks = [
        (StatusCheck::Instance, own.instance_status()),
        (StatusCheck::System, own.system_status()),
    ];
    let impairment = |check, since| Impairment {
        instance: InstanceId(id.into()),
        check,
        since,
    };
    let failing = checks.into_iter().filter_map(|(check, summary)| {
        let details = summary?.details().iter();
        let failed = details.filter(|own| {
            let status = own.status().map(|status| status.as_str());
            status == Some("failed")
        });
        let since = failed.filter_map(|own| {
            let since = own.impaired_since().map(|at| at.secs());
            since.map_or(Some(now), |at| Timestamp::from_second(at).ok())
        });
        Some(impairment(check, since.min()?))
    });
    let ahead = own.events().iter().any(|event| {
        let code = event.code().map(|code| code.as_str());
        let over = event.description().unwrap_or_default();
        // EC2 lists events for a week after they are over.
        let is_over = over.starts_with("[Completed]") || over.starts_with("[Canceled]");
        code.is_some_and(|code| EVENTS.contains(&code)) && !is_over
    });
    let ahead = ahead.then(|| impairment(StatusCheck::Event, now));
    failing.chain(ahead).collect()
}

impl Aws {
    pub(super) async fn get_batched(&self, id: InstanceId) -> Described {
        let answer = self.inner.describe.ask(id).await;
        answer.unwrap_or_else(|| Err(unanswered()))
    }

    pub(super) async fn terminate_batched(&self, id: InstanceId) -> Ended {
        let answer = self.inner.terminate.ask(id).await;
        answer.unwrap_or_else(|| Err(unanswered()))
    }
}

fn unanswered() -> CloudError {
    CloudError::NoAnswer("the program is stopping".to_owned())
}
