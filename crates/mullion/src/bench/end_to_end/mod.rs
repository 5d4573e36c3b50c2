//! Implements `mullion bench engine --end-to-end`: it measures the engine's scenarios through the API server.
//!
//! Clients create the pods over the TLS port, and the scheduler sees them through its informers and binds them. The time is measured from
//! the first request until a client's watch has seen the last pod bound to a node. There are no kubelets and no other controllers; API
//! server, scheduler and clients share the machine. Start at [`measure`]; [`stage`] is what is measured, [`load`] has the clients, and
//! [`manifest`] the objects that they send.

mod load;
mod manifest;
mod stage;

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use mullion_engine::scenario::Scenario;

use self::{
    load::{Bindings, Template},
    stage::Stage,
};
use super::{
    api::{LoadTime, LoadTimer},
    engine::Measured,
};
use crate::{cli::Output, failure::Failure, memory, out};

/// The scenarios that are measured; the engine's other scenarios make sense only without an API server.
const SCENARIOS: [Scenario; 11] = [
    Scenario::Basic,
    Scenario::Mixed,
    Scenario::ZoneSpread,
    Scenario::DefaultSpread,
    Scenario::Affinity,
    Scenario::AntiAffinity,
    Scenario::NamespaceAntiAffinity,
    Scenario::Preferred,
    Scenario::Preemption,
    Scenario::Backlog,
    Scenario::Large,
];
/// The timeout of a measurement.
const PATIENCE: Duration = Duration::from_secs(900);
/// The interval between checks whether all unschedulable pods have been refused.
const LOOK: Duration = Duration::from_millis(50);

/// Returns the default number of nodes and pods of a scenario.
pub(super) fn size(scenario: Scenario) -> (usize, usize) {
    match scenario {
        // A million pods, or 550,000 pods to be preempted, need more memory in the API server and an informer than most machines have.
        Scenario::Large => (100_000, 100_000),
        Scenario::Preemption => (500, 5_000),
        _ => scenario.size(),
    }
}

/// Measures each scenario in its own process, so that memory of one is not counted for another.
pub(crate) fn each(nodes: Option<u32>, pods: Option<u32>, output: Output) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::run(format!("a bench cannot be started: {error}"));
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    super::engine::head(output, false);
    for scenario in SCENARIOS {
        let mut command = Command::new(&program);
        command.args([
            "bench",
            "engine",
            "--end-to-end",
            scenario.name(),
            "-o",
            "json",
        ]);
        for (flag, value) in [("--nodes", nodes), ("--pods", pods)] {
            command.args(value.map(|value| format!("{flag}={value}")));
        }
        let done = command
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| failed(&error))?;
        if !done.status.success() {
            return Err(Failure::run(format!(
                "{} could not be measured",
                scenario.name()
            )));
        }
        let text = String::from_utf8_lossy(&done.stdout);
        match output {
            Output::Json => out::line(text.trim_end()),
            Output::Text => {
                let measured = Measured::read(scenario, &text).map_err(|error| failed(&error))?;
                measured.print(output);
            }
        }
    }
    Ok(())
}

/// Measures one scenario and prints its line.
pub(crate) async fn run(
    scenario: Scenario,
    nodes: Option<u32>,
    pods: Option<u32>,
    output: Output,
) -> Result<(), Failure> {
    if !SCENARIOS.contains(&scenario) {
        return Err(Failure::input(format!(
            "{} is measured of the engine alone",
            scenario.name()
        ))
        .hint("leave --end-to-end out, or name another scenario"));
    }
    let (usual_nodes, usual_pods) = size(scenario);
    let nodes = nodes.map_or(usual_nodes, |nodes| nodes as usize);
    let pods = pods.map_or(usual_pods, |pods| pods as usize);
    let stage = Stage::serve().await?;
    let measured = tokio::time::timeout(PATIENCE, measure(&stage, scenario, nodes, pods)).await;
    let resident = memory::resident_bytes();
    stage.end().await?;
    let (LoadTime { seconds, cpu }, writes) = match measured {
        Ok(result) => result?,
        Err(_) => {
            return Err(Failure::run(format!(
                "{}: {pods} pods on {nodes} nodes were not all bound within {} s; ask for fewer pods or more nodes",
                scenario.name(),
                PATIENCE.as_secs()
            )));
        }
    };
    super::engine::head(output, false);
    let measured = Measured {
        scenario: scenario.name(),
        nodes,
        pods,
        seconds,
        growth: None,
        resident,
        cpu,
        writes: Some(writes),
    };
    measured.print(output);
    Ok(())
}

async fn measure(
    stage: &Stage,
    scenario: Scenario,
    nodes: usize,
    pods: usize,
) -> Result<(LoadTime, u64), Failure> {
    stage.set(scenario, nodes).await?;
    stage.schedule().await;
    let server = &stage.server;
    if scenario == Scenario::Backlog {
        let misfits = vec![Template::new(manifest::misfit())];
        load::create(server, misfits, "misfit", pods).await?;
        while refused(stage) < pods {
            tokio::time::sleep(LOOK).await;
        }
    }
    let templates = manifest::pods(scenario).into_iter().map(Template::new);
    let templates = templates.collect();
    // Before the first pod is created: the watch shows only what happens after its start.
    let seen = tokio::spawn(Bindings::watch(server).await?.wait(pods));
    // Every write raises the revision, so this also counts the scheduler's status updates and Events.
    let before = stage.revision().await?;
    let began = LoadTimer::now();
    load::create(server, templates, "pod", pods).await?;
    let seen = seen.await;
    seen.map_err(|error| Failure::run(format!("the watch failed: {error}")))??;
    let took = began.took();
    Ok((took, stage.revision().await? - before))
}

/// Returns the number of pods whose status says that they fit on no node.
fn refused(stage: &Stage) -> usize {
    let told = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| &status.conditions);
        conditions
            .flatten()
            .any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
    };
    let pods = stage.context.informers.pods.list();
    pods.iter().filter(|pod| told(pod)).count()
}
