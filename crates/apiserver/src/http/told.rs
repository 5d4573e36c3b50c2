//! Headers that every answer has, whatever it is the answer to.

use http::{HeaderMap, HeaderName, HeaderValue, header::CACHE_CONTROL};
use uuid::{Uuid, fmt::Hyphenated};

use crate::flow_schemas::matching::Flow;

/// By which client and server tell requests apart in their logs.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// What a request is called: as its client says, or by a name of its own (kube-apiserver: WithAuditInit).
pub(crate) fn audit_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(AUDIT_ID).filter(|given| !given.is_empty());
    given.cloned().unwrap_or_else(|| {
        let mut text = [0; Hyphenated::LENGTH];
        let text = Uuid::new_v4().hyphenated().encode_lower(&mut text);
        HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    })
}

/// Tells it, what the client is to know of its flow, and that nobody shall keep the answer, where the answer does not say otherwise.
pub(crate) fn tell(headers: &mut HeaderMap, audit_id: HeaderValue, flow: Option<Flow>) {
    headers.insert(AUDIT_ID, audit_id);
    if let Some(flow) = flow {
        flow.tell(headers);
    }
    let uncached = HeaderValue::from_static("no-cache, private");
    headers.entry(CACHE_CONTROL).or_insert(uncached);
}
