//! Injected refusals of the simulated EC2: exhausted capacity, throttled calls, quotas.
//!
//! Invariant: a refusal is remembered ([`Refusals`]), so that planning avoids the option for a while. Injected faults last until they are
//! removed, and the refusals that they caused are then forgotten.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{CapacityType, LaunchOption, Offer, Refusals};

/// The launch options that have no capacity, in text form `type`, `type/zone` or `type/zone/capacity-type` with `*` for any: `c6a.xlarge`,
/// `c6a.xlarge/us-west-2a`, `*/*/spot`. Reserved capacity is included if the pattern says `reserved`, or if it names neither type nor
/// capacity type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapacityPattern {
    /// Instance type; `None` means any.
    pub instance_type: Option<String>,
    /// Zone; `None` means any.
    pub zone: Option<String>,
    /// Capacity type; `None` means any.
    pub capacity_type: Option<CapacityType>,
}

impl CapacityPattern {
    fn matches(&self, option: &LaunchOption) -> bool {
        self.instance_type
            .as_deref()
            .is_none_or(|name| name == option.instance_type)
            && self.zone.as_deref().is_none_or(|zone| zone == option.zone)
            && self.includes(option.capacity_type)
    }

    /// Returns whether the pattern matches offerings of a capacity type.
    fn includes(&self, capacity_type: CapacityType) -> bool {
        match self.capacity_type {
            Some(named) => named == capacity_type,
            // Reserved capacity is kept free when a type is sold out, but it is lost with its zone.
            None => capacity_type != CapacityType::Reserved || self.instance_type.is_none(),
        }
    }

    /// Returns the capacity types of which the pattern matches offerings.
    fn capacity_types(&self) -> impl Iterator<Item = CapacityType> {
        const ALL: [CapacityType; 3] = [
            CapacityType::OnDemand,
            CapacityType::Spot,
            CapacityType::Reserved,
        ];
        ALL.into_iter().filter(|own| self.includes(*own))
    }

    /// Returns whether some offering matches both patterns.
    pub fn overlaps(&self, other: &Self) -> bool {
        let agree = |one: &Option<String>, other: &Option<String>| {
            one.is_none() || other.is_none() || one == other
        };
        agree(&self.instance_type, &other.instance_type)
            && agree(&self.zone, &other.zone)
            && self.capacity_types().any(|own| other.includes(own))
    }

    /// Returns whether the pattern matches every offering that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        let covers = |one: &Option<String>, other: &Option<String>| one.is_none() || one == other;
        covers(&self.instance_type, &other.instance_type)
            && covers(&self.zone, &other.zone)
            && other.capacity_types().all(|own| self.includes(own))
    }
}

impl fmt::Display for CapacityPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instance_type = self.instance_type.as_deref().unwrap_or("*");
        let zone = self.zone.as_deref().unwrap_or("*");
        let capacity_type = self.capacity_type.map_or("*", CapacityType::as_str);
        write!(f, "{instance_type}/{zone}/{capacity_type}")
    }
}

/// The error for a text that is not a [`CapacityPattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not of the form type, type/zone or type/zone/capacity-type, each part of which may be *, with on-demand, spot or reserved as the last"
)]
pub struct ParsePatternError(String);

impl FromStr for CapacityPattern {
    type Err = ParsePatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParsePatternError(text.to_owned());
        let mut parts = text.split('/');
        let [instance_type, zone, capacity_type] = [(); 3]
            .map(|()| parts.next())
            .map(|part| part.unwrap_or("*"));
        if parts.next().is_some() || [instance_type, zone, capacity_type].contains(&"") {
            return Err(error());
        }
        let named = |part: &str| (part != "*").then(|| part.to_owned());
        Ok(Self {
            instance_type: named(instance_type),
            zone: named(zone),
            capacity_type: match capacity_type {
                "*" => None,
                "on-demand" => Some(CapacityType::OnDemand),
                "spot" => Some(CapacityType::Spot),
                "reserved" => Some(CapacityType::Reserved),
                _ => return Err(error()),
            },
        })
    }
}

