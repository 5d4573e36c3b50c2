//! The controller of Services of type LoadBalancer (cloud-controller-manager: service controller).
//!
//! Addresses come from a [`LoadBalancers`]; without a cloud that is [`ElasticLoadBalancers`], which only generates
//! names. As in the cloud controller, a finalizer keeps a Service until its address is released. [`update`] decides
//! which changes need a sync, [`hosts`] which nodes receive traffic.

mod hosts;
mod update;

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Service, ServiceStatus};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use rustc_hash::FxHashMap;
use serde_json::json;

use self::{
    hosts::{HostSet, Hosts},
    update::Update,
};
use crate::{Change, Context, Key, Queue, Recorder, api_error};

const WORKERS: usize = 1;
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// A source of external addresses.
pub trait LoadBalancers: Send + Sync + 'static {
    /// Returns the address of the Service's load balancer; the same on every call.
    fn address(&self, service: &Service) -> LoadBalancerIngress;

    /// Releases the Service's load balancer.
    fn release(&self, service: &Service);
}

/// Generates names like those of AWS classic load balancers: `<name>-<number>.<region>.elb.amazonaws.com`.
#[derive(Clone, Debug)]
pub struct ElasticLoadBalancers {
    region: String,
}

impl ElasticLoadBalancers {
    /// Creates a source of names in `region`.
    pub fn new(region: impl Into<String>) -> Self {
        Self {
            region: region.into(),
        }
    }
}

impl LoadBalancers for ElasticLoadBalancers {
    fn address(&self, service: &Service) -> LoadBalancerIngress {
        let uid = service.uid().unwrap_or_default().replace('-', "");
        // The AWS cloud provider's name of a load balancer: "a" and the uid, at most 32 characters.
        let name: String = format!("a{uid}").chars().take(32).collect();
        let number = name.bytes().fold(0_u64, |hash, byte| {
            (hash * 131 + u64::from(byte)) % 9_000_000_000
        }) + 1_000_000_000;
        let hostname = format!("{name}-{number}.{}.elb.amazonaws.com", self.region);
        LoadBalancerIngress {
            hostname: Some(hostname),
            ..LoadBalancerIngress::default()
        }
    }

    fn release(&self, _: &Service) {}
}

/// An item of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// Creates, updates or releases the load balancer.
    Ensure(Key),
    /// Passes a changed set of nodes to the load balancer.
    UpdateHosts(Key),
}

/// Starts the controller.
pub fn start(context: &Context, balancers: Arc<dyn LoadBalancers>) {
    let queue = Queue::new("service");
    let controller = Arc::new(Controller {
        context: context.clone(),
        recorder: context.recorder("service-controller"),
        balancers,
        hosts: HostSet::default(),
        served: Mutex::default(),
    });
    context.informers.services.on_change({
        let (queue, controller) = (queue.clone(), Arc::clone(&controller));
        move |change| controller.service_changed(&queue, change)
    });
    context.informers.nodes.on_change({
        let (queue, controller) = (queue.clone(), Arc::clone(&controller));
        move |change| {
            if controller.hosts.observe(change) {
                for key in controller.served().keys() {
                    queue.add(Work::UpdateHosts(key.clone()));
                }
            }
        }
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        if context.informers.services.synced().await && context.informers.nodes.synced().await {
            queue.run(&context, WORKERS, move |work| {
                let controller = Arc::clone(&controller);
                async move {
                    match work {
                        Work::Ensure(key) => controller.sync(&key).await,
                        Work::UpdateHosts(key) => {
                            controller.update_hosts(&key);
                            Ok(())
                        }
                    }
                }
            });
        }
    });
}

/// Returns whether the Service needs a load balancer from this controller; one with a load balancer class belongs to another
/// controller.
fn wants_one(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.is_some_and(|spec| {
        spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none()
    })
}

fn has_finalizer(service: &Service) -> bool {
    service
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == FINALIZER)
}

fn ingress(service: &Service) -> &[LoadBalancerIngress] {
    let balancer = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    balancer
        .and_then(|balancer| balancer.ingress.as_deref())
        .unwrap_or_default()
}

/// Returns whether the load balancer has to be released.
fn needs_cleanup(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    has_finalizer(service)
        && (service.metadata.deletion_timestamp.is_some()
            || spec.is_none_or(|spec| spec.type_.as_deref() != Some("LoadBalancer")))
}

struct Controller {
    context: Context,
    recorder: Recorder,
    balancers: Arc<dyn LoadBalancers>,
    hosts: HostSet,
    /// The hosts that were last passed to each load balancer.
    served: Mutex<FxHashMap<Key, Hosts>>,
}

impl Controller {
    fn service_changed(&self, queue: &Queue<Work>, change: &Change<'_, Service>) {
        let service = change.object();
        let key = Key::of(&**service);
        if change.is_deleted() {
            self.served().remove(&key);
            return;
        }
        let is_due = match change.previous() {
            None => wants_one(service),
            Some(old) => match update::between(old, service) {
                Update::None => false,
                Update::Silent => true,
                Update::Recorded(reason, message) => {
                    self.recorder.normal(&**service, reason, message);
                    true
                }
            },
        };
        // The finalizer outlives a restart, while the change that asked for the release may have been missed.
        if is_due || needs_cleanup(service) {
            queue.add(Work::Ensure(key));
        }
    }

