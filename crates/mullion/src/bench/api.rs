//! Implements `mullion bench api`: it measures the embedded API server alone, over its TLS port, with the clients in the same process and
//! on the same cores.
//!
//! Every scenario has its own server, without controllers, nodes or cloud. Scenarios about starts and creations store their objects on disk
//! by default: each write is answered once it is durable. A client is one HTTP/1.1 connection that sends its next request after it has read
//! the whole answer to the last. [`scenarios`] says what is measured, [`server`] and [`client`] are the two ends.

pub(super) mod client;
mod idle;
mod objects;
mod scenarios;
pub(super) mod server;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::{cli::Output, failure::Failure, kubeconfig, memory, out};

/// Flags of `mullion bench api`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion bench api
  mullion bench api configmaps -o json
  mullion bench api pods --data-dir /var/tmp")]
pub(crate) struct Args {
    /// Which load [default: each in turn]
    #[arg(value_name = "SCENARIO", value_enum)]
    scenario: Option<Scenario>,
    /// Keep the objects of every scenario on disk: each has a directory of its own below this one and removes it
    /// [default: $XDG_STATE_HOME/mullion/bench, for the starts and creations only]
    #[arg(long, value_name = "DIR", conflicts_with = "in_memory")]
    data_dir: Option<PathBuf>,
    /// Keep nothing on disk; leaves out what is about disks only
    #[arg(long)]
    in_memory: bool,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// From nothing to the first answer, and memory then.
    Start,
    /// From 100,000 stored objects to the first answer, and memory then.
    Restart,
    /// Resident memory of `mullion apiserver` and `mullion up` that nobody uses.
    Idle,
    /// Resident memory with 35,000 ConfigMaps and 35,000 Pods.
    Memory,
    /// ConfigMaps created by 1, 16 and 64 clients.
    Configmaps,
    /// Pods created by 64 clients.
    Pods,
    /// Pods created, bound and told of in an Event, by 64 clients.
    Schedule,
    /// A list of 10,000 pods.
    List,
    /// 10,000 creations by 16 clients, seen by 100 watchers.
    Fanout,
    /// Single writes at 1,000 a second beside 100 watchers.
    Steady,
}

/// Runs the selected scenarios and prints a line for each part when it is done.
pub(crate) async fn run(args: &Args) -> Result<(), Failure> {
    if args.output == Output::Text {
        let [a, b, c, d, e, f, g, h] = [
            "CLIENTS", "COUNT", "SECONDS", "PER S", "CPU S", "P50 MS", "P99 MS", "RESIDENT",
        ];
        out::line(&format!(
            "{:<14} {a:>7} {b:>9} {c:>8} {d:>10} {e:>7} {f:>8} {g:>8} {h:>9}",
            "SCENARIO"
        ));
    }
    let chosen = match &args.scenario {
        Some(scenario) => std::slice::from_ref(scenario),
        None => Scenario::value_variants(),
    };
    let usual = kubeconfig::state_dir()?.join("mullion").join("bench");
    for scenario in chosen {
        let disk = match (args.in_memory, &args.data_dir) {
            (true, _) => None,
            (false, Some(directory)) => Some(directory.as_path()),
            (false, None) => scenario.is_about_disks().then_some(&*usual),
        };
        scenario.measure(disk, args.output).await?;
    }
    Ok(())
}

impl Scenario {
    /// Returns whether the scenario stores its objects on disk by default.
    fn is_about_disks(self) -> bool {
        use Scenario::*;
        matches!(self, Start | Restart | Configmaps | Pods)
    }

    async fn measure(self, disk: Option<&Path>, output: Output) -> Result<(), Failure> {
        let print = |measured: Measured| {
            measured.with("durable", disk.is_some()).print(output);
        };
        match self {
            Scenario::Start => print(scenarios::start(disk).await?),
            Scenario::Restart => {
                if let Some(disk) = disk {
                    print(scenarios::restart(disk).await?);
                }
            }
            Scenario::Idle => {
                for command in ["apiserver", "up"] {
                    print(idle::of(command, disk).await?);
                }
            }
            Scenario::Memory => print(scenarios::memory(disk).await?),
            Scenario::Configmaps => {
                for clients in [1, 16, 64] {
                    print(scenarios::configmaps(disk, clients).await?);
                }
            }
            Scenario::Pods => print(scenarios::pods(disk, 64).await?),
            Scenario::Schedule => print(scenarios::schedule(disk, 64).await?),
            Scenario::List => print(scenarios::list(disk).await?),
            Scenario::Fanout => print(scenarios::fanout(disk).await?),
            Scenario::Steady => print(scenarios::steady(disk).await?),
        }
        Ok(())
    }
}

