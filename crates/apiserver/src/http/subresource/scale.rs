//! The `scale` subresource: an autoscaling/v1 Scale that is derived from an object's fields and written back to them.

use axum::body::Body;
use http::Response;
use mullion_kinds::{Column, print};
use mullion_kube_text::{
    field::{Errors, Path},
    golang::quote,
    names::NameRule,
    status::{Details, Status},
    validation::metadata as metadata_rules,
};
use mullion_schema::{Type, ownership};
use serde_json::{Value, json};

use crate::{
    http::{
        apply, body,
        call::{Call, FieldValidation},
        get,
        negotiate::Shape,
        patch::{Patch, PatchKind},
        reply, table, update,
        write::{self, Part, Source},
    },
    object::{
        metadata,
        scale::{Paths, replicas, scale_of, set_replicas},
        type_meta::Expected,
    },
};

pub(crate) async fn serve(
    call: &Call,
    paths: &Paths<'_>,
    verb: &str,
    body: Body,
) -> Result<Response<Body>, Status> {
    let schema = Type::builtin("api.autoscaling.v1.Scale")
        .ok_or_else(|| Status::internal("Scale is not in the schema table"))?;
    let expected = Expected {
        group: "autoscaling",
        version: "v1",
        kind: "Scale",
        schema: &schema,
        custom: false,
    };
    if verb == "get" {
        get::refuse_export(call)?;
        let object = call.row.served(&*call.stored()?);
        // kube-apiserver invents no count for a custom resource that has none.
        if call.row.custom && replicas(&object, paths).is_none() {
            let path = quote(&format!(".{}", paths.spec));
            let why = format!("the spec replicas field {path} does not exist");
            return Err(Status::internal(why));
        }
        return answer(call, &scale_of(&object, paths));
    }
    let kind = match verb {
        "update" => None,
        _ if apply::is_apply(&call.headers) => None,
        _ => Some(PatchKind::of(&call.headers, call.row.custom)?),
    };
    let options = call.write_options(if verb == "update" {
        "UpdateOptions"
    } else {
        "PatchOptions"
    })?;
    let change = if verb == "update" {
        let media = body::media(&call.headers)?;
        let bytes = body::read(body).await?;
        let mut scale = body::object(call, &expected, media, &bytes, options.validation)?;
        metadata::settle_namespace(&mut scale, call.namespace.as_deref())?;
        update::check_name(call, &scale)?;
        Change::Replace(scale)
    } else if let Some(kind) = kind {
        let bytes = body::read(body).await?;
        Change::Patch(
            Patch::parse(kind, options.validation, &bytes),
            options.validation,
        )
    } else {
        // kube-apiserver looks for the object before it reads the configuration.
        call.stored()?;
        let config = apply::configuration(&body::read(body).await?, "autoscaling/v1", "Scale")?.0;
        Change::Apply(config, apply::is_forced(call))
    };
    let source = ScaleSource {
        paths,
        expected,
        change,
        dry_run: options.dry_run,
        manager: &options.manager,
    };
    // The object itself is updated, through its own admission and validation.
    let (_, outcome) = write::update(call, &options, Part::Main, &source).await?;
    let object = match outcome {
        reply::Outcome::Stored(object) => call.row.served(&object),
        reply::Outcome::Object(object) | reply::Outcome::Plain(object) => object,
    };
    answer(call, &scale_of(&object, paths))
}

const COLUMNS: &[Column] = &[
    print::column("Name"),
    print::typed("Desired", "integer"),
    print::typed("Available", "integer"),
    print::column("Age"),
];

/// Encodes a Scale in the form that the client asked for.
fn answer(call: &Call, scale: &Value) -> Result<Response<Body>, Status> {
    let shown = match call.form.shape {
        Shape::Whole => scale.clone(),
        Shape::Metadata(version) => table::all_metadata_of(scale, version),
        Shape::MetadataList(_) => {
            return Err(reply::no_list("autoscaling.Scale"));
        }
        Shape::Table(version) => {
            let count = |part: &str| {
                scale[part]
                    .get("replicas")
                    .cloned()
                    .unwrap_or_else(|| 0.into())
            };
            let cells = vec![
                scale["metadata"]["name"].clone(),
                count("spec"),
                count("status"),
                print::age(scale, call.now),
            ];
            let row = table::row_of(cells, scale, version, table::Include::parse(&call.query)?);
            let metadata = json!({"resourceVersion": scale["metadata"]["resourceVersion"]});
            table::table(version, metadata, table::columns(COLUMNS), vec![row])
        }
    };
    reply::encode(call.form.media, 200, &shown, None)
}

/// The placeholder for the replica count of a custom resource that has none; a change that leaves it in place is refused.
const UNSET: i64 = i32::MIN as i64;

enum Change {
    Replace(Value),
    /// A patch, or the error in it.
    Patch(Result<Patch, Status>, FieldValidation),
    /// The configuration of an apply, and whether it is forced.
    Apply(Value, bool),
}

struct ScaleSource<'a> {
    paths: &'a Paths<'a>,
    expected: Expected<'a>,
    change: Change,
    dry_run: bool,
    manager: &'a str,
}

