//! Says of each FlowSchema whether the priority level that it names exists: the condition `Dangling` (upstream: the flow-control controller in
//! kube-apiserver, apiserver/pkg/util/flowcontrol/apf_controller.go). Requests wait in one queue whatever it says; [`matching`] tells clients of
//! the schema that theirs belongs to.

pub(crate) mod matching;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    http::path::ObjectPath,
    kinds::flowcontrol::GROUP,
    own,
    schema::time,
    server::ApiServer,
    store::{Collection, Cursor, Expired, Key, Store},
};

/// Who owns the condition (upstream: ConfigConsumerAsFieldManager).
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";
/// How long nothing is written after writing, should somebody else write the same condition.
const PAUSE: Duration = Duration::from_millis(100);
/// How long after a write that failed the schemas are looked at again.
const RETRY: Duration = Duration::from_secs(10);

/// Runs until the server is dropped. What is there at the start is settled by [`crate::boot`].
pub(crate) async fn run(server: Weak<ApiServer>) {
    let Some([schemas, levels]) = server.upgrade().map(|server| collections(&server)) else {
        return;
    };
    let follow = |collection: &Arc<Collection>| {
        // Read before the objects: what changes in between is found once more.
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
            drop(server);
            let retry = match settled {
                Settled::Nothing => None,
                Settled::Written => {
                    tokio::time::sleep(PAUSE).await;
                    None
                }
                Settled::Failed => Some(RETRY),
            };
            if wait(&mut of_schemas, &mut of_levels, retry).await.is_err() {
                break;
            }
        }
    }
}

/// Waits for a change of either collection, or for a time.
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

/// The schemas and the levels.
fn collections(server: &ApiServer) -> [Arc<Collection>; 2] {
    collections_of(server.store())
}

fn collections_of(store: &Store) -> [Arc<Collection>; 2] {
    ["flowschemas", "prioritylevelconfigurations"]
        .map(|plural| store.collection(&format!("{plural}.{GROUP}")))
}

/// What came of looking at the schemas.
pub(crate) enum Settled {
    Nothing,
    Written,
    Failed,
}

/// Writes the conditions that are not as they should be.
pub(crate) async fn settle(server: &Arc<ApiServer>) -> Settled {
    let [schemas, levels] = collections(server);
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
        _ if done.is_empty() => Settled::Nothing,
        true => Settled::Written,
        false => Settled::Failed,
    }
}

/// The condition a schema should have, if it has not.
fn wanted(schema: &Value, exists: impl Fn(&str) -> bool) -> Option<Value> {
    let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str();
    let level = level.unwrap_or_default();
    let named =
        format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let wanted = match exists(level) {
        true => json!({
            "type": "Dangling", "status": "False", "reason": "Found", "message": format!("{named} and it exists"),
        }),
        false => json!({
            "type": "Dangling", "status": "True", "reason": "NotFound", "message": format!("{named} but there is no such object"),
        }),
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
