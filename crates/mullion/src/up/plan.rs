//! The plan of a cluster to start, made from the flags: every mistake in them is found here, before anything runs.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mullion_api::{
    ami::AmiFamily,
    eksctl::{self, KubernetesVersion, NodeGroup},
    fault::FaultKind,
};
use mullion_cloud::{
    LaunchRequest, Speed, catalogue, node_group,
    sim::{
        self, AddressFaults, CapacityPattern, NodeProfiles, ParsePatternError, SMALLEST_SUBNET,
        SimulatedEc2, largest_subnet,
    },
};
use mullion_controllers::{
    provisioner::{self, FeatureGates},
    scheduler,
};
use mullion_engine::images::ImageTable;
use mullion_store::Notes;

use super::{images, node_profiles, port::PortChoice, scheduler_config};
use crate::{
    cli::{UnknownImages, UpArgs},
    clusters::{self, NamedCluster, keep},
    failure::Failure,
    input,
    kubeconfig::Target,
    traces::settings::TraceSettings,
};

/// The smallest valid config.
const CONFIG_HEAD: &str = "a ClusterConfig begins: {apiVersion: eksctl.io/v1alpha5, kind: ClusterConfig, metadata: {name: demo, region: us-west-2}}";

/// Valid values for fields whose errors have no hint of their own, by the field's name.
const EXAMPLES: [(&str, &str); 11] = [
    ("amiFamily", "amiFamily: WindowsServer2022CoreContainer"),
    (
        "effect",
        "taints: [{key: os, value: windows, effect: NoSchedule}]",
    ),
    ("desiredCapacity", "desiredCapacity: 2"),
    ("minSize", "minSize: 1"),
    ("maxSize", "maxSize: 4"),
    ("volumeSize", "volumeSize: 100 (GiB)"),
    ("labels", "labels: {team: shop}"),
    ("tags", "tags: {team: shop}"),
    (
        "nodeGroups",
        "nodeGroups: [{name: linux, instanceType: m5.large}]",
    ),
    (
        "managedNodeGroups",
        "managedNodeGroups: [{name: linux, instanceType: m5.large}]",
    ),
    ("metadata", "metadata: {name: demo, region: us-west-2}"),
];

/// The plan of a cluster.
pub(crate) struct Plan {
    /// The name of the cluster on this machine: in `mullion list`, and of its context in the kubeconfig.
    pub(crate) name: String,
    /// The directory; `None` keeps nothing on disk.
    pub(crate) directory: Option<PathBuf>,
    /// Whether the stored state is deleted first.
    pub(crate) fresh: bool,
    /// Name, region, version, node groups.
    pub(crate) spec: eksctl::Cluster,
    /// The config file from which `spec` was read.
    pub(crate) file: Option<PathBuf>,
    /// The text of that file.
    pub(crate) config: String,
    /// Whether the default NodePools are created.
    pub(crate) default_pools: bool,
    /// The port to listen on.
    pub(crate) port: PortChoice,
    /// The destination of the kubeconfig; `None` writes none.
    pub(crate) kubeconfig: Option<Target>,
    /// Divisor of simulated delays.
    pub(crate) speed: Speed,
    /// The options without capacity in the cloud.
    pub(crate) exhausted: Vec<CapacityPattern>,
    /// Prefix length of the simulated cloud's subnets; `None` divides the VPC.
    pub(crate) subnet_bits: Option<u8>,
    /// Whether the cluster's own controller assigns addresses to Windows pods.
    pub(crate) ipam: mullion_controllers::ipam::Mode,
    /// The injected faults of calls about pod addresses.
    pub(crate) address_faults: AddressFaults,
    /// Measured values of nodes, which replace the typical ones.
    pub(crate) node_profiles: NodeProfiles,
    /// The known facts about container images.
    pub(crate) images: Arc<ImageTable>,
    /// The registries that are asked about images.
    pub(crate) registries: mullion_images::Settings,
    /// Whether pods with unknown images wait behind a scheduling gate.
    pub(crate) gates_unknown_images: bool,
    /// Whether `spec.os.name` counts as a placement requirement.
    pub(crate) pod_os_counts: bool,
    /// Whether pods with a GMSACredentialSpec and without a host name get a random one.
    pub(crate) gmsa_random_hostname: bool,
    /// Optional features of the provisioner.
    pub(crate) gates: FeatureGates,
    /// Settings of the provisioner.
    pub(crate) settings: provisioner::Settings,
    /// Where traces go; `None` if there are none.
    pub(crate) traces: Option<TraceSettings>,
    /// The configuration of the scheduler.
    pub(crate) scheduler: scheduler::config::Config,
    /// The text of the scheduler's configuration file.
    pub(crate) scheduler_text: Option<String>,
    /// Whether the cluster runs in the background, with a log.
    pub(crate) detached: bool,
    /// Remarks for the user about the limits of this cluster.
    pub(crate) remarks: Vec<String>,
}

