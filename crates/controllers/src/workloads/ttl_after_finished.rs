//! Deletes finished Jobs after their `ttlSecondsAfterFinished` (kube-controller-manager:
//! ttl-after-finished-controller).

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions, PropagationPolicy},
};

use super::job::finished;
use crate::{Context, Key, Queue, api_error};

const WORKERS: usize = 5;

/// Starts the controller.
pub fn start(context: &Context) {
    let queue: Queue<Key> = Queue::new("ttl-after-finished");
    context.informers.jobs.on_change({
        let queue = queue.clone();
        move |change| {
            if !change.is_deleted() && left(change.object(), None).is_some() {
                queue.add(Key::of(&**change.object()));
            }
        }
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if context.informers.jobs.synced().await {
            let workers = context.clone();
            queue.clone().run(&workers, WORKERS, move |key| {
                let (context, queue) = (context.clone(), queue.clone());
                async move { sync(&context, &queue, &key).await }
            });
        }
    });
}

/// Returns how long a finished Job stays, counted from `now`, or from its end if `now` is `None`. Returns `None`
/// for a Job that stays forever, is not finished, or is being deleted.
fn left(job: &Job, now: Option<jiff::Timestamp>) -> Option<SignedDuration> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let end = finished(job)?.last_transition_time.as_ref()?.0;
    Some(SignedDuration::from_secs(ttl.into()) - now.unwrap_or(end).duration_since(end))
}

async fn sync(context: &Context, queue: &Queue<Key>, key: &Key) -> kube::Result<()> {
    let now = || Some(context.clock.now());
    let Some(job) = context.informers.jobs.get_key(key) else {
        return Ok(());
    };
    let Some(wait) = left(&job, now()) else {
        return Ok(());
    };
    if wait.is_positive() {
        queue.add_after(key.clone(), Duration::try_from(wait).unwrap_or_default());
        return Ok(());
    }
    // The informer may not show yet that the TTL was extended.
    let api: Api<Job> = Api::namespaced(context.client.clone(), key.namespace());
    let Some(job) = api.get_opt(key.name()).await? else {
        return Ok(());
    };
    if left(&job, now()).is_none_or(|left| left.is_positive()) {
        return Ok(());
    }
    let params = DeleteParams {
        // kube-controller-manager deletes in the foreground: the Job disappears after its pods.
        propagation_policy: Some(PropagationPolicy::Foreground),
        preconditions: Some(Preconditions {
            uid: job.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let deleted = api.delete(key.name(), &params).await;
    api_error::ignore_not_found(deleted).map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(ttl: Value, condition: Value) -> Job {
        let spec = json!({ "ttlSecondsAfterFinished": ttl, "template": {} });
        let status = json!({ "conditions": [condition] });
        serde_json::from_value(
            json!({ "metadata": { "name": "j" }, "spec": spec, "status": status }),
        )
        .expect("a Job")
    }

    #[test]
    fn the_time_runs_from_the_end_of_the_job() {
        let end = json!({ "type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let at = "2026-01-01T00:00:40Z".parse().expect("a time");
        let seconds = |job: &Job| left(job, Some(at)).map(|left| left.as_secs());
        assert_eq!(seconds(&job(json!(60), end.clone())), Some(20));
        assert_eq!(seconds(&job(json!(0), end.clone())), Some(-40));
        assert_eq!(seconds(&job(Value::Null, end)), None);
        let running = json!({ "type": "Suspended", "status": "True" });
        assert_eq!(seconds(&job(json!(60), running)), None);
    }
}
