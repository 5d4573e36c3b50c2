//! Checks that the cost of a write grows no faster than its body: each list and map of each built-in kind is sent through the router with
//! n and 4n items, with every verb.
//!
//! Costs are counted, not timed: allocations, allocated bytes, and accesses to fields of trees ([`steps`]). A check that compares each
//! item with all others costs sixteen times as much for four times as many items; one that sorts costs little more than four times as
//! much.

mod places;

use std::{collections::HashSet, sync::Arc};

use axum::{Router, body::Body};
use http::Request;
use http_body_util::BodyExt;
use mullion_kinds::request::User;
use mullion_schema::{decode, tree::steps};
use mullion_store::{Change, EventType, Key};
use serde_json::{Value, json};
use tower::ServiceExt;

use self::places::{FILLINGS, Filling, Place};
use crate::{ApiServer, Config, http::write, registry::Row};

/// The numbers of items; each is four times the one before.
const COUNTS: [usize; 3] = [12, 48, 192];
/// The largest allowed ratio between the costs of the last two counts: the items grow fourfold, and sorting costs a little more.
const MOST: f64 = 7.0;
/// Differences in allocations, bytes and steps below these are noise: growing tables, other messages for longer lists.
const NOISE: [f64; 3] = [10_000.0, 2_000_000.0, 3_000.0];

/// Fields whose every error shows the whole list, as in kube-apiserver. A constant bounds the output.
const SHOWN_WHOLE: [&str; 2] = [
    "resourcequotas.spec.scopes",
    "storageclasses.storage.k8s.io.allowedTopologies",
];

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// The measured writes: the verb, the path after the collection's, and the media type.
const WRITES: [(&str, &str, &str); 4] = [
    ("POST", "", "application/json"),
    ("PUT", "/big", "application/json"),
    ("PATCH", "/big", STRATEGIC),
    ("PATCH", "/big", APPLY),
];

/// A server, and a runtime of one thread to call it.
struct World {
    server: Arc<ApiServer>,
    router: Router,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new() -> World {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let server = runtime.block_on(async { ApiServer::new(Config::default()) });
        World {
            router: server.router_as(User::administrator()),
            server,
            runtime,
        }
    }

    /// Returns the cost of a request: allocations, allocated bytes, steps.
    fn cost(&self, (method, uri, media): (&str, &str, &str), body: &str) -> [f64; 3] {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", media)
            .body(Body::from(body.to_owned()))
            .expect("the parts are valid");
        let before = steps::taken();
        let counted = allocation_counter::measure(|| {
            self.runtime.block_on(async {
                let answer = self.router.clone().oneshot(request).await;
                let answer = answer.expect("the router answers every request");
                let body = answer.into_body().collect().await;
                drop(body.expect("the answer ends"));
            });
        });
        let steps = steps::taken() - before;
        [counted.count_total, counted.bytes_total, steps].map(|count| count as f64)
    }

    /// Stores an object without validating it.
    fn store(&self, row: &Row, object: &Value) {
        let decoded = decode::json(&row.resource.schema, object.to_string().as_bytes());
        let mut object = decoded.expect("samples fit their types").value;
        row.resource.behaviour.default(&mut object);
        let draft = write::draft(row, EventType::Added, &mut object);
        let key = Key::new(row.resource.namespaced.then_some("default"), "big");
        let create = Change::Create(key, draft);
        let stored = row.collection.commit(create, self.server.now());
        let stored = self.runtime.block_on(stored);
        stored.expect("the store takes everything");
    }

    fn forget(&self, row: &Row) {
        let key = Key::new(row.resource.namespaced.then_some("default"), "big");
        if let Some(old) = row.collection.get(key.as_str()) {
            let delete = Change::Delete(old);
            let gone = row.collection.commit(delete, self.server.now());
            self.runtime.block_on(gone).expect("it is there");
        }
    }

    /// Returns the cost of each write with `count` items at a place.
    fn costs(&self, row: &Row, place: &Place, filling: Filling, count: usize) -> Vec<[f64; 3]> {
        let resource = &row.resource;
        let mut object =
            json!({"apiVersion": resource.api_version(), "kind": &*resource.kind, "metadata": {}});
        place.fill(&resource.schema, &mut object, count, filling);
        let metadata = &mut object["metadata"];
        metadata["name"] = "big".into();
        metadata["namespace"] = resource.namespaced.then_some("default").into();
        metadata["uid"] = Value::Null;
        metadata["resourceVersion"] = Value::Null;
        let sent = object.to_string();
        object["metadata"]["uid"] = "u".into();
        self.store(row, &object);
        let root = match &*resource.group {
            "" => format!("/api/{}", resource.version),
            group => format!("/apis/{group}/{}", resource.version),
        };
        let namespace = if resource.namespaced {
            "/namespaces/default"
        } else {
            ""
        };
        let writes = WRITES.map(|(method, below, media)| {
            let uri = format!(
                "{root}{namespace}/{}{below}?dryRun=All&fieldManager=growth",
                resource.plural
            );
            self.cost((method, &uri, media), &sent)
        });
        self.forget(row);
        writes.into()
    }
}

