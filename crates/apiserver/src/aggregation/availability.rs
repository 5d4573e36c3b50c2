//! The condition `Available` of APIServices (kube-aggregator: the local and remote availability controllers).
//!
//! A group and version is available when this server serves it, whichever Service its APIService names, because requests are never
//! forwarded to a Service. So an APIService for a group that is not served gets the status `False` with a message.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use http::Method;
use mullion_schema::time;
use mullion_store::Cursor;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{COLLECTION, STORAGE};
use crate::{own::send, registry::Table, state::ApiServer};

const AVAILABLE: &str = "Available";
/// The pause after a write, in case another client changes the condition back each time.
const PAUSE: Duration = Duration::from_millis(100);
/// The time after a failed write until the objects are checked again.
const RETRY: Duration = Duration::from_secs(10);

/// Maintains the conditions until the server is dropped. `changes` signals that the served groups changed.
pub(crate) async fn run(server: Weak<ApiServer>, mut changes: watch::Receiver<()>) {
    let Some(collection) = server.upgrade().map(|it| it.store().collection(STORAGE)) else {
        return;
    };
    loop {
        // Create the cursor before the objects are read, so that changes in between are seen.
        let Ok(mut cursor) = Cursor::new(collection.clone(), collection.revision()) else {
            continue;
        };
        loop {
            let Some(server) = server.upgrade() else {
                return;
            };
            let written = settle(&server).await;
            // The server must not be kept alive while this loop waits.
            drop(server);
            let retry = match written {
                WriteOutcome::Nothing => None,
                WriteOutcome::All => {
                    tokio::time::sleep(PAUSE).await;
                    None
                }
                WriteOutcome::Some => Some(RETRY),
            };
            let retry = async {
                match retry {
                    Some(retry) => tokio::time::sleep(retry).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                events = cursor.next() => if events.is_err() { break },
                changed = changes.changed() => if changed.is_err() { return },
                () = retry => {}
            }
        }
    }
}

/// The outcome of writing the conditions that had to change.
enum WriteOutcome {
    Nothing,
    All,
    Some,
}

/// Writes the conditions that differ from what they should be.
async fn settle(server: &Arc<ApiServer>) -> WriteOutcome {
    let table = server.registry().table();
    let mut written = WriteOutcome::Nothing;
    for object in server.store().collection(STORAGE).snapshot(None).objects {
        let name = object.key().name();
        let service = object.parse();
        let now = time::format_seconds(&server.now());
        let Some(conditions) = changed(&service, condition(&table, &service), &now) else {
            continue;
        };
        let path = format!("{COLLECTION}/{name}/status");
        let version = &service["metadata"]["resourceVersion"];
        let patch =
            json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
        match send(server, Method::PATCH, &path, &patch).await {
            // One failure is enough for a retry, however many writes after it succeed.
            Ok(()) if !matches!(written, WriteOutcome::Some) => written = WriteOutcome::All,
            Ok(()) => {}
            Err(status) => {
                tracing::debug!(name, %status, "an APIService does not say whether it is available");
                written = WriteOutcome::Some;
            }
        }
    }
    written
}

/// Returns the condition of an APIService, without its time.
fn condition(table: &Table, service: &Value) -> Value {
    let spec = &service["spec"];
    let text = |field: &str| spec[field].as_str().unwrap_or_default();
    let (status, reason, message) = if spec["service"].is_null() {
        let message = "Local APIServices are always available";
        ("True", "Local", message.to_owned())
    } else if table.serves(text("group"), text("version")) {
        ("True", "Passed", "all checks passed".to_owned())
    } else {
        let named = |field: &str| spec["service"][field].as_str().unwrap_or_default();
        let message = format!(
            "this API server forwards no requests, so service/{} in {:?} is not asked and nothing is served under /apis/{}/{}",
            named("name"),
            named("namespace"),
            text("group"),
            text("version")
        );
        ("False", "FailedDiscoveryCheck", message)
    };
    json!({"type": AVAILABLE, "status": status, "reason": reason, "message": message})
}

/// Returns the conditions of an APIService with the wanted one among them; `None` if it is there already.
fn changed(service: &Value, mut wanted: Value, now: &str) -> Option<Vec<Value>> {
    let given = service["status"]["conditions"].as_array();
    let mut conditions = given.cloned().unwrap_or_default();
    let place = conditions
        .iter()
        .position(|given| given["type"] == AVAILABLE);
    let Some(place) = place else {
        wanted["lastTransitionTime"] = now.into();
        conditions.push(wanted);
        return Some(conditions);
    };
    let given = &mut conditions[place];
    let is_same = |field: &str| given[field] == wanted[field];
    if is_same("status") && is_same("reason") && is_same("message") {
        return None;
    }
    wanted["lastTransitionTime"] = if is_same("status") {
        given["lastTransitionTime"].take()
    } else {
        now.into()
    };
    *given = wanted;
    Some(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_condition_that_changes_is_written_and_its_time_only_with_its_status() {
        let of = |conditions: Value| json!({"status": {"conditions": conditions}});
        let wanted = |status: &str, reason: &str| json!({"type": AVAILABLE, "status": status, "reason": reason, "message": "m"});
        let at = |time: &str, mut condition: Value| {
            condition["lastTransitionTime"] = time.into();
            condition
        };
        let other = json!({"type": "Other", "status": "True"});
        let first = changed(&of(json!([other])), wanted("False", "A"), "t1");
        let first = first.expect("the condition is missing");
        assert_eq!(first, [other.clone(), at("t1", wanted("False", "A"))]);
        let first = of(first.into());
        assert_eq!(changed(&first, wanted("False", "A"), "t2"), None);
        let second = changed(&first, wanted("False", "B"), "t2");
        assert_eq!(
            second,
            Some(vec![other.clone(), at("t1", wanted("False", "B"))])
        );
        let third = changed(&first, wanted("True", "B"), "t2");
        assert_eq!(third, Some(vec![other, at("t2", wanted("True", "B"))]));
    }
}
