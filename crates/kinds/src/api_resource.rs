//! A served resource as data: where it is served, its schema, its rules and its subresources.

use std::{borrow::Cow, sync::Arc};

use mullion_kube_text::{
    field::{Errors, Path},
    names::NameRule,
    status::{ResourceNames, Status},
    validation::metadata,
};
use mullion_schema::{Type, proto::provided::Tagged};
use serde_json::Value;

use crate::{
    Allocation, Check, Column, Conversion, FieldSelection, Kind, Nothing, ObjectSource, Printing,
    Rules, Unstored, request::Ctx,
};

type Text = Cow<'static, str>;

/// A served resource: one combination of group, version and plural.
pub struct Resource {
    /// API group; empty for core.
    pub group: Text,
    /// API version, for example `v1`.
    pub version: Text,
    /// Kind, for example `Pod`.
    pub kind: Text,
    /// Plural name in paths, for example `pods`.
    pub plural: Text,
    /// Singular name for clients, for example `pod`.
    pub singular: Text,
    /// Short names for clients, for example `po`.
    pub short_names: Vec<Text>,
    /// Categories, for example `all`.
    pub categories: Vec<Text>,
    /// True if the objects are namespaced.
    pub namespaced: bool,
    /// The name under which the objects are stored. Resources that share it are views of the same objects (core and events.k8s.io events;
    /// two versions of one kind).
    pub storage: Text,
    /// The schema of the kind as served here.
    pub schema: Type,
    /// The properties by which the generic handlers treat the resource.
    pub rules: Rules,
    /// The subresources, in the order in which discovery lists them.
    pub subresources: Vec<Subresource>,
    /// The kind of a list, if it is not the kind followed by `List`.
    pub list_kind: Option<Text>,
    /// A deprecation warning for every request, if this version is deprecated.
    pub deprecated: Option<Text>,
    /// The hooks of the kind.
    pub behaviour: Arc<dyn Kind>,
}

impl Resource {
    /// Returns `plural` or `plural.group`, the name of the resource in messages.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Returns the `apiVersion` of the objects: `group/version`, or `version` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// The hooks of the optional parts of a kind, with what holds for kinds that do not have the part.
impl Resource {
    /// Returns the columns of the table; `None` for the default columns.
    pub fn columns(&self) -> Option<&[Column]> {
        self.behaviour.printing().map(Printing::columns)
    }

    /// Returns the fields that field selectors support besides metadata.name and metadata.namespace.
    pub fn selectable_fields(&self) -> &[&'static str] {
        let fields = self.behaviour.field_selection();
        fields.map_or(&[], FieldSelection::selectable_fields)
    }

    /// Allocates values that are unique in the cluster; see [`crate::Allocator::allocate`].
    ///
    /// # Errors
    /// A value that the object asks for is taken or not allowed, or none is left.
    pub fn allocate(
        &self,
        ctx: &Ctx<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Box<dyn Allocation>, Status> {
        match self.behaviour.allocator() {
            Some(allocator) => allocator.allocate(ctx, object, old),
            None => Ok(Box::new(Nothing)),
        }
    }

    /// Validates a new object that is decoded, defaulted and prepared: by its kind's checks in their order, and then its metadata by the rules
    /// for all kinds, if the kind has found no error and has no rule of its own for names. `is_custom` is true for a kind that is not built in.
    pub fn validate_new(
        &self,
        is_custom: bool,
        ctx: &Ctx<'_>,
        object: &Value,
        errors: &mut Errors,
    ) {
        let (path, sent) = (Path::new("metadata"), &object["metadata"]);
        let by_rule = |rule, errors: &mut Errors| {
            metadata::object_meta(errors, &path, sent, self.namespaced, rule);
        };
        let checks = self.behaviour.creation_checks();
        for check in checks {
            match check {
                Check::Metadata => {
                    by_rule(self.rules.name, errors);
                    if !is_custom && self.rules.core_finalizers {
                        metadata::kube_finalizers(errors, &path, sent);
                    }
                }
                // A new object has no old metadata to compare with.
                Check::MetadataChange => {}
                Check::Object => self.behaviour.validate_against(ctx, object, None, errors),
                Check::Change => self.behaviour.validate_creation(ctx, object, errors),
            }
        }
        let is_named_by_kind =
            checks.contains(&Check::Metadata) && self.rules.name != NameRule::Any;
        if errors.is_empty() && !is_named_by_kind {
            by_rule(NameRule::PathSegment, errors);
        }
    }

    /// Converts the served form of an object to the stored one.
    pub fn to_storage(&self, object: &mut Value) {
        if let Some(conversion) = self.behaviour.conversion() {
            conversion.to_storage(object);
        }
    }

    /// Converts the stored form of an object to the served one.
    pub fn to_served(&self, object: &mut Value) {
        if let Some(conversion) = self.behaviour.conversion() {
            conversion.to_served(object);
        }
    }

    /// Returns whether objects are converted even if the served version is the stored one; see [`Conversion::rewrites_stored`].
    pub fn rewrites_stored(&self) -> bool {
        let conversion = self.behaviour.conversion();
        conversion.is_some_and(Conversion::rewrites_stored)
    }

    /// Returns whether a deleted object stays although it has no `metadata.finalizers`.
    pub fn holds_deletion(&self, object: &Value) -> bool {
        let deletion = self.behaviour.deletion();
        deletion.is_some_and(|deletion| deletion.holds_deletion(object))
    }

    /// Returns the source of the objects, for resources whose objects are not stored.
    pub fn source(&self) -> Option<&dyn ObjectSource> {
        self.behaviour.unstored().map(Unstored::source)
    }

    /// Returns the fields of the protobuf message, for resources that the schema table does not have.
    pub fn message(&self) -> &'static [Tagged] {
        self.behaviour.unstored().map_or(&[], Unstored::message)
    }
}

impl ResourceNames for Resource {
    fn group(&self) -> &str {
        &self.group
    }