/// Describes the costs that grow too fast with the number of items.
fn grown(world: &World, row: &Row, place: &Place, counts: [usize; 3]) -> Vec<String> {
    let mut grown = Vec::new();
    for filling in FILLINGS {
        let [low, few, many] = counts.map(|count| world.costs(row, place, filling, count));
        for (write, (method, _, media)) in WRITES.iter().enumerate() {
            for (kind, what) in ["allocations", "bytes", "steps"].iter().enumerate() {
                let costs = [low[write][kind], few[write][kind], many[write][kind]];
                let [before, last] = [costs[1] - costs[0], costs[2] - costs[1]];
                if last > NOISE[kind] && last > MOST * before.max(1.0) {
                    let (kind, place) = (row.resource.qualified(), place.text());
                    grown.push(format!(
                        "{kind}{place}, {filling:?}, {method} {media}: {what} are {costs:?} for {counts:?} items"
                    ));
                }
            }
        }
    }
    grown
}

/// Checks every second place, beginning at `rest`, so that two threads share the work. `GROWTH=pods.spec` checks these places only.
fn all_grown(rest: usize) -> Vec<String> {
    let world = World::new();
    let table = world.server.registry().table();
    let only = std::env::var("GROWTH").unwrap_or_default();
    let (mut seen, mut found, mut number) = (HashSet::new(), Vec::new(), 0);
    for row in table.rows() {
        let rules = &row.resource.rules;
        if rules.transient || rules.read_only {
            continue;
        }
        let places = Place::all(&row.resource.schema, &mut seen);
        let name = |place: &Place| format!("{}{}", row.resource.qualified(), place.text());
        let mut places = places
            .iter()
            .filter(|_| {
                number += 1;
                number % 2 == rest
            })
            .filter(|place| name(place).contains(&only))
            .filter(|place| !SHOWN_WHOLE.contains(&&*name(place)))
            .peekable();
        // A first request creates what is cached for each kind, so that it is not measured.
        if let Some(first) = places.peek() {
            world.costs(row, first, Filling::Equal, 1);
        }
        found.extend(places.flat_map(|place| grown(&world, row, place, COUNTS)));
    }
    found
}

#[test]
fn no_write_costs_more_than_its_body_times_its_logarithm() {
    let grown: Vec<String> = std::thread::scope(|scope| {
        let threads = [0, 1].map(|rest| scope.spawn(move || all_grown(rest)));
        let threads = threads.into_iter();
        threads
            .flat_map(|thread| thread.join().expect("no request panics"))
            .collect()
    });
    assert!(grown.is_empty(), "{}:\n{}", grown.len(), grown.join("\n"));
}

/// Tens of thousands of these items once kept the server busy for minutes.
#[test]
fn long_lists_of_owners_and_of_ports_cost_no_more_than_their_items() {
    const LONG: [usize; 3] = [500, 2_000, 8_000];
    let world = World::new();
    let table = world.server.registry().table();
    for (kind, wanted) in [
        ("services", "services.metadata.ownerReferences"),
        ("services", "services.spec.ports"),
    ] {
        let mut rows = table.rows().iter();
        let row = rows.find(|row| row.resource.qualified() == kind);
        let row = row.expect("the kind is served");
        let places = Place::all(&row.resource.schema, &mut HashSet::new());
        let name = |place: &&Place| format!("{kind}{}", place.text()) == wanted;
        let place = places.iter().find(name).expect("the list is driven");
        world.costs(row, place, Filling::Equal, 1);
        let grown = grown(&world, row, place, LONG);
        assert!(grown.is_empty(), "{}", grown.join("\n"));
    }
}

/// This crate and the layers below it.
const LAYERS: [&str; 6] = ["kube-text", "cel", "schema", "store", "kinds", "apiserver"];

/// Returns the lines of the layers' sources, without tests, in which `wrong` finds something, with their file names.
fn lines_of_code(wrong: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let crates = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut folders = LAYERS.map(|layer| crates.join(layer).join("src")).to_vec();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the sources are there") {
            let path = entry.expect("the sources can be listed").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let (code, _) = text
                .split_once("#[cfg(test)]\nmod tests")
                .unwrap_or((&text, ""));
            let lines = wrong(code).into_iter();
            found.extend(lines.map(|line| format!("{}: {line}", path.display())));
        }
    }
    found
}

/// The counts above find checks that compare each item with all earlier ones only if samples reach them; this test searches the sources.
#[test]
fn no_code_looks_through_the_items_before_an_item() {
    let pattern =
        regex::Regex::new(r"\[(\.\.\w*index|index \+ 1\.\.)\]").expect("the pattern is valid");
    let found = lines_of_code(|code| {
        let lines = code.lines().filter(|line| pattern.is_match(line));
        lines.map(str::to_owned).collect()
    });
    assert!(
        found.is_empty(),
        "keep a set of what was seen:\n{}",
        found.join("\n")
    );
}

/// Finds lists that are searched for each item while they grow; comparisons of values are not counted as steps above.
#[test]
fn what_was_seen_is_kept_in_sets() {
    /// Lists that are short whatever the body is: groups, versions and verbs of the server, names in a folder.
    const SHORT: [&str; 4] = ["groups", "names", "verbs", "versions"];
    let list = regex::Regex::new(r"let mut (\w+)(: Vec<[^=]*>)? =[^;]*?(Vec::|vec!|Vec<|: Vec<)");
    let list = list.expect("the pattern is valid");
    let found = lines_of_code(|code| {
        let names = list.captures_iter(code).map(|found| found[1].to_owned());
        let names = names.filter(|name| !SHORT.contains(&name.as_str()));
        let looked_through = names.flat_map(|name| {
            let call = format!(r"\b{name}\s*\.contains\(");
            let call = regex::Regex::new(&call).expect("names are words");
            let lines = code.lines().filter(|line| call.is_match(line));
            lines.map(str::to_owned).collect::<Vec<_>>()
        });
        looked_through.collect()
    });
    assert!(found.is_empty(), "keep a set of what was seen: {found:#?}");
}
