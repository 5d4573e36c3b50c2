//! ControllerRevisions of pod templates, as DaemonSets and StatefulSets store them. Pure.
//!
//! A revision's data is the strategic merge patch that restores its template; `kubectl rollout undo` sends it.
//! Templates are compared by that data, never by their hash, which may collide.

use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::PodTemplateSpec},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::template_hash;
use crate::ownership;

/// The number of old revisions kept if the owner sets none.
pub(super) const DEFAULT_LIMIT: i32 = 10;

/// Returns the patch that restores `template`.
pub(super) fn data_of(template: Option<&PodTemplateSpec>) -> Value {
    // Serializing to memory cannot fail: keys are strings and there is no IO.
    let mut template = serde_json::to_value(template).expect("a pod template serializes");
    // Without this directive the patch would keep fields of the current template that the restored one does not
    // have.
    template["$patch"] = json!("replace");
    json!({ "spec": { "template": template } })
}

/// Returns whether the revision holds the template of `data`.
pub(super) fn holds(revision: &ControllerRevision, data: &Value) -> bool {
    revision.data.as_ref().is_some_and(|held| held.0 == *data)
}

/// Returns the template that a revision holds.
pub(super) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.pointer("/spec/template")?;
    serde_json::from_value(template.clone()).ok()
}

/// Returns a revision of `template`, named and labelled (`hash_label`) by its hash, which `collisions` changes.
///
/// The revision copies the owner's annotations, from which `kubectl rollout history` shows the change cause.
pub(super) fn new_revision<O: Resource<DynamicType = ()>>(
    owner: &O,
    template: Option<&PodTemplateSpec>,
    hash_label: &str,
    number: i64,
    collisions: Option<i32>,
) -> ControllerRevision {
    let hash = template.map(|template| template_hash(template, collisions));
    let hash = hash.unwrap_or_default();
    let labels = template.and_then(|template| template.metadata.as_ref()?.labels.clone());
    let mut labels = labels.unwrap_or_default();
    // The template's labels are copied so that the owner's selector finds its revisions.
    labels.insert(hash_label.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", owner.name_any())),
            namespace: owner.namespace(),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![ownership::controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data_of(template))),
        revision: number,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::StatefulSet;

    use super::*;

    #[test]
    fn a_revision_brings_its_template_back() {
        let set: StatefulSet = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "ns" },
            "spec": { "serviceName": "web", "selector": {}, "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            } },
        }))
        .expect("a StatefulSet");
        let template = set.spec.as_ref().map(|spec| &spec.template);
        let revision = new_revision(&set, template, "hash", 3, None);
        assert!(holds(&revision, &data_of(template)));
        assert_eq!(template_of(&revision).as_ref(), template);
        assert_eq!(revision.labels()["app"], "web");
        assert_eq!(
            revision.name_any(),
            format!("web-{}", revision.labels()["hash"])
        );
    }
}
