//! Runs what is measured: only the API server on its TLS port, and the scheduler with its informers.
//!
//! Nodes and all other objects of a scenario are created through the same port before the scheduler starts.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use mullion_cloud::Clock;
use mullion_controllers::{Context, scheduler, state::SharedState};
use mullion_engine::{Options, scenario::Scenario};
use serde_json::json;

use super::{
    load::{change, creation, pods_of, send_all},
    manifest::{self, POD_SLOTS},
};
use crate::{bench::api::server::Server, failure::Failure};

/// The API server and the scheduler, which is started later.
pub(super) struct Stage {
    pub(super) server: Server,
    pub(super) context: Context,
}

impl Stage {
    /// Starts the API server.
    pub(super) async fn serve() -> Result<Self, Failure> {
        let server = Server::start(None).await?;
        let clock = Clock::starting_at(Timestamp::now());
        let context = Context::new(server.client("system:kube-scheduler"), clock);
        Ok(Self { server, context })
    }

    /// Creates the objects that a scenario starts with.
    pub(super) async fn set(&self, scenario: Scenario, nodes: usize) -> Result<(), Failure> {
        let server = &self.server;
        for (collection, object) in manifest::surroundings(scenario) {
            send_all(server, std::iter::once(creation(&collection, &object))).await?;
        }
        let nodes = 0..nodes;
        let created = nodes.clone().map(move |index| {
            let node = manifest::node(scenario, index);
            creation("/api/v1/nodes", &node)
        });
        send_all(server, created).await?;
        // New nodes have a taint until they are seen to be ready; the patch removes it.
        let ready = nodes.clone().map(move |index| {
            let patch = json!({"spec": {"taints": manifest::taints(scenario, index)}});
            change(&format!("/api/v1/nodes/node-{index}"), &patch)
        });
        send_all(server, ready).await?;
        if scenario == Scenario::Preemption {
            let fillers = (0..nodes.len() * POD_SLOTS).map(|index| {
                let mut pod = manifest::filler(index / POD_SLOTS);
                pod["metadata"]["name"] = format!("filler-{index}").into();
                creation(&pods_of("default"), &pod)
            });
            send_all(server, fillers).await?;
        }
        Ok(())
    }

    /// Starts the scheduler, and waits until it knows all objects.
    pub(super) async fn schedule(&self) {
        let state = SharedState::new(&self.context, Options::default());
        scheduler::start_over(&self.context, &state, 0);
        state.synced().await;
        state.catch_up();
    }

    /// Returns the API server's current revision, which every write of an object raises by one.
    pub(super) async fn revision(&self) -> Result<u64, Failure> {
        let failed = |why: String| Failure::run(format!("the server's revision: {why}"));
        let one = ListParams::default().limit(1);
        let listed = Api::<Node>::all(self.context.client.clone())
            .list_metadata(&one)
            .await;
        let listed = listed.map_err(|error| failed(error.to_string()))?;
        let text = listed.metadata.resource_version.unwrap_or_default();
        let revision = text.parse();
        revision.map_err(|_| failed(format!("{text:?} is no number")))
    }

    /// Stops the scheduler, then the API server.
    pub(super) async fn end(self) -> Result<(), Failure> {
        self.context.stop().await;
        self.server.stop().await
    }
}