    async fn sync(&self, key: &Key) -> kube::Result<()> {
        let Some(service) = self.context.informers.services.get_key(key) else {
            return Ok(());
        };
        // A Service that is being deleted still wants a load balancer by its type; cleaning up comes first.
        let outcome = if wants_one(&service) && !needs_cleanup(&service) {
            self.ensure(&service).await
        } else {
            self.release(&service).await
        };
        let Err(error) = outcome else { return Ok(()) };
        if api_error::is_not_found(&error) {
            return Ok(());
        }
        // Another writer was faster. The retry reads the new version, so no event reports a failure.
        if api_error::is_conflict(&error) {
            return Err(error);
        }
        let message = format!(
            "Error syncing load balancer: {}",
            api_error::message(&error)
        );
        self.recorder
            .warning(&*service, "SyncLoadBalancerFailed", message);
        Err(error)
    }

    async fn ensure(&self, service: &Service) -> kube::Result<()> {
        self.recorder
            .normal(service, "EnsuringLoadBalancer", "Ensuring load balancer");
        if !has_finalizer(service) {
            let mut finalizers = service.finalizers().to_vec();
            finalizers.push(FINALIZER.to_owned());
            // Written before the load balancer exists: otherwise a deletion in between would leave it behind.
            self.patch_finalizers(service, finalizers).await?;
        }
        let hosts = self.hosts.get();
        if hosts.is_empty() {
            self.warn_of_no_hosts(service);
        }
        self.served().insert(Key::of(service), hosts);
        let wanted = [self.balancers.address(service)];
        self.recorder
            .normal(service, "EnsuredLoadBalancer", "Ensured load balancer");
        if ingress(service) != wanted {
            self.write_ingress(service, Some(wanted.to_vec())).await?;
        }
        Ok(())
    }

    /// Records an event if the hosts differ from those that the load balancer was last given.
    fn update_hosts(&self, key: &Key) {
        let Some(service) = self.context.informers.services.get_key(key) else {
            return;
        };
        let hosts = self.hosts.get();
        match self.served().get_mut(key) {
            Some(known) if *known != hosts => *known = Arc::clone(&hosts),
            // A key that is not served was released meanwhile, or got these hosts when it was ensured.
            _ => return,
        }
        if hosts.is_empty() {
            self.warn_of_no_hosts(&service);
        } else {
            let message = "Updated load balancer with new hosts";
            self.recorder
                .normal(&*service, "UpdatedLoadBalancer", message);
        }
    }

    fn warn_of_no_hosts(&self, service: &Service) {
        let message = "There are no available nodes for LoadBalancer";
        self.recorder
            .warning(service, "UnAvailableLoadBalancer", message);
    }

    fn served(&self) -> std::sync::MutexGuard<'_, FxHashMap<Key, Hosts>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn release(&self, service: &Service) -> kube::Result<()> {
        self.served().remove(&Key::of(service));
        // The API server clears the addresses when the type changes, so the finalizer is what shows that there was a load
        // balancer.
        if has_finalizer(service) || !ingress(service).is_empty() {
            self.recorder
                .normal(service, "DeletingLoadBalancer", "Deleting load balancer");
            self.balancers.release(service);
        }
        if has_finalizer(service) {
            let others = service.finalizers().iter();
            let others = others.filter(|finalizer| *finalizer != FINALIZER);
            self.patch_finalizers(service, others.cloned().collect())
                .await?;
        }
        self.recorder
            .normal(service, "DeletedLoadBalancer", "Deleted load balancer");
        if !ingress(service).is_empty() {
            self.write_ingress(service, None).await?;
        }
        Ok(())
    }

    /// Replaces the finalizers; fails with a conflict if another client changed the Service, because lists are replaced as a
    /// whole.
    async fn patch_finalizers(
        &self,
        service: &Service,
        finalizers: Vec<String>,
    ) -> kube::Result<()> {
        let patch = json!({"metadata": {
            "finalizers": finalizers,
            "resourceVersion": service.resource_version(),
        }});
        let patched = self
            .api(service)
            .patch(
                &service.name_any(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await;
        patched.map(drop)
    }

    async fn write_ingress(
        &self,
        service: &Service,
        ingress: Option<Vec<LoadBalancerIngress>>,
    ) -> kube::Result<()> {
        let status = ServiceStatus {
            load_balancer: Some(LoadBalancerStatus { ingress }),
            ..ServiceStatus::default()
        };
        let patch = json!({"status": {"loadBalancer": status.load_balancer.filter(|balancer| balancer.ingress.is_some())}});
        let api = self.api(service);
        api.patch_status(
            &service.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await
        .map(drop)
    }

    fn api(&self, service: &Service) -> Api<Service> {
        Api::namespaced(
            self.context.client.clone(),
            &service.namespace().unwrap_or_default(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_one_name_that_looks_like_an_elastic_load_balancer() {
        let mut service = Service::default();
        service.metadata.uid = Some("c0ffee00-1234-5678-9abc-def012345678".to_owned());
        let balancers = ElasticLoadBalancers::new("us-west-2");
        let hostname = balancers.address(&service).hostname.expect("a host name");
        assert_eq!(
            balancers.address(&service).hostname.as_ref(),
            Some(&hostname)
        );
        let (label, rest) = hostname.split_once('.').expect("a domain");
        assert_eq!(rest, "us-west-2.elb.amazonaws.com");
        let (name, number) = label.split_once('-').expect("a number");
        assert_eq!(name, "ac0ffee00123456789abcdef01234567");
        assert_eq!(number.len(), 10);
        service.metadata.uid = Some("another".to_owned());
        assert_ne!(balancers.address(&service).hostname, Some(hostname));
    }
}
