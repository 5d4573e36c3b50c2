//! Implements `mullion controller`: Mullion's controllers for a cluster that has its own API server.
//!
//! Every replica serves the webhooks ([`webhooks`]), probes and metrics ([`serving`]). One replica, which holds the Lease, also runs the
//! parts that change objects on their own: the scheduler, for example, and the controller of gated pods. A replica that loses the Lease
//! exits at once, so that it never works at the same time as its successor.

pub(crate) mod args;
mod aws;
mod leader_parts;
mod own_cluster;
mod serving;
mod settings;
mod webhooks;

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use mullion_api::eksctl::KubernetesVersion;
use mullion_cloud::{Addresses, Clock, CloudProvider};
use mullion_controllers::{
    Context, ipam, leader::Election, provisioner::KarpenterContext, traces::Tracer,
};
use tokio::time::timeout;

use self::{
    args::{Cloud, ControllerArgs, LogFormat, Part},
    leader_parts::LeaderParts,
    serving::Readiness,
    settings::Settings,
    webhooks::{WebhookServer, WebhookSettings},
};
use crate::{
    failure::Failure,
    reach, simulated_cloud,
    traces::{Export, export},
    up,
    why::source,
};

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
    let in_cluster =
        args.kubeconfig.is_none() && args.context.is_none() && own_cluster::runs_in_a_pod();
    let mut settings = settings::read(&args, in_cluster)?;
    let (client, server) = if in_cluster {
        own_cluster::client()?
    } else {
        source::client(args.kubeconfig.clone(), args.context.clone()).await?
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
        users.extend(own_cluster::user(&client).await);
    }
    let cloud = match args.cloud {
        None => None,
        Some(Cloud::Simulated) => {
            let cloud = simulated_cloud::connect(&client, args.cloud_endpoint.clone()).await?;
            let cloud = Arc::new(cloud);
            Some(NodeCloud {
                addresses: cloud.clone(),
                cloud,
                version: own_cluster::kubernetes_version(&client).await?,
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
    let served = if parts.have_webhooks() {
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
    } else {
        None
    };
    let election = lease.map(|lease| {
        let (client, clock) = (context.client.clone(), context.clock.clone());
        Election::new(client, clock, &namespace, &lease, &own_cluster::identity())
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
