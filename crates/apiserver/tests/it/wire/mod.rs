//! The fuzz targets' questions in small: over the corpus of each target, and over what a few changed bytes make of it.

#[path = "../../../../../fuzz/near.rs"]
mod near;
mod questions;

/// Words of the formats.
const WORDS: &[&str] = &[
    "null",
    "-1",
    "\"\"",
    "[]",
    "{}",
    "{\"\":",
    "9223372036854775807",
    "1e999",
    "Ei",
    "%",
    "%00",
    "&watch=1",
    "&continue=",
    " notin (",
    "!",
    "\\u0000",
    "\n- ",
    "&a *a",
    "/~1",
    "/-",
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "\"op\":\"copy\"",
    "metadata",
    "self",
    "oldSelf",
    ".all(x, ",
    "size(",
    "\u{ff}\u{0}\u{80}",
];

fn all_hold(target: &str, ask: fn(&[u8])) {
    near::all_hold(target, WORDS, 1000, ask);
}

#[test]
fn any_path_is_answered_or_refused() {
    all_hold("api_path", questions::path);
}

#[test]
fn any_selectors_leave_some_objects_or_are_refused() {
    all_hold("api_selector", questions::selector);
}

#[test]
fn any_text_is_a_quantity_that_holds_together_or_none() {
    all_hold("api_quantity", questions::quantity);
}

#[test]
fn any_json_patch_is_applied_or_refused() {
    all_hold("api_json_patch", questions::json_patch);
}

#[test]
fn any_merge_patch_is_applied_or_refused() {
    all_hold("api_merge_patch", questions::merge_patch);
}

#[test]
fn any_strategic_merge_patch_is_applied_or_refused() {
    all_hold("api_strategic_patch", questions::strategic_patch);
}

#[test]
fn any_configuration_is_applied_or_refused() {
    all_hold("api_apply", questions::apply);
}

#[test]
fn any_object_is_created_or_refused() {
    all_hold("api_object", questions::object);
}

#[test]
fn any_protobuf_is_created_or_refused() {
    all_hold("api_protobuf", questions::protobuf);
}

#[test]
fn any_rule_is_compiled_and_evaluated_or_refused() {
    all_hold("api_cel", questions::cel);
}

#[test]
fn any_continue_token_goes_on_or_is_refused() {
    all_hold("api_continue", questions::continue_token);
}
