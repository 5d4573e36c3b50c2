//! The rows of core/v1 and apps/v1.

use std::sync::Arc;

use mullion_kube_text::names::NameRule;

use super::row::{PROXY_VERBS, Row, STATUS_VERBS, STREAM_VERBS};
use crate::{
    Generation, Propagation, Rules, StatusMetadata, StatusOnCreate, Subresource,
    SubresourceHandler,
    componentstatuses::ComponentStatus,
    configmaps::ConfigMap,
    controllerrevisions::ControllerRevision,
    daemonsets::DaemonSets,
    deployments::Deployments,
    endpoints::Endpoints,
    events::{self, CoreEvent},
    limitranges::LimitRange,
    namespaces::Namespace,
    nodes::Node,
    persistentvolumeclaims::PersistentVolumeClaim,
    persistentvolumes::PersistentVolume,
    pods::Pods,
    podtemplates::PodTemplate,
    replicasets::ReplicaSets,
    replicationcontrollers::ReplicationController,
    resourcequotas::ResourceQuota,
    secrets::Secret,
    serviceaccounts::ServiceAccount,
    services::{Service, pools::Pools},
    statefulsets::StatefulSets,
    workloads::WorkloadKind,
};

/// Sets the rules of events, for both APIs.
pub(super) fn event_rules(rules: &mut Rules) {
    rules.create_on_update = true;
    rules.default_propagation = Propagation::Unsupported;
    rules.ttl = Some(events::TTL);
}

pub(super) fn core(pools: Arc<Pools>) -> Vec<Row> {
    vec![
        Row::core("Binding", "bindings").rules(|rules| rules.transient = true),
        // The components that could be asked are part of this process or do not exist, so the list is empty.
        Row::core("ComponentStatus", "componentstatuses")
            .behaves(ComponentStatus)
            .cluster()
            .short(&["cs"])
            .deprecated("v1 ComponentStatus is deprecated in v1.19+")
            .rules(|rules| rules.read_only = true),
        Row::core("ConfigMap", "configmaps")
            .behaves(ConfigMap)
            .short(&["cm"]),
        Row::core("Endpoints", "endpoints")
            .behaves(Endpoints)
            .short(&["ep"])
            .deprecated(
                "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
            )
            .rules(|rules| rules.create_on_update = true),
        Row::core("Event", "events")
            .behaves(CoreEvent)
            .short(&["ev"])
            .rules(event_rules),
        Row::core("LimitRange", "limitranges")
            .behaves(LimitRange)
            .short(&["limits"])
            .rules(|rules| rules.create_on_update = true),
        Row::core("Namespace", "namespaces")
            .behaves(Namespace)
            .cluster()
            .short(&["ns"])
            .rules(|rules| {
                rules.name = NameRule::DnsLabel;
                rules.two_step_deletion = true;
                rules.delete_returns_object = true;
                rules.delete_collection = false;
            })
            .part("finalize", &["update"], StatusMetadata::All)
            .status(StatusMetadata::All),
        Row::core("Node", "nodes")
            .behaves(Node)
            .cluster()
            .short(&["no"])
            // A kubelet creates its Node with a first status.
            .rules(|rules| rules.status_on_create = StatusOnCreate::Keep)
            .named("proxy", "NodeProxyOptions", PROXY_VERBS)
            .status(StatusMetadata::All),
        Row::core("PersistentVolumeClaim", "persistentvolumeclaims")
            .behaves(PersistentVolumeClaim)
            .short(&["pvc"])
            .rules(|rules| rules.delete_returns_object = true)
            .status(StatusMetadata::All),
        Row::core("PersistentVolume", "persistentvolumes")
            .behaves(PersistentVolume)
            .cluster()
            .short(&["pv"])
            .rules(|rules| rules.delete_returns_object = true)
            .status(StatusMetadata::All),
        Row::core("Pod", "pods")
            .behaves(Pods)
            .short(&["po"])
            .in_all()
            .rules(|rules| {
                rules.generation = Generation::Counts(&["spec"]);
                rules.graceful_deletion = true;
                rules.delete_returns_object = true;
            })
            .named("attach", "PodAttachOptions", STREAM_VERBS)
            .named("binding", "Binding", &["create"])
            .part(
                "ephemeralcontainers",
                STATUS_VERBS,
                StatusMetadata::KeepMost,
            )
            .subresource(Subresource {
                name: "eviction",
                group: Some("policy"),
                version: Some("v1"),
                kind: "Eviction".into(),
                verbs: &["create"],
                handler: SubresourceHandler::Named,
            })
            .named("exec", "PodExecOptions", STREAM_VERBS)
            .named("log", "Pod", &["get"])
            .named("portforward", "PodPortForwardOptions", STREAM_VERBS)
            .named("proxy", "PodProxyOptions", PROXY_VERBS)
            .part("resize", STATUS_VERBS, StatusMetadata::KeepMost)
            // Old kubelets send owner references back in a form that would confuse the garbage collector.
            .status(StatusMetadata::KeepOwnerReferences),
        Row::core("PodTemplate", "podtemplates")
            .behaves(PodTemplate)
            .rules(|rules| {
                rules.generation = Generation::Counts(&["template"]);
                rules.delete_returns_object = true;
            }),
        Row::core("ReplicationController", "replicationcontrollers")
            .behaves(ReplicationController)
            .short(&["rc"])
            .in_all()
            .rules(|rules| {
                rules.generation = Generation::Counts(&["spec"]);
                rules.name = NameRule::GeneratedSubdomain;
                // kube-apiserver keeps the pods for clients from before garbage collection.
                rules.default_propagation = Propagation::Orphan;
            })
            .scale()
            .status(StatusMetadata::All),
        Row::core("ResourceQuota", "resourcequotas")
            .behaves(ResourceQuota)
            .short(&["quota"])
            .rules(|rules| rules.delete_returns_object = true)
            .status(StatusMetadata::All),
        Row::core("Secret", "secrets").behaves(Secret),
        Row::core("ServiceAccount", "serviceaccounts")
            .behaves(ServiceAccount)
            .short(&["sa"])
            .rules(|rules| rules.delete_returns_object = true)
            .subresource(Subresource {
                name: "token",
                group: Some("authentication.k8s.io"),
                version: Some("v1"),
                kind: "TokenRequest".into(),
                verbs: &["create"],
                handler: SubresourceHandler::Named,
            }),
        Row::core("Service", "services")
            .behaves(Service::new(pools))
            .short(&["svc"])
            .in_all()
            .rules(|rules| {
                rules.name = NameRule::DnsLabel;
                rules.create_on_update = true;
                rules.delete_returns_object = true;
            })
            .named("proxy", "ServiceProxyOptions", PROXY_VERBS)
            .status(StatusMetadata::All),
    ]
}

