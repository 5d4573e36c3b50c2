//! Prices of instances, including the operating system.
//!
//! Invariant: prices are whole millionths of a dollar per hour, so sums and comparisons are exact.
//!
//! On-demand prices are in the table (us-east-1; other regions are assumed to cost the same). Real spot prices change every hour; here spot
//! costs 35 % of the Linux on-demand price, about the average of EC2's history, plus the whole Windows licence, which is never discounted.

use std::fmt;

use mullion_api::ami::Os;

use super::InstanceType;
use crate::CapacityType;
use serde::{Deserialize, Serialize};

/// Spot price in percent of the Linux on-demand price.
pub const SPOT_PERCENT: u64 = 35;

/// The divisor of an on-demand price that gives the price of a machine in a capacity reservation.
const RESERVED_DIVISOR: u64 = 100_000;

/// The price of a GiB of a gp3 volume per month of 730 hours, in millionths of a dollar: 0.08 USD in us-west-2.
const GP3_USD_PER_GIB_MONTH_MICRO: u64 = 80_000;
const HOURS_PER_MONTH: u64 = 730;

/// Millionths of a US dollar per hour.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Price(pub u64);

impl Price {
    /// Parses dollars per hour exactly, with up to six decimals; further ones are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let whole: u64 = whole.parse().ok()?;
        let digits: String = fraction.chars().chain("000000".chars()).take(6).collect();
        let millionths: u64 = digits.parse().ok()?;
        whole
            .checked_mul(1_000_000)?
            .checked_add(millionths)
            .map(Self)
    }

    /// Returns the price of a gp3 volume.
    pub fn of_volume(gib: u64) -> Self {
        Self(gib * GP3_USD_PER_GIB_MONTH_MICRO / HOURS_PER_MONTH)
    }

    /// Returns the price that counts for a machine with this on-demand price in a capacity reservation. The reservation is paid for anyway,
    /// so the price is almost nothing, but it is higher for more expensive machines. Karpenter's AWS provider divides by ten million, which
    /// would give fractions of the smallest price here.
    pub fn as_reserved(self) -> Self {
        Self(self.0.div_ceil(RESERVED_DIVISOR))
    }

    /// Returns the price in dollars per hour.
    pub fn usd_per_hour(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.usd_per_hour())
    }
}

/// Returns the price of an instance that runs `os`, if it is sold that way.
pub fn of(instance_type: &InstanceType, os: Os, capacity_type: CapacityType) -> Option<Price> {
    let linux = instance_type.linux_price?;
    let licence = match os {
        Os::Linux => 0,
        // The table has the sum; spot needs the licence alone, because only the machine is cheaper.
        Os::Windows => instance_type.windows_price?.0.checked_sub(linux.0)?,
    };
    let on_demand = Price(linux.0 + licence);
    match capacity_type {
        CapacityType::OnDemand => Some(on_demand),
        CapacityType::Reserved => Some(on_demand.as_reserved()),
        CapacityType::Spot => instance_type
            .supports_spot
            .then_some(Price(linux.0 * SPOT_PERCENT / 100 + licence)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    fn price(name: &str, os: Os, capacity_type: CapacityType) -> Option<Price> {
        of(catalogue::get(name).unwrap(), os, capacity_type)
    }

    #[test]
    fn windows_costs_the_licence_more() {
        assert_eq!(
            price("c6a.xlarge", Os::Linux, CapacityType::OnDemand),
            Some(Price(153_000))
        );
        assert_eq!(
            price("c6a.xlarge", Os::Windows, CapacityType::OnDemand),
            Some(Price(337_000))
        );
    }

    #[test]
    fn burstable_types_have_a_licence_of_their_own_price() {
        let on_demand = |name: &str| price(name, Os::Windows, CapacityType::OnDemand);
        assert_eq!(on_demand("t2.large"), Some(Price(120_800)));
        assert_eq!(on_demand("t3.medium"), Some(Price(60_000)));
        assert_eq!(on_demand("t3a.2xlarge"), Some(Price(448_000)));
        assert_eq!(on_demand("t4g.large"), None);
    }

    #[test]
    fn spot_discounts_the_machine_and_not_the_licence() {
        assert_eq!(
            price("c6a.xlarge", Os::Linux, CapacityType::Spot),
            Some(Price(53_550))
        );
        assert_eq!(
            price("c6a.xlarge", Os::Windows, CapacityType::Spot),
            Some(Price(237_550))
        );
    }

    #[test]
    fn what_is_reserved_costs_next_to_nothing_and_keeps_its_order() {
        let reserved = |name: &str| price(name, Os::Linux, CapacityType::Reserved).unwrap();
        assert_eq!(reserved("c6a.xlarge"), Price(2));
        assert!(reserved("c6a.xlarge") < reserved("c6a.4xlarge"));
        let cheapest_spot = catalogue::all()
            .iter()
            .filter_map(|own| of(own, Os::Linux, CapacityType::Spot))
            .min();
        assert!(reserved("p5.48xlarge") < cheapest_spot.unwrap());
    }

    #[test]
    fn arm_is_not_sold_with_windows() {
        assert_eq!(
            price("m6g.large", Os::Windows, CapacityType::OnDemand),
            None
        );
    }

    #[test]
    fn decimals_are_exact() {
        assert_eq!(Price::parse("0.05132"), Some(Price(51_320)));
        assert_eq!(Price::parse("12"), Some(Price(12_000_000)));
        assert_eq!(Price::parse(""), None);
    }
}
