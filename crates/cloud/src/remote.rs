//! A cloud in another process: the traits of this crate as calls that are sent and answered.
//!
//! [`answer`] makes the calls of a [`Remote`] on a cloud in this process; a [`Wire`] carries the bytes. Calls and responses are JSON, in
//! which instance types are names, because both sides have the same catalogue. An [`Unreliable`] cloud injects faults into the calls for
//! tests.

mod faults;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mullion_api::{
    ami::{AmiFamily, Os},
    eksctl::KubernetesVersion,
    karpenter::{AmiSelectorTerm, CapacityReservationSelectorTerm, PlacementGroupSelector},
};
use mullion_engine::ip::{Cidr, Kind, Listing};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use faults::{CallFaults, Unreliable};

use crate::{
    AddressError, Addresses, BoxFuture, CapacityReservation, CloudError, CloudProvider, DeniedCall,
    Impairment, Instance, InstanceId, InterfaceFound, InterfaceId, Launch, LaunchOption,
    LaunchRequest, Message, Offer, PlacementGroup, SecurityGroup, SelectedImages, Subnet,
    SubnetFacts, TagSelector, ZonalShift, catalogue::Arch, image::NodeImage,
};

/// Carries calls to the process of a cloud.
pub trait Wire: Debug + Send + Sync + 'static {
    /// Sends the bytes of a call and returns those of its response, within half a minute.
    ///
    /// # Errors
    /// There is no response. The call may have been carried out anyway.
    fn send(&self, call: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, WireError>>;
}

/// The reason why a call has no response.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The wire carries no call, or no response, for the reason that its client gives.
    #[error("{0}")]
    Cut(String),
    /// The call or its response has no JSON form.
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    /// The response is not JSON of its type.
    #[error("the answer cannot be understood: {0}")]
    Response(serde_json::Error),
}

/// A call to a cloud in another process.
#[derive(Debug, Deserialize, Serialize)]
enum Call {
    Region,
    Offers {
        os: Os,
        /// The number of the offers that the caller has already.
        known: Option<u64>,
    },
    Subnets(Vec<TagSelector>),
    SecurityGroups(Vec<TagSelector>),
    CapacityReservations(Vec<CapacityReservationSelectorTerm>),
    NewestImage {
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
    },
    Images {
        terms: Vec<AmiSelectorTerm>,
        family: AmiFamily,
        version: KubernetesVersion,
    },
    PlacementGroup(PlacementGroupSelector),
    Denied(Box<LaunchRequest>),
    Launch(Box<LaunchRequest>),
    Get(InstanceId),
    List(BTreeMap<String, String>),
    Terminate(InstanceId),
    MarkUnavailable(LaunchOption),
    ReceiveMessages,
    DeleteMessage(Message),
    Impairments,
    ZonalShifts,
    Assign {
        interface: InterfaceId,
        kind: Kind,
        count: u32,
    },
    GiveBack {
        interface: InterfaceId,
        kind: Kind,
        blocks: Vec<Cidr>,
    },
    OnInterface(InterfaceId),
    InterfacesOf(Vec<InstanceId>),
    Subnet(String),
}

/// Offers with their number; `None` if the caller has them already.
type NumberedOffers = Option<(u64, Vec<Offer>)>;

/// Answers a call of a [`Remote`].
///
/// # Errors
/// The bytes are not a call, because the other process has another version.
pub async fn answer<C: CloudProvider + Addresses>(
    cloud: &C,
    call: &[u8],
) -> Result<Vec<u8>, serde_json::Error> {
    match serde_json::from_slice(call)? {
        Call::Region => bytes(&cloud.region()),
        Call::Offers { os, known } => {
            let offers = cloud
                .offers(os)
                .await
                .map(|offers| numbered(&offers, known));
            bytes(&offers)
        }
        Call::Subnets(own) => bytes(&cloud.subnets(&own).await),
        Call::SecurityGroups(own) => bytes(&cloud.security_groups(&own).await),
        Call::CapacityReservations(own) => bytes(&cloud.capacity_reservations(&own).await),
        Call::NewestImage {
            family,
            version,
            arch,
        } => bytes(&cloud.newest_image(family, version, arch).await),
        Call::Images {
            terms,
            family,
            version,
        } => bytes(&cloud.images(&terms, family, version).await),
        Call::PlacementGroup(own) => bytes(&cloud.placement_group(&own).await),
        Call::Denied(request) => bytes(&cloud.denied_call(*request).await),
        Call::Launch(request) => bytes(&cloud.launch(*request).await),
        Call::Get(id) => bytes(&cloud.get(id).await),
        Call::List(tags) => bytes(&CloudProvider::list(cloud, tags).await),
        Call::Terminate(id) => bytes(&cloud.terminate(id).await),
        Call::MarkUnavailable(option) => bytes(&cloud.mark_unavailable(option).await),
        Call::ReceiveMessages => bytes(&cloud.receive_messages().await),
        Call::DeleteMessage(message) => bytes(&cloud.delete_message(&message).await),
        Call::Impairments => bytes(&cloud.impairments().await),
        Call::ZonalShifts => bytes(&cloud.zonal_shifts().await),
        Call::Assign {
            interface,
            kind,
            count,
        } => bytes(&cloud.assign(&interface, kind, count).await),
        Call::GiveBack {
            interface,
            kind,
            blocks,
        } => bytes(&cloud.give_back(&interface, kind, &blocks).await),
        Call::OnInterface(id) => bytes(&Addresses::list(cloud, &id).await),
        Call::InterfacesOf(ids) => bytes(&cloud.interfaces_of(&ids).await),
        Call::Subnet(id) => bytes(&cloud.subnet(&id).await),
    }
}

