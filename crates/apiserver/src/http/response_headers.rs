//! Response headers that the server adds to every answer: `Audit-Id`, priority and fairness, and `Cache-Control`.

use http::{HeaderMap, HeaderName, HeaderValue, header::CACHE_CONTROL};
use uuid::{Uuid, fmt::Hyphenated};

use crate::flows::Flow;

/// The header that identifies a request in the logs of client and server.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Returns the request's `Audit-Id`: the one that the client sent, or a new UUID (kube-apiserver: WithAuditInit).
pub(crate) fn audit_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(AUDIT_ID).filter(|given| !given.is_empty());
    given.cloned().unwrap_or_else(|| {
        let mut text = [0; Hyphenated::LENGTH];
        let text = Uuid::new_v4().hyphenated().encode_lower(&mut text);
        HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    })
}

/// Adds the `Audit-Id` and priority-and-fairness headers, and `Cache-Control: no-cache, private` unless the response has one.
pub(crate) fn add(headers: &mut HeaderMap, audit_id: HeaderValue, flow: Option<Flow>) {
    headers.insert(AUDIT_ID, audit_id);
    if let Some(flow) = flow {
        flow.add_headers(headers);
    }
    let uncached = HeaderValue::from_static("no-cache, private");
    headers.entry(CACHE_CONTROL).or_insert(uncached);
}
