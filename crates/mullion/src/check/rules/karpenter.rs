//! Checks objects of Karpenter for their version (MUL077) and for names of resources and classes that there are not (MUL086).

use serde_json::Value;

use crate::{
    check::{
        finding::Findings,
        path::Path,
        placeholder::{is_filled_in_later, is_placeholder},
        problem::Problem,
        schemas::BETA_VERSIONS,
        subject::Object,
        table::Severity,
    },
    near::nearest,
};

/// The resources that nodes have without a domain in their names.
const RESOURCES: [&str; 5] = ["cpu", "memory", "nodes", "pods", "ephemeral-storage"];
const HUGE_PAGES: &str = "hugepages-";
/// The largest edit distance at which a resource is suggested.
const NEAR: usize = 2;
/// The groups of node classes with their kinds: AWS, EKS Auto Mode, Azure, and the simulation of Karpenter itself.
const CLASSES: [(&str, &str); 4] = [
    ("karpenter.k8s.aws", "EC2NodeClass"),
    ("eks.amazonaws.com", "NodeClass"),
    ("karpenter.azure.com", "AKSNodeClass"),
    ("karpenter.kwok.sh", "KWOKNodeClass"),
];

/// A difference between v1beta1 and v1.
struct Change {
    kind: &'static str,
    /// The field with the difference.
    field: &'static [&'static str],
    when: When,
    what: &'static str,
    advice: &'static str,
}

/// When a difference matters to an object.
#[derive(Clone, Copy)]
enum When {
    /// The object has the field.
    Set,
    /// The object has the field around this one, and not this one.
    Absent,
    /// The field has a value that begins with this text.
    Begins(&'static str),
}

/// The differences (Karpenter: the changelog of the migration to v1).
const CHANGES: [Change; 14] = [
    change(
        "NodePool",
        &["spec", "template", "spec", "nodeClassRef", "apiVersion"],
        When::Set,
        REFERENCE,
        GROUP,
    ),
    change(
        "NodePool",
        &["spec", "template", "spec", "nodeClassRef", "kind"],
        When::Absent,
        KIND_REQUIRED,
        CLASS,
    ),
    change(
        "NodePool",
        &["spec", "template", "spec", "nodeClassRef", "group"],
        When::Absent,
        GROUP_REQUIRED,
        CLASS,
    ),
    change(
        "NodeClaim",
        &["spec", "nodeClassRef", "apiVersion"],
        When::Set,
        REFERENCE,
        GROUP,
    ),
    change(
        "NodeClaim",
        &["spec", "nodeClassRef", "kind"],
        When::Absent,
        KIND_REQUIRED,
        CLASS,
    ),
    change(
        "NodeClaim",
        &["spec", "nodeClassRef", "group"],
        When::Absent,
        GROUP_REQUIRED,
        CLASS,
    ),
    change(
        "NodePool",
        &["spec", "disruption", "expireAfter"],
        When::Set,
        "v1 has no expireAfter in disruption",
        "it moves to spec.template.spec.expireAfter, and expiry no longer waits for a replacement or a disruption budget",
    ),
    change(
        "NodePool",
        &["spec", "disruption", "consolidationPolicy"],
        When::Begins("WhenUnderutilized"),
        "v1 has no consolidationPolicy WhenUnderutilized",
        "consolidationPolicy: WhenEmptyOrUnderutilized",
    ),
    change(
        "NodePool",
        &["spec", "disruption", "consolidateAfter"],
        When::Absent,
        "v1 requires consolidateAfter in disruption",
        "consolidateAfter: 0s is what v1beta1 did",
    ),
    change(
        "NodePool",
        &["spec", "template", "spec", "kubelet"],
        When::Set,
        KUBELET,
        TO_CLASS,
    ),
    change(
        "NodeClaim",
        &["spec", "kubelet"],
        When::Set,
        KUBELET,
        TO_CLASS,
    ),
    change(
        "EC2NodeClass",
        &["spec", "amiFamily"],
        When::Begins("Ubuntu"),
        "v1 has no amiFamily Ubuntu",
        "amiFamily: AL2023 or Custom, with the images in amiSelectorTerms",
    ),
    change(
        "EC2NodeClass",
        &["spec", "amiSelectorTerms"],
        When::Absent,
        "v1 requires amiSelectorTerms",
        "an alias says family and version: amiSelectorTerms: [{alias: al2023@latest}], or windows2022@latest",
    ),
    change(
        "EC2NodeClass",
        &["spec", "metadataOptions", "httpPutResponseHopLimit"],
        When::Absent,
        "the default of httpPutResponseHopLimit is 1 in v1 and was 2: containers no longer reach the instance metadata",
        "httpPutResponseHopLimit: 2, if containers need the instance metadata",
    ),
];
const REFERENCE: &str = "v1 has no apiVersion in nodeClassRef";
const GROUP: &str = "apiVersion becomes group, without the version: group: karpenter.k8s.aws";
const KIND_REQUIRED: &str = "v1 requires kind in nodeClassRef";
const GROUP_REQUIRED: &str = "v1 requires group in nodeClassRef";
const CLASS: &str = "nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: ...}";
const KUBELET: &str = "v1 has no kubelet here";
const TO_CLASS: &str = "it moves to the EC2NodeClass: spec.kubelet";

const fn change(
    kind: &'static str,
    field: &'static [&'static str],
    when: When,
    what: &'static str,
    advice: &'static str,
) -> Change {
    Change {
        kind,
        field,
        when,
        what,
        advice,
    }
}

