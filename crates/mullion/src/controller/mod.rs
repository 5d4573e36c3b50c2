//! Implements `mullion controller`: Mullion's controllers for a cluster that has its own API server.
//!
//! Every replica serves the webhooks ([`webhooks`]), probes and metrics ([`serving`]). One replica, which holds the Lease, also runs the
//! parts that change objects on their own: the scheduler, for example, and the controller of gated pods. A replica that loses the Lease
//! exits at once, so that it never works at the same time as its successor.

pub(crate) mod args;
mod aws;
mod serving;
mod webhooks;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, Client, api::PostParams};
use mullion_api::eksctl::KubernetesVersion;
use mullion_cloud::{Addresses, Clock, CloudProvider};
use mullion_controllers::{
    Context,
    admission::{addresses::WindowsAddresses, gmsa::Gmsa, placement::PlaceByImage},
    image_gate, ipam,
    leader::Election,
    provisioner::{
        self, DecisionLog, KarpenterContext, Options, Work, decision_log::DEFAULT_LINES,
    },
    scheduler,
    state::SharedState,
    traces::{self, Tracer},
};
use mullion_images::{Registries, SystemDial};
use tokio::time::timeout;

use self::{
    args::{Cloud, ControllerArgs, LogFormat, Part, Parts},
    serving::Readiness,
    webhooks::{Rules, WebhookAddress, WebhookServer, WebhookSettings},
};
use crate::{
    cli::UnknownImages,
    devices::CelEvaluator,
    failure::Failure,
    image_facts::ImageFacts,
    input, reach, simulated_cloud,
    traces::{Export, export, settings::TraceSettings},
    up::{self, images, scheduler_config},
    why::source,
};

/// The namespace that is used if the process runs outside the cluster.
const NAMESPACE: &str = "kube-system";
/// The scheduler's name if no configuration file sets another one; pods select it with `spec.schedulerName`.
const SCHEDULER_NAME: &str = "mullion";
/// The default name of the webhooks' Service.
const SERVICE: &str = "mullion";
/// The file with the namespace of the pod that the process runs in.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The timeout for stopping.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Starts the log on stderr.
pub(crate) fn log(args: &ControllerArgs) {
    // A controller's log reports its work by default, so it starts one level higher than that of other commands.
    let verbose = args.verbose + 1;
    match args.log_format {
        LogFormat::Text => {
            crate::log_to_stderr(verbose, crate::out::colours_on(&std::io::stderr()))
        }
        LogFormat::Json => crate::log_json_to_stderr(verbose),
    }
}

/// The settings from flags and files, all checked before anything starts.
struct Settings {
    parts: Parts,
    scheduler: scheduler::config::Config,
    placement: mullion_engine::Options,
    rules: Rules,
    /// The namespace of the Lease, the Secret and the Service.
    namespace: String,
    lease: Option<String>,
    bind: IpAddr,
    address: WebhookAddress,
    /// The settings of the parts that need a cloud.
    nodes: NodeSettings,
    /// Where traces go; `None` if there are none.
    traces: Option<TraceSettings>,
}

/// Settings of the parts that need a cloud.
struct NodeSettings {
    cluster: String,
    gates: provisioner::FeatureGates,
    settings: provisioner::Settings,
    ipam: ipam::Mode,
}

/// The cloud, and the Kubernetes version of the nodes that are bought from it.
struct NodeCloud {
    cloud: Arc<dyn CloudProvider>,
    addresses: Arc<dyn Addresses>,
    version: KubernetesVersion,
}

/// The sources of metrics; each is set when its part starts.
#[derive(Clone, Default)]
struct MetricsSources {
    provisioner: Arc<OnceLock<KarpenterContext>>,
    addresses: Arc<OnceLock<ipam::metrics::Metrics>>,
    traces: Arc<OnceLock<export::Metrics>>,
}

impl MetricsSources {
    fn text(&self) -> String {
        let mut text = format!(
            "# HELP mullion_build_info The version of this program.\n# TYPE mullion_build_info gauge\nmullion_build_info{{version=\"{}\"}} 1\n",
            env!("CARGO_PKG_VERSION")
        );
        text.extend(self.provisioner.get().map(KarpenterContext::metrics_text));
        text.extend(self.addresses.get().map(|own| own.numbers().text()));
        text.extend(self.traces.get().map(export::Metrics::text));
        text
    }
}