fn bytes<T: Serialize>(answer: &T) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(answer)
}

/// Derives a number from the content of offers. There are thousands of them and they change seldom, so they are sent only if their number
/// differs from `known`.
fn numbered(offers: &[Offer], known: Option<u64>) -> NumberedOffers {
    let mut hasher = DefaultHasher::new();
    for offer in offers {
        offer.instance_type.name.hash(&mut hasher);
        for own in &offer.offerings {
            (
                &own.zone,
                own.capacity_type,
                own.price,
                own.available,
                own.on_trial,
            )
                .hash(&mut hasher);
            // Shares of reservations change with every launch in them, so they must change the number.
            own.reservation
                .as_ref()
                .map(|share| format!("{share:?}"))
                .hash(&mut hasher);
        }
    }
    let number = hasher.finish();
    (known != Some(number)).then(|| (number, offers.to_vec()))
}

/// The offers for each operating system, with their number.
type Offers = BTreeMap<Os, (u64, Arc<[Offer]>)>;

/// A cloud in another process.
#[derive(Clone, Debug)]
pub struct Remote {
    wire: Arc<dyn Wire>,
    region: Arc<str>,
    /// The last offers for each operating system, with their number.
    offers: Arc<Mutex<Offers>>,
}

impl Remote {
    /// Connects to the cloud behind a wire.
    ///
    /// # Errors
    /// The cloud does not respond.
    pub async fn connect(wire: Arc<dyn Wire>) -> Result<Remote, WireError> {
        let mut remote = Remote {
            wire,
            region: "".into(),
            offers: Arc::default(),
        };
        remote.region = remote.ask::<String>(&Call::Region).await?.into();
        Ok(remote)
    }

    async fn ask<T: DeserializeOwned>(&self, call: &Call) -> Result<T, WireError> {
        let answer = self.wire.send(serde_json::to_vec(call)?).await?;
        serde_json::from_slice(&answer).map_err(WireError::Response)
    }

    async fn cloud<T: DeserializeOwned>(&self, call: Call) -> Result<T, CloudError> {
        let answer: Result<Result<T, CloudError>, WireError> = self.ask(&call).await;
        answer.map_err(|why| CloudError::NoAnswer(why.to_string()))?
    }

    async fn addresses<T: DeserializeOwned>(&self, call: Call) -> Result<T, AddressError> {
        let answer: Result<Result<T, AddressError>, WireError> = self.ask(&call).await;
        answer.map_err(|why| {
            tracing::debug!("no answer about addresses: {why}");
            AddressError::NoAnswer
        })?
    }
}

impl CloudProvider for Remote {
    fn region(&self) -> &str {
        &self.region
    }

