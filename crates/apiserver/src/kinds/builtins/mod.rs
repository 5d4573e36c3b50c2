//! The built-in rows: what is served, under which names, by which rules. One line of behaviour, the rest is data.
//!
//! The order is that of discovery. Rows that share a `storage` show the same objects; the first of them is the stored form.

mod core;
mod groups;
mod row;

use super::{
    Resource,
    services::{ServiceRange, pools::Pools},
};
use row::Row;

/// The groups in the order in which upstream's discovery lists them; those that it does not have come last.
const GROUPS: [&str; 21] = [
    "",
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
];

/// All built-in rows, in discovery order of their groups; Services take their addresses from `range`.
pub fn builtins(range: ServiceRange) -> Vec<Resource> {
    let pools = Pools::new(range);
    let mut rows: Vec<Resource> = [
        core::core(pools.clone()),
        core::apps(),
        groups::reviews(),
        groups::autoscaling(),
        groups::batch(),
        groups::networking(pools),
        groups::groups(),
        groups::rbac_group(),
        groups::storage(),
        groups::admission(),
        groups::certificates(),
        groups::flow_control(),
        groups::resource_group(),
    ]
    .into_iter()
    .flatten()
    .map(Row::done)
    .collect();
    rows.sort_by_key(|row| {
        let place = GROUPS.iter().position(|group| *group == row.group);
        place.unwrap_or(GROUPS.len())
    });
    rows
}