/// Runs the controllers until the process is interrupted. Returns false if the Lease was lost.
pub(crate) async fn run(args: ControllerArgs) -> Result<bool, Failure> {
    let in_cluster = args.kubeconfig.is_none() && args.context.is_none() && runs_in_a_pod();
    let mut settings = settings(&args, in_cluster)?;
    let (client, server) = match in_cluster {
        true => in_own_cluster()?,
        false => source::client(args.kubeconfig.clone(), args.context.clone()).await?,
    };
    tracing::info!("the cluster is {server}");
    let (tracer, export) = match settings.traces.take() {
        Some(traces) => Export::start(traces).map(|(tracer, own)| (tracer, Some(own)))?,
        None => (Tracer::default(), None),
    };
    let readiness = Readiness::waiting("the API server has not answered yet");
    let bind = settings.bind;
    // Probes and metrics are served before the cluster answers, so that a pod that waits for it is not
    // restarted.
    let probes = serving::probes(readiness.clone());
    serving::serve(
        SocketAddr::new(bind, args.health_probe_port),
        probes,
        "probes",
    )
    .await?;
    let sources = MetricsSources::default();
    if let Some(export) = &export {
        sources.traces.get_or_init(|| export.metrics());
    }
    let metrics = serving::metrics({
        let sources = sources.clone();
        move || sources.text()
    });
    serving::serve(SocketAddr::new(bind, args.metrics_port), metrics, "metrics").await?;
    let mut interrupted = pin!(up::interrupts());
    tokio::select! {
        () = reach::answering(&client, &server) => {}
        early = &mut interrupted => return early.map(|()| true),
    }
    readiness.mark_not_ready("it has not come that far");
    if settings.parts.has(Part::Addresses) {
        let users = &mut settings.rules.addresses.controllers;
        users.extend(own_user(&client).await);
    }
    let cloud = match args.cloud {
        None => None,
        Some(Cloud::Simulated) => {
            let cloud = simulated_cloud::connect(&client, args.cloud_endpoint.clone()).await?;
            let cloud = Arc::new(cloud);
            Some(NodeCloud {
                addresses: cloud.clone(),
                cloud,
                version: version(&client).await?,
            })
        }
        Some(Cloud::Aws) => Some(aws::connect(&client, &args).await?),
    };
    let context = Context::new(client, Clock::system()).with_traces(tracer);
    let (parts, address) = (settings.parts.clone(), settings.address.clone());
    let started = tokio::select! {
        started = start(&context, settings, args.webhook_port, cloud, sources) => started.map(Some),
        early = &mut interrupted => early.map(|()| None),
    };
    let RunningParts { mut served, lead } = match started {
        Ok(Some(started)) => started,
        // Some configurations may have been written already.
        early => {
            address.withdraw(&context.client, &parts).await;
            return early.map(|_| true);
        }
    };
    readiness.reached();
    let ended = {
        let over = pin!(async {
            tokio::select! {
                ended = interrupted => ended,
                why = failed(&mut served) => Err(Failure::run(why)),
            }
        });
        match lead {
            None => over.await.map(|()| true),
            Some(lead) => lead.until(&context, over, &readiness).await,
        }
    };
    // First, so that the Service sends no more reviews while the webhooks still answer those under way.
    readiness.mark_not_ready("it is stopping");
    address.withdraw(&context.client, &parts).await;
    if let Some(served) = served {
        served.stop().await;
    }
    if timeout(STOP_PATIENCE, context.stop()).await.is_err() {
        tracing::warn!(
            "not everything has stopped after {} s",
            STOP_PATIENCE.as_secs()
        );
    }
    if let Some(export) = export {
        export.finish().await;
    }
    ended
}

/// Returns the user that this process is to the API server, so that the parts `addresses` and `ipam` of one process, or of processes with one
/// kubeconfig, do not refuse each other's writes.
async fn own_user(client: &Client) -> Option<String> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let (params, question) = (PostParams::default(), SelfSubjectReview::default());
    let said = timeout(source::PATIENCE, api.create(&params, &question)).await;
    let why = match said {
        Ok(Ok(review)) => return review.status?.user_info?.username,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    tracing::warn!(
        "the API server does not say which user this process is ({why}): if it hands out addresses of Windows pods, name its user in --address-users"
    );
    None
}

