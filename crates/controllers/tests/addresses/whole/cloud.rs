//! The simulated EC2 for a controller that is killed: EC2 carries out a call although nobody waits for the answer any more.
//!
//! Every call is written down, so that the test knows which pods EC2 itself kept waiting, and can print what happened to a pod.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mullion_api::{
    ami::{AmiFamily, WindowsEdition, WindowsRelease},
    eksctl::KubernetesVersion,
};
use mullion_cloud::{
    AddressError, Addresses, BoxFuture, CapacityType, Clock, Instance, InstanceId, InterfaceFound,
    InterfaceId, LaunchOption, LaunchRequest, NodeTemplate, Registration, SubnetFacts,
    sim::{Config, SimulatedEc2},
};
use mullion_engine::ip::{Cidr, Kind, Listing};
use tokio::time::Instant;

const WINDOWS: AmiFamily = AmiFamily::Windows(WindowsRelease::V2022, WindowsEdition::Core);

/// Answers come sooner than this or are lost.
const ANSWER: Duration = Duration::from_secs(1);

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct Cloud {
    pub(crate) ec2: SimulatedEc2,
    journal: Arc<Mutex<BTreeMap<InterfaceId, Vec<Call>>>>,
}

/// A call about an interface.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) began: Instant,
    /// When it ended, and `success` or the code of EC2's error.
    pub(crate) ended: Option<(Instant, String)>,
}

impl fmt::Debug for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cloud")
    }
}

impl Cloud {
    /// A region with these zones, each with a subnet of 8,187 free addresses.
    pub(crate) fn new(zones: &[&str], clock: Clock, seed: u64) -> Self {
        let version = KubernetesVersion::from_minor(35).expect("a version that EKS has");
        let config = Config {
            zones: zones.iter().map(|zone| (*zone).to_owned()).collect(),
            subnet_bits: Some(19),
            seed,
            ..Config::new("demo", "us-west-2", version)
        };
        Cloud {
            ec2: SimulatedEc2::new(config, clock),
            journal: Arc::default(),
        }
    }

    /// Buys an instance that is booted at once.
    pub(crate) fn instance(&self, token: &str, zone: &str, instance_type: &str) -> Arc<Instance> {
        let version = self.ec2.config().version;
        let bought = self.ec2.provide(LaunchRequest {
            client_token: token.into(),
            options: vec![LaunchOption {
                instance_type: instance_type.into(),
                zone: zone.into(),
                capacity_type: CapacityType::OnDemand,
                reservation: None,
                placement: None,
            }],
            images: Vec::new(),
            subnets: Vec::new(),
            security_groups: Vec::new(),
            template: NodeTemplate::new(WINDOWS, version),
            registration: Registration::default(),
            tags: BTreeMap::new(),
            class: None,
        });
        bought.expect("EC2 has capacity and an address")
    }

    /// Returns the calls about an interface that had not ended at `since`, in the order in which they began.
    pub(crate) fn calls(&self, interface: &InterfaceId, since: Instant) -> Vec<Call> {
        let journal = self.journal();
        let calls = journal.get(interface).into_iter().flatten();
        let later = calls.filter(|call| call.ended.as_ref().is_none_or(|(at, _)| *at >= since));
        later.cloned().collect()
    }

    /// Returns how many calls ended in which way.
    pub(crate) fn results(&self) -> BTreeMap<String, usize> {
        let mut results = BTreeMap::new();
        for call in self.journal().values().flatten() {
            let name = call.name.split(' ').next().unwrap_or_default();
            let result = call
                .ended
                .as_ref()
                .map_or("no answer", |(_, result)| result);
            *results.entry(format!("{name} {result}")).or_default() += 1;
        }
        results
    }

    fn journal(&self) -> MutexGuard<'_, BTreeMap<InterfaceId, Vec<Call>>> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call in a task of its own.
    fn outlive<'a, T: Send + 'static>(
        &self,
        name: impl Into<String>,
        about: Vec<InterfaceId>,
        call: impl Future<Output = Result<T, AddressError>> + Send + 'static,
    ) -> BoxFuture<'a, Result<T, AddressError>> {
        let (this, name, began) = (self.clone(), name.into(), Instant::now());
        let mut places = Vec::new();
        for id in about {
            let name = name.clone();
            let mut journal = self.journal();
            let calls = journal.entry(id.clone()).or_default();
            places.push((id, calls.len()));
            calls.push(Call {
                name,
                began,
                ended: None,
            });
        }
        let task = tokio::spawn(async move {
            let ended = call.await;
            let text = match &ended {
                Ok(_) => "success".to_owned(),
                Err(error) => error.to_string(),
            };
            let code = text.split(':').next().unwrap_or_default();
            let mut journal = this.journal();
            for (id, at) in places {
                let calls = journal.entry(id).or_default();
                calls[at].ended = Some((Instant::now(), code.to_owned()));
            }
            ended
        });
        Box::pin(async move { task.await.expect("a call does not panic") })
    }
}

impl Call {
    /// Returns whether the answer is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.waited() > ANSWER
    }

    /// Returns whether EC2 refused the rate.
    pub(crate) fn is_refused(&self) -> bool {
        let ended = self.ended.as_ref();
        ended.is_some_and(|(_, result)| result == "RequestLimitExceeded")
    }

    fn waited(&self) -> Duration {
        let end = self.ended.as_ref().map_or_else(Instant::now, |(at, _)| *at);
        end - self.began
    }
}

impl Addresses for Cloud {
    fn assign<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        count: u32,
    ) -> BoxFuture<'a, Result<Vec<Cidr>, AddressError>> {
        let (ec2, id) = (self.ec2.clone(), interface.clone());
        let name = format!("assign {count} {kind:?}");
        let call = async move { ec2.assign(&id, kind, count).await };
        self.outlive(name, vec![interface.clone()], call)
    }

    fn give_back<'a>(
        &'a self,
        interface: &'a InterfaceId,
        kind: Kind,
        blocks: &'a [Cidr],
    ) -> BoxFuture<'a, Result<(), AddressError>> {
        let (ec2, id, blocks) = (self.ec2.clone(), interface.clone(), blocks.to_vec());
        let call = async move { ec2.give_back(&id, kind, &blocks).await };
        self.outlive("give-back", vec![interface.clone()], call)
    }

    fn list<'a>(
        &'a self,
        interface: &'a InterfaceId,
    ) -> BoxFuture<'a, Result<Listing, AddressError>> {
        let (ec2, id) = (self.ec2.clone(), interface.clone());
        let call = async move { Addresses::list(&ec2, &id).await };
        self.outlive("list", vec![interface.clone()], call)
    }

    fn interfaces_of<'a>(
        &'a self,
        instances: &'a [InstanceId],
    ) -> BoxFuture<'a, Result<Vec<InterfaceFound>, AddressError>> {
        let (ec2, ids) = (self.ec2.clone(), instances.to_vec());
        let about = instances.iter().map(interface_id).collect();
        let call = async move { ec2.interfaces_of(&ids).await };
        self.outlive("load", about, call)
    }

    fn subnet<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<SubnetFacts, AddressError>> {
        self.ec2.subnet(id)
    }
}

/// Returns the id that the simulated EC2 gives an instance's interface.
pub(crate) fn interface_id(instance: &InstanceId) -> InterfaceId {
    InterfaceId(instance.0.replacen("i-", "eni-", 1).into())
}
