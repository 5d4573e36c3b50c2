//! Runs the probe pods of a measurement and reads their results.
//!
//! Invariant: once creation of the namespace was requested, it is deleted before this returns, whatever happens, Ctrl-C included. A process
//! that is killed leaves the namespace behind; its pods end by themselves.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    Answer, Hosts, Probes, Target, TrafficPath,
    manifests::{self, Places},
    outcome::{ContainerOutcome, address, curl_error, ended, started_not, understood},
    paths_to_test,
};
use crate::{
    doctor::{
        request::{self, RequestFailure},
        snapshot::name_of,
    },
    failure::Failure,
    out,
};

/// How long the pods may take to start (including pulling their images), and then to make their calls.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
/// The interval at which the pods are read.
const LOOK: Duration = Duration::from_secs(1);
/// How long a new namespace may take to get the service account of its pods.
const ACCOUNT_PATIENCE: Duration = Duration::from_secs(10);
/// Tests every path between hosts. `stop` ends the measurement early.
///
/// # Errors
/// The measurement was stopped, the cluster does not answer, or the namespace cannot be deleted.
pub(in super::super) async fn measure(
    client: &Client,
    hosts: &Hosts,
    image: &str,
    stop: impl Future<Output = ()>,
) -> Result<Probes, Failure> {
    let mut stop = pin!(stop);
    // The first poll registers for signals, so none is lost before the next poll.
    if futures::poll!(stop.as_mut()).is_ready() {
        return Err(stopped());
    }
    let moment = Timestamp::now().as_nanosecond() & 0xffff_ffff;
    let home = format!("mullion-network-{moment:08x}");
    let measurement = Measurement {
        client,
        hosts,
        image,
        home: &home,
    };
    let namespace = manifests::namespace(&home);
    match measurement.create("/api/v1/namespaces", &namespace).await {
        Err(refused) if refused.code == 403 => {
            Ok(Probes::None("create namespaces and pods".to_owned()))
        }
        Err(refused) if refused.code != 0 => Err(Failure::run(format!(
            "the namespace {home} for the probes cannot be created: {}",
            refused.why
        ))),
        // Without an answer (code 0) the namespace may have been created all the same, so this arm also
        // removes it then.
        made => {
            out::aside(&format!(
                "Probe pods run in the namespace {home}, which is deleted at the end. This may take minutes; Ctrl-C stops it."
            ));
            let tried = async {
                made?;
                measurement.tried().await
            };
            let tried = tokio::select! {
                tried = tried => tried.map_err(|refused| {
                    Failure::run(format!("the probes in the namespace {home} were broken off: {}", refused.why))
                }),
                () = stop => Err(stopped()),
            };
            measurement.remove().await?;
            tried.map(Probes::Tried)
        }
    }
}

fn stopped() -> Failure {
    Failure::run("stopped before all probes had answered")
}

struct Measurement<'a> {
    client: &'a Client,
    hosts: &'a Hosts,
    image: &'a str,
    /// The namespace of the measurement.
    home: &'a str,
}

