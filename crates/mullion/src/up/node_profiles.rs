//! `--node-profiles FILE`: the boot times, image pull speeds and memory of the user's own nodes.

use std::{fmt, num::NonZeroU64, path::Path, time::Duration};

use mullion_api::ami::{AmiFamily, Os};
use mullion_cloud::{
    MemoryOverhead,
    sim::{Images, KeptMemory, NodeProfile, NodeProfiles, PullSpeed},
};
use serde::Deserialize;

use crate::{
    failure::Failure,
    input::{self, FieldsError},
};

const HINT: &str =
    "nodes: [{images: WindowsServer2022FullContainer, bootSeconds: 240, fastLaunch: true}]";
/// The longest duration: a day.
const LONGEST_S: u64 = 86_400;
/// The highest pull speed, in megabytes per second.
const FASTEST_MB: u64 = 100_000;
/// The largest amount that a kubelet reserves: a TiB, in MiB.
const MOST_MIB: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nodes: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Row {
    images: String,
    boot_seconds: Option<u64>,
    shutdown_seconds: Option<u64>,
    #[serde(default)]
    fast_launch: bool,
    #[serde(default)]
    domain_join: bool,
    download_megabytes_per_second: Option<u64>,
    extract_megabytes_per_second: Option<u64>,
    hidden_memory_percent: Option<f64>,
    reserved_memory_mebibytes: Option<u64>,
}

/// Reads the file, if there is one.
pub(crate) fn read(file: Option<&Path>) -> Result<NodeProfiles, Failure> {
    let Some(path) = file else {
        return Ok(NodeProfiles::default());
    };
    let text = input::text_of(path).map_err(|failure| failure.hint(HINT))?;
    parse(&text).map_err(|why| Failure::input(format!("{}: {why}", input::named(path))).hint(HINT))
}

fn parse(text: &str) -> Result<NodeProfiles, ProfileError> {
    let file: File = input::fields(text).map_err(ProfileError::Fields)?;
    let rows = file.nodes.into_iter().enumerate();
    let profiles = rows.map(|(index, row)| profile(row, index));
    profiles.collect::<Result<_, _>>().map(NodeProfiles)
}

/// The reason why a text holds no profiles of nodes.
#[derive(Debug)]
enum ProfileError {
    Fields(FieldsError),
    /// A field of the node with this index has a value that cannot be.
    Field {
        index: usize,
        field: &'static str,
        why: Unfit,
    },
}

/// The reason why a field cannot have a value.
#[derive(Debug)]
enum Unfit {
    Images(String),
    NotWindows,
    LongerThanADay(u64),
    Speed(u64),
    HiddenMemory(f64),
    ReservedMemory(u64),
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, field, why) = match self {
            ProfileError::Fields(error) => return write!(f, "{error}"),
            ProfileError::Field { index, field, why } => (index, field, why),
        };
        write!(f, "nodes[{index}].{field}: ")?;
        match why {
            Unfit::Images(name) => write!(
                f,
                "{name:?} is neither linux nor windows nor an amiFamily such as WindowsServer2022CoreContainer"
            ),
            Unfit::NotWindows => f.write_str("only Windows nodes have it"),
            Unfit::LongerThanADay(seconds) => {
                write!(f, "{seconds} is more than a day of {LONGEST_S} seconds")
            }
            Unfit::Speed(megabytes) => {
                write!(f, "{megabytes} is not between 1 and {FASTEST_MB}")
            }
            Unfit::HiddenMemory(percent) => {
                write!(f, "{percent} is not at least 0 and less than 100")
            }
            Unfit::ReservedMemory(mebibytes) => {
                write!(f, "{mebibytes} is more than {MOST_MIB}")
            }
        }
    }
}