/// The output that the user wants.
pub(super) struct OutputOptions {
    /// Only the requested output.
    pub(super) quiet: bool,
    /// Whether changes of nodes are printed. With `-v` the log says more about them.
    pub(super) tells_of_nodes: bool,
    /// The time to wait for nodes to be ready, if any.
    pub(super) wait: Option<Duration>,
    /// Whether output ends when the cluster runs, because it continues in the background.
    pub(super) detached: bool,
}

impl OutputOptions {
    /// Returns whether only the process id is printed.
    pub(super) fn is_silent(&self) -> bool {
        self.detached && self.quiet
    }

    /// Reads the flags.
    pub(super) fn of(args: &UpArgs) -> OutputOptions {
        OutputOptions {
            quiet: args.quiet,
            tells_of_nodes: !args.quiet && args.verbose == 0,
            wait: args.wait,
            detached: args.detached,
        }
    }
}

impl Plan {
    /// Makes the plan from the flags.
    pub(crate) fn from_args(args: UpArgs) -> Result<Plan, Failure> {
        only_one_reads_stdin(&args)?;
        let exhausted = args.insufficient_capacity.iter().map(|text| pattern(text));
        let chosen = NamedCluster {
            name: args.name,
            directory: args.data_dir,
        };
        let (spec, config) = match &args.config {
            Some(path) => read(path)?,
            None => (default_spec(), String::new()),
        };
        let scheduler = args.scheduler_config.as_deref().map(scheduler_config::read);
        let (scheduler, scheduler_text) = scheduler.transpose()?.unzip();
        let directory = chosen.directory()?;
        let is_kept = directory.as_deref().is_some_and(keep::is_kept);
        let kubeconfig = args.kubeconfig.as_deref();
        let remarks = remarks(&spec, &chosen, directory.as_deref(), kubeconfig);
        let name = chosen.name.unwrap_or_else(|| spec.name.clone());
        Ok(Plan {
            directory,
            kubeconfig: Some(Target::resolve(
                args.kubeconfig,
                args.merge,
                &name,
                is_kept,
            )?),
            name,
            fresh: args.fresh,
            exhausted: exhausted.collect::<Result<_, _>>()?,
            default_pools: args.config.is_none(),
            spec,
            config,
            file: args.config,
            port: args.port.map_or(PortChoice::Usual, PortChoice::Exactly),
            speed: args.speed,
            subnet_bits: args.subnet_size,
            ipam: args.ipam.into(),
            address_faults: args.address_faults.unwrap_or_default(),
            node_profiles: node_profiles::read(args.node_profiles.as_deref())?,
            images: Arc::new(images::table(args.images.as_deref())?),
            registries: args.registries.unwrap_or_default(),
            gates_unknown_images: args.unknown_images == UnknownImages::Gate,
            pod_os_counts: !args.ignore_pod_os,
            gmsa_random_hostname: args.gmsa_random_hostname,
            gates: args.feature_gates,
            settings: args.karpenter.settings()?,
            traces: args.traces.settings()?,
            scheduler: scheduler.unwrap_or_default(),
            scheduler_text,
            detached: args.detached,
            remarks,
        })
    }

