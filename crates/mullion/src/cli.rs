//! The command line: its commands, flags and help. Each command's module converts the flags to ready objects.

mod negative;
mod refusal;
mod values;

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::{
    Args, Parser, Subcommand,
    builder::styling::{AnsiColor, Styles},
    error::ErrorKind,
};
use mullion_cloud::{Speed, sim::AddressFaults};
use mullion_controllers::provisioner::gates::FeatureGates;

pub(crate) use self::values::{
    Ipam, MOST_PODS_PER_NODE, Output, UnknownImages, ValueError, duration, feature_gates, looks,
    port, speed, subnet_size, whole,
};
use self::values::{address_faults, nodes, pods};
use crate::{
    bench::{api, consolidate, engine, provision},
    check::CheckArgs,
    cloud::CloudArgs,
    clusters::NamedCluster,
    controller::args::ControllerArgs,
    doctor::{DoctorArgs, connectivity::TestArgs},
    failure::Failure,
    fault::FaultArgs,
    nodes::NodesArgs,
    plan::PlanArgs,
    traces::settings::TraceArgs,
    up::settings::KarpenterArgs,
    why::WhyArgs,
};

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
    /// Show the clusters that run, and those that are kept.
    List {
        /// How to print them.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Say how a cluster is: whether it runs, where, and how many nodes are ready.
    ///
    /// Ends with 0 if it runs and its API answers, with 1 if not.
    #[command(after_help = "Examples:\n  mullion status\n  mullion status demo -o json")]
    Status {
        #[command(flatten)]
        which: WhichArgs,
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Print the kubeconfig of a running cluster, or write it to a file.
    #[command(
        after_help = "Examples:\n  mullion kubeconfig demo\n  mullion kubeconfig demo --kubeconfig ./demo && kubectl --kubeconfig ./demo get nodes"
    )]
    Kubeconfig {
        #[command(flatten)]
        which: WhichArgs,
        /// Write it here, for nobody else to read; a file that Mullion did not write is never replaced
        #[arg(long, value_name = "PATH")]
        kubeconfig: Option<PathBuf>,
    },
    /// Stop a running cluster. What is kept of it stays.
    #[command(after_help = "Examples:\n  mullion down\n  mullion down demo")]
    Down(WhichArgs),
    /// Delete a kept cluster that does not run. It does not ask.
    ///
    /// Its files go, and its entries in your kubeconfig; whatever else is in its directory stays.
    #[command(after_help = "Example: mullion down demo && mullion delete demo")]
    Delete {
        /// The cluster's name
        #[arg(
            value_name = "NAME",
            required_unless_present = "data_dir",
            conflicts_with = "data_dir"
        )]
        name: Option<String>,

        /// The cluster's directory
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
    },
    /// Copy a whole cluster to a file, or make one from such a file.
    Snapshot {
        #[command(subcommand)]
        what: SnapshotCommand,
    },
    /// Run the API server alone: no controllers, no nodes, no cloud.
    Apiserver(ApiServerArgs),
    /// Say where a pod goes, or why nowhere and what would help.
    Why(WhyArgs),
    /// Find what will go wrong on Windows nodes, in manifests or in a cluster.
    Check(CheckArgs),
    /// Find what keeps a cluster from running Windows, and mend it.
    Doctor(DoctorArgs),
    /// Try the ways that traffic takes between nodes, pods, Services and the outside.
    Connectivity {
        #[command(subcommand)]
        what: ConnectivityCommand,
    },
    /// Say what would be bought for pods that wait, and where each of them goes.
    Plan(PlanArgs),
    /// Register simulated Linux and Windows nodes with a cluster, and run what is bound to them.
    Nodes(Box<NodesArgs>),
    /// Answer clients of AWS from a simulated EC2: the AWS CLI, SDKs, Karpenter.
    Cloud(CloudArgs),
    /// Run Mullion's controllers on a cluster that has an API server of its own.
    Controller(Box<ControllerArgs>),
    /// Let something go wrong in the simulated EC2 of a running cluster, and end it again.
    Fault(FaultArgs),
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

