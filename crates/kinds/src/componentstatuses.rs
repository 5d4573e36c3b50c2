//! core/v1 ComponentStatus: the health of other parts of a control plane, long deprecated. Only its table is special.

use jiff::Timestamp;
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Column, Kind, print};
use crate::Printing;

/// core/v1 ComponentStatus.
pub(super) struct ComponentStatus;

const COLUMNS: [Column; 4] = [
    print::NAME,
    print::column("Status"),
    print::column("Message"),
    print::column("Error"),
];

impl Kind for ComponentStatus {
    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for ComponentStatus {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, _: Timestamp) -> Vec<Value> {
        let healthy = object
            .items("conditions")
            .iter()
            .find(|condition| condition.text("type") == "Healthy");
        let (status, message, error) = match healthy {
            Some(condition) if condition.text("status") == "True" => (
                "Healthy",
                condition.text("message"),
                condition.text("error"),
            ),
            Some(condition) => (
                "Unhealthy",
                condition.text("message"),
                condition.text("error"),
            ),
            None => ("Unknown", "", ""),
        };
        vec![
            print::name(object),
            status.into(),
            message.into(),
            error.into(),
        ]
    }
}
