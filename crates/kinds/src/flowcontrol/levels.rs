//! PriorityLevelConfiguration: the number of requests of a priority level that run at once, and the number that wait.

use jiff::Timestamp;
use mullion_kube_text::field::{ErrorType, Errors, Path};
use mullion_schema::tree::{Tree, set_default, set_zero};
use serde_json::{Map, Value};

use super::{Check, conditions, defaults};
use crate::{
    Column, Kind, Printing,
    fields::{self, AtLeast, AtMost, Field, Within, always, set},
    podspec::internal,
    print,
    request::Ctx,
};

/// flowcontrol.apiserver.k8s.io/v1 PriorityLevelConfiguration.
pub(crate) struct PriorityLevelConfiguration;

const EXEMPT: &str = "exempt";
const SHARES: Field = always(
    "nominalConcurrencyShares",
    AtLeast(0, "must be a non-negative integer"),
);
const LENDABLE: Field = set(
    "lendablePercent",
    Within(0, 100, "must be between 0 and 100, inclusive"),
);
const EXEMPT_LEVEL: &[Field] = &[SHARES, LENDABLE];
const LIMITED: &[Field] = &[SHARES];
const PERCENTAGES: &[Field] = &[
    LENDABLE,
    set(
        "borrowingLimitPercent",
        AtLeast(0, "if specified, must be a non-negative integer"),
    ),
];
const QUEUING: &[Field] = &[
    always("queueLengthLimit", AtLeast(1, "must be positive")),
    always("queues", AtLeast(1, "must be positive")),
    always(
        "queues",
        AtMost(10_000_000, "must not be greater than 10000000"),
    ),
];
/// The number of bits of a flow's hash that the choice of queues can use.
const HASH_BITS: u32 = 60;
const COLUMNS: [Column; 7] = [
    print::NAME,
    print::column("Type"),
    print::column("NominalConcurrencyShares"),
    print::column("Queues"),
    print::column("HandSize"),
    print::column("QueueLengthLimit"),
    print::AGE,
];

fn part<'a>(parent: &'a mut Map<String, Value>, field: &str) -> Option<&'a mut Map<String, Value>> {
    parent.get_mut(field).and_then(Value::as_object_mut)
}

impl Kind for PriorityLevelConfiguration {
    fn update_checks(&self, _: &str) -> &'static [Check] {
        Check::WHOLE
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
            return;
        };
        if let Some(exempt) = part(spec, "exempt") {
            set_default(exempt, "nominalConcurrencyShares", 0);
            set_default(exempt, "lendablePercent", 0);
        }
        let Some(limited) = part(spec, "limited") else {
            return;
        };
        set_default(limited, "nominalConcurrencyShares", 30);
        set_default(limited, "lendablePercent", 0);
        let response = part(limited, "limitResponse");
        if let Some(queuing) = response.and_then(|response| part(response, "queuing")) {
            set_zero(queuing, "handSize", 8);
            set_zero(queuing, "queues", 64);
            set_zero(queuing, "queueLengthLimit", 50);
        }
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let name = object["metadata"].text("name");
        let (spec, path) = (&object["spec"], Path::new("spec"));
        level(name, spec, &path, errors);
        mandatory(name, spec, &path, errors);
        conditions(&object["status"], errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        conditions(&object["status"], errors);
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for PriorityLevelConfiguration {
    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let queuing = &spec["limited"]["limitResponse"]["queuing"];
        let number = |of: &Value, field: &str| match of.field(field) {
            Some(number) => number.clone(),
            None => "<none>".into(),
        };
        vec![
            print::name(object),
            spec.text("type").into(),
            number(&spec["limited"], "nominalConcurrencyShares"),
            number(queuing, "queues"),
            number(queuing, "handSize"),
            number(queuing, "queueLengthLimit"),
            print::age(object, now),
        ]
    }
}

/// Requires the mandatory levels to have their fixed spec; of `exempt`, the shares can be set.
fn mandatory(name: &str, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut fixed = defaults::levels().filter(defaults::is_mandatory);
    let Some(fixed) = fixed.find(|level| level["metadata"]["name"] == name) else {
        return;
    };
    let mut wanted = fixed["spec"].clone();
    let mut part = "";
    if name == EXEMPT {
        wanted["exempt"] = spec["exempt"].clone();
        part = " except the 'spec.exempt' field";
    }
    if wanted != *spec {
        errors.with_text(
            ErrorType::Invalid,
            path,
            internal::compact("PriorityLevelConfigurationSpec", spec),
            format!("spec of '{name}'{part} must equal the fixed value"),
        );
    }
}

