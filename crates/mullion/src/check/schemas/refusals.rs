//! Asks the validation of the API server about an object, and sorts its errors: values of a wrong type, and values that are not allowed.

use jiff::Timestamp;
use mullion_apiserver::trial::Trial;
use mullion_kube_text::field::{BadValue, ErrorType, FieldError};
use serde_json::Value;

use super::{Misfit, Refusal, Refused, Warned, misfits::Decoding, unknown::place};
use crate::{
    check::{path::Step, placeholder::is_placeholder},
    near::nearest,
};

/// The error that stands for rules that were not run, because of the other errors.
const NOT_RUN: &str = "some validation rules were not checked";
/// The error of a workload whose selector selects other pods than its own.
const OTHER_LABELS: &str = "`selector` does not match template `labels`";
/// The largest edit distance at which one of the allowed values is suggested.
const NEAR: usize = 2;

/// What an API server answers to a create of an object.
pub(super) struct Answer {
    /// The values of a wrong type in a custom resource.
    pub(super) misfits: Vec<Misfit>,
    /// What else the API server refuses.
    pub(super) refused: Vec<Refused>,
    /// What the API server warns of.
    pub(super) warned: Vec<Warned>,
}

/// Returns the answer to a create of an object.
pub(super) fn answer(trial: &Trial, object: &Value, decoding: &Decoding, now: Timestamp) -> Answer {
    let judgement = trial.judge(&decoding.rest, now).unwrap_or_default();
    let (mut misfits, mut refused) = (Vec::new(), Vec::new());
    for error in judgement.errors {
        let path = place(object, &error.field);
        let why = error.body();
        if error.error_type == ErrorType::TypeInvalid
            && let Some((_, expected)) = decoding.in_custom.iter().find(|(own, _)| *own == path)
        {
            misfits.push(Misfit {
                path,
                expected: Some(expected),
                refusal: Refusal::Validation(format!("{}: {why}", error.field)),
            });
            continue;
        }
        // The value is left out for the decoder's sake, so its absence is no error.
        let is_left_out = (decoding.misfits.iter()).any(|own| own.path.0.starts_with(&path.0));
        // What other fields refer to may be what was left out.
        let is_of_two_fields =
            error.error_type == ErrorType::NotFound || error.detail == OTHER_LABELS;
        let follows = is_left_out || is_of_two_fields && !decoding.misfits.is_empty();
        let is_filled_in_later = is_placeholder(&error.field) || is_placeholder(&why);
        if follows || is_filled_in_later || error.detail.starts_with(NOT_RUN) {
            continue;
        }
        refused.push(Refused {
            near: near(&error),
            is_missing: error.error_type == ErrorType::Required,
            path,
            field: error.field,
            why,
        });
    }
    let texts = judgement.warnings.iter();
    let warned = texts.map(|text| Warned {
        path: place(object, text.split(": ").next().unwrap_or_default()),
        text: text.clone(),
    });
    // A request that is missing is the limit, whose own warning says the same.
    let is_default = |own: &Warned| {
        let of_limit = own.text.replacen(".requests[", ".limits[", 1);
        let is_written = place_ends_in_key(own);
        of_limit != own.text && !is_written && judgement.warnings.contains(&of_limit)
    };
    let warned = warned.filter(|own| !is_placeholder(&own.text) && !is_default(own));
    Answer {
        misfits,
        refused,
        warned: warned.collect(),
    }
}

/// Returns whether the object has the key in brackets with which the field of a warning ends.
fn place_ends_in_key(warned: &Warned) -> bool {
    let field = warned.text.split(": ").next().unwrap_or_default();
    let key = field
        .strip_suffix(']')
        .and_then(|rest| rest.rsplit_once('['));
    let key = key.map(|(_, key)| Step::Key(key.to_owned()));
    key.as_ref() == warned.path.0.last()
}

/// Returns the allowed value that is most like the one that is refused.
fn near(error: &FieldError) -> Option<String> {
    let value = match (error.error_type, &error.bad_value) {
        (ErrorType::NotSupported, Some(BadValue::Json(Value::String(value)))) => value.as_str(),
        (ErrorType::NotSupported, Some(BadValue::Text(value))) => value.trim_matches('"'),
        _ => return None,
    };
    // Allowed values stand in quotes, with commas between.
    let allowed = error.detail.split('"').skip(1).step_by(2);
    nearest(value, allowed, NEAR).map(str::to_owned)
}
