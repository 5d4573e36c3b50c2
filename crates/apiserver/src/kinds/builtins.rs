//! The built-in rows: what is served, under which names, by which rules. One line of behaviour, the rest is data.
//!
//! The order is that of discovery. Rows that share a `storage` show the same objects; the first of them is the stored form.

use std::sync::Arc;

use super::{
    Generation, Kind, NameRule, Plain, Propagation, Resource, Rules, StatusMetadata,
    StatusOnCreate, Subresource, SubresourceHandler,
    admissionregistration::{self, MUTATING, VALIDATING},
    apiservices::ApiServices,
    autoscalers::{Autoscalers, v1::AutoscalersV1},
    componentstatuses::ComponentStatus,
    configmaps::ConfigMap,
    controllerrevisions::ControllerRevision,
    cronjobs::CronJobs,
    csi::{CsiDriver, CsiNode, VolumeAttachment},
    csistoragecapacities::CsiStorageCapacity,
    customresourcedefinitions::CustomResourceDefinition,
    daemonsets::DaemonSets,
    deployments::Deployments,
    endpoints::Endpoints,
    endpointslices::EndpointSlice,
    events::{self, CoreEvent, Event},
    ingressclasses::IngressClass,
    ingresses::Ingress,
    jobs::Jobs,
    leases::Lease,
    limitranges::LimitRange,
    namespaces::Namespace,
    networkpolicies::NetworkPolicy,
    nodes::Node,
    persistentvolumeclaims::PersistentVolumeClaim,
    persistentvolumes::PersistentVolume,
    poddisruptionbudgets::PodDisruptionBudgets,
    pods::Pods,
    podtemplates::PodTemplate,
    priorityclasses::PriorityClass,
    rbac::{self, Bindings, Roles, Scope},
    replicasets::ReplicaSets,
    replicationcontrollers::ReplicationController,
    resourcequotas::ResourceQuota,
    runtimeclasses::RuntimeClass,
    secrets::Secret,
    serviceaccounts::ServiceAccount,
    services::{Service, ServiceRange},
    statefulsets::StatefulSets,
    storageclasses::StorageClass,
    volumeattributesclasses::VolumeAttributesClass,
    workloads::Templated,
};
use crate::schema::Type;

const STREAM_VERBS: &[&str] = &["create", "get"];
const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

const PODS_STAY: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// A row being described; [`Row::done`] makes it a [`Resource`].
struct Row(Resource);

impl Row {
    /// A namespaced resource named like its kind, stored under its own name, with the default rules.
    fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        schema: &str,
    ) -> Row {
        let storage = if group.is_empty() {
            plural.to_owned()
        } else {
            format!("{plural}.{group}")
        };
        Row(Resource {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            plural: plural.into(),
            singular: kind.to_ascii_lowercase().into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            storage: storage.into(),
            schema: Type::builtin(schema).expect("the schema table has every built-in kind"),
            rules: Rules::default(),
            subresources: Vec::new(),
            deprecated: None,
            behaviour: Arc::new(Plain),
        })
    }

    fn core(kind: &'static str, plural: &'static str) -> Row {
        Row::new("", "v1", kind, plural, &format!("api.core.v1.{kind}"))
    }

    fn apps(kind: &'static str, plural: &'static str) -> Row {
        Row::new("apps", "v1", kind, plural, &format!("api.apps.v1.{kind}"))
    }

    fn storage_group(kind: &'static str, plural: &'static str) -> Row {
        Row::new(
            "storage.k8s.io",
            "v1",
            kind,
            plural,
            &format!("api.storage.v1.{kind}"),
        )
    }

    fn cluster(mut self) -> Row {
        self.0.namespaced = false;
        self
    }

    fn short(mut self, names: &[&'static str]) -> Row {
        self.0.short_names = names.iter().map(|&name| name.into()).collect();
        self
    }

    fn in_all(mut self) -> Row {
        self.0.categories = vec!["all".into()];
        self
    }

    fn in_api_extensions(mut self) -> Row {
        self.0.categories = vec!["api-extensions".into()];
        self
    }

    fn rules(mut self, change: impl FnOnce(&mut Rules)) -> Row {
        change(&mut self.0.rules);
        self
    }

    fn stored_as(mut self, storage: &'static str) -> Row {
        self.0.storage = storage.into();
        self
    }

    fn deprecated(mut self, warning: &'static str) -> Row {
        self.0.deprecated = Some(warning.into());
        self
    }

    fn behaves(mut self, behaviour: impl Kind) -> Row {
        self.0.behaviour = Arc::new(behaviour);
        self
    }

    fn subresource(mut self, subresource: Subresource) -> Row {
        self.0.subresources.push(subresource);
        self
    }

    /// `/status`; `metadata` says how much of the metadata it may change.
    fn status(self, metadata: StatusMetadata) -> Row {
        let kind = self.0.kind.clone();
        self.subresource(Subresource {
            name: "status",
            group: None,
            version: None,
            kind,
            verbs: STATUS_VERBS,
            handler: SubresourceHandler::Status(metadata),
        })
    }

    /// `/scale` over `spec.replicas`, `status.replicas` and `spec.selector`.
    fn scale(self) -> Row {
        self.subresource(Subresource {
            name: "scale",
            group: Some("autoscaling"),
            version: Some("v1"),
            kind: "Scale".into(),
            verbs: STATUS_VERBS,
            handler: SubresourceHandler::Scale {
                spec_replicas: "spec.replicas".into(),
                status_replicas: "status.replicas".into(),
                selector: Some("spec.selector".into()),
            },
        })
    }

    /// The object itself, of which a part is written.
    fn part(self, name: &'static str, verbs: &'static [&'static str]) -> Row {
        let kind = self.0.kind.clone();
        self.subresource(Subresource {
            name,
            group: None,
            version: None,
            kind,
            verbs,
            handler: SubresourceHandler::Part,
        })
    }

    /// A subresource with a handler of its own.
    fn named(self, name: &'static str, kind: &'static str, verbs: &'static [&'static str]) -> Row {
        self.subresource(Subresource {
            name,
            group: None,
            version: None,
            kind: kind.into(),
            verbs,
            handler: SubresourceHandler::Named,
        })
    }

    fn done(self) -> Resource {
        self.0
    }
}