fn profile(row: Row, index: usize) -> Result<NodeProfile, ProfileError> {
    let wrong = |field, why| ProfileError::Field { index, field, why };
    let images = match row.images.as_str() {
        "linux" => Images::Of(Os::Linux),
        "windows" => Images::Of(Os::Windows),
        name => {
            let family = name.parse().map(Images::Family);
            family.map_err(|_| wrong("images", Unfit::Images(name.to_owned())))?
        }
    };
    let os = match images {
        Images::Of(os) => os,
        Images::Family(family) => AmiFamily::os(family),
    };
    for (field, is_set) in [
        ("fastLaunch", row.fast_launch),
        ("domainJoin", row.domain_join),
    ] {
        if is_set && os == Os::Linux {
            return Err(wrong(field, Unfit::NotWindows));
        }
    }
    let time = |field, seconds: Option<u64>| match seconds {
        Some(seconds) if seconds > LONGEST_S => Err(wrong(field, Unfit::LongerThanADay(seconds))),
        seconds => Ok(seconds.map(Duration::from_secs)),
    };
    let speed = |field, megabytes: Option<u64>| match megabytes {
        None => Ok(None),
        // One megabyte a second equals a thousand bytes a millisecond.
        Some(megabytes @ 1..=FASTEST_MB) => Ok(NonZeroU64::new(megabytes * 1_000)),
        Some(megabytes) => Err(wrong(field, Unfit::Speed(megabytes))),
    };
    let hidden = match row.hidden_memory_percent {
        None => None,
        Some(percent) => {
            let overhead = MemoryOverhead::of_fraction(percent / 100.0);
            let unfit = || wrong("hiddenMemoryPercent", Unfit::HiddenMemory(percent));
            Some(overhead.ok_or_else(unfit)?)
        }
    };
    let reserved_bytes = match row.reserved_memory_mebibytes {
        Some(mebibytes) if mebibytes > MOST_MIB => {
            let unfit = Unfit::ReservedMemory(mebibytes);
            return Err(wrong("reservedMemoryMebibytes", unfit));
        }
        mebibytes => mebibytes.map(|mebibytes| mebibytes << 20),
    };
    Ok(NodeProfile {
        images,
        boot: time("bootSeconds", row.boot_seconds)?,
        shutdown: time("shutdownSeconds", row.shutdown_seconds)?,
        fast_launch: row.fast_launch,
        domain_join: row.domain_join,
        pulls: PullSpeed {
            download: speed(
                "downloadMegabytesPerSecond",
                row.download_megabytes_per_second,
            )?,
            extract: speed(
                "extractMegabytesPerSecond",
                row.extract_megabytes_per_second,
            )?,
        },
        memory: KeptMemory {
            hidden,
            reserved_bytes,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_and_wrong_ones_named() {
        let read = parse(
            "nodes: [{images: WindowsServer2022FullContainer, bootSeconds: 240, fastLaunch: true}, {images: windows, domainJoin: true}]",
        );
        assert_eq!(read.expect("profiles").0.len(), 2);
        let wrong = |text: &str| parse(text).expect_err("it is wrong").to_string();
        assert_eq!(
            wrong("nodes: [{images: Solaris}]"),
            "nodes[0].images: \"Solaris\" is neither linux nor windows nor an amiFamily such as WindowsServer2022CoreContainer"
        );
        assert_eq!(
            wrong("nodes: [{images: linux, fastLaunch: true}]"),
            "nodes[0].fastLaunch: only Windows nodes have it"
        );
        assert_eq!(
            wrong("nodes: [{images: windows, bootSeconds: 100000}]"),
            "nodes[0].bootSeconds: 100000 is more than a day of 86400 seconds"
        );
        assert!(wrong("nodes: [{images: windows, boot: 1}]").contains("boot"));
        let slow = parse("nodes: [{images: windows, extractMegabytesPerSecond: 8}]");
        let pulls = slow.expect("profiles").0[0].pulls;
        assert_eq!(pulls.extract.map(NonZeroU64::get), Some(8_000));
        assert_eq!(pulls.download, None);
        let small = parse(
            "nodes: [{images: linux, hiddenMemoryPercent: 12.5, reservedMemoryMebibytes: 512}]",
        );
        let memory = small.expect("profiles").0[0].memory;
        assert_eq!(memory.hidden, MemoryOverhead::of_fraction(0.125));
        assert_eq!(memory.reserved_bytes, Some(512 << 20));
        assert_eq!(
            wrong("nodes: [{images: linux, hiddenMemoryPercent: 100}]"),
            "nodes[0].hiddenMemoryPercent: 100 is not at least 0 and less than 100"
        );
        assert_eq!(
            wrong("nodes: [{images: linux, reservedMemoryMebibytes: 2000000}]"),
            "nodes[0].reservedMemoryMebibytes: 2000000 is more than 1048576"
        );
        assert_eq!(
            wrong("nodes: [{images: linux, downloadMegabytesPerSecond: 0}]"),
            "nodes[0].downloadMegabytesPerSecond: 0 is not between 1 and 100000"
        );
    }
}