/// Parses the command line. Help and version are printed and end the process. An error becomes one line and a hint, like every other error
/// of the program.
pub(crate) fn parse() -> Result<Cli, Failure> {
    let args = negative::join(std::env::args_os().collect());
    let error = match Cli::try_parse_from(&args) {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        Err(refusal::refusal(&error, &args))
    } else {
        error.exit()
    }
}

/// Which cluster a command is about.
#[derive(Args, Clone, Debug)]
pub(crate) struct WhichArgs {
    /// The cluster's name, or the process or port of one that runs [default: the only one that runs]
    #[arg(value_name = "NAME", conflicts_with = "data_dir")]
    name: Option<String>,

    /// The cluster's directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl WhichArgs {
    /// Returns the cluster that is meant.
    pub(crate) fn chosen(self) -> NamedCluster {
        NamedCluster {
            name: self.name,
            directory: self.data_dir,
        }
    }
}

/// Which cluster `mullion snapshot` is about.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamedArgs {
    /// The cluster's name
    #[arg(long, value_name = "NAME", conflicts_with = "data_dir")]
    name: Option<String>,

    /// The cluster's directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl NamedArgs {
    /// Returns the cluster that is meant.
    pub(crate) fn chosen(self) -> NamedCluster {
        NamedCluster {
            name: self.name,
            directory: self.data_dir,
        }
    }
}

/// What `mullion connectivity` does.
#[derive(Debug, Subcommand)]
pub(crate) enum ConnectivityCommand {
    /// Try every way of the checklist with pods on real nodes that are removed again.
    Test(TestArgs),
}

/// What `mullion snapshot` does.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Write a cluster to a file, as it is at one moment, whether it runs or not.
    ///
    /// Without a name or directory it is the only one that runs. The file holds the cluster's keys.
    Save {
        /// Where to write it.
        file: PathBuf,
        #[command(flatten)]
        which: NamedArgs,
    },
    /// Make a cluster from a file. Watches begin anew, and revisions go on far behind those of the file.
    Restore {
        /// What `mullion snapshot save` wrote.
        file: PathBuf,
        #[command(flatten)]
        which: NamedArgs,
        /// Replace the cluster that is there.
        #[arg(long)]
        force: bool,
    },
}

/// Flags of `mullion apiserver`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:
  mullion apiserver --port 0 --kubeconfig ./kubeconfig")]
pub(crate) struct ApiServerArgs {
    /// Port on 127.0.0.1; 0 takes any free one [default: the last one of the data directory, else 6443 or the next free one]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = port)]
    pub(crate) port: Option<u16>,

    /// Where to write the kubeconfig [default: $XDG_STATE_HOME/mullion/kubeconfig]
    #[arg(long, value_name = "PATH")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Users by their tokens, as kube-apiserver reads them: a line `token,user,uid,"group1,group2"` each
    #[arg(long, value_name = "FILE")]
    pub(crate) token_auth_file: Option<PathBuf>,

    /// Keys that tokens of service accounts may be signed with beside the server's own, as kube-apiserver reads them: public or private keys
    /// in PEM, several in a file; may be repeated. kube-controller-manager signs with that of --service-account-private-key-file
    #[arg(long, value_name = "FILE")]
    pub(crate) service_account_key_file: Vec<PathBuf>,

    /// The address that the endpoints of the Service default/kubernetes name [default: that of this machine's default route; none without
    /// one]
    #[arg(long, value_name = "IP")]
    pub(crate) advertise_address: Option<IpAddr>,

    /// The range that Services get their addresses from
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/16")]
    pub(crate) service_cluster_ip_range: String,

    /// Admission plugins that do not run, with commas between; '' lets all run. Where no controller makes service accounts, the plugin
    /// ServiceAccount would refuse every pod (envtest leaves it out too)
    #[arg(long, value_name = "NAMES", default_value = "ServiceAccount")]
    pub(crate) disable_admission_plugins: String,

