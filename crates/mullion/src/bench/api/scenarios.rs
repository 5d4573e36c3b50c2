//! Defines the scenarios: each starts a server, prepares what it needs, and measures one thing.
//!
//! Requests are built before the clock starts. Clients share one list of work, so that all of them are busy until the end.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::{
    LoadTime, LoadTimer, Measured,
    client::{Connection, Request},
    objects::{self, CONFIG_MAPS, PODS},
    server::Server,
};
use crate::failure::Failure;

/// The number of objects of each kind whose memory is measured.
const STORED: usize = 35_000;
/// The number of objects that are created, listed and watched.
const OBJECTS: usize = 10_000;
/// The number of objects that a restarted server loads: half of them ConfigMaps, half Pods.
const FOUND: usize = 100_000;
/// The number of creations from which a rate is computed.
const CREATIONS: usize = 30_000;
/// How often the list is read.
const LISTS: usize = 21;
const WATCHERS: usize = 100;
/// The rate of the steady load in writes a second; the next constant is its duration.
const STEADY_RATE: usize = 1_000;
const STEADY_SECONDS: usize = 10;

/// Measures the time from the first certificate to the first answer over TLS in this process; loading the program is not included.
pub(super) async fn start(disk: Option<&Path>) -> Result<Measured, Failure> {
    let began = LoadTimer::now();
    let server = Server::start(disk).await?;
    let mut connection = server.connect().await?;
    connection
        .expect(&Request::get("/api/v1/namespaces"), 200)
        .await?;
    let measured = Measured::new("start", 1, 1, began.took());
    server.stop().await?;
    Ok(measured)
}

/// Measures the time from opening a directory with many objects to the first answer over TLS.
pub(super) async fn restart(disk: &Path) -> Result<Measured, Failure> {
    let server = Server::with_account(Some(disk)).await?;
    let connections = server.connect_all(64).await?;
    let work = |index| match index % 2 {
        0 => Arc::from([objects::config_map(index)]),
        _ => Arc::from([objects::pod(index)]),
    };
    spread_over(connections, FOUND, work).await?;
    let directory = server.keep().await?;
    let began = LoadTimer::now();
    let server = Server::open(directory).await?;
    let mut connection = server.connect().await?;
    connection
        .expect(&Request::get("/api/v1/namespaces"), 200)
        .await?;
    let measured = Measured::new("restart", 1, FOUND, began.took());
    server.stop().await?;
    Ok(measured)
}

/// Measures the memory of a server with many objects.
pub(super) async fn memory(disk: Option<&Path>) -> Result<Measured, Failure> {
    let server = Server::with_account(disk).await?;
    let connections = server.connect_all(16).await?;
    // Requests are built when they are sent, so that their memory is not counted with the server's.
    let work = |index| {
        if index < STORED {
            Arc::from([objects::config_map(index)])
        } else {
            Arc::from([objects::pod(index)])
        }
    };
    let (took, _) = spread_over(connections, 2 * STORED, work).await?;
    let measured = Measured::new("memory", 16, 2 * STORED, took);
    server.stop().await?;
    Ok(measured)
}

pub(super) async fn configmaps(disk: Option<&Path>, clients: usize) -> Result<Measured, Failure> {
    let work = |index| vec![objects::config_map(index)];
    create(disk, &format!("configmaps-{clients}"), clients, work).await
}

pub(super) async fn pods(disk: Option<&Path>, clients: usize) -> Result<Measured, Failure> {
    let work = |index| vec![objects::pod(index)];
    create(disk, &format!("pods-{clients}"), clients, work).await
}

/// Measures three writes for each pod; a latency is that of all three together.
pub(super) async fn schedule(disk: Option<&Path>, clients: usize) -> Result<Measured, Failure> {
    let work = |index| {
        vec![
            objects::pod(index),
            objects::binding(index),
            objects::event(index),
        ]
    };
    create(disk, &format!("schedule-{clients}"), clients, work).await
}

async fn create(
    disk: Option<&Path>,
    scenario: &str,
    clients: usize,
    work: impl Fn(usize) -> Vec<Request>,
) -> Result<Measured, Failure> {
    let server = Server::with_account(disk).await?;
    let connections = server.connect_all(clients).await?;
    let (took, latencies) = spread_over(connections, CREATIONS, prepared(CREATIONS, work)).await?;
    let measured = Measured::new(scenario, clients, CREATIONS, took).with_latencies(latencies);
    server.stop().await?;
    Ok(measured)
}

