//! The EndpointSlice controller: what kube-proxy and the like read.
//!
//! [`plan`] decides which slices change. Between a write and the informer's copy of it no second decision is taken
//! ([`Writes`]), or endpoints would be written twice.

mod plan;

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::{Endpoint, EndpointConditions, EndpointSlice},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use rustc_hash::FxHashMap;

use self::plan::{MANAGED_BY_LABEL, MANAGER, Plan, Wanted, port_key};
use super::{backend, watch, writes::Writes};
use crate::{Change, Context, Key, Queue, Recorder, api_error, informers::BY_SERVICE, pods};

const WORKERS: usize = 5;
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Why a sync ended early and will be retried.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("the informer has not seen the last write yet")]
    Stale,
    #[error("node {0} is not known (yet)")]
    UnknownNode(String),
}

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("endpoint_slice");
    let writes = Arc::new(Writes::default());
    watch::feed(context, &queue);
    context.informers.endpoint_slices.on_change({
        let (queue, writes) = (queue.clone(), Arc::clone(&writes));
        move |change| slice_changed(&queue, &writes, change)
    });
    let recorder = context.recorder("endpoint-slice-controller");
    let controller = Arc::new(Controller {
        context: context.clone(),
        recorder,
        writes,
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        let informers = &context.informers;
        if informers.services.synced().await
            && informers.pods.synced().await
            && informers.nodes.synced().await
            && informers.endpoint_slices.synced().await
        {
            queue.run(&context, WORKERS, move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.sync(&key).await }
            });
        }
    });
}

/// Somebody else's change of a slice of ours is undone.
fn slice_changed(queue: &Queue<Key>, writes: &Writes, change: &Change<'_, EndpointSlice>) {
    let slice = change.object();
    if !is_ours(slice) {
        return;
    }
    let Some(service) = slice.labels().get(plan::SERVICE_NAME_LABEL) else {
        return;
    };
    let service = Key::new(
        slice.metadata.namespace.as_deref().unwrap_or_default(),
        service,
    );
    if !writes.observe(&service, &**slice, change.is_deleted()) {
        queue.add(service);
    }
}

fn is_ours(slice: &EndpointSlice) -> bool {
    slice
        .labels()
        .get(MANAGED_BY_LABEL)
        .is_some_and(|manager| manager == MANAGER)
}

struct Controller {
    context: Context,
    recorder: Recorder,
    writes: Arc<Writes>,
}

impl Controller {
    async fn sync(&self, key: &Key) -> Result<(), Error> {
        let informers = &self.context.informers;
        let Some(service) = informers.services.get_key(key) else {
            self.writes.forget(key);
            return Ok(());
        };
        if backend::selects(&service).is_none() || service.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut existing = informers.endpoint_slices.by_index(BY_SERVICE, key.as_str());
        existing.retain(|slice| is_ours(slice) && slice.metadata.deletion_timestamp.is_none());
        existing.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        if self.writes.are_unseen(key, &existing) {
            return Err(Error::Stale);
        }
        let (wanted, unknown_node) = self.wanted(&service);
        let address_type = if backend::is_ipv6(&service) {
            "IPv6"
        } else {
            "IPv4"
        };
        let plan = plan::plan(&service, &existing, wanted, address_type);
        if let Err(error) = self.carry_out(key, plan).await {
            let reason = "FailedToUpdateEndpointSlices";
            let message = format!(
                "Error updating Endpoint Slices for Service {key}: {}",
                api_error::message(&error)
            );
            self.recorder.warning(&*service, reason, message);
            return Err(Error::Api(error));
        }
        unknown_node.map_or(Ok(()), |node| Err(Error::UnknownNode(node)))
    }

