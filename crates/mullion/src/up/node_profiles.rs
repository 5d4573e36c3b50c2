//! `--node-profiles FILE`: the boot times, image pull speeds and memory of the user's own nodes.

use std::{num::NonZeroU64, path::Path, time::Duration};

use mullion_api::ami::{AmiFamily, Os};
use mullion_cloud::{
    MemoryOverhead,
    sim::{Images, KeptMemory, NodeProfile, NodeProfiles, PullSpeed},
};
use serde::Deserialize;

use crate::{failure::Failure, input};

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

fn parse(text: &str) -> Result<NodeProfiles, String> {
    let file: File = input::fields(text)?;
    let rows = file.nodes.into_iter().enumerate();
    let profiles = rows.map(|(index, row)| profile(row, index));
    profiles.collect::<Result<_, _>>().map(NodeProfiles)
}

fn profile(row: Row, index: usize) -> Result<NodeProfile, String> {
    let at = |field: &str| format!("nodes[{index}].{field}");
    let images = match row.images.as_str() {
        "linux" => Images::Of(Os::Linux),
        "windows" => Images::Of(Os::Windows),
        name => name.parse().map(Images::Family).map_err(|_| {
            format!(
                "{}: {name:?} is neither linux nor windows nor an amiFamily such as WindowsServer2022CoreContainer",
                at("images")
            )
        })?,
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
            return Err(format!("{}: only Windows nodes have it", at(field)));
        }
    }
    let time = |field: &str, seconds: Option<u64>| match seconds {
        Some(seconds) if seconds > LONGEST_S => Err(format!(
            "{}: {seconds} is more than a day of {LONGEST_S} seconds",
            at(field)
        )),
        seconds => Ok(seconds.map(Duration::from_secs)),
    };
    let speed = |field: &str, megabytes: Option<u64>| match megabytes {
        None => Ok(None),
        // One megabyte a second equals a thousand bytes a millisecond.
        Some(megabytes @ 1..=FASTEST_MB) => Ok(NonZeroU64::new(megabytes * 1_000)),
        Some(megabytes) => Err(format!(
            "{}: {megabytes} is not between 1 and {FASTEST_MB}",
            at(field)
        )),
    };
    let hidden = match row.hidden_memory_percent {
        None => None,
        Some(percent) => {
            let overhead = MemoryOverhead::of_fraction(percent / 100.0);
            Some(overhead.ok_or_else(|| {
                format!(
                    "{}: {percent} is not at least 0 and less than 100",
                    at("hiddenMemoryPercent")
                )
            })?)
        }
    };
    let reserved_bytes = match row.reserved_memory_mebibytes {
        Some(mebibytes) if mebibytes > MOST_MIB => {
            return Err(format!(
                "{}: {mebibytes} is more than {MOST_MIB}",
                at("reservedMemoryMebibytes")
            ));
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
        let wrong = |text: &str| parse(text).expect_err("it is wrong");
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