pub(super) fn apps() -> Vec<Row> {
    vec![
        Row::apps("ControllerRevision", "controllerrevisions").behaves(ControllerRevision),
        Row::apps("DaemonSet", "daemonsets")
            .behaves(WorkloadKind(DaemonSets))
            .short(&["ds"])
            .in_all()
            .rules(|rules| rules.generation = Generation::Counts(&["spec"]))
            .status(StatusMetadata::All),
        Row::apps("Deployment", "deployments")
            .behaves(WorkloadKind(Deployments))
            .short(&["deploy"])
            .in_all()
            // The controller copies the annotations to the ReplicaSets, so it must notice their changes.
            .rules(|rules| rules.generation = Generation::Counts(&["spec", "metadata.annotations"]))
            .scale()
            .status(StatusMetadata::KeepLabels),
        Row::apps("ReplicaSet", "replicasets")
            .behaves(WorkloadKind(ReplicaSets))
            .short(&["rs"])
            .in_all()
            .rules(|rules| rules.generation = Generation::Counts(&["spec"]))
            .scale()
            .status(StatusMetadata::All),
        Row::apps("StatefulSet", "statefulsets")
            .behaves(WorkloadKind(StatefulSets))
            .short(&["sts"])
            .in_all()
            .rules(|rules| {
                rules.generation = Generation::Counts(&["spec"]);
                rules.name = NameRule::DnsLabel;
            })
            .scale()
            .status(StatusMetadata::All),
    ]
}
