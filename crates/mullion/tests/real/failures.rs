//! Two replicas of the controllers, of which the leader is killed again and again while nodes are bought and given back, beside an API server that
//! is restarted, an etcd that stands still, and a cloud that refuses calls and loses answers.
//!
//! What may not happen is read from those who cannot err: the cloud's list of all instances that it ever sold, a watch of all pods, and the API
//! server's audit log. The moments follow from a seed, which is printed; `MULLION_SEED` sets it.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    io::{Read, Write},
    net::TcpStream,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    KINDS, available,
    cluster::{Cluster, USERS},
    deployment,
    installed::process::{Process, free_port},
    of_release, windows_pool,
};

/// How long anything may take that several processes have to agree on.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often is looked.
const LOOK: Duration = Duration::from_millis(200);
/// How long etcd stands still.
const STANDSTILL: Duration = Duration::from_secs(20);
/// A leader is killed this long after something was asked of it, at most.
const LATEST_MS: u64 = 5_000;
/// What is asked, one after the other; the leader is killed in the midst of each.
const STEPS: [(&str, u32); 10] = [
    ("iis-2022", 10),
    ("iis-2019", 10),
    ("iis-2022", 0),
    ("iis-2019", 3),
    ("iis-2022", 10),
    ("iis-2019", 10),
    ("iis-2022", 2),
    ("iis-2019", 0),
    ("iis-2022", 10),
    ("iis-2019", 10),
];
/// The step in which the API server is restarted, and that in which etcd stands still.
const RESTART: usize = 3;
const STANDS_STILL: usize = 6;
/// The steps in which a killed leader starts again only once the other replica leads. In the others it starts at once, and may lead again.
const HANDED_OVER: [usize; 5] = [0, 2, 4, 7, 9];
const LEADS: &str = "this process leads";