    /// Keep everything in this directory [default: in memory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Say more on stderr; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Flags of `mullion up`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion up
  mullion up --name demo
  mullion up --config cluster.yaml --speed 100
  mullion up --port 0 --kubeconfig ./kubeconfig
  mullion up --name ci --detach --wait=5m --kubeconfig ./kubeconfig")]
pub(crate) struct UpArgs {
    /// An eksctl ClusterConfig (eksctl.io/v1alpha5) whose node groups the cluster starts with [default: two Linux nodes, and NodePools
    /// that buy Linux and Windows 2019, 2022 and 2025 nodes on demand]; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Keep the cluster under this name and go on with it at the next start; `mullion list` shows it [default: in memory]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Keep the cluster in this directory [default: that of its --name, below $XDG_STATE_HOME/mullion/clusters]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Forget what is kept and start anew
    #[arg(long)]
    pub(crate) fresh: bool,

    /// Port of the API server on 127.0.0.1; 0 takes any free one [default: the last one of a kept cluster, else 6443 or the next free one]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = port)]
    pub(crate) port: Option<u16>,

    /// Where to write the kubeconfig [default: $XDG_STATE_HOME/mullion/kubeconfig]; a file that Mullion did not write is never replaced
    #[arg(long, value_name = "PATH")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Add a context to your own kubeconfig ($KUBECONFIG, else ~/.kube/config; or --kubeconfig) instead of writing one of its own
    #[arg(long)]
    pub(crate) merge: bool,

    /// Run in the background: the command ends when the API answers (with --wait: when the nodes are ready), and says the process and its
    /// log; `mullion down` stops it
    #[arg(short, long)]
    pub(crate) detach: bool,

    /// This is the process in the background.
    #[arg(long, hide = true, requires = "detach")]
    pub(crate) detached: bool,

    /// Say when all nodes are ready; if they are not within DURATION (10m unless given), stop the cluster and end with 1
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "10m", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Divide simulated delays (boot, image pull, cloud calls) by N; `max` leaves none
    #[arg(long, value_name = "N", default_value = "10", allow_negative_numbers = true, value_parser = speed)]
    pub(crate) speed: Speed,

    /// Let the simulated cloud be out of capacity: TYPE, TYPE/ZONE or TYPE/ZONE/CAPACITY-TYPE (`*` for any); may be repeated
    #[arg(long, value_name = "OFFERING")]
    pub(crate) insufficient_capacity: Vec<String>,

    /// Size of the subnet in each zone, from /16 (one zone alone) to /28, which has eleven addresses [default: /18, smaller if there are
    /// more than four zones]
    #[arg(long, value_name = "/N", value_parser = subnet_size)]
    pub(crate) subnet_size: Option<u8>,

    /// Let EC2's calls about pod addresses go wrong: terms with commas between, throttle=N%, lost=N% (answers), partial=N%, rate=N/s, lag=TIME
    /// (until a listing shows a change) and seed=N
    #[arg(long, value_name = "FAULTS", value_parser = address_faults)]
    pub(crate) address_faults: Option<AddressFaults>,

    /// Whether Windows pods get their addresses from this program: `auto` does unless upstream's controller runs, `off` only watches
    /// (docs/windows.md)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub(crate) ipam: Ipam,

    /// How long your own nodes take to boot, how fast they pull images and what memory they have
    /// for pods, in place of typical figures (docs/simulation.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) node_profiles: Option<PathBuf>,

    /// What is known of your own images: platform, Windows build and size, in front of the built-in table (docs/simulation.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) images: Option<PathBuf>,

    /// Registries that are asked what an image runs on, beside those of this machine: `all`, `none`, or with commas between HOST, http://HOST
    /// (without TLS) or HOST=MIRROR (docs/windows.md)
    #[arg(long, value_name = "HOSTS")]
    pub(crate) registries: Option<mullion_images::Settings>,

