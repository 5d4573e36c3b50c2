//! Request bodies: their size, their media type, and the object in them.

mod options;

use std::fmt::Display;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Limited};
use mullion_kube_text::status::Status;
use mullion_schema::{
    Type,
    decode::{self, DecodeError, Decoded, Problem},
    proto::{self, ProtoError},
};
use serde_json::Value;

pub(crate) use self::options::options;
use super::{
    call::{Call, FieldValidation},
    negotiate::{Media, SUPPORTED},
    patch::Patch,
    update,
    write::request_limit,
};
use crate::{
    limits::BODY_BYTES,
    object::type_meta::{Expected, META_ONLY, MetaError, Mismatch, NO_META, TypeMeta, text},
};

/// Reads a body to its end; 413 if it is too large.
pub(crate) async fn read(body: Body) -> Result<Bytes, Status> {
    match Limited::new(body, BODY_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Err(error) => Err(Status::bad_request(error.to_string())),
    }
}

/// Returns the 413 for a body of more than [`BODY_BYTES`] bytes.
pub(crate) fn too_large() -> Status {
    Status::new(
        413,
        "RequestEntityTooLarge",
        format!("Request entity too large: limit is {BODY_BYTES}"),
    )
}

/// Returns the encoding of a body from its Content-Type; JSON if there is none.
pub(crate) fn media(headers: &HeaderMap) -> Result<Media, Status> {
    let given = headers
        .get(CONTENT_TYPE)
        .map(|value| value.to_str().unwrap_or_default())
        .unwrap_or_default();
    let given = given.split(';').next().unwrap_or_default().trim();
    match given {
        "" => Ok(Media::Json),
        json if json.eq_ignore_ascii_case("application/json") => Ok(Media::Json),
        yaml if yaml.eq_ignore_ascii_case("application/yaml") => Ok(Media::Yaml),
        proto if proto.eq_ignore_ascii_case(Media::Protobuf.content_type()) => Ok(Media::Protobuf),
        _ => Err(Status::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {SUPPORTED}"
            ),
        )),
    }
}

/// Decodes a body as an object of the expected kind. Fields that the schema does not know are dropped, and warned of or refused according
/// to `validation`.
pub(crate) fn object(
    call: &Call,
    expected: &Expected<'_>,
    media: Media,
    body: &[u8],
    validation: FieldValidation,
) -> Result<Value, Status> {
    let decoded = match media {
        Media::Json => decode::json(expected.schema, body),
        Media::Yaml => decode::yaml(expected.schema, body),
        Media::Protobuf => {
            let value = proto::decode(expected.schema, body).map_err(|error| match error {
                ProtoError::Unreadable(DecodeError::TooLarge) => request_limit::too_large(),
                error @ ProtoError::Prefix => unrecognized(expected, &error, body),
                error => Status::bad_request(error.to_string()),
            })?;
            return check_kind(expected, value);
        }
    };
    // kube-apiserver reads the kind of a custom resource before anything else, so a missing kind is reported before other errors.
    let says_type = |decoded: &Decoded| {
        let names = ["apiVersion", "kind"].map(|field| text(&decoded.value, field));
        names.iter().all(|name| !name.is_empty())
    };
    // The body is parsed a second time only where one of the two is missing or decoding failed.
    if expected.custom && !decoded.as_ref().is_ok_and(says_type) {
        check_kind_of_custom(expected, media, body, validation)?;
    }
    let decoded = decoded.map_err(|error| {
        if error == DecodeError::TooLarge {
            return request_limit::too_large();
        }
        // kube-apiserver reads apiVersion and kind first; which error it gives depends on how far that gets.
        let meta = match media {
            Media::Yaml => TypeMeta::of_yaml(body),
            _ => TypeMeta::of_json(body),
        };
        let why = match (&error, &meta) {
            (DecodeError::Yaml(_), _) => Some(error.to_string()),
            (_, Err(MetaError::Syntax)) => Some(format!("{NO_META}{error}")),
            (_, Err(MetaError::Type(why))) => Some(format!("{NO_META}{why}")),
            (_, Ok(_)) => None,
        };
        if let Some(why) = why {
            return unrecognized(expected, &why, body);
        }
        let meta = meta.unwrap_or_default();
        if let Some(why) = unparsable_version(&meta.api_version) {
            return unrecognized(expected, &why, body);
        }
        if let Some(mismatch) = Mismatch::of(expected, &meta.api_version, &meta.kind) {
            return match misread(&mismatch, media, body) {
                Some(why) => expected.refuse(&mismatch.kind, &mismatch.version, &why.to_string()),
                None => mismatch.refusal(expected, &Value::Null),
            };
        }
        let kind = if meta.kind.is_empty() {
            expected.kind
        } else {
            &meta.kind
        };
        expected.refuse(kind, expected.version, &error.to_string())
    })?;
    if let Some(why) = unparsable_version(text(&decoded.value, "apiVersion")) {
        return Err(unrecognized(expected, &why, body));
    }
    let mut problems = decoded.problems;
    // A custom resource is decoded whatever it is, but by its schema only if it has the kind: else only its metadata has unknown fields.
    if expected.custom && Mismatch::find(expected, &decoded.value).is_some() {
        problems.retain(
            |problem| !matches!(problem, Problem::Unknown(path) if !path.starts_with("metadata.")),
        );
        let kind = text(&decoded.value, "kind");
        report(call, &problems, validation, |why| {
            let named = Expected { kind, ..*expected };
            named.refuse(kind, expected.version, why)
        })?;
    }
    let object = check_kind(expected, decoded.value)?;
    call.note_sent(&object, decoded.emptied);
    report(call, &problems, validation, |why| {
        expected.refuse(expected.kind, expected.version, why)
    })?;
    Ok(object)
}