    fn plural(&self) -> &str {
        &self.plural
    }

    fn kind(&self) -> &str {
        &self.kind
    }
}

/// A subresource of a resource.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// Path segment, for example `status`.
    pub name: &'static str,
    /// Group of the body's kind where it differs from the resource's (`autoscaling` for scale).
    pub group: Option<&'static str>,
    /// Version of the body's kind where it differs.
    pub version: Option<&'static str>,
    /// Kind of the body, for example `Scale`.
    pub kind: Text,
    /// Verbs in discovery.
    pub verbs: &'static [&'static str],
    /// The handler that serves the subresource.
    pub handler: SubresourceHandler,
}

/// The handler behind a subresource.
#[derive(Clone, Debug, PartialEq)]
pub enum SubresourceHandler {
    /// The object itself; a write changes only `status` and some metadata.
    Status(StatusMetadata),
    /// An autoscaling/v1 Scale, whose fields are at these paths of the object (with dots).
    Scale {
        /// Path of the desired number of replicas, for example `spec.replicas`.
        spec_replicas: String,
        /// Path of the observed number of replicas.
        status_replicas: String,
        /// Path of the selector: a labelSelector object or, for custom resources, a string.
        selector: Option<String>,
    },
    /// The object itself; a write changes only the part that the kind's `prepare_part` allows, and counts in the generation
    /// (pods/ephemeralcontainers, pods/resize, namespaces/finalize, certificatesigningrequests/approval).
    Part(StatusMetadata),
    /// A handler of its own in `http/subresource/` (binding, eviction, log, finalize, token, approval ...).
    Named,
}

/// The metadata that a write to `/status`, or to another part of an object, may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusMetadata {
    /// A write may change all metadata.
    All,
    /// A write may change all metadata but labels (deployments).
    KeepLabels,
    /// A write may change all metadata but ownerReferences and deletionTimestamp (pods).
    KeepOwnerReferences,
    /// A write may not change labels, annotations, finalizers, ownerReferences, deletionTimestamp and generation.
    KeepMost,
    /// A write may change no metadata but managedFields (custom resources).
    KeepAll,
}

impl StatusMetadata {
    /// Returns the paths of the metadata fields that a write to `/status` resets and therefore does not own.
    pub fn resets(self) -> &'static [&'static [&'static str]] {
        match self {
            StatusMetadata::All => &[],
            StatusMetadata::KeepLabels => &[&["f:metadata", "f:labels"]],
            StatusMetadata::KeepOwnerReferences => &[
                &["f:metadata", "f:deletionTimestamp"],
                &["f:metadata", "f:ownerReferences"],
            ],
            StatusMetadata::KeepMost | StatusMetadata::KeepAll => &[
                &["f:metadata", "f:annotations"],
                &["f:metadata", "f:deletionGracePeriodSeconds"],
                &["f:metadata", "f:deletionTimestamp"],
                &["f:metadata", "f:finalizers"],
                &["f:metadata", "f:generateName"],
                &["f:metadata", "f:labels"],
                &["f:metadata", "f:ownerReferences"],
            ],
        }
    }
}
