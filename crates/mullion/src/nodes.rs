//! `mullion nodes`: simulated Linux and Windows nodes for a cluster whose API server, scheduler and controllers run elsewhere.
//!
//! The instances of a ClusterConfig's node groups are launched in a simulated EC2 in this process. The kubelet of each registers it with
//! the cluster, runs the pods bound to it, and reports their status. Windows pods get their addresses as on EKS, from this process unless
//! another controller assigns them. The same config gives the same nodes, so a new start continues with them.

use std::{path::PathBuf, pin::pin, sync::Arc, time::Duration};

use clap::Args;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use mullion_api::{crds, eksctl};
use mullion_cloud::{
    Clock, Speed, node_group,
    remote::{CallFaults, Unreliable},
    sim::{self, ParseFaultsError, SimulatedEc2},
};
use mullion_controllers::{
    Context, ipam,
    kubelet::{self, pulls::ImageSources},
};
use mullion_images::{Registries, Settings, SystemDial};
use tokio::time::timeout;

use crate::{
    cli::{Ipam, port, speed},
    cloud,
    failure::Failure,
    out, reach, simulated_cloud,
    up::{
        self,
        image_placement::PullRegistries,
        images, node_profiles,
        plan::{config_failure, read},
        progress::{Progress, ShownNodes},
        setup,
    },
    why::source,
};

/// The time that stopping may take.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// The time that a request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Flags of `mullion nodes`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion nodes --config cluster.yaml --kubeconfig ./kubeconfig
  mullion nodes --config cluster.yaml --context kind-kind --speed 100")]
pub(crate) struct NodesArgs {
    /// An eksctl ClusterConfig (eksctl.io/v1alpha5) with the node groups; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// The cluster's kubeconfig [default: $KUBECONFIG, else that of `mullion up`, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Divide simulated delays (boot, image pull) by N; `max` leaves none
    #[arg(long, value_name = "N", default_value = "10", allow_negative_numbers = true, value_parser = speed)]
    speed: Speed,

    /// Whether Windows pods get their addresses from this program: `auto` does unless another controller does, `off` only watches
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    ipam: Ipam,

    /// Port on 127.0.0.1 where the simulated EC2 answers `mullion controller --cloud simulated`; 0 takes any free one
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true, value_parser = port)]
    cloud_port: u16,

    /// Let calls of `mullion controller --cloud simulated` go wrong: terms with commas between, throttle=N%, lost=N% (answers), rate=N/s and seed=N
    #[arg(long, value_name = "FAULTS", value_parser = call_faults)]
    cloud_faults: Option<CallFaults>,

    /// Port on 127.0.0.1 where the simulated EC2 answers clients of AWS, as `mullion cloud` does; what they launch becomes nodes; 0 takes any free one
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = port)]
    aws_port: Option<u16>,

    /// How long your own nodes take to boot and how fast they pull images, in place of typical figures (docs/simulation.md)
    #[arg(long, value_name = "FILE")]
    node_profiles: Option<PathBuf>,

    /// What is known of your own images: platform, Windows build and size, in front of the built-in table (docs/simulation.md)
    #[arg(long, value_name = "FILE")]
    images: Option<PathBuf>,

    /// Registries that are asked what an image runs on, beside those of this machine: `all`, `none`, or with commas between HOST, http://HOST
    /// (without TLS) or HOST=MIRROR (docs/windows.md)
    #[arg(long, value_name = "HOSTS")]
    registries: Option<Settings>,

    /// Say more on stderr; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Runs the nodes until the process is interrupted. The nodes stay in the cluster, where they become NotReady.
