//! The offers of the region: instance types, the zones that have them, and prices for each operating system.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use aws_sdk_ec2::{primitives::DateTime, types::LocationType};
use aws_sdk_pricing::types::{Filter, FilterType};
use mullion_api::ami::Os;
use mullion_cloud::{
    CapacityType, CloudError, Offer, Offering,
    catalogue::{self, InstanceType, Price},
};
use tokio::time::Instant;

use super::{Dated, Inner, errors::Failed, filters, lock, types};
use crate::{
    limits::Kind,
    prices::{self, PriceBook},
};

/// The time for which types and zones are used (AWS provider: `InstanceTypesZonesAndOfferingsTTL`).
const TYPES_FOR: Duration = Duration::from_secs(300);
/// The time for which prices are used (AWS provider: `providers/pricing/controller.go`).
const PRICES_FOR: Duration = Duration::from_secs(12 * 3600);
/// The time until prices are requested again after a failed call.
const PRICES_AGAIN: Duration = Duration::from_secs(300);

/// The known offers of the region.
#[derive(Default)]
pub(super) struct Market {
    types: Option<Dated<Types>>,
    prices: PriceBook,
    /// The time of the next request for prices.
    prices_at: Option<Instant>,
    /// All offers, as if all of them had capacity.
    offers: BTreeMap<Os, Arc<[Offer]>>,
}

struct Types {
    types: BTreeMap<String, Arc<InstanceType>>,
    /// The zones of each type.
    zones: BTreeMap<String, BTreeSet<Arc<str>>>,
    /// The ids of zones in which the account has subnets.
    zone_ids: BTreeMap<Arc<str>, Arc<str>>,
}

impl Inner {
    /// Returns all offers, with recently refused ones marked.
    pub(super) async fn offers(&self, os: Os) -> Result<Arc<[Offer]>, CloudError> {
        let all = {
            // Held during the calls, so that of many callers only one renews and the others wait for its
            // result.
            let mut market = self.market.lock().await;
            self.renew(&mut market).await?;
            match market.offers.get(&os) {
                Some(offers) => Arc::clone(offers),
                None => {
                    let offers = put_together(&market, os);
                    market.offers.insert(os, Arc::clone(&offers));
                    offers
                }
            }
        };
        Ok(lock(&self.refusals).apply(&all, Instant::now()))
    }

    /// Returns a type as EC2 describes it, or as the catalogue does before EC2 was asked.
    pub(super) async fn instance_type(&self, name: &str) -> Option<Arc<InstanceType>> {
        let market = self.market.lock().await;
        let described = market.types.as_ref();
        described
            .and_then(|dated| dated.value.types.get(name).cloned())
            .or_else(|| catalogue::get(name).cloned())
    }

    /// Returns the price of a type, or zero if it is not sold that way.
    pub(super) async fn price(
        &self,
        instance_type: &InstanceType,
        os: Os,
        zone: &str,
        capacity_type: CapacityType,
    ) -> Price {
        let market = self.market.lock().await;
        let price = market.prices.price(instance_type, os, zone, capacity_type);
        price.unwrap_or_default()
    }

    /// Requests everything that is too old. If a request fails, the old values stay.
    async fn renew(&self, market: &mut Market) -> Result<(), CloudError> {
        let fresh = market.types.as_ref();
        if fresh.is_none_or(|dated| dated.younger_than(TYPES_FOR).is_none()) {
            match (self.types().await, &mut market.types) {
                (Ok(types), _) => {
                    market.types = Some(Dated::now(types));
                    market.offers.clear();
                }
                (Err(failed), None) => return Err(failed.into()),
                (Err(failed), Some(old)) => {
                    tracing::warn!("instance types cannot be described: {}", failed.message);
                    // Otherwise every caller would repeat the failing call.
                    old.at = Instant::now();
                }
            }
        }
        if market.prices_at.is_none_or(|at| Instant::now() >= at) {
            let renewed = self.renew_prices(&mut market.prices).await;
            let until = if renewed { PRICES_FOR } else { PRICES_AGAIN };
            market.prices_at = Some(Instant::now() + until);
            market.offers.clear();
        }
        Ok(())
    }

