//! certificates.k8s.io/v1 CertificateSigningRequest: a user's request to a signer for a certificate (`pkg/apis/certificates`,
//! `pkg/registry/certificates`).
//!
//! The server records the requesting user, which never changes. The decision is written through `/approval`, and the certificate through
//! `/status`. This server has no signer of its own: signers are programs of users.

use std::collections::HashSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    validation::{one_of, signer_name},
};
use mullion_schema::{time, tree::Tree};
use serde_json::{Value, json};
use x509_parser::{
    certification_request::X509CertificationRequest,
    pem::Pem,
    prelude::{FromDer, X509Certificate},
};

use super::{Column, Kind, print};
use crate::{
    FieldSelection, Printing,
    fields::{self, Anything, AtLeast, Field, Items, OneOf, required, set},
    request::Ctx,
};

/// certificates.k8s.io/v1 CertificateSigningRequest.
pub(super) struct CertificateSigningRequest;

const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
const REQUEST_BLOCK: &str = "CERTIFICATE REQUEST";
const CERTIFICATE_BLOCK: &str = "CERTIFICATE";
/// The conditions that can only be `True`, and that cannot be removed.
const FINAL: [&str; 3] = ["Approved", "Denied", "Failed"];
/// The condition types that only the `/approval` subresource may write.
const DECISIONS: [&str; 2] = ["Approved", "Denied"];
/// The valid key usages, sorted as errors print them.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
const USES: &[Field] = &[required("usages", Items(&OneOf(&USAGES)))];
const LIFETIME: &[Field] = &[set(
    "expirationSeconds",
    AtLeast(
        600,
        "may not specify a duration less than 600 seconds (10 minutes)",
    ),
)];
const CONDITION: &[Field] = &[required("type", Anything)];
const COLUMNS: [Column; 6] = [
    print::NAME,
    print::AGE,
    print::column("SignerName"),
    print::column("Requestor"),
    print::column("RequestedDuration"),
    print::column("Condition"),
];

impl Kind for CertificateSigningRequest {
    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
            return;
        };
        // Whatever the client sent, a request is in the name of the user who makes it.
        let info = ctx.user.to_user_info();
        for field in ["username", "uid", "groups", "extra"] {
            match info.field(field) {
                Some(value) => spec.insert(field.to_owned(), value.clone()),
                None => spec.remove(field),
            };
        }
    }

    /// Restores the stored spec, which is immutable: only metadata and subresources can be written.
    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, old: &Value) {
        object["spec"] = old["spec"].clone();
    }

    fn prepare_status(&self, ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        // A decision that a client sends back unchanged keeps its times.
        for decision in DECISIONS {
            let before: Vec<Value> = of_type(old, decision).cloned().collect();
            if of_type(object, decision).count() != before.len() {
                continue;
            }
            let sent = object["status"]["conditions"].as_array_mut();
            let sent = sent.into_iter().flatten();
            let sent = sent.filter(|condition| condition["type"] == decision);
            for (condition, before) in sent.zip(before) {
                *condition = before;
            }
        }
        stamp(ctx, object, old);
    }

    fn prepare_part(&self, ctx: &Ctx<'_>, _: &str, object: &mut Value, old: &Value) {
        stamp(ctx, object, old);
        // `/approval` writes the conditions and nothing else, not even the certificate.
        let conditions = object["status"].field("conditions").cloned();
        object["spec"] = old["spec"].clone();
        object["status"] = old.field("status").cloned().unwrap_or_else(|| json!({}));
        match conditions {
            Some(conditions) => object["status"]["conditions"] = conditions,
            None => {
                if let Some(status) = object["status"].as_object_mut() {
                    status.remove("conditions");
                }
            }
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        spec(&object["spec"], &Path::new("spec"), errors);
        let path = Path::new("status");
        conditions(
            object["status"].items("conditions"),
            &path.child("conditions"),
            errors,
        );
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        change(object, old, WriteEndpoint::Main, errors);
    }

    fn validate_status(&self, ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        self.validate(ctx, object, errors);
        change(object, old, WriteEndpoint::Status, errors);
    }

    fn validate_part(
        &self,
        _: &Ctx<'_>,
        _: &str,
        object: &Value,
        old: &Value,
        errors: &mut Errors,
    ) {
        change(object, old, WriteEndpoint::Approval, errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }

    fn field_selection(&self) -> Option<&dyn FieldSelection> {
        Some(self)
    }
}

impl Printing for CertificateSigningRequest {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let duration = match spec.integer("expirationSeconds") {
            Some(seconds) => print::duration(seconds),
            None => "<none>".to_owned(),
        };
        vec![
            print::name(object),
            print::age(object, now),
            print::or_none(spec.text("signerName")).into(),
            spec.text("username").into(),
            duration.into(),
            word(object).into(),
        ]
    }
}

