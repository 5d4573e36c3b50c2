//! Parses the ConfigMap `kube-system/amazon-vpc-cni`.
//!
//! The rules are those of `ParseWinIPTargetConfigs` in VRC's pkg/config/loader.go, with one exception: a target that is
//! absent or invalid has its default here, while VRC uses zero as soon as another target is set.

use std::collections::BTreeMap;
use std::num::{IntErrorKind, ParseIntError};

use thiserror::Error;

use super::cidr::Kind;
use super::targets::Targets;

/// The settings in the ConfigMap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether Windows pods get addresses at all (`enable-windows-ipam`).
    pub windows_ipam: bool,
    /// Whether Windows pods get addresses from prefixes (`enable-windows-prefix-delegation`).
    pub prefix_delegation: bool,
    warm_ip: Option<i64>,
    min_ip: Option<i64>,
    warm_prefix: Option<i64>,
}

/// A value of the ConfigMap that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// A switch that Go's `strconv.ParseBool` refuses.
    #[error(
        "ConfigMap kube-system/amazon-vpc-cni: {key} is `{value}`, neither true nor false: it counts as false; write \"true\" or \
         \"false\""
    )]
    Switch {
        /// The key.
        key: &'static str,
        /// The invalid value.
        value: String,
    },
    /// A target that is no whole number.
    #[error(
        "ConfigMap kube-system/amazon-vpc-cni: {key} is `{value}`, not a whole number: the default is used; write a number such as \
         \"3\""
    )]
    Target {
        /// The key.
        key: &'static str,
        /// The invalid value.
        value: String,
    },
}

impl Unreadable {
    /// Returns the key with the invalid value.
    pub fn key(&self) -> &'static str {
        match self {
            Unreadable::Switch { key, .. } | Unreadable::Target { key, .. } => key,
        }
    }
}

impl Settings {
    /// Parses the ConfigMap's data; returns the settings and the values that could not be parsed.
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
            // If both are set, the deprecated key without `windows-` wins, as in VRC.
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
    /// If both targets (for prefixes also `warm-prefix-target`) are zero or absent, the defaults apply: a pool that keeps
    /// nothing ready is not supported. An explicit `warm-ip-target` of zero means 1 for single addresses.
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
            // Zero means "not set" here: `Goal::deviation` derives the default from the other targets.
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

/// Parses a whole number as Go's `strconv.Atoi` does, except that a number out of range becomes the nearest 64-bit integer.
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