    async fn types(&self) -> Result<Types, Failed> {
        self.may(Kind::Describe).await;
        let mut types = BTreeMap::new();
        let architectures = ["x86_64", "arm64"];
        let mut pages = self
            .ec2
            .describe_instance_types()
            .filters(filters::filter("supported-virtualization-type", ["hvm"]))
            .filters(filters::filter(
                "processor-info.supported-architecture",
                architectures,
            ))
            .max_results(100)
            .into_paginator()
            .send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(Failed::of)?;
            let read = page.instance_types().iter().filter_map(types::read);
            types.extend(read.map(|own| (own.name.to_string(), Arc::new(own))));
        }
        self.may(Kind::Describe).await;
        let mut zones: BTreeMap<String, BTreeSet<Arc<str>>> = BTreeMap::new();
        let mut pages = self
            .ec2
            .describe_instance_type_offerings()
            .location_type(LocationType::AvailabilityZone)
            .max_results(1000)
            .into_paginator()
            .send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(Failed::of)?;
            for offering in page.instance_type_offerings() {
                if let (Some(name), Some(zone)) = (offering.instance_type(), offering.location()) {
                    let of_type = zones.entry(name.as_str().to_owned()).or_default();
                    of_type.insert(zone.into());
                }
            }
        }
        let subnets = self.describe_subnets(Vec::new()).await?;
        let zone_ids = subnets
            .into_iter()
            .map(|subnet| (subnet.zone, subnet.zone_id));
        Ok(Types {
            types,
            zones,
            zone_ids: zone_ids.collect(),
        })
    }

    /// Requests new prices, and returns whether all of them were received.
    async fn renew_prices(&self, book: &mut PriceBook) -> bool {
        let mut all = true;
        for os in [Os::Linux, Os::Windows] {
            match self.on_demand_prices(os).await {
                Ok(prices) => book.set_on_demand(os, prices),
                Err(failed) => {
                    tracing::warn!(
                        "on-demand prices for {os} cannot be had: {}",
                        failed.message
                    );
                    all = false;
                }
            }
            match self.spot_prices(os).await {
                Ok(prices) => {
                    for (instance_type, zone, price) in prices {
                        book.set_spot(os, &instance_type, &zone, price);
                    }
                }
                Err(failed) => {
                    tracing::warn!("spot prices for {os} cannot be had: {}", failed.message);
                    all = false;
                }
            }
        }
        all
    }

    async fn on_demand_prices(&self, os: Os) -> Result<Vec<(String, Price)>, Failed> {
        if self.settings.isolated_vpc || !prices::has_pricing(&self.region) {
            return Ok(Vec::new());
        }
        let system = match os {
            Os::Linux => "Linux",
            Os::Windows => "Windows",
        };
        let mut prices = Vec::new();
        // AWS sells bare-metal machines with dedicated tenancy.
        for (tenancy, family) in [
            ("Shared", "Compute Instance"),
            ("Dedicated", "Compute Instance (bare metal)"),
        ] {
            let wanted = [
                ("regionCode", self.region.as_str()),
                ("serviceCode", "AmazonEC2"),
                ("preInstalledSw", "NA"),
                ("operatingSystem", system),
                // Windows is also sold without its licence, for less.
                ("licenseModel", "No License required"),
                ("capacitystatus", "Used"),
                ("marketoption", "OnDemand"),
                ("tenancy", tenancy),
                ("productFamily", family),
            ];
            let wanted: Result<Vec<Filter>, _> = wanted
                .into_iter()
                .map(|(field, value)| {
                    Filter::builder()
                        .r#type(FilterType::TermMatch)
                        .field(field)
                        .value(value)
                        .build()
                })
                .collect();
            let wanted = wanted.map_err(|error| Failed {
                code: None,
                message: error.to_string(),
            })?;
            self.may(Kind::Other).await;
            let mut pages = self
                .pricing
                .get_products()
                .service_code("AmazonEC2")
                .set_filters(Some(wanted))
                .max_results(100)
                .into_paginator()
                .send();
            while let Some(page) = pages.next().await {
                let page = page.map_err(Failed::of)?;
                let items = page.price_list().iter();
                prices.extend(items.filter_map(|item| prices::read_item(item, &self.region)));
            }
        }
        Ok(prices)
    }

    /// Returns types, zones and spot prices; the newest price of each is last.
    async fn spot_prices(&self, os: Os) -> Result<Vec<(String, String, Price)>, Failed> {
        self.may(Kind::Describe).await;
        let descriptions = prices::descriptions_of(os).map(str::to_owned);
        let mut pages = self
            .ec2
            .describe_spot_price_history()
            .set_product_descriptions(Some(descriptions.into()))
            // With a start in the present, EC2 returns only the current price of each type and zone.
            .start_time(DateTime::from(std::time::SystemTime::now()))
            .max_results(1000)
            .into_paginator()
            .send();
        let mut prices = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(Failed::of)?;
            for own in page.spot_price_history() {
                let price = own.spot_price().and_then(Price::parse);
                let description = own.product_description().map(|own| own.as_str());
                if description.and_then(prices::os_of) != Some(os) {
                    continue;
                }
                if let (Some(name), Some(zone), Some(price)) =
                    (own.instance_type(), own.availability_zone(), price)
                {
                    let at = own.timestamp().map(DateTime::as_secs_f64);
                    prices.push((at, name.as_str().to_owned(), zone.to_owned(), price));
                }
            }
        }
        prices.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal));
        let prices = prices
            .into_iter()
            .map(|(_, name, zone, price)| (name, zone, price));
        Ok(prices.collect())
    }
}

fn put_together(market: &Market, os: Os) -> Arc<[Offer]> {
    let Some(Dated { value: all, .. }) = &market.types else {
        return Arc::from([]);
    };
    let sold = all.types.iter().filter(|(_, own)| own.runs(os));
    let offers = sold.filter_map(|(name, instance_type)| {
        let zones = all.zones.get(name)?;
        let mut offerings = Vec::new();
        for capacity_type in [CapacityType::OnDemand, CapacityType::Spot] {
            if capacity_type == CapacityType::Spot && !instance_type.supports_spot {
                continue;
            }
            for zone in zones {
                let price = market.prices.price(instance_type, os, zone, capacity_type);
                let Some(price) = price else { continue };
                offerings.push(Offering {
                    zone: Arc::clone(zone),
                    zone_id: all.zone_ids.get(zone).cloned().unwrap_or_default(),
                    capacity_type,
                    price,
                    available: true,
                    on_trial: false,
                    reservation: None,
                });
            }
        }
        (!offerings.is_empty()).then(|| Offer {
            instance_type: Arc::clone(instance_type),
            offerings,
        })
    });
    offers.collect()
}