impl FieldSelection for CertificateSigningRequest {
    fn selectable_fields(&self) -> &[&'static str] {
        &["spec.signerName"]
    }

    fn selectable_value(&self, object: &Value, _: &str) -> String {
        object["spec"].text("signerName").to_owned()
    }
}

fn of_type<'a>(request: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let conditions = request["status"].items("conditions").iter();
    conditions.filter(move |condition| condition.text("type") == kind)
}

/// Fills in missing times of conditions: a condition that has not changed keeps its time.
fn stamp(ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
    let now = time::format_seconds(&ctx.now);
    let conditions = object["status"]
        .get_mut("conditions")
        .and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if !condition.has("lastUpdateTime") {
            condition["lastUpdateTime"] = now.clone().into();
        }
        if !condition.has("lastTransitionTime") {
            let same = of_type(old, condition.text("type")).find(|before| {
                before["status"] == condition["status"] && before.has("lastTransitionTime")
            });
            let since = same.map(|before| before["lastTransitionTime"].clone());
            condition["lastTransitionTime"] = since.unwrap_or_else(|| now.clone().into());
        }
    }
}

fn word(request: &Value) -> String {
    let is = |kind: &str| of_type(request, kind).next().is_some();
    let mut word = match () {
        () if is("Denied") => "Denied",
        () if is("Approved") => "Approved",
        () => "Pending",
    }
    .to_owned();
    if is("Failed") {
        word.push_str(",Failed");
    }
    if !request["status"].text("certificate").is_empty() {
        word.push_str(",Issued");
    }
    word
}

fn spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let text = spec.text("request");
    if let Err(why) = request(&STANDARD.decode(text).unwrap_or_default()) {
        errors.invalid(&path.child("request"), text, why.to_string());
    }
    let at = path.child("usages");
    fields::validate(USES, spec, path, errors);
    let usages = spec.items("usages");
    // kube-apiserver reports duplicates after all unknown usages.
    let mut seen = HashSet::new();
    for (index, usage) in usages.iter().enumerate() {
        if !seen.insert(usage) {
            errors.duplicate(&at.index(index), usage.clone());
        }
    }
    let (signer, at) = (spec.text("signerName"), path.child("signerName"));
    // Only v1beta1 had this signer, for clients that named none.
    if signer == LEGACY_SIGNER {
        let why = "the legacy signerName is not allowed via this API version";
        errors.invalid(&at, signer, why);
    } else {
        signer_name(errors, &at, signer);
    }
    fields::validate(LIFETIME, spec, path, errors);
}

