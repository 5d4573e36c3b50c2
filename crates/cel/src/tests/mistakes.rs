//! Tests of the errors that are found before an expression runs, and of those that follow from them.

use super::*;

/// Returns positions and messages without the quoted lines.
fn told(source: &str) -> Vec<String> {
    let issues = run(source).unwrap_err();
    let lines = issues
        .lines()
        .filter_map(|line| line.strip_prefix("ERROR: <input>:"));
    lines.map(str::to_owned).collect()
}

#[test]
fn what_is_empty_shows_no_line_and_wide_characters_have_wide_marks() {
    const END: &str = "Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', \
                       NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
    assert_eq!(run("").unwrap_err(), format!("ERROR: <input>:1:0: {END}"));
    assert_eq!(
        run("é").unwrap_err(),
        format!(
            "ERROR: <input>:1:1: Syntax error: token recognition error at: 'é'\n | é\n | ＾\nERROR: <input>:1:2: {END}\n | é\n | ．^"
        )
    );
}

#[test]
fn behind_a_complete_expression_only_its_end_is_expected() {
    for (source, expected) in [
        (
            "a b c",
            "1:3: Syntax error: mismatched input 'b' expecting <EOF>",
        ),
        (
            "10.0.0.1",
            "1:5: Syntax error: mismatched input '.0' expecting <EOF>",
        ),
        (
            "(a) b c",
            "1:5: Syntax error: mismatched input 'b' expecting <EOF>",
        ),
        (
            "a[0] b c",
            "1:6: Syntax error: mismatched input 'b' expecting <EOF>",
        ),
        (
            "'(' : 1",
            "1:5: Syntax error: mismatched input ':' expecting <EOF>",
        ),
        (
            "(a b c)",
            "1:4: Syntax error: mismatched input 'b' expecting ')'",
        ),
        (
            "f(a, b c d)",
            "1:8: Syntax error: mismatched input 'c' expecting ')'",
        ),
        (
            "a[b c d]",
            "1:5: Syntax error: mismatched input 'c' expecting ']'",
        ),
        (
            "a ? b ] c",
            "1:7: Syntax error: mismatched input ']' expecting ':'",
        ),
        (
            "f(a ? b, c)",
            "1:8: Syntax error: mismatched input ',' expecting ':'",
        ),
        (
            "a ? b : c d e",
            "1:11: Syntax error: mismatched input 'd' expecting <EOF>",
        ),
        (
            "(a ? b : c d e)",
            "1:12: Syntax error: mismatched input 'd' expecting ')'",
        ),
        (
            r"a[r'\'] b c",
            "1:9: Syntax error: mismatched input 'b' expecting <EOF>",
        ),
    ] {
        assert_eq!(told(source)[0], expected, "{source}");
    }
}

#[test]
fn a_message_of_an_unknown_type_is_one_mistake() {
    assert_eq!(
        told("Object{spec: Object.spec{replicas: me.b}}"),
        ["1:7: undeclared reference to 'Object' (in container '')"]
    );
}

#[test]
fn macros_name_their_variables() {
    for (source, expected) in [
        ("[1].map(x.y, 1)", "1:10: argument is not an identifier"),
        ("[1].filter(1, true)", "1:12: argument is not an identifier"),
        ("[1].sortBy('a', 1)", "1:12: argument is not an identifier"),
        (
            "[1].exists_one(1, true)",
            "1:16: argument must be a simple name",
        ),
        (
            "[1].all(i, 2, true)",
            "1:12: argument must be a simple name",
        ),
        ("[1].all(i, i, true)", "1:12: duplicate variable name: i"),
        (
            "[1].transformMap(__result__, v, v)",
            "1:18: iteration variable overwrites accumulator variable",
        ),
        (
            "[1].exists(__result__, true)",
            "1:12: iteration variable overwrites accumulator variable",
        ),
        (
            "[1].map(__result__, 1)",
            "1:9: iteration variable overwrites accumulator variable",
        ),
        (
            "old.optMap(1, 2)",
            "1:12: optMap() variable name must be a simple identifier",
        ),
        (
            "old.optFlatMap(a.b, old)",
            "1:17: optFlatMap() variable name must be a simple identifier",
        ),
    ] {
        assert_eq!(told(source), [expected], "{source}");
    }
}

#[test]
fn what_is_wrong_fits_everywhere_and_is_named_so() {
    for (source, expected) in [
        (
            "[1, 'a'] + 'x' == ''",
            vec![
                "1:5: expected type 'int' but found 'string'",
                "1:10: found no matching overload for '_+_' applied to '(list(!error!), string)'",
            ],
        ),
        (
            "[1, 'a', 2, 'b'].size() == 2",
            vec![
                "1:5: expected type 'int' but found 'string'",
                "1:13: expected type 'int' but found 'string'",
            ],
        ),
        (
            "{nothing: 1}.size() + 'a' == ''",
            vec![
                "1:2: undeclared reference to 'nothing' (in container '')",
                "1:21: found no matching overload for '_+_' applied to '(int, string)'",
            ],
        ),
        (
            "[self.zz].sum('x') == 1",
            vec![
                "1:6: undefined field 'zz'",
                "1:14: found no matching overload for 'sum' applied to 'list(!error!).(string)'",
            ],
        ),
        (
            "self.zz.yy.all(x, x) && nothing > 1",
            vec![
                "1:5: undefined field 'zz'",
                "1:25: undeclared reference to 'nothing' (in container '')",
            ],
        ),
        (
            "1.all(x, x + 'a' == x)",
            vec![
                "1:1: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
            ],
        ),
        (
            "1.optMap(x, x)",
            vec![
                "1:9: found no matching overload for 'hasValue' applied to 'int.()'",
                "1:9: found no matching overload for 'value' applied to 'int.()'",
            ],
        ),
        (
            "[?1, 'a']",
            vec![
                "1:3: expected type 'optional_type(int)' but found 'int'",
                "1:6: expected type 'int' but found 'string'",
            ],
        ),
        // Where null meets another type, cel-go continues with the later one in a list, and with the first one elsewhere.
        (
            "[self, null][0].a == 3",
            vec!["1:16: type 'null' does not support field selection"],
        ),
        (
            "(true ? null : self).a == 3",
            vec!["1:21: type 'null' does not support field selection"],
        ),
    ] {
        assert_eq!(told(source), expected, "{source}");
    }
    let source = "[null, self][1].a == 3 && (true ? self : null).a == 3 && [self, null].size() == 2 && null != self.t";
    assert_eq!(run(source), Ok(Value::Bool(true)));
}