const ANNOTATION: &str = "vpc.amazonaws.com/PrivateIPv4Address";
const NODES: &str = "
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: mixed, region: us-west-2}
nodeGroups:
- {name: linux, instanceType: m5.large, desiredCapacity: 1}
- {name: windows, instanceType: m5.large, desiredCapacity: 1, amiFamily: WindowsServer2022CoreContainer, taints: {group: \"windows:NoSchedule\"}}
";

/// Numbers that follow from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn of_environment() -> Random {
        let given = std::env::var("MULLION_SEED").ok();
        let seed = match given {
            Some(text) => text.parse().expect("MULLION_SEED is a number"),
            None => RandomState::new().hash_one(0) >> 32,
        };
        eprintln!("MULLION_SEED={seed}");
        Random(seed)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Two replicas that are started again whenever they have ended.
struct Replicas<'c> {
    cluster: &'c Cluster,
    all: Vec<Process>,
    starts: usize,
}

impl<'c> Replicas<'c> {
    fn start(cluster: &'c Cluster) -> Replicas<'c> {
        let mut replicas = Replicas {
            cluster,
            all: Vec::new(),
            starts: 0,
        };
        for user in USERS {
            let process = replicas.start_as(user);
            replicas.all.push(process);
        }
        replicas
    }

    fn start_as(&mut self, user: &str) -> Process {
        self.starts += 1;
        let name = format!("{user}-{}.log", self.starts);
        self.cluster.mullion_as(
            user,
            &name,
            &[
                "controller",
                "--only=provisioner,disruption,ipam",
                "--cloud=simulated",
                "--cluster-name=mixed",
                "--health-probe-port=0",
                "--metrics-port=0",
            ],
        )
    }

    /// Starts what has ended, as a kubelet does. Only a leader that lost the Lease, and who finds no API server, may end.
    fn keep(&mut self) {
        for (at, user) in USERS.into_iter().enumerate() {
            if let Some(status) = self.all[at].ended() {
                let said = self.all[at].said();
                assert_eq!(status.code(), Some(1), "{user} has ended:\n{said}");
                self.all[at] = self.start_as(user);
            }
        }
    }

    fn leader(&self) -> Option<usize> {
        let leads = |process: &Process| process.said().contains(LEADS);
        self.all.iter().position(leads)
    }

    /// Waits until a condition holds, while the replicas run.
    #[track_caller]
    fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let cluster = self.cluster;
        cluster.within(PATIENCE, what, || {
            self.keep();
            holds(self)
        });
    }

    fn wait(&mut self, time: Duration) {
        let moment = Instant::now() + time;
        self.until("a moment comes", |_| Instant::now() >= moment);
    }

    /// Kills the leader of a step, if there is one at this moment, and starts it again.
    fn kill_the_leader(&mut self, step: usize) -> bool {
        let Some(at) = self.leader() else {
            return false;
        };
        self.all[at].kill();
        if HANDED_OVER.contains(&step) {
            let other = &self.all[1 - at];
            let leads = || other.said().contains(LEADS);
            self.cluster
                .within(PATIENCE, "the other replica leads", leads);
        }
        self.all[at] = self.start_as(USERS[at]);
        true
    }

    /// What all of them said that are there.
    fn said(&self) -> String {
        self.all.iter().map(Process::said).collect()
    }
}

/// A watch of all pods, which notes addresses that two of them have at one moment.
struct AddressWatch {
    found: Arc<Mutex<Found>>,
    _runtime: Runtime,
}

#[derive(Default)]
struct Found {
    given: BTreeSet<String>,
    twice: BTreeSet<String>,
}

/// Names and addresses of pods by UID.
type Holders = BTreeMap<String, (String, String)>;

impl AddressWatch {
    fn start(kubeconfig: &str) -> AddressWatch {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let found = Arc::<Mutex<Found>>::default();
        let (file, noted) = (Kubeconfig::read_from(kubeconfig), Arc::clone(&found));
        runtime.spawn(async move {
            let (file, options) = (file.expect("a kubeconfig"), KubeConfigOptions::default());
            let config = kube::Config::from_custom_kubeconfig(file, &options).await;
            let client = Client::try_from(config.expect("it leads to a cluster"));
            let pods: Api<Pod> = Api::all(client.expect("a client"));
            loop {
                // Without an API server nobody is given an address.
                if follow(&pods, &noted).await.is_err() {
                    tokio::time::sleep(LOOK).await;
                }
            }
        });
        AddressWatch {
            found,
            _runtime: runtime,
        }
    }

    #[track_caller]
    fn assert_none_twice(&self) {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(found.twice.is_empty(), "given twice: {:#?}", found.twice);
        assert!(found.given.len() >= 20, "{:?}", found.given);
    }
}

/// Lists all pods and follows them until the watch ends.
async fn follow(pods: &Api<Pod>, found: &Mutex<Found>) -> kube::Result<()> {
    let list = pods.list(&ListParams::default()).await?;
    let mut holders = Holders::new();
    for pod in &list {
        note(&mut holders, pod, found);
    }
    let version = list.metadata.resource_version.unwrap_or_default();
    let mut events = pods.watch(&WatchParams::default(), &version).await?.boxed();
    while let Some(event) = events.next().await {
        match event? {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => note(&mut holders, &pod, found),
            WatchEvent::Deleted(pod) => {
                holders.remove(pod.metadata.uid.as_deref().unwrap_or_default());
            }
            WatchEvent::Bookmark(_) => {}
            // Too old a revision: it is listed again.
            WatchEvent::Error(_) => return Ok(()),
        }
    }
    Ok(())
}

fn note(holders: &mut Holders, pod: &Pod, found: &Mutex<Found>) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (uid, name) = (text(&pod.metadata.uid), text(&pod.metadata.name));
    let annotations = pod.metadata.annotations.as_ref();
    let phase = pod.status.as_ref().and_then(|own| own.phase.as_deref());
    let address = annotations.and_then(|own| own.get(ANNOTATION));
    let (Some(address), false) = (address, matches!(phase, Some("Succeeded" | "Failed"))) else {
        holders.remove(&uid);
        return;
    };
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    let others = holders.iter().filter(|(own, _)| **own != uid);
    for (_, (other, _)) in others.filter(|(_, (_, given))| given == address) {
        found
            .twice
            .insert(format!("{address} to {other} and {name}"));
    }
    found.given.insert(address.clone());
    holders.insert(uid, (name, address.clone()));
}

