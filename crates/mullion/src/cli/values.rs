//! The values of flags, and how their texts are read.

use std::{fmt, time::Duration};

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

/// The reason why a text is not the value of a flag: what the value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueError {
    /// A whole number in this range.
    Whole { least: u32, most: u32 },
    /// A time.
    Duration,
    /// A factor of simulated time.
    Speed,
    /// A size of a subnet.
    SubnetSize,
    /// A part of the whole.
    Fraction,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueError::Whole { least, most } => {
                write!(f, "it must be a whole number from {least} to {most}")
            }
            ValueError::Duration => f.write_str("it must be a time like 90s, 5m or 1h30m"),
            ValueError::Speed => f.write_str("it must be a number above 0, or max"),
            ValueError::SubnetSize => {
                let largest = largest_subnet(1);
                write!(f, "it must be a size from /{largest} to /{SMALLEST_SUBNET}")
            }
            ValueError::Fraction => f.write_str(
                "it must be a part of the whole, at least 0 and less than 1: 0.075 is 7.5 %",
            ),
        }
    }
}

impl std::error::Error for ValueError {}

pub(crate) fn port(text: &str) -> Result<u16, ValueError> {
    text.parse().map_err(|_| ValueError::Whole {
        least: 0,
        most: u16::MAX.into(),
    })
}

/// Reads a time as Go writes it: `90s`, `5m`, `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, ValueError> {
    let time: Option<SignedDuration> = text.parse().ok();
    time.and_then(|time| Duration::try_from(time).ok())
        .filter(|time| !time.is_zero())
        .ok_or(ValueError::Duration)
}

pub(super) fn nodes(text: &str) -> Result<u32, ValueError> {
    whole(text, 1, MOST_NODES)
}

pub(super) fn pods(text: &str) -> Result<u32, ValueError> {
    whole(text, 1, MOST_NODES * MOST_PODS_PER_NODE)
}

/// Parses a number in a range.
pub(crate) fn whole(text: &str, least: u32, most: u32) -> Result<u32, ValueError> {
    let number = text.parse().ok();
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or(ValueError::Whole { least, most })
}

/// The most looks that `--effort` may ask for.
const MOST_LOOKS: u32 = 1_000_000_000;

/// Parses how long to search for a cheaper plan.
pub(crate) fn looks(text: &str) -> Result<u64, ValueError> {
    whole(text, 0, MOST_LOOKS).map(u64::from)
}

pub(crate) fn speed(text: &str) -> Result<Speed, ValueError> {
    if text == "max" {
        return Ok(Speed::INSTANT);
    }
    let factor = text.parse::<f64>().ok().filter(|factor| factor.is_finite());
    factor.and_then(Speed::times).ok_or(ValueError::Speed)
}

/// Parses the size of a subnet, `/24` or `24`, and returns its prefix length.
pub(crate) fn subnet_size(text: &str) -> Result<u8, ValueError> {
    let bits = text.strip_prefix('/').unwrap_or(text).parse().ok();
    bits.filter(|bits| (largest_subnet(1)..=SMALLEST_SUBNET).contains(bits))
        .ok_or(ValueError::SubnetSize)
}

pub(crate) fn feature_gates(text: &str) -> Result<FeatureGates, ParseGatesError> {
    text.parse()
}

pub(super) fn address_faults(text: &str) -> Result<AddressFaults, ParseFaultsError> {
    text.parse()
}
