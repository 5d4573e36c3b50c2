//! Lists and watches against a slow model: every state there was, one after the other.
//!
//! Random writes; then a list of any moment shows that moment, a watch from any moment tells what happened since and leads to now, in pieces as
//! well as in one, selectors see objects come and go, pages show one moment, and what is too old is refused.

use std::collections::BTreeMap;

use axum::body::Body;
use http::Method;
use http_body_util::BodyExt;
use mullion_apiserver::Config;
use mullion_store::Window;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::semantics::Cluster;

#[path = "../../../schema/src/choices.rs"]
mod choices;
use choices::Choices;

/// The objects there are, by namespace and name.
type State = BTreeMap<(String, String), Value>;

/// What happened to one object at a revision.
struct Change {
    revision: u64,
    key: (String, String),
    before: Option<Value>,
    after: Option<Value>,
}

/// What a request asks for.
#[derive(Clone, Copy)]
struct Filter<'a> {
    namespace: Option<&'a str>,
    label: Option<&'a str>,
    name: Option<&'a str>,
}

impl Filter<'_> {
    fn random(choices: &mut Choices) -> Filter<'static> {
        let maybe =
            |choices: &mut Choices, names| (choices.below(2) == 0).then(|| choices.of(names));
        Filter {
            namespace: maybe(choices, &["default", "other"]),
            label: maybe(choices, &["1", "2"]),
            name: if choices.below(4) == 0 {
                Some(choices.of(&["a", "b"]))
            } else {
                None
            },
        }
    }

    fn path(&self, query: &str) -> String {
        let place = match self.namespace {
            Some(namespace) => format!("/api/v1/namespaces/{namespace}/configmaps?{query}"),
            None => format!("/api/v1/configmaps?{query}"),
        };
        let label = self
            .label
            .map_or(String::new(), |g| format!("&labelSelector=g%3D{g}"));
        let name = self.name.map_or(String::new(), |name| {
            format!("&fieldSelector=metadata.name%3D{name}")
        });
        format!("{place}{label}{name}")
    }

    fn takes(&self, key: &(String, String), object: &Value) -> bool {
        self.namespace.is_none_or(|namespace| key.0 == namespace)
            && self.name.is_none_or(|name| key.1 == name)
            && self
                .label
                .is_none_or(|g| object["metadata"]["labels"]["g"] == g)
    }

    fn has_selector(&self) -> bool {
        self.label.is_some() || self.name.is_some()
    }

    fn of(&self, state: &State) -> Vec<Value> {
        let taken = state.iter().filter(|(key, object)| self.takes(key, object));
        taken.map(|(_, object)| object.clone()).collect()
    }
}

struct World {
    cluster: Cluster,
    /// Each state with the revision of the list that shows it.
    states: Vec<(u64, State)>,
    changes: Vec<Change>,
}

fn revision_of(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str();
    text.and_then(|text| text.parse().ok())
        .expect("objects and lists have a revision")
}

fn without_kind(mut object: Value) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    object
}

impl World {
    async fn new(window: usize) -> World {
        let cluster = Cluster::new(Config {
            window: Window {
                events: window,
                seconds: i64::MAX,
                ..Window::default()
            },
            ..Config::default()
        });
        let other = json!({"metadata": {"name": "other"}}).to_string();
        cluster
            .json(Method::POST, "/api/v1/namespaces", &[], other)
            .await;
        let mut world = World {
            cluster,
            states: Vec::new(),
            changes: Vec::new(),
        };
        let (code, list) = world.get("/api/v1/configmaps").await;
        assert_eq!(code, 200, "{list}");
        let items = list["items"].as_array().expect("a list has items");
        let keyed = items.iter().map(|item| (key_of(item), item.clone()));
        world.states.push((revision_of(&list), keyed.collect()));
        world
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.cluster
            .json(Method::GET, path, &[], Body::empty())
            .await
    }

    fn now(&self) -> &(u64, State) {
        self.states.last().expect("there is a first state")
    }

