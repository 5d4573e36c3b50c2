//! What becomes of a Job's pods that do not end by themselves: taken away, deleted, held until they are replaced.

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    jobs::{api, has, job, pods, until, world},
    world::World,
};

const INDEX: &str = "batch.kubernetes.io/job-completion-index";

async fn change(world: &World, job: &str, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    api::<Job>(world)
        .patch(job, &PatchParams::default(), &patch)
        .await
        .expect("it is accepted");
}

/// The pods of a Job that have neither ended nor are on their way out.
async fn alive(world: &World, job: &str) -> Vec<Pod> {
    let mut pods = pods(world, job).await;
    pods.retain(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        let ended = phase.is_some_and(|phase| phase == "Failed" || phase == "Succeeded");
        pod.metadata.deletion_timestamp.is_none() && !ended
    });
    pods
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_job_takes_away_itself_have_not_failed() {
    let world = world().await;
    for policy in ["TerminatingOrFailed", "Failed"] {
        let spec = json!({
            "completions": 4, "parallelism": 4, "backoffLimit": 0, "podReplacementPolicy": policy,
        });
        let name = policy.to_lowercase();
        world.create::<Job>(job(&name, spec, "0 after 1h")).await;
        until(&world, &name, |status| status.ready == Some(4)).await;
        for _ in 0..3 {
            change(&world, &name, json!({ "suspend": true })).await;
            let held = until(&world, &name, |status| has(status, "Suspended").is_some()).await;
            assert_eq!((held.active, held.failed), (None, None));
            change(&world, &name, json!({ "suspend": false })).await;
            until(&world, &name, |status| status.ready == Some(4)).await;
        }
        change(&world, &name, json!({ "parallelism": 1 })).await;
        let smaller = until(&world, &name, |status| status.active == Some(1)).await;
        assert!(has(&smaller, "FailureTarget").is_none());
        world.pass(60).await;
        let later = until(&world, &name, |status| status.terminating == Some(0)).await;
        assert_eq!((later.active, later.failed), (Some(1), None));
        api::<Job>(&world)
            .delete(&name, &DeleteParams::background())
            .await
            .expect("it is there");
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_waits_longer_each_time_even_if_its_failures_do_not_count() {
    let world = world().await;
    let rule = json!({ "action": "Ignore", "onExitCodes": { "operator": "In", "values": [1] } });
    let spec = json!({
        "completions": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
        "podFailurePolicy": { "rules": [rule] },
    });
    world.create::<Job>(job("again", spec, "1 after 1s")).await;
    // One at once, then 10 s, 20 s and 40 s after the one before it ended.
    world.pass(100).await;
    let made = pods(&world, "again").await;
    assert_eq!(made.len(), 4);
    let number = |pod: &Pod, name: &str| {
        let text = pod
            .annotations()
            .get(&format!("batch.kubernetes.io/{name}"));
        text.and_then(|text| text.parse::<i32>().ok())
    };
    let ignored = made
        .iter()
        .filter_map(|pod| number(pod, "job-index-ignored-failure-count"))
        .max();
    assert_eq!(ignored, Some(3));
    let counted = |pod| number(pod, "job-index-failure-count") == Some(0);
    assert!(made.iter().all(counted), "{made:?}");
    let status = until(&world, "again", |_| true).await;
    assert_eq!(
        (status.failed, status.failed_indexes.as_deref()),
        (None, Some(""))
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_failed_pod_of_an_index_stays_until_the_next_one_is_there() {
    let world = world().await;
    let spec = json!({ "completions": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 1 });
    world.create::<Job>(job("held", spec, "1 after 1s")).await;
    until(&world, "held", |status| {
        status.active.is_none() && status.start_time.is_some()
    })
    .await;
    let made = pods(&world, "held").await;
    let [first] = made.as_slice() else {
        panic!("one pod: {made:?}")
    };
    assert_eq!(first.finalizers().len(), 1);
    // Whoever deletes it now does not make the index begin anew.
    world.delete_pod(&first.name_any()).await;
    let early = until(&world, "held", |_| true).await;
    assert_eq!(early.failed, None);
    until(&world, "held", |status| {
        status.failed == Some(1) && status.active == Some(1)
    })
    .await;
    let failed = until(&world, "held", |status| has(status, "Failed").is_some()).await;
    assert_eq!(
        (failed.failed, failed.failed_indexes.as_deref()),
        (Some(2), Some("0"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_remembers_failures_of_pods_that_are_gone() {
    let world = world().await;
    world
        .create::<Job>(job("hit", json!({}), "0 after 1h"))
        .await;
    let clock = &world.context.clock;
    for pause in [10, 20] {
        until(&world, "hit", |status| status.ready == Some(1)).await;
        let names: Vec<_> = alive(&world, "hit")
            .await
            .iter()
            .map(Pod::name_any)
            .collect();
        let begin = clock.now();
        world.delete_pod(&names[0]).await;
        until(&world, "hit", |status| status.active.is_none()).await;
        until(&world, "hit", |status| status.active == Some(1)).await;
        let took = clock.now().duration_since(begin).as_secs();
        // Stamps are whole seconds and may be early.
        assert!((pause - 1..pause + 5).contains(&took), "{took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_success_policy_stops_counts_for_nothing() {
    let world = world().await;
    for (name, annotation) in [("obeys", "1s"), ("killed", "1h")] {
        let spec = json!({
            "completions": 3, "parallelism": 3, "completionMode": "Indexed",
            "successPolicy": { "rules": [{ "succeededIndexes": "0" }] },
        });
        let mut job = job(name, spec, "0 after 10m");
        job["spec"]["template"]["metadata"]["annotations"]["mullion.dev/simulate-stop"] =
            annotation.into();
        world.create::<Job>(job).await;
        until(&world, name, |status| status.ready == Some(3)).await;
        let all = pods(&world, name).await;
        let first = all.iter().find(|pod| pod.annotations()[INDEX] == "0");
        let first = first.expect("it has an index").name_any();
        let soon = json!({ "metadata": { "annotations": { "mullion.dev/simulate-exit": "0" } } });
        api::<Pod>(&world)
            .patch(&first, &PatchParams::default(), &Patch::Merge(soon))
            .await
            .expect("it is accepted");
        let done = until(&world, name, |status| has(status, "Complete").is_some()).await;
        assert_eq!(done.completed_indexes.as_deref(), Some("0"), "{name}");
        assert_eq!((done.succeeded, done.failed), (Some(1), None), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_does_not_complete_by_a_pod_that_was_stopped_in_the_midst_of_its_work() {
    let world = world().await;
    let rule = json!({ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] });
    let spec = json!({ "podFailurePolicy": { "rules": [rule] }, "backoffLimit": 0 });
    world
        .create::<Job>(job("goes-on", spec, "0 after 1m"))
        .await;
    until(&world, "goes-on", |status| status.ready == Some(1)).await;
    let name = alive(&world, "goes-on").await[0].name_any();
    api::<Pod>(&world)
        .evict(&name, &Default::default())
        .await
        .expect("nothing forbids it");
    let done = until(&world, "goes-on", |status| {
        has(status, "Complete").is_some()
    })
    .await;
    assert_eq!((done.succeeded, done.failed), (Some(1), None));
    let survivors = pods(&world, "goes-on").await;
    assert!(survivors.iter().all(|pod| pod.name_any() != name));
}
