//! The largest write that etcd accepts (`--max-request-bytes`), which users of kube-apiserver reach long before its own limit on bodies.
//!
//! etcd measures the transaction that kube-apiserver sends: one comparison and one put, and for updates a read for the case that the
//! comparison fails. The transaction holds an object in the form that kube-apiserver stores: protobuf, or JSON for custom resources.
//! Objects far below the limit are not measured.

use mullion_kube_text::status::Status;
use mullion_schema::proto;
use mullion_store::{Change, Draft, Key};
use serde_json::Value;

use crate::{object::metadata, registry::Row};

/// etcd: `DefaultMaxRequestBytes`.
const MAX_REQUEST_BYTES: usize = 3 << 19;
/// etcd's client: `defaultMaxCallSendMsgSize`.
const MAX_MESSAGE_BYTES: usize = 2 << 20;
/// Objects with a shorter JSON text are not measured: a protobuf message is longer than its JSON only if it is full of empty fields, and
/// then only a few times.
const WORTH_MEASURING_BYTES: usize = MAX_REQUEST_BYTES / 8;

/// The most bytes of JSON that an object of a built-in kind may have before it is examined further. The protobuf message is much shorter
/// than the JSON, but an object beyond this size exceeds [`MAX_REQUEST_BYTES`] all the same.
const MAX_JSON_BYTES: usize = 32 << 20;
/// The same limit for custom resources, which are stored as JSON.
const MAX_CUSTOM_JSON_BYTES: usize = 3 << 20;

/// Returns etcd's refusal as the 500 that kube-apiserver answers with.
pub(crate) fn too_large() -> Status {
    Status::new(500, "", "etcdserver: request is too large")
}

/// Refuses an object that decoding, a patch or defaults have made far larger than etcd would accept, before memory is spent on validating
/// and copying it.
///
/// # Errors
/// [`too_large`].
pub(crate) fn check_growth(row: &Row, object: &Value) -> Result<(), Status> {
    let mut left = if row.custom {
        MAX_CUSTOM_JSON_BYTES
    } else {
        MAX_JSON_BYTES
    };
    if fits(object, &mut left) {
        Ok(())
    } else {
        Err(too_large())
    }
}

/// Returns whether a value has at most about `left` bytes as JSON; stops reading when the limit is reached.
fn fits(value: &Value, left: &mut usize) -> bool {
    // Separators and quotes count, because a document of empty strings or empty objects consists of nothing else.
    let own = match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.len() + 1,
        Value::Object(map) => 4 * map.len() + 1,
        _ => 1,
    };
    let Some(rest) = left.checked_sub(own) else {
        return false;
    };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| fits(item, left)),
        Value::Object(map) => map.iter().all(|(key, value)| {
            let rest = left.checked_sub(key.len());
            *left = rest.unwrap_or_default();
            rest.is_some() && fits(value, left)
        }),
        _ => true,
    }
}

/// Refuses a write that etcd would not accept.
///
/// # Errors
/// etcd's message in the 500 that kube-apiserver answers with.
pub(crate) fn check(row: &Row, change: &Change) -> Result<(), Status> {
    let (key, revision, draft) = match change {
        Change::Create(key, draft) => (key, None, draft),
        Change::Update(seen, draft) => (seen.key(), Some(seen.revision()), draft),
        Change::Delete(_) => return Ok(()),
    };
    if draft.object().len() < WORTH_MEASURING_BYTES {
        return Ok(());
    }
    let key_bytes = key_bytes(row, key);
    let transaction = transaction(key_bytes, stored_bytes(row, draft), revision);
    if transaction > MAX_MESSAGE_BYTES {
        let text = format!(
            "rpc error: code = ResourceExhausted desc = trying to send message larger than max ({transaction} vs. {MAX_MESSAGE_BYTES})"
        );
        return Err(Status::new(500, "", text));
    }
    if raft_request(transaction) > MAX_REQUEST_BYTES {
        return Err(too_large());
    }
    Ok(())
}