#[derive(Default)]
pub(super) struct Faults {
    exhausted: Vec<CapacityPattern>,
    refused: Refusals,
    throttled_calls: u32,
    vcpu_limit: Option<u64>,
}

impl Faults {
    pub(super) fn exhaust(&mut self, pattern: CapacityPattern) {
        if !self.exhausted.contains(&pattern) {
            self.exhausted.push(pattern);
        }
    }

    pub(super) fn replenish(&mut self, pattern: &CapacityPattern) {
        self.exhausted.retain(|other| other != pattern);
        // A refusal would keep the planner away for minutes after the user has restored the capacity.
        self.refused.forget(|option| pattern.matches(option));
    }

    pub(super) fn throttle(&mut self, calls: u32) {
        self.throttled_calls = calls;
    }

    pub(super) fn limit_vcpus(&mut self, limit: Option<u64>) {
        self.vcpu_limit = limit;
    }

    pub(super) fn vcpu_limit(&self) -> Option<u64> {
        self.vcpu_limit
    }

    /// Returns whether this call is throttled, and counts it.
    pub(super) fn is_throttled(&mut self) -> bool {
        let throttled = self.throttled_calls > 0;
        self.throttled_calls = self.throttled_calls.saturating_sub(1);
        throttled
    }

    pub(super) fn is_exhausted(&self, option: &LaunchOption) -> bool {
        self.exhausted.iter().any(|pattern| pattern.matches(option))
    }

    /// Records a refusal, and returns the time for which the option is assumed to be unavailable.
    pub(super) fn refuse(&mut self, option: LaunchOption) -> Duration {
        self.refused.refuse(option, Instant::now())
    }

    /// Returns whether an option is unavailable because of a recent refusal.
    pub(super) fn is_unavailable(&self, option: &LaunchOption) -> bool {
        self.refused.is_unavailable(option, Instant::now())
    }

    /// Returns the launches into a placement group that were refused lately.
    pub(super) fn refused_in(&self, group: &str) -> Vec<LaunchOption> {
        self.refused.of_group(group, Instant::now())
    }

    /// Forgets refusals of what was just sold.
    pub(super) fn sold(&mut self, option: &LaunchOption) {
        self.refused.sold(option);
    }

    /// Returns the offers with the effects of past refusals.
    pub(super) fn apply(&mut self, offers: &Arc<[Offer]>) -> Arc<[Offer]> {
        self.refused.apply(offers, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_there_when_its_type_is_sold_out() {
        let option = LaunchOption {
            instance_type: "c6a.xlarge".to_owned(),
            zone: "us-west-2a".to_owned(),
            capacity_type: CapacityType::Reserved,
            reservation: Some("cr-1".to_owned()),
            placement: None,
        };
        let matches = |text: &str| text.parse::<CapacityPattern>().unwrap().matches(&option);
        assert!(!matches("c6a.xlarge"));
        assert!(!matches("c6a.xlarge/us-west-2a"));
        assert!(matches("c6a.xlarge/*/reserved"));
        assert!(matches("*/us-west-2a"));
        assert!(!matches("*/us-west-2b"));
    }

    #[test]
    fn patterns_are_written_and_read() {
        for text in [
            "c6a.xlarge/us-west-2a/spot",
            "*/*/reserved",
            "*/*/spot",
            "*/us-west-2b/*",
            "*/*/*",
        ] {
            assert_eq!(text.parse::<CapacityPattern>().unwrap().to_string(), text);
        }
        let short = |text: &str| text.parse::<CapacityPattern>().unwrap().to_string();
        assert_eq!(short("c6a.xlarge"), "c6a.xlarge/*/*");
        assert_eq!(short("c6a.xlarge/us-west-2a"), "c6a.xlarge/us-west-2a/*");
        for text in ["", "a/b/c", "a//spot", "a/b/spot/d"] {
            assert!(text.parse::<CapacityPattern>().is_err(), "{text:?}");
        }
    }
}