    /// Takes over the config of a kept cluster, or stores that of a new one; and takes over its port, unless the flags name another.
    pub(crate) fn go_on(&mut self, notes: &Notes) -> Result<(), Failure> {
        if let (PortChoice::Usual, Some(port)) = (self.port, keep::port(notes)) {
            self.port = PortChoice::Again(port);
        }
        let Some(config) = keep::config(notes) else {
            // Stored at the first start, because a kept cluster has to go on without the file.
            keep::set_config(notes, self.config.clone());
            if let Some(bits) = self.subnet_bits {
                keep::set_subnet_bits(notes, bits);
            }
            return Ok(());
        };
        self.keep_subnet_size(keep::subnet_bits(notes))?;
        let kept = match config.as_str() {
            "" => default_spec(),
            text => {
                eksctl::Cluster::from_yaml(text).map_err(|error| config_failure(None, &error))?
            }
        };
        // A kept cluster goes on with its own config, so a different file would have no effect and is refused.
        if let Some(file) = self.file.as_ref().filter(|_| kept != self.spec) {
            return Err(Failure::input(format!(
                "cluster {} was made from another config than {}",
                self.name,
                input::named(file)
            ))
            .hint("leave --config out to go on with it, or start anew with --fresh"));
        }
        // The config is empty if the cluster was created without a file; only then it has the default NodePools.
        self.default_pools = config.is_empty();
        self.spec = kept;
        self.config = config;
        Ok(())
    }

    /// Takes over the subnet size of a kept cluster, because its addresses are in those subnets.
    fn keep_subnet_size(&mut self, kept: Option<u8>) -> Result<(), Failure> {
        if let Some(bits) = self.subnet_bits.filter(|bits| kept != Some(*bits)) {
            let was = match kept {
                Some(kept) => format!("with --subnet-size /{kept}"),
                None => "without --subnet-size".to_owned(),
            };
            return Err(Failure::input(format!(
                "cluster {} was made {was}, and its nodes and pods have addresses in those subnets: /{bits} cannot be had now",
                self.name
            ))
            .hint("leave --subnet-size out to go on with it, or start anew with --fresh"));
        }
        self.subnet_bits = kept;
        Ok(())
    }

    /// Refuses subnets that are too large for the VPC to have one in each zone.
    fn check_subnets(&self, zones: usize) -> Result<(), Failure> {
        let largest = largest_subnet(zones);
        match self.subnet_bits {
            Some(bits) if bits < largest => Err(Failure::input(format!(
                "--subnet-size /{bits}: the VPC 10.0.0.0/16 has no room for {zones} subnets of that size"
            ))
            .hint(format!("--subnet-size /{largest}, or smaller, down to /{SMALLEST_SUBNET}"))),
            _ => Ok(()),
        }
    }

    /// Creates the simulated cloud, restored if it was kept, and the launch requests for the initial instances.
    pub(crate) fn cloud(
        &self,
        clock: mullion_cloud::Clock,
        notes: &Notes,
    ) -> Result<(SimulatedEc2, Vec<LaunchRequest>), Failure> {
        let config = sim::Config {
            speed: self.speed,
            subnet_bits: self.subnet_bits,
            address_faults: self.address_faults.clone(),
            node_profiles: self.node_profiles.clone(),
            ..sim::Config::for_cluster(&self.spec)
        };
        // Only here, because the zones of a kept cluster are known only by now.
        self.check_subnets(config.zone_count())?;
        let ec2 = match &self.directory {
            None => SimulatedEc2::new(config, clock),
            Some(directory) => {
                let ledger = keep::CloudNotes(notes.clone());
                let saved = ledger.saved();
                let ec2 = SimulatedEc2::resume(config, clock, Arc::new(ledger), &saved);
                ec2.map_err(|error| {
                    Failure::input(format!(
                        "the simulated cloud in {} cannot go on: {error}",
                        directory.display()
                    ))
                    .hint("use the version of mullion that wrote it, or start anew with --fresh")
                })?
            }
        };
        self.check_exhausted(&ec2)?;
        let orders = node_group::orders(&self.spec, &ec2)
            .map_err(|error| config_failure(self.file.as_deref(), &error))?;
        Ok((ec2, orders))
    }