/// An instance that the cloud has sold at any time.
#[derive(Debug)]
struct Sold {
    id: String,
    state: String,
    /// The claim for which it was launched; none for one of a node group.
    claim: Option<String>,
}

/// What a server on this machine answers to a request.
fn asked(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// All instances that the cloud has sold, those that are terminated among them.
fn sold(port: u16) -> Vec<Sold> {
    let form = "Action=DescribeInstances&Version=2016-11-15";
    let request = format!(
        "POST / HTTP/1.1\r\nHost: cloud\r\nAuthorization: AWS4-HMAC-SHA256 any\r\nConnection: close\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    let answer = asked(port, &request);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let within = |text: &str, from: &str, to: &str| {
        let (_, rest) = text.split_once(from)?;
        Some(rest.split_once(to)?.0.trim().to_owned())
    };
    let instances = answer.split("<instanceId>").skip(1);
    let instances = instances.map(|text| {
        let state = within(text, "<instanceState>", "</instanceState>").expect("a state");
        let tag = within(text, "<key>karpenter.sh/nodeclaim</key>", "</item>");
        Sold {
            id: text.split('<').next().unwrap_or_default().to_owned(),
            state: within(&state, "<name>", "</name>").expect("a name"),
            claim: tag.and_then(|tag| within(&tag, "<value>", "</value>")),
        }
    });
    instances.collect()
}

/// Claims by the id of their instance, and the instances that have a node.
fn claims_and_nodes(cluster: &Cluster) -> (BTreeMap<String, String>, BTreeSet<String>) {
    let of_kind = |kind: &str| -> Vec<Value> {
        let list: Value = serde_json::from_str(&cluster.get(&["get", kind, "-o", "json"]))
            .expect("kubectl prints JSON");
        list["items"].as_array().cloned().unwrap_or_default()
    };
    let id = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        text.rsplit('/').next().unwrap_or_default().to_owned()
    };
    let claims = of_kind("nodeclaims").into_iter().map(|claim| {
        let name = claim["metadata"]["name"].as_str().unwrap_or_default();
        (id(&claim["status"]["providerID"]), name.to_owned())
    });
    let nodes = of_kind("nodes").into_iter();
    let nodes = nodes.map(|node| id(&node["spec"]["providerID"]));
    (claims.collect(), nodes.collect())
}

/// What is wrong with the instances that run, against the claims and nodes that there are.
fn leaks(cluster: &Cluster, port: u16) -> Vec<String> {
    let (mut claims, nodes) = claims_and_nodes(cluster);
    let mut wrong = Vec::new();
    for own in sold(port) {
        let is_there = own.state == "pending" || own.state == "running";
        if !is_there {
            continue;
        }
        if !nodes.contains(&own.id) {
            wrong.push(format!("{} has no node", own.id));
        }
        if own.claim.is_some() && claims.remove(&own.id) != own.claim {
            wrong.push(format!("{} has no claim", own.id));
        }
    }
    let lost = claims.into_iter();
    wrong.extend(lost.map(|(id, name)| format!("{name} has no instance ({id:?})")));
    wrong
}

/// One request of the API server's audit log.
#[derive(Debug)]
#[expect(dead_code, reason = "a failure shows the path")]
struct Audited {
    /// When it was received, RFC 3339 with microseconds.
    received: String,
    /// When it was answered.
    answered: String,
    user: String,
    verb: String,
    resource: String,
    uri: String,
    is_done: bool,
}

