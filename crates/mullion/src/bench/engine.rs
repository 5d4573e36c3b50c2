//! Implements `mullion bench engine`: it measures the engine alone on one core, without API server, controllers or kubelets.
//!
//! Each scenario is prepared first; only deciding about pods and placing them is measured. The resident memory is that of the whole process
//! after the run, including the cluster. Two more names measure what scenarios cannot: `growth` measures a pod's cost in clusters of 1,000
//! to 100,000 nodes, and `rollback` what it costs to take a what-if back.

use std::time::Instant;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use mullion_engine::scenario::{Run, Scenario};
use serde_json::json;

use super::end_to_end;
use crate::{
    cli::{Output, whole},
    failure::Failure,
    memory, out,
};

/// Flags of `mullion bench engine`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion bench engine
  mullion bench engine zone-spread --nodes 1000 --pods 10000 -o json
  mullion bench engine growth
  mullion bench engine --end-to-end basic")]
pub(crate) struct Args {
    /// Which load [default: each in turn, but for growth and rollback]
    #[arg(value_name = "SCENARIO", value_parser = what())]
    what: Option<Subject>,
    /// Nodes [default: the scenario's own size]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = |text: &str| whole(text, 1, 10_000_000))]
    nodes: Option<u32>,
    /// Pods [default: the scenario's own size]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = |text: &str| whole(text, 1, 10_000_000))]
    pods: Option<u32>,
    /// Through the API server: clients create the pods on its TLS port, the scheduler binds them, a watch sees them bound
    #[arg(long)]
    end_to_end: bool,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The subject of a benchmark.
#[derive(Clone, Copy, Debug)]
enum Subject {
    Scenario(Scenario),
    Growth,
    Rollback,
}

/// The cluster sizes for `growth`; the others are compared with the first.
const SIZES: [usize; 5] = [1_000, 3_000, 10_000, 30_000, 100_000];
/// The number of pods placed before `growth` is measured, so that one-time costs are not counted.
const WARM: usize = 10_000;
/// The number of pods that `growth` is measured with.
const MEASURED: usize = 40_000;
/// The sizes of the what-ifs for `rollback`.
const WHAT_IFS: [usize; 4] = [10, 100, 1_000, 10_000];

/// The result of measuring some pods.
pub(super) struct Measured {
    pub(super) scenario: &'static str,
    pub(super) nodes: usize,
    pub(super) pods: usize,
    pub(super) seconds: f64,
    /// The cost of a pod as a multiple of the cost in the first row.
    pub(super) growth: Option<f64>,
    /// The resident memory of the process in bytes.
    pub(super) resident: Option<u64>,
    /// The CPU time of all threads, which is printed only as JSON.
    pub(super) cpu: Option<f64>,
    /// The number of writes to the API server during the measurement, which is printed only as JSON.
    pub(super) writes: Option<u64>,
}

/// Runs the selected scenarios and prints a line for each part when it is done.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.what {
        Some(Subject::Growth | Subject::Rollback) if args.end_to_end => Err(Failure::input(
            "growth and rollback are measured of the engine alone",
        )
        .hint("leave --end-to-end out, or name a scenario")),
        // Flags without effect are refused, because the user would believe that they had one.
        Some(Subject::Growth) if args.nodes.is_some() => Err(Failure::input(
            "growth is measured in clusters of 1,000 to 100,000 nodes, --nodes has no say",
        )
        .hint("leave --nodes out, or name a scenario")),
        Some(Subject::Rollback) if args.pods.is_some() => Err(Failure::input(
            "rollback is measured of 10 to 10,000 pods at once, --pods has no say",
        )
        .hint("leave --pods out; --nodes is how large the cluster is")),
        None if args.end_to_end => end_to_end::each(args.nodes, args.pods, args.output),
        Some(Subject::Scenario(scenario)) if args.end_to_end => {
            let measured = end_to_end::run(scenario, args.nodes, args.pods, args.output);
            crate::runtime()?.block_on(measured)
        }
        None => scenarios(&Scenario::ALL, args),
        Some(Subject::Scenario(scenario)) => scenarios(&[scenario], args),
        Some(Subject::Growth) => growth(args),
        Some(Subject::Rollback) => rollback(args),
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
            resident: memory::resident_bytes(),
            cpu: None,
            writes: None,
        };
        measured.print(args.output);
    }
    Ok(())
}

/// Measures the same pods in ever larger clusters.
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
                resident: memory::resident_bytes(),
                cpu: None,
                writes: None,
            };
            measured.print(args.output);
        }
    }
    Ok(())
}

/// Measures what-ifs of ever more pods, each of which is taken back, in a cluster with ten pods on each node.
fn rollback(args: &Args) -> Result<(), Failure> {
    head(args.output, true);
    let nodes = args.nodes.map_or(5_000, |nodes| nodes as usize);
    let there = 10 * nodes;
    let most = WHAT_IFS[WHAT_IFS.len() - 1];
    let mut run = Scenario::Basic.prepare(nodes, there + most);
    place(&mut run, Scenario::Basic, nodes, there)?;
    let mut first = None;
    for pods in WHAT_IFS {
        // Every size gets the same total number of pods.
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
            resident: memory::resident_bytes(),
            cpu: None,
            writes: None,
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

pub(super) fn head(output: Output, compared: bool) {
    if output == Output::Text {
        let growth = if compared { "     NS/POD  GROWTH" } else { "" };
        out::line(&format!(
            "{:<24} {:>8} {:>9} {:>9} {:>11} {:>9}{growth}",
            "SCENARIO", "NODES", "PODS", "SECONDS", "PODS/S", "RESIDENT"
        ));
    }
}

impl Measured {
    /// Reads the JSON that another process printed about a scenario.
    pub(super) fn read(scenario: Scenario, text: &str) -> Result<Self, serde_json::Error> {
        #[derive(serde::Deserialize)]
        struct Row {
            nodes: usize,
            pods: usize,
            seconds: f64,
            resident_bytes: Option<u64>,
            cpu_seconds: Option<f64>,
            writes: Option<u64>,
        }
        let row: Row = serde_json::from_str(text)?;
        Ok(Measured {
            scenario: scenario.name(),
            nodes: row.nodes,
            pods: row.pods,
            seconds: row.seconds,
            growth: None,
            resident: row.resident_bytes,
            cpu: row.cpu_seconds,
            writes: row.writes,
        })
    }

    pub(super) fn print(&self, output: Output) {
        let per_second = self.pods as f64 / self.seconds;
        if output == Output::Json {
            let mut object = json!({
                "scenario": self.scenario, "nodes": self.nodes, "pods": self.pods, "seconds": self.seconds,
                "pods_per_second": per_second, "resident_bytes": self.resident,
            });
            if let Some(cpu) = self.cpu {
                object["cpu_seconds"] = json!(cpu);
            }
            if let Some(writes) = self.writes {
                object["writes"] = json!(writes);
                object["writes_per_pod"] = json!(writes as f64 / self.pods as f64);
            }
            if let Some(growth) = self.growth {
                object["growth_per_pod"] = json!(growth);
            }
            return out::line(&object.to_string());
        }
        let resident = self.resident.map_or("unknown".to_owned(), |bytes| {
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

fn what() -> impl TypedValueParser<Value = Subject> {
    let names = Scenario::ALL.map(Scenario::name).into_iter();
    PossibleValuesParser::new(names.chain(["growth", "rollback"])).map(|name| match &*name {
        "growth" => Subject::Growth,
        "rollback" => Subject::Rollback,
        name => Subject::Scenario(
            Scenario::named(name).expect("the parser lets names of scenarios through only"),
        ),
    })
}