    fn offers(&self, os: Os) -> BoxFuture<'_, Result<Arc<[Offer]>, CloudError>> {
        Box::pin(async move {
            let lock = || self.offers.lock().unwrap_or_else(PoisonError::into_inner);
            // Read once before the call: another call may replace the offers meanwhile, and the answer refers
            // to these.
            let had = lock().get(&os).cloned();
            let known = had.as_ref().map(|(number, _)| *number);
            let news: NumberedOffers = self.cloud(Call::Offers { os, known }).await?;
            match (news, had) {
                (Some((number, offers)), _) => {
                    let offers: Arc<[Offer]> = offers.into();
                    lock().insert(os, (number, Arc::clone(&offers)));
                    Ok(offers)
                }
                (None, Some((_, offers))) => Ok(offers),
                // The cloud says that known offers are unchanged, but none were known: the answer is to
                // another call.
                (None, None) => Err(CloudError::NoAnswer("it has no offers".to_owned())),
            }
        })
    }

    fn subnets<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<Subnet>, CloudError>> {
        Box::pin(self.cloud(Call::Subnets(selectors.to_vec())))
    }

    fn security_groups<'a>(
        &'a self,
        selectors: &'a [TagSelector],
    ) -> BoxFuture<'a, Result<Vec<SecurityGroup>, CloudError>> {
        Box::pin(self.cloud(Call::SecurityGroups(selectors.to_vec())))
    }

    fn capacity_reservations<'a>(
        &'a self,
        terms: &'a [CapacityReservationSelectorTerm],
    ) -> BoxFuture<'a, Result<Vec<CapacityReservation>, CloudError>> {
        Box::pin(self.cloud(Call::CapacityReservations(terms.to_vec())))
    }

    fn placement_group<'a>(
        &'a self,
        selector: &'a PlacementGroupSelector,
    ) -> BoxFuture<'a, Result<Option<PlacementGroup>, CloudError>> {
        Box::pin(self.cloud(Call::PlacementGroup(selector.clone())))
    }

    fn newest_image(
        &self,
        family: AmiFamily,
        version: KubernetesVersion,
        arch: Arch,
    ) -> BoxFuture<'_, Result<NodeImage, CloudError>> {
        Box::pin(self.cloud(Call::NewestImage {
            family,
            version,
            arch,
        }))
    }

    fn images<'a>(
        &'a self,
        terms: &'a [AmiSelectorTerm],
        family: AmiFamily,
        version: KubernetesVersion,
    ) -> BoxFuture<'a, Result<SelectedImages, CloudError>> {
        Box::pin(self.cloud(Call::Images {
            terms: terms.to_vec(),
            family,
            version,
        }))
    }

    fn denied_call(
        &self,
        request: LaunchRequest,
    ) -> BoxFuture<'_, Result<Option<DeniedCall>, CloudError>> {
        Box::pin(self.cloud(Call::Denied(Box::new(request))))
    }

    fn launch(&self, request: LaunchRequest) -> BoxFuture<'_, Result<Launch, CloudError>> {
        Box::pin(self.cloud(Call::Launch(Box::new(request))))
    }

    fn get(&self, id: InstanceId) -> BoxFuture<'_, Result<Arc<Instance>, CloudError>> {
        Box::pin(self.cloud(Call::Get(id)))
    }

    fn list(
        &self,
        tags: BTreeMap<String, String>,
    ) -> BoxFuture<'_, Result<Vec<Arc<Instance>>, CloudError>> {
        Box::pin(self.cloud(Call::List(tags)))
    }

    fn terminate(&self, id: InstanceId) -> BoxFuture<'_, Result<(), CloudError>> {
        Box::pin(self.cloud(Call::Terminate(id)))
    }

    fn mark_unavailable(
        &self,
        option: LaunchOption,
    ) -> BoxFuture<'_, Result<Duration, CloudError>> {
        Box::pin(self.cloud(Call::MarkUnavailable(option)))
    }

    fn receive_messages(&self) -> BoxFuture<'_, Result<Vec<Message>, CloudError>> {
        Box::pin(self.cloud(Call::ReceiveMessages))
    }

    fn delete_message(&self, message: &Message) -> BoxFuture<'_, Result<(), CloudError>> {
        Box::pin(self.cloud(Call::DeleteMessage(message.clone())))
    }

    fn impairments(&self) -> BoxFuture<'_, Result<Vec<Impairment>, CloudError>> {
        Box::pin(self.cloud(Call::Impairments))
    }

    fn zonal_shifts(&self) -> BoxFuture<'_, Result<Vec<ZonalShift>, CloudError>> {
        Box::pin(self.cloud(Call::ZonalShifts))
    }
}

impl Addresses for Remote {
    fn assign<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        count: u32,
    ) -> BoxFuture<'a, Result<Vec<Cidr>, AddressError>> {
        let interface = interface.clone();
        Box::pin(self.addresses(Call::Assign {
            interface,
            kind,
            count,
        }))
    }

    fn give_back<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        blocks: &'a [Cidr],
    ) -> BoxFuture<'a, Result<(), AddressError>> {
        let (interface, blocks) = (interface.clone(), blocks.to_vec());
        Box::pin(self.addresses(Call::GiveBack {
            interface,
            kind,
            blocks,
        }))
    }

    fn list<'a>(
        &'a self,
        interface: &'a InterfaceId,
    ) -> BoxFuture<'a, Result<Listing, AddressError>> {
        Box::pin(self.addresses(Call::OnInterface(interface.clone())))
    }

    fn interfaces_of<'a>(
        &'a self,
        instances: &'a [InstanceId],
    ) -> BoxFuture<'a, Result<Vec<InterfaceFound>, AddressError>> {
        Box::pin(self.addresses(Call::InterfacesOf(instances.to_vec())))
    }

    fn subnet<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<SubnetFacts, AddressError>> {
        Box::pin(self.addresses(Call::Subnet(id.to_owned())))
    }
}