fn audit_log(cluster: &Cluster) -> Vec<Audited> {
    let log = std::fs::read_to_string(cluster.path("audit.log")).expect("an audit log");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // The last line of a server that was killed may be half of one.
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let mut all: Vec<_> = lines
        .map(|event: Value| Audited {
            received: text(&event["requestReceivedTimestamp"]),
            answered: text(&event["stageTimestamp"]),
            user: text(&event["user"]["username"]),
            verb: text(&event["verb"]),
            resource: [
                &event["objectRef"]["resource"],
                &event["objectRef"]["subresource"],
            ]
            .map(text)
            .join("/"),
            uri: text(&event["requestURI"]),
            is_done: event["responseStatus"]["code"]
                .as_u64()
                .is_some_and(|code| code < 300),
        })
        .collect();
    all.sort_by(|one, other| one.received.cmp(&other.received));
    all
}

/// Asserts that only who holds the Lease writes.
#[track_caller]
fn assert_one_leader(audited: &[Audited]) {
    let of_replicas = || audited.iter().filter(|own| USERS.contains(&&*own.user));
    let is_lease = |own: &&Audited| own.resource == "leases/";
    // From when on which user holds the Lease.
    let mut holders: Vec<_> = of_replicas()
        .filter(is_lease)
        .filter(|own| own.is_done)
        .map(|own| (&own.answered, &own.user))
        .collect();
    holders.sort();
    let changes = holders.windows(2).filter(|two| two[0].1 != two[1].1);
    assert!(
        changes.count() >= HANDED_OVER.len(),
        "the Lease is not handed over"
    );
    let mut writes = 0;
    for write in of_replicas().filter(|own| !is_lease(own)) {
        let held = holders.partition_point(|(since, _)| **since <= write.received);
        let holder = held.checked_sub(1).map(|at| holders[at]);
        assert!(
            holder.is_some_and(|(_, user)| *user == write.user),
            "it does not hold the Lease ({holder:?}): {write:?}"
        );
        writes += 1;
    }
    assert!(writes > 100, "{writes} writes");
}

