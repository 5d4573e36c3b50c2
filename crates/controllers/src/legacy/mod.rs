//! Mirrors the v1alpha5 kinds into the current ones: Provisioner into NodePool, AWSNodeTemplate into EC2NodeClass.
//!
//! Invariant: everything else knows the current kinds only. A mirror has the name of its origin, is owned by it,
//! carries the annotation `mullion.dev/mirrored-from`, and is rewritten whenever the origin changes. An object of that
//! name that a user created is never touched; a Warning event on the origin says so.

pub mod convert;

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use mullion_api::{
    karpenter::{
        EC2NodeClass, NodePool,
        legacy::{AWSNodeTemplate, Provisioner},
    },
    labels,
};
use rustc_hash::FxHashSet;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{Informer, Queue, api_error, provisioner::KarpenterContext};

/// Starts both mirrors.
pub(crate) fn start(karpenter: &KarpenterContext) {
    let informer = || {
        (
            karpenter.base.tasks.clone(),
            karpenter.base.shutdown.clone(),
        )
    };
    let (tasks, shutdown) = informer();
    let provisioners: Informer<Provisioner> = Informer::new(
        Api::all(karpenter.base.client.clone()),
        &[],
        tasks,
        shutdown,
    );
    let (tasks, shutdown) = informer();
    let templates: Informer<AWSNodeTemplate> = Informer::new(
        Api::all(karpenter.base.client.clone()),
        &[],
        tasks,
        shutdown,
    );
    let legacy = Legacy {
        karpenter: karpenter.clone(),
        provisioners,
        templates,
        reported: Arc::default(),
    };
    legacy.start();
}

#[derive(Clone)]
struct Legacy {
    karpenter: KarpenterContext,
    provisioners: Informer<Provisioner>,
    templates: Informer<AWSNodeTemplate>,
    /// The uids of origins without a mirror about which an event was recorded.
    reported: Arc<Mutex<FxHashSet<String>>>,
}

impl Legacy {
    fn start(self) {
        let (pools, classes) = (
            Queue::new("legacy.provisioner"),
            Queue::new("legacy.awsnodetemplate"),
        );
        let (provisioners, templates) = (pools.clone(), classes.clone());
        let of_templates = classes.clone();
        self.provisioners.on_change(move |change| {
            provisioners.add(change.object().name_any());
            // The kubelet's settings moved from the provisioner to the class.
            of_templates.add(class_name(change.object()));
        });
        self.templates
            .on_change(move |change| templates.add(change.object().name_any()));
        // A mirror that was changed or deleted is made again.
        let provisioners = pools.clone();
        self.karpenter
            .pools
            .on_change(move |change| provisioners.add(change.object().name_any()));
        let templates = classes.clone();
        self.karpenter
            .classes
            .on_change(move |change| templates.add(change.object().name_any()));
        let context = self.karpenter.base.clone();
        let legacy = self.clone();
        pools.run(&context, 1, move |name: String| {
            let legacy = legacy.clone();
            async move { legacy.mirror_pool(&name).await }
        });
        classes.run(&context, 1, move |name: String| {
            let legacy = self.clone();
            async move { legacy.mirror_class(&name).await }
        });
    }

    async fn mirror_pool(&self, name: &str) -> kube::Result<()> {
        if !self.provisioners.synced().await {
            return Ok(());
        }
        let origin = live(self.provisioners.get("", name));
        let mirror = origin.as_ref().map(|origin| {
            let spec = convert::node_pool(&origin.spec, &class_name(origin));
            let mut pool = NodePool::new(name, spec);
            pool.metadata = metadata(&**origin);
            pool
        });
        let api = self.karpenter.pool_api();
        let same = |old: &NodePool, new: &NodePool| old.spec == new.spec;
        let taken = mirror_to(&api, name, mirror, same).await?;
        self.record_conflict(origin.as_deref(), "NodePool", taken);
        Ok(())
    }

    /// Records once that an origin has no mirror because an object of its name exists.
    fn record_conflict<O: Resource<DynamicType = ()>>(
        &self,
        origin: Option<&O>,
        mirror: &str,
        taken: bool,
    ) {
        let Some(origin) = origin else { return };
        let uid = origin.meta().uid.clone().unwrap_or_default();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if !taken {
            reported.remove(&uid);
        } else if reported.insert(uid) {
            let (kind, name) = (O::kind(&()), origin.name_any());
            let message = format!(
                "{mirror} {name} is there and no mirror of this {kind}, so the {kind} buys nothing: give one of them another name, or delete the {mirror}"
            );
            let recorder = &self.karpenter.recorder;
            recorder.warning(origin, "NotMirrored", message);
        }
    }

