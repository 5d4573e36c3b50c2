//! Constraints of a claim: attributes that all its devices must share, or that must differ between them (`spec.devices.constraints`).

use crate::model::{DeviceAttribute, DeviceConstraint, DeviceSpec};

/// A constraint with the attribute values of the devices chosen so far, in that order.
pub(super) struct Constraint<'a> {
    pub(super) rule: &'a DeviceConstraint,
    pub(super) values: Vec<&'a DeviceAttribute>,
}

impl<'a> Constraint<'a> {
    pub(super) fn applies(&self, request: &str, alternative: &str) -> bool {
        let names = &self.rule.requests;
        let is_named = |name: &String| {
            let rest = name.strip_prefix(request);
            match rest.map(|rest| rest.strip_prefix('/')) {
                Some(None) => name == request,
                // A constraint may name one alternative (`request/alternative`) or, by the request alone, all of
                // them.
                Some(Some(rest)) => !alternative.is_empty() && rest == alternative,
                None => false,
            }
        };
        names.is_empty() || names.iter().any(is_named)
    }

    /// Returns the attribute value to record for a device: `Some(None)` if the constraint does not apply to the request, `None` if the
    /// device violates the constraint.
    pub(super) fn value(
        &self,
        request: &str,
        alternative: &str,
        device: &'a DeviceSpec,
        driver: &str,
    ) -> Option<Option<&'a DeviceAttribute>> {
        if !self.applies(request, alternative) {
            return Some(None);
        }
        let (name, same) = match (&self.rule.match_attribute, &self.rule.distinct_attribute) {
            (Some(name), _) => (name, true),
            (None, name) => (name.as_ref()?, false),
        };
        // A device without the attribute violates the constraint.
        let value = attribute(device, driver, name)?;
        let fits = if same {
            self.values.first().is_none_or(|first| *first == value)
        } else {
            !self.values.contains(&value)
        };
        fits.then_some(Some(value))
    }
}

/// Returns an attribute by its full name, or by its short name if the domain is the driver's.
fn attribute<'a>(device: &'a DeviceSpec, driver: &str, name: &str) -> Option<&'a DeviceAttribute> {
    // Drivers leave out their own domain in attribute names.
    device.attributes.get(name).or_else(|| {
        let (domain, short) = name.split_once('/')?;
        (domain == driver).then(|| device.attributes.get(short))?
    })
}