/// Returns the size in bytes of the form that kube-apiserver stores.
fn stored_bytes(row: &Row, draft: &Draft) -> usize {
    let object: Value =
        serde_json::from_slice(draft.object()).expect("drafts are serialized from trees");
    stored_object_bytes(row, object)
}

fn stored_object_bytes(row: &Row, mut object: Value) -> usize {
    // kube-apiserver clears it before it stores an object, since etcd keeps the revision beside the value.
    metadata::of(&mut object).remove("resourceVersion");
    if !row.custom {
        return proto::encode(&row.resource.schema, &object).len();
    }
    let json = object.to_string();
    // Go's encoder writes `<`, `>` and `&` as `\u003c` and so on, and ends the text with a newline.
    let escaped = json
        .bytes()
        .filter(|byte| matches!(byte, b'<' | b'>' | b'&'));
    let separators = json.matches(['\u{2028}', '\u{2029}']);
    json.len() + 5 * escaped.count() + 3 * separators.count() + 1
}

/// Returns the length in bytes of the key under which kube-apiserver stores an object.
fn key_bytes(row: &Row, key: &Key) -> usize {
    "/registry/".len() + row.etcd_folder().len() + 1 + key.as_str().len()
}

/// Returns the bytes of a `TxnRequest` that puts a value if the key is at `revision`, or if the key does not exist (`None`).
fn transaction(key: usize, value: usize, revision: Option<u64>) -> usize {
    // The target's kind, the key, and the revision.
    let compare = 2 + field(key) + 1 + varint(revision.unwrap_or_default());
    let put = field(field(key) + field(value));
    // The read for the case that another write came first.
    let get = revision.map_or(0, |_| field(field(field(key))));
    field(compare) + field(put) + get
}

/// Returns the bytes of the `InternalRaftRequest` around a transaction; its header holds the request's id, a large number.
fn raft_request(transaction: usize) -> usize {
    let header = 1 + varint(u64::MAX);
    2 + varint(header as u64) + header + field(transaction)
}

/// Returns the bytes of a length-delimited protobuf field whose number is below 16.
fn field(len: usize) -> usize {
    1 + varint(len as u64) + len
}

fn varint(number: u64) -> usize {
    let bits = u64::BITS - number.leading_zeros();
    bits.max(1).div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use mullion_schema::proto::Writer;

    use super::*;

    /// Encodes the transaction as etcd's client does.
    fn written(key: &str, value: &str, revision: Option<u64>) -> Vec<u8> {
        let message = |fill: &dyn Fn(&mut Writer)| {
            let mut writer = Writer::default();
            fill(&mut writer);
            writer.finish()
        };
        let compare = message(&|compare| {
            compare.varint(2, 2);
            compare.bytes(3, key.as_bytes());
            compare.varint(6, revision.unwrap_or_default());
        });
        let put = message(&|put| {
            put.bytes(1, key.as_bytes());
            put.bytes(2, value.as_bytes());
        });
        let get = message(&|get| get.bytes(1, key.as_bytes()));
        message(&|transaction| {
            transaction.bytes(1, &compare);
            transaction.bytes(2, &message(&|operation| operation.bytes(2, &put)));
            if revision.is_some() {
                transaction.bytes(3, &message(&|operation| operation.bytes(1, &get)));
            }
        })
    }

    #[test]
    fn a_transaction_is_as_long_as_it_is_written() {
        let key = "/registry/pods/default/x";
        for revision in [None, Some(1), Some(127), Some(128), Some(1 << 40)] {
            for len in [0, 1, 127, 128, 20_000, 3_000_000] {
                let value = "x".repeat(len);
                let counted = transaction(key.len(), len, revision);
                assert_eq!(
                    counted,
                    written(key, &value, revision).len(),
                    "{len} {revision:?}"
                );
            }
        }
    }
}
