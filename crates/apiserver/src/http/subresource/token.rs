//! `serviceaccounts/token`: issues a token for a service account, bound to a pod, secret or node if requested (kube-apiserver:
//! registry/core/serviceaccount/storage/token.go).

use std::{future::Future, pin::Pin};

use axum::body::Body;
use http::{Method, Response};
use jiff::SignedDuration;
use mullion_kinds::request::{Lookup, service_account::username};
use mullion_kube_text::{
    field::{Errors, Path},
    status::Status,
    validation::metadata::group_version,
};
use mullion_schema::{
    self as schema, Type,
    ownership::{self, Writer},
    tree::{Tree, object_at, set_default},
};
use serde_json::{Value, json};

use super::reviews;
use crate::{
    admission::Operation,
    auth::service_account::{self, Claims, KubernetesClaim, Reference},
    http::{body, call::Call, write::Admission},
    object::{metadata, type_meta::Expected},
};

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
const DEFAULT_SECONDS: i64 = 3600;
const LEAST_SECONDS: i64 = 600;
// kube-apiserver: ValidateTokenRequest.
const MOST_SECONDS: i64 = 1 << 32;
/// The lifetime in seconds of the tokens in pods' volumes. kube-apiserver extends such a token to a year and records when it should have
/// been renewed.
const RENEWED_SECONDS: i64 = 3607;
const YEAR_SECONDS: i64 = 365 * 24 * 3600;

/// Handles `serviceaccounts/token`.
pub(crate) fn serve<'a>(
    call: &'a Call,
    _: Method,
    body: Body,
) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send + 'a>> {
    Box::pin(request(call, body))
}

async fn request(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    let schema = Type::builtin("api.authentication.v1.TokenRequest")
        .ok_or_else(|| Status::internal("TokenRequest is not in the schema table"))?;
    let expected = Expected {
        group: GROUP,
        version: "v1",
        kind: KIND,
        schema: &schema,
        custom: false,
    };
    let options = call.write_options("CreateOptions")?;
    let media = body::media(&call.headers)?;
    let bytes = body::read(body).await?;
    let mut request = body::object(call, &expected, media, &bytes, options.validation)?;
    if let Some(root) = request.as_object_mut() {
        set_default(
            object_at(root, "spec"),
            "expirationSeconds",
            DEFAULT_SECONDS,
        );
    }
    let writer = Writer {
        manager: &options.manager,
        api_version: "authentication.k8s.io/v1",
        subresource: Some("token"),
        resets_status: false,
        resets: &[],
        now: call.now,
    };
    ownership::track(&schema, &writer, &mut request, None);
    ownership::unfold(&mut request);
    metadata::settle_namespace(&mut request, call.namespace.as_deref())?;
    check_name(call, &request)?;
    let account = call.row.served(&*call.stored()?);
    let uid = metadata::text(&account, "uid").to_owned();
    // A uid is a precondition: an account that was deleted and made anew is another account.
    check_uid(call, metadata::text(&request, "uid"), &uid)?;
    let spec = &mut request["spec"];
    // A token without audiences is for the API server itself (kube-apiserver: --api-audiences).
    if spec.items("audiences").is_empty() {
        spec["audiences"] = call.server.authenticator().audiences().into();
    }
    let place = metadata::of(&mut request);
    for (field, value) in [
        ("name", call.name.clone()),
        ("namespace", call.namespace.clone().unwrap_or_default()),
        ("uid", uid),
        ("creationTimestamp", metadata::stamp(call.now)),
    ] {
        place.insert(field.to_owned(), value.into());
    }
    check_time(request["spec"]["expirationSeconds"].as_i64().unwrap_or(0))?;
    let admission = Admission::new(call, &options, Operation::Create);
    admission.mutate(&call.name, &mut request, None).await?;
    admission.judge(&call.name, &mut request, None).await?;
    // After admission, which may have shortened the lifetime or changed the audiences.
    let claims = claims(call, &request["spec"], &account)?;
    let token = service_account::issue(call.server.authenticator(), &claims)
        .map_err(|error| Status::internal(error.to_string()))?;
    // The client sees the lifetime that it asked for, even where the token lives longer, so that it renews the token in time.
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(0);
    let expires = call.now + SignedDuration::from_secs(seconds);
    request["status"] = json!({"token": token, "expirationTimestamp": metadata::stamp(expires)});
    schema::normalise(&schema, &mut request);
    reviews::answer(call, &schema, &request)
}

