//! Tests measurements with an API server in this process; the tests act as its kubelets and answer as real ones would.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use http::Method;
use kube::Client;
use mullion_api::ami::Os;
use mullion_apiserver::{
    ApiServer, Config,
    admission::User,
    logs::{Container, Line, Log, LogSource, Reading},
};
use serde_json::{Value, json};

use super::{Answer, Host, Hosts, Probes, TrafficPath, paths_to_test, probe::measure};
use crate::doctor::request::send;

fn hosts_of(linux: usize, windows: usize) -> Hosts {
    let own = |os: Os, count: usize| {
        let hosts = (1..=count).map(|number| Host {
            host_name: format!("{os}-host-{number}"),
            address: Some(format!("{os}-host-{number}.example.com")),
        });
        (os, hosts.collect::<Vec<_>>())
    };
    let all = [own(Os::Linux, linux), own(Os::Windows, windows)];
    all.into_iter().filter(|(_, own)| !own.is_empty()).collect()
}

/// Returns all paths between two nodes of each operating system, all open.
pub(in super::super) fn all_open() -> BTreeMap<TrafficPath, Answer> {
    let ways = paths_to_test(&hosts_of(2, 2)).into_iter();
    ways.map(|way| (way, Answer::Answered(0.004))).collect()
}

/// Decides the outcome of a call, from the name of the client pod and the call.
type Network = fn(&str, &str) -> Outcome;

enum Outcome {
    Says(String),
    Exits(i64),
}

/// The logs of containers, by `pod/container`.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<BTreeMap<String, String>>>);

impl LogSource for Logs {
    fn read<'a>(&'a self, container: Container<'a>) -> Reading<'a> {
        let pod = container.pod["metadata"]["name"]
            .as_str()
            .unwrap_or_default();
        let key = format!("{pod}/{}", container.name);
        let text = self.0.lock().expect("no panic").get(&key).cloned();
        Box::pin(async move {
            Some(Log {
                written: Vec::from_iter(text.map(|text| Line {
                    time: jiff::Timestamp::UNIX_EPOCH,
                    text,
                })),
                coming: None,
            })
        })
    }
}

/// Plays the kubelets of a cluster without real nodes.
#[derive(Clone)]
struct Kubelets {
    client: Client,
    logs: Logs,
    network: Network,
    /// The name of the pod that never starts.
    stuck: &'static str,
}

fn start(network: Network, stuck: &'static str) -> Kubelets {
    let logs = Logs::default();
    let server = ApiServer::new(Config {
        logs: Some(Arc::new(logs.clone())),
        disabled_admission: "ServiceAccount".parse().expect("a plugin"),
        ..Config::default()
    });
    let user = User {
        name: "doctor".into(),
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        ..User::default()
    };
    Kubelets {
        client: Client::new(server.router_as(user), "default"),
        logs,
        network,
        stuck,
    }
}

impl Kubelets {
    async fn get(&self, path: &str) -> Vec<Value> {
        let mut list = send(&self.client, Method::GET, path, None)
            .await
            .expect("a list");
        match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        }
    }

    /// Sets the status of every pod that has none, in a loop.
    async fn run(self) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}});
        let made = send(&self.client, Method::POST, "/api/v1/nodes", Some(&node)).await;
        made.expect("no other kubelet runs");
        loop {
            for pod in self.get("/api/v1/pods").await {
                if pod["status"]["phase"] == "Pending" {
                    self.start(&pod).await;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    async fn start(&self, pod: &Value) {
        let meta = &pod["metadata"];
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let (home, name) = (text(&meta["namespace"]), text(&meta["name"]));
        let containers = pod["spec"]["containers"].as_array().expect("a list");
        let asks = meta["labels"]["answers"].is_null();
        if name == self.stuck {
            let status = json!({"containerStatuses": [{
                "name": containers[0]["name"], "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
            }]});
            return self.write(&home, &name, status).await;
        }
        // Logs are read from a node's kubelet, so the pod must be bound to one.
        let path = format!("/api/v1/namespaces/{home}/pods/{name}/binding");
        let binding =
            json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "node"}});
        let bound = send(&self.client, Method::POST, &path, Some(&binding)).await;
        bound.expect("it has no node yet");
        let address = match name.as_str() {
            "linux-1" => "10.1.1.1",
            "linux-2" => "10.1.1.2",
            "windows-1" => "10.1.2.1",
            _ => "10.1.3.1",
        };
        let mut status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]});
        if asks {
            let path = format!("/api/v1/namespaces/{home}/services");
            let services = self.get(&path).await;
            let statuses = containers
                .iter()
                .map(|own| self.status(&name, own, &services));
            status["containerStatuses"] = statuses.collect::<Vec<_>>().into();
        }
        self.write(&home, &name, status).await;
    }

    async fn write(&self, home: &str, name: &str, status: Value) {
        let path = format!("/api/v1/namespaces/{home}/pods/{name}/status");
        let patch = json!({"status": status});
        // The pod may be gone already, because its namespace was deleted.
        match send(&self.client, Method::PATCH, &path, Some(&patch)).await {
            Err(refused) if refused.code != 404 => panic!("{refused:?}"),
            _ => {}
        }
    }

    /// Returns the status of a container that has made its call.
    fn status(&self, pod: &str, container: &Value, services: &[Value]) -> Value {
        let name = container["name"].as_str().expect("a name");
        let command = container["command"].as_array().into_iter().flatten();
        let mut call = command
            .filter_map(Value::as_str)
            .next_back()
            .unwrap_or_default()
            .to_owned();
        for service in services {
            let address = service["spec"]["clusterIP"].as_str().expect("an address");
            let name = service["metadata"]["name"].as_str().expect("a name");
            call = call.replace(&format!("{address}/"), &format!("service-{name}/"));
        }
        let (code, restarts) = match (self.network)(pod, &call) {
            Outcome::Says(text) => {
                let mut logs = self.logs.0.lock().expect("no panic");
                logs.insert(format!("{pod}/{name}"), text);
                (0, 0)
            }
            Outcome::Exits(code) => (code, 2),
        };
        // This is what a kubelet reports between two tries: how the last try ended, and that it waits.
        let state = match code {
            0 => json!({"terminated": {"exitCode": 0, "containerID": "containerd://1"}}),
            _ => json!({"waiting": {"reason": "CrashLoopBackOff"}}),
        };
        json!({
            "name": name, "image": "x", "imageID": "", "ready": false, "restartCount": restarts,
            "state": state, "lastState": {"terminated": {"exitCode": code}},
        })
    }

    async fn homes(&self) -> Vec<Value> {
        let all = self.get("/api/v1/namespaces").await.into_iter();
        let is_own = |own: &Value| {
            let name = own["metadata"]["name"].as_str();
            name.is_some_and(|name| name.starts_with("mullion-network-"))
        };
        all.filter(is_own).collect()
    }

    /// Asserts that deletion of the measurement's namespace was requested; no controller here would finish it.
    async fn assert_removed(&self) {
        let homes = self.homes().await;
        let is_going = |own: &Value| own["metadata"]["deletionTimestamp"].is_string();
        assert!(homes.iter().all(is_going), "{homes:?}");
    }
}

