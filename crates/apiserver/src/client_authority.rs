//! Who signs clients' certificates, told to servers that stand behind this one: the ConfigMap `kube-system/extension-apiserver-authentication`
//! (upstream: the cluster-authentication-trust controller in kube-apiserver). Others may have added authorities: those stay until they expire.
//! Nothing is told of a front proxy, as by a kube-apiserver that was given none: requests are not forwarded.

use std::{io::Cursor, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use x509_parser::{
    pem::Pem,
    prelude::{FromDer, X509Certificate},
};

use crate::{admission::Lookup, server::ApiServer};

pub(crate) const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const FIELD: &str = "client-ca-file";
/// So long after it has expired a certificate is kept.
const SLACK: SignedDuration = SignedDuration::from_mins(5);

/// The ConfigMap as it should be, if it is not.
pub(crate) fn wanted(server: &Arc<ApiServer>, authority: &str) -> Option<Value> {
    let stored = server.find("", "configmaps", Some(NAMESPACE), NAME);
    let stored = stored.as_deref().map(|map| &map["data"]);
    let now = server.now();
    let told = stored.and_then(|data| data[FIELD].as_str());
    let combined = combine(&[told.unwrap_or_default(), authority], now);
    if told.unwrap_or_default() == combined {
        return None;
    }
    let mut data = stored.filter(|data| data.is_object()).cloned();
    data.get_or_insert_with(|| json!({}))[FIELD] = combined.into();
    Some(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": data,
    }))
}

/// The certificates of all texts, each once, without those that have expired.
fn combine(texts: &[&str], now: Timestamp) -> String {
    let mut found: Vec<Vec<u8>> = Vec::new();
    for text in texts {
        let blocks = Pem::iter_from_reader(Cursor::new(text)).map_while(Result::ok);
        for block in blocks.filter(|block| block.label == "CERTIFICATE") {
            if holds(&block.contents, now) && !found.contains(&block.contents) {
                found.push(block.contents);
            }
        }
    }
    found.iter().map(|der| pem(der)).collect()
}

fn holds(der: &[u8], now: Timestamp) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return false;
    };
    let end = certificate.validity().not_after.timestamp();
    let end = Timestamp::from_second(end).unwrap_or(Timestamp::MAX);
    now.duration_since(end) < SLACK
}

fn pem(der: &[u8]) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let encoded = STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
