//! Bounds from below what pods cost if a pod may be one of several items: one for each zone in which it could be.

use super::grouped::Grouped;
use super::knapsack::Knapsack;
use super::simplex::EPSILON;
use super::{Problem, rates, varied};

/// The number of fillings of whole pods that are looked at for one machine.
const NODES: usize = 2000;

/// Pending pods, and the items (one for each zone) that they may become.
#[derive(Clone, Debug)]
pub(in crate::provision) enum ZonalDemand {
    /// This many pods, divided among items, each with a maximum.
    Split(u32, Vec<(usize, u32)>),
    /// All items of one list, each with its number of pods.
    OneOf(Vec<Vec<(usize, u32)>>),
}

impl ZonalDemand {
    /// Returns the least that its pods pay if a pod of each item pays these prices. Items that no machine holds have
    /// an infinite price.
    fn paid(&self, prices: &[f64]) -> f64 {
        match self {
            ZonalDemand::Split(count, items) => {
                let has_price = |item: &&(usize, u32)| prices[item.0].is_finite();
                let mut items: Vec<(usize, u32)> =
                    items.iter().filter(has_price).copied().collect();
                items.sort_by(|a, b| prices[a.0].total_cmp(&prices[b.0]));
                // The cheapest items first: no other division of the pods pays less, so the result bounds all of
                // them.
                let mut rest = *count;
                let mut paid = 0.0;
                for (item, most) in items {
                    let own = most.min(rest);
                    rest -= own;
                    paid += prices[item] * f64::from(own);
                }
                paid
            }
            ZonalDemand::OneOf(choices) => {
                let paid_for = |pods: &Vec<(usize, u32)>| -> f64 {
                    let paid = pods
                        .iter()
                        .map(|(item, own)| prices[*item] * f64::from(*own));
                    paid.sum()
                };
                let least = choices.iter().map(paid_for).fold(f64::INFINITY, f64::min);
                // No choice is open.
                if least.is_finite() { least } else { 0.0 }
            }
        }
    }
}

impl Problem {
    /// Returns a lower bound for the price of machines for all demands, in micro-dollars per hour. The demand of an
    /// item is the maximum number of its pods. `values` says what a pod of each item may be worth: any values give a
    /// valid bound, those of a linear program over the same pods the best one.
    pub(in crate::provision) fn least_for(
        &self,
        demands: &[ZonalDemand],
        values: Option<&[f64]>,
    ) -> u64 {
        let sum = |prices: &[f64]| -> u64 {
            let paid: f64 = demands.iter().map(|demand| demand.paid(prices)).sum();
            paid.max(0.0) as u64
        };
        let by_rates = sum(&rates::least(self, &varied::rates(self)));
        let by_groups = self.least_by_groups().map_or(0, |least| sum(&least));
        let by_values = values.map_or(0, |values| sum(&self.held_to_price(values)));
        // Each of the three is a lower bound, so the highest is one too.
        by_rates.max(by_groups).max(by_values)
    }

    /// Returns a lower bound of what a pod of each item costs, by the linear program over groups of about one size. Returns `None` if the items are few, or of
    /// too many kinds.
    fn least_by_groups(&self) -> Option<Vec<f64>> {
        let demand: Vec<u32> = self.items.iter().map(|item| item.demand).collect();
        let grouped = self.is_varied().then(|| Grouped::of(self, &demand));
        let grouped = grouped.flatten()?;
        Some(grouped.least(self, &grouped.group_values()))
    }

    /// Returns these values, scaled down until no machine holds pods worth more than its price.
    fn held_to_price(&self, values: &[f64]) -> Vec<f64> {
        let mut knapsack = Knapsack::default();
        let values: Vec<f64> = values.iter().map(|value| value.max(0.0)).collect();
        let mut best_ratio: f64 = 1.0 + EPSILON;
        for offer in &self.offers {
            let price = offer.price as f64;
            let choices = self.choices_on(offer);
            // Only a machine that exceeds its price by more than the worst so far changes the scale, so less need not
            // be searched for.
            let found = knapsack.most(self, offer, (&choices, &values), price * best_ratio, NODES);
            best_ratio = best_ratio.max(found.upper / price);
        }
        let value = |(item, value): (usize, f64)| {
            let is_held = self.offers.iter().any(|offer| offer.fits.contains(item));
            if is_held {
                value / best_ratio
            } else {
                f64::INFINITY
            }
        };
        values.into_iter().enumerate().map(value).collect()
    }
}
