//! Has an API server check the objects of a manifest that are then taken as they are written: a misspelt field or an impossible value would
//! change the answer without a word.
//!
//! The cluster's own server is asked, which stores nothing (dry run). A kind that it does not serve, and every kind if there is no cluster, is
//! checked on a server in this process by the definitions that this program carries.

use std::collections::BTreeSet;

use kube::Client;
use mullion_api::crds;
use serde_json::{Value, json};

use super::{
    admission::Warnings,
    kinds,
    manifest::Document,
    refused::Refusals,
    source::{self, Source},
    template::put,
    world, writes,
};
use crate::{failure::Failure, up::setup};

/// Checks the objects of these documents that are taken as they are written, and prints what the server warns of. Objects that the user may
/// not create, and kinds that neither the cluster nor this program defines, are not checked. Returns the documents that no server refuses; the
/// refusals of the others repeat its messages.
///
/// # Errors
/// A server does not answer.
pub(crate) async fn check(
    source: &Source,
    documents: Vec<Document>,
    namespace: Option<&str>,
    refusals: &mut Refusals,
) -> Result<Vec<Document>, Failure> {
    let mut local = LocalServer::default();
    let mut warnings = Warnings::default();
    let mut taken = Vec::new();
    for document in documents {
        let checked = check_object(source, &document.object, namespace, &mut local).await;
        if let Some(texts) = refusals.note(&document.place, checked)? {
            warnings.add(&document.place.to_string(), texts);
            taken.push(document);
        }
    }
    warnings.print();
    Ok(taken)
}

/// Checks an object; returns what the server warns of.
async fn check_object(
    source: &Source,
    object: &Value,
    namespace: Option<&str>,
    local: &mut LocalServer,
) -> Result<Vec<String>, Failure> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]);
    let Some((plural, is_namespaced)) = kinds::taken_as_written(&kind) else {
        return Ok(Vec::new());
    };
    // An object that only has a generateName is refused later, as for all kinds.
    if text(&object["metadata"]["name"]).is_empty() {
        return Ok(Vec::new());
    }
    let version = text(&object["apiVersion"]);
    let mut object = object.clone();
    let home = is_namespaced.then(|| world::home_of(&object, namespace).to_owned());
    let mut homed = String::new();
    if let Some(home) = &home {
        put(&mut object["metadata"], "namespace", json!(home));
        homed = format!("/namespaces/{home}");
    }
    let path = format!("{}/{version}{homed}/{plural}", world::api_root(&version));
    if !source.offline {
        match writes::dry_run(&source.client, &path, &object).await? {
            Ok(warnings) => return Ok(warnings),
            // The cluster does not have the kind, or not the namespace.
            Err(status) if status.code == 404 => {}
            Err(status) if status.code == 403 => return Ok(Vec::new()),
            Err(status) => return Err(Failure::input(status.message)),
        }
    }
    let Some(client) = local.that_serves(&version, plural).await? else {
        return Ok(Vec::new());
    };
    if let Some(home) = &home {
        source::make_home(client, home, "default").await?;
    }
    writes::would_create(client, &path, &object).await
}

/// An API server in this process that gets the definitions of this program as they are needed.
#[derive(Default)]
struct LocalServer {
    client: Option<Client>,
    /// The API versions and plurals of the custom resources that it serves.
    serves: BTreeSet<(String, &'static str)>,
}

impl LocalServer {
    /// Returns a client of the server once it serves a kind in a version; `None` if nothing defines the kind in that version.
    async fn that_serves(
        &mut self,
        version: &str,
        plural: &'static str,
    ) -> Result<Option<&Client>, Failure> {
        let definition = match version.split_once('/') {
            // Kinds of the core group are the server's own.
            None => None,
            Some((group, own)) => {
                let found = crds::crd(group, plural).filter(|definition| {
                    let mut versions = definition.spec.versions.iter();
                    versions.any(|version| version.served && version.name == own)
                });
                let Some(found) = found else {
                    return Ok(None);
                };
                Some((found, own))
            }
        };
        let client = self.client.get_or_insert_with(source::local_server);
        if let Some((definition, own)) = definition
            && self.serves.insert((version.to_owned(), plural))
        {
            setup::serve(client, &definition, own).await?;
        }
        Ok(Some(client))
    }
}
