//! DELETE of one object: preconditions, admission, the effect on the object, and the response.

mod effect;
mod options;

use std::sync::Arc;

use axum::body::Body;
use http::Response;
use mullion_kube_text::status::Status;
use mullion_store::{Change, EventType, Key, Object};
use serde_json::{Map, Value, json};

use self::effect::{Effect, effect};
pub(crate) use self::options::DeleteOptions;
use super::{
    call::{Call, WriteOptions},
    reply::{self, Outcome},
    write::{self, Admission},
};
use crate::admission::Operation;

pub(crate) async fn delete(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    let options = DeleteOptions::read(call, body).await?;
    let deletion = call.resource().behaviour.deletion();
    if let Some(why) = deletion.and_then(|deletion| deletion.refuses_deletion(&call.name)) {
        return Err(Status::forbidden(call.resource(), &call.name, why));
    }
    let (code, outcome) = delete_named(call, &call.name, &options).await?;
    reply::outcome(call, code, outcome)
}

/// Deletes an object of the call's namespace by name. Returns when it is removed, or marked for deletion.
pub(crate) async fn delete_named(
    call: &Call,
    name: &str,
    options: &DeleteOptions,
) -> Result<(u16, Outcome), Status> {
    delete_key(call, &call.key(name), options).await
}

/// Deletes an object of the call's kind by key, and retries when another write came in between.
pub(crate) async fn delete_key(
    call: &Call,
    key: &Key,
    options: &DeleteOptions,
) -> Result<(u16, Outcome), Status> {
    loop {
        let found = call.row.collection.get(key.as_str());
        let stored = found.ok_or_else(|| Status::not_found(call.resource(), key.name()))?;
        if let Some(done) = delete_once(call, options, &stored).await? {
            return Ok(done);
        }
    }
}

/// Tries a deletion once against the version that was read. Returns `None` if another write came in between.
async fn delete_once(
    call: &Call,
    options: &DeleteOptions,
    stored: &Arc<Object>,
) -> Result<Option<(u16, Outcome)>, Status> {
    let name = stored.key().name();
    let revision = stored.revision().to_string();
    // Before admission, so that webhooks never see a deletion that is refused anyway.
    check_preconditions(call, options, name, &stored.meta().uid, &revision)?;
    let old = call.row.served_folded(stored);
    admit(call, options, name, &old).await?;
    let effect = effect(call, options, old);
    if options.dry_run {
        Ok(Some(dry_answer(call, options, stored, effect)))
    } else {
        store(call, options, stored.clone(), effect).await
    }
}

async fn admit(
    call: &Call,
    options: &DeleteOptions,
    name: &str,
    old: &Value,
) -> Result<(), Status> {
    let write_options = WriteOptions {
        dry_run: options.dry_run,
        deletion: Some(options.clone()),
        ..WriteOptions::without_query("")
    };
    let mut nothing = Value::Null;
    let admission = Admission::new(call, &write_options, Operation::Delete);
    admission.mutate(name, &mut nothing, Some(old)).await?;
    admission.judge(name, &mut nothing, Some(old)).await
}

/// Marks or removes the object. Returns `None` if another write came in between.
async fn store(
    call: &Call,
    options: &DeleteOptions,
    mut stored: Arc<Object>,
    effect: Effect,
) -> Result<Option<(u16, Outcome)>, Status> {
    let Effect {
        mut object,
        changed,
        gone,
    } = effect;
    // Watchers must see the marked object before it is removed, so mark and removal are two commits.
    if changed {
        let draft = write::draft(&call.row, EventType::Modified, &mut object);
        let change = Change::Update(stored, draft);
        write::request_limit::check(&call.row, &change)?;
        match write::in_time(call.row.collection.commit(change, call.now).await)? {
            Some(marked) => stored = marked,
            None => return Ok(None),
        }
    }
    if !gone {
        return Ok(Some((code_of_mark(options), Outcome::Stored(stored))));
    }
    let change = Change::Delete(stored);
    let Some(last) = write::in_time(call.row.collection.commit(change, call.now).await)? else {
        return Ok(None);
    };
    write::release(call, &object).await;
    let outcome = if call.resource().rules.delete_returns_object {
        Outcome::Stored(last)
    } else {
        success(call, &last)
    };
    Ok(Some((200, outcome)))
}

fn dry_answer(
    call: &Call,
    options: &DeleteOptions,
    stored: &Object,
    effect: Effect,
) -> (u16, Outcome) {
    match effect.gone {
        true if !call.resource().rules.delete_returns_object => (200, success(call, stored)),
        true => (200, Outcome::unfolded(effect.object)),
        false => (code_of_mark(options), Outcome::unfolded(effect.object)),
    }
}

/// Returns the response code of a deletion after which the object is still there. kube-apiserver (DeleteResource) answers 202 only for this
/// option: the code for every deletion that is not immediate would break old clients.
fn code_of_mark(options: &DeleteOptions) -> u16 {
    match options.orphan_dependents {
        Some(false) => 202,
        _ => 200,
    }
}

/// Returns the Status with which most deletions answer.
fn success(call: &Call, gone: &Object) -> Outcome {
    let resource = call.resource();
    let mut details = Map::new();
    details.insert("name".into(), gone.key().name().into());
    if !resource.group.is_empty() {
        details.insert("group".into(), (*resource.group).into());
    }
    // kube-apiserver (finalizeDelete), too, puts the plural in the place of the kind.
    details.insert("kind".into(), (*resource.plural).into());
    details.insert("uid".into(), (*gone.meta().uid).into());
    Outcome::Plain(
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
    )
}

/// Checks the UID and resourceVersion preconditions of a deletion; 409 if one does not match.
pub(crate) fn check_preconditions(
    call: &Call,
    options: &DeleteOptions,
    name: &str,
    uid: &str,
    revision: &str,
) -> Result<(), Status> {
    let resource = call.resource();
    // Namespaces and CustomResourceDefinitions have a storage of their own in kube-apiserver, which words conflicts differently.
    if resource.rules.two_step_deletion {
        let refuse = |what: &str, wanted: &str, found: &str| {
            let why = format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
            );
            Err(Status::conflict(resource, name, &why))
        };
        return match (&options.uid, &options.resource_version) {
            (Some(wanted), _) if wanted != uid => refuse("UID", wanted, uid),
            (_, Some(wanted)) if wanted != revision => refuse("ResourceVersion", wanted, revision),
            _ => Ok(()),
        };
    }
    let refuse = |why: String| {
        // kube-apiserver names the stored form's group: events are stored as the core group's.
        let stored = call.row.stored_version.split_once('/');
        let group = stored.map_or("", |(group, _)| group);
        Err(Status::conflict_kind(group, &resource.kind, name, &why))
    };
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return refuse(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        ));
    }
    if let Some(wanted) = options
        .resource_version
        .as_deref()
        .filter(|wanted| *wanted != revision)
    {
        return refuse(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({revision}). The object might have been modified"
        ));
    }
    Ok(())
}
