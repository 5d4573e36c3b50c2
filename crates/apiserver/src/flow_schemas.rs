//! Maintains the condition `Dangling` of FlowSchemas: whether the priority level that they name exists (kube-apiserver: the flow-control
//! controller, apiserver/pkg/util/flowcontrol/apf_controller.go). The condition changes no queueing, as all requests share one queue;
//! [`crate::flows`] finds the schema of a request for its response headers.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use mullion_kinds::flowcontrol::GROUP;
use mullion_schema::time;
use mullion_store::{Collection, Cursor, Expired, Key};
use serde_json::{Value, json};

use crate::{flows::collections, http::path::ObjectPath, own, state::ApiServer};

/// The field manager of the condition (kube-apiserver: ConfigConsumerAsFieldManager).
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";
/// The pause after a write, in case another client changes the condition back each time.
const PAUSE: Duration = Duration::from_millis(100);
/// The time after a failed write until the schemas are checked again.
const RETRY: Duration = Duration::from_secs(10);

/// Maintains the conditions until the server is dropped. [`crate::boot`] sets those of the first objects.
pub(crate) async fn run(server: Weak<ApiServer>) {
    let Some([schemas, levels]) = server.upgrade().map(|server| collections(server.store())) else {
        return;
    };
    let follow = |collection: &Arc<Collection>| {
        // Create the cursors before the objects are read, so that changes in between are seen.
        Cursor::new(collection.clone(), collection.revision())
    };
    loop {
        let (Ok(mut of_schemas), Ok(mut of_levels)) = (follow(&schemas), follow(&levels)) else {
            continue;
        };
        loop {
            let Some(server) = server.upgrade() else {
                return;
            };
            let settled = settle(&server).await;
            // The server must not be kept alive while this loop waits.
            drop(server);
            let retry = match settled {
                CheckOutcome::Nothing => None,
                CheckOutcome::Written => {
                    tokio::time::sleep(PAUSE).await;
                    None
                }
                CheckOutcome::Failed => Some(RETRY),
            };
            if wait(&mut of_schemas, &mut of_levels, retry).await.is_err() {
                break;
            }
        }
    }
}

/// Waits for a change of either collection, or until `retry` has passed.
async fn wait(
    one: &mut Cursor,
    other: &mut Cursor,
    retry: Option<Duration>,
) -> Result<(), Expired> {
    let retry = async {
        match retry {
            Some(retry) => tokio::time::sleep(retry).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        events = one.next() => events.map(drop),
        events = other.next() => events.map(drop),
        () = retry => Ok(()),
    }
}

/// The outcome of a check of all schemas.
pub(crate) enum CheckOutcome {
    Nothing,
    Written,
    Failed,
}

/// Writes the conditions that differ from what they should be.
pub(crate) async fn settle(server: &Arc<ApiServer>) -> CheckOutcome {
    let [schemas, levels] = collections(server.store());
    let exists = |level: &str| levels.get(Key::new(None, level).as_str()).is_some();
    let objects = schemas.snapshot(None).objects;
    let stale = objects.iter().filter_map(|object| {
        let condition = wanted(&object.parse(), exists)?;
        Some((object.key().name().to_owned(), condition))
    });
    let writes = stale.map(|(name, mut condition)| async move {
        condition["lastTransitionTime"] = time::format_seconds(&server.now()).into();
        let configuration = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "FlowSchema", "metadata": {"name": name},
            "status": {"conditions": [condition]},
        });
        let path = ObjectPath {
            group: GROUP,
            version: "v1",
            plural: "flowschemas",
            name: Some(&name),
            ..ObjectPath::default()
        };
        let done = own::apply_status(server, &path, MANAGER, &configuration).await;
        if let Err(status) = &done {
            tracing::debug!(name, %status, "a FlowSchema does not tell whether its priority level exists");
        }
        done.is_ok()
    });
    let done = futures::future::join_all(writes).await;
    match done.iter().all(|done| *done) {
        _ if done.is_empty() => CheckOutcome::Nothing,
        true => CheckOutcome::Written,
        false => CheckOutcome::Failed,
    }
}

/// Returns the condition that a schema should have, or `None` if it has it already.
fn wanted(schema: &Value, exists: impl Fn(&str) -> bool) -> Option<Value> {
    let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str();
    let level = level.unwrap_or_default();
    let named =
        format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let wanted = if exists(level) {
        json!({
            "type": "Dangling", "status": "False", "reason": "Found", "message": format!("{named} and it exists"),
        })
    } else {
        json!({
            "type": "Dangling", "status": "True", "reason": "NotFound", "message": format!("{named} but there is no such object"),
        })
    };
    let given = schema["status"]["conditions"].as_array();
    let given = given.into_iter().flatten();
    let mut given = given.filter(|condition| condition["type"] == "Dangling");
    let is_told = given.next().is_some_and(|given| {
        ["status", "reason", "message"]
            .iter()
            .all(|field| given[*field] == wanted[*field])
    });
    (!is_told).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_condition_that_is_not_there_yet_is_wanted() {
        let spec = json!({"priorityLevelConfiguration": {"name": "mine"}});
        let schema = json!({"spec": spec});
        let dangling = wanted(&schema, |_| false).expect("nothing is told yet");
        assert_eq!(
            dangling["message"],
            r#"This FlowSchema references the PriorityLevelConfiguration object named "mine" but there is no such object"#
        );
        let other = json!({"type": "Other", "status": "True"});
        let told = json!({"spec": spec, "status": {"conditions": [other, dangling]}});
        assert_eq!(wanted(&told, |_| false), None);
        let found = wanted(&told, |level| level == "mine").expect("the level exists now");
        assert_eq!([&found["status"], &found["reason"]], ["False", "Found"]);
    }
}