/// Waits until the webhook server ends without having been stopped, and returns why; waits forever if there are no webhooks.
async fn failed(served: &mut Option<WebhookServer>) -> String {
    match served {
        Some(served) => served.failed().await,
        None => std::future::pending().await,
    }
}

/// The parts that a replica runs: the webhooks, and those that wait for the Lease.
struct RunningParts {
    served: Option<WebhookServer>,
    lead: Option<LeaderParts>,
}

async fn start(
    context: &Context,
    settings: Settings,
    webhook_port: u16,
    cloud: Option<NodeCloud>,
    sources: MetricsSources,
) -> Result<RunningParts, Failure> {
    let Settings {
        parts,
        scheduler,
        placement,
        rules,
        namespace,
        lease,
        bind,
        address,
        nodes,
        ..
    } = settings;
    let gate = (rules.placement.clone(), rules.facts.clone());
    let served = match parts.have_webhooks() {
        true => {
            let hooks = WebhookSettings {
                parts: parts.clone(),
                address,
            };
            if parts.has(Part::Placement) || parts.has(Part::Addresses) {
                tracing::info!("waits for the list of nodes, at which rules look");
                // Without the nodes the first pods would be placed as if there were none.
                context.informers.nodes.synced().await;
            }
            let address = SocketAddr::new(bind, webhook_port);
            Some(webhooks::serve(context, address, &namespace, hooks, rules).await?)
        }
        false => None,
    };
    let election = lease.map(|lease| {
        let (client, clock) = (context.client.clone(), context.clock.clone());
        Election::new(client, clock, &namespace, &lease, &identity())
    });
    let lead = parts.need_a_leader().then_some(LeaderParts {
        election,
        parts,
        scheduler,
        placement,
        gate,
        nodes,
        cloud,
        sources,
    });
    Ok(RunningParts { served, lead })
}

/// The parts that only the leader runs.
struct LeaderParts {
    /// The leader election; `None` if there is only ever one process.
    election: Option<Election>,
    parts: Parts,
    scheduler: scheduler::config::Config,
    placement: mullion_engine::Options,
    gate: (PlaceByImage, Arc<ImageFacts>),
    nodes: NodeSettings,
    cloud: Option<NodeCloud>,
    sources: MetricsSources,
}

impl LeaderParts {
    /// Waits for the Lease, then leads until the interrupt and releases the Lease. Returns false if the Lease was lost.
    async fn until(
        mut self,
        context: &Context,
        mut interrupted: impl Future<Output = Result<(), Failure>> + Unpin,
        readiness: &Readiness,
    ) -> Result<bool, Failure> {
        let Some(mut election) = self.election.take() else {
            self.start(context);
            return interrupted.await.map(|()| true);
        };
        tokio::select! {
            () = election.won() => {}
            early = &mut interrupted => {
                // The last attempt to get the Lease may have succeeded.
                election.give_back().await;
                return early.map(|()| true);
            }
        }
        tracing::info!("this process leads");
        self.start(context);
        let ended = tokio::select! {
            why = election.lost() => {
                // Everything stops at once, because another process may lead from now on.
                context.shutdown.cancel();
                tracing::error!("this process stops: {why}");
                return Ok(false);
            }
            ended = interrupted => ended,
        };
        readiness.mark_not_ready("it is stopping");
        // All parts must have stopped before the next leader starts.
        let stopped = timeout(STOP_PATIENCE, context.stop()).await;
        // Otherwise something may still be writing, and the Lease is left to expire.
        if stopped.is_ok() {
            election.give_back().await;
        }
        ended.map(|()| true)
    }

