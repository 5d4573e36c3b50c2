//! AWS through its SDK.
//!
//! [`Aws`] implements the traits of `mullion-cloud`; each other file here has the calls about one topic. Facts about the region (types,
//! prices, subnets, images) are stored for some time and then looked up again. Refusals are stored as in `mullion_cloud::Refusals`.
//!
//! Invariant: no lock is held during a call, except for the lock by which only a single task renews the offers.

mod addresses;
mod connect;
mod errors;
mod filters;
mod fleet;
mod groups;
mod images;
mod instances;
mod market;
mod network;
mod profiles;
mod provider;
mod queue;
mod reservations;
mod shifts;
mod template;
mod templates;
mod types;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mullion_cloud::{Instance, InstanceId, Refusals};
use tokio::time::Instant;

use self::{
    images::Images, instances::Young, market::Market, network::Network, profiles::Profiles,
    queue::Queue, reservations::Reservations, templates::Templates,
};
use crate::{
    batch::Batcher,
    bootstrap::ClusterFacts,
    limits::{Kind, Limits},
};

pub use connect::{ConnectError, sdk_config};

/// The settings besides the region and the credentials, which the SDK finds.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The cluster that machines join. A missing endpoint or service CIDR is looked up (eks:DescribeCluster).
    pub cluster: ClusterFacts,
    /// Name of the SQS queue with messages about instances (`INTERRUPTION_QUEUE`).
    pub interruption_queue: Option<String>,
    /// Whether AWS endpoints outside of the VPC cannot be reached. On-demand prices are then the catalogue's (`ISOLATED_VPC`).
    pub isolated_vpc: bool,
    /// Whether nodes can have reserved capacity (feature gate ReservedCapacity). Other instances then do not use open reservations.
    pub reserved_capacity: bool,
}

/// AWS in one region.
#[derive(Clone)]
pub struct Aws {
    inner: Arc<Inner>,
}

impl fmt::Debug for Aws {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aws({})", self.inner.region)
    }
}

type Described = Result<Arc<Instance>, mullion_cloud::CloudError>;
type Ended = Result<(), mullion_cloud::CloudError>;

struct Inner {
    region: String,
    settings: Settings,
    arc: aws_sdk_arczonalshift::Client,
    ec2: aws_sdk_ec2::Client,
    eks: aws_sdk_eks::Client,
    iam: aws_sdk_iam::Client,
    pricing: aws_sdk_pricing::Client,
    sqs: aws_sdk_sqs::Client,
    ssm: aws_sdk_ssm::Client,
    limits: Limits,
    /// The ARN of the cluster, once it was looked up.
    cluster_arn: tokio::sync::OnceCell<String>,
    refusals: Mutex<Refusals>,
    market: tokio::sync::Mutex<Market>,
    network: Mutex<Network>,
    images: Mutex<Images>,
    templates: Mutex<Templates>,
    profiles: Mutex<Profiles>,
    reservations: Mutex<Reservations>,
    groups: Mutex<groups::Groups>,
    young: Mutex<Young>,
    queue: Queue,
    describe: Batcher<InstanceId, Described>,
    terminate: Batcher<InstanceId, Ended>,
}

impl Inner {
    /// Waits until a call of this kind may be made.
    async fn may(&self, kind: Kind) {
        self.limits.wait(kind).await;
    }
}

/// A value with the time of its lookup.
#[derive(Clone, Debug)]
struct Dated<T> {
    at: Instant,
    value: T,
}

impl<T> Dated<T> {
    fn now(value: T) -> Self {
        Self {
            at: Instant::now(),
            value,
        }
    }

    /// Returns the value, unless it is this old.
    fn younger_than(&self, age: Duration) -> Option<&T> {
        (self.at.elapsed() < age).then_some(&self.value)
    }
}

/// Drops the values that are this old.
fn forget_older<K: Ord, T>(map: &mut BTreeMap<K, Dated<T>>, age: Duration) {
    map.retain(|_, own| own.at.elapsed() < age);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
