//! Placement by image as a plugin of the API server: it fetches the facts that the rule ([`PlaceByImage`]) needs, before it applies the
//! rule.
//!
//! The images of a workload are looked up when its template is written, without waiting. A pod waits for its images, at most a second. A
//! DaemonSet's template is placed like its pods, because its controller chooses nodes by the template.

use std::{fmt, sync::Arc};

use futures::future::{BoxFuture, FutureExt};
use mullion_apiserver::{
    admission::{Action, Ctx, Operation, Plugin, Request},
    status::Status,
};
use mullion_controllers::{
    admission::{
        Rule, Write,
        placement::{PlaceByImage, images_of, is_wanted, pull_secrets},
    },
    kubelet::images::{Contents, Variant},
};
use mullion_engine::images::{ImageRef, ImageTable};
use mullion_images::Registries;

use super::pod_rules::{self, Lookups};
use crate::image_facts::ImageFacts;

/// The kinds with a pod template, and the template's path.
const TEMPLATES: [(&str, &str, &str); 7] = [
    ("apps", "deployments", "/spec/template"),
    ("apps", "replicasets", "/spec/template"),
    ("apps", "statefulsets", "/spec/template"),
    ("apps", "daemonsets", "/spec/template"),
    ("batch", "jobs", "/spec/template"),
    ("batch", "cronjobs", "/spec/jobTemplate/spec/template"),
    ("", "replicationcontrollers", "/spec/template"),
];

/// The answers of registries, for the image pulls of simulated kubelets.
pub(crate) struct PullRegistries(pub(crate) Arc<Registries>);

impl fmt::Debug for PullRegistries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullRegistries").finish_non_exhaustive()
    }
}

impl Contents for PullRegistries {
    fn variants(&self, image: &ImageRef) -> Option<Vec<Variant>> {
        let content = self.0.known_to_any(image)?;
        let variant = |one: mullion_images::Variant| Variant {
            platform: one.platform,
            os_version: one.os_version,
            bytes: one.bytes,
        };
        let variants = content.variants.ok()?;
        Some(variants.into_iter().map(variant).collect())
    }
}

/// The admission plugin that places pods by their images.
pub(super) struct ImagePlacement {
    rule: PlaceByImage,
    facts: Arc<ImageFacts>,
}

impl ImagePlacement {
    /// Creates the plugin. It places pods by the answers of these registries, or by the table if they have none. With `gates_unknown`, pods
    /// with unknown images get a scheduling gate.
    pub(super) fn new(
        table: Arc<ImageTable>,
        registries: Arc<Registries>,
        gates_unknown: bool,
    ) -> Self {
        let facts = Arc::new(ImageFacts::new(registries));
        ImagePlacement {
            rule: PlaceByImage {
                table,
                facts: facts.clone(),
                gates_unknown,
            },
            facts,
        }
    }

    /// Returns the rule and the facts for the controller that removes scheduling gates.
    pub(super) fn gate(&self) -> (PlaceByImage, Arc<ImageFacts>) {
        (self.rule.clone(), self.facts.clone())
    }
}

