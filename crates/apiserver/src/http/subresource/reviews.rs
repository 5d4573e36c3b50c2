//! Reviews that are answered and never stored: the kinds of authentication.k8s.io and authorization.k8s.io.
//!
//! `kubectl auth whoami` and `kubectl auth can-i` create them; webhooks and aggregated API servers create them for other users.

use std::{future::Future, pin::Pin};

use axum::body::Body;
use http::{Method, Response};
use mullion_kinds::{
    podspec::internal::{METADATA_FIELDS, OWNER_FIELDS},
    rbac::rule::{MissingRole, Rule, aggregate},
    request::{
        Authorize, User,
        attributes::{Attributes, Resource, Target},
    },
};
use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    status::Status,
    validation::{check, metadata as metadata_rules, selector::Selector},
};
use mullion_schema::{Type, ownership, proto, tree::Tree};
use serde_json::{Map, Value, json};

use crate::{
    admission::Operation,
    auth::authenticate_token,
    http::{
        body,
        call::Call,
        negotiate::{Media, SUPPORTED, Shape},
        reply,
        selector::parse_fields,
        write::{self, Admission},
    },
    object::{metadata, type_meta::Expected},
};

const AUTHORIZATION: &str = "authorization.k8s.io";
/// The order of the fields of a managedFields entry in Go's struct.
const ENTRY_ORDER: &[&str] = &[
    "manager",
    "operation",
    "apiVersion",
    "time",
    "fieldsType",
    "fieldsV1",
    "subresource",
];

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send + 'a>>;

/// Answers a SelfSubjectReview: the user of the request.
pub(crate) fn self_subject(call: &Call, _: Method, body: Body) -> Answer<'_> {
    Box::pin(review(call, body, |call, _| {
        Ok(json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
            "metadata": {"creationTimestamp": metadata::stamp(call.now)},
            "status": {"userInfo": call.user.to_user_info()},
        }))
    }))
}

/// Answers a TokenReview: the user that a token belongs to.
pub(crate) fn token(call: &Call, _: Method, body: Body) -> Answer<'_> {
    Box::pin(review(call, body, |call, mut review| {
        let spec = review["spec"].clone();
        let token = spec.text("token");
        if token.is_empty() {
            let why = "token is required for TokenReview in authentication";
            return Err(Status::bad_request(why));
        }
        let wanted: Vec<String> = texts(&spec, "audiences");
        let audiences = if wanted.is_empty() {
            call.server.authenticator().audiences()
        } else {
            &wanted
        };
        // kube-apiserver authenticates the token as an Authorization header, so it ends at the first space; a leading space leaves no
        // token.
        let token = token.split(' ').next().unwrap_or_default();
        if token.trim().is_empty() {
            return Ok(review);
        }
        // kube-apiserver writes its answer into the status that was sent.
        let mut status = match review["status"].take() {
            Value::Object(status) => status,
            _ => Map::new(),
        };
        let answer = match authenticate_token(
            call.server.authenticator(),
            token.trim(),
            audiences,
            call.now,
        ) {
            Ok(Some(identified)) => json!({
                "authenticated": true, "user": identified.user.to_user_info(), "audiences": identified.audiences,
            }),
            Ok(None) => json!({"error": "invalid bearer token"}),
            Err(error) => json!({"error": format!("[invalid bearer token, {error}]")}),
        };
        // A client's own `authenticated` must not survive beside an error.
        status.remove("authenticated");
        if let Value::Object(answer) = answer {
            status.extend(answer);
        }
        review["status"] = status.into();
        Ok(review)
    }))
}

/// Answers a SelfSubjectAccessReview: whether the user of the request may do something.
pub(crate) fn self_access(call: &Call, _: Method, body: Body) -> Answer<'_> {
    Box::pin(review(call, body, |call, mut review| {
        let mut errors = Errors::default();
        check_attributes(&mut errors, &review["spec"]);
        check_selectors(&mut errors, &review["spec"]["resourceAttributes"]);
        check_metadata(&mut errors, &review["metadata"], false);
        refuse(&errors)?;
        review["status"] = access(call, &call.user, &review["spec"]);
        Ok(review)
    }))
}