/// Returns 422 if the request names another service account than the path.
fn check_name(call: &Call, request: &Value) -> Result<(), Status> {
    let given = metadata::text(request, "name");
    if given.is_empty() || given == call.name {
        return Ok(());
    }
    let (path, mut errors) = (Path::new("metadata"), Errors::default());
    let why = "must match the service account name if specified";
    errors.invalid(&path.child("name"), given, why);
    Err(Status::invalid_kind(GROUP, KIND, &call.name, &errors))
}

/// Returns 409 if the request has a uid that is not the service account's.
fn check_uid(call: &Call, given: &str, account: &str) -> Result<(), Status> {
    if given.is_empty() || given == account {
        return Ok(());
    }
    let why = format!(
        "the UID in the token request ({given}) does not match the UID of the service account ({account})"
    );
    Err(Status::conflict_kind(GROUP, KIND, &call.name, &why))
}

fn check_time(seconds: i64) -> Result<(), Status> {
    let why = match seconds {
        ..LEAST_SECONDS => "may not specify a duration less than 10 minutes",
        LEAST_SECONDS..=MOST_SECONDS => return Ok(()),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let mut errors = Errors::default();
    let path = Path::new("spec");
    errors.invalid(&path.child("expirationSeconds"), seconds, why);
    Err(Status::invalid_kind(GROUP, KIND, "", &errors))
}

fn claims(call: &Call, spec: &Value, account: &Value) -> Result<Claims, Status> {
    let namespace = call.namespace.clone().unwrap_or_default();
    let mut bound = KubernetesClaim {
        namespace,
        account: Reference::to(account),
        ..KubernetesClaim::default()
    };
    if let Some(reference) = spec.field("boundObjectRef") {
        bind(call, reference, &mut bound)?;
    }
    let audiences: Vec<String> = spec
        .items("audiences")
        .iter()
        .filter_map(|audience| audience.as_str().map(str::to_owned))
        .collect();
    let now = call.now.as_second();
    let mut seconds = spec["expirationSeconds"].as_i64().unwrap_or(0);
    let is_for_server = audiences
        .iter()
        .all(|audience| call.server.authenticator().audiences().contains(audience));
    // This lifetime marks the token of a pod's volume, whose client may be too old to reload it.
    if bound.pod.is_some() && seconds == RENEWED_SECONDS && is_for_server {
        bound.warn_after = Some(now + seconds);
        seconds = YEAR_SECONDS;
    }
    Ok(Claims {
        audiences,
        expires: now + seconds,
        issued: now,
        issuer: call.server.authenticator().issuer().to_owned(),
        id: uuid::Uuid::new_v4().to_string(),
        not_before: now,
        subject: username(&bound.namespace, &bound.account.name),
        bound,
    })
}

/// Binds the token to the object that a reference names.
fn bind(call: &Call, reference: &Value, bound: &mut KubernetesClaim) -> Result<(), Status> {
    let (kind, name) = (reference.text("kind"), reference.text("name"));
    let api_version = reference.text("apiVersion");
    let (group, version) = group_version(api_version);
    let namespace = Some(bound.namespace.as_str());
    let (plural, namespace) = match (group, kind) {
        ("", "Pod") => ("pods", namespace),
        ("", "Secret") => ("secrets", namespace),
        ("", "Node") => ("nodes", None),
        _ => {
            let kind = format!("{group}/{version}, Kind={kind}");
            let why = format!("cannot bind token to object of type {kind}");
            return Err(Status::bad_request(why));
        }
    };
    metadata::check_key(name)?;
    let find = |plural, namespace, name| call.server.registry().find("", plural, namespace, name);
    let object =
        find(plural, namespace, name).ok_or_else(|| Status::core_not_found(plural, name))?;
    let found = Reference::to(&object);
    if kind == "Pod" && object["spec"].text("serviceAccountName") != call.name {
        return Err(Status::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            call.name
        )));
    }
    let uid = reference.text("uid");
    if !uid.is_empty() && uid != found.uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Status::conflict_kind("", kind, name, &why));
    }
    match kind {
        "Pod" => {
            let node = object["spec"].text("nodeName");
            if !node.is_empty() {
                let known = find("nodes", None, node).map(|node| Reference::to(&node));
                // A node that does not exist is recorded by its name alone.
                bound.node = Some(known.unwrap_or_else(|| Reference {
                    name: node.to_owned(),
                    uid: String::new(),
                }));
            }
            bound.pod = Some(found);
        }
        "Secret" => bound.secret = Some(found),
        _ => bound.node = Some(found),
    }
    Ok(())
}
