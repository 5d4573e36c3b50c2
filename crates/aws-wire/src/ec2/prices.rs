//! DescribeSpotPriceHistory: the spot prices of the catalogue, which never change.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use mullion_api::ami::Os;
use mullion_cloud::{CapacityType, CloudProvider, catalogue::Price};

use super::{Call, launch_templates::time};
use crate::{
    filter::{Filters, one},
    page::{self, Page},
    refusal::Refusal,
};

/// The names of products. Each also exists with the suffix ` (Amazon VPC)`, which means the same.
const PRODUCTS: [(&str, Os); 2] = [("Linux/UNIX", Os::Linux), ("Windows", Os::Windows)];
const IN_VPC: &str = " (Amazon VPC)";

struct Spot {
    instance_type: Arc<str>,
    zone: Arc<str>,
    zone_id: Arc<str>,
    product: &'static str,
    price: String,
}

/// DescribeSpotPriceHistory.
pub(super) async fn describe(call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let root = call.root();
    let types = root.list("InstanceType");
    let products = root.list("ProductDescription");
    let zone = root.text("AvailabilityZone");
    let zone_id = root.text("AvailabilityZoneId");
    let at = |name: &str| -> Result<Option<Timestamp>, Refusal> {
        let Some(text) = root.text(name) else {
            return Ok(None);
        };
        let time = text.parse();
        time.map(Some)
            .map_err(|_| Refusal::value(format!("Invalid value '{text}' for {name}: not a time")))
    };
    let now = Timestamp::now();
    // A price holds from its time on; of those before the start only the last is told.
    let start = at("StartTime")?.unwrap_or(now).min(now);
    at("EndTime")?;
    let filters = Filters::read(&root)?;
    let page = Page::read(&root, 1..=i64::from(u16::MAX), 1000)?;
    call.complete()?;
    let mut found = Vec::new();
    for (product, os) in PRODUCTS {
        let is_it = |asked: &&str| asked.strip_suffix(IN_VPC).unwrap_or(asked) == product;
        let is_wanted = products.is_empty() || products.iter().any(is_it);
        if !is_wanted {
            continue;
        }
        for offer in call.ec2().offers(os).await?.iter() {
            let name = &offer.instance_type.name;
            if !types.is_empty() && !types.contains(&&**name) {
                continue;
            }
            for own in &offer.offerings {
                let is_there = own.capacity_type == CapacityType::Spot
                    && zone.is_none_or(|zone| *own.zone == *zone)
                    && zone_id.is_none_or(|id| *own.zone_id == *id);
                let price = usd(own.price);
                let find = |filter: &str| match filter {
                    "instance-type" => one(name),
                    "availability-zone" => one(&own.zone),
                    "availability-zone-id" => one(&own.zone_id),
                    "product-description" => one(product),
                    "spot-price" => one(&price),
                    "timestamp" => one(time(start)),
                    _ => None,
                };
                if filters.match_all(&BTreeMap::new(), find)? && is_there {
                    found.push(Spot {
                        instance_type: Arc::clone(name),
                        zone: Arc::clone(&own.zone),
                        zone_id: Arc::clone(&own.zone_id),
                        product,
                        price,
                    });
                }
            }
        }
    }
    let key = |own: &Spot| format!("{} {} {}", own.instance_type, own.zone, own.product);
    let (found, token) = page.take(found, key);
    Ok(call.answer(|xml| {
        xml.list("spotPriceHistorySet", &found, |xml, own| {
            xml.leaf("instanceType", &own.instance_type);
            xml.leaf("productDescription", own.product);
            xml.leaf("spotPrice", &own.price);
            xml.leaf("timestamp", time(start));
            xml.leaf("availabilityZone", &own.zone);
            xml.leaf("availabilityZoneId", &own.zone_id);
        });
        page::next(xml, token);
    }))
}

/// Formats a price in dollars as EC2 does, with six decimals.
pub(crate) fn usd(price: Price) -> String {
    format!("{}.{:06}", price.0 / 1_000_000, price.0 % 1_000_000)
}