/// Answers a SubjectAccessReview: whether another user may do something.
pub(crate) fn access_of(call: &Call, _: Method, body: Body) -> Answer<'_> {
    Box::pin(review(call, body, |call, mut review| {
        let mut errors = Errors::default();
        check_attributes(&mut errors, &review["spec"]);
        check_subject(&mut errors, &review["spec"]);
        check_selectors(&mut errors, &review["spec"]["resourceAttributes"]);
        check_metadata(&mut errors, &review["metadata"], false);
        refuse(&errors)?;
        review["status"] = access(call, &subject(&review["spec"]), &review["spec"]);
        Ok(review)
    }))
}

/// Answers a LocalSubjectAccessReview: whether another user may do something in this namespace.
pub(crate) fn local_access_of(call: &Call, _: Method, body: Body) -> Answer<'_> {
    Box::pin(review(call, body, |call, mut review| {
        let mut errors = Errors::default();
        let spec = &review["spec"];
        check_attributes(&mut errors, spec);
        check_subject(&mut errors, spec);
        check_selectors(&mut errors, &spec["resourceAttributes"]);
        check_metadata(&mut errors, &review["metadata"], true);
        let asked = spec["resourceAttributes"].text("namespace");
        if spec.has("resourceAttributes") && Some(asked) != call.namespace.as_deref() {
            let path = Path::new("spec.resourceAttributes.namespace");
            errors.invalid(&path, asked, "must match metadata.namespace");
        }
        if let Some(attributes) = spec.field("nonResourceAttributes") {
            let path = Path::new("spec.nonResourceAttributes");
            let shown = non_resource_text(attributes);
            let why = "disallowed on this kind of request";
            errors.with_text(ErrorType::Invalid, &path, shown, why);
        }
        refuse(&errors)?;
        review["status"] = access(call, &subject(&review["spec"]), &review["spec"]);
        Ok(review)
    }))
}

/// Answers a SelfSubjectRulesReview: the rules that apply to the user of the request.
pub(crate) fn self_rules(call: &Call, _: Method, body: Body) -> Answer<'_> {
    Box::pin(review(call, body, |call, review| {
        let namespace = review["spec"].text("namespace");
        if namespace.is_empty() {
            return Err(Status::bad_request("no namespace on request"));
        }
        let (rules, unknown) = call.server.authorizer().rules(&call.user, namespace);
        let part = |of: fn(&Rule) -> bool| -> Vec<Value> {
            let rules = rules.iter().filter(|rule| of(rule));
            rules.map(Rule::to_json).collect()
        };
        let mut status = json!({
            "resourceRules": part(|rule| !rule.resources.is_empty()),
            "nonResourceRules": part(|rule| !rule.urls.is_empty()),
            "incomplete": false,
        });
        if !unknown.is_empty() {
            let errors = unknown.iter().map(MissingRole::to_string).collect();
            status["evaluationError"] = aggregate(errors).into();
        }
        Ok(json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
            "metadata": {}, "spec": {}, "status": status,
        }))
    }))
}

/// Decodes a review, lets `fill` answer it, and returns it.
async fn review(
    call: &Call,
    body: Body,
    fill: impl FnOnce(&Call, Value) -> Result<Value, Status>,
) -> Result<Response<Body>, Status> {
    let media = body::media(&call.headers)?;
    let options = call.write_options("CreateOptions")?;
    let bytes = body::read(body).await?;
    let expected = Expected::object(&call.row);
    let mut review = body::object(call, &expected, media, &bytes, options.validation)?;
    metadata::settle_namespace(&mut review, call.namespace.as_deref())?;
    metadata::wipe(&mut review);
    write::dedup_owners(call, &mut review, false);
    write::track_ownership(call, &options, write::Part::Main, &mut review, None);
    ownership::unfold(&mut review);
    let name = metadata::text(&review, "name").to_owned();
    let admission = Admission::new(call, &options, Operation::Create);
    admission.mutate(&name, &mut review, None).await?;
    admission.judge(&name, &mut review, None).await?;
    let mut review = fill(call, review)?;
    let given = review["status"].clone();
    mullion_schema::normalise(call.schema(), &mut review);
    // Reviews are not stored, so the empty lists of an answer do not become null.
    for (field, value) in given.as_object().into_iter().flatten() {
        if value.as_array().is_some_and(Vec::is_empty) && review["status"].get(field).is_some() {
            review["status"][field] = json!([]);
        }
    }
    answer(call, call.schema(), &review)
}

