//! The registry: one file per kind, one row per served resource.
//!
//! A [`Resource`] says where a kind is served and how the generic handlers treat it (as data); its [`Kind`] holds what only code
//! can say: defaults, validation, table cells. Custom resources make the same rows at run time. Handlers never name a kind.

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
mod key_pair;
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
pub use rules::{Generation, NameRule, Propagation, Rules, StatusOnCreate};
pub use services::{InvalidRange, ServiceRange};

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;

use crate::{
    admission::Ctx,
    field::Errors,
    provided::{ObjectSource, Tagged},
    schema::Type,
    status::Status,
    store::Lends,
};

type Text = Cow<'static, str>;

/// A served resource: one combination of group, version and plural.
pub struct Resource {
    /// API group; empty for core.
    pub group: Text,
    /// API version, as `v1`.
    pub version: Text,
    /// Kind, as `Pod`.
    pub kind: Text,
    /// Plural name in paths, as `pods`.
    pub plural: Text,
    /// Singular name for clients, as `pod`.
    pub singular: Text,
    /// Short names for clients, as `po`.
    pub short_names: Vec<Text>,
    /// Categories, as `all`.
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
    /// Its subresources, in the order discovery lists them.
    pub subresources: Vec<Subresource>,
    /// A deprecation warning for every request, if this version is deprecated.
    pub deprecated: Option<Text>,
    /// The hooks of the kind.
    pub behaviour: Arc<dyn Kind>,
}

impl Resource {
    /// `plural` or `plural.group`, as messages name a resource.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// `group/version`, or `version` for core: the objects' apiVersion.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// A subresource of a resource.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// Path segment, as `status`.
    pub name: &'static str,
    /// Group of the body's kind where it differs from the resource's (`autoscaling` for scale).
    pub group: Option<&'static str>,
    /// Version of the body's kind where it differs.
    pub version: Option<&'static str>,
    /// Kind of the body, as `Scale`.
    pub kind: Text,
    /// Verbs in discovery.
    pub verbs: &'static [&'static str],
    /// Which handler serves it.
    pub handler: SubresourceHandler,
}

/// The handler behind a subresource.
#[derive(Clone, Debug, PartialEq)]
pub enum SubresourceHandler {
    /// The object itself, of which only `status` (and some metadata) is written.
    Status(StatusMetadata),
    /// autoscaling/v1 Scale over these JSON paths (dotted).
    Scale {
        /// Path of the wanted count, as `spec.replicas`.
        spec_replicas: String,
        /// Path of the observed count.
        status_replicas: String,
        /// Path of the selector: a labelSelector object or, for custom resources, a string.
        selector: Option<String>,
    },
    /// The object itself, of which the kind's `prepare_part` lets a part be written; the generation counts (pods/ephemeralcontainers,
    /// pods/resize, namespaces/finalize, certificatesigningrequests/approval).
    Part(StatusMetadata),
    /// A handler of its own in `http/subresource/` (binding, eviction, log, finalize, token, approval ...).
    Named,
}

/// Which metadata a write to `/status`, or to another part of an object, may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusMetadata {
    /// A write may change all metadata.
    All,
    /// A write may change all metadata but labels (deployments).
    KeepLabels,
    /// A write may change all metadata but ownerReferences and deletionTimestamp (pods).
    KeepOwnerReferences,
    /// Labels, annotations, finalizers, ownerReferences, deletionTimestamp and generation are kept.
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
    /// The metadata as such.
    Metadata,
    /// The rules for the change of metadata against the stored one.
    MetadataChange,
    /// [`Kind::validate_against`].
    Object,
    /// [`Kind::validate_update`], or `validate_part` for a part, or `validate_creation`.
    Change,
}