impl Measurement<'_> {
    fn path(&self, plural: &str) -> String {
        format!("/api/v1/namespaces/{}/{plural}", self.home)
    }

    async fn create(&self, path: &str, object: &Value) -> Result<Value, RequestFailure> {
        request::send(self.client, Method::POST, path, Some(object)).await
    }

    /// Creates a pod; retries while a new namespace does not have the service account yet.
    async fn create_pod(&self, pod: &Value) -> Result<(), RequestFailure> {
        let deadline = Instant::now() + ACCOUNT_PATIENCE;
        loop {
            match self.create(&self.path("pods"), pod).await {
                Err(refused)
                    if refused.why.contains("error looking up service account")
                        && Instant::now() < deadline =>
                {
                    tokio::time::sleep(LOOK / 10).await;
                }
                created => return created.map(|_| ()),
            }
        }
    }

    async fn remove(&self) -> Result<(), Failure> {
        let path = format!("/api/v1/namespaces/{}", self.home);
        match request::send(self.client, Method::DELETE, &path, None).await {
            Err(refused) if refused.code != 404 => Err(Failure::run(format!(
                "the namespace {} is left: {}",
                self.home, refused.why
            ))
            .hint(format!("kubectl delete namespace {}", self.home))),
            _ => Ok(()),
        }
    }

    async fn tried(&self) -> Result<BTreeMap<TrafficPath, Answer>, RequestFailure> {
        let mut places = Places::default();
        for &os in self.hosts.keys() {
            let service = manifests::service(os);
            let made = self.create(&self.path("services"), &service).await?;
            let spec = &made["spec"];
            let address = spec["clusterIP"].as_str().unwrap_or_default().to_owned();
            let port = spec["ports"][0]["nodePort"].as_u64().unwrap_or_default();
            places.services.insert(os.to_string(), (address, port));
        }
        let servers = manifests::servers(self.hosts, self.image);
        let absent = self.start_servers(&servers, &mut places).await?;
        let mut answers = BTreeMap::new();
        let mut open = Vec::new();
        for way in paths_to_test(self.hosts) {
            match unanswered(&way, &places, &absent) {
                Some(why) => drop(answers.insert(way, Answer::Untried(why))),
                None => open.push(way),
            }
        }
        // Only now: the commands of the clients name the addresses that the servers have got.
        let clients = manifests::clients(self.hosts, &open, &places, self.image, self.home);
        answers.extend(self.ask(&clients, &open).await?);
        Ok(answers)
    }

    /// Starts the server pods, writes their addresses into `places`, and returns why the missing ones do not run.
    async fn start_servers(
        &self,
        servers: &[Value],
        places: &mut Places,
    ) -> Result<BTreeMap<String, String>, RequestFailure> {
        let mut absent = BTreeMap::new();
        for pod in servers {
            match self.create_pod(pod).await {
                // A policy may forbid the pod.
                Err(refused) if refused.code != 0 => {
                    let why = format!("is refused: {}", refused.why);
                    absent.insert(name_of(pod).to_owned(), why);
                }
                created => created?,
            }
        }
        let is_settled = |pod: &Value| address(pod).is_some() || ended(pod, "answer").is_some();
        let pods = self.pods_when(is_settled).await?;
        for pod in servers {
            let name = name_of(pod);
            if absent.contains_key(name) {
                continue;
            }
            let now = pods.iter().find(|own| name_of(own) == name);
            match now.and_then(address) {
                Some(address) => drop(places.pods.insert(name.to_owned(), address.to_owned())),
                None => drop(absent.insert(name.to_owned(), started_not(now, "answer"))),
            }
        }
        Ok(absent)
    }

    /// Starts the client pods, and returns the answer on each path.
    async fn ask(
        &self,
        clients: &[Value],
        ways: &[TrafficPath],
    ) -> Result<BTreeMap<TrafficPath, Answer>, RequestFailure> {
        // The API server refuses a pod without containers, and nothing is asked from there.
        let is_asked = |pod: &&Value| {
            pod["spec"]["containers"]
                .as_array()
                .is_some_and(|own| !own.is_empty())
        };
        let mut refused = BTreeMap::new();
        for pod in clients.iter().filter(is_asked) {
            // A policy may forbid one of the pods, such as a HostProcess pod.
            if let Err(why) = self.create_pod(pod).await {
                match why.code {
                    0 => return Err(why),
                    _ => drop(refused.insert(name_of(pod).to_owned(), why.why)),
                }
            }
        }
        let is_settled = |pod: &Value| {
            let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
            let mut names = containers.filter_map(|own| own["name"].as_str());
            // The server pods are listed too, and run until they are deleted.
            pod["metadata"]["labels"]["answers"].is_string()
                || names.all(|name| ended(pod, name).is_some())
        };
        let pods = self.pods_when(is_settled).await?;
        let mut answers = BTreeMap::new();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for way in ways {
            let name = manifests::client_name(way.os, way.source);
            // Counted as [`manifests::clients`] numbers the containers: per pod, in the order of the paths.
            let count = counts.entry(name.clone()).or_default();
            let container = manifests::container_name(*count);
            *count += 1;
            let pod = pods.iter().find(|own| name_of(own) == name);
            let answer = match (refused.get(&name), pod) {
                (Some(why), _) => {
                    Answer::Untried(format!("the pod {name}, which is refused: {why}"))
                }
                (None, pod) => match pod.and_then(|pod| ended(pod, &container)) {
                    Some(ContainerOutcome::Well) => self.read(way, &name, &container).await?,
                    Some(ContainerOutcome::Badly(code)) => Answer::Failed(curl_error(code)),
                    Some(ContainerOutcome::Never(_)) | None => {
                        let why = started_not(pod, &container);
                        Answer::Untried(format!("the pod {name}, which {why}"))
                    }
                },
            };
            answers.insert(*way, answer);
        }
        Ok(answers)
    }

    /// Reads from a container's log which pod answered, and how long it took.
    async fn read(
        &self,
        way: &TrafficPath,
        pod: &str,
        container: &str,
    ) -> Result<Answer, RequestFailure> {
        let path = format!("{}/{pod}/log?container={container}", self.path("pods"));
        match request::text(self.client, Method::GET, &path, None).await {
            Ok(log) => Ok(understood(way, &log)),
            Err(refused) if refused.code != 0 => Ok(Answer::Untried(format!(
                "the log of the pod {pod}: {}",
                refused.why
            ))),
            Err(refused) => Err(refused),
        }
    }

    /// Returns the pods once all of them are settled, or as they are when the time is up.
    async fn pods_when(
        &self,
        is_settled: impl Fn(&Value) -> bool,
    ) -> Result<Vec<Value>, RequestFailure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut list =
                request::send(self.client, Method::GET, &self.path("pods"), None).await?;
            let pods = match list["items"].take() {
                Value::Array(pods) => pods,
                _ => Vec::new(),
            };
            if pods.iter().all(&is_settled) || Instant::now() >= deadline {
                return Ok(pods);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Returns why no pod can answer on a path; `None` if one can.
fn unanswered(
    way: &TrafficPath,
    places: &Places,
    absent: &BTreeMap<String, String>,
) -> Option<String> {
    let wanted = way.answers();
    let is_there = places.pods.keys().any(|name| match way.target {
        Target::Pod { .. } => *name == wanted,
        _ => name.starts_with(&wanted),
    });
    let (name, why) = absent.iter().find(|(name, _)| name.starts_with(&wanted))?;
    (!is_there && !wanted.is_empty()).then(|| format!("the pod {name}, which {why}"))
}