/// Encodes an object that exists in one representation only.
pub(super) fn answer(call: &Call, schema: &Type, object: &Value) -> Result<Response<Body>, Status> {
    if call.form.shape != Shape::Whole {
        let why = format!("only the following media types are accepted: {SUPPORTED}");
        return Err(reply::not_acceptable(&why));
    }
    match call.form.media {
        Media::Protobuf => {
            let body = proto::encode(schema, object);
            Ok(reply::bytes(201, Media::Protobuf, body.into()))
        }
        media => reply::encode(media, 201, object, None),
    }
}

fn texts(value: &Value, field: &str) -> Vec<String> {
    let items = value.items(field).iter();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

/// Returns the user that a review is about.
fn subject(spec: &Value) -> User {
    let extra = spec.entries("extra").map(|(key, values)| {
        let values = values.as_array().into_iter().flatten();
        let texts = values.filter_map(|value| value.as_str().map(str::to_owned));
        (key.to_owned(), texts.collect())
    });
    User {
        name: spec.text("user").to_owned(),
        groups: texts(spec, "groups"),
        uid: spec.text("uid").to_owned(),
        extra: extra.collect(),
    }
}

/// Returns the status of an access review.
fn access(call: &Call, user: &User, spec: &Value) -> Value {
    let target = match spec.field("resourceAttributes") {
        Some(attributes) => Target::Resource(Resource {
            group: attributes.text("group"),
            resource: attributes.text("resource"),
            subresource: attributes.text("subresource"),
            namespace: attributes.text("namespace"),
            name: attributes.text("name").into(),
        }),
        None => Target::Path(spec["nonResourceAttributes"].text("path")),
    };
    let of = match target {
        Target::Resource(_) => "resourceAttributes",
        Target::Path(_) => "nonResourceAttributes",
    };
    let attributes = Attributes {
        verb: spec[of].text("verb").into(),
        target,
    };
    let decision = call.server.authorizer().decide(user, &attributes);
    let mut status = json!({"allowed": decision.allowed});
    if !decision.reason.is_empty() {
        status["reason"] = decision.reason.into();
    }
    let ignored = ignored_selectors(&spec["resourceAttributes"]);
    if !ignored.is_empty() {
        status["evaluationError"] = ignored.join("; ").into();
    }
    status
}

/// Returns an evaluation error for each selector that does not parse (kube-apiserver: BuildEvaluationError). RBAC rules ignore selectors,
/// so the answer stays the same.
fn ignored_selectors(attributes: &Value) -> Vec<String> {
    let is_read = |field: &str, requirement: &Value| match requirement.text("operator") {
        "In" | "NotIn" => field == "labelSelector" || requirement.items("values").len() == 1,
        "Exists" | "DoesNotExist" => field == "labelSelector",
        _ => false,
    };
    let told = ["fieldSelector", "labelSelector"]
        .into_iter()
        .filter_map(|field| {
            let selector = attributes.field(field)?;
            let (raw, requirements) =
                (selector.text("rawSelector"), selector.items("requirements"));
            let read = requirements
                .iter()
                .filter(|requirement| is_read(field, requirement))
                .count();
            let raw_is_read = match field {
                _ if raw.is_empty() => true,
                "fieldSelector" => parse_fields(raw).is_ok(),
                _ => Selector::parse(raw).is_ok(),
            };
            let how = match read {
                _ if read == requirements.len() && raw_is_read => return None,
                0 => "ignored",
                _ => "partially ignored",
            };
            Some(format!(
                "spec.resourceAttributes.{field} {how} due to parse error"
            ))
        });
    told.collect()
}

fn refuse(errors: &Errors) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    // kube-apiserver's error names no kind here.
    Err(Status::invalid_kind(AUTHORIZATION, "", "", errors))
}

