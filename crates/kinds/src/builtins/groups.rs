//! The rows of the named groups, except for apps.

use std::sync::Arc;

use mullion_kube_text::names::NameRule;

use super::{
    core::event_rules,
    row::{Row, STATUS_VERBS},
};
use crate::{
    Generation, Kind, Propagation, Rules, StatusMetadata,
    addresses::{IpAddress, ServiceCidr},
    admissionregistration::{
        self, MUTATING, MUTATING_BINDING, MUTATING_POLICY, VALIDATING, VALIDATING_BINDING,
        VALIDATING_POLICY,
    },
    apiservices::ApiServices,
    autoscalers::{Autoscalers, v1::AutoscalersV1},
    certificatesigningrequests::CertificateSigningRequest,
    cronjobs::CronJobs,
    csi::{self, CsiDriver, CsiNode},
    csistoragecapacities::CsiStorageCapacity,
    endpointslices::EndpointSlice,
    events::Event,
    flowcontrol::{self, FlowSchema, PriorityLevelConfiguration},
    ingressclasses::IngressClass,
    ingresses::Ingress,
    jobs::Jobs,
    leases::Lease,
    networkpolicies::NetworkPolicy,
    poddisruptionbudgets::PodDisruptionBudgets,
    priorityclasses::PriorityClass,
    rbac::{self, Bindings, Roles, Scope},
    resource::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
    runtimeclasses::RuntimeClass,
    services::pools::Pools,
    storageclasses::StorageClass,
    volumeattachments::VolumeAttachment,
    volumeattributesclasses::VolumeAttributesClass,
};

const PODS_STAY: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// Returns the rows of autoscaling. Both versions serve the same objects; v2 is first, so it is the stored form.
pub(super) fn autoscaling() -> Vec<Row> {
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

pub(super) fn batch() -> Vec<Row> {
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
                // kube-apiserver keeps the pods for clients from before garbage collection, and warns the others.
                rules.default_propagation = Propagation::Orphan;
                rules.deletion_warning = Some(PODS_STAY);
            })
            .status(StatusMetadata::All),
    ]
}

pub(super) fn networking(pools: Arc<Pools>) -> Vec<Row> {
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
        row("IPAddress", "ipaddresses")
            .behaves(IpAddress::new(pools))
            .cluster()
            .short(&["ip"])
            .rules(|rules| {
                rules.generation = Generation::Never;
                rules.name = NameRule::Address;
            }),
        row("NetworkPolicy", "networkpolicies")
            .behaves(NetworkPolicy)
            .short(&["netpol"])
            // networkPolicyStrategy compares the specs with reflect.DeepEqual.
            .rules(|rules| rules.generation = Generation::CountsToTheLetter("spec")),
        row("ServiceCIDR", "servicecidrs")
            .behaves(ServiceCidr)
            .cluster()
            .rules(|rules| rules.generation = Generation::Never)
            .status(StatusMetadata::KeepMost),
    ]
}

pub(super) fn groups(definitions: impl Kind) -> Vec<Row> {
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
            rules.core_finalizers = false;
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
        .behaves(definitions)
        .cluster()
        .short(&["crd", "crds"])
        .in_api_extensions()
        .rules(|rules| {
            // The first DELETE of a definition starts the removal of its custom objects.
            rules.two_step_deletion = true;
            rules.core_finalizers = false;
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
            rules.core_finalizers = false;
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
            rules.core_finalizers = false;
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
                // The labels count too, because one of them names the Service.
                Generation::Counts(&["addressType", "endpoints", "ports", "metadata.labels"]);
        }),
    ]
}

/// Returns the rows of the review kinds, which are answered and never stored.
pub(super) fn reviews() -> Vec<Row> {
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

pub(super) fn rbac_group() -> Vec<Row> {
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

/// Returns the row of a version of RuntimeClass. Both versions have the same fields, so both use the schema of v1.
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
        rules.core_finalizers = false;
        rules.unconditional_update = false;
        rules.create_on_update = true;
    })
}

