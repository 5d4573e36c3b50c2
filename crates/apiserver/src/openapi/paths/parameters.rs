//! What the parameters of operations mean. Those of a deletion are described as the fields of its options.

use crate::schema::descriptions;

const DELETE_OPTIONS: &str = "apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// What a parameter in the query means, or the namespace in the path.
pub(super) fn description(name: &str) -> &'static str {
    match name {
        "allowWatchBookmarks" => {
            "A watch is told from time to time how far it has come, by events of type BOOKMARK."
        }
        "continue" => "Token from the answer before, for the next page of the same list.",
        "fieldManager" => {
            "Name under which the written fields are owned, at most 128 printable characters; needed to apply."
        }
        "fieldSelector" => "Only objects whose fields have these values.",
        "fieldValidation" => {
            "What happens to fields that the schema does not know and to fields written twice: Ignore drops them, Warn, the default, also tells of them, Strict refuses the request."
        }
        "force" => "An apply takes fields that another manager owns. Only for apply.",
        "labelSelector" => "Only objects whose labels meet this selector.",
        "limit" => {
            "The most objects in one answer; where more remain, the answer has a token to continue with."
        }
        "namespace" => "Namespace of the object.",
        "pretty" => "If true, the answer is indented.",
        "resourceVersion" => {
            "The version that the answer must have or be newer than; a watch starts behind it."
        }
        "resourceVersionMatch" => "How resourceVersion is meant in a list: Exact or NotOlderThan.",
        "sendInitialEvents" => {
            "A watch begins with the objects there are, as ADDED events, and a bookmark behind them."
        }
        "timeoutSeconds" => "How long the answer may take, or a watch goes on.",
        "watch" => "Tells of changes as they happen, instead of listing once.",
        name => descriptions::of_field(DELETE_OPTIONS, name).unwrap_or_default(),
    }
}
