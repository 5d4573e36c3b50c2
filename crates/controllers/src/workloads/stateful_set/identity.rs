//! The identity of a StatefulSet's pods: ordinal, name, labels and claims. Pure.
//!
//! Invariant: everything is derived from the set and the ordinal, so a pod recreated under an ordinal has the same
//! identity.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{
            PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
        },
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;

use crate::ownership;

/// The label with the name of the pod's revision.
pub(super) const REVISION: &str = "controller-revision-hash";
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// Returns the ordinal of a set's pod; `None` for a pod that is not named like one.
pub(super) fn ordinal(set: &str, pod: &str) -> Option<i32> {
    let number = pod.strip_prefix(set)?.strip_prefix('-')?;
    // `parse` also accepts a plus sign, which no pod of the set has in its name.
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| digits)
}

/// Returns the first ordinal of the set.
pub(super) fn first_ordinal(set: &StatefulSet) -> i32 {
    let ordinals = set.spec.as_ref().and_then(|spec| spec.ordinals.as_ref());
    ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0)
}

/// Returns `spec.replicas`.
pub(super) fn replicas(set: &StatefulSet) -> i32 {
    let spec = set.spec.as_ref();
    spec.and_then(|spec| spec.replicas).unwrap_or(1)
}

/// Returns whether the set wants a pod with that ordinal.
pub(super) fn is_wanted(set: &StatefulSet, ordinal: i32) -> bool {
    let first = first_ordinal(set);
    (first..first.saturating_add(replicas(set))).contains(&ordinal)
}

/// Returns the name of a pod's revision.
pub(super) fn revision(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(REVISION))
        .map(String::as_str)
        .unwrap_or_default()
}

/// Returns the pod with an ordinal, from the template of a revision.
pub(super) fn new_pod(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    ordinal: i32,
    revision: &str,
) -> Pod {
    let from = template.metadata.clone().unwrap_or_default();
    let mut pod = Pod {
        metadata: ObjectMeta {
            namespace: set.namespace(),
            labels: from.labels,
            annotations: from.annotations,
            finalizers: from.finalizers,
            owner_references: Some(vec![ownership::controller_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    };
    let name = format!("{}-{ordinal}", set.name_any());
    let subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(name.clone());
        spec.subdomain = subdomain.filter(|name| !name.is_empty());
    }
    pod.metadata.name = Some(name);
    identify(set, &mut pod, ordinal);
    mount(set, &mut pod, ordinal);
    pod.labels_mut()
        .insert(REVISION.to_owned(), revision.to_owned());
    pod
}

/// Sets the labels of a pod that are derived from its ordinal.
pub(super) fn identify(set: &StatefulSet, pod: &mut Pod, ordinal: i32) {
    let name = format!("{}-{ordinal}", set.name_any());
    let labels = pod.labels_mut();
    labels.insert(POD_NAME.to_owned(), name);
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
}

/// Returns whether a pod has the labels of its ordinal.
pub(super) fn is_identified(set: &StatefulSet, pod: &Pod, ordinal: i32) -> bool {
    let name = format!("{}-{ordinal}", set.name_any());
    let labels = pod.labels();
    labels.get(POD_NAME) == Some(&name) && labels.get(POD_INDEX) == Some(&ordinal.to_string())
}

/// Adds the set's claims to the pod's volumes, replacing volumes of the same names.
fn mount(set: &StatefulSet, pod: &mut Pod, ordinal: i32) {
    let claims = claims(set, ordinal);
    let Some(spec) = &mut pod.spec else { return };
    if claims.is_empty() {
        return;
    }
    let others = spec.volumes.take().unwrap_or_default();
    let others = others
        .into_iter()
        .filter(|volume| !claims.iter().any(|(template, _)| *template == volume.name));
    let own = claims.iter().map(|(template, claim)| Volume {
        name: template.clone(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.name_any(),
            read_only: None,
        }),
        ..Volume::default()
    });
    let volumes: Vec<_> = own.chain(others).collect();
    spec.volumes = Some(volumes);
}

/// Returns the claims of the pod with an ordinal, each with the name of its template.
pub(super) fn claims(set: &StatefulSet, ordinal: i32) -> Vec<(String, PersistentVolumeClaim)> {
    let Some(spec) = &set.spec else {
        return Vec::new();
    };
    let own = spec.selector.match_labels.clone().unwrap_or_default();
    let templates = spec.volume_claim_templates.iter().flatten();
    templates
        .map(|template| {
            let name = template.name_any();
            let mut labels: BTreeMap<_, _> = template.labels().clone();
            // The selector's labels win, so that the claims can be found by the set's selector.
            labels.extend(own.clone());
            let claim = PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(format!("{name}-{}-{ordinal}", set.name_any())),
                    namespace: set.namespace(),
                    labels: (!labels.is_empty()).then_some(labels),
                    annotations: template.metadata.annotations.clone(),
                    finalizers: template.metadata.finalizers.clone(),
                    ..ObjectMeta::default()
                },
                spec: template.spec.clone(),
                status: None,
            };
            (name, claim)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set() -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "ns", "uid": "u" },
            "spec": {
                "serviceName": "headless", "replicas": 2, "ordinals": { "start": 3 },
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": {
                        "containers": [{ "name": "c", "image": "i" }],
                        "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "tmp", "emptyDir": {} }],
                    },
                },
                "volumeClaimTemplates": [{
                    "metadata": { "name": "data", "labels": { "kind": "disk" } },
                    "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
                }],
            },
        }))
        .expect("a StatefulSet")
    }

    #[test]
    fn a_pod_is_what_its_number_makes_of_the_template() {
        let set = set();
        let template = &set.spec.as_ref().expect("a spec").template;
        let pod = new_pod(&set, template, 3, "web-abc");
        insta::assert_snapshot!(serde_json::to_string_pretty(&pod).expect("JSON"));
    }

    #[test]
    fn a_claim_is_named_after_template_set_and_number() {
        let claims = claims(&set(), 4);
        insta::assert_snapshot!(serde_json::to_string_pretty(&claims).expect("JSON"));
    }

    #[test]
    fn numbers_are_read_from_names() {
        assert_eq!(ordinal("web", "web-12"), Some(12));
        for other in [
            "web", "web-", "web-x", "web-+1", "web-1-2", "webs-1", "web--1",
        ] {
            assert_eq!(ordinal("web", other), None, "{other}");
        }
        let wanted: Vec<_> = (0..7).filter(|number| is_wanted(&set(), *number)).collect();
        assert_eq!(wanted, [3, 4]);
    }
}