    fn start(self, context: &Context) {
        let LeaderParts {
            parts,
            scheduler,
            placement,
            gate: (rule, facts),
            nodes,
            cloud,
            sources,
            ..
        } = self;
        let work = Work {
            provisioning: parts.has(Part::Provisioner),
            disruption: parts.has(Part::Disruption),
        };
        let decides = parts.has(Part::Scheduler) || work.provisioning || work.disruption;
        // Only these parts need a model of the cluster.
        let state = decides.then(|| {
            let state = SharedState::with_profiles(context, placement, &scheduler.profiles);
            state.with(|state| {
                state
                    .cluster_mut()
                    .judge_devices_by(Arc::new(CelEvaluator::default()));
            });
            state
        });
        if let (Some(state), Some(cloud)) = (&state, &cloud)
            && (work.provisioning || work.disruption)
        {
            let log = DecisionLog::new(context.clock.clone(), DEFAULT_LINES);
            let options = Options {
                cluster: nodes.cluster,
                version: cloud.version,
                seed: 0,
                gates: nodes.gates,
                settings: nodes.settings,
            };
            let cloud = Arc::clone(&cloud.cloud);
            let own = provisioner::start_work(context, state, cloud, log.clone(), options, work);
            sources.provisioner.get_or_init(|| own);
            up::story::log(context, &log);
        }
        if let (Some(cloud), true) = (&cloud, parts.has(Part::Ipam)) {
            let own = ipam::start(context, Arc::clone(&cloud.addresses), nodes.ipam);
            sources.addresses.get_or_init(|| own);
        }
        if let (Some(state), true) = (&state, parts.has(Part::Scheduler)) {
            scheduler::start_with(context, state, 0, &scheduler);
            let names: Vec<_> = scheduler
                .profiles
                .iter()
                .map(|profile| profile.scheduler_name.as_str())
                .collect();
            tracing::info!("schedules pods with schedulerName {}", names.join(", "));
        }
        if decides {
            traces::follow(context, sources.provisioner.get());
        }
        if parts.has(Part::Placement) {
            image_gate::start(context, rule, facts);
        }
    }
}

/// Reads the settings from flags and files.
///
/// # Errors
/// A setting is wrong; nothing has been started then.
fn settings(args: &ControllerArgs, in_cluster: bool) -> Result<Settings, Failure> {
    let parts = args.parts()?;
    let scheduler = match &args.scheduler_config {
        Some(path) => {
            let (config, text) = scheduler_config::read(path)?;
            let value: Option<serde_json::Value> = input::fields(&text).ok();
            if value.is_some_and(|value| value.get("leaderElection").is_some()) {
                tracing::warn!(
                    "{}: leaderElection is not read: --leader-election-name and --disable-leader-election say it",
                    input::named(path)
                );
            }
            config
        }
        None => {
            let mut config = scheduler::config::Config::default();
            config.profiles[0].scheduler_name = SCHEDULER_NAME.to_owned();
            config
        }
    };
    let registries = Registries::new(args.registries.clone(), Arc::new(SystemDial::default()));
    let facts = Arc::new(ImageFacts::new(registries));
    let own_namespace = || {
        let text = std::fs::read_to_string(OWN_NAMESPACE).ok()?;
        Some(text.trim().to_owned()).filter(|name| !name.is_empty())
    };
    let namespace = args
        .namespace
        .clone()
        .or_else(|| in_cluster.then(own_namespace).flatten())
        .unwrap_or_else(|| NAMESPACE.to_owned());
    let address = match (&args.webhook_url, &args.webhook_service, in_cluster) {
        (Some(url), _, _) => WebhookAddress::Url {
            url: checked(url)?,
            is_own: false,
        },
        (None, None, false) => WebhookAddress::Url {
            url: format!("https://127.0.0.1:{}", args.webhook_port),
            is_own: true,
        },
        (None, service, _) => WebhookAddress::Service {
            namespace: namespace.clone(),
            name: service.clone().unwrap_or_else(|| SERVICE.to_owned()),
        },
    };
    // In a cluster, API servers reach the pod over the network; elsewhere the default URL of the webhooks is on this machine.
    let bind = args.bind_address.unwrap_or(match in_cluster {
        true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        false => IpAddr::V4(Ipv4Addr::LOCALHOST),
    });
    if parts.have_webhooks() && args.webhook_port == 0 {
        return Err(
            Failure::input("--webhook-port 0: API servers have to know the port").hint(
                "give a port, or leave out placement, addresses and gmsa with --only scheduler",
            ),
        );
    }
    let lease = args
        .leader_election_name
        .clone()
        .unwrap_or_else(|| parts.lease());
    Ok(Settings {
        scheduler,
        placement: mullion_engine::Options {
            os_filter: !args.ignore_pod_os,
        },
        rules: Rules {
            placement: PlaceByImage {
                table: Arc::new(images::table(args.images.as_deref())?),
                facts: facts.clone(),
                gates_unknown: args.unknown_images == UnknownImages::Gate,
            },
            facts,
            addresses: WindowsAddresses {
                controllers: args.address_users.clone(),
            },
            gmsa: Gmsa {
                random_host_name: args.gmsa_random_hostname,
            },
        },
        lease: (!args.disable_leader_election).then_some(lease),
        nodes: NodeSettings {
            cluster: args.cluster_name.clone().unwrap_or_default(),
            gates: args.feature_gates.unwrap_or_default(),
            settings: provisioner::Settings {
                zonal_shift: args.enable_zonal_shift,
                ..args.karpenter.settings()?
            },
            ipam: args.ipam.into(),
        },
        traces: args.traces.settings()?,
        namespace,
        bind,
        address,
        parts,
    })
}