    /// Refuses zones that the cluster's region does not have, and instance types that there are not.
    fn check_exhausted(&self, ec2: &SimulatedEc2) -> Result<(), Failure> {
        let zones = ec2.zones();
        for pattern in &self.exhausted {
            let Err(unknown) = ec2.fault(FaultKind::Capacity, &pattern.to_string()) else {
                continue;
            };
            let Some(zone) = pattern.zone.as_deref() else {
                let failure = format!("--insufficient-capacity {pattern}: {}", unknown.message);
                return Err(match unknown.near.first() {
                    Some(near) => {
                        Failure::input(failure).hint(format!("--insufficient-capacity '{near}'"))
                    }
                    None => Failure::input(failure),
                });
            };
            if !zones.iter().any(|known| **known == *zone) {
                let known = zones.join(", ");
                let hint = format!("--insufficient-capacity '*/{}'", zones[0]);
                return Err(Failure::input(format!(
                    "--insufficient-capacity {pattern}: {zone:?} is not one of the cluster's zones {known}"
                ))
                .hint(hint));
            }
        }
        Ok(())
    }
}

/// Returns the remarks about a cluster: fields of its config without effect, directories that are created because a flag names them, and
/// another cluster with its name.
fn remarks(
    spec: &eksctl::Cluster,
    chosen: &NamedCluster,
    directory: Option<&Path>,
    kubeconfig: Option<&Path>,
) -> Vec<String> {
    let mut remarks = Vec::new();
    let ignored = spec.ignored.join(", ");
    if !ignored.is_empty() {
        remarks.push(format!(
            "accepted, without effect in a simulation: {ignored}"
        ));
    }
    let beside = kubeconfig.and_then(Path::parent);
    let named = [chosen.directory.as_deref(), beside].into_iter().flatten();
    let new = named.filter(|path| !path.as_os_str().is_empty() && !path.exists());
    remarks.extend(new.map(|path| format!("making the directory {}", path.display())));
    let name = chosen.name.as_deref();
    let other = name.and_then(|name| Some((name, clusters::other_of_name(name, directory)?)));
    remarks.extend(other.map(|(name, other)| {
        format!(
            "another cluster {name} is kept in {}: say which one is meant with --data-dir DIR",
            other.display()
        )
    }));
    remarks
}

/// Refuses several files from stdin, because the first would consume it.
fn only_one_reads_stdin(args: &UpArgs) -> Result<(), Failure> {
    let files = [
        ("--config", &args.config),
        ("--images", &args.images),
        ("--node-profiles", &args.node_profiles),
        ("--scheduler-config", &args.scheduler_config),
    ];
    let reads = files.iter().filter_map(|(flag, file)| {
        let reads = file.as_deref().is_some_and(input::is_stdin);
        reads.then_some(*flag)
    });
    match reads.collect::<Vec<_>>().as_slice() {
        [] | [_] => Ok(()),
        several => Err(Failure::input(format!(
            "{} cannot all be read from stdin",
            several.join(" and ")
        ))
        .hint("name a file for all of them but one")),
    }
}

pub(crate) fn read(path: &Path) -> Result<(eksctl::Cluster, String), Failure> {
    let text = input::text_of(path).map_err(|failure| {
        failure.hint("--config takes an eksctl ClusterConfig (eksctl.io/v1alpha5)")
    })?;
    let spec = eksctl::Cluster::from_yaml(&text);
    spec.map(|spec| (spec, text))
        .map_err(|error| config_failure(Some(path), &error))
}

pub(crate) fn config_failure(file: Option<&Path>, error: &eksctl::ConfigError) -> Failure {
    let failure = match file {
        Some(path) => Failure::input(format!("{}: {error}", input::named(path))),
        None => Failure::input(error),
    };
    failure.hint(
        error
            .hint
            .as_deref()
            .unwrap_or_else(|| example(&error.path)),
    )
}