/// The reason why bytes are not the PEM of a certificate request, or of certificates. The messages are Go's.
#[derive(Debug, PartialEq, thiserror::Error)]
enum PemError {
    /// The first block is not a request.
    #[error("PEM block type must be {REQUEST_BLOCK}")]
    NotARequest,
    /// The block of a request has another content.
    #[error("asn1: structure error: the request is malformed")]
    MalformedRequest,
    /// Something follows the request within its block.
    #[error("asn1: syntax error: trailing data")]
    TrailingData,
    /// The request is signed with another RSA key.
    #[error("crypto/rsa: verification error")]
    Rsa,
    /// The request is signed with another ECDSA key.
    #[error("x509: ECDSA verification failure")]
    Ecdsa,
    /// The request is signed with another Ed25519 key.
    #[error("x509: Ed25519 verification failure")]
    Ed25519,
    /// The request is for a key of an unknown type.
    #[error("x509: cannot verify signature: algorithm unimplemented")]
    UnknownAlgorithm,
    /// A block of this kind is among the certificates.
    #[error("only CERTIFICATE PEM blocks are allowed, found {0:?}")]
    NotACertificate(String),
    /// The block of a certificate has another content.
    #[error("x509: malformed certificate")]
    MalformedCertificate,
    /// There is no block.
    #[error("must contain at least one CERTIFICATE PEM block")]
    NoCertificate,
}

/// Checks that the bytes are a certificate request in PEM, signed with the key that it is for.
fn request(pem: &[u8]) -> Result<(), PemError> {
    // kube-apiserver's ParseCSR decodes the first block and ignores what follows.
    let block = Pem::iter_from_buffer(pem).next();
    let block = block.and_then(Result::ok);
    let Some(block) = block.filter(|block| block.label == REQUEST_BLOCK) else {
        return Err(PemError::NotARequest);
    };
    let Ok((rest, request)) = X509CertificationRequest::from_der(&block.contents) else {
        return Err(PemError::MalformedRequest);
    };
    if !rest.is_empty() {
        return Err(PemError::TrailingData);
    }
    request.verify_signature().map_err(|_| {
        let key = &request.certification_request_info.subject_pki.algorithm;
        match key.algorithm.to_id_string().as_str() {
            "1.2.840.113549.1.1.1" => PemError::Rsa,
            "1.2.840.10045.2.1" => PemError::Ecdsa,
            "1.3.101.112" => PemError::Ed25519,
            _ => PemError::UnknownAlgorithm,
        }
    })
}

/// Checks that the bytes are certificates in PEM.
fn certificates(pem: &[u8]) -> Result<(), PemError> {
    let mut blocks = 0;
    for block in Pem::iter_from_buffer(pem).map_while(Result::ok) {
        if block.label != CERTIFICATE_BLOCK {
            return Err(PemError::NotACertificate(block.label));
        }
        if X509Certificate::from_der(&block.contents).is_err() {
            return Err(PemError::MalformedCertificate);
        }
        blocks += 1;
    }
    if blocks == 0 && !pem.is_empty() {
        return Err(PemError::NoCertificate);
    }
    Ok(())
}

fn conditions(conditions: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let (kind, status) = (condition.text("type"), condition.text("status"));
        let at = path.index(index);
        let type_path = at.child("type");
        fields::validate(CONDITION, condition, &at, errors);
        let allowed: &[&str] = if FINAL.contains(&kind) {
            &["True"]
        } else {
            &["False", "True", "Unknown"]
        };
        if status.is_empty() {
            errors.required(&at.child("status"), "");
        } else {
            one_of(errors, &at.child("status"), status, allowed);
        }
        if matches!(
            (kind, seen.contains("Approved"), seen.contains("Denied")),
            ("Approved", _, true) | ("Denied", true, _)
        ) {
            let why = "Approved and Denied conditions are mutually exclusive";
            errors.invalid(path, kind, why);
        }
        if !seen.insert(kind) {
            errors.duplicate(&type_path, kind);
        }
    }
}

/// The subresource through which a write comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteEndpoint {
    Main,
    Status,
    Approval,
}

