//! Serializes an instance type inside other values by its name (serde's `with`).

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serializer, de::Error};

use super::{InstanceType, get};

pub(crate) fn serialize<S: Serializer>(
    instance_type: &Arc<InstanceType>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&instance_type.name)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Arc<InstanceType>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let found = get(&name).map(Arc::clone);
    found.ok_or_else(|| D::Error::custom(format!("{name:?} is not an EC2 instance type")))
}
