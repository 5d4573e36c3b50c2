//! Which recorded scenarios are due: those whose every step uses a kind, verb and media type that the server claims to serve.

use serde_json::Value;

/// `group/version/plural` of everything claimed, subresources included; core is `v1`.
const SERVED: &[&str] = &[
    "v1/namespaces",
    "v1/namespaces/status",
    "v1/namespaces/finalize",
    "v1/nodes",
    "v1/nodes/proxy",
    "v1/nodes/status",
    "v1/pods",
    "v1/pods/status",
    "v1/pods/binding",
    "v1/pods/eviction",
    "v1/pods/log",
    "v1/pods/proxy",
    "v1/pods/ephemeralcontainers",
    "v1/pods/resize",
    "v1/bindings",
    "v1/services",
    "v1/services/proxy",
    "v1/services/status",
    "v1/endpoints",
    "v1/configmaps",
    "v1/secrets",
    "v1/serviceaccounts",
    "v1/limitranges",
    "v1/podtemplates",
    "v1/replicationcontrollers",
    "v1/replicationcontrollers/scale",
    "v1/replicationcontrollers/status",
    "v1/resourcequotas",
    "v1/resourcequotas/status",
    "v1/serviceaccounts/token",
    "v1/events",
    "v1/persistentvolumes",
    "v1/persistentvolumes/status",
    "v1/persistentvolumeclaims",
    "v1/persistentvolumeclaims/status",
    "v1/componentstatuses",
    "apps/v1/deployments",
    "apps/v1/deployments/status",
    "apps/v1/deployments/scale",
    "apps/v1/replicasets",
    "apps/v1/replicasets/status",
    "apps/v1/replicasets/scale",
    "apps/v1/controllerrevisions",
    "apps/v1/daemonsets",
    "apps/v1/daemonsets/status",
    "apps/v1/statefulsets",
    "apps/v1/statefulsets/status",
    "apps/v1/statefulsets/scale",
    "autoscaling/v1/horizontalpodautoscalers",
    "autoscaling/v2/horizontalpodautoscalers",
    "autoscaling/v2/horizontalpodautoscalers/status",
    "batch/v1/jobs",
    "batch/v1/jobs/status",
    "batch/v1/cronjobs",
    "batch/v1/cronjobs/status",
    "networking.k8s.io/v1/ingressclasses",
    "networking.k8s.io/v1/ingresses",
    "networking.k8s.io/v1/ingresses/status",
    "networking.k8s.io/v1/networkpolicies",
    "networking.k8s.io/v1/ipaddresses",
    "networking.k8s.io/v1/servicecidrs",
    "networking.k8s.io/v1/servicecidrs/status",
    "certificates.k8s.io/v1/certificatesigningrequests",
    "certificates.k8s.io/v1/certificatesigningrequests/approval",
    "certificates.k8s.io/v1/certificatesigningrequests/status",
    "flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "flowcontrol.apiserver.k8s.io/v1/flowschemas/status",
    "flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
    "flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations/status",
    "resource.k8s.io/v1/deviceclasses",
    "resource.k8s.io/v1/resourceclaims",
    "resource.k8s.io/v1/resourceclaims/status",
    "resource.k8s.io/v1/resourceclaimtemplates",
    "resource.k8s.io/v1/resourceslices",
    "discovery.k8s.io/v1/endpointslices",
    "node.k8s.io/v1/runtimeclasses",
    "coordination.k8s.io/v1/leases",
    "scheduling.k8s.io/v1/priorityclasses",
    "events.k8s.io/v1/events",
    "policy/v1/poddisruptionbudgets",
    "policy/v1/poddisruptionbudgets/status",
    "authentication.k8s.io/v1/selfsubjectreviews",
    "authentication.k8s.io/v1/tokenreviews",
    "authorization.k8s.io/v1/localsubjectaccessreviews",
    "authorization.k8s.io/v1/selfsubjectaccessreviews",
    "authorization.k8s.io/v1/selfsubjectrulesreviews",
    "authorization.k8s.io/v1/subjectaccessreviews",
    "rbac.authorization.k8s.io/v1/clusterrolebindings",
    "rbac.authorization.k8s.io/v1/clusterroles",
    "rbac.authorization.k8s.io/v1/rolebindings",
    "rbac.authorization.k8s.io/v1/roles",
    "storage.k8s.io/v1/storageclasses",
    "storage.k8s.io/v1/csidrivers",
    "storage.k8s.io/v1/csinodes",
    "storage.k8s.io/v1/volumeattachments",
    "admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies/status",
    "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "apiextensions.k8s.io/v1/customresourcedefinitions",
    "apiextensions.k8s.io/v1/customresourcedefinitions/status",
];

/// What scenarios ask for to see that it is not there.
const ABSENT: &[&str] = &[
    "apps/v1/daemonsets/scale",
    "apps/v1/foos",
    "batch/v1/jobs/scale",
    "nope/v1/foos",
    "v1/configmaps/status",
    "v1/foos",
    "v1/pods/foo",
    "v2/pods",
];

/// Discovery documents, and those of groups that are served in full.
const DISCOVERY: &[&str] = &[
    "/api/",
    "/api",
    "/apis",
    "/readyz",
    "/apis/apps/v1",
    "/apis/autoscaling",
    "/apis/autoscaling/v1",
    "/apis/batch/v1",
    "/apis/policy/v1",
    "/apis/node.k8s.io/v1",
    "/apis/scheduling.k8s.io/v1",
    "/apis/coordination.k8s.io/v1",
    "/apis/discovery.k8s.io/v1",
    "/apis/events.k8s.io/v1",
    "/apis/apiextensions.k8s.io/v1",
    "/apis/authentication.k8s.io/v1",
    "/apis/authorization.k8s.io/v1",
    "/apis/rbac.authorization.k8s.io/v1",
    "/apis/networking.k8s.io/v1",
    "/apis/admissionregistration.k8s.io/v1",
    "/apis/certificates.k8s.io/v1",
    "/apis/apiregistration.k8s.io/v1",
    "/apis/flowcontrol.apiserver.k8s.io/v1",
    "/apis/resource.k8s.io/v1",
];

/// Whether every step of a scenario is due.
pub(crate) fn is_due(scenario: &Value) -> bool {
    let steps = scenario["steps"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if scenario["topic"] == "discovery" {
        return steps
            .iter()
            .all(|step| DISCOVERY.contains(&step["path"].as_str().unwrap_or_default()));
    }
    steps.iter().all(step_is_due)
}

fn step_is_due(step: &Value) -> bool {
    match resource(step["path"].as_str().unwrap_or_default()) {
        Some(resource) => {
            SERVED.contains(&resource.as_str())
                || ABSENT.contains(&resource.as_str())
                || resource.contains("vectors.example.com")
        }
        None => true,
    }
}

/// `group/version/plural[/subresource]` of a path; `None` where it names no resource.
fn resource(path: &str) -> Option<String> {
    let path = path.split('?').next().unwrap_or_default();
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let mut out = match parts.next()? {
        "api" => parts.next()?.to_owned(),
        "apis" => format!("{}/{}", parts.next()?, parts.next()?),
        _ => return None,
    };
    let rest: Vec<&str> = parts.collect();
    let rest = match rest.as_slice() {
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => rest.as_slice(),
        ["namespaces", _, tail @ ..] => tail,
        all => all,
    };
    out.push('/');
    out.push_str(rest.first()?);
    if let Some(subresource) = rest.get(2) {
        out.push('/');
        out.push_str(subresource);
    }
    Some(out)
}
