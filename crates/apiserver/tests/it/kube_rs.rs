//! kube-rs as its users run it, against the server in process: a controller with a finalizer over a kind of its own, reflectors by list
//! and by streaming list, what they do when their version has expired, entries, events and leases.

use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::ConfigMap,
        events::v1::Event,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, CustomResource, CustomResourceExt, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams},
    runtime::{
        Controller, WatchStreamExt,
        conditions::{is_crd_established, is_deleted},
        controller::{self, Action},
        events::{self, EventType, Recorder, Reporter},
        finalizer::{self, finalizer},
        reflector,
        wait::await_condition,
        watcher,
    },
};
use mullion_apiserver::{ApiServer, Config, admission::User};
use mullion_store::Window;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;

/// Far more than anything here takes. Time is paused, so what hangs fails at once.
const PATIENCE: Duration = Duration::from_secs(600);

/// A kind as a user of kube-rs defines it.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(
    group = "example.com",
    version = "v1",
    kind = "Shutter",
    namespaced,
    status = "ShutterStatus"
)]
struct ShutterSpec {
    slats: u32,
}

#[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
struct ShutterStatus {
    slats: u32,
}

fn client(config: Config) -> Client {
    let server = ApiServer::new(config);
    Client::new(server.router_as(User::administrator()), "default")
}

fn map(name: &str, value: u32) -> ConfigMap {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"n": value.to_string()},
    });
    serde_json::from_value(map).unwrap()
}

fn merge(value: u32) -> Patch<serde_json::Value> {
    Patch::Merge(json!({"data": {"n": value.to_string()}}))
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not happen within {PATIENCE:?}"),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct ReconcileError(String);

/// Applies a ConfigMap for each Shutter, writes its status, and takes the ConfigMap away before the Shutter goes.
async fn reconcile(shutter: Arc<Shutter>, client: Arc<Client>) -> Result<Action, ReconcileError> {
    let maps: Api<ConfigMap> = Api::default_namespaced((*client).clone());
    let shutters: Api<Shutter> = Api::default_namespaced((*client).clone());
    finalizer(&shutters, "example.com/slats", shutter, |event| async {
        match event {
            finalizer::Event::Apply(shutter) => {
                let mut map = map(&shutter.name_any(), shutter.spec.slats);
                map.metadata.owner_references = Some(vec![
                    shutter.controller_owner_ref(&()).expect("it was read"),
                ]);
                let apply = PatchParams::apply("shutters").force();
                maps.patch(&shutter.name_any(), &apply, &Patch::Apply(&map))
                    .await?;
                let status = json!({"status": {"slats": shutter.spec.slats}});
                let status = Patch::Merge(&status);
                shutters
                    .patch_status(&shutter.name_any(), &PatchParams::default(), &status)
                    .await?;
            }
            finalizer::Event::Cleanup(shutter) => {
                maps.delete(&shutter.name_any(), &DeleteParams::default())
                    .await?;
            }
        }
        Ok::<_, kube::Error>(Action::await_change())
    })
    .await
    .map_err(|error| ReconcileError(error.to_string()))
}

#[tokio::test(start_paused = true)]
async fn a_controller_keeps_what_it_owns_and_cleans_up() {
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ] {
        let client = client(Config::default());
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let definition = Shutter::crd();
        definitions
            .create(&PostParams::default(), &definition)
            .await
            .unwrap();
        let name = definition.name_any();
        let established = await_condition(definitions, &name, is_crd_established());
        within("the definition is served", established)
            .await
            .unwrap();

        let shutters: Api<Shutter> = Api::default_namespaced(client.clone());
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let failures = Controller::new(shutters.clone(), config.clone())
            .owns(maps.clone(), config)
            .graceful_shutdown_on(async move { stopped.notified().await })
            .run(
                reconcile,
                |_, _, _| Action::requeue(Duration::from_secs(1)),
                Arc::new(client.clone()),
            )
            .filter_map(async |done| match done {
                // The ConfigMap went, and its Shutter was gone before anybody looked.
                Ok(_) | Err(controller::Error::ObjectNotFound(_)) => None,
                Err(failure) => Some(failure),
            })
            .collect::<Vec<_>>();
        let running = tokio::spawn(failures);

        let wanted = Shutter::new("front", ShutterSpec { slats: 3 });
        let created = shutters
            .create(&PostParams::default(), &wanted)
            .await
            .unwrap();
        let has = |slats: u32| {
            move |shutter: Option<&Shutter>| {
                shutter
                    .and_then(|shutter| shutter.status.as_ref())
                    .is_some_and(|s| s.slats == slats)
            }
        };
        within(
            "the status",
            await_condition(shutters.clone(), "front", has(3)),
        )
        .await
        .unwrap();

        // Somebody meddles with the ConfigMap and then deletes it: the controller is woken by what it owns.
        let kept = |map: Option<&ConfigMap>| {
            map.and_then(|map| map.data.as_ref())
                .is_some_and(|data| data["n"] == "3")
        };
        maps.patch("front", &PatchParams::default(), &merge(9))
            .await
            .unwrap();
        within(
            "the ConfigMap is put right",
            await_condition(maps.clone(), "front", kept),
        )
        .await
        .unwrap();
        maps.delete("front", &DeleteParams::default())
            .await
            .unwrap();
        within(
            "the ConfigMap is back",
            await_condition(maps.clone(), "front", kept),
        )
        .await
        .unwrap();

        let more = Patch::Merge(json!({"spec": {"slats": 4}}));
        shutters
            .patch("front", &PatchParams::default(), &more)
            .await
            .unwrap();
        within(
            "the new status",
            await_condition(shutters.clone(), "front", has(4)),
        )
        .await
        .unwrap();
        let held = shutters
            .delete("front", &DeleteParams::default())
            .await
            .unwrap();
        assert!(held.left().is_some(), "a finalizer holds it");
        let uid = created.uid().unwrap();
        within(
            "the Shutter is gone",
            await_condition(shutters, "front", is_deleted(&uid)),
        )
        .await
        .unwrap();
        assert!(maps.get_opt("front").await.unwrap().is_none());

        stop.notify_one();
        let failures = within("the controller stops", running).await.unwrap();
        assert!(failures.is_empty(), "{failures:?}");
    }
}

