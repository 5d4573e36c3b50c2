//! The flags of `mullion controller`, and the parts that they start.

use std::{collections::BTreeSet, error::Error, fmt, net::IpAddr, path::PathBuf, str::FromStr};

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::{Args, ValueEnum};

use mullion_controllers::provisioner::FeatureGates;

use crate::{
    cli::{Ipam, UnknownImages, feature_gates, port},
    failure::Failure,
    traces::settings::TraceArgs,
    up::settings::KarpenterArgs,
};

/// A group of controllers or webhooks that can be turned on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Binds pods to nodes.
    Scheduler,
    /// Buys nodes and terminates them.
    Provisioner,
    /// Removes nodes that are not needed.
    Disruption,
    /// Gives addresses to Windows pods.
    Ipam,
    /// Places pods by their images.
    Placement,
    /// Adds address requests to Windows pods, and keeps other users from setting addresses.
    Addresses,
    /// Writes group managed service accounts into pods.
    Gmsa,
}

impl Part {
    const ALL: [Part; 7] = [
        Part::Scheduler,
        Part::Provisioner,
        Part::Disruption,
        Part::Ipam,
        Part::Placement,
        Part::Addresses,
        Part::Gmsa,
    ];

    /// Returns the part's name in `--only`.
    fn name(self) -> &'static str {
        match self {
            Part::Scheduler => "scheduler",
            Part::Provisioner => "provisioner",
            Part::Disruption => "disruption",
            Part::Ipam => "ipam",
            Part::Placement => "placement",
            Part::Addresses => "addresses",
            Part::Gmsa => "gmsa",
        }
    }

    /// Returns whether the part needs a cloud.
    fn needs_cloud(self) -> bool {
        matches!(self, Part::Provisioner | Part::Disruption | Part::Ipam)
    }

    /// Returns whether the part has webhooks.
    fn has_webhooks(self) -> bool {
        matches!(self, Part::Placement | Part::Addresses | Part::Gmsa)
    }
}

/// The parts that run; there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts(BTreeSet<Part>);

impl Parts {
    pub(super) fn has(&self, part: Part) -> bool {
        self.0.contains(&part)
    }

    /// Returns whether any part changes objects on its own, so that only one process may run it at a time. Placement is among them, because
    /// its controller removes the scheduling gates of pods whose images were unknown.
    pub(super) fn need_a_leader(&self) -> bool {
        let acts = |part: &Part| !part.has_webhooks() || *part == Part::Placement;
        self.0.iter().any(acts)
    }

    /// Returns the first part that needs a cloud.
    fn of_a_cloud(&self) -> Option<Part> {
        self.0.iter().copied().find(|part| part.needs_cloud())
    }

    /// Returns whether any part has webhooks.
    pub(super) fn have_webhooks(&self) -> bool {
        self.0.iter().any(|part| part.has_webhooks())
    }

    /// Returns the name of the Lease that processes with the same parts share.
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

/// A word that is no part.
#[derive(Debug)]
pub(crate) struct UnknownPart(String);

impl fmt::Display for UnknownPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Part::ALL.iter().map(|part| part.name()).collect();
        write!(f, "{:?} is none of {}", self.0, names.join(", "))
    }
}

impl Error for UnknownPart {}

impl FromStr for Parts {
    type Err = UnknownPart;

    fn from_str(text: &str) -> Result<Self, UnknownPart> {
        let part = |word: &str| {
            let word = word.trim();
            let mut all = Part::ALL.into_iter();
            all.find(|part| part.name() == word)
                .ok_or_else(|| UnknownPart(word.to_owned()))
        };
        text.split(',')
            .map(part)
            .collect::<Result<_, _>>()
            .map(Parts)
    }
}

/// Where instances come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cloud {
    /// The simulated EC2 of `mullion nodes`
    Simulated,
    /// AWS, in the region and with the credentials that AWS's own programs would take
    Aws,
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One JSON object each
    Json,
    /// For people
    Text,
}

