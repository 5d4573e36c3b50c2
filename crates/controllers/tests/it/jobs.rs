//! Jobs: pods that end are counted, replaced or given up.

use k8s_openapi::api::{
    batch::v1::{Job, JobStatus},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use mullion_controllers::{gc, kubelet::pace::Pace, node_lifecycle, scheduler, workloads};
use serde_json::{Value, json};

use crate::{wait, world::World};

pub(crate) async fn world() -> World {
    let world = World::new(Pace::REAL).await;
    scheduler::start(&world.context, true);
    workloads::start(&world.context);
    gc::start(&world.context);
    node_lifecycle::start(&world.context, None);
    world.linux_node().await;
    world
}

pub(crate) fn job(name: &str, spec: Value, exit: &str) -> Value {
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name },
        "spec": { "template": {
            "metadata": { "annotations": { "mullion.dev/simulate-exit": exit } },
            "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "busybox:1" }] },
        } },
    });
    let extra = spec.as_object().cloned().unwrap_or_default();
    job["spec"]
        .as_object_mut()
        .expect("an object")
        .extend(extra);
    job
}

pub(crate) fn api<K>(world: &World) -> Api<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(world.context.client.clone(), "default")
}

pub(crate) async fn until(
    world: &World,
    name: &str,
    done: impl Fn(&JobStatus) -> bool,
) -> JobStatus {
    let done = |job: &Job| job.status.as_ref().is_some_and(&done);
    let job = wait::until(&api(world), name, done).await;
    job.status.expect("it has a status")
}

pub(crate) fn has(status: &JobStatus, kind: &str) -> Option<String> {
    let conditions = status.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|one| one.type_ == kind && one.status == "True")?;
    found.reason.clone()
}

pub(crate) async fn pods(world: &World, job: &str) -> Vec<Pod> {
    let params = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    api::<Pod>(world).list(&params).await.expect("a list").items
}