/// The result of one part of a scenario.
#[derive(Debug)]
struct Measured {
    scenario: String,
    clients: usize,
    /// The number of requests, objects or deliveries, depending on the scenario.
    count: usize,
    /// The time that the part took.
    took: LoadTime,
    /// The durations of single requests in milliseconds, sorted.
    latencies: Vec<f64>,
    /// The resident memory of the process in bytes, while the server still has all objects.
    resident: Option<u64>,
    /// More figures, which are printed only as JSON.
    more: Vec<(&'static str, Value)>,
}

impl Measured {
    /// Creates the result. It must be called before the server stops, because it reads the process's memory.
    fn new(scenario: impl Into<String>, clients: usize, count: usize, took: LoadTime) -> Self {
        Measured {
            scenario: scenario.into(),
            clients,
            count,
            took,
            latencies: Vec::new(),
            resident: memory::resident_bytes(),
            more: Vec::new(),
        }
    }

    fn with_latencies(mut self, mut latencies: Vec<f64>) -> Self {
        latencies.sort_by(f64::total_cmp);
        self.latencies = latencies;
        self
    }

    /// Sets the resident memory to that of another process.
    fn with_resident(mut self, resident: Option<u64>) -> Self {
        self.resident = resident;
        self
    }

    fn with(mut self, name: &'static str, figure: impl Into<Value>) -> Self {
        self.more.push((name, figure.into()));
        self
    }

    /// Returns the latency that `of_100` percent of the requests stay below.
    fn percentile(&self, of_100: usize) -> Option<f64> {
        let at = (self.latencies.len() * of_100 / 100).min(self.latencies.len().checked_sub(1)?);
        Some(self.latencies[at])
    }

    fn print(&self, output: Output) {
        let LoadTime { seconds, cpu } = self.took;
        let per_second = self.count as f64 / seconds;
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        if output == Output::Json {
            let mut object = Map::from_iter([
                ("scenario".to_owned(), json!(self.scenario)),
                ("clients".to_owned(), json!(self.clients)),
                ("count".to_owned(), json!(self.count)),
                ("seconds".to_owned(), json!(seconds)),
                ("per_second".to_owned(), json!(per_second)),
                ("cpu_seconds".to_owned(), json!(cpu)),
                ("p50_ms".to_owned(), json!(p50)),
                ("p99_ms".to_owned(), json!(p99)),
                ("resident_bytes".to_owned(), json!(self.resident)),
            ]);
            let more = self.more.iter();
            object.extend(more.map(|(name, figure)| ((*name).to_owned(), figure.clone())));
            return out::line(&Value::Object(object).to_string());
        }
        let text =
            |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure:.2}"));
        let resident = self.resident.map_or("unknown".to_owned(), |bytes| {
            format!("{:.0} MB", bytes as f64 / 1e6)
        });
        out::line(&format!(
            "{:<14} {:>7} {:>9} {seconds:>8.3} {per_second:>10.0} {:>7} {:>8} {:>8} {resident:>9}",
            self.scenario,
            self.clients,
            self.count,
            text(cpu),
            text(p50),
            text(p99),
        ));
    }
}

/// The wall-clock time of a load, and its CPU time (server and clients together; `None` if the system does not report it).
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadTime {
    pub(super) seconds: f64,
    pub(super) cpu: Option<f64>,
}

/// Measures the time of a load from its start.
pub(super) struct LoadTimer {
    at: Instant,
    cpu: Option<f64>,
}

impl LoadTimer {
    pub(super) fn now() -> Self {
        LoadTimer {
            at: Instant::now(),
            cpu: cpu_seconds(),
        }
    }

    pub(super) fn took(&self) -> LoadTime {
        let cpu = cpu_seconds().zip(self.cpu).map(|(now, then)| now - then);
        LoadTime {
            seconds: self.at.elapsed().as_secs_f64(),
            cpu,
        }
    }
}

/// Returns the CPU time of this process so far, user and system, in steps of 10 ms; `None` on systems other than Linux.
fn cpu_seconds() -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name may have any characters, so fields are counted from its closing parenthesis.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_used_a_processor() {
        let began = LoadTimer::now();
        assert!(began.cpu.is_some() && began.took().cpu >= Some(0.0));
    }

    #[test]
    fn percentiles_are_of_the_sorted_latencies() {
        let measured =
            Measured::new("x", 1, 3, LoadTimer::now().took()).with_latencies(vec![3.0, 1.0, 2.0]);
        assert_eq!(
            (measured.percentile(50), measured.percentile(99)),
            (Some(2.0), Some(3.0))
        );
        assert_eq!(
            Measured::new("x", 1, 3, LoadTimer::now().took()).percentile(50),
            None
        );
    }
}
