//! Decides which Services a change concerns, and when they are synced.
//!
//! Only changes of facts that endpoints contain wake a Service. As with workloads, the more pods the namespace has,
//! the longer changes are collected before one sync processes all of them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, Service};

use super::backend;
use crate::{Change, Context, Informer, Key, Queue, pods, queue::collect_for};

/// Adds to `queue` the Services whose endpoints may have to change.
pub(super) fn feed(context: &Context, queue: &Queue<Key>) {
    let services = context.informers.services.clone();
    services.on_change({
        let queue = queue.clone();
        move |change| queue.add(Key::of(&**change.object()))
    });
    let (queue, pods) = (queue.clone(), context.informers.pods.clone());
    context
        .informers
        .pods
        .on_change(move |change| pod_changed(&services, &pods, &queue, change));
}

fn pod_changed(
    services: &Informer<Service>,
    pods: &Informer<Pod>,
    queue: &Queue<Key>,
    change: &Change<'_, Pod>,
) {
    let pod = change.object();
    if change
        .previous()
        .is_some_and(|old| shown(old) == shown(pod))
    {
        return;
    }
    // A pod whose labels changed may have left a Service, which only its former labels still match.
    let former = change
        .previous()
        .filter(|old| old.metadata.labels != pod.metadata.labels);
    let versions: Vec<&Arc<Pod>> = former.into_iter().chain([pod]).collect();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    for service in services.in_namespace(namespace) {
        if versions.iter().any(|pod| backend::matches(&service, pod)) {
            // The number of the namespace's pods is an upper bound for the Service's, and reading it costs nothing.
            let delay = collect_for(pods.count_in_namespace(namespace));
            queue.add_after(Key::of(&*service), delay);
        }
    }
}

/// The facts of a pod that endpoints contain.
#[derive(PartialEq)]
struct EndpointFacts<'a> {
    labels: Option<&'a BTreeMap<String, String>>,
    node: &'a str,
    address: (Option<&'a str>, Option<&'a str>),
    ready: bool,
    deleting: bool,
}

fn shown(pod: &Pod) -> EndpointFacts<'_> {
    EndpointFacts {
        labels: pod.metadata.labels.as_ref(),
        node: pods::node_name(pod),
        address: (backend::address(pod, false), backend::address(pod, true)),
        ready: pods::is_ready(pod),
        deleting: pods::is_deleting(pod),
    }
}
