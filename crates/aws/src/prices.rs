//! Prices of instances from AWS: on-demand prices from price lists, and spot prices from the price history, each for Linux and Windows.
//!
//! Invariant: a known price stays until a new one is known. Prices that AWS has not returned come from the catalogue.

use std::collections::BTreeMap;

use mullion_api::ami::Os;
use mullion_cloud::{
    CapacityType,
    catalogue::{InstanceType, Price, price},
};
use serde::Deserialize;

/// Prices by operating system and type, and spot prices also by zone.
#[derive(Clone, Debug, Default)]
pub struct PriceBook {
    on_demand: BTreeMap<(Os, String), Price>,
    spot: BTreeMap<(Os, String), BTreeMap<String, Price>>,
}

impl PriceBook {
    /// Stores on-demand prices.
    pub fn set_on_demand(&mut self, os: Os, prices: impl IntoIterator<Item = (String, Price)>) {
        let prices = prices.into_iter();
        self.on_demand
            .extend(prices.map(|(name, price)| ((os, name), price)));
    }

    /// Stores the spot price of a type in a zone.
    pub fn set_spot(&mut self, os: Os, instance_type: &str, zone: &str, price: Price) {
        let zones = self.spot.entry((os, instance_type.to_owned())).or_default();
        zones.insert(zone.to_owned(), price);
    }

    /// Returns the price of a type in a zone, or `None` if it is not sold that way. While no spot price is known, the catalogue's are used.
    pub fn price(
        &self,
        instance_type: &InstanceType,
        os: Os,
        zone: &str,
        capacity_type: CapacityType,
    ) -> Option<Price> {
        let key = (os, instance_type.name.to_string());
        let on_demand = || {
            let known = self.on_demand.get(&key).copied();
            known.or_else(|| price::of(instance_type, os, CapacityType::OnDemand))
        };
        match capacity_type {
            CapacityType::OnDemand => on_demand(),
            CapacityType::Reserved => Some(on_demand()?.as_reserved()),
            CapacityType::Spot => {
                let known = self.spot.range((os, String::new())..).next();
                if known.is_some_and(|((known_os, _), _)| *known_os == os) {
                    // Once prices of the system are known, a type without one is not sold as spot.
                    self.spot.get(&key)?.get(zone).copied()
                } else {
                    price::of(instance_type, os, CapacityType::Spot)
                }
            }
        }
    }
}

/// Returns the operating system of a product description in the spot price history.
pub fn os_of(description: &str) -> Option<Os> {
    match description {
        "Linux/UNIX" | "Linux/UNIX (Amazon VPC)" => Some(Os::Linux),
        "Windows" | "Windows (Amazon VPC)" => Some(Os::Windows),
        _ => None,
    }
}

/// Returns the product descriptions of an operating system in the spot price history.
pub fn descriptions_of(os: Os) -> [&'static str; 2] {
    match os {
        Os::Linux => ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
        Os::Windows => ["Windows", "Windows (Amazon VPC)"],
    }
}

/// Returns the region whose Pricing endpoint has the prices of a region.
pub fn pricing_region(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("ap") => "ap-south-1",
        Some("cn") => "cn-northwest-1",
        Some("eu") => "eu-central-1",
        _ => "us-east-1",
    }
}

/// Returns whether a region has a Pricing endpoint.
pub fn has_pricing(region: &str) -> bool {
    !region.starts_with("us-gov") && !region.starts_with("us-iso")
}

#[derive(Deserialize)]
struct Item {
    product: Product,
    #[serde(default)]
    terms: Terms,
}

#[derive(Deserialize)]
struct Product {
    attributes: Attributes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    #[serde(default)]
    instance_type: String,
}