pub(crate) async fn run(args: NodesArgs) -> Result<(), Failure> {
    let (spec, _) = read(&args.config)?;
    let config = sim::Config {
        speed: args.speed,
        node_profiles: node_profiles::read(args.node_profiles.as_deref())?,
        ..sim::Config::for_cluster(&spec)
    };
    let table = Arc::new(images::table(args.images.as_deref())?);
    let clock = Clock::system();
    let ec2 = SimulatedEc2::new(config, clock.clone());
    let orders = node_group::orders(&spec, &ec2)
        .map_err(|error| config_failure(Some(&args.config), &error))?;
    if orders.is_empty() {
        return Err(Failure::input(format!(
            "{}: no node group has a node",
            crate::input::named(&args.config)
        ))
        .hint("set desiredCapacity of a group"));
    }
    let (client, server) = source::client(args.kubeconfig.clone(), args.context.clone()).await?;
    reach::answering(&client, &server).await;
    prepare(&client, &spec).await?;
    let context = Context::new(client.clone(), clock);
    context.informers.nodes.synced().await;
    // This snapshot is taken before any instance exists, so that the progress display reports all of them.
    let begun = ShownNodes::now(Vec::new());
    for order in orders {
        ec2.provide(order)
            .map_err(|error| Failure::input(format!("an instance cannot be had: {error}")))?;
    }
    check_names(&client, &ec2).await?;
    let settings = Settings {
        // Simulated kubelets need the sizes of images, which determine how long a pull takes.
        sizes: true,
        ..args.registries.unwrap_or_default()
    };
    let registries = Registries::new(settings, Arc::new(SystemDial::default()));
    let options = kubelet::driver::Options {
        pace: args.speed.into(),
        images: ImageSources {
            table,
            contents: Some(Arc::new(PullRegistries(registries))),
        },
    };
    let booted = kubelet::machines::follow(&context, ec2.clone());
    kubelet::driver::start(&context, options, booted);
    ipam::start(&context, Arc::new(ec2.clone()), args.ipam.into());
    let count = ec2.instances().len();
    let served = Unreliable::new(ec2.clone(), args.cloud_faults.unwrap_or_default());
    let endpoint = simulated_cloud::serve(served, &client, args.cloud_port).await?;
    out::line(&format!(
        "{count} simulated nodes boot and register with {server}\nthe simulated EC2 listens on {endpoint}\nCtrl-C stops them; they stay in the cluster and become NotReady."
    ));
    if let Some(port) = args.aws_port {
        let settings = mullion_aws_wire::Settings {
            cluster_endpoint: server.clone(),
            ..mullion_aws_wire::Settings::default()
        };
        let account = mullion_aws_wire::Endpoint::new(ec2.clone(), settings);
        out::line(&cloud::serve(account, port, "--aws-port").await?);
    }
    let progress = Progress::start(&ec2, &context.informers.nodes, begun);
    let ended = tokio::select! {
        ended = pin!(up::interrupts()) => ended,
        () = reach::follow(&client, &server) => Ok(()),
    };
    simulated_cloud::withdraw(&client).await;
    if let Some(progress) = progress {
        progress.end().await;
    }
    if timeout(STOP_PATIENCE, context.stop()).await.is_err() {
        tracing::warn!(
            "not everything has stopped after {} s",
            STOP_PATIENCE.as_secs()
        );
    }
    ended
}

fn call_faults(text: &str) -> Result<CallFaults, ParseFaultsError> {
    text.parse()
}

/// Adds what EKS and eksctl add to a cluster with Windows nodes, unless it exists: the kind CNINode, and the ConfigMap that enables Windows
/// addresses.
async fn prepare(client: &Client, spec: &eksctl::Cluster) -> Result<(), Failure> {
    if !spec.has_windows() {
        return Ok(());
    }
    let mut kinds = crds::crds().into_iter();
    if let Some(definition) = kinds.find(|own| own.spec.names.kind == "CNINode") {
        setup::install(client, &definition).await?;
    }
    setup::switch_windows_addresses_on(client).await
}

/// Refuses a cluster that has other nodes with these names: their objects would be overwritten.
async fn check_names(client: &Client, ec2: &SimulatedEc2) -> Result<(), Failure> {
    let nodes: Api<Node> = Api::all(client.clone());
    for instance in ec2.instances() {
        let name = &instance.private_dns_name;
        let found = timeout(PATIENCE, nodes.get_opt(name)).await;
        let failed = |why: String| Failure::run(format!("node {name} cannot be looked up: {why}"));
        let found = found
            .map_err(|_| failed("no answer".to_owned()))?
            .map_err(|error| failed(error.to_string()))?;
        let own = found.as_ref().and_then(|node| {
            let spec = node.spec.as_ref()?;
            spec.provider_id.clone()
        });
        if found.is_some() && own.as_deref() != Some(&instance.provider_id) {
            return Err(Failure::input(format!(
                "the cluster has a node {name} that is another machine ({}): it would be overwritten",
                own.unwrap_or_else(|| "without a providerID".to_owned())
            ))
            .hint("delete that node, or give the ClusterConfig another region or other availabilityZones"));
        }
    }
    Ok(())
}
