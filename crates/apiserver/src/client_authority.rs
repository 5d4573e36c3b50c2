//! Publishes the CAs of clients and front proxies for aggregated API servers in the ConfigMap
//! `kube-system/extension-apiserver-authentication` (kube-apiserver: the cluster-authentication-trust controller). Certificates, names
//! and headers that others added stay; certificates stay until they expire.

use std::{collections::HashSet, io::Cursor, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use mullion_kinds::request::Lookup;
use serde_json::{Map, Value, json};
use x509_parser::{
    pem::Pem,
    prelude::{FromDer, X509Certificate},
};

use crate::state::ApiServer;

pub(crate) const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const CLIENTS: &str = "client-ca-file";
const FRONT_PROXIES: &str = "requestheader-client-ca-file";
/// JSON lists: the names of front proxies, and the headers in which they pass on the user (the flags that kubeadm gives kube-apiserver).
const REQUEST_HEADERS: [(&str, &str); 4] = [
    ("requestheader-allowed-names", "front-proxy-client"),
    ("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
    ("requestheader-group-headers", "X-Remote-Group"),
    ("requestheader-username-headers", "X-Remote-User"),
];
/// How long an expired certificate is kept.
const SLACK: SignedDuration = SignedDuration::from_mins(5);

/// The CAs to publish, in PEM.
pub(crate) struct Authorities {
    /// The CA of client certificates.
    pub(crate) clients: Option<String>,
    /// The CA of front proxies.
    pub(crate) front_proxies: Option<String>,
}

/// Returns the ConfigMap as it should be, or `None` if it is up to date. Like kube-apiserver, leaves a map alone that has a list which is
/// not JSON.
pub(crate) fn wanted(server: &Arc<ApiServer>, authorities: &Authorities) -> Option<Value> {
    let stored = server
        .registry()
        .find("", "configmaps", Some(NAMESPACE), NAME);
    let stored = stored.as_deref().and_then(|map| map["data"].as_object());
    let mut data = stored.cloned().unwrap_or_default();
    let now = server.now();
    if let Some(pem) = &authorities.clients {
        add_certificates(&mut data, CLIENTS, pem, now);
    }
    if let Some(pem) = &authorities.front_proxies {
        add_certificates(&mut data, FRONT_PROXIES, pem, now);
        for (field, item) in REQUEST_HEADERS {
            // As in kube-apiserver, one broken list keeps the whole map as it is.
            add_item(&mut data, field, item)?;
        }
    }
    if stored.is_some_and(|stored| *stored == data) || data.is_empty() {
        return None;
    }
    Some(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": data,
    }))
}

fn add_certificates(data: &mut Map<String, Value>, field: &str, pem: &str, now: Timestamp) {
    let told = data.get(field).and_then(Value::as_str).unwrap_or_default();
    let combined = combine(&[told, pem], now);
    data.insert(field.to_owned(), combined.into());
}

/// Adds an item to a JSON list; `None` if the text is not a list of strings.
fn add_item(data: &mut Map<String, Value>, field: &str, item: &str) -> Option<()> {
    let told = data.get(field).and_then(Value::as_str).unwrap_or_default();
    let mut items: Vec<String> = match told {
        "" => Vec::new(),
        told => serde_json::from_str(told).ok()?,
    };
    if !items.iter().any(|told| told == item) {
        items.push(item.to_owned());
        data.insert(field.to_owned(), Value::from(items).to_string().into());
    }
    Some(())
}

/// Returns the certificates of all texts, without duplicates and expired ones.
fn combine(texts: &[&str], now: Timestamp) -> String {
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    for text in texts {
        let blocks = Pem::iter_from_reader(Cursor::new(text)).map_while(Result::ok);
        for block in blocks.filter(|block| block.label == "CERTIFICATE") {
            // Expired certificates go, or the list would grow with every rotation.
            if holds(&block.contents, now) && seen.insert(block.contents.clone()) {
                found.push(pem(&block.contents));
            }
        }
    }
    found.concat()
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
