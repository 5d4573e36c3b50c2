//! Prints the answer of `mullion plan --bound-only`: a lower bound for the price of the nodes that the pods need.

use serde::Serialize;

use super::{
    count,
    report::{Report, is_zero},
};

/// The lower bound for the price of new nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Bound {
    /// The number of pods asked about; the next field is the number of those that fit on existing nodes.
    asked: usize,
    on_existing_nodes: usize,
    unplaced: usize,
    /// How many of the pods asked about quotas refuse; the bound is for the others.
    #[serde(skip_serializing_if = "is_zero")]
    refused: usize,
    /// The bound in US dollars an hour; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound_usd_per_hour: Option<f64>,
}

impl Bound {
    pub(super) fn of(report: &Report) -> Self {
        let pods = &report.pods;
        let needs_none = pods.on_new_nodes + pods.unplaced == 0;
        Bound {
            asked: pods.asked,
            on_existing_nodes: pods.on_existing_nodes,
            unplaced: pods.unplaced,
            refused: pods.refused,
            bound_usd_per_hour: if needs_none {
                Some(0.0)
            } else {
                report.price.bound_usd_per_hour
            },
        }
    }

    /// Returns the answer as text for people, without a newline at its end.
    pub(super) fn text(&self) -> String {
        let pods = count(self.asked - self.refused, "pod");
        let bound = match (self.bound_usd_per_hour, self.unplaced) {
            (Some(bound), _) => format!(
                "New nodes for {pods} cost at least {bound:.3} USD an hour, however the pods are packed."
            ),
            (None, 1..) => format!(
                "What new nodes for {pods} cost at least is not known: {} no place. Without --bound-only the plan says why.",
                match self.unplaced {
                    1 => "1 has".to_owned(),
                    more => format!("{more} have"),
                }
            ),
            (None, 0) => format!(
                "What new nodes for {pods} cost at least is not known: some of them share nodes that are there, or a pool buys as Karpenter does."
            ),
        };
        match self.refused {
            0 => bound,
            1 => format!("{bound} 1 more pod is refused by a quota."),
            more => format!("{bound} {more} more pods are refused by a quota."),
        }
    }
}
