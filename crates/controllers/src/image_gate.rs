//! Removes the scheduling gate `mullion.dev/image` from pods whose images were unknown when the pods were created.
//!
//! Admission adds the gate ([`crate::admission::placement`]). This controller asks the registries again once a
//! second. When they answer, it writes the placement into the pod and removes the gate. Kubernetes allows the node
//! selector and the node affinity of a gated pod only to become narrower, and placement does nothing else. A pod
//! whose registries do not answer for 30 s is scheduled as it is.
//!
//! No update can add the request for an address that a Windows pod needs. Such a pod is deleted if its controller
//! replaces it without counting the deletion as a failure; otherwise it is sent to Windows, with an event that says
//! what to do. At most one pod of an owner is deleted in 10 s; the others keep the gate until their turn.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use mullion_api::labels::IMAGE_GATE;
use mullion_engine::images::{ImageRef, System};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    Context, Key, Queue, Recorder,
    admission::{
        ClusterReader, Lookups, Verdict, Write, addresses,
        placement::{PlaceByImage, Placement, images_of, pull_secrets},
    },
    api_error, ownership,
    queue::Backoff,
};

const WORKERS: usize = 4;
/// How long a pod waits for the platforms of its images.
const LONGEST: Duration = Duration::from_secs(30);
/// The time between two checks of a waiting pod.
const PERIOD: Duration = Duration::from_secs(1);
/// The time between two deletions of one owner's pods.
const REST: Duration = Duration::from_secs(10);
/// The kinds of controllers that replace a deleted pod. A Job is not among them: it counts a deleted pod as failed,
/// towards its `backoffLimit` (kube-controller-manager: `isPodFailed` of the Job controller).
const REMAKING: [(&str, &str); 4] = [
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("v1", "ReplicationController"),
];

/// Asks registries again about images for which they have not answered.
pub trait RegistryRetry: Send + Sync {
    /// Starts to ask about these images with these pull secrets, without waiting for the answers.
    fn retry_lookups(&self, images: &[ImageRef], secrets: &[Arc<Value>]);
}

/// Starts the controller. It places pods by `rule`, which uses the answers of `registries`.
pub fn start(context: &Context, rule: PlaceByImage, registries: Arc<dyn RegistryRetry>) {
    let backoff = Backoff {
        max: PERIOD,
        ..Backoff::default()
    };
    let queue = Queue::with_backoff("image-gate", backoff);
    context.informers.pods.on_change({
        let queue = queue.clone();
        move |change| {
            let pod = change.object();
            if !change.is_deleted() && is_gated(pod) {
                queue.add(Key::of(&**pod));
            }
        }
    });
    let gate = Arc::new(Gate {
        context: context.clone(),
        lookups: Lookups::new(context),
        recorder: context.recorder("image-gate"),
        queue: queue.clone(),
        rule,
        registries,
        deleted: Mutex::default(),
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if context.informers.pods.synced().await && context.informers.nodes.synced().await {
            queue.run(&context, WORKERS, move |key| {
                let gate = gate.clone();
                async move { gate.reconcile(&key).await }
            });
        }
    });
}

struct Gate {
    context: Context,
    lookups: Lookups,
    recorder: Recorder,
    queue: Queue<Key>,
    rule: PlaceByImage,
    registries: Arc<dyn RegistryRetry>,
    /// The time of the last deletion of an owner's pod, by the owner's UID.
    deleted: Mutex<FxHashMap<String, Instant>>,
}