/// Asserts that no pod went because its node was gone.
#[track_caller]
fn assert_no_pod_lost(audited: &[Audited]) {
    let ends: Vec<_> = audited
        .iter()
        .filter(|own| own.verb == "delete" && own.resource == "pods/" && own.is_done)
        .collect();
    assert!(!ends.is_empty(), "no pod has been deleted");
    let lost = |own: &&&Audited| {
        ["pod-garbage-collector", "node-controller"]
            .iter()
            .any(|user| own.user.ends_with(user))
    };
    let lost: Vec<_> = ends.iter().filter(lost).collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn leaders_that_are_killed_at_any_moment_leak_nothing_and_give_nothing_twice() {
    let mut random = Random::of_environment();
    let mut cluster = Cluster::start();
    cluster.run_controller_manager();
    cluster.run_scheduler();
    let cluster = cluster;
    cluster.get(&["apply", "-f", KINDS]);
    let (port, config) = (free_port(), cluster.write("cluster.yaml", NODES));
    let mut nodes = cluster.mullion(
        "nodes",
        &[
            "nodes",
            "--ipam=off",
            "--speed=30",
            "--config",
            &config,
            "--cloud-faults",
            &format!("throttle=20%,lost=10%,seed={}", random.below(1_000_000)),
            "--aws-port",
            &port.to_string(),
        ],
    );
    nodes.says("simulated EC2");
    for (name, alias) in [
        ("windows2022", "windows2022@latest"),
        ("windows2019", "windows2019@latest"),
    ] {
        for object in windows_pool(name, alias) {
            cluster.apply(&object);
        }
    }
    let iis = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc";
    for (name, build, image) in [
        ("iis-2022", "10.0.20348", format!("{iis}2022")),
        ("iis-2019", "10.0.17763", format!("{iis}2019")),
    ] {
        let mut pods = of_release(build, &image);
        pods["terminationGracePeriodSeconds"] = json!(1);
        cluster.apply(&deployment(name, 0, pods));
    }
    let addresses = AddressWatch::start(&cluster.path("admin"));
    let mut replicas = Replicas::start(&cluster);

    let begun = Instant::now();
    let mut kills = 0;
    for (step, (name, count)) in STEPS.into_iter().enumerate() {
        replicas.until("somebody leads", |own| own.leader().is_some());
        let count = format!("--replicas={count}");
        let scale = ["scale", "deployment", name, &count];
        replicas.until("a Deployment is scaled", |_| {
            cluster.kubectl(&scale).status.success()
        });
        if step == RESTART {
            cluster.restart_api_server();
        }
        replicas.wait(Duration::from_millis(random.below(LATEST_MS)));
        if step == STANDS_STILL {
            cluster.signal_etcd("STOP");
            replicas.wait(STANDSTILL);
            cluster.signal_etcd("CONT");
            replicas.until("somebody leads", |own| own.leader().is_some());
        }
        kills += usize::from(replicas.kill_the_leader(step));
        eprintln!(
            "step {step} at {} s: {name} {count}",
            begun.elapsed().as_secs()
        );
    }
    assert_eq!(kills, STEPS.len());

    replicas.until("all pods are available", |_| {
        ["iis-2022", "iis-2019"].map(|name| available(&cluster, name)) == ["10", "10"]
    });
    eprintln!("all are available at {} s", begun.elapsed().as_secs());
    let mut wrong = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    replicas.until("every instance has its claim and its node", |own| {
        wrong = leaks(&cluster, port);
        assert!(
            wrong.is_empty() || Instant::now() < deadline - Duration::from_secs(5),
            "{wrong:#?}\n{}",
            own.said()
        );
        wrong.is_empty()
    });
    eprintln!("all is whole at {} s", begun.elapsed().as_secs());
    let scale = [
        "scale",
        "deployment",
        "iis-2022",
        "iis-2019",
        "--replicas=0",
    ];
    cluster.get(&scale);
    replicas.until("all that was bought is given back", |_| {
        let is_given_back = |own: &Sold| own.claim.is_none() || own.state == "terminated";
        sold(port).iter().all(is_given_back)
            && cluster.get(&["get", "nodeclaims", "-o", "name"]).is_empty()
    });
    eprintln!("all is given back at {} s", begun.elapsed().as_secs());
    assert_eq!(cluster.get(&["get", "pods", "-o", "name"]), "");

    let mut launched = BTreeMap::<_, Vec<_>>::new();
    for own in sold(port) {
        let Sold { id, claim, .. } = own;
        launched.entry(claim).or_default().push(id);
    }
    launched.remove(&None);
    assert!(launched.len() >= 4, "{launched:#?}");
    let twice: Vec<_> = launched.iter().filter(|(_, ids)| ids.len() > 1).collect();
    assert!(twice.is_empty(), "launched twice: {twice:#?}");
    addresses.assert_none_twice();
    let audited = audit_log(&cluster);
    assert_one_leader(&audited);
    assert_no_pod_lost(&audited);
}

#[test]
fn whoever_starts_before_the_api_server_says_so_and_waits() {
    let cluster = Cluster::start();
    cluster.kill_api_server();
    let probes = free_port();
    let mut controller = cluster.mullion(
        "controller",
        &[
            "controller",
            "--only=scheduler",
            "--metrics-port=0",
            "--health-probe-port",
            &probes.to_string(),
        ],
    );
    let config = cluster.write("cluster.yaml", NODES);
    let mut nodes = cluster.mullion("nodes", &["nodes", "--config", &config]);
    for process in [&mut controller, &mut nodes] {
        process.says("cannot be reached, which is tried again in 1 s: Connection refused");
        process.says("cannot be reached, which is tried again in 2 s: Connection refused");
        let said = process.said();
        assert!(!said.contains("ERROR"), "{said}");
    }
    let ready = || {
        let request = "GET /readyz HTTP/1.1\r\nHost: probes\r\nConnection: close\r\n\r\n";
        asked(probes, request)
    };
    let waits = ready();
    assert!(waits.starts_with("HTTP/1.1 503"), "{waits}");
    assert!(
        waits.ends_with("the API server has not answered yet"),
        "{waits}"
    );
    cluster.start_api_server_again();
    for process in [&mut controller, &mut nodes] {
        process.says(" answers\n");
    }
    controller.says("this process leads");
    nodes.says("simulated EC2 listens");
    assert!(ready().starts_with("HTTP/1.1 200"), "{}", ready());
}
