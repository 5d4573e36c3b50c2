//! APIs of which nothing is stored: the program that embeds the server answers for their objects, as an aggregated API server
//! would.
//!
//! A [`Provided`] resource is served as every other one is (discovery, OpenAPI, authorization, selectors, tables); only its
//! objects come from an [`ObjectSource`], anew each time. They can be read, not written or watched. [`crate::http`] serves them.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde_json::Value;

pub use crate::schema::proto::provided::{Tagged, Wire};
use crate::{
    crd::structural::Schema,
    http::Wanted,
    kinds::{Column, Kind, Resource, Rules},
};

/// A resource that the embedding program answers for.
pub struct Provided {
    /// API group.
    pub group: &'static str,
    /// API version, as `v1beta1`.
    pub version: &'static str,
    /// Kind, as `PodMetrics`.
    pub kind: &'static str,
    /// Name in paths, as `pods`.
    pub plural: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// The OpenAPI v3 schema of its objects, without `apiVersion`, `kind` and `metadata`.
    pub schema: Value,
    /// The fields of its protobuf message beside the metadata, which is the first; without any it cannot be had in protobuf.
    pub message: &'static [Tagged],
    /// The columns of its table.
    pub columns: &'static [Column],
    /// Where the objects come from.
    pub source: Arc<dyn ObjectSource>,
}

/// Where the objects of a [`Provided`] resource come from.
pub trait ObjectSource: Send + Sync {
    /// The objects that are wanted, by namespace and name, without `apiVersion` and `kind`.
    fn list(&self, wanted: &Wanted<'_>) -> Vec<Value>;

    /// The cells of an object's row, one per column.
    fn cells(&self, object: &Value) -> Vec<Value>;
}

/// The labels of an object; none for one that has no metadata of its own.
pub type Labels = BTreeMap<String, String>;

impl Provided {
    /// The row it is served by.
    pub(crate) fn resource(self) -> Resource {
        Resource {
            group: self.group.into(),
            version: self.version.into(),
            kind: self.kind.into(),
            plural: self.plural.into(),
            singular: "".into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: self.namespaced,
            storage: format!("{}.{}", self.plural, self.group).into(),
            schema: Schema::parse(&self.schema).to_type(),
            rules: Rules {
                read_only: true,
                ..Rules::default()
            },
            subresources: Vec::new(),
            deprecated: None,
            behaviour: Arc::new(Answers {
                schema: self.schema,
                message: self.message,
                columns: self.columns,
                source: self.source,
            }),
        }
    }
}

/// The behaviour of a provided resource.
struct Answers {
    schema: Value,
    message: &'static [Tagged],
    columns: &'static [Column],
    source: Arc<dyn ObjectSource>,
}

impl Kind for Answers {
    fn columns(&self) -> Option<&[Column]> {
        Some(self.columns)
    }

    fn cells(&self, object: &Value, _: Timestamp) -> Vec<Value> {
        self.source.cells(object)
    }

    fn source(&self) -> Option<&dyn ObjectSource> {
        Some(&*self.source)
    }

    fn openapi(&self) -> Option<&Value> {
        Some(&self.schema)
    }

    fn message(&self) -> &'static [Tagged] {
        self.message
    }
}