/// Returns the error for an apiVersion that Go cannot parse, if it is one.
fn unparsable_version(version: &str) -> Option<String> {
    let is_unparsable = version.matches('/').count() > 1;
    is_unparsable.then(|| format!("unexpected GroupVersion string: {version}"))
}

/// Returns the decoding error of a body in the version that it names, if there is one.
fn misread(mismatch: &Mismatch, media: Media, body: &[u8]) -> Option<DecodeError> {
    let found = mismatch.named_type()?;
    let read = match media {
        Media::Yaml => decode::yaml(&found, body),
        _ => decode::json(&found, body),
    };
    read.err()
}

/// Returns the 400 for a body in which kube-apiserver finds no apiVersion and kind.
fn unrecognized(expected: &Expected<'_>, why: &impl Display, body: &[u8]) -> Status {
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {why} ({})",
        expected.kind,
        summary(body)
    ))
}

/// Refuses a custom resource without a `kind`, or whose type cannot be read. With `fieldValidation=Ignore` kube-apiserver uses another decoder, whose message differs.
fn check_kind_of_custom(
    expected: &Expected<'_>,
    media: Media,
    body: &[u8],
    validation: FieldValidation,
) -> Result<(), Status> {
    let tree = match media {
        Media::Json => decode::untyped_json(body).ok(),
        Media::Yaml => decode::untyped_yaml(body).ok(),
        Media::Protobuf => None,
    };
    let Some((tree, _)) = tree else {
        return Ok(());
    };
    match TypeMeta::of(&tree) {
        Err(MetaError::Type(why)) => {
            return Err(unrecognized(expected, &format!("{NO_META}{why}"), body));
        }
        Ok(meta) => {
            if let Some(why) = unparsable_version(&meta.api_version) {
                return Err(unrecognized(expected, &why, body));
            }
        }
        Err(MetaError::Syntax) => {}
    }
    let has_none = match &tree {
        Value::Null => true,
        Value::Object(fields) => match fields.get("kind") {
            None | Some(Value::Null) => true,
            Some(kind) => kind == "",
        },
        _ => false,
    };
    if !has_none {
        return Ok(());
    }
    if validation == FieldValidation::Ignore {
        let sent = match media {
            Media::Yaml => tree.to_string(),
            _ => String::from_utf8_lossy(body).trim().to_owned(),
        };
        let why = format!("Object 'Kind' is missing in '{sent}'");
        return Err(expected.refuse(expected.kind, expected.version, &why));
    }
    Err(Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{}' ({})",
        expected.kind,
        String::from_utf8_lossy(body),
        summary(body)
    )))
}

/// Applies a patch to a fresh copy of the object from `old`, and decodes the result.
pub(crate) fn patched(
    call: &Call,
    expected: &Expected<'_>,
    patch: &Patch,
    old: impl Fn() -> Value,
    validation: FieldValidation,
) -> Result<Value, Status> {
    let mut tree = patch.apply(expected.schema, old())?;
    patch.settle(expected.schema, &mut tree);
    // Decoding consumes the patched tree, but the error message shows it, so the rare failure patches again.
    let unfit = |why: &dyn Display| match patch.apply(expected.schema, old()) {
        Ok(tree) => patch.unfit(expected.schema, &tree, &old(), &why),
        Err(status) => status,
    };
    if !tree.is_object() {
        let found = decode::json_kind(&tree);
        return Err(unfit(&format!(
            "{NO_META}json: cannot unmarshal {found} into Go value of type {META_ONLY}"
        )));
    }
    if !expected.custom && !patch.is_strategic() {
        check_patched_type(call, patch, &tree, validation, &unfit)?;
    }
    // kube-apiserver converts the result of a strategic merge patch into the expected type whatever apiVersion and kind it names.
    let checks_type = !expected.custom && !patch.is_strategic();
    if let Some(mismatch) = Mismatch::find(expected, &tree).filter(|_| checks_type) {
        if let Some(object) = converted(call, &mismatch, &tree, &unfit)? {
            return Ok(object);
        }
        // kube-apiserver decodes the kind that it finds before it compares it with the expected one, so decoding errors come first.
        if let Some(found) = Type::builtin_kind(&mismatch.api_version, &mismatch.kind) {
            decode::value(&found, tree).map_err(|error| unfit(&error))?;
        }
        return Err(unfit(&mismatch.why));
    }
    let decoded = decode::value(expected.schema, tree).map_err(|error| match error {
        DecodeError::TooLarge => request_limit::too_large(),
        error => unfit(&error),
    })?;
    if expected.custom
        && let Some(mismatch) = Mismatch::find(expected, &decoded.value)
    {
        return Err(mismatch.invalid(expected, &decoded.value));
    }
    let mut object = decoded.value;
    if patch.is_strategic() {
        object["apiVersion"] = Value::Null;
        object["kind"] = Value::Null;
    }
    let object = check_kind(expected, object)?;
    call.note_sent(&object, decoded.emptied);
    let mut problems = patch.problems().to_vec();
    problems.extend(decoded.problems);
    report(call, &problems, validation, |why| unfit(&why))?;
    Ok(object)
}

