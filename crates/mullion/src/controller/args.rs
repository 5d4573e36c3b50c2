//! Flags of `mullion controller`, and the parts that they start.

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};

use crate::cli::{UnknownImages, port};

/// A group of controllers that runs, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Binds pods to nodes.
    Scheduler,
    /// Sends pods where their images run.
    Placement,
    /// Requests addresses for Windows pods, and keeps others from choosing them.
    Addresses,
    /// Writes group managed service accounts into pods.
    Gmsa,
}

/// Parts of Karpenter's and of the VPC resource controller's work that need a cloud.
const NEED_A_CLOUD: [&str; 3] = ["provisioner", "disruption", "ipam"];

impl Part {
    const ALL: [Part; 4] = [
        Part::Scheduler,
        Part::Placement,
        Part::Addresses,
        Part::Gmsa,
    ];

    /// The word that stands for it in `--only`.
    fn name(self) -> &'static str {
        match self {
            Part::Scheduler => "scheduler",
            Part::Placement => "placement",
            Part::Addresses => "addresses",
            Part::Gmsa => "gmsa",
        }
    }
}

/// The parts that run; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts(BTreeSet<Part>);

impl Parts {
    pub(super) fn has(&self, part: Part) -> bool {
        self.0.contains(&part)
    }

    /// Whether one of them acts on what it sees, so that two processes must not run it at once: the scheduler, and the controller that
    /// removes the gates of pods whose images were unknown.
    pub(super) fn need_a_leader(&self) -> bool {
        self.has(Part::Scheduler) || self.has(Part::Placement)
    }

    /// Whether one of them is asked by the API server.
    pub(super) fn have_webhooks(&self) -> bool {
        self.0.iter().any(|part| *part != Part::Scheduler)
    }

    /// The name of the Lease of those that run the same parts.
    pub(super) fn lease(&self) -> String {
        if self.0.len() == Part::ALL.len() {
            return "mullion-controller".to_owned();
        }
        let names: Vec<_> = self.0.iter().map(|part| part.name()).collect();
        format!("mullion-{}", names.join("-"))
    }
}

impl Default for Parts {
    fn default() -> Self {
        Parts(BTreeSet::from(Part::ALL))
    }
}

impl FromStr for Parts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |word: &str| {
            let word = word.trim();
            let mut all = Part::ALL.into_iter();
            all.find(|part| part.name() == word).ok_or_else(|| {
                if NEED_A_CLOUD.contains(&word) {
                    return format!(
                        "{word} asks a cloud, which only `mullion up` has: on a real cluster it cannot run yet"
                    );
                }
                let names: Vec<_> = Part::ALL.iter().map(|part| part.name()).collect();
                format!("{word:?} is none of {}", names.join(", "))
            })
        };
        text.split(',')
            .map(part)
            .collect::<Result<_, _>>()
            .map(Parts)
    }
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One JSON object each
    Json,
    /// For people
    Text,
}

/// Flags of `mullion controller`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Runs until it is interrupted. Ends with 2 if a setting is wrong, with 1 if it lost the lease or the cluster.

Examples:
  mullion controller --only placement,gmsa
  mullion controller --kubeconfig ./kubeconfig
  mullion controller --only scheduler --scheduler-config ./scheduler.yaml"
)]
pub(crate) struct ControllerArgs {
    /// The cluster's kubeconfig [default: that of the pod this runs in, else $KUBECONFIG, else that of `mullion up`, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,

    /// The parts that run, with commas between: scheduler, placement, addresses, gmsa [default: all of them]
    #[arg(long, value_name = "PARTS")]
    pub(super) only: Option<Parts>,

    /// kube-scheduler's configuration file [default: one profile, for pods with schedulerName: mullion]
    #[arg(long, value_name = "FILE")]
    pub(super) scheduler_config: Option<PathBuf>,

    /// Do not count `spec.os.name` as a placement requirement (kube-scheduler ignores it)
    #[arg(long)]
    pub(super) ignore_pod_os: bool,

    /// What is known of your own images, in front of the built-in table (docs/simulation.md)
    #[arg(long, value_name = "FILE")]
    pub(super) images: Option<PathBuf>,

    /// Registries that are asked what an image runs on: `all`, `none`, or with commas between HOST, http://HOST (without TLS) or HOST=MIRROR
    #[arg(long, value_name = "HOSTS", default_value = "all")]
    pub(super) registries: mullion_images::Settings,

