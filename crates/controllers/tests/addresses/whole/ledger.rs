//! Who had which address when, by what the API server says; and whatever was wrong with it.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mullion_api::labels::PRIVATE_IPV4;
use mullion_controllers::Context;
use mullion_engine::ip::Cidr;
use tokio::time::Instant;

/// How long a released address rests. Controllers count whole milliseconds.
const REST: Duration = Duration::from_millis(29_999);

/// How ready the pod's node was when the pod was bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Start {
    /// The node had more warm addresses than pods that waited.
    Warm,
    /// It had not: EC2 has to be asked.
    Cold,
}

#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) node: usize,
    pub(crate) start: Start,
    pub(crate) bound: Instant,
    /// What beyond the controller kept the pod waiting.
    pub(crate) hindered: Option<&'static str>,
    /// What the node had when the pod had waited for long.
    pub(crate) sight: String,
    pub(crate) address: Option<(Ipv4Addr, Instant)>,
    ended: Option<Instant>,
}

/// Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Inner>>);

#[derive(Default)]
pub(crate) struct Inner {
    /// By the pod's name.
    pub(crate) pods: BTreeMap<String, Tenant>,
    holders: BTreeMap<Ipv4Addr, String>,
    released: BTreeMap<Ipv4Addr, Instant>,
    pub(crate) wrong: Vec<String>,
}

impl Ledger {
    /// Follows the pods.
    pub(crate) fn follow(&self, context: &Context) {
        let ledger = self.clone();
        context.informers.pods.on_change(move |change| {
            let pod = change.object();
            let mut inner = ledger.lock();
            inner.see(pod, change.is_deleted() || has_ended(pod));
        });
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

impl Inner {
    /// Writes down a pod that is about to be bound to a node.
    pub(crate) fn bind(&mut self, pod: &str, node: usize, start: Start) {
        let tenant = Tenant {
            node,
            start,
            bound: Instant::now(),
            hindered: None,
            sight: String::new(),
            address: None,
            ended: None,
        };
        self.pods.insert(pod.to_owned(), tenant);
    }

    fn see(&mut self, pod: &Pod, ended: bool) {
        let (name, now) = (pod.name_any(), Instant::now());
        let Some(tenant) = self.pods.get_mut(&name) else {
            return;
        };
        let text = pod.annotations().get(PRIVATE_IPV4);
        let ip = text.map(|text| text.parse::<Cidr>().expect("an address with its mask").ip);
        match (tenant.address, ip) {
            (None, Some(ip)) => {
                tenant.address = Some((ip, now));
                if let Some(holder) = self.holders.insert(ip, name.clone()) {
                    self.wrong
                        .push(format!("{name} gets {ip}, which {holder} has"));
                }
                if let Some(rested) = self.released.get(&ip).map(|at| now - *at)
                    && rested < REST
                {
                    let text = format!("{name} gets {ip}, which rested {rested:?}");
                    self.wrong.push(text);
                }
            }
            (Some((had, _)), has) if has != Some(had) => {
                self.wrong
                    .push(format!("{name} has {had}, and now {has:?}"));
            }
            _ => {}
        }
        if ended && tenant.ended.is_none() {
            tenant.ended = Some(now);
            if let Some((ip, _)) = tenant.address {
                self.holders.remove(&ip);
                self.released.insert(ip, now);
            }
        }
    }

    /// Returns the pods that live, each with its name.
    pub(crate) fn living(&mut self) -> impl Iterator<Item = (&String, &mut Tenant)> {
        self.pods
            .iter_mut()
            .filter(|(_, tenant)| tenant.ended.is_none())
    }

    /// Returns how many pods were kept waiting by what.
    pub(crate) fn hindered(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for why in self.pods.values().filter_map(|pod| pod.hindered) {
            *counts.entry(why).or_default() += 1;
        }
        counts
    }

    /// Returns the pods of a kind that nothing beyond the controller kept waiting, the one that waited longest first.
    pub(crate) fn slowest(&self, start: Start) -> impl Iterator<Item = (&String, &Tenant)> {
        let pods = self.pods.iter();
        let counted = pods.filter(|(_, pod)| pod.start == start && pod.hindered.is_none());
        let mut counted: Vec<_> = counted.collect();
        counted.sort_by_key(|(_, pod)| Reverse(pod.waited()));
        counted.into_iter()
    }
}

impl Tenant {
    /// Returns how long the pod waited: until it had an address, or else was deleted, or else until now.
    pub(crate) fn waited(&self) -> Duration {
        let had = self.address.map(|(_, at)| at);
        had.or(self.ended).unwrap_or_else(Instant::now) - self.bound
    }
}