/// Refuses a patched object of a built-in kind whose apiVersion or kind cannot be read, or that has lost its apiVersion.
///
/// Without an apiVersion, kube-apiserver decodes the object as the internal type, whose fields have Go's names: it finds none of the
/// object's fields, and so no name.
fn check_patched_type(
    call: &Call,
    patch: &Patch,
    tree: &Value,
    validation: FieldValidation,
    unfit: &impl Fn(&dyn Display) -> Status,
) -> Result<(), Status> {
    let meta = match TypeMeta::of(tree) {
        Ok(meta) => meta,
        Err(MetaError::Syntax) => return Ok(()),
        Err(MetaError::Type(why)) => return Err(unfit(&format!("{NO_META}{why}"))),
    };
    if meta.api_version.matches('/').count() > 1 {
        let why = format!("unexpected GroupVersion string: {}", meta.api_version);
        return Err(unfit(&why));
    }
    if !meta.api_version.is_empty() {
        return Ok(());
    }
    let fields = tree.as_object().into_iter().flatten();
    let fields = fields.filter(|(field, _)| !["apiVersion", "kind"].contains(&field.as_str()));
    let mut problems = patch.problems().to_vec();
    problems.extend(fields.map(|(field, _)| Problem::Unknown(field.clone())));
    report(call, &problems, validation, |why| unfit(&why))?;
    update::check_name(call, &Value::Null)
}

/// Converts a patched object whose apiVersion became another version of its kind back to the requested version. Returns `None` if that
/// version is not served.
fn converted(
    call: &Call,
    mismatch: &Mismatch,
    tree: &Value,
    unfit: &impl Fn(&dyn Display) -> Status,
) -> Result<Option<Value>, Status> {
    if !mismatch.is_convertible {
        return Ok(None);
    }
    let api_version = &mismatch.api_version;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let table = call.server.registry().table();
    let row = table.find(group, version, &call.resource().plural);
    let Some(row) = row.filter(|row| *row.resource.kind == *mismatch.kind) else {
        return Ok(None);
    };
    let decoded = decode::value(&row.resource.schema, tree.clone());
    let mut object = decoded.map_err(|error| unfit(&error))?.value;
    row.resource.behaviour.default(&mut object);
    row.to_stored(&mut object);
    call.row.to_served(&mut object);
    object["apiVersion"] = call.row.api_version().into();
    call.note_recoded();
    Ok(Some(object))
}

/// Adds warnings for the problems that decoding found, or refuses them, according to `validation`.
fn report(
    call: &Call,
    problems: &[Problem],
    validation: FieldValidation,
    refuse: impl FnOnce(&str) -> Status,
) -> Result<(), Status> {
    if problems.is_empty() {
        return Ok(());
    }
    match validation {
        FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            call.warn_all(problems.iter().flat_map(Problem::warnings));
            Ok(())
        }
        FieldValidation::Strict => {
            let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let why = format!("strict decoding error: {}", texts.join(", "));
            Err(refuse(&why))
        }
    }
}

/// Fills in apiVersion and kind if they are absent, and refuses others than the expected ones.
fn check_kind(expected: &Expected<'_>, mut object: Value) -> Result<Value, Status> {
    if let Some(mismatch) = Mismatch::find(expected, &object) {
        return Err(mismatch.refusal(expected, &object));
    }
    // An absent apiVersion or kind is the one of the path, as in kube-apiserver's decoder with its default kind.
    object["apiVersion"] = expected.api_version().into();
    object["kind"] = expected.kind.into();
    Ok(object)
}

/// Returns the first bytes of a body for an error message, in hexadecimal unless the body looks like JSON.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    if body.is_empty() {
        return "<empty>".to_owned();
    }
    let braced = body.first() == Some(&b'{');
    match (braced, body.len() > SHOWN) {
        (true, true) => format!("{} ...", text(&body[..SHOWN])),
        (true, false) => text(body),
        (false, true) => format!("{} ...", hex(&body[..SHOWN])),
        (false, false) => hex(body),
    }
}