fn change(object: &Value, old: &Value, through: WriteEndpoint, errors: &mut Errors) {
    let path = Path::new("status");
    let at = path.child("conditions");
    let count = |request: &Value, kind: &str| of_type(request, kind).count();
    for kind in FINAL {
        if count(object, kind) < count(old, kind) {
            let why = format!("updates may not remove a condition of type {kind:?}");
            errors.forbidden(&at, why);
        }
    }
    if through != WriteEndpoint::Approval {
        for kind in DECISIONS {
            if count(object, kind) > count(old, kind) {
                let why = format!("updates may not add a condition of type {kind:?}");
                errors.forbidden(&at, why);
            }
        }
    }
    let (now, before) = (
        object["status"].text("certificate"),
        old["status"].text("certificate"),
    );
    if now == before {
        return;
    }
    let at = path.child("certificate");
    if let Err(why) = certificates(&STANDARD.decode(now).unwrap_or_default()) {
        errors.invalid(&at, "<certificate data>", why.to_string());
    }
    if through != WriteEndpoint::Status {
        errors.forbidden(&at, "updates may not set certificate content");
    } else if !before.is_empty() {
        errors.forbidden(&at, "updates may not modify existing certificate content");
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;

    use super::*;

    #[test]
    fn a_request_is_signed_with_the_key_it_is_for() {
        let key = rcgen::KeyPair::generate().unwrap();
        let asked = rcgen::CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
        let good = asked.serialize_request(&key).unwrap();
        assert_eq!(request(good.pem().unwrap().as_bytes()), Ok(()));
        let mut forged = good.der().to_vec();
        let last = forged.len() - 1;
        forged[last] ^= 1;
        let forged = STANDARD.encode(forged);
        let pem = format!(
            "-----BEGIN CERTIFICATE REQUEST-----\n{forged}\n-----END CERTIFICATE REQUEST-----\n"
        );
        assert_eq!(
            request(pem.as_bytes()).map_err(|error| error.to_string()),
            Err("x509: ECDSA verification failure".to_owned())
        );
        assert_eq!(
            request(b"AAAA").map_err(|error| error.to_string()),
            Err("PEM block type must be CERTIFICATE REQUEST".to_owned())
        );
    }

    #[test]
    fn a_spec_names_a_signer_and_what_the_key_is_for() {
        let given = json!({"request": "AAAA", "signerName": "s", "usages": ["client auth", "shouting", "client auth"], "expirationSeconds": 599});
        let found = causes(|errors| spec(&given, &Path::new("spec"), errors));
        assert_eq!(
            found[0],
            r#"spec.request: Invalid value: "AAAA": PEM block type must be CERTIFICATE REQUEST"#
        );
        assert!(found[1].starts_with(
            r#"spec.usages[1]: Unsupported value: "shouting": supported values: "any", "cert sign""#
        ));
        assert_eq!(
            found[2..],
            [
                r#"spec.usages[2]: Duplicate value: "client auth""#,
                r#"spec.signerName: Invalid value: "s": must be a fully qualified domain and path of the form 'example.com/signer-name'"#,
                "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
            ]
        );
    }

    #[test]
    fn a_decision_is_made_once_and_through_approval() {
        let with = |kinds: &[&str]| {
            let conditions: Vec<Value> = kinds
                .iter()
                .map(|kind| json!({"type": kind, "status": "True"}))
                .collect();
            json!({"status": {"conditions": conditions}})
        };
        let found = |now: &[&str], before: &[&str], through| {
            causes(|errors| change(&with(now), &with(before), through, errors))
        };
        assert_eq!(found(&["Approved"], &[], WriteEndpoint::Approval), [""; 0]);
        assert_eq!(
            found(&["Approved"], &[], WriteEndpoint::Status),
            [r#"status.conditions: Forbidden: updates may not add a condition of type "Approved""#]
        );
        assert_eq!(
            found(&[], &["Denied"], WriteEndpoint::Approval),
            [
                r#"status.conditions: Forbidden: updates may not remove a condition of type "Denied""#
            ]
        );
        let both = with(&["Approved", "Denied"]);
        let list = both["status"].items("conditions");
        assert_eq!(
            causes(|errors| conditions(list, &Path::new("c"), errors)),
            [
                r#"c: Invalid value: "Denied": Approved and Denied conditions are mutually exclusive"#
            ]
        );
    }
}
