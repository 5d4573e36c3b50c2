//! Claims of a write on other objects (quota usage): booked before the write is stored, released if it fails.
//!
//! Claims are booked by one request at a time, so that two writes that each fit but not together cannot both pass.

use std::sync::Arc;

use mullion_kube_text::status::Status;
use mullion_schema::ownership;
use mullion_store::Key;
use serde_json::Value;

use super::modify;
use crate::{
    admission::{Claim, Operation, Request},
    http::call::Call,
    registry::Row,
};

/// How often booking is tried when other clients change the claimed objects meanwhile.
const TRIES: usize = 16;

/// The booked claims of one write. They stay booked unless [`BookedClaims::give_back`] is called.
#[derive(Default)]
#[must_use]
pub(super) struct BookedClaims(Vec<Claim>);

/// Books the claims of all plugins for a write, or returns the first refusal.
pub(super) async fn take(
    call: &Call,
    operation: Operation,
    name: &str,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<BookedClaims, Status> {
    // Most writes claim nothing; they do not wait for the lock below.
    if claims(call, operation, name, object, old)?.is_empty() {
        return Ok(BookedClaims::default());
    }
    // Held across the awaits below: two writes that read the same usage would otherwise both fit, and the quota be exceeded.
    let _turn = call.server.claiming().await;
    let mut tries = 0;
    loop {
        tries += 1;
        let mut taken = BookedClaims::default();
        let mut refused = None;
        // Ask the plugins again in each try: they must see the objects as they are now.
        for claim in claims(call, operation, name, object, old)? {
            match book(call, &claim, true).await {
                Ok(()) => taken.0.push(claim),
                Err(status) => {
                    refused = Some(status);
                    break;
                }
            }
        }
        let Some(status) = refused else {
            return Ok(taken);
        };
        taken.give_back(call).await;
        // Only a conflict may be gone in the next try; any other refusal, such as an exceeded quota, is final.
        if tries == TRIES || status.reason != "Conflict" {
            return Err(status);
        }
    }
}

impl BookedClaims {
    /// Releases the claims of a write that was not stored.
    pub(super) async fn give_back(self, call: &Call) {
        for claim in self.0 {
            // A claimed object that was deleted since needs no release.
            let _ = book(call, &claim, false).await;
        }
    }
}

fn claims(
    call: &Call,
    operation: Operation,
    name: &str,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<Vec<Claim>, Status> {
    let ctx = call.ctx(false);
    let mut warnings = Vec::new();
    let request = Request {
        action: call.action(operation),
        namespace: call.namespace.as_deref(),
        name,
        object,
        old,
        warnings: &mut warnings,
    };
    let mut all = Vec::new();
    for plugin in call.server.plugins() {
        if plugin.handles(&request.action) {
            all.extend(plugin.claims(&ctx, &request)?);
        }
    }
    Ok(all)
}

/// Books a claim in its object's status (`take`), or releases it. Booking fails with 409 if the object has changed since the plugin saw
/// it; a release applies to whatever version is stored.
async fn book(call: &Call, claim: &Claim, take: bool) -> Result<(), Status> {
    let row = row(call, claim)?;
    let key = Key::new(claim.namespace.as_deref(), &claim.name);
    let writer = ownership::Writer {
        manager: "kube-apiserver",
        api_version: row.api_version(),
        subresource: Some("status"),
        resets_status: row.has_status_subresource(),
        resets: &[],
        now: call.now,
    };
    modify(&row, call.now, &key, false, |object| {
        let before = object.clone();
        if !take {
            (claim.give_back)(object);
        } else if object["metadata"]["resourceVersion"] == claim.version {
            (claim.take)(object);
        } else {
            let why = "the object has been modified; please apply your changes to the latest version and try again";
            return Err(Status::conflict(&row.resource, &claim.name, why));
        }
        ownership::track(&row.resource.schema, &writer, object, Some(&before));
        Ok(true)
    })
    .await
    .map(|_| ())
}

fn row(call: &Call, claim: &Claim) -> Result<Arc<Row>, Status> {
    let table = call.server.registry().table();
    let row = table.find_plural(claim.group, claim.plural);
    row.cloned()
        .ok_or_else(|| Status::internal("a claim on a kind that is not served"))
}