impl Plugin for ImagePlacement {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        let is_whole = action.subresource.is_none();
        // Ephemeral containers bring further images into a pod that exists already.
        let is_pod = action.is("", "pods")
            && (is_whole || action.subresource == Some("ephemeralcontainers"));
        let is_written = matches!(action.operation, Operation::Create | Operation::Update);
        is_written && (is_pod || is_whole && template_of(action).is_some())
    }

    fn prepare(&self, ctx: &Ctx<'_>, request: &Request<'_>) -> Option<BoxFuture<'static, ()>> {
        let template = template_of(&request.action);
        let pod = match template {
            Some(path) => request.object.pointer(path)?,
            None => &*request.object,
        };
        let lookups = Lookups(ctx);
        let write = pod_rules::write(ctx, request);
        let write = Write { pod, ..write };
        let spec = &pod["spec"];
        let images = self.facts.permitted(images_of(spec));
        if images.is_empty() || !is_wanted(&write, &lookups) {
            return None;
        }
        let secrets = pull_secrets(spec, write.namespace, &lookups);
        let facts = self.facts.clone();
        let fetch = async move { facts.fetch(images, &secrets).await };
        match template {
            // Of all templates, only those of DaemonSets are placed, so admission waits for them; other templates are only looked up early.
            Some(_) if !request.action.is("apps", "daemonsets") => {
                tokio::spawn(fetch);
                None
            }
            _ => Some(fetch.boxed()),
        }
    }

    fn mutate(&self, ctx: &Ctx<'_>, request: &mut Request<'_>) -> Result<(), Status> {
        match template_of(&request.action) {
            None => pod_rules::mutate(&self.rule, ctx, request),
            Some(path) if request.action.is("apps", "daemonsets") => {
                self.place_template(path, ctx, request);
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }
}

impl ImagePlacement {
    /// Places the template of a DaemonSet.
    fn place_template(&self, path: &str, ctx: &Ctx<'_>, request: &mut Request<'_>) {
        let Some(template) = request.object.pointer(path) else {
            return;
        };
        let write = Write {
            pod: template,
            old: request.old.and_then(|old| old.pointer(path)),
            ..pod_rules::write(ctx, request)
        };
        let verdict = self.rule.place_template(&write, &Lookups(ctx));
        request.warnings.extend(verdict.warnings);
        if let Some(template) = request.object.pointer_mut(path) {
            for change in verdict.changes {
                change.apply(template);
            }
        }
    }
}

fn template_of(action: &Action<'_>) -> Option<&'static str> {
    let mut templates = TEMPLATES.iter();
    let found = templates.find(|(group, plural, _)| action.is(group, plural));
    found.map(|(_, _, path)| *path)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::{Mutex, PoisonError},
        time::Duration,
    };

    use clap::Parser as _;
    use futures::future::join_all;
    use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
    use kube::{Api, Client, api::PostParams};
    use mullion_apiserver::{ApiServer, Config, admission::User};
    use mullion_images::{AskError, Dial, Dialing, Io, Settings};
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

    use super::*;
    use crate::cli::{Cli, Command};

    /// A network of faulty registries; the first part of a host's name says how it fails.
    struct FaultyNetwork;

    impl Dial for FaultyNetwork {
        fn dial(&self, to: Dialing) -> BoxFuture<'_, Result<Box<dyn Io>, AskError>> {
            let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
            match to.host.split('.').next().unwrap_or_default() {
                "down" => {
                    let why = "connection refused".to_owned();
                    let host = to.host;
                    return async { Err(AskError::Unreachable { host, why }) }.boxed();
                }
                "mute" => drop(tokio::spawn(async move {
                    let _open = theirs;
                    std::future::pending::<()>().await;
                })),
                "slow" => drop(tokio::spawn(async move {
                    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" {
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        let _ = theirs.write_all(&[*byte]).await;
                    }
                })),
                "busy" => drop(tokio::spawn(async move {
                    let _ = theirs.read(&mut [0; 64 * 1024]).await;
                    let answer = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";
                    let _ = theirs.write_all(answer).await;
                })),
                // The connection is never established.
                _ => return std::future::pending().boxed(),
            }
            async { Ok(Box::new(ours) as Box<dyn Io>) }.boxed()
        }
    }

    /// A network without registries, which records the hosts that were called.
    #[derive(Default)]
    struct RecordingNetwork(Mutex<BTreeSet<String>>);

    impl Dial for RecordingNetwork {
        fn dial(&self, to: Dialing) -> BoxFuture<'_, Result<Box<dyn Io>, AskError>> {
            let mut called = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            called.insert(to.host.clone());
            let (host, why) = (to.host, "connection refused".to_owned());
            async { Err(AskError::Unreachable { host, why }) }.boxed()
        }
    }

    /// Starts an API server whose registries are faulty.
    async fn server() -> Client {
        server_with("all".parse().expect("a setting"), Arc::new(FaultyNetwork)).await
    }

    async fn server_with(settings: Settings, network: Arc<dyn Dial>) -> Client {
        let registries = Registries::new(settings, network);
        let placement = ImagePlacement::new(Arc::default(), registries, false);
        let server = ApiServer::new(Config {
            admission: vec![Arc::new(placement)],
            ..Config::default()
        });
        let client = Client::new(server.router_as(User::administrator()), "default");
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "default"}})).expect("an account");
        let accounts = Api::default_namespaced(client.clone());
        let _ = accounts.create(&PostParams::default(), &account).await;
        client
    }

    fn pod(name: &str, images: &[&str]) -> Pod {
        let containers = images.iter().enumerate();
        let containers: Vec<_> = containers
            .map(|(index, image)| json!({"name": format!("c{index}"), "image": image}))
            .collect();
        serde_json::from_value(
            json!({"metadata": {"name": name}, "spec": {"containers": containers}}),
        )
        .expect("a pod")
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_waits_for_registries_that_misbehave_a_second_once_and_is_admitted() {
        let client = server().await;
        let pods: Api<Pod> = Api::default_namespaced(client);
        let images = [
            "down.example.com/a:1",
            "mute.example.com/a:1",
            "slow.example.com/a:1",
            "busy.example.com/a:1",
            "absent.example.com/a:1",
            "nginx:1.27",
        ];
        for (name, longest) in [("first", 1_000), ("second", 0)] {
            let start = Instant::now();
            let made = pods
                .create(&PostParams::default(), &pod(name, &images))
                .await;
            let waited = start.elapsed().as_millis();
            assert!(waited <= longest, "{name} waited {waited} ms");
            // The images that are known by their names are enough to place the pod.
            let spec = made.expect("it is admitted").spec.expect("it has a spec");
            assert_eq!(
                spec.node_selector.expect("placed")["kubernetes.io/os"],
                "linux"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn up_calls_registries_of_this_machine_alone_unless_it_is_given_others() {
        let called = async |flags: &[&str]| {
            let arguments = ["mullion", "up"].iter().chain(flags);
            let cli = Cli::try_parse_from(arguments).expect("valid arguments");
            let Command::Up(args) = cli.command else {
                panic!("it is another command");
            };
            let network = Arc::new(RecordingNetwork::default());
            let settings = args.registries.unwrap_or_default();
            let pods: Api<Pod> =
                Api::default_namespaced(server_with(settings, network.clone()).await);
            let images = [
                "nginx:1.27",
                "mcr.microsoft.com/windows/nanoserver:ltsc2022",
                "r.example.com/app:1",
                "10.0.0.5:5000/app:1",
                "localhost:5000/app:1",
                "127.0.0.1:5001/app:1",
            ];
            let pod = pod("web", &images);
            // The test does not depend on whether the pod is admitted.
            let _ = pods.create(&PostParams::default(), &pod).await;
            let called = network.0.lock().unwrap_or_else(PoisonError::into_inner);
            called.iter().cloned().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(called(&[]).await, "127.0.0.1 localhost");
        assert_eq!(called(&["--registries", "none"]).await, "");
        let listed = ["--registries", "r.example.com,http://10.0.0.5:5000"];
        let hosts = "10.0.0.5 127.0.0.1 localhost r.example.com";
        assert_eq!(called(&listed).await, hosts);
        let all = called(&["--registries", "all"]).await;
        assert!(
            all.contains("registry-1.docker.io") && all.contains("mcr.microsoft.com"),
            "{all}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn every_pod_of_a_crowd_waits_a_second_at_most() {
        let pods: Api<Pod> = Api::default_namespaced(server().await);
        let create = async |index: usize| {
            let start = Instant::now();
            let images: Vec<_> = ["mute", "slow", "absent"]
                .map(|host| format!("{host}.example.com/{index}:1"))
                .into();
            let images: Vec<_> = images.iter().map(String::as_str).collect();
            let pod = pod(&format!("p{index}"), &images);
            let made = pods.create(&PostParams::default(), &pod).await;
            made.expect("it is admitted");
            start.elapsed()
        };
        let waited = join_all((0..40).map(create)).await;
        let longest = waited.into_iter().max().expect("there are pods");
        assert!(longest <= Duration::from_secs(1), "{longest:?}");
    }
}
