//! Evaluates the expressions of the engine that select devices, with the API server's CEL.

use std::sync::{Arc, Mutex, PoisonError};

use mullion_engine::model::{DeviceAttribute, DeviceJudge, DeviceSpec};
use mullion_kinds::devices::{Attribute, Device, DeviceError, Refusal, Selector};

/// Evaluates expressions as the API server checks them.
#[derive(Debug, Default)]
pub(crate) struct CelEvaluator {
    /// The last expression, because the engine evaluates the same one for slice after slice.
    last: Mutex<Option<(String, Arc<Selector>)>>,
}

impl CelEvaluator {
    fn compiled(&self, expression: &str) -> Result<Arc<Selector>, Refusal> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, selector)) = &*last
            && known == expression
        {
            return Ok(Arc::clone(selector));
        }
        let selector = Arc::new(Selector::compile(expression)?);
        *last = Some((expression.to_owned(), Arc::clone(&selector)));
        Ok(selector)
    }
}

impl DeviceJudge for CelEvaluator {
    fn judge(
        &self,
        expression: &str,
        driver: &str,
        devices: &[DeviceSpec],
    ) -> Result<Vec<Result<bool, String>>, String> {
        let selector = self.compiled(expression);
        let selector = selector.map_err(|refusal| refusal.to_string())?;
        let judge = |device: &DeviceSpec| {
            let device = seen(driver, device).map_err(|error| error.to_string())?;
            selector.matches(&device).map_err(|error| error.to_string())
        };
        Ok(devices.iter().map(judge).collect())
    }
}

/// Converts a device to the form that expressions see.
fn seen(driver: &str, device: &DeviceSpec) -> Result<Device, DeviceError> {
    let attributes = device.attributes.iter().map(|(name, value)| {
        let value = match value {
            DeviceAttribute::Int(number) => Attribute::Int(*number),
            DeviceAttribute::Bool(truth) => Attribute::Bool(*truth),
            DeviceAttribute::Text(text) => Attribute::Text(text),
            DeviceAttribute::Version(version) => Attribute::Version(version),
        };
        (name.as_str(), value)
    });
    let amounts = device.capacity.iter();
    let amounts = amounts.map(|(name, own)| (name.as_str(), own.value.to_string()));
    let amounts: Vec<_> = amounts.collect();
    let capacity = amounts
        .iter()
        .map(|(name, amount)| (*name, amount.as_str()));
    Device::new(
        driver,
        device.allow_multiple_allocations,
        attributes,
        capacity,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_see_attributes_capacities_and_what_is_missing() {
        let devices = json!([
            { "name": "a", "attributes": { "model": { "string": "a100" }, "driverVersion": { "version": "1.2.0" } }, "capacity": { "memory": { "value": "80Gi" } } },
            { "name": "b", "attributes": { "model": { "string": "t4" } }, "capacity": { "memory": { "value": "16Gi" } } },
        ]);
        let devices: Vec<DeviceSpec> = serde_json::from_value(devices).expect("devices");
        let says = |expression: &str| {
            CelEvaluator::default().judge(expression, "gpu.example.com", &devices)
        };
        let large = r#"device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("40Gi"))"#;
        assert_eq!(says(large), Ok(vec![Ok(true), Ok(false)]));
        let model = r#"device.attributes["gpu.example.com"].model == "t4""#;
        assert_eq!(says(model), Ok(vec![Ok(false), Ok(true)]));
        let version =
            r#"device.attributes["gpu.example.com"].driverVersion.isGreaterThan(semver("1.0.0"))"#;
        let said = says(version).expect("it compiles");
        assert_eq!(said[0], Ok(true));
        assert!(
            said[1]
                .as_ref()
                .is_err_and(|why| why.contains("no such key: driverVersion")),
            "{said:?}"
        );
        assert!(says("device.nothing").is_err());
    }
}
