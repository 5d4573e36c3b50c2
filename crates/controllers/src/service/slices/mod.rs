//! The EndpointSlice controller. kube-proxy and other consumers read the slices that it writes.
//!
//! [`plan`] decides which slices change, and [`hints`] which clients their endpoints are for. After a write the
//! controller makes no decision for the Service until the informer shows that write ([`Writes`]); otherwise it
//! would write endpoints twice.

mod hints;
mod plan;
mod port_order;

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::{Endpoint, EndpointConditions, EndpointSlice},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use rustc_hash::FxHashMap;

use self::{
    hints::Topology,
    plan::{EndpointsByPorts, MANAGED_BY_LABEL, MANAGER, Plan, port_key},
};
use super::{
    backend,
    trigger::{self, TriggerTimes},
    watch,
    writes::Writes,
};
use crate::{Change, Context, Key, Queue, Recorder, api_error, informers::BY_SERVICE, pods};

const WORKERS: usize = 5;
/// The delay after which a slice that another client changed is corrected.
const FOREIGN_CHANGE_DELAY: Duration = Duration::from_secs(1);
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The reasons for which a sync ends early and is retried.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the informer has not seen the last write yet")]
    Stale,
    #[error("{0}")]
    Reconcile(String),
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
    let topology = Arc::new(Topology::default());
    context.informers.nodes.on_change({
        let (queue, topology) = (queue.clone(), Arc::clone(&topology));
        let nodes = context.informers.nodes.clone();
        move |change| {
            let same = |old: &Node| {
                is_ready(old) == is_ready(change.object()) && zone(old) == zone(change.object())
            };
            if !change.previous().is_some_and(|old| same(old)) {
                topology
                    .nodes_changed(|| nodes.list())
                    .into_iter()
                    .for_each(|key| queue.add(key));
            }
        }
    });
    let recorder = context.recorder("endpoint-slice-controller");
    let controller = Arc::new(Controller {
        context: context.clone(),
        recorder,
        writes,
        triggers: TriggerTimes::default(),
        topology,
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

/// Schedules the Service when another client changed one of its managed slices.
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
        queue.add_after(service, FOREIGN_CHANGE_DELAY);
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
    triggers: TriggerTimes,
    topology: Arc<Topology>,
}

impl Controller {
    async fn sync(&self, key: &Key) -> Result<(), Error> {
        let informers = &self.context.informers;
        let Some(service) = informers.services.get_key(key) else {
            self.writes.forget(key);
            self.triggers.forget(key);
            self.topology.forget(key);
            return Ok(());
        };
        // The slices of a Service without a selector belong to whoever writes them.
        if backend::selects(&service).is_none() {
            return Ok(());
        }
        let mut existing = informers.endpoint_slices.by_index(BY_SERVICE, key.as_str());
        existing.retain(|slice| is_ours(slice) && slice.metadata.deletion_timestamp.is_none());
        // Informers return objects in no particular order, and the plan must not depend on it.
        existing.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        // Planning with slices from before the last write would create them a second time.
        if self.writes.are_unseen(key, &existing) {
            return Err(Error::Stale);
        }
        let members = self.members(&service);
        let triggered_at = self.triggers.observe(key, &service, &members);
        let (wanted, mut problems) = self.wanted(&service, &members);
        let address_type = if backend::is_ipv6(&service) {
            "IPv6"
        } else {
            "IPv4"
        };
        let mut plan = plan::plan(&service, &existing, wanted, address_type);
        let nodes = || informers.nodes.list();
        let notice = hints::apply(
            &self.topology,
            &service,
            &existing,
            &mut plan,
            address_type,
            nodes,
        );
        // After the hints, which may add slices to the plan.
        for slice in plan.written() {
            trigger::annotate(&mut slice.metadata.annotations, triggered_at);
        }
        let failed = self.carry_out(key, plan).await.err();
        problems.extend(failed.map(|error| error.to_string()));
        if let Some((kind, reason, message)) = notice {
            let service = kube::Resource::object_ref(&*service, &());
            self.recorder.record(service, kind, reason, message);
        }
        if problems.is_empty() {
            return Ok(());
        }
        let problems = aggregate(problems);
        let message = format!("Error updating Endpoint Slices for Service {key}: {problems}");
        self.recorder
            .warning(&*service, "FailedToUpdateEndpointSlices", message);
        Err(Error::Reconcile(problems))
    }

    /// Returns the pods that `service` selects in the order of creation, so that equal clusters get equal slices.
    fn members(&self, service: &Service) -> Vec<Arc<Pod>> {
        let namespace = service.namespace().unwrap_or_default();
        let mut members = self.context.informers.pods.in_namespace(&namespace);
        members.retain(|pod| backend::matches(service, pod));
        members.sort_by(|a, b| {
            let age = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (age(a), &a.metadata.name).cmp(&(age(b), &b.metadata.name))
        });
        members
    }

    /// Returns the endpoints of `service`, and messages about pods that could not become endpoints.
    fn wanted(&self, service: &Service, members: &[Arc<Pod>]) -> (EndpointsByPorts, Vec<String>) {
        let ipv6 = backend::is_ipv6(service);
        let (mut wanted, mut problems) = (EndpointsByPorts::new(), Vec::new());
        let mut nodes: FxHashMap<&str, Option<Arc<Node>>> = FxHashMap::default();
        for pod in members {
            let Some(address) = backend::address(pod, ipv6) else {
                continue;
            };
            let name = pods::node_name(pod);
            let node = nodes
                .entry(name)
                .or_insert_with(|| self.context.informers.nodes.get("", name));
            // Without the node the endpoint's zone is unknown. The sync fails and is retried, but the other
            // endpoints are written.
            if node.is_none() && !name.is_empty() && !backend::publishes_unready(service) {
                problems.push(format!(
                    "skipping Pod {} for Service {}: Node {name} Not Found",
                    pod.name_any(),
                    Key::of(service),
                ));
                continue;
            }
            let mut ports = backend::ports(pod, service);
            // A pod that declares none of the named ports is still an endpoint, in a slice without ports.
            port_order::sort(&mut ports);
            let endpoint = endpoint(service, pod, address, node.as_deref().and_then(zone));
            let group = wanted
                .entry(port_key(&ports))
                .or_insert_with(|| (ports, Vec::new()));
            group.1.push(endpoint);
        }
        (wanted, problems)
    }

    /// Carries out the plan up to the first failure.
    async fn carry_out(&self, service: &Key, plan: Plan) -> Result<(), SliceError> {
        let api: Api<EndpointSlice> =
            Api::namespaced(self.context.client.clone(), service.namespace());
        let failed = |write: SliceWrite, error: kube::Error| SliceError {
            write,
            service: service.clone(),
            error,
        };
        // New slices come before deletions, so that no endpoint is missing in between.
        for slice in plan.create {
            match api.create(&PostParams::default(), &slice).await {
                Ok(created) => self.writes.note(service, &created),
                // Nothing can be created in a namespace that is being deleted, so retries would fail until it
                // is gone.
                Err(error) if api_error::is_namespace_terminating(&error) => return Ok(()),
                Err(error) => return Err(failed(SliceWrite::Create, error)),
            }
        }
        for slice in plan.update {
            let name = slice.name_any();
            match api.replace(&name, &PostParams::default(), &slice).await {
                Ok(updated) => self.writes.note(service, &updated),
                Err(error) => return Err(failed(SliceWrite::Update(name), error)),
            }
        }
        for slice in plan.delete {
            let name = slice.name_any();
            let deleted = api.delete(&name, &DeleteParams::default()).await;
            api_error::ignore_not_found(deleted)
                .map_err(|error| failed(SliceWrite::Delete(name), error))?;
            self.writes.note_deletion(service, &*slice);
        }
        Ok(())
    }
}

/// The API server refuses to write a slice; the message is kube-controller-manager's.
#[derive(Debug, thiserror::Error)]
#[error("failed to {write}EndpointSlice for Service {service}: {}", api_error::message(.error))]
struct SliceError {
    write: SliceWrite,
    service: Key,
    error: kube::Error,
}

/// A write of a slice, with its name if it exists.
#[derive(Debug)]
enum SliceWrite {
    Create,
    Update(String),
    Delete(String),
}

impl fmt::Display for SliceWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SliceWrite::Create => f.write_str("create "),
            SliceWrite::Update(name) => write!(f, "update {name} "),
            SliceWrite::Delete(name) => write!(f, "delete {name} "),
        }
    }
}

/// Joins messages as Go's `NewAggregate` does: each distinct message once, in brackets if there are several.
fn aggregate(mut problems: Vec<String>) -> String {
    let mut seen = std::collections::BTreeSet::new();
    problems.retain(|problem| seen.insert(problem.clone()));
    match problems.as_slice() {
        [only] => only.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn zone(node: &Node) -> Option<String> {
    node.labels()
        .get(ZONE_LABEL)
        .filter(|zone| !zone.is_empty())
        .cloned()
}

fn endpoint(service: &Service, pod: &Pod, address: &str, zone: Option<String>) -> Endpoint {
    // A terminating pod is not ready even if its probe succeeds: `serving` tells proxies that it can still
    // take connections if no other endpoint is ready.
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
