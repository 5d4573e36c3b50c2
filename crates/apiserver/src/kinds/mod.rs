//! The registry: one file per kind, and one row per served resource.
//!
//! A [`Resource`] says, as data, where a kind is served and how the generic handlers treat it. Its [`Kind`] has the rest as code: defaults,
//! validation and table cells. Custom resource definitions add such rows at run time. Handlers never name a kind.

mod addresses;
pub(crate) mod admissionregistration;
mod apiservices;
mod autoscalers;
mod builtins;
mod certificatesigningrequests;
mod componentstatuses;
mod configmaps;
mod controllerrevisions;
mod cronjobs;
mod csi;
mod csistoragecapacities;
pub(crate) mod customresourcedefinitions;
mod daemonsets;
mod deployments;
mod endpoints;
mod endpointslices;
mod events;
pub(crate) mod flowcontrol;
pub(crate) mod ingressclasses;
pub(crate) mod ingresses;
mod jobs;
pub(crate) mod key_pair;
mod leases;
mod limitranges;
pub(crate) mod namespaces;
mod networkpolicies;
mod node_annotations;
mod nodes;
pub(crate) mod persistentvolumeclaims;
mod persistentvolumes;
mod poddisruptionbudgets;
mod pods;
pub(crate) mod podspec;
mod podtemplates;
pub(crate) mod print;
pub(crate) mod priorityclasses;
pub(crate) mod rbac;
mod replicasets;
mod replicationcontrollers;
mod resource;
mod resourcequotas;
mod rules;
mod runtimeclasses;
mod secrets;
mod serviceaccounts;
pub(crate) mod services;
mod statefulsets;
pub(crate) mod storageclasses;
pub(crate) mod tree;
mod volumeattachments;
mod volumeattributesclasses;
mod workloads;

pub use builtins::builtins;
pub use priorityclasses::system_classes;
pub use rules::{Generation, Propagation, Rules, StatusOnCreate};
pub use services::{InvalidRange, ServiceRange};

use std::{borrow::Cow, sync::Arc};

use mullion_kube_text::{field::Errors, status::ResourceNames};
use mullion_schema::Type;
use mullion_store::RawField;
use serde_json::Value;

use crate::{
    admission::Ctx,
    provided::{ObjectSource, Tagged},
    status::Status,
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
    /// Returns the metadata fields that a write to `/status` resets and therefore does not own, as elements of paths below metadata.
    pub(crate) fn resets(self) -> &'static [&'static str] {
        match self {
            StatusMetadata::All => &[],
            StatusMetadata::KeepLabels => &["f:labels"],
            StatusMetadata::KeepOwnerReferences => &["f:deletionTimestamp", "f:ownerReferences"],
            StatusMetadata::KeepMost | StatusMetadata::KeepAll => &[
                "f:annotations",
                "f:deletionGracePeriodSeconds",
                "f:deletionTimestamp",
                "f:finalizers",
                "f:generateName",
                "f:labels",
                "f:ownerReferences",
            ],
        }
    }
}

/// A column of a kind's table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The header of the column, as kube-apiserver writes it.
    pub name: &'static str,
    /// OpenAPI type of the cells.
    pub cell_type: &'static str,
    /// OpenAPI format (`name` for the first column).
    pub format: &'static str,
    /// 0 always, 1 with `-o wide`.
    pub priority: i32,
}

/// One validation step of a create or update. Some of kube-apiserver's kinds run a step more than once, and every run adds its causes to
/// the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The metadata itself.
    Metadata,
    /// The change of the metadata, compared with the stored one.
    MetadataChange,
    /// [`Kind::validate_against`].
    Object,
    /// [`Kind::validate_update`], or `validate_part` for a part, or `validate_creation`.
    Change,
}

impl Check {
    /// The checks of kinds that validate the object and its metadata in one function and do not compare the metadata again.
    pub const WHOLE: &'static [Check] = &[Check::Metadata, Check::Object, Check::Change];
    /// The checks of kinds that compare the metadata and then validate the object as for its creation.
    pub const CHANGE_AND_WHOLE: &'static [Check] = &[
        Check::MetadataChange,
        Check::Metadata,
        Check::Object,
        Check::Change,
    ];
}