const KARPENTER: &str = "Karpenter's settings (docs/nodes-on-demand.md)";

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

    /// The parts that run, with commas between: scheduler, provisioner, disruption, ipam, placement, addresses,
    /// gmsa [default: all of them, without --cloud those that need none]
    #[arg(long, value_name = "PARTS")]
    pub(super) only: Option<Parts>,

    /// Where instances come from, for the parts provisioner, disruption and ipam
    #[arg(long, value_enum)]
    pub(super) cloud: Option<Cloud>,

    /// The simulated EC2 [default: the one that the cluster's ConfigMap kube-system/mullion-simulated-cloud names]
    #[arg(long, value_name = "URL")]
    pub(super) cloud_endpoint: Option<String>,

    /// kube-scheduler's configuration file [default: one profile, for pods with schedulerName: mullion]
    #[arg(long, value_name = "FILE")]
    pub(super) scheduler_config: Option<PathBuf>,

    /// Do not count `spec.os.name` as a placement requirement (kube-scheduler ignores it)
    #[arg(long)]
    pub(super) ignore_pod_os: bool,

    /// Whether the part ipam hands out addresses: `auto` does unless another controller does, `off` only watches
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub(super) ipam: Ipam,

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

    /// Users that may write the addresses of Windows pods, with commas between, beside those of EKS's VPC resource controller and the one that
    /// this process runs as: for example the user of `mullion nodes`
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

    /// Name of the cluster; part of the names and tags of instances
    #[arg(
        long,
        value_name = "NAME",
        env = "CLUSTER_NAME",
        hide_env_values = true,
        help_heading = KARPENTER
    )]
    pub(super) cluster_name: Option<String>,

    /// URL of the API server for new nodes of `--cloud aws` [default: as EKS describes the cluster]
    #[arg(
        long,
        value_name = "URL",
        env = "CLUSTER_ENDPOINT",
        hide_env_values = true,
        help_heading = KARPENTER
    )]
    pub(super) cluster_endpoint: Option<String>,

    /// Certificate authority of that server for new nodes, PEM in base64 [default: as EKS describes the cluster]
    #[arg(
        long,
        value_name = "BASE64",
        env = "CLUSTER_CA_BUNDLE",
        hide_env_values = true,
        value_parser = authority,
        help_heading = KARPENTER
    )]
    pub(super) cluster_ca_bundle: Option<String>,

    /// SQS queue with messages about instances of `--cloud aws`
    #[arg(
        long,
        value_name = "NAME",
        env = "INTERRUPTION_QUEUE",
        hide_env_values = true,
        help_heading = KARPENTER
    )]
    pub(super) interruption_queue: Option<String>,

    /// There is no way to AWS's price lists: on-demand prices are the built-in ones
    #[arg(long, env = "ISOLATED_VPC", hide_env_values = true, help_heading = KARPENTER)]
    pub(super) isolated_vpc: bool,

    /// Buy nothing in zones that Amazon's Application Recovery Controller shifts the cluster away from
    #[arg(long, env = "ENABLE_ZONAL_SHIFT", hide_env_values = true, help_heading = KARPENTER)]
    pub(super) enable_zonal_shift: bool,

    /// Karpenter's feature gates, with commas between
    #[arg(
        long,
        value_name = "GATES",
        env = "FEATURE_GATES",
        hide_env_values = true,
        value_parser = feature_gates,
        help_heading = KARPENTER
    )]
    pub(super) feature_gates: Option<FeatureGates>,

    #[command(flatten)]
    pub(super) karpenter: KarpenterArgs,

    #[command(flatten)]
    pub(super) traces: TraceArgs,
}

impl ControllerArgs {
    /// Returns the parts that run.
    ///
    /// # Errors
    /// A setting that the parts need is missing, or a setting that is given has no effect without others.
    pub(super) fn parts(&self) -> Result<Parts, Failure> {
        if let (Some(setting), false) = (self.of_aws(), self.cloud == Some(Cloud::Aws)) {
            return Err(
                Failure::input(format!("{setting}: only --cloud aws heeds it"))
                    .hint("leave it out, and out of the environment"),
            );
        }
        if self.cloud_endpoint.is_some() && self.cloud != Some(Cloud::Simulated) {
            return Err(
                Failure::input("--cloud-endpoint: only --cloud simulated heeds it")
                    .hint("leave it out; what leads --cloud aws elsewhere is AWS_ENDPOINT_URL"),
            );
        }
        let Some(_) = self.cloud else {
            let without = || {
                Parts(
                    Part::ALL
                        .into_iter()
                        .filter(|part| !part.needs_cloud())
                        .collect(),
                )
            };
            let parts = self.only.clone().unwrap_or_else(without);
            return match parts.of_a_cloud() {
                None => Ok(parts),
                Some(part) => Err(Failure::input(format!(
                    "--cloud is missing: {} has to know where instances come from",
                    part.name()
                ))
                .hint("`--cloud simulated` asks the simulated EC2 of `mullion nodes`")),
            };
        };
        let parts = self.only.clone().unwrap_or_default();
        if parts.of_a_cloud().is_none() {
            return Err(
                Failure::input("--cloud: none of the parts that run asks a cloud")
                    .hint("leave it out, or add provisioner, disruption or ipam to --only"),
            );
        }
        let buys = parts.has(Part::Provisioner) || parts.has(Part::Disruption);
        // AWS needs it even for addresses only: instances are found by the tag with the cluster's name.
        let needs_name = buys || self.cloud == Some(Cloud::Aws);
        if needs_name && self.cluster_name.as_deref().is_none_or(str::is_empty) {
            return Err(
                Failure::input("--cluster-name is missing: instances carry it in their tags")
                    .hint("it is the name in the ClusterConfig of `mullion nodes`, and CLUSTER_NAME of Karpenter"),
            );
        }
        if self.cloud == Some(Cloud::Aws) && !cfg!(feature = "aws") {
            return Err(
                Failure::input("--cloud aws: this program was built without AWS's SDK").hint(
                    "build it with `cargo build --release -p mullion --features aws`, which takes some minutes longer",
                ),
            );
        }
        Ok(parts)
    }

