//! Tests of optionals: their content, and the errors of values that are not optionals.

use super::*;

#[test]
fn an_optional_holds_whatever_was_found_and_is_a_value_itself() {
    for source in [
        "{'a': optional.of(1)}.?a.value().value() == 1 && {'a': optional.of(1)}[?'a'].value().value() == 1",
        "optional.of({'a': optional.of(1)}).a.value().value() == 1 && optional.of({'a': {'b': 1}}).a.b.value() == 1",
        "optional.ofNonZeroValue(optional.none()).hasValue() && optional.ofNonZeroValue(timestamp('0001-01-01T00:00:00.1Z')).hasValue()",
        "!optional.ofNonZeroValue(timestamp('0001-01-01T00:00:00Z')).hasValue() && optional.ofNonZeroValue(timestamp(0)).hasValue()",
        "[optional.of(1), optional.none()].unwrapOpt() == [1] && optional.unwrap(dyn([])) == []",
    ] {
        assert_eq!(run(source), Ok(Value::Bool(true)), "{source}");
    }
    for (source, message) in [
        (
            "optional.unwrap(dyn([1])) == []",
            "no such overload: optional.unwrap(list)",
        ),
        (
            "dyn([1]).unwrapOpt() == []",
            "no such overload: unwrapOpt(list)",
        ),
        (
            "[dyn(optional.of(1)), dyn(2)].unwrapOpt() == []",
            "value 2 is not optional",
        ),
    ] {
        assert_eq!(run(source).unwrap_err(), message, "{source}");
    }
}
