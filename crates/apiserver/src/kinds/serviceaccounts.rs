//! core/v1 ServiceAccount: plain storage; what it does for pods is in admission.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Column, Kind,
    print::{AGE, NAME, age, name},
};

/// core/v1 ServiceAccount.
pub(crate) struct ServiceAccount;

impl Kind for ServiceAccount {
    fn columns(&self) -> Option<&[Column]> {
        const COLUMNS: &[Column] = &[NAME, AGE];
        Some(COLUMNS)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), age(object, now)]
    }
}