/// What is special about a kind. Every hook has a default that does nothing, so plain storage needs no code.
///
/// Order of a create: decode, [`Kind::default`], mutating admission, [`Kind::permit`], metadata filled in, [`Kind::prepare_create`],
/// [`Kind::validate`], validating admission, [`Kind::allocate`], store. An update: decode, default, mutating admission, metadata
/// carried over, [`Kind::prepare_update`] (or `prepare_status`), the [`Kind::update_checks`] (or `validate_status`), ...
pub trait Kind: Send + Sync + 'static {
    /// Fills in the fields that upstream's `SetDefaults_*` would.
    fn default(&self, object: &mut Value) {
        let _ = object;
    }

    /// Whether the user may write this content, where being allowed to write the kind is not enough (roles: nobody grants more than they
    /// have). Asked after mutating admission; `name` is empty before `generateName` has been expanded, `old` is `None` at creation.
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

    /// The strategy's PrepareForCreate: first status, fields a client may not set.
    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let _ = (ctx, object);
    }

    /// The strategy's PrepareForUpdate on the main endpoint; status and generation are handled by the rules.
    fn prepare_update(&self, ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        let _ = (ctx, object, old);
    }

    /// PrepareForUpdate of the status endpoint; spec and metadata are handled by the rules.
    fn prepare_status(&self, ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        let _ = (ctx, object, old);
    }

    /// Validates the whole object (metadata is validated by the handlers), on create and update.
    fn validate(&self, ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let _ = (ctx, object, errors);
    }

    /// [`Kind::validate`], and what of it depends on the stored object, whose values may stay as they are; `old` is `None` at creation.
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

    /// Validates what only a creation must keep; after [`Kind::validate`].
    fn validate_creation(&self, ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let _ = (ctx, object, errors);
    }

    /// What is looked at when an object is created, in order: the strategy's Validate. Metadata that is not among it is looked at last, by
    /// what every kind has in common, and only if nothing else was found. [`Check::Change`] stands for [`Kind::validate_creation`].
    fn creation_checks(&self) -> &'static [Check] {
        &[Check::Metadata, Check::Object, Check::Change]
    }

    /// What is looked at when an object changes, in order, after what every kind has in common: the strategy's ValidateUpdate. `subresource`
    /// is empty on the main endpoint, and the name of a [`SubresourceHandler::Part`] there.
    fn update_checks(&self, subresource: &str) -> &'static [Check] {
        let _ = subresource;
        &[Check::MetadataChange, Check::Object, Check::Change]
    }

    /// Validates a change on the main endpoint: immutable fields and the like.
    fn validate_update(&self, ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let _ = (ctx, object, old, errors);
    }

    /// Validates a change on the status endpoint.
    fn validate_status(&self, ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let _ = (ctx, object, old, errors);
    }

    /// The field that a write of the status leaves alone, and what [`Kind::prepare_status`], [`Kind::validate_status`] and
    /// [`Kind::selectable_value`] ask of it. The rest of it is then neither read nor written again. Items of keyed lists that may lack
    /// their keys must be among what is read.
    fn lends(&self) -> Option<&'static Lends> {
        None
    }

    /// Keeps of a write to a [`SubresourceHandler::Part`] only what that subresource is for.
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

    /// Warnings for the client about what it sent.
    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let _ = (object, old);
        Vec::new()
    }

    /// Warnings for who writes the status.
    fn status_warnings(&self, object: &Value) -> Vec<String> {
        let _ = object;
        Vec::new()
    }

    /// Gives out what is unique in the cluster (cluster IPs, node ports) and writes it into the object. What was given is kept
    /// when the returned allocation is committed and given back when it is dropped. `object` is `Null` when `old` was deleted.
    fn allocate(
        &self,
        ctx: &Ctx<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Box<dyn Allocation>, Status> {
        let _ = (ctx, object, old);
        Ok(Box::new(Nothing))
    }

    /// Reserves what an object that was restored at start holds, so that no other object is given it.
    fn adopt(&self, object: &mut Value) -> Result<(), Status> {
        let _ = object;
        Ok(())
    }

    /// The table's columns; `None` for the default Name and Created At (Age for custom resources).
    fn columns(&self) -> Option<&[Column]> {
        None
    }

    /// The cells of one row, one per column.
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let _ = (object, now);
        Vec::new()
    }

    /// The row's conditions (Completed pods).
    fn row_conditions(&self, object: &Value) -> Vec<Value> {
        let _ = object;
        Vec::new()
    }

    /// Field selectors beyond metadata.name and metadata.namespace.
    fn selectable_fields(&self) -> &[&'static str] {
        &[]
    }

    /// Returns the error for a field selector on an unsupported field, if kube-apiserver has a message of its own for the kind.
    fn unselectable(&self, field: &str) -> Option<String> {
        let _ = field;
        None
    }

    /// The value of a selectable field; the empty string when it is not set.
    fn selectable_value(&self, object: &Value, field: &str) -> String {
        let _ = (object, field);
        String::new()
    }

    /// From the served form to the stored one (other versions, events' two faces).
    fn to_storage(&self, object: &mut Value) {
        let _ = object;
    }

    /// From the stored form to the served one.
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

    /// The kind of a list, where a definition names it.
    fn list_kind(&self) -> Option<&str> {
        None
    }

    /// The fields of the protobuf message, where the table has none.
    fn message(&self) -> &'static [Tagged] {
        &[]
    }

    /// The OpenAPI schema, where neither the table nor a definition has it.
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

/// Something given out for an object that is not stored yet.
pub trait Allocation: Send {
    /// The object is stored: keep it. Dropping without this gives it back.
    fn commit(self: Box<Self>);

    /// Takes the objects of other kinds that are created or deleted with the allocation.
    fn beside(&mut self) -> Vec<Beside> {
        Vec::new()
    }
}

/// An object of another kind that is created or deleted with a write. It passes no admission or validation.
pub struct Beside {
    /// Its group.
    pub group: &'static str,
    /// Its plural.
    pub plural: &'static str,
    /// Its name; it is in no namespace.
    pub name: String,
    /// The object to create, or `None` to delete it.
    pub object: Option<Value>,
}

/// The allocation of kinds that need none.
pub struct Nothing;

impl Allocation for Nothing {
    fn commit(self: Box<Self>) {}
}

/// A kind without anything special: plain storage.
pub struct Plain;

impl Kind for Plain {}
