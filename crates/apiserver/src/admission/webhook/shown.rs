//! Converts objects to the version that a webhook or policy asks for, and back after it has changed them.

use std::sync::Arc;

use mullion_kube_text::status::Status;
use mullion_schema::{Type, decode, merge, ownership, tree::Tree};
use serde_json::Value;

use super::subject::{Form, View, Views};
use crate::{
    object::{
        scale,
        type_meta::{
            Expected,
            retyped::{self, AdmittedType},
        },
    },
    registry::Row,
};

impl Views<'_> {
    /// Returns an object of the write as webhooks see it.
    pub(super) fn shown(&self, view: &View, object: &Value) -> Value {
        match &self.subject.form {
            Form::Whole => {
                let mut shown = object.clone();
                ownership::unfold(&mut shown);
                self.convert(&self.own, view, &mut shown);
                shown
            }
            Form::Scale(paths) => scale::scale_of(object, paths),
            Form::Body(_) | Form::Options => {
                let mut shown = object.clone();
                ownership::unfold(&mut shown);
                shown
            }
        }
    }

    fn convert(&self, from: &View, to: &View, object: &mut Value) {
        if !Arc::ptr_eq(&from.row, &to.row) {
            // Every version converts to the stored one and back, so no pair of versions needs a conversion of its own.
            from.row.to_stored(object);
            to.row.to_served(object);
        }
    }

    /// Applies a patch to the shown object, decodes the result as its type and sets the type's defaults.
    pub(super) fn patched(
        &self,
        view: &View,
        shown: &Value,
        patch: &Value,
    ) -> Result<Value, Status> {
        let patched = merge::json_patch(shown, patch);
        let tree = patched.map_err(|why| Status::internal(why.to_string()))?;
        self.read_again(view, shown, tree, false)
    }

    /// Returns the type of the shown object, and whether the kind has defaults for it.
    pub(super) fn schema(&self, view: &View) -> Result<(Type, bool), Status> {
        match &self.subject.form {
            Form::Whole => Ok((view.row.resource.schema.clone(), true)),
            Form::Body(schema) => Ok((schema.clone(), false)),
            Form::Scale(_) => {
                let scale = Type::builtin("api.autoscaling.v1.Scale");
                let scale =
                    scale.ok_or_else(|| Status::internal("Scale is not in the schema table"))?;
                Ok((scale, false))
            }
            Form::Options => Err(Status::internal(
                "the options of a connection cannot be changed",
            )),
        }
    }

    /// Decodes a changed object as its type and sets the type's defaults; `strict` refuses fields that the type does not have.
    pub(super) fn read_again(
        &self,
        view: &View,
        shown: &Value,
        tree: Value,
        strict: bool,
    ) -> Result<Value, Status> {
        let (schema, defaults) = self.schema(view)?;
        let api_version = shown.text("apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let expected = Expected {
            group,
            version,
            kind: shown.text("kind"),
            schema: &schema,
            custom: view.row.custom && matches!(self.subject.form, Form::Whole),
        };
        let (tree, other) = match retyped::settle(&expected, tree)? {
            AdmittedType::Same(tree) => (tree, None),
            AdmittedType::Other(tree) => {
                let row = self.version_of(view, tree.text("apiVersion"));
                let row = row.ok_or_else(|| retyped::not_served(&expected, &tree))?;
                (tree, Some(row))
            }
        };
        let row = other.as_ref().unwrap_or(&view.row);
        let schema = match &other {
            Some(row) => row.resource.schema.clone(),
            None => schema,
        };
        let decoded = decode::value(&schema, tree);
        let decoded = decoded.map_err(|error| Status::internal(error.to_string()))?;
        // Unknown fields of custom resources are dropped, strictly or not.
        if strict
            && !view.row.custom
            && let Some(why) = decoded.strict_error()
        {
            return Err(Status::internal(why));
        }
        let mut object = decoded.value;
        if defaults {
            row.resource.behaviour.default(&mut object);
        }
        if let Some(row) = other {
            row.to_stored(&mut object);
            view.row.to_served(&mut object);
            object["apiVersion"] = view.row.api_version().into();
        }
        Ok(object)
    }

    /// Returns the row that serves another version of the shown object.
    fn version_of(&self, view: &View, api_version: &str) -> Option<Arc<Row>> {
        if !matches!(self.subject.form, Form::Whole) {
            return None;
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = &view.row.resource;
        let table = self.subject.registry.table();
        let row = table.find(group, version, &resource.plural)?;
        (row.resource.storage == resource.storage).then(|| row.clone())
    }

    /// Converts the object that a webhook has patched back to the form of the write, and stores it in `object`.
    pub(super) fn adopt(&self, view: &View, object: &mut Value, mut changed: Value) {
        match &self.subject.form {
            Form::Whole => {
                self.convert(view, &self.own, &mut changed);
                self.keep_owners(object, &mut changed);
                ownership::fold(&mut changed);
                *object = changed;
            }
            Form::Scale(paths) => {
                let replicas = changed["spec"]["replicas"].as_i64().unwrap_or(0);
                scale::set_replicas(object, paths, replicas);
            }
            Form::Body(_) => *object = changed,
            Form::Options => {}
        }
    }

    /// Restores the managedFields if a webhook has made them invalid, and warns the client.
    fn keep_owners(&self, before: &Value, after: &mut Value) {
        let given = &after["metadata"]["managedFields"];
        let Err(why) = ownership::check(given) else {
            return;
        };
        (self.subject.warn)(format!(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; \
             please fix your requests: {why}"
        ));
        let kept = before["metadata"].get("managedFields").cloned();
        if let Some(metadata) = after["metadata"].as_object_mut() {
            match kept {
                Some(kept) => metadata.insert("managedFields".to_owned(), kept),
                None => metadata.remove("managedFields"),
            };
        }
    }
}
