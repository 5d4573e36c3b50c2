//! Lists the kinds of objects that the doctor reads or changes, with their paths on the API server.

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The apiVersion, such as `v1` or `apps/v1`.
    pub(super) version: &'static str,
    pub(super) plural: &'static str,
    pub(super) scope: Scope,
}

/// Which objects of a kind are read, and whether they are in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The kind is cluster-scoped; all objects are read.
    Cluster,
    /// The kind is namespaced; all objects are read.
    Everywhere,
    /// The kind is namespaced; only the objects in kube-system are read.
    KubeSystem,
    /// The kind is namespaced; only the object of this name in kube-system is read, because the doctor does not need others.
    One(&'static str),
    /// Events with this reason are read, in all namespaces.
    Reason(&'static str),
}

/// The namespace of the cluster's own components.
pub(super) const KUBE_SYSTEM: &str = "kube-system";

impl Kind {
    fn root(&self) -> String {
        match self.version {
            "v1" => "/api/v1".to_owned(),
            version => format!("/apis/{version}"),
        }
    }

    /// Returns the path of the list that is read.
    pub(super) fn list_path(&self) -> String {
        let (root, plural) = (self.root(), self.plural);
        match self.scope {
            Scope::Cluster | Scope::Everywhere => format!("{root}/{plural}"),
            Scope::KubeSystem => format!("{root}/namespaces/{KUBE_SYSTEM}/{plural}"),
            Scope::Reason(reason) => {
                format!("{root}/{plural}?fieldSelector=reason%3D{reason}")
            }
            Scope::One(name) => format!(
                "{root}/namespaces/{KUBE_SYSTEM}/{plural}?fieldSelector=metadata.name%3D{name}"
            ),
        }
    }

    /// Returns the path of the collection that new objects are sent to.
    pub(super) fn collection(&self, namespace: &str) -> String {
        let (root, plural) = (self.root(), self.plural);
        match self.scope {
            Scope::Cluster => format!("{root}/{plural}"),
            _ => format!("{root}/namespaces/{namespace}/{plural}"),
        }
    }

    /// Returns the permission that a user needs, as `kubectl auth can-i` spells it.
    pub(super) fn permission(&self) -> String {
        let resource = match self.version.split_once('/') {
            Some((group, _)) => format!("{}.{group}", self.plural),
            None => self.plural.to_owned(),
        };
        match self.scope {
            Scope::Cluster => format!("list {resource}"),
            Scope::Everywhere | Scope::Reason(_) => format!("list {resource} -A"),
            Scope::KubeSystem => format!("list {resource} -n {KUBE_SYSTEM}"),
            Scope::One(name) => format!("list {resource} {name} -n {KUBE_SYSTEM}"),
        }
    }
}

/// Returns the kind of this name.
///
/// # Panics
/// The table has no such kind, which is a bug of this program.
pub(super) fn kind(name: &str) -> &'static Kind {
    let found = KINDS.iter().find(|kind| kind.name == name);
    found.unwrap_or_else(|| panic!("{name} is a kind that the doctor reads"))
}

const fn of(name: &'static str, version: &'static str, plural: &'static str, scope: Scope) -> Kind {
    Kind {
        name,
        version,
        plural,
        scope,
    }
}

use Scope::{Cluster, Everywhere, KubeSystem, One, Reason};

/// All kinds that the doctor knows.
pub(super) static KINDS: [Kind; 27] = [
    of("Node", "v1", "nodes", Cluster),
    of("Namespace", "v1", "namespaces", Cluster),
    of("Pod", "v1", "pods", Everywhere),
    of("ConfigMap", "v1", "configmaps", KubeSystem),
    of("Service", "v1", "services", Everywhere),
    of(
        "Secret",
        "v1",
        "secrets",
        One("vpc-admission-webhook-certs"),
    ),
    of("Event", "v1", "events", Reason("ResourceAllocationFailed")),
    of(
        "PersistentVolumeClaim",
        "v1",
        "persistentvolumeclaims",
        Everywhere,
    ),
    of("PersistentVolume", "v1", "persistentvolumes", Cluster),
    of("Deployment", "apps/v1", "deployments", KubeSystem),
    of("DaemonSet", "apps/v1", "daemonsets", KubeSystem),
    of(
        "EndpointSlice",
        "discovery.k8s.io/v1",
        "endpointslices",
        Everywhere,
    ),
    of(
        "NetworkPolicy",
        "networking.k8s.io/v1",
        "networkpolicies",
        Everywhere,
    ),
    of(
        "MutatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        Cluster,
    ),
    of(
        "ValidatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
        "validatingwebhookconfigurations",
        Cluster,
    ),
    of(
        "CertificateSigningRequest",
        "certificates.k8s.io/v1",
        "certificatesigningrequests",
        Cluster,
    ),
    of(
        "ClusterRole",
        "rbac.authorization.k8s.io/v1",
        "clusterroles",
        Cluster,
    ),
    of(
        "ClusterRoleBinding",
        "rbac.authorization.k8s.io/v1",
        "clusterrolebindings",
        Cluster,
    ),
    of("Role", "rbac.authorization.k8s.io/v1", "roles", Everywhere),
    of(
        "RoleBinding",
        "rbac.authorization.k8s.io/v1",
        "rolebindings",
        Everywhere,
    ),
    of("CSINode", "storage.k8s.io/v1", "csinodes", Cluster),
    of(
        "CNINode",
        "vpcresources.k8s.aws/v1alpha1",
        "cninodes",
        Cluster,
    ),
    of(
        "SecurityGroupPolicy",
        "vpcresources.k8s.aws/v1beta1",
        "securitygrouppolicies",
        Everywhere,
    ),
    of("NodePool", "karpenter.sh/v1", "nodepools", Cluster),
    of(
        "EC2NodeClass",
        "karpenter.k8s.aws/v1",
        "ec2nodeclasses",
        Cluster,
    ),
    of(
        "GMSACredentialSpec",
        "windows.k8s.io/v1",
        "gmsacredentialspecs",
        Cluster,
    ),
    of(
        "SimulatedAccount",
        "cloud.mullion.dev/v1alpha1",
        "simulatedaccounts",
        Cluster,
    ),
];