/// Returns the expected answer to a call.
fn right(call: &str) -> Outcome {
    let name = [
        ("https://", ""),
        ("//10.1.1.1:8080/", "linux-1"),
        ("//10.1.1.2:8080/", "linux-2"),
        ("//10.1.2.1:8080/", "WINDOWS-1"),
        ("//service-linux/", "linux-2"),
        ("//linux", "linux-1"),
        ("//service-windows/", "windows-1"),
        ("//windows", "windows-1"),
    ];
    let name = name.iter().find(|(part, _)| call.contains(part));
    let name = name.unwrap_or_else(|| panic!("who is {call}?")).1;
    Outcome::Says(format!("{name};0.025"))
}

async fn measured(kubelets: &Kubelets, hosts: &Hosts) -> BTreeMap<TrafficPath, Answer> {
    let running = tokio::spawn(kubelets.clone().run());
    let probes = measure(&kubelets.client, hosts, "image", std::future::pending()).await;
    assert!(!running.is_finished(), "the kubelets have failed");
    running.abort();
    kubelets.assert_removed().await;
    match probes.expect("nobody stops it") {
        Probes::Tried(answers) => answers,
        Probes::None(why) => panic!("{why}"),
    }
}

fn words(answers: &BTreeMap<TrafficPath, Answer>) -> String {
    let lines = answers.iter().map(|(way, answer)| match answer {
        Answer::Answered(seconds) => format!("{way}: {seconds} s"),
        Answer::Failed(why) => format!("{way}: failed, {why}"),
        Answer::Untried(why) => format!("{way}: needs {why}"),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn each_way_gets_its_own_answer_and_nothing_is_left() {
    // Linux pods do not reach Windows pods by name, Windows nodes reach nothing, and nothing outside answers.
    let network: Network = |pod, call| match (pod, call) {
        ("linux-pod", call) if call.contains("//windows.mullion-network") => Outcome::Exits(6),
        ("windows-node", _) => Outcome::Exits(28),
        (_, "https://1.1.1.1") => Outcome::Exits(7),
        _ => right(call),
    };
    let kubelets = start(network, "");
    insta::assert_snapshot!(words(&measured(&kubelets, &hosts_of(2, 1)).await));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_start_leaves_its_ways_untried() {
    let kubelets = start(|_, call| right(call), "windows-1");
    insta::assert_snapshot!(words(&measured(&kubelets, &hosts_of(1, 1)).await));
}

#[tokio::test(start_paused = true)]
async fn containers_that_run_nothing_measure_nothing() {
    let simulated: Network = |_, _| Outcome::Says("simulated: nothing runs here".to_owned());
    let answers = measured(&start(simulated, ""), &hosts_of(1, 0)).await;
    let is_untried = |answer: &Answer| matches!(answer, Answer::Untried(_));
    assert!(answers.values().all(is_untried), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn who_stops_a_measurement_finds_nothing_left() {
    let kubelets = start(|_, _| Outcome::Exits(1), "");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let watching = tokio::spawn({
        let kubelets = kubelets.clone();
        async move {
            while kubelets.get("/api/v1/pods").await.is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            stop.send(()).expect("somebody waits");
        }
    });
    let stopped = async {
        let _ = stopped.await;
    };
    let measured = measure(&kubelets.client, &hosts_of(1, 1), "image", stopped).await;
    let failure = measured.expect_err("it is stopped").to_string();
    assert!(failure.contains("stopped before all probes"), "{failure}");
    watching.await.expect("it saw the pods");
    assert_eq!(kubelets.homes().await.len(), 1);
    kubelets.assert_removed().await;
}
