//! Consumable capacity: the amounts that several claims take from one shared device
//! (dynamic-resource-allocation: `consumable_capacity.go`).

use std::collections::BTreeMap;

use crate::model::{DeviceCapacity, Quantity, RequestPolicy, ValidRange};

/// The amounts taken from a device, by capacity name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Portions(pub(crate) BTreeMap<Box<str>, Quantity>);

impl Portions {
    pub(super) fn of(amounts: &BTreeMap<String, Quantity>) -> Self {
        let amounts = amounts.iter();
        Portions(
            amounts
                .map(|(name, amount)| (name.as_str().into(), *amount))
                .collect(),
        )
    }

    /// Returns the amounts that a request takes from a shared device.
    pub(super) fn asked(
        wanted: &BTreeMap<String, Quantity>,
        capacity: &BTreeMap<String, DeviceCapacity>,
    ) -> Self {
        let parts = capacity.iter();
        Portions(
            parts
                .map(|(name, own)| (name.as_str().into(), part(wanted.get(name), own)))
                .collect(),
        )
    }

    /// Adds the other amounts (`add`) or subtracts them.
    pub(super) fn change(&mut self, other: &Portions, add: bool) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name.clone()).or_default();
            *own = if add {
                own.saturating_add(*amount)
            } else {
                own.saturating_sub(*amount)
            };
        }
    }

    fn amount(&self, name: &str) -> Quantity {
        self.0.get(name).copied().unwrap_or_default()
    }
}

/// Returns whether a device's capacity suffices for a request beside the amounts already used, and
/// whether the request policy permits the amounts.
pub(super) fn suffices(
    wanted: &BTreeMap<String, Quantity>,
    capacity: &BTreeMap<String, DeviceCapacity>,
    used: [Option<&Portions>; 2],
) -> bool {
    wanted.keys().all(|name| capacity.contains_key(name))
        && capacity.iter().all(|(name, own)| {
            let part = part(wanted.get(name), own);
            let before = used.into_iter().flatten();
            let sum = before.fold(part, |sum, used| sum.saturating_add(used.amount(name)));
            is_given(part, own.request_policy.as_ref()) && sum <= own.value
        })
}

/// Returns the amount that a request takes from one capacity, rounded up to a value that the request
/// policy permits.
fn part(wanted: Option<&Quantity>, capacity: &DeviceCapacity) -> Quantity {
    let policy = capacity.request_policy.as_ref();
    let Some(wanted) = wanted.copied() else {
        // Without a request the policy's default is taken, or the whole capacity if there is none.
        return policy
            .and_then(|policy| policy.default)
            .unwrap_or(capacity.value);
    };
    match policy {
        Some(RequestPolicy {
            valid_range: Some(range @ ValidRange { min: Some(min), .. }),
            ..
        }) => in_range(wanted, *min, range),
        Some(policy) if !policy.valid_values.is_empty() => {
            // The API server requires the values in ascending order, so the first that suffices is the smallest.
            let mut values = policy.valid_values.iter();
            values
                .find(|value| wanted <= **value)
                .copied()
                .unwrap_or(wanted)
        }
        _ => wanted,
    }
}

fn in_range(wanted: Quantity, min: Quantity, range: &ValidRange) -> Quantity {
    if wanted < min {
        return min;
    }
    let Some(step) = range.step.map(Quantity::value).filter(|step| *step > 0) else {
        return wanted;
    };
    let (wanted, min) = (i128::from(wanted.value()), i128::from(min.value()));
    let steps = (wanted - min + i128::from(step) - 1) / i128::from(step);
    let up = min + steps * i128::from(step);
    Quantity::from_units(i64::try_from(up).unwrap_or(i64::MAX))
}

/// Returns whether the request policy permits an amount.
fn is_given(part: Quantity, policy: Option<&RequestPolicy>) -> bool {
    let Some(policy) = policy else { return true };
    // The default need not be one of the permitted values.
    if policy.default == Some(part) {
        return true;
    }
    match &policy.valid_range {
        Some(range) => {
            let steps = range.step.map(Quantity::value).filter(|step| *step > 0);
            let above = part
                .value()
                .saturating_sub(range.min.map_or(0, Quantity::value));
            range.max.is_none_or(|max| part <= max) && steps.is_none_or(|step| above % step == 0)
        }
        None => policy.valid_values.is_empty() || policy.valid_values.contains(&part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(text: &str) -> Quantity {
        text.parse().expect(text)
    }

    fn memory(value: &str, policy: Option<RequestPolicy>) -> BTreeMap<String, DeviceCapacity> {
        let capacity = DeviceCapacity {
            value: q(value),
            request_policy: policy,
        };
        [("memory".to_owned(), capacity)].into()
    }

    fn asked(amount: Option<&str>, of: &BTreeMap<String, DeviceCapacity>) -> Quantity {
        let wanted = amount.map(|amount| ("memory".to_owned(), q(amount)));
        Portions::asked(&wanted.into_iter().collect(), of).amount("memory")
    }

    #[test]
    fn who_asks_for_nothing_takes_the_default_or_all() {
        assert_eq!(asked(None, &memory("40Gi", None)), q("40Gi"));
        let policy = RequestPolicy {
            default: Some(q("1Gi")),
            ..RequestPolicy::default()
        };
        assert_eq!(asked(None, &memory("40Gi", Some(policy))), q("1Gi"));
    }

    #[test]
    fn requests_are_rounded_up_to_what_there_is() {
        let range = RequestPolicy {
            valid_range: Some(ValidRange {
                min: Some(q("1Gi")),
                max: Some(q("8Gi")),
                step: Some(q("2Gi")),
            }),
            ..RequestPolicy::default()
        };
        let device = memory("40Gi", Some(range));
        for (wanted, taken) in [("1", "1Gi"), ("1Gi", "1Gi"), ("2Gi", "3Gi"), ("3Gi", "3Gi")] {
            assert_eq!(asked(Some(wanted), &device), q(taken), "{wanted}");
        }
        let none = BTreeMap::new();
        assert!(suffices(
            &[("memory".to_owned(), q("7Gi"))].into(),
            &device,
            [None, None]
        ));
        assert!(!suffices(
            &[("memory".to_owned(), q("8Gi"))].into(),
            &device,
            [None, None]
        ));
        assert!(!suffices(
            &[("cores".to_owned(), q("1"))].into(),
            &device,
            [None, None]
        ));
        assert!(
            !suffices(&none, &device, [None, None]),
            "all of it is more than a part may be"
        );

        let values = RequestPolicy {
            default: Some(q("1")),
            valid_values: vec![q("1"), q("4"), q("8")],
            ..RequestPolicy::default()
        };
        let device = memory("10", Some(values));
        assert_eq!(asked(Some("2"), &device), q("4"));
        let four = Portions::of(&[("memory".to_owned(), q("4"))].into());
        let two = [("memory".to_owned(), q("2"))].into();
        assert!(suffices(&two, &device, [Some(&four), None]));
        assert!(!suffices(&two, &device, [Some(&four), Some(&four)]));
        assert!(!suffices(
            &[("memory".to_owned(), q("9"))].into(),
            &device,
            [None, None]
        ));
    }
}
