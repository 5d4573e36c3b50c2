//! `mullion bench engine`: the engine alone on one core, without API server, controllers or kubelets.
//!
//! Each scenario is prepared first; only deciding about pods and placing them is measured. Resident memory is that of
//! the whole process after the run, with the cluster still in it. Two more words measure what scenarios cannot:
//! `growth`, what a pod costs in clusters of 1,000 to 100,000 nodes, and `rollback`, what taking a what-if back costs.

use std::time::Instant;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use mullion_engine::scenario::{Run, Scenario};
use serde_json::json;

use crate::{cli::Output, failure::Failure, memory, out};

/// Flags of `mullion bench engine`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion bench engine
  mullion bench engine zone-spread --nodes 1000 --pods 10000 -o json
  mullion bench engine growth")]
pub(crate) struct Args {
    /// Which load [default: each in turn, but for growth and rollback]
    #[arg(value_name = "SCENARIO", value_parser = what())]
    what: Option<What>,
    /// Nodes [default: the scenario's own size]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    nodes: Option<u32>,
    /// Pods [default: the scenario's own size]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pods: Option<u32>,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum What {
    Scenario(Scenario),
    Growth,
    Rollback,
}

/// Cluster sizes between which growth is told; the first is what the others are compared with.
const SIZES: [usize; 5] = [1_000, 3_000, 10_000, 30_000, 100_000];
/// Pods placed before growth is measured, so that all that is made once is there.
const WARM: usize = 10_000;
/// Pods that growth is measured on.
const MEASURED: usize = 40_000;
/// Sizes of what-ifs that are taken back.
const WHAT_IFS: [usize; 4] = [10, 100, 1_000, 10_000];

/// What some pods took.
struct Measured {
    scenario: &'static str,
    nodes: usize,
    pods: usize,
    seconds: f64,
    /// Cost of a pod, as a multiple of what the first row's pod cost.
    growth: Option<f64>,
}

/// Runs what was asked for and prints a line for each part as it ends.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.what {
        None => scenarios(&Scenario::ALL, args),
        Some(What::Scenario(scenario)) => scenarios(&[scenario], args),
        Some(What::Growth) => growth(args),
        Some(What::Rollback) => rollback(args),
    }
}

fn scenarios(scenarios: &[Scenario], args: &Args) -> Result<(), Failure> {
    head(args.output, false);
    for &scenario in scenarios {
        let (nodes, pods) = scenario.size();
        let nodes = args.nodes.map_or(nodes, |nodes| nodes as usize);
        let pods = args.pods.map_or(pods, |pods| pods as usize);
        let mut run = scenario.prepare(nodes, pods);
        let seconds = place(&mut run, scenario, nodes, pods)?;
        let measured = Measured {
            scenario: scenario.name(),
            nodes,
            pods,
            seconds,
            growth: None,
        };
        measured.print(args.output);
    }
    Ok(())
}

/// The same pods in ever larger clusters.
fn growth(args: &Args) -> Result<(), Failure> {
    head(args.output, true);
    for scenario in [Scenario::Basic, Scenario::Mixed, Scenario::ZoneSpread] {
        let mut first = None;
        for nodes in SIZES {
            let pods = args.pods.map_or(MEASURED, |pods| pods as usize);
            let mut run = scenario.prepare(nodes, WARM + pods);
            place(&mut run, scenario, nodes, WARM)?;
            let seconds = place(&mut run, scenario, nodes, pods)?;
            let first = *first.get_or_insert(seconds);
            let measured = Measured {
                scenario: scenario.name(),
                nodes,
                pods,
                seconds,
                growth: Some(seconds / first),
            };
            measured.print(args.output);
        }
    }
    Ok(())
}

/// What-ifs of ever more pods, each taken back, in one cluster of ten pods a node.
fn rollback(args: &Args) -> Result<(), Failure> {
    head(args.output, true);
    let nodes = args.nodes.map_or(5_000, |nodes| nodes as usize);
    let there = 10 * nodes;
    let most = WHAT_IFS[WHAT_IFS.len() - 1];
    let mut run = Scenario::Basic.prepare(nodes, there + most);
    place(&mut run, Scenario::Basic, nodes, there)?;
    let mut first = None;
    for pods in WHAT_IFS {
        // As many pods in all, whatever the size.
        let times = most / pods;
        let start = Instant::now();
        for _ in 0..times {
            run.what_if(pods);
        }
        let seconds = start.elapsed().as_secs_f64() / times as f64;
        let cost = seconds / pods as f64;
        let first = *first.get_or_insert(cost);
        let measured = Measured {
            scenario: "rollback",
            nodes,
            pods,
            seconds,
            growth: Some(cost / first),
        };
        measured.print(args.output);
    }
    Ok(())
}

fn place(run: &mut Run, scenario: Scenario, nodes: usize, pods: usize) -> Result<f64, Failure> {
    let start = Instant::now();
    let outcome = run.place(pods);
    let seconds = start.elapsed().as_secs_f64();
    if outcome.placed < pods {
        return Err(Failure::run(format!(
            "{}: {} of {pods} pods found room on {nodes} nodes; ask for fewer pods or more nodes",
            scenario.name(),
            outcome.placed
        )));
    }
    Ok(seconds)
}

fn head(output: Output, compared: bool) {
    if output == Output::Text {
        let growth = if compared { "     NS/POD  GROWTH" } else { "" };
        out::line(&format!(
            "{:<24} {:>8} {:>9} {:>9} {:>11} {:>9}{growth}",
            "SCENARIO", "NODES", "PODS", "SECONDS", "PODS/S", "RESIDENT"
        ));
    }
}

impl Measured {
    fn print(&self, output: Output) {
        let per_second = self.pods as f64 / self.seconds;
        let resident = memory::resident_bytes();
        if output == Output::Json {
            let mut object = json!({
                "scenario": self.scenario, "nodes": self.nodes, "pods": self.pods, "seconds": self.seconds,
                "pods_per_second": per_second, "resident_bytes": resident,
            });
            if let Some(growth) = self.growth {
                object["growth_per_pod"] = json!(growth);
            }
            return out::line(&object.to_string());
        }
        let resident = resident.map_or("unknown".to_owned(), |bytes| {
            format!("{:.0} MB", bytes as f64 / 1e6)
        });
        let growth = self
            .growth
            .map(|growth| format!(" {:>10.0} {growth:>6.2}x", 1e9 / per_second));
        out::line(&format!(
            "{:<24} {:>8} {:>9} {:>9.3} {per_second:>11.0} {resident:>9}{}",
            self.scenario,
            self.nodes,
            self.pods,
            self.seconds,
            growth.unwrap_or_default()
        ));
    }
}

fn what() -> impl TypedValueParser<Value = What> {
    let names = Scenario::ALL.map(Scenario::name).into_iter();
    PossibleValuesParser::new(names.chain(["growth", "rollback"])).map(|name| match &*name {
        "growth" => What::Growth,
        "rollback" => What::Rollback,
        name => What::Scenario(
            Scenario::named(name).expect("the parser lets names of scenarios through only"),
        ),
    })
}
