//! Resources that are not stored: the embedding program answers for their objects, as an aggregated API server would.
//!
//! A [`Provided`] resource is served like any other (discovery, OpenAPI, authorization, selectors, tables), but its objects come from an
//! [`ObjectSource`] at each request. They can be read, but not written or watched. [`crate::http`] serves them.

use std::sync::Arc;

use jiff::Timestamp;
use mullion_kinds::{Kind, Printing, Resource, Rules, Unstored};
use mullion_schema::structural::Schema;
use serde_json::Value;

pub use mullion_kinds::{Column, Labels, ObjectQuery, ObjectSource};
pub use mullion_schema::proto::provided::{Tagged, Wire};

/// A resource whose objects the embedding program provides.
pub struct Provided {
    /// API group.
    pub group: &'static str,
    /// API version, for example `v1beta1`.
    pub version: &'static str,
    /// Kind, for example `PodMetrics`.
    pub kind: &'static str,
    /// Plural name in paths, for example `pods`.
    pub plural: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// The OpenAPI v3 schema of its objects, without `apiVersion`, `kind` and `metadata`.
    pub schema: Value,
    /// The fields of its protobuf message after the metadata, which is the first field. If empty, the resource has no protobuf form.
    pub message: &'static [Tagged],
    /// The columns of its table.
    pub columns: &'static [Column],
    /// The source of its objects.
    pub source: Arc<dyn ObjectSource>,
}

impl Provided {
    /// Returns the resource as an entry of the registry.
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
            list_kind: None,
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

/// The [`Kind`] implementation of a provided resource.
struct Answers {
    schema: Value,
    message: &'static [Tagged],
    columns: &'static [Column],
    source: Arc<dyn ObjectSource>,
}

impl Kind for Answers {
    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn unstored(&self) -> Option<&dyn Unstored> {
        Some(self)
    }
}

impl Printing for Answers {
    fn columns(&self) -> &[Column] {
        self.columns
    }

    fn cells(&self, object: &Value, _: Timestamp) -> Vec<Value> {
        self.source.cells(object)
    }
}

impl Unstored for Answers {
    fn source(&self) -> &dyn ObjectSource {
        &*self.source
    }

    fn openapi(&self) -> &Value {
        &self.schema
    }

    fn message(&self) -> &'static [Tagged] {
        self.message
    }
}