    async fn mirror_class(&self, name: &str) -> kube::Result<()> {
        if !(self.templates.synced().await && self.provisioners.synced().await) {
            return Ok(());
        }
        let origin = live(self.templates.get("", name));
        let of_class = self.provisioners.list();
        let kubelet = of_class
            .iter()
            .filter(|provisioner| class_name(provisioner) == name)
            .find_map(|provisioner| provisioner.spec.kubelet_configuration.as_ref());
        let profile = format!(
            "KarpenterNodeInstanceProfile-{}",
            self.karpenter.options.cluster
        );
        let mirror = origin.as_ref().map(|origin| {
            let spec = convert::node_class(&origin.spec, kubelet, &profile);
            let mut class = EC2NodeClass::new(name, spec);
            class.metadata = metadata(&**origin);
            class
        });
        let api = self.karpenter.class_api();
        let same = |old: &EC2NodeClass, new: &EC2NodeClass| old.spec == new.spec;
        let taken = mirror_to(&api, name, mirror, same).await?;
        self.record_conflict(origin.as_deref(), "EC2NodeClass", taken);
        Ok(())
    }
}

/// Returns the class that a provisioner's nodes come from: the one it refers to, or the one of its own name.
fn class_name(provisioner: &Provisioner) -> String {
    match &provisioner.spec.provider_ref {
        Some(reference) => reference.name.clone(),
        None => provisioner.name_any(),
    }
}

/// Returns the object unless it is being deleted.
fn live<K: Resource>(object: Option<Arc<K>>) -> Option<Arc<K>> {
    object.filter(|object| object.meta().deletion_timestamp.is_none())
}

fn metadata<K: Resource<DynamicType = ()>>(origin: &K) -> ObjectMeta {
    let kind = K::kind(&());
    let name = origin.name_any();
    ObjectMeta {
        name: Some(name.clone()),
        annotations: Some([(labels::MIRRORED_FROM.to_owned(), format!("{kind}/{name}"))].into()),
        owner_references: Some(vec![OwnerReference {
            api_version: K::api_version(&()).into_owned(),
            kind: kind.into_owned(),
            name,
            uid: origin.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}

/// Creates, updates or deletes the object `name` so that it equals the mirror. Returns whether an object of that name
/// exists that is no mirror.
async fn mirror_to<K>(
    api: &Api<K>,
    name: &str,
    mirror: Option<K>,
    same: impl Fn(&K, &K) -> bool,
) -> kube::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let there = api.get_opt(name).await?;
    let is_mirror = |object: &K| object.annotations().contains_key(labels::MIRRORED_FROM);
    let done = match (there, mirror) {
        (Some(there), Some(_)) if !is_mirror(&there) => return Ok(true),
        (None, Some(mirror)) => {
            let created = api.create(&PostParams::default(), &mirror).await;
            match created {
                Err(error) if api_error::is_already_exists(&error) => Ok(()),
                other => other.map(drop),
            }
        }
        (Some(there), Some(mirror)) if is_mirror(&there) && !same(&there, &mirror) => {
            let mut patch = serde_json::to_value(&mirror).map_err(kube::Error::SerdeError)?;
            // Only the spec is rewritten: labels and annotations that others added to the mirror stay.
            patch["metadata"] = json!({ "resourceVersion": there.resource_version() });
            // A merge keeps what is absent; what the origin no longer says must go.
            if let Some(spec) = patch.get_mut("spec") {
                clear_absent(
                    spec,
                    &serde_json::to_value(&there).map_err(kube::Error::SerdeError)?["spec"],
                );
            }
            let patched = api
                .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await;
            match patched {
                // The mirror changed meanwhile, which wakes this queue again.
                Err(error) if api_error::is_conflict(&error) => Ok(()),
                other => api_error::ignore_not_found(other).map(drop),
            }
        }
        (Some(there), None) if is_mirror(&there) && there.meta().deletion_timestamp.is_none() => {
            let deleted = api.delete(name, &DeleteParams::default()).await;
            api_error::ignore_not_found(deleted).map(drop)
        }
        _ => Ok(()),
    };
    done.map(|()| false)
}

/// Adds `null` for every field of `old` that `new` does not have, so that a merge removes it.
fn clear_absent(new: &mut serde_json::Value, old: &serde_json::Value) {
    let (Some(new), Some(old)) = (new.as_object_mut(), old.as_object()) else {
        return;
    };
    for (key, old) in old {
        match new.get_mut(key) {
            Some(new) => clear_absent(new, old),
            None => {
                new.insert(key.clone(), serde_json::Value::Null);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_origin_no_longer_says_goes() {
        let mut new = json!({ "a": { "b": 1 }, "list": [1] });
        clear_absent(
            &mut new,
            &json!({ "a": { "b": 2, "c": 3 }, "d": 4, "list": [1, 2] }),
        );
        assert_eq!(
            new,
            json!({ "a": { "b": 1, "c": null }, "d": null, "list": [1] })
        );
    }
}
