//! The API server is killed while 64 clients write, again and again: what it acknowledged is there, what it did not is there whole or not
//! at all, and no revision comes twice.
//!
//! `MULLION_CRASHES` says how often; a few times by default.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::process::{heard, lines};

const WRITERS: usize = 64;
const OBJECTS_EACH: usize = 3;
const CRASHES: u32 = 4;

/// A server, killed when dropped.
pub(crate) struct Server(Child);

impl Server {
    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a server that keeps its objects in a directory is started with.
pub(crate) fn arguments(directory: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["apiserver", "--port", "0", "--kubeconfig"]
        .map(Into::into)
        .into();
    arguments.push(directory.join("kubeconfig").into());
    arguments.push("--data-dir".into());
    arguments.push(directory.join("data").into());
    arguments
}

async fn start(directory: &Path) -> (Server, Client) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command.args(arguments(directory));
    start_by(command, directory).await
}

/// Waits until a server is ready, however it is started.
pub(crate) async fn start_by(mut command: Command, directory: &Path) -> (Server, Client) {
    let child = command
        .env("XDG_STATE_HOME", directory.join("state"))
        .stdout(Stdio::piped())
        .spawn();
    let mut server = Server(child.expect("the program starts"));
    let stdout = lines(server.0.stdout.take().expect("stdout is piped"));
    let banner = heard(&stdout, |line| line.starts_with("Ctrl-C"));
    assert!(banner.is_ok(), "the server did not start: {banner:?}");
    let config = Kubeconfig::read_from(directory.join("kubeconfig")).expect("it was written");
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.expect("it leads to the server"));
    (server, client.expect("a client can be made"))
}

/// What is known of an object: its number after the last acknowledged write, and after the one that has no answer.
#[derive(Clone, Copy, Default)]
struct Known {
    acknowledged: Option<u64>,
    unanswered: Option<Option<u64>>,
}

#[derive(Default)]
struct Book {
    known: BTreeMap<String, Known>,
    revisions: BTreeSet<u64>,
}

fn config_map(name: &str, number: u64) -> ConfigMap {
    let data = [("a", number), ("b", number)];
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data.map(|(key, n)| (key.to_owned(), n.to_string())).into()),
        ..ConfigMap::default()
    }
}

fn number(map: &ConfigMap) -> u64 {
    let data = map.data.as_ref().expect("every map has data");
    assert_eq!(data["a"], data["b"], "half a write of {}", map.name_any());
    data["a"].parse().expect("a number")
}

fn revision(map: &ConfigMap) -> u64 {
    let revision = map.resource_version().expect("every object has one");
    revision.parse().expect("a number")
}

/// One client that writes its own objects until the server is gone.
async fn write(
    writer: usize,
    client: Client,
    book: Arc<Mutex<Book>>,
    made: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut turn = 0_u64;
    while !over.load(Ordering::Relaxed) {
        turn += 1;
        let name = format!("w{writer}-{}", turn as usize % OBJECTS_EACH);
        let (now, next) = {
            let mut book = book.lock().expect("no writer panics");
            let known = book.known.entry(name.clone()).or_default();
            let now = known.acknowledged;
            let next = match now {
                Some(_) if turn.is_multiple_of(5) => None,
                Some(number) => Some(number + 1),
                None => Some(turn),
            };
            known.unanswered = Some(next);
            (now, next)
        };
        let answer = match (now, next) {
            (None, Some(next)) => maps
                .create(&PostParams::default(), &config_map(&name, next))
                .await
                .map(Some),
            (Some(_), Some(next)) => maps
                .replace(&name, &PostParams::default(), &config_map(&name, next))
                .await
                .map(Some),
            (_, None) => maps
                .delete(&name, &DeleteParams::default())
                .await
                .map(|_| None),
        };
        match answer {
            Ok(written) => {
                let mut book = book.lock().expect("no writer panics");
                if let Some(written) = written {
                    assert!(
                        book.revisions.insert(revision(&written)),
                        "a revision came twice"
                    );
                }
                let known = Known {
                    acknowledged: next,
                    unanswered: None,
                };
                book.known.insert(name, known);
                made.fetch_add(1, Ordering::Relaxed);
            }
            Err(kube::Error::Api(status)) => panic!("{name} was refused: {status:?}"),
            // The server is gone; what became of the write is seen after the next start.
            Err(_) => return,
        }
    }
}

/// Holds what the server has against what is known, and takes it for what is known from now on.
async fn check(client: &Client, book: &Mutex<Book>) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let list = maps
        .list(&ListParams::default())
        .await
        .expect("the server answers");
    let at: u64 = list
        .metadata
        .resource_version
        .as_deref()
        .expect("lists have one")
        .parse()
        .expect("a number");
    let found: BTreeMap<String, (u64, u64)> = list
        .items
        .iter()
        .filter(|map| map.name_any().starts_with('w'))
        .map(|map| (map.name_any(), (number(map), revision(map))))
        .collect();
    let mut book = book.lock().expect("no writer panics");
    let last = book.revisions.last().copied().unwrap_or_default();
    assert!(at >= last, "the revision went back from {last} to {at}");
    let seen: Vec<u64> = found.values().map(|(_, revision)| *revision).collect();
    for (name, known) in &mut book.known {
        let there = found.get(name).map(|(number, _)| *number);
        let possible = [Some(known.acknowledged), known.unanswered];
        assert!(
            possible.contains(&Some(there)),
            "{name} is {there:?}; acknowledged was {:?}, without an answer {:?}",
            known.acknowledged,
            known.unanswered
        );
        *known = Known {
            acknowledged: there,
            unanswered: None,
        };
    }
    for name in found.keys() {
        assert!(book.known.contains_key(name), "nobody wrote {name}");
    }
    book.revisions.extend(seen);
    // Deletions have had revisions too.
    book.revisions.insert(at);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_under_load_loses_nothing_it_acknowledged() {
    let crashes = std::env::var("MULLION_CRASHES")
        .ok()
        .and_then(|text| text.parse().ok());
    let directory = tempfile::tempdir().expect("a temporary directory");
    let book = Arc::<Mutex<Book>>::default();
    let mut chance = 0x9e37_79b9_u64;
    for crash in 0..crashes.unwrap_or(CRASHES) {
        let (mut server, client) = start(directory.path()).await;
        check(&client, &book).await;
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(u64::from(crash) + 1);
        let enough = 1 + (chance >> 33) as usize % 1500;
        let (made, over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                tokio::spawn(write(
                    writer,
                    client.clone(),
                    book.clone(),
                    made.clone(),
                    over.clone(),
                ))
            })
            .collect();
        while made.load(Ordering::Relaxed) < enough {
            assert!(
                !writers.iter().all(|writer| writer.is_finished()),
                "no client writes any more"
            );
            tokio::task::yield_now().await;
        }
        server.0.kill().expect("the process can be killed");
        server.0.wait().expect("the process ends");
        over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.expect("no writer panics");
        }
    }
    let (_server, client) = start(directory.path()).await;
    check(&client, &book).await;
}