    /// What happens to a new pod while the registries have not said what its images run on: `leave` schedules it as it is, `gate` holds it
    /// behind the scheduling gate mullion.dev/image, 30 s at most
    #[arg(
        long,
        value_name = "ACTION",
        default_value = "leave",
        hide_possible_values = true
    )]
    pub(super) unknown_images: UnknownImages,

    /// Users that may write the addresses of Windows pods, with commas between, beside those of EKS's VPC resource controller: the one that
    /// `mullion nodes` runs as
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) address_users: Vec<String>,

    /// Give Windows pods with a GMSACredentialSpec and without a host name a random one
    #[arg(long, env = "RANDOM_HOSTNAME", hide_env_values = true)]
    pub(super) gmsa_random_hostname: bool,

    /// Namespace of the Lease, of the certificate and of the Service of the webhooks [default: that of the pod, else kube-system]
    #[arg(
        long,
        value_name = "NAME",
        env = "SYSTEM_NAMESPACE",
        hide_env_values = true
    )]
    pub(super) namespace: Option<String>,

    /// Port of the webhooks, served with TLS
    #[arg(long, value_name = "N", default_value = "8443", env = "WEBHOOK_PORT", hide_env_values = true, value_parser = port)]
    pub(super) webhook_port: u16,

    /// The Service through which the API server reaches the webhooks [default: mullion]
    #[arg(long, value_name = "NAME", conflicts_with = "webhook_url")]
    pub(super) webhook_service: Option<String>,

    /// Where the API server reaches the webhooks of a process outside the cluster [default: https://127.0.0.1:PORT there]
    #[arg(long, value_name = "URL")]
    pub(super) webhook_url: Option<String>,

    /// Address that is listened on [default: all in a cluster, else 127.0.0.1]
    #[arg(long, value_name = "IP")]
    pub(super) bind_address: Option<IpAddr>,

    /// Port of /metrics; 0 serves none
    #[arg(long, value_name = "N", default_value = "8080", env = "METRICS_PORT", hide_env_values = true, value_parser = port)]
    pub(super) metrics_port: u16,

    /// Port of /healthz and /readyz; 0 serves none
    #[arg(long, value_name = "N", default_value = "8081", env = "HEALTH_PROBE_PORT", hide_env_values = true, value_parser = port)]
    pub(super) health_probe_port: u16,

    /// Run without a Lease: only where there is one process for good
    #[arg(long, env = "DISABLE_LEADER_ELECTION", hide_env_values = true)]
    pub(super) disable_leader_election: bool,

    /// Name of the Lease [default: mullion-controller, or after the parts that run]
    #[arg(
        long,
        value_name = "NAME",
        env = "LEADER_ELECTION_NAME",
        hide_env_values = true
    )]
    pub(super) leader_election_name: Option<String>,

    /// How lines of the log look
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Say more on stderr; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        own: ControllerArgs,
    }

    fn parts(args: &[&str]) -> Result<Parts, String> {
        let all = ["controller"].iter().chain(args);
        let flags = Flags::try_parse_from(all).map_err(|error| error.to_string())?;
        Ok(flags.own.only.unwrap_or_default())
    }

    #[test]
    fn parts_are_named_and_others_are_refused_with_the_reason() {
        let refused = parts(&["--only", "scheduler,nodes"]).expect_err("it is none");
        assert!(
            refused.contains("\"nodes\" is none of scheduler, placement, addresses, gmsa"),
            "{refused}"
        );
        let refused = parts(&["--only", "provisioner"]).expect_err("it cannot run");
        assert!(refused.contains("provisioner asks a cloud"), "{refused}");
        let both = parts(&["--webhook-service=a", "--webhook-url=https://b"]);
        assert!(both.is_err());
    }

    #[test]
    fn those_that_run_the_same_parts_share_a_lease() {
        assert_eq!(parts(&[]).expect("valid").lease(), "mullion-controller");
        let some = parts(&["--only", "placement,scheduler"]).expect("valid");
        assert_eq!(some.lease(), "mullion-scheduler-placement");
        assert!(some.need_a_leader() && some.have_webhooks());
        let gmsa = parts(&["--only", "gmsa"]).expect("valid");
        assert!(!gmsa.need_a_leader() && gmsa.have_webhooks());
        let scheduler = parts(&["--only", "scheduler"]).expect("valid");
        assert!(!scheduler.have_webhooks());
    }
}