fn level(name: &str, spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let kind = spec.text("type");
    let at = path.child("type");
    // Requests of an exempt level never wait, so only the server's own level may be one.
    if (name == EXEMPT) != (kind == "Exempt") {
        let why = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.invalid(&at, kind, why);
    }
    match kind {
        "Exempt" => {
            if spec.has("limited") {
                let why = "must be nil if the type is not Limited";
                errors.forbidden(&path.child("limited"), why);
            }
            if let Some(exempt) = spec.field("exempt") {
                fields::validate(EXEMPT_LEVEL, exempt, &path.child("exempt"), errors);
            }
        }
        "Limited" => {
            if spec.has("exempt") {
                let why = "must be nil if the type is Limited";
                errors.forbidden(&path.child("exempt"), why);
            }
            let at = path.child("limited");
            match spec.field("limited") {
                None => errors.required(&at, "must not be empty when type is Limited"),
                Some(limited) => self::limited(limited, &at, errors),
            }
        }
        "" => errors.required(&at, ""),
        other => errors.not_supported(&at, other, &["Exempt", "Limited"]),
    }
}

fn limited(limited: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(LIMITED, limited, path, errors);
    let (response, at) = (&limited["limitResponse"], path.child("limitResponse"));
    let (queuing, queuing_path) = (response.field("queuing"), at.child("queuing"));
    match (response.text("type"), queuing) {
        // kube-apiserver's messages say "Limited" here and below where they mean "Queue".
        ("Reject", Some(_)) => errors.forbidden(
            &queuing_path,
            "must be nil if limited.limitResponse.type is not Limited",
        ),
        ("Reject", None) => {}
        ("Queue", None) => errors.required(
            &queuing_path,
            "must not be empty if limited.limitResponse.type is Limited",
        ),
        ("Queue", Some(given)) => queues(given, &queuing_path, errors),
        ("", _) => errors.required(&at.child("type"), ""),
        (other, _) => errors.not_supported(&at.child("type"), other, &["Queue", "Reject"]),
    }
    fields::validate(PERCENTAGES, limited, path, errors);
}

fn queues(queuing: &Value, path: &Path<'_>, errors: &mut Errors) {
    let number = |field: &str| queuing.integer(field).unwrap_or(0);
    let (queues, hand) = (number("queues"), number("handSize"));
    fields::validate(QUEUING, queuing, path, errors);
    let at = path.child("handSize");
    let bits = entropy_bits(queues, hand);
    if hand <= 0 {
        errors.invalid(&at, hand, "must be positive");
    } else if hand > queues {
        let why = format!("should not be greater than queues ({queues})");
        errors.invalid(&at, hand, why);
    } else if bits > HASH_BITS {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        errors.invalid(&at, hand, why);
    }
}

/// Returns the number of hash bits that dealing a hand of this size from a deck consumes.
fn entropy_bits(deck: i64, hand: i64) -> u32 {
    // A hand of 61 cards needs more bits than there are, for any deck.
    let hand = hand.clamp(0, i64::from(HASH_BITS) + 1);
    let bits: f64 = (deck - hand + 1..=deck)
        .filter(|cards| *cards > 0)
        .map(|cards| (cards as f64).log2())
        .sum();
    bits.ceil() as u32
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field;
    use serde_json::json;

    use super::*;

    fn causes(name: &str, spec: Value) -> Vec<String> {
        field::causes(|errors| {
            level(name, &spec, &Path::new("spec"), errors);
            mandatory(name, &spec, &Path::new("spec"), errors);
        })
    }

    #[test]
    fn a_level_is_limited_and_says_how() {
        let given = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": -1, "lendablePercent": 101, "borrowingLimitPercent": -1,
            "limitResponse": {"type": "Queue", "queuing": {"queues": 4, "handSize": 8, "queueLengthLimit": 0}}}});
        assert_eq!(
            causes("mine", given),
            [
                "spec.limited.nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer",
                "spec.limited.limitResponse.queuing.queueLengthLimit: Invalid value: 0: must be positive",
                "spec.limited.limitResponse.queuing.handSize: Invalid value: 8: should not be greater than queues (4)",
                "spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive",
                "spec.limited.borrowingLimitPercent: Invalid value: -1: if specified, must be a non-negative integer",
            ]
        );
        assert_eq!(
            causes("mine", json!({"type": "Exempt"})),
            [
                r#"spec.type: Invalid value: "Exempt": must be 'Exempt' if and only if `name` is 'exempt'"#
            ]
        );
        let queuing = json!({"queues": 10_000_000, "handSize": 8, "queueLengthLimit": 1});
        let given = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": queuing}}});
        assert_eq!(
            causes("mine", given),
            [
                "spec.limited.limitResponse.queuing.handSize: Invalid value: 8: required entropy bits of deckSize 10000000 and handSize 8 should not be greater than 60"
            ]
        );
    }

    #[test]
    fn what_every_cluster_has_is_valid_and_partly_fixed() {
        for object in defaults::levels() {
            let name = object["metadata"].text("name").to_owned();
            assert_eq!(causes(&name, object["spec"].clone()), [""; 0], "{name}");
        }
        let reject = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 6, "lendablePercent": 0, "limitResponse": {"type": "Reject"}}});
        let found = causes("catch-all", reject);
        assert!(
            found[0].ends_with("spec of 'catch-all' must equal the fixed value"),
            "{found:?}"
        );
    }
}