/// Measures how long one client takes to read the whole list, several times.
pub(super) async fn list(disk: Option<&Path>) -> Result<Measured, Failure> {
    let server = Server::with_account(disk).await?;
    let connections = server.connect_all(16).await?;
    spread_over(connections, OBJECTS, |index| {
        Arc::from([objects::pod(index)])
    })
    .await?;
    let mut connection = server.connect().await?;
    let request = Request::get(PODS);
    let mut latencies = Vec::with_capacity(LISTS);
    let mut bytes = 0;
    let began = LoadTimer::now();
    for _ in 0..LISTS {
        let began = Instant::now();
        bytes = connection.expect(&request, 200).await?.length;
        latencies.push(milliseconds(began));
    }
    let measured = Measured::new("list", 1, LISTS, began.took())
        .with_latencies(latencies)
        .with("bytes", bytes);
    server.stop().await?;
    Ok(measured)
}

/// Measures the time until every watcher has received every event.
pub(super) async fn fanout(disk: Option<&Path>) -> Result<Measured, Failure> {
    let server = Server::with_account(disk).await?;
    let watchers = watch(&server, OBJECTS).await?;
    let work = prepared(OBJECTS, |index| vec![objects::config_map(index)]);
    let connections = server.connect_all(16).await?;
    let began = LoadTimer::now();
    let (created, _) = spread_over(connections, OBJECTS, work).await?;
    finish(watchers).await?;
    let measured = Measured::new("fanout", WATCHERS, WATCHERS * OBJECTS, began.took())
        .with("creations_seconds", created.seconds);
    server.stop().await?;
    Ok(measured)
}

/// Measures single writes at a fixed rate; each latency starts when the write is sent.
pub(super) async fn steady(disk: Option<&Path>) -> Result<Measured, Failure> {
    const CLIENTS: usize = 16;
    let server = Server::with_account(disk).await?;
    let writes = STEADY_RATE * STEADY_SECONDS;
    let watchers = watch(&server, writes).await?;
    let connections = server.connect_all(CLIENTS).await?;
    let mut clients = JoinSet::new();
    let (load, began) = (LoadTimer::now(), tokio::time::Instant::now());
    for (client, mut connection) in connections.into_iter().enumerate() {
        let requests: Vec<(usize, Request)> = (client..writes)
            .step_by(CLIENTS)
            .map(|index| (index, objects::config_map(index)))
            .collect();
        clients.spawn(async move {
            let mut latencies = Vec::with_capacity(requests.len());
            for (index, request) in &requests {
                let due = Duration::from_secs(1) * *index as u32 / STEADY_RATE as u32;
                // Each write is due by one common start, so a slow answer does not lower the rate of the
                // writes after it.
                tokio::time::sleep_until(began + due).await;
                let sent = Instant::now();
                connection.expect(request, 201).await?;
                latencies.push(milliseconds(sent));
            }
            Ok(latencies)
        });
    }
    let latencies = finish(clients).await?.concat();
    let took = load.took();
    finish(watchers).await?;
    let measured = Measured::new("steady", CLIENTS, writes, took).with_latencies(latencies);
    server.stop().await?;
    Ok(measured)
}

/// Starts watchers of ConfigMaps, each of which ends after `events` events.
async fn watch(server: &Server, events: usize) -> Result<JoinSet<Result<(), Failure>>, Failure> {
    let request = Request::get(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=1"));
    let mut watchers = JoinSet::new();
    for mut connection in server.connect_all(WATCHERS).await? {
        connection.watch(&request).await?;
        watchers.spawn(async move { connection.events(events).await });
    }
    Ok(watchers)
}

type Prepared = Box<dyn Fn(usize) -> Arc<[Request]> + Send + Sync>;

/// Builds all requests in advance, before the clock starts.
fn prepared(count: usize, work: impl Fn(usize) -> Vec<Request>) -> Prepared {
    let groups: Vec<Arc<[Request]>> = (0..count).map(|index| work(index).into()).collect();
    Box::new(move |index| groups[index].clone())
}

/// Sends groups of requests, each group in order over one connection. Returns the time of the whole load, and the duration of each group in
/// milliseconds.
async fn spread_over(
    connections: Vec<Connection>,
    count: usize,
    work: impl Fn(usize) -> Arc<[Request]> + Send + Sync + 'static,
) -> Result<(LoadTime, Vec<f64>), Failure> {
    let shared = Arc::new((work, AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    let began = LoadTimer::now();
    for mut connection in connections {
        let shared = shared.clone();
        clients.spawn(async move {
            let (work, next) = &*shared;
            let mut latencies = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return Ok(latencies);
                }
                let requests = work(index);
                let began = Instant::now();
                for request in &*requests {
                    connection.expect(request, 201).await?;
                }
                latencies.push(milliseconds(began));
            }
        });
    }
    let latencies = finish(clients).await?.concat();
    Ok((began.took(), latencies))
}

/// Waits for all tasks, and returns their results or the first failure.
async fn finish<T: 'static>(mut tasks: JoinSet<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let mut done = Vec::with_capacity(tasks.len());
    while let Some(task) = tasks.join_next().await {
        let task =
            task.map_err(|error| Failure::run(format!("a client of the load ended: {error}")))?;
        done.push(task?);
    }
    Ok(done)
}

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
