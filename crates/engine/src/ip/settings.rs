//! Reads the data of the ConfigMap `kube-system/amazon-vpc-cni`.
//!
//! Source: `ParseWinIPTargetConfigs` of VRC's pkg/config/loader.go. One rule is ours: a target that is absent or cannot be
//! read has its default. VRC takes zero for it as soon as another target is set.

use std::collections::BTreeMap;
use std::num::{IntErrorKind, ParseIntError};

use thiserror::Error;

use super::cidr::Kind;
use super::targets::Targets;

/// What the ConfigMap says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether Windows pods get addresses at all (`enable-windows-ipam`).
    pub windows_ipam: bool,
    /// Whether they get them from prefixes (`enable-windows-prefix-delegation`).
    pub prefix_delegation: bool,
    warm_ip: Option<i64>,
    min_ip: Option<i64>,
    warm_prefix: Option<i64>,
}

/// A value of the ConfigMap that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// A switch that Go's `strconv.ParseBool` refuses.
    #[error(
        "ConfigMap kube-system/amazon-vpc-cni: {key} is `{value}`, neither true nor false: it counts as false; write \"true\" or \
         \"false\""
    )]
    Switch {
        /// Which key.
        key: &'static str,
        /// What it says.
        value: String,
    },
    /// A target that is no whole number.
    #[error(
        "ConfigMap kube-system/amazon-vpc-cni: {key} is `{value}`, not a whole number: the default is used; write a number such as \
         \"3\""
    )]
    Target {
        /// Which key.
        key: &'static str,
        /// What it says.
        value: String,
    },
}

impl Unreadable {
    /// Returns the key whose value cannot be read.
    pub fn key(&self) -> &'static str {
        match self {
            Unreadable::Switch { key, .. } | Unreadable::Target { key, .. } => key,
        }
    }
}

impl Settings {
    /// Reads the ConfigMap's data, and returns what could not be read beside the settings.
    pub fn read(data: &BTreeMap<String, String>) -> (Settings, Vec<Unreadable>) {
        let mut unreadable = Vec::new();
        let mut switch = |key: &'static str| match data.get(key) {
            None => false,
            Some(text) => parse_bool(text).unwrap_or_else(|| {
                let value = text.clone();
                unreadable.push(Unreadable::Switch { key, value });
                false
            }),
        };
        let windows_ipam = switch("enable-windows-ipam");
        let prefix_delegation = switch("enable-windows-prefix-delegation");
        let mut target = |keys: [&'static str; 2]| {
            // The key without `windows-` is deprecated, and wins.
            let (key, text) = keys
                .into_iter()
                .find_map(|key| Some((key, data.get(key)?)))?;
            let number = parse_int(text);
            if number.is_none() {
                let value = text.clone();
                unreadable.push(Unreadable::Target { key, value });
            }
            number
        };
        let settings = Settings {
            windows_ipam,
            prefix_delegation,
            warm_ip: target(["warm-ip-target", "windows-warm-ip-target"]),
            min_ip: target(["minimum-ip-target", "windows-minimum-ip-target"]),
            warm_prefix: target(["warm-prefix-target", "windows-warm-prefix-target"]),
        };
        (settings, unreadable)
    }

    /// Returns the kind of a node's active pool; only instance types on Nitro (or metal) can have prefixes.
    pub fn kind(&self, can_have_prefixes: bool) -> Kind {
        if self.prefix_delegation && can_have_prefixes {
            Kind::Prefix
        } else {
            Kind::Address
        }
    }

    /// Returns the targets for a pool of `kind`.
    ///
    /// Both targets zero or absent, and for prefixes `warm-prefix-target` too, means the defaults: addresses on demand only
    /// are not supported. An explicit zero of `warm-ip-target` means 1 for single addresses.
    pub fn targets(&self, kind: Kind) -> Targets {
        let zero = |target: Option<i64>| target.unwrap_or(0) == 0;
        match kind {
            Kind::Address => {
                let warm_ip = self
                    .warm_ip
                    .map(|target| if target == 0 { 1 } else { target });
                if zero(warm_ip) && zero(self.min_ip) {
                    return Targets::ADDRESSES;
                }
                Targets {
                    warm_ip: warm_ip.unwrap_or(Targets::ADDRESSES.warm_ip),
                    min_ip: self.min_ip.unwrap_or(Targets::ADDRESSES.min_ip),
                    warm_prefix: 0,
                }
            }
            Kind::Prefix if zero(self.warm_ip) && zero(self.min_ip) && zero(self.warm_prefix) => {
                Targets::PREFIXES
            }
            // Zero is "not set" here: the pool knows which default follows from what the others say.
            Kind::Prefix => Targets {
                warm_ip: self.warm_ip.unwrap_or(0),
                min_ip: self.min_ip.unwrap_or(0),
                warm_prefix: self.warm_prefix.unwrap_or(0),
            },
        }
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a whole number as Go's `strconv.Atoi` does: one that is too large is the largest there is.
fn parse_int(text: &str) -> Option<i64> {
    text.parse().map_or_else(
        |error: ParseIntError| match error.kind() {
            IntErrorKind::PosOverflow => Some(i64::MAX),
            IntErrorKind::NegOverflow => Some(i64::MIN),
            _ => None,
        },
        Some,
    )
}