    /// One write by anybody.
    async fn write(&mut self, choices: &mut Choices) {
        let key = (
            choices.of(&["default", "other"]).to_owned(),
            choices.of(&["a", "b", "c", "d"]).to_owned(),
        );
        let (namespace, name) = &key;
        let place = format!("/api/v1/namespaces/{namespace}/configmaps");
        let one = format!("{place}/{name}");
        let before = self.now().1.get(&key).cloned();
        let label = choices.of(&["1", "2"]);
        let data = choices.below(1000).to_string();
        let content =
            json!({"metadata": {"name": name, "labels": {"g": label}}, "data": {"n": data}});
        let merge = [("content-type", "application/merge-patch+json")];
        let (code, answer) = match (&before, choices.below(3)) {
            (None, _) => {
                let body = content.to_string();
                self.cluster.json(Method::POST, &place, &[], body).await
            }
            (Some(_), 0) => {
                self.cluster
                    .json(Method::DELETE, &one, &[], Body::empty())
                    .await
            }
            (Some(_), 1) => {
                let body = content.to_string();
                self.cluster.json(Method::PUT, &one, &[], body).await
            }
            (Some(_), _) => {
                let body = content.to_string();
                self.cluster.json(Method::PATCH, &one, &merge, body).await
            }
        };
        assert!(code < 300, "{answer}");
        let (_, list) = self.get("/api/v1/configmaps?limit=1").await;
        let revision = revision_of(&list);
        let mut state = self.now().1.clone();
        let after = match answer["kind"].as_str() {
            Some("Status") => None,
            _ => Some(without_kind(answer)),
        };
        match &after {
            Some(object) => state.insert(key.clone(), object.clone()),
            None => state.remove(&key),
        };
        if before != after {
            let revision = after.as_ref().map_or(revision, revision_of);
            self.changes.push(Change {
                revision,
                key,
                before,
                after,
            });
        }
        self.states.push((revision, state));
    }

    /// What a watch from a revision must tell.
    fn events_since(&self, revision: u64, filter: Filter<'_>) -> Vec<(String, Value)> {
        let mut events = Vec::new();
        for change in self
            .changes
            .iter()
            .filter(|change| change.revision > revision)
        {
            let seen = |object: &Option<Value>| {
                object
                    .clone()
                    .filter(|object| filter.takes(&change.key, object))
            };
            // What goes, or leaves the selector, is told as it was, at the revision at which it went.
            let gone = |mut object: Value| {
                object["metadata"]["resourceVersion"] = change.revision.to_string().into();
                ("DELETED".to_owned(), object)
            };
            events.extend(match (seen(&change.before), seen(&change.after)) {
                (None, Some(object)) => Some(("ADDED".to_owned(), object)),
                (Some(_), Some(object)) => Some(("MODIFIED".to_owned(), object)),
                (Some(object), None) => Some(gone(object)),
                (None, None) => None,
            });
        }
        events
    }

    /// The events of a watch that ends by itself.
    async fn watch(&self, filter: Filter<'_>, query: &str) -> Vec<(String, Value)> {
        let path = filter.path(&format!("watch=1&timeoutSeconds=1&{query}"));
        let response = self
            .cluster
            .send(Method::GET, &path, &[], Body::empty())
            .await;
        assert_eq!(response.status(), 200, "{path}");
        let bytes = response
            .into_body()
            .collect()
            .await
            .expect("the watch ends")
            .to_bytes();
        let lines = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let events = lines.map(|line| -> (String, Value) {
            let event: Value = serde_json::from_slice(line).expect("each line is an event");
            let kind = event["type"]
                .as_str()
                .expect("events have a type")
                .to_owned();
            (kind, without_kind(event["object"].clone()))
        });
        events.collect()
    }

    async fn a_list_of_any_moment_shows_that_moment(
        &self,
        choices: &mut Choices,
    ) -> Result<(), TestCaseError> {
        let filter = Filter::random(choices);
        let (revision, state) = &self.states[choices.below(self.states.len() as u64) as usize];
        let query = format!("resourceVersion={revision}&resourceVersionMatch=Exact");
        let (code, list) = self.get(&filter.path(&query)).await;
        prop_assert_eq!(code, 200, "{}", list);
        prop_assert_eq!(revision_of(&list), *revision);
        let items: Vec<Value> = list["items"].as_array().cloned().unwrap_or_default();
        prop_assert_eq!(items, filter.of(state));
        Ok(())
    }

    async fn a_watch_from_any_moment_leads_to_now(
        &self,
        choices: &mut Choices,
    ) -> Result<(), TestCaseError> {
        let filter = Filter::random(choices);
        let (revision, state) = &self.states[choices.below(self.states.len() as u64) as usize];
        let events = self
            .watch(filter, &format!("resourceVersion={revision}"))
            .await;
        let expected = self.events_since(*revision, filter);
        prop_assert_eq!(&events, &expected);
        let mut followed: State = state
            .iter()
            .filter(|(key, object)| filter.takes(key, object))
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        for (kind, object) in &events {
            let key = key_of(object);
            if kind == "DELETED" {
                followed.remove(&key);
            } else {
                followed.insert(key, object.clone());
            }
        }
        let now: Vec<Value> = followed.into_values().collect();
        prop_assert_eq!(now, filter.of(&self.now().1));
        // A client that lost its connection goes on where it was.
        if !events.is_empty() {
            let (_, last) = &events[choices.below(events.len() as u64) as usize];
            let resumed = self
                .watch(filter, &format!("resourceVersion={}", revision_of(last)))
                .await;
            prop_assert_eq!(resumed, self.events_since(revision_of(last), filter));
        }
        Ok(())
    }