impl Gate {
    async fn reconcile(&self, key: &Key) -> kube::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), key.namespace());
        // The write depends on all of the pod's fields, so their current values are read.
        let Some(pod) = pods.get_opt(key.name()).await? else {
            return Ok(());
        };
        if !is_gated(&pod) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let object = serde_json::to_value(&pod).map_err(kube::Error::SerdeError)?;
        let write = Write {
            user: "",
            namespace: key.namespace(),
            pod: &object,
            old: None,
        };
        let looked = self.lookups.ask(|cluster| {
            let Placement { verdict, system } = self.rule.place(&write, cluster);
            let lacks_address =
                system == Some(System::Windows) && lacks_address(&object, &verdict, cluster);
            let secrets = match system {
                None => pull_secrets(&object["spec"], key.namespace(), cluster),
                Some(_) => Vec::new(),
            };
            (verdict, system, lacks_address, secrets)
        });
        let (verdict, system, lacks_address, secrets) = match looked.await {
            Ok(looked) => looked,
            // A pod must not wait for ever because a lookup keeps failing.
            Err(error) if self.rest(&pod).is_zero() => {
                let note = format!(
                    "what its placement needs cannot be looked up, so the pod is scheduled as it is: {error}"
                );
                self.recorder.warning(&pod, "NotPlacedByImage", note);
                return self.release(&pods, &pod, Verdict::default()).await;
            }
            Err(error) => return Err(error),
        };
        if let Some(refusal) = &verdict.refusal {
            let note = format!("{}; the pod is scheduled as it is", refusal.text);
            self.recorder.warning(&pod, "ImagesDisagree", note);
            return self.release(&pods, &pod, Verdict::default()).await;
        }
        if system.is_none() {
            return self.wait(&pods, &pod, &object, &secrets).await;
        }
        if lacks_address {
            return match self.replacement(&pod) {
                Replacement::Now(owner) => self.replace(&pods, &pod, &owner).await,
                Replacement::In(rest) => {
                    self.queue.add_after(key.clone(), rest);
                    Ok(())
                }
                Replacement::Never => {
                    self.recorder
                        .warning(&pod, "ImageRunsOnWindows", NO_ADDRESS);
                    self.release(&pods, &pod, verdict).await
                }
            };
        }
        self.release(&pods, &pod, verdict).await
    }

    /// Returns how long the pod may still wait.
    fn rest(&self, pod: &Pod) -> Duration {
        let created = pod.metadata.creation_timestamp.as_ref();
        let waited = created.map(|created| self.context.clock.now().duration_since(created.0));
        let waited = waited.map_or(LONGEST, |waited| waited.try_into().unwrap_or_default());
        LONGEST.saturating_sub(waited)
    }

    /// Asks the registries again, or releases the pod once it has waited long enough.
    async fn wait(
        &self,
        pods: &Api<Pod>,
        pod: &Pod,
        object: &Value,
        secrets: &[Arc<Value>],
    ) -> kube::Result<()> {
        let rest = self.rest(pod);
        if rest.is_zero() {
            let note = format!(
                "no registry said within {} s what its images run on; the pod is scheduled as it is",
                LONGEST.as_secs()
            );
            self.recorder.normal(pod, "ImagesUnknown", note);
            return self.release(pods, pod, Verdict::default()).await;
        }
        let spec = &object["spec"];
        self.registries.retry_lookups(&images_of(spec), secrets);
        self.queue.add_after(Key::of(pod), rest.min(PERIOD));
        Ok(())
    }

    /// Returns when the pod may be deleted so that its controller replaces it.
    fn replacement(&self, pod: &Pod) -> Replacement {
        let owner = ownership::controller_of(pod)
            .filter(|owner| REMAKING.contains(&(owner.api_version.as_str(), owner.kind.as_str())));
        let Some(owner) = owner else {
            return Replacement::Never;
        };
        let now = Instant::now();
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.retain(|_, at| now < *at + REST);
        if let Some(at) = deleted.get(&owner.uid) {
            return Replacement::In(*at + REST - now);
        }
        // Entered before the deletion is sent, so that two workers do not both delete a pod of this owner.
        deleted.insert(owner.uid.clone(), now);
        Replacement::Now(format!("{} {}", owner.kind, owner.name))
    }

    async fn replace(&self, pods: &Api<Pod>, pod: &Pod, owner: &str) -> kube::Result<()> {
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: pod.uid(),
            ..Preconditions::default()
        });
        let deleted = pods.delete(&pod.name_any(), &params).await;
        if api_error::ignore_not_found(deleted)?.is_some() {
            let note = format!(
                "deleted so that {owner} replaces it: its images run on Windows, and only a new pod can get a request for an address"
            );
            self.recorder.normal(pod, "ImageRunsOnWindows", note);
        }
        Ok(())
    }

    /// Writes the placement into the pod and removes the gate in one write.
    async fn release(&self, pods: &Api<Pod>, pod: &Pod, verdict: Verdict) -> kube::Result<()> {
        let gates = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.scheduling_gates.as_ref());
        let others: Vec<_> = gates
            .into_iter()
            .flatten()
            .filter(|gate| gate.name != IMAGE_GATE)
            .collect();
        let bare = json!({
            "metadata": {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version},
            "spec": {"schedulingGates": Some(others).filter(|others| !others.is_empty())},
        });
        let mut patch = bare.clone();
        for change in narrowing(verdict) {
            change.apply(&mut patch);
        }
        let apply = async |patch: Value| {
            let patch = Patch::Merge(patch);
            pods.patch(&pod.name_any(), &PatchParams::default(), &patch)
                .await
        };
        let applied = match apply(patch).await {
            // The API server refuses changes that do not only narrow a gated pod. Then only the gate is removed.
            Err(kube::Error::Api(status)) if status.code == 422 => {
                let note = format!(
                    "what its images need cannot be added, so the pod is scheduled as it is: {}",
                    status.message
                );
                self.recorder.warning(pod, "NotPlacedByImage", note);
                apply(bare).await
            }
            applied => applied,
        };
        api_error::ignore_not_found(applied).map(drop)
    }
}

const NO_ADDRESS: &str = "its images run on Windows, and only a new pod can get a request for an address: delete the pod and create it again";

/// Whether and when a pod may be deleted so that its controller replaces it.
enum Replacement {
    /// It may be deleted now; the text names its controller.
    Now(String),
    /// It may be deleted after that time.
    In(Duration),
    /// No controller would replace it.
    Never,
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref());
    gates
        .into_iter()
        .flatten()
        .any(|gate| gate.name == IMAGE_GATE)
}

/// Returns the changes that kube-apiserver accepts for a gated pod: all but `spec.os`.
fn narrowing(verdict: Verdict) -> impl Iterator<Item = crate::admission::Change> {
    let is_os = |path: &[String]| path.starts_with(&["spec".to_owned(), "os".to_owned()]);
    let changes = verdict.changes.into_iter();
    changes.filter(move |change| !is_os(&change.path))
}

/// Returns whether the pod lacks the request for an address that it would have got if it had been placed at its
/// creation.
fn lacks_address(pod: &Value, placement: &Verdict, cluster: &dyn ClusterReader) -> bool {
    let mut placed = pod.clone();
    for change in placement.changes.iter().cloned() {
        change.apply(&mut placed);
    }
    addresses::lacks_request(&placed["spec"], cluster)
}
