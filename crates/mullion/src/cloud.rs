//! `mullion cloud`: the simulated EC2 alone, for programs that use AWS.

use std::path::PathBuf;

use clap::Args;
use mullion_api::eksctl::KubernetesVersion;
use mullion_aws_wire::{Endpoint, Settings};
use mullion_cloud::{
    Clock, Speed,
    sim::{self, SimulatedEc2},
};

use crate::{
    cli::{port, speed, subnet_size},
    failure::Failure,
    out,
    up::{self, plan::read, port::bind_exactly},
};

/// Flags of `mullion cloud`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  mullion cloud --port 4566
  AWS_ENDPOINT_URL=http://127.0.0.1:4566 AWS_DEFAULT_REGION=us-west-2 aws ec2 describe-subnets")]
pub(crate) struct CloudArgs {
    /// Port on 127.0.0.1 of all services; 0 takes any free one
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true, value_parser = port)]
    port: u16,

    /// An eksctl ClusterConfig (eksctl.io/v1alpha5): its name, region, zones, version and tags are those of the account; `-` reads stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster_name", "region"])]
    config: Option<PathBuf>,

    /// Name of the cluster, which tags subnets and security groups and is the name of the queue
    #[arg(long, value_name = "NAME", default_value = "mullion")]
    cluster_name: String,

    /// Region
    #[arg(long, value_name = "NAME", default_value = "us-west-2")]
    region: String,

    /// Divide simulated delays (calls, boot) by N; `max` leaves none
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = speed)]
    speed: Speed,

    /// Size of each subnet, /16 to /28; as many as fit where none is given
    #[arg(long, value_name = "SIZE", value_parser = subnet_size)]
    subnet_size: Option<u8>,

    /// IAM role that instance profiles may have, beside KarpenterNodeRole-CLUSTER; may be given several times
    #[arg(long = "role", value_name = "NAME")]
    roles: Vec<String>,

    /// Say more on stderr; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Answers requests until the process is interrupted.
pub(crate) async fn run(args: CloudArgs) -> Result<(), Failure> {
    let mut config = match &args.config {
        Some(path) => sim::Config::for_cluster(&read(path)?.0),
        None => sim::Config::new(&args.cluster_name, &args.region, KubernetesVersion::NEWEST),
    };
    config.speed = args.speed;
    config.subnet_bits = args.subnet_size;
    let ec2 = SimulatedEc2::new(config, Clock::system());
    // In a cluster, the control plane gets its addresses before the first instance does.
    ec2.control_plane_addresses();
    let settings = Settings {
        roles: args.roles,
        ..Settings::default()
    };
    let told = serve(Endpoint::new(ec2, settings), args.port, "--port").await?;
    out::line(&format!(
        "{told}\nCtrl-C stops it, and its instances are gone."
    ));
    up::interrupts().await
}

/// Answers requests on loopback until the process ends. Returns a sentence with the address, and a line for a shell that sets it.
///
/// # Errors
/// The port is not available.
pub(crate) async fn serve(endpoint: Endpoint, port: u16, flag: &str) -> Result<String, Failure> {
    let listener = bind_exactly(port, flag).await?;
    let address = listener.local_addr().map_err(Failure::run)?;
    let config = endpoint.ec2().config();
    let region = &config.region;
    let told = format!(
        "the simulated AWS account of cluster {} listens on http://{address}\nexport AWS_ENDPOINT_URL=http://{address} AWS_REGION={region} AWS_DEFAULT_REGION={region} AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any",
        config.cluster
    );
    tokio::spawn(async move {
        if let Err(error) = mullion_aws_wire::serve(listener, endpoint).await {
            tracing::error!("the simulated AWS endpoint is not served any more: {error}");
        }
    });
    Ok(told)
}
