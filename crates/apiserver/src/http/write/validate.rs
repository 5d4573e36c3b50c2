//! The stage that validates an object: its metadata by the rules for all kinds, and then by its kind's checks (kube-apiserver: the
//! strategy's `Validate` and `ValidateUpdate`).

use mullion_kinds::{Check, request::Ctx};
use mullion_kube_text::{
    field::{Errors, Path},
    names::NameRule,
    status::Status,
    validation::metadata,
};
use serde_json::Value;

use super::{
    Part,
    pipeline::{Attempt, Target},
};

impl Attempt<'_> {
    /// Validates the object and returns all its errors at once as a 422.
    ///
    /// kube-apiserver validates metadata for every kind and again in the kind's own validation, and a cause is listed once for each check:
    /// of an update the rules for all kinds come first, of a creation last, and there only if the kind has found no error.
    pub(super) fn validate(&self) -> Result<(), Status> {
        let call = self.call;
        let ctx = call.ctx(self.options.dry_run);
        let mut errors = Errors::about(call.emptied());
        match &self.target {
            Target::New => {
                let (resource, is_custom) = (call.resource(), call.row.custom);
                resource.validate_new(is_custom, &ctx, &self.object, &mut errors);
            }
            Target::Existing { old, .. } => {
                self.check_metadata(NameRule::PathSegment, &mut errors);
                self.check_metadata_change(old, &mut errors);
                for check in self.update_checks() {
                    self.run_check(*check, &ctx, old, &mut errors);
                }
            }
        }
        if !errors.is_empty() {
            return Err(call.invalid(&self.name, &errors));
        }
        // Only after the refusal: what validation forgives is worth a warning only where the write goes on.
        call.warn_all(errors.forgiven());
        call.warn_all(self.warnings());
        Ok(())
    }

    /// Returns the checks of the kind for an update, in their order.
    fn update_checks(&self) -> &'static [Check] {
        let behaviour = &self.call.resource().behaviour;
        match self.part {
            Part::Status(_) => behaviour.status_checks(),
            Part::Main | Part::Piece(_) => behaviour.update_checks(self.subresource()),
        }
    }

    /// Runs a check of an update of the stored object `old`.
    fn run_check(&self, check: Check, ctx: &Ctx<'_>, old: &Value, errors: &mut Errors) {
        let resource = self.call.resource();
        let (behaviour, object) = (&resource.behaviour, &self.object);
        match (check, self.part) {
            (Check::Metadata, _) => {
                self.check_metadata(resource.rules.name, errors);
                self.check_finalizers(errors);
            }
            (Check::MetadataChange, _) => {
                self.check_metadata_change(old, errors);
                self.check_finalizers(errors);
            }
            (Check::Object, _) => behaviour.validate_against(ctx, object, Some(old), errors),
            (Check::Change, Part::Main) => behaviour.validate_update(ctx, object, old, errors),
            (Check::Change, Part::Status(_)) => {
                behaviour.validate_status(ctx, object, old, errors);
            }
            (Check::Change, Part::Piece(_)) => {
                behaviour.validate_part(ctx, self.subresource(), object, old, errors);
            }
        }
    }

    fn check_metadata(&self, rule: NameRule, errors: &mut Errors) {
        let (path, sent) = (Path::new("metadata"), &self.object["metadata"]);
        metadata::object_meta(errors, &path, sent, self.call.resource().namespaced, rule);
    }

    fn check_metadata_change(&self, old: &Value, errors: &mut Errors) {
        let (path, sent) = (Path::new("metadata"), &self.object["metadata"]);
        metadata::object_meta_update(errors, &path, sent, &old["metadata"]);
    }

    /// Checks finalizers as kube-apiserver does for the kinds of its core API, whenever their metadata is validated.
    fn check_finalizers(&self, errors: &mut Errors) {
        if !self.call.row.custom && self.call.resource().rules.core_finalizers {
            let path = Path::new("metadata");
            metadata::kube_finalizers(errors, &path, &self.object["metadata"]);
        }
    }

    /// Returns the kind's warnings about the object that the client sent.
    fn warnings(&self) -> Vec<String> {
        let behaviour = &self.call.resource().behaviour;
        match self.part {
            Part::Status(_) if !self.call.row.custom => behaviour.status_warnings(&self.object),
            _ => behaviour.warnings(&self.object, self.target.old()),
        }
    }
}