/// The rules of events, by whichever face they come.
fn event_rules(rules: &mut Rules) {
    rules.create_on_update = true;
    rules.ttl = Some(events::TTL);
}

fn core(range: ServiceRange) -> Vec<Row> {
    vec![
        Row::core("Binding", "bindings").rules(|rules| rules.transient = true),
        // The parts of a control plane that could be asked live in this process or do not exist: there is nothing to list.
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
                rules.delete_returns_object = true;
                rules.delete_collection = false;
            })
            .part("finalize", &["update"])
            .status(StatusMetadata::All),
        Row::core("Node", "nodes")
            .behaves(Node)
            .cluster()
            .short(&["no"])
            .rules(|rules| rules.status_on_create = StatusOnCreate::Keep)
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
            .subresource(Subresource {
                name: "eviction",
                group: Some("policy"),
                version: Some("v1"),
                kind: "Eviction".into(),
                verbs: &["create"],
                handler: SubresourceHandler::Named,
            })
            .part("ephemeralcontainers", STATUS_VERBS)
            .named("exec", "PodExecOptions", STREAM_VERBS)
            .named("log", "Pod", &["get"])
            .named("portforward", "PodPortForwardOptions", STREAM_VERBS)
            .part("resize", STATUS_VERBS)
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
            .behaves(Service::new(range))
            .short(&["svc"])
            .in_all()
            .rules(|rules| {
                rules.name = NameRule::DnsLabel;
                rules.create_on_update = true;
                rules.delete_returns_object = true;
            })
            .status(StatusMetadata::All),
    ]
}

