//! CronJobs: Jobs come when they are due, and are kept for a while.

use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    jobs::{api, job, world},
    wait,
    world::World,
};

fn cron(name: &str, schedule: &str, spec: Value, exit: &str) -> Value {
    let template = job("x", json!({}), exit)["spec"].clone();
    let mut cron = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": name },
        "spec": { "schedule": schedule, "jobTemplate": { "spec": template } },
    });
    let extra = spec.as_object().cloned().unwrap_or_default();
    let spec = cron["spec"].as_object_mut().expect("an object");
    spec.extend(extra);
    cron
}

/// The reasons of the events about a CronJob.
async fn reasons(world: &World, name: &str) -> Vec<String> {
    let events = world.events(name).await;
    events.into_iter().map(|(reason, _)| reason).collect()
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_makes_a_job_each_time_it_is_due_and_keeps_a_few() {
    let world = world().await;
    let template = job("x", json!({}), "0 after 5s")["spec"].clone();
    let cron = json!({
        "metadata": { "name": "tick" },
        "spec": {
            "schedule": "*/2 * * * *", "successfulJobsHistoryLimit": 2,
            "jobTemplate": { "spec": template },
        },
    });
    world.create::<CronJob>(cron).await;
    world.pass(60 * 9).await;
    let jobs = api::<Job>(&world)
        .list(&ListParams::default())
        .await
        .expect("a list")
        .items;
    assert_eq!(
        jobs.len(),
        2,
        "{:?}",
        jobs.iter().map(|job| job.name_any()).collect::<Vec<_>>()
    );
    let cron = api::<CronJob>(&world)
        .get("tick")
        .await
        .expect("it is there");
    let status = cron.status.expect("a status");
    assert!(status.last_schedule_time.is_some() && status.last_successful_time.is_some());
    let mut minutes: Vec<i64> = jobs
        .iter()
        .filter_map(|job| job.name_any().strip_prefix("tick-")?.parse().ok())
        .collect();
    minutes.sort_unstable();
    assert_eq!(minutes[1] - minutes[0], 2);
    let suspend = Patch::Merge(json!({ "spec": { "suspend": true } }));
    api::<CronJob>(&world)
        .patch("tick", &PatchParams::default(), &suspend)
        .await
        .expect("it is accepted");
    world.pass(60 * 5).await;
    let again = api::<Job>(&world)
        .list(&ListParams::default())
        .await
        .expect("a list");
    let latest = again
        .items
        .iter()
        .filter_map(|job| job.name_any().strip_prefix("tick-")?.parse::<i64>().ok())
        .max();
    assert_eq!(latest, minutes.last().copied());
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_that_forbids_two_at_once_waits_for_the_first() {
    let world = world().await;
    let template = job("x", json!({}), "0 after 150s")["spec"].clone();
    let cron = json!({
        "metadata": { "name": "slow" },
        "spec": { "schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": { "spec": template } },
    });
    world.create::<CronJob>(cron).await;
    world.pass(130).await;
    let jobs = api::<Job>(&world)
        .list(&ListParams::default())
        .await
        .expect("a list");
    assert_eq!(jobs.items.len(), 1);
    let events = world.events("slow").await;
    assert!(
        events
            .iter()
            .any(|(reason, _)| reason == "JobAlreadyActive"),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_somebody_else_made_is_told_and_one_of_its_own_is_not() {
    let world = world().await;
    let spec = json!({ "concurrencyPolicy": "Replace" });
    let made: CronJob = world
        .create(cron("often", "* * * * *", spec, "0 after 1h"))
        .await;
    world.pass(190).await;
    let told = reasons(&world, "often").await;
    assert!(
        told.iter().any(|reason| reason == "SuccessfulDelete"),
        "{told:?}"
    );
    for reason in ["UnexpectedJob", "MissingJob"] {
        assert!(!told.iter().any(|own| own == reason), "{told:?}");
    }
    let quiet: CronJob = world
        .create(cron("quiet", "0 0 1 1 *", json!({}), "0 after 1h"))
        .await;
    for owner in [made, quiet] {
        let name = format!("by-hand-{}", owner.name_any());
        let mut own = job(&name, json!({}), "0 after 1h");
        own["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "batch/v1", "kind": "CronJob", "controller": true,
            "name": owner.name_any(), "uid": owner.uid(),
        }]);
        world.create::<Job>(own).await;
        world.pass(3).await;
        let events = world.events(&owner.name_any()).await;
        let message = format!("Saw a job that the controller did not create or forgot: {name}");
        assert!(
            events.contains(&("UnexpectedJob".into(), message)),
            "{events:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_goes_as_soon_as_it_is_over_is_not_seen_completed() {
    let world = world().await;
    let spec = json!({ "successfulJobsHistoryLimit": 0 });
    world
        .create::<CronJob>(cron("brief", "* * * * *", spec, "0 after 5s"))
        .await;
    wait::until(&api::<CronJob>(&world), "brief", |cron| {
        let status = cron.status.as_ref();
        status.is_some_and(|status| status.last_successful_time.is_some())
    })
    .await;
    world.pass(3).await;
    let told = reasons(&world, "brief").await;
    assert!(
        told.iter().any(|reason| reason == "SuccessfulDelete"),
        "{told:?}"
    );
    assert!(
        !told.iter().any(|reason| reason == "SawCompletedJob"),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_never_comes_says_so() {
    let world = world().await;
    world
        .create::<CronJob>(cron("never", "0 0 31 2 *", json!({}), "0"))
        .await;
    world.pass(3).await;
    let message = "invalid schedule: 0 0 31 2 * : time difference between two schedules is less than 1 second";
    let events = world.events("never").await;
    assert_eq!(events, [("InvalidSchedule".to_owned(), message.to_owned())]);
}
