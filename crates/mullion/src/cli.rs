//! The command line: what can be asked for and how help describes it. Flags are turned into ready objects by each command's module.

use std::path::PathBuf;

use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::styling::{AnsiColor, Styles},
};
use mullion_cloud::Speed;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold());

/// A control plane for Kubernetes clusters that mix Linux and Windows nodes.
///
/// `mullion up` runs a whole cluster on this machine: its own Kubernetes API server, scheduler, node provisioner (compatible with
/// Karpenter) and controllers, over a simulated EC2 with simulated kubelets. Use it with your own kubectl.
#[derive(Debug, Parser)]
#[command(name = "mullion", version, styles = STYLES, arg_required_else_help = true, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole mixed Linux/Windows cluster in this process until Ctrl-C.
    Up(UpArgs),
    /// Measure Mullion on this machine.
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Print a completion script for a shell.
    #[command(
        after_help = "Example: mullion completions bash > ~/.local/share/bash-completion/completions/mullion"
    )]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Flags of `mullion up`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion up
  mullion up --config cluster.yaml --speed 100
  mullion up --port 0 --kubeconfig ./kubeconfig")]
pub(crate) struct UpArgs {
    /// An eksctl ClusterConfig (eksctl.io/v1alpha5) whose node groups the cluster starts with [default: two Linux nodes, and NodePools
    /// that buy Linux and Windows 2019, 2022 and 2025 nodes on demand]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Port of the API server on 127.0.0.1; 0 takes any free one [default: 6443, or the next free one]
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,

    /// Where to write the kubeconfig [default: $XDG_STATE_HOME/mullion/kubeconfig]
    #[arg(long, value_name = "PATH")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Add a context to your own kubeconfig ($KUBECONFIG, else ~/.kube/config; or --kubeconfig) instead of writing one of its own
    #[arg(long)]
    pub(crate) merge: bool,

    /// Divide simulated delays (boot, image pull, cloud calls) by N; `max` leaves none
    #[arg(long, value_name = "N", default_value = "10", value_parser = speed)]
    pub(crate) speed: Speed,

    /// Let the simulated cloud be out of capacity: TYPE, TYPE/ZONE or TYPE/ZONE/CAPACITY-TYPE (`*` for any); may be repeated
    #[arg(long, value_name = "OFFERING")]
    pub(crate) insufficient_capacity: Vec<String>,

    /// What is known of your own images: platform, Windows build and size, in front of the built-in table (docs/simulation.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) images: Option<PathBuf>,

    /// Do not count `spec.os.name` as a placement requirement (kube-scheduler ignores it)
    #[arg(long)]
    pub(crate) ignore_pod_os: bool,

    /// Say more on stderr; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// What `mullion bench` measures.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// From one manifest to all pods Running, with zero simulated delays.
    ///
    /// Starts a cluster in this process with N nodes, creates one Deployment with P replicas through the API server's TLS port and
    /// measures the time until every pod is Running and Ready.
    Up {
        /// Nodes (m5.4xlarge, Linux).
        #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        nodes: u32,
        /// Pods.
        #[arg(long, default_value_t = 10_000, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
        pods: u32,
        /// How to print the result.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

/// Forms of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed::INSTANT);
    }
    let factor = text.parse::<f64>().ok().filter(|factor| factor.is_finite());
    factor
        .and_then(Speed::times)
        .ok_or_else(|| "it must be a number above 0, or max".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
