//! The hooks in which kinds differ.

use mullion_kube_text::{field::Errors, status::Status};
use mullion_schema::{proto::provided::Tagged, raw_field::RawField};
use serde_json::Value;

use crate::{ObjectSource, request::Ctx};

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
/// [`Allocator::allocate`], [`Kind::prepare_create`], [`Kind::validate`] and validating admission, before it stores the object. An update
/// decodes, defaults, runs mutating admission, carries metadata over, allocates, and then runs [`Kind::prepare_update`] (or
/// `prepare_status`), the [`Kind::update_checks`] (or `status_checks`) and validating admission.
pub trait Kind: Send + Sync + 'static {
    /// Fills in the fields that kube-apiserver's `SetDefaults_*` functions fill in.
    fn default(&self, object: &mut Value) {
        let _ = object;
    }

    /// Does the same as [`Kind::default`] for the result of a server-side apply.
    fn default_applied(&self, object: &mut Value) {
        self.default(object);
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

    /// Implements the strategy's PrepareForUpdate of the main endpoint; [`crate::Rules`] cover status and generation.
    fn prepare_update(&self, ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        let _ = (ctx, object, old);
    }

    /// Implements PrepareForUpdate of the status endpoint; [`crate::Rules`] cover spec and metadata.
    fn prepare_status(&self, ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        let _ = (ctx, object, old);
    }

    /// Returns the annotations that hold a field of kube-apiserver's internal type. They are part of whole objects only: kube-apiserver takes
    /// PartialObjectMetadata, also in tables, from the internal type.
    fn annotations_of_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// Sets what kube-apiserver sets when it reads a stored object back and the write itself has left out. Runs after validation.
    fn read_back(&self, object: &mut Value) {
        let _ = object;
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
    /// empty on the main endpoint, and else the name of a [`crate::SubresourceHandler::Part`].
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
    /// [`Kind::validate_status`] and [`FieldSelection::selectable_value`] read. The rest of the field is then neither parsed nor encoded. Items of
    /// keyed lists that may lack their keys must be among the parsed parts.
    fn raw_field(&self) -> Option<&'static RawField> {
        None
    }

    /// Restores everything that a write to a [`crate::SubresourceHandler::Part`] may not change.
    fn prepare_part(&self, ctx: &Ctx<'_>, subresource: &str, object: &mut Value, old: &Value) {
        let _ = (ctx, subresource, object, old);
    }

    /// Validates a write to a [`crate::SubresourceHandler::Part`]; see [`Kind::update_checks`].
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

    /// Returns the columns and cells of the kind's table; `None` for the default columns Name and Created At (Age for custom resources).
    fn printing(&self) -> Option<&dyn Printing> {
        None
    }

    /// Returns the fields that field selectors support besides metadata.name and metadata.namespace; `None` if there are none.
    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        None
    }

    /// Returns what allocates values that are unique in the cluster (cluster IPs, node ports); `None` if the kind has no such values.
    fn allocator(&self) -> Option<&dyn Allocator> {
        None
    }

    /// Returns the conversion between the served and the stored form; `None` if they are the same.
    fn conversion(&self) -> Option<&dyn Conversion> {
        None
    }

    /// Returns the rules for deletions that differ from those for all kinds.
    fn deletion(&self) -> Option<&dyn Deletion> {
        None
    }

    /// Returns where the objects come from, for kinds whose objects are not stored.
    fn unstored(&self) -> Option<&dyn Unstored> {
        None
    }
}

/// The table of a kind.
pub trait Printing {
    /// Returns the columns.
    fn columns(&self) -> &[Column];

    /// Returns the cells of a row, one for each column.
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value>;

    /// Returns the conditions of a row (for example `Completed` of pods).
    fn row_conditions(&self, object: &Value) -> Vec<Value> {
        let _ = object;
        Vec::new()
    }
}

/// The fields of a kind that field selectors support.
pub trait FieldSelection {
    /// Returns the fields, besides metadata.name and metadata.namespace.
    fn selectable_fields(&self) -> &[&'static str];

    /// Returns the value of one of the fields; the empty string if the field is not set.
    fn selectable_value(&self, object: &Value, field: &str) -> String;

    /// Returns the error for a field selector on an unsupported field, if kube-apiserver has a message of its own for the kind.
    fn unselectable(&self, field: &str) -> Option<String> {
        let _ = field;
        None
    }
}

/// Allocates values that are unique in the cluster (cluster IPs, node ports).
pub trait Allocator {
    /// Allocates values and writes them into the object. They are kept when the returned allocation is committed, and released when it is
    /// dropped. `object` is `Null` if `old` was deleted.
    fn allocate(
        &self,
        ctx: &Ctx<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Box<dyn Allocation>, Status>;

    /// Reserves the allocated values of an object that was loaded at start, so that no other object gets them.
    fn adopt(&self, object: &mut Value) -> Result<(), Status> {
        let _ = object;
        Ok(())
    }
}

/// Converts between the form in which a version serves objects and the form in which they are stored (kinds with several versions, and
/// events).
pub trait Conversion {
    /// Converts the served form to the stored one.
    fn to_storage(&self, object: &mut Value) {
        let _ = object;
    }

    /// Converts the stored form to the served one.
    fn to_served(&self, object: &mut Value);

    /// Returns whether [`Conversion::to_served`] must run even if the served version is the stored one, because it fills in values that
    /// are not stored (such as defaults that were added since). A write that changes nothing else then stores them.
    fn rewrites_stored(&self) -> bool {
        false
    }
}

/// Rules for the deletion of a kind's objects that differ from those for all kinds.
pub trait Deletion {
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

/// A kind whose objects are not stored: the embedding program answers for them.
pub trait Unstored {
    /// Returns the source of the objects.
    fn source(&self) -> &dyn ObjectSource;

    /// Returns the fields of the protobuf message; none if the kind has no protobuf form.
    fn message(&self) -> &'static [Tagged];

    /// Returns the OpenAPI schema.
    fn openapi(&self) -> &Value;
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
