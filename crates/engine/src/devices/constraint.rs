//! What the devices of a claim must have in common, or may not (`spec.devices.constraints`).

use crate::model::{DeviceAttribute, DeviceConstraint, DeviceSpec};

/// A constraint with the values of the devices so far, the last one last.
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
                Some(Some(rest)) => !alternative.is_empty() && rest == alternative,
                None => false,
            }
        };
        names.is_empty() || names.iter().any(is_named)
    }

    /// What to remember of a device, nothing for requests that the constraint is not about; `None` if the device does not meet it.
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
        let value = attribute(device, driver, name)?;
        let fits = match same {
            true => self.values.first().is_none_or(|first| *first == value),
            false => !self.values.contains(&value),
        };
        fits.then_some(Some(value))
    }
}

/// An attribute by its full name, or by its short one where the domain is the driver's.
fn attribute<'a>(device: &'a DeviceSpec, driver: &str, name: &str) -> Option<&'a DeviceAttribute> {
    device.attributes.get(name).or_else(|| {
        let (domain, short) = name.split_once('/')?;
        (domain == driver).then(|| device.attributes.get(short))?
    })
}