#[tokio::test(start_paused = true)]
async fn a_job_is_complete_when_enough_pods_have_succeeded() {
    let world = world().await;
    let spec = json!({ "completions": 5, "parallelism": 2 });
    world.create::<Job>(job("five", spec, "0 after 3s")).await;
    let early = until(&world, "five", |status| status.active == Some(2)).await;
    assert!(early.start_time.is_some() && has(&early, "Complete").is_none());
    let done = until(&world, "five", |status| has(status, "Complete").is_some()).await;
    assert_eq!(
        (done.succeeded, done.failed, done.active),
        (Some(5), None, None)
    );
    assert_eq!(
        has(&done, "SuccessCriteriaMet").as_deref(),
        Some("CompletionsReached")
    );
    assert!(done.completion_time.is_some());
    let pods = pods(&world, "five").await;
    assert_eq!(pods.len(), 5);
    assert!(
        pods.iter().all(|pod| pod.finalizers().is_empty()),
        "all are counted"
    );
    world.pass(2).await;
    let events = world.events("five").await;
    assert!(
        events.contains(&("Completed".into(), "Job completed".into())),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_of_a_job_ends_well_if_nothing_else_is_said() {
    let world = world().await;
    let mut plain = job("plain", json!({}), "");
    plain["spec"]["template"]["metadata"] = json!({});
    world.create::<Job>(plain).await;
    let done = until(&world, "plain", |status| has(status, "Complete").is_some()).await;
    assert_eq!(done.succeeded, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_pods_fail_too_often_has_failed() {
    let world = world().await;
    world
        .create::<Job>(job("bad", json!({ "backoffLimit": 2 }), "3 after 1s"))
        .await;
    let begin = world.context.clock.now();
    let failed = until(&world, "bad", |status| has(status, "Failed").is_some()).await;
    assert_eq!(failed.failed, Some(3));
    assert_eq!(
        has(&failed, "Failed").as_deref(),
        Some("BackoffLimitExceeded")
    );
    // 10 s after the first failure, 20 s after the second.
    let took = world.context.clock.now().duration_since(begin).as_secs();
    assert!((30..60).contains(&took), "{took} s");
    world.pass(2).await;
    let events = world.events("bad").await;
    let told = (
        "BackoffLimitExceeded".into(),
        "Job has reached the specified backoff limit".into(),
    );
    assert!(events.contains(&told), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn each_index_of_an_indexed_job_succeeds_once() {
    let world = world().await;
    let spec = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed" });
    world.create::<Job>(job("parts", spec, "0 after 2s")).await;
    let done = until(&world, "parts", |status| has(status, "Complete").is_some()).await;
    assert_eq!(done.completed_indexes.as_deref(), Some("0-2"));
    assert_eq!(done.succeeded, Some(3));
    let mut names: Vec<_> = pods(&world, "parts")
        .await
        .iter()
        .map(|pod| pod.spec.as_ref().and_then(|spec| spec.hostname.clone()))
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            Some("parts-0".into()),
            Some("parts-1".into()),
            Some("parts-2".into())
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_index_with_a_limit_of_its_own_fails_alone() {
    let world = world().await;
    let spec = json!({ "completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1 });
    let begin = world.context.clock.now();
    world.create::<Job>(job("parts", spec, "1 after 1s")).await;
    let failed = until(&world, "parts", |status| has(status, "Failed").is_some()).await;
    assert_eq!(failed.failed_indexes.as_deref(), Some("0,1"));
    assert_eq!(has(&failed, "Failed").as_deref(), Some("FailedIndexes"));
    assert_eq!(failed.failed, Some(4));
    let took = world.context.clock.now().duration_since(begin).as_secs();
    assert!(
        (10..30).contains(&took),
        "10 s after the first failure: {took} s"
    );
}

#[tokio::test(start_paused = true)]
async fn an_exit_code_can_end_the_job_at_once() {
    let world = world().await;
    let rule = json!({ "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } });
    let spec = json!({ "podFailurePolicy": { "rules": [rule] } });
    world
        .create::<Job>(job("strict", spec, "42 after 1s"))
        .await;
    let failed = until(&world, "strict", |status| has(status, "Failed").is_some()).await;
    assert_eq!(has(&failed, "Failed").as_deref(), Some("PodFailurePolicy"));
    assert_eq!(failed.failed, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_success_policy_ends_a_job_before_all_is_done() {
    let world = world().await;
    let spec = json!({
        "completions": 4, "parallelism": 1, "completionMode": "Indexed",
        "successPolicy": { "rules": [{ "succeededIndexes": "0-1" }] },
    });
    world.create::<Job>(job("enough", spec, "0 after 2s")).await;
    let done = until(&world, "enough", |status| has(status, "Complete").is_some()).await;
    assert_eq!(has(&done, "Complete").as_deref(), Some("SuccessPolicy"));
    assert_eq!(done.completed_indexes.as_deref(), Some("0,1"));
}

#[tokio::test(start_paused = true)]
async fn a_suspended_job_has_no_pods_until_it_is_resumed() {
    let world = world().await;
    world
        .create::<Job>(job("later", json!({ "suspend": true }), "0 after 2s"))
        .await;
    let held = until(&world, "later", |status| has(status, "Suspended").is_some()).await;
    assert!(held.start_time.is_none());
    assert!(pods(&world, "later").await.is_empty());
    let resume = Patch::Merge(json!({ "spec": { "suspend": false } }));
    api::<Job>(&world)
        .patch("later", &PatchParams::default(), &resume)
        .await
        .expect("it is accepted");
    let done = until(&world, "later", |status| has(status, "Complete").is_some()).await;
    assert!(has(&done, "Suspended").is_none());
    let events = world.events("later").await;
    for reason in ["Suspended", "Resumed", "Completed"] {
        let told = events.iter().filter(|(own, _)| own == reason).count();
        assert_eq!(told, 1, "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_takes_too_long_has_failed_and_one_that_is_of_no_use_goes() {
    let world = world().await;
    let spec = json!({ "activeDeadlineSeconds": 20, "ttlSecondsAfterFinished": 30 });
    world.create::<Job>(job("slow", spec, "0 after 1h")).await;
    let failed = until(&world, "slow", |status| has(status, "Failed").is_some()).await;
    assert_eq!(has(&failed, "Failed").as_deref(), Some("DeadlineExceeded"));
    world.pass(20).await;
    assert!(
        api::<Job>(&world)
            .get_opt("slow")
            .await
            .expect("an answer")
            .is_some()
    );
    world.pass(60).await;
    let left = api::<Job>(&world).get_opt("slow").await.expect("an answer");
    assert!(left.is_none());
    assert!(pods(&world, "slow").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_job_that_is_deleted_go_too() {
    let world = world().await;
    world
        .create::<Job>(job("gone", json!({}), "0 after 1h"))
        .await;
    until(&world, "gone", |status| status.active == Some(1)).await;
    api::<Job>(&world)
        .delete("gone", &DeleteParams::background())
        .await
        .expect("it is there");
    world.pass(60).await;
    assert!(pods(&world, "gone").await.is_empty());
}
