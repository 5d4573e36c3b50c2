//! The parts of `mullion controller` that only the replica which holds the Lease runs.

use std::sync::Arc;

use mullion_controllers::{
    Context,
    admission::placement::PlaceByImage,
    image_gate, ipam,
    leader::Election,
    provisioner::{self, DecisionLog, Options, Work, decision_log::DEFAULT_LINES},
    scheduler,
    state::SharedState,
    traces,
};
use tokio::time::timeout;

use super::{
    MetricsSources, NodeCloud, STOP_PATIENCE,
    args::{Part, Parts},
    serving::Readiness,
    settings::NodeSettings,
};
use crate::{devices::CelEvaluator, failure::Failure, image_facts::ImageFacts, up};

/// The parts that only the leader runs.
pub(super) struct LeaderParts {
    /// The leader election; `None` if there is only ever one process.
    pub(super) election: Option<Election>,
    pub(super) parts: Parts,
    pub(super) scheduler: scheduler::config::Config,
    pub(super) placement: mullion_engine::Options,
    pub(super) gate: (PlaceByImage, Arc<ImageFacts>),
    pub(super) nodes: NodeSettings,
    pub(super) cloud: Option<NodeCloud>,
    pub(super) sources: MetricsSources,
}

impl LeaderParts {
    /// Waits for the Lease, then leads until the interrupt and releases the Lease. Returns false if the Lease was lost.
    pub(super) async fn until(
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