    /// The endpoints of `service`, and a node that one of its pods is on but that the informer does not know.
    fn wanted(&self, service: &Service) -> (Wanted, Option<String>) {
        let informers = &self.context.informers;
        let ipv6 = backend::is_ipv6(service);
        let (mut wanted, mut unknown) = (Wanted::new(), None);
        let mut zones: FxHashMap<String, Option<String>> = FxHashMap::default();
        let mut members: Vec<_> = informers
            .pods
            .in_namespace(&service.namespace().unwrap_or_default());
        members.retain(|pod| backend::matches(service, pod));
        // In the order of creation, so that equal clusters get equal slices.
        members.sort_by(|a, b| {
            let age = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (age(a), &a.metadata.name).cmp(&(age(b), &b.metadata.name))
        });
        for pod in members {
            let Some(address) = backend::address(&pod, ipv6) else {
                continue;
            };
            let node = pods::node_name(&pod);
            if !zones.contains_key(node) && !node.is_empty() {
                match informers.nodes.get("", node) {
                    Some(known) => drop(zones.insert(node.to_owned(), zone(&known))),
                    None => {
                        unknown = Some(node.to_owned());
                        continue;
                    }
                }
            }
            let ports = backend::ports(&pod, service);
            let has_ports = service
                .spec
                .as_ref()
                .is_some_and(|spec| spec.ports.iter().flatten().next().is_some());
            if ports.is_empty() && (has_ports || !backend::is_headless(service)) {
                continue;
            }
            let endpoint = endpoint(service, &pod, address, zones.get(node).cloned().flatten());
            let group = wanted
                .entry(port_key(&ports))
                .or_insert_with(|| (ports, Vec::new()));
            group.1.push(endpoint);
        }
        (wanted, unknown)
    }

    async fn carry_out(&self, service: &Key, plan: Plan) -> kube::Result<()> {
        let api: Api<EndpointSlice> =
            Api::namespaced(self.context.client.clone(), service.namespace());
        for slice in plan.create {
            match api.create(&PostParams::default(), &slice).await {
                Ok(created) => self.writes.note(service, &created),
                Err(error) if api_error::is_namespace_terminating(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        for slice in plan.update {
            let updated = api
                .replace(&slice.name_any(), &PostParams::default(), &slice)
                .await?;
            self.writes.note(service, &updated);
        }
        for slice in plan.delete {
            let deleted = api
                .delete(&slice.name_any(), &DeleteParams::default())
                .await;
            api_error::ignore_not_found(deleted)?;
            self.writes.note_deletion(service, &*slice);
        }
        Ok(())
    }
}

fn zone(node: &Node) -> Option<String> {
    node.labels()
        .get(ZONE_LABEL)
        .filter(|zone| !zone.is_empty())
        .cloned()
}

fn endpoint(service: &Service, pod: &Pod, address: &str, zone: Option<String>) -> Endpoint {
    let (serving, terminating) = (pods::is_ready(pod), pods::is_deleting(pod));
    let node = pods::node_name(pod);
    Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(backend::publishes_unready(service) || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: backend::hostname(pod, service),
        node_name: (!node.is_empty()).then(|| node.to_owned()),
        target_ref: Some(backend::target(pod)),
        zone,
        ..Endpoint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::backend::tests::{pod, service};

    #[test]
    fn a_pod_is_ready_while_it_serves_and_is_not_going_away() {
        let service = service(vec![]);
        let conditions = |service: &Service, pod: &Pod| {
            let conditions = endpoint(service, pod, "10.1.0.1", None)
                .conditions
                .expect("always set");
            (conditions.ready, conditions.serving, conditions.terminating)
        };
        let mut ready = pod("a", "10.1.0.1", true, 80);
        let unready = pod("b", "10.1.0.1", false, 80);
        assert_eq!(
            conditions(&service, &ready),
            (Some(true), Some(true), Some(false))
        );
        assert_eq!(
            conditions(&service, &unready),
            (Some(false), Some(false), Some(false))
        );
        ready.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        );
        assert_eq!(
            conditions(&service, &ready),
            (Some(false), Some(true), Some(true))
        );
        let mut publishing = service;
        publishing
            .spec
            .as_mut()
            .expect("set by service")
            .publish_not_ready_addresses = Some(true);
        assert_eq!(
            conditions(&publishing, &unready),
            (Some(true), Some(false), Some(false))
        );
    }
}