    async fn a_watch_may_begin_with_what_there_is(
        &self,
        choices: &mut Choices,
    ) -> Result<(), TestCaseError> {
        let filter = Filter::random(choices);
        let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=";
        let mut events = self.watch(filter, query).await;
        let end = events.iter().position(|(_, object)| {
            object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
        });
        let Some(end) = end else {
            return Err(TestCaseError::fail("the initial events have no end"));
        };
        prop_assert_eq!(revision_of(&events[end].1), self.now().0);
        prop_assert!(events[end..].iter().all(|(kind, _)| kind == "BOOKMARK"));
        events.truncate(end);
        prop_assert!(events.iter().all(|(kind, _)| kind == "ADDED"));
        let mut objects: Vec<Value> = events.into_iter().map(|(_, object)| object).collect();
        objects.sort_by_key(key_of);
        prop_assert_eq!(objects, filter.of(&self.now().1));
        Ok(())
    }

    async fn pages_show_one_moment(&mut self, choices: &mut Choices) -> Result<(), TestCaseError> {
        let filter = Filter::random(choices);
        let (revision, state) = self.now().clone();
        let expected = filter.of(&state);
        let limit = 1 + choices.below(3) as usize;
        let mut query = format!("limit={limit}");
        let mut seen: Vec<Value> = Vec::new();
        loop {
            let (code, page) = self.get(&filter.path(&query)).await;
            prop_assert_eq!(code, 200, "{}", page);
            prop_assert_eq!(revision_of(&page), revision);
            let items = page["items"].as_array().cloned().unwrap_or_default();
            prop_assert!(items.len() <= limit);
            seen.extend(items);
            let left = page["metadata"].get("remainingItemCount").cloned();
            let Some(token) = page["metadata"]["continue"].as_str() else {
                break;
            };
            if !filter.has_selector() {
                prop_assert_eq!(left, Some(json!(expected.len() - seen.len())));
            }
            query = format!("limit={limit}&continue={token}");
            // The collection moves on between the pages.
            self.write(choices).await;
        }
        prop_assert_eq!(seen, expected);
        Ok(())
    }
}

fn key_of(object: &Value) -> (String, String) {
    let text = |field: &str| {
        object["metadata"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (text("namespace"), text("name"))
}

/// Runs a future to its end under paused time.
fn paused<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime can be made");
    runtime.block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lists_and_watches_are_as_the_slow_model_has_them(seed: u64) {
        paused(async {
            let mut choices = Choices(seed);
            let mut world = World::new(10_000).await;
            for _ in 0..30 {
                world.write(&mut choices).await;
                world.a_list_of_any_moment_shows_that_moment(&mut choices).await?;
                if choices.below(4) == 0 {
                    world.a_watch_from_any_moment_leads_to_now(&mut choices).await?;
                    world.a_watch_may_begin_with_what_there_is(&mut choices).await?;
                    world.pages_show_one_moment(&mut choices).await?;
                }
            }
            Ok::<(), TestCaseError>(())
        })?;
    }

    #[test]
    fn what_is_too_old_is_refused_and_nothing_is_left_out_of_the_rest(seed: u64) {
        paused(async {
            let mut choices = Choices(seed);
            let mut world = World::new(8).await;
            for _ in 0..30 {
                world.write(&mut choices).await;
            }
            let filter = Filter { namespace: None, label: None, name: None };
            let mut refused = 0;
            for (revision, state) in &world.states {
                let expected = world.events_since(*revision, filter);
                let events = world.watch(filter, &format!("resourceVersion={revision}")).await;
                let exact = filter.path(&format!("resourceVersion={revision}&resourceVersionMatch=Exact"));
                let (code, list) = world.get(&exact).await;
                match events.as_slice() {
                    [(kind, status)] if kind == "ERROR" => {
                        refused += 1;
                        prop_assert_eq!(&status["code"], 410);
                        prop_assert_eq!(&status["reason"], "Expired");
                        prop_assert!(expected.len() > 4, "{} is not old", revision);
                    }
                    _ => prop_assert_eq!(events, expected),
                }
                match code {
                    410 => {
                        prop_assert_eq!(&list["reason"], "Expired");
                        prop_assert!(world.events_since(*revision, filter).len() > 4);
                    }
                    _ => prop_assert_eq!(list["items"].as_array().cloned().unwrap_or_default(), filter.of(state)),
                }
            }
            prop_assert!(refused > 0, "nothing was too old");
            Ok::<(), TestCaseError>(())
        })?;
    }
}
