//! Starts and stops a cluster in the right order, and stops everything if a part fails to start.
//!
//! A cluster on disk continues: its objects, its cloud and its authority are restored, and initial objects are created only if they were
//! not before.
//!
//! The port is taken and the kubeconfig written before any controller runs. The API server responds first, then the initial objects are
//! created, then controllers, kubelets and the provisioner start. Stopping is in reverse order.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::Client;
use mullion_api::labels;
use mullion_apiserver::{ApiServer, Config, Tls, admission::User};
use mullion_cloud::{Clock, LaunchRequest, sim::SimulatedEc2};
use mullion_controllers::{
    Context,
    admission::placement::PlaceByImage,
    autoscaler, cluster_role_aggregation, gc, image_gate, ipam,
    kubelet::{self, pace::Pace, usage::Meter},
    namespace, node_lifecycle, pdb, podgc,
    provisioner::KarpenterContext,
    quota, resource_claims, scheduler, service, serviceaccount,
    state::SharedState,
    traces::{self, Tracer},
    volume_protection, volumes, workloads,
};
use mullion_images::{Registries, Settings, SystemDial};
use mullion_store::Notes;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    account, detach,
    faults::Faults,
    image_placement::{ImagePlacement, PullRegistries},
    inert_fields::InertFields,
    karpenter,
    logs::SimulatedLogs,
    metrics::SimulatedMetrics,
    nodes::{self, Machine, RegisteredNodes},
    plan::Plan,
    pod_rules,
    progress::{Progress, ShownNodes},
    published, setup, story,
};
use crate::{
    certs::Certs,
    clusters::{
        keep,
        running::{self, Announced, Record},
    },
    devices::CelEvaluator,
    failure::Failure,
    image_facts::ImageFacts,
    kubeconfig::{self, Target},
    open_files,
    traces::Export,
};

