//! Computes what existing nodes cost by the price catalogue, and formats amounts of money.

use mullion_api::{ami::Os, labels};
use mullion_cloud::{CapacityType, catalogue};
use mullion_engine::model::NodeSpec;

/// The hours of a month, as AWS counts them.
const HOURS: f64 = 730.0;

/// Returns the price of a node in micro-dollars an hour, or `None` if its labels do not say which instance type it is.
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

/// Converts micro-dollars to dollars.
pub(super) fn dollars(micro_usd: u64) -> f64 {
    micro_usd as f64 / 1e6
}

/// Converts a price an hour to a price a month.
pub(super) fn a_month(usd_per_hour: f64) -> f64 {
    (usd_per_hour * HOURS * 100.0).round() / 100.0
}

/// Formats an amount as whole dollars with commas between thousands.
pub(super) fn whole(usd: f64) -> String {
    let digits = format!("{:.0}", usd.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if usd <= -0.5 {
        format!("-{text}")
    } else {
        text
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
