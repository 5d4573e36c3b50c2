//! Validates projected volumes, whose sources must not place two files at one path.

use std::collections::HashSet;

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    validation::{selector, signer_name},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    internal, paths,
    volumes::{FILE_PATH, KEY_TO_PATH, downward_file},
};
use crate::{
    csi::TOKEN_SECONDS,
    fields::{self, Anything, Field, always, required},
};

const NAMED: &[Field] = &[required("name", Anything)];
const TOKEN: &[Field] = &[always("expirationSeconds", TOKEN_SECONDS)];

/// Validates the sources of a projected volume; `path` is the volume's.
pub(super) fn validate(sources: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let list = path.child("sources");
    let mut files = Files::default();
    for (index, source) in sources.iter().enumerate() {
        let at = list.index(index);
        let mut kinds = 0;
        for kind in ["secret", "configMap"] {
            let Some(projection) = source.field(kind) else {
                continue;
            };
            kinds += 1;
            let at = at.child(kind);
            fields::validate(NAMED, projection, &at, errors);
            let items = at.child("items");
            for (item_index, item) in projection.items("items").iter().enumerate() {
                fields::validate(KEY_TO_PATH, item, &items.index(item_index), errors);
                // kube-apiserver's error shows the name of the source here, and the file's path in the other cases.
                files.place(item.text("path"), projection.text("name"), path, errors);
            }
        }
        if let Some(projection) = source.field("downwardAPI") {
            kinds += 1;
            for file in projection.items("items") {
                downward_file(file, &at.child("downwardAPI"), errors);
                let file = file.text("path");
                files.place(file, file, path, errors);
            }
        }
        if let Some(token) = source.field("serviceAccountToken") {
            kinds += 1;
            service_account_token(token, &at.child("serviceAccountToken"), path, errors);
        }
        if let Some(bundle) = source.field("clusterTrustBundle") {
            kinds += 1;
            trust_bundle(bundle, &at.child("clusterTrustBundle"), errors);
            let file = bundle.text("path");
            files.place(file, file, path, errors);
        }
        if kinds > 1 {
            errors.forbidden(&at, "may not specify more than 1 volume type per source");
        }
    }
}

/// The files that projections have placed so far.
#[derive(Default)]
struct Files<'a>(HashSet<&'a str>);

impl<'a> Files<'a> {
    /// Records a file, and reports an error if an earlier item or source has placed a file there.
    fn place(&mut self, file: &'a str, value: &str, path: &Path<'_>, errors: &mut Errors) {
        if !file.is_empty() && !self.0.insert(file) {
            errors.invalid(path, value, "conflicting duplicate paths");
        }
    }
}

fn service_account_token(token: &Value, path: &Path<'_>, volume: &Path<'_>, errors: &mut Errors) {
    fields::validate(TOKEN, token, path, errors);
    if token.text("path").is_empty() {
        // kube-apiserver reports the path of a token at the volume.
        errors.required(&volume.child("path"), "");
    } else {
        paths::local_non_reserved(errors, &volume.child("path"), token.text("path"));
    }
}

fn trust_bundle(bundle: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (name, signer) = (bundle.field("name"), bundle.field("signerName"));
    match (name.and_then(Value::as_str), signer.and_then(Value::as_str)) {
        (Some(_), Some(_)) => {
            let text = internal::compact("ClusterTrustBundleProjection", bundle);
            errors.with_text(
                ErrorType::Invalid,
                path,
                text,
                "only one of name and signerName may be used",
            );
        }
        (Some(name), None) => {
            if name.is_empty() {
                errors.required(&path.child("name"), "must be a valid object name");
            }
            // The bundle of a signer has the signer's name and a colon before its own name.
            let own = name.rsplit_once(':').map_or(name, |(_, own)| own);
            for sentence in names::dns_subdomain(own) {
                errors.invalid(
                    &path.child("name"),
                    name,
                    format!("not a valid clustertrustbundlename: {sentence}"),
                );
            }
            if let Some(selector) = bundle.field("labelSelector") {
                let text = internal::label_selector(selector);
                let detail = "labelSelector must be unset if name is specified";
                errors.with_text(
                    ErrorType::Invalid,
                    &path.child("labelSelector"),
                    text,
                    detail,
                );
            }
        }
        (None, Some(signer)) => {
            let at = path.child("signerName");
            if signer.is_empty() {
                errors.required(&at, "must be a valid signer name");
            }
            signer_name(errors, &at, signer);
            let none = Value::Null;
            selector::label_selector(
                errors,
                &path.child("labelSelector"),
                bundle.get("labelSelector").unwrap_or(&none),
            );
        }
        (None, None) => errors.required(path, "either name or signerName must be specified"),
    }
    fields::validate(FILE_PATH, bundle, path, errors);
}