/// The hooks in which kinds differ. Every hook has a default that does nothing, so a kind that is only stored needs no code.
///
/// A create decodes the object, and then runs [`Kind::default`], mutating admission, [`Kind::permit`], the filling in of metadata,
/// [`Kind::prepare_create`], [`Kind::validate`], validating admission and [`Kind::allocate`], before it stores the object. An update
/// decodes, defaults, runs mutating admission, carries metadata over, and then runs [`Kind::prepare_update`] (or `prepare_status`), the
/// [`Kind::update_checks`] (or `validate_status`), ...
pub trait Kind: Send + Sync + 'static {
    /// Fills in the fields that kube-apiserver's `SetDefaults_*` functions fill in.
    fn default(&self, object: &mut Value) {
        let _ = object;
    }

    /// Checks whether the user may write this content, for kinds where the right to write the kind is not enough (a user must not grant a
    /// role more rights than the user has). Runs after mutating admission. `name` is empty while `generateName` is not expanded, and `old`
    /// is `None` for a create.
    fn permit(
        &self,
        ctx: &Ctx<'_>,
        name: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let _ = (ctx, name, object, old);
        Ok(())
    }

    /// Implements the strategy's PrepareForCreate: sets the first status, and drops fields that a client may not set.
    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let _ = (ctx, object);
    }

    /// Implements the strategy's PrepareForUpdate of the main endpoint; [`Rules`] cover status and generation.
    fn prepare_update(&self, ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        let _ = (ctx, object, old);
    }

    /// Implements PrepareForUpdate of the status endpoint; [`Rules`] cover spec and metadata.
    fn prepare_status(&self, ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        let _ = (ctx, object, old);
    }

    /// Validates the whole object (metadata is validated by the handlers), on create and update.
    fn validate(&self, ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let _ = (ctx, object, errors);
    }

    /// Validates like [`Kind::validate`], and allows values that are invalid now but unchanged in the stored object. `old` is `None` for a
    /// create.
    fn validate_against(
        &self,
        ctx: &Ctx<'_>,
        object: &Value,
        old: Option<&Value>,
        errors: &mut Errors,
    ) {
        let _ = old;
        self.validate(ctx, object, errors);
    }

    /// Validates the rules that apply only to a create; runs after [`Kind::validate`].
    fn validate_creation(&self, ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let _ = (ctx, object, errors);
    }

    /// Returns the checks of a create, in order, as in the strategy's Validate. If [`Check::Metadata`] is not among them, the metadata is
    /// validated last, by the rules for all kinds, and only if there are no other errors. [`Check::Change`] stands for
    /// [`Kind::validate_creation`].
    fn creation_checks(&self) -> &'static [Check] {
        Check::WHOLE
    }

    /// Returns the checks of an update, in order, as in the strategy's ValidateUpdate; they follow those for all kinds. `subresource` is
    /// empty on the main endpoint, and else the name of a [`SubresourceHandler::Part`].
    fn update_checks(&self, subresource: &str) -> &'static [Check] {
        let _ = subresource;
        &[Check::MetadataChange, Check::Object, Check::Change]
    }

    /// Returns the checks of a status update, in order; they follow those for all kinds.
    fn status_checks(&self) -> &'static [Check] {
        &[Check::MetadataChange, Check::Change]
    }

    /// Validates a change on the main endpoint: immutable fields and the like.
    fn validate_update(&self, ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let _ = (ctx, object, old, errors);
    }

    /// Validates a change on the status endpoint.
    fn validate_status(&self, ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let _ = (ctx, object, old, errors);
    }

    /// Returns the field that a status update does not change, with the parts of it that [`Kind::prepare_status`],
    /// [`Kind::validate_status`] and [`Kind::selectable_value`] read. The rest of the field is then neither parsed nor encoded. Items of
    /// keyed lists that may lack their keys must be among the parsed parts.
    fn raw_field(&self) -> Option<&'static RawField> {
        None
    }

    /// Restores everything that a write to a [`SubresourceHandler::Part`] may not change.
    fn prepare_part(&self, ctx: &Ctx<'_>, subresource: &str, object: &mut Value, old: &Value) {
        let _ = (ctx, subresource, object, old);
    }

    /// Validates a write to a [`SubresourceHandler::Part`]; see [`Kind::update_checks`].
    fn validate_part(
        &self,
        ctx: &Ctx<'_>,
        subresource: &str,
        object: &Value,
        old: &Value,
        errors: &mut Errors,
    ) {
        let _ = (ctx, subresource, object, old, errors);
    }

    /// Returns warnings for the client about the object that it sent.
    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let _ = (object, old);
        Vec::new()
    }

    /// Returns warnings for a client that writes the status.
    fn status_warnings(&self, object: &Value) -> Vec<String> {
        let _ = object;
        Vec::new()
    }

    /// Allocates values that are unique in the cluster (cluster IPs, node ports) and writes them into the object. They are kept when the
    /// returned allocation is committed, and released when it is dropped. `object` is `Null` if `old` was deleted.
    fn allocate(
        &self,
        ctx: &Ctx<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Box<dyn Allocation>, Status> {
        let _ = (ctx, object, old);
        Ok(Box::new(Nothing))
    }

    /// Reserves the allocated values of an object that was loaded at start, so that no other object gets them.
    fn adopt(&self, object: &mut Value) -> Result<(), Status> {
        let _ = object;
        Ok(())
    }

    /// Returns the columns of the table; `None` for the default columns Name and Created At (Age for custom resources).
    fn columns(&self) -> Option<&[Column]> {
        None
    }

    /// Returns the cells of a row, one for each column.
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let _ = (object, now);
        Vec::new()
    }

    /// Returns the conditions of a row (for example `Completed` of pods).
    fn row_conditions(&self, object: &Value) -> Vec<Value> {
        let _ = object;
        Vec::new()
    }

    /// Returns the fields that field selectors support besides metadata.name and metadata.namespace.
    fn selectable_fields(&self) -> &[&'static str] {
        &[]
    }

    /// Returns the error for a field selector on an unsupported field, if kube-apiserver has a message of its own for the kind.
    fn unselectable(&self, field: &str) -> Option<String> {
        let _ = field;
        None
    }

    /// Returns the value of a selectable field; the empty string if the field is not set.
    fn selectable_value(&self, object: &Value, field: &str) -> String {
        let _ = (object, field);
        String::new()
    }

    /// Converts the served form to the stored one (for kinds with several versions, and events).
    fn to_storage(&self, object: &mut Value) {
        let _ = object;
    }

    /// Converts the stored form to the served one.
    fn to_served(&self, object: &mut Value) {
        let _ = object;
    }

    /// Returns whether [`Kind::to_served`] must run even if the served version is the stored one, because it fills in values that are not
    /// stored (such as defaults that were added since). A write that changes nothing else then stores them.
    fn rewrites_stored(&self) -> bool {
        false
    }

    /// Returns the source of the objects, for kinds whose objects are not stored.
    fn source(&self) -> Option<&dyn ObjectSource> {
        None
    }

    /// Returns the kind of a list, if a definition names it.
    fn list_kind(&self) -> Option<&str> {
        None
    }

    /// Returns the fields of the protobuf message, for kinds that the schema table does not have.
    fn message(&self) -> &'static [Tagged] {
        &[]
    }

    /// Returns the OpenAPI schema, for kinds that neither the schema table nor a definition has.
    fn openapi(&self) -> Option<&Value> {
        None
    }

    /// Returns whether a deleted object stays although it has no `metadata.finalizers` (namespaces: `spec.finalizers`).
    fn holds_deletion(&self, object: &Value) -> bool {
        let _ = object;
        false
    }

    /// Returns the reason why the object of this name can never be deleted, if that is so.
    fn refuses_deletion(&self, name: &str) -> Option<&'static str> {
        let _ = name;
        None
    }

    /// Changes an object that is being marked for deletion (namespaces: phase Terminating).
    fn prepare_delete(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let _ = (ctx, object);
    }
}

/// Values that are allocated for an object that is not stored yet.
pub trait Allocation: Send {
    /// Keeps the values, because the object is stored. Dropping the allocation releases them instead.
    fn commit(self: Box<Self>);

    /// Takes the objects of other kinds that are created or deleted with the allocation.
    fn companions(&mut self) -> Vec<Companion> {
        Vec::new()
    }
}

/// An object of another kind that is created or deleted with a write. It passes no admission or validation.
pub struct Companion {
    /// The group of the object.
    pub group: &'static str,
    /// The plural of the object's kind.
    pub plural: &'static str,
    /// The name of the object, which has no namespace.
    pub name: String,
    /// The object to create, or `None` to delete it.
    pub object: Option<Value>,
}

/// The allocation of kinds that allocate nothing.
pub struct Nothing;

impl Allocation for Nothing {
    fn commit(self: Box<Self>) {}
}

/// A kind without special behaviour, which is only stored.
pub struct Plain;

impl Kind for Plain {}