    /// Returns the first given setting that only AWS uses.
    fn of_aws(&self) -> Option<&'static str> {
        let some = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let settings = [
            ("CLUSTER_ENDPOINT", some(&self.cluster_endpoint)),
            ("CLUSTER_CA_BUNDLE", some(&self.cluster_ca_bundle)),
            ("INTERRUPTION_QUEUE", some(&self.interruption_queue)),
            ("ISOLATED_VPC", self.isolated_vpc),
        ];
        let mut given = settings.into_iter().filter(|(_, is_given)| *is_given);
        given.next().map(|(name, _)| name)
    }
}

/// Checks a certificate authority in the form that kubeconfigs and Karpenter use (PEM in base64); empty means that none is given.
fn authority(text: &str) -> Result<String, NotPem> {
    let pem = BASE64_STANDARD.decode(text).ok();
    let is_pem = pem.is_some_and(|pem| pem.is_empty() || pem.starts_with(b"-----BEGIN "));
    if is_pem {
        Ok(text.to_owned())
    } else {
        Err(NotPem)
    }
}

/// A certificate authority has another form.
#[derive(Debug)]
struct NotPem;

impl fmt::Display for NotPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it must be PEM in base64, as certificate-authority-data of a kubeconfig")
    }
}

impl Error for NotPem {}

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
        flags.own.parts().map_err(|failure| failure.to_string())
    }

    #[test]
    fn what_is_missing_or_contradicts_is_said_before_anything_runs() {
        for (args, why) in [
            (
                &["--only", "scheduler,nodes"][..],
                "\"nodes\" is none of scheduler, provisioner",
            ),
            (&["--only", "ipam"], "--cloud is missing: ipam has to know"),
            (&["--cloud", "simulated"], "--cluster-name is missing"),
            (
                &["--cloud", "aws", "--only", "ipam"],
                "--cluster-name is missing",
            ),
            (
                &["--cloud", "simulated", "--only", "gmsa"],
                "none of the parts that run asks a cloud",
            ),
            (
                &["--interruption-queue=q", "--only=scheduler"],
                "INTERRUPTION_QUEUE: only --cloud aws heeds it",
            ),
            (
                &["--cluster-ca-bundle=LS0tLS1CRUdJTiA=", "--only=scheduler"],
                "CLUSTER_CA_BUNDLE: only --cloud aws heeds it",
            ),
            (
                &["--cluster-ca-bundle=cGxhaW4="],
                "it must be PEM in base64",
            ),
            (
                &["--cloud-endpoint=http://127.0.0.1:1", "--only=scheduler"],
                "--cloud-endpoint: only --cloud simulated heeds it",
            ),
            (
                &["--webhook-service=a", "--webhook-url=https://b"],
                "cannot be used with",
            ),
        ] {
            let refused = parts(args).expect_err("it is refused");
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[cfg(not(feature = "aws"))]
    #[test]
    fn without_its_sdk_aws_is_refused_with_what_to_build() {
        let refused = parts(&["--cloud=aws", "--cluster-name=demo"]).expect_err("it is refused");
        assert!(refused.contains("built without AWS's SDK"), "{refused}");
    }

    #[test]
    fn those_that_run_the_same_parts_share_a_lease() {
        let all = parts(&["--cloud=simulated", "--cluster-name=demo"]);
        assert_eq!(all.expect("valid").lease(), "mullion-controller");
        let without = parts(&[]).expect("valid");
        assert_eq!(
            without.lease(),
            "mullion-scheduler-placement-addresses-gmsa"
        );
        assert!(without.need_a_leader() && without.have_webhooks());
        let gmsa = parts(&["--only", "gmsa"]).expect("valid");
        assert!(!gmsa.need_a_leader() && gmsa.have_webhooks());
        let scheduler = parts(&["--only", "scheduler"]).expect("valid");
        assert!(!scheduler.have_webhooks());
    }
}
