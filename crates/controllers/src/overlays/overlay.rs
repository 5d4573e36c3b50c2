//! A parsed NodeOverlay: which machines it selects and what it changes.
//!
//! Invariant: an [`Overlay`] is valid by itself (core: `NodeOverlay.RuntimeValidate`); [`super::judge()`] decides
//! whether it conflicts with others. What the schema refuses before an object is stored is not checked again.

use mullion_api::{
    karpenter::{NodeOverlay, Operator, Requirement},
    labels,
};
use mullion_cloud::{Offering, catalogue::Price};
use mullion_engine::model::{ResourceMap, StringMap};

use crate::{
    nodepool::validation::{label_value_error, requirement_errors},
    provisioner::{
        market::{allows_offering, amounts, is_of_offering},
        requirements::admits,
    },
};

/// A million dollars an hour: a price above counts as this one, so that sums cannot overflow.
const MOST: u128 = 1_000_000_000_000;
/// Billionths in one: the unit in which amounts are read.
const NANO: u128 = 1_000_000_000;
/// Resources that every instance type has and that no overlay changes (core: `WellKnownResources`).
const WELL_KNOWN_RESOURCES: [&str; 4] = [
    labels::CPU,
    labels::MEMORY,
    labels::EPHEMERAL_STORAGE,
    labels::PODS,
];

/// A NodeOverlay that is valid by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// Its name.
    pub name: String,
    /// Overlays of greater weight count before others.
    pub weight: i32,
    requirements: Vec<Requirement>,
    pub(super) price: Option<PriceChange>,
    pub(super) capacity: ResourceMap,
}

/// The faults of an overlay, with Karpenter's messages; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct InvalidOverlay(Vec<OverlayFault>);

/// What is wrong with a part of an overlay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverlayFault {
    /// A requirement is invalid, as the checks that it shares with NodePools say.
    #[error("invalid value: {0} in requirements, restricted")]
    Requirement(String),
    /// The requirement on this key excludes no value.
    #[error("key {0} with operator NotIn must have a value defined")]
    NoValue(String),
    /// An overlay may not change the amount of this resource.
    #[error("invalid capacity: {0} in resource, restricted")]
    Capacity(&'static str),
    /// The value of a field is not a price.
    #[error("invalid value: {value:?} in {field} is no price")]
    Price {
        /// The value.
        value: String,
        /// The field.
        field: &'static str,
    },
}

impl Overlay {
    /// Reads an overlay.
    ///
    /// # Errors
    /// All that is wrong with the overlay.
    pub fn read(overlay: &NodeOverlay) -> Result<Self, InvalidOverlay> {
        let spec = &overlay.spec;
        let mut errors: Vec<OverlayFault> = spec.requirements.iter().flat_map(wrong_in).collect();
        let restricted = WELL_KNOWN_RESOURCES.into_iter();
        errors.extend(
            restricted
                .filter(|name| spec.capacity.contains_key(*name))
                .map(OverlayFault::Capacity),
        );
        let mut read = |field: &'static str, text: &Option<String>| {
            let change = PriceChange::parse(text.as_deref()?);
            if change.is_none() {
                let value = text.clone().unwrap_or_default();
                errors.push(OverlayFault::Price { value, field });
            }
            change
        };
        let price = read("price", &spec.price);
        let adjustment = read("priceAdjustment", &spec.price_adjustment);
        if errors.is_empty() {
            Ok(Self {
                name: overlay.metadata.name.clone().unwrap_or_default(),
                weight: overlay.weight(),
                requirements: spec.requirements.iter().map(normalized).collect(),
                price: price.or(adjustment),
                capacity: amounts(&spec.capacity),
            })
        } else {
            Err(InvalidOverlay(errors))
        }
    }

    /// Returns the offerings of a type that the overlay selects, as bits by their position; 0 if it does not select the
    /// type. `labels` are those of the type's nodes, including their pool's template (core: `getOverlaidOfferings`).
    pub(super) fn reach(&self, labels: &StringMap, offerings: &[&Offering]) -> u128 {
        let mut of_type = self
            .requirements
            .iter()
            .filter(|own| !is_of_offering(&own.key));
        if !of_type.all(|own| admits(own, labels.get(&own.key).map(String::as_str))) {
            return 0;
        }
        let reached = offerings
            .iter()
            .enumerate()
            .filter(|(_, own)| allows_offering(&self.requirements, own));
        // A type has far fewer offerings than 128; the bound only keeps the shift defined.
        reached.fold(0, |bits, (at, _)| bits | 1_u128 << at.min(127))
    }
}

/// Returns what is wrong with a requirement of an overlay.
fn wrong_in(requirement: &Requirement) -> Vec<OverlayFault> {
    let key = &requirement.key;
    let mut wrong = requirement_errors(requirement);
    let values = requirement.values.iter();
    wrong.extend(values.filter_map(|value| {
        let error = label_value_error(value)?;
        Some(format!("invalid value {value} for key {key}, {error}"))
    }));
    let mut errors = Vec::new();
    if !wrong.is_empty() {
        errors.push(OverlayFault::Requirement(wrong.join("; ")));
    }
    if requirement.operator == Operator::NotIn && requirement.values.is_empty() {
        errors.push(OverlayFault::NoValue(key.clone()));
    }
    errors
}

fn normalized(requirement: &Requirement) -> Requirement {
    Requirement {
        key: labels::normalized(&requirement.key).to_owned(),
        ..requirement.clone()
    }
}