fn apps() -> Vec<Row> {
    vec![
        Row::apps("ControllerRevision", "controllerrevisions").behaves(ControllerRevision),
        Row::apps("DaemonSet", "daemonsets")
            .behaves(Templated(DaemonSets))
            .short(&["ds"])
            .in_all()
            .rules(|rules| rules.generation = Generation::Counts(&["spec"]))
            .status(StatusMetadata::All),
        Row::apps("Deployment", "deployments")
            .behaves(Templated(Deployments))
            .short(&["deploy"])
            .in_all()
            .rules(|rules| rules.generation = Generation::Counts(&["spec", "metadata.annotations"]))
            .scale()
            .status(StatusMetadata::KeepLabels),
        Row::apps("ReplicaSet", "replicasets")
            .behaves(Templated(ReplicaSets))
            .short(&["rs"])
            .in_all()
            .rules(|rules| rules.generation = Generation::Counts(&["spec"]))
            .scale()
            .status(StatusMetadata::All),
        Row::apps("StatefulSet", "statefulsets")
            .behaves(Templated(StatefulSets))
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

/// Both versions show the objects of v2, which comes first.
fn autoscaling() -> Vec<Row> {
    let row = |version, schema| {
        Row::new(
            "autoscaling",
            version,
            "HorizontalPodAutoscaler",
            "horizontalpodautoscalers",
            schema,
        )
        .short(&["hpa"])
        .in_all()
        .status(StatusMetadata::All)
    };
    vec![
        row("v2", "api.autoscaling.v2.HorizontalPodAutoscaler").behaves(Autoscalers),
        row("v1", "api.autoscaling.v1.HorizontalPodAutoscaler").behaves(AutoscalersV1),
    ]
}

fn batch() -> Vec<Row> {
    let row = |kind, plural| {
        Row::new("batch", "v1", kind, plural, &format!("api.batch.v1.{kind}"))
            .in_all()
            .rules(|rules| rules.generation = Generation::Counts(&["spec"]))
    };
    vec![
        row("CronJob", "cronjobs")
            .behaves(CronJobs)
            .short(&["cj"])
            .status(StatusMetadata::All),
        row("Job", "jobs")
            .behaves(Jobs)
            .rules(|rules| {
                rules.default_propagation = Propagation::Orphan;
                rules.deletion_warning = Some(PODS_STAY);
            })
            .status(StatusMetadata::All),
    ]
}

fn networking() -> Vec<Row> {
    let row = |kind, plural| {
        Row::new(
            "networking.k8s.io",
            "v1",
            kind,
            plural,
            &format!("api.networking.v1.{kind}"),
        )
        .rules(|rules| rules.generation = Generation::Counts(&["spec"]))
    };
    vec![
        row("IngressClass", "ingressclasses")
            .behaves(IngressClass)
            .cluster(),
        row("Ingress", "ingresses")
            .behaves(Ingress)
            .short(&["ing"])
            .status(StatusMetadata::All),
        row("NetworkPolicy", "networkpolicies")
            .behaves(NetworkPolicy)
            .short(&["netpol"]),
    ]
}

fn groups() -> Vec<Row> {
    vec![
        Row::new(
            "events.k8s.io",
            "v1",
            "Event",
            "events",
            "api.events.v1.Event",
        )
        .behaves(Event)
        .short(&["ev"])
        .stored_as("events")
        .rules(event_rules),
        Row::new(
            "policy",
            "v1",
            "PodDisruptionBudget",
            "poddisruptionbudgets",
            "api.policy.v1.PodDisruptionBudget",
        )
        .behaves(PodDisruptionBudgets)
        .short(&["pdb"])
        .rules(|rules| {
            rules.generation = Generation::Counts(&["spec"]);
            rules.unconditional_update = false;
        })
        .status(StatusMetadata::All),
        Row::new(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        )
        .behaves(CustomResourceDefinition)
        .cluster()
        .short(&["crd", "crds"])
        .in_api_extensions()
        .rules(|rules| {
            rules.generation = Generation::Counts(&["spec"]);
            rules.unconditional_update = false;
        })
        .status(StatusMetadata::All),
        Row::new(
            "apiregistration.k8s.io",
            "v1",
            "APIService",
            "apiservices",
            "kube-aggregator.pkg.apis.apiregistration.v1.APIService",
        )
        .behaves(ApiServices)
        .cluster()
        .in_api_extensions()
        .rules(|rules| {
            rules.name = NameRule::PathSegment;
            rules.unconditional_update = false;
        })
        .status(StatusMetadata::All),
        Row::new(
            "scheduling.k8s.io",
            "v1",
            "PriorityClass",
            "priorityclasses",
            "api.scheduling.v1.PriorityClass",
        )
        .behaves(PriorityClass)
        .cluster()
        .short(&["pc"])
        .rules(|rules| rules.generation = Generation::OnceAtCreate),
        Row::new(
            "coordination.k8s.io",
            "v1",
            "Lease",
            "leases",
            "api.coordination.v1.Lease",
        )
        .behaves(Lease)
        .rules(|rules| {
            rules.unconditional_update = false;
            rules.create_on_update = true;
        }),
        runtime_class("v1"),
        runtime_class("v1beta1").deprecated(
            "node.k8s.io/v1beta1 RuntimeClass is deprecated in v1.22+, unavailable in v1.25+",
        ),
        Row::new(
            "discovery.k8s.io",
            "v1",
            "EndpointSlice",
            "endpointslices",
            "api.discovery.v1.EndpointSlice",
        )
        .behaves(EndpointSlice)
        .rules(|rules| {
            rules.generation =
                Generation::Counts(&["addressType", "endpoints", "ports", "metadata.labels"]);
        }),
    ]
}

/// Questions about users and rights: answered, never stored.
fn reviews() -> Vec<Row> {
    let authentication = |kind, plural| {
        let schema = format!("api.authentication.v1.{kind}");
        Row::new("authentication.k8s.io", "v1", kind, plural, &schema).cluster()
    };
    let authorization = |kind, plural| {
        let schema = format!("api.authorization.v1.{kind}");
        Row::new("authorization.k8s.io", "v1", kind, plural, &schema)
    };
    let rows = vec![
        authentication("SelfSubjectReview", "selfsubjectreviews"),
        authentication("TokenReview", "tokenreviews"),
        authorization("LocalSubjectAccessReview", "localsubjectaccessreviews"),
        authorization("SelfSubjectAccessReview", "selfsubjectaccessreviews").cluster(),
        authorization("SelfSubjectRulesReview", "selfsubjectrulesreviews").cluster(),
        authorization("SubjectAccessReview", "subjectaccessreviews").cluster(),
    ];
    rows.into_iter()
        .map(|row| row.rules(|rules| rules.transient = true))
        .collect()
}

fn rbac_group() -> Vec<Row> {
    let row = |kind, plural, scope| {
        let schema = format!("api.rbac.v1.{kind}");
        let row = Row::new(rbac::GROUP, "v1", kind, plural, &schema).rules(|rules| {
            rules.name = NameRule::PathSegment;
            rules.create_on_update = true;
        });
        match scope {
            Scope::Namespace => row,
            Scope::Cluster => row.cluster(),
        }
    };
    let (local, cluster) = (Scope::Namespace, Scope::Cluster);
    vec![
        row("ClusterRoleBinding", "clusterrolebindings", cluster).behaves(Bindings(cluster)),
        row("ClusterRole", "clusterroles", cluster).behaves(Roles(cluster)),
        row("RoleBinding", "rolebindings", local).behaves(Bindings(local)),
        row("Role", "roles", local).behaves(Roles(local)),
    ]
}

/// The two versions have one shape, so both use the schema of v1.
fn runtime_class(version: &'static str) -> Row {
    Row::new(
        "node.k8s.io",
        version,
        "RuntimeClass",
        "runtimeclasses",
        "api.node.v1.RuntimeClass",
    )
    .behaves(RuntimeClass)
    .cluster()
    .rules(|rules| {
        rules.unconditional_update = false;
        rules.create_on_update = true;
    })
}

fn storage() -> Vec<Row> {
    let conditional = |rules: &mut Rules| rules.unconditional_update = false;
    vec![
        Row::storage_group("CSIDriver", "csidrivers")
            .behaves(CsiDriver)
            .cluster()
            .rules(|rules| {
                rules.unconditional_update = false;
                rules.delete_returns_object = true;
            }),
        Row::storage_group("CSINode", "csinodes")
            .behaves(CsiNode)
            .cluster()
            .rules(|rules| {
                rules.unconditional_update = false;
                rules.delete_returns_object = true;
            }),
        Row::storage_group("CSIStorageCapacity", "csistoragecapacities")
            .behaves(CsiStorageCapacity)
            .rules(conditional),
        Row::storage_group("StorageClass", "storageclasses")
            .behaves(StorageClass)
            .cluster()
            .short(&["sc"])
            .rules(|rules| rules.delete_returns_object = true),
        Row::storage_group("VolumeAttachment", "volumeattachments")
            .behaves(VolumeAttachment)
            .cluster()
            .rules(|rules| {
                rules.unconditional_update = false;
                rules.delete_returns_object = true;
            })
            .status(StatusMetadata::KeepMost),
        Row::storage_group("VolumeAttributesClass", "volumeattributesclasses")
            .behaves(VolumeAttributesClass)
            .cluster()
            .short(&["vac"])
            .rules(|rules| rules.delete_returns_object = true),
    ]
}

fn admission() -> Vec<Row> {
    let row = |kind, plural| {
        let schema = format!("api.admissionregistration.v1.{kind}");
        Row::new(admissionregistration::GROUP, "v1", kind, plural, &schema)
            .cluster()
            .in_api_extensions()
            .rules(|rules| {
                rules.generation = Generation::Counts(&["webhooks"]);
                rules.unconditional_update = false;
            })
    };
    vec![
        row(
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
        )
        .behaves(MUTATING),
        row(
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
        )
        .behaves(VALIDATING),
    ]
}

/// The groups in the order in which upstream's discovery lists them; those that it does not have come last.
const GROUPS: [&str; 21] = [
    "",
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
];

/// All built-in rows, in discovery order of their groups; Services take their addresses from `range`.
pub fn builtins(range: ServiceRange) -> Vec<Resource> {
    let mut rows: Vec<Resource> = [
        core(range),
        apps(),
        reviews(),
        autoscaling(),
        batch(),
        networking(),
        groups(),
        rbac_group(),
        storage(),
        admission(),
    ]
    .into_iter()
    .flatten()
    .map(Row::done)
    .collect();
    rows.sort_by_key(|row| {
        let place = GROUPS.iter().position(|group| *group == row.group);
        place.unwrap_or(GROUPS.len())
    });
    rows
}