/// What a store holds: names with their values.
fn held(store: &reflector::Store<ConfigMap>) -> BTreeSet<(String, String)> {
    let state = store.state();
    let mine = state
        .iter()
        .filter(|map| map.name_any() != "kube-root-ca.crt");
    mine.map(|map| (map.name_any(), map.data.as_ref().unwrap()["n"].clone()))
        .collect()
}

fn expected(maps: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    maps.iter().map(owned).collect()
}

#[tokio::test(start_paused = true)]
async fn reflectors_hold_what_the_server_has() {
    for config in [
        // Pages of two: the list takes several.
        watcher::Config::default().page_size(2),
        watcher::Config::default().any_semantic(),
        watcher::Config::default().streaming_lists(),
    ] {
        let maps: Api<ConfigMap> = Api::default_namespaced(client(Config::default()));
        for name in ["a", "b", "c", "d", "e"] {
            maps.create(&PostParams::default(), &map(name, 0))
                .await
                .unwrap();
        }
        let (store, writer) = reflector::store();
        let mut events = pin!(reflector(writer, watcher(maps.clone(), config.clone())));
        let mut until = async |wanted: &[(&str, &str)]| {
            let wanted = expected(wanted);
            while held(&store) != wanted {
                let next = within("an event", events.try_next()).await;
                next.unwrap_or_else(|error| panic!("{config:?}: {error}"));
            }
        };
        until(&[("a", "0"), ("b", "0"), ("c", "0"), ("d", "0"), ("e", "0")]).await;
        maps.delete("a", &DeleteParams::default()).await.unwrap();
        maps.patch("b", &PatchParams::default(), &merge(1))
            .await
            .unwrap();
        maps.create(&PostParams::default(), &map("f", 2))
            .await
            .unwrap();
        until(&[("b", "1"), ("c", "0"), ("d", "0"), ("e", "0"), ("f", "2")]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reflector_that_was_overtaken_starts_again_and_misses_nothing() {
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ] {
        let window = Window {
            events: 4,
            ..Window::default()
        };
        let maps: Api<ConfigMap> = Api::default_namespaced(client(Config {
            window,
            ..Config::default()
        }));
        for name in ["a", "b"] {
            maps.create(&PostParams::default(), &map(name, 0))
                .await
                .unwrap();
        }
        let (store, writer) = reflector::store();
        let events = watcher(maps.clone(), config).default_backoff();
        let mut events = pin!(reflector(writer, events));
        while held(&store).len() < 2 {
            within("an event", events.try_next()).await.unwrap();
        }
        // Nobody reads while more happens than the server remembers, a deletion among it.
        maps.patch("a", &PatchParams::default(), &merge(1))
            .await
            .unwrap();
        within("the first event", events.try_next()).await.unwrap();
        maps.delete("b", &DeleteParams::default()).await.unwrap();
        for value in 2..30 {
            maps.patch("a", &PatchParams::default(), &merge(value))
                .await
                .unwrap();
        }
        let mut expired = 0;
        while held(&store) != expected(&[("a", "29")]) {
            match within("an event", events.next()).await {
                Some(Ok(_)) => {}
                Some(Err(watcher::Error::WatchError(status))) if status.code == 410 => {
                    assert_eq!(status.reason, "Expired");
                    expired += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(expired, 1);
        // It is a watch again.
        maps.create(&PostParams::default(), &map("c", 0))
            .await
            .unwrap();
        while held(&store).len() < 2 {
            within("an event", events.try_next()).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_has_ended_goes_on_where_it_was() {
    let client = client(Config::default());
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    // No more than metadata is sent.
    let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::default_namespaced(client);
    let config = watcher::Config::default().timeout(5);
    let events = watcher(metadata, config).default_backoff();
    let mut events = pin!(events);
    let mut inits = 0;
    for round in 0..4 {
        let name = format!("m{round}");
        maps.create(&PostParams::default(), &map(&name, 0))
            .await
            .unwrap();
        loop {
            match within("an event", events.try_next()).await.unwrap() {
                Some(watcher::Event::Init) => inits += 1,
                Some(watcher::Event::Apply(found)) if found.name_any() == name => break,
                Some(watcher::Event::InitApply(found)) if found.name_any() == name => break,
                Some(_) => {}
                None => panic!("a watcher does not end"),
            }
        }
        // Longer than the server lets the watch run.
        let idle = tokio::time::timeout(Duration::from_secs(12), events.next()).await;
        assert!(
            idle.is_err() || round == 0,
            "nothing happened, but the watcher said {idle:?}"
        );
    }
    assert_eq!(inits, 1, "one list was enough");
}

#[tokio::test(start_paused = true)]
async fn entries_are_written_once_and_conflicts_are_seen() {
    let maps: Api<ConfigMap> = Api::default_namespaced(client(Config::default()));
    let params = PostParams {
        field_manager: Some("entries".into()),
        ..PostParams::default()
    };
    for value in [1, 2] {
        let mut entry = maps
            .entry("counted")
            .await
            .unwrap()
            .or_insert(|| map("counted", 0));
        let data = entry.get_mut().data.as_mut().unwrap();
        data.insert("n".into(), value.to_string());
        entry.commit(&params).await.unwrap();
    }
    let mut mine = maps
        .entry("counted")
        .await
        .unwrap()
        .or_insert(|| map("", 0));
    maps.patch("counted", &PatchParams::default(), &merge(7))
        .await
        .unwrap();
    mine.get_mut().data.as_mut().unwrap().clear();
    let conflict = mine.commit(&params).await.unwrap_err();
    assert!(
        conflict
            .to_string()
            .contains("the object has been modified"),
        "{conflict}"
    );
    let listed = maps
        .list_metadata(&ListParams::default().fields("metadata.name=counted"))
        .await
        .unwrap();
    assert_eq!(listed.items.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_many_who_want_a_lease_one_gets_it() {
    let leases: Api<Lease> = Api::default_namespaced(client(Config::default()));
    let lease = |holder: Option<&str>, transitions: i32| Lease {
        spec: Some(LeaseSpec {
            holder_identity: holder.map(Into::into),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(transitions),
            renew_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
            ..LeaseSpec::default()
        }),
        ..Lease::default()
    };
    let mut free = lease(None, 0);
    free.metadata.name = Some("leader".into());
    let free = leases.create(&PostParams::default(), &free).await.unwrap();
    let tries = (0..16).map(|candidate| {
        let (leases, mut taken) = (leases.clone(), lease(Some(&format!("c{candidate}")), 1));
        taken.metadata = free.metadata.clone();
        tokio::spawn(async move {
            leases
                .replace("leader", &PostParams::default(), &taken)
                .await
        })
    });
    let mut won = Vec::new();
    for tried in tries.collect::<Vec<_>>() {
        match tried.await.unwrap() {
            Ok(lease) => won.push(lease.spec.unwrap().holder_identity.unwrap()),
            Err(kube::Error::Api(status)) => assert_eq!(status.reason, "Conflict"),
            Err(other) => panic!("{other}"),
        }
    }
    let holder = leases.get("leader").await.unwrap().spec.unwrap();
    assert_eq!(won, [holder.holder_identity.unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn events_that_say_the_same_are_counted() {
    let client = client(Config::default());
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let about = maps
        .create(&PostParams::default(), &map("about", 0))
        .await
        .unwrap();
    let recorder = Recorder::new(client.clone(), Reporter::from("shutters"));
    for _ in 0..3 {
        let event = events::Event {
            type_: EventType::Normal,
            reason: "Opened".into(),
            note: Some("the shutter is open".into()),
            action: "Opening".into(),
            secondary: None,
        };
        recorder
            .publish(&event, &about.object_ref(&()))
            .await
            .unwrap();
    }
    let events: Api<Event> = Api::default_namespaced(client);
    let about = ListParams::default().fields("regarding.name=about");
    let listed = events.list(&about).await.unwrap().items;
    assert_eq!(listed.len(), 1);
    assert_eq!(
        listed[0].series.as_ref().map(|series| series.count),
        Some(3)
    );
}
