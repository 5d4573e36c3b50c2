//! The built-in rows: kinds, their names, their rules, and the code of each.
//!
//! The order is that of discovery. Rows with the same `storage` serve the same objects; the first of them is the stored form.

mod core;
mod groups;
mod row;

use row::Row;

use super::{
    Kind, Resource,
    services::{ServiceRange, pools::Pools},
};

/// The groups in the order of kube-apiserver's discovery; groups that it does not have are last.
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

/// Returns all built-in rows, in the order of their groups in discovery. Services get their addresses from `range`; `definitions` is the
/// code of CustomResourceDefinitions, which stands with that of custom resources.
pub fn builtins(range: ServiceRange, definitions: impl Kind) -> Vec<Resource> {
    let pools = Pools::new(range);
    let mut rows: Vec<Resource> = [
        core::core(pools.clone()),
        core::apps(),
        groups::reviews(),
        groups::autoscaling(),
        groups::batch(),
        groups::networking(pools),
        groups::groups(definitions),
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
