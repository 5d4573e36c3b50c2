//! The parameters of operations, with types and descriptions. Those of a deletion have the descriptions of the DeleteOptions fields.

use mullion_kinds::Resource;
use mullion_schema::descriptions;
use serde_json::{Value, json};

use crate::openapi::{Dialect, wire::DELETE_OPTIONS};

/// Returns a parameter of an operation; `place` is `path` or `query`.
pub(super) fn write(dialect: Dialect, place: &str, name: &str, resource: &Resource) -> Value {
    let described = match (place, name) {
        ("path", "name") => format!("Name of the {}.", resource.kind),
        _ => description(name).to_owned(),
    };
    let mut parameter = json!({"name": name, "in": place, "description": described});
    let kind = json!({"type": kind(name), "uniqueItems": true});
    match (dialect, kind) {
        (Dialect::V2, Value::Object(kind)) => {
            for (word, value) in kind {
                parameter[word] = value;
            }
        }
        (_, kind) => parameter["schema"] = kind,
    }
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}

fn kind(name: &str) -> &'static str {
    match name {
        "gracePeriodSeconds" | "limit" | "limitBytes" | "ports" | "sinceSeconds" | "tailLines"
        | "timeoutSeconds" => "integer",
        "allowWatchBookmarks"
        | "follow"
        | "force"
        | "ignoreStoreReadErrorWithClusterBreakingPotential"
        | "insecureSkipTLSVerifyBackend"
        | "orphanDependents"
        | "previous"
        | "sendInitialEvents"
        | "stderr"
        | "stdin"
        | "stdout"
        | "timestamps"
        | "tty"
        | "watch" => "boolean",
        _ => "string",
    }
}

/// Returns the description of a query parameter, or of the namespace in the path.
fn description(name: &str) -> &'static str {
    match name {
        "allowWatchBookmarks" => {
            "A watch is told from time to time how far it has come, by events of type BOOKMARK."
        }
        "command" => "What to run, word by word; no shell looks at it.",
        "container" => "Which of the pod's containers; may be left out where there is only one.",
        "continue" => "Token from the answer before, for the next page of the same list.",
        "fieldManager" => {
            "Name under which the written fields are owned, at most 128 printable characters; needed to apply."
        }
        "fieldSelector" => "Only objects whose fields have these values.",
        "fieldValidation" => {
            "What happens to fields that the schema does not know and to fields written twice: Ignore drops them, Warn, the default, also tells of them, Strict refuses the request."
        }
        "follow" => "The answer goes on as the container goes on writing.",
        "force" => "An apply takes fields that another manager owns. Only for apply.",
        "insecureSkipTLSVerifyBackend" => {
            "The certificate of the kubelet that has the log is not checked; the log may then be anybody's."
        }
        "labelSelector" => "Only objects whose labels meet this selector.",
        "limit" => {
            "The most objects in one answer; where more remain, the answer has a token to continue with."
        }
        "limitBytes" => "The most bytes of the log in the answer.",
        "namespace" => "Namespace of the object.",
        "path" => "Path to ask for behind the proxy.",
        "ports" => "Ports of the pod to forward to.",
        "pretty" => "If true, the answer is indented.",
        "previous" => "The log of the container before its last restart.",
        "resourceVersion" => {
            "The version that the answer must have or be newer than; a watch starts behind it."
        }
        "resourceVersionMatch" => "How resourceVersion is meant in a list: Exact or NotOlderThan.",
        "sendInitialEvents" => {
            "A watch begins with the objects there are, as ADDED events, and a bookmark behind them."
        }
        "shardSelector" => {
            "Only objects of one shard, told as a range of hashes; what servers without shards do not look at."
        }
        "sinceSeconds" => "Only what was written in the last so many seconds.",
        "stderr" => "The answer has what is written to standard error.",
        "stdin" => "What is sent becomes standard input.",
        "stdout" => "The answer has what is written to standard output.",
        "stream" => "Which stream of the container: All, Stdout or Stderr.",
        "tailLines" => "Only the last so many lines.",
        "timeoutSeconds" => "How long the answer may take, or a watch goes on.",
        "timestamps" => "Every line begins with when it was written.",
        "tty" => "There is a terminal, which has one stream for output and errors.",
        "watch" => "Tells of changes as they happen, instead of listing once.",
        name => descriptions::of_field(DELETE_OPTIONS, name).unwrap_or_default(),
    }
}
