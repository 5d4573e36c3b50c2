//! What nodes that are there cost, by the catalogue, and how amounts of money are written.

use mullion_api::{ami::Os, labels};
use mullion_cloud::{CapacityType, catalogue};
use mullion_engine::model::NodeSpec;

/// Hours of a month, as AWS counts them.
const HOURS: f64 = 730.0;

/// Micro-dollars an hour that a node costs; `None` where its labels do not say what it is.
pub(super) fn of_node(node: &NodeSpec) -> Option<u64> {
    let label = |key: &str| node.labels.get(key).map(String::as_str);
    let kind = label(labels::INSTANCE_TYPE).or_else(|| label(labels::BETA_INSTANCE_TYPE))?;
    let os = match label(labels::OS).or_else(|| label(labels::BETA_OS)) {
        Some(labels::OS_WINDOWS) => Os::Windows,
        _ => Os::Linux,
    };
    let bought = label(labels::CAPACITY_TYPE).or_else(|| label(labels::EKS_CAPACITY_TYPE));
    let capacity = match bought {
        Some(labels::SPOT | "SPOT") => CapacityType::Spot,
        Some(labels::RESERVED) => CapacityType::Reserved,
        _ => CapacityType::OnDemand,
    };
    let price = catalogue::price::of(catalogue::get(kind)?, os, capacity)?;
    Some(price.0)
}

/// Dollars of a price in micro-dollars.
pub(super) fn dollars(micro_usd: u64) -> f64 {
    micro_usd as f64 / 1e6
}

/// A month at a price an hour.
pub(super) fn a_month(usd_per_hour: f64) -> f64 {
    (usd_per_hour * HOURS * 100.0).round() / 100.0
}

/// Whole dollars with commas between thousands.
pub(super) fn whole(usd: f64) -> String {
    let digits = format!("{:.0}", usd.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    match usd <= -0.5 {
        true => format!("-{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(labels: &[(&str, &str)]) -> NodeSpec {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        NodeSpec {
            labels: labels.collect(),
            ..NodeSpec::named("n")
        }
    }

    #[test]
    fn a_node_costs_what_its_labels_say_it_is() {
        let kind = (labels::INSTANCE_TYPE, "c6a.xlarge");
        assert_eq!(of_node(&node(&[kind])), Some(153_000));
        assert_eq!(
            of_node(&node(&[kind, (labels::OS, "windows")])),
            Some(337_000)
        );
        assert_eq!(
            of_node(&node(&[kind, (labels::CAPACITY_TYPE, "spot")])),
            Some(53_550)
        );
        assert_eq!(
            of_node(&node(&[(labels::INSTANCE_TYPE, "kwok.large")])),
            None
        );
        assert_eq!(of_node(&node(&[])), None);
    }

    #[test]
    fn thousands_have_commas() {
        let texts = [0.4, 999.5, 12_345.0, -1_234_567.0, -0.2].map(whole);
        assert_eq!(texts, ["0", "1,000", "12,345", "-1,234,567", "0"]);
    }
}
