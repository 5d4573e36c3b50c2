//! The path items of a document: which verbs each path has, and what they take and return.
//!
//! Built-in resources ([`builtin`]) and custom ones ([`custom`]) choose the verbs of each path. The description of a verb is the same for
//! both except for a [`verbs::Profile`], and one [`writer`] writes it. Paths without a resource are in [`non_resource`].

mod builtin;
mod custom;
mod names;
pub(super) mod non_resource;
mod parameters;
mod verbs;
mod writer;

use mullion_kinds::Resource;
use serde_json::{Map, Value};

use super::Dialect;
use crate::registry::Row;

/// Adds the paths of a row; `component` is the schema of its kind.
pub(super) fn add(paths: &mut Map<String, Value>, dialect: Dialect, row: &Row, component: &str) {
    if row.is_defined() {
        custom::add(paths, dialect, row, component);
    } else {
        builtin::add(paths, dialect, row, component);
    }
}

/// Returns the path of a group and version.
fn base(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    }
}

/// Returns the path of a resource's collection, for namespaced resources that within a namespace.
fn collection(base: &str, resource: &Resource) -> String {
    let scope = if resource.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    format!("{base}{scope}/{}", resource.plural)
}