pub(super) fn storage() -> Vec<Row> {
    let conditional = |rules: &mut Rules| rules.unconditional_update = false;
    vec![
        Row::storage_group("CSIDriver", "csidrivers")
            .behaves(CsiDriver)
            .cluster()
            .rules(|rules| {
                rules.generation = Generation::CountsChanges(csi::COUNTED_FIELDS);
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

pub(super) fn admission() -> Vec<Row> {
    let row = |kind, plural, counts| {
        let schema = format!("api.admissionregistration.v1.{kind}");
        Row::new(admissionregistration::GROUP, "v1", kind, plural, &schema)
            .cluster()
            .in_api_extensions()
            .rules(|rules| {
                rules.core_finalizers = false;
                rules.generation = counts;
                rules.unconditional_update = false;
            })
    };
    let webhooks = Generation::CountsToTheLetter("webhooks");
    let spec = Generation::Counts(&["spec"]);
    vec![
        row("MutatingAdmissionPolicy", "mutatingadmissionpolicies", spec).behaves(MUTATING_POLICY),
        row(
            "MutatingAdmissionPolicyBinding",
            "mutatingadmissionpolicybindings",
            spec,
        )
        .behaves(MUTATING_BINDING),
        row(
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
            webhooks,
        )
        .behaves(MUTATING),
        row(
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            spec,
        )
        .behaves(VALIDATING_POLICY)
        .status(StatusMetadata::KeepMost)
        .rules(|rules| rules.create_on_status_apply = true),
        row(
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            spec,
        )
        .behaves(VALIDATING_BINDING),
        row(
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            webhooks,
        )
        .behaves(VALIDATING),
    ]
}

pub(super) fn certificates() -> Vec<Row> {
    let schema = "api.certificates.v1.CertificateSigningRequest";
    let plural = "certificatesigningrequests";
    let row = Row::new(
        "certificates.k8s.io",
        "v1",
        "CertificateSigningRequest",
        plural,
        schema,
    );
    vec![
        row.behaves(CertificateSigningRequest)
            .cluster()
            .short(&["csr"])
            .rules(|rules| {
                rules.name = NameRule::Any;
                // An update restores the spec, and kube-apiserver counts it as restored in a creation, too.
                rules.resets = &[&["f:spec"]];
            })
            .part("approval", STATUS_VERBS, StatusMetadata::KeepMost)
            .status(StatusMetadata::All),
    ]
}

pub(super) fn flow_control() -> Vec<Row> {
    let row = |kind, plural| {
        let schema = format!("api.flowcontrol.v1.{kind}");
        Row::new(flowcontrol::GROUP, "v1", kind, plural, &schema)
            .cluster()
            .rules(|rules| {
                rules.generation = Generation::Counts(&["spec"]);
            })
            .status(StatusMetadata::KeepAll)
    };
    vec![
        row("FlowSchema", "flowschemas").behaves(FlowSchema),
        row("PriorityLevelConfiguration", "prioritylevelconfigurations")
            .behaves(PriorityLevelConfiguration),
    ]
}

pub(super) fn resource_group() -> Vec<Row> {
    let row = |kind, plural| {
        let schema = format!("api.resource.v1.{kind}");
        Row::new("resource.k8s.io", "v1", kind, plural, &schema)
            .rules(|rules| rules.delete_returns_object = true)
    };
    let counted = |rules: &mut Rules| rules.generation = Generation::Counts(&["spec"]);
    vec![
        row("DeviceClass", "deviceclasses")
            .behaves(DeviceClass)
            .cluster()
            .rules(counted)
            .rules(|rules| rules.name = NameRule::GeneratedSubdomain),
        row("ResourceClaim", "resourceclaims")
            .behaves(ResourceClaim)
            .status(StatusMetadata::KeepMost),
        row("ResourceClaimTemplate", "resourceclaimtemplates").behaves(ResourceClaimTemplate),
        row("ResourceSlice", "resourceslices")
            .behaves(ResourceSlice)
            .cluster()
            .rules(counted),
    ]
}
