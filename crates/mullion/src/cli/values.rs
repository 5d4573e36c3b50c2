//! The values of flags, and how their texts are read.

use std::time::Duration;

use clap::ValueEnum;
use jiff::SignedDuration;
use mullion_cloud::{
    Speed,
    sim::{AddressFaults, ParseFaultsError, SMALLEST_SUBNET, largest_subnet},
};
use mullion_controllers::provisioner::gates::{FeatureGates, ParseGatesError};

/// The nodes that `bench up` may ask for: what the subnets of a simulated VPC have addresses for.
pub(crate) const MOST_NODES: u32 = 40_000;
/// The pods of `bench up` that a node has room for, beside the cluster's own.
pub(crate) const MOST_PODS_PER_NODE: u32 = 150;

/// What happens to pods whose images are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnknownImages {
    /// It is scheduled as it is
    Leave,
    /// It waits behind the scheduling gate mullion.dev/image, 30 s at most
    Gate,
}

/// Whether Windows pods get their addresses from this program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ipam {
    #[default]
    Auto,
    On,
    Off,
}

impl From<Ipam> for mullion_controllers::ipam::Mode {
    fn from(ipam: Ipam) -> Self {
        match ipam {
            Ipam::Auto => Self::Auto,
            Ipam::On => Self::On,
            Ipam::Off => Self::Off,
        }
    }
}

/// Forms of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

pub(crate) fn port(text: &str) -> Result<u16, String> {
    whole(text, 0, u32::from(u16::MAX))
        .and_then(|port| u16::try_from(port).map_err(|error| error.to_string()))
}

/// Reads a time as Go writes it: `90s`, `5m`, `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let time: Option<SignedDuration> = text.parse().ok();
    time.and_then(|time| Duration::try_from(time).ok())
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "it must be a time like 90s, 5m or 1h30m".to_owned())
}

pub(super) fn nodes(text: &str) -> Result<u32, String> {
    whole(text, 1, MOST_NODES)
}

pub(super) fn pods(text: &str) -> Result<u32, String> {
    whole(text, 1, MOST_NODES * MOST_PODS_PER_NODE)
}

/// Parses a number in a range, or returns the range as the error.
pub(crate) fn whole(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("it must be a whole number from {least} to {most}"))
}

/// The most looks that `--effort` may ask for.
const MOST_LOOKS: u32 = 1_000_000_000;

/// Parses how long to search for a cheaper plan.
pub(crate) fn looks(text: &str) -> Result<u64, String> {
    whole(text, 0, MOST_LOOKS).map(u64::from)
}

pub(crate) fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed::INSTANT);
    }
    let factor = text.parse::<f64>().ok().filter(|factor| factor.is_finite());
    factor
        .and_then(Speed::times)
        .ok_or_else(|| "it must be a number above 0, or max".to_owned())
}

/// Parses the size of a subnet, `/24` or `24`, and returns its prefix length.
pub(crate) fn subnet_size(text: &str) -> Result<u8, String> {
    let bits = text.strip_prefix('/').unwrap_or(text).parse().ok();
    bits.filter(|bits| (largest_subnet(1)..=SMALLEST_SUBNET).contains(bits))
        .ok_or_else(|| {
            format!(
                "it must be a size from /{} to /{SMALLEST_SUBNET}",
                largest_subnet(1)
            )
        })
}

pub(crate) fn feature_gates(text: &str) -> Result<FeatureGates, String> {
    text.parse()
        .map_err(|error: ParseGatesError| error.to_string())
}

pub(super) fn address_faults(text: &str) -> Result<AddressFaults, String> {
    text.parse()
        .map_err(|error: ParseFaultsError| error.to_string())
}