#[derive(Default, Deserialize)]
struct Terms {
    #[serde(rename = "OnDemand", default)]
    on_demand: BTreeMap<String, Term>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    #[serde(default)]
    price_dimensions: BTreeMap<String, Dimension>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dimension {
    #[serde(default)]
    price_per_unit: BTreeMap<String, String>,
}

/// Parses an entry of a price list: a type and its price. Returns `None` if one of them is missing, or if the price is zero, as that of
/// reserved capacity.
pub fn read_item(text: &str, region: &str) -> Option<(String, Price)> {
    let item: Item = serde_json::from_str(text).ok()?;
    let name = item.product.attributes.instance_type;
    let currency = if region.starts_with("cn-") {
        "CNY"
    } else {
        "USD"
    };
    let dimensions = item.terms.on_demand.into_values();
    let mut prices = dimensions
        .flat_map(|term| term.price_dimensions.into_values())
        .filter_map(|dimension| Price::parse(dimension.price_per_unit.get(currency)?))
        .filter(|price| *price > Price(0));
    let price = prices.next()?;
    (!name.is_empty()).then_some((name, price))
}

#[cfg(test)]
mod tests {
    use mullion_cloud::catalogue;
    use serde_json::json;

    use super::*;

    #[test]
    fn price_lists_are_read() {
        let item = |name: &str, currency: &str, price: &str| {
            json!({
                "product": { "productFamily": "Compute Instance", "attributes": { "instanceType": name, "operatingSystem": "Windows" } },
                "terms": { "OnDemand": { "A.B": { "priceDimensions": { "A.B.C": { "unit": "Hrs", "pricePerUnit": { currency: price } } } } } },
            })
            .to_string()
        };
        let read = |text: &str| read_item(text, "us-west-2");
        let m5 = read(&item("m5.large", "USD", "0.1880000000"));
        assert_eq!(m5, Some(("m5.large".to_owned(), Price(188_000))));
        assert_eq!(read(&item("m5.large", "USD", "0.0000000000")), None);
        assert_eq!(read(&item("", "USD", "1")), None);
        assert_eq!(read(&item("m5.large", "CNY", "1")), None);
        assert!(read_item(&item("m5.large", "CNY", "1"), "cn-north-1").is_some());
        assert_eq!(read("{}"), None);
    }

    #[test]
    fn what_was_told_counts_and_before_that_the_catalogue() {
        let m5 = catalogue::get("m5.large").expect("known");
        let mut book = PriceBook::default();
        let price =
            |book: &PriceBook, os, capacity_type| book.price(m5, os, "us-west-2a", capacity_type);
        use CapacityType::{OnDemand, Spot};
        assert_eq!(price(&book, Os::Linux, OnDemand), Some(Price(96_000)));
        assert_eq!(
            price(&book, Os::Windows, Spot),
            price::of(m5, Os::Windows, Spot)
        );
        book.set_on_demand(Os::Windows, [("m5.large".to_owned(), Price(200_000))]);
        assert_eq!(price(&book, Os::Windows, OnDemand), Some(Price(200_000)));
        assert_eq!(price(&book, Os::Linux, OnDemand), Some(Price(96_000)));
        book.set_spot(Os::Windows, "m5.large", "us-west-2b", Price(120_000));
        // A type that is missing in the known price history of a system is not sold with it.
        assert_eq!(price(&book, Os::Windows, Spot), None);
        assert_eq!(
            price(&book, Os::Linux, Spot),
            price::of(m5, Os::Linux, Spot)
        );
        book.set_spot(Os::Windows, "m5.large", "us-west-2a", Price(110_000));
        assert_eq!(price(&book, Os::Windows, Spot), Some(Price(110_000)));
    }

    #[test]
    fn descriptions_name_systems() {
        for os in [Os::Linux, Os::Windows] {
            assert!(
                descriptions_of(os)
                    .iter()
                    .all(|text| os_of(text) == Some(os))
            );
        }
        assert_eq!(os_of("SUSE Linux"), None);
        assert_eq!(pricing_region("eu-west-1"), "eu-central-1");
        assert_eq!(pricing_region("us-west-2"), "us-east-1");
        assert!(!has_pricing("us-gov-west-1"));
    }
}