/// EKS's range of Service addresses for a VPC in 10.0.0.0/16; the `kubernetes` Service has an address in it.
const SERVICE_CIDR: &str = "172.20.0.0/16";
const SERVICE_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(172, 20, 0, 1));
/// The user name of this program's controllers.
const OWN_USER: &str = "system:mullion";
/// The interval at which the readiness of nodes is checked.
const NODES_CHECK: Duration = Duration::from_millis(20);
/// The time that stopping may take.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// The shortest interval for autoscalers, at any speed of the simulation.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// A running cluster.
pub(crate) struct Cluster {
    /// The plan from which the cluster was started.
    pub(crate) plan: Plan,
    /// The address of the API server.
    pub(crate) address: SocketAddr,
    /// The time between the start of the process's work and the first response of the API server.
    pub(crate) api_ready_in: Duration,
    /// The cluster's certificates.
    pub(crate) certs: Certs,
    /// Whether the cluster continues an earlier start.
    pub(crate) resumed: bool,
    /// The log file, if the cluster will run in the background.
    pub(crate) log: Option<PathBuf>,
    server: Arc<ApiServer>,
    ec2: SimulatedEc2,
    announced: Option<Announced>,
    context: Context,
    traces: Option<Export>,
    registries: Arc<Registries>,
    image_gate: (PlaceByImage, Arc<ImageFacts>),
    stop_serving: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Cluster {
    /// Starts everything. Nodes may still be booting when it returns.
    pub(crate) async fn start(mut plan: Plan) -> Result<Cluster, Failure> {
        let began = Instant::now();
        let (tracer, traces) = match plan.traces.take() {
            Some(settings) => Export::start(settings).map(|(tracer, own)| (tracer, Some(own)))?,
            None => (Tracer::default(), None),
        };
        let clock = Clock::system();
        // First, because the lock of the directory keeps a second process from starting the same cluster.
        let store = keep::open(plan.directory.as_deref(), plan.fresh, clock.now())?;
        let notes = store.notes().clone();
        plan.go_on(&notes)?;
        let resumed = keep::is_filled(&notes);
        let (ec2, orders) = plan.cloud(clock.clone(), &notes)?;
        // Before anything is written that names the port.
        let (listener, address) = plan.port.bind().await?;
        keep::set_port(&notes, address.port());
        let certs = keep::authority(&notes, clock.now())
            .and_then(|authority| authority.issue(clock.now(), [SERVICE_IP]))
            .map_err(|error| Failure::run(format!("certificates cannot be made: {error}")))?;
        let front_proxies = keep::front_proxy_authority(&notes, clock.now())
            .map_err(|error| Failure::run(format!("certificates cannot be made: {error}")))?;

        let sources = Sources::default();
        // Simulated kubelets need the sizes of images, which determine how long a pull takes.
        let settings = Settings {
            sizes: true,
            ..plan.registries.clone()
        };
        let registries = Registries::new(settings, Arc::new(SystemDial::default()));
        let gates_unknown = plan.gates_unknown_images;
        let placement = ImagePlacement::new(plan.images.clone(), registries.clone(), gates_unknown);
        let image_gate = placement.gate();
        let config = Config {
            clock: Arc::new({
                let clock = clock.clone();
                move || clock.now()
            }),
            service_cidr: SERVICE_CIDR
                .parse()
                .expect("a constant range with room for Services"),
            advertise: ec2
                .control_plane_addresses()
                .into_iter()
                .map(Into::into)
                .collect(),
            client_authority: Some(certs.ca.clone()),
            front_proxy_authority: Some(front_proxies),
            admission: pod_rules::plugins(placement, OWN_USER, plan.gmsa_random_hostname)
                .chain([Arc::new(InertFields { gates: plan.gates }) as _])
                .collect(),
            provided: sources.metrics.provided(),
            logs: Some(Arc::new(sources.logs.clone())),
            metrics: Some(Arc::new({
                let addresses = Arc::clone(&sources.addresses);
                let provisioner = Arc::clone(&sources.provisioner);
                move || {
                    let addresses = addresses.get().map(|metrics| metrics.numbers().text());
                    let provisioner = provisioner.get().map(|own| own.metrics_text());
                    addresses.unwrap_or_default() + &provisioner.unwrap_or_default()
                }
            })),
            limits: open_files::server_limits(),
            ..Config::default()
        };
        let server = ApiServer::with_store(config, store).await;
        let tls = Tls::from_pem(
            certs.server.cert.as_bytes(),
            certs.server.key.as_bytes(),
            certs.ca.as_bytes(),
        )
        .map_err(|error| {
            Failure::run(format!(
                "the API server's certificate cannot be used: {error}"
            ))
        })?;
        plan.kubeconfig = plan.kubeconfig.map(|target| target.free(address.port()));
        let log = plan
            .detached
            .then(|| detach::log(plan.directory.as_deref(), &plan.name, address.port()));
        let log = log.transpose()?;
        let mut announced = None;
        if let Some(target) = &plan.kubeconfig {
            let server = format!("https://{address}");
            let leads_to = kubeconfig::Cluster {
                name: &plan.name,
                server: &server,
                directory: plan.directory.as_deref(),
                certs: &certs,
            };
            kubeconfig::write(target, &leads_to)?;
            keep::set_kubeconfig(&notes, target.path());
            tracing::info!("kubeconfig written to {}", target.path().display());
            announced = running::announce(&Record {
                name: plan.name.clone(),
                pid: std::process::id(),
                access: kubeconfig::for_cluster(&leads_to),
                server,
                kubeconfig: Some(target.path().to_owned()),
                directory: plan.directory.clone(),
                started: clock.now(),
                log: log.clone(),
            });
        }
        let stop_serving = CancellationToken::new();
        let serving = tokio::spawn({
            let (server, stopped) = (server.clone(), stop_serving.clone().cancelled_owned());
            async move { server.serve(listener, tls, stopped).await }
        });
        let api_ready_in = began.elapsed();
        tracing::info!("the API server listens on https://{address}");

        // Controllers call the API server in memory, without TLS and serialization of a connection.
        let client = Client::new(server.router_as(administrator()), "default");
        let context = Context::new(client.clone(), clock).with_traces(tracer);
        let cluster = Cluster {
            plan,
            address,
            api_ready_in,
            certs,
            resumed,
            log,
            server,
            ec2,
            announced,
            context,
            traces,
            registries,
            image_gate,
            stop_serving,
            serving,
        };
        match cluster.populate(&client, orders, sources, &notes).await {
            Ok(()) => Ok(cluster),
            Err(failure) => {
                cluster.stop().await;
                Err(failure)
            }
        }
    }

    /// Starts checking admission policies against the types of the API server.
    fn check_policies(&self) {
        let (checking, shutdown) = (self.server.check_policies(), self.context.shutdown.clone());
        let checking = async move { shutdown.run_until_cancelled(checking).await };
        self.context.tasks.spawn(checking);
    }

    async fn populate(
        &self,
        client: &Client,
        orders: Vec<LaunchRequest>,
        sources: Sources,
        notes: &Notes,
    ) -> Result<(), Failure> {
        let (context, ec2) = (&self.context, &self.ec2);
        let windows = self.plan.default_pools || self.plan.spec.has_windows();
        let wanted = setup::SetupOptions {
            windows,
            pools: self.plan.default_pools,
            account: account::manifests(&self.plan),
        };
        // The user may have changed or deleted the objects of the first start since, so a resumed cluster gets none again.
        let orders = if self.resumed {
            // Only the definitions of custom resources are renewed, because another version of the program may use other fields.
            let had = keep::definitions(notes);
            let has = setup::renew_definitions(client, &wanted, had).await?;
            keep::set_definitions(notes, &has);
            Vec::new()
        } else {
            setup::fill(client, &wanted).await?;
            keep::set_definitions(notes, &setup::definitions());
            orders
        };
        let scheduler = self.plan.scheduler_text.as_deref();
        published::publish(client, scheduler, self.plan.pod_os_counts).await?;
        published::publish_settings(client, &self.plan.settings).await?;
        for order in orders {
            let group = order.tags.get(labels::EKSCTL_NODEGROUP).cloned();
            ec2.provide(order).map_err(|error| {
                let group = group.unwrap_or_default();
                Failure::input(format!(
                    "node group {group}: an instance cannot be had: {error}"
                ))
                .hint("lower its desiredCapacity, or spread it over more availabilityZones")
            })?;
        }
        // Only after all objects and instances are there: a start that was cut off before this fills the
        // cluster again.
        keep::set_filled(notes);
        let placement = mullion_engine::Options {
            os_filter: self.plan.pod_os_counts,
        };
        let profiles = &self.plan.scheduler.profiles;
        let state = SharedState::with_profiles(context, placement, profiles);
        state.with(|state| {
            state
                .cluster_mut()
                .judge_devices_by(Arc::new(CelEvaluator::default()))
        });
        // Reservations and faults must be in effect before the provisioner buys anything.
        account::resume(context, ec2).await;
        let faults = Faults::resume(context, ec2, &self.plan.exhausted).await?;
        let (decisions, provisioner) = karpenter::start(context, &state, ec2, &self.plan);
        traces::follow(context, Some(&provisioner));
        sources.provisioner.get_or_init(|| provisioner);
        story::log(context, &decisions);
        sources.logs.serve(context, decisions);
        let pace: Pace = self.plan.speed.into();
        sources.metrics.serve(Meter::new(context, pace));
        controllers(context, &state, ec2, &self.plan, &self.certs.ca);
        let addresses = ipam::start(context, Arc::new(ec2.clone()), self.plan.ipam);
        sources.addresses.get_or_init(|| addresses);
        account::follow(context, ec2, &self.plan.spec.name);
        account::follow_spec(context, ec2);
        // This runs without the flag too, because pods of an earlier start may have the gate.
        let (rule, registries) = self.image_gate.clone();
        image_gate::start(context, rule, registries);
        self.check_policies();
        let options = kubelet::driver::Options {
            pace,
            images: kubelet::pulls::ImageSources {
                table: self.plan.images.clone(),
                contents: Some(Arc::new(PullRegistries(self.registries.clone()))),
            },
        };
        kubelet::driver::start(
            context,
            options,
            kubelet::machines::follow(context, ec2.clone()),
        );
        faults.follow();
        self.context.informers.nodes.synced().await;
        Ok(())
    }

    /// Waits until every instance that will stay has a ready node, except for instances whose nodes were deleted. Returns the number of
    /// nodes.
    ///
    /// # Errors
    /// The nodes that are not ready after `patience`.
    pub(crate) async fn nodes_ready(&self, patience: Duration) -> Result<usize, Vec<Machine>> {
        let ready = async {
            self.context.informers.nodes.synced().await;
            let mut registered = RegisteredNodes::default();
            loop {
                let machines = registered.remaining(self.machines());
                let done = |machine: &Machine| machine.is_ready || machine.is_stopped;
                if machines.iter().all(done) {
                    return machines.len();
                }
                tokio::time::sleep(NODES_CHECK).await;
            }
        };
        let ready = tokio::time::timeout(patience, ready).await;
        ready.map_err(|_| {
            let mut machines = self.machines();
            machines.retain(|machine| !machine.is_ready && !machine.is_stopped);
            machines
        })
    }

    /// Returns the current nodes, including those that are booting.
    pub(super) fn machines(&self) -> Vec<Machine> {
        nodes::machines(&self.ec2, &self.context.informers.nodes)
    }

    /// Starts to print changes of nodes on stderr; those in `seen` are known already.
    pub(super) fn progress(&self, seen: ShownNodes) -> Option<Progress> {
        Progress::start(&self.ec2, &self.context.informers.nodes, seen)
    }

    /// Stops the controllers first, then the API server; stops waiting after some time.
    pub(crate) async fn stop(self) {
        let serving = self.serving;
        let orderly = async {
            self.context.stop().await;
            self.stop_serving.cancel();
            // A panic of the task was printed already and must not stop the rest of the shutdown.
            let _ = serving.await;
        };
        // Tasks that do not end in time end with the process.
        let _ = tokio::time::timeout(STOP_PATIENCE, orderly).await;
        if let Some(traces) = self.traces {
            traces.finish().await;
        }
        let _ = tokio::time::timeout(STOP_PATIENCE, self.server.close()).await;
        // A cluster in memory is gone for good when it stops, so its context is removed.
        if let (Some(Target::Merge(path)), None) = (&self.plan.kubeconfig, &self.plan.directory) {
            let server = format!("https://{}", self.address);
            let mark = kubeconfig::mark(&server, None);
            if let Err(failure) = kubeconfig::remove(path, &mark) {
                tracing::warn!("the context {} stays: {failure}", self.plan.name);
            }
        }
        drop(self.announced);
    }
}

/// The sources of simulated data that the API server shows besides objects.
#[derive(Default)]
struct Sources {
    logs: SimulatedLogs,
    metrics: SimulatedMetrics,
    /// The metrics of the address controller, once it runs.
    addresses: Arc<OnceLock<ipam::metrics::Metrics>>,
    /// The context with the metrics of the provisioner, once it runs.
    provisioner: Arc<OnceLock<KarpenterContext>>,
}

/// Starts the controllers that a real cluster has as processes, except for the kubelets and the provisioner.
fn controllers(context: &Context, state: &SharedState, ec2: &SimulatedEc2, plan: &Plan, ca: &str) {
    workloads::start(context);
    service::start(
        context,
        Arc::new(service::ElasticLoadBalancers::new(&plan.spec.region)),
    );
    namespace::start(context);
    serviceaccount::start(context, Some(ca.into()));
    cluster_role_aggregation::start(context);
    pdb::start(context);
    quota::start(context);
    let period = plan.speed.scale(autoscaler::PERIOD);
    autoscaler::start(context, period.max(SHORTEST_PERIOD));
    podgc::start(context);
    volume_protection::start(context);
    volumes::start(context);
    volumes::driver::start(context, plan.speed);
    resource_claims::start(context);
    gc::start(context);
    node_lifecycle::start(context, Some(Arc::new(ec2.clone())));
    scheduler::start_with(context, state, 0, &plan.scheduler);
    tracing::info!(
        "started: deployments, replica sets, daemon sets, stateful sets, jobs, autoscalers, quotas, services, endpoints, namespaces, service accounts, aggregated \
         roles, disruption budgets, volumes, resource claims, garbage collection, node lifecycle, Windows addresses, scheduler"
    );
}

/// Returns the user of the controllers.
fn administrator() -> User {
    User {
        name: OWN_USER.into(),
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        ..User::default()
    }
}
