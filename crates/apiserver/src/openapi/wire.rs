//! The types of requests and responses that are not resources, and the names of components.

use crate::registry::Row;

pub(super) const API_GROUP: &str = "apimachinery.pkg.apis.meta.v1.APIGroup";
pub(super) const API_GROUP_LIST: &str = "apimachinery.pkg.apis.meta.v1.APIGroupList";
pub(super) const API_RESOURCE_LIST: &str = "apimachinery.pkg.apis.meta.v1.APIResourceList";
pub(super) const API_VERSIONS: &str = "apimachinery.pkg.apis.meta.v1.APIVersions";
pub(super) const DELETE_OPTIONS: &str = "apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub(super) const INFO: &str = "apimachinery.pkg.version.Info";
pub(super) const PATCH_BODY: &str = "apimachinery.pkg.apis.meta.v1.Patch";
pub(super) const SCALE: &str = "api.autoscaling.v1.Scale";
pub(super) const STATUS: &str = "apimachinery.pkg.apis.meta.v1.Status";
pub(super) const WATCH_EVENT: &str = "apimachinery.pkg.apis.meta.v1.WatchEvent";

/// The prefix of the components of built-in types.
pub(super) const PREFIX: &str = "io.k8s.";

/// Returns the component name of a built-in type.
pub(super) fn component_of(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Returns the component name of a kind's list, which a definition may name differently.
pub(super) fn list_of(row: &Row, component: &str) -> String {
    let package = component
        .rsplit_once('.')
        .map_or("", |(package, _)| package);
    format!("{package}.{}", row.list_kind())
}