/// Checks an object of Karpenter.
pub(super) fn check(index: usize, object: &Object, found: &mut Findings) {
    if BETA_VERSIONS.contains(&object.api_version()) {
        let kind = object.kind().to_owned();
        let at = Path::of(&["apiVersion"]);
        found
            .add("MUL077", index, at, Problem::BetaKarpenter { kind })
            .as_a(Severity::Error);
        let own = CHANGES.iter().filter(|change| change.kind == object.kind());
        for change in own {
            if let Some(at) = change.place(&object.value) {
                let Change { what, advice, .. } = change;
                found
                    .add("MUL077", index, at, Problem::BetaField { what, advice })
                    .as_a(Severity::Error);
            }
        }
    } else if object.is("NodePool", "karpenter.sh") {
        limits(index, object, found);
        class(index, object, found);
    }
}

impl Change {
    /// Returns where an object has the difference; `None` if the object is the same in v1.
    fn place(&self, object: &Value) -> Option<Path> {
        let (at, around) = (
            Path::of(self.field),
            Path::of(&self.field[..self.field.len() - 1]),
        );
        let value = at.get(object).filter(|value| !value.is_null());
        match self.when {
            When::Set => value.map(|_| at),
            When::Begins(start) => {
                let text = value?.as_str()?;
                text.starts_with(start).then_some(at)
            }
            When::Absent if value.is_some() => None,
            When::Absent => around.get(object).map(|_| around),
        }
    }
}

/// Checks that the limits of a NodePool are of resources that nodes have.
fn limits(index: usize, object: &Object, found: &mut Findings) {
    let at = Path::of(&["spec", "limits"]);
    let limits = object.value["spec"]["limits"].as_object();
    for name in limits.into_iter().flat_map(|limits| limits.keys()) {
        // Extended resources have a domain, and any may be advertised.
        let is_known = RESOURCES.contains(&name.as_str())
            || name.starts_with(HUGE_PAGES)
            || name.contains('/')
            || is_placeholder(name);
        if is_known {
            continue;
        }
        let near = nearest(&name.to_lowercase(), RESOURCES, NEAR);
        let name = name.clone();
        let at = at.key(&name);
        found
            .add("MUL086", index, at, Problem::UnknownLimit { name, near })
            .as_a(Severity::Warn);
    }
}

/// Checks that the group of a NodePool's class has the kind. Of groups and kinds that are not known nothing is said.
fn class(index: usize, object: &Object, found: &mut Findings) {
    let at = Path::of(&["spec", "template", "spec", "nodeClassRef"]);
    let reference = at.get(&object.value).unwrap_or(&Value::Null);
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (group, kind) = (text("group"), text("kind"));
    let is_open = ["group", "kind"]
        .iter()
        .any(|field| is_filled_in_later(&reference[*field]));
    if is_open || group.is_empty() || kind.is_empty() || CLASSES.contains(&(group, kind)) {
        return;
    }
    let of_group = CLASSES.into_iter().find(|(own, _)| *own == group);
    let of_kind = CLASSES.into_iter().find(|(_, own)| *own == kind);
    let (meant, field) = match (of_group, of_kind) {
        (Some(meant), _) => (meant, "kind"),
        (None, Some(meant)) => (meant, "group"),
        (None, None) => return,
    };
    let problem = Problem::NoClassKind {
        group: group.to_owned(),
        kind: kind.to_owned(),
        meant,
    };
    found.add("MUL086", index, at.key(field), problem);
}