fn check_attributes(errors: &mut Errors, spec: &Value) {
    let path = Path::new("spec");
    let (resource, other) = (
        spec.field("resourceAttributes"),
        spec.field("nonResourceAttributes"),
    );
    match (resource, other) {
        (Some(_), Some(other)) => errors.with_text(
            ErrorType::Invalid,
            &path.child("nonResourceAttributes"),
            non_resource_text(other),
            "cannot be specified in combination with resourceAttributes",
        ),
        (None, None) => errors.invalid(
            &path.child("resourceAttributes"),
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        _ => {}
    }
}

/// Validates the selectors of an access review: raw or as requirements, with the right number of values. Unknown operators are accepted,
/// because newer clients may send them.
fn check_selectors(errors: &mut Errors, attributes: &Value) {
    let path = Path::new("spec.resourceAttributes");
    for field in ["fieldSelector", "labelSelector"] {
        let Some(selector) = attributes.field(field) else {
            continue;
        };
        let at = path.child(field);
        let (raw, requirements) = (selector.text("rawSelector"), selector.items("requirements"));
        if !raw.is_empty() && !requirements.is_empty() {
            let why = "may not specified at the same time as requirements";
            errors.invalid(&at.child("rawSelector"), raw, why);
        }
        let list = at.child("requirements");
        if raw.is_empty() && requirements.is_empty() {
            let why = format!("when {at} is specified, requirements or rawSelector is required");
            errors.required(&list, why);
        }
        for (index, requirement) in requirements.iter().enumerate() {
            check_requirement(errors, &list.index(index), requirement, field);
        }
    }
}

fn check_requirement(errors: &mut Errors, path: &Path<'_>, requirement: &Value, of: &str) {
    let (key, values) = (requirement.text("key"), requirement.items("values"));
    let by_label = of == "labelSelector";
    if !by_label && key.is_empty() {
        errors.required(&path.child("key"), "must be specified");
    }
    let at = path.child("values");
    match requirement.text("operator") {
        "In" | "NotIn" if values.is_empty() => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.required(&at, why);
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(&at, why);
        }
        _ => {}
    }
    if by_label {
        metadata_rules::label_name(errors, &path.child("key"), key);
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            check(errors, &at.index(index), value, names::label_value(value));
        }
    }
}

/// Formats NonResourceAttributes as Go prints its internal type.
fn non_resource_text(attributes: &Value) -> String {
    mullion_kube_text::field::go_struct(&[
        ("Path", attributes.text("path").into()),
        ("Verb", attributes.text("verb").into()),
    ])
}

fn check_subject(errors: &mut Errors, spec: &Value) {
    if spec.text("user").is_empty() && spec.items("groups").is_empty() {
        let path = Path::new("spec");
        let why = "at least one of user or group must be specified";
        errors.invalid(&path.child("user"), "", why);
    }
}

/// Refuses metadata in a review, except for the fields that the server itself sets.
fn check_metadata(errors: &mut Errors, metadata: &Value, namespaced: bool) {
    let allowed = |field: &str| field == "managedFields" || (namespaced && field == "namespace");
    let map = metadata.as_object();
    if map.is_none_or(|map| map.keys().all(|field| allowed(field))) {
        return;
    }
    let why = if namespaced {
        "must be empty except for namespace"
    } else {
        "must be empty"
    };
    let shown = ordered(metadata, &METADATA_FIELDS);
    errors.with_text(ErrorType::Invalid, &Path::new("metadata"), shown, why);
}

/// Returns an object as JSON with its fields in the given order.
fn ordered(object: &Value, order: &[&str]) -> String {
    let fields = order.iter().filter_map(|field| {
        let value = object.field(field)?;
        let order = match *field {
            "managedFields" => ENTRY_ORDER,
            "ownerReferences" => &OWNER_FIELDS,
            _ => &[],
        };
        let text = match value.as_array() {
            Some(entries) if !order.is_empty() => {
                let entries = entries.iter().map(|entry| ordered(entry, order));
                format!("[{}]", entries.collect::<Vec<_>>().join(","))
            }
            _ => value.to_string(),
        };
        Some(format!("{field:?}:{text}"))
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}