    /// What happens to a new pod while the registries have not said what its images run on: `leave` schedules it as it is, `gate` holds it
    /// behind the scheduling gate mullion.dev/image, 30 s at most
    #[arg(
        long,
        value_name = "ACTION",
        default_value = "leave",
        hide_possible_values = true
    )]
    pub(crate) unknown_images: UnknownImages,

    /// Do not count `spec.os.name` as a placement requirement (kube-scheduler ignores it)
    #[arg(long)]
    pub(crate) ignore_pod_os: bool,

    /// Give Windows pods with a GMSACredentialSpec and without a host name a random one (windows-gmsa: RANDOM_HOSTNAME)
    #[arg(long)]
    pub(crate) gmsa_random_hostname: bool,

    /// Karpenter's feature gates, with commas between: NodeRepair=true replaces nodes that are unhealthy for too long,
    /// StaticCapacity=true lets NodePools with spec.replicas keep that many nodes, NodeOverlay=true lets NodeOverlays change prices
    /// and capacity of machines, CapacityBuffer=true lets CapacityBuffers keep room free, ReservedCapacity=false leaves
    /// capacity reservations alone (docs/nodes-on-demand.md)
    #[arg(long, value_name = "GATES", default_value = "NodeRepair=false", hide_default_value = true, value_parser = feature_gates)]
    pub(crate) feature_gates: FeatureGates,

    /// kube-scheduler's configuration file (a KubeSchedulerConfiguration): profiles, plugins, weights, scoring strategies
    #[arg(long, value_name = "FILE")]
    pub(crate) scheduler_config: Option<PathBuf>,

    /// Say nothing of nodes that are bought, ready and removed; with --detach, print nothing but the process id
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say more on stderr; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(flatten)]
    pub(crate) karpenter: KarpenterArgs,

    #[command(flatten)]
    pub(crate) traces: TraceArgs,
}

/// What `mullion bench` measures.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// From one manifest to all pods Running, with zero simulated delays.
    ///
    /// Starts a cluster in this process with N nodes, creates one Deployment with P replicas through the API server's TLS port and
    /// measures the time until every pod is Running and Ready.
    Up {
        /// Nodes (m5.4xlarge, Linux), 40000 at most.
        #[arg(long, default_value_t = 500, value_name = "N", allow_negative_numbers = true, value_parser = nodes)]
        nodes: u32,
        /// Pods, 150 a node at most.
        #[arg(long, default_value_t = 10_000, value_name = "P", allow_negative_numbers = true, value_parser = pods)]
        pods: u32,
        /// How to print the result.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// The API server alone, over TLS: rates of writes, a long list, many watchers, latency, memory.
    ///
    /// Each scenario starts an API server without controllers or nodes. The clients are in this process and share its cores.
    Api(api::Args),
    /// The engine alone: decisions per second on one core, by scenario.
    ///
    /// Builds a cluster in memory, then decides about pod after pod and places each. No API server, no simulation.
    Engine(engine::Args),
    /// One plan of the provisioner: how long it keeps scheduler and provisioner from their model.
    Plan(provision::Args),
    /// One decision which nodes should be given back, and what it saves.
    Consolidate(consolidate::Args),
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::*;

    fn refused(args: &[&str]) -> String {
        let args = negative::join(args.iter().map(OsString::from).collect());
        let error = Cli::try_parse_from(&args).expect_err("it is wrong");
        refusal::refusal(&error, &args).to_string()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_wrong_on_the_command_line_is_one_line_and_a_hint() {
        let wrong: [&[&str]; 22] = [
            &["mullion", "up", "--speed"],
            &["mullion", "completions"],
            &["mullion", "up", "--speed", "-1"],
            &["mullion", "up", "--speed", "fast"],
            &["mullion", "up", "--port", "70000"],
            &["mullion", "up", "--subnet-size", "/29"],
            &["mullion", "up", "--address-faults", "lost=5%,throttle=200%"],
            &["mullion", "up", "--port", "1", "--port", "2"],
            &["mullion", "up", "--confg", "x"],
            &["mullion", "up", "extra"],
            &["mullion", "up", "--wait", "5m"],
            &["mullion", "benhc"],
            &["mullion", "completions", "zhs"],
            &["mullion", "bench", "up", "--nodes", "1000000"],
            &["mullion", "up", "--batch-idle-duration", "-5s"],
            &["mullion", "up", "--batch-max-duration", "-.5s"],
            &["mullion", "up", "--reserved-enis", "-1"],
            &["mullion", "plan", "--effort", "-1"],
            &["mullion", "plan", "--effort", "2000000000"],
            &["mullion", "up", "--feature-gates", "Foo=true"],
            &["mullion", "up", "--feature-gates", "NodeRepair"],
            &["mullion", "up", "-5"],
        ];
        let answers: Vec<String> = wrong
            .iter()
            .map(|args| format!("$ {}\n{}", args.join(" "), refused(args)))
            .collect();
        insta::assert_snapshot!(answers.join("\n\n"));
    }
}