/// Returns an example for the field of a path, or for the innermost part of the path that has one.
fn example(path: &str) -> &'static str {
    let parts = path.rsplit('.').map(|part| part.split('[').next());
    let known = parts.flatten().find_map(|part| {
        let row = EXAMPLES.iter().find(|(name, _)| *name == part);
        row.map(|(_, text)| *text)
    });
    known.unwrap_or(CONFIG_HEAD)
}

fn pattern(text: &str) -> Result<CapacityPattern, Failure> {
    let refused = |why: String| {
        Failure::input(format!("--insufficient-capacity {text}: {why}"))
            .hint("--insufficient-capacity c6a.xlarge, or '*/us-west-2a/spot'")
    };
    let pattern: CapacityPattern = text
        .parse()
        .map_err(|error: ParsePatternError| refused(error.to_string()))?;
    let named = pattern.instance_type.as_deref();
    let Some(unknown) = named.filter(|name| catalogue::get(name).is_none()) else {
        return Ok(pattern);
    };
    let failure = refused(format!("{unknown:?} is not an EC2 instance type"));
    Err(match catalogue::similar(unknown).as_slice() {
        [] => failure,
        similar => failure.hint(format!("one of {}", similar.join(", "))),
    })
}

/// Returns the default config: two Linux nodes; the default NodePools launch the others.
pub(crate) fn default_spec() -> eksctl::Cluster {
    eksctl::Cluster {
        name: "mullion".into(),
        region: "us-west-2".into(),
        version: KubernetesVersion::NEWEST,
        tags: Default::default(),
        availability_zones: Vec::new(),
        node_groups: vec![group("linux", "m5.large", 2)],
        identity_mappings: Vec::new(),
        ignored: Vec::new(),
    }
}

/// Returns a managed group of Amazon Linux 2023 nodes.
pub(crate) fn group(name: &str, instance_type: &str, nodes: u32) -> NodeGroup {
    NodeGroup {
        path: format!("managedNodeGroups[{name}]"),
        name: name.into(),
        managed: true,
        ami_family: AmiFamily::AmazonLinux2023,
        instance_types: vec![instance_type.into()],
        desired: nodes,
        min: nodes,
        max: nodes,
        labels: Default::default(),
        taints: Vec::new(),
        tags: Default::default(),
        availability_zones: Vec::new(),
        volume_gib: 80,
        spot: false,
        max_pods: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_cluster_keeps_the_size_of_its_subnets() {
        let with = |flag: &[&str], kept: Option<u8>| {
            let args = [&["mullion", "up"], flag].concat();
            let cli = <crate::cli::Cli as clap::Parser>::try_parse_from(args).expect("flags");
            let crate::cli::Command::Up(args) = cli.command else {
                panic!("it is up");
            };
            let mut plan = Plan::from_args(args).expect("a plan");
            plan.keep_subnet_size(kept).map(|()| plan.subnet_bits)
        };
        assert_eq!(with(&[], Some(24)).expect("it goes on"), Some(24));
        assert_eq!(
            with(&["--subnet-size", "24"], Some(24)).expect("it goes on"),
            Some(24)
        );
        let refused = with(&["--subnet-size", "/24"], None).expect_err("another size");
        assert_eq!(
            refused.to_string().lines().next(),
            Some(
                "error: cluster mullion was made without --subnet-size, and its nodes and pods have addresses in those subnets: /24 cannot be had now"
            )
        );
    }

    #[test]
    fn an_error_without_a_hint_gets_an_example_of_its_field() {
        assert!(example("nodeGroups[0].amiFamily").starts_with("amiFamily: "));
        assert!(example("managedNodeGroups[2].labels.team").starts_with("labels: "));
        assert!(example("nodeGroups[1].name").starts_with("nodeGroups: "));
        assert_eq!(example("apiVersion"), CONFIG_HEAD);
    }
}
