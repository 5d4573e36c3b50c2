//! Names and ids of zones.
//!
//! Invariant: zone ids have AWS's abbreviations (`us-west-2a` is `usw2-az1` here; in real accounts the letters are shuffled).

/// Returns the first three zones of a region.
pub(super) fn default_zones(region: &str) -> Vec<String> {
    ["a", "b", "c"]
        .iter()
        .map(|letter| format!("{region}{letter}"))
        .collect()
}

/// Returns the id of a zone, for example `usw2-az1`.
pub fn zone_id(zone: &str) -> String {
    let letter = zone.bytes().last().unwrap_or(b'a');
    let region = &zone[..zone.len().saturating_sub(1)];
    let number = letter.saturating_sub(b'a') + 1;
    format!("{}-az{number}", abbreviation(region))
}

/// Abbreviates a region: `us-west-2` is `usw2`, `ap-southeast-1` is `apse1`, `us-gov-west-1` is `usgw1`.
fn abbreviation(region: &str) -> String {
    let mut parts = region.split('-');
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        short.push_str(match part {
            "northeast" => "ne",
            "northwest" => "nw",
            "southeast" => "se",
            "southwest" => "sw",
            number if number.bytes().all(|b| b.is_ascii_digit()) => number,
            other => other.get(..1).unwrap_or_default(),
        });
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_ids_are_abbreviated_as_aws_does() {
        assert_eq!(zone_id("us-west-2a"), "usw2-az1");
        assert_eq!(zone_id("ap-southeast-1c"), "apse1-az3");
        assert_eq!(zone_id("eu-central-1b"), "euc1-az2");
        assert_eq!(zone_id("us-gov-west-1a"), "usgw1-az1");
    }
}