/// The change of a price (core: `AdjustedPrice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PriceChange {
    /// Replaces the price.
    To(Price),
    /// Adds to the price.
    More(Price),
    /// Subtracts from the price, down to zero at least.
    Less(Price),
    /// Multiplies the price by this number of billionths.
    Share(u128),
}

impl PriceChange {
    /// Reads `5.00`, `+0.5`, `-1.2`, `+10%` or `-15%`. `None` if the text is none of these.
    fn parse(text: &str) -> Option<Self> {
        let (sign, amount) = match text.chars().next()? {
            '+' => (Some(true), &text[1..]),
            '-' => (Some(false), &text[1..]),
            _ => (None, text),
        };
        if let Some(percent) = amount.strip_suffix('%') {
            let share = nano(percent)? / 100;
            // A percentage without a sign could mean the new share or the change, and Karpenter's schema
            // admits only signed ones.
            return Some(if sign? {
                Self::Share(NANO + share)
            } else {
                Self::Share(NANO.saturating_sub(share))
            });
        }
        let amount = micro(nano(amount)?);
        Some(match sign {
            None => Self::To(amount),
            Some(true) => Self::More(amount),
            Some(false) => Self::Less(amount),
        })
    }

    /// Returns the price after the change.
    pub(super) fn of(self, price: Price) -> Price {
        match self {
            Self::To(price) => price,
            Self::More(amount) => micro(u128::from(price.0.saturating_add(amount.0)) * 1000),
            Self::Less(amount) => Price(price.0.saturating_sub(amount.0)),
            Self::Share(share) => micro(u128::from(price.0).saturating_mul(share) / (NANO / 1000)),
        }
    }
}

/// Parses a decimal number in billionths. Further digits are cut off, and numbers that are too large count as the
/// largest.
fn nano(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let whole = match whole.trim_start_matches('0') {
        "" => 0,
        // Such numbers are capped later anyway; parsing them could overflow.
        digits if digits.len() > 15 => MOST * MOST,
        digits => digits.parse().ok()?,
    };
    let fraction: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let fraction: u128 = fraction.parse().ok()?;
    Some(whole.saturating_mul(NANO).saturating_add(fraction))
}

/// Returns the price of so many billionths of a dollar, rounded.
fn micro(nano: u128) -> Price {
    let micro = (nano.saturating_add(500) / 1000).min(MOST);
    Price(u64::try_from(micro).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: Value) -> Result<Overlay, InvalidOverlay> {
        let overlay = json!({ "metadata": { "name": "o" }, "spec": spec });
        Overlay::read(&serde_json::from_value(overlay).expect("an overlay"))
    }

    #[test]
    fn prices_are_set_raised_and_lowered_to_the_millionth() {
        // The cases of Karpenter's own tests for AdjustedPrice, and some more.
        let cases = [
            ("0.05", 96_000, 50_000),
            ("5", 96_000, 5_000_000),
            ("0", 96_000, 0),
            ("+0.5", 96_000, 596_000),
            ("-0.05", 96_000, 46_000),
            ("+.5", 96_000, 596_000),
            ("-1.2", 96_000, 0),
            ("+10%", 96_000, 105_600),
            ("-15%", 96_000, 81_600),
            ("-33.3%", 100_000, 66_700),
            ("-0.0005%", 1_000_000, 999_995),
            ("-100%", 96_000, 0),
            ("+150%", 96_000, 240_000),
            ("0.0000004", 96_000, 0),
            ("0.0000005", 96_000, 1),
        ];
        for (text, before, after) in cases {
            let change = PriceChange::parse(text).expect(text);
            assert_eq!(change.of(Price(before)), Price(after), "{text} of {before}");
        }
        for wrong in [
            "", "+", "-", "%", "5%", "x", "1.2.3", "+-1", "1e3", " 1", "+ 1",
        ] {
            assert_eq!(PriceChange::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn enormous_prices_count_as_a_million_dollars() {
        let million = Price(1_000_000_000_000);
        for text in [
            "99999999999999999999999999999999999999999999",
            "+99999999999999",
            "+99999999999999999999999999%",
        ] {
            let change = PriceChange::parse(text).expect(text);
            assert_eq!(change.of(Price(96_000)), million, "{text}");
            assert_eq!(change.of(million), million, "{text}");
        }
        let less = PriceChange::parse("-99999999999999").expect("less");
        assert_eq!(less.of(million), Price(0));
    }

    #[test]
    fn what_is_wrong_is_said_in_karpenters_words() {
        let wrong = read(json!({
            "requirements": [
                { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spott"] },
                { "key": "team", "operator": "In", "values": ["-a"] },
                { "key": "stage", "operator": "NotIn" }
            ],
            "capacity": { "cpu": "1", "pods": "2", "example.com/card": "1" }
        }));
        let expected = "invalid value: no valid values found in [spott] for karpenter.sh/capacity-type, expected one of: \
             map[on-demand:{} reserved:{} spot:{}], got: [spott] in requirements, restricted; \
             invalid value: invalid value -a for key team, a valid label must be an empty string or consist of alphanumeric \
             characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
             'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?') in \
             requirements, restricted; key stage with operator NotIn must have a value defined; \
             invalid capacity: cpu in resource, restricted; invalid capacity: pods in resource, restricted";
        assert_eq!(wrong.unwrap_err().to_string(), expected);
        let price = read(json!({ "requirements": [], "price": "cheap" }));
        assert_eq!(
            price.unwrap_err().to_string(),
            "invalid value: \"cheap\" in price is no price"
        );
        assert!(read(json!({ "requirements": [], "priceAdjustment": "-5%" })).is_ok());
    }
}