/// Returns the Kubernetes version for new nodes, which is the API server's.
async fn version(client: &Client) -> Result<KubernetesVersion, Failure> {
    let failed =
        |why: String| Failure::run(format!("the version of the API server is not known: {why}"));
    let said = timeout(source::PATIENCE, client.apiserver_version()).await;
    let said = said
        .map_err(|_| failed("no answer".to_owned()))?
        .map_err(|error| failed(error.to_string()))?;
    // EKS reports a minor version such as "35+".
    let minor = said.minor.trim_end_matches('+').parse().ok();
    minor
        .and_then(KubernetesVersion::from_minor)
        .ok_or_else(|| failed(format!("{}.{} has no images", said.major, said.minor)))
}

/// Checks the URL that API servers will call: it must have the scheme https and a host, but no path.
fn checked(url: &str) -> Result<String, Failure> {
    let refused = |why: &str| {
        Failure::input(format!("--webhook-url {url}: {why}"))
            .hint("it has to look like https://10.0.0.5:8443")
    };
    let uri: http::Uri = url.parse().map_err(|_| refused("it is no URL"))?;
    if uri.scheme_str() != Some("https") {
        return Err(refused("API servers call webhooks with https alone"));
    }
    if uri.host().unwrap_or_default().is_empty() {
        return Err(refused("it names no host"));
    }
    if uri
        .path_and_query()
        .is_some_and(|path| path.as_str() != "/")
    {
        return Err(refused(
            "the paths of the webhooks are added to it, so it may have none",
        ));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Returns whether this process runs in a pod with a service account.
fn runs_in_a_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && Path::new(OWN_NAMESPACE).exists()
}

/// Returns a client with the permissions of the pod's service account.
fn in_own_cluster() -> Result<(Client, String), Failure> {
    let failed = |why: String| {
        Failure::input(format!(
            "the service account of this pod cannot be used: {why}"
        ))
        .hint("the pod needs automountServiceAccountToken, or name a kubeconfig with --kubeconfig")
    };
    let config = kube::Config::incluster().map_err(|error| failed(error.to_string()))?;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).map_err(|error| failed(error.to_string()))?;
    Ok((client, server))
}

/// Returns a name for the leader election that no other candidate has.
fn identity() -> String {
    let host = std::env::var("POD_NAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/etc/hostname").ok())
        .unwrap_or_default();
    // A restarted pod may have the same name, and must not take the Lease of its predecessor for its own.
    let unique = uuid::Uuid::new_v4();
    match host.trim() {
        "" => unique.to_string(),
        host => format!("{host}_{unique}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_the_webhooks_has_tls_a_host_and_no_path() {
        let said = |url: &str| checked(url).map_err(|failure| failure.to_string());
        assert_eq!(
            said("https://10.0.0.5:8443/"),
            Ok("https://10.0.0.5:8443".to_owned())
        );
        for (url, why) in [
            ("http://10.0.0.5", "https alone"),
            ("https://10.0.0.5/hooks", "may have none"),
            ("10.0.0.5:8443", "https alone"),
            ("https://", "no URL"),
        ] {
            let refused = said(url).expect_err("it is refused");
            assert!(refused.contains(why), "{refused}");
        }
    }
}