impl ScaleSource<'_> {
    /// Returns the new Scale, and the object's managedFields after the change.
    fn scale(&self, call: &Call, old: &Value) -> Result<(Value, Option<Value>), Status> {
        let mut before = scale_of(old, self.paths);
        // A patch of the Scale needs a number to start from.
        if call.row.custom && replicas(old, self.paths).is_none() {
            before["spec"]["replicas"] = UNSET.into();
        }
        let entries = &old["metadata"]["managedFields"];
        let owners = ownership::owners_of_scale(entries, self.paths.spec);
        if let Some(owners) = owners {
            metadata::of(&mut before).insert("managedFields".into(), owners);
        }
        let writer = ownership::Writer {
            manager: self.manager,
            api_version: "autoscaling/v1",
            subresource: Some("scale"),
            resets_status: false,
            resets: &[],
            now: call.now,
        };
        let mut scale = match &self.change {
            Change::Replace(scale) => scale.clone(),
            Change::Patch(patch, validation) => {
                let patch = patch.as_ref().map_err(Clone::clone)?;
                body::patched(call, &self.expected, patch, || before.clone(), *validation)?
            }
            Change::Apply(config, force) => {
                ownership::apply(self.expected.schema, &writer, *force, config, Some(&before))?
            }
        };
        if !matches!(self.change, Change::Apply(..)) {
            ownership::track(self.expected.schema, &writer, &mut scale, Some(&before));
            ownership::unfold(&mut scale);
        }
        let after = ownership::owners_after_scale(
            entries,
            &scale["metadata"]["managedFields"],
            self.paths.spec,
            call.row.api_version(),
        );
        Ok((scale, after))
    }
}

/// Returns 422 for a negative number of replicas of a custom resource.
fn check_custom_replicas(call: &Call, paths: &Paths<'_>, replicas: i64) -> Result<(), Status> {
    if replicas >= 0 {
        return Ok(());
    }
    let mut errors = Errors::default();
    let path = format!(".{}", paths.spec);
    let why = "should be a non-negative integer";
    errors.invalid(&Path::new(&path), replicas, why);
    Err(Status::invalid(call.resource(), &call.name, &errors))
}

/// Returns 422 unless the Scale of a built-in kind is valid (kube-apiserver: `ValidateScale`).
fn check_scale(call: &Call, scale: &Value, replicas: i64) -> Result<(), Status> {
    let (mut errors, path) = (Errors::default(), Path::new("metadata"));
    let rule = NameRule::DnsSubdomain;
    metadata_rules::object_meta(&mut errors, &path, &scale["metadata"], true, rule);
    metadata_rules::kube_finalizers(&mut errors, &path, &scale["metadata"]);
    if replicas < 0 {
        let why = "must be greater than or equal to 0";
        errors.invalid(&Path::new("spec").child("replicas"), replicas, why);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        let name = &call.name;
        Err(Status::invalid_kind("autoscaling", "Scale", name, &errors))
    }
}

/// Returns the 409 for a Scale with another object's uid.
fn of_another(call: &Call, given: &str, stored: &str) -> Status {
    let resource = call.resource();
    let (name, group) = (&call.name, &resource.group);
    let what = if call.row.custom {
        resource.kind.clone()
    } else {
        format!("{}/scale", resource.plural).into()
    };
    let dot = if group.is_empty() { "" } else { "." };
    let message = format!(
        "Operation cannot be fulfilled on {what}{dot}{group} {name:?}: Precondition failed: \
         UID in precondition: {given}, UID in object meta: {stored}"
    );
    let mut status = Status::new(409, "Conflict", message);
    status.details = Some(Box::new(Details {
        name: name.clone(),
        group: group.to_string(),
        kind: what.to_string(),
        ..Details::default()
    }));
    status
}

impl Source for ScaleSource<'_> {
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status> {
        let mut object = old.clone();
        ownership::unfold(&mut object);
        let stored_uid = metadata::text(old, "uid");
        if let Change::Replace(scale) = &self.change {
            update::check_uid(call, metadata::text(scale, "uid"), stored_uid, self.dry_run)?;
        }
        let (mut scale, entries) = self.scale(call, &object)?;
        metadata::settle_namespace(&mut scale, call.namespace.as_deref())?;
        update::check_name(call, &scale)?;
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        if call.row.custom && replicas == UNSET {
            let path = quote(&format!(".{}", self.paths.spec));
            let why = format!("the spec replicas field {path} cannot be empty");
            return Err(Status::bad_request(why));
        }
        if call.row.custom {
            check_custom_replicas(call, self.paths, replicas)?
        } else {
            check_scale(call, &scale, replicas)?
        }
        match metadata::text(&scale, "uid") {
            "" => {}
            uid if uid == stored_uid => {}
            uid => return Err(of_another(call, uid, stored_uid)),
        }
        set_replicas(&mut object, self.paths, replicas);
        let metadata = metadata::of(&mut object);
        // A Scale without a resourceVersion applies to whatever is stored, even for kinds whose own updates must name a version.
        if call.resource().rules.unconditional_update
            || scale["metadata"].get("resourceVersion").is_some()
        {
            metadata::keep(metadata, &scale["metadata"], "resourceVersion");
        }
        match entries {
            Some(entries) => metadata.insert("managedFields".into(), entries),
            None => metadata.remove("managedFields"),
        };
        Ok(object)
    }

    fn tracks_ownership(&self) -> bool {
        false
    }
}
