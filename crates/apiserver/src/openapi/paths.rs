//! Paths: what is behind each, which verbs it has, what they take and answer.
//!
//! Built-in resources ([`builtin`]) and custom ones ([`custom`]) say which verbs they have where; what a verb is told as is the same for
//! both but for a [`verbs::Profile`], and is written by one [`writer`]. What no resource serves is in [`around`].

pub(super) mod around;
mod builtin;
mod custom;
mod names;
mod parameters;
mod verbs;
mod writer;

use serde_json::{Map, Value};

use super::Dialect;
use crate::{kinds::Resource, registry::Row};

/// Adds the paths of a row; `component` is the schema of its kind.
pub(super) fn add(paths: &mut Map<String, Value>, dialect: Dialect, row: &Row, component: &str) {
    if row.is_defined() {
        custom::add(paths, dialect, row, component);
    } else {
        builtin::add(paths, dialect, row, component);
    }
}

/// Where a group's version begins.
fn base(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    }
}

/// Where a resource's objects are: its collection, the one of a namespace if it lives in namespaces.
fn collection(base: &str, resource: &Resource) -> String {
    let scope = if resource.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    format!("{base}{scope}/{}", resource.plural)
}
